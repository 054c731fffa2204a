"""Populations that few draws contain are merged: the majority rule.

A shallow valley of the mean density may be chance: some draws have it and others do not, and so do runs with
different seeds. A population is reported if at least half of the draws contain it: as a branch of their own
tree, whatever its height. So a population does not depend on a height that differs a little between draws.

T draws, K components, P populations, M points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.partitions import SIMILAR, contingency
from dpmix.populations.tree import Tree

LEAST_SUPPORT = 0.5
"""Least share of the draws that contain a population."""


def support(trees: Sequence[Tree], labels: Ints, populations: Ints, n_populations: int) -> Array:
    """Return the share of the draws that contain each population, float64 [P].

    A draw contains a population if a branch of its tree shares more than half of the points of the two
    (Jaccard similarity above 1/2).

    Parameters
    ----------
    trees : sequence of Tree
        The tree of each of T draws.
    labels : int [T, M]
        Component of each point in each draw.
    populations : int [M]
        Population of each point, 0..P-1, whose support is wanted.
    n_populations : int
        P. The support of a population without points is NaN.
    """
    sizes = np.bincount(populations, minlength=n_populations)
    there = np.zeros(n_populations)
    for tree, own in zip(trees, labels, strict=True):
        counts = np.zeros((n_populations, len(tree.heights)), np.int64)
        found = contingency(populations, tree.modes[own], n_populations)
        counts[:, : found.shape[1]] = found
        there += _is_branch(tree, counts, sizes)
    return np.where(sizes > 0, there / len(trees), np.nan)


def _is_branch(tree: Tree, counts: Ints, sizes: Ints) -> Array:
    """Return whether each population is a branch, bool [P], given its points in each mode, int [P, L]."""
    first = int(np.searchsorted(tree.levels, 0.0, side="right"))  # merges before have no valley
    into = np.arange(len(tree.heights))
    similar = np.zeros(len(sizes), bool)
    for at in range(len(tree.merges) + 1):
        if at >= first:
            branches = np.flatnonzero(into == np.arange(len(into))) if at == first else [parent]
            inside = counts[:, branches]
            either = sizes[:, None] + inside.sum(axis=0) - inside
            similar |= (inside > SIMILAR * either).any(axis=1)
        if at < len(tree.merges):
            child, parent = tree.merges[at]
            counts[:, parent] += counts[:, child]
            into[child] = parent
    return similar


def merge_unsupported(
    tree: Tree, own: Ints, shares: Array, trees: Sequence[Tree], labels: Ints, weights: Array
) -> tuple[Ints, Array]:
    """Merge each population that fewer than half of the draws contain with its neighbour in the tree.

    This is the majority rule of consensus trees (Margush and McMorris 1981, Bull. Math. Biol. 43:239).

    Parameters
    ----------
    tree : Tree
        Of the mean density.
    own : int64 [J]
        Population of each component of the mean density.
    shares : float64 [M, P]
        Memberships of the points.
    trees, labels
        As in `support`.
    weights : float64 [J]

    Returns
    -------
    own, shares
        For the remaining populations, the heaviest first.
    """
    modes = populations_of_modes(tree, own)
    left = list(range(shares.shape[1]))
    while len(left) > 1:
        supported = support(trees, labels, shares[:, left].argmax(axis=1), len(left))
        supported = np.nan_to_num(supported)  # a population without points has none
        if supported.min() >= LEAST_SUPPORT:
            break
        weak = left.pop(int(supported.argmin()))
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
