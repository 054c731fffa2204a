"""The posterior of the signal f, given a fitted covariance."""

from __future__ import annotations

import numpy as np

from dpmix.drift.fit import Fit
from dpmix.drift.likelihood import Points
from dpmix.model.mixture import Array

JITTER = 1e-9


def posterior(points: Points, fit: Fit, times: Array, slope_sd: float = 0.0) -> tuple[Array, Array]:
    """Return mean [k] and covariance [k, k] of the signal at given times, exactly, float64.

    It takes n^2 numbers and n^3 / 3 multiply-adds for n points.

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
    from scipy.linalg import cho_factor, cho_solve

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
