"""The log density of a regression is that of the model as its page states it, and wrong forms differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpmix.association import model
from dpmix.association.model import Posterior, Predictors, Responses

jax = pytest.importorskip("jax")

S, P = 9, 4
HALF_NORMAL_SD = 0.5


def a_problem(counted: bool) -> tuple[Responses, Predictors]:
    random = np.random.default_rng(2)
    fixed = random.standard_normal((S, 2))
    columns = Predictors(
        fixed - fixed.mean(axis=0),
        np.eye(3)[np.arange(S) % 3],
        np.zeros(3, np.int64),
        random.standard_normal((S, 1)),
    )
    variances = random.uniform(0.01, 0.3, (S, P))
    if counted:
        return Responses(random.uniform(3.0, 40.0, (S, P)), variances, counted=True), columns
    values = random.standard_normal((S, P))
    values[2, 1] = np.nan
    return Responses(values, variances, counted=False), columns


def plain_log_density(posterior: Posterior, vector: np.ndarray) -> float:
    """Write the docstring of `dpmix.association.model` with the distributions of SciPy."""
    raw = posterior.split(vector)
    responses, columns = posterior.responses, posterior.predictors
    log_prior = sum(stats.norm.logpdf(raw[name]).sum() for name in ("alpha", "u"))

    def half_normal(log_scale: np.ndarray) -> np.ndarray:
        """Return the log density of a logarithm whose exponential is half-normal."""
        return stats.halfnorm.logpdf(np.exp(log_scale), scale=HALF_NORMAL_SD) + log_scale

    tau = np.exp(raw["log_tau"])
    beta = tau[:, None] * raw["beta"]
    # The density of raw beta: that of beta times tau.
    log_prior += half_normal(raw["log_tau"]).sum()
    log_prior += (stats.cauchy.logpdf(beta, scale=tau[:, None]) + np.log(tau)[:, None]).sum()

    def scales(name: str) -> tuple[np.ndarray, float]:
        middle = np.log(0.3) + raw[f"{name}_mean"]
        sd = np.exp(raw[f"log_{name}_sd"])
        logs = middle[:, None] + sd[:, None] * raw[name]
        own = stats.norm.logpdf(middle, np.log(0.3), 1.0).sum() + half_normal(raw[f"log_{name}_sd"]).sum()
        own += (stats.norm.logpdf(logs, middle[:, None], sd[:, None]) + np.log(sd)[:, None]).sum()
        return np.exp(logs), own

    (sigma, of_sigma), (omega, of_omega) = scales("sigma"), scales("omega")
    gamma = 0.3 * raw["gamma"]
    log_prior += of_sigma + of_omega + stats.norm.logpdf(gamma, 0.0, 0.3).sum()

    mu = posterior.level + raw["alpha"] + columns.fixed @ beta
    mu = mu + columns.random @ (omega[columns.terms] * raw["u"])
    scale = np.sqrt((sigma * np.exp(columns.variability @ gamma)) ** 2 + responses.variances)
    if not responses.counted:
        return log_prior + np.nansum(stats.t.logpdf(responses.values, 5.0, mu, scale))
    known = posterior.parameters(raw)
    eta = np.asarray(known["eta"])
    rate = (
        np.log(responses.values.sum(axis=1, keepdims=True)) + 0.1 * (posterior._basis @ raw["rate"])[:, None]
    )
    log_counts = responses.values * eta - np.exp(eta)  # Poisson, also for means of counts
    return log_prior + stats.t.logpdf(eta, 5.0, rate + mu, scale).sum() + log_counts.sum()


def largest_difference(counted: bool) -> float:
    """Return how much the two log densities differ, apart from a constant."""
    with jax.enable_x64(True):
        posterior = Posterior(*a_problem(counted))
        random = np.random.default_rng(5)
        vectors = [0.7 * random.standard_normal(posterior.size) for _ in range(4)]
        own = np.array([float(posterior.log_density(vector)) for vector in vectors])
    plain = np.array([plain_log_density(posterior, vector) for vector in vectors])
    return float(np.ptp(own - plain))


@pytest.mark.parametrize("counted", [True, False])
def test_the_log_density_is_that_of_the_model(counted: bool) -> None:
    assert largest_difference(counted) < 1e-9


class Certain(Posterior):
    """Forgets the uncertainty of the gating."""

    def __init__(self, responses: Responses, predictors: Predictors) -> None:
        super().__init__(responses, predictors)
        self._variances = np.zeros_like(self._variances)


class Unrelated(Posterior):
    """Forgets the random effects."""

    def parameters(self, raw: Any) -> dict[str, Any]:
        return super().parameters({**raw, "u": 0.0 * raw["u"]})


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("wrong", [Certain, Unrelated, "RESIDUAL_DF", "EFFECT_DF", "TYPICAL_SD", "TAU_SD"])
def test_a_wrong_model_differs(wrong: Any, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(wrong, str):
        monkeypatch.setattr(model, wrong, 1.1 * getattr(model, wrong))
    else:
        monkeypatch.setitem(globals(), "Posterior", wrong)
    assert largest_difference(counted) > 1e-2
