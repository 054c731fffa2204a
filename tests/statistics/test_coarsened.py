"""The coarsened sweep where its distribution is exact (`coarsened_cases`), and wrong samplers that fail."""

from __future__ import annotations

import numpy as np
import pytest
from coarsened_cases import (
    SHORT,
    WRONG,
    ZETA,
    Rounds,
    log_power_marginal,
)
from comparisons import FAMILY, family_wise, worst
from scipy import integrate
from scipy import stats as st

from dpmix.model.prior import Prior


def test_the_walk_of_split_merge_moves_has_the_stated_distribution() -> None:
    """It is for q^zeta: the power posterior of the labels alone, or with q in full, is another."""
    star = Rounds().star()
    p, exact = star.stationary, star.transitions
    np.testing.assert_allclose(exact.sum(axis=1), 1.0)
    np.testing.assert_allclose(p @ exact, p, rtol=1e-12)
    np.testing.assert_allclose(star.q[1:].sum(), 1.0 - impossible(star.q), atol=1e-12)
    assert np.abs(star.power @ exact - star.power).max() > 0.01


def impossible(q: np.ndarray) -> float:
    """Return the probability of the two proposals that leave a side empty: they are not accepted."""
    rounds = Rounds()
    rounds.go(0, 0)
    split, mixture = rounds.mixtures[0]
    sides, _ = rounds.engine.side_probabilities(split, mixture, 0)
    return float(sides.prod(axis=0).sum())


def test_the_power_marginal_is_an_integral_over_the_parameters() -> None:
    """One channel, by quadrature of N(x | mu, s)^zeta N(mu | m, gamma s) IW(s)."""
    prior = Prior(np.array([0.3]), 1.7, 2.5, np.array([[0.6]]), 1.0, 1.0)
    events = np.array([[-0.4], [0.2], [1.3]])
    law = st.invgamma(0.5 * (prior.nu + 2.0), scale=0.5 * prior.nu * 0.6)

    def over_mu(s: float) -> float:
        mu = 0.3 + 12.0 * np.sqrt(1.7 * s) * np.linspace(-1.0, 1.0, 401)
        likelihood = st.norm.pdf(events, mu, np.sqrt(s)).prod(axis=0) ** ZETA
        densities = likelihood * st.norm.pdf(mu, 0.3, np.sqrt(1.7 * s)) * law.pdf(s)
        return float(densities.sum() * (mu[1] - mu[0]))

    found, _ = integrate.quad(lambda u: over_mu(np.exp(u)) * np.exp(u), -6.0, 6.0, epsrel=1e-7)
    assert np.log(found) == pytest.approx(log_power_marginal(events, prior, ZETA), abs=1e-5)


@pytest.mark.parametrize("name", SHORT)
def test_the_sampler_passes_what_catches_wrong_ones(name: str) -> None:
    p_values = SHORT[name]()
    assert family_wise(p_values) > FAMILY, worst(p_values)


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_sampler_is_caught(what: str) -> None:
    caught_by, patched = WRONG[what]
    with patched():
        try:
            p_value = family_wise(SHORT[caught_by]())
        except np.linalg.LinAlgError:
            p_value = 0.0
    assert p_value < FAMILY
