"""The sampler of the hierarchical model: its exact posterior, and its parts; the rest is in `short_tests`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cohort_cases import OWN, SHIFTED, exact_posterior, native, prior_state
from comparisons import FAMILY, family_wise, worst
from scipy import stats as st

from dpmix.model import cohort
from dpmix.model.mixture import Cohort, Parameters, SampleStats
from dpmix.model.prior import Prior


@pytest.mark.slow
def test_the_engine_of_runs_has_the_exact_posterior() -> None:
    p_values = exact_posterior(2000, native)
    assert family_wise(p_values) > FAMILY, worst(p_values)


def test_samples_of_a_batch_inform_their_shift_together() -> None:
    rng = np.random.default_rng(1)
    stats = SampleStats(rng.poisson(5.0, (4, 3)).astype(float), rng.normal(size=(4, 3, 2)))
    centres, means = rng.normal(size=(2, 3, 2))
    roots = np.tril(rng.normal(size=(3, 2, 2))) + 2.0 * np.eye(2)
    shifts, groups = rng.normal(size=(3, 2)), np.array([0, 1, 2, 1])
    own = Cohort(1.0, np.zeros((4, 3)), shifts, np.ones(2), groups, np.full(4, 0.25))
    covariances = np.linalg.inv(roots.transpose(0, 2, 1) @ roots)
    linear, precisions = cohort.shift_terms(own, stats, centres, Parameters(means, covariances, roots))
    for g in range(3):
        expected, precision = np.zeros(2), np.zeros((2, 2))
        for s in np.flatnonzero(groups == g):
            for j in range(3):
                inverse, n = np.linalg.inv(covariances[j]), stats.counts[s, j]
                # of the events themselves: their sum, less the sum of the component means
                total = stats.sums[s, j] + n * (centres[j] + shifts[g] - means[j])
                expected += inverse @ total
                precision += n * inverse
        np.testing.assert_allclose(linear[g], expected)
        np.testing.assert_allclose(precisions[g], precision)


def test_counts_that_are_not_whole_are_rounded_to_their_mean() -> None:
    """With large shapes every event opens a table, so the tables are the rounded counts."""
    counts, rng = np.array([[0.3, 2.75, 0.0], [1.0, 0.5, 0.0]]), np.random.default_rng(2)
    drawn = [cohort.draw_tables(counts, np.full(3, 1e9), rng) for _ in range(4000)]
    mean = np.mean([one.by_component for one in drawn], axis=0)
    np.testing.assert_allclose(mean, counts.sum(axis=0), atol=0.05)
    np.testing.assert_allclose(np.mean([one.sizes for one in drawn], axis=0), counts.sum(axis=1), atol=0.05)


def test_tables_of_many_events_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, shapes = np.array([[40.0, 3.0], [0.0, 57.0]]), np.array([0.7, 4.0])
    whole = cohort.draw_tables(counts, shapes, np.random.default_rng(3))
    monkeypatch.setattr(cohort, "BLOCK", 7)
    parts = cohort.draw_tables(counts, shapes, np.random.default_rng(3))
    assert np.array_equal(whole.by_component, parts.by_component)


def test_the_prior_density_is_that_of_scipy() -> None:
    """Differences of log densities between two states of the same kappa, beta and tau, or of one of them."""
    one, other = prior_state(SHIFTED, 1, 1), prior_state(SHIFTED, 1, 2)
    assert one.cohort is not None
    assert other.cohort is not None

    def density(own: Cohort, prior: Prior) -> float:
        return cohort.log_prior(own, one.log_base_weights, prior)

    moved = replace(one.cohort, log_weights=other.cohort.log_weights)
    base = one.cohort.kappa * np.exp(one.log_base_weights)
    expected = sum(base @ (b - a) for a, b in zip(one.cohort.log_weights, moved.log_weights, strict=True))
    assert density(moved, OWN) - density(one.cohort, OWN) == pytest.approx(expected)
    moved = replace(one.cohort, shifts=other.cohort.shifts)
    # the first two shifts of a channel, given that all three sum to 0
    covariance = np.eye(2) - 1.0 / 3.0
    expected = 0.0
    for d, tau in enumerate(one.cohort.taus):
        normal = st.multivariate_normal(np.zeros(2), tau**2 * covariance)
        expected += normal.logpdf(moved.shifts[:2, d]) - normal.logpdf(one.cohort.shifts[:2, d])
    assert density(moved, OWN) - density(one.cohort, OWN) == pytest.approx(expected)
