"""Compare the densities of the model with scipy.stats, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as st

from dpmix.model import gibbs
from dpmix.model.mixture import SampleStats, live_log1m_sticks, log_weights, mixture_of, no_events
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Step, Stream


def a_prior(dim: int = 3) -> Prior:
    rng = np.random.default_rng(dim)
    root = rng.normal(size=(dim, dim + 2))
    return Prior(rng.normal(size=dim), 2.5, 3.5, root @ root.T / dim, 2.0, 1.5)


def test_log_prior_is_the_sum_of_the_densities_of_the_model() -> None:
    prior = a_prior()
    dim = len(prior.m)
    state = gibbs.draw_prior(prior, 4, None, Stream(1, 0, 0))
    expected = st.gamma(prior.alpha_shape, scale=1 / prior.alpha_rate).logpdf(state.alpha)
    expected += st.beta(1, state.alpha).logpdf(state.sticks).sum()
    for mean, covariance in zip(state.means, state.covariances, strict=True):
        expected += st.invwishart(prior.nu + dim + 1, prior.nu * prior.phi).logpdf(covariance)
        expected += st.multivariate_normal(prior.m, prior.gamma * covariance).logpdf(mean)
    assert log_prior(state, prior) == pytest.approx(expected, rel=1e-10)


def test_the_mixture_has_the_normal_densities_of_the_state() -> None:
    prior = a_prior()
    state = gibbs.draw_prior(prior, 4, 2.0, Stream(2, 0, 0))
    mixture = mixture_of(state)
    point = np.array([0.3, -1.0, 2.0])
    for j in range(4):
        whitened = mixture.whiteners[j] @ (point - mixture.means[j])
        density = mixture.log_norms[j] - 0.5 * whitened @ whitened
        expected = st.multivariate_normal(state.means[j], state.covariances[j]).logpdf(point)
        assert density == pytest.approx(expected, rel=1e-10)
        assert np.array_equal(np.triu(state.whiteners[j], 1), np.zeros((3, 3)))


def test_weights_are_the_broken_stick() -> None:
    sticks = np.array([0.5, 0.25, 0.8])
    weights = np.exp(log_weights(np.log(sticks), np.log1p(-sticks)))
    assert weights == pytest.approx([0.5, 0.125, 0.5 * 0.75 * 0.8, 0.5 * 0.75 * 0.2])


def test_a_stick_at_one_ends_the_sum_over_sticks() -> None:
    with np.errstate(divide="ignore"):
        log1m_sticks = np.log1p(-np.array([0.5, 1.0, 0.3]))
    assert live_log1m_sticks(log1m_sticks).tolist() == [np.log(0.5)]


def test_statistics_add_only_about_the_same_centre() -> None:
    one = replace(no_events(2, 3), by_sample=SampleStats(np.ones((4, 2)), np.ones((4, 2, 3))))
    both = one + one
    assert both.counts.tolist() == [0.0, 0.0]
    assert both.by_sample is not None
    assert (both.by_sample.counts == 2.0).all()
    assert (both.by_sample.sums == 2.0).all()
    other = replace(one, centres=one.centres + 1)
    with pytest.raises(ValueError, match="centres"):
        one + other


def test_streams_depend_on_their_key_alone() -> None:
    def first(seed: int, chain: int, iteration: int, step: Step) -> float:
        return float(Stream(seed, chain, iteration).step(step).random())

    keys = [(s, c, i, p) for s in (1, 2) for c in (0, 1) for i in (0, 1) for p in (Step.ALPHA, Step.STICKS)]
    assert len({first(*key) for key in keys}) == len(keys)
    assert first(1, 0, 7, Step.ALPHA) == first(1, 0, 7, Step.ALPHA)
