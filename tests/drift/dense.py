"""The posterior of the signal by dense matrices, which the linear one is compared with."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dpmix.drift.fit import SignalFit
from dpmix.drift.points import Points
from dpmix.model.mixture import Array


def dense_posterior(
    points: Points, fit: SignalFit, times: Array, slope_sd: float = 0.0
) -> tuple[Array, Array]:
    """Return mean [k] and covariance [k, k] of the signal at given times."""
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
    rest = 1.0 - white_cross.T @ ones
    cov = between(times, times) - cross @ white_cross + np.outer(rest, rest) / precision
    return centre + white_cross.T @ (points.values - centre), cov
