"""Vecchia's likelihood of a Gaussian process of time, with gradient and expected information in one pass.

Each point is given its m nearest predecessors in an ordering (Vecchia 1988, J. R. Stat. Soc. B 50:297). The
ordering is from coarse to fine, so that a point has near and far neighbours (Guinness 2018, Technometrics
60:415). The derivatives are from Guinness (2021, Stat. Comput. 31:25). The cost is O(n m^3), and linear in n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.drift.covariance import CORRELATIONS, Covariance
from dpmix.drift.device import Device
from dpmix.drift.points import Points
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array


@dataclass(frozen=True)
class Likelihood:
    """Log likelihood of a covariance, with the constant mean at its maximum.

    Attributes
    ----------
    value : float
        In nats.
    gradient : float64 [3]
        With respect to the logarithms of variance, range and nugget.
    information : float64 [3, 3]
        Expected (Fisher) information about these, the mean known.
    mean, mean_error : float
        Generalised least squares estimate of the mean, and its standard error.
    """

    value: float
    gradient: Array
    information: Array
    mean: float
    mean_error: float


def likelihood(
    points: Points, covariance: Covariance, threads: int = 1, device: Device | None = None
) -> Likelihood:
    """Return the log likelihood of a covariance, the same bits for any number of threads.

    Parameters
    ----------
    points : Points
    covariance : Covariance
    threads : int
        Threads of the CPU.
    device : Device, optional
        Compute on this device, with the result of the CPU within rounding. Default: the CPU.

    Raises
    ------
    numpy.linalg.LinAlgError
        The covariance of a point and its neighbours is not positive definite to float64.
    DpmixError
        The device fails.
    """
    kind = list(CORRELATIONS).index(covariance.correlation)
    parameters = (covariance.variance, covariance.range, covariance.nugget)
    if device is None:
        out = np.empty((7, 4))
        arrays = points.times, points.values, points.errors**2, points.neighbours
        _cpu.vecchia(*arrays, kind, *parameters, _cpu.isas()[0], threads, out)
    else:
        out = device.sums(points, kind, parameters)
    (log_det, *d_log_det), (yy, *d_yy), (xy, *d_xy), (xx, *d_xx) = out[:4]
    if not np.isfinite(log_det):
        raise np.linalg.LinAlgError(f"the covariance of a point and its neighbours is singular: {covariance}")
    mean, n = xy / xx, len(points.times)
    square = yy - mean * xy
    # The mean is at its maximum, so its own derivative does not count.
    d_square = np.array(d_yy) - 2.0 * mean * np.array(d_xy) + mean**2 * np.array(d_xx)
    return Likelihood(
        value=float(-0.5 * (n * np.log(2.0 * np.pi) + log_det + square)),
        gradient=-0.5 * (np.array(d_log_det) + d_square),
        information=out[4:, :3].copy(),
        mean=float(mean),
        mean_error=float(1.0 / np.sqrt(xx)),
    )
