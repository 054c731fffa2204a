"""Regressions of many responses on the columns of a design, by numerical integration without a sampler.

S samples, Q responses, C columns of the design, R levels of random effects, G columns of variability. For
each response, with known variances v_s of the measurement:

    y_s          ~ N(alpha + x_s' beta + z_s' u, k_s (sigma_s^2 + v_s)),    sigma_s = sigma exp(w_s' gamma)
    k_s          = 1, or `OUTLIER_VARIANCE` with probability `OUTLIER_SHARE`
    u_r          ~ N(0, omega_t^2) for each level r of a term t = (1 | column)
    alpha, beta  flat

The logarithms of sigma and omega of all responses come from two kinds of responses, on and off, each with a
Student t distribution, because a marker that is off in most samples only varies far more than others of its
kind; or from one kind where the responses are few. Given these scales and the outliers, all coefficients are
jointly normal and integrated out, which is the restricted likelihood (Harville 1974, Biometrika 61:383). The
scales of a response are integrated by importance sampling at quasi-random points of proposals that adapt to
the posterior (`dpmix.association.proposals`). Locations and shares of the kinds are
set to their posterior mode by expectation maximisation, as in the empirical Bayes variances of Smyth (2004,
Stat. Appl. Genet. Mol. Biol. 3:3). The spread of a kind is averaged over its posterior, because equal scales
and scales that differ a little can fit alike, and the chance of a false discovery depends on which is true.
Responses that vary together count as fewer (`_independence`). The same input gives the same numbers.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.association.proposals import ENOUGH, Proposals
from dpmix.model.mixture import Array, Ints

OUTLIER_SHARE, OUTLIER_VARIANCE = 0.01, 100.0
MOST_OUTLIERS = 2  # candidates in a response; all subsets are compared
LEAST_SAMPLES = 12  # for outliers without pairs
VARIABILITY_SD = 0.3  # of gamma
KIND_FREE = 4.0  # degrees of freedom of log scales in a kind (Lange et al. 1989, JASA 84:881)
SPREAD = 2.0  # scale of the Rayleigh prior of the spread (root mean square) of log scales in a kind
STEPS = np.log(2.0) * np.arange(-2.0, 2.5, 0.5)  # logarithms of its values, from the mode
LEAST_RESPONSES = 20  # for two kinds
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
    mode = kinds = _Kinds(centre, cube.n_scales, np.nanmean(y, axis=1), share)
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
        for _ in range(EM_STEPS):
            joint = logs + (mode.log_density(theta) - proposal)[:, :, None]
            mode.update(theta, _normalise(joint).sum(axis=2))
        kinds = mode.averaged(theta, np.logaddexp.reduce(logs, axis=2) - proposal)
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


class _Kinds:
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
        z = (theta[..., None, : self.n_scales] - self.means) / self.sds
        return np.asarray((z**2).sum(axis=-1), np.float64)

    def _each(self, theta: Array) -> Array:
        of_level = 0.5 * ((self.levels[:, None] - self.level_means) / self.level_sds) ** 2
        own = np.log(self.shares / self.level_sds) - of_level  # [Q, kinds]
        squares = self._squares(theta)
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
        each: Array = np.exp(logs - np.logaddexp.reduce(logs, axis=-1)[..., None])
        return each

    def log_density(self, theta: Array) -> Array:
        """Return the log density of scales and level [Q, N], with a constant left out for each response."""
        others = theta[..., self.n_scales :] / VARIABILITY_SD
        density: Array = np.logaddexp.reduce(self._each(theta), axis=-1) - 0.5 * (others**2).sum(axis=-1)
        return density

    def update(self, theta: Array, weights: Array) -> None:
        """Take a step of expectation maximisation.

        Parameters
        ----------
        theta : float64 [Q, N, dims]
        weights : float64 [Q, N]
        """
        own = weights[..., None] * self.probabilities(theta)  # [Q, N, kinds]
        by_response = own.sum(axis=1)  # [Q, kinds]
        sizes = by_response.sum(axis=0)
        self.counts = self.share * sizes
        near = self.share * own * (KIND_FREE + self.n_scales) / (KIND_FREE + self._squares(theta))
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

    def averaged(self, theta: Array, logs: Array) -> _Kinds:
        """Return kinds whose spreads are averaged over their posteriors, each with the others at the mode.

        Parameters
        ----------
        theta : float64 [Q, N, dims]
        logs : float64 [Q, N]
            Log likelihoods, less the log densities of the proposals.
        """
        squares, each = self._squares(theta), self._each(theta)
        found = np.zeros((len(STEPS), len(self.shares)))
        for k in range(len(self.shares)):
            moved = each.copy()
            for i, step in enumerate(STEPS):
                change = self._log_t(squares, step) - self._log_t(squares, 0.0)
                moved[..., k] = each[..., k] + change[..., k]
                joint = logs + np.logaddexp.reduce(moved, axis=-1)
                # The Rayleigh density, for steps of equal size in the logarithm.
                prior = 2.0 * step - 0.5 * (self.sds[k] ** 2).mean() * np.exp(2.0 * step) / SPREAD**2
                found[i, k] = prior + self.share * np.logaddexp.reduce(joint, axis=1).sum()
        averaged = copy.copy(self)
        averaged.steps, averaged.step_logs = STEPS, found - np.logaddexp.reduce(found, axis=0)
        # A new response differs from the mean of its kind by the spread, and by the error of that mean.
        averaged.sds = self.sds * np.sqrt(1.0 + 1.0 / (self.counts + 0.1))[:, None]
        return averaged


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
        """Return points to start from [Q, dims], and the result of `_independence`."""
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
        return centre, _independence(residuals, len(whole) - np.linalg.matrix_rank(whole))

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

    def candidates(self, theta: Array, kinds: _Kinds, proposal: Array) -> Bools:
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


def _independence(residuals: Array, free: int) -> float:
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


def _products(first: Array, second: Array) -> Array:
    """Return the products of all pairs of columns, float64 [S, A * B]."""
    return np.asarray((first[:, :, None] * second[:, None]).reshape(len(first), -1), np.float64)


def _normalise(logs: Array) -> Array:
    """Return weights that add up to 1 for each response, float64 [Q, N, M]."""
    weights = np.exp(logs - logs.max(axis=(1, 2), keepdims=True))
    return np.asarray(weights / weights.sum(axis=(1, 2), keepdims=True), np.float64)
