"""Distances between partitions of the same events, the central draw, agreement and support."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import entropy
from sklearn.metrics import adjusted_rand_score, mutual_info_score

from dpmix.partitions import agreement, contingency, information_distances, nearest, rand_indices, support

Ints = npt.NDArray[np.int64]


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def noisy(truth: Ints, share: float, seed: int) -> Ints:
    """The truth with a share of the events put elsewhere, under other numbers."""
    rng = random(seed)
    moved = np.where(rng.random(len(truth)) < share, rng.integers(0, truth.max() + 1, len(truth)), truth)
    return rng.permutation(int(truth.max()) + 3)[moved]


@pytest.fixture
def draws() -> Ints:
    """Draws of few and many populations, near one another and not, with numbers that do not occur."""
    truth = random().choice(6, 500, p=[0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    near = [noisy(truth, share, k) for k, share in enumerate((0.0, 0.02, 0.1, 0.5))]
    other = [random(9).integers(0, n, 500) for n in (1, 2, 40, 500)]
    return np.array([*near, *other, np.arange(500), truth // 2])


def test_distances_are_twice_the_joint_entropy_less_those_of_each(draws: Ints) -> None:
    found = information_distances(draws)
    assert found.dtype == np.float64
    for s, one in enumerate(draws):
        for t, other in enumerate(draws):
            each = [entropy(np.unique(x, return_counts=True)[1]) for x in (one, other)]
            assert found[s, t] == pytest.approx(sum(each) - 2 * mutual_info_score(one, other), abs=1e-12)
    np.testing.assert_array_equal(found, found.T)
    assert (np.diag(found) == 0).all()


def test_distances_are_a_metric_that_does_not_see_numbers(draws: Ints) -> None:
    found = information_distances(draws)
    assert (found[:, None, :] <= found[:, :, None] + found[None] + 1e-12).all()
    other_numbers = np.array([random(k).permutation(600)[one] for k, one in enumerate(draws)])
    np.testing.assert_allclose(information_distances(other_numbers), found, atol=1e-12)
    order = random().permutation(500)
    np.testing.assert_allclose(information_distances(draws[:, order]), found, atol=1e-12)


def test_rand_indices_are_those_of_scikit_learn(draws: Ints) -> None:
    found = rand_indices(draws)
    wanted = [[adjusted_rand_score(one, other) for other in draws] for one in draws]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("partition", [[0, 0, 0], [0, 1, 2], [0]])
def test_partitions_with_nothing_to_disagree_on_agree(partition: list[int]) -> None:
    """One population, single events and one event have an index of 0 / 0."""
    np.testing.assert_array_equal(rand_indices([partition, partition]), np.ones((2, 2)))
    np.testing.assert_array_equal(information_distances([partition, partition]), np.zeros((2, 2)))


def test_the_nearest_draw_is_the_one_with_the_fewest_strays() -> None:
    truth = random().integers(0, 5, 2000)
    draws = np.array([noisy(truth, share, k) for k, share in enumerate((0.3, 0.2, 0.02, 0.25, 0.3))])
    assert nearest(draws) == 2
    assert nearest(draws[:2]) == 0  # each is as far from the other: the first
    mean = information_distances(draws).mean(axis=1)
    assert nearest(draws) == mean.argmin() != mean.argmax()


def test_agreement_is_the_mean_of_the_pairs_within_and_between_chains() -> None:
    one, other = random().integers(0, 4, (2, 800))
    draws = np.array([noisy(truth, 0.05, k) for k, truth in enumerate((one, other, one, one, other))])
    chains = [0, 1, 0, 0, 1]
    pairs = np.array([[adjusted_rand_score(x, y) for y in draws] for x in draws])
    found = agreement(draws, chains)
    assert found[0, 0] == pytest.approx(np.mean([pairs[0, 2], pairs[0, 3], pairs[2, 3]]))
    assert found[1, 1] == pytest.approx(pairs[1, 4])
    assert found[0, 1] == found[1, 0] == pytest.approx(pairs[np.ix_([0, 2, 3], [1, 4])].mean())
    assert found[0, 0] > 0.8
    assert found[0, 1] < 0.05


def test_a_chain_of_one_draw_has_no_agreement_with_itself() -> None:
    draws = random().integers(0, 4, (3, 100))
    found = agreement(draws, [0, 1, 1])
    assert np.isnan(found[0, 0])
    assert np.isfinite(found[[0, 1, 1], [1, 0, 1]]).all()


def test_support_counts_the_draws_that_have_a_population_again() -> None:
    reference = np.repeat([0, 1, 2, 4], [40, 30, 20, 10])
    split = reference.copy()
    split[:20] = 7  # population 0 halved: 20 of 40 in common is not more than half
    mostly = reference.copy()
    mostly[:15] = 7  # 25 of 40 are
    merged = np.where(reference == 2, 1, reference)  # 30 of 50 are population 1 again, 20 of 50 are not 2
    draws = np.array([mostly, split, reference, merged])
    np.testing.assert_array_equal(support(draws, 2, 6), [0.75, 1.0, 0.75, np.nan, 1.0, np.nan])


def test_support_by_the_definition(draws: Ints) -> None:
    found = support(draws, 0, 9)
    for p in range(9):
        mine = draws[0] == p
        jaccard = [
            max((mine & (one == q)).sum() / (mine | (one == q)).sum() for q in np.unique(one))
            for one in draws
        ]
        assert (
            found[p] == pytest.approx(np.mean(np.array(jaccard) > 0.5)) if mine.any() else np.isnan(found[p])
        )
    assert np.nanmin(found) >= 1 / len(draws)
    assert np.nanmin(found) < 1


def test_a_table_of_events_is_at_least_as_large_as_asked() -> None:
    np.testing.assert_array_equal(contingency([0, 0, 2], [1, 1, 0]), [[0, 2], [0, 0], [1, 0]])
    assert contingency([0], [0], 3, 4).shape == (3, 4)


def test_no_array_grows_with_the_square_of_events() -> None:
    draws = random().integers(0, 100, (10, 20_000))
    tracemalloc.start()
    nearest(draws)
    support(draws, 0, 100)
    agreement(draws, np.repeat([0, 1], 5))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * draws.nbytes


@pytest.mark.parametrize("bad", [[0, 1, 1], [[0.5, 1.0]], np.zeros((0, 5), int)])
def test_what_is_no_set_of_partitions(bad: npt.ArrayLike) -> None:
    with pytest.raises(ValueError, match=r"need int \[draws, events\]"):
        information_distances(bad)


def test_a_population_beyond_those_of_the_reference() -> None:
    with pytest.raises(ValueError, match="population 3 of 3"):
        support([[0, 3], [0, 1]], 0, 3)
