"""The proportions of populations in a sample, which may be unlike those of the run.

What the engine says of event n in a draw of the run is by the run's weights pi of the populations: r_np, in
proportion to pi_p f_p(x_n), f_p being the density of population p. A sample has the densities of the run, and
weights omega of its own:

    P(z_n = p)  in proportion to  r_np omega_p / pi_p
    omega | a   ~ Dirichlet(a pi)
    a           each of 1, 2, 4, ..., 2^14 as likely

So the run's proportions count as much as a events of the sample would, and how much that is, from one event
to thousands, is learned: a sample like its run is judged as the run's own events are, another by its own
events. (With a = 1 throughout, a population of which a sample has few events would lose to its neighbours
those that lie between, in samples like their run, too.)

Given a draw of the run, the populations z of the events, a and omega are drawn in turn (Gibbs sampling):
z | omega; a | counts, omega being integrated out; omega | a, counts ~ Dirichlet(a pi + counts). The same
adjustment by EM: Saerens, Latinne and Decaestecker (2002), Neural Comput. 14:21.

T draws, M events, P populations.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream

CONCENTRATIONS = 2.0 ** np.arange(15)
"""What the run's proportions may be worth in a sample: events."""
MOST_EVENTS = 20_000  # of a sample from which its weights are drawn
FIRST, LATER = 50, 3  # iterations of the Gibbs sampler in the first draw and in each that follows
LEAST_RATIO = 1e-30  # an event that one population alone explains is of that one, however few it has


def representatives(populations: Ints, n_populations: int) -> tuple[Ints, Array]:
    """Events that stand for all of a sample: of rare populations all, of others equally many.

    Parameters
    ----------
    populations : int64 [N]
        Of the events, roughly.
    n_populations : int

    Returns
    -------
    rows : int64 [M]
        Ascending; all N where these are at most `MOST_EVENTS`, else about that many or fewer.
    each : float64 [M]
        How many events each stands for; their sum is N.
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
    memberships: Iterable[Floats], weights: Array, each: Array, random: np.random.Generator
) -> Array:
    """A sample's weights of the populations along the draws of the run, float64 [T, P].

    A draw from their posterior for each draw of the run; where that is one draw only (Bayesian EM), the mean
    of half of the iterations.

    Parameters
    ----------
    memberships : iterable of float32 [M, P]
        By the run's weights, of T draws.
    weights : float64 [T, P]
        The run's.
    each : float64 [M]
        How many events of the sample each stands for. Where they are all of it, 1 each, these are exact draws
        of a Gibbs sampler; else the noise of what is left out makes them slightly wide.
    random : numpy Generator
    """
    own = np.empty(weights.shape)
    omega = weights[0]
    for t, of_run in enumerate(memberships):
        drawn = []
        for _ in range(LATER if t else FIRST):
            terms = of_run * ratios(omega, weights[t])
            uniforms = random.random((len(terms), 1), np.float32)
            counts = np.zeros(len(omega))
            np.add.at(counts, draw_populations(terms, uniforms), each)
            prior = _draw_concentration(counts, weights[t], random) * weights[t]
            omega = _dirichlet(prior + counts, random)
            drawn.append(omega)
        own[t] = omega if len(weights) > 1 else np.mean(drawn[FIRST // 2 :], axis=0)
    return own


def ratios(own: Array, weights: Array) -> Floats:
    """What memberships by the run's weights are multiplied by, float32 of their shape; 0 where these are."""
    quotients = np.maximum(own / np.maximum(weights, LEAST_RATIO), LEAST_RATIO)
    return np.where(weights > 0.0, quotients, 0.0).astype(np.float32)


def draw_populations(terms: Floats, uniforms: Floats) -> Ints:
    """A population of each event, int64 [M], drawn by its terms [M, P] with uniforms [M, 1] below 1."""
    ends = np.cumsum(terms, axis=1)
    drawn: Ints = (ends <= uniforms * ends[:, -1:]).sum(axis=1)
    return drawn


def posterior(counts: Ints, seed: int) -> Array:
    """Posterior draws of proportions given how many events were drawn to each population, float64 [T, S, P].

    A Dirichlet of the counts and a prior worth one event in all, spread evenly (Perks 1947): what a sample of
    other cells of the same kind would show, so that few events give wide intervals, also of what is rare.
    """
    random = Stream(seed, 1, 0).step(Step.PROPORTIONS)
    return _dirichlet(counts + 1.0 / counts.shape[2], random)


def _dirichlet(shapes: Array, random: np.random.Generator) -> Array:
    """Draws of Dirichlet distributions, over the last axis."""
    gammas = random.standard_gamma(shapes)
    shares: Array = gammas / gammas.sum(axis=-1, keepdims=True)
    return shares


def _draw_concentration(counts: Array, weights: Array, random: np.random.Generator) -> float:
    """One of `CONCENTRATIONS` given the counts [P]: a Dirichlet-multinomial likelihood."""
    there = counts > 0.0
    shapes = np.maximum(CONCENTRATIONS[:, None] * weights[there], LEAST_RATIO)
    logs = (gammaln(shapes + counts[there]) - gammaln(shapes)).sum(axis=1)
    logs += gammaln(CONCENTRATIONS) - gammaln(CONCENTRATIONS + counts.sum())
    ends = np.cumsum(np.exp(logs - logs.max()))
    return float(CONCENTRATIONS[np.searchsorted(ends, random.random() * ends[-1], "right")])
