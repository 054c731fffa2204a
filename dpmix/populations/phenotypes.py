"""Phenotypes of populations: a threshold for each channel from the mixture, and signs relative to it.

**A channel has two levels** if its populations form two groups with a clear valley between them. Two kinds of
density are examined, on a grid.

1. The density of all events in the channel, a mixture of normals in one dimension. A valley is clear if its
   density is at most 4/5 of the lower of the two adjacent peaks, if at least 2% of the events belong to
   populations with their lower quartile above it, and at least 2% to populations with their upper quartile
   below it. This rejects ripples of a density with many components, and populations that a transform splits
   at zero.
2. If there is no clear valley, for example because positive events are rare and lie in the tail of the
   others: the populations are ordered by their medians and cut into two sides in every possible way, each
   side with total weight 1/2. A valley between the medians adjacent to the cut is clear if the density is at
   most half of the lower peak. Two normals of equal width have such a valley from 3.4 standard deviations on.

Of several clear valleys, the one that explains most variance between the populations is the threshold (Otsu
1979, IEEE Trans. Syst. Man Cybern. 9:62, applied to the means of populations). There is no threshold if
populations differ gradually: if the best cut, clear or not, explains more than twice as much variance, and at
least as much as two halves one standard deviation apart. A few bright populations do not form a second level
then, and the others should not be called negative. Populations with less than 0.1% of the events are ignored.

These shares and ratios were chosen on labelled real data with known channels and subsets.

K components, D channels, P populations. All quantities are on the scale of the means given, preferably the
transformed scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dpmix.model.mixture import Array, Floats, Ints

GRID = 1024  # points of a density
OUTSIDE = 5e-4  # share of the events in components that the grid may miss at either end
REACH = 4.0  # range of a component in its standard deviations
LEAST = 0.001  # share of the events below which a population is ignored
VALLEY, SHARE = 0.8, 0.02  # relative density of a valley and share of events on each side, rule 1
RARE_VALLEY = 0.5  # relative density of a valley, rule 2
EXPLAINS = 0.5  # share of the variance explained by the best cut that a threshold must explain
GRADUAL = 0.25  # variance explained by the best cut, relative to that within populations, to reject a valley


@dataclass(frozen=True)
class _Channel:
    """One channel of the populations examined, ordered by their medians.

    Attributes
    ----------
    x : float64 [G]
        Grid.
    densities : float64 [P, G]
        Densities of the populations; they sum to that of the events.
    weights, lower, medians, upper, means : float64 [P]
        Weights, quartiles and means of the populations.
    within : float
        Mean variance within a population.
    """

    x: Array
    densities: Array
    weights: Array
    lower: Array
    medians: Array
    upper: Array
    means: Array
    within: float


def thresholds(
    weights: npt.ArrayLike, means: npt.ArrayLike, covariances: npt.ArrayLike, populations: npt.ArrayLike
) -> Array:
    """Return the threshold of each channel, float64 [D]; NaN for a channel without two levels.

    Parameters
    ----------
    weights : float [K]
        Need not sum to 1.
    means : float [K, D]
    covariances : float [K, D, D]
    populations : int [K]
        Population of each component, 0..P-1.
    """
    weight = np.asarray(weights, np.float64)
    members = np.eye(int(np.max(populations)) + 1)[np.asarray(populations)].T * (weight / weight.sum())
    asked = members.sum(axis=1) >= LEAST
    if asked.sum() < 2:
        return np.full(np.shape(means)[1], np.nan)
    sds = np.sqrt(np.diagonal(np.asarray(covariances, np.float64), axis1=1, axis2=2))
    channels = zip(np.asarray(means, np.float64).T, sds.T, strict=True)
    return np.array([_threshold(_channel(members[asked], m, s)) for m, s in channels])


def phenotypes_of(
    events: Array | Floats, populations: Ints, thresholds: Array, channels: Sequence[str], n_populations: int
) -> tuple[str, ...]:
    """Return the phenotype of each population, by the quartiles of its events.

    Parameters
    ----------
    events : float [M, D]
    populations : int64 [M]
        Of each event.
    thresholds : float64 [D]
    channels : sequence of str
    n_populations : int
    """
    quartiles = np.full((2, n_populations, events.shape[1]), np.nan)
    for p in np.unique(populations):
        quartiles[:, p] = np.quantile(events[populations == p], (0.25, 0.75), axis=0)
    return phenotypes(quartiles[0], quartiles[1], thresholds, channels)


def phenotypes(
    lower: npt.ArrayLike, upper: npt.ArrayLike, thresholds: npt.ArrayLike, channels: Sequence[str]
) -> tuple[str, ...]:
    """Return the phenotype of each population, for example "CD3+ CD4+ CD8- CD45RA+/-".

    A marker is + if at least three quarters of the events are above the threshold, - if at least three
    quarters are below, and +/- (dim or mixed) otherwise. Channels without a threshold are omitted; a
    population without events has an empty phenotype. Commas separate the markers if the name of one
    contains a space. Populations with the same markers, or none, get one more (`distinct_names`).

    Parameters
    ----------
    lower, upper : float [P, D]
        Quartiles of the events of each population; NaN for a population without events.
    thresholds : float [D]
    channels : sequence of str
        D names.
    """
    low, high, limits = (np.asarray(a, np.float64) for a in (lower, upper, thresholds))
    signs = np.select([np.isnan(low + high + limits), low > limits, high < limits], ["", "+", "-"], "+/-")
    between = ", " if any(" " in name for name in channels) else " "
    alike = [
        between.join(f"{name}{sign}" for name, sign in zip(channels, row, strict=True) if sign)
        for row in signs
    ]
    return distinct_names(alike, low, high, channels)


def distinct_names(
    names: Sequence[str], lower: Array, upper: Array, channels: Sequence[str]
) -> tuple[str, ...]:
    """Return names that all differ, for example "CD3+ CD4+ (TNFa higher)".

    The marker added is the one in which a population differs most from the most similar one of the same name,
    in units of their interquartile ranges. A number is added where that does not suffice. A population
    without a name is compared with all others.

    Parameters
    ----------
    names : sequence of str
        P names.
    lower, upper : float64 [P, D]
        Quartiles of the events of each population; NaN for one without events, whose name stays.
    channels : sequence of str
    """
    there = np.flatnonzero(~np.isnan(lower).any(axis=1)).tolist()
    middle, width = (lower + upper) / 2.0, np.maximum(upper - lower, np.finfo(np.float64).tiny)
    made = list(names)
    for p in there:
        others = [q for q in there if q != p and (names[q] == names[p] or not names[p])]
        if not others:
            continue
        gaps = (middle[p] - middle[others]) / (width[p] + width[others])
        nearest = gaps[np.abs(gaps).max(axis=1).argmin()]
        d = int(np.abs(nearest).argmax())
        added = f"({channels[d]} {'higher' if nearest[d] > 0 else 'lower'})"
        made[p] = f"{names[p]} {added}".strip()
    seen: Counter[str] = Counter()
    for p in there:
        seen[made[p]] += 1
        if seen[made[p]] > 1:
            made[p] = f"{made[p]} {seen[made[p]]}"
    return tuple(made)


def _channel(members: Array, means: Array, sds: Array) -> _Channel:
    """Return one channel; members are the weights of the components in each population, [P, K]."""
    used = members.sum(axis=0)
    x = np.linspace(_end(means - REACH * sds, used), -_end(-means - REACH * sds, used), GRID)
    z = (x - means[:, None]) / sds[:, None]
    densities = members @ (np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * sds[:, None]))
    weights = members.sum(axis=1)
    below = members @ ndtr(z) / weights[:, None]
    quartiles = np.array([np.interp((0.25, 0.5, 0.75), one, x) for one in below])
    centres = members @ means / weights
    within = np.sum(members * (sds**2 + (means - centres[:, None]) ** 2)) / weights.sum()
    order = np.argsort(quartiles[:, 1], kind="stable")
    lower, medians, upper = quartiles[order].T
    return _Channel(x, densities[order], weights[order], lower, medians, upper, centres[order], float(within))


def _end(points: Array, weights: Array) -> float:
    """Return the lowest point, ignoring a share OUTSIDE of the weight."""
    order = np.argsort(points)
    held = np.cumsum(weights[order])
    return float(points[order[np.searchsorted(held, OUTSIDE * held[-1])]])


def _threshold(channel: _Channel) -> float:
    """Return the threshold of a channel, or NaN."""
    found = _valleys(channel)
    if len(found) == 0:
        found = _rare_valleys(channel)
    if len(found) == 0:
        return float("nan")
    explained = np.array([_explained(channel, x) for x in found])
    best = max(_explained(channel, x) for x in channel.medians)
    gradual = best > GRADUAL * channel.within and explained.max() < EXPLAINS * best
    return float("nan") if gradual else float(found[explained.argmax()])


def _valleys(channel: _Channel) -> Array:
    """Return the clear valleys in the density of all events (rule 1)."""
    density = channel.densities.sum(axis=0)
    inner = np.flatnonzero((density[1:-1] < density[:-2]) & (density[1:-1] <= density[2:])) + 1
    x = channel.x[inner[_depths(density)[inner] <= VALLEY]]
    above = channel.weights @ (channel.lower[:, None] > x)
    below = channel.weights @ (channel.upper[:, None] < x)
    found: Array = x[np.minimum(above, below) >= SHARE * channel.weights.sum()]
    return found


def _rare_valleys(channel: _Channel) -> Array:
    """Return the clear valleys between the populations below and above a cut (rule 2)."""
    sums, held = np.cumsum(channel.densities, axis=0), np.cumsum(channel.weights)
    low = sums[:-1] / held[:-1, None]
    high = (sums[-1] - sums[:-1]) / (held[-1] - held[:-1, None])
    depths = _depths(low + high)
    between = (channel.x > channel.medians[:-1, None]) & (channel.x < channel.medians[1:, None])
    depths[~between] = np.inf
    clear = depths.min(axis=1) <= RARE_VALLEY
    found: Array = channel.x[depths.argmin(axis=1)[clear]]
    return found


def _depths(densities: Array) -> Array:
    """Return the density relative to the lower of the highest peaks to its left and right, along an axis."""
    left = np.maximum.accumulate(densities, axis=-1)
    right = np.maximum.accumulate(densities[..., ::-1], axis=-1)[..., ::-1]
    lesser = np.minimum(left, right)
    return np.divide(densities, lesser, out=np.ones_like(densities), where=lesser > 0)


def _explained(channel: _Channel, x: float) -> float:
    """Return the variance between populations with medians above x and the others, by their means."""
    above = channel.medians > x
    weights = np.array([channel.weights[side].sum() for side in (above, ~above)])
    sums = np.array([channel.weights[side] @ channel.means[side] for side in (above, ~above)])
    if not weights.all():
        return 0.0
    return float(weights.prod() * np.subtract(*(sums / weights)) ** 2 / weights.sum() ** 2)
