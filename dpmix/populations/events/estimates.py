"""Estimates from draws: the mean, and the ends of the 90% credible interval."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints

INTERVAL = (0.05, 0.95)
"""Posterior quantiles at the ends of a 90% credible interval."""
LEAST_DRAWS = 19
"""Draws from which an interval of 90% can be computed; of fewer, the ends are the extreme draws."""


class Estimates(NamedTuple):
    """Posterior mean and ends of the 90% credible interval; the ends are NaN where there is one draw."""

    mean: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, mean: Array, draws: Array) -> Self:
        """Return the estimates from the mean [...] and draws [T, ...]."""
        _, low, high = interval(draws)
        return cls(mean, low, high) if len(draws) > 1 else cls(mean, low * np.nan, high * np.nan)


def over_samples(proportions: Array, n_events: Ints, weights: npt.ArrayLike | None) -> Array:
    """Return the proportions in all samples together, float64 [..., P].

    Parameters
    ----------
    proportions : float64 [..., S, P]
    n_events : int64 [S]
    weights : float [S], optional
        What an event of each sample counts. Default: 1.
    """
    counts = n_events * (1.0 if weights is None else np.asarray(weights, np.float64))
    there = counts > 0.0  # a sample without events has no proportions
    overall: Array = np.einsum("...sp,s->...p", proportions[..., there, :], counts[there] / counts.sum())
    return overall


def interval(draws: Array) -> tuple[Array, Array, Array]:
    """Return posterior mean and ends of the 90% credible interval over the first axis.

    A further draw lies between the ends with probability 90% for 19 draws or more (Hyndman and Fan 1996, Am.
    Stat. 50:361, definition 6). With numpy's default definition it would be 88% for 100 draws. Of T draws, T
    below 19, the ends are the lowest and the highest, and the probability is (T - 1) / (T + 1).

    Parameters
    ----------
    draws : float64 [T, ...]

    Returns
    -------
    mean, low, high : float64 [...]
    """
    low, high = np.quantile(draws, INTERVAL, axis=0, method="weibull")
    return draws.mean(axis=0), low, high
