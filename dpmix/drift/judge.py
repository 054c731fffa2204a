"""Judge a channel or the event rate: signal over time, change points, unsteady stretches and a verdict."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from dpmix.drift.covariance import Correlation
from dpmix.drift.device import Device
from dpmix.drift.fit import SignalFit, SignalPrior, fit_blocks
from dpmix.drift.local import BlockPosterior, local_blocks
from dpmix.drift.points import Points, make_points
from dpmix.drift.posterior import posterior
from dpmix.drift.steps import change_points, keep_steps, noise_sd, without_outliers
from dpmix.drift.summaries import LIMIT
from dpmix.model.mixture import Array

Verdict = Literal["steady", "unsure", "drift", "steps"]

RISE = 2.0
"""Standard deviation of the prior of a linear trend's rise over the recording, in units of the signal's own.

Without a trend, a signal that rises all the time is drawn towards its mean at both ends. In units of the
fitted standard deviation, because a trend as free in a steady recording would make its verdict unsure.
"""

NORMAL_95 = 1.6449
"""The 95% quantile of the normal distribution."""


@dataclass(frozen=True)
class Judgement:
    """The signal of one channel over time, in units of the channel's spread.

    Attributes
    ----------
    name : str
    times, values : float64 [B]
        Times and values of the blocks.
    mean, sd : float64 [B]
        Posterior of the signal at the blocks.
    changes : tuple of int
        First blocks of the stretches after change points.
    change_times : tuple of float
        Between the blocks before and after.
    range, low, high : float
        The signal where its mean is highest minus that where it is lowest: median and 90% interval.
    unsteady : bool [B]
        Blocks that certainly differ by more than the limit from the usual level.
    limit : float
    fit : SignalFit
    """

    name: str
    times: Array
    values: Array
    mean: Array
    sd: Array
    changes: tuple[int, ...]
    change_times: tuple[float, ...]
    range: float
    low: float
    high: float
    unsteady: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    limit: float
    fit: SignalFit

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

    def without_arrays(self) -> Judgement:
        """Return the judgement with empty arrays."""
        none = np.empty(0)
        return replace(self, times=none, values=none, mean=none, sd=none, unsteady=none > 0)


def judge(
    name: str,
    times: Array,
    values: Array,
    errors: Array,
    limit: float = LIMIT,
    correlation: Correlation = "matern32",
    threads: int = 1,
    device: Device | None = None,
    local: bool = False,
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
        See `dpmix.drift.markov`, `dpmix.drift.likelihood`.
    local : bool
        Variance and range of the signal depend on time (`dpmix.drift.local`). Default: the same at all times.
    """
    noise = noise_sd(values, errors)
    plain = without_outliers(values, noise)
    candidates = change_points(plain, noise)
    # The larger of the two errors: medians between two populations vary more than their order statistics say.
    changes = keep_steps(times, plain, np.maximum(errors, noise), candidates, correlation)
    stretches = list(itertools.pairwise([0, *changes, len(values)]))
    level = plain.copy()
    for start, stop in stretches:
        # Steps would otherwise be explained by a large variance and a short range, for all stretches.
        level[start:stop] -= np.median(plain[start:stop])
    prior = SignalPrior.weak(float(times[-1] - times[0]), float(np.median(errors)))
    fitted = fit_blocks(times, level, errors, prior, correlation, threads, device)
    predict = partial(local_blocks, threads=threads, device=device) if local else _stationary
    mean, sd, both = _signal(fitted, times, plain, errors, stretches, predict)
    low, middle, high = _range(mean, sd, both)
    usual = np.median(mean)
    unsteady = np.abs(mean - usual) - NORMAL_95 * sd > limit
    return Judgement(
        name,
        times,
        values,
        mean,
        sd,
        tuple(changes),
        tuple(0.5 * float(times[k - 1] + times[k]) for k in changes),
        middle,
        low,
        high,
        unsteady,
        limit,
        fitted,
    )


def _signal(
    fitted: SignalFit,
    times: Array,
    values: Array,
    errors: Array,
    stretches: list[tuple[int, int]],
    predict: Callable[[Points, SignalFit, float], BlockPosterior],
) -> tuple[Array, Array, float]:
    """Return mean and standard deviation [B] of the signal at the blocks, and the covariance of its ends.

    The ends are the blocks with the highest and the lowest mean. The signals of two stretches are
    independent.
    """
    rise_sd = RISE * fitted.covariance.variance**0.5
    slope_sd = rise_sd / max(float(times[-1] - times[0]), 1e-300)
    parts = []
    for start, stop in stretches:
        points = make_points(times[start:stop], values[start:stop], errors[start:stop], n_neighbours=0)
        parts.append(predict(points, fitted, slope_sd))
    mean, sd = (np.concatenate(own) for own in list(zip(*parts, strict=True))[:2])
    high, low = int(np.argmax(mean)), int(np.argmin(mean))
    both = 0.0
    for (start, stop), (_, _, covariance) in zip(stretches, parts, strict=True):
        if start <= min(high, low) and max(high, low) < stop:
            # Within a stretch the errors of both ends are correlated, and part of them cancels in the range.
            both = covariance(high - start, low - start)
    return mean, sd, both


def _stationary(points: Points, fitted: SignalFit, slope_sd: float) -> BlockPosterior:
    """Return mean, standard deviation and covariance of the signal at the blocks of a stretch."""
    found = posterior(points, fitted, points.times, slope_sd)
    return found.mean, found.sd, found.covariance


def _range(mean: Array, sd: Array, both: float) -> list[float]:
    """Return the 5%, 50% and 95% quantiles of the signal where its mean is highest minus where it is lowest.

    Not the largest minus the smallest value of each draw, to which the uncertainty of every block adds.

    Parameters
    ----------
    mean, sd : float64 [B]
    both : float
        Covariance of the signal at these two blocks.
    """
    top, bottom = sd[[np.argmax(mean), np.argmin(mean)]] ** 2
    width = max(top + bottom - 2.0 * both, 0.0) ** 0.5  # rounding may make it negative
    quantiles: list[float] = np.maximum(np.ptp(mean) + width * NORMAL_95 * np.array([-1, 0, 1]), 0.0).tolist()
    return quantiles
