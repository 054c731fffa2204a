"""Parts of modes: where the density has a shoulder and no mode of its own.

A population next to a larger one can be a plateau on its slope: the density never rises, and no component
climbs to a mode there. The same mixture with narrower components has a mode in the middle of such a plateau.
Its modes are candidates only: they divide the components of each mode into parts, and the events decide which
part is a population (`dpmix.populations.tree.valleys.DensityProfile.has_shoulder`).

J components, L modes, P parts, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.tree.merging import Flags, Join, Merging
from dpmix.populations.tree.modes import Density, find_modes, joining_lines
from dpmix.populations.tree.valleys import Separation

NARROWED = 0.75
"""Standard deviation of the narrower components, times their own."""


@dataclass(frozen=True)
class Parts:
    """Parts of the modes of a density.

    Attributes
    ----------
    own : int64 [J]
        Part of each component, 0..P-1.
    modes : int64 [P]
        Mode that each part belongs to. Parts 0..L-1 contain the tops of the modes 0..L-1.
    peaks : int64 [P]
        Mode of the narrower density that each part belongs to.
    points : float64 [P, D]
        Positions of these modes.
    narrower : Density
    """

    own: Ints
    modes: Ints
    peaks: Ints
    points: Array
    narrower: Density

    def lines(self, some: Ints) -> Ints:
        """Return the lines that join some parts along the highest narrower density, int64 [n - 1, 2]."""
        return some[joining_lines(self.narrower, self.points[some])]


def find_parts(density: Density, modes: Ints, tops: Array) -> Parts:
    """Divide the components of each mode by the modes of the narrower density that they climb to.

    Parameters
    ----------
    density : Density
    modes : int64 [J]
        Mode of each component, 0..L-1.
    tops : float64 [L, D]
        Positions of the modes.
    """
    narrower = density.scaled(NARROWED)
    peaks, points, _ = find_modes(narrower)
    # Of the components that climb to a mode: no part is without components.
    own_only = np.where(modes == np.arange(len(tops))[:, None], density.log_terms(tops), -np.inf)
    pairs = [(mode, int(peak)) for mode, peak in enumerate(peaks[own_only.argmax(axis=1)])]
    found = sorted(set(zip(modes.tolist(), peaks.tolist(), strict=True)) - set(pairs))
    numbers = {pair: part for part, pair in enumerate(pairs + found)}
    own = np.array([numbers[pair] for pair in zip(modes.tolist(), peaks.tolist(), strict=True)])
    of_modes, of_peaks = np.array(pairs + found).T
    return Parts(own, of_modes, of_peaks, points[of_peaks], narrower)


@dataclass(frozen=True)
class Branches:
    """Branches that a population is divided into.

    Attributes
    ----------
    lines : list of (int, int)
        Pairs of parts without a gap; parts that they connect are a branch.
    cuts : list of Join
        A part on each side of a gap, and the distance of the two sides.
    """

    lines: list[tuple[int, int]]
    cuts: list[Join]


def branches_of(parts: Parts, some: Ints, separation: Separation) -> Branches:
    """Divide a population, the parts `some`, int64 [n], where one side of a line between parts is a shoulder.

    The lines join the parts along the highest density. Of the lines that have a shoulder on one side and all
    other parts on the other, the one whose sides are farthest apart is cut first. Then each side is a
    population, and is divided in the same way.
    """
    _, first, same = np.unique(parts.peaks[some], return_index=True, return_inverse=True)
    alike = zip(some.tolist(), some[first][same].tolist(), strict=True)
    joined = [(part, other) for part, other in alike if part != other]  # modes share a narrower one
    lines = [(one, other) for one, other in parts.lines(some[first]).tolist()] if len(first) > 1 else []
    cuts: list[Join] = []
    waiting = [np.isin(np.arange(len(parts.modes)), some)]
    while waiting:
        population = waiting.pop()
        inside = [line for line in lines if population[list(line)].all()]
        sides = {line: population & _side(line, joined + inside, len(population)) for line in inside}
        distances = {
            line: separation.between(side, population & ~side)
            for line, side in sides.items()
            if separation.is_shoulder(side, population & ~side)
        }
        if not distances:
            joined += inside
            continue
        farthest = max(distances, key=distances.__getitem__)
        cuts.append((*farthest, distances[farthest]))
        waiting += [sides[farthest], population & ~sides[farthest]]
    return Branches(joined, cuts)


def _side(line: tuple[int, int], lines: list[tuple[int, int]], n_parts: int) -> Flags:
    """Return the parts, bool [P], on the side of the first part of a line, given the lines of a tree."""
    merging = Merging(np.arange(n_parts))
    for pair in lines:
        if pair != line:
            merging.join(*pair, 0.0)
    return merging.members(line[0])


def with_shoulders(
    parts: Parts, joins: list[Join], level: float, separation: Separation
) -> tuple[Ints, list[Join]]:
    """Add the shoulders of populations to a tree of modes.

    Parameters
    ----------
    parts : Parts
    joins : list of Join
        The merges of the tree, between modes.
    level : float
        Height at which the tree is cut for the populations.
    separation : Separation
        Distances of the parts.

    Returns
    -------
    of_parts : int64 [P]
        Mode, or shoulder after all modes, that each part belongs to.
    joins : list of Join
        The merges of the tree with shoulders.
    """
    n_parts, n_modes = len(parts.modes), len(joins) + 1
    heights = _heights(joins)
    populations = Merging(parts.modes)
    for child, parent, height in joins:
        if height < level:
            populations.join(child, parent, height)
    branch, lines, cuts = Merging(np.arange(n_parts)), [], []
    for population in np.unique(populations.population):
        found = branches_of(parts, np.flatnonzero(populations.population == population), separation)
        lines += found.lines
        cuts += found.cuts
    for pair in lines:
        branch.join(*pair, 0.0)
    own = _own_modes(parts, branch.population, lines)

    def divided(child: int, parent: int) -> bool:
        return bool(branch.population[child] != branch.population[parent])

    # Two modes of a population may lie on both sides of a shoulder, and then no longer merge below the level.
    edges = [join for join in joins if join[2] >= level or not divided(*join[:2])]
    pairs = [(child, parent) for child in range(n_modes) for parent in range(child)]
    edges += [(*pair, heights[pair]) for pair in pairs if heights[pair] < level and not divided(*pair)]
    edges += [(int(own[one]), int(own[other]), distance) for one, other, distance in cuts]
    tree = Merging(np.arange(own.max() + 1))
    for child, parent, height in sorted(edges, key=itemgetter(2)):
        if not tree.members(child)[parent]:
            tree.join(child, parent, height)
    return own, tree.joins


def _heights(joins: list[Join]) -> Array:
    """Return the height at which each pair of modes is in one population, float64 [L, L]."""
    heights = np.zeros((len(joins) + 1, len(joins) + 1))
    merging = Merging(np.arange(len(heights)))
    for child, parent, height in joins:
        sides = np.ix_(merging.members(child), merging.members(parent))
        heights[sides] = heights.T[sides] = height
        merging.join(child, parent, height)
    return heights


def _own_modes(parts: Parts, branch: Ints, lines: list[tuple[int, int]]) -> Ints:
    """Return the mode of each part, int64 [P], given its branch, int64 [P]; shoulders come after the modes.

    A part that a shoulder separates from its mode belongs to the mode that it is connected with.
    """
    n_modes = int(parts.modes.max()) + 1
    own = np.where(branch == branch[parts.modes], parts.modes, -1)
    while True:
        new = [
            (one, other) for pair in lines for one, other in (pair, pair[::-1]) if own[one] < 0 <= own[other]
        ]
        if not new:
            break
        for one, other in new:
            own[one] = own[other]
    without = np.flatnonzero(own < 0)
    own[without] = n_modes + np.unique(branch[without], return_inverse=True)[1]
    return own
