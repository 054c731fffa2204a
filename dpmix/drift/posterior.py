"""The posterior of the signal f, given a fitted covariance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dpmix.drift.fit import Fit
from dpmix.drift.likelihood import Points
from dpmix.model.mixture import Array

EXACT_POINTS = 4_096
"""Up to this number of points the posterior is exact. It takes n^2 numbers and n^3 / 3 multiply-adds."""

NEAREST = 512
"""With more points, each time is given this number of nearest points."""

JITTER = 1e-9


@dataclass(frozen=True)
class Signal:
    """Posterior of m + f at some times, with the parameters of the covariance known.

    The uncertainty of the mean m is included.

    Attributes
    ----------
    times, mean, sd : float64 [k]
    """

    times: Array
    mean: Array
    sd: Array

    def interval(self, z: float = 1.6449) -> tuple[Array, Array]:
        """Return the ends of the interval, by default of probability 90%."""
        return self.mean - z * self.sd, self.mean + z * self.sd


def posterior(points: Points, fit: Fit, times: Array) -> Signal:
    """Return the posterior of the signal at given times.

    It is exact for up to `EXACT_POINTS` points. With more, each time is given its `NEAREST` nearest points,
    which also give the constant mean.

    Parameters
    ----------
    points : Points
    fit : Fit
    times : float64 [k]
    """
    times = np.asarray(times, np.float64)
    if len(points.times) <= EXACT_POINTS:
        mean, cov = joint_posterior(points, fit, times)
        return Signal(times, mean, np.sqrt(np.diag(cov)))
    means, sds = np.empty(len(times)), np.empty(len(times))
    for k, time in enumerate(times):
        middle = int(np.searchsorted(points.times, time))
        start = min(max(middle - NEAREST, 0), max(len(points.times) - 2 * NEAREST, 0))
        window = np.arange(start, min(start + 2 * NEAREST, len(points.times)))
        distances = np.abs(points.times[window] - time)
        near = np.sort(window[np.argsort(distances, kind="stable")[:NEAREST]])
        part = Points(points.times[near], points.values[near], points.errors[near], points.neighbours[near])
        mean, cov = joint_posterior(part, fit, times[k : k + 1])
        means[k], sds[k] = mean[0], np.sqrt(cov[0, 0])
    return Signal(times, means, sds)


def joint_posterior(points: Points, fit: Fit, times: Array, slope_sd: float = 0.0) -> tuple[Array, Array]:
    """Return mean [k] and covariance [k, k] of the signal at given times, exactly, float64.

    The mean of the process has a flat prior (universal kriging; Rasmussen and Williams 2006, section 2.7).

    Parameters
    ----------
    points : Points
    fit : Fit
    times : float64 [k]
    slope_sd : float
        Standard deviation of the normal prior of a linear trend, per unit of time, which is a part of the
        signal in addition to the fitted process.
    """
    own, noise = fit.covariance, fit.covariance.nugget + points.errors**2
    middle = points.times.mean()

    def between(some: Array, others: Array) -> Array:
        trend: Array = slope_sd**2 * np.outer(some - middle, others - middle)
        return own.between(some, others) + trend

    factor = cho_factor(between(points.times, points.times) + np.diag(noise), lower=True)
    cross = between(times, points.times)
    ones = np.ones(len(points.times))
    white_ones, white_cross = cho_solve(factor, ones), cho_solve(factor, cross.T)
    precision = ones @ white_ones
    centre = white_ones @ points.values / precision
    mean = centre + white_cross.T @ (points.values - centre)
    rest = 1.0 - white_cross.T @ ones
    cov = between(times, times) - cross @ white_cross + np.outer(rest, rest) / precision
    np.fill_diagonal(cov, np.maximum(np.diag(cov), JITTER * own.variance))
    return mean, cov
