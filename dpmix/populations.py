"""The populations of a mixture: its components, merged where the density shows no gap between them.

A normal mixture approximates a population of any shape by several components, so components are no
populations. What a reader of the density would call one is found in two steps:

1. **Modes.** From the mean of every component the density is climbed (modal EM: Li, Ray and Lindsay 2007,
   J. Mach. Learn. Res. 8:1687); components that reach the same mode belong together (Chan et al. 2008,
   Cytometry A 73:693). Between modes lie saddles: the lowest point of the best path from one to the other,
   along the ridgelines of pairs of components (Ray and Lindsay 2005, Ann. Stat. 33:2042). Two modes are one
   population where the lesser rises no further above their saddle than chance and the mixture's own ripples
   make it (`valley_tolerance`, which asks for more where fewer events speak).
2. **Separation.** What is left merges by the distance of the means of two populations that touch, in pooled
   standard deviations along the direction in which they differ most (Mahalanobis distance; in one channel,
   Ashman's D: Ashman, Bird and Zepf 1994, Astron. J. 108:2348). The nearest two merge first, and how near
   they were is the level of that merge.

So a cut at level 2.5 keeps apart what shows a valley and lies 2.5 standard deviations apart. Of two equal
normals the two ask for the same: 2.5 standard deviations apart they show a valley of 0.13 nats. Skewed and
heavy-tailed populations show ripples, but not that far apart; tails reach that far, but without a valley.
Why this rule and this level, and what other rules do on labelled and on simulated data: docs/populations.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import minimum_spanning_tree

from dpmix.model import LOG_2PI, Array

Ints = npt.NDArray[np.int64]

LEVEL = 2.5
"""Where the tree is cut unless a user asks for another level: standard deviations."""

VALLEY = 0.1  # nats: a valley that a mixture shows within one smooth population
VALLEY_SDS = 0.5  # of a peak's height, by which a valley must be deeper
LEAST_EVENTS = 10.0  # of a component that may be a mode of its own
NEIGHBOURS = 16  # components that a component's ridgelines lead to
RIDGE_POINTS = 15  # looked at between the ends of a ridgeline
CLIMB_STEPS, CLIMB_STILL = 100, 1e-4  # of modal EM; standard deviations of the events
SAME_MODE = 0.02  # standard deviations of the events
BLOCK = 65_536  # points whose densities are held at a time, over the number of components


@dataclass(frozen=True)
class Tree:
    """Which modes of a mixture's density merge, and at which level: the populations at every level at once.

    Attributes
    ----------
    modes : int64 [K]
        The mode, 0..L-1, that each component climbs to.
    points : float64 [L, D]
        Where the modes are, standardised scale.
    heights : float64 [L]
        Log density there.
    merges : int64 [L - 1, 2]
        In each, the population of the first mode becomes part of that of the second, which lives on under
        its name; every mode but one is first once.
    levels : float64 [L - 1]
        At which this happens, ascending: the populations at a level are those of all merges below it. 0
        where no valley is to be seen.
    """

    modes: Ints
    points: Array
    heights: Array
    merges: Ints
    levels: Array

    def cut(self, level: float) -> Ints:
        """Populations of the components at a level, int64 [K]: 0..P-1, in the order of their modes."""
        return self._merged(int(np.searchsorted(self.levels, level)))

    def cut_to(self, n_populations: int) -> Ints:
        """So many populations, as far as there are modes, int64 [K]."""
        return self._merged(max(len(self.levels) - n_populations + 1, 0))

    def _merged(self, count: int) -> Ints:
        into = np.arange(len(self.heights))
        for child, parent in self.merges[:count]:
            into[into == into[child]] = into[parent]
        return np.unique(into[self.modes], return_inverse=True)[1]


@dataclass(frozen=True)
class _Saddle:
    """Where two branches of modes meet: the modes at which they touch, and how far the lesser rises above."""

    child: int
    parent: int
    prominence: float
    events: float  # of the lesser branch


def tree_of(weights: Array, means: Array, covariances: Array, n_events: int) -> Tree:
    """The tree of populations of a mixture.

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Standardised scale.
    n_events : int
        That the mixture was fitted to: what its weights are worth as evidence.

    Returns
    -------
    Tree
    """
    heavy = np.flatnonzero(weights * n_events >= min(LEAST_EVENTS, weights.max() * n_events))
    mixture = _Mixture(weights[heavy], means[heavy], covariances[heavy])
    own, points, heights = _modes(mixture)
    saddles = _saddles(mixture, own, points, heights, n_events)
    merges, levels = _merge(mixture, own, saddles)
    modes = np.empty(len(weights), np.int64)
    modes[heavy] = own
    light = np.setdiff1d(np.arange(len(weights)), heavy)
    modes[light] = own[mixture.nearest(means[light])]  # they speak for no mode
    return Tree(modes, points, heights, merges, levels)


def nearest_components(weights: Array, means: Array, covariances: Array, points: Array) -> Ints:
    """The component with the highest density at each point, int64 [M].

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Weights above 0.
    points : float64 [M, D]
    """
    return _Mixture(weights, means, covariances).nearest(points)


def valley_tolerance(events: float, n_channels: int) -> float:
    """How far a branch that holds so many events must rise above its saddle to be a mode, in nats.

    The log density at a peak that is fitted to n events in D channels has a standard deviation of about
    sqrt((1 + D / 2) / n): the log weight has variance 1 / n, half the log determinant D / (2 n).
    """
    return float(VALLEY + VALLEY_SDS * np.sqrt((1.0 + n_channels / 2.0) / events))


# --------------------------------------------------------------------------- the density


class _Mixture:
    """Density of some normals, float64, where few points are asked for."""

    def __init__(self, weights: Array, means: Array, covariances: Array) -> None:
        self.weights, self.means, self.covariances = weights, means, covariances
        self.precisions = np.linalg.inv(covariances)
        self.whiteners = np.linalg.inv(np.linalg.cholesky(covariances))
        log_dets = np.log(np.einsum("kii->ki", self.whiteners)).sum(axis=1)
        self.log_peaks: Array = np.log(weights) + log_dets - 0.5 * means.shape[1] * LOG_2PI
        # whitener (x - mean) of all components at once, as one matrix product
        self._stacked = self.whiteners.reshape(-1, means.shape[1]).T
        self._offsets = np.einsum("kij,kj->ki", self.whiteners, means)

    def log_terms(self, points: Array) -> Array:
        """log w_j N(x | mu_j, Sigma_j), float64 [M, K]."""
        shape = (len(points), *self.means.shape)
        whitened = (points @ self._stacked).reshape(shape) - self._offsets
        terms: Array = self.log_peaks - 0.5 * np.einsum("nkd,nkd->nk", whitened, whitened)
        return terms

    def log_density(self, points: Array) -> Array:
        """Log density of the mixture, float64 [M]."""
        return np.concatenate([np.logaddexp.reduce(terms, axis=1) for terms in self._blocks(points)])

    def nearest(self, points: Array) -> Ints:
        """The component with the highest density at each point, int64 [M]."""
        return np.concatenate([terms.argmax(axis=1) for terms in self._blocks(points)])

    def _blocks(self, points: Array) -> Iterator[Array]:
        """`log_terms` of so many points at a time that memory stays small."""
        step = max(BLOCK // len(self.weights), 1)
        for at in range(0, max(len(points), 1), step):
            yield self.log_terms(points[at : at + step])


# --------------------------------------------------------------------------- step 1: modes and saddles


def _modes(mixture: _Mixture) -> tuple[Ints, Array, Array]:
    """The mode of every component [K], and where the modes are [L, D] and how high [L], the highest first."""
    points = mixture.means.copy()
    shifts = np.einsum("kij,kj->ki", mixture.precisions, mixture.means)
    moving = np.arange(len(points))
    for _ in range(CLIMB_STEPS):
        terms = mixture.log_terms(points[moving])
        shares = np.exp(terms - np.logaddexp.reduce(terms, axis=1)[:, None])
        curvature = np.tensordot(shares, mixture.precisions, axes=1)
        higher = np.linalg.solve(curvature, (shares @ shifts)[..., None])[..., 0]
        still = np.abs(higher - points[moving]).max(axis=1) < CLIMB_STILL
        points[moving] = higher
        moving = moving[~still]
        if not len(moving):
            break
    heights = mixture.log_density(points)
    own = np.full(len(points), -1)
    found: list[int] = []
    for j in np.argsort(-heights, kind="stable"):
        near = [np.abs(points[j] - points[other]).max() < SAME_MODE for other in found]
        own[j] = near.index(True) if any(near) else len(found)
        if not any(near):
            found.append(int(j))
    return own, points[found], heights[found]


def _saddles(mixture: _Mixture, own: Ints, points: Array, heights: Array, n_events: int) -> list[_Saddle]:
    """The saddles at which the modes join, from the highest down; one fewer than modes."""
    pairs = _neighbours(mixture)
    pairs = pairs[own[pairs[:, 0]] != own[pairs[:, 1]]]
    lowest = _lowest_on_ridgelines(mixture, pairs)
    ends = own[pairs]
    lowest = np.minimum(lowest, heights[ends].min(axis=1))
    branch = np.arange(len(heights))  # named by its highest mode: the lower number
    events = np.bincount(own, mixture.weights, len(heights)) * n_events
    saddles = []
    for at in np.argsort(-lowest, kind="stable"):
        u, v = ends[at]
        if branch[u] == branch[v]:
            continue
        if branch[u] < branch[v]:
            u, v = v, u
        lesser, greater = branch[u], branch[v]
        inside = branch == lesser
        rise = float(heights[lesser] - lowest[at])
        saddles.append(_Saddle(int(u), int(v), rise, float(events[inside].sum())))
        branch[inside] = greater
    return saddles


def _neighbours(mixture: _Mixture) -> Ints:
    """Pairs of components that lie near one another, int64 [pairs, 2]; they connect all components.

    Near is by the harmonic mean of the two squared Mahalanobis distances: in one channel, that is the squared
    distance over the mean of the variances.
    """
    count = len(mixture.weights)
    if count == 1:
        return np.empty((0, 2), np.int64)
    whitened = [
        np.square((mixture.means - m) @ w.T) for m, w in zip(mixture.means, mixture.whiteners, strict=True)
    ]
    squared = np.maximum([terms.sum(axis=1) for terms in whitened], np.finfo(float).tiny)
    distances = 2.0 / (1.0 / squared + 1.0 / squared.T)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, : min(NEIGHBOURS, count - 1)]
    wanted = np.zeros((count, count), bool)
    wanted[np.arange(count)[:, None], near] = True
    np.fill_diagonal(distances, 0.0)  # no edge
    tree = minimum_spanning_tree(distances).tocoo()
    wanted[tree.row, tree.col] = True
    return np.argwhere(np.triu(wanted | wanted.T, 1))


def _lowest_on_ridgelines(mixture: _Mixture, pairs: Ints) -> Array:
    """Lowest log density of the mixture along the ridgeline of each pair, float64 [pairs]."""
    lowest = np.full(len(pairs), np.inf)
    shifts = np.einsum("kij,kj->ki", mixture.precisions, mixture.means)
    first, second = pairs.T
    for share in np.linspace(0.0, 1.0, RIDGE_POINTS + 2):
        precision = (1.0 - share) * mixture.precisions[first] + share * mixture.precisions[second]
        shift = (1.0 - share) * shifts[first] + share * shifts[second]
        points = np.linalg.solve(precision, shift[..., None])[..., 0]
        lowest = np.minimum(lowest, mixture.log_density(points))
    return lowest


# --------------------------------------------------------------------------- step 2: merging


def _merge(mixture: _Mixture, own: Ints, saddles: list[_Saddle]) -> tuple[Ints, Array]:
    """The merges of the modes and their levels: where there is no valley first, then by separation."""
    n_channels = mixture.means.shape[1]
    n_modes = len(saddles) + 1
    population = np.arange(n_modes)
    merges: list[tuple[int, int]] = []
    levels: list[float] = []

    def join(child: int, parent: int, level: float) -> None:
        merges.append((int(population[child]), int(population[parent])))
        levels.append(max(level, levels[-1] if levels else 0.0))
        population[population == population[child]] = population[parent]

    valleys = []
    for saddle in saddles:
        if saddle.prominence < valley_tolerance(saddle.events, n_channels):
            join(saddle.child, saddle.parent, 0.0)
        else:
            valleys.append(saddle)
    sums = _moments(mixture, own, n_modes)
    while valleys:
        separations = [
            _separation(sums[population == population[s.child]], sums[population == population[s.parent]])
            for s in valleys
        ]
        nearest = int(np.argmin(separations))
        saddle = valleys.pop(nearest)
        join(saddle.child, saddle.parent, separations[nearest])
    return np.array(merges, np.int64).reshape(-1, 2), np.array(levels)


def _moments(mixture: _Mixture, own: Ints, n_modes: int) -> Array:
    """Weighted sums of z z' of each mode, z = (x, 1): float64 [L, D + 1, D + 1]."""
    n_components, n_channels = mixture.means.shape
    extended = np.concatenate([mixture.means, np.ones((n_components, 1))], axis=1)
    squares = np.einsum("ki,kj->kij", extended, extended)
    squares[:, :n_channels, :n_channels] += mixture.covariances
    sums = np.zeros((n_modes, n_channels + 1, n_channels + 1))
    np.add.at(sums, own, mixture.weights[:, None, None] * squares)
    return sums


def _separation(one: Array, other: Array) -> float:
    """Mahalanobis distance of the means of two populations, in the mean of their covariances."""
    means, covariances = zip(
        *(_mean_and_covariance(moments.sum(axis=0)) for moments in (one, other)), strict=True
    )
    gap = means[0] - means[1]
    return float(np.sqrt(gap @ np.linalg.solve((covariances[0] + covariances[1]) / 2.0, gap)))


def _mean_and_covariance(moments: Array) -> tuple[Array, Array]:
    mean = moments[-1, :-1] / moments[-1, -1]
    return mean, moments[:-1, :-1] / moments[-1, -1] - np.outer(mean, mean)
