"""Gaussian processes of time exactly: as Markov processes where they are, else by dense matrices.

Arguments and results are as in `dpmix.drift.markov`.
"""

from __future__ import annotations

from dpmix.drift import dense, markov
from dpmix.drift.covariance import Covariance
from dpmix.model.mixture import Array


def whiten(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[float, Array]:
    """Return the log determinant of a covariance, and its inverse lower Cholesky factor times columns."""
    if covariance.correlation in markov.MARKOV:
        return markov.whiten(times, noise, covariance, columns)
    return dense.whiten(times, noise, covariance, columns)


def smooth(times: Array, noise: Array, covariance: Covariance, columns: Array) -> tuple[Array, Array]:
    """Return the posterior mean of the signal, for each column as values, and its variance."""
    if covariance.correlation in markov.MARKOV:
        return markov.smooth(times, noise, covariance, columns)
    return dense.smooth(times, noise, covariance, columns)
