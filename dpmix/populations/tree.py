"""The populations of a mixture: its components, merged where the density shows no gap between them.

A normal mixture approximates a population of any shape by several components, so components are no
populations. What a reader of the density would call one is found in two steps:

1. **Modes.** From the mean of every component the density is climbed (modal EM: Li, Ray and Lindsay 2007,
   J. Mach. Learn. Res. 8:1687); components that reach the same mode belong together (Chan et al. 2008,
   Cytometry A 73:693). Between modes lie saddles: the lowest point of the best path from one to the other,
   along lines and along the ridgelines of pairs of components (Ray and Lindsay 2005, Ann. Stat. 33:2042).
   Two modes are one population where the lesser rises no further above their saddle than chance makes it
   (`valley_tolerance`, which asks for more where fewer events speak).
2. **Separation.** What is left merges by the distance of the means of two populations that touch, in pooled
   standard deviations along the direction in which they differ most (Mahalanobis distance; in one channel,
   Ashman's D: Ashman, Bird and Zepf 1994, Astron. J. 108:2348). The nearest two merge first, and how near
   they were is the level of that merge.

So a cut at level 2.4 keeps apart what shows a valley and lies 2.4 standard deviations apart. Two equal
normals have a valley between them from 2 on, and one of an eleventh of their height at 2.4. Skewed and
heavy-tailed populations show ripples, but not that far apart; tails reach that far, but without a valley. Why
this rule and this level, and what others do on labelled and on simulated data:
docs/explanation/populations.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Array, Ints, Mixture, log_norms

LEVEL = 2.4
"""Where the tree is cut unless a user asks for another level: standard deviations."""

CHANCE = 2.0  # standard deviations of a peak's height that a valley must be deeper than
LEAST_EVENTS = 10.0  # that a population may have
RIDGE_POINTS = 51  # looked at between the ends of a ridgeline or a line
RIDGES = 2_048  # looked at together
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
        return self._merged(self._count(n_populations))

    def level_of(self, n_populations: int) -> float:
        """The level at which there are so many populations: half way between two merges.

        Where merges are at one level that is this level, and `cut_to` makes the first of them only.
        """
        ends = np.concatenate(([0.0], self.levels, [np.inf]))
        low, high = ends[self._count(n_populations) :][:2]
        return float(low + 1.0 if np.isinf(high) else (low + high) / 2.0)

    def _count(self, n_populations: int) -> int:
        """Merges until there are so many populations."""
        return min(max(len(self.levels) - n_populations + 1, 0), len(self.levels))

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


def tree_of(weights: Array, means: Array, covariances: Array, n_events: int, n_draws: int = 1) -> Tree:
    """The tree of populations of a mixture.

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Standardised scale.
    n_events : int
        That the mixture was fitted to: what its weights are worth as evidence.
    n_draws : int
        Whose mean density the mixture is: one draw's component has the events of all its copies.

    Returns
    -------
    Tree
    """
    least = min(LEAST_EVENTS / (n_events * n_draws), weights.max())
    heavy = np.flatnonzero(weights >= least)
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
    if events < LEAST_EVENTS:
        return np.inf
    return float(CHANCE * np.sqrt((1.0 + n_channels / 2.0) / events))


# --------------------------------------------------------------------------- the density


class _Mixture:
    """Density of some normals, float64, where few points are asked for."""

    def __init__(self, weights: Array, means: Array, covariances: Array) -> None:
        self.weights, self.means, self.covariances = weights, means, covariances
        self.precisions = np.linalg.inv(covariances)
        self.whiteners = np.linalg.inv(np.linalg.cholesky(covariances))
        self.mixture = Mixture(np.log(weights), means, np.tril(self.whiteners), log_norms(self.whiteners))
        self.log_peaks: Array = self.mixture.log_weights + self.mixture.log_norms
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
        """Log density of the mixture, float64 [M], to the engine's float32."""
        if len(points) == 0:
            return np.empty(0)
        engine = CpuEngine(points.astype(np.float32))
        nothing = np.zeros(len(self.weights), np.int64)
        try:
            heights: Array = engine.memberships(self.mixture, nothing, 0, len(points))[1]
        finally:
            engine.close()
        return heights

    def nearest(self, points: Array) -> Ints:
        """The component with the highest density at each point, int64 [M]."""
        step = max(BLOCK // len(self.weights), 1)  # so many at a time that memory stays small
        starts = range(0, max(len(points), 1), step)
        return np.concatenate([self.log_terms(points[at : at + step]).argmax(axis=1) for at in starts])


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
    """The saddles at which the modes join, from the highest down; one fewer than modes.

    The paths are the ridgelines of all pairs of components of different modes, and the straight lines between
    the modes.
    """
    ridges = np.argwhere(np.triu(own[:, None] != own, 1))
    lines = np.argwhere(np.triu(np.ones((len(heights), len(heights)), bool), 1))
    ends = np.concatenate([own[ridges], lines])
    lowest = np.append(_lowest_on_ridgelines(mixture, ridges), _lowest_on_lines(mixture, points, lines))
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


def _lowest_on_ridgelines(mixture: _Mixture, pairs: Ints) -> Array:
    """Lowest log density of the mixture along the ridgeline of each pair, float64 [pairs].

    The ridgeline of normals i and j, a from 0 to 1, is where the gradients of their log densities, weighted
    1 - a and a, cancel. On the scale that makes i standard normal, with j's covariance Q diag(l) Q' and mean
    d, that is Q diag(a / ((1 - a) l + a)) Q' d: one eigenvalue problem a pair.
    """
    roots = np.linalg.cholesky(mixture.covariances)

    def ridge(first: Ints, second: Ints, shares: Array) -> Array:
        whitener, root = mixture.whiteners[first], roots[first]
        shape, directions = np.linalg.eigh(whitener @ mixture.covariances[second] @ whitener.mT)
        gap = whitener @ (mixture.means[second] - mixture.means[first])[..., None]
        along = (directions.mT @ gap)[..., 0] * (shares / ((1.0 - shares) * shape + shares))
        points: Array = mixture.means[first] + ((root @ directions) @ along[..., None])[..., 0]
        return points

    ends = mixture.log_density(mixture.means)[pairs].min(axis=1)
    lowest: Array = np.minimum(ends, _lowest_between(mixture, pairs, ridge))
    return lowest


def _lowest_on_lines(mixture: _Mixture, points: Array, pairs: Ints) -> Array:
    """Lowest log density of the mixture on the line between each pair of points, float64 [pairs]."""

    def line(first: Ints, second: Ints, shares: Array) -> Array:
        between: Array = (1.0 - shares) * points[first] + shares * points[second]
        return between

    return _lowest_between(mixture, pairs, line)


def _lowest_between(mixture: _Mixture, pairs: Ints, path: Callable[[Ints, Ints, Array], Array]) -> Array:
    """Lowest log density on the path of each pair, its ends left out, float64 [pairs].

    The path gives the points float64 [RIDGE_POINTS, pairs, D] at shares of the way, [RIDGE_POINTS, 1, 1].
    """
    shares = np.linspace(0.0, 1.0, RIDGE_POINTS + 2)[1:-1, None, None]
    lowest = np.empty(len(pairs))
    for at in range(0, len(pairs), RIDGES):
        first, second = pairs[at : at + RIDGES].T
        points = path(first, second, shares)
        heights = mixture.log_density(points.reshape(-1, points.shape[-1]))
        lowest[at : at + RIDGES] = heights.reshape(points.shape[:2]).min(axis=0)
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

    sums = _moments(mixture, own, n_modes)
    valleys = []
    for saddle in saddles:
        if saddle.prominence < valley_tolerance(saddle.events, n_channels):
            if saddle.events < LEAST_EVENTS:  # strays, however far away, do not widen what they join
                sums[population == population[saddle.child]] = 0.0
            join(saddle.child, saddle.parent, 0.0)
        else:
            valleys.append(saddle)
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
