"""The contract of all engines against the float64 reference: subclass `EngineContract` for each engine.

This module is not collected by itself. A label may differ from the reference's only if its uniform lies
within float32 rounding of a step of the cumulative sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest
from reference import ReferenceEngine
from scipy import stats as st

from dpmix.engines import exact
from dpmix.engines.cpu import CpuEngine, native_mixture
from dpmix.engines.sums import SummingEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import LOG_2PI, Array, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

Floats = npt.NDArray[np.float32]

# (N, D, K): every path through whitening, stages of pruning, tiles and moments, with ragged ends.
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


# (N, D, K) of memberships.
MEMBERSHIP_SHAPES = [
    (1, 1, 1),
    (1, 14, 40),
    (701, 1, 300),
    (100, 2, 31),
    (333, 5, 16),
    (601, 14, 300),
    (530, 14, 2),
    (200, 17, 32),
    (120, 33, 31),
    (50, 64, 33),
]


def native_log_densities(events: Floats, mixture: Mixture, isa: str | None = None) -> Floats:
    """Return log pi_j N(x_i | mu_j, Sigma_j) as the CPU engine's passes compute it, float32 [N, K]."""
    found = np.empty((len(events), len(mixture.means)), np.float32)
    parameters = native_mixture(mixture, events.shape[1])
    CpuEngine(events, isa=isa)._native.log_densities(*parameters, events, found)
    return found


class AnyEngine(Protocol):
    def draw_labels(self, mixture: Mixture, key: Key) -> Stats: ...
    def expect_labels(self, mixture: Mixture) -> Stats: ...
    def memberships(
        self, mixture: Mixture, populations: npt.NDArray[np.int64], start: int, stop: int
    ) -> tuple[Floats, Array]: ...
    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]: ...
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
    """Return events from a random mixture, and the mixture; components overlap more with a smaller spread."""
    rng = np.random.default_rng([seed, n, dim, n_components])
    means = spread * rng.normal(size=(n_components, dim))
    factors = rng.normal(size=(n_components, dim, dim + 6))
    covariances = 0.3 * factors @ factors.transpose(0, 2, 1) / (dim + 6)
    weights = rng.dirichlet(np.full(n_components, 2.0))
    labels = rng.choice(n_components, n, p=weights)
    noise = np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[labels], rng.normal(size=(n, dim)))
    return (means[labels] + noise).astype(np.float32), mixture_of(weights, means, covariances)


def problem_with_far_events(dim: int, n_components: int, distance: float) -> tuple[Floats, Mixture]:
    """Return 600 events; every 60th is this far from all means."""
    events, mixture = problem(600, dim, n_components)
    far = np.random.default_rng(0).normal(size=(10, dim))
    events[::60] = far * distance / np.linalg.norm(far, axis=1, keepdims=True)
    return events, mixture


def assert_same_stats(one: Stats, other: Stats) -> None:
    """Check equality bit for bit, also by sample where there are samples."""
    assert one.log_likelihood == other.log_likelihood
    for name in ("counts", "sums", "scatters", "centres"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for mine, theirs in zip(one.by_sample or (), other.by_sample or (), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg="by sample")


def assert_near_stats(got: Stats, want: Stats, n_events: int) -> None:
    """Check equality within float32 rounding, relative to the spread of each component's events."""
    np.testing.assert_array_equal(got.centres, want.centres)
    np.testing.assert_allclose(got.counts, want.counts, rtol=1e-5, atol=1e-5 * np.sqrt(n_events))
    np.testing.assert_array_equal(got.scatters, got.scatters.transpose(0, 2, 1))
    roots = np.sqrt(np.einsum("kii->ki", want.scatters)) + 1e-3
    assert (np.abs(got.sums - want.sums) / (roots * np.sqrt(want.counts + 1.0)[:, None])).max() < 2e-5
    assert (np.abs(got.scatters - want.scatters) / (roots[:, :, None] * roots[:, None, :])).max() < 2e-5


def populations_of(n_components: int) -> list[npt.NDArray[np.int64]]:
    """Return populations: one for all components, one for each, and a few with unused numbers."""
    rng = np.random.default_rng(n_components)
    some = 3 + 2 * rng.integers(0, n_components // 4 + 1, n_components)  # 0, 1, 2, 4, 6, ... are unused
    return [np.zeros(n_components, np.int64), rng.permutation(n_components), some]


def assert_right_memberships(
    engine: AnyEngine, events: Floats, mixture: Mixture, populations: npt.NDArray[np.int64], tau: float = 25.0
) -> None:
    """Check the memberships of all events against the reference."""
    memberships, log_densities = engine.memberships(mixture, populations, 0, len(events))
    want, want_densities = ReferenceEngine(events, tau).memberships(mixture, populations, 0, len(events))
    assert (memberships.dtype, log_densities.dtype) == (np.float32, np.float64)
    assert memberships.shape == want.shape
    assert (memberships >= 0.0).all()
    np.testing.assert_allclose(memberships, want, rtol=1e-4, atol=2e-5)
    rounding = 1e-6 + 2e-9 * len(populations)  # of float32 sums over the components
    np.testing.assert_allclose(memberships.sum(axis=1, dtype=float), 1.0, atol=rounding)
    np.testing.assert_allclose(log_densities, want_densities, rtol=2e-6, atol=5e-5)
    nobody = np.setdiff1d(np.arange(populations.max() + 1), populations)
    assert (memberships[:, nobody] == 0.0).all()


# (N, D, K) of divisions.
DIVISION_SHAPES = [
    (1, 1, 2),
    (1001, 1, 3),
    (1000, 2, 31),
    (999, 4, 16),
    (700, 10, 40),
    (5000, 14, 40),
    (333, 15, 2),
    (1201, 17, 32),
    (600, 33, 31),
    (500, 64, 10),
]


def split_of(n_components: int, word: int = 1, *, of_all: bool = False) -> tuple[SplitAssignment, int]:
    """Return a split of two thirds of the components (or all), and its pairs; some sides are given."""
    rng = np.random.default_rng(n_components)
    n_pairs = n_components // 2 if of_all else max(n_components // 3, 1)
    chosen = rng.permutation(n_components)[: 2 * n_pairs]
    pairs, sides = np.full(n_components, -1, np.int32), np.full(n_components, -1, np.int8)
    pairs[chosen] = np.arange(2 * n_pairs) // 2
    given = np.arange(2 * n_pairs) // 2 % 3 == 2
    sides[chosen[given]] = np.arange(2 * n_pairs)[given] % 2
    return SplitAssignment(pairs, sides, word), n_pairs


def halves(mixture: Mixture, split: SplitAssignment, n_pairs: int, apart: float = 0.5) -> Mixture:
    """Return a mixture of two slightly different normals around the first component of each pair."""
    first = [int(np.flatnonzero(split.pairs == pair)[0]) for pair in range(n_pairs)]
    means = np.repeat(mixture.means[first], 2, axis=0)
    means[::2] -= apart / np.sqrt(means.shape[1])
    log_weights = np.tile(np.log([0.3, 0.7]), n_pairs)
    whiteners, log_norms = (
        np.repeat(part[first], 2, axis=0) for part in (mixture.whiteners, mixture.log_norms)
    )
    return Mixture(log_weights, means, whiteners, log_norms)


def weights_of(n_events: int, n_samples: int = 5) -> SampleWeights:
    """Return weights from 0.1 to 10 of samples of random sizes, the second without events."""
    rng = np.random.default_rng([n_events, n_samples])
    inner = np.sort(rng.integers(0, n_events + 1, n_samples - 1))
    starts = np.array([0, *inner, n_events])
    starts[min(2, n_samples)] = starts[1]
    return SampleWeights(starts, (10.0 ** rng.uniform(-1.0, 1.0, n_samples)).astype(np.float32))


# (N, D, K) of passes over weighted events: groups of 64 events, ragged tiles, two chunks.
WEIGHTED_SHAPES = [(1, 1, 2), (1000, 2, 32), (1500, 14, 40), (600, 33, 31), (CHUNK + 2500, 5, 4)]


class EngineContract:
    """The contract; a subclass defines `make`."""

    def make(self, events: Floats, **options: object) -> AnyEngine:
        """Return the engine.

        Options are weight_floor, first_event and weights, and pruning in `PruningContract`.
        """
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
        events, mixture = problem(5000, 5, 40)
        _, other = problem(5000, 5, 40, seed=1)
        key = Key(seed=9, chain=0, iteration=4)
        used, fresh = self.make(events), self.make(events)
        used.draw_labels(other, Key(9, 0, 0))
        used.draw_labels(mixture, Key(9, 0, 1))
        used.expect_labels(other)
        used.draw_labels(mixture, Key(9, 3, 1))
        assert_same_stats(used.draw_labels(mixture, key), fresh.draw_labels(mixture, key))
        np.testing.assert_array_equal(used.labels(), fresh.labels())

    def test_an_expectation_is_a_function_of_the_two_latest_mixtures(self) -> None:
        events, mixture = problem(5000, 5, 40)
        _, other = problem(5000, 5, 40, seed=1)
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
        events, mixture = problem(2000, 5, 10, spread=0.3)
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
        events, mixture = problem(1000, 5, 10, spread=0.2)
        key = Key(seed=2**63 + 11, chain=2**32 - 1, iteration=2**32 - 1)
        reference = ReferenceEngine(events, first_event=first_event)
        engine = self.make(events, first_event=first_event)
        engine.draw_labels(mixture, key)
        reference.draw_labels(mixture, key)
        moved = engine.labels(key.chain) != reference.labels(key.chain)
        assert (reference.step_distances(mixture, key)[moved] < 1e-4).all()

    def test_weight_floor_is_obeyed(self) -> None:
        """Two components differ by 3 nats at every event: a floor of 1 nat excludes the lower one."""
        events = np.zeros((4000, 1), np.float32)
        mixture = mixture_of(
            np.array([1.0, np.exp(3.0)]) / (1 + np.exp(3.0)), np.zeros((2, 1)), np.ones((2, 1, 1))
        )
        low, high = self.make(events, weight_floor=1.0), self.make(events, weight_floor=4.0)
        assert low.draw_labels(mixture, Key(1, 0, 0)).counts[0] == 0
        drawn = high.draw_labels(mixture, Key(1, 0, 0)).counts[0]
        assert 1e-6 < st.binom.cdf(drawn, 4000, 1 / (1 + np.exp(3.0))) < 1 - 1e-6

    @pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (14, 64), (33, 20)])
    @pytest.mark.parametrize("distance", [1e3, 1e15])
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
        engine.draw_labels(mixture, Key(1, 0, 0))  # the last labels belong to components that are empty now
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
        """Chi-square test of ambiguous events, 4,000 draws each, against the float64 probabilities."""
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

    @pytest.mark.parametrize(("n", "dim", "n_components"), MEMBERSHIP_SHAPES)
    def test_memberships_agree_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        for spread in (0.3, 1.0):
            events, mixture = problem(n, dim, n_components, spread=spread)
            engine = self.make(events)
            for populations in populations_of(n_components):
                assert_right_memberships(engine, events, mixture, populations)

    @pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (14, 64), (33, 20)])
    @pytest.mark.parametrize("distance", [1e3, 1e15])
    def test_memberships_of_far_events_are_right(self, dim: int, n_components: int, distance: float) -> None:
        events, mixture = problem_with_far_events(dim, n_components, distance)
        engine, reference = self.make(events), ReferenceEngine(events)
        for populations in populations_of(n_components):
            assert_right_memberships(engine, events, mixture, populations)
            got, log_densities = engine.memberships(mixture, populations, 0, len(events))
            want, want_densities = reference.memberships(mixture, populations, 0, len(events))
            np.testing.assert_allclose(got[::60], want[::60], rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(log_densities[::60], want_densities[::60], rtol=1e-12)

    def test_memberships_of_events_between_near_and_far_are_right(self) -> None:
        """A component is slightly below the best of an event for which float32 has an error of 0.03 nats."""
        events = np.full((40, 2), 0.0, np.float32)
        events[:, 0] = np.linspace(100.0, 1000.0, 40)
        means = np.array([[0.0, 0.0], [1e-4, 0.0], [-1e-3, 0.0]])
        mixture = mixture_of(np.array([0.3, 0.3, 0.4]), means, np.tile(np.eye(2), (3, 1, 1)))
        populations = np.array([1, 0, 1])
        got, _ = self.make(events).memberships(mixture, populations, 0, 40)
        want, _ = ReferenceEngine(events).memberships(mixture, populations, 0, 40)
        far = events[:, 0] ** 2 / 2 > 4.1e4
        assert far.sum() > 20
        np.testing.assert_allclose(got[far], want[far], atol=1e-6)

    def test_components_without_weight_have_no_part_in_memberships(self) -> None:
        events, mixture = problem(500, 5, 40)
        log_weights = mixture.log_weights.copy()
        log_weights[::3] = -np.inf
        emptied = Mixture(log_weights, mixture.means, mixture.whiteners, mixture.log_norms)
        engine = self.make(events)
        for populations in (*populations_of(40), (np.arange(40) % 3 == 0).astype(int)):
            assert_right_memberships(engine, events, emptied, populations)
        memberships, _ = engine.memberships(emptied, np.arange(40) % 3, 0, 500)
        assert (memberships[:, 0] == 0.0).all()

    @pytest.mark.parametrize("weight_floor", [1.0, 2.0, 25.0])
    def test_memberships_obey_the_weight_floor(self, weight_floor: float) -> None:
        """Components differ by 1.5 nats at every event; order and populations do not matter."""
        events, ladder = np.zeros((20, 3), np.float32), -1.5 * np.arange(6)
        engine = self.make(events, weight_floor=weight_floor)
        for order in (np.arange(6), np.arange(6)[::-1], np.array([3, 0, 5, 1, 4, 2])):
            weights = np.exp(ladder[order]) / np.exp(ladder).sum()
            mixture = mixture_of(weights, np.zeros((6, 3)), np.tile(np.eye(3), (6, 1, 1)))
            for populations in (np.arange(6), np.arange(6) // 2, np.arange(6) % 2, np.zeros(6, int)):
                assert_right_memberships(engine, events, mixture, populations, weight_floor)

    def test_memberships_do_not_depend_on_how_the_range_is_cut(self) -> None:
        events, mixture = problem(CHUNK + 3001, 2, 5, spread=0.5)
        n, populations = len(events), np.array([2, 0, 2, 4, 0])
        engine, other = self.make(events), self.make(events[1000:])
        whole, log_densities = engine.memberships(mixture, populations, 0, n)
        assert_right_memberships(engine, events, mixture, populations)
        for cuts in ([0, 1, 18, 529, 40_000, n], [0, CHUNK, n], [0, CHUNK - 1, CHUNK + 1, n - 1, n]):
            parts = [engine.memberships(mixture, populations, *part) for part in pairwise(cuts)]
            np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), whole)
            np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), log_densities)
        moved = other.memberships(mixture, populations, 5, 9000)
        np.testing.assert_array_equal(moved[0], whole[1005:10_000])
        np.testing.assert_array_equal(moved[1], log_densities[1005:10_000])

    def test_memberships_change_nothing(self) -> None:
        events, mixture = problem(3000, 5, 40)
        _, other = problem(3000, 5, 70, seed=1)
        used, alone = self.make(events), self.make(events)
        for iteration in range(3):
            used.memberships(other, np.arange(70) // 2, 100, 2000)
            key = Key(1, 0, iteration)
            assert_same_stats(used.draw_labels(mixture, key), alone.draw_labels(mixture, key))
            used.memberships(other, np.arange(70) // 2, 0, 3000)
            np.testing.assert_array_equal(used.labels(), alone.labels())
        for _ in range(2):
            assert_same_stats(used.expect_labels(mixture), alone.expect_labels(mixture))
            used.memberships(other, np.arange(70) // 2, 0, 3000)

    def test_what_is_wrong_with_populations_or_a_range_is_said(self) -> None:
        events, mixture = problem(100, 5, 4)
        engine, good = self.make(events), np.array([0, 1, 1, 0])
        for bad in (good[:3], good[None], good.astype(float), good - 1, good + 4095):
            with pytest.raises(ValueError, match=r"^populations: got"):
                engine.memberships(mixture, bad, 0, 100)
        for start, stop in ((-1, 5), (5, 5), (6, 5), (0, 101), (100, 101)):
            with pytest.raises(ValueError, match=r"^range: got"):
                engine.memberships(mixture, good, start, stop)
        _, wrong = problem(100, 2, 4)
        with pytest.raises(ValueError, match=r"^mixture: "):
            engine.memberships(wrong, good, 0, 100)

    @pytest.mark.parametrize(("n", "dim", "n_components"), DIVISION_SHAPES)
    def test_a_division_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        events, mixture = problem(n, dim, n_components, spread=0.7)
        engine, reference = self.make(events), ReferenceEngine(events)
        key = Key(seed=7 + (5 << 35), chain=3, iteration=11)
        engine.draw_labels(mixture, key)
        reference.draw_labels(mixture, key)
        reference._labels[3] = engine.labels(3)  # labels may differ if uniforms lie within rounding
        for word in (1, 2, 3):
            split, n_pairs = split_of(n_components, word, of_all=word == 2)
            two = halves(mixture, split, n_pairs)
            got, log_probabilities = engine.divide(split, two, key)
            want, expected = reference.divide(split, two, key)
            probabilities, pairs = reference.side_probabilities(split, two, 3)
            near = np.abs(probabilities[:, 0] - reference.uniforms(key, word)) < 1e-5
            if not (near & (pairs >= 0)).any():
                np.testing.assert_array_equal(got.counts, want.counts)
                assert_near_stats(got, want, n)
                np.testing.assert_allclose(log_probabilities, expected, rtol=2e-5, atol=2e-4)
            assert got.log_likelihood == 0.0
            assert got.counts.sum() == (split.pairs[engine.labels(3)] >= 0).sum()
            assert log_probabilities.shape == (n_pairs,)

    def test_sides_have_the_right_frequencies(self) -> None:
        """Chi-square test for each word; the words and the labels have independent uniforms."""
        events = np.zeros((40_000, 2), np.float32)
        mixture = mixture_of(np.array([0.5, 0.5]), np.zeros((2, 2)), np.tile(np.eye(2), (2, 1, 1)))
        two = Mixture(np.log([0.2, 0.8]), mixture.means, mixture.whiteners, mixture.log_norms)
        engine, key = self.make(events), Key(3, 0, 1)
        engine.draw_labels(mixture, key)
        observed = []
        for component in (0, 1):
            for word in (1, 2, 3):
                pairs = np.where(np.arange(2) == component, 0, -1).astype(np.int32)
                observed.append(
                    engine.divide(SplitAssignment(pairs, np.full(2, -1, np.int8), word), two, key)[0].counts
                )
        for counts in observed:
            assert st.chisquare(counts, counts.sum() * np.array([0.2, 0.8])).pvalue > 1e-4
        assert len({tuple(counts) for counts in observed}) == 6

    @pytest.mark.parametrize("distance", [1e3, 1e10])
    def test_far_events_are_divided_right(self, distance: float) -> None:
        events, mixture = problem_with_far_events(5, 8, distance)
        engine, reference, key = self.make(events), ReferenceEngine(events), Key(1, 0, 0)
        engine.draw_labels(mixture, key)
        reference._labels[0] = engine.labels()
        split, n_pairs = split_of(8, of_all=True)
        for sides in (split.sides, np.full(8, -1, np.int8)):
            given = split._replace(sides=sides)
            got, log_probabilities = engine.divide(given, halves(mixture, split, n_pairs), key)
            want, expected = reference.divide(given, halves(mixture, split, n_pairs), key)
            np.testing.assert_array_equal(got.counts, want.counts)
            assert np.isfinite(got.scatters).all()
            np.testing.assert_array_equal(np.isneginf(log_probabilities), np.isneginf(expected))
            finite = np.isfinite(expected)
            np.testing.assert_allclose(log_probabilities[finite], expected[finite], rtol=2e-4, atol=2e-4)

    def test_a_side_without_weight_is_never_drawn_and_impossible_where_given(self) -> None:
        events = np.zeros((1000, 1), np.float32)
        mixture = mixture_of(np.ones(1), np.zeros((1, 1)), np.ones((1, 1, 1)))
        two = mixture_of(np.array([0.5, 0.5]), np.array([[0.0], [20.0]]), np.ones((2, 1, 1)))
        engine, key = self.make(events), Key(1, 0, 0)
        engine.draw_labels(mixture, key)
        for side, counts, log_probability in (
            (-1, [1000, 0], 0.0),
            (0, [1000, 0], 0.0),
            (1, [0, 1000], -np.inf),
        ):
            split = SplitAssignment(np.zeros(1, np.int32), np.full(1, side, np.int8), 1)
            got, log_probabilities = engine.divide(split, two, key)
            np.testing.assert_array_equal(got.counts, counts)
            np.testing.assert_array_equal(log_probabilities, [log_probability])

    def test_a_division_does_not_depend_on_what_came_before_and_changes_nothing(self) -> None:
        events, mixture = problem(CHUNK + 5000, 5, 30, spread=0.5)
        _, other = problem(5000, 5, 30, seed=1)
        used, fresh, key = self.make(events), self.make(events), Key(9, 2, 4)
        split, n_pairs = split_of(30)
        two = halves(mixture, split, n_pairs)
        for iteration in range(2):
            used.draw_labels(other, Key(9, 2, iteration))
        used.draw_labels(mixture, key)
        used.divide(split._replace(word=3), halves(other, split, n_pairs), key)
        used.draw_labels(other, Key(9, 0, 4))  # of another chain
        fresh.draw_labels(mixture, key)
        for one, same in zip(used.divide(split, two, key), fresh.divide(split, two, key), strict=True):
            if isinstance(one, Stats):
                assert_same_stats(one, same)
            else:
                np.testing.assert_array_equal(one, same)
        np.testing.assert_array_equal(used.labels(2), fresh.labels(2))
        assert_same_stats(used.draw_labels(other, key), fresh.draw_labels(other, key))

    def test_what_is_wrong_with_a_deal_is_said(self) -> None:
        events, mixture = problem(100, 5, 6)
        engine, key = self.make(events), Key(1, 0, 0)
        split, n_pairs = split_of(6)
        two = halves(mixture, split, n_pairs)
        with pytest.raises(ValueError, match=r"^split: chain 0 has no labels of 6 components"):
            engine.divide(split, two, key)
        engine.draw_labels(mixture, key)
        for bad in (
            split._replace(pairs=split.pairs[:5]),
            split._replace(pairs=split.pairs[:5], sides=split.sides[:5]),
            split._replace(pairs=split.pairs + np.int32(1)),
            split._replace(sides=split.sides + np.int8(3)),
            split._replace(word=0),
            split._replace(word=4),
        ):
            with pytest.raises(ValueError, match=r"^split: "):
                engine.divide(bad, two, key)

    @pytest.mark.parametrize(("n", "dim", "n_components"), WEIGHTED_SHAPES)
    def test_statistics_of_weighted_events_agree_with_the_reference(
        self, n: int, dim: int, n_components: int
    ) -> None:
        """Labels do not depend on weights, and statistics equal the labels' in float64."""
        events, mixture = problem(n, dim, n_components, spread=0.7)
        weights, key = weights_of(n), Key(seed=3, chain=1, iteration=2)
        engine, plain = self.make(events, weights=weights), self.make(events)
        reference = ReferenceEngine(events, weights=weights)
        got = engine.draw_labels(mixture, key)
        plain.draw_labels(mixture, key)
        labels = engine.labels(1)
        np.testing.assert_array_equal(labels, plain.labels(1))
        _, log_likelihoods = reference.weights(mixture)
        drawn = (labels[:, None] == np.arange(n_components)).astype(float)
        want = reference._stats(mixture, drawn, log_likelihoods)
        assert_near_stats(got, want, n)
        assert abs(got.log_likelihood - want.log_likelihood) < 2e-7 * (1.0 + abs(want.log_likelihood))
        reference._labels[1] = labels
        split, n_pairs = split_of(n_components)
        split = split._replace(
            sides=np.where(split.pairs >= 0, np.arange(n_components) % 2, -1).astype(np.int8)
        )
        divided, log_probabilities = engine.divide(split, halves(mixture, split, n_pairs), key)
        sides, expected = reference.divide(split, halves(mixture, split, n_pairs), key)
        assert_near_stats(divided, sides, n)
        np.testing.assert_allclose(log_probabilities, expected, rtol=2e-5, atol=2e-4)
        found, wanted = engine.expect_labels(mixture), reference.expect_labels(mixture)
        assert_near_stats(found, wanted, n)
        assert abs(found.log_likelihood - wanted.log_likelihood) < 2e-7 * (1.0 + abs(wanted.log_likelihood))

    def test_weights_that_are_integers_equal_repeated_events(self) -> None:
        events, mixture = problem(3000, 5, 20)
        times = np.array([2, 1, 3])
        weights = SampleWeights(np.array([0, 700, 1900, 3000]), times.astype(np.float32))
        repeated = np.repeat(events, weights.each().astype(int), axis=0)
        engine, other = self.make(events, weights=weights), self.make(repeated)
        weighted, want = engine.expect_labels(mixture), other.expect_labels(mixture)
        assert_near_stats(weighted, want, len(repeated))
        assert weighted.log_likelihood == pytest.approx(want.log_likelihood, rel=1e-7)
        assert weighted.counts.sum() == pytest.approx(len(repeated), rel=1e-6)

    def test_events_of_weight_1_have_the_bits_of_events_without_weights(self) -> None:
        events, mixture = problem(3000, 5, 40)
        weights, key = SampleWeights(np.array([0, 1000, 3000]), np.ones(2, np.float32)), Key(1, 0, 0)
        engine, plain = self.make(events, weights=weights), self.make(events)
        assert_same_stats(engine.draw_labels(mixture, key), plain.draw_labels(mixture, key))
        split, n_pairs = split_of(40)
        two = halves(mixture, split, n_pairs)
        mine, theirs = engine.divide(split, two, key), plain.divide(split, two, key)
        assert_same_stats(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
        assert_same_stats(engine.expect_labels(mixture), plain.expect_labels(mixture))

    @pytest.mark.parametrize("distance", [1e3, 1e10])
    def test_far_events_are_weighted_too(self, distance: float) -> None:
        events, mixture = problem_with_far_events(5, 8, distance)
        weights, key = weights_of(600), Key(1, 0, 0)
        engine, reference = self.make(events, weights=weights), ReferenceEngine(events, weights=weights)
        got, want = engine.draw_labels(mixture, key), reference.draw_labels(mixture, key)
        assert abs(got.log_likelihood / want.log_likelihood - 1.0) < 1e-9
        reference._labels[0] = engine.labels()
        split, n_pairs = split_of(8, of_all=True)
        divided, log_probabilities = engine.divide(split, halves(mixture, split, n_pairs), key)
        sides, expected = reference.divide(split, halves(mixture, split, n_pairs), key)
        np.testing.assert_allclose(divided.counts, sides.counts, rtol=1e-6)
        np.testing.assert_allclose(log_probabilities, expected, rtol=2e-4, atol=2e-4)
        got, want = engine.expect_labels(mixture), reference.expect_labels(mixture)
        assert abs(got.log_likelihood / want.log_likelihood - 1.0) < 1e-9
        np.testing.assert_allclose(got.counts, want.counts, rtol=1e-5, atol=1e-2)

    def test_what_is_wrong_with_weights_is_said(self) -> None:
        events, one = np.zeros((10, 2), np.float32), np.ones(1, np.float32)
        with pytest.raises(ValueError, match=r"^weights: got weights of 9 events, need 10"):
            self.make(events, weights=SampleWeights(np.array([0, 9]), one))

    def test_events_are_left_as_they_are(self) -> None:
        events, mixture = problem(1000, 5, 20)
        events.flags.writeable = False
        copy = events.copy()
        engine = self.make(events)
        engine.draw_labels(mixture, Key(1, 0, 0))
        engine.expect_labels(mixture)
        engine.memberships(mixture, np.arange(20), 0, 1000)
        np.testing.assert_array_equal(events, copy)

    def test_there_are_no_labels_before_the_first_pass(self) -> None:
        engine = self.make(np.zeros((10, 2), np.float32))
        with pytest.raises(ValueError, match="no labels"):
            engine.labels(0)


def assert_parts_have_the_bits_of_the_whole(
    whole: SummingEngine, parts: Sequence[SummingEngine], mixtures: tuple[Mixture, Mixture], seed: int
) -> None:
    """Check draws, divisions and E steps of an engine with all events against engines with chunks of them."""
    mixture, other = mixtures
    rng = np.random.default_rng(seed)
    split, n_pairs = split_of(len(mixture.means), of_all=True)
    two, key = halves(mixture, split, n_pairs), Key(5, 1, 7)
    passes: list[Callable[[SummingEngine], Array]] = [
        lambda engine: engine.draw_sums(other, Key(5, 1, 6)),
        lambda engine: engine.draw_sums(mixture, key),
        lambda engine: engine.divide_sums(split, two, key),
        lambda engine: engine.expect_sums(mixture),
        lambda engine: engine.expect_sums(other),
        lambda engine: engine.expect_sums(mixture),
    ]
    for sums in passes:
        states = [sums(part) for part in parts]
        rng.shuffle(states)
        while len(states) > 1:  # any two
            one = states.pop(rng.integers(len(states)))
            exact.merge(states[rng.integers(len(states))], one)
        np.testing.assert_array_equal(states[0], sums(whole))
    for chain in (0, 1):
        labels = np.concatenate([part.labels(chain) for part in parts])
        np.testing.assert_array_equal(labels, whole.labels(chain))


class PruningContract(EngineContract):
    """The contract of an engine with an option ``pruning``."""

    @pytest.mark.parametrize("dim", [1, 5, 8, 14, 17, 33])
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

    @pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (14, 64), (33, 20)])
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
