"""Fit the covariance of a signal by Fisher scoring, to the maximum of likelihood times prior.

Many noisy blocks are also fitted as averages, because the 30 neighbours of Vecchia's likelihood then say more
about a slow signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpmix.drift.averages import average, group_sizes, group_starts
from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.device import Device
from dpmix.drift.likelihood import Likelihood, likelihood
from dpmix.drift.markov import MARKOV, whiten
from dpmix.drift.points import Points, make_points
from dpmix.model.mixture import Array

MAX_STEPS = 100
MAX_HALVINGS = 12
TOLERANCE = 1e-4
"""Nats: a fit ends when the next step promises less than this, a hundredth of a standard error."""

COARSEST, FINER = 1_024, 4
"""Averages of the first fit, and how many times as many the next one has. Up to 1,024 points have none."""

LONGEST_STEP = 2.0
"""On the logarithmic scale: a step changes a parameter by a factor of at most e^2."""


@dataclass(frozen=True)
class SignalPrior:
    """Independent normal priors of the logarithms of variance, range and nugget.

    Without a prior, a steady signal has no maximum: its variance goes to 0, and its range to anywhere.

    Attributes
    ----------
    centres, sds : float64 [3]
    """

    centres: Array
    sds: Array

    @classmethod
    def weak(cls, duration: float, error: float) -> SignalPrior:
        """Return the prior of a channel in units of its spread.

        Signals of about 0.03 spreads (a factor of 20 either way is within two standard deviations), ranges
        of about a fifth of the recording (a factor of 7), and a nugget of about a tenth of the variance of a
        block's median (a factor of 50).

        Parameters
        ----------
        duration : float
            Duration of the recording, in units of time.
        error : float
            Typical standard error of a point.
        """
        centres = np.log([0.03**2, 0.2 * duration, 0.1 * error**2])
        return cls(centres, np.array([3.0, 1.0, 2.0]))

    def of_averages(self, size: float) -> SignalPrior:
        """Return the prior of averages of this many points, whose nugget is smaller."""
        return SignalPrior(self.centres - np.array([0.0, 0.0, np.log(size)]), self.sds)

    def log_density(self, logs: Array) -> float:
        """Return the log density without its constant."""
        return float(-0.5 * (((logs - self.centres) / self.sds) ** 2).sum())


@dataclass(frozen=True)
class SignalFit:
    """A fitted covariance and the constant mean.

    Attributes
    ----------
    covariance : Covariance
    mean, mean_error : float
    log_posterior : float
        Log likelihood plus log prior (without its constant), nats.
    steps : int
        Steps of Fisher scoring.
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

FAST_POINTS = 5.0
"""Or this many points, if that is a shorter range: a longer one has no slope towards a fast signal."""


def fit(
    points: Points,
    prior: SignalPrior,
    correlation: Correlation = "matern32",
    threads: int = 1,
    device: Device | None = None,
) -> SignalFit:
    """Fit a covariance by Fisher scoring, from two starts, and return the better fit.

    One start is the centre of the prior, the other a fast signal with the variance of the values: from the
    first alone, a fast signal may end as noise. Threads and device are as in `likelihood`.

    Raises
    ------
    numpy.linalg.LinAlgError
        The covariance at a start is not positive definite to float64.
    """
    fast = prior.centres.copy()
    fast[0] = np.log(max(np.exp(fast[0]), points.values.var()))
    spacing = (points.times[-1] - points.times[0]) / len(points.times)
    fast[1] = min(fast[1] + FAST_START * prior.sds[1], np.log(max(FAST_POINTS * spacing, 1e-300)))

    def evaluate(covariance: Covariance) -> Likelihood:
        return likelihood(points, covariance, threads, device)

    fits = [_fit_from(start, evaluate, prior, correlation) for start in (prior.centres, fast)]
    return max(fits, key=lambda one: one.log_posterior)


def fit_blocks(
    times: Array,
    values: Array,
    errors: Array,
    prior: SignalPrior,
    correlation: Correlation = "matern32",
    threads: int = 1,
    device: Device | None = None,
) -> SignalFit:
    """Fit the covariance of any number of blocks.

    More than `COARSEST` blocks are fitted as this many averages, as four times as many, and so on up to the
    blocks themselves. The fit with the highest posterior density of all blocks is returned, with the exact
    likelihood (`dpmix.drift.markov`). A point of Vecchia's likelihood has 30 neighbours, so for a slow signal
    in many noisy blocks it has less information than the likelihood of averages, and averages do not show a
    fast signal.

    Parameters
    ----------
    times, values, errors : float64 [B]
        Ascending times, values and their known standard errors.
    prior : SignalPrior
        Prior of blocks.
    correlation, threads, device
        As in `fit`.
    """
    n = len(times)
    # The comparison needs the exact density of all blocks, which takes linear time for Markov processes
    # alone.
    if n <= COARSEST or correlation not in MARKOV:
        return fit(make_points(times, values, errors), prior, correlation, threads, device)
    found, most = [], COARSEST
    while True:
        starts = group_starts(n, most)
        sizes = group_sizes(n, starts)
        shown, means, squares = (average(column, starts) for column in (times, values, errors**2))
        points = make_points(shown, means, np.sqrt(squares / sizes))
        one = fit(points, prior.of_averages(sizes[0]), correlation, threads, device)
        # The nugget of an average is the nugget of a block over their number, as independent errors.
        nugget = float(one.covariance.nugget * sizes[0])
        own = replace(one.covariance, nugget=nugget)
        found.append(_with_all_blocks(replace(one, covariance=own), times, values, errors, prior))
        if sizes[0] == 1:
            return max(found, key=lambda one: one.log_posterior)
        most *= FINER


def _with_all_blocks(
    one: SignalFit, times: Array, values: Array, errors: Array, prior: SignalPrior
) -> SignalFit:
    """Return a fit with mean and log posterior from all blocks, exactly."""
    own = one.covariance
    columns = np.column_stack([values, np.ones(len(values))])
    log_det, white = whiten(times, own.nugget + errors**2, own, columns)
    (yy, xy), (_, xx) = white.T @ white
    mean, n = float(xy / xx), len(times)
    log_likelihood = -0.5 * (n * np.log(2.0 * np.pi) + log_det + yy - mean * xy)
    log_posterior = float(log_likelihood + prior.log_density(own.logs()))
    return replace(one, mean=mean, mean_error=float(xx**-0.5), log_posterior=log_posterior)


def _fit_from(
    start: Array, evaluate: Callable[[Covariance], Likelihood], prior: SignalPrior, correlation: Correlation
) -> SignalFit:
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
        # The rise that a quadratic posterior would have: unlike the size of a step, it has a meaning in nats.
        if 0.5 * gradient @ move < TOLERANCE:
            return SignalFit(current, now.mean, now.mean_error, value, step, True)
        # Far from the maximum, the information may promise a step to where the covariance is singular.
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
            return SignalFit(current, now.mean, now.mean_error, value, step, False)
    return SignalFit(current, now.mean, now.mean_error, value, MAX_STEPS, False)
