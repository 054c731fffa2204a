"""Imports between the packages of dpmix point one way, as in the table of CONTRIBUTING.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOWER = ["errors", "system", "config", "kernels", "model", "drift", "inputs", "engines"]
ORDER = [*LOWER, "explore", "runs", "populations", "association", "report", "commands", "api", "app"]
FOLDERS = {package: ROOT / "dpmix" / package for package in ORDER if package != "errors"}
# Packages in packages: what each may import of its neighbours. The modules around them import from all.
ROOMS = {
    "engines": {"cuda": [], "cluster": ["cuda"]},
    "inputs": {"fcs": [], "simulate": ["fcs"]},
    "populations": {
        "tree": [],
        "events": [],
        "gates": ["tree"],
        "draws": ["tree"],
        "types": ["tree", "events", "draws"],
    },
}
FOLDERS |= {"kernels": ROOT / "kernels", "cli": ROOT / "cli"}


def imported(path: Path, below: str = "dpmix.") -> set[str]:
    """Return the packages of dpmix, or of one of its packages, that a module imports, also in functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix(below).split(".")[0] for name in names if name.startswith(below)}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    below = {*ORDER[: ORDER.index(package)]} if package in ORDER else {*ORDER}
    allowed = below | {package}
    found = {path.name: imported(path) - allowed for path in FOLDERS[package].glob("**/*.py")}
    assert {name: packages for name, packages in found.items() if packages} == {}


def test_every_package_has_its_place() -> None:
    there = {path.parent.name for path in ROOT.glob("dpmix/*/__init__.py")} - {"cli", "kernels"}
    assert there == {*FOLDERS} - {"cli", "kernels"}


@pytest.mark.parametrize(
    ("package", "room"), [(package, room) for package in ROOMS for room in ROOMS[package]]
)
def test_a_room_imports_only_the_rooms_below_it(package: str, room: str) -> None:
    rooms = {path.parent.name for path in (ROOT / "dpmix" / package).glob("*/__init__.py")}
    assert rooms == {*ROOMS[package]}
    allowed = {room, *ROOMS[package][room]}
    for path in (ROOT / "dpmix" / package / room).glob("*.py"):
        assert imported(path, f"dpmix.{package}.") & rooms <= allowed, path.name


@pytest.mark.parametrize("room", ROOMS["populations"])
def test_rooms_of_populations_do_not_import_the_result(room: str) -> None:
    for path in (ROOT / "dpmix" / "populations" / room).glob("*.py"):
        assert imported(path, "dpmix.populations.") <= {*ROOMS["populations"]}, path.name
