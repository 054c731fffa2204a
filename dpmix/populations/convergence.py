"""Convergence of the proportions of populations: whether the chains agree on the numbers that are read.

Components follow no number and their count may still change while the populations agree. The weight of a
population, the sum over its components, is the same quantity in every draw.

C chains, S draws of each, K components, P populations, M points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import numpy as np
from scipy.special import fdtri

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.populations.divisions import divide, in_several
from dpmix.populations.find import Populations, weights_of
from dpmix.populations.modes import MakeEngine
from dpmix.populations.partitions import contingency
from dpmix.populations.pooling import mixture_of_draw, spread
from dpmix.populations.predictive import classify
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.system.threads import one_thread

# With 25 draws of each of 4 chains, R-hat of 8% of independent quantities is above 1.05; with 100, of none.
MONITORED = 400
BAD_R_HAT = 1.05
FALSE_ALARMS = 0.05  # probability of a warning about independent draws
ROUNDING = 1e-12  # of weights, for example of all that sum to 1


def chain_weights(found: Populations, make_engine: MakeEngine) -> Array:
    """Return the weights of the populations in many draws of each chain, float64 [C, S, P].

    These are `found.weights`, or weights in up to `MONITORED` draws of the run if it has more draws than
    `found` uses. R-hat and the effective sample size need more draws than a mean probability does.

    A component of a further draw belongs to the population of most points of `found` for which it is the most
    probable one, or is divided between several. A component without points gets the population of the point
    nearest to its mean.
    """
    run = found.run
    draws = spread(run, MONITORED)
    if len(draws) <= len(found.draws):
        return _by_chain(found.weights, found.draws)
    mixtures = [partial(mixture_of_draw, run, *draw) for draw in draws]
    guides = [found.mixture(*found.draws[t]) for t in found.pooled]
    numbers, count = found.components[found.pooled], found.n_populations
    # One BLAS thread: the same bits for any number of cores.
    with one_thread(), closing(make_engine(found.points)) as engine:
        populations, divided = _populations_of(found, engine, draws, mixtures)
        divisions = divide(engine, mixtures, divided, guides, numbers, count)
    weights = weights_of(run, draws, populations, divisions)
    return _by_chain(weights, draws)


def proportion_mixing(weights: Array) -> tuple[Array, Array]:
    """Return rank-normalised split R-hat and bulk effective sample size of each population's weight.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16:667, as ArviZ computes them.

    Parameters
    ----------
    weights : float64 [C, S, P]
        Result of `chain_weights`.

    Returns
    -------
    r_hat, ess : float64 [P]
        NaN with fewer than 8 draws of each chain, and for a weight that is the same in every draw.
    """
    if weights.shape[1] < MIN_DRAWS:
        return np.full(weights.shape[2], np.nan), np.full(weights.shape[2], np.nan)
    constant = np.ptp(weights, axis=(0, 1)) <= ROUNDING
    r_hat, ess = r_hat_and_ess(weights)
    return np.where(constant, np.nan, r_hat), np.where(constant, np.nan, ess)


def r_hat_limit(n_chains: int, n_draws: int, n_quantities: int) -> float:
    """Return the R-hat above which chains disagree: 1.05, or more where chance alone often exceeds that.

    Independent draws of m sequences of length n have an R-hat of sqrt((n - 1 + F) / n), with F of an F
    distribution of m - 1 and m (n - 1) degrees of freedom (Gelman and Rubin 1992, Stat. Sci. 7:457). Above
    the limit, the largest R-hat of all quantities is not chance. The rank-normalised R-hat is the larger of
    two values.

    Parameters
    ----------
    n_chains, n_draws : int
        Number of chains, and of draws of each, at least `MIN_DRAWS`.
    n_quantities : int
        Number of quantities compared with the limit, at least 1.
    """
    sequences = 2 * max(n_chains, 2)
    length = n_draws // 2 if n_chains > 1 else n_draws // 4
    ratio = fdtri(sequences - 1, sequences * (length - 1), 1.0 - FALSE_ALARMS / (2 * n_quantities))
    return max(BAD_R_HAT, float(np.sqrt((length - 1 + ratio) / length)))


def _by_chain(weights: Array, draws: Ints) -> Array:
    """Return weights [T, P] as [C, S, P]; every chain has the same number of draws, one after another."""
    return weights.reshape(len(np.unique(draws[:, 0])), -1, weights.shape[1])


def _populations_of(
    found: Populations, engine: Engine, draws: Ints, mixtures: Sequence[Callable[[], Mixture]]
) -> tuple[Ints, list[Ints]]:
    """Return the population of each component of some draws, int64 [S, K], and the components in several.

    The engine holds the points of `found`.
    """
    run = found.run
    populations = np.empty((len(draws), run.n_components), np.int64)
    divided = []
    for own, draw, mixture in zip(populations, draws, mixtures, strict=True):
        labels, _ = classify(engine, mixture())
        counts = contingency(labels, found.of_points, run.n_components, found.n_populations)
        own[:] = counts.argmax(axis=1)
        without = np.flatnonzero(counts.sum(axis=1) == 0)
        own[without] = found.of_points[_nearest(found.points, np.asarray(run.means[tuple(draw)])[without])]
        divided.append(in_several(counts))
    return populations, divided


def _nearest(points: Floats, places: Array) -> Ints:
    """Return the point nearest to each place, int64 [places]."""
    halves = 0.5 * np.square(points).sum(axis=1)
    nearest: Ints = (halves - places.astype(np.float32) @ points.T).argmin(axis=1)
    return nearest
