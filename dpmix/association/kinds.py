"""Kinds of responses: what the scales of the responses of a regression have in common.

The logarithms of the scales of all responses come from two kinds of responses, on and off, each with a
Student t distribution, because a marker that is off in most samples only varies far more than others of its
kind; or from one kind where the responses are few. The level of a response, the mean of its values, is normal
in a kind.

Means and shares of the kinds are set to their posterior mode by expectation maximisation, as in the empirical
Bayes variances of Smyth (2004, Stat. Appl. Genet. Mol. Biol. 3:3). The spread of a kind is averaged over its
posterior: a few samples hardly tell scales that are equal from scales that differ a little, and how often
chance looks like an effect depends on it. Responses that vary together count as fewer (`independence`).

Q responses, N points, S samples.
"""

from __future__ import annotations

import copy

import numpy as np

from dpmix.model.mixture import Array

VARIABILITY_SD = 0.3  # of the scales of variability
KIND_FREE = 4.0  # degrees of freedom of log scales in a kind (Lange et al. 1989, JASA 84:881)
SPREAD = 2.0  # scale of the Rayleigh prior of the spread (root mean square) of log scales in a kind
STEPS = np.log(2.0) * np.arange(-2.0, 2.5, 0.5)  # logarithms of its values, from the mode
LEAST_RESPONSES = 20  # for two kinds


class Kinds:
    """Distribution of the scales of all responses: a mixture of one or two Student t distributions."""

    def __init__(self, centre: Array, n_scales: int, levels: Array, share: float) -> None:
        self.n_scales, self.middle, self.share = n_scales, centre[:, :n_scales].mean(axis=0), share
        self.levels = (levels - levels.mean()) / max(levels.std(), 1e-9)
        number = 2 if len(centre) >= LEAST_RESPONSES else 1
        ends = np.quantile(centre[:, :n_scales], (0.1, 0.9) if number == 2 else (0.5,), axis=0)
        self.means, self.sds = ends, np.full(ends.shape, 1.0)
        self.shares = np.full(number, 1.0 / number)
        self.counts = share * len(centre) * self.shares
        self.level_means, self.level_sds = np.zeros(number), np.ones(number)
        # Multiples of the spreads, and the logarithms of their probabilities, [steps] and [steps, kinds].
        self.steps, self.step_logs = np.zeros(1), np.zeros((1, number))

    def _squares(self, theta: Array) -> Array:
        """Return squared distances of points from the kinds, in their scales, float64 [Q, N, kinds]."""
        squares = np.zeros((*theta.shape[:-1], len(self.means)))
        # One scale at a time: a sum over an axis of one or two numbers is slow.
        for i in range(self.n_scales):
            squares += ((theta[..., i, None] - self.means[:, i]) / self.sds[:, i]) ** 2
        return squares

    def _each(self, theta: Array, squares: Array | None = None) -> Array:
        """Return the log densities of scales and level with the share of each kind, float64 [Q, N, kinds]."""
        of_level = 0.5 * ((self.levels[:, None] - self.level_means) / self.level_sds) ** 2
        own = np.log(self.shares / self.level_sds) - of_level  # [Q, kinds]
        squares = self._squares(theta) if squares is None else squares
        each = np.full(squares.shape, -np.inf)
        for step, logs in zip(self.steps, self.step_logs, strict=True):
            each = np.logaddexp(each, logs + self._log_t(squares, step))
        return np.asarray(own[:, None] + each, np.float64)

    def _log_t(self, squares: Array, step: float) -> Array:
        """Return log densities of scales in the kinds, whose spreads are exp(step) times the mode."""
        power = -0.5 * (KIND_FREE + self.n_scales)
        spread = np.log(self.sds).sum(axis=-1) + self.n_scales * step
        logs: Array = power * np.log1p(squares * np.exp(-2.0 * step) / KIND_FREE) - spread
        return logs

    def moments(self, dims: int) -> tuple[Array, Array]:
        """Return means and standard deviations of the kinds, float64 [kinds, dims] each."""
        others = ((0, 0), (0, dims - self.n_scales))
        return np.pad(self.means, others), np.pad(self.sds, others, constant_values=VARIABILITY_SD)

    def probabilities(self, theta: Array) -> Array:
        """Return the probabilities of the kinds at each point, float64 [Q, N, kinds]."""
        logs = self._each(theta)
        each: Array = np.exp(logs - _whole(logs)[..., None])
        return each

    def log_density(self, theta: Array) -> Array:
        """Return the log density of scales and level [Q, N], with a constant left out for each response."""
        density: Array = _whole(self._each(theta)) + self._log_others(theta)
        return density

    def _log_others(self, theta: Array) -> Array:
        """Return the log density of the scales of variability [Q, N], without its constant."""
        others = theta[..., self.n_scales :] / VARIABILITY_SD
        density: Array = -0.5 * (others**2).sum(axis=-1)
        return density

    def update(self, theta: Array, logs: Array) -> None:
        """Take a step of expectation maximisation.

        Parameters
        ----------
        theta : float64 [Q, N, dims]
        logs : float64 [Q, N]
            Log likelihoods, less the log densities of the proposals.
        """
        squares = self._squares(theta)
        each = self._each(theta, squares) + (logs + self._log_others(theta))[..., None]
        own = np.exp(each - _whole(each).max(axis=1)[:, None, None])  # [Q, N, kinds]
        own /= own.sum(axis=(1, 2), keepdims=True)
        by_response = own.sum(axis=1)  # [Q, kinds]
        sizes = by_response.sum(axis=0)
        self.counts = self.share * sizes
        near = self.share * own * (KIND_FREE + self.n_scales) / (KIND_FREE + squares)
        scales = theta[..., : self.n_scales]
        # One response far away in the prior of a mean, so that an empty kind stays where it can be.
        sums = np.einsum("qnk,qni->ki", near, scales) + 0.1 * self.middle
        self.means = sums / (near.sum(axis=(0, 1)) + 0.1)[:, None]
        squares = np.einsum("qnk,qnki->ki", near, (scales[:, :, None] - self.means) ** 2)
        # One more response with a spread of 1, also for the levels, so that no kind has a spread of 0.
        self.sds = np.sqrt((squares + 1.0) / (self.counts + 1.0)[:, None])
        self.shares = (sizes + 1.0) / (sizes + 1.0).sum()
        self.level_means = self.levels @ by_response / (sizes + 0.1)
        squares = (self.levels[:, None] - self.level_means) ** 2
        self.level_sds = np.sqrt(((squares * by_response).sum(axis=0) + 1.0) / (sizes + 1.0))

    def averaged(self, theta: Array, logs: Array) -> Kinds:
        """Return kinds whose spreads are averaged over their posteriors, each with the others at the mode.

        Parameters
        ----------
        theta : float64 [Q, N, dims]
        logs : float64 [Q, N]
            Log likelihoods, less the log densities of the proposals.
        """
        squares, logs = self._squares(theta), logs + self._log_others(theta)
        each, at_mode = self._each(theta, squares), self._log_t(squares, 0.0)
        found = np.zeros((len(STEPS), len(self.shares)))
        for i, step in enumerate(STEPS):
            change = self._log_t(squares, step) - at_mode
            for k in range(len(self.shares)):
                moved = each.copy()
                moved[..., k] += change[..., k]
                joint = logs + _whole(moved)
                # The Rayleigh density, for steps of equal size in the logarithm.
                prior = 2.0 * step - 0.5 * (self.sds[k] ** 2).mean() * np.exp(2.0 * step) / SPREAD**2
                found[i, k] = prior + self.share * np.logaddexp.reduce(joint, axis=1).sum()
        averaged = copy.copy(self)
        averaged.steps, averaged.step_logs = STEPS, found - np.logaddexp.reduce(found, axis=0)
        # A new response differs from the mean of its kind by the spread, and by the error of that mean.
        averaged.sds = self.sds * np.sqrt(1.0 + 1.0 / (self.counts + 0.1))[:, None]
        return averaged


def _whole(logs: Array) -> Array:
    """Return the logarithm of the sum over one or two kinds, the last axis."""
    # Faster than a reduction over so short an axis.
    found: Array = np.logaddexp(logs[..., 0], logs[..., 1]) if logs.shape[-1] == 2 else logs[..., 0]
    return found


def independence(residuals: Array, free: int) -> float:
    """Return the effective number of responses as a share of their number.

    The estimated log variances of two responses have nearly the squared correlation of the responses, and the
    mean of Q values with a mean correlation r is as exact as the mean of Q / (1 + (Q - 1) r) independent ones
    (Kish 1965, Survey Sampling, section 5.4).

    Parameters
    ----------
    residuals : float64 [Q, S]
        0 where unknown.
    free : int
        Degrees of freedom of a response.
    """
    q = len(residuals)
    if q < 2 or free < 2:
        return 1.0
    unit = residuals / np.maximum(np.linalg.norm(residuals, axis=1), 1e-300)[:, None]
    squared = (((unit.T @ unit) ** 2).sum() - q) / (q * (q - 1))
    # Independent responses have squared correlations of 1 / free by chance.
    shared = max(0.0, (squared - 1.0 / free) / (1.0 - 1.0 / free))
    return float(1.0 / (1.0 + (q - 1) * shared))
