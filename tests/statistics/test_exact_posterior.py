"""Compare a chain on six events with their posterior, which is enumerated (`exact_cases`)."""

from __future__ import annotations

import numpy as np
import pytest
from comparisons import FAMILY, family_wise, worst
from exact_cases import (
    EVENTS,
    PRIOR,
    RESOLUTION,
    Exact,
    beyond_chance,
    exact_posterior,
    log_label_prior,
    log_marginal,
    log_predictive,
)
from scipy import stats as st
from whole_chain import Array, Sampler

from dpmix.model import normal_wishart, split_merge
from dpmix.model.mixture import Stats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "sampler"),
    [(None, Sampler()), (1.0, Sampler(False, False)), (None, Sampler(resolution=RESOLUTION))],
)
def test_a_chain_has_the_exact_posterior(alpha: float | None, sampler: Sampler) -> None:
    """And as `short_tests`, which has label swaps alone and split-merge moves alone."""
    p_values = exact_posterior(alpha, 2500, sampler)
    assert family_wise(p_values) > FAMILY, worst(p_values)


def test_the_marginal_likelihood_is_a_product_of_student_densities() -> None:
    events = EVENTS.astype(float)
    products = [sum(log_predictive(events[i], events[:i], PRIOR) for i in range(count)) for count in range(7)]
    assert [log_marginal(events[:count], PRIOR) for count in range(7)] == pytest.approx(products, rel=1e-12)
    stats = [statistics(events[:count], np.array([0.3, -2.0])) for count in range(7)]
    together = Stats(*(np.concatenate([getattr(s, name) for s in stats]) for name in PARTS), 0.0)
    assert normal_wishart.log_marginals(together, PRIOR.centre) == pytest.approx(products, rel=1e-12)


PARTS = ("counts", "sums", "scatters", "centres")


def statistics(events: Array, centre: Array) -> Stats:
    away = events - centre
    return Stats(np.array([float(len(events))]), away.sum(0)[None], (away.T @ away)[None], centre[None], 0.0)


def test_the_predictive_density_is_the_mean_of_normal_densities() -> None:
    conditional = normal_wishart.posterior(
        statistics(EVENTS.astype(float), EVENTS[0].astype(float)), PRIOR.centre
    )
    repeated = normal_wishart.Posterior(*(np.repeat(part, 20_000, axis=0) for part in conditional))
    means, _, whiteners = normal_wishart.draw_parameters(repeated, np.random.default_rng(2))
    point = np.array([1.0, 0.7])
    away = np.square(np.einsum("kij,kj->ki", whiteners, point - means)).sum(axis=1)
    densities = np.einsum("kii->ki", whiteners).prod(axis=1) * np.exp(-0.5 * away) / (2.0 * np.pi)
    exact = np.exp(log_predictive(point, EVENTS.astype(float), PRIOR))
    assert abs(densities.mean() - exact) < 4.5 * densities.std() / np.sqrt(len(densities))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 7.0])
def test_the_prior_of_labels_is_the_sticks_integrated_out(alpha: float) -> None:
    labels = Exact(alpha).labels
    counts = (labels[..., None] == np.arange(3)).sum(axis=1).astype(float)
    log_prior = log_label_prior(counts, np.array([alpha]))[0]
    assert np.exp(log_prior).sum() == pytest.approx(1.0, rel=1e-12)
    assert [split_merge.log_labels(row, alpha) for row in counts] == pytest.approx(log_prior, rel=1e-12)
    # one event in the second component, the others in the first: E[v_1^5 (1 - v_1) v_2], sticks independent
    nodes, weights = np.polynomial.legendre.leggauss(200)
    v = (nodes + 1.0) / 2.0
    densities = 0.5 * weights * alpha * (1.0 - v) ** (alpha - 1.0)
    if alpha >= 1.0:  # below 1 the density has a pole
        expected = (densities * v**5 * (1.0 - v)).sum() * (densities * v).sum()
        row = np.flatnonzero((counts == [5.0, 1.0, 0.0]).all(axis=1))[0]
        assert np.exp(log_prior[row]) == pytest.approx(expected, rel=1e-9)


def test_means_of_batches_are_tested_as_they_should_be() -> None:
    rng = np.random.default_rng(6)

    def walk() -> Array:
        noise = rng.standard_normal((4000, 3))
        for t in range(1, len(noise)):
            noise[t] = 0.7 * noise[t - 1] + noise[t] * np.sqrt(0.51)
        return noise

    found = [beyond_chance(walk(), np.zeros(3), 100) for _ in range(60)]
    assert st.kstest(found, "uniform").pvalue > 1e-3
    assert beyond_chance(walk() + 0.3, np.zeros(3), 100) < 1e-6
    assert beyond_chance(np.zeros((4000, 3)), np.zeros(3), 100) == 0.0  # a cell that was never entered
