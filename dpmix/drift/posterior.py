"""The posterior of the signal f, given a fitted covariance.

Of a Matern process it takes time linear in the number of points (`dpmix.drift.markov`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.drift.exact import smooth, whiten
from dpmix.drift.fit import SignalFit
from dpmix.drift.points import Points
from dpmix.model.mixture import Array

JITTER = 1e-9


@dataclass(frozen=True)
class SignalPosterior:
    """The posterior of the signal at k times. Make it by `posterior`.

    Attributes
    ----------
    mean, sd : float64 [k]
    points : Points
    fit : SignalFit
    times : float64 [k]
    trend_cov : float64 [2, 2]
        Posterior covariance of mean and slope, the slope in units of its prior.
    rest : float64 [k, 2]
        Derivatives of the mean of the signal with respect to these.
    """

    mean: Array
    sd: Array
    points: Points
    fit: SignalFit
    times: Array
    trend_cov: Array
    rest: Array

    def covariance(self, i: int, j: int) -> float:
        """Return the posterior covariance of the signal at two of the times, in linear time.

        Given mean and slope, it is the prior covariance of the two, less the posterior mean at the one time
        where the values are the covariances of the points with the other.
        """
        own, points = self.fit.covariance, self.points
        to_other = own.between(points.times, self.times[j : j + 1])
        explained, _ = _smooth_at(points, self.fit, self.times[i : i + 1], to_other)
        process = own.between(self.times[i : i + 1], self.times[j : j + 1])[0, 0] - explained[0, 0]
        return float(process + self.rest[i] @ self.trend_cov @ self.rest[j])


def posterior(points: Points, fit: SignalFit, times: Array, slope_sd: float = 0.0) -> SignalPosterior:
    """Return the posterior of the signal at given times, exactly.

    The mean of the process has a flat prior (universal kriging; Rasmussen and Williams 2006, section 2.7).

    Parameters
    ----------
    points : Points
        Their neighbours are not used.
    fit : SignalFit
    times : float64 [k]
        Ascending.
    slope_sd : float
        Standard deviation of the normal prior of a linear trend, per unit of time, which is a part of the
        signal in addition to the fitted process.

    Raises
    ------
    ValueError
        The times do not ascend.
    """
    own, middle = fit.covariance, points.times.mean()
    if (np.diff(times) < 0).any():
        raise ValueError("times must ascend")
    columns, there = (
        np.column_stack([np.ones(len(some)), slope_sd * (some - middle)]) for some in (points.times, times)
    )
    given = np.column_stack([points.values, columns])
    _, white = whiten(points.times, own.nugget + points.errors**2, own, given)
    # A flat prior of the mean adds 0, and the slope, in units of its prior, adds 1.
    trend_cov = np.asarray(np.linalg.inv(white[:, 1:].T @ white[:, 1:] + np.diag([0.0, 1.0])), np.float64)
    trend = trend_cov @ (white[:, 1:].T @ white[:, 0])
    means, variances = _smooth_at(points, fit, times, given)
    rest = there - means[:, 1:]
    mean = means[:, 0] + rest @ trend
    variances = variances + np.einsum("ki,ij,kj->k", rest, trend_cov, rest)
    sd = np.sqrt(np.maximum(variances, JITTER * own.variance))
    return SignalPosterior(mean, sd, points, fit, times, trend_cov, rest)


def _smooth_at(points: Points, fit: SignalFit, times: Array, columns: Array) -> tuple[Array, Array]:
    """Return means [k, C] and variances [k] of the process at given times, for columns [n, C] as values."""
    noise = fit.covariance.nugget + points.errors**2
    all_times, places = points.times, np.arange(len(times))
    if times is not points.times:
        before = np.searchsorted(points.times, times)
        places = before + places
        # Times without a value enter the filter as values of infinite variance, which change nothing.
        all_times, noise = np.insert(all_times, before, times), np.insert(noise, before, np.inf)
        columns = np.insert(columns, before, 0.0, axis=0)
    means, variances = smooth(all_times, noise, fit.covariance, columns)
    return means[places], variances[places]
