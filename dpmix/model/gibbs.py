"""The block Gibbs sampler: everything of a sweep but the labels, which the engine draws.

Suchard et al. (2010), Appendix A. All functions are pure; all parameters of all components are drawn at
once, as batched linear algebra, because on a GPU this part is what a sweep waits for.

N events, D channels, K components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.model import hyperparameters
from dpmix.model.mixture import (
    HYPERPARAMETERS,
    Array,
    Hyperparameters,
    Ints,
    Prior,
    State,
    Stats,
    live_log1m_sticks,
    log_weights,
)
from dpmix.model.streams import Step, Stream

LEAST_ALPHA = 1e-100  # logs of sticks, which are of the order of 1 / alpha, stay finite


class Posterior(NamedTuple):
    """Normal inverse Wishart conditional of every component given the events labelled with it.

    mu_j | Sigma_j ~ N(means[j], Sigma_j / precisions[j]) and Sigma_j ~ inverse Wishart(dofs[j], scales[j]),
    dofs in the usual notation (E[Sigma_j] = scales[j] / (dofs[j] - D - 1)).

    Attributes
    ----------
    means : float64 [K, D]
    precisions : float64 [K]
        1 / gamma + n_j.
    dofs : float64 [K]
    scales : float64 [K, D, D]
    """

    means: Array
    precisions: Array
    dofs: Array
    scales: Array


Regroup = Callable[[Stats, Hyperparameters, float], Stats]
"""Moves on the labels given hyperparameters and alpha, in terms of their statistics
(`dpmix.model.split_merge`)."""


class Info(NamedTuple):
    """What a sweep did, beside the new state.

    Attributes
    ----------
    swaps : int
        Label-swap moves accepted that moved an occupied component.
    order : int64 [K] or None
        The number that each component had before them, as in `Mixture`; None where no moves were made.
    """

    swaps: int
    order: Ints | None


@dataclass(frozen=True)
class Sticks:
    """log v_j and log(1 - v_j), float64 [K - 1] each."""

    log_sticks: Array
    log1m_sticks: Array


def sweep(
    state: State,
    stats: Stats,
    prior: Prior,
    stream: Stream,
    *,
    label_swaps: bool = True,
    regroup: Regroup | None = None,
) -> tuple[State, Info]:
    """All of one Gibbs sweep but the labels just drawn (step 1), given their statistics.

    The hyperparameters (step 6) come first, given the components of the last sweep that hold events by these
    labels. The empty ones, which step 2 draws anew, are thus integrated out: drawn from the prior, they would
    hold it where it is, the more of them the firmer.

    Moves on the labels come next: between the step that draws on the old parameters for the last time and
    those that draw new parameters and sticks given the labels, which are thus integrated out of the moves.

    Parameters
    ----------
    state : State
        The state that the labels were drawn from.
    stats : Stats
        Statistics of the labelled events.
    prior : Prior
        Hyperparameters and alpha are drawn where it says so, and kept otherwise.
    stream : Stream
        Random numbers of this sweep; its iteration is that of the state returned.
    label_swaps : bool
        Make the label-swap moves (step 5).
    regroup : callable, optional
        Moves on the labels.

    Returns
    -------
    state : State
    info : Info

    Raises
    ------
    numpy.linalg.LinAlgError
        If a component's scatter is not positive definite to float64 (collinear channels).
    """
    hyper = state.hyperparameters
    if prior.learned.intersection(HYPERPARAMETERS):
        held = stats.counts > 0
        components = hyperparameters.summarise(state.means[held], state.whiteners[held], hyper.m)
        hyper = hyperparameters.draw(components, hyper, prior, stream.step(Step.HYPERPARAMETERS))
    if regroup is not None:
        stats = regroup(stats, hyper, state.alpha)
    conditional = posterior(stats, hyper)
    means, covariances, whiteners = draw_parameters(conditional, stream.step(Step.PARAMETERS))
    sticks = draw_sticks(stats.counts, state.alpha, stream.step(Step.STICKS))
    alpha = state.alpha
    if "alpha" in prior.learned:
        alpha = draw_alpha(sticks.log1m_sticks, prior, stream.step(Step.ALPHA))
    swaps, order = 0, None
    if label_swaps:
        rng = stream.step(Step.SWAPS)
        order, sticks, swaps = swap_labels(stats.counts, sticks, alpha, rng)
        means, covariances, whiteners = means[order], covariances[order], whiteners[order]
    following = State(
        stream.iteration, alpha, sticks.log_sticks, sticks.log1m_sticks, means, covariances, whiteners, hyper
    )
    return following, Info(swaps, order)


def posterior(stats: Stats, hyper: Hyperparameters) -> Posterior:
    """Normal inverse Wishart conditionals of all components (the paper, Appendix A.1, step 2).

    Of a component without events, the prior.
    """
    dim = len(hyper.m)
    counts = stats.counts
    weight = np.where(counts > 0, counts, 1.0)
    shift = stats.sums / weight[:, None]
    scatter = stats.scatters - counts[:, None, None] * shift[:, :, None] * shift[:, None, :]
    average = np.where(counts[:, None] > 0, stats.centres + shift, hyper.m)
    precisions = 1.0 / hyper.gamma + counts
    away = average - hyper.m
    pull = counts / (1.0 + hyper.gamma * counts)
    return Posterior(
        means=hyper.m + (counts / precisions)[:, None] * away,
        precisions=precisions,
        dofs=hyper.nu + dim + 1 + counts,
        scales=hyper.nu * hyper.phi + scatter + pull[:, None, None] * away[:, :, None] * away[:, None, :],
    )


def mean_covariances(conditional: Posterior) -> Array:
    """E[Sigma_j] of normal inverse Wishart distributions, float64 [K, D, D]."""
    dim = conditional.means.shape[1]
    means: Array = conditional.scales / (conditional.dofs - dim - 1)[:, None, None]
    return means


def log_marginals(stats: Stats, hyper: Hyperparameters) -> Array:
    """Log marginal likelihood of each component's events, float64 [K]: 0 where it has none.

    The normal inverse Wishart prior integrated out (Murphy 2007, "Conjugate Bayesian analysis of the Gaussian
    distribution", eq. 266).
    """
    dim = len(hyper.m)

    def log_constants(precisions: Array, dofs: Array, scales: Array) -> Array:
        log_dets = 2.0 * np.log(np.einsum("kii->ki", np.linalg.cholesky(scales))).sum(axis=1)
        log_gammas = gammaln(0.5 * (dofs[:, None] - np.arange(dim))).sum(axis=1)  # a constant cancels
        constants: Array = log_gammas - 0.5 * dofs * log_dets - 0.5 * dim * np.log(precisions)
        return constants

    _, *of_posterior = posterior(stats, hyper)
    _, *of_prior = posterior(no_events(1, dim), hyper)
    ratios = log_constants(*of_posterior) - log_constants(*of_prior)
    marginals: Array = ratios - 0.5 * dim * np.log(np.pi) * stats.counts
    return marginals


def draw_parameters(conditional: Posterior, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Draw (mu_j, Sigma_j) of all components jointly (the paper, Appendix A.1, step 2).

    With C the lower Cholesky factor of the scale and T lower triangular such that T'T is a standard Wishart
    matrix (Bartlett's decomposition, read from the last row upwards), L = T C^-1 is at once the whitener of
    Sigma = (L'L)^-1 and lower triangular: nothing is factorised twice.

    Returns
    -------
    means : float64 [K, D]
    covariances : float64 [K, D, D]
    whiteners : float64 [K, D, D]
        Lower triangular, with a positive diagonal.

    Raises
    ------
    numpy.linalg.LinAlgError
        A scale is not positive definite to float64.
    """
    count, dim = conditional.means.shape
    factors = np.linalg.cholesky(conditional.scales)
    bartlett = np.tril(rng.standard_normal((count, dim, dim)), -1)
    halves = 0.5 * (conditional.dofs[:, None] - np.arange(dim)[::-1])
    diagonal = np.arange(dim)
    bartlett[:, diagonal, diagonal] = np.sqrt(2.0 * rng.standard_gamma(halves))
    whiteners = bartlett @ np.tril(np.linalg.inv(factors))
    roots = factors @ np.tril(np.linalg.inv(bartlett))
    noise = np.einsum("kij,kj->ki", roots, rng.standard_normal((count, dim)))
    means = conditional.means + noise / np.sqrt(conditional.precisions)[:, None]
    return means, roots @ roots.transpose(0, 2, 1), whiteners


def draw_sticks(counts: Array, alpha: float, rng: np.random.Generator) -> Sticks:
    """v_j ~ Beta(1 + n_j, alpha + sum_{r>j} n_r), j < K (the paper, Appendix A.1, step 3), in logs."""
    first = log_gamma_variates(1.0 + counts[:-1], rng)
    second = log_gamma_variates(alpha + later(counts)[:-1], rng)
    both = np.logaddexp(first, second)
    return Sticks(first - both, second - both)


def log_gamma_variates(shapes: Array, rng: np.random.Generator) -> Array:
    """Logs of Gamma(shape, 1) variates, exact where the variate itself would round to 0.

    Gamma(a) is Gamma(a + 1) U^(1/a) in distribution (Marsaglia and Tsang 2000, ACM TOMS 26:363, section 6).
    """
    return np.log(rng.standard_gamma(shapes + 1.0)) - rng.standard_exponential(shapes.shape) / shapes


def draw_alpha(log1m_sticks: Array, prior: Prior, rng: np.random.Generator) -> float:
    """alpha ~ Gamma(e + K - 1, f - sum_{j<K} log(1 - v_j)) (the paper, Appendix A.1, step 4)."""
    live = live_log1m_sticks(log1m_sticks)
    return gamma_variate(prior.alpha_shape + len(live), prior.alpha_rate - live.sum(), rng)


def gamma_variate(shape: float, rate: float, rng: np.random.Generator) -> float:
    """A Gamma(shape, rate) variate; of a small shape one may round to 0, and is `LEAST_ALPHA` then."""
    return max(float(rng.gamma(shape, 1.0 / rate)), LEAST_ALPHA)


def later(counts: Array) -> Array:
    """sum_{r>j} n_r, float64 [K]."""
    return np.concatenate((np.cumsum(counts[::-1])[::-1][1:], [0.0]))


def swap_labels(
    counts: Array, sticks: Sticks, alpha: float, rng: np.random.Generator
) -> tuple[Ints, Sticks, int]:
    """Label-swap moves on the stick order: Metropolis moves that leave the posterior as it is.

    1. Exchange a random occupied component with any other, the sticks staying (Papaspiliopoulos and Roberts
       2008, Biometrika 95:169, their first move).
    2. Exchange neighbours together with their sticks (their second move).
    3. Exchange neighbours with all sticks integrated out, then draw the sticks anew. This has the aim of
       the third move of Hastie, Liverani and Richardson (2015, Stat. Comput. 25:1023), which rescales the
       sticks to what the exchanged counts let expect; with them integrated out the ratio is exact and
       simple: (alpha + n_{j+1} + R) / (alpha + n_j + R), R the events after both.

    Parameters
    ----------
    counts : float64 [K]
    sticks : Sticks
    alpha : float
    rng : numpy.random.Generator

    Returns
    -------
    order : int [K]
        order[j] is the component that now has place j.
    sticks : Sticks
    swaps : int
        Moves accepted that moved an occupied component.
    """
    n_components = len(counts)
    order = list(range(n_components))
    if n_components == 1:
        return np.array(order), sticks, 0
    n = counts.tolist()
    swaps = exchange_any(order, n, log_weights(sticks.log_sticks, sticks.log1m_sticks).tolist(), rng)
    log_sticks, log1m_sticks = sticks.log_sticks.tolist(), sticks.log1m_sticks.tolist()
    swaps += exchange_with_sticks(order, n, log_sticks, log1m_sticks, rng)
    swaps += exchange_collapsed(order, n, alpha, rng)
    return np.array(order), draw_sticks(np.array(n), alpha, rng), swaps


def exchange_any(order: list[int], n: list[float], weights: list[float], rng: np.random.Generator) -> int:
    """K tries of the first move, in place; `weights` are log pi_j."""
    count = len(order)
    held = [j for j in range(count) if n[j] > 0]
    if not held:
        return 0
    firsts = rng.integers(len(held), size=count).tolist()
    others = rng.integers(count - 1, size=count).tolist()
    swaps = 0
    for first, other, level in zip(firsts, others, rng.standard_exponential(count).tolist(), strict=True):
        j = held[first]
        r = other + (other >= j)
        if (weights[j] - weights[r]) * (n[r] - n[j]) >= -level:
            if n[r] == 0:
                held[first] = r
            n[j], n[r] = n[r], n[j]
            order[j], order[r] = order[r], order[j]
            swaps += 1
    return swaps


def exchange_with_sticks(
    order: list[int],
    n: list[float],
    log_sticks: list[float],
    log1m_sticks: list[float],
    rng: np.random.Generator,
) -> int:
    """One pass of the second move over all neighbours that both have a stick, in place."""
    swaps = 0
    for j, level in enumerate(rng.standard_exponential(max(len(order) - 2, 0)).tolist()):
        if n[j] * log1m_sticks[j + 1] - n[j + 1] * log1m_sticks[j] >= -level:
            swaps += n[j] + n[j + 1] > 0
            order[j], order[j + 1] = order[j + 1], order[j]
            for values in (n, log_sticks, log1m_sticks):
                values[j], values[j + 1] = values[j + 1], values[j]
    return swaps


def exchange_collapsed(order: list[int], n: list[float], alpha: float, rng: np.random.Generator) -> int:
    """One pass of the third move over all neighbours, in place."""
    swaps, last = 0, len(order) - 2
    after = sum(n[2:])  # events of the components after both neighbours
    for j, uniform in enumerate(rng.random(len(order) - 1).tolist()):
        a, b = n[j], n[j + 1]
        if j < last:
            ratio = (alpha + b + after) / (alpha + a + after)
            after -= n[j + 2]
        else:  # the last component has no stick of its own
            ratio = np.exp(gammaln(1 + b) + gammaln(alpha + a) - gammaln(1 + a) - gammaln(alpha + b))
        if uniform < ratio:
            swaps += a + b > 0
            n[j], n[j + 1] = b, a
            order[j], order[j + 1] = order[j + 1], order[j]
    return swaps


def draw_prior(prior: Prior, n_components: int, alpha: float | None, stream: Stream) -> State:
    """A state of K components drawn from the prior.

    Parameters
    ----------
    prior : Prior
        Hyperparameters that it learns are drawn, too.
    n_components : int
        The truncation K.
    alpha : float or None
        The concentration; None: drawn from its prior.
    stream : Stream
        Random numbers; its iteration is that of the state returned.

    Returns
    -------
    State
    """
    if alpha is None:
        alpha = gamma_variate(prior.alpha_shape, prior.alpha_rate, stream.step(Step.ALPHA))
    hyper = hyperparameters.draw_prior(prior, stream.step(Step.HYPERPARAMETERS))
    empty = no_events(n_components, len(prior.m))
    means, covariances, whiteners = draw_parameters(posterior(empty, hyper), stream.step(Step.PARAMETERS))
    sticks = draw_sticks(empty.counts, alpha, stream.step(Step.STICKS))
    return State(
        stream.iteration, alpha, sticks.log_sticks, sticks.log1m_sticks, means, covariances, whiteners, hyper
    )


def no_events(n_components: int, dim: int) -> Stats:
    """The statistics of no event at all."""
    return Stats(
        counts=np.zeros(n_components),
        sums=np.zeros((n_components, dim)),
        scatters=np.zeros((n_components, dim, dim)),
        centres=np.zeros((n_components, dim)),
        log_likelihood=0.0,
    )
