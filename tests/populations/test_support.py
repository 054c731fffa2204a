"""Populations that too few draws contain are merged with those they belong to in the draws."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.model.mixture import Ints
from dpmix.populations.tree.support import merge_unsupported, shared_populations, support
from dpmix.populations.tree.tree import LEVEL, Tree

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


def own_tree(*merges: tuple[int, int], at: float = 3.0) -> Tree:
    """Return a draw's tree of four modes with these merges first, at level 0 unless given."""
    rest = [merge for merge in ((3, 2), (2, 1), (1, 0)) if merge[0] not in [child for child, _ in merges]]
    levels = np.array([0.0] * len(merges) + [at] * len(rest))
    return Tree(np.arange(4), np.zeros((4, 1)), np.zeros(4), np.array([*merges, *rest]), levels)


ALL = own_tree()
WITHOUT_LAST = own_tree((3, 2))
LAST_IN_FIRST = own_tree((3, 0))
FIRST_ALONE = own_tree((3, 1), (2, 1))


def merged(*trees: Tree, n_events: int = 1000) -> tuple[Ints, Ints]:
    """Return the populations of the modes and of the points, given the trees of the draws."""
    shares = np.eye(4)[POINTS]
    labels = np.array([POINTS] * len(trees))
    partitions = np.array([tree.cut(LEVEL)[POINTS] for tree in trees])
    own, shares = merge_unsupported(
        TREE, np.arange(4), shares, trees, labels, partitions, SIZES / SIZES.sum(), n_events
    )
    np.testing.assert_array_equal(shares.sum(axis=1), 1.0)
    return own, shares.argmax(axis=1)


def test_support_counts_the_draws_with_such_a_branch() -> None:
    """Modes have 400, 320, 180 and 100 points."""
    asked = np.where(POINTS == 3, 2, POINTS)  # the last two are one
    draws = [ALL, WITHOUT_LAST, FIRST_ALONE, own_tree(at=1e-3)]
    found = support(draws, np.array([POINTS] * 4), asked, 4)
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.75, np.nan])  # 280 of 600 are not half
    found = support(draws, np.array([POINTS] * 4), POINTS, 4)
    np.testing.assert_array_equal(found, [1.0, 1.0, 0.75, 0.5])  # 180 of 280 are more than half


def test_a_branch_that_chance_explains_does_not_count() -> None:
    ripple = own_tree((3, 2))
    valley = Tree(ripple.modes, ripple.points, ripple.heights, ripple.merges, np.full(3, 1e-9))
    found = [support([tree], POINTS[None], POINTS, 4)[3] for tree in (ripple, valley)]
    assert found == [0.0, 1.0]


def test_populations_of_all_draws_stay() -> None:
    own, points = merged(ALL, ALL)
    np.testing.assert_array_equal(own, np.arange(4))
    np.testing.assert_array_equal(points, POINTS)


def test_a_majority_of_the_draws_is_enough() -> None:
    own, _ = merged(ALL, ALL, WITHOUT_LAST)
    np.testing.assert_array_equal(own, np.arange(4))


def test_a_population_of_half_the_draws_joins_the_one_it_belongs_to_in_the_others() -> None:
    """In the tree of the mean density, the last mode is nearest to the third."""
    own, points = merged(ALL, WITHOUT_LAST)
    np.testing.assert_array_equal(own, [0, 1, 2, 2])
    np.testing.assert_array_equal(points, np.minimum(POINTS, 2))
    own, points = merged(ALL, LAST_IN_FIRST)
    np.testing.assert_array_equal(own, [0, 1, 2, 0])
    np.testing.assert_array_equal(points, np.where(POINTS == 3, 0, POINTS))


def test_large_populations_share_no_more_than_small_ones() -> None:
    """The last population is once with the first, larger one, and once with the third."""
    partitions = np.array([tree.cut(LEVEL)[POINTS] for tree in (ALL, WITHOUT_LAST, LAST_IN_FIRST)])
    np.testing.assert_allclose(shared_populations(POINTS, 3, partitions, 4), [100.0, 0.0, 100.0, 0.0])


@pytest.mark.parametrize(
    ("n_with", "n_draws", "n_events", "stays"),
    [(3, 5, 390, False), (3, 5, 400, True), (4, 5, 390, True), (1, 2, 400, False)],
)
def test_a_population_of_few_events_needs_more_draws(
    n_with: int, n_draws: int, n_events: int, stays: bool
) -> None:
    """The last mode has a tenth of the events: 39 or 40."""
    own, _ = merged(*[ALL] * n_with, *[WITHOUT_LAST] * (n_draws - n_with), n_events=n_events)
    assert (own.max() == 3) == stays


def test_merging_goes_on_until_all_have_support_and_sizes_give_the_numbers() -> None:
    """In most draws the last three modes are one population: larger than the first when merged."""
    own, points = merged(ALL, FIRST_ALONE, FIRST_ALONE)
    np.testing.assert_array_equal(own, [1, 0, 0, 0])
    np.testing.assert_array_equal(points, np.where(POINTS == 0, 1, 0))


def test_a_population_without_points_has_no_support() -> None:
    shares = np.eye(4)[POINTS][POINTS < 3]
    labels = np.array([POINTS[POINTS < 3]] * 2)
    own, shares = merge_unsupported(
        TREE, np.arange(4), shares, [ALL, ALL], labels, labels, SIZES / SIZES.sum(), 1000
    )
    np.testing.assert_array_equal(own, [0, 1, 2, 2])
    assert shares.shape == (900, 3)
