"""Medians of the channels of populations, and their standard errors from the number of events."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Floats, Ints

MEDIAN_DRAWS = 20  # whose medians are kept, at most: medians hardly differ between draws


def evenly(count: int, most: int) -> Ints:
    """Return the numbers of up to `most` of `count` draws or events, evenly spaced from 0, ascending."""
    found: Ints = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
    return found


class Medians:
    """Medians of the channels of each sample's populations, in some of the draws.

    Parameters
    ----------
    n_draws, n_samples, n_populations, n_channels : int
    """

    def __init__(self, n_draws: int, n_samples: int, n_populations: int, n_channels: int) -> None:
        self.draws = evenly(n_draws, MEDIAN_DRAWS)
        shape = len(self.draws), n_samples, n_populations, n_channels
        self.values: Floats = np.full(shape, np.nan, np.float32)
        self.errors: Floats = np.full(shape[1:], np.nan, np.float32)

    def add(
        self, sample: int, values: Array, each: Array, drawn: Sequence[Ints] | Mapping[int, Ints]
    ) -> None:
        """Add a sample.

        Parameters
        ----------
        sample : int
        values : float64 [M, D]
            Events that represent the sample, transformed scale.
        each : float64 [M]
            Number of events that each represents.
        drawn : T of int64 [M], or a mapping of the numbers of draws to them
            Population of each event in each draw, at least in `draws`.
        """
        orders = np.argsort(values, axis=0)
        for u, t in enumerate(self.draws.tolist()):
            for d, order in enumerate(orders.T):
                own, errors = medians(values[order, d], each[order], drawn[t][order], self.values.shape[2])
                self.values[u, sample, :, d] = own
                if u == 0:  # errors hardly differ between draws
                    self.errors[sample, :, d] = errors


def medians(
    values: Array, each: Array, populations: npt.NDArray[np.integer], n_populations: int
) -> tuple[Array, Array]:
    """Return the weighted median of each population and its standard error, float64 [P] each.

    Both are NaN for a population without events. The error is half the distance between the quantiles at 1/2
    plus and
    minus half of 1 / sqrt(n), which hold about 68% of the sampling distribution of a median (David and
    Nagaraja 2003, Order Statistics, section 7.1).

    Parameters
    ----------
    values : float64 [M]
        Ascending.
    each : float64 [M]
        Weights; in practice, these are equal within a population.
    populations : int [M]
    n_populations : int
    """
    found, errors = np.full((2, n_populations), np.nan)
    order = np.argsort(populations, kind="stable")  # by population, then by value
    ends = np.searchsorted(populations[order], np.arange(n_populations + 1))
    for p, (start, end) in enumerate(itertools.pairwise(ends)):
        if end > start:
            own = order[start:end]
            sums = np.cumsum(each[own])
            half = 0.5 / np.sqrt(end - start)
            # Two searches next to 1/2, because the median lies between two events where the weights divide
            # evenly, and rounding must not decide for one.
            shares = np.array([0.5 * (1.0 - 1e-12), 0.5 * (1.0 + 1e-12), 0.5 - half, 0.5 + half])
            at = np.minimum(np.searchsorted(sums, sums[-1] * shares), len(own) - 1)
            low, high, below, above = values[own[at]]
            found[p], errors[p] = (low + high) / 2.0, (above - below) / 2.0
    return found, errors
