"""Which markers a population has: a threshold for each channel from the mixture, and words from thresholds.

**A channel has two levels** where its populations fall in two groups with a clear valley between them. Two
densities are looked at, on a grid.

1. That of all events in the channel, a mixture of normals in one dimension. A valley counts where the density
   is at most 4/5 of the lesser peak beside it, and where at least 2% of the events are in populations that
   are above it as a whole (by their lower quartile) and as many in such that are below (by their upper one):
   ripples of a density with many components, and a population that a transform cuts in two at zero, are none.
2. Where there is no such valley, as where positive events are rare and lie in the tail of the others: for
   every cut of the populations, in the order of their medians, the densities of those below and above it,
   each side counted as one half. A valley between the medians beside the cut counts where the density is at
   most half of the lesser peak: of two normals of one width, where they are 3.4 standard deviations apart.

Of several valleys the one is taken that explains the most variance between the populations (Otsu 1979, IEEE
Trans. Syst. Man Cybern. 9:62, on the populations' means). Where the best cut of all, clear or not, explains
twice as much, and as much as two halves one standard deviation apart do, the populations differ gradually: a
few bright ones are then no second level, and the others should not be called negative. Populations of less
than 0.1% of the events are not asked.

These shares and ratios were chosen on the labelled real sets, whose channels and subsets are known.

K components, D channels, P populations. All is on the scale of the means given, best the transformed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dpmix.model.mixture import Array

GRID = 1024  # points that densities are evaluated at
OUTSIDE = 5e-4  # of the events: in components that the grid need not reach, at either end
REACH = 4.0  # standard deviations of a component that it reaches
LEAST = 0.001  # of the events: a population of fewer is not asked
VALLEY, SHARE = 0.8, 0.02  # in the density of all events
RARE_VALLEY = 0.5  # where both sides count as one half
EXPLAINS = 0.5  # of the variance that the best cut explains
GRADUAL = 0.25  # of the variance within populations: so much the best cut explains to be heard


@dataclass(frozen=True)
class _Channel:
    """One channel of the populations that are asked, in the order of their medians.

    x [G], densities [P, G], which sum to that of the events, weights, lower, medians, upper and means [P];
    within is the mean variance of a population.
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
    """Between the low and the high events of each channel, float64 [D]; NaN where there are no two levels.

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


def phenotypes(
    lower: npt.ArrayLike, upper: npt.ArrayLike, thresholds: npt.ArrayLike, channels: Sequence[str]
) -> tuple[str, ...]:
    """The markers of each population in words, as "CD3+ CD4+ CD8- CD45RA+/-".

    A marker has + where three quarters of its events or more are above the threshold, - where as many are
    below, +/- (dim, or of both kinds) otherwise. Channels without a threshold are left out, all of them of a
    population without events. Commas separate the markers where the name of one has a space.

    Parameters
    ----------
    lower, upper : float [P, D]
        Quartiles of the events of each population; NaN where it has none.
    thresholds : float [D]
    channels : sequence of str
        D names.
    """
    low, high, limits = (np.asarray(a, np.float64) for a in (lower, upper, thresholds))
    signs = np.select([np.isnan(low + high + limits), low > limits, high < limits], ["", "+", "-"], "+/-")
    between = ", " if any(" " in name for name in channels) else " "
    return tuple(
        between.join(f"{name}{sign}" for name, sign in zip(channels, row, strict=True) if sign)
        for row in signs
    )


def _channel(members: Array, means: Array, sds: Array) -> _Channel:
    """One channel; members are the weights of the components in each population, [P, K]."""
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
    """The lowest point but for those of OUTSIDE of the weight."""
    order = np.argsort(points)
    held = np.cumsum(weights[order])
    return float(points[order[np.searchsorted(held, OUTSIDE * held[-1])]])


def _threshold(channel: _Channel) -> float:
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
    """Where the density of all events has a clear valley."""
    density = channel.densities.sum(axis=0)
    inner = np.flatnonzero((density[1:-1] < density[:-2]) & (density[1:-1] <= density[2:])) + 1
    x = channel.x[inner[_depths(density)[inner] <= VALLEY]]
    above = channel.weights @ (channel.lower[:, None] > x)
    below = channel.weights @ (channel.upper[:, None] < x)
    found: Array = x[np.minimum(above, below) >= SHARE * channel.weights.sum()]
    return found


def _rare_valleys(channel: _Channel) -> Array:
    """Where the populations below and above a cut, each side counted as one half, have a clear valley."""
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
    """Density over the lesser of the highest to its left and the highest to its right, along an axis."""
    left = np.maximum.accumulate(densities, axis=-1)
    right = np.maximum.accumulate(densities[..., ::-1], axis=-1)[..., ::-1]
    lesser = np.minimum(left, right)
    return np.divide(densities, lesser, out=np.ones_like(densities), where=lesser > 0)


def _explained(channel: _Channel, x: float) -> float:
    """Variance between the populations with their medians above x and the others, by their means."""
    above = channel.medians > x
    weights = np.array([channel.weights[side].sum() for side in (above, ~above)])
    sums = np.array([channel.weights[side] @ channel.means[side] for side in (above, ~above)])
    if not weights.all():
        return 0.0
    return float(weights.prod() * np.subtract(*(sums / weights)) ** 2 / weights.sum() ** 2)
