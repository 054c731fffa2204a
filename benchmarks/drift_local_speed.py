"""Measure the local approximate Gaussian processes of `dpmix drift --local`.

    python benchmarks/drift_local_speed.py [--quick]

Takes a minute or two of two cores. Predictions at 10,000 times from 100,000 points of a recording, by designs
of 50 points: design, local fit, second design, second fit and weights of each, in two threads. The trend,
which `dpmix drift` estimates from at most 1,024 averages of blocks, is not a part of it: the values have
none. The time of the processor is the sum over both threads, and hardly depends on what else the machine
does.
"""

from __future__ import annotations

import time

import numpy as np
from record import arguments, read_results, write_results

from dpmix.drift.covariance import CORRELATIONS
from dpmix.drift.local import DESIGN, LOCAL_SDS
from dpmix.kernels import _cpu

POINTS, PREDICTIONS, THREADS = 100_000, 10_000, 2
VARIANCE, RANGE, ERROR = 0.1, 1.0, 0.1


def measure(n: int, count: int) -> dict[str, float]:
    """Return the seconds of predictions, by the clock and of the processor."""
    random = np.random.default_rng(n)
    times, at = np.sort(random.uniform(0.0, 100.0, n)), np.linspace(0.0, 100.0, count)
    values = 0.4 * np.sin(np.maximum(times - 50.0, 0.0)) + ERROR * random.standard_normal(n)
    designs, weights = np.empty((count, DESIGN), np.int32), np.empty((count, DESIGN))
    parameters, variances = np.empty((count, 2)), np.empty(count)
    by_clock, of_processor = time.perf_counter(), time.process_time()
    _cpu.predict_locally(
        times, values, np.full(n, ERROR**2), list(CORRELATIONS).index("matern32"),
        np.log([VARIANCE, RANGE]), np.array(LOCAL_SDS), at, THREADS, designs, weights, parameters, variances,
    )  # fmt: skip
    assert np.isfinite(variances).all()
    return {
        "points": n,
        "predictions": count,
        "design": DESIGN,
        "threads": THREADS,
        "seconds": time.perf_counter() - by_clock,
        "processor_seconds": time.process_time() - of_processor,
    }


def sentence() -> str:
    """Return the measurement as a sentence."""
    own = read_results("drift_local_speed")["results"]
    return (
        f"{own['predictions']:,} predictions from {own['points']:,} points by designs of {own['design']} "
        f"took {own['seconds']:.0f} seconds by the clock and {own['processor_seconds']:.0f} seconds of the "
        f"processor ({own['threads']} threads).\n"
    )


def main() -> None:
    given = arguments(__doc__).parse_args()
    results = measure(2_000, 100) if given.quick else measure(POINTS, PREDICTIONS)
    print(results)
    write_results("drift_local_speed", results, quick=given.quick)


if __name__ == "__main__":
    main()
