"""Measure the error of float32 in the CUDA kernels of `dpmix drift`, against float64 on the CPU.

    E=build/cuda_on_cpu
    LD_LIBRARY_PATH=$E PATH=$E/bin:$PATH python benchmarks/drift_precision.py [--quick]

It takes some minutes on an emulated device, whose float32 is the processor's: exponentials differ from a
GPU's in the last bit. Recordings of 100 units of time are drawn from Gaussian processes of variance 1, with
every correlation, three ranges and several variances of the noise. Nine tenths of the noise are known errors,
the rest is the nugget. For each, the sums of one pass at the true covariance are compared, and then the
curves of two fits from the start. Errors have units in which they can be judged:

- log likelihood: nats;
- gradient: its error times the standard error of the estimate, thus the shift of the estimate in units of
  that error, the largest of the three parameters;
- information: divided by the float64 information, the largest element after scaling both to unit diagonal;
- curve: the largest shift of the posterior mean, in units of its posterior standard deviation.

A recording is refused where the kernel says that float32 has too few digits.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
from record import arguments, read_results, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.drift.covariance import CORRELATIONS, Covariance
from dpmix.drift.device import Device
from dpmix.drift.fit import SignalFit, SignalPrior, fit
from dpmix.drift.likelihood import likelihood
from dpmix.drift.points import NEIGHBOURS, Points, make_points
from dpmix.errors import DpmixError

N_POINTS, DURATION = 500, 100.0
RANGES = (2.0, 10.0, 50.0)
NOISES = (1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Variances of the noise; the signal has variance 1."""

KNOWN = 0.9
ERRORS = {
    "value": "log likelihood, nats",
    "gradient": "gradient, standard errors",
    "information": "information",
    "curve": "curve, posterior sd",
}
LEVEL = 1e3
"""Mean of the values, which must not take digits."""


def recording(own: Covariance, noise: float, n: int, seed: int) -> Points:
    """Return a recording with even times, drawn from its Gaussian process."""
    random = np.random.default_rng(seed)
    times = np.linspace(0.0, DURATION, n)
    covariance = own.between(times, times) + (noise + 1e-10) * np.eye(n)
    values = LEVEL + np.linalg.cholesky(covariance) @ random.standard_normal(n)
    return make_points(times, values, np.full(n, np.sqrt(KNOWN * noise)), NEIGHBOURS)


def pass_errors(points: Points, own: Covariance, device: Device) -> dict[str, float]:
    """Return the errors of the sums of one pass."""
    exact, found = likelihood(points, own), likelihood(points, own, device=device)
    scale = np.sqrt(np.diag(np.linalg.inv(exact.information)))
    root = np.sqrt(np.diag(exact.information))
    return {
        "value": abs(found.value - exact.value),
        "gradient": float(np.abs((found.gradient - exact.gradient) * scale).max()),
        "information": float(np.abs((found.information - exact.information) / np.outer(root, root)).max()),
    }


def curve_error(points: Points, own: Covariance, device: Device) -> float:
    """Return the error of the fitted curve, each fit from the start."""
    prior = SignalPrior.weak(DURATION, float(np.median(points.errors)))
    (exact, sd), (found, _) = (
        curve(points, fit(points, prior, own.correlation, device=used)) for used in (None, device)
    )
    return float((np.abs(found - exact) / sd).max())


def curve(points: Points, found: SignalFit) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior mean and standard deviation of a process with a known mean, of any correlation."""
    own = found.covariance
    signal = own.between(points.times, points.times)
    white = np.linalg.solve(signal + np.diag(own.nugget + points.errors**2), signal).T
    mean = found.mean + white @ (points.values - found.mean)
    return mean, np.sqrt(np.maximum(own.variance - (white * signal).sum(axis=1), 0.0))


def measure(quick: bool) -> list[dict[str, Any]]:
    """Return a row for each recording; an error that float32 was refused for is None."""
    from dpmix.engines.cuda import drift as cuda_drift  # needs a driver, and the table of the page does not

    # All forms run the same arithmetic, and an emulated device has no use for several threads per point.
    cuda_drift.variant = lambda n, m: "vecchia_threads"
    device = cuda_drift.CudaDrift(precision="single")
    n, ranges, noises = (60, RANGES[:1], NOISES[:2]) if quick else (N_POINTS, RANGES, NOISES)
    rows = []
    for kind, reach, noise in product(CORRELATIONS, ranges, noises):
        own = Covariance(kind, 1.0, reach, (1.0 - KNOWN) * noise)
        points = recording(own, noise, n, seed=len(rows))
        row: dict[str, Any] = {"correlation": kind, "range": reach, "noise": noise, **dict.fromkeys(ERRORS)}
        with suppress(DpmixError):
            row |= pass_errors(points, own, device)
        with suppress(DpmixError):
            row["curve"] = curve_error(points, own, device)
        rows.append(row)
        print(row, flush=True)
    device.close()
    return rows


def quantiles(values: list[float | None]) -> str:
    """Return median and largest of those not refused."""
    there = [value for value in values if value is not None]
    return f"{np.median(there):.0e}, {max(there):.0e}" if there else ""


def table() -> str:
    """Return the errors by variance of the noise, over correlations and ranges."""
    rows = read_results("drift_precision")["results"]["rows"]
    titles = [f"{title}: median, largest" for title in ERRORS.values()]
    lines = [
        "| noise, share of the signal's variance | "
        + " | ".join(titles)
        + " | passes refused | fits refused |",
        "| --- " * (len(titles) + 1) + "| ---: | ---: |",
    ]
    for noise in NOISES:
        own = [row for row in rows if row["noise"] == noise]
        cells = [quantiles([row[name] for row in own]) for name in ERRORS]
        refused = [f"{sum(row[key] is None for row in own)} of {len(own)}" for key in ("value", "curve")]
        lines.append("| " + " | ".join([f"{noise:g}", *cells, *refused]) + " |")
    return "\n".join(lines)


def source() -> str:
    """Return command, machine and date."""
    return said("drift_precision", packages=("dpmix", "numpy", "scipy", "pycuda"))


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    with threadpool_limits(1, "blas"):
        write_results("drift_precision", {"points": N_POINTS, "rows": measure(quick)}, quick=quick)


if __name__ == "__main__":
    main()
