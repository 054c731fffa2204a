"""Check what a release needs besides its tests; `make release-check` builds sdist and wheel and calls this.

It prints a line per check. What only the owner of a public repository can fill in, such as addresses and
authors, is listed last. The exit code is 1 if a check fails or something is not filled in.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SCHEMAS = {
    "vendor.github-workflows": ".github/workflows/*.yml",
    "vendor.github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "vendor.github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "vendor.readthedocs": ".readthedocs.yaml",
    "vendor.citation-file-format": "CITATION.cff",
}
CONDA_NAMES = {"matplotlib": "matplotlib-base", "tables": "pytables"}
PAGES = ("README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "paper.md")
SECTIONS = ("Summary", "Statement of need", "State of the field", "Software design", "References")
MOST_WORDS = 1750  # of a paper in JOSS
OPEN = "to be filled in"


def read(name: str) -> str:
    """Return a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict:
    """Return the metadata in pyproject.toml."""
    return tomllib.loads(read("pyproject.toml"))["project"]


def versions() -> Iterator[str]:
    """Yield the files whose version differs from pyproject.toml."""
    stated = project()["version"]
    released = re.search(r"^## (\d+\.\d+\.\d+) - ", read("CHANGELOG.md"), re.MULTILINE)
    found = {
        "CHANGELOG.md": released and released[1],
        "CITATION.cff": yaml.safe_load(read("CITATION.cff"))["version"],
        "conda/recipe.yaml": yaml.safe_load(read("conda/recipe.yaml"))["context"]["version"],
    }
    yield from (f"{name}: version {one}, need {stated}" for name, one in found.items() if one != stated)


def recipe() -> Iterator[str]:
    """Yield what the conda recipe lacks: a requirement of pyproject.toml, or the form of a recipe."""
    content = yaml.safe_load(read("conda/recipe.yaml"))
    ours = {_requirement(one) for one in project()["dependencies"]}
    theirs = {_requirement(one) for one in content["requirements"]["run"]} - {("python", "")}
    renamed = {(CONDA_NAMES.get(name, name), bound) for name, bound in ours}
    yield from (f"conda/recipe.yaml: lacks {' '.join(one)}" for one in sorted(renamed - theirs))
    yield from (
        f"conda/recipe.yaml: {' '.join(one)} is not in pyproject.toml" for one in sorted(theirs - renamed)
    )
    if importlib.util.find_spec("rattler_build") is None:
        yield from (
            f"conda/recipe.yaml: lacks {key}"
            for key in ("schema_version", "package", "source", "build", "requirements", "tests", "about")
            if key not in content
        )
        return
    import rattler_build

    try:
        rattler_build.Stage0Recipe.from_file(str(ROOT / "conda" / "recipe.yaml"))
    except Exception as error:  # errors of many kinds
        yield f"conda/recipe.yaml: {' '.join(str(error).split())}"


def _requirement(text: str) -> tuple[str, str]:
    """Return the name and the bound of a requirement, without the systems it is for."""
    text = text.partition(";")[0]
    name = re.match(r"[\w.-]+", text)
    assert name, text
    return name[0].lower(), text[name.end() :].replace(" ", "")


def schemas() -> Iterator[str]:
    """Yield the files of hosting services that do not fit their schema."""
    for schema, pattern in SCHEMAS.items():
        files = sorted(ROOT.glob(pattern))
        if not files:
            yield f"{pattern}: no such file"
            continue
        yield from _said([str(BIN / "check-jsonschema"), "--builtin-schema", schema, *map(str, files)])


def workflows() -> Iterator[str]:
    """Yield what zizmor finds in the workflows, where it is installed; actions are named by their version."""
    if (tool := _tool("zizmor")) is not None:
        rules = '{"rules": {"unpinned-uses": {"config": {"policies": {"*": "ref-pin"}}}}}'
        config = ROOT / "build" / "zizmor.yml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(rules, encoding="utf-8")
        options = ["--offline", "--no-progress", "--min-severity", "medium", "--config", str(config)]
        yield from _said([tool, *options, str(ROOT / ".github" / "workflows")])


def container() -> Iterator[str]:
    """Yield what hadolint finds in the Dockerfile, where it is installed."""
    if (tool := _tool("hadolint")) is not None:
        yield from _said([tool, "--no-color", str(ROOT / "Dockerfile")])


def _tool(name: str) -> str | None:
    """Return a program next to Python, or on PATH."""
    own = BIN / name
    return str(own) if own.exists() else shutil.which(name)


def _said(command: list[str]) -> Iterator[str]:
    """Yield what a command printed, if it failed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        yield from (line for line in (done.stdout + done.stderr).splitlines() if line.strip())


def badges() -> Iterator[str]:
    """Yield the badges of the README that state something else than pyproject.toml."""
    about = project()
    python = [one.rpartition(" ")[2] for one in about["classifiers"] if re.search(r"Python :: 3\.\d", one)]
    true = {"license": about["license"].replace("-", "--"), "python": f"{python[0]}%20to%20{python[-1]}"}
    found = re.findall(r"img\.shields\.io/badge/(\w+)-([^)\s]+)-\w+(?:\.svg)?\)", read("README.md"))
    for name, value in found:
        if true.get(name) != value:
            yield f"README.md: badge {name} says {value}, need {true.get(name, 'no such badge')}"


def links() -> Iterator[str]:
    """Yield links of the project's own pages to files that are not there."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", read(page)):
            path = link.partition("#")[0]
            if path and not re.match(r"[a-z]+:", link) and not (ROOT / path).exists():
                yield f"{page}: {link} is not there"


def paper() -> Iterator[str]:
    """Yield what is wrong with the paper: sections, length, and citations."""
    text, entries = read("paper.md"), _bibliography()
    yield from (f"paper.md: lacks # {name}" for name in SECTIONS if f"\n# {name}\n" not in text)
    words = len(re.sub(r"<!--.*?-->", " ", text.split("---", 2)[2], flags=re.DOTALL).split())
    if words > MOST_WORDS:
        yield f"paper.md: {words} words, at most {MOST_WORDS}"
    cited = {*re.findall(r"@(\w+)", text.split("---", 2)[2])}
    yield from (f"paper.bib: lacks {key}" for key in sorted(cited - entries.keys()))
    yield from (f"paper.bib: {key} is not cited" for key in sorted(entries.keys() - cited))
    for key, entry in entries.items():
        for name in ("author", "title", "journal", "year", "doi"):
            if name not in entry:
                yield f"paper.bib: {key} has no {name}"
        if not re.fullmatch(r"10\.\d{4,9}/\S+", entry.get("doi", "")):
            yield f"paper.bib: {key} has no DOI of the form 10.1234/..."


def _bibliography() -> dict[str, dict[str, str]]:
    """Return the fields of each entry of paper.bib."""
    entries = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", read("paper.bib"), re.MULTILINE | re.DOTALL):
        entries[key] = dict(re.findall(r"(\w+) = \{((?:[^{}]|\{[^{}]*\})*)\}", body))
    return entries


def built() -> Iterator[str]:
    """Yield what is wrong with sdist and wheel in dist."""
    about = project()
    sdists, wheels = sorted((ROOT / "dist").glob("*.tar.gz")), sorted((ROOT / "dist").glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        yield f"dist: {len(sdists)} sdists and {len(wheels)} wheels, need one of each; run make release-check"
        return
    yield from _said([str(BIN / "twine"), "check", "--strict", str(sdists[0]), str(wheels[0])])
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        metadata = message_from_string(
            wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        )
    for key, value in (("Name", about["name"]), ("Version", about["version"])):
        if metadata[key] != value:
            yield f"{wheels[0].name}: {key} is {metadata[key]}, need {value}"
    if sorted(metadata.get_all("Classifier")) != sorted(about["classifiers"]):
        yield f"{wheels[0].name}: other classifiers than in pyproject.toml"
    for name in ("dpmix/py.typed", "dpmix/cli/run.py", "dpmix/kernels/divide.cu"):
        if name not in names:
            yield f"{wheels[0].name}: lacks {name}"
    with tarfile.open(sdists[0]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    yield from (
        f"{sdists[0].name}: lacks {name}" for name in ("LICENSE", "CITATION.cff") if name not in inside
    )


def unfilled() -> Iterator[str]:
    """Yield what only the owner of the public repository knows."""
    if not project().get("urls"):
        yield "pyproject.toml: project.urls, the address of the repository and of the pages"
    citation = yaml.safe_load(read("CITATION.cff"))
    if "repository-code" not in citation:
        yield "CITATION.cff: repository-code, and the authors' names"
    if not yaml.safe_load(read("conda/recipe.yaml"))["extra"]["recipe-maintainers"]:
        yield "conda/recipe.yaml: extra.recipe-maintainers, about.repository, and the source on the index"
    head = read("paper.md").split("---", 2)[1]
    if "orcid:" not in head:
        yield "paper.md: the authors' names, ORCIDs and affiliations"
    count = read("paper.md").casefold().count(OPEN)
    if count:
        yield f'paper.md: {count} places with "{OPEN}"'
    unreleased = read("CHANGELOG.md").split("## Unreleased", 1)[1].split("\n## ", 1)[0].strip()
    if unreleased not in ("", "Nothing yet."):
        yield "CHANGELOG.md: what is under Unreleased, under the number of the release"


CHECKS = (versions, recipe, schemas, workflows, container, badges, links, paper)


def main() -> int:
    """Print the result of each check."""
    checks = CHECKS if "--no-build" in sys.argv else (*CHECKS, built)
    failed = False
    for check in checks:
        problems = [*check()]
        failed |= bool(problems)
        print(f"{check.__name__}: {'ok' if not problems else 'FAILED'}", *problems, sep="\n  ")
    missing = [*unfilled()]
    if missing:
        print(f"{OPEN} before a public release:", *missing, sep="\n  ")
    return int(failed or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
