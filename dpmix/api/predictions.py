"""Predictions for events in memory, from the populations of a run."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.predictive import MeanDensity
from dpmix.populations.tree.modes import MakeEngine

BLOCK = 131_072  # events whose memberships in one draw are held at a time


def predicted(found: Populations, make: MakeEngine, values: Floats) -> tuple[Array, Array]:
    """Return memberships and log predictive densities, averaged over the draws.

    Parameters
    ----------
    found : Populations
    make : callable
        Makes the engine.
    values : float32 [N, D]
        Events, standardised scale.

    Returns
    -------
    memberships : float64 [N, P]
        By the proportions of the run; rows sum to 1.
    log_densities : float64 [N]
        Log of the mean density over the draws, standardised scale.
    """
    n_events, n_draws = len(values), len(found.draws)
    memberships = np.zeros((n_events, found.n_populations))
    log_densities = np.empty(n_events)
    with closing(make(values)) as engine:
        for start in range(0, n_events, BLOCK):
            block = slice(start, min(start + BLOCK, n_events))
            density = MeanDensity(block.stop - start)
            for shares, of_draw in found.memberships(engine, block.start, block.stop):
                memberships[block] += shares
                density.add(of_draw)
            log_densities[block] = density.log(n_draws)
    memberships /= memberships.sum(axis=1, keepdims=True)
    return memberships, log_densities


def draw_events(found: Populations, n_events: int, seed: int) -> tuple[Array, Ints]:
    """Draw events from the mean density over the draws, float64 [N, D] (standardised scale), and their
    populations, int64 [N].
    """
    random = np.random.default_rng(seed)
    run = found.run
    points = np.empty((n_events, len(run.channels)))
    populations = np.empty(n_events, np.int64)
    draws = random.integers(len(found.draws), size=n_events)
    for t in np.unique(draws):
        own = np.flatnonzero(draws == t)
        chain, draw = found.draws[t]
        weights = np.asarray(run.weights[chain, draw])
        labels = random.choice(len(weights), len(own), p=weights / weights.sum())
        populations[own] = found.components[t][labels]
        shocks = random.standard_normal((len(own), len(run.channels)))
        for k in np.unique(labels):
            rows = labels == k
            root = np.linalg.cholesky(run.covariances[chain, draw, k])
            points[own[rows]] = run.means[chain, draw, k] + shocks[rows] @ root.T
    return points, populations
