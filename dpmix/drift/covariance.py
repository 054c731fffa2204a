"""Covariance of a Gaussian process of time, and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmix.model.mixture import Array

Correlation = Literal["matern12", "matern32", "matern52", "squared"]

CORRELATIONS: dict[Correlation, Callable[[Array], Array]] = {
    "matern12": lambda d: np.exp(-d),
    "matern32": lambda d: (1.0 + np.sqrt(3.0) * d) * np.exp(-np.sqrt(3.0) * d),
    "matern52": lambda d: (1.0 + np.sqrt(5.0) * d + 5.0 / 3.0 * d**2) * np.exp(-np.sqrt(5.0) * d),
    "squared": lambda d: np.exp(-0.5 * d**2),
}
"""Correlations by distance in units of the range, ordered as in kernels/cpu/vecchia.hpp."""


@dataclass(frozen=True)
class Covariance:
    """Covariance of a signal that is observed with error.

    cov(y_i, y_j) = variance * rho(|t_i - t_j| / range) + (i == j) * (nugget + e_i^2), with e_i the known
    standard error of point i (Rasmussen and Williams 2006, chapter 4, for the functions rho).

    Attributes
    ----------
    correlation : {"matern12", "matern32", "matern52", "squared"}
        rho: Matern of smoothness 1/2, 3/2 or 5/2, or squared exponential.
    variance : float
        Variance of the signal, in squared units of the values.
    range : float
        In units of time.
    nugget : float
        Variance of errors beyond the known standard errors.
    """

    correlation: Correlation
    variance: float
    range: float
    nugget: float

    def between(self, times: Array, others: Array) -> Array:
        """Return the covariances of the signal f at two sets of times, float64 [n, k]."""
        distances = np.abs(times[:, None] - others) / self.range
        return self.variance * CORRELATIONS[self.correlation](distances)

    def logs(self) -> Array:
        """Return the logarithms of variance, range and nugget, float64 [3]."""
        return np.log([self.variance, self.range, self.nugget])

    def moved(self, logs: Array) -> Covariance:
        """Return the covariance with other logarithms of variance, range and nugget."""
        return Covariance(self.correlation, *np.exp(logs).tolist())
