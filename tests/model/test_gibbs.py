"""Each conditional of the Gibbs sweep has its exact moments.

test_joint_distribution.py tests the whole sweep.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from reference import ReferenceEngine
from scipy import stats as st

from dpmix.model import gibbs, label_swaps, normal_wishart, stick_breaking
from dpmix.model.mixture import HYPERPARAMETERS, Array, State, Stats, log_weights, mixture_of, no_events
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Key, Step, Stream

PRIOR = Prior(np.array([0.5, -0.5]), 2.0, 3.0, np.array([[1.0, 0.4], [0.4, 0.8]]), 2.0, 1.0)
LEARNED = replace(PRIOR, learned=frozenset({"alpha", *HYPERPARAMETERS}))
COMPONENTS, EVENTS = 4, 12
# A correct sampler fails for about one choice of the seed in 500.
SMALL = 1e-4


def simulate_events(state: State, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    labels = rng.choice(COMPONENTS, size=EVENTS, p=state.weights / state.weights.sum())
    roots = np.linalg.cholesky(state.covariances)[labels]
    noise = np.einsum("nij,nj->ni", roots, rng.standard_normal((EVENTS, 2)))
    return (state.means[labels] + noise).astype(np.float32)


def test_draws_without_learning_are_what_they_always_were() -> None:
    """The numbers are from the first version, which had fixed hyperparameters."""
    state = gibbs.draw_prior(PRIOR, COMPONENTS, None, Stream(7, 0, 0))
    engine = ReferenceEngine(simulate_events(state, np.random.default_rng(8)))
    stats = engine.draw_labels(mixture_of(state), Key(7, 0, 1))
    fixed, _ = gibbs.sweep(state, stats, PRIOR, Stream(7, 0, 1))
    # only the last bits may differ: linear algebra depends on the processor
    assert state.alpha == pytest.approx(3.651861756483129, rel=1e-12)
    assert fixed.alpha == pytest.approx(1.7045667479367452, rel=1e-12)
    first = [-2.3476897983996023, 0.8801765914159698, 0.12248979699644241, -0.7713691888105798]
    assert fixed.means[:, 0] == pytest.approx(first, rel=1e-9)
    assert fixed.covariances[0, 0] == pytest.approx([0.9307297497322805, 0.7988913368330429], rel=1e-9)
    assert log_prior(fixed, PRIOR) == pytest.approx(-13.908508509275084, rel=1e-9)
    assert all(np.array_equal(getattr(fixed.hyperparameters, n), getattr(PRIOR, n)) for n in HYPERPARAMETERS)


def test_learning_takes_its_random_numbers_from_a_stream_of_its_own() -> None:
    state = gibbs.draw_prior(PRIOR, COMPONENTS, None, Stream(7, 0, 0))
    learned = gibbs.draw_prior(LEARNED, COMPONENTS, None, Stream(7, 0, 0))
    assert learned.alpha == state.alpha
    assert np.array_equal(learned.log_sticks, state.log_sticks)
    stats = no_events(COMPONENTS, 2)
    stats.counts[:2] = 3.0
    fixed, _ = gibbs.sweep(state, stats, PRIOR, Stream(7, 0, 1))
    moved, _ = gibbs.sweep(state, stats, LEARNED, Stream(7, 0, 1))
    assert moved.alpha == fixed.alpha
    assert np.array_equal(moved.log_sticks, fixed.log_sticks)
    assert len(set(Step.__members__.values())) == len(Step.__members__)
    assert not np.array_equal(moved.means, fixed.means)


def test_label_swaps_leave_labels_and_sticks_as_they_are() -> None:
    """The prior of (alpha, sticks, labels), without data, shows any error in the ratio of a swap."""
    rng, fast = np.random.default_rng(11), Stream(11, 0, 0).fast_step(Step.STICKS)
    counts_before, counts_after, first_before, first_after = [], [], [], []
    for _ in range(6000):
        alpha = float(rng.gamma(2.0, 0.7))
        sticks = stick_breaking.draw_sticks(np.zeros(COMPONENTS), alpha, fast)
        weights = np.exp(log_weights(sticks.log_sticks, sticks.log1m_sticks))
        counts = rng.multinomial(5, weights / weights.sum()).astype(float)
        order, moved, _ = label_swaps.swap_labels(counts, sticks, alpha, fast)
        after = counts[order]
        counts_after.append(int(after @ [216, 36, 6, 1]))
        first_after.append(moved.log_sticks[1] * (1 + after[1]))
        sticks = stick_breaking.draw_sticks(np.zeros(COMPONENTS), alpha, fast)
        weights = np.exp(log_weights(sticks.log_sticks, sticks.log1m_sticks))
        counts = rng.multinomial(5, weights / weights.sum()).astype(float)
        counts_before.append(int(counts @ [216, 36, 6, 1]))
        first_before.append(sticks.log_sticks[1] * (1 + counts[1]))
    kinds = sorted(set(counts_before) | set(counts_after))
    table = np.array([[side.count(kind) for kind in kinds] for side in (counts_before, counts_after)])
    assert st.chi2_contingency(table[:, table.sum(axis=0) >= 20]).pvalue > SMALL
    assert st.ks_2samp(first_before, first_after).pvalue > SMALL


def test_a_sweep_returns_the_former_numbers_of_its_components() -> None:
    """Passes are pruned by this order, from the label swaps, which draw no parameters."""
    state = gibbs.draw_prior(PRIOR, COMPONENTS, None, Stream(7, 0, 0))
    stats = no_events(COMPONENTS, 2)
    stats.counts[:] = [3.0, 0.0, 40.0, 1.0]
    stays, info = gibbs.sweep(state, stats, PRIOR, Stream(7, 0, 1), label_swaps=False)
    assert info.order is None
    moved, info = gibbs.sweep(state, stats, PRIOR, Stream(7, 0, 1))
    assert info.order is not None
    assert info.order.tolist() != [0, 1, 2, 3]
    assert np.array_equal(moved.means, stays.means[info.order])


def test_a_sweep_counts_its_label_swaps() -> None:
    """The three kinds try K swaps, and swaps of K - 2 and K - 1 neighbours. Empty pairs do not count."""
    state = gibbs.draw_prior(PRIOR, COMPONENTS, None, Stream(7, 0, 0))

    def info_of(counts: list[float], *, label_swaps: bool = True) -> gibbs.SweepInfo:
        stats = replace(no_events(COMPONENTS, 2), counts=np.array(counts))
        return gibbs.sweep(state, stats, PRIOR, Stream(7, 0, 1), label_swaps=label_swaps)[1]

    full = info_of([3.0, 2.0, 40.0, 1.0])
    assert full.swaps_proposed == 4 + 2 + 3
    assert 0 < full.swaps_accepted < 9
    empty = info_of([0.0, 0.0, 0.0, 0.0])
    assert (empty.swaps_proposed, empty.swaps_accepted) == (0, 0)
    without = info_of([3.0, 2.0, 40.0, 1.0], label_swaps=False)
    assert without == gibbs.SweepInfo(None)


def test_swaps_of_empty_neighbours_are_not_counted() -> None:
    rng, log1m_sticks = np.random.default_rng(1), np.log(np.full(5, 0.5))
    for counts, proposed in (([0.0] * 6, 0), ([0.0, 0.0, 0.0, 0.0, 0.0, 5.0], 0), ([5.0] * 6, 4)):
        swaps = label_swaps.exchange_with_sticks(np.array(counts), log1m_sticks, rng).swaps
        assert swaps == (proposed, proposed)  # equal counts and sticks: the ratio is 1


def z_scores(sample: Array, mean: Array, variance: Array) -> Array:
    """Return z-scores of the sample mean over the first axis."""
    return (sample.mean(axis=0) - mean) / np.sqrt(variance / len(sample))


def test_parameters_have_the_moments_of_the_normal_inverse_wishart() -> None:
    rng = np.random.default_rng(3)
    events = rng.normal(size=(30, 2)) @ np.array([[1.0, 0.0], [0.7, 0.5]]) + [2.0, -1.0]
    centre = np.array([1.5, -0.5])
    away = events - centre
    one = Stats(np.array([30.0]), away.sum(0)[None], (away.T @ away)[None], centre[None], 0.0)
    repeated = Stats(
        *(np.repeat(a, 20_000, axis=0) for a in (one.counts, one.sums, one.scatters, one.centres)), 0.0
    )
    means, covariances, whiteners = normal_wishart.draw_parameters(
        normal_wishart.posterior(repeated, PRIOR), Stream(5, 0, 1).step(Step.PARAMETERS)
    )
    # the textbook's update (Gelman et al. 2013, Bayesian Data Analysis, 3rd edition, section 3.6)
    kappa = 1 / PRIOR.gamma
    average = events.mean(0)
    scatter = (events - average).T @ (events - average)
    offset = average - PRIOR.m
    scale = PRIOR.nu * PRIOR.phi + scatter + kappa * 30 / (kappa + 30) * np.outer(offset, offset)
    dof = PRIOR.nu + 3 + 30
    expected = (kappa * PRIOR.m + 30 * average) / (kappa + 30)
    precision = np.einsum("nki,nkj->nij", whiteners, whiteners)
    wishart = st.wishart(dof, np.linalg.inv(scale))
    assert np.abs(z_scores(precision, wishart.mean(), wishart.var())).max() < 4.5
    spread = scale / (dof - 3) / (kappa + 30)
    assert np.abs(z_scores(means, expected, np.diag(spread))).max() < 4.5
    products = (means - expected)[:, :, None] * (means - expected)[:, None, :]
    assert np.abs(products.mean(0) / spread - 1).max() < 0.06
    assert np.allclose(np.linalg.inv(precision), covariances)
    fit = st.kstest(precision[:, 0, 0] / np.linalg.inv(scale)[0, 0], st.chi2(dof).cdf)
    assert fit.pvalue > SMALL
    # a mean whitened by its own covariance is standard normal, and independent of that covariance
    standard = np.einsum("nij,nj->ni", whiteners, means - expected) * np.sqrt(kappa + 30)
    assert st.kstest(standard.ravel(), "norm").pvalue > SMALL


def test_sticks_and_alpha_have_their_conditionals() -> None:
    counts, alpha = np.array([5.0, 0.0, 2.0, 1.0]), 0.3
    rng, fast = np.random.default_rng(6), Stream(6, 0, 0).fast_step(Step.STICKS)
    draws = [stick_breaking.draw_sticks(counts, alpha, fast) for _ in range(4000)]
    for j, (a, b) in enumerate([(6, 3.3), (1, 3.3), (3, 1.3)]):
        assert st.kstest([np.exp(d.log_sticks[j]) for d in draws], st.beta(a, b).cdf).pvalue > SMALL
        assert np.allclose([np.exp(d.log_sticks[j]) + np.exp(d.log1m_sticks[j]) for d in draws], 1.0)
    log1m_sticks = np.log([0.5, 0.9, 0.2])
    alphas = [stick_breaking.draw_alpha(log1m_sticks, PRIOR, rng) for _ in range(4000)]
    exact = st.gamma(PRIOR.alpha_shape + 3, scale=1 / (PRIOR.alpha_rate - log1m_sticks.sum()))
    assert st.kstest(alphas, exact.cdf).pvalue > SMALL


def test_sticks_stay_finite_where_a_stick_rounds_to_one() -> None:
    counts = np.zeros(50)
    counts[0] = 1e9
    sticks = stick_breaking.draw_sticks(counts, 1e-3, Stream(1, 0, 0).fast_step(Step.STICKS))
    assert np.isfinite(sticks.log_sticks).all()
    assert np.isfinite(sticks.log1m_sticks).all()
    assert np.isfinite(log_weights(sticks.log_sticks, sticks.log1m_sticks)).all()


def test_a_single_component_has_all_events_and_weight() -> None:
    state = gibbs.draw_prior(PRIOR, 1, None, Stream(3, 0, 0))
    engine = ReferenceEngine(np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32))
    stats = engine.draw_labels(mixture_of(state), Key(1, 0, 1))
    state, _ = gibbs.sweep(state, stats, PRIOR, Stream(3, 0, 1))
    assert state.weights.tolist() == [1.0]
    assert stats.counts.tolist() == [20.0]


def test_alpha_of_a_vague_prior_stays_above_zero() -> None:
    """Gamma(0.001) variates round to 0, which would lead to infinite logs."""
    prior = Prior(np.zeros(2), 5.0, 2.0, 0.3 * np.eye(2), 1e-3, 1e-3)
    drawn = [gibbs.draw_prior(prior, 6, None, Stream(1, chain, 0)) for chain in range(50)]
    assert min(state.alpha for state in drawn) == stick_breaking.LEAST_ALPHA
    for state in drawn:
        following, _ = gibbs.sweep(state, no_events(6, 2), prior, Stream(1, 0, 1))
        assert np.isfinite([log_prior(state, prior), log_prior(following, prior)]).all()


def test_alpha_is_kept_unless_it_is_learned() -> None:
    state = gibbs.draw_prior(PRIOR, 3, 2.0, Stream(3, 0, 0))
    fixed = replace(PRIOR, learned=frozenset())
    after, _ = gibbs.sweep(state, no_events(3, 2), fixed, Stream(3, 0, 1))
    assert after.alpha == 2.0
