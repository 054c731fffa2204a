"""Convergence of the proportions of populations: whether the chains agree on the numbers that are read.

Components follow no number and their count may still change while the populations agree. The weight of a
population, the sum over its components, is the same quantity in every draw.

C chains, S draws of each, K components, P populations, M points.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.forest import weights_of
from dpmix.populations.draws.pooling import mixture_of_draw, spread
from dpmix.populations.draws.predictive import classify
from dpmix.populations.tree.modes import MakeEngine
from dpmix.populations.tree.partitions import contingency
from dpmix.runs.effective_size import PopulationMixing
from dpmix.runs.verdict import mixing_of
from dpmix.system.threads import one_thread

MONITORED = 400


def population_mixing(found: Populations, make_engine: MakeEngine) -> PopulationMixing:
    """Return the mixing of the weights of the populations, from the run file if it has that."""
    return found.mixing or mixing_of(chain_weights(found, make_engine))


def chain_weights(found: Populations, make_engine: MakeEngine) -> Array:
    """Return the weights of the populations in many draws of each chain, float64 [C, S, P].

    These are `found.weights`, or weights in up to `MONITORED` draws of the run if it has more draws than
    `found` uses. R-hat and the effective sample size need more draws than a mean probability does.

    A component of a further draw belongs to the population of most points of `found` for which it is the most
    probable one. A component without points gets the population of the point nearest to its mean.
    """
    run = found.run
    draws, components = spread(run, MONITORED), found.components
    if len(draws) <= len(found.draws):
        draws = found.draws
    else:
        # One BLAS thread: the same bits for any number of cores.
        with one_thread(), closing(make_engine(found.points)) as engine:
            components = _populations_of(found, engine, draws)
    weights = weights_of(run, draws, components, found.n_populations)
    return weights.reshape(len(np.unique(draws[:, 0])), -1, found.n_populations)


def _populations_of(found: Populations, engine: Engine, draws: Ints) -> Ints:
    """Return the population of each component of some draws, int64 [S, K]; the engine holds the points."""
    run = found.run
    populations = np.empty((len(draws), run.n_components), np.int64)
    for own, draw in zip(populations, draws, strict=True):
        labels, _ = classify(engine, mixture_of_draw(run, *draw))
        counts = contingency(labels, found.of_points, run.n_components, found.n_populations)
        own[:] = counts.argmax(axis=1)
        without = np.flatnonzero(counts.sum(axis=1) == 0)
        own[without] = found.of_points[_nearest(found.points, np.asarray(run.means[tuple(draw)])[without])]
    return populations


def _nearest(points: Floats, places: Array) -> Ints:
    """Return the point nearest to each place, int64 [places]."""
    # |x|^2 / 2 - x'y orders points as their distance from y does, and is one matrix product.
    halves = 0.5 * np.square(points).sum(axis=1)
    nearest: Ints = (halves - places.astype(np.float32) @ points.T).argmin(axis=1)
    return nearest
