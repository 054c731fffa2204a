"""Populations that few draws contain are merged: the majority rule.

A shallow valley of the mean density may be chance: some draws have it and others do not, and so do runs with
different seeds. A population is reported if most draws contain it: as a branch of their own tree, whatever
its height. So a population does not depend on a height that differs a little between draws. A population
without a majority joins the one that contains its points in most other draws.

T draws, K components, P populations, M points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints
from dpmix.populations.tree.partitions import SIMILAR, contingency
from dpmix.populations.tree.tree import Tree

MAJORITY = 0.5
"""A population is kept if a larger share of the draws contains it."""

FEW_EVENTS = 40
CLEAR_MAJORITY = 0.75
"""The share for populations of fewer events: half, and two standard errors of a share of 16 draws.

A population of so few events may be the edge of two others, or a part of a small one. If about half of the
posterior has it, the majority alone keeps it with some seeds and not with others. (Draws of a chain resemble
each other: 50 of them tell less than 50 independent ones.)
"""


def needed(n_events: Array) -> Array:
    """Return the share of the draws that must contain a population, given its events, float64 [P]."""
    return np.where(n_events < FEW_EVENTS, CLEAR_MAJORITY, MAJORITY)


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


def _is_branch(tree: Tree, counts: Ints, sizes: Ints) -> npt.NDArray[np.bool_]:
    """Return whether each population is a branch, bool [P], given its points in each mode, int [P, L]."""
    n_ripples = int(np.searchsorted(tree.levels, 0.0, side="right"))  # merges of modes without a valley
    for child, parent in tree.merges[:n_ripples]:
        counts[:, parent] += counts[:, child]
    # Modes that merge at height 0 have no valley between them: a population that equals only a part of them
    # has no support from this draw.
    branches = np.setdiff1d(np.arange(len(tree.heights)), tree.merges[:n_ripples, 0])
    similar = _matches(counts[:, branches], sizes)
    for child, parent in tree.merges[n_ripples:]:
        counts[:, parent] += counts[:, child]
        similar |= _matches(counts[:, [parent]], sizes)
    return similar


def _matches(inside: Ints, sizes: Ints) -> npt.NDArray[np.bool_]:
    """Return whether each population matches a branch, bool [P], given the points they share, int [P, B].

    Every point belongs to a population, so the points of a branch are the sum of its column.
    """
    either = sizes[:, None] + inside.sum(axis=0) - inside
    matches: npt.NDArray[np.bool_] = (inside > SIMILAR * either).any(axis=1)
    return matches


def merge_unsupported(
    tree: Tree,
    own: Ints,
    shares: Array,
    trees: Sequence[Tree],
    labels: Ints,
    partitions: Ints,
    weights: Array,
    n_events: int,
) -> tuple[Ints, Array]:
    """Merge each population that too few draws contain (`needed`) with the one it belongs to in the draws.

    This is the majority rule of consensus trees (Margush and McMorris 1981, Bull. Math. Biol. 43:239), for
    populations of few events with a larger share (McMorris, Meronk and Neumann 1983, A view of some consensus
    methods for trees, in Numerical Taxonomy, Springer, 122).

    Parameters
    ----------
    tree : Tree
        Tree of the mean density.
    own : int64 [J]
        Population of each component of the mean density.
    shares : float64 [M, P]
        Memberships of the points; changed in place.
    trees, labels
        As in `support`.
    partitions : int64 [T, M]
        Population of each point in each draw.
    weights : float64 [J]
    n_events : int
        Number of events of the run.

    Returns
    -------
    own, shares
        For the remaining populations, the heaviest first.
    """
    modes = populations_of_modes(tree, own)
    left = list(range(shares.shape[1]))
    # One population at a time, the weakest first: with its points, the neighbour may gain or lose its own
    # support.
    while len(left) > 1:
        populations = shares[:, left].argmax(axis=1)
        supported = support(trees, labels, populations, len(left))
        masses: Array = np.bincount(modes[tree.modes], weights, minlength=shares.shape[1])[left].astype(float)
        missing = needed(n_events * masses) - np.nan_to_num(supported)  # one without points has no support
        if missing.max() < 0.0:
            break
        at = int(missing.argmax())
        together = shared_populations(populations, at, partitions, len(left))
        weak = left[at]
        # A population without points shares them with none; then the tree of the mean density decides.
        neighbour = left[int(together.argmax())] if together.any() else _neighbour(tree, modes, weak)
        left.remove(weak)
        shares[:, neighbour] += shares[:, weak]
        modes[modes == weak] = neighbour
    heaviest = np.argsort(-np.bincount(modes[tree.modes], weights)[left], kind="stable")
    order = np.array(left)[heaviest]
    numbers = np.empty(shares.shape[1], np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[modes[tree.modes]], shares[:, order]


def shared_populations(populations: Ints, one: int, partitions: Ints, n_populations: int) -> Array:
    """Return how often a point of each population shares a draw's population with the points of one of them.

    The neighbour in the tree of the mean density may be another: a small population, which would no longer
    have support with the points of `one` in it.

    Parameters
    ----------
    populations : int [M]
        Population of each point, 0..P-1.
    one : int
        The population that is compared with the others.
    partitions : int [T, M]
        Population of each point in each draw.
    n_populations : int
        P.

    Returns
    -------
    float64 [P]
        Points of `one`, summed over the draws; 0 for `one` itself.
    """
    sizes = np.maximum(np.bincount(populations, minlength=n_populations), 1)
    together = np.zeros(n_populations)
    for partition in partitions:
        counts = contingency(populations, partition, n_populations)
        together += counts @ counts[one] / sizes
    together[one] = 0.0
    return together


def _neighbour(tree: Tree, modes: Ints, one: int) -> int:
    """Return the population that a population merges with first in the tree."""
    sides = modes[tree.merges]
    # Merges with both sides in the population are inside it; the first with one side is where it meets
    # another.
    child, parent = sides[((sides == one).sum(axis=1) == 1).argmax()]
    return int(child + parent - one)


def populations_of_modes(tree: Tree, populations: Ints) -> Ints:
    """Return the population of each mode, int64 [L], given the population of each component."""
    modes = np.empty(len(tree.heights), np.int64)
    modes[tree.modes] = populations
    return modes
