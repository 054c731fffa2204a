"""Gaussian processes of time exactly and in linear time, as Markov processes.

A Matern process of smoothness 1/2, 3/2 or 5/2 and its derivatives are a Markov process: given the state at
one time, those before and after it are independent. So Vecchia's approximation of the latent states, each
given the nearest one before it, is exact (general Vecchia of latent and observed values: Katzfuss and
Guinness 2021, Stat. Sci. 36:124). It is computed by the filter of Kalman and a smoother
(kernels/cpu/markov.hpp).

n times, C columns.
"""

from __future__ import annotations

import numpy as np

from dpmix.drift.covariance import CORRELATIONS, Correlation, Covariance
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array

MARKOV: tuple[Correlation, ...] = ("matern12", "matern32", "matern52")
"""The squared exponential has no state of finite size."""


def whiten(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[float, Array]:
    """Return the log determinant of a covariance, and its inverse lower Cholesky factor times columns.

    Parameters
    ----------
    times : float64 [n]
        Ascending.
    noise : float64 [n]
        Variances of the errors, in addition to the covariance of the signal; the nugget is not added.
    covariance : Covariance
    columns : float64 [n, C]

    Returns
    -------
    log_det : float
    whitened : float64 [n, C]

    Raises
    ------
    ValueError
        The correlation is not one of `MARKOV`.
    """
    rows = _rows(columns)
    out = np.empty_like(rows)
    return _cpu.whiten(times, noise, *_parameters(covariance), rows, out), out.T


def smooth(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[Array, Array]:
    """Return the posterior mean of the signal, for each column as values, and its variance.

    Parameters
    ----------
    times, noise, covariance, columns
        As in `whiten`. At times with a noise of infinity there is no value; a column has 0 there.

    Returns
    -------
    means : float64 [n, C]
    variances : float64 [n]
        The same for all columns.

    Raises
    ------
    ValueError
        The correlation is not one of `MARKOV`.
    """
    rows = _rows(columns)
    means, variances = np.empty_like(rows), np.empty(len(times))
    _cpu.smooth(times, noise, *_parameters(covariance), rows, means, variances)
    return means.T, variances


def _rows(columns: Array) -> Array:
    return np.ascontiguousarray(columns.T, dtype=np.float64)


def _parameters(covariance: Covariance) -> tuple[int, float, float]:
    if covariance.correlation not in MARKOV:
        raise ValueError(f"got {covariance.correlation}, need one of {', '.join(MARKOV)}")
    kind = list(CORRELATIONS).index(covariance.correlation)
    return kind, covariance.variance, covariance.range
