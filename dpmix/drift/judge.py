"""Judge a channel or the event rate: signal over time, change points, unsteady stretches and a verdict."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmix.drift.covariance import Correlation
from dpmix.drift.fit import Fit, Prior, fit
from dpmix.drift.likelihood import Device, make_points
from dpmix.drift.posterior import joint_posterior
from dpmix.drift.steps import change_points, keep_steps, noise_sd, without_outliers
from dpmix.drift.summaries import LIMIT
from dpmix.model.mixture import Array, Ints

Verdict = Literal["steady", "unsure", "drift", "steps"]

RISE = 2.0
"""Standard deviation of the prior of a linear trend's rise over the recording, in units of the signal's own.

Without a trend, a signal that rises all the time is drawn towards its mean at both ends. In units of the
fitted standard deviation, because a trend as free in a steady recording would make its verdict unsure.
"""

PATHS = 400
MOST_TIMES = 200
"""Draws of the signal, and times at which they are compared."""


@dataclass(frozen=True)
class Judgement:
    """The signal of one channel over time, in units of the channel's spread.

    Attributes
    ----------
    name : str
    times, values : float64 [B]
        Of the blocks.
    mean, sd : float64 [B]
        Posterior of the signal at the blocks.
    changes : tuple of int
        First blocks of the stretches after change points.
    range, low, high : float
        The signal where its mean is highest minus that where it is lowest: median and 90% interval.
    unsteady : bool [B]
        Blocks that certainly differ by more than the limit from the usual level.
    limit : float
    fit : Fit
    """

    name: str
    times: Array
    values: Array
    mean: Array
    sd: Array
    changes: tuple[int, ...]
    range: float
    low: float
    high: float
    unsteady: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    limit: float
    fit: Fit

    @property
    def verdict(self) -> Verdict:
        """Return the verdict by the interval of the range, compared with the limit.

        steady: all of it is below. unsure: the limit is inside. Above: steps where there are change points,
        else drift.
        """
        if self.high < self.limit:
            return "steady"
        if self.low <= self.limit:
            return "unsure"
        return "steps" if self.changes else "drift"


def judge(
    name: str,
    times: Array,
    values: Array,
    errors: Array,
    limit: float = LIMIT,
    correlation: Correlation = "matern32",
    threads: int = 1,
    device: Device | None = None,
) -> Judgement:
    """Judge a channel by its block medians.

    Single blocks far from their neighbours are moved towards them. Change points come next. The covariance is
    fitted once, to the values without the steps. Each stretch then has its own mean, trend and posterior, so
    that nothing is smoothed over a step.

    Parameters
    ----------
    name : str
    times, values, errors : float64 [B]
        Values and standard errors in units of the channel's spread.
    limit : float
        In the same units.
    correlation, threads, device
        See `dpmix.drift.covariance`, `dpmix.drift.likelihood`.
    """
    noise = noise_sd(values, errors)
    plain = without_outliers(values, noise)
    candidates = change_points(times, plain, noise)
    changes = keep_steps(times, plain, np.maximum(errors, noise), candidates, correlation)
    stretches = list(itertools.pairwise([0, *changes, len(values)]))
    level = plain.copy()
    for start, stop in stretches:
        level[start:stop] -= np.median(plain[start:stop])
    prior = Prior.weak(float(times[-1] - times[0]), float(np.median(errors)))
    fitted = fit(make_points(times, level, errors), prior, correlation, threads, device)
    mean, sd, shown, paths = _signal(fitted, times, plain, errors, stretches)
    # Not the largest minus the smallest value of each draw, to which the uncertainty of every block adds.
    highest, lowest = np.argmax(mean[shown]), np.argmin(mean[shown])
    widths = np.maximum(paths[:, highest] - paths[:, lowest], 0.0)
    low, middle, high = np.quantile(widths, [0.05, 0.5, 0.95]).tolist()
    usual = np.median(mean)
    unsteady = np.abs(mean - usual) - 1.6449 * sd > limit
    return Judgement(
        name,
        times,
        values,
        mean,
        sd,
        tuple(changes),
        middle,
        low,
        high,
        unsteady,
        limit,
        fitted,
    )


def _signal(
    fitted: Fit, times: Array, values: Array, errors: Array, stretches: list[tuple[int, int]]
) -> tuple[Array, Array, Ints, Array]:
    """Return mean [B] and sd [B] of the signal at the blocks, and draws of it at some of them.

    These are the k blocks of the third array, int64 [k]; the draws are float64 [PATHS, k].
    """
    random = np.random.default_rng(1)
    rise_sd = RISE * fitted.covariance.variance**0.5
    slope_sd = rise_sd / max(float(times[-1] - times[0]), 1e-300)
    mean, sd, paths = np.empty(len(times)), np.empty(len(times)), []
    some, shown = set(_some(len(times)).tolist()), []
    for start, stop in stretches:
        points = make_points(times[start:stop], values[start:stop], errors[start:stop])
        own, cov = joint_posterior(points, fitted, times[start:stop], slope_sd)
        mean[start:stop], sd[start:stop] = own, np.sqrt(np.diag(cov))
        inside = [k - start for k in range(start, stop) if k in some] or [0]
        # Eigenvalues: the covariance of near times is singular to rounding.
        roots, vectors = np.linalg.eigh(cov[np.ix_(inside, inside)])
        half = vectors * np.sqrt(np.maximum(roots, 0.0))
        shown += [start + k for k in inside]
        paths.append(own[inside] + random.standard_normal((PATHS, len(inside))) @ half.T)
    return mean, sd, np.array(shown), np.concatenate(paths, axis=1)


def _some(count: int) -> Ints:
    """Return at most `MOST_TIMES` of the numbers below count, int64, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_TIMES)).astype(np.int64))
