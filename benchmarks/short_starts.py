"""Compare Bayesian EM whose starts make short steps (emEM) with starts that all go to their end.

    python benchmarks/short_starts.py            # about 5 minutes
    python benchmarks/short_starts.py --quick    # one small sample, to build/: a check of the script

The config is the default, except for bem.short_steps. A sample is simulated; if the folder ../shared exists,
labelled samples are added, which are not part of this project. Time is processor time, so other work on the
machine matters little. The page is docs/explanation/model.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, arguments, read_results, said, write_results

import dpmix
from dpmix.config.schema import BemConfig

LABELLED = ROOT.parent / "shared" / "data" / "labelled"
SETS = {"HIPC": ("hipc_stanford_1228.npz", None), "GvHD, sample 1": ("gvhd_flowcap1.npz", 1)}
SETS |= {"multicenter CyTOF, sample 1": ("multicenter_cytof_01-08.npz", 1)}


def samples(folder: Path, quick: bool) -> Iterator[tuple[str, Path]]:
    """Yield names and files, written into the folder."""
    dpmix.simulate(2_000 if quick else 50_000, seed=3).write(folder / "simulated.fcs")
    yield "simulated", folder / "simulated.fcs"
    for name, (file, sample) in SETS.items() if LABELLED.exists() and not quick else ():
        with np.load(LABELLED / file) as arrays:
            rows = slice(None) if sample is None else arrays["sample"] == sample
            np.save(folder / f"{name}.npy", arrays["events"][rows])
        yield name, folder / f"{name}.npy"


def measure(data: Path, short_steps: int | None, quick: bool) -> dict[str, Any]:
    """Events and channels, log posterior, steps and processor seconds of a run."""
    given: dict[str, Any] = {"data": {"files": [str(data)]}, "bem": {"short_steps": short_steps}}
    if quick:
        given["model"] = {"components": 16}
    began = time.process_time()
    run = dpmix.run_bem({**given, "output": {"path": str(data.with_suffix(".h5"))}}, overwrite=True)
    paths = run.trace["log_posterior"]
    ends = [path[np.isfinite(path)][-1] for path in paths]
    return {
        "events": int(run.attributes["n_events"]),
        "channels": len(run.channels),
        "log_posterior": round(float(run.sample_stats["log_posterior"][0, 0]), 1),
        "spread": round(float(np.ptp(ends)), 1),
        "occupied": int(run.sample_stats["occupied"][0, 0]),
        "steps": int(run.sweeps_made.sum()),
        "processor": round(time.process_time() - began, 1),
    }


def table() -> str:
    """Markdown: both ways for every sample."""
    lines = [
        "| sample | events | log posterior: short | all | ends differ by | steps: short | all "
        "| processor s: short | all |",
        "| --- |" + " ---: |" * 8,
    ]
    for name, one in read_results("short_starts")["results"].items():
        short, whole = one["short"], one["whole"]
        pairs = [f"{way['log_posterior']:,.0f}" for way in (short, whole)] + [f"{whole['spread']:,.0f}"]
        numbers = [f"{way[key]:,}" for key in ("steps", "processor") for way in (short, whole)]
        lines.append(
            f"| {name} | {short['events']:,} x {short['channels']} | {' | '.join([*pairs, *numbers])} |"
        )
    return "\n".join(lines) + "\n"


def notes() -> str:
    """Command, machine and date of the committed results."""
    return said("short_starts") + "\n"


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, file in samples(Path(folder), quick):
            ways = {"short": BemConfig().short_steps, "whole": None}
            results[name] = {way: measure(file, steps, quick) for way, steps in ways.items()}
            print(name, results[name], flush=True)
    write_results("short_starts", results, quick=quick)


if __name__ == "__main__":
    main()
