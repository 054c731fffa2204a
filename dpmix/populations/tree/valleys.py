"""How far apart two populations are: by their means, and by the valley in the events between them.

The events of two populations are projected on the line along which the populations differ most. The depth of
the valley in their density, on the log scale, corresponds to a distance: the distance of two equal normals
with a valley as deep. The populations are as far apart as their means, but no farther than the valley allows.
The fitted mixture proposes populations and direction, and the events must agree. A shallow valley therefore
does not depend on which components the mixture uses, and so not on the seed
(docs/explanation/populations.md).

L modes, E events, D channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from dpmix.model.mixture import Array, Floats, Ints

LEAST_EVENTS = 30  # of each population; the valley between fewer events is not measured
NO_VALLEY, MEASURABLE = 2.0, 4.0  # distances of two equal normals: no valley up to the first
VALLEY = 1.14  # a valley as deep as between two normals at 1.14 times a distance allows this distance
BANDWIDTH = 0.72  # of the kernel, times sd n^(-1/5): four fifths of Silverman (1986, eq. 3.31), for two peaks
QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in standard deviations
BINS = 100  # of the histogram, between the means of two populations
LEAST_DENSITY = 1e-9  # events per bin

TILT = 0.25  # of the log density before a shoulder, nats in a standard deviation of the lesser population
SHOULDER = 0.15  # least depth of the valley that the tilt makes, nats
CHANCE = 2.0  # the same, standard errors of the log density


class Separation:
    """Distances between populations that are made of modes of a density.

    Parameters
    ----------
    moments : float64 [L, D + 1, D + 1]
        Weighted sums of z z' over each mode, z = (x, 1).
    events : float32 [E, D]
        Standardised scale.
    modes : int64 [E]
        Mode that each event belongs to.
    weights : float64 [E], optional
        What each event counts; default: 1.

    Attributes
    ----------
    sizes : int64 [L]
        Number of events in each mode.
    """

    def __init__(self, moments: Array, events: Floats, modes: Ints, weights: Array | None = None) -> None:
        order = np.argsort(modes, kind="stable")
        self._moments = moments.copy()
        self._events = np.asarray(events, np.float64)[order]
        self._weights = np.ones(len(events)) if weights is None else weights[order]
        self._edges = np.searchsorted(modes[order], np.arange(len(moments) + 1))
        self.sizes = np.diff(self._edges)

    def leave_out(self, modes: npt.NDArray[np.bool_]) -> None:
        """Give some modes, bool [L], no weight: distant strays must not widen the population they join."""
        self._moments[modes] = 0.0

    def measures_valley(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> bool:
        """Return whether two populations, bool [L], have enough events to measure the valley between them."""
        return bool(min(self.sizes[one].sum(), self.sizes[other].sum()) >= LEAST_EVENTS)

    def between(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
        """Return the distance between the populations of some modes and of others, each bool [L].

        The distance of the means is Mahalanobis's, with the mean of the covariances. It alone counts where
        one population has fewer than 30 events. (When it also counted from 6 standard deviations on, the
        far tail of a bent population was one of its own.)
        """
        of_means, direction = self._apart(one, other)
        if not self.measures_valley(one, other):
            return of_means
        return _corrected(of_means, self._profile(one, other, direction))

    def is_shoulder(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> bool:
        """Return whether the lesser of two sides of a population, bool [L] each, is a shoulder."""
        weight = min(self._moments[modes, -1, -1].sum() for modes in (one, other))
        if not weight > 0.0 or not self.measures_valley(one, other):
            return False
        of_means, direction = self._apart(one, other)
        # Two equal normals nearer than this show neither a valley nor a plateau.
        return of_means >= NO_VALLEY and self._profile(one, other, direction).has_shoulder

    def _apart(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> tuple[float, Array]:
        """Return the distance of the means and the direction, [D], in which it is largest."""
        (mean, covariance), (other_mean, other_covariance) = (
            _mean_and_covariance(self._moments[modes].sum(axis=0)) for modes in (one, other)
        )
        gap = mean - other_mean
        # Fisher's discriminant: on no other line are the means of the two as many standard deviations apart.
        direction: Array = np.linalg.solve((covariance + other_covariance) / 2.0, gap).astype(np.float64)
        return float(np.sqrt(max(float(gap @ direction), 0.0))), direction

    def _profile(
        self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_], direction: Array
    ) -> DensityProfile:
        """Return the density of the events of two populations along a direction."""
        (rows, first), (other_rows, second) = (self._projected(modes, direction) for modes in (one, other))
        return profile_of(first, second, self._weights[rows], self._weights[other_rows])

    def _projected(self, modes: npt.NDArray[np.bool_], direction: Array) -> tuple[Ints, Array]:
        """Return the events of some modes and their positions along a direction."""
        spans = [np.arange(*self._edges[mode : mode + 2]) for mode in np.flatnonzero(modes)]
        rows = np.concatenate(spans)
        positions: Array = self._events.take(rows, axis=0) @ direction
        return rows, positions


@dataclass(frozen=True)
class DensityProfile:
    """Density of the events of two populations between their means on a line.

    Attributes
    ----------
    log_density : float64 [BINS]
        Log of the events in each bin, from the first mean to the second.
    lesser_sd : float
        Standard deviation of the population with fewer events, bins.
    lesser_first : bool
        The first population has fewer events.
    width : float
        Standard deviation of the kernel, bins.
    """

    log_density: Array
    lesser_sd: float
    lesser_first: bool
    width: float

    @property
    def depth(self) -> float:
        """Depth of the valley between the means, nats: 0 without a valley.

        It is the largest difference of the log density from its least concave majorant: the straight line
        across the valley, on the log scale. For two normals of the same width it does not depend on their
        sizes, since a factor exp(a x) changes sizes and slopes but no difference from the majorant. It is 0
        for every log-concave density (normal, gamma, uniform), wherever that is divided.
        """
        return float((_concave_majorant(self.log_density) - self.log_density).max())

    @property
    def has_shoulder(self) -> bool:
        """True if the log density has a valley once it is tilted a little towards the lesser population.

        A density that falls to a plateau has one. One that falls steadily has none, however long its tail is.
        """
        slope = (-TILT if self.lesser_first else TILT) / self.lesser_sd
        for between in (self.log_density, self.log_density + slope * np.arange(BINS)):
            up_to, after = np.maximum.accumulate(between), np.maximum.accumulate(between[::-1])[::-1]
            depths = np.minimum(up_to, after) - between
            at = int(depths.argmax())
            # A kernel estimate varies like a count of the events under the kernel, 2 sqrt(pi) widths.
            under_kernel = np.exp(self.log_density[at]) * self.width * 2.0 * np.sqrt(np.pi)
            if depths[at] > max(SHOULDER, CHANCE / np.sqrt(under_kernel)):
                return True
        return False


def profile_of(first: Array, second: Array, weights: Array, other_weights: Array) -> DensityProfile:
    """Return the density of two samples between their means, a Gaussian kernel estimate of all events.

    Parameters
    ----------
    first, second : float64 [n]
        Positions.
    weights, other_weights : float64 [n]
        What each event counts.
    """
    samples = (first, weights), (second, other_weights)
    means = [at @ own / own.sum() for at, own in samples]
    lesser_first = bool(weights.sum() <= other_weights.sum())
    # No interval to look for a valley in, and no scale for the bins.
    if means[0] == means[1]:
        return DensityProfile(np.zeros(BINS), 1.0, lesser_first, 1.0)
    variances, sizes, counts = [], [], np.zeros(3 * BINS)
    for positions, own in samples:
        at = (positions - means[0]) / (means[1] - means[0])
        variances.append(_variance(at, own))
        sizes.append(own.sum() ** 2 / (own @ own))  # effective number of events
        # Every event counts alike: with both samples weighted equally instead, skewed populations were
        # divided (docs/benchmarks/rules.md).
        counts += _histogram(at, own)
    about_middle = sum(0.5 * (0.25 + variance) for variance in variances)
    # By the harmonic mean of the two numbers: the kernel has to be wide enough for the smaller sample.
    width = BANDWIDTH * np.sqrt(about_middle) * (4.0 / sum(1.0 / size for size in sizes)) ** -0.2
    bins = max(float(width * BINS), 1.0)
    density = gaussian_filter1d(counts, bins, mode="constant")[BINS : 2 * BINS]
    lesser_sd = max(float(np.sqrt(variances[0 if lesser_first else 1])) * BINS, 1.0)
    return DensityProfile(np.log(np.maximum(density, LEAST_DENSITY)), lesser_sd, lesser_first, bins)


def _corrected(of_means: float, profile: DensityProfile) -> float:
    """Return the distance of two populations, given the distance of their means and their density."""
    by_valley = distance_of(profile.depth)
    allowed = by_valley / VALLEY
    if of_means < allowed:
        # The means depend on which population the broad components belong to, and so on the seed; the
        # valley hardly does (docs/benchmarks/rules.md, how many mean densities).
        return float(np.sqrt(of_means * allowed))
    # The table of depths ends at 4: a valley as deep allows any distance of the means.
    return of_means if by_valley >= MEASURABLE else allowed


def _variance(positions: Array, weights: Array) -> float:
    """Return a variance that single distant events do not change: the smaller of two estimates.

    One is the usual one, the other is the variance of a normal distribution with the same quartiles
    (Silverman 1986, section 3.4.2). A single event at 1,000 standard deviations would otherwise make the
    kernel as wide as the distance between two populations.
    """
    total = weights.sum()
    variance = weights @ np.square(positions - weights @ positions / total) / total
    if (weights == 1.0).all():  # ranks need no sort
        ranks = [math.ceil(share * len(positions)) - 1 for share in (0.25, 0.75)]
        first, third = np.partition(positions, ranks)[ranks]
    else:
        order = np.argsort(positions)
        reached = np.cumsum(weights[order])
        first, third = positions[order[np.searchsorted(reached, (0.25 * total, 0.75 * total))]]
    return float(min(variance, ((third - first) / QUARTILES) ** 2))


def _concave_majorant(values: Array) -> Array:
    """Return the least concave function above values at equal steps, float64 [n]: the upper hull."""
    hull: list[int] = []
    heights = values.tolist()
    for at, height in enumerate(heights):
        while len(hull) > 1:
            before, last = hull[-2:]
            rise, rise_to_last = height - heights[before], heights[last] - heights[before]
            if rise_to_last * (at - before) > rise * (last - before):
                break
            hull.pop()
        hull.append(at)
    return np.interp(np.arange(len(values)), hull, values[hull])


def _histogram(positions: Array, weights: Array) -> Array:
    """Return the weights in bins from one gap before the first mean to one after the second."""
    bins = np.clip(np.floor((positions + 1.0) * BINS), -1.0, 3 * BINS).astype(np.int64)
    return np.bincount(bins + 1, weights, 3 * BINS + 2)[1:-1].astype(np.float64)


def distance_of(depth: float) -> float:
    """Return the distance of two equal normals with a valley of some depth, at most 4 standard deviations.

    Parameters
    ----------
    depth : float
        Log of peak over valley, nats.
    """
    depths, distances = _depths_of_normals()
    return float(np.interp(depth, depths, distances))


@lru_cache(1)
def _depths_of_normals() -> tuple[Array, Array]:
    """Return depths of the valley of two equal normals, ascending, and their distances from 2 to 4."""
    distances = np.linspace(NO_VALLEY, MEASURABLE, 201)
    half = distances[:, None] / 2.0
    at = half * np.linspace(0.0, 1.0, 201)  # from the middle to one mean
    log_density = np.logaddexp(-0.5 * np.square(at - half), -0.5 * np.square(at + half))
    return log_density.max(axis=1) - log_density[:, 0], distances


def _mean_and_covariance(moments: Array) -> tuple[Array, Array]:
    mean = moments[-1, :-1] / moments[-1, -1]
    return mean, moments[:-1, :-1] / moments[-1, -1] - np.outer(mean, mean)
