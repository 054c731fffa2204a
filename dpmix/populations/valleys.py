"""How far apart two populations are, by the valley in the events between them.

The events of two populations are projected on the line along which the populations differ most, and counted
equally. The valley of their density between the two peaks gives the distance: that of two equal normals, in
standard deviations, with a valley as deep. The fitted mixture proposes the populations and the direction;
the events decide. The distance therefore hardly depends on which components the mixture uses, and so not on
the seed. docs/explanation/populations.md compares it with the distance of the fitted means.

L modes, E events, D channels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from dpmix.model.mixture import Array, Floats, Ints

LEAST_EVENTS = 30  # of each population; the valley between fewer events is not measured
NO_VALLEY, MEASURABLE = 2.0, 4.0  # distances of two equal normals: no valley up to the first
FAR = 6.0  # distance of means from which on the valley is not measured
BANDWIDTH = 0.72  # of the kernel, times sd n^(-1/5): four fifths of Silverman (1986, eq. 3.31), for two peaks
BINS = 100  # of the histogram, between the means of two populations
SEARCHED = slice(80, 220)  # where a valley may be: between the means and a fifth of the way beyond
LEAST_DENSITY = 1e-9  # relative to one event in each bin


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

    def between(self, one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
        """Return the distance between the populations of some modes and of others, each bool [L].

        The distance is that of the means (Mahalanobis, with the mean of the covariances) where one population
        has fewer than 30 events, where the means are 6 standard deviations apart or more, and where the valley
        is deeper than that of normals 4 standard deviations apart.
        """
        (mean, covariance), (other_mean, other_covariance) = (
            _mean_and_covariance(self._moments[modes].sum(axis=0)) for modes in (one, other)
        )
        gap = mean - other_mean
        direction = np.linalg.solve((covariance + other_covariance) / 2.0, gap)
        of_means = float(np.sqrt(max(gap @ direction, 0.0)))
        if of_means >= FAR:
            return of_means
        (rows, first), (other_rows, second) = (self._projected(modes, direction) for modes in (one, other))
        if min(len(first), len(second)) < LEAST_EVENTS:
            return of_means
        by_valley = distance_of(valley_depth(first, second, self._weights[rows], self._weights[other_rows]))
        if by_valley <= NO_VALLEY:
            return min(of_means, NO_VALLEY)
        return max(of_means, MEASURABLE) if by_valley >= MEASURABLE else by_valley

    def _projected(self, modes: npt.NDArray[np.bool_], direction: Array) -> tuple[Ints, Array]:
        """Return the events of some modes and their positions along a direction."""
        spans = [np.arange(*self._edges[mode : mode + 2]) for mode in np.flatnonzero(modes)]
        rows = np.concatenate(spans)
        return rows, self._events[rows] @ direction


def valley_depth(first: Array, second: Array, weights: Array, other_weights: Array) -> float:
    """Return the depth of the valley between two samples on a line, in nats: 0 if there is none.

    The density is a Gaussian kernel estimate of both samples, each with total weight 1/2. The depth is the
    log of the lower of the two peaks over the lowest point between them.

    Parameters
    ----------
    first, second : float64 [n]
        Positions.
    weights, other_weights : float64 [n]
    """
    weights, other_weights = weights / weights.sum(), other_weights / other_weights.sum()
    start, end = first @ weights, second @ other_weights
    if start == end:
        return 0.0
    samples = [
        ((positions - start) / (end - start), own)
        for positions, own in ((first, weights), (second, other_weights))
    ]
    sd = np.sqrt(sum(0.5 * own @ np.square(at - 0.5) for at, own in samples))
    events = 4.0 / sum(np.square(own).sum() for _, own in samples)  # effective number
    counts = sum(_histogram(at, own) for at, own in samples)
    density = gaussian_filter1d(counts, max(BANDWIDTH * sd * events**-0.2 * BINS, 1.0), mode="constant")
    left = np.maximum.accumulate(density)
    right = np.maximum.accumulate(density[::-1])[::-1]
    depths = np.log(np.minimum(left, right)[SEARCHED] / np.maximum(density[SEARCHED], LEAST_DENSITY))
    return float(depths.max())


def _histogram(positions: Array, weights: Array) -> Array:
    """Return the weights in bins from one gap before the first mean to one after the second."""
    bins = np.floor((positions + 1.0) * BINS).astype(np.int64)
    inside = (bins >= 0) & (bins < 3 * BINS)
    return np.bincount(bins[inside], weights[inside], 3 * BINS)


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
