"""Alternating sweeps and simulations of the events leave the joint distribution invariant (`comparisons`)."""

from __future__ import annotations

import numpy as np
import pytest
from comparisons import FAMILY, family_wise, joint_distribution, prior_draws, same_distribution, worst
from scipy import stats as st
from whole_chain import FIXED, LEARNED, Case, Sampler

from dpmix.model import normal_wishart
from dpmix.model.mixture import Hyperparameters, Stats, no_events

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(False, False)])
def test_the_joint_distribution_is_kept(sampler: Sampler) -> None:
    """And as `short_tests`, which has label swaps without split-merge moves."""
    p_values = joint_distribution(FIXED, 60, 25, sampler)
    assert family_wise(p_values) > FAMILY, worst(p_values)


def test_the_joint_distribution_is_kept_where_all_is_learned() -> None:
    p_values = joint_distribution(LEARNED, 250, 6, Sampler())
    assert family_wise(p_values) > FAMILY, worst(p_values)


@pytest.mark.parametrize("case", [FIXED, LEARNED])
def test_draws_from_the_prior_are_those_of_scipy(case: Case) -> None:
    p_values = prior_draws(case, 600)
    assert family_wise(p_values) > FAMILY, worst(p_values)


def test_a_sweep_that_forgets_the_events_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a sweep keeps the distribution of all parameters, but they do not depend on the events."""
    right = normal_wishart.posterior

    def of_nothing(stats: Stats, hyper: Hyperparameters) -> normal_wishart.Posterior:
        return right(no_events(len(stats.counts), len(hyper.m)), hyper)

    monkeypatch.setattr(normal_wishart, "posterior", of_nothing)
    p_values = joint_distribution(FIXED, 20, 10, Sampler(split_merge=False))
    assert p_values["log likelihood, shift"] < FAMILY / len(p_values)


def test_ranks_see_a_shift_and_a_spread_through_autocorrelation() -> None:
    """Use Cauchy variates, which have no mean: p-values are uniform, and small for a shift or a spread."""
    rng = np.random.default_rng(4)

    def chains() -> np.ndarray:
        normal = rng.standard_normal((50, 1)) * np.sqrt(0.9) + rng.standard_normal((50, 20)) * np.sqrt(0.1)
        return np.asarray(st.cauchy.ppf(st.norm.cdf(normal)))

    found = [same_distribution(rng.standard_cauchy(2000), chains()) for _ in range(400)]
    for score in ("shift", "spread"):
        assert st.kstest([p_values[score] for p_values in found], "uniform").pvalue > 1e-4
    assert same_distribution(rng.standard_cauchy(2000), chains() + 1.5)["shift"] < 1e-4
    assert same_distribution(rng.standard_cauchy(2000), chains() * 4.0)["spread"] < 1e-4
