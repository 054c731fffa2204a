"""Populations that few draws contain are merged: the majority rule.

A shallow valley of the mean density may be chance: some draws have it and others do not, and so do runs with
different seeds. A population is reported if at least half of the draws contain it.
"""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations import partitions
from dpmix.populations.tree import Tree

LEAST_SUPPORT = 0.5
"""Least share of the draws that contain a population."""


def merge_unsupported(
    tree: Tree, own: Ints, shares: Array, partition: Ints, weights: Array
) -> tuple[Ints, Array]:
    """Merge each population that fewer than half of the draws contain with its neighbour in the tree.

    This is the majority rule of consensus trees (Margush and McMorris 1981, Bull. Math. Biol. 43:239).

    Parameters
    ----------
    tree : Tree
    own : int64 [J]
        Population of each component of the mean density.
    shares : float64 [M, P]
        Memberships of the points.
    partition : int64 [T, M]
        The populations of the points in the draws' own trees.
    weights : float64 [J]

    Returns
    -------
    own, shares
        For the remaining populations, the heaviest first.
    """
    modes = populations_of_modes(tree, own)
    left = list(range(shares.shape[1]))
    while len(left) > 1:
        support = partitions.support(partition, shares[:, left].argmax(axis=1), len(left))
        support = np.nan_to_num(support)  # a population without points has none
        if support.min() >= LEAST_SUPPORT:
            break
        weak = left.pop(int(support.argmin()))
        sides = modes[tree.merges]
        child, parent = sides[((sides == weak).sum(axis=1) == 1).argmax()]
        neighbour = int(child + parent - weak)
        shares[:, neighbour] += shares[:, weak]
        modes[modes == weak] = neighbour
    heaviest = np.argsort(-np.bincount(modes[tree.modes], weights)[left], kind="stable")
    order = np.array(left)[heaviest]
    numbers = np.empty(shares.shape[1], np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[modes[tree.modes]], shares[:, order]


def populations_of_modes(tree: Tree, populations: Ints) -> Ints:
    """Return the population of each mode, int64 [L], given those of the components."""
    modes = np.empty(len(tree.heights), np.int64)
    modes[tree.modes] = populations
    return modes
