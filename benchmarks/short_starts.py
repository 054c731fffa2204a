"""Compare Bayesian EM whose starts make short steps (emEM) with starts that all go to their end.

    python benchmarks/short_starts.py            # about 6 minutes
    python benchmarks/short_starts.py --quick    # one small sample, to build/: a check of the script

Short steps are made on some of the events, as by default, or on all. The config is the default, except for
bem.short_steps and bem.short_events; results are means over three seeds. Two samples are simulated; if the
folder ../shared exists, labelled samples are added, which are not part of this project. Time is processor
time, so other work on the machine matters little. The page is docs/benchmarks/end-to-end.md.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, arguments, read_results, write_results

import dpmix

LABELLED = ROOT.parent / "shared" / "data" / "labelled"
WAYS: dict[str, dict[str, int | None]] = {
    "some events": {},
    "all events": {"short_events": None},
    "to the end": {"short_steps": None},
}
SEEDS = (1, 2, 3)
HEADINGS = {"log posterior": "log_posterior", "steps": "steps", "processor s": "processor"}
SETS = {"HIPC": ("hipc_stanford_1228.npz", None), "GvHD, sample 1": ("gvhd_flowcap1.npz", 1)}
SETS |= {"multicenter CyTOF, sample 1": ("multicenter_cytof_01-08.npz", 1)}


def samples(folder: Path, quick: bool) -> Iterator[tuple[str, Path]]:
    """Yield names and files, written into the folder."""
    for n_events in (2_000,) if quick else (50_000, 500_000):
        dpmix.simulate(n_events, seed=3).write(folder / f"{n_events}.fcs")
        yield f"simulated, {n_events:,}", folder / f"{n_events}.fcs"
    for name, (file, sample) in SETS.items() if LABELLED.exists() and not quick else ():
        with np.load(LABELLED / file) as arrays:
            rows = slice(None) if sample is None else arrays["sample"] == sample
            np.save(folder / f"{name}.npy", arrays["events"][rows])
        yield name, folder / f"{name}.npy"


def measure(data: Path, bem: dict[str, int | None], quick: bool) -> dict[str, Any]:
    """Events and channels; log posterior, components, steps and processor seconds, means over seeds."""
    given: dict[str, Any] = {"data": {"files": [str(data)]}, "bem": bem}
    if quick:
        given["model"] = {"components": 16}
    rows = []
    for seed in SEEDS:
        began = time.process_time()
        run = dpmix.run_bem(
            {**given, "output": {"path": str(data.with_suffix(".h5"))}, "seed": seed}, overwrite=True
        )
        row = {
            "log_posterior": float(run.sample_stats["log_posterior"][0, 0]),
            "occupied": int(run.sample_stats["occupied"][0, 0]),
            "steps": int(run.sweeps_made.sum()),
            "processor": time.process_time() - began,
        }
        rows.append(row)
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    return {
        "events": int(run.attributes["n_events"]),
        "channels": len(run.channels),
        **{key: round(mean, 1 if key == "processor" else None) for key, mean in means.items()},
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
