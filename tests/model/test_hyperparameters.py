"""Compare the conditionals and modes of the hyperparameters with their exact distributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy import stats as st
from scipy.special import multigammaln

from dpmix.model import bem, gibbs, hyperparameters, normal_wishart
from dpmix.model.hyperparameters import Wishart
from dpmix.model.mixture import HYPERPARAMETERS, Array, Hyperparameters, State, Stats, no_events
from dpmix.model.prior import Prior, log_hyperprior, log_prior
from dpmix.model.streams import Step, Stream

# A correct sampler fails for about one choice of the seed in 500.
SMALL = 1e-4
PRIOR = Prior(
    np.array([0.5, -0.5, 0.2]),
    2.0,
    3.0,
    np.array([[1.0, 0.4, 0.0], [0.4, 0.8, -0.1], [0.0, -0.1, 0.5]]),
    2.0,
    1.0,
    frozenset({"alpha", *HYPERPARAMETERS}),
)
HYPER = Hyperparameters(
    np.array([0.3, 0.1, -0.4]), 4.0, 6.0, np.array([[0.7, 0.1, 0.2], [0.1, 0.5, 0.0], [0.2, 0.0, 0.9]])
)


def a_state(n_components: int = 7) -> State:
    """Return a state drawn from the model, with hyperparameters that differ from the prior's."""
    state = gibbs.draw_prior(PRIOR, n_components, None, Stream(3, 0, 0))
    empty = normal_wishart.posterior(no_events(n_components, 3), HYPER)
    means, covariances, whiteners = normal_wishart.draw_parameters(
        empty, Stream(4, 0, 0).step(Step.PARAMETERS)
    )
    return replace(state, means=means, covariances=covariances, whiteners=whiteners, hyperparameters=HYPER)


def learning(*names: str) -> Prior:
    return replace(PRIOR, learned=frozenset(names))


def drawn(name: str, count: int, state: State | None = None) -> Array:
    """Return draws of one hyperparameter, given the components of a state and the others, [count, ...]."""
    state = state or a_state()
    components = hyperparameters.summarise(state.means, state.whiteners, HYPER.m)
    rng, prior = np.random.default_rng(7), learning(name)
    return np.array(
        [getattr(hyperparameters.draw(components, HYPER, prior, rng), name) for _ in range(count)]
    )


def log_joint(hyper: Hyperparameters, state: State | None = None) -> float:
    """Return the joint log density as a function of the hyperparameters."""
    return log_prior(replace(state or a_state(), hyperparameters=hyper), PRIOR)


def z_scores(sample: Array, mean: Array, variance: Array) -> Array:
    return (sample.mean(axis=0) - mean) / np.sqrt(variance / len(sample))


def cdf_on_a_grid(values: Array, log_density: Array) -> tuple[Array, Array]:
    density = np.exp(log_density - log_density.max())
    cumulative = integrate.cumulative_trapezoid(density, values, initial=0.0)
    return values, cumulative / cumulative[-1]


# Conditionals


@pytest.mark.slow
def test_gamma_has_its_conditional() -> None:
    grid = np.geomspace(PRIOR.gamma_least, 100.0, 4000)
    log_density = np.array([log_joint(replace(HYPER, gamma=value)) for value in grid])
    values, cumulative = cdf_on_a_grid(grid, log_density)
    gammas = drawn("gamma", 4000)
    assert st.kstest(gammas, lambda x: np.interp(x, values, cumulative)).pvalue > SMALL
    state = a_state()
    spread = sum(
        (m - HYPER.m) @ np.linalg.inv(c) @ (m - HYPER.m)
        for m, c in zip(state.means, state.covariances, strict=True)
    )
    exact = st.gamma(0.5 + 0.5 * 7 * 3, scale=1 / (0.5 * PRIOR.gamma + 0.5 * spread))
    assert st.kstest(1 / gammas, lambda x: exact.cdf(x) / exact.cdf(1.0)).pvalue > SMALL
    assert gammas.min() >= 1.0


@pytest.mark.parametrize("centre", [0.2, 1.0, 5.0])
def test_gamma_of_components_that_are_copies_stays_above_its_bound(centre: float) -> None:
    """The unrestricted conditional lies below the bound: the draws are close to it, and no draw is at it."""
    prior = replace(learning("gamma"), gamma=centre)
    components = hyperparameters.Components(20, np.eye(3), np.zeros(3), 2.0 * centre, 0.0)
    shape, scale = hyperparameters.gamma_conditional(components, prior)
    exact, bound = st.gamma(shape, scale=1.0 / scale), 2.0 / centre
    rng, hyper = np.random.default_rng(8), replace(HYPER, gamma=centre)
    draws = [hyperparameters.draw(components, hyper, prior, rng).gamma for _ in range(2000)]
    log_bound = exact.logcdf(bound)
    assert st.kstest(1 / np.array(draws), lambda x: np.exp(exact.logcdf(x) - log_bound)).pvalue > SMALL
    assert hyperparameters.modes(components, hyper, prior).gamma == 0.5 * centre


def test_m_has_its_conditional() -> None:
    state = a_state()
    precisions = np.linalg.inv(state.covariances) / HYPER.gamma
    weak = np.linalg.inv(PRIOR.gamma * PRIOR.phi)
    covariance = np.linalg.inv(weak + precisions.sum(axis=0))
    mean = covariance @ (weak @ PRIOR.m + np.einsum("kij,kj->i", precisions, state.means))
    draws = drawn("m", 8000)
    assert np.abs(z_scores(draws, mean, np.diag(covariance))).max() < 4.5
    whitened = (draws - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert st.kstest(whitened.ravel(), "norm").pvalue > SMALL
    assert st.kstest(np.square(whitened).sum(axis=1), st.chi2(3).cdf).pvalue > SMALL


def test_nu_has_its_conditional() -> None:
    state = a_state()
    log_density = np.array(
        [
            sum(st.invwishart(nu + 4, nu * HYPER.phi).logpdf(c) for c in state.covariances)
            for nu in PRIOR.nu_grid
        ]
    )
    expected = np.exp(log_density - log_density.max())
    expected /= expected.sum()
    draws = drawn("nu", 5000)
    assert np.isin(draws, PRIOR.nu_grid).all()
    counts = np.array([(draws == nu).sum() for nu in PRIOR.nu_grid])
    usual = expected * len(draws) >= 10
    assert usual.sum() > 5
    table = np.append(counts[usual], counts[~usual].sum())
    chances = np.append(expected[usual], expected[~usual].sum())
    assert st.chisquare(table, chances * len(draws)).pvalue > SMALL


def test_phi_has_its_conditional() -> None:
    state = a_state()
    total = np.linalg.inv(state.covariances).sum(axis=0)
    scale = np.linalg.inv(5 * np.linalg.inv(PRIOR.phi) + HYPER.nu * total)
    exact = st.wishart(5 + 7 * (HYPER.nu + 4), scale)
    draws = drawn("phi", 6000)
    assert np.abs(z_scores(draws, exact.mean(), exact.var())).max() < 4.5
    assert st.kstest(draws[:, 2, 2] / scale[2, 2], st.chi2(exact.df).cdf).pvalue > SMALL
    determinants = np.linalg.slogdet(draws)[1]
    reference = np.linalg.slogdet(exact.rvs(6000, random_state=1))[1]
    assert st.ks_2samp(determinants, reference).pvalue > SMALL


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_each_is_switched_on_its_own(name: str) -> None:
    state = a_state()
    stats = no_events(7, 3)
    stats.counts[:] = 1.0
    for following in (
        gibbs.sweep(state, stats, learning(name), Stream(1, 0, 1))[0],
        bem.step(state, stats, learning(name))[0],
    ):
        for other in HYPERPARAMETERS:
            same = np.array_equal(getattr(following.hyperparameters, other), getattr(HYPER, other))
            assert same == (other != name)
        assert following.alpha == state.alpha


def test_components_without_events_have_no_effect() -> None:
    state, stats = a_state(), no_events(7, 3)
    stats.counts[:4] = 5.0
    other = replace(state, means=np.concatenate((state.means[:4], state.means[4:] + 9.0)))
    for move in (
        lambda s: gibbs.sweep(s, stats, PRIOR, Stream(1, 0, 1))[0].hyperparameters,
        lambda s: bem.step(s, stats, PRIOR)[0].hyperparameters,
    ):
        one, two = move(state), move(other)
        assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in HYPERPARAMETERS)


def test_bayesian_em_ignores_components_without_events() -> None:
    stats = some_stats()
    stats.counts[4:], stats.sums[4:], stats.scatters[4:] = 0.0, 0.0, 0.0
    few = Stats(stats.counts[:4], stats.sums[:4], stats.scatters[:4], stats.centres[:4], 0.0)
    one, two = (bem.step(a_state(n), s, PRIOR)[0].hyperparameters for n, s in ((7, stats), (4, few)))
    for name in HYPERPARAMETERS:
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-12)


# The restriction of Phi


def restricted(least: float) -> Wishart:
    scale = np.array([[1.0, 0.3, 0.0], [0.3, 0.6, 0.04], [0.0, 0.04, 0.02]])
    return Wishart(9.0, np.linalg.inv(scale), least * np.diag([1.0, 2.0, 0.5]))


def test_channels_are_redrawn_from_the_restricted_distribution() -> None:
    """The moves leave it invariant: independent draws after a move are compared with others without."""
    wishart = restricted(0.2)
    rng = np.random.default_rng(5)
    whole = st.wishart(wishart.dof, np.linalg.inv(wishart.inverse)).rvs(12_000, random_state=2)
    inside = whole[np.linalg.eigvalsh(whole - wishart.least)[:, 0] > 0]
    assert 3000 < len(inside) < 9000
    before, start = np.array_split(inside, 2)
    after = np.array([hyperparameters.redraw_channels(wishart, phi, rng) for phi in start])
    assert (np.linalg.eigvalsh(after - wishart.least)[:, 0] > 0).all()
    assert (after != start).any(axis=(1, 2)).mean() > 0.9
    for value in (
        lambda phi: phi[:, 0, 0],
        lambda phi: phi[:, 2, 2],
        lambda phi: phi[:, 0, 2],
        lambda phi: np.linalg.slogdet(phi)[1],
        lambda phi: np.linalg.eigvalsh(phi - wishart.least)[:, 0],
    ):
        assert st.ks_2samp(value(before), value(after)).pvalue > SMALL


@pytest.mark.slow
def test_both_ways_to_draw_phi_agree() -> None:
    wishart = restricted(0.02)
    rng = np.random.default_rng(6)
    whole = np.array([hyperparameters.draw_wishart(wishart, np.eye(3), rng) for _ in range(3000)])
    phi, walked = whole[0], []
    for _ in range(9000):
        phi = hyperparameters.redraw_channels(wishart, phi, rng)
        walked.append(phi)
    assert (np.linalg.eigvalsh(whole - wishart.least)[:, 0] > 0).all()
    for i, j in ((0, 0), (2, 2), (1, 2), (0, 1)):
        assert st.ks_2samp(whole[:, i, j], np.array(walked)[::3, i, j]).pvalue > SMALL


def test_phi_far_below_its_least_is_drawn_above_it() -> None:
    """This happens with events piled at one value: Phi is the bound plus a steep exponential there."""
    scale = np.diag([1.0, 1e-9])
    wishart = Wishart(60.0, np.linalg.inv(scale), 0.01 * np.eye(2))
    rng, phi, draws = np.random.default_rng(8), np.eye(2), []
    for _ in range(3010):
        phi = hyperparameters.draw_wishart(wishart, phi, rng)
        draws.append(phi)
    draws = draws[10:]
    excess = (np.array(draws)[:, 1, 1] - 0.01) / 2e-9
    assert excess.min() > 0
    assert excess.mean() == pytest.approx(1.5, rel=0.15)  # of Wishart(D + 1 = 3): chi-square with 3, halved
    assert st.kstest(np.array(draws)[::10, 0, 0], st.chi2(60).cdf).pvalue > SMALL


def test_phi_is_drawn_from_the_boundary_at_which_bayesian_em_may_end() -> None:
    wishart = Wishart(60.0, np.diag([1e9, 1e9, 1e9]), 0.01 * np.eye(3))
    mode = hyperparameters.wishart_mode(wishart)
    assert mode == pytest.approx(wishart.least)
    drawn = hyperparameters.draw_wishart(wishart, wishart.least, np.random.default_rng(1))
    assert np.linalg.eigvalsh(drawn - wishart.least)[0] > 0


@pytest.mark.parametrize(
    ("least", "shape"), [(0.5, 1.0), (3.0, 7.5), (12.0, 7.5), (30.0, 1.5), (900.0, 800.0)]
)
def test_a_gamma_variate_above_a_bound(least: float, shape: float) -> None:
    rng = np.random.default_rng(9)
    draws = [hyperparameters.gamma_above(least, shape, rng) for _ in range(3000)]
    gamma = st.gamma(shape)
    assert st.kstest(draws, lambda x: 1.0 - gamma.sf(x) / gamma.sf(least)).pvalue > SMALL


@pytest.mark.parametrize(("most", "shape"), [(2.5, 0.5), (0.5, 1.0), (0.6, 2.0), (3.0, 4.0), (20.0, 300.0)])
def test_a_gamma_variate_below_a_bound(most: float, shape: float) -> None:
    rng = np.random.default_rng(3)
    draws = [hyperparameters.gamma_below(most, shape, rng) for _ in range(3000)]
    gamma = st.gamma(shape)
    bound = gamma.logcdf(most)
    assert st.kstest(draws, lambda x: np.exp(gamma.logcdf(x) - bound)).pvalue > SMALL


@pytest.mark.parametrize("least", [1e-6, 0.5, 20.0])
def test_the_mode_of_a_restricted_wishart(least: float) -> None:
    wishart = restricted(least)
    mode = hyperparameters.wishart_mode(wishart)
    root = np.linalg.cholesky(wishart.least)
    lower = np.tril_indices(3)

    def deficit(numbers: Array) -> float:
        factor = np.zeros((3, 3))
        factor[lower] = numbers
        phi = wishart.least + factor @ factor.T  # any matrix above the least
        log_det = np.linalg.slogdet(phi)[1]
        return float(0.5 * np.sum(wishart.inverse * phi) - 0.5 * (wishart.dof - 4) * log_det)

    found = optimize.minimize(deficit, root[lower], method="BFGS")
    factor = np.zeros((3, 3))
    factor[lower] = found.x
    assert mode == pytest.approx(wishart.least + factor @ factor.T, rel=1e-3, abs=1e-3)
    assert np.linalg.eigvalsh(mode - wishart.least)[0] > -1e-12


# Densities


def test_the_hyperprior_is_the_sum_of_its_densities() -> None:
    parts = {
        "m": st.multivariate_normal(PRIOR.m, PRIOR.gamma * PRIOR.phi).logpdf(HYPER.m),
        "gamma": st.invgamma(0.5, scale=0.5 * PRIOR.gamma).logpdf(HYPER.gamma)
        - st.invgamma(0.5, scale=0.5 * PRIOR.gamma).logsf(0.5 * PRIOR.gamma),
        "nu": -np.log(97),
        "phi": st.wishart(5, PRIOR.phi / 5).logpdf(HYPER.phi),
    }
    for name, expected in parts.items():
        assert log_hyperprior(HYPER, learning(name)) == pytest.approx(expected, rel=1e-10)
    assert log_hyperprior(HYPER, PRIOR) == pytest.approx(sum(parts.values()), rel=1e-10)
    assert log_hyperprior(HYPER, learning("alpha")) == 0.0
    state = a_state()
    fixed = log_prior(state, learning("alpha"))
    assert log_prior(state, PRIOR) == pytest.approx(fixed + sum(parts.values()), rel=1e-10)


def test_draws_from_the_prior_have_its_moments() -> None:
    draws = [hyperparameters.draw_prior(PRIOR, np.random.default_rng([1, r])) for r in range(4000)]
    m = np.array([draw.m for draw in draws])
    covariance = PRIOR.gamma * PRIOR.phi
    assert np.abs(z_scores(m, PRIOR.m, np.diag(covariance))).max() < 4.5
    gammas = st.invgamma(0.5, scale=0.5 * PRIOR.gamma)
    above = gammas.sf(0.5 * PRIOR.gamma)
    found = [draw.gamma for draw in draws]
    assert st.kstest(found, lambda x: 1.0 - gammas.sf(x) / above).pvalue > SMALL
    steps = np.array([np.flatnonzero(PRIOR.nu_grid == draw.nu)[0] for draw in draws])
    assert st.chisquare(np.bincount(steps, minlength=97)).pvalue > SMALL
    phi = np.array([draw.phi for draw in draws])
    wishart = st.wishart(5, PRIOR.phi / 5)
    assert np.abs(z_scores(phi, wishart.mean(), wishart.var())).max() < 4.5
    assert PRIOR.nu_grid[48] == PRIOR.nu


# Bayesian EM


def some_stats() -> Stats:
    """Return statistics of weighted events: many, few, a fraction of one, and none."""
    rng = np.random.default_rng(10)
    stats = no_events(7, 3)
    for j, count in enumerate((200.0, 50.0, 9.0, 3.0, 0.4, 1e-3, 0.0)):
        x = rng.normal(size=(12, 3)) * rng.uniform(0.3, 1.5, size=3)
        stats.counts[j], stats.centres[j] = count, rng.normal(scale=2.0, size=3)
        stats.sums[j] = count * 0.1 * rng.normal(size=3)
        stats.scatters[j] = count * (x.T @ x) / 12 + np.outer(stats.sums[j], stats.sums[j]) / max(count, 1e-9)
    return stats


def objective(hyper: Hyperparameters, stats: Stats) -> float:
    """Return log p(hyperparameters) plus the log density of the weighted events, up to a constant.

    The components are integrated out (Gelman et al. 2013, Bayesian Data Analysis, 3rd edition, section 3.6).
    """
    dim, dof = 3, hyper.nu + 4
    conditional = normal_wishart.posterior(stats, hyper)
    value = log_hyperprior(hyper, PRIOR)
    for j in range(len(stats.counts)):
        value += 0.5 * dof * np.linalg.slogdet(hyper.nu * hyper.phi)[1] - multigammaln(0.5 * dof, dim)
        value -= 0.5 * conditional.dofs[j] * np.linalg.slogdet(conditional.scales[j])[1]
        value += multigammaln(0.5 * conditional.dofs[j], dim)
        value -= 0.5 * dim * np.log(hyper.gamma * conditional.precisions[j])
    return float(value)


@pytest.mark.slow
@pytest.mark.parametrize("learned", [HYPERPARAMETERS, *((name,) for name in HYPERPARAMETERS)])
def test_bayesian_em_climbs_to_the_top_of_its_objective(learned: tuple[str, ...]) -> None:
    stats, prior = some_stats(), learning(*learned)
    hyper = replace(PRIOR.centre, nu=float(PRIOR.nu_grid[80]))
    values = [objective(hyper, stats)]
    for _ in range(400):
        components = bem.expected_components(
            normal_wishart.posterior(stats, hyper), stats.counts > 0, hyper.m
        )
        hyper = hyperparameters.modes(components, hyper, prior)
        values.append(objective(hyper, stats))
    assert np.diff(values).min() > -1e-9
    assert values[-1] > values[0] + 0.1
    if "nu" in learned:
        ways = [objective(replace(hyper, nu=float(nu)), stats) for nu in prior.nu_grid]
        assert abs(int(np.argmax(ways)) - int(np.flatnonzero(prior.nu_grid == hyper.nu)[0])) <= 4
    for name in set(learned) - {"nu"}:
        here = getattr(hyper, name)
        for change in np.atleast_1d(np.eye(3)) if name == "m" else (1.0,):
            for step in (0.02, -0.02):
                there = here * (1 + step) if name != "m" else here + step * change
                assert objective(replace(hyper, **{name: there}), stats) < values[-1], name
