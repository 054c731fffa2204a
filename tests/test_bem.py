"""Bayesian EM: the step against the textbook's formulas, and its path on data."""

from __future__ import annotations

import numpy as np
import pytest
from reference import ReferenceEngine
from scipy import optimize
from scipy import stats as st

from dpmix import bem, gibbs, initialise
from dpmix.model import Prior, State, log_prior, mixture_of
from dpmix.streams import Stream

PRIOR = Prior(np.zeros(2), 4.0, 3.0, 0.5 * np.eye(2), 1.5, 1.0)


def three_groups(n_events: int = 600) -> np.ndarray:
    rng = np.random.default_rng(4)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 3.0]])
    labels = rng.choice(3, size=n_events, p=[0.5, 0.3, 0.2])
    return (centres[labels] + rng.normal(scale=0.6, size=(n_events, 2))).astype(np.float32)


def climb(events: np.ndarray, n_components: int, steps: int) -> tuple[list[State], list[float], np.ndarray]:
    engine = ReferenceEngine(events)
    states = [initialise.from_kmeans(events, len(events), n_components, PRIOR, Stream(1, 0, 0))]
    values = []
    for _ in range(steps):
        stats = engine.expect_labels(mixture_of(states[-1]))
        values.append(stats.log_likelihood + log_prior(states[-1], PRIOR))
        states.append(bem.step(states[-1], stats, PRIOR)[0])
    return states, values, stats.counts


def test_a_step_goes_to_the_posterior_means_of_the_weighted_events() -> None:
    events = three_groups(200)
    state = initialise.from_kmeans(events, len(events), 3, PRIOR, Stream(1, 0, 0))
    weights = np.stack(
        [
            w * st.multivariate_normal(m, c).pdf(events)
            for w, m, c in zip(state.weights, state.means, state.covariances, strict=True)
        ]
    )
    weights /= weights.sum(axis=0)
    after, _ = bem.step(state, ReferenceEngine(events).expect_labels(mixture_of(state)), PRIOR)
    for j, r in enumerate(weights):
        n, kappa = r.sum(), 1 / PRIOR.gamma
        average = r @ events / n
        scatter = (r[:, None] * (events - average)).T @ (events - average)
        away = average - PRIOR.m
        scale = PRIOR.nu * PRIOR.phi + scatter + kappa * n / (kappa + n) * np.outer(away, away)
        assert after.means[j] == pytest.approx((kappa * PRIOR.m + n * average) / (kappa + n), rel=1e-6)
        assert after.covariances[j] == pytest.approx(scale / (PRIOR.nu + n), rel=1e-6)
        assert after.whiteners[j].T @ after.whiteners[j] == pytest.approx(np.linalg.inv(after.covariances[j]))


def test_sticks_and_alpha_go_to_their_modes() -> None:
    counts, alpha = np.array([5.0, 2.5, 1.5, 3.0]), 1.7
    sticks = bem.modal_sticks(counts, alpha, np.zeros(3, bool))
    for j in range(3):
        beta = st.beta(1 + counts[j], alpha + counts[j + 1 :].sum())
        mode = optimize.minimize_scalar(lambda v: -beta.logpdf(v), bounds=(0, 1), method="bounded").x  # noqa: B023
        assert np.exp(sticks.log_sticks[j]) == pytest.approx(mode, abs=1e-5)
    gamma = st.gamma(PRIOR.alpha_shape + 3, scale=1 / (PRIOR.alpha_rate - sticks.log_rests.sum()))
    mode = optimize.minimize_scalar(lambda a: -gamma.logpdf(a), bounds=(0, 50), method="bounded").x
    assert bem.modal_alpha(sticks.log_rests, PRIOR, 9.0) == pytest.approx(mode, abs=1e-4)


@pytest.mark.parametrize(
    ("counts", "alpha", "expected"),
    [
        ([4.0, 0.0, 0.0], 0.5, [1.0, 0.0]),  # a stick reaches 1, and nothing is left for the others
        ([0.0, 4.0, 0.0], 0.5, [0.0, 1.0]),
        ([4.0, 0.0, 0.0], 1.0, [1.0, 0.0]),
        ([0.0, 0.0, 4.0], 2.0, [0.0, 0.0]),
        ([3.0, 0.0, 1.0], 2.0, [3 / 5, 0.0]),
    ],
)
def test_sticks_at_the_ends(counts: list[float], alpha: float, expected: list[float]) -> None:
    sticks = bem.modal_sticks(np.array(counts), alpha, np.zeros(2, bool))
    assert np.exp(sticks.log_sticks) == pytest.approx(expected)
    assert not np.isnan(sticks.log_rests).any()
    assert np.isfinite(bem.modal_alpha(sticks.log_rests, PRIOR, 1.0))


def test_alpha_stays_where_its_conditional_has_no_mode() -> None:
    flat = Prior(PRIOR.m, PRIOR.gamma, PRIOR.nu, PRIOR.phi, 0.5, 1.0)
    with np.errstate(divide="ignore"):
        assert bem.modal_alpha(np.log1p(-np.array([1.0, 0.2])), flat, 0.8) == 0.8


def test_the_climb_finds_the_groups_and_empties_the_rest() -> None:
    events = three_groups()
    states, values, counts = climb(events, 12, 400)
    assert np.isfinite(values).all()
    # The update takes posterior means, not modes, so the log posterior also falls, by a little, on the way.
    assert values[-1] > values[0] + 20
    assert abs(values[-1] - values[-2]) < 1e-4 * abs(values[-1])
    heavy = states[-1].weights > 0.05
    assert states[-1].weights[heavy].sum() > 0.9
    found = states[-1].means[heavy]
    for centre in ([0, 0], [4, 1], [-3, 3]):
        assert np.abs(found - centre).sum(axis=1).min() < 0.5
    assert counts.sum() == pytest.approx(len(events), rel=1e-9)


def test_emptied_components_leave_finite_numbers() -> None:
    state = initialise.from_kmeans(three_groups(), 600, 5, PRIOR, Stream(1, 0, 0))
    stats = gibbs.no_events(5, 2)
    stats.counts[0] = 600.0
    stats.scatters[0] = 600 * np.eye(2)
    after, info = bem.step(state, stats, PRIOR)
    assert info.emptied == 4
    assert np.isfinite(log_prior(after, PRIOR))
    assert np.isfinite(after.alpha)
    assert after.weights.sum() == pytest.approx(1.0)
