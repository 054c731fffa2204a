"""Fit the covariance of a signal by Fisher scoring, to the maximum of likelihood times prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.device import Device
from dpmix.drift.likelihood import Likelihood, Points, likelihood
from dpmix.model.mixture import Array

MAX_STEPS = 100
MAX_HALVINGS = 12
TOLERANCE = 1e-4
"""Nats: a fit ends when the next step promises less than this, a hundredth of a standard error."""

LONGEST_STEP = 2.0
"""On the logarithmic scale: a step changes a parameter by a factor of at most e^2."""


@dataclass(frozen=True)
class Prior:
    """Independent normal priors of the logarithms of variance, range and nugget.

    Without a prior, a steady signal has no maximum: its variance goes to 0, and its range to anywhere.

    Attributes
    ----------
    centres, sds : float64 [3]
    """

    centres: Array
    sds: Array

    @classmethod
    def weak(cls, duration: float, error: float) -> Prior:
        """Return the prior of a channel in units of its spread.

        Signals of about 0.03 spreads (a factor of 20 either way is within two standard deviations), ranges
        of about a fifth of the recording (a factor of 7), and a nugget of about a tenth of the variance of a
        block's median (a factor of 50).

        Parameters
        ----------
        duration : float
            Of the recording, in units of time.
        error : float
            Typical standard error of a point.
        """
        centres = np.log([0.03**2, 0.2 * duration, 0.1 * error**2])
        return cls(centres, np.array([3.0, 1.0, 2.0]))

    def log_density(self, logs: Array) -> float:
        """Return the log density without its constant."""
        return float(-0.5 * (((logs - self.centres) / self.sds) ** 2).sum())


@dataclass(frozen=True)
class Fit:
    """A fitted covariance and the constant mean.

    Attributes
    ----------
    covariance : Covariance
    mean, mean_error : float
    log_posterior : float
        Log likelihood plus log prior (without its constant), nats.
    steps : int
        Of Fisher scoring.
    converged : bool
    """

    covariance: Covariance
    mean: float
    mean_error: float
    log_posterior: float
    steps: int
    converged: bool


FAST_START = -2.0
"""Log range of the second start, in standard deviations of its prior from the centre."""


def fit(
    points: Points,
    prior: Prior,
    correlation: Correlation = "matern32",
    threads: int = 1,
    device: Device | None = None,
) -> Fit:
    """Fit a covariance by Fisher scoring, from two starts, and return the better fit.

    One start is the centre of the prior, the other a fast signal with the variance of the values: from the
    first alone, a fast signal may end as noise. Threads and device are those of `likelihood`.

    Raises
    ------
    numpy.linalg.LinAlgError
        The covariance at a start is not positive definite to float64.
    """
    fast = prior.centres.copy()
    fast[0] = np.log(max(np.exp(fast[0]), points.values.var()))
    fast[1] += FAST_START * prior.sds[1]

    def evaluate(covariance: Covariance) -> Likelihood:
        return likelihood(points, covariance, threads, device)

    fits = [_fit_from(start, evaluate, prior, correlation) for start in (prior.centres, fast)]
    return max(fits, key=lambda one: one.log_posterior)


def _fit_from(
    start: Array, evaluate: Callable[[Covariance], Likelihood], prior: Prior, correlation: Correlation
) -> Fit:
    """Fit by Fisher scoring from logarithms of variance, range and nugget.

    The information of likelihood and prior is positive definite, so each step ascends. It is halved until the
    posterior increases.
    """
    current = Covariance(correlation, *np.exp(start).tolist())
    now = evaluate(current)
    value = now.value + prior.log_density(current.logs())
    for step in range(MAX_STEPS):
        logs = current.logs()
        gradient = now.gradient - (logs - prior.centres) / prior.sds**2
        information = now.information + np.diag(prior.sds**-2.0)
        move = np.linalg.solve(information, gradient)
        if 0.5 * gradient @ move < TOLERANCE:
            return Fit(current, now.mean, now.mean_error, value, step, True)
        move *= min(1.0, LONGEST_STEP / np.abs(move).max())
        for _ in range(MAX_HALVINGS):
            proposed = current.moved(logs + move)
            try:
                then = evaluate(proposed)
            except np.linalg.LinAlgError:
                move = 0.5 * move
                continue
            new_value = then.value + prior.log_density(logs + move)
            if new_value > value:
                current, now, value = proposed, then, new_value
                break
            move = 0.5 * move
        else:
            return Fit(current, now.mean, now.mean_error, value, step, False)
    return Fit(current, now.mean, now.mean_error, value, MAX_STEPS, False)
