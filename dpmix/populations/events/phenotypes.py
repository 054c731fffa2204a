"""Levels of channels and phenotypes of populations, from the mixture.

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

**A level has two levels of its own** where the populations on its side of the threshold do by the same rule:
- and lo, or + and hi.

**With a control** at limit c with standard deviation s (`dpmix.inputs.controls`), the threshold is the
minimum of

    log(h(t) / min(highest h below t, highest h above t) + 0.02) + ((t - c) / s)^2 / 2,

with h the density of all events: a valley near c, or c itself where there is no valley. Valleys elsewhere do
not count, and a channel with one population has a threshold, too. There is no lo below it.

The shares and ratios were chosen on labelled real data with known channels and subsets.

K components, D channels, P populations. All quantities are on the scale of the means given, preferably the
transformed scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dpmix.inputs.controls import Control
from dpmix.inputs.marker_names import short_names
from dpmix.model.mixture import Array, Floats, Ints

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the events of a population, in each channel
GRID = 1024  # points of a density
OUTSIDE = 5e-4  # share of the events in components that the grid may miss at either end
REACH = 4.0  # range of a component in its standard deviations
LEAST = 0.001  # share of the events below which a population is ignored
VALLEY, SHARE = 0.8, 0.02  # relative density of a valley and share of events on each side, rule 1
RARE_VALLEY = 0.5  # relative density of a valley, rule 2
EXPLAINS = 0.5  # share of the variance explained by the best cut that a threshold must explain
FLAT = 0.02  # added to the relative density of a valley near a control
GRADUAL = 0.25  # variance explained by the best cut, relative to that within populations, to reject a valley


@dataclass(frozen=True)
class _Channel:
    """One channel of the populations examined, ordered by their medians.

    Attributes
    ----------
    x : float64 [G]
        Grid.
    densities : float64 [P, G]
        Densities of the populations; they sum to the density of the events.
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

    Parameters are as in `levels`.
    """
    limits: Array = levels(weights, means, covariances, populations)[1]
    return limits


def levels(
    weights: npt.ArrayLike,
    means: npt.ArrayLike,
    covariances: npt.ArrayLike,
    populations: npt.ArrayLike,
    controls: Mapping[int, Control] | None = None,
) -> Array:
    """Return the ends of the levels of each channel, float64 [3, D]: between - and lo, lo and +, + and hi.

    The second is the threshold. Ends of levels that a channel does not have are NaN.

    Parameters
    ----------
    weights : float [K]
        Need not sum to 1.
    means : float [K, D]
    covariances : float [K, D, D]
    populations : int [K]
        Population of each component, 0..P-1.
    controls : mapping of int to Control, optional
        Controls of some channels.
    """
    weight = np.asarray(weights, np.float64)
    members = np.eye(int(np.max(populations)) + 1)[np.asarray(populations)].T * (weight / weight.sum())
    asked = members.sum(axis=1) >= LEAST
    found = np.full((3, np.shape(means)[1]), np.nan)
    sds = np.sqrt(np.diagonal(np.asarray(covariances, np.float64), axis1=1, axis2=2))
    for d, (m, s) in enumerate(zip(np.asarray(means, np.float64).T, sds.T, strict=True)):
        control = (controls or {}).get(d)
        if asked.sum() > (0 if control else 1):
            found[:, d] = _levels(_channel(members[asked], m, s), control)
    return found


def signs(lower: npt.ArrayLike, upper: npt.ArrayLike, levels: npt.ArrayLike) -> npt.NDArray[np.str_]:
    """Return the level of each population in each channel, str [P, D]: -, lo, +, hi, +/- or "".

    A marker is + (or hi) if at least three quarters of the events are above the threshold (or above the next
    end), - if at least three quarters are below, lo if these are above the end below, and +/- (dim or mixed)
    otherwise. A channel without a threshold, and a population without events, have "".

    Parameters
    ----------
    lower, upper : float [P, D]
        Quartiles of the events of each population; NaN for a population without events.
    levels : float64 [3, D]
    """
    low, high, (dim, limit, bright) = (np.asarray(a, np.float64) for a in (lower, upper, levels))
    unknown, below = np.isnan(low + high + limit), high < limit
    conditions = [unknown, low > bright, low > limit, below & (low > dim), below]
    return np.select(conditions, ["", "hi", "+", "lo", "-"], "+/-")


def full_phenotypes(
    lower: npt.ArrayLike, upper: npt.ArrayLike, levels: npt.ArrayLike, channels: Sequence[str]
) -> tuple[str, ...]:
    """Return all markers with a level of each population, for example "CD3+ CD4+ CD8- CD45RA+/-".

    Parameters are as in `signs`, and the D names of the channels. Commas separate the markers if the name of
    one contains a space; dyes are left out. Without any level, a population has "".
    """
    short = short_names(channels)
    return tuple(
        joined([f"{name}{sign}" for name, sign in zip(short, row, strict=True) if sign])
        for row in signs(lower, upper, levels)
    )


def joined(markers: Sequence[str]) -> str:
    """Return markers as one text, with commas if one contains a space."""
    return (", " if any(" " in marker for marker in markers) else " ").join(markers)


def quartiles_of(events: Array | Floats, populations: Ints, n_populations: int) -> Array:
    """Return the lower and upper quartiles of each population, float64 [2, P, D]; see `quantiles_of`."""
    return quantiles_of(events, populations, n_populations, (0.25, 0.75))


def quantiles_of(
    events: Array | Floats, populations: Ints, n_populations: int, at: Sequence[float] = QUANTILES
) -> Array:
    """Return quantiles of each population, float64 [A, P, D]; NaN without events.

    Parameters
    ----------
    events : float [M, D]
    populations : int64 [M]
        Population of each event.
    n_populations : int
    at : sequence of float
        A probabilities.
    """
    quantiles = np.full((len(at), n_populations, events.shape[1]), np.nan)
    for p in np.unique(populations):
        quantiles[:, p] = np.quantile(events[populations == p], at, axis=0)
    return quantiles


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


def _levels(channel: _Channel, control: Control | None = None) -> tuple[float, float, float]:
    """Return the ends of the levels of a channel, NaN for those that it does not have."""
    limit = _threshold(channel) if control is None else _near_control(channel.x, channel.densities, control)
    sides = channel.medians < limit, channel.medians > limit  # of NaN: none
    low, high = (_threshold(_part(channel, side)) if side.sum() > 1 else float("nan") for side in sides)
    # A control says what negative is: nothing below its limit is a level of its own.
    return low if control is None else float("nan"), limit, high


def _near_control(x: Array, densities: Array, control: Control) -> float:
    """Return the threshold of a channel with a control.

    Parameters
    ----------
    x : float64 [G]
        Grid.
    densities : float64 [P, G]
        They sum to the density of all events.
    control : Control
    """
    depths = np.append(_depths(densities.sum(axis=0)), 1.0)  # the control may be outside of the grid
    at = np.append(x, control.limit)
    inside = np.interp(control.limit, x, depths[:-1], 1.0, 1.0)
    depths[-1] = inside
    return float(at[np.argmin(np.log(depths + FLAT) + ((at - control.limit) / control.near) ** 2 / 2.0)])


def _part(channel: _Channel, side: npt.NDArray[np.bool_]) -> _Channel:
    """Return the channel of some of its populations."""
    names = ("densities", "weights", "lower", "medians", "upper", "means")
    return replace(channel, **{name: getattr(channel, name)[side] for name in names})


def _threshold(channel: _Channel) -> float:
    """Return the threshold of a channel, or NaN."""
    found = _valleys(channel)
    if len(found) == 0:
        found = _rare_valleys(channel)
    if len(found) == 0:
        return float("nan")
    explained = np.array([_explained(channel, x) for x in found])
    # Over all cuts, also those without a valley: populations that differ gradually are explained better by
    # another cut.
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
    # A valley elsewhere belongs to the populations of one side, not to the cut.
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
