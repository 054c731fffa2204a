"""Processor seconds from an FCS file to the report, by an earlier version and by this one, in turns.

    python benchmarks/end_to_end_turns.py --before ../earlier            # about 10 minutes
    python benchmarks/end_to_end_turns.py --before ../earlier --quick    # a small sample, to build/: a check

`--before` is a checkout of the earlier version with its own environment (`make .venv/installed` there): an
editable install goes before PYTHONPATH, so one environment cannot run both. Both versions give the same
commands as end_to_end.py, one after the other, `--rounds` times. Of each stage, the least processor and
elapsed seconds of the rounds are kept. The machine may do other work meanwhile: it changes elapsed seconds a
lot, and processor seconds by what both versions share. The draws and the tables of populations of both
versions are compared byte by byte. The page is docs/benchmarks/end-to-end.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import end_to_end
import numpy as np
from plots import significant
from record import DPMIX, ROOT, arguments, read_results, said, write_results

from dpmix.runs.reader import open_run

NAME = "end_to_end_turns"
EVENTS, QUICK_EVENTS = 20_000, 3_000
VERSIONS = ("before", "after")


def python_of(code: Path) -> str:
    """Return the Python that has the dpmix of a checkout."""
    python = sys.executable if code == ROOT else str(code / ".venv" / "bin" / "python")
    if not Path(python).exists():
        raise SystemExit(f"{python}: not found; make .venv/installed in {code}")
    find = "import dpmix; print(dpmix.__file__)"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_relative_to(code):
        raise SystemExit(f"{python}: its dpmix is {found}, not in {code}; make .venv/installed there")
    return python


def commands(folder: Path, file: Path, method: str, code: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """Stages of all commands by the version in a checkout, and the bytes of its results."""
    stages = end_to_end.from_file_to_report(folder, file, settings, method, python_of(code))["stages"]
    run = open_run(folder / "run.h5")
    draws = [np.asarray(values[:]).tobytes() for values in (run.weights, run.means, run.covariances)]
    return {"stages": stages, "results": [*draws, (folder / "gated" / "populations.csv").read_bytes()]}


def in_turns(file: Path, method: str, before: Path, rounds: int, settings: tuple[str, ...]) -> dict[str, Any]:
    """The least seconds of each stage by both versions, and whether their results are the same."""
    least: dict[str, dict[tuple[str, str], dict[str, Any]]] = {version: {} for version in VERSIONS}
    results = {}
    for _ in range(rounds):
        for version, code in zip(VERSIONS, (before, ROOT), strict=True):
            with tempfile.TemporaryDirectory() as folder:
                found = commands(Path(folder), file, method, code, settings)
            results[version] = found["results"]
            for stage in found["stages"]:
                print(version, stage, flush=True)
                kept = least[version].setdefault((stage["command"], stage["stage"]), stage)
                for key in ("seconds", "processor"):
                    kept[key] = min(kept[key], stage[key])
    same = results["before"] == results["after"]
    return {version: list(stages.values()) for version, stages in least.items()} | {"same": same}


def measure(before: Path, rounds: int, *, quick: bool) -> dict[str, Any]:
    """Both methods on a simulated sample, and MCMC on the real file."""
    settings = end_to_end.QUICK_SETTINGS if quick else ()
    n_events, found = QUICK_EVENTS if quick else EVENTS, {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sample.fcs"
        simulate = [*DPMIX, "simulate", file, "--events", str(n_events)]
        subprocess.run(simulate, check=True)
        for method, name in (("bem", "Bayesian EM"), ("mcmc", "MCMC")):
            found[f"simulated, {name}"] = in_turns(file, method, before, rounds, settings)
    if end_to_end.REAL.exists() and not quick:
        found[f"{end_to_end.REAL.name}, MCMC"] = in_turns(end_to_end.REAL, "mcmc", before, rounds, settings)
    return found


# ---------------------------------------------------------------------------------------- showing


def notes() -> str:
    """Command, machine and date of the committed results."""
    return said(NAME) + "\n"


def table() -> str:
    """Markdown: processor seconds of every stage before and after, and both kinds of seconds in all."""
    results = read_results(NAME)["results"]
    heads = [f"{name}, {version}" for name in results for version in VERSIONS]
    lines = [f"| command | stage | {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * len(heads)]
    runs = [one[version] for one in results.values() for version in VERSIONS]
    for place in dict.fromkeys((stage["command"], stage["stage"]) for run in runs for stage in run):
        own = [[s for s in run if (s["command"], s["stage"]) == place] for run in runs]
        cells = [_seconds(stages[0]["processor"]) if stages else "" for stages in own]
        lines.append(f"| {place[0]} | {place[1]} | {' | '.join(cells)} |")
    for kind, name in (("processor", "processor seconds"), ("seconds", "elapsed seconds")):
        cells = [_seconds(sum(stage[kind] for stage in run)) for run in runs]
        lines.append(f"| **all** | **{name}** | {' | '.join(cells)} |")
    other = "; ".join(name for name, one in results.items() if not one["same"])
    same = "The results are the same, byte for byte" + (f", except for: {other}." if other else ".")
    return "\n".join([*lines, "", same]) + "\n"


def _seconds(value: float) -> str:
    return f"{significant(value, 2)} s"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the earlier version")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results = measure(given.before.resolve(), given.rounds, quick=given.quick)
    write_results(NAME, results, quick=given.quick)


if __name__ == "__main__":
    main()
