"""Learn a covariance from judgements: the maximum of marginal likelihood times prior.

Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, sections 5.4.1 and 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize

from dpmix.explore.covariance import NOISE, VARIANCE, JudgementCovariance
from dpmix.model.mixture import Array

PRIOR_SDS = (1.0, 1.0, 1.0)
"""Prior standard deviations of the logarithms of variance, noise and each range, about their first values."""

LIMIT = 3.0
"""Parameters stay within a factor of e^3 of their first values."""

MAX_STEPS = 30
LEAST = 10
"""Judgements from which on a covariance is learned; some of them must differ."""

MOST = 200
"""Judgements that a covariance is learned from, spread over all: the cost grows with their cube."""


def can_learn(values: Array) -> bool:
    """Return True if judgements, float64 [n], can teach a covariance."""
    return len(values) >= LEAST and bool(np.ptp(values) > 0.0)


def learn(firsts: Sequence[JudgementCovariance], points: Array, values: Array) -> JudgementCovariance:
    """Return the covariance with the highest posterior density among several shapes.

    Parameters
    ----------
    firsts : sequence of Covariance
        One of each shape, with the ranges from the data, which are the centres of the prior.
    points : float64 [n, D]
        Judged events, standardised scale.
    values : float64 [n]
        Judgements from 0, unwanted, to 1, wanted.
    """
    taken = np.linspace(0, len(values) - 1, min(len(values), MOST)).astype(int)
    fitted = [_fit(first, points[taken], values[taken]) for first in firsts]
    return max(fitted, key=lambda pair: pair[1])[0]


def log_posterior(
    covariance: JudgementCovariance, first: JudgementCovariance, points: Array, values: Array
) -> tuple[float, Array]:
    """Return log marginal likelihood plus log prior, nats, without a constant, and its gradient.

    Parameters
    ----------
    covariance, first : JudgementCovariance
        Where, and the centre of the prior.
    points, values : float64 [n, D], [n]

    Returns
    -------
    value : float
    gradient : float64 [D + 2]
        With respect to the logarithms of variance, noise and ranges.

    Raises
    ------
    numpy.linalg.LinAlgError
        The covariance of the judgements is not positive definite to float64.
    """
    n = len(values)
    signal = covariance.between(points, points)
    root = cholesky(signal + covariance.noise * np.eye(n), lower=True)
    inverse = cho_solve((root, True), np.eye(n))
    weights = inverse @ values
    value = -0.5 * values @ weights - np.log(np.diag(root)).sum() - 0.5 * n * np.log(2.0 * np.pi)
    outer = np.outer(weights, weights) - inverse
    by_signal = outer * signal
    gradient = np.empty(points.shape[1] + 2)
    gradient[0] = by_signal.sum()
    gradient[1] = covariance.noise * np.trace(outer)
    gradient[2:] = _by_ranges(by_signal, covariance, points)
    logs, centres = covariance.logs(), replace(first, variance=VARIANCE, noise=NOISE).logs()
    sds = np.concatenate([PRIOR_SDS[:2], np.full(points.shape[1], PRIOR_SDS[2])])
    value -= 0.5 * (((logs - centres) / sds) ** 2).sum()
    return float(value), 0.5 * gradient - (logs - centres) / sds**2


def _by_ranges(by_signal: Array, covariance: JudgementCovariance, points: Array) -> Array:
    """Return twice the derivatives of the log likelihood with respect to the logarithms of the ranges."""
    scaled = points / covariance.ranges
    if covariance.shape == "laplacian":
        return np.array([(by_signal * np.abs(one[:, None] - one)).sum() for one in scaled.T])
    squares = by_signal.sum(axis=1) @ scaled**2  # sum_ij b_ij (x_i - x_j)^2, expanded
    derivatives: Array = 2.0 * (squares - np.einsum("nd,nd->d", scaled, by_signal @ scaled))
    return derivatives


def _fit(first: JudgementCovariance, points: Array, values: Array) -> tuple[JudgementCovariance, float]:
    start = first.logs()

    def cost(logs: Array) -> tuple[float, Array]:
        value, gradient = log_posterior(first.moved(logs), first, points, values)
        return -value, -gradient

    bounds = list(zip(start - LIMIT, start + LIMIT, strict=True))
    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_STEPS})
    return first.moved(found.x), -float(found.fun)
