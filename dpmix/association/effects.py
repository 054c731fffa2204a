"""Effects of contrasts on populations: sizes with intervals, directions, and expected false discoveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmix.association.design import Contrast
from dpmix.association.sampling import Fit
from dpmix.model.mixture import Array, Ints
from dpmix.populations.result import INTERVAL

ABUNDANCE, VARIABILITY, EXPRESSION = "abundance", "variability", "expression"


@dataclass(frozen=True)
class Effects:
    """Effects of one contrast on one measure of Q responses.

    Attributes
    ----------
    contrast, measure : str
    populations, channels : int64 [Q]
        Population of each response; its channel, -1 for abundance and variability.
    draws : float64 [T, Q]
        Logarithms of ratios, or differences of medians on the transformed scale.
    least : float64 [Q]
        Smallest effect that counts as one, on the scale of `draws`.
    proportions : float64 [T, Q], optional
        Logarithms of the ratios of the proportions; abundance only.
    """

    contrast: str
    measure: str
    populations: Ints
    channels: Ints
    draws: Array
    least: Array
    proportions: Array | None = None

    @property
    def is_ratio(self) -> bool:
        return self.measure != EXPRESSION

    @property
    def direction(self) -> Array:
        """Probability of the more probable sign, float64 [Q]."""
        up = (self.draws > 0.0).mean(axis=0)
        probability: Array = np.maximum(up, 1.0 - up)
        return probability

    @property
    def false_sign(self) -> Array:
        """Local false sign rate, float64 [Q]: 1 - the probability of an effect beyond `least` of one sign."""
        up, down = (self.draws > self.least).mean(axis=0), (self.draws < -self.least).mean(axis=0)
        rate: Array = 1.0 - np.maximum(up, down)
        return rate

    @property
    def expected_false(self) -> Array:
        """Expected number of false discoveries among the responses with at most this rate, float64 [Q]."""
        rates = self.false_sign
        expected: Array = np.array([rates[rates <= rate].sum() for rate in rates])
        return expected

    def found(self, share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return the longest list whose expected share of false discoveries is at most `share`, bool [Q]."""
        rates = self.false_sign
        listed = np.array([(rates <= rate).sum() for rate in rates])
        within = self.expected_false <= share * listed
        limit = rates[within].max(initial=-1.0)
        chosen: np.ndarray[tuple[int], np.dtype[np.bool_]] = rates <= limit
        return chosen

    def intervals(self, draws: Array | None = None) -> tuple[Array, Array, Array]:
        """Return medians and ends of 90% intervals, float64 [Q] each: ratios, or differences."""
        drawn = self.draws if draws is None else draws
        low, high = np.quantile(drawn, INTERVAL, axis=0)
        middle = np.median(drawn, axis=0)
        return (np.exp(middle), np.exp(low), np.exp(high)) if self.is_ratio else (middle, low, high)


def abundance(fit: Fit, contrast: Contrast, least: float) -> Effects:
    """Return the effects of a contrast on the counts of all populations.

    The ratio of a population compares with the populations that do not change (`dpmix.association.model`);
    `proportions` has the ratios of the proportions in a typical sample.
    """
    alpha, beta = fit.flat("alpha"), fit.flat("beta")
    difference = contrast.first - contrast.second
    draws = np.einsum("c,tcp->tp", difference, beta)
    shares = [
        _log_shares(alpha + np.einsum("c,tcp->tp", kind, beta)) for kind in (contrast.first, contrast.second)
    ]
    return _effects(contrast, ABUNDANCE, draws, np.full(draws.shape[1], least), shares[0] - shares[1])


def variability(fit: Fit, contrast: Contrast, least: float) -> Effects:
    """Return the effects of a contrast on the standard deviations of all populations."""
    draws = np.einsum("g,tgp->tp", contrast.variability, fit.flat("gamma"))
    return _effects(contrast, VARIABILITY, draws, np.full(draws.shape[1], least))


def expression(
    fit: Fit, contrast: Contrast, least: float, populations: Ints, channels: Ints, units: Array
) -> Effects:
    """Return the effects of a contrast on medians, in responses with the given populations and channels.

    Parameters
    ----------
    fit : Fit
    contrast : Contrast
    least : float
        In the units of `dpmix.association.model.Responses`.
    populations, channels : int64 [Q]
    units : float64 [Q]
        Unit of each response, transformed scale.
    """
    draws = np.einsum("c,tcq->tq", contrast.first - contrast.second, fit.flat("beta")) * units
    return Effects(contrast.name, EXPRESSION, populations, channels, draws, least * units)


def _effects(
    contrast: Contrast, measure: str, draws: Array, least: Array, proportions: Array | None = None
) -> Effects:
    populations = np.arange(draws.shape[1])
    return Effects(
        contrast.name, measure, populations, np.full_like(populations, -1), draws, least, proportions
    )


def _log_shares(logs: Array) -> Array:
    """Return the logarithms of the shares of each row."""
    highest = logs.max(axis=1, keepdims=True)
    shares: Array = logs - highest - np.log(np.exp(logs - highest).sum(axis=1, keepdims=True))
    return shares


@dataclass(frozen=True)
class Outlier:
    """A sample whose value in a population is far from what the design expects.

    Attributes
    ----------
    sample : str
    population : int
        From 0.
    channel : int
        -1 for abundance.
    weight : float
        Posterior mean of its weight, compared with a usual value.
    """

    sample: str
    population: int
    channel: int
    weight: float


LEAST_WEIGHT = 0.3
"""Weight below which a value is reported: it is about 4 standard deviations from its expectation."""


def outliers(fit: Fit, samples: Sequence[str], populations: Ints, channels: Ints) -> list[Outlier]:
    """Return the values with little weight, the least first."""
    weights = fit.flat("weight").mean(axis=0)
    places = np.argwhere(weights < LEAST_WEIGHT)
    order = np.argsort(weights[tuple(places.T)])
    return [
        Outlier(samples[s], int(populations[q]), int(channels[q]), float(weights[s, q]))
        for s, q in places[order]
    ]
