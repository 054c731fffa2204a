"""Measure what a call of `dpmix explore`, and a screen on the page of `dpmix app`, take.

    python benchmarks/explore_screen.py [--quick]

The events are Gaussian in 20 channels, and a fifth of the judgements are wanted. A call learns from all
judgements, computes mean and variance of all events, counts the wanted ones and chooses the next screen.
Processor seconds are those of all threads; they depend less on other work on the machine than wall seconds.
Both are the smallest of three. Takes two minutes of two cores and 2 GB; `--quick` takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from record import arguments, read_results, said, write_results

from dpmix.explore.explorer import Explorer

DIM = 20
SHAPES = [(100_000, 100), (100_000, 500), (1_000_000, 100), (1_000_000, 500), (10_000_000, 100)]


def measure(n_events: int, n: int) -> dict[str, list[float]]:
    """Return wall seconds and processor seconds of each part."""
    random = np.random.default_rng(n)
    events = random.standard_normal((n_events, DIM), dtype=np.float32)
    wanted = (np.abs(events[:, 0] - 2.0) < 0.5) & (events[:, 1] > 1.2)
    rows = np.concatenate([np.flatnonzero(wanted)[: n // 5], np.flatnonzero(~wanted)[: n - n // 5]])
    values = wanted[rows].astype(float)
    found: dict[str, list[float]] = {}

    def timed(name: str, job: Callable[[], Any]) -> None:
        wall, used = time.perf_counter(), time.process_time()
        job()
        own = [time.perf_counter() - wall, time.process_time() - used]
        found[name] = [min(pair) for pair in zip(own, found.get(name, own), strict=True)]

    for _ in range(3):
        one = Explorer(events, 1)
        timed("learn and compute all events", partial(one.judge, rows, values))
        timed("count the wanted events", one.found)
        timed("choose the next screen", one.screen)
    return {name: [float(f"{value:.3g}") for value in own] for name, own in found.items()}


def page() -> str:
    """Return the table of docs/benchmarks/explore.md."""
    lines = ["| events | judgements | part | seconds | processor seconds |", "|---" * 5 + "|"]
    for shape, parts in read_results("explore_screen")["results"].items():
        together = [sum(own) for own in zip(*parts.values(), strict=True)]
        for name, (wall, used) in {**parts, "together": together}.items():
            lines.append(f"| {' | '.join(shape.split(' x '))} | {name} | {wall:.2f} | {used:.2f} |")
    return "\n".join([*lines, "", said("explore_screen", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    shapes = [(5_000, 100)] if given.quick else SHAPES
    results = {}
    for n_events, n in shapes:
        results[f"{n_events:,} x {n}"] = measure(n_events, n)
        print(n_events, n, results[f"{n_events:,} x {n}"], flush=True)
    write_results("explore_screen", results, quick=given.quick)


if __name__ == "__main__":
    main()
