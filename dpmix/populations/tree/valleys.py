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
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from dpmix.model.mixture import Array, Floats, Ints

LEAST_EVENTS = 30  # of each population; the valley between fewer events is not measured
NO_VALLEY, MEASURABLE = 2.0, 4.0  # distances of two equal normals: no valley up to the first
VALLEY = 1.14  # a valley as deep as between two normals at 1.14 times a distance allows this distance
FAR = 6.0  # distance of means from which on the valley is not measured
BANDWIDTH = 0.72  # of the kernel, times sd n^(-1/5): four fifths of Silverman (1986, eq. 3.31), for two peaks
QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in standard deviations
BINS = 100  # of the histogram, between the means of two populations
LEAST_DENSITY = 1e-9  # events per bin


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
    """

    def __init__(self, moments: Array, events: Floats, modes: Ints, weights: Array | None = None) -> None:
        order = np.argsort(modes, kind="stable")
        self._moments = moments.copy()
        self._events = np.asarray(events, np.float64)[order]
        self._weights = np.ones(len(events)) if weights is None else weights[order]
        self._edges = np.searchsorted(modes[order], np.arange(len(moments) + 1))

    def leave_out(self, modes: npt.NDArray[np.bool_]) -> None:
        """Give some modes, bool [L], no weight: distant strays must not widen the population they join."""
        self._moments[modes] = 0.0

    def measures_valley(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> bool:
        """Return whether two populations, bool [L], have enough events to measure the valley between them."""
        sizes = np.diff(self._edges)
        return bool(min(sizes[one].sum(), sizes[other].sum()) >= LEAST_EVENTS)

    def between(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
        """Return the distance between the populations of some modes and of others, each bool [L].

        The distance of the means is Mahalanobis's, with the mean of the covariances. It alone counts where
        the valley is not measured: where one population has fewer than 30 events, and where the means are 6
        standard deviations apart or more.
        """
        (mean, covariance), (other_mean, other_covariance) = (
            _mean_and_covariance(self._moments[modes].sum(axis=0)) for modes in (one, other)
        )
        gap = mean - other_mean
        # Fisher's discriminant: on no other line are the means of the two as many standard deviations apart.
        direction: Array = np.linalg.solve((covariance + other_covariance) / 2.0, gap).astype(np.float64)
        of_means = float(np.sqrt(max(float(gap @ direction), 0.0)))
        if of_means >= FAR or not self.measures_valley(one, other):
            return of_means
        (rows, first), (other_rows, second) = (self._projected(modes, direction) for modes in (one, other))
        by_valley = distance_of(valley_depth(first, second, self._weights[rows], self._weights[other_rows]))
        allowed = by_valley / VALLEY
        if of_means < allowed:
            # The means depend on which population the broad components belong to, and so on the seed; the
            # valley hardly does (docs/benchmarks/agreement.md, chains and seeds).
            return float(np.sqrt(of_means * allowed))
        # The table of depths ends at 4: a valley as deep allows any distance of the means.
        return of_means if by_valley >= MEASURABLE else allowed

    def _projected(self, modes: npt.NDArray[np.bool_], direction: Array) -> tuple[Ints, Array]:
        """Return the events of some modes and their positions along a direction."""
        spans = [np.arange(*self._edges[mode : mode + 2]) for mode in np.flatnonzero(modes)]
        rows = np.concatenate(spans)
        positions: Array = self._events.take(rows, axis=0) @ direction
        return rows, positions


def valley_depth(first: Array, second: Array, weights: Array, other_weights: Array) -> float:
    """Return the depth of the valley between two samples on a line, in nats: 0 without a valley.

    It is the largest difference, between the two means, of the log density from its least concave majorant:
    the straight line across the valley, on the log scale. For two normals of the same width it does not
    depend on their sizes, since a factor exp(a x) changes sizes and slopes but no difference from the
    majorant. It is 0 for every log-concave density (normal, gamma, uniform), wherever that is divided.

    Parameters
    ----------
    first, second : float64 [n]
        Positions.
    weights, other_weights : float64 [n]
        What each event counts. The density is a Gaussian kernel estimate of all events together.
    """
    means = [at @ own / own.sum() for at, own in ((first, weights), (second, other_weights))]
    # No interval to look for a valley in, and no scale for the bins.
    if means[0] == means[1]:
        return 0.0
    shares, sizes, counts = [], [], np.zeros(3 * BINS)
    for positions, own in ((first, weights), (second, other_weights)):
        at = (positions - means[0]) / (means[1] - means[0])
        shares.append(0.5 * (0.25 + _variance(at, own)))  # about the middle between the means
        sizes.append(own.sum() ** 2 / (own @ own))  # effective number of events
        # Every event counts alike: with both samples weighted equally instead, skewed populations were
        # divided (docs/benchmarks/rules.md).
        counts += _histogram(at, own)
    # By the harmonic mean of the two numbers: the kernel has to be wide enough for the smaller sample.
    width = BANDWIDTH * np.sqrt(sum(shares)) * (4.0 / sum(1.0 / size for size in sizes)) ** -0.2
    density = gaussian_filter1d(counts, max(width * BINS, 1.0), mode="constant")[BINS : 2 * BINS]
    log_density = np.log(np.maximum(density, LEAST_DENSITY))
    return float((_concave_majorant(log_density) - log_density).max())


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
