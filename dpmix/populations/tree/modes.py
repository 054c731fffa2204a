"""Modes of a mixture's density, and the saddles between them.

Modal EM climbs from the mean of every component to a mode (Li, Ray and Lindsay 2007, J. Mach. Learn. Res.
8:1687). A saddle is the lowest point of the best path between two modes. The paths considered are the
straight lines between modes and the ridgelines of pairs of components (Ray and Lindsay 2005, Ann. Stat.
33:2042).

K components, L modes, M points, D channels, all on the standardised scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints, Mixture, mixture_from

MakeEngine = Callable[[Floats], Engine]
"""Return an engine that holds some events, float32 [M, D]."""
PathPoints = Callable[[Ints, Ints, Array], Array]
"""Return points at some shares of the way between pairs of components or of points."""
PathJoin = tuple[int, Ints, Ints]
"""A path that joins two branches of modes, and the modes of the lesser and of the greater branch."""

SHARES = np.linspace(0.0, 1.0, 53)[1:-1]  # of the way: points on a path, without its ends
FEW_SHARES, OTHER_SHARES = SHARES[4::7], np.delete(SHARES, np.s_[4::7])  # most paths are too low at the few
RIDGES = 2_048  # paths evaluated together
ROUND = 512  # paths of a round
ROUNDING = 1e-4  # of a log density, nats; paths that differ less are all evaluated
CLIMB_STEPS, CLIMB_STILL = 100, 1e-4  # of modal EM; step length in standard deviations of the events
CLIMB_TOGETHER = 5  # steps after which points that have met climb as one
SAME_MODE = 0.02  # largest distance within one mode, standard deviations of the events
BLOCK = 65_536  # points times components whose densities are held at a time


@dataclass(frozen=True)
class Saddle:
    """Place where two branches of modes join.

    Attributes
    ----------
    child, parent : int
        The modes that the path connects; `child` is on the lesser branch.
    prominence : float
        Height of the lesser branch's highest mode above the saddle, nats.
    events : float
        Expected number of events in the lesser branch.
    """

    child: int
    parent: int
    prominence: float
    events: float


class Density:
    """Density of a mixture of normals at a moderate number of points.

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Weights above 0.
    make_engine : callable
        Makes the engine that evaluates log densities.
    """

    def __init__(self, weights: Array, means: Array, covariances: Array, make_engine: MakeEngine) -> None:
        self.weights, self.means, self.covariances = weights, means, covariances
        self.precisions = np.linalg.inv(covariances)
        self.roots = np.linalg.cholesky(covariances)
        self._make_engine = make_engine
        self._mixture = mixture_from(np.log(weights), means, covariances)
        self.whiteners = self._mixture.whiteners

    def scaled(self, factor: float) -> Density:
        """Return the density of the same components with other standard deviations: theirs times a factor."""
        return Density(self.weights, self.means, self.covariances * factor**2, self._make_engine)

    def log_density(self, points: Array) -> Array:
        """Return the log density at points [M, D], float64 [M], with the float32 accuracy of the engine."""
        if len(points) == 0:
            return np.empty(0)
        one_population = np.zeros(len(self.weights), np.int64)
        # Paths have some 100,000 points at a time, for which `log_terms` would hold a number for each
        # component; an engine holds none.
        with closing(self._make_engine(points.astype(np.float32))) as engine:
            return engine.memberships(self._mixture, one_population, 0, len(points))[1]

    def log_terms(self, points: Array) -> Array:
        """Return log w_j N(x | mu_j, Sigma_j) at points [M, D], float64 [M, K]."""
        return _log_terms(self._mixture, points)


def nearest_components(weights: Array, means: Array, covariances: Array, points: Array) -> Ints:
    """Return the component with the highest weighted density at each point, int64 [M].

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Weights above 0.
    points : float64 [M, D]
    """
    return nearest_in(weights, means, covariances)(points)


def nearest_in(weights: Array, means: Array, covariances: Array) -> Callable[[Array], Ints]:
    """Return `nearest_components` as a function of the points, for many calls with the same components."""
    mixture = mixture_from(np.log(weights), means, covariances)
    step = max(BLOCK // len(weights), 1)

    def nearest(points: Array) -> Ints:
        starts = range(0, max(len(points), 1), step)
        blocks = [_log_terms(mixture, points[at : at + step]) for at in starts]
        return np.concatenate([block.argmax(axis=1) for block in blocks])

    return nearest


def _log_terms(mixture: Mixture, points: Array) -> Array:
    """Return log w_j N(x | mu_j, Sigma_j), float64 [M, K], with one matrix product for all components."""
    n_channels = mixture.means.shape[1]
    # W x - W mu instead of W (x - mu), which would need points times components differences; in float64 the
    # lost digits do not matter.
    offsets = np.einsum("kij,kj->ki", mixture.whiteners, mixture.means)
    stacked = mixture.whiteners.reshape(-1, n_channels).T
    whitened = (points @ stacked).reshape(len(points), *mixture.means.shape) - offsets
    log_peaks = mixture.log_weights + mixture.log_norms
    terms: Array = log_peaks - 0.5 * np.einsum("nkd,nkd->nk", whitened, whitened)
    return terms


def find_modes(density: Density) -> tuple[Ints, Array, Array]:
    """Climb from the mean of every component to a mode.

    Returns
    -------
    modes : int64 [K]
        Mode of each component, 0..L-1.
    points : float64 [L, D]
        Positions of the modes, the highest first.
    heights : float64 [L]
        Log density at the modes.
    """
    points = _climb(density)
    heights = density.log_density(points)
    modes = np.full(len(points), -1)
    found: list[int] = []  # a point at each mode
    # The highest first, so that modes are numbered by height: `_joins` and `find_saddles` rely on it.
    for j in np.argsort(-heights, kind="stable"):
        near = np.abs(points[np.array(found, np.int64)] - points[j]).max(axis=1) < SAME_MODE
        modes[j] = near.argmax() if near.any() else len(found)
        if not near.any():
            found.append(int(j))
    return modes, points[found], heights[found]


def _climb(density: Density) -> Array:
    """Return the points that modal EM reaches from the means of the components, float64 [K, D]."""
    from scipy.spatial.distance import cdist  # takes time to import, and a run file may keep the populations

    points = density.means.copy()
    shifts = np.einsum("kij,kj->ki", density.precisions, density.means)
    moving = np.arange(len(points))
    follows = moving.copy()  # the point that each went to the same mode with
    for step in range(1, CLIMB_STEPS + 1):
        terms = density.log_terms(points[moving])
        shares = np.exp(terms - np.logaddexp.reduce(terms, axis=1)[:, None])
        # A step solves for the point at which the gradients of the components, weighted by their shares at
        # the old point, cancel; it is a step of EM, so the density never falls and no step length is needed.
        curvature = np.tensordot(shares, density.precisions, axes=1)
        higher = np.linalg.solve(curvature, (shares @ shifts)[..., None])[..., 0]
        still = np.abs(higher - points[moving]).max(axis=1) < CLIMB_STILL
        points[moving] = higher
        moving = moving[~still]
        if not len(moving):
            break
        if step % CLIMB_TOGETHER == 0:
            first = (cdist(points[moving], points[moving], "chebyshev") < SAME_MODE / 4.0).argmax(axis=1)
            follows[moving] = moving[first]
            moving = moving[first == np.arange(len(moving))]
    # A point follows one with a lower number, which may follow another.
    while (follows != follows[follows]).any():
        follows = follows[follows]
    return points[follows]


def find_saddles(
    density: Density,
    modes: Ints,
    points: Array,
    heights: Array,
    n_events: int,
    tolerance: Callable[[float], float],
) -> list[Saddle]:
    """Return the saddles at which the modes join, the highest first; one fewer than modes.

    The density half way on a path is an upper bound of its lowest density. Paths are evaluated at all points
    in rounds, those with the highest bounds first: each round raises the lower bounds of the saddles, and
    paths below these are left out, and so are paths between modes that have no valley between them. Of the
    others, a few points of each are evaluated first.

    Parameters
    ----------
    density : Density
    modes, points, heights
        Result of `find_modes`.
    n_events : int
        Events that the mixture was fitted to.
    tolerance : callable
        Returns the prominence, nats, below which the saddle of a branch with some events is no valley. The
        heights of such saddles are lower bounds.
    """
    n_modes = len(heights)
    ridges = np.argwhere(np.triu(modes[:, None] != modes, 1))
    lines = np.argwhere(np.triu(np.ones((n_modes, n_modes), bool), 1))
    ends = np.concatenate([modes[ridges], lines])
    bounds = np.minimum(heights[ends].min(axis=1), _half_way(density, points, ridges, lines))
    # A ridgeline ends at two means, from which modal EM only climbs: a mean can be the lowest point of the
    # whole path.
    at_means = density.log_density(density.means)[ridges].min(axis=1)
    bounds[: len(ridges)] = np.minimum(bounds[: len(ridges)], at_means)

    def lowest_on(paths: Ints, shares: Array) -> Array:
        on_ridges, on_lines = np.split(paths, np.searchsorted(paths, [len(ridges)]))
        found = (
            _lowest_on_ridgelines(density, ridges[on_ridges], shares),
            _along(density, lines[on_lines - len(ridges)], _line(points), shares, _lowest),
        )
        known_lowest: Array = np.minimum(bounds[paths], np.concatenate(found))
        return known_lowest

    events = (np.bincount(modes, density.weights, n_modes) * n_events).astype(np.float64)
    lowest = np.full(len(bounds), np.nan)  # NaN where not evaluated
    some = np.sort([at for at, _, _ in _joins(ends, bounds, n_modes)]).astype(np.int64)
    bounds[some] = lowest_on(some, FEW_SHARES)
    joining = np.empty(0, np.int64)
    while True:
        lowest[some] = lowest_on(some, OTHER_SHARES)
        # Paths that did not join modes before do not with more paths.
        known = np.sort(np.concatenate([joining, some]))
        joins = [
            (int(known[at]), lesser, greater)
            for at, lesser, greater in _joins(ends[known], lowest[known], n_modes)
        ]
        joining = np.array([at for at, _, _ in joins], np.int64)
        saddles = [_saddle(ends[at], lesser, heights, lowest[at], events) for at, lesser, _ in joins]
        needed = _needed(joins, saddles, lowest, tolerance)[ends[:, 0], ends[:, 1]]
        left = np.flatnonzero(np.isnan(lowest) & (bounds >= needed))
        if not len(left):
            return saddles
        some = np.sort(left[np.argsort(-bounds[left], kind="stable")[:ROUND]])
        bounds[some] = lowest_on(some, FEW_SHARES)
        some = some[bounds[some] >= needed[some]]


def _saddle(ends: Ints, lesser: Ints, heights: Array, lowest: float, events: Array) -> Saddle:
    """Return the saddle on a path between two modes; one of them is in the lesser branch."""
    u, v = ends.tolist()
    child, parent = (u, v) if u in lesser else (v, u)
    # The first mode of a branch is its highest, because modes are numbered by height.
    return Saddle(child, parent, float(heights[lesser[0]] - lowest), float(events[lesser].sum()))


def _needed(
    joins: list[PathJoin], saddles: list[Saddle], lowest: Array, tolerance: Callable[[float], float]
) -> Array:
    """Return the bound from which on a path between two modes is evaluated, float64 [L, L]."""
    n_modes = len(joins) + 1
    needed = np.empty((n_modes, n_modes))
    joined = np.arange(n_modes)  # modes without a valley between them
    for (at, lesser, greater), saddle in zip(joins, saddles, strict=True):
        needed[np.ix_(lesser, greater)] = needed[np.ix_(greater, lesser)] = lowest[at] - ROUNDING
        if saddle.prominence < tolerance(saddle.events):
            joined[joined == joined[saddle.child]] = joined[saddle.parent]
    needed[joined[:, None] == joined] = np.inf
    return needed


def joining_lines(density: Density, points: Array) -> Ints:
    """Return the pairs of points, int64 [M - 1, 2], whose lines join them all along the highest density.

    They are the minimum spanning tree for the integral of 1 / density along a line, which is mostly the part
    in the deepest valley. By the lowest density alone, the lines from a far point to all others would be
    equally good if they cross the same valley.
    """
    lines = np.argwhere(np.triu(np.ones((len(points), len(points)), bool), 1))
    lengths = np.linalg.norm(points[lines[:, 0]] - points[lines[:, 1]], axis=1)
    costs = np.log(lengths) + _along(density, lines, _line(points), SHARES, _log_mean_inverse)
    best: Ints = lines[[at for at, _, _ in _joins(lines, -costs, len(points))]]
    return best


def _joins(ends: Ints, lowest: Array, n_modes: int) -> Iterator[PathJoin]:
    """Yield the paths that join branches of modes, the highest first, with the modes of the two branches.

    Parameters
    ----------
    ends : int64 [paths, 2]
        The modes that each path connects.
    lowest : float64 [paths]
        Lowest log density on each path.
    n_modes : int

    Yields
    ------
    path : int
    lesser, greater : int64
        Modes of the two branches, ascending; the greater branch has the higher peak.
    """
    branch = np.arange(n_modes)  # named by its highest mode, which has the lowest number
    order = np.argsort(-lowest, kind="stable")
    while len(order):
        # Kruskal's algorithm: in the maximum spanning tree, the path between two modes is the one whose
        # lowest point is highest.
        highest = int(order[0])
        parent, child = np.sort(branch[ends[highest]])
        lesser, greater = np.flatnonzero(branch == child), np.flatnonzero(branch == parent)
        yield highest, lesser, greater
        branch[lesser] = parent
        first, second = branch[ends[order]].T
        order = order[first != second]


def _half_way(density: Density, points: Array, ridges: Ints, lines: Ints) -> Array:
    """Return the log density half way on ridgelines of components and on lines, float64 [paths]."""
    pulls = np.einsum("kij,kj->ki", density.precisions, density.means)
    middles = []
    for at in range(0, len(ridges), RIDGES):
        first, second = ridges[at : at + RIDGES].T
        total = density.precisions[first] + density.precisions[second]
        middles.append(np.linalg.solve(total, (pulls[first] + pulls[second])[..., None])[..., 0])
    middles.append(points[lines].mean(axis=1))
    return density.log_density(np.concatenate(middles))


def _lowest_on_ridgelines(density: Density, pairs: Ints, shares: Array) -> Array:
    """Return the lowest log density at some shares of the ridgeline of each pair of components.

    On the ridgeline of normals i and j the gradients of their log densities cancel, weighted by 1 - a and a
    for a from 0 to 1. On the scale on which i is standard normal, where j has mean d and covariance
    Q diag(l) Q', this is Q diag(a / ((1 - a) l + a)) Q' d. That takes one eigenvalue problem per pair.
    """

    def ridge(first: Ints, second: Ints, shares: Array) -> Array:
        whitener, root = density.whiteners[first], density.roots[first]
        shape, directions = np.linalg.eigh(whitener @ density.covariances[second] @ whitener.mT)
        gap = whitener @ (density.means[second] - density.means[first])[..., None]
        along = (directions.mT @ gap)[..., 0] * (shares / ((1.0 - shares) * shape + shares))
        # One product of matrices for each pair, not one of a matrix and a vector for each point.
        steps = (root @ directions) @ np.ascontiguousarray(along.transpose(1, 2, 0))
        points: Array = density.means[first] + np.ascontiguousarray(steps.transpose(2, 0, 1))
        return points

    return _along(density, pairs, ridge, shares, _lowest)


def _line(points: Array) -> PathPoints:
    """Return the straight line between each pair of points."""

    def line(first: Ints, second: Ints, shares: Array) -> Array:
        between: Array = (1.0 - shares) * points[first] + shares * points[second]
        return between

    return line


def _along(
    density: Density, pairs: Ints, path: PathPoints, shares: Array, summary: Callable[[Array], Array]
) -> Array:
    """Return a summary of the log density on the path of each pair, float64 [pairs].

    `path` returns points float64 [S, pairs, D] at shares of the way, [S]; `summary` has log densities
    [S, pairs].
    """
    found = np.empty(len(pairs))
    for at in range(0, len(pairs), RIDGES):
        first, second = pairs[at : at + RIDGES].T
        points = path(first, second, shares[:, None, None])
        heights = density.log_density(points.reshape(-1, points.shape[-1]))
        found[at : at + RIDGES] = summary(heights.reshape(points.shape[:2]))
    return found


def _lowest(heights: Array) -> Array:
    lowest: Array = heights.min(axis=0)
    return lowest


def _log_mean_inverse(heights: Array) -> Array:
    log_mean: Array = np.logaddexp.reduce(-heights, axis=0) - np.log(len(heights))
    return log_mean
