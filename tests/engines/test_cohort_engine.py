"""The engine of the hierarchical model: labels and statistics by sample, for any split of the work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_contract import assert_same_stats, problem

from dpmix.engines import cohort
from dpmix.engines.checks import checked_parameters
from dpmix.engines.cohort import CohortEngine
from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Mixture, SampleTerms
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

KEY = Key(3, 1, 2)
STARTS = np.array([0, 700, 700, 701, 3000])  # the second sample has no events
N, DIM, K = 3000, 5, 20


def cohort_mixture(mixture: Mixture, seed: int = 1) -> Mixture:
    rng = np.random.default_rng(seed)
    weights = np.log(rng.dirichlet(np.full(K, 0.5), len(STARTS) - 1))
    return replace(mixture, samples=SampleTerms(weights, 0.3 * rng.normal(size=(len(weights), DIM))))


def test_samples_that_are_alike_are_one_sample() -> None:
    events, mixture = problem(N, DIM, K)
    alike = SampleTerms(np.tile(mixture.log_weights, (4, 1)), np.zeros((4, DIM)))
    engine, plain = CohortEngine(events, STARTS, threads=2), CpuEngine(events, threads=1)
    found, expected = (
        engine.draw_labels(replace(mixture, samples=alike), KEY),
        plain.draw_labels(mixture, KEY),
    )
    assert np.array_equal(engine.labels(KEY.chain), plain.labels(KEY.chain))
    assert np.array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.sums, expected.sums, atol=1e-3)
    np.testing.assert_allclose(found.scatters, expected.scatters, atol=1e-3)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)
    engine.close()


def test_statistics_are_those_of_events_without_their_shifts() -> None:
    """Sums of labelled events in float64; the engine sums float32 differences."""
    events, plain = problem(N, DIM, K)
    mixture = cohort_mixture(plain)
    assert mixture.samples is not None
    weights = SampleWeights(STARTS, np.array([0.5, 1.0, 2.0, 1.25], np.float32))
    engine = CohortEngine(events, STARTS, threads=2, weights=weights)
    found, labels = engine.draw_labels(mixture, KEY), engine.labels(KEY.chain)
    sample = np.repeat(np.arange(4), np.diff(STARTS))
    away = events - mixture.samples.shifts[sample] - found.centres[labels]
    assert found.by_sample is not None
    for j in range(K):
        own, w = away[labels == j], weights.each()[labels == j]
        np.testing.assert_allclose(found.counts[j], w.sum())
        np.testing.assert_allclose(found.sums[j], w @ own, atol=2e-4)
        np.testing.assert_allclose(found.scatters[j], (w[:, None] * own).T @ own, atol=1e-3)
        for s in range(4):
            here = (labels == j) & (sample == s)
            np.testing.assert_allclose(found.by_sample.counts[s, j], weights.values[s] * here.sum())
            expected = weights.values[s] * away[here].sum(axis=0)
            np.testing.assert_allclose(found.by_sample.sums[s, j], expected, atol=2e-4)
    engine.close()


def test_labels_have_the_weights_and_the_shift_of_their_sample() -> None:
    """The labels of a sample are those that an engine with its events and its mixture draws."""
    events, plain = problem(N, DIM, K)
    mixture = cohort_mixture(plain)
    engine = CohortEngine(events, STARTS, threads=1)
    engine.draw_labels(mixture, KEY)
    for s in (0, 2, 3):
        own = slice(STARTS[s], STARTS[s + 1])
        alone = CpuEngine(events[own], threads=1, first_event=int(STARTS[s]))
        alone.draw_labels(cohort.of_sample(mixture, s), KEY)
        assert np.array_equal(engine.labels(KEY.chain)[own], alone.labels(KEY.chain))
    engine.close()


@pytest.mark.parametrize("options", [{"threads": 2}, {"threads": 3, "pruning": False}])
def test_results_do_not_depend_on_threads_and_parts(
    options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 2 * 65_536 + 500
    events, plain = problem(n, 2, K)
    starts = np.array([0, 65_536 + 300, n])
    rng = np.random.default_rng(2)
    terms = SampleTerms(np.log(rng.dirichlet(np.ones(K), 2)), rng.normal(size=(2, 2)))
    mixture = replace(plain, samples=terms)
    one = CohortEngine(events, starts, threads=1)
    monkeypatch.setattr(cohort, "PART_EVENTS", 65_536)
    other = CohortEngine(events, starts, **options)
    for iteration in range(3):
        key = KEY._replace(iteration=iteration)
        assert_same_stats(one.draw_labels(mixture, key), other.draw_labels(mixture, key))
    assert np.array_equal(one.labels(1), other.labels(1))
    one.close()
    other.close()


def test_responsibilities_divisions_and_memberships_by_sample() -> None:
    events, plain = problem(N, DIM, K)
    mixture = cohort_mixture(plain)
    engine, numbers = CohortEngine(events, STARTS, threads=1), np.arange(K) % 3
    expected = engine.expect_labels(mixture)
    assert expected.by_sample is not None
    np.testing.assert_allclose(expected.by_sample.counts.sum(axis=1), np.diff(STARTS))
    memberships, log_densities = engine.memberships(mixture, numbers, 650, 900)
    np.testing.assert_allclose(memberships.sum(axis=1), 1.0, rtol=1e-5)
    alone = CpuEngine(events[701:], threads=1, first_event=701)
    expected_of = alone.memberships(cohort.of_sample(mixture, 3), numbers, 0, 199)
    assert np.array_equal(expected_of[0], memberships[51:])
    assert np.array_equal(expected_of[1], log_densities[51:])
    engine.draw_labels(mixture, KEY)
    pairs = np.full(K, -1, np.int32)
    pairs[:2] = 0
    two = Mixture(
        np.zeros(2), plain.means[:2], plain.whiteners[:2], plain.log_norms[:2], None, mixture.samples
    )
    stats, logs = engine.divide(SplitAssignment(pairs, np.full(K, -1, np.int8), 1), two, KEY)
    assert stats.counts.sum() == (engine.labels(KEY.chain) < 2).sum()
    assert logs.shape == (1,)
    assert np.isfinite(logs).all()
    engine.close()


def test_a_mixture_without_samples_or_an_engine_without_them_is_refused() -> None:
    events, plain = problem(N, DIM, K)
    engine = CohortEngine(events, STARTS, threads=1)
    with pytest.raises(ValueError, match="need weights and shifts of 4 samples"):
        engine.draw_labels(plain, KEY)
    engine.close()
    with pytest.raises(ValueError, match="one mixture for all events"):
        checked_parameters(cohort_mixture(plain), DIM)
    with pytest.raises(ValueError, match="ascending from 0 to 3000"):
        CohortEngine(events, STARTS[1:])
