"""Gaussian processes of time by dense matrices: for the squared exponential, which is no Markov process.

They take n^2 numbers and n^3 / 3 multiply-adds, so they are for some thousand times. Functions and arguments
are as in `dpmix.drift.markov`.
"""

from __future__ import annotations

import numpy as np

from dpmix.drift.covariance import Covariance
from dpmix.model.mixture import Array


def whiten(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[float, Array]:
    """Return the log determinant of a covariance, and its inverse lower Cholesky factor times columns."""
    from scipy.linalg import solve_triangular

    root = np.linalg.cholesky(covariance.between(times, times) + np.diag(noise))
    log_det = 2.0 * float(np.log(np.diag(root)).sum())
    return log_det, np.asarray(solve_triangular(root, columns, lower=True), np.float64)


def smooth(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[Array, Array]:
    """Return the posterior mean of the signal, for each column as values, and its variance."""
    known = np.isfinite(noise)
    across = covariance.between(times[known], times)
    given = np.column_stack([columns[known], across])
    _, white = whiten(times[known], noise[known], covariance, given)
    white_columns, white_across = np.split(white, [columns.shape[1]], axis=1)
    variances: Array = covariance.variance - np.square(white_across).sum(axis=0)
    return white_across.T @ white_columns, variances
