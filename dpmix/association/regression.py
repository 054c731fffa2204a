"""Regressions of many responses on the columns of a design, by numerical integration without a sampler.

S samples, Q responses, C columns of the design, R levels of random effects, G columns of variability. For
each response, with known variances v_s of the measurement:

    y_s          ~ N(alpha + x_s' beta + z_s' u, k_s (sigma_s^2 + v_s)),    sigma_s = sigma exp(w_s' gamma)
    k_s          = 1, or `OUTLIER_VARIANCE` with probability `OUTLIER_SHARE`
    u_r          ~ N(0, omega_t^2) for each level r of a term t = (1 | column)
    alpha, beta  flat

The logarithms of sigma and omega have distributions that the responses share (`dpmix.association.kinds`).
Given these scales and the outliers, all coefficients are jointly normal and integrated out, which is the
restricted likelihood (Harville 1974, Biometrika 61:383). The scales of a response are integrated by
importance sampling at quasi-random points of proposals that adapt to the posterior
(`dpmix.association.proposals`). The same input gives the same numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.association.kinds import Kinds, independence
from dpmix.association.proposals import ENOUGH, Proposals
from dpmix.model.mixture import Array, Ints

OUTLIER_SHARE, OUTLIER_VARIANCE = 0.01, 100.0
MOST_OUTLIERS = 2  # candidates in a response; all subsets are compared
LEAST_SAMPLES = 12  # for outliers without pairs
POINTS, EM_STEPS = 128, 20
FEW_ROUNDS, ROUNDS = 8, 12  # with `POINTS`, and with four times as many for the last
CHOICES = (0, 2)  # rounds that choose the candidates for outliers
FORGOTTEN = 1e-8  # weight of the points that are not kept
FARTHEST = 7.0  # scales are between exp(-7) and exp(7) standard deviations of a response
Bools = npt.NDArray[np.bool_]
CHUNK = 200_000  # numbers in a temporary array, which stays in the cache


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


@dataclass(frozen=True)
class RegressionFit:
    """The posterior of the regressions: a mixture of T normals for each response.

    Attributes
    ----------
    weights : float64 [Q, T]
    means : float64 [Q, T, 1 + C]
        Means of alpha and beta.
    covariances : float64 [Q, T, 1 + C, 1 + C]
    scales : float64 [Q, T, 1 + terms + G]
        log sigma, log omega of each term, and gamma.
    usual : float64 [S, Q]
        Probability that a value is no outlier.
    effective : float64 [Q]
        Effective number of points in the integral over the scales.
    kinds : float64 [Q, K]
        Probabilities of the kinds of responses.
    """

    weights: Array
    means: Array
    covariances: Array
    scales: Array
    usual: Array
    effective: Array
    kinds: Array


def fit(values: Array, variances: Array, predictors: Predictors) -> RegressionFit:
    """Return the posterior of each response.

    Parameters
    ----------
    values : float64 [S, Q]
        NaN where unknown.
    variances : float64 [S, Q]
        Variances of the measurements.
    predictors : Predictors
    """
    y, v = values.T, np.nan_to_num(variances).T
    cube = _Likelihood(y, v, predictors)
    centre, share = cube.start()
    mode = kinds = Kinds(centre, cube.n_scales, np.nanmean(y, axis=1), share)
    proposals = Proposals.around(centre, kinds.moments(centre.shape[1])[1][0], len(kinds.means))
    outliers = np.zeros((len(y), 1, y.shape[1]), bool)
    for round_ in range(ROUNDS):
        # New points in each round, seeded by its number: the same input gives the same numbers.
        drawn, proposal = proposals.draw(round_, POINTS if round_ < FEW_ROUNDS else 4 * POINTS)
        theta, inside = cube.within(drawn)
        proposal -= inside
        # Once for the first proposals, and again when these have moved to the scales of the responses.
        if round_ in CHOICES:
            outliers = cube.candidates(theta, kinds, proposal)
        logs = cube.evaluate(theta, outliers)
        # The likelihoods do not depend on the kinds, and many steps cost little next to the evaluation above.
        evidence = np.logaddexp.reduce(logs, axis=2) - proposal
        for _ in range(EM_STEPS):
            mode.update(theta, evidence)
        kinds = mode.averaged(theta, evidence)
        joint = logs + (kinds.log_density(theta) - proposal)[:, :, None]
        weights = _normalise(joint)
        effective = 1.0 / (weights.sum(axis=2) ** 2).sum(axis=1)
        if round_ > max(CHOICES) and effective.min() > ENOUGH:
            break
        proposals = proposals.adapted(
            theta,
            np.logaddexp.reduce(joint, axis=2),
            kinds.probabilities(theta),
            *mode.moments(theta.shape[2]),
        )
    usual = 1.0 - np.einsum("qm,qms->sq", weights.sum(axis=1), outliers)
    of_kinds = np.einsum("qn,qnk->qk", weights.sum(axis=2), kinds.probabilities(theta))
    flat = weights.reshape(len(y), -1)
    order = np.argsort(-flat, axis=1)
    sums = np.cumsum(np.take_along_axis(flat, order, 1), axis=1)
    order = order[:, : int((sums < 1.0 - FORGOTTEN).sum(axis=1).max()) + 1]
    n, m = np.divmod(order, outliers.shape[1])  # [Q, T]
    rows = np.arange(len(y))[:, None]
    means, covariances = cube.coefficients(theta[rows, n], outliers[rows, m])
    kept = np.take_along_axis(flat, order, 1)
    kept /= kept.sum(axis=1, keepdims=True)
    return RegressionFit(kept, means, covariances, theta[rows, n], usual, effective, of_kinds)


class _Likelihood:
    """Restricted likelihoods of scales and outliers."""

    def __init__(self, y: Array, v: Array, predictors: Predictors) -> None:
        self.there = ~np.isnan(y)
        self.y, self.v = np.nan_to_num(y), v
        self.log_sds = np.log(np.maximum(np.nanstd(y, axis=1), 1e-12))
        self.predictors = predictors
        sizes = np.bincount(predictors.terms, minlength=1)
        # The term with most levels is eliminated level by level (a diagonal matrix), so the cost does not
        # grow with the cube of the donors.
        largest = int(sizes.argmax()) if predictors.n_terms else -1
        self.eliminated = predictors.terms == largest
        self.z = predictors.random[:, self.eliminated]
        self.largest = largest
        dense = predictors.random[:, ~self.eliminated]
        self.dense_terms = predictors.terms[~self.eliminated]
        self.b = np.column_stack([np.ones(len(predictors.fixed)), predictors.fixed, dense])
        self.n_fixed = 1 + predictors.fixed.shape[1]
        self.n_scales = 1 + predictors.n_terms

    def start(self) -> tuple[Array, float]:
        """Return points to start from [Q, dims], and the result of `independence`."""
        q, dims = len(self.y), self.n_scales + self.predictors.variability.shape[1]
        whole = np.column_stack([self.b[:, : self.n_fixed], self.predictors.random])
        centre, residuals = np.zeros((q, dims)), np.zeros(self.y.shape)
        for j in range(q):
            own = self.there[j]
            y, x = self.y[j, own], whole[own]
            residual = residuals[j, own] = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
            free = max(len(y) - np.linalg.matrix_rank(x), 1)
            # At least a tenth of the spread of the values: a saturated fit has no residual to start from.
            typical = np.sqrt(max((residual**2).sum() / free, 1e-2 * y.var(), 1e-12))
            centre[j, 0] = np.log(typical)
            centre[j, 1 : self.n_scales] = np.log(max(y.std(), 1e-6))
        return centre, independence(residuals, len(whole) - np.linalg.matrix_rank(whole))

    def _precisions(self, theta: Array, outliers: Bools, own: Ints) -> Array:
        """Return the precisions of values, float64 [K, S]; 0 where a value is unknown."""
        spread = 2.0 * theta[:, :1]
        if self.predictors.variability.shape[1]:
            spread = spread + 2.0 * theta[:, self.n_scales :] @ self.predictors.variability.T
        total = np.exp(spread) + self.v[own]
        precisions: Array = self.there[own] / np.where(outliers, OUTLIER_VARIANCE * total, total)
        return precisions

    def _solve(self, theta: Array, outliers: Bools, own: Ints) -> tuple[Array, Array, Array]:
        """Return restricted log likelihoods [K], inner matrices [K, q, q] and means [K, q]."""
        d = self._precisions(theta, outliers, own)
        y = self.y[own]
        k, q, ones = len(d), self.b.shape[1], np.ones(d.shape[1])
        # Products of columns are the same for all responses, so that all sums are products of two matrices.
        inner: Array = (d @ _products(self.b, self.b)).reshape(k, q, q)
        weighted = d * y
        right = weighted @ self.b
        logs = 0.5 * (np.log(np.where(d > 0.0, d, 1.0)) - weighted * y) @ ones
        if self.dense_terms.size:
            scales = theta[:, 1 + self.dense_terms]
            at = self.n_fixed + np.arange(len(self.dense_terms))
            inner[:, at, at] += np.exp(-2.0 * scales)
            logs -= scales.sum(axis=1)
        if n_levels := self.z.shape[1]:
            scale = theta[:, 1 + self.largest]
            e = d @ self.z + np.exp(-2.0 * scale)[:, None]  # [K, R]
            f = (d @ _products(self.b, self.z)).reshape(k, q, n_levels)
            g = weighted @ self.z
            inner -= (f / e[:, None]) @ f.transpose(0, 2, 1)
            right -= (f @ (g / e)[:, :, None])[:, :, 0]
            logs += 0.5 * (g**2 / e - np.log(e)) @ np.ones(n_levels) - n_levels * scale
        means = np.asarray(np.linalg.solve(inner, right[:, :, None])[:, :, 0], np.float64)
        # The determinant makes it the restricted likelihood: without it, the scales would be too small by the
        # coefficients that were fitted.
        logs += 0.5 * (right * means).sum(axis=1) - 0.5 * np.linalg.slogdet(inner)[1]
        return logs, inner, means

    def within(self, theta: Array) -> tuple[Array, Array]:
        """Return points moved to the range of the scales, and the logarithm of its indicator [Q, N]."""
        moved = theta.copy()
        scales = moved[..., : self.n_scales]
        low, high = (self.log_sds[:, None, None] + sign * FARTHEST for sign in (-1.0, 1.0))
        inside = ((scales >= low) & (scales <= high)).all(axis=-1)
        moved[..., : self.n_scales] = np.clip(scales, low, high)
        return moved, np.where(inside, 0.0, -np.inf)

    def evaluate(self, theta: Array, outliers: Bools) -> Array:
        """Return log likelihoods with the prior of the outliers, float64 [Q, N, M].

        Parameters
        ----------
        theta : float64 [Q, N, dims]
        outliers : bool [Q, M, S]
        """
        (q, n, _), m = theta.shape, outliers.shape[1]
        found = np.empty(q * n * m)
        size = max(1, CHUNK // (self.y.shape[1] * self.b.shape[1]))
        for start in range(0, len(found), size):
            at = np.arange(start, min(start + size, len(found)))
            j, k = np.divmod(at, n * m)
            point, subset = np.divmod(k, m)
            found[at] = self._solve(theta[j, point], outliers[j, subset], j)[0]
        odds = np.log(OUTLIER_SHARE / (1.0 - OUTLIER_SHARE))
        number = outliers.sum(axis=2)
        ordered: Array = found.reshape(q, n, m) + odds * number[:, None, :]
        return ordered

    def candidates(self, theta: Array, kinds: Kinds, proposal: Array) -> Bools:
        """Return all subsets of the values of each response that are most likely outliers, bool [Q, M, S].

        Without pairs, a few samples have none: if chance puts three donors that differ from all others into
        one group of four, its fourth would count as an outlier.
        """
        q, s = self.y.shape
        few = s < LEAST_SAMPLES and not self.predictors.n_terms
        # A quarter of the points is enough to rank values, and each value has to be tried as an outlier.
        theta = theta[:, ::4]
        density = (kinds.log_density(theta) - proposal[:, ::4])[:, :, None]
        chosen = np.zeros((q, s), bool)
        order = []
        for _ in range(0 if few else min(MOST_OUTLIERS, max(1, s // 6))):
            more = chosen[:, None, :] | np.eye(s, dtype=bool)
            joint = self.evaluate(theta, more) + density
            score = np.logaddexp.reduce(joint, axis=1)
            score[chosen | ~self.there] = -np.inf
            best = score.argmax(axis=1)
            chosen[np.arange(q), best] = True
            order.append(best)
        # All subsets, because two outliers can hide each other.
        subsets = np.array(list(itertools.product((False, True), repeat=len(order))))
        outliers = np.zeros((q, len(subsets), s), bool)
        for k, best in enumerate(order):
            outliers[np.arange(q), :, best] = subsets[:, k]
        return outliers

    def coefficients(self, theta: Array, outliers: Bools) -> tuple[Array, Array]:
        """Return means [Q, T, 1 + C] and covariances of alpha and beta, for T points of each response."""
        q, t, _ = theta.shape
        own = np.repeat(np.arange(q), t)
        _, inner, means = self._solve(theta.reshape(q * t, -1), outliers.reshape(q * t, -1), own)
        covariances = np.asarray(np.linalg.inv(inner), np.float64)
        n = self.n_fixed
        return means[:, :n].reshape(q, t, n), covariances[:, :n, :n].reshape(q, t, n, n)


def _products(first: Array, second: Array) -> Array:
    """Return the products of all pairs of columns, float64 [S, A * B]."""
    return np.asarray((first[:, :, None] * second[:, None]).reshape(len(first), -1), np.float64)


def _normalise(logs: Array) -> Array:
    """Return weights that add up to 1 for each response, float64 [Q, N, M]."""
    weights = np.exp(logs - logs.max(axis=(1, 2), keepdims=True))
    return np.asarray(weights / weights.sum(axis=(1, 2), keepdims=True), np.float64)
