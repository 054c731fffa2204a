"""Layout of the tree of populations: leaves, brackets and leaf labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.result import Gating
from dpmix.populations.tree.tree import Tree
from dpmix.report.labels import label
from dpmix.system.console import percent

AXIS_LABEL = "separation at the merge (standard deviations)"
MOST_LEAVES = 48  # leaves of a drawn tree, unless there are more populations
FAR_BELOW = 0.25  # modes that merge below this share of the cut height are one leaf


@dataclass(frozen=True)
class Leaf:
    """A leaf of the drawn tree.

    Attributes
    ----------
    modes : int
        Number of modes that the leaf represents.
    populations : tuple of int
        Populations of these modes: one, unless there are too many populations to draw each.
    """

    modes: int
    populations: tuple[int, ...]


@dataclass(frozen=True)
class Dendrogram:
    """A tree of modes as drawn: leaf i at position i, merges at their heights.

    Attributes
    ----------
    leaves : tuple of Leaf
    floor : float
        Height of the leaves. Modes that merge below it are one leaf.
    levels : float64 [n, 4]
        Heights along the bracket of each merge: lower end, corner, corner, lower end.
    positions : float64 [n, 4]
        Positions of these four points.
    populations : int64 [n]
        Population of the merge, -1 if it joins several.
    """

    leaves: tuple[Leaf, ...]
    floor: float
    levels: Array
    positions: Array
    populations: Ints


class CutTree(Protocol):
    """A tree and where it is cut: of a gating, or while a person decides."""

    @property
    def tree(self) -> Tree: ...

    @property
    def modes(self) -> Ints: ...

    @property
    def level(self) -> float: ...

    @property
    def n_populations(self) -> int: ...


def dendrogram(gating: CutTree) -> Dendrogram:
    """Lay out the tree; modes that merge far below the cut become one leaf, to fit on a page."""
    tree = gating.tree
    # A merge of infinite height needs a place on the axis.
    levels = np.minimum(tree.levels, 2.0 * np.max(tree.levels, initial=0.0, where=np.isfinite(tree.levels)))
    count = _collapsed(tree.levels, gating.level, gating.n_populations)
    floor = _floor(levels, count, gating.level)

    of_mode = [{population} for population in gating.modes.tolist()]
    into = list(range(len(of_mode)))
    modes = [1] * len(of_mode)
    merges = _current_names(tree.merges)
    for child, parent in merges[:count]:
        modes[parent] += modes[child]
        of_mode[parent] |= of_mode[child]
        into[child] = parent
    roots = [mode for mode, target in enumerate(into) if target == mode]

    order = _leaf_order(roots, merges[count:], {r: min(of_mode[r]) for r in roots})
    leaves = tuple(Leaf(modes[root], tuple(sorted(of_mode[root]))) for root in order)
    place = {root: float(position) for position, root in enumerate(order)}
    height = dict.fromkeys(roots, floor)
    within = {root: set(of_mode[root]) for root in roots}
    drawn, across, populations = [], [], []
    for (child, parent), level in zip(merges[count:], levels[count:], strict=True):
        # Merges below the floor, at height 0 for example, have no place on a logarithmic axis.
        top = max(float(level), floor)
        drawn.append((height[child], top, top, height[parent]))
        across.append((place[child], place[child], place[parent], place[parent]))
        within[parent] |= within[child]
        populations.append(min(within[parent]) if len(within[parent]) == 1 else -1)
        place[parent], height[parent] = (place[child] + place[parent]) / 2.0, top
    return Dendrogram(
        leaves,
        floor,
        np.array(drawn).reshape(-1, 4),
        np.array(across).reshape(-1, 4),
        np.array(populations, np.int64),
    )


def _current_names(merges: Ints) -> list[tuple[int, int]]:
    """Return the merges with each side under its current name: a named mode may have merged before."""
    name = list(range(len(merges) + 1))
    found = []
    for child, parent in merges.tolist():
        while name[child] != child:
            child = name[child]
        while name[parent] != parent:
            parent = name[parent]
        name[child] = parent
        found.append((child, parent))
    return found


def _collapsed(levels: Array, cut: float, n_populations: int) -> int:
    """Return the number of merges, the lowest ones, that are not drawn."""
    modes = len(levels) + 1
    below_cut = int(np.searchsorted(levels, cut))
    far = int(np.searchsorted(levels, FAR_BELOW * cut))
    few_enough = modes - max(MOST_LEAVES, min(n_populations, 4 * MOST_LEAVES))
    # Never merges above the cut, which separate populations, but for trees of more leaves than a page can
    # have.
    return max(min(max(far, few_enough), below_cut), modes - 4 * MOST_LEAVES, 0)


def _floor(levels: Array, count: int, cut: float) -> float:
    """Return a height above 0 at or below all that is drawn, for a logarithmic axis."""
    seen = [value for value in (*levels[count:], cut) if 0.0 < value < np.inf]
    lowest = min(seen, default=1.0)
    return float(max(levels[count - 1], lowest / 10.0) if count and levels[count - 1] > 0.0 else lowest / 2.0)


def _leaf_order(roots: list[int], merges: list[tuple[int, int]], first: dict[int, int]) -> list[int]:
    """Order the roots such that no brackets cross, the side with the largest population first."""
    order = {root: [root] for root in roots}
    first = dict(first)
    for child, parent in merges:
        sides = sorted((parent, child), key=lambda mode: first[mode])
        order[parent] = order[sides[0]] + order[sides[1]]
        first[parent] = min(first[parent], first[child])
        del order[child]
    return [root for side in sorted(order, key=lambda mode: first[mode]) for root in order[side]]


def leaf_labels(gating: Gating, drawn: Dendrogram, size: Array) -> list[str]:
    """Return the label of each leaf: the name of a population at its first leaf, its number at the others.

    Parameters
    ----------
    gating : Gating
    drawn : Dendrogram
        Result of `dendrogram`.
    size : float64 [P]
        Proportions.
    """
    seen: set[int] = set()
    modes: dict[int, int] = {}
    for leaf in drawn.leaves:
        modes[leaf.populations[0]] = modes.get(leaf.populations[0], 0) + leaf.modes
    labels = []
    for leaf in drawn.leaves:
        population = leaf.populations[0]
        if len(leaf.populations) > 1:
            labels.append(f"{len(leaf.populations)} populations")
        elif population in seen:
            labels.append(f"{gating.number(population)}")
        else:
            of = f", {modes[population]} modes" if modes[population] > 1 else ""
            labels.append(f"{label(gating, population, 36)}  ({percent(size[population])}{of})")
        seen.add(population)
    return labels
