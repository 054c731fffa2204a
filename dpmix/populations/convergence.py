"""Convergence of the proportions of populations: whether the chains agree on the numbers that are read.

Components follow no number and their count may still change while the populations agree. The weight of a
population, the sum over its components, is the same quantity in every draw.

A component in several populations is divided by a draw of any chain (`dpmix.populations.divisions`), which
mixes the chains before they are compared. So chains are also compared with whole components, each in the
population of most of its points, and the worse of both numbers counts. The divisions are by few draws, the
guides: the effective sample size of the variance that they carry is at most their number.

C chains, S draws of each, K components, P populations, M points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.populations.divisions import Division, divide, in_several, whole_of
from dpmix.populations.find import Populations, weights_of
from dpmix.populations.modes import MakeEngine
from dpmix.populations.partitions import contingency
from dpmix.populations.pooling import mixture_of_draw, spread
from dpmix.populations.predictive import classify
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.runs.reader import Run
from dpmix.system.threads import one_thread

MONITORED = 400
ROUNDING = 1e-12  # of weights, for example of all that sum to 1


class ChainWeights(NamedTuple):
    """The weights of the populations in draws of each chain.

    Attributes
    ----------
    divided, whole : float64 [C, S, P]
        With components in several populations divided, and with each in one of them.
    guides : int64 [C, S]
        The guide of each draw's divisions; -1: no component is divided.
    """

    divided: Array
    whole: Array
    guides: Ints


def chain_weights(found: Populations, make_engine: MakeEngine) -> ChainWeights:
    """Return the weights of the populations in many draws of each chain.

    These are `found.weights`, or weights in up to `MONITORED` draws of the run if it has more draws than
    `found` uses. R-hat and the effective sample size need more draws than a mean probability does.

    A component of a further draw belongs to the population of most points of `found` for which it is the most
    probable one, or is divided between several. A component without points gets the population of the point
    nearest to its mean.
    """
    run = found.run
    draws = spread(run, MONITORED)
    if len(draws) <= len(found.draws):
        return _by_chain(run, found.draws, found.components, found.divisions)
    mixtures = [partial(mixture_of_draw, run, *draw) for draw in draws]
    guides = [found.mixture(*found.draws[t]) for t in found.pooled]
    numbers, count = found.components[found.pooled], found.n_populations
    # One BLAS thread: the same bits for any number of cores.
    with one_thread(), closing(make_engine(found.points)) as engine:
        populations, divided = _populations_of(found, engine, draws, mixtures)
        divisions = divide(engine, mixtures, divided, guides, numbers, count)
    return _by_chain(run, draws, populations, divisions)


def proportion_mixing(monitored: ChainWeights) -> tuple[Array, Array]:
    """Return R-hat and effective sample size of each population's weight: the worse of divided and whole.

    Parameters
    ----------
    monitored : ChainWeights

    Returns
    -------
    r_hat, ess : float64 [P]
        As of `mixing`.
    """
    r_hat, ess = mixing(monitored.divided)
    of_whole = mixing(monitored.whole)
    ess = limited_by_guides(ess, monitored.divided, monitored.guides)
    return np.fmax(r_hat, of_whole[0]), np.fmin(ess, of_whole[1])


def limited_by_guides(ess: Array, weights: Array, guides: Ints) -> Array:
    """Return effective sample sizes that count what the guides share.

    The variance of a weight is V = W + B, within draws of one guide and between guides. The mean over draws
    of G guides has the variance W / ess + B / G, so the effective sample size is V / (W / ess + B / G).

    Parameters
    ----------
    ess : float64 [P]
    weights : float64 [C, S, P]
    guides : int64 [C, S]
    """
    values, groups = weights.reshape(-1, weights.shape[2]), guides.ravel()
    numbers = [np.flatnonzero(groups == guide) for guide in np.unique(groups)]
    if len(numbers) < 2:
        return ess
    within = sum(((values[own] - values[own].mean(axis=0)) ** 2).sum(axis=0) for own in numbers)
    within = within / max(len(values) - len(numbers), 1)
    means = np.stack([values[own].mean(axis=0) for own in numbers])
    noise = within * np.mean([1.0 / len(own) for own in numbers])
    between = np.maximum(means.var(axis=0, ddof=1) - noise, 0.0)
    limited: Array = (within + between) / np.maximum(
        within / ess + between / len(numbers), np.finfo(float).tiny
    )
    return np.where(between > 0.0, np.minimum(ess, limited), ess)


def mixing(weights: Array) -> tuple[Array, Array]:
    """Return rank-normalised split R-hat and bulk effective sample size of weights.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16:667, as ArviZ computes them.

    Parameters
    ----------
    weights : float64 [C, S, P]

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


def _by_chain(run: Run, draws: Ints, populations: Ints, divisions: Sequence[Division]) -> ChainWeights:
    """Return the weights in T draws by chain; every chain has the same number of draws, one after another."""
    shape = len(np.unique(draws[:, 0])), -1
    none = [whole_of(one) for one in divisions]
    divided, whole = (weights_of(run, draws, populations, each) for each in (divisions, none))
    guides = np.array([one.guide if len(one.components) else -1 for one in divisions])
    n_populations = divided.shape[1]
    return ChainWeights(
        divided.reshape(*shape, n_populations), whole.reshape(*shape, n_populations), guides.reshape(shape)
    )


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
