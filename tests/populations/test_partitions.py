"""Similarity of partitions of the same events."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import adjusted_rand_score

from dpmix.populations.tree.partitions import agreement, contingency, rand_index

Ints = npt.NDArray[np.int64]


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def noisy(truth: Ints, share: float, seed: int) -> Ints:
    """Return the true partition with a share of the events moved, and renumbered."""
    rng = random(seed)
    moved = np.where(rng.random(len(truth)) < share, rng.integers(0, truth.max() + 1, len(truth)), truth)
    return rng.permutation(int(truth.max()) + 3)[moved]


@pytest.fixture
def draws() -> Ints:
    """Partitions into few and many populations, similar and different, with unused numbers."""
    truth = random().choice(6, 500, p=[0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    near = [noisy(truth, share, k) for k, share in enumerate((0.0, 0.02, 0.1, 0.5))]
    other = [random(9).integers(0, n, 500) for n in (1, 2, 40, 500)]
    return np.array([*near, *other, np.arange(500), truth // 2])


def test_rand_indices_are_those_of_scikit_learn(draws: Ints) -> None:
    found = [[rand_index(one, other) for other in draws] for one in draws]
    wanted = [[adjusted_rand_score(one, other) for other in draws] for one in draws]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_the_rand_index_ignores_numbers_and_order_of_events(draws: Ints) -> None:
    found = [rand_index(draws[0], other) for other in draws]
    assert min(found) < 0.1 < 0.8 < sorted(found)[-2]  # the draws cover the range
    other_numbers = [random(k).permutation(600)[other] for k, other in enumerate(draws)]
    assert [rand_index(draws[0], other) for other in other_numbers] == found
    order = random().permutation(500)
    assert [rand_index(draws[0][order], other[order]) for other in draws] == found


def test_rand_indices_of_many_events_do_not_overflow() -> None:
    """A million events have 5e11 pairs; the product of two such numbers exceeds int64."""
    truth = random().integers(0, 3, 1_000_000)
    other = noisy(truth, 0.1, 2)
    assert rand_index(truth, other) == pytest.approx(adjusted_rand_score(truth, other), rel=1e-12)


@pytest.mark.parametrize("partition", [[0, 0, 0], [0, 1, 2], [0]])
def test_trivial_partitions_agree(partition: list[int]) -> None:
    """The formula is 0 / 0 for one population, single events and one event."""
    assert rand_index(partition, partition) == 1.0


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


def test_a_contingency_table_has_the_minimum_shape() -> None:
    np.testing.assert_array_equal(contingency([0, 0, 2], [1, 1, 0]), [[0, 2], [0, 0], [1, 0]])
    assert contingency([0], [0], 3, 4).shape == (3, 4)


def test_no_array_grows_with_the_square_of_events() -> None:
    draws = random().integers(0, 100, (10, 20_000))
    tracemalloc.start()
    agreement(draws, np.repeat([0, 1], 5))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * draws.nbytes
