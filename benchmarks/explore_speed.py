"""Measure seconds of a screen of relevance feedback next to SciPy's cdist with NumPy.

    python benchmarks/explore_speed.py [--quick]

The events are Gaussian in 20 channels. A screen adds 20 judgements to n - 20 earlier ones and chooses the
next 20 events. Learning of the covariance is not part of it. "all rows" computes the posterior from n
judgements at once, as after learning. The contender computes the same mean and variance of all events in
float64 by cdist, exp and matrix products, in blocks of 10,000 events, and BLAS with the same threads; its
"new rows" are only the rows of the 20 new judgements, as in dpmix. Each job has wall seconds, and processor
seconds of all threads: the shortest of three, and for the contender one call. Takes a minute of two cores;
`--quick` takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from record import arguments, read_results, said, write_results
from scipy.spatial.distance import cdist

from dpmix.explore.covariance import JudgementCovariance
from dpmix.explore.explorer import one_blas_thread
from dpmix.explore.posterior import EventPosterior, Judged
from dpmix.explore.screen import SIZE, next_screen

DIM, BLOCK = 20, 10_000
SHAPES = [(100_000, 100), (100_000, 500), (1_000_000, 100), (1_000_000, 500)]


Seconds = tuple[float, float]
"""Wall and processor."""


def least(pairs: Iterable[Seconds]) -> Seconds:
    walls, used = zip(*pairs, strict=True)
    return min(walls), min(used)


def timed(job: Callable[[], Any]) -> Seconds:
    wall, used = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - used


def contender(events: np.ndarray, judged: Judged, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what the rows from `first` on add to the mean, and take from the variance, in float64."""
    scales, targets = judged.covariance.scales, judged.targets[first:]
    points, rows = judged.points * scales, judged.covariance.variance * judged.inverse[first:]
    mean, variance = np.empty(len(events)), np.empty(len(events))
    for start in range(0, len(events), BLOCK):
        part = slice(start, start + BLOCK)
        whitened = np.exp(-cdist(events[part] * scales, points, "sqeuclidean")) @ rows.T
        mean[part] = whitened @ targets
        variance[part] = np.einsum("ij,ij->i", whitened, whitened)
    return mean, variance


def measure(n_events: int, n: int) -> dict[str, list[float]]:
    """Return wall and processor seconds by job."""
    random = np.random.default_rng(n)
    events = random.standard_normal((n_events, DIM), dtype=np.float32)
    points, values = events[:n].astype(np.float64), (random.random(n) < 0.2).astype(float)
    covariance = JudgementCovariance("gaussian", np.full(DIM, 4.0))
    closed = np.arange(n_events) < n
    posterior = EventPosterior(events, covariance)

    def update() -> Seconds:
        nonlocal posterior
        posterior = EventPosterior(events, covariance)
        posterior.add(points[:-SIZE], values[:-SIZE])
        return timed(lambda: posterior.add(points[-SIZE:], values[-SIZE:]))

    def choose() -> Seconds:
        return timed(lambda: next_screen(posterior, events, closed, screen=n // SIZE))

    def all_rows() -> Seconds:
        return timed(lambda: EventPosterior(events, covariance).add(points, values))

    with one_blas_thread():  # as in an exploration
        result = {job.__name__: least(job() for _ in range(3)) for job in (update, choose, all_rows)}
    result["contender, new rows"] = timed(lambda: contender(events, posterior.judged, n - SIZE))
    result["contender, all rows"] = timed(lambda: contender(events, posterior.judged, 0))
    return {name: [float(f"{value:.3g}") for value in own] for name, own in result.items()}


def page() -> str:
    """Return the table of docs/benchmarks/explore.md."""
    head = ["events", "judgements", "rows", "dpmix", "cdist and NumPy", "times faster"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for shape, own in read_results("explore_speed")["results"].items():
        screen = [sum(pair) for pair in zip(own["update"], own["choose"], strict=True)]
        pairs = {
            "new, and choice": (screen, own["contender, new rows"]),
            "all": (own["all_rows"], own["contender, all rows"]),
        }
        for name, (ours, theirs) in pairs.items():
            cells = [f"{wall:.2f} ({used:.2f})" for wall, used in (ours, theirs)]
            lines.append(
                f"| {' | '.join([*shape.split(' x '), name, *cells, f'{theirs[0] / ours[0]:.0f}'])} |"
            )
    return "\n".join([*lines, "", said("explore_speed", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    shapes = [(5_000, 100)] if given.quick else SHAPES
    results = {}
    for n_events, n in shapes:
        results[f"{n_events:,} x {n}"] = measure(n_events, n)
        print(n_events, n, results[f"{n_events:,} x {n}"], flush=True)
    write_results("explore_speed", results, quick=given.quick)


if __name__ == "__main__":
    main()
