"""Proportions of populations in a sample, which may differ from those in the run.

In a draw of the run, the engine computes the memberships r_np of event n from the run's weights pi of the
populations: r_np is proportional to pi_p f_p(x_n), with f_p the density of population p. A sample shares the
densities of the run and has its own weights omega:

    P(z_n = p)  proportional to  r_np omega_p / pi_p
    omega | a   ~ Dirichlet(a pi)
    a           uniform on 1, 2, 4, ..., 2^14

The proportions of the run thus count as much as a events of the sample, and a is learned, from one event to
thousands. A sample similar to the run is gated with the proportions of the run, a different one with its own.
(With a = 1, a rare population would lose the events between it and its neighbours, even in a sample similar
to the run.)

Given a draw of the run, Gibbs sampling draws in turn the populations z | omega, a | counts with omega
integrated out, and omega | a, counts ~ Dirichlet(a pi + counts). Saerens, Latinne and Decaestecker (2002),
Neural Comput. 14:21, make the same adjustment by EM.

T draws, M events, P populations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream

CONCENTRATIONS = 2.0 ** np.arange(15)
"""Values of a: weight of the run's proportions in a sample, as a number of events."""
MOST_EVENTS = 20_000  # events from which the weights of a sample are drawn
FIRST, LATER = 50, 3  # Gibbs iterations in the first draw and in each later one
LEAST_RATIO = 1e-30  # an event that only one population explains belongs to it, however rare it is


def representatives(populations: Ints, n_populations: int) -> tuple[Ints, Array]:
    """Choose events that represent a sample: all of rare populations, equally many of the others.

    Parameters
    ----------
    populations : int64 [N]
        Approximate population of each event.
    n_populations : int

    Returns
    -------
    rows : int64 [M]
        Ascending; all N events if there are at most `MOST_EVENTS`, else about that many or fewer.
    each : float64 [M]
        Number of events that each represents; their sum is N.
    """
    if len(populations) <= MOST_EVENTS:
        return np.arange(len(populations)), np.ones(len(populations))
    each = np.zeros(len(populations))
    for p in range(n_populations):
        own = np.flatnonzero(populations == p)
        taken = own[:: max(-(-len(own) * n_populations // MOST_EVENTS), 1)]
        each[taken] = len(own) / max(len(taken), 1)
    rows = np.flatnonzero(each)
    return rows, each[rows]


def sample_weights(
    memberships: Iterable[Floats],
    weights: Array,
    each: Array,
    random: np.random.Generator,
    drawn: list[Ints] | None = None,
) -> Array:
    """Draw a sample's weights of the populations for each draw of the run, float64 [T, P].

    If the run has one draw only (Bayesian EM), the result is the mean over half of the iterations.

    Parameters
    ----------
    memberships : iterable of float32 [M, P]
        Memberships with the weights of the run, for each of T draws.
    weights : float64 [T, P]
        Weights in the run.
    each : float64 [M]
        Number of events of the sample that each represents. If all are 1, the Gibbs sampler is exact;
        otherwise the noise of the omitted events makes the draws slightly too wide.
    random : numpy Generator
    drawn : list of int64 [M], optional
        Receives the population of each event in each draw.
    """
    own = np.empty(weights.shape)
    omega = weights[0]
    for t, of_run in enumerate(memberships):
        by_population = np.ascontiguousarray(of_run.T)
        omegas = []
        for _ in range(LATER if t else FIRST):
            terms = by_population * ratios(omega, weights[t])[:, None]
            populations = draw_populations(terms, random.random(len(of_run), np.float32))
            counts: Array = np.bincount(populations, each, len(omega)).astype(np.float64)
            prior = _draw_concentration(counts, weights[t], random) * weights[t]
            omega = _dirichlet(prior + counts, random)
            omegas.append(omega)
        # A draw of the run gives a draw of omega; Bayesian EM gives one estimate, which must not have the
        # noise of a draw.
        own[t] = omega if len(weights) > 1 else np.mean(omegas[FIRST // 2 :], axis=0)
        if drawn is not None:
            drawn.append(populations)
    return own


def ratios(own: Array, weights: Array) -> Floats:
    """Return the factors from the run's to a sample's memberships, float32; 0 where the run's weight is 0."""
    quotients = np.maximum(own / np.maximum(weights, LEAST_RATIO), LEAST_RATIO)
    return np.where(weights > 0.0, quotients, 0.0).astype(np.float32)


def draw_populations(terms: Floats, uniforms: Floats) -> Ints:
    """Draw the population of each event, int64 [M], from its terms [P, M] with uniforms [M] below 1."""
    ends = terms.copy()
    for before, end in itertools.pairwise(ends):  # faster than np.cumsum along the rows
        end += before
    limits, drawn = uniforms * ends[-1], np.zeros(len(uniforms), np.int64)
    for end in ends:
        drawn += end <= limits
    return drawn


def posterior(counts: Ints | Array, seed: int, prior: Array | None = None) -> Array:
    """Draw proportions from their posterior given counts of drawn populations, float64 [T, S, P].

    The posterior is a Dirichlet distribution with the counts plus a prior of one event in total, spread
    evenly (Perks 1947). It describes other cells of the same kind, so few events give wide intervals, also
    for rare populations. The draws are for the ends of intervals; `posterior_mean` gives the mean.

    Parameters
    ----------
    counts : int64 or float64 [T, S, P]
        Or expected numbers.
    seed : int
        Seed of the run.
    prior : float64 [T, P], optional
        Prior counts instead of the one event: kappa beta of a hierarchical run (`dpmix.model.cohort`).
    """
    shapes = _shapes(counts, prior)
    return _dirichlet(shapes, Stream(seed, 1, 0).step(Step.PROPORTIONS))


def posterior_mean(counts: Ints | Array, prior: Array | None = None) -> Array:
    """Return the posterior mean of the proportions, float64 [S, P]: the average of the T Dirichlet means.

    The mean of `posterior` has the noise of its random numbers in addition; this has none.

    Parameters
    ----------
    counts, prior
        As in `posterior`.
    """
    shapes = _shapes(counts, prior)
    mean: Array = (shapes / shapes.sum(axis=-1, keepdims=True)).mean(axis=0)
    return mean


def _shapes(counts: Ints | Array, prior: Array | None) -> Array:
    """Return the shapes of the Dirichlet distributions, float64 [T, S, P]."""
    given = 1.0 / counts.shape[2] if prior is None else np.maximum(prior, LEAST_RATIO)[:, None]
    shapes: Array = counts.astype(np.float64) + given
    return shapes


def _dirichlet(shapes: Array, random: np.random.Generator) -> Array:
    """Draw from Dirichlet distributions over the last axis."""
    gammas = random.standard_gamma(shapes)
    shares: Array = gammas / gammas.sum(axis=-1, keepdims=True)
    return shares


def _draw_concentration(counts: Array, weights: Array, random: np.random.Generator) -> float:
    """Draw one of `CONCENTRATIONS` given the counts [P], by the Dirichlet-multinomial likelihood."""
    there = counts > 0.0
    shapes = np.maximum(CONCENTRATIONS[:, None] * weights[there], LEAST_RATIO)
    logs = (gammaln(shapes + counts[there]) - gammaln(shapes)).sum(axis=1)
    # The probability of the counts with omega integrated out (Dirichlet-multinomial): given omega, a would
    # hardly move from one iteration to the next.
    logs += gammaln(CONCENTRATIONS) - gammaln(CONCENTRATIONS + counts.sum())
    ends = np.cumsum(np.exp(logs - logs.max()))
    return float(CONCENTRATIONS[np.searchsorted(ends, random.random() * ends[-1], "right")])
