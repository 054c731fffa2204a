"""Measure errors of float32 in the posterior of `dpmix explore`, on the CPU and by the CUDA kernel.

    python benchmarks/explore_errors.py [--quick]      on a machine with a GPU

    E=$PWD/build/cuda_on_cpu
    LD_LIBRARY_PATH=$E PATH=$E/bin:$PATH python benchmarks/explore_errors.py      on emulated devices

The events are of four populations and a rare one in 20 channels; the rare one is wanted, and a fifth of the
judgements are of its events. Judgements are added in screens of 20, so that float32 sums accumulate as they
do in use. The covariance is the first one of each shape, the one learned from the judgements, or a corner of
what can be learned: the longest ranges, the largest variance and the least noise, where the covariance of the
judgements is worst conditioned. Errors are absolute differences from float64 at all events, as quantiles. The
CUDA kernel computes the first events again, and events at which mean or variance has other bits than on the
CPU are counted. Takes some minutes of two cores on emulated devices; `--quick` takes a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from record import arguments, read_results, said, write_results

from dpmix.engines.cuda.devices import describe, devices
from dpmix.explore.covariance import SHAPES, JudgementCovariance, first_covariance
from dpmix.explore.learn import LIMIT, learn
from dpmix.explore.posterior import EventPosterior, Judged
from dpmix.explore.screen import SIZE
from dpmix.model.mixture import Array, Floats, Ints

if TYPE_CHECKING:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

DIM, BLOCK, SEED = 20, 10_000, 1
N_EVENTS, ON_CUDA, N_JUDGED = 100_000, 20_000, (100, 500)
POPULATIONS, SHARE = 4, 0.005
QUANTILES = (0.5, 0.99, 0.9999, 1.0)


def exact(judged: Judged, events: Floats) -> tuple[Array, Array]:
    """Return mean and standard deviation at all events in float64."""
    means, sds = [], []
    for start in range(0, len(events), BLOCK):
        whitened = judged.whitened(events[start : start + BLOCK].astype(np.float64))
        means.append(whitened.T @ judged.targets)
        sds.append(np.sqrt(np.maximum(judged.covariance.variance - (whitened**2).sum(axis=0), 0.0)))
    return np.concatenate(means), np.concatenate(sds)


def in_screens(
    events: Floats,
    covariance: JudgementCovariance,
    points: Array,
    values: Array,
    device: CudaGaussianProcess | None = None,
) -> EventPosterior:
    """Return the posterior at all events, with judgements added in screens."""
    posterior = EventPosterior(events, covariance)
    for start in range(0, len(values), SIZE):
        posterior.add(points[start : start + SIZE], values[start : start + SIZE], device=device)
    return posterior


def quantiles(difference: Array) -> list[float]:
    return [float(f"{value:.3g}") for value in np.quantile(np.abs(difference), QUANTILES)]


def sample(n_events: int) -> tuple[Floats, Array]:
    """Return events on the standardised scale, and 1 for events of the rare population, otherwise 0.

    The rare population differs from another one in two channels.
    """
    random = np.random.default_rng(SEED)
    means = random.uniform(-2.0, 2.0, (POPULATIONS, DIM))
    means = np.vstack([means, means[0]])
    means[-1, :2] += [2.0, -2.0]
    rare = int(SHARE * n_events)
    labels = np.concatenate([random.integers(0, POPULATIONS, n_events - rare), np.full(rare, POPULATIONS)])
    random.shuffle(labels)
    events = means[labels] + 0.4 * random.standard_normal((n_events, DIM))
    standardised = ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32)
    return standardised, (labels == POPULATIONS).astype(float)


def judged_rows(wanted: Array, n: int) -> Ints:
    """Return n events in random order, a fifth of them wanted as far as there are enough."""
    random, rare = np.random.default_rng([SEED, n]), np.flatnonzero(wanted)
    some = random.choice(rare, min(n // 5, len(rare)), replace=False)
    others = random.choice(np.flatnonzero(wanted == 0.0), n - len(some), replace=False)
    return random.permutation(np.concatenate([some, others]))


def covariances(events: Floats, points: Array, values: Array) -> Iterator[tuple[str, JudgementCovariance]]:
    """Yield the name and the covariance of each case."""
    firsts = [first_covariance(events, SEED, shape) for shape in SHAPES]
    for first in firsts:
        yield f"first, {first.shape}", first
    learned = learn(firsts, points, values)
    yield f"learned, {learned.shape}", learned
    factor = float(np.exp(LIMIT))
    for first in firsts:
        corner = replace(first, ranges=first.ranges * factor, variance=first.variance * factor)
        yield f"corner, {first.shape}", replace(corner, noise=first.noise / factor)


def measure(
    events: Floats, points: Array, values: Array, covariance: JudgementCovariance
) -> dict[str, object]:
    """Return quantiles of the errors, and the number of events that have other bits by the CUDA kernel."""
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    own = in_screens(events, covariance, points, values)
    mean, sd = exact(own.judged, events)
    few = np.ascontiguousarray(events[:ON_CUDA])
    device = CudaGaussianProcess(few)
    try:
        by_cuda = in_screens(few, covariance, points, values, device)
    finally:
        device.close()
    pairs = (by_cuda.mean, own.mean), (by_cuda.variance, own.variance)
    differ = np.any([one != other[: len(few)] for one, other in pairs], axis=0)
    result: dict[str, object] = {"mean": quantiles(own.mean - mean), "sd": quantiles(own.sd - sd)}
    return result | {"events by CUDA": len(few), "other bits": int(differ.sum())}


def page() -> str:
    """Return the table of docs/benchmarks/explore.md."""
    record = read_results("explore_errors")["results"]
    header = ["covariance", "judgements", "quantity", "median error", "99%", "99.99%", "largest"]
    lines = [f"| {' | '.join([*header, 'other bits by CUDA'])} |", "|---" * (len(header) + 1) + "|"]
    for name, own in record["cases"].items():
        for quantity in ("mean", "sd"):
            cells = [*(f"{value:.1e}" for value in own[quantity]), ""]
            if quantity == "mean":
                cells[-1] = f"{own['other bits']} of {own['events by CUDA']:,}"
            lines.append(f"| {name} | {quantity} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", said("explore_errors", packages=("dpmix", "numpy", "pycuda"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    events, wanted = sample(5_000 if given.quick else N_EVENTS)
    cases: dict[str, dict[str, object]] = {}
    for n in N_JUDGED:
        rows = judged_rows(wanted, n)
        points, values = events[rows].astype(np.float64), wanted[rows]
        for name, covariance in covariances(events, points, values):
            cases[f"{name} | {n}"] = measure(events, points, values, covariance)
            print(n, name, covariance, cases[f"{name} | {n}"], flush=True)
    results = {"device": describe(devices()), "cases": cases}
    write_results("explore_errors", results, quick=given.quick)


if __name__ == "__main__":
    main()
