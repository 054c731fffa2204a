"""The posterior of a signal that is not stationary, by local approximate Gaussian processes.

Each time of prediction has a design: a few points, chosen by the reduction of the predictive variance (ALC
of Gramacy and Apley 2015, J. Comput. Graph. Stat. 24:561), and its own variance and range. These maximise
the likelihood of the design times a normal prior, whose centre is the stationary fit. So a steady recording,
whose fitted variance is near 0, stays steady. Mean and linear trend are fitted to the whole stretch: a mean
for each design would follow the noise.

P times of prediction, k points of a design.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmix.drift.averages import average, group_sizes, group_starts
from dpmix.drift.covariance import CORRELATIONS, Covariance
from dpmix.drift.device import Device
from dpmix.drift.fit import SignalFit
from dpmix.drift.points import Points, make_points
from dpmix.drift.posterior import JITTER
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array

DESIGN = 50
"""Points of a design, as in laGP, the package of Gramacy."""

MAX_DESIGN: int = _cpu.MAX_DESIGN
MAX_CANDIDATES: int = _cpu.MAX_CANDIDATES

MOST_BLOCKS = 1_024
"""More blocks of a stretch are averaged in groups: a design has 50 of the 256 nearest points, and 50
small blocks would be too near and too noisy to show a slow signal."""

BlockPosterior = tuple[Array, Array, Callable[[int, int], float]]
"""Mean and standard deviation of the signal at the blocks of a stretch, and the covariance of two blocks."""

LOCAL_SDS = (2.0, 1.0)
"""Standard deviations of the priors of local log variance and log range: factors of 55 and 7 within two."""


@dataclass(frozen=True)
class Trend:
    """The mean and linear trend of a stretch under the stationary fit.

    Attributes
    ----------
    coefficients : float64 [2]
        Mean at the middle, and slope.
    cov : float64 [2, 2]
        Their posterior covariance.
    middle : float
        In units of time.
    """

    coefficients: Array
    cov: Array
    middle: float


@dataclass(frozen=True)
class LocalPosterior:
    """The posterior of the signal at some times. Make it by `local_posterior`.

    Attributes
    ----------
    mean, sd : float64 [P]
    designs : int32 [P, k]
        Points, ascending.
    weights : float64 [P, k]
        Weights of the values of the design, less the trend, in the mean.
    variances, ranges : float64 [P]
        Local parameters.
    rest : float64 [P, 2]
        Derivatives of the mean with respect to mean and slope of the trend.
    points, fit, times, trend
        Points, fit, times and trend of this posterior.
    """

    mean: Array
    sd: Array
    designs: npt.NDArray[np.int32]
    weights: Array
    variances: Array
    ranges: Array
    rest: Array
    points: Points
    fit: SignalFit
    times: Array
    trend: Trend

    def covariance(self, i: int, j: int) -> float:
        """Return the posterior covariance of the signal at two of the times.

        The error of a prediction has two parts, which are taken as independent. The error of mean and trend
        is shared by all times. The error of the local process is the error of f - w' (f_D + e_D), with
        weights w and design D. The errors e of the points that two designs share are the same. The processes
        at two times have different parameters (s, r) and (s', r'), so their joint covariance is an assumption
        (Paciorek and Schervish 2006, Environmetrics 17:483):

            s s' sqrt(r r' / q) rho(distance / sqrt(q)), with q = (r^2 + r'^2) / 2

        It is positive definite, and the covariance of one process where the parameters are equal: with all
        points in each design and the parameters of the stationary fit, the result equals the result of
        `posterior`.
        """
        if i == j:
            return float(self.sd[i] ** 2)
        square = 0.5 * (self.ranges[i] ** 2 + self.ranges[j] ** 2)
        scale = np.sqrt(self.variances[i] * self.variances[j] * self.ranges[i] * self.ranges[j] / square)
        joint = Covariance(self.fit.covariance.correlation, float(scale), float(np.sqrt(square)), 0.0)
        one, other = (np.append(self.points.times[self.designs[k]], self.times[k]) for k in (i, j))
        cov = joint.between(one, other)
        same = self.designs[i][:, None] == self.designs[j]
        cov[:-1, :-1] += same * (self.fit.covariance.nugget + self.points.errors[self.designs[j]] ** 2)
        error, other_error = (np.append(-self.weights[k], 1.0) for k in (i, j))
        return float(error @ cov @ other_error + self.rest[i] @ self.trend.cov @ self.rest[j])


def shared_trend(points: Points, fit: SignalFit, slope_sd: float) -> Trend:
    """Estimate the mean, with a flat prior, and the slope, with a normal one, under the stationary fit.

    Parameters
    ----------
    points : Points
    fit : SignalFit
    slope_sd : float
        Prior standard deviation of the slope, per unit of time.
    """
    from scipy.linalg import cho_factor, cho_solve

    middle, noise = float(points.times.mean()), fit.covariance.nugget + points.errors**2
    factor = cho_factor(fit.covariance.between(points.times, points.times) + np.diag(noise), lower=True)
    columns, scale = _columns(points.times, middle), np.array([1.0, slope_sd])
    white = cho_solve(factor, columns)
    # The slope in units of its prior: a standard deviation of 0 is no special case.
    cov = np.linalg.inv(np.outer(scale, scale) * (columns.T @ white) + np.diag([0.0, 1.0]))
    cov = np.outer(scale, scale) * cov
    return Trend(cov @ (white.T @ points.values), cov, middle)


def local_posterior(
    points: Points,
    fit: SignalFit,
    times: Array,
    slope_sd: float,
    size: int = DESIGN,
    sds: tuple[float, float] = LOCAL_SDS,
    threads: int = 1,
    device: Device | None = None,
) -> LocalPosterior:
    """Return the posterior of the signal at given times, the same bits for any number of threads.

    Given the local parameters and the design, mean and variance are exact for a known mean and trend. Their
    uncertainty, which comes from the stationary fit, is added once, by `Trend`. The uncertainty of the local
    parameters is not included.

    Parameters
    ----------
    points : Points
    fit : SignalFit
        Stationary. All designs have its nugget.
    times : float64 [P]
    slope_sd : float
        See `dpmix.drift.posterior`.
    size : int
        k, from 1 to `MAX_DESIGN`; at most the number of points.
    sds : tuple of float
        Standard deviations of the priors of local log variance and log range about the values of the fit.
    threads : int
        Threads of the CPU.
    device : Device, optional
        Predict on this device, with the result of the CPU within rounding. Default: the CPU.

    Raises
    ------
    ValueError
        The size is out of its limits.
    numpy.linalg.LinAlgError
        The covariance of a design is not positive definite to float64.
    DpmixError
        The device fails.
    """
    if not 1 <= size <= MAX_DESIGN:
        raise ValueError(f"got designs of {size} points, need 1 to {MAX_DESIGN}")
    at, size = np.ascontiguousarray(times, dtype=np.float64), min(size, len(points.times))
    trend = shared_trend(points, fit, slope_sd)
    columns = _columns(points.times, trend.middle)
    noise, values = fit.covariance.nugget + points.errors**2, points.values - columns @ trend.coefficients
    designs, weights = np.empty((len(at), size), np.int32), np.empty((len(at), size))
    parameters, variances = np.empty((len(at), 2)), np.empty(len(at))
    kind = list(CORRELATIONS).index(fit.covariance.correlation)
    arrays = points.times, values, noise, kind, fit.covariance.logs()[:2], np.array(sds), at
    out = designs, weights, parameters, variances
    if device is None:
        _cpu.predict_locally(*arrays, threads, *out)
    else:
        device.predict_locally(*arrays, *out)
    if not np.isfinite(variances).all():
        raise np.linalg.LinAlgError(f"the covariance of a design is singular: {fit.covariance}")
    rest = _columns(at, trend.middle) - np.einsum("pk,pkc->pc", weights, columns[designs])
    mean = _columns(at, trend.middle) @ trend.coefficients + (weights * values[designs]).sum(axis=1)
    # A variance is the difference of two numbers, and may be negative by rounding next to a point without
    # noise.
    variance = np.maximum(variances, JITTER * parameters[:, 0]) + ((rest @ trend.cov) * rest).sum(axis=1)
    sd = np.sqrt(variance)
    local, ranges = parameters.T
    return LocalPosterior(mean, sd, designs, weights, local, ranges, rest, points, fit, at, trend)


def local_blocks(
    points: Points, fit: SignalFit, slope_sd: float, threads: int = 1, device: Device | None = None
) -> BlockPosterior:
    """Return the posterior of the signal at the blocks of a stretch.

    With more than `MOST_BLOCKS` blocks, it is the posterior given averages of blocks, at their times; between
    these, mean and standard deviation are interpolated.

    Parameters
    ----------
    points, fit, slope_sd, threads, device
        As in `local_posterior`.
    """
    starts = group_starts(len(points.times), MOST_BLOCKS)
    if len(starts) == len(points.times):
        found = local_posterior(points, fit, points.times, slope_sd, threads=threads, device=device)
        return found.mean, found.sd, found.covariance
    sizes, nugget = group_sizes(len(points.times), starts), fit.covariance.nugget
    noise = average(nugget + points.errors**2, starts) / sizes
    times, values = (average(column, starts) for column in (points.times, points.values))
    averages = make_points(times, values, np.sqrt(noise - nugget / sizes[0]), n_neighbours=0)
    own = replace(fit, covariance=replace(fit.covariance, nugget=nugget / float(sizes[0])))
    found = local_posterior(averages, own, times, slope_sd, threads=threads, device=device)
    mean, sd = (np.interp(points.times, times, column) for column in (found.mean, found.sd))
    return mean, sd, lambda i, j: found.covariance(i // int(sizes[0]), j // int(sizes[0]))


def _columns(times: Array, middle: float) -> Array:
    """Return the columns of mean and slope, float64 [n, 2]."""
    return np.column_stack([np.ones(len(times)), times - middle])
