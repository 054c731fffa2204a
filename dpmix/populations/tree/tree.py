"""The tree of populations of a mixture: components merge where the density shows no gap between them.

A normal mixture approximates a population of any shape by several components: components are not populations.
Three steps find what a reader of the density would call a population:

1. **Modes.** Components whose means climb to the same mode of the density belong together (Chan et al. 2008,
   Cytometry A 73:693). Two modes are one population if the lower one rises above the saddle between them
   (`dpmix.populations.tree.modes`) by less than `valley_tolerance`. The tolerance is larger for smaller
   branches, and where there are too few events to measure the valley in them.
2. **Separation.** The remaining populations merge by distance: the distance of the means of two that touch,
   in pooled standard deviations along the direction in which they differ most (Mahalanobis distance; in one
   channel, Ashman's D: Ashman, Bird and Zepf 1994, Astron. J. 108:2348), corrected by the valley in the
   events between them (`dpmix.populations.tree.valleys`): less where it is too shallow for the distance, more
   where it is deeper. The nearest two merge first; their distance is the height of the merge.

3. **Shoulders.** A population may be a plateau on the slope of a larger one, without a mode
   (`dpmix.populations.tree.parts`).

A cut at height 2.5 separates populations that lie at least 2.5 standard deviations apart, if the density of
the events falls by 29% between them, and nearer ones with a deeper valley. Two equal normals have a valley
from 2 on, one of an eighth of their height at 2.5, of 29% at 2.85. Skewed and heavy-tailed populations show
ripples, but not that far apart; their tails reach that far, but without a valley.
docs/explanation/populations.md explains the choice of this rule and this height, and docs/benchmarks/rules.md
compares an earlier version with other rules on labelled and on simulated data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.tree.merging import Join, Merging
from dpmix.populations.tree.modes import (
    Density,
    MakeEngine,
    Saddle,
    find_modes,
    find_saddles,
    nearest_components,
)
from dpmix.populations.tree.parts import Parts, find_parts, with_shoulders
from dpmix.populations.tree.valleys import Separation

LEVEL = 2.5
"""Default cut height of the tree, standard deviations."""

CHANCE = 2.0  # minimum depth of a valley, in standard deviations of a peak's height
CHANCE_MEASURED = 0.5
"""The same where the valley is also measured in the events.

A coarsened density hardly shows small peaks. The events and the draws then decide: a population needs a
valley in the events (`dpmix.populations.tree.valleys`), and most draws must contain it
(`dpmix.populations.tree.support`).
"""
LEAST_EVENTS = 10.0  # minimum size of a population


@dataclass(frozen=True)
class Tree:
    """The order in which the modes of a mixture's density merge: the populations at every cut height.

    Shoulders count as modes, after all others.

    Attributes
    ----------
    modes : int64 [K]
        The mode, 0..L-1, that each component climbs to, or the shoulder that it belongs to.
    points : float64 [L, D]
        Positions of the modes, standardised scale.
    heights : float64 [L]
        Log density at the modes.
    merges : int64 [L - 1, 2]
        Each row merges the population of the first mode into the population of the second, which keeps its
        name. Every mode but one is first exactly once.
    levels : float64 [L - 1]
        Heights of the merges, ascending; 0 where there is no valley. The populations at a cut height result
        from all merges below it.
    """

    modes: Ints
    points: Array
    heights: Array
    merges: Ints
    levels: Array

    def cut(self, level: float) -> Ints:
        """Return the population of each component at a cut height, int64 [K]: 0..P-1, ordered by mode."""
        return self._merged(int(np.searchsorted(self.levels, level)))

    def cut_to(self, n_populations: int) -> Ints:
        """Return the population of each component for a number of populations, int64 [K].

        There are at most as many populations as modes.
        """
        return self._merged(self._count(n_populations))

    def level_of(self, n_populations: int) -> float:
        """Return the cut height that gives a number of populations: half way between two merges.

        If several merges share this height, the result is that height, and `cut_to` makes only the first of
        them.
        """
        ends = np.concatenate(([0.0], self.levels, [np.inf]))
        low, high = ends[self._count(n_populations) :][:2]
        # Every height above the last merge gives one population; reports and JSON need a finite one.
        return float(low + 1.0 if np.isinf(high) else (low + high) / 2.0)

    def _count(self, n_populations: int) -> int:
        """Return the number of merges that leave this number of populations."""
        return min(max(len(self.levels) - n_populations + 1, 0), len(self.levels))

    def _merged(self, count: int) -> Ints:
        into = np.arange(len(self.heights))
        for child, parent in self.merges[:count]:
            into[into == into[child]] = into[parent]
        return np.unique(into[self.modes], return_inverse=True)[1]


@dataclass(frozen=True)
class Peaks:
    """The modes of a mixture's density, their parts, and the saddles between the modes.

    Attributes
    ----------
    density : Density
        Density of the J components that hold enough events to form a mode.
    parts : Parts
        Parts of the modes: of the J components.
    modes : int64 [K]
        Part of every component; for a component outside the J, the part of the nearest of them.
    points, heights
        Positions, float64 [L, D], and log densities, float64 [L], of the modes.
    saddles : list of Saddle
    """

    density: Density
    parts: Parts
    modes: Ints
    points: Array
    heights: Array
    saddles: list[Saddle]

    @property
    def n_parts(self) -> int:
        return len(self.parts.modes)

    @property
    def moments(self) -> Array:
        """Weighted sums of z z' of each part, z = (x, 1): float64 [P, D + 1, D + 1]."""
        density = self.density
        return mode_moments(density.weights, density.means, density.covariances, self.parts.own, self.n_parts)

    def most_probable(self, shares: Array) -> Ints:
        """Return the part of each event, in its most probable mode, int64 [M], given memberships [M, P]."""
        in_modes = shares @ np.eye(len(self.heights))[self.parts.modes]
        in_own = np.where(self.parts.modes == in_modes.argmax(axis=1)[:, None], shares, -1.0)
        most: Ints = in_own.argmax(axis=1)
        return most

    def tree(self, separation: Separation) -> tuple[Tree, Ints]:
        """Return the tree, and the mode or shoulder in it of each part, int64 [P]."""
        joins = merge_modes(self, separation)
        of_parts, joins = with_shoulders(self.parts, joins, LEVEL, separation)
        first = np.unique(of_parts, return_index=True)[1][len(self.heights) :]  # of each shoulder
        at_shoulders = self.parts.points[first]
        points = np.concatenate([self.points, at_shoulders])
        heights = np.concatenate([self.heights, self.density.log_density(at_shoulders)])
        merges = np.array([join[:2] for join in joins], np.int64).reshape(-1, 2)
        levels = np.array([join[2] for join in joins])
        return Tree(of_parts[self.modes], points, heights, merges, levels), of_parts


def find_peaks(
    weights: Array,
    means: Array,
    covariances: Array,
    n_events: int,
    make_engine: MakeEngine,
    n_draws: int = 1,
) -> Peaks:
    """Find the modes of a mixture's density and the saddles between them.

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Standardised scale.
    n_events : int
        Number of events that the mixture was fitted to; it sets how much evidence the weights carry.
    make_engine : callable
        Returns an engine for points float32 [M, D]; `dpmix.engines.cpu.CpuEngine` is one. Heights and merges
        are bit-identical for any number of threads. CPU and CUDA engines may differ in the last bits of a
        density, so merges that are equal within rounding may come in another order.
    n_draws : int
        Number of draws whose mean density the mixture is. The copies of a component in all draws share its
        events.
    """
    # At least the heaviest component counts, also in a run of so few events that none has ten.
    least = min(LEAST_EVENTS / (n_events * n_draws), weights.max())
    heavy = np.flatnonzero(weights >= least)
    heavy_parts = weights[heavy], means[heavy], covariances[heavy]
    density = Density(*heavy_parts, make_engine)
    own, points, heights = find_modes(density)
    parts = find_parts(density, own, points)
    modes = np.empty(len(weights), np.int64)
    modes[heavy] = parts.own
    light = np.setdiff1d(np.arange(len(weights)), heavy)  # too few events to form a mode
    modes[light] = parts.own[nearest_components(*heavy_parts, means[light])]
    # The smaller tolerance: whether a valley is measured in the events is only known with them.
    tolerance = partial(valley_tolerance, n_channels=means.shape[1], measured=True)
    saddles = find_saddles(density, own, points, heights, n_events, tolerance)
    return Peaks(density, parts, modes, points, heights, saddles)


def valley_tolerance(events: float, n_channels: int, measured: bool) -> float:
    """Return the rise above its saddle, in nats, that a branch of modes needs to be a population.

    The log density at a peak that is fitted to n events in D channels has a standard deviation of about
    sqrt((1 + D / 2) / n): the log weight has variance 1 / n, half the log determinant D / (2 n).

    Parameters
    ----------
    events : float
        Expected number of events in the branch.
    n_channels : int
    measured : bool
        Whether the valley is also measured in the events.
    """
    if events < LEAST_EVENTS:
        return np.inf
    chance = CHANCE_MEASURED if measured else CHANCE
    return float(chance * np.sqrt((1.0 + n_channels / 2.0) / events))


def merge_modes(peaks: Peaks, separation: Separation) -> list[Join]:
    """Merge modes without a valley between them first, then the others by separation, the nearest first."""
    n_channels = peaks.density.means.shape[1]
    merging, valleys = Merging(peaks.parts.modes), []
    # Chance first: a distance between the two sides of a ripple would separate two halves of one population.
    for saddle in peaks.saddles:
        child, parent = merging.members(saddle.child), merging.members(saddle.parent)
        measured = separation.measures_valley(child, parent)
        if saddle.prominence < valley_tolerance(saddle.events, n_channels, measured):
            if saddle.events < LEAST_EVENTS:
                separation.leave_out(child)
            merging.join(saddle.child, saddle.parent, 0.0)
        else:
            valleys.append((saddle.child, saddle.parent))
    merging.join_nearest(valleys, separation.between)
    return merging.joins


def mode_moments(weights: Array, means: Array, covariances: Array, modes: Ints, n_modes: int) -> Array:
    """Return the weighted sums of z z' of each mode, z = (x, 1): float64 [L, D + 1, D + 1].

    Parameters
    ----------
    weights, means, covariances : float64 [J], [J, D], [J, D, D]
    modes : int64 [J]
        Mode of each component, 0..L-1.
    n_modes : int
        L.
    """
    n_components, n_channels = means.shape
    extended = np.concatenate([means, np.ones((n_components, 1))], axis=1)
    squares = np.einsum("ki,kj->kij", extended, extended)
    squares[:, :n_channels, :n_channels] += covariances
    sums = np.zeros((n_modes, n_channels + 1, n_channels + 1))
    np.add.at(sums, modes, weights[:, None, None] * squares)
    return sums
