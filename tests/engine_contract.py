"""What every engine must do, tested against the float64 reference: subclass `EngineContract` for each engine.

Not collected by itself. A label may differ from the reference's only where its uniform lies within float32's
rounding of a step of the cumulative sum.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest
from reference import ReferenceEngine
from scipy import stats as st

from dpmix.engines.base import Key
from dpmix.model import LOG_2PI, Array, Mixture, Stats

Floats = npt.NDArray[np.float32]

# (N, D, K): every way through whitening, stages of pruning, tiles and moments, and ragged ends of each.
SHAPES = [
    (1, 1, 1),
    (1001, 1, 2),
    (1000, 2, 31),
    (15, 3, 2),
    (999, 4, 16),
    (1600, 5, 32),
    (2049, 8, 33),
    (700, 10, 40),
    (3000, 14, 256),
    (333, 15, 2),
    (1500, 16, 33),
    (1201, 17, 32),
    (800, 24, 20),
    (1000, 31, 50),
    (600, 33, 31),
    (1000, 47, 17),
    (500, 64, 33),
    (2000, 2, 1000),
]


class AnyEngine(Protocol):
    def draw_labels(self, mixture: Mixture, key: Key) -> Stats: ...
    def expect_labels(self, mixture: Mixture) -> Stats: ...
    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]: ...
    def close(self) -> None: ...


def mixture_of(weights: Array, means: Array, covariances: Array) -> Mixture:
    whiteners = np.linalg.inv(np.linalg.cholesky(covariances))
    log_norms = np.log(np.einsum("kii->ki", whiteners)).sum(axis=1) - 0.5 * means.shape[1] * LOG_2PI
    with np.errstate(divide="ignore"):
        return Mixture(np.log(weights), means, whiteners, log_norms)


def problem(
    n: int, dim: int, n_components: int, *, spread: float = 1.0, seed: int = 0
) -> tuple[Floats, Mixture]:
    """Events drawn from a random mixture, and that mixture; the smaller the spread, the more it overlaps."""
    rng = np.random.default_rng([seed, n, dim, n_components])
    means = spread * rng.normal(size=(n_components, dim))
    factors = rng.normal(size=(n_components, dim, dim + 6))
    covariances = 0.3 * factors @ factors.transpose(0, 2, 1) / (dim + 6)
    weights = rng.dirichlet(np.full(n_components, 2.0))
    labels = rng.choice(n_components, n, p=weights)
    noise = np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[labels], rng.normal(size=(n, dim)))
    return (means[labels] + noise).astype(np.float32), mixture_of(weights, means, covariances)


def problem_with_far_events(dim: int, n_components: int, distance: float) -> tuple[Floats, Mixture]:
    """600 events, of which every 60th is so far from all means."""
    events, mixture = problem(600, dim, n_components)
    far = np.random.default_rng(0).normal(size=(10, dim))
    events[::60] = far * distance / np.linalg.norm(far, axis=1, keepdims=True)
    return events, mixture


def assert_same_stats(one: Stats, other: Stats) -> None:
    """Bit for bit."""
    assert one.log_likelihood == other.log_likelihood
    for name in ("counts", "sums", "scatters", "centres"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def assert_near_stats(got: Stats, want: Stats, n_events: int) -> None:
    """Within float32's rounding: relative to the spread of each component's events."""
    np.testing.assert_array_equal(got.centres, want.centres)
    np.testing.assert_allclose(got.counts, want.counts, rtol=1e-5, atol=1e-5 * np.sqrt(n_events))
    np.testing.assert_array_equal(got.scatters, got.scatters.transpose(0, 2, 1))
    roots = np.sqrt(np.einsum("kii->ki", want.scatters)) + 1e-3
    assert (np.abs(got.sums - want.sums) / (roots * np.sqrt(want.counts + 1.0)[:, None])).max() < 2e-5
    assert (np.abs(got.scatters - want.scatters) / (roots[:, :, None] * roots[:, None, :])).max() < 2e-5


class EngineContract:
    """Subclass with `make`."""

    def make(self, events: Floats, **options: object) -> AnyEngine:
        """The engine; options may be weight_floor and first_event, and pruning in `PruningContract`."""
        raise NotImplementedError

    @pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
    def test_draw_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        events, mixture = problem(n, dim, n_components)
        reference = ReferenceEngine(events)
        engine = self.make(events)
        for iteration in range(3):  # dense first, then in the order of the last labels
            key = Key(seed=5 + (3 << 40), chain=2, iteration=iteration)
            got = engine.draw_labels(mixture, key)
            want = reference.draw_labels(mixture, key)
            labels, expected = engine.labels(2), reference.labels(2)
            assert labels.dtype == np.int32
            moved = labels != expected
            assert moved.sum() <= 0.002 * n + 1
            assert (reference.step_distances(mixture, key)[moved] < 1e-4).all()
            np.testing.assert_array_equal(got.counts, np.bincount(labels, minlength=n_components))
            scale = 1.0 + np.abs(want.log_likelihood)
            assert abs(got.log_likelihood - want.log_likelihood) < 2e-7 * scale
            if not moved.any():
                assert_near_stats(got, want, n)

    @pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
    def test_expectation_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        events, mixture = problem(n, dim, n_components)
        want = ReferenceEngine(events)
        expected = want.expect_labels(mixture)
        engine = self.make(events)
        for _ in range(3):
            got = engine.expect_labels(mixture)
            assert_near_stats(got, expected, n)
            assert abs(got.log_likelihood - expected.log_likelihood) < 2e-7 * (
                1.0 + abs(expected.log_likelihood)
            )
            assert (engine.labels() != want.labels()).mean() < 0.002

    def test_a_draw_does_not_depend_on_what_came_before(self) -> None:
        events, mixture = problem(5000, 6, 40)
        _, other = problem(5000, 6, 40, seed=1)
        key = Key(seed=9, chain=0, iteration=4)
        used, fresh = self.make(events), self.make(events)
        used.draw_labels(other, Key(9, 0, 0))
        used.draw_labels(mixture, Key(9, 0, 1))
        used.expect_labels(other)
        used.draw_labels(mixture, Key(9, 3, 1))
        assert_same_stats(used.draw_labels(mixture, key), fresh.draw_labels(mixture, key))
        np.testing.assert_array_equal(used.labels(), fresh.labels())

    def test_an_expectation_is_a_function_of_the_two_latest_mixtures(self) -> None:
        events, mixture = problem(5000, 6, 40)
        _, other = problem(5000, 6, 40, seed=1)
        used, resumed = self.make(events), self.make(events)
        for now in (mixture, mixture, other):
            used.expect_labels(now)
        resumed.expect_labels(other)
        assert_same_stats(used.expect_labels(mixture), resumed.expect_labels(mixture))
        np.testing.assert_array_equal(used.labels(), resumed.labels())

    def test_the_number_of_components_may_change(self) -> None:
        events, many = problem(3000, 14, 200, spread=3.0)
        few = Mixture(many.log_weights[:20], many.means[:20], many.whiteners[:20], many.log_norms[:20])
        used = self.make(events)
        for iteration, now in enumerate([many, many, many, few, few, many]):
            key = Key(1, 0, iteration)
            assert_same_stats(used.draw_labels(now, key), self.make(events).draw_labels(now, key))
        for now in (few, many):
            used.expect_labels(now)

    def test_chains_keep_their_own_labels(self) -> None:
        events, mixture = problem(2000, 3, 10, spread=0.3)
        engine, alone = self.make(events), self.make(events)
        engine.draw_labels(mixture, Key(1, 0, 0))
        first = engine.labels(0)
        engine.draw_labels(mixture, Key(1, 5, 0))
        np.testing.assert_array_equal(engine.labels(0), first)
        assert (engine.labels(5) != first).any()
        alone.draw_labels(mixture, Key(1, 5, 0))
        np.testing.assert_array_equal(engine.labels(5), alone.labels(5))

    @pytest.mark.parametrize("first_event", [1, 65_536, 2**32 - 500])
    def test_labels_go_with_the_number_of_the_event(self, first_event: int) -> None:
        events, mixture = problem(1000, 3, 10, spread=0.2)
        key = Key(seed=2**63 + 11, chain=2**32 - 1, iteration=2**32 - 1)
        reference = ReferenceEngine(events, first_event=first_event)
        engine = self.make(events, first_event=first_event)
        engine.draw_labels(mixture, key)
        reference.draw_labels(mixture, key)
        moved = engine.labels(key.chain) != reference.labels(key.chain)
        assert (reference.step_distances(mixture, key)[moved] < 1e-4).all()

    def test_weight_floor_is_obeyed(self) -> None:
        """Two components 3 nats apart at every event: with a floor of 2 nats the lesser is never drawn."""
        events = np.zeros((4000, 1), np.float32)
        mixture = mixture_of(
            np.array([1.0, np.exp(3.0)]) / (1 + np.exp(3.0)), np.zeros((2, 1)), np.ones((2, 1, 1))
        )
        low, high = self.make(events, weight_floor=2.0), self.make(events, weight_floor=4.0)
        assert low.draw_labels(mixture, Key(1, 0, 0)).counts[0] == 0
        drawn = high.draw_labels(mixture, Key(1, 0, 0)).counts[0]
        assert 1e-6 < st.binom.cdf(drawn, 4000, 1 / (1 + np.exp(3.0))) < 1 - 1e-6

    @pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (14, 64), (40, 20)])
    @pytest.mark.parametrize("distance", [1e3, 1e6, 1e15])
    def test_far_events_are_finite_and_right(self, dim: int, n_components: int, distance: float) -> None:
        events, mixture = problem_with_far_events(dim, n_components, distance)
        engine, reference = self.make(events), ReferenceEngine(events)
        for iteration in range(3):
            key = Key(1, 0, iteration)
            got, want = engine.draw_labels(mixture, key), reference.draw_labels(mixture, key)
            np.testing.assert_array_equal(engine.labels()[::60], reference.labels()[::60])
            assert np.isfinite(got.scatters).all()
            assert abs(got.log_likelihood / want.log_likelihood - 1.0) < 1e-9
        for _ in range(2):
            got, want = engine.expect_labels(mixture), reference.expect_labels(mixture)
            assert abs(got.log_likelihood / want.log_likelihood - 1.0) < 1e-9
            np.testing.assert_allclose(got.counts, want.counts, atol=1e-3)
            np.testing.assert_array_equal(engine.labels()[::60], reference.labels()[::60])

    def test_empty_components_get_nothing(self) -> None:
        events, mixture = problem(3000, 5, 40)
        log_weights = mixture.log_weights.copy()
        log_weights[::3] = -np.inf
        emptied = Mixture(log_weights, mixture.means, mixture.whiteners, mixture.log_norms)
        engine, reference = self.make(events), ReferenceEngine(events)
        engine.draw_labels(mixture, Key(1, 0, 0))  # the last labels are of components that now are empty
        for iteration in range(1, 4):
            got = engine.draw_labels(emptied, Key(1, 0, iteration))
            want = reference.draw_labels(emptied, Key(1, 0, iteration))
            assert (got.counts[::3] == 0).all()
            assert got.counts.sum() == 3000
            assert abs(got.log_likelihood / want.log_likelihood - 1.0) < 2e-7
        soft = engine.expect_labels(emptied)
        assert (soft.counts[::3] == 0).all()
        assert_near_stats(soft, reference.expect_labels(emptied), 3000)

    @pytest.mark.parametrize("dim", [2, 14, 33])
    def test_labels_have_the_right_frequencies(self, dim: int) -> None:
        """Chi-square: ambiguous events, each drawn 4,000 times, against the float64 probabilities."""
        rng = np.random.default_rng(dim)
        means = rng.normal(size=(24, dim)) / np.sqrt(dim)
        covariances = np.eye(dim) * rng.uniform(0.9, 1.1, 24)[:, None, None]
        mixture = mixture_of(rng.dirichlet(np.full(24, 2.0)), means, covariances)
        candidates = rng.normal(size=(500, dim)).astype(np.float32)
        weights, _ = ReferenceEngine(candidates).weights(mixture)
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        entropies = -(probabilities * np.log(np.maximum(probabilities, 1e-300))).sum(axis=1)
        ambiguous = np.argsort(-entropies)[:20]
        engine = self.make(np.repeat(candidates[ambiguous], 4000, axis=0))
        engine.draw_labels(mixture, Key(11, 0, 0))
        engine.draw_labels(mixture, Key(11, 0, 1))
        p_values = []
        for event, labels in zip(ambiguous, engine.labels().reshape(20, 4000), strict=True):
            expected = 4000 * probabilities[event]
            rare = expected < 10.0
            observed = np.bincount(labels, minlength=24).astype(float)
            pooled = [np.append(counts[~rare], counts[rare].sum()) for counts in (observed, expected)]
            if pooled[1][-1] < 10.0:
                pooled = [np.append(counts[:-2], counts[-2:].sum()) for counts in pooled]
            p_values.append(st.chisquare(*pooled).pvalue)
        assert min(p_values) > 1e-5
        assert st.kstest(p_values, "uniform").pvalue > 1e-4

    def test_events_are_left_as_they_are(self) -> None:
        events, mixture = problem(1000, 4, 20)
        events.flags.writeable = False
        copy = events.copy()
        engine = self.make(events)
        engine.draw_labels(mixture, Key(1, 0, 0))
        engine.expect_labels(mixture)
        np.testing.assert_array_equal(events, copy)

    def test_there_are_no_labels_before_the_first_pass(self) -> None:
        engine = self.make(np.zeros((10, 2), np.float32))
        with pytest.raises(ValueError, match="no labels"):
            engine.labels(0)


class PruningContract(EngineContract):
    """Of an engine that has an option ``pruning``, as well."""

    @pytest.mark.parametrize("dim", [1, 5, 8, 14, 20, 40])
    @pytest.mark.parametrize("spread", [0.3, 3.0])
    def test_pruned_and_dense_passes_are_the_same_bits(self, dim: int, spread: float) -> None:
        events, mixture = problem(3000, dim, 70, spread=spread)
        _, other = problem(3000, dim, 70, spread=spread, seed=1)
        pruned, dense = self.make(events, pruning=True), self.make(events, pruning=False)
        for iteration, now in enumerate([mixture, mixture, mixture, other, mixture]):
            key = Key(seed=1, chain=0, iteration=iteration)
            assert_same_stats(pruned.draw_labels(now, key), dense.draw_labels(now, key))
            np.testing.assert_array_equal(pruned.labels(), dense.labels())
        for now in [mixture, mixture, other, mixture]:
            assert_same_stats(pruned.expect_labels(now), dense.expect_labels(now))
            np.testing.assert_array_equal(pruned.labels(), dense.labels())

    @pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (14, 64), (40, 20)])
    @pytest.mark.parametrize("distance", [1e3, 1e15])
    def test_far_events_are_the_same_bits_pruned_and_dense(
        self, dim: int, n_components: int, distance: float
    ) -> None:
        events, mixture = problem_with_far_events(dim, n_components, distance)
        pruned, dense = self.make(events, pruning=True), self.make(events, pruning=False)
        for iteration in range(3):
            key = Key(1, 0, iteration)
            assert_same_stats(pruned.draw_labels(mixture, key), dense.draw_labels(mixture, key))
        for _ in range(2):
            assert_same_stats(pruned.expect_labels(mixture), dense.expect_labels(mixture))
