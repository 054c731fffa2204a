"""Test what a release states: one version, a changelog, a citation, types for those who import it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpmix

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_the_same_everywhere() -> None:
    stated = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", changelog, flags=re.MULTILINE)
    assert {dpmix.__version__, version("dpmix-cytometry"), citation["version"], releases[0][0]} == {stated}
    assert str(citation["date-released"]) == releases[0][1]
    assert changelog.index("## Unreleased") < changelog.index(f"## {releases[0][0]}")


@pytest.fixture(scope="module")
def checks() -> Any:
    """The script of `make release-check`."""
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_release_check_finds_nothing_wrong_but_what_the_owner_must_fill_in(checks: Any) -> None:
    found = {check.__name__: [*check()] for check in checks.CHECKS}
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert {line.partition(":")[0] for line in checks.unfilled()} <= {
        *("pyproject.toml", "CITATION.cff", "conda/recipe.yaml", "paper.md", "CHANGELOG.md"),
    }


def test_release_check_finds_what_is_wrong(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks.read
    wrong = {
        "CITATION.cff": ("version: 1.", "version: 9."),
        "conda/recipe.yaml": ("    - scipy >=1.13\n", ""),
        "README.md": ("BSD--3--Clause", "MIT"),
        "SECURITY.md": ("docs/explanation/validation.md", "docs/nowhere.md"),
        "paper.md": ("[@miller2019]", "[@nobody2019]"),
    }
    for name, (text, _) in wrong.items():
        assert text in real(name)
    monkeypatch.setattr(checks, "read", lambda name: real(name).replace(*wrong.get(name, ("", ""))))
    assert [line.partition(":")[0] for line in checks.versions()] == ["CITATION.cff"]
    assert [*checks.recipe()] == ["conda/recipe.yaml: lacks scipy >=1.13"]
    assert [*checks.badges()] == ["README.md: badge license says MIT, need BSD--3--Clause"]
    assert [line.partition(":")[0] for line in checks.links()] == ["SECURITY.md"]
    assert [*checks.paper()] == ["paper.bib: lacks nobody2019", "paper.bib: miller2019 is not cited"]


def test_the_paper_is_cited() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (paper,) = citation["references"]
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Suchard", "Wang", "Chan", "Frelinger", "Cron", "West"]
    assert paper["doi"] == "10.1198/jcgs.2010.10016"


def test_types_come_with_the_package() -> None:
    assert files("dpmix").joinpath("py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_wheels_are_for_the_versions_of_python_that_the_project_names() -> None:
    named = {
        line.rpartition(" ")[2]
        for line in PROJECT["project"]["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    }
    built = {tag[2:-2] for tag in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert built == {name.replace(".", "") for name in named}


@pytest.mark.slow
def test_links_and_files_named_in_the_project_s_own_pages_are_there() -> None:
    for name in ("CONTRIBUTING.md", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]*)\)", text)]
        assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []
    packages = {f"{path.parent.name}/" for path in ROOT.glob("dpmix/*/__init__.py")}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = "".join(line for line in contributing.splitlines() if line.startswith("| `"))
    assert {name for name in packages if f"`{name}`" not in rows} == set()
    named = set(re.findall(r"`(\w+\.py)`", contributing))
    there = {path.name for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts}
    assert named - there == set()


def test_an_older_package_of_this_name_is_a_warning(tmp_path: Path) -> None:
    """Index and laboratories have a distribution dpmix, which installs into the same folder."""
    shutil.copytree(ROOT / "dpmix", tmp_path / "dpmix")
    code = "import dpmix; print(dpmix.__file__)"
    for expected in ("", "pip uninstall dpmix dpmix-cytometry"):
        done = subprocess.run(
            [sys.executable, "-S", "-P", "-c", code],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(tmp_path) in done.stdout
        assert expected in done.stderr
        assert bool(expected) == bool(done.stderr)
        (tmp_path / "dpmix-0.3.dist-info").mkdir(exist_ok=True)
