"""Bayesian EM of the hierarchical model: its bound, its updates, and steps that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as st
from scipy.special import logsumexp, psi

from dpmix.engines.cohort import CohortEngine
from dpmix.model import bem, cohort, cohort_bem, gibbs
from dpmix.model.mixture import Factors, SampleStats, State, Stats, Sticks, live_log1m_sticks, mixture_of
from dpmix.model.prior import SHIFT_DOF, Prior, log_prior
from dpmix.model.streams import Stream

PRIOR = replace(
    Prior(np.zeros(2), 4.0, 3.0, 0.5 * np.eye(2), 1.5, 1.0, frozenset({"alpha", "gamma"})),
    kappa_shape=2.0,
    kappa_rate=0.2,
    shift_scale=0.5,
)
GROUPS = {"none": np.full(4, -1), "sample": np.arange(4), "batch": np.array([0, 1, 2, 1])}
EACH, K = 60, 5


def shifted_groups(seed: int) -> np.ndarray:
    """Four samples of three groups: their proportions and their places differ."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 3.0]])
    samples = []
    for weights in rng.dirichlet(np.ones(3), 4):
        own = centres[rng.choice(3, size=EACH, p=weights)] + rng.normal(scale=0.4, size=2)
        samples.append(own + rng.normal(scale=0.6, size=(EACH, 2)))
    return np.concatenate(samples).astype(np.float32)


def start(groups: np.ndarray, seed: int, zeta: float = 1.0, components: int = K) -> State:
    plain = gibbs.draw_prior(PRIOR, components, None, Stream(seed, 0, 0))
    shares = np.full(len(groups), 1.0 / len(groups))
    own = cohort.start(plain.log_base_weights, shares, groups, PRIOR)
    return cohort_bem.start(replace(plain, cohort=own), np.full(len(groups), zeta * EACH))


def plain_pass(events: np.ndarray, state: State) -> Stats:
    """Return the statistics of an E step, by SciPy in float64."""
    own = state.cohort
    weights, shifts = own.factors.pass_weights, own.sample_shifts
    logs, moved = [], []
    for s, mine in enumerate(np.split(events.astype(float), len(own.groups))):
        moved.append(mine - shifts[s])
        densities = [
            st.multivariate_normal(m, c).logpdf(moved[-1])
            for m, c in zip(state.means, state.covariances, strict=True)
        ]
        logs.append(weights[s] + np.stack(densities, axis=1))
    shares = np.exp(np.array(logs) - logsumexp(logs, axis=2, keepdims=True))  # [S, n, K]
    away = np.array(moved)[:, :, None] - state.means  # [S, n, K, D]
    sums = np.einsum("snk,snkd->skd", shares, away)
    scatters = np.einsum("snk,snkd,snke->kde", shares, away, away)
    by_sample = SampleStats(shares.sum(axis=1), sums)
    likelihood = float(logsumexp(logs, axis=2).sum())
    return Stats(by_sample.counts.sum(axis=0), sums.sum(axis=0), scatters, state.means, likelihood, by_sample)


def value(state: State, stats: Stats, zeta: float = 1.0) -> float:
    added = cohort_bem.bound(state.cohort, state.log_base_weights, PRIOR)
    return zeta * stats.log_likelihood + log_prior(state, PRIOR) + added


def climb(events: np.ndarray, state: State, steps: int, zeta: float) -> tuple[State, np.ndarray]:
    """Return the state after some steps, and the bound's changes in those that do not shorten the mixture."""
    values, live = [], []
    for step in range(steps + 1):
        stats = plain_pass(events, state)
        values.append(value(state, stats, zeta))
        live.append(len(live_log1m_sticks(state.log1m_sticks)))
        if step < steps:
            state, _ = bem.step(state, stats, PRIOR, "mode", zeta=zeta)
    return state, np.diff(values)[np.diff(live) == 0]


@pytest.mark.parametrize(("groups", "zeta"), [("none", 1.0), ("sample", 0.1), ("batch", 1.0)])
def test_the_bound_never_falls(groups: str, zeta: float) -> None:
    for seed in range(3):
        _, rises = climb(shifted_groups(seed), start(GROUPS[groups], seed, zeta), 40, zeta)
        assert rises.min() > -1e-8
        assert rises.sum() > 1.0


def without_spread_of_squares(squares: np.ndarray, n_groups: int, prior: Prior) -> np.ndarray:
    return right_taus(0.5 * squares, n_groups, prior)


def only_expected_logs(shapes: np.ndarray, spread: np.ndarray, whiteners: np.ndarray) -> np.ndarray:
    return psi(shapes) - psi(shapes.sum(axis=1, keepdims=True))


right_taus = cohort_bem.modal_taus


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (cohort_bem, "modal_taus", without_spread_of_squares),
        (cohort_bem, "pass_weights", only_expected_logs),
    ],
    ids=["tau of half the squares", "weights without spread"],
)
def test_a_wrong_step_lets_the_bound_fall(
    owner: object, name: str, wrong: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = shifted_groups(0)
    state, _ = climb(events, start(GROUPS["sample"], 0), 150, 1.0)
    assert climb(events, state, 3, 1.0)[1].min() > -1e-8
    monkeypatch.setattr(owner, name, wrong)
    assert climb(events, state, 3, 1.0)[1].min() < -1e-5


def test_the_bound_is_that_of_the_plain_definition() -> None:
    """Two samples, one channel, two components: the shifts are e and -e, the weights beta variables."""
    prior = replace(PRIOR, m=np.zeros(1), phi=np.eye(1), learned=frozenset())
    rng = np.random.default_rng(2)
    events, means, sds = rng.normal(size=(2, 3)), np.array([-0.5, 1.0]), np.array([0.8, 1.2])
    shapes, free = (
        np.array([[2.5, 1.5], [0.7, 3.0]]),
        np.array([0.3, 0.2]),
    )  # of pi_s; variances of the shifts
    log_base, kappa, tau, at = np.log([0.6, 0.4]), 1.7, 0.6, 0.25
    sizes = shapes.sum(axis=1)
    own = cohort.start(log_base, np.full(2, 0.5), np.arange(2), prior)
    own = replace(
        own, kappa=kappa, taus=np.array([tau]), shifts=np.array([[at], [-at]]),
        log_weights=np.log(shapes / sizes[:, None]),
        factors=Factors(sizes, free[:, None, None], np.empty((2, 2))),
    )  # fmt: skip
    spread = st.norm(at, np.sqrt(free[0] * free[1] / free.sum()))  # e given that both sum to 0
    nodes = spread.ppf((np.arange(200_000) + 0.5) / 200_000)
    pi = [st.beta(*row) for row in shapes]
    expected = [[law.expect(np.log), law.expect(lambda p: np.log1p(-p))] for law in pi]
    logs = [
        [expected[s][j] + st.norm(means[j] + sign * nodes, sds[j]).logpdf(x).mean() for j in range(2)]
        for s, sign in enumerate((1.0, -1.0))
        for x in events[s]
    ]
    plain = logsumexp(logs, axis=1).sum()
    plain += (st.norm(0, tau / np.sqrt(2)).logpdf(nodes) - spread.logpdf(nodes)).mean()
    prior_pi = st.beta(*(kappa * np.exp(log_base)))
    for (first, second), law in zip(expected, pi, strict=True):
        a, b = prior_pi.args
        plain += (a - 1) * first + (b - 1) * second + law.entropy()
        plain += prior_pi.logpdf(0.5) - (a + b - 2) * np.log(0.5)  # the log of the constant
    plain += st.gamma(prior.kappa_shape, scale=1 / prior.kappa_rate).logpdf(kappa)
    plain += st.t(SHIFT_DOF, scale=prior.shift_scale).logpdf(tau) + np.log(2)
    weights = cohort_bem.pass_weights(
        shapes, cohort_bem.given_their_sum(free[:, None, None]), (1 / sds)[:, None, None]
    )
    found = cohort_bem.bound(own, log_base, prior)
    for s, sign in enumerate((1.0, -1.0)):
        densities = st.norm(means + sign * at, sds).logpdf(events[s][:, None])
        found += logsumexp(weights[s] + densities, axis=1).sum()
    assert found == pytest.approx(plain, abs=1e-4)


def test_tau_goes_to_its_mode() -> None:
    squares, n_groups = np.array([0.7, 30.0]), 4
    for found, square in zip(cohort_bem.modal_taus(squares, n_groups, PRIOR), squares, strict=True):
        half_t = st.t(SHIFT_DOF, scale=PRIOR.shift_scale)

        def density(tau: float, square: float = square, half_t: object = half_t) -> float:
            return (n_groups - 1) * np.log(tau) + square / (2 * tau**2) - half_t.logpdf(tau)

        mode = optimize.minimize_scalar(density, bounds=(0.01, 20), method="bounded").x
        assert found == pytest.approx(mode, rel=1e-4)


def test_steps_of_the_weights_end_at_the_maximum() -> None:
    state = start(GROUPS["none"], 1, components=3)
    counts, alpha = (
        np.array([[30.0, 0.4, 9.0], [3.0, 2.5, 50.0], [8.0, 1.0, 0.1], [5.0, 0.0, 7.0]]),
        state.alpha,
    )
    for _ in range(1500):
        sticks, kappa = cohort_bem.move_weights(state, counts, PRIOR)
        state = replace(state, **sticks._asdict(), cohort=replace(state.cohort, kappa=kappa))

    def negative(x: np.ndarray) -> float:
        v = 1 / (1 + np.exp(-x[:2]))
        sticks = Sticks(np.log(v), np.log1p(-v))
        return -cohort_bem.weights_bound(sticks, float(np.exp(x[2])), counts, alpha, PRIOR)

    best = optimize.minimize(
        negative, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12}
    )
    assert state.sticks == pytest.approx(1 / (1 + np.exp(-best.x[:2])), rel=1e-3)
    assert state.cohort.kappa == pytest.approx(np.exp(best.x[2]), rel=1e-3)


def test_the_engine_makes_the_same_steps() -> None:
    events = shifted_groups(3)
    state = start(GROUPS["batch"], 3)
    engine = CohortEngine(events, EACH * np.arange(5))
    for _ in range(3):
        plain, found = plain_pass(events, state), engine.expect_labels(mixture_of(state))
        assert found.log_likelihood == pytest.approx(plain.log_likelihood, rel=1e-5)
        state, _ = bem.step(state, plain, PRIOR, "mode")
        other, _ = bem.step(state, found, PRIOR, "mode")
        assert found.by_sample.counts == pytest.approx(plain.by_sample.counts, abs=1e-3)
        assert np.isfinite(other.cohort.kappa)
    engine.close()
