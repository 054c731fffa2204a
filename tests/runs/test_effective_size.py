"""R-hat and effective sample sizes, next to ArviZ."""

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from dpmix.runs.effective_size import ess_bulk, ess_tail, r_hat
from dpmix.system.extras import import_arviz

az = import_arviz()


def draws_of(seed: int) -> NDArray[np.float64]:
    """Return autoregressions of random length and number; some with ties, heavy tails or apart."""
    random = np.random.default_rng(seed)
    chains, n = int(random.integers(2, 6)), int(random.integers(8, 260))
    slope, draws = random.uniform(-0.9, 0.99), random.normal(size=(chains, n))
    for t in range(1, n):
        draws[:, t] += slope * draws[:, t - 1]
    draws += random.choice([0.0, 2.0]) * random.normal(size=(chains, 1))
    return random.choice([np.round, np.exp, np.asarray])(draws)


@pytest.mark.parametrize("seed", range(60))
def test_as_arviz(seed: int) -> None:
    draws = draws_of(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [
            az.rhat(draws, method="rank"),
            az.ess(draws, method="bulk"),
            az.ess(draws, method="tail", prob=(0.05, 0.95)),
        ]
    np.testing.assert_allclose([r_hat(draws), ess_bulk(draws), ess_tail(draws)], expected, rtol=1e-9)


def test_effective_size_of_one_chain() -> None:
    draws = draws_of(7)[:1]
    assert ess_bulk(draws) == pytest.approx(float(az.ess(draws, method="bulk")))


def test_constant_draws() -> None:
    draws = np.full((2, 10), 3.0)
    assert ess_bulk(draws) == ess_tail(draws) == 20.0
