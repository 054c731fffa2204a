"""Populations that fewer than half of the draws contain are merged with their neighbours."""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Ints
from dpmix.populations.support import merge_unsupported
from dpmix.populations.tree import Tree

SIZES = np.array([400, 320, 180, 100])
"""Points of four modes; each is one component."""

TREE = Tree(
    np.arange(4),
    np.zeros((4, 1)),
    np.zeros(4),
    np.array([[3, 2], [2, 1], [1, 0]]),
    np.array([3.0, 4.0, 5.0]),
)
POINTS = np.repeat(np.arange(4), SIZES)


def merged(*own_trees: list[int]) -> tuple[Ints, Ints]:
    """Return the populations of the modes and of the points, given those of the modes in each draw."""
    partition = np.array([np.array(own)[POINTS] for own in own_trees])
    shares = np.eye(4)[POINTS]
    own, shares = merge_unsupported(TREE, np.arange(4), shares, partition, SIZES / SIZES.sum())
    np.testing.assert_array_equal(shares.sum(axis=1), 1.0)
    return own, shares.argmax(axis=1)


def test_populations_of_all_draws_stay() -> None:
    own, points = merged([0, 1, 2, 3], [0, 1, 2, 3])
    np.testing.assert_array_equal(own, np.arange(4))
    np.testing.assert_array_equal(points, POINTS)


def test_half_of_the_draws_are_enough() -> None:
    own, _ = merged([0, 1, 2, 3], [0, 1, 2, 2])
    np.testing.assert_array_equal(own, np.arange(4))


def test_a_population_of_few_draws_joins_its_neighbour_in_the_tree() -> None:
    own, points = merged([0, 1, 2, 3], [0, 1, 2, 2], [0, 1, 2, 2])
    np.testing.assert_array_equal(own, [0, 1, 2, 2])
    np.testing.assert_array_equal(points, np.minimum(POINTS, 2))


def test_merging_goes_on_until_all_have_support_and_sizes_give_the_numbers() -> None:
    """In most draws the last three modes are one population: larger than the first when merged."""
    own, points = merged([0, 1, 2, 3], [0, 1, 1, 1], [0, 1, 1, 1])
    np.testing.assert_array_equal(own, [1, 0, 0, 0])
    np.testing.assert_array_equal(points, np.where(POINTS == 0, 1, 0))


def test_a_population_without_points_has_no_support() -> None:
    shares = np.eye(4)[POINTS][POINTS < 3]
    partition = np.array([POINTS[POINTS < 3]] * 2)
    own, shares = merge_unsupported(TREE, np.arange(4), shares, partition, SIZES / SIZES.sum())
    np.testing.assert_array_equal(own, [0, 1, 2, 2])
    assert shares.shape == (900, 3)
