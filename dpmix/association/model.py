"""The regression of populations on the columns of a table of samples: log density of the posterior, in JAX.

S samples, P responses (populations, or channels in populations), C columns of the design, R random effects, G
columns of variability. For counts y_sp of events, averaged over the draws of a gating, and the variance v_sp
of their logarithms over these draws:

    y_s          ~ Multinomial(n_s, softmax(eta_s))
    eta_sp       ~ Student t (5 degrees of freedom, location mu_sp, squared scale sigma_sp^2 + v_sp)
    mu_sp        = alpha_p + x_s' beta_p + z_s' u_p
    sigma_sp     = sigma_p exp(w_s' gamma_p),    gamma_gp ~ N(0, 0.3^2)
    beta_cp      ~ Cauchy (scale tau_c),    tau_c ~ half-normal(0.5)
    u_rp         ~ N(0, omega_tp^2) for each level r of a term t = (1 | column)
    log sigma_p  ~ N(m, s^2),    m ~ N(log 0.3, 1),    s ~ half-normal(0.5);    log omega_tp alike

The multinomial distribution is written as Poisson distributions with a rate for each sample under a flat
prior, which gives the same posterior (Baker 1994, The Statistician 43:495). Heavy tails of eta down-weight
outliers. Heavy tails of beta make those populations the reference that do not change, because the likelihood
does not change if a number is added to a row of beta. For medians of channels, y_sp has the distribution of
eta_sp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmix.model.mixture import Array, Ints

RESIDUAL_DF, EFFECT_DF = 5.0, 1.0
TYPICAL_SD = (
    0.3  # between samples: prior median, in logarithms of counts or in units of `Responses` of medians
)
TAU_SD = 0.5  # of the half-normal prior of tau
SPREAD_SD = 0.5  # of the half-normal prior of s
VARIABILITY_SD = 0.3  # of gamma
INTERCEPT_SD = 1.0  # of alpha about the mean of the samples
RATE_SCALE = 0.1  # units in which the sampler moves the rates of samples

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Responses:
    """Numbers to regress.

    Attributes
    ----------
    values : float64 [S, P]
        Mean counts; or medians in units in which samples typically differ by `TYPICAL_SD`, NaN where unknown.
    variances : float64 [S, P]
        Variances over the draws, of the logarithms of counts or of the medians.
    counted : bool
        True for counts, whose sum over the populations is the number of events of a sample.
    """

    values: Array
    variances: Array
    counted: bool


@dataclass(frozen=True)
class Predictors:
    """A design in numbers.

    Attributes
    ----------
    fixed : float64 [S, C]
        Columns with mean 0.
    random : float64 [S, R]
        Indicators of the levels of the terms (1 | column).
    terms : int64 [R]
        Term of each column of `random`, from 0.
    variability : float64 [S, G]
        Columns with mean 0.
    """

    fixed: Array
    random: Array
    terms: Ints
    variability: Array

    @property
    def n_terms(self) -> int:
        return int(self.terms.max(initial=-1)) + 1


class Posterior:
    """The posterior of a regression, as a function of one vector of real numbers.

    Parameters
    ----------
    responses : Responses
    predictors : Predictors
    """

    def __init__(self, responses: Responses, predictors: Predictors) -> None:
        self.responses, self.predictors = responses, predictors
        self._variances = np.nan_to_num(responses.variances)
        n_samples, n_responses = responses.values.shape
        n_terms, (n_columns, n_scales) = (
            predictors.n_terms,
            (
                predictors.fixed.shape[1],
                predictors.variability.shape[1],
            ),
        )
        self.shapes: dict[str, tuple[int, ...]] = {
            "alpha": (n_responses,),
            "log_tau": (n_columns,),
            "beta": (n_columns, n_responses),
            "sigma_mean": (1,),
            "log_sigma_sd": (1,),
            "sigma": (1, n_responses),
            "gamma": (n_scales, n_responses),
            "omega_mean": (n_terms,),
            "log_omega_sd": (n_terms,),
            "omega": (n_terms, n_responses),
            "u": (predictors.random.shape[1], n_responses),
        }
        if responses.counted:
            self.shapes |= {"rate": (n_samples - 1,), "eta": (n_samples, n_responses)}
            self._log_totals = np.log(responses.values.sum(axis=1, keepdims=True))
            self._middle = np.log(responses.values + 0.5)
            self._scales = 1.0 / np.sqrt(responses.values + 4.0)
            self._basis = _contrasts(n_samples)
            self.level = (self._middle - self._log_totals).mean(axis=0)
        else:
            self._there = ~np.isnan(responses.values)
            self._values = np.nan_to_num(responses.values)  # gradients stay finite where a value is unknown
            self.level = np.nanmean(responses.values, axis=0)

    @property
    def size(self) -> int:
        """Number of real numbers."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def start(self, random: np.random.Generator) -> Array:
        """Return a vector to start a chain from: moderate scales and small random deviations."""
        start: Array = 0.1 * random.standard_normal(self.size)
        return start

    def split(self, vector: Any) -> dict[str, Any]:
        """Return the raw parameters in a vector, by name."""
        raw, at = {}, 0
        for name, shape in self.shapes.items():
            raw[name] = vector[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        return raw

    def log_density(self, vector: Any) -> Any:
        """Return the log density of the posterior, with a constant left out."""
        import jax.numpy as jnp

        raw = self.split(vector)
        known = self.parameters(raw)
        log_prior = -0.5 * sum(
            (raw[name] ** 2).sum()
            for name in ("alpha", "sigma_mean", "sigma", "gamma", "omega_mean", "omega", "u")
        )
        log_prior += _log_t(raw["beta"], EFFECT_DF).sum()
        for name, sd in (("log_tau", TAU_SD), ("log_sigma_sd", SPREAD_SD), ("log_omega_sd", SPREAD_SD)):
            log_prior += (raw[name] - 0.5 * (jnp.exp(raw[name]) / sd) ** 2).sum()
        terms = _log_t(known["residual"], RESIDUAL_DF) - jnp.log(known["spread"])
        if not self.responses.counted:
            return log_prior + jnp.where(self._there, terms, 0.0).sum()
        y, eta = self.responses.values, known["eta"]
        # y eta - exp(eta) relative to its value at the middle: no sum of large numbers.
        change = eta - self._middle
        log_counts = y * change - (y + 0.5) * jnp.expm1(change)
        return log_prior + terms.sum() + log_counts.sum()

    def parameters(self, raw: Values) -> dict[str, Any]:
        """Return the parameters of the model and the scaled residuals [S, P] from raw parameters."""
        import jax.numpy as jnp

        columns = self.predictors
        alpha = self.level + INTERCEPT_SD * raw["alpha"]
        beta = jnp.exp(raw["log_tau"])[:, None] * raw["beta"]
        mu = alpha + columns.fixed @ beta
        omega = _scales(raw["omega_mean"], raw["log_omega_sd"], raw["omega"])
        if columns.n_terms:
            mu = mu + columns.random @ (omega[columns.terms] * raw["u"])
        sigma = _scales(raw["sigma_mean"], raw["log_sigma_sd"], raw["sigma"])[0]
        gamma = VARIABILITY_SD * raw["gamma"]
        spread = jnp.sqrt((sigma * jnp.exp(columns.variability @ gamma)) ** 2 + self._variances)
        known = {
            "alpha": alpha,
            "beta": beta,
            "sigma": sigma,
            "gamma": gamma,
            "omega": omega,
            "spread": spread,
        }
        if self.responses.counted:
            known["eta"] = self._middle + self._scales * raw["eta"]
            rate = self._log_totals + RATE_SCALE * (self._basis @ raw["rate"])[:, None]
            known["residual"] = (known["eta"] - rate - mu) / spread
        else:
            known["residual"] = jnp.where(self._there, (self._values - mu) / spread, 0.0)
        return known


def _scales(mean: Any, log_sd: Any, raw: Any) -> Any:
    """Return log-normal standard deviations [T, P] that share a median and a spread for each term [T]."""
    import jax.numpy as jnp

    return TYPICAL_SD * jnp.exp(mean[:, None] + jnp.exp(log_sd)[:, None] * raw)


def _log_t(z: Any, df: float) -> Any:
    """Return the log density of Student's t distribution, with a constant left out."""
    import jax.numpy as jnp

    return -0.5 * (df + 1.0) * jnp.log1p(z**2 / df)


def _contrasts(n: int) -> Array:
    """Return an orthonormal basis of the vectors whose sum is 0, float64 [n, n - 1]."""
    basis: Array = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0][:, 1:]
    return basis
