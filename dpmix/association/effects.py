"""Effects of contrasts on populations: sizes with intervals, directions, and false discovery rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special, stats

from dpmix.association.design import Contrast
from dpmix.association.proposals import ENOUGH
from dpmix.association.regression import RegressionFit
from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.estimates import INTERVAL

ABUNDANCE, VARIABILITY, EXPRESSION = "abundance", "variability", "expression"
UNCHANGED = 0.8  # share of the populations that a contrast does not change, for the reference
CHANGE_SD = 1.0  # of the logarithms of the ratios of the others
REFERENCES = 21  # equally probable values of the reference
BISECTIONS = 45
DRAWS, SEED = 1_000, 1  # for the ratios of proportions

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Effects:
    """Effects of one contrast on one measure of Q responses: a mixture of T normals for each.

    Attributes
    ----------
    contrast, measure : str
    populations, channels : int64 [Q]
        Population of each response; its channel, -1 for abundance and variability.
    weights, means, sds : float64 [Q, T]
        Weights and normal approximations of logarithms of ratios, or of differences of transformed medians.
    least : float
        Smallest effect that counts as one, on the scale of `means`.
    converged : bool [Q]
        False where the integral over the scales is not exact enough.
    kinds : float64 [Q, K]
        Probabilities of the kinds of responses (`dpmix.association.regression`).
    rates : float64 [Q]
        False discovery rate of the list that ends with this response, over all contrasts of the measure.
    proportions : float64 [3, Q], optional
        Ratios of the proportions with the ends of 90% intervals; abundance only.
    """

    contrast: str
    measure: str
    populations: Ints
    channels: Ints
    weights: Array
    means: Array
    sds: Array
    least: float
    converged: Bools
    kinds: Array
    rates: Array
    proportions: Array | None = None

    @property
    def is_ratio(self) -> bool:
        return self.measure != EXPRESSION

    def _below(self, at: Array | float) -> Array:
        """Return the probability of an effect below a value, float64 [Q]."""
        z = (np.reshape(at, (-1, 1)) - self.means) / self.sds
        below: Array = (self.weights * special.ndtr(z)).sum(axis=1)
        return below

    def _above(self, at: float) -> Array:
        above: Array = (self.weights * special.ndtr((self.means - at) / self.sds)).sum(axis=1)
        return above

    @cached_property
    def direction(self) -> Array:
        """Probability of the more probable sign, float64 [Q]."""
        probability: Array = np.maximum(self._below(0.0), self._above(0.0))
        return probability

    @cached_property
    def tails(self) -> Array:
        """Two-sided tail probability, float64 [Q]: twice the chance of no effect beyond `least` of the sign.

        The prior of the effects is flat, so that it has the distribution of a p-value, as in the test of
        McCarthy and Smyth (2009, Bioinformatics 25:765) of an effect of at least a given size.
        """
        one_sided = np.minimum(self._below(self.least), self._above(-self.least))
        return np.where(self.converged, np.minimum(1.0, 2.0 * one_sided), 1.0)

    def found(self, share: float) -> Bools:
        """Return the responses whose false discovery rate is at most `share`, bool [Q]."""
        chosen: Bools = self.converged & (self.rates <= share) & (self.tails <= 1.0 - np.diff(INTERVAL)[0])
        return chosen

    def order(self, share: float) -> Ints:
        """Return the responses: those found, by the end of the interval nearest to no effect, then others.

        A large effect that is uncertain thus comes after a smaller one that is certain, and a certain effect
        that is tiny after both: evidence and size count together (confident effect sizes; Harrison et al.
        2019, Genome Biol. 20:67). The others come by tail probability.
        """
        found = self.found(share)
        nearest = np.maximum(self._quantile(INTERVAL[0]), -self._quantile(INTERVAL[1]))
        return np.lexsort((np.where(found, -nearest, self.tails), ~found))

    @cached_property
    def intervals(self) -> tuple[Array, Array, Array]:
        """Medians and ends of 90% intervals, float64 [Q] each: ratios, or differences."""
        ends = [self._quantile(q) for q in (0.5, *INTERVAL)]
        middle, low, high = (np.exp(end) if self.is_ratio else end for end in ends)
        return middle, low, high

    def _quantile(self, q: float) -> Array:
        low, high = ((self.means + sign * 9.0 * self.sds) for sign in (-1.0, 1.0))
        # Nine standard deviations from every mean of the mixture hold any quantile that is asked for.
        left, right = low.min(axis=1), high.max(axis=1)
        for _ in range(BISECTIONS):
            middle = (left + right) / 2.0
            below = self._below(middle) < q
            left, right = np.where(below, middle, left), np.where(below, right, middle)
        found: Array = (left + right) / 2.0
        return found


def adjust(made: Sequence[Effects]) -> list[Effects]:
    """Set the false discovery rates of all effects of a measure together, weighted by kind.

    Benjamini and Hochberg (1995), with weights of the tail probabilities (Genovese, Roeder and Wasserman
    2006, Biometrika 93:509).
    """
    if not made:
        return []
    # Over all contrasts of a measure, because a reader looks through all of them for the smallest.
    tails, kinds = (np.concatenate(parts) for parts in zip(*((e.tails, e.kinds) for e in made), strict=True))
    rates = stats.false_discovery_control(np.minimum(1.0, tails / weigh(tails, kinds)))
    parts = np.split(rates, np.cumsum([len(one.populations) for one in made])[:-1])
    return [replace(one, rates=part) for one, part in zip(made, parts, strict=True)]


def weigh(tails: Array, kinds: Array) -> Array:
    """Return a weight for each tail probability by the effects in its kind, float64 [Q] with mean 1.

    Effects are often in one kind only, such as markers that are on: the tests of the other kind then cost
    power. The number of effects of a kind is the excess of its tail probabilities below 1/2 over those above,
    which weights in groups need (Hu, Zhao and Zhou 2010, JASA 105:1215). Half of the accepted error goes to
    the kinds by it, half to all responses alike, so that no weight is below 1/2.
    """
    sizes = kinds.sum(axis=0)
    excess = np.maximum(np.where(tails <= 0.5, 1.0, -1.0) @ kinds, 0.0)
    if not excess.any():
        return np.ones(len(tails))
    by_effects = excess / np.maximum(sizes, 1e-300) * (len(tails) / excess.sum())
    weights: Array = kinds @ (0.5 + 0.5 * by_effects)
    return weights


def abundance(fit: RegressionFit, contrast: Contrast, least: float) -> Effects:
    """Return the effects of a contrast on the counts of all populations.

    The ratio of a population compares with the populations that do not change. Their common difference, the
    reference, has the posterior of a mixture: a share `UNCHANGED` of the populations has it, the others
    differ from it by a normal distribution. The population itself has no part in its reference.
    """
    means, sds = _differences(fit, contrast)
    centres = (fit.weights * means).sum(axis=1)
    spread = np.sqrt((fit.weights * (sds**2 + (means - centres[:, None]) ** 2)).sum(axis=1))
    at = np.linspace((centres - 4.0 * spread).min(), (centres + 4.0 * spread).max(), 500)
    same, changed = (
        np.stack([_density(fit.weights, means, np.hypot(sds, sd), x) for x in at], axis=1)
        for sd in (0.0, CHANGE_SD)
    )
    # A mixture, not a mean over the populations: a few that change strongly would move a mean, and with it
    # all others.
    logs = np.log(np.maximum(UNCHANGED * same + (1.0 - UNCHANGED) * changed, 1e-300))  # [P, 500]
    others = np.exp(_without_largest(logs.sum(axis=0) - logs))
    ends = np.cumsum(others, axis=1) / others.sum(axis=1, keepdims=True)
    steps = (np.arange(REFERENCES) + 0.5) / REFERENCES
    references = np.stack([np.interp(steps, end, at) for end in ends])  # [P, REFERENCES]
    moved = (means[:, :, None] - references[:, None, :]).reshape(len(means), -1)
    return _effects(
        fit,
        contrast,
        ABUNDANCE,
        np.repeat(fit.weights, REFERENCES, axis=1) / REFERENCES,
        moved,
        np.repeat(sds, REFERENCES, axis=1),
        least,
        _share_ratios(fit, contrast, np.random.default_rng(SEED)),
    )


def variability(fit: RegressionFit, contrast: Contrast, least: float) -> Effects:
    """Return the effects of a contrast on the standard deviations of all populations."""
    # The scales of variability come last in a point of the integral.
    gamma = fit.scales[..., fit.scales.shape[2] - len(contrast.variability) :] @ contrast.variability
    mean = (fit.weights * gamma).sum(axis=1, keepdims=True)
    sd = np.sqrt((fit.weights * (gamma - mean) ** 2).sum(axis=1, keepdims=True))
    return _effects(fit, contrast, VARIABILITY, np.ones_like(mean), mean, sd, least)


def expression(fit: RegressionFit, contrast: Contrast, populations: Ints, channels: Ints) -> Effects:
    """Return the effects of a contrast on medians, in responses with the given populations and channels."""
    means, sds = _differences(fit, contrast)
    made = _effects(fit, contrast, EXPRESSION, fit.weights, means, sds, 0.0)
    return replace(made, populations=populations, channels=channels)


def _effects(
    fit: RegressionFit,
    contrast: Contrast,
    measure: str,
    weights: Array,
    means: Array,
    sds: Array,
    least: float,
    proportions: Array | None = None,
) -> Effects:
    numbers = np.arange(len(means))
    converged, unknown = fit.effective >= ENOUGH, np.full(len(means), np.nan)
    return Effects(
        contrast.name,
        measure,
        numbers,
        np.full_like(numbers, -1),
        weights,
        means,
        sds,
        least,
        converged,
        fit.kinds,
        unknown,
        proportions,
    )


def _differences(fit: RegressionFit, contrast: Contrast) -> tuple[Array, Array]:
    """Return means and standard deviations of a contrast, float64 [Q, T] each."""
    direction = np.concatenate([[0.0], contrast.first - contrast.second])
    variance = np.einsum("c,qtcd,d->qt", direction, fit.covariances, direction)
    return fit.means @ direction, np.sqrt(variance)


def _density(weights: Array, means: Array, sds: Array, at: float) -> Array:
    """Return the density of each mixture at a value, float64 [Q]."""
    density: Array = (weights / sds * np.exp(-0.5 * ((at - means) / sds) ** 2)).sum(axis=1)
    return density


def _without_largest(logs: Array) -> Array:
    moved: Array = logs - logs.max(axis=-1, keepdims=True)
    return moved


def _share_ratios(fit: RegressionFit, contrast: Contrast, random: np.random.Generator) -> Array:
    """Return ratios of the proportions in a typical sample with the ends of 90% intervals, float64 [3, P]."""
    drawn = []
    for weights, means, covariances in zip(fit.weights, fit.means, fit.covariances, strict=True):
        t = random.choice(len(weights), DRAWS, p=weights)
        noise = random.standard_normal((DRAWS, means.shape[1], 1))
        drawn.append(means[t] + (np.linalg.cholesky(covariances[t]) @ noise)[:, :, 0])
    coefficients = np.stack(drawn)  # [P, DRAWS, 1 + C]
    first, second = (
        special.log_softmax(coefficients @ np.concatenate([[1.0], kind]), axis=0)
        for kind in (contrast.first, contrast.second)
    )
    ratios: Array = np.exp(np.quantile(first - second, (0.5, *INTERVAL), axis=1))
    return ratios


@dataclass(frozen=True)
class OutlyingSample:
    """A sample whose value in a population is far from what the design expects.

    Attributes
    ----------
    sample : str
    population : int
        From 0.
    channel : int
        -1 for abundance.
    weight : float
        Probability that the value is as exact as the others.
    """

    sample: str
    population: int
    channel: int
    weight: float


LEAST_WEIGHT = 0.3
"""Weight below which a value is reported."""


def outliers(
    fit: RegressionFit, samples: Sequence[str], populations: Ints, channels: Ints
) -> list[OutlyingSample]:
    """Return the values that are probably outliers, the most certain first."""
    places = np.argwhere(fit.usual < LEAST_WEIGHT)
    order = np.argsort(fit.usual[tuple(places.T)])
    return [
        OutlyingSample(samples[s], int(populations[q]), int(channels[q]), float(fit.usual[s, q]))
        for s, q in places[order]
    ]
