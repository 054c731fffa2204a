"""Events that are clouds: statistics and densities, and Bayesian EM that climbs their posterior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as st
from scipy.special import logsumexp
from test_cohort_bem import GROUPS, plain_pass, shifted_groups, start, value
from test_cohort_bem import PRIOR as COHORT_PRIOR

from dpmix.engines.cpu import CpuEngine
from dpmix.model import bem, gibbs, split_merge
from dpmix.model.coarsening import coarsened
from dpmix.model.mixture import Array, State, Stats, live_log1m_sticks, mixture_of
from dpmix.model.prior import Prior, log_prior
from dpmix.model.resolution import blurred, of_clouds, penalties
from dpmix.model.streams import Key, Stream
from dpmix.runs import initialise

RESOLUTION = np.array([0.7, 0.3])
PRIOR = Prior(np.zeros(2), 5.0, 2.0, 0.3 * np.eye(2), 1.0, 1.0, frozenset({"alpha"}))


def groups(n: int = 300, seed: int = 1) -> Array:
    """Return events of two groups and of a spike in the first channel, float32 [n, 2]."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(n, 2))
    values[: n // 3] += [3.0, 1.0]
    values[-n // 3 :, 0] = 0.01 * random.normal(size=len(values[-n // 3 :]))
    return values.astype(np.float32)


def a_state(count: int = 4) -> State:
    return initialise.from_kmeans(groups(), 300, count, PRIOR, Stream(1, 0, 0), None, RESOLUTION)


def test_the_density_of_an_event_is_the_mean_log_density_of_its_cloud() -> None:
    """By Monte Carlo: E log N(x + e | mu, Sigma) over e with the standard deviations of the resolution."""
    state, point = a_state(2), np.array([0.5, -1.0])
    noise = np.random.default_rng(2).normal(size=(200_000, 2)) * RESOLUTION
    mixture = of_clouds(mixture_of(state), RESOLUTION)
    for j in range(2):
        normal = st.multivariate_normal(state.means[j], state.covariances[j])
        values = normal.logpdf(point + noise)
        away = mixture.whiteners[j] @ (point - mixture.means[j])
        found = mixture.log_norms[j] - 0.5 * away @ away
        assert abs(values.mean() - found) < 4.5 * values.std() / np.sqrt(len(values))


def test_the_scatter_is_the_mean_scatter_of_clouds_and_counts_like_the_events() -> None:
    state = a_state(3)
    with_engine = CpuEngine(groups(), threads=1)
    stats = with_engine.draw_labels(mixture_of(state), Key(1, 0, 1))
    labels, rng = with_engine.labels(0), np.random.default_rng(3)
    with_engine.close()
    noise = rng.normal(size=(4_000, 300, 2)) * RESOLUTION
    for zeta in (1.0, 0.2):
        found = blurred(coarsened(stats, zeta), RESOLUTION)
        np.testing.assert_array_equal(found.sums, zeta * stats.sums)
        for j in range(3):
            away = groups()[labels == j] + noise[:, labels == j] - stats.centres[j]
            each = np.einsum("tni,tni->ti", away, away)
            expected, error = each.mean(axis=0), each.std(axis=0) / np.sqrt(len(each))
            assert np.all(np.abs(np.diag(found.scatters[j]) / zeta - expected) < 4.5 * error)


def test_without_a_resolution_nothing_changes() -> None:
    state = a_state()
    mixture = mixture_of(state)
    assert of_clouds(mixture, None) is mixture
    stats = Stats(np.ones(1), np.ones((1, 2)), np.eye(2)[None], np.zeros((1, 2)), 0.0)
    assert blurred(stats, None) is stats


def test_a_component_as_narrow_as_the_resolution_is_penalised_by_half_a_nat_per_channel() -> None:
    whiteners = np.diag(1.0 / RESOLUTION)[None]
    assert penalties(whiteners, RESOLUTION) == pytest.approx([1.0])


@pytest.mark.parametrize("zeta", [1.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_bayesian_em_climbs_the_posterior_of_clouds(zeta: float, seed: int) -> None:
    """With modes, no step lowers zeta times the log likelihood of clouds plus the log prior."""
    events = groups(seed=seed)
    state, values, live = a_state(), list[float](), list[int]()
    with_engine = CpuEngine(events, threads=1)
    for _ in range(40):
        mixture = of_clouds(mixture_of(state), RESOLUTION)
        stats = with_engine.expect_labels(mixture)
        values.append(zeta * stats.log_likelihood + log_prior(state, PRIOR))
        live.append(len(live_log1m_sticks(state.log1m_sticks)))
        state, _ = bem.step(state, stats, PRIOR, "mode", zeta=zeta, resolution=RESOLUTION)
    with_engine.close()
    rises = np.diff(values)[np.diff(live) == 0]
    assert rises.min() > -1e-6 * abs(values[-1])  # the engine has float32 densities
    assert values[-1] > values[0] + 1.0


def wrong_scatters(state: State, stats: Stats, zeta: float) -> State:
    return bem.step(state, stats, PRIOR, "mode", zeta=zeta)[0]


def wrong_scale(state: State, stats: Stats, zeta: float) -> State:
    return bem.step(state, stats, PRIOR, "mode", zeta=zeta, resolution=RESOLUTION / np.sqrt(zeta))[0]


@pytest.mark.parametrize("wrong", [wrong_scatters, wrong_scale])
def test_a_step_that_forgets_or_does_not_coarsen_the_resolution_falls(wrong: object) -> None:
    events, zeta, state, values = groups(), 0.1, a_state(), list[float]()
    with_engine = CpuEngine(events, threads=1)
    for _ in range(40):
        stats = with_engine.expect_labels(of_clouds(mixture_of(state), RESOLUTION))
        values.append(zeta * stats.log_likelihood + log_prior(state, PRIOR))
        state = wrong(state, stats, zeta)  # type: ignore[operator]
    with_engine.close()
    assert np.diff(values).min() < -1e-3


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("zeta", [1.0, 0.1])
def test_the_bound_of_samples_that_differ_never_falls(kind: str, zeta: float) -> None:
    events, state = shifted_groups(1), start(GROUPS[kind], 1, zeta)
    values, live = [], []
    for _ in range(40):
        stats = pass_on_clouds(events, state)
        values.append(value(state, stats, zeta))
        live.append(len(live_log1m_sticks(state.log1m_sticks)))
        state, _ = bem.step(state, stats, COHORT_PRIOR, "mode", zeta=zeta, resolution=RESOLUTION)
    rises = np.diff(values)[np.diff(live) == 0]
    assert rises.min() > -1e-8
    assert rises.sum() > 1.0


def pass_on_clouds(events: Array, state: State) -> Stats:
    """Return the statistics of an E step: the penalties are part of the weights of a sample."""
    assert state.cohort is not None
    assert state.cohort.factors is not None
    lower = state.cohort.factors.pass_weights - penalties(state.whiteners, RESOLUTION)
    factors = state.cohort.factors._replace(pass_weights=lower)
    return plain_pass(events, replace(state, cohort=replace(state.cohort, factors=factors)))


def test_a_sweep_uses_the_resolution_in_its_conditionals_and_moves() -> None:
    """All components of a chain on a spike are as wide as the resolution; without it they are narrow."""
    random = np.random.default_rng(4)
    events = (0.01 * random.normal(size=(400, 2))).astype(np.float32)
    widths = {}
    for name, resolution in (("clouds", RESOLUTION), ("points", None)):
        engine = CpuEngine(events, threads=1)
        state = initialise.from_kmeans(events, 400, 3, PRIOR, Stream(1, 0, 0), None, resolution)
        for sweep in range(1, 40):
            key = Key(1, 0, sweep)
            stats = engine.draw_labels(of_clouds(mixture_of(state), resolution), key)
            regroup = split_merge.round_of(engine.divide, key, resolution=resolution)
            state, _ = gibbs.sweep(state, stats, PRIOR, Stream(*key), regroup=regroup, resolution=resolution)
        engine.close()
        widths[name] = np.sqrt(np.diag(state.covariances[state.weights.argmax()]))
    np.testing.assert_allclose(widths["clouds"], RESOLUTION, rtol=0.25)
    assert (widths["points"] < 0.15).all()


def test_the_exact_density_of_a_run_is_that_of_clouds() -> None:
    """The engine's log likelihood is the sum of log sum pi_j exp E log N over the events."""
    state, events = a_state(3), groups()
    mixture = of_clouds(mixture_of(state), RESOLUTION)
    engine = CpuEngine(events, threads=1)
    stats = engine.draw_labels(mixture, Key(1, 0, 1))
    engine.close()
    logs = np.stack(
        [
            st.multivariate_normal(m, c).logpdf(events)
            - 0.5 * np.trace(np.linalg.inv(c) @ np.diag(RESOLUTION**2))
            for m, c in zip(state.means, state.covariances, strict=True)
        ],
        axis=1,
    )
    expected = logsumexp(state.log_weights + logs, axis=1).sum()
    assert stats.log_likelihood == pytest.approx(expected, rel=1e-5)
