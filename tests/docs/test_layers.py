"""Imports between the packages of dpmix point one way, as in the table of CONTRIBUTING.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOWER = ["errors", "system", "config", "kernels", "model", "drift", "inputs", "engines"]
ORDER = [*LOWER, "explore", "runs", "populations", "association", "report", "api", "app"]
FOLDERS = {package: ROOT / "dpmix" / package for package in ORDER if package != "errors"}
FOLDERS |= {"kernels": ROOT / "kernels", "cli": ROOT / "cli"}


def imported(path: Path) -> set[str]:
    """Return the packages of dpmix that a module imports, also in functions and for types."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("dpmix.")}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    below = {*ORDER[: ORDER.index(package)]} if package in ORDER else {*ORDER}
    allowed = below | {package, "__version__"}
    found = {path.name: imported(path) - allowed for path in FOLDERS[package].glob("**/*.py")}
    assert {name: packages for name, packages in found.items() if packages} == {}


def test_every_package_has_its_place() -> None:
    there = {path.parent.name for path in ROOT.glob("dpmix/*/__init__.py")} - {"cli", "kernels"}
    assert there == {*FOLDERS} - {"cli", "kernels"}
