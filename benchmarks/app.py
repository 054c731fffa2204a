"""Measure how fast the page of dpmix app follows a decision, and the memory of its server.

    python benchmarks/app.py [--quick]

The events are a simulated blood sample in ten channels. A run has 64 components, 2 chains, and 50 draws of
each after 15 sweeps of burn-in: the page uses 100 draws. "open" is done once, from the run file to the first
page. "decision" is a move of the cut: populations, proportions, phenotypes, support and the population of
each event shown, without drawing. The median and the longest are over all numbers of populations. "counted"
is the time until the proportions of `dpmix gate` follow a decision: all events are counted in each draw.
Processor seconds are over all threads, and for a decision their mean. Memory is the largest of the process
that does this. Takes four minutes of two cores; `--quick` takes seconds.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from record import arguments, read_results, said, write_results

from dpmix.app import counting, live
from dpmix.app.jobs import PROGRAM
from dpmix.populations.tree.decisions import Cut

EVENTS = (50_000, 1_000_000)
SETTINGS = ("mcmc.chains=2", "mcmc.burn_in=15", "mcmc.draws=50", "mcmc.until=null", "model.components=64")


def make_run(folder: Path, n_events: int) -> Path:
    """Simulate events and make a run; return the run file."""

    def dpmix(*given: str) -> None:
        subprocess.run([sys.executable, "-c", PROGRAM, *given], cwd=folder, check=True)

    dpmix("simulate", "sample.fcs", "--events", str(n_events))
    dpmix("init", "sample.fcs", "--output", "run.yaml")
    dpmix("mcmc", "run.yaml", "--quiet", *(part for one in SETTINGS for part in ("--set", one)))
    return folder / "run.h5"


def measure(run: Path) -> dict[str, float]:
    """Return seconds and gigabytes."""
    began = time.perf_counter()
    one = live.open_live(run, run.parent)
    decisions = live.decisions_of(one)
    live.view(one, decisions)
    result = {"open": time.perf_counter() - began}
    seconds, used = [], time.process_time()
    for n_populations in range(1, live.opened(one, decisions)["most"] + 1):
        after = live.after(one, decisions, Cut(populations=n_populations))
        began = time.perf_counter()
        live.view(one, after)
        seconds.append(time.perf_counter() - began)
    result["decision, processor"] = (time.process_time() - used) / len(seconds)
    began, used = time.perf_counter(), time.process_time()
    counting.counted(one, decisions, lambda: True)
    result |= {"counted": time.perf_counter() - began, "counted, processor": time.process_time() - used}
    result |= {"decision": float(np.median(seconds)), "longest": max(seconds)}
    result["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {name: float(f"{value:.3g}") for name, value in result.items()}


def page() -> str:
    """Return the table of docs/benchmarks/app.md."""
    heads = ("events", "open", "decision: median", "longest", "processor", "counted", "processor", "memory")
    lines = [f"| {' | '.join(heads)} |", "|---" * 8 + "|"]
    for events, own in read_results("app")["results"].items():
        seconds = " | ".join(
            f"{own[name]:.2g} s"
            for name in (
                "open",
                "decision",
                "longest",
                "decision, processor",
                "counted",
                "counted, processor",
            )
        )
        lines.append(f"| {events} | {seconds} | {own['gigabytes']:.2g} GB |")
    return "\n".join([*lines, "", said("app", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    results = {}
    for n_events in (5_000,) if given.quick else EVENTS:
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder), n_events)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                results[f"{n_events:,}"] = pool.submit(measure, run).result()
        print(f"{n_events:,}", results[f"{n_events:,}"], flush=True)
    write_results("app", results, quick=given.quick)


if __name__ == "__main__":
    main()
