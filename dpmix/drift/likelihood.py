"""Vecchia's likelihood of a Gaussian process of time, with gradient and expected information in one pass.

Each point is given its m nearest predecessors in an ordering (Vecchia 1988, J. R. Stat. Soc. B 50:297). The
ordering is from coarse to fine, so that a point has near and far neighbours (Guinness 2018, Technometrics
60:415). The derivatives are those of Guinness (2021, Stat. Comput. 31:25). The cost is O(n m^3), and linear
in n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.drift.covariance import CORRELATIONS, Covariance
from dpmix.drift.device import Device
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Ints

NEIGHBOURS = 30
"""Neighbours of a point; the number of GpGp, the package of Guinness."""

MAX_NEIGHBOURS: int = _cpu.MAX_NEIGHBOURS


@dataclass(frozen=True)
class Points:
    """Values over time, with their errors and neighbours. Make them by `make_points`.

    Attributes
    ----------
    times : float64 [n]
        Ascending.
    values, errors : float64 [n]
        Values and their known standard errors.
    neighbours : int32 [n, m]
        For each point its neighbours, ascending, -1 after the last one.
    """

    times: Array
    values: Array
    errors: Array
    neighbours: npt.NDArray[np.int32]


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


def coarse_to_fine(n: int) -> Ints:
    """Return the numbers 0 to n - 1, int64 [n], ordered by their reversed bits."""
    numbers = np.arange(n, dtype=np.int64)
    reversed_bits = np.zeros(n, np.int64)
    for bit in range(max(n - 1, 1).bit_length()):
        reversed_bits = 2 * reversed_bits + (numbers >> bit & 1)
    return np.argsort(reversed_bits, kind="stable")


def make_points(
    times: Array, values: Array, errors: Array, n_neighbours: int = NEIGHBOURS, order: Ints | None = None
) -> Points:
    """Find the neighbours of points.

    Parameters
    ----------
    times, values, errors : float64 [n]
        Times ascend; errors are known standard errors of the values, 0 for none.
    n_neighbours : int
        m, from 0 to `MAX_NEIGHBOURS`. 0 is enough for a posterior.
    order : int64 [n], optional
        A permutation. Default: `coarse_to_fine`.

    Raises
    ------
    ValueError
        Times do not ascend, the lengths differ, a number is not finite, an error is negative, or m is out of
        its limits.
    """
    arrays = [np.ascontiguousarray(array, dtype=np.float64) for array in (times, values, errors)]
    n = len(arrays[0])
    if n == 0 or any(array.shape != (n,) for array in arrays):
        raise ValueError(f"got shapes {[array.shape for array in arrays]}, need [n] with n at least 1")
    if not all(np.isfinite(array).all() for array in arrays) or (arrays[2] < 0).any():
        raise ValueError("need finite times, values and errors, and errors of 0 or more")
    if (np.diff(arrays[0]) < 0).any():
        raise ValueError("times must ascend")
    if not 0 <= n_neighbours <= MAX_NEIGHBOURS:
        raise ValueError(f"got {n_neighbours} neighbours, need 0 to {MAX_NEIGHBOURS}")
    order = coarse_to_fine(n) if order is None else np.ascontiguousarray(order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise ValueError(f"order must be a permutation of 0 to {n - 1}")
    neighbours = np.empty((n, n_neighbours), np.int32)
    _cpu.nearest_predecessors(arrays[0], order, neighbours)
    return Points(arrays[0], arrays[1], arrays[2], neighbours)


def likelihood(
    points: Points, covariance: Covariance, threads: int = 1, device: Device | None = None
) -> Likelihood:
    """Return the log likelihood of a covariance, the same bits for any number of threads.

    Parameters
    ----------
    points : Points
    covariance : Covariance
    threads : int
        Of the CPU.
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
