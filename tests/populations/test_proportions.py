"""Weights of populations in a sample that may differ from its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import dirichlet, norm

from dpmix.populations.events import proportions
from dpmix.populations.events.proportions import (
    draw_populations,
    ratios,
    representatives,
    sample_weights,
)

Array = np.ndarray

# Six populations; the last is rare and lies 4 standard deviations from the first.
WEIGHTS = np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
MEANS = np.array([0.0, 9.0, 15.0, 21.0, 27.0, 4.0])


def of_run(values: Array, weights: Array, means: Array) -> Array:
    """Return memberships with the weights of the run, float32 [M, P]."""
    terms = weights * norm.pdf(values[:, None], means)
    return (terms / terms.sum(axis=1, keepdims=True)).astype(np.float32)


def by_sample(shares: Array, weights: Array, n_draws: int, seed: int = 1) -> Array:
    """Draw a sample's weights for a run with equal draws, float64 [T, P]."""
    every, each = np.tile(weights, (n_draws, 1)), np.ones(len(shares))
    return sample_weights([shares] * n_draws, every, each, np.random.default_rng(seed))


def reweighted(shares: Array, own: Array, weights: Array) -> Array:
    """Return memberships with the sample's weights, averaged over the draws, float64 [M, P]."""
    terms = shares * ratios(own, np.broadcast_to(weights, own.shape))[:, None].astype(float)
    mean: Array = (terms / terms.sum(axis=2, keepdims=True)).mean(axis=0)
    return mean


# ---------------------------------------------------------------------------- against enumeration


def exact(shares: Array, weights: Array, concentrations: Sequence[float]) -> tuple[Array, Array]:
    """Compute memberships and mean weights of a sample by summation over all labels and concentrations."""
    n_events, n_populations = shares.shape
    total, memberships, means = 0.0, np.zeros(shares.shape), np.zeros(n_populations)
    for labels in product(range(n_populations), repeat=n_events):
        counts = np.bincount(labels, minlength=n_populations)
        seen = np.prod(shares[np.arange(n_events), labels] / weights[list(labels)])
        for a in concentrations:
            logs = (gammaln(a * weights + counts) - gammaln(a * weights)).sum()
            chance = seen * np.exp(logs + gammaln(a) - gammaln(a + n_events))
            total += chance
            memberships[np.arange(n_events), labels] += chance
            means += chance * (a * weights + counts) / (a + n_events)
    return memberships / total, means / total


@pytest.mark.parametrize("values", [[1.6], [1.2, 2.9, 3.1, 4.2]])
def test_gibbs_draws_have_the_posterior(values: list[float]) -> None:
    """With other concentrations, the same events have other memberships."""
    weights, means = np.array([0.7, 0.3]), np.array([0.0, 3.0])
    shares = of_run(np.array(values), weights, means)
    own = by_sample(shares, weights, 6_000)
    memberships, mean = exact(shares.astype(float), weights, proportions.CONCENTRATIONS)
    found = reweighted(shares, own, weights)
    parts = own.reshape(20, -1, 2).mean(axis=1)  # successive draws are correlated
    error = parts.std(axis=0, ddof=1) / np.sqrt(20)
    assert (np.abs(own.mean(axis=0) - mean) < 4.0 * error).all()
    np.testing.assert_allclose(found, memberships, atol=0.012)
    if len(values) > 1:
        wrong, _ = exact(shares.astype(float), weights, [1.0])
        assert np.abs(wrong - memberships).max() > 0.03
        assert np.abs(shares - memberships).max() > 0.03  # the run's
    else:  # one event has no information about proportions
        np.testing.assert_allclose(memberships, shares, atol=1e-6)


# ---------------------------------------------------------------------------- many samples


def labelled(own: Array, n_events: int, seed: int) -> tuple[Array, Array]:
    """Draw labels of a sample with these proportions, and its memberships with the run's weights."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(own), n_events, p=own)
    values = MEANS[labels] + rng.standard_normal(n_events)
    return labels, of_run(values, WEIGHTS, MEANS)


def surprise(own: Array, judge: Callable[[Array], Array]) -> float:
    """Return the mean of -log p of the true populations in 40 samples of 300 events."""
    logs = []
    for seed in range(40):
        labels, shares = labelled(own, 300, seed)
        logs.append(-np.log(np.maximum(judge(shares)[np.arange(300), labels], 1e-12)).mean())
    return float(np.mean(logs))


def judge(shares: Array) -> Array:
    return reweighted(shares, by_sample(shares, WEIGHTS, 40), WEIGHTS)


def test_memberships_adapt_to_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """They equal the run's in similar samples and are better in others; a prior of one event fails."""
    unlike = np.array([0.4, 0.2, 0.15, 0.1, 0.04, 0.11])
    known = WEIGHTS, unlike
    best = [surprise(own, lambda shares, own=own: reweighted(shares, own[None], WEIGHTS)) for own in known]
    learned = [surprise(own, judge) for own in known]
    by_run = surprise(unlike, lambda shares: shares)
    assert learned[0] < 1.05 * best[0]
    assert learned[1] < 1.05 * best[1]
    assert by_run > 1.5 * best[1]
    monkeypatch.setattr(proportions, "CONCENTRATIONS", np.ones(1))
    assert surprise(WEIGHTS, judge) > 1.15 * best[0]


# ---------------------------------------------------------------------------- representative events


def test_all_events_of_small_samples_and_rare_populations_are_used() -> None:
    labels = np.random.default_rng(2).choice(3, 60_000, p=[0.9, 0.0995, 0.0005])
    rows, each = representatives(labels, 3)
    assert len(rows) == len(each) <= proportions.MOST_EVENTS
    assert (np.diff(rows) > 0).all()
    np.testing.assert_allclose(np.bincount(labels[rows], each), np.bincount(labels))
    assert (each[labels[rows] == 2] == 1.0).all()
    rows, each = representatives(labels[:20_000], 3)
    np.testing.assert_array_equal(rows, np.arange(20_000))
    assert (each == 1.0).all()


def test_a_large_sample_needs_only_representative_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A population with 24 of 40,000 events gets the same weight from 2,000 events as from all."""
    own = np.array([0.2994, 0.1, 0.3, 0.1, 0.2, 0.0006])
    _, shares = labelled(own, 40_000, seed=3)
    roughly = shares.argmax(axis=1)

    def found(most: int) -> Array:
        monkeypatch.setattr(proportions, "MOST_EVENTS", most)
        rows, each = representatives(roughly, 6)
        every = np.tile(WEIGHTS, (30, 1))
        return sample_weights([shares[rows]] * 30, every, each, np.random.default_rng(4))

    whole, part = found(40_000), found(2_000)
    np.testing.assert_allclose(whole.mean(axis=0), own, rtol=0.05, atol=3e-4)
    np.testing.assert_allclose(part.mean(axis=0), whole.mean(axis=0), rtol=0.03, atol=4e-4)
    assert (part[:, 5] > 1e-4).all()
    # A regular subsample has at most one event of that population and would miss it.
    every = np.tile(WEIGHTS, (30, 1))
    strided = sample_weights([shares[::20]] * 30, every, np.full(2_000, 20.0), np.random.default_rng(4))
    assert np.median(strided[:, 5]) < 1e-6


# ---------------------------------------------------------------------------- arithmetic


def test_populations_without_weight_in_a_draw_have_none_in_the_sample() -> None:
    weights = np.array([[0.6, 0.4, 0.0], [0.5, 1e-310, 0.5], [0.6, 0.4, 0.0]])
    shares = np.array([[[0.9, 0.1, 0.0]] * 5, [[0.2, 0.0, 0.8]] * 5, [[0.0, 1.0, 0.0]] * 5], np.float32)
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        own = sample_weights(shares, weights, np.ones(5), np.random.default_rng(1))
        by = ratios(own, weights)
    np.testing.assert_allclose(own.sum(axis=1), 1.0)
    assert own[0, 2] == own[2, 2] == by[0, 2] == by[2, 2] == 0.0
    assert np.isfinite(by).all()
    terms = shares * by[:, None]
    assert (terms.sum(axis=2) > 0.0).all()


def test_an_event_belongs_to_the_only_population_that_explains_it() -> None:
    """The weight of the population in the sample may be tiny."""
    by = ratios(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    assert draw_populations((np.float32([[0.0, 1.0]]) * by).T, np.zeros(1, np.float32)).tolist() == [1]
    assert draw_populations((np.float32([[0.5, 0.5]]) * by).T, np.full(1, 0.99, np.float32)).tolist() == [0]


def test_populations_are_drawn_by_their_terms() -> None:
    terms = np.repeat(np.float32([[0.0], [3.0], [0.0], [1.0], [0.0]]), 40_000, axis=1)
    uniforms = np.random.default_rng(5).random(40_000, np.float32)
    uniforms[:2] = [0.0, 1.0 - 2.0**-24]
    drawn = np.bincount(draw_populations(terms, uniforms), minlength=5)
    assert drawn[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(drawn[1] - 30_000) < 4.0 * np.sqrt(40_000 * 0.75 * 0.25)


def test_one_draw_has_the_mean_of_iterations() -> None:
    """Bayesian EM has one draw; its memberships must not have the noise of one draw."""
    _, shares = labelled(WEIGHTS, 50, seed=6)
    found = [by_sample(shares, WEIGHTS, 1, seed)[0, 0] for seed in range(40)]
    drawn = [by_sample(shares, WEIGHTS, 2, seed)[0, 0] for seed in range(40)]
    assert np.std(found) < 0.6 * np.std(drawn)


def test_proportions_of_few_events_are_dirichlet() -> None:
    """Compare moments of 20,000 draws with the moments for the counts plus one event, spread evenly."""
    counts = np.array([0, 3, 12])
    draws = proportions.posterior(np.broadcast_to(counts, (20_000, 1, 3)), seed=3)[:, 0]
    shapes = dirichlet(counts + 1.0 / 3.0)
    error = np.sqrt(shapes.var() / len(draws))
    assert (np.abs(draws.mean(axis=0) - shapes.mean()) < 4.0 * error).all()
    np.testing.assert_allclose(draws.var(axis=0), shapes.var(), rtol=0.2)


def test_the_mean_of_the_posterior_is_the_average_of_dirichlet_means() -> None:
    counts = np.array([[[270, 30], [0, 5]], [[280, 20], [1, 4]]])
    found = proportions.posterior_mean(counts[:1])
    np.testing.assert_allclose(found, [[270.5 / 301, 30.5 / 301], [0.5 / 6, 5.5 / 6]], rtol=1e-12)
    own = proportions.posterior_mean(counts[:1], np.array([[8.0, 2.0]]))
    np.testing.assert_allclose(own, [[278 / 310, 32 / 310], [8 / 15, 7 / 15]], rtol=1e-12)
    both = proportions.posterior_mean(counts)
    np.testing.assert_allclose(both, [[275.5 / 301, 25.5 / 301], [1 / 6, 5 / 6]], rtol=1e-12)
