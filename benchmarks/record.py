"""Write benchmark results as JSON with machine, versions, date and command, and describe them for pages."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dpmix.engines.cpu import instruction_sets

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "results"
QUICK_FOLDER = ROOT / "build" / "benchmarks"
PICTURES = ROOT / "docs" / "pictures"
DPMIX = [sys.executable, "-c", "from dpmix.cli import main; main()"]
PACKAGES = ("numpy", "scipy", "scikit-learn")
OPTIONAL_PACKAGES = ("torch", "flowsom", "phenograph", "pycuda")
LOAD_BEFORE = os.getloadavg()[0]


def machine() -> dict[str, Any]:
    """Return the machine and the versions of a measurement."""
    cpuinfo = _cpuinfo()
    return {
        "processor": cpuinfo.get("model name", platform.processor()),
        "family": cpuinfo.get("cpu family", ""),
        "virtual": "hypervisor" in cpuinfo.get("flags", "").split(),
        "cores": os.cpu_count(),
        "instruction_sets": " ".join(instruction_sets()),
        "load_before": LOAD_BEFORE,
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"dpmix": version("dpmix-cytometry")}
        | {name: version(name) for name in PACKAGES}
        | _installed(OPTIONAL_PACKAGES),
    }


def _cpuinfo() -> dict[str, str]:
    """Return the first core's entries in /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":")[::2] for line in first.splitlines())
    return {key.strip(): value.strip() for key, value in pairs}


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def plain_arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser without arguments; `doc` is the script's own."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all benchmarks of `make bench` take."""
    made = plain_arguments(doc)
    made.add_argument("--quick", action="store_true", help="small samples; results go to build/benchmarks")
    return made


def write_results(name: str, results: dict[str, Any], *, quick: bool = False) -> Path:
    """Write benchmarks/results/<name>.json and say so; of a quick run, build/benchmarks/<name>.json."""
    folder = QUICK_FOLDER if quick else FOLDER
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{name}.json"
    command = " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    record = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": results,
    }
    path.write_text(as_text(record))
    print(f"written to {os.path.relpath(path)}")
    return path


def as_text(record: dict[str, Any]) -> str:
    """Return indented JSON with each list or object of scalars on one line, so that diffs stay readable."""
    text = json.dumps(record, indent=1)
    return re.sub(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    opening, inner, closing = found.groups()
    return opening + re.sub(r"\n\s+", " ", inner) + closing


def read_results(name: str, *, quick: bool = False) -> dict[str, Any]:
    """The whole record of benchmarks/results/<name>.json."""
    record: dict[str, Any] = json.loads(((QUICK_FOLDER if quick else FOLDER) / f"{name}.json").read_text())
    return record


def picture(name: str, *, quick: bool = False) -> Path:
    """Where a plot goes: docs/pictures/bench-<name>.png, of a quick run in build/benchmarks."""
    folder = QUICK_FOLDER if quick else PICTURES
    folder.mkdir(exist_ok=True, parents=True)
    return folder / f"bench-{name}.png"


def said(name: str, results: str = "../../benchmarks/results", packages: tuple[str, ...] = ()) -> str:
    """Command, machine and date of committed results, as a sentence of Markdown.

    Parameters
    ----------
    name : str
    results : str
        The folder of results as seen from the page.
    packages : tuple of str
        Those whose versions matter to the numbers; default: all that the record has.
    """
    record = read_results(name)
    versions = record["machine"]["versions"]
    used = ", ".join(f"{package} {versions[package]}" for package in packages or versions)
    return (
        f"`{record['command']}` on {in_words(record['machine'])}, {record['date'][:10]}; "
        f"Python {record['machine']['python']}, {used}: [{name}.json]({results}/{name}.json)."
    )


def in_words(where: dict[str, Any]) -> str:
    """A machine as `machine` tells of it, in a line; fields that older results lack are left out."""
    about = [where["processor"]]
    about += [f"family {where['family']}"] if where.get("family") else []
    about += ["virtual machine"] if where.get("virtual") else []
    about += where.get("instruction_sets", "").split()[:1]
    loads = [f"{where[key]:.1f}" for key in ("load_before", "load") if key in where]
    return f"{where['cores']} cores ({', '.join(about)}), load {' to '.join(loads)}"
