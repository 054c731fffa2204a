"""The exact posterior of a few events, by enumeration of all their labels, and a chain to compare with it.

N events, D channels, K components, Z = K^N label vectors, G values of alpha.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from quantities import log_densities
from reference import ReferenceEngine
from scipy import stats as st
from scipy.special import betaln, logsumexp, multigammaln
from whole_chain import WHOLE, Array, Case, Ints, Sampler, Schedule, posterior_draws

from dpmix.model import split_merge
from dpmix.model.mixture import Stats
from dpmix.model.prior import Prior
from dpmix.model.resolution import blurred
from dpmix.model.streams import Key

PRIOR = Prior(np.array([0.2, -0.1]), 3.0, 2.0, np.array([[0.8, 0.2], [0.2, 0.5]]), 2.0, 1.5)
EVENTS = np.array([[0.0, 0.1], [0.4, -0.3], [1.9, 1.2], [2.2, 0.6], [-1.6, 0.9], [0.9, 0.5]], np.float32)
RESOLUTION = (0.9, 0.5)
"""Width of clouds: as wide as the prior's components, so that every place where it counts matters."""
POINTS = np.array([[0.2, 0.0], [2.0, 1.0], [-1.0, -1.0]])
LEAST_CELL = 0.02  # all values that are less probable form one cell


def log_marginal(events: Array, prior: Prior, resolution: tuple[float, ...] | None = None) -> float:
    """Return the log density of the events of one component, with its parameters integrated out.

    With a resolution, each event contributes E log N(x + e | mu, Sigma), e normal with these standard
    deviations: its variance is added to the scatter once for each event.

    Gelman et al. (2013), Bayesian Data Analysis, 3rd edition, section 3.6.
    """
    count, dim = events.shape
    if count == 0:
        return 0.0
    kappa, dof = 1.0 / prior.gamma, prior.nu + dim + 1
    scale = prior.nu * prior.phi
    average = events.mean(axis=0)
    away = events - average
    offset = average - prior.m
    after = scale + away.T @ away + kappa * count / (kappa + count) * np.outer(offset, offset)
    after += count * np.diag(np.square(resolution or np.zeros(dim)))
    return float(
        multigammaln(0.5 * (dof + count), dim)
        - multigammaln(0.5 * dof, dim)
        + 0.5 * dof * np.linalg.slogdet(scale)[1]
        - 0.5 * (dof + count) * np.linalg.slogdet(after)[1]
        + 0.5 * dim * (np.log(kappa) - np.log(kappa + count) - count * np.log(np.pi))
    )


def log_predictive(
    point: Array, events: Array, prior: Prior, resolution: tuple[float, ...] | None = None
) -> float:
    """Return the log density of one more event of a component with these events: a Student t."""
    count, dim = events.shape
    kappa, dof = 1.0 / prior.gamma + count, prior.nu + dim + 1 + count
    scale, mean = prior.nu * prior.phi, prior.m
    if count:
        average = events.mean(axis=0)
        away, offset = events - average, average - prior.m
        pull = count / (1.0 + prior.gamma * count)
        scale = scale + away.T @ away + pull * np.outer(offset, offset)
        scale += count * np.diag(np.square(resolution or np.zeros(dim)))
        mean = (prior.m / prior.gamma + count * average) / kappa
    df = dof - dim + 1
    return float(st.multivariate_t(mean, scale * (kappa + 1) / (kappa * df), df=df).logpdf(point))


def log_label_prior(counts: Array, alpha: Array) -> Array:
    """Return log P(labels | alpha), [G, Z], of counts [Z, K], with the sticks integrated out."""
    later = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
    alphas = alpha[:, None, None]
    own = betaln(1.0 + counts[:, :-1], alphas + later[:, :-1]) - betaln(1.0, alphas)
    return np.asarray(own.sum(axis=2))


def expected_weights(counts: Array, alpha: Array) -> Array:
    """Return E[pi_j | labels, alpha], [G, Z, K]."""
    later = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
    alphas = alpha[:, None, None]
    sticks = (1.0 + counts) / (1.0 + alphas + counts + later)
    sticks[..., -1] = 1.0
    before = np.cumprod(1.0 - sticks[..., :-1], axis=2)
    return np.asarray(sticks * np.concatenate((np.ones_like(sticks[..., :1]), before), axis=2))


def partition_of(labels: Ints) -> Ints:
    """Return one number for each partition of the events, [T], from labels [T, N], for any numbering."""
    same = labels[:, :, None] == labels[:, None, :]
    first = same.argmax(axis=2)  # for each event, the first event of its block
    return np.asarray(first @ labels.shape[1] ** np.arange(labels.shape[1]))


def occupation(labels: Ints) -> Ints:
    """Return one number for each (n_1, ..., n_K), [T]."""
    return np.asarray(((labels.shape[1] + 1) ** labels).sum(axis=1))


class Exact:
    """The exact posterior of the first events, for a fixed alpha or a prior of G equally probable values.

    With a resolution, the events are clouds (`dpmix.model.resolution`).

    Attributes
    ----------
    labels : int [Z, N]
    probabilities : float64 [Z]
    alpha : float64 [G]
    of_alpha : float64 [G]
        Posterior probability of each value.
    density : float64 [points]
        Posterior mean of the mixture's density.
    """

    def __init__(
        self,
        alpha: float | None,
        n_components: int = 3,
        n_events: int = len(EVENTS),
        resolution: tuple[float, ...] | None = None,
    ) -> None:
        self.labels = np.array(list(product(range(n_components), repeat=n_events)))
        held = self.labels[..., None] == np.arange(n_components)
        counts = held.sum(axis=1).astype(float)
        gamma = st.gamma(PRIOR.alpha_shape, scale=1.0 / PRIOR.alpha_rate)
        self.alpha = np.array([alpha]) if alpha is not None else gamma.ppf((np.arange(400) + 0.5) / 400)
        events = EVENTS[:n_events].astype(float)

        @cache
        def of_subset(members: tuple[bool, ...]) -> tuple[float, list[float]]:
            own = events[list(members)]
            predictive = [np.exp(log_predictive(x, own, PRIOR, resolution)) for x in POINTS]
            return log_marginal(own, PRIOR, resolution), predictive

        blocks = [[of_subset(tuple(held[z, :, j])) for j in range(n_components)] for z in range(len(held))]
        likelihood = np.array([sum(block[0] for block in row) for row in blocks])
        predictive = np.array([[block[1] for block in row] for row in blocks])  # [Z, K, points]
        joint = log_label_prior(counts, self.alpha) + likelihood
        joint = np.exp(joint - logsumexp(joint))
        self.probabilities = joint.sum(axis=0)
        self.of_alpha = joint.sum(axis=1)
        weights = expected_weights(counts, self.alpha)
        self.density = np.einsum("gz,gzk,zkp->p", joint, weights, predictive)


exact_case = cache(Exact)


def beyond_chance(values: Array, expected: Array, batches: int) -> float:
    """Return the p-value of the means of a chain's values [T, M] (Hotelling's test of batch means)."""
    count = len(values) // batches
    means = values[: count * batches].reshape(batches, count, -1).mean(axis=1)
    if np.ptp(means, axis=0).min() == 0.0:  # a cell that is not rare was never or always occupied
        return 0.0
    away, dim = means.mean(axis=0) - expected, means.shape[1]
    squared = batches * away @ np.linalg.solve(np.cov(means.T).reshape(dim, dim), away)
    return float(st.f.sf(squared * (batches - dim) / (dim * (batches - 1)), dim, batches - dim))


def frequencies(cells: Ints, exact_cells: Ints, probabilities: Array, batches: int) -> float:
    """Return the p-value of the chain's frequency in each cell, corrected for autocorrelation."""
    kinds, place = np.unique(exact_cells, return_inverse=True)
    expected = np.bincount(place, probabilities)
    usual = expected >= LEAST_CELL
    # the rare values form one cell, which is left out: the frequencies of all cells sum to 1
    return beyond_chance((cells[:, None] == kinds[usual]).astype(float), expected[usual], batches)


def exact_posterior(
    alpha: float | None, sweeps: int, sampler: Sampler = WHOLE, *, batches: int = 40, seed: int = 1
) -> dict[str, float]:
    """Return p-values of a chain under the exact posterior; `alpha` None means learned."""
    exact = exact_case(alpha, resolution=sampler.resolution)
    learned = frozenset({"alpha"} if alpha is None else ())
    case = Case(replace(PRIOR, learned=learned), 3, len(EVENTS))
    trace = posterior_draws(case, EVENTS, 0, Schedule(50, sweeps, 1), sampler, seed, alpha=alpha)
    points = np.broadcast_to(POINTS, (sweeps, *POINTS.shape))
    p_values = {
        "partitions": frequencies(
            partition_of(trace.labels), partition_of(exact.labels), exact.probabilities, batches
        ),
        "occupation": frequencies(
            occupation(trace.labels), occupation(exact.labels), exact.probabilities, batches
        ),
        "density": beyond_chance(np.exp(log_densities(trace, points)), exact.density, batches),
    }
    if alpha is None:
        # eight intervals with equal prior probability
        gamma = st.gamma(PRIOR.alpha_shape, scale=1.0 / PRIOR.alpha_rate)
        parts = np.minimum((8 * gamma.cdf(trace.alpha)).astype(int), 7)
        p_values["alpha"] = frequencies(parts, np.repeat(np.arange(8), 50), exact.of_alpha, batches)
    return p_values


def split_merge_alone(
    count: int, seed: int = 1, resolution: tuple[float, ...] | None = None
) -> dict[str, float]:
    """Return p-values of labels drawn from their posterior and moved by one round each: four events, K = 2.

    The statistics after the round show the new labels. Expected and observed labels are compared by
    chi-square.
    """
    exact, events = exact_case(1.0, 2, 4, resolution), EVENTS[:4]
    spread = None if resolution is None else np.array(resolution)
    engine, rng = ReferenceEngine(events), np.random.default_rng([seed, 5])
    held = (exact.labels[..., None] == np.arange(2)).astype(float)
    x = events.astype(float)
    counts, sums = held.sum(axis=1), np.einsum("znk,ni->zki", held, x)
    scatters = np.einsum("znk,ni,nj->zkij", held, x, x)
    moved = []
    for iteration, z in enumerate(rng.choice(len(held), size=count, p=exact.probabilities)):
        engine._labels[0] = exact.labels[z].astype(np.int32)
        before = Stats(counts[z], sums[z], scatters[z], np.zeros((2, 2)), 0.0)
        key = Key(seed, 0, iteration)
        regroup = split_merge.round_of(engine.divide, key, resolution=spread)
        after, _ = regroup(blurred(before, spread), PRIOR.centre, 1.0)
        there = after.sums + after.counts[:, None] * after.centres
        gaps = np.abs(sums - there).sum(axis=(1, 2)) + np.abs(counts - after.counts).sum(axis=1)
        assert gaps.min() < 1e-5
        moved.append(gaps.argmin())
    observed = np.bincount(moved, minlength=len(held))
    kinds = np.unique(occupation(exact.labels), return_inverse=True)[1]
    return {
        "labels": float(st.chisquare(observed, count * exact.probabilities).pvalue),
        "occupation": float(
            st.chisquare(np.bincount(kinds, observed), count * np.bincount(kinds, exact.probabilities)).pvalue
        ),
    }
