"""Measure the Gaussian processes of `dpmix drift`: Vecchia's likelihood, its growth, and the largest fit.

    python benchmarks/drift_speed.py [--quick] [--minutes 1]

It takes about four minutes with the default, and 15 with `--minutes 10`. One pass is the log likelihood, its
gradient and the expected information for m = 30 neighbours (Matern 3/2), in one thread; the fastest of three
counts, because others may use the machine.

The budget is the largest number of points whose covariance is fitted within an hour. Fits grow by factors of
two until the next one would take longer than `--minutes`. The law is time = c n, as the growth of a pass
shows, with c from the longest fit; the memory of that many points is computed from the size of the arrays.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from record import arguments, read_results, write_results

from dpmix.drift.covariance import Covariance
from dpmix.drift.fit import SignalPrior, fit
from dpmix.drift.likelihood import likelihood
from dpmix.drift.points import Points, make_points
from dpmix.system.cores import usable_cores

M = 30
COVARIANCE = Covariance("matern32", 0.7, 1.3, 0.02)
POINT_BYTES = 3 * 8 + 4 * M  # times, values, errors, neighbours
HOUR = 3600.0


def recording(n: int) -> Points:
    """Return n points of a recording of 100 units of time with a smooth signal."""
    random = np.random.default_rng(n)
    times = np.sort(random.uniform(0.0, 100.0, n))
    return make_points(times, np.sin(times) + 0.1 * random.standard_normal(n), np.full(n, 0.1), M)


def grow(sizes: list[int], rounds: int) -> list[dict[str, float]]:
    """Return microseconds per point of a pass by number of points, in one thread."""
    rows = []
    for n in sizes:
        points, best = recording(n), np.inf
        for _ in range(rounds):
            started = time.process_time()
            likelihood(points, COVARIANCE)
            best = min(best, (time.process_time() - started) / n * 1e6)
        rows.append({"points": n, "microseconds": best})
        print(rows[-1], flush=True)
    return rows


def budget(first: int, minutes: float, threads: int) -> dict[str, Any]:
    """Return seconds of fits by number of points, neighbours included, and the points of an hour."""
    rows, n = [], first
    while not rows or rows[-1]["seconds"] < 60.0 * minutes / 2.0:
        started = time.perf_counter()
        points = recording(n)
        found = fit(points, SignalPrior.weak(100.0, 0.1), threads=threads)
        rows.append({"points": n, "seconds": time.perf_counter() - started, "steps": found.steps})
        print(threads, rows[-1], flush=True)
        n *= 2
    per_point = rows[-1]["seconds"] / n * 2
    return {"threads": threads, "fits": rows, "points_in_an_hour": HOUR / per_point}


def table_growth() -> str:
    """Return the table of growth with the number of points."""
    rows = read_results("drift_speed")["results"]["growth"]
    lines = ["| points | microseconds per point |", "| --- | --- |"]
    return "\n".join(lines + [f"| {row['points']:,} | {row['microseconds']:.2f} |" for row in rows]) + "\n"


def table_budget() -> str:
    """Return the table of the largest fits."""
    lines = [
        "| engine | largest fit measured | seconds | points in an hour, extrapolated | their memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    own = read_results("drift_speed")["results"]["budget"]
    last, most = own["fits"][-1], float(f"{own['points_in_an_hour']:.1g}")
    engine, memory = f"CPU, threads: {own['threads']}", f"{most * POINT_BYTES / 1e9:.0f} GB"
    lines.append(f"| {engine} | {last['points']:,} | {last['seconds']:.0f} | {most:,.0f} | {memory} |")
    return "\n".join([*lines, "| CUDA | not measured: no GPU was available | | | |"]) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the longest fit (1)")
    given = parser.parse_args()
    quick = given.quick
    results = {
        "growth": grow([1_000, 2_000] if quick else [10_000, 100_000, 1_000_000], 3),
        "budget": budget(1_000 if quick else 200_000, 0.001 if quick else given.minutes, usable_cores()),
    }
    write_results("drift_speed", results, quick=quick)


if __name__ == "__main__":
    main()
