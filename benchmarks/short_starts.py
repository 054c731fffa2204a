"""Compare Bayesian EM whose starts make short steps (emEM) with starts that all go to their end.

    python benchmarks/short_starts.py            # about 5 minutes
    python benchmarks/short_starts.py --quick    # one small sample, to build/: a check of the script

Short steps are made on some of the events, as by default, or on all. The config is the default, except for
bem.short_steps and bem.short_events. A sample is simulated; if the folder ../shared exists, labelled samples
are added, which are not part of this project. Time is processor time, so other work on the machine matters
little. The page is docs/benchmarks/end-to-end.md.
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

LABELLED = ROOT.parent / "shared" / "data" / "labelled"
WAYS: dict[str, dict[str, int | None]] = {
    "some events": {},
    "all events": {"short_events": None},
    "to the end": {"short_steps": None},
}
HEADINGS = {"log posterior": "log_posterior", "steps": "steps", "processor s": "processor"}
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


def measure(data: Path, bem: dict[str, int | None], quick: bool) -> dict[str, Any]:
    """Events and channels, log posterior, steps and processor seconds of a run."""
    given: dict[str, Any] = {"data": {"files": [str(data)]}, "bem": bem}
    if quick:
        given["model"] = {"components": 16}
    began = time.process_time()
    run = dpmix.run_bem({**given, "output": {"path": str(data.with_suffix(".h5"))}}, overwrite=True)
    paths = run.trace["log_posterior"]
    ends = [path[np.isfinite(path)][-1] for path in paths]
    return {
        "events": int(run.attributes["n_events"]),
        "channels": len(run.channels),
        "log_posterior": round(float(run.sample_stats["log_posterior"][0, 0])),
        "spread": round(float(np.ptp(ends)), 1),
        "occupied": int(run.sample_stats["occupied"][0, 0]),
        "steps": int(run.sweeps_made.sum()),
        "processor": round(time.process_time() - began, 1),
    }


def table() -> str:
    """Markdown: the three ways for every sample."""
    lines = [
        f"| sample | events |{''.join(f' {heading}: {way} |' for heading in HEADINGS for way in WAYS)}",
        "| --- |" + " ---: |" * (1 + len(HEADINGS) * len(WAYS)),
    ]
    for name, one in read_results("short_starts")["results"].items():
        of_all = one["to the end"]
        cells = [f"{one[way][key]:,}" for key in HEADINGS.values() for way in WAYS]
        lines.append(f"| {name} | {of_all['events']:,} x {of_all['channels']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def notes() -> str:
    """Command, machine and date of the committed results."""
    return said("short_starts") + "\n"


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, file in samples(Path(folder), quick):
            results[name] = {way: measure(file, bem, quick) for way, bem in WAYS.items()}
            print(name, results[name], flush=True)
    write_results("short_starts", results, quick=quick)


if __name__ == "__main__":
    main()
