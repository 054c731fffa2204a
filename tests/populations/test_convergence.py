"""R-hat and effective sample size of the proportions of populations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import arviz
import numpy as np
import pytest
from test_find import POPULATIONS, Normals, cpu, normals, truth, write_run

from dpmix.engines.cpu import CpuEngine
from dpmix.populations.draws.convergence import chain_weights
from dpmix.populations.draws.find import Populations, find_populations
from dpmix.runs.verdict import mixing_of, r_hat_limit

Array = np.ndarray
Mixing = Callable[[Array], tuple[Array, Array]]

N_DRAWS = 60


def drawn(n_draws: int, rng: np.random.Generator, shift: float = 0.0) -> list[Normals]:
    """Return draws of a chain with shuffled components; `shift` moves weight to another population.

    The populations are the second and third component (0.50), the fourth (0.35) and the first (0.15).
    """
    extra = normals((1e-7, (4.3, 0.3), 0.5), (1e-7, (0.2, 9.0), 0.5))  # of components without points
    draws = []
    for _ in range(n_draws):
        weights = rng.dirichlet(2_000 * POPULATIONS.weights) + shift * np.array([1.0, 0.0, 0.0, -1.0])
        draws.append((replace(POPULATIONS, weights=weights) + extra).shuffled(rng))
    return draws


def make(path: Path, shifts: tuple[float, ...], n_draws: int = N_DRAWS, used: int = 8) -> Populations:
    rng = np.random.default_rng(3)
    chains = [drawn(n_draws, rng, shift) for shift in shifts]
    return find_populations(write_run(path, chains), cpu, n_draws=used)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Populations:
    """Four chains; the last one has moved 0.03 from the population of 0.35 to the one of 0.15."""
    return make(tmp_path_factory.mktemp("apart") / "run.h5", (0.0, 0.0, 0.0, 0.03))


def wanted(found: Populations) -> Array:
    """Return the weights of the populations from the places of the components, float64 [C, S, 3]."""
    run = found.run
    every = replace(found, draws=np.array([*np.ndindex(run.weights.shape[:2])]))
    weights = [
        np.bincount(truth(every, t), run.weights[chain, draw]) for t, (chain, draw) in enumerate(every.draws)
    ]
    return np.reshape(weights, (*run.weights.shape[:2], 3))


def mixing(weights: Array) -> tuple[Array, Array]:
    """Return R-hat and effective sample size."""
    return mixing_of(weights)[2:]


def check(mixing: Mixing, weights: Array) -> None:
    """Compare with ArviZ, a population at a time."""
    r_hat, ess = mixing(weights)
    for p in range(weights.shape[2]):
        assert r_hat[p] == pytest.approx(arviz.rhat(weights[..., p], method="rank"), rel=1e-9)
        assert ess[p] == pytest.approx(arviz.ess(weights[..., p], method="bulk"), rel=1e-9)


def pooled(weights: Array) -> tuple[Array, Array]:
    """Compute as if all draws were of one chain: wrong."""
    return mixing(weights.swapaxes(0, 1).reshape(1, -1, weights.shape[2]))


def test_more_draws_than_memberships_use(apart: Populations) -> None:
    weights = chain_weights(apart, cpu)
    assert apart.weights.shape == (8, 3)
    np.testing.assert_allclose(weights, wanted(apart), atol=1e-6)
    again = chain_weights(apart, lambda points: CpuEngine(points, threads=3))
    np.testing.assert_array_equal(weights, again)


def test_values_are_those_of_arviz(apart: Populations) -> None:
    weights = chain_weights(apart, cpu)
    check(mixing, weights)
    with pytest.raises(AssertionError):
        check(pooled, weights)
    rng = np.random.default_rng(8)
    walks = np.cumsum(rng.normal(size=(3, 41, 2)), axis=1)  # an odd number of draws
    check(mixing, walks)
    halves = walks[:1, :40].reshape(2, 20, 2)  # one chain: its halves stand for two in R-hat
    np.testing.assert_array_equal(mixing(walks[:1])[0], mixing(halves)[0])
    assert (mixing(walks[:1])[1] < 15).all()


def test_a_chain_in_another_place_is_seen(apart: Populations, tmp_path: Path) -> None:
    limit = r_hat_limit(4, N_DRAWS, 3)
    r_hat, ess = mixing(chain_weights(apart, cpu))
    assert r_hat[0] < limit < 1.2 < min(r_hat[1], r_hat[2])
    assert ess[0] > 150
    assert max(ess[1], ess[2]) < 20
    assert max(pooled(chain_weights(apart, cpu))[0]) < limit  # the wrong computation sees nothing
    lacking = make(tmp_path / "lacking.h5", (0.0, 0.0, 0.0, -0.12))  # a chain nearly without a population
    r_hat, ess = mixing(chain_weights(lacking, cpu))
    assert min(r_hat[1], r_hat[2]) > 1.2
    same = make(tmp_path / "same.h5", (0.0, 0.0, 0.0, 0.0))
    r_hat, ess = mixing(chain_weights(same, cpu))
    assert max(r_hat) < limit
    assert min(ess) > 150


def test_all_draws_used_are_all_draws_monitored(tmp_path: Path) -> None:
    found = make(tmp_path / "run.h5", (0.0, 0.0), n_draws=10, used=20)
    weights = chain_weights(found, cpu)
    np.testing.assert_array_equal(weights, found.weights.reshape(2, 10, 3))
    check(mixing, weights)


def test_what_has_no_value(tmp_path: Path) -> None:
    found = make(tmp_path / "few.h5", (0.0, 0.0), n_draws=7)
    assert np.isnan(mixing(chain_weights(found, cpu))).all()
    run = write_run(tmp_path / "bem.h5", [[POPULATIONS]], kind="bem")
    monitored = chain_weights(find_populations(run, cpu), cpu)
    assert monitored.shape == (1, 1, 3)
    assert np.isnan(mixing(monitored)).all()
    whole = np.random.default_rng(1).dirichlet(np.ones(9), (4, 50)).sum(axis=2, keepdims=True)
    assert np.ptp(whole) > 0  # rounding
    assert np.isnan(mixing(whole)).all()
    never = np.repeat([[[0.2]], [[0.3]]], 20, axis=1)
    assert np.isposinf(mixing(never)[0]).all()
