"""Bayesian EM: the step compared with the textbook's formulas, and its path on data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from reference import ReferenceEngine
from scipy import optimize
from scipy import stats as st
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from whole_runs import a_config, write_events

from dpmix import open_run
from dpmix.model import bem, gibbs, normal_wishart
from dpmix.model.mixture import HYPERPARAMETERS, State, Stats, live_log1m_sticks, mixture_of, no_events
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Stream
from dpmix.runs import initialise
from dpmix.runs.bem import run_bem

PRIOR = Prior(np.zeros(2), 4.0, 3.0, 0.5 * np.eye(2), 1.5, 1.0)


def three_groups(n_events: int = 600) -> np.ndarray:
    rng = np.random.default_rng(4)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 3.0]])
    labels = rng.choice(3, size=n_events, p=[0.5, 0.3, 0.2])
    return (centres[labels] + rng.normal(scale=0.6, size=(n_events, 2))).astype(np.float32)


@dataclass
class Way:
    """A climb: states, log posteriors, sticks before the first at 1, empty and newly emptied components."""

    states: list[State]
    values: np.ndarray
    live: np.ndarray
    empty: np.ndarray
    emptied: np.ndarray

    @property
    def rises(self) -> np.ndarray:
        """Relative change of the log posterior in each step that does not shorten the mixture."""
        return (np.diff(self.values) / np.abs(self.values[1:]))[np.diff(self.live) == 0]


def climb(
    events: np.ndarray, state: State, prior: Prior, steps: int, update: bem.Update, copies: float = 1.0
) -> Way:
    """Run Bayesian EM; each event counts `copies` times."""
    engine = ReferenceEngine(events)
    states, values, live, empty, emptied = [state], [], [], [], []
    for _ in range(steps):
        seen = engine.expect_labels(mixture_of(states[-1]))
        stats = Stats(
            copies * seen.counts,
            copies * seen.sums,
            copies * seen.scatters,
            seen.centres,
            copies * seen.log_likelihood,
        )
        values.append(stats.log_likelihood + log_prior(states[-1], prior))
        live.append(len(live_log1m_sticks(states[-1].log1m_sticks)))
        following, info = bem.step(states[-1], stats, prior, update)
        empty.append(info.empty)
        emptied.append(info.emptied)
        states.append(following)
    return Way(states, np.array(values), np.array(live), np.array(empty), np.array(emptied))


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
    gamma = st.gamma(PRIOR.alpha_shape + 3, scale=1 / (PRIOR.alpha_rate - sticks.log1m_sticks.sum()))
    mode = optimize.minimize_scalar(lambda a: -gamma.logpdf(a), bounds=(0, 50), method="bounded").x
    assert bem.modal_alpha(sticks.log1m_sticks, PRIOR, 9.0) == pytest.approx(mode, abs=1e-4)


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
    assert not np.isnan(sticks.log1m_sticks).any()
    assert np.isfinite(bem.modal_alpha(sticks.log1m_sticks, PRIOR, 1.0))


def test_alpha_stays_where_its_conditional_has_no_mode() -> None:
    flat = Prior(PRIOR.m, PRIOR.gamma, PRIOR.nu, PRIOR.phi, 0.5, 1.0)
    with np.errstate(divide="ignore"):
        assert bem.modal_alpha(np.log1p(-np.array([1.0, 0.2])), flat, 0.8) == 0.8


def test_the_climb_finds_the_groups_and_empties_the_rest() -> None:
    events = three_groups()
    start = initialise.from_kmeans(events, len(events), 12, PRIOR, Stream(1, 0, 0))
    way = climb(events, start, PRIOR, 300, "mean")
    assert np.isfinite(way.values).all()
    assert way.values[-1] > way.values[0] + 20
    assert abs(way.values[-1] - way.values[-2]) < 1e-4 * abs(way.values[-1])
    end = way.states[-1]
    heavy = end.weights > 0.05
    assert end.weights[heavy].sum() > 0.9
    for centre in ([0, 0], [4, 1], [-3, 3]):
        assert np.abs(end.means[heavy] - centre).sum(axis=1).min() < 0.5


def test_emptied_components_leave_finite_numbers() -> None:
    state = initialise.from_kmeans(three_groups(), 600, 5, PRIOR, Stream(1, 0, 0))
    stats = no_events(5, 2)
    stats.counts[0] = 600.0
    stats.scatters[0] = 600 * np.eye(2)
    after, info = bem.step(state, stats, PRIOR)
    assert info.empty == 4
    assert info.emptied == 3  # the last component has no stick, and takes the remaining stick
    assert np.isfinite(log_prior(after, PRIOR))
    assert np.isfinite(after.alpha)
    assert after.weights.sum() == pytest.approx(1.0)


# Monotonicity


def test_a_step_to_modes_goes_to_the_joint_mode_of_a_component() -> None:
    """No other (mu, Sigma) has a higher density; the posterior mean has a lower one."""
    events = three_groups(30)
    stats = ReferenceEngine(events).expect_labels(mixture_of(one_component(events)))
    conditional = normal_wishart.posterior(stats, PRIOR)

    def density(mean: np.ndarray, covariance: np.ndarray) -> float:
        spread = st.multivariate_normal(conditional.means[0], covariance / conditional.precisions[0])
        return float(
            spread.logpdf(mean) + st.invwishart(conditional.dofs[0], conditional.scales[0]).logpdf(covariance)
        )

    def deficit(numbers: np.ndarray) -> float:
        factor = np.array([[np.exp(numbers[2]), 0.0], [numbers[3], np.exp(numbers[4])]])
        return -density(numbers[:2], factor @ factor.T)

    means, covariances, whiteners = bem.modal_parameters(stats, PRIOR)
    found = optimize.minimize(deficit, np.zeros(5), method="BFGS", options={"gtol": 1e-7})
    assert density(means[0], covariances[0]) == pytest.approx(-found.fun, abs=1e-9)
    assert means[0] == pytest.approx(found.x[:2], abs=1e-5)
    assert whiteners[0].T @ whiteners[0] == pytest.approx(np.linalg.inv(covariances[0]))
    expected = bem.expected_parameters(stats, PRIOR)
    assert density(expected[0][0], expected[1][0]) < density(means[0], covariances[0]) - 0.1


def test_posterior_means_may_lower_the_log_posterior() -> None:
    """The counterexample is a single component at the joint mode.

    The update "mean" keeps its mean and multiplies its covariance by c = (dof + D + 2) / (dof - D - 1): the
    log posterior falls by (dof + D + 2) D (log c + 1 / c - 1) / 2.
    """
    events = three_groups(30)
    start = one_component(events)
    there = climb(events, start, PRIOR, 2, "mode").states[1]
    way = climb(events, there, PRIOR, 2, "mean")
    dof = PRIOR.nu + 3 + 30
    c = (dof + 4) / (dof - 3)
    assert way.values[1] - way.values[0] == pytest.approx(-(dof + 4) * (np.log(c) + 1 / c - 1), rel=1e-6)
    assert way.values[1] < way.values[0] - 0.6
    stays = climb(events, there, PRIOR, 2, "mode")
    assert stays.values[1] == pytest.approx(stays.values[0], rel=1e-13)


def one_component(events: np.ndarray) -> State:
    return initialise.from_kmeans(events, len(events), 1, PRIOR, Stream(1, 0, 0))


def test_modes_are_narrower_and_keep_more_components() -> None:
    """This is why the paper's update is the default."""
    events, prior = three_groups(), replace(PRIOR, learned=frozenset({"alpha"}))
    start = initialise.from_random_events(events, 600, 16, prior, Stream(0, 0, 0))
    ends = {u: climb(events, start, prior, 150, u).states[-1] for u in ("mean", "mode")}
    sizes = {u: int((end.weights > 0.01).sum()) for u, end in ends.items()}
    widths = {u: end.weights @ np.einsum("kii->k", end.covariances) for u, end in ends.items()}
    assert sizes["mean"] < sizes["mode"]
    assert widths["mode"] < 0.9 * widths["mean"]


LEARNED = ((), ("alpha",), ("alpha", "gamma", "nu", "phi"), ("alpha", *HYPERPARAMETERS), ("m", "phi"))


def ways(update: bem.Update, seeds: range) -> list[tuple[Prior, Way]]:
    """Return climbs on varied data, from all kinds of starts, under priors that suit the data or do not."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        dim, count, n_events = rng.integers(1, 4), int(rng.integers(1, 11)), int(rng.integers(5, 200))
        centres = rng.normal(scale=rng.choice([1.0, 4.0, 10.0]), size=(rng.integers(1, 5), dim))
        noise = rng.normal(scale=rng.choice([0.2, 1.0]), size=(n_events, dim))
        events = (centres[rng.integers(len(centres), size=n_events)] + noise).astype(np.float32)
        gamma, nu, phi, shape, rate = 10.0 ** rng.uniform([-1, -1, -1.5, -1, -1], [2, 1.5, 1, 1, 1])
        rate = shape if seed % 9 == 0 else rate  # alpha starts at 1
        learned = frozenset(LEARNED[seed % 5])
        prior = Prior(np.zeros(dim), gamma, nu, phi * np.eye(dim), shape, rate, learned)
        stream = Stream(seed, 0, 0)
        start = (
            initialise.from_kmeans(events, n_events, count, prior, stream),
            initialise.from_random_events(events, n_events, count, prior, stream),
            gibbs.draw_prior(prior, count, None, stream),
        )[seed % 3]
        found.append((prior, climb(events, start, prior, 40, update)))
    return found


def test_with_modes_the_log_posterior_never_falls() -> None:
    """This holds up to rounding and the weight floor, except in the few steps in which a stick reaches 1.

    From such a step on, the log posterior is a shorter mixture's. With alpha of 1 or more it does not fall in
    such a step either.
    """
    cut = at_one = emptied = gone = 0
    for prior, way in ways("mode", range(45)):
        assert np.isfinite(way.values).all()
        assert way.rises.min(initial=0.0) > -1e-12
        assert (np.diff(way.live) <= 0).all()
        at_zero = [int(np.isneginf(state.log_weights).sum()) for state in (way.states[0], way.states[-1])]
        assert way.emptied.min() >= 0
        assert way.emptied.sum() == at_zero[1] - at_zero[0]
        gone += at_zero[1] - at_zero[0]
        cut += way.live[-1] < way.live[0]
        emptied += way.empty[-1] > 0
        if "alpha" not in prior.learned and way.states[0].alpha >= 1:
            at_one += way.live[-1] < way.live[0]
            assert (np.diff(way.values) > -1e-12 * np.abs(way.values[1:])).all()
    assert cut >= 8
    assert emptied >= 15
    assert at_one >= 1
    assert gone >= 30


def test_with_means_it_falls_in_the_same_climbs() -> None:
    """This is the control of the test above, which fails with the paper's update."""
    falls = [way.rises.min(initial=0.0) < -1e-6 for _, way in ways("mean", range(15))]
    assert np.mean(falls) > 0.4


def test_a_stick_that_has_reached_1_stays_there() -> None:
    """This holds even if alpha has grown since, and the mode of the stick's conditional is below 1."""
    prior = replace(PRIOR, learned=frozenset())
    state = initialise.from_kmeans(three_groups(), 600, 4, prior, Stream(1, 0, 0))
    sticks = bem.modal_sticks(np.array([300.0, 300.0, 0.0, 0.0]), 0.5, np.zeros(3, bool))
    ended = replace(state, alpha=5.0, log_sticks=sticks.log_sticks, log1m_sticks=sticks.log1m_sticks)
    way = climb(three_groups(), ended, prior, 60, "mode")
    assert (way.live == 1).all()
    assert way.rises.min() > -1e-12
    assert way.states[-1].weights[2:].tolist() == [0.0, 0.0]
    end = way.states[-1]
    counts = np.append(600 * end.weights[:2], [0.0, 0.0])
    come_back = bem.modal_sticks(counts, 5.0, np.zeros(3, bool))
    other = replace(end, log_sticks=come_back.log_sticks, log1m_sticks=come_back.log1m_sticks)
    assert climb(three_groups(), other, prior, 1, "mode").values[0] < way.values[-1] - 5


@pytest.mark.parametrize("learn", [["alpha"], ["alpha", "m", "gamma", "nu", "phi"]])
def test_a_run_climbs_as_its_config_says(tmp_path: Path, learn: list[str]) -> None:
    write_events(tmp_path / "events.npy", 3000)
    traces = {}
    for update in ("mean", "mode"):
        settings = {"starts": 2, "max_steps": 40, "tolerance": 1e-13, "update": update}
        config = a_config(tmp_path, f"{update}.h5", bem=settings, model={"components": 12, "learn": learn})
        found = open_run(run_bem(config).path)
        assert found.config["bem"]["update"] == update
        traces[update] = found.trace["log_posterior"]
    falls = {update: np.nanmin(np.diff(trace) / np.abs(trace[:, 1:])) for update, trace in traces.items()}
    assert falls["mode"] > -1e-7  # densities of the engine are float32
    assert falls["mean"] < -2e-6


# Comparison with scikit-learn


def test_one_component_is_the_posterior_of_scikit_learn() -> None:
    """With one component variational Bayes is exact.

    scikit-learn gives the mean of the normal inverse Wishart posterior, and its scale matrix divided by the
    degrees of freedom.
    """
    events = three_groups(60).astype(np.float64)
    theirs = variational(1, PRIOR).fit(events)
    dof = theirs.degrees_of_freedom_[0]
    assert dof == PRIOR.nu + 3 + 60
    for update, divisor in (("mean", dof - 3), ("mode", dof + 4)):
        end = climb(events.astype(np.float32), one_component(events), PRIOR, 2, update).states[-1]
        assert end.means == pytest.approx(theirs.means_, rel=1e-9)
        assert end.covariances == pytest.approx(theirs.covariances_ * dof / divisor, rel=1e-9)


@pytest.mark.parametrize("update", ["mean", "mode"])
def test_groups_far_apart_end_at_the_posterior_of_scikit_learn(update: bem.Update) -> None:
    """If the label of each event is certain, both fixed points belong to the same posterior given the labels.

    scikit-learn has the whole posterior of its truncated Dirichlet process, dpmix its means or modes.
    """
    rng = np.random.default_rng(3)
    centres = np.repeat([[0.0, 0.0], [60.0, 0.0], [0.0, 60.0]], [90, 60, 30], axis=0)
    events = (centres + rng.normal(size=(180, 2))).astype(np.float32)
    prior = replace(PRIOR, gamma=400.0, learned=frozenset())
    theirs = variational(3, prior).fit(events.astype(np.float64))
    start = initialise.from_kmeans(events, 180, 3, prior, Stream(1, 0, 0))
    away = np.square(start.means - theirs.means_[:, None]).sum(axis=2)
    start = replace(start, means=start.means[away.argmin(axis=1)])  # sticks depend on the order
    end = climb(events, start, prior, 10, update).states[-1]
    theirs_a, theirs_b = theirs.weight_concentration_
    dofs = theirs.degrees_of_freedom_[:, None, None]
    assert end.means == pytest.approx(theirs.means_, rel=1e-7, abs=1e-7)
    assert end.covariances * (dofs - 3 if update == "mean" else dofs + 4) == pytest.approx(
        theirs.covariances_ * dofs, rel=1e-6, abs=1e-6
    )
    modes = (theirs_a - 1) / (theirs_a + theirs_b - 2)
    assert end.sticks == pytest.approx(modes[:-1], rel=1e-9)


@pytest.mark.parametrize("update", ["mean", "mode"])
def test_very_many_events_end_at_the_maximum_likelihood_of_scikit_learn(update: bem.Update) -> None:
    """Each event counts 1e9 times, so that the prior has no weight; groups overlap."""
    rng = np.random.default_rng(5)
    centres = np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]], [125, 75, 50], axis=0)
    events = (centres + rng.normal(size=(250, 2))).astype(np.float32)
    prior = replace(PRIOR, learned=frozenset())
    start = initialise.from_kmeans(events, 250, 3, prior, Stream(1, 0, 0))
    theirs = GaussianMixture(
        3,
        tol=1e-13,
        reg_covar=0.0,
        max_iter=3000,
        weights_init=start.weights,
        means_init=start.means,
        precisions_init=np.linalg.inv(start.covariances),
    ).fit(events.astype(np.float64))
    assert theirs.converged_
    way = climb(events, start, prior, 150, update, copies=1e9)
    end = way.states[-1]
    assert end.weights == pytest.approx(theirs.weights_, abs=1e-5)
    assert end.means == pytest.approx(theirs.means_, abs=1e-4)
    assert end.covariances == pytest.approx(theirs.covariances_, abs=1e-4)
    assert way.values[-1] / 250e9 == pytest.approx(theirs.score(events.astype(np.float64)), abs=1e-6)
    few = climb(events, start, prior, 60, update).states[-1]  # with these 250 events the prior has weight
    assert np.abs(few.covariances - theirs.covariances_).max() > 1e-2


def variational(n_components: int, prior: Prior) -> BayesianGaussianMixture:
    """Return scikit-learn's variational Bayes under the same prior, with alpha at its prior mean."""
    return BayesianGaussianMixture(
        n_components=n_components,
        tol=1e-12,
        reg_covar=0.0,
        max_iter=1000,
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=initialise.alpha_start(prior),
        mean_precision_prior=1.0 / prior.gamma,
        mean_prior=prior.m,
        degrees_of_freedom_prior=prior.nu + 3,
        covariance_prior=prior.nu * prior.phi,
        random_state=0,
    )
