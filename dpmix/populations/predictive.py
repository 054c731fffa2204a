"""The predictive density of events: the mean of their densities over the draws.

M events.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Mixture

PART = 8_192  # events whose numbers fit into the cache of a core


class MeanDensity:
    """The mean density of events over draws, as a highest log density and a factor, float64 [M] each."""

    def __init__(self, n_events: int) -> None:
        self._highest, self._factor = np.full(n_events, -np.inf), np.zeros(n_events)

    def add(self, log_density: Array) -> None:
        """Add the log densities of a draw, float64 [M]."""
        for at in range(0, len(log_density), PART):
            part = slice(at, at + PART)
            highest, factor, added = self._highest[part], self._factor[part], log_density[part]
            rise = added - highest
            scale = np.exp(-np.abs(rise))
            factor[:] = np.where(rise > 0.0, factor * scale + 1.0, factor + scale)
            np.maximum(highest, added, out=highest)

    def log(self, n_draws: int) -> Array:
        """Return the log of the mean over the draws, float64 [M]."""
        mean: Array = self._highest + np.log(self._factor / n_draws)
        return mean


def log_predictive(engine: Engine, mixtures: Iterable[Mixture], n_draws: int) -> Array:
    """Return the log of the mean density over the draws of all events of an engine, float64 [M]."""
    mean = MeanDensity(engine.n_events)
    for mixture in mixtures:
        one_population = np.zeros(len(mixture.means), np.int64)
        mean.add(engine.memberships(mixture, one_population, 0, engine.n_events)[1])
    return mean.log(n_draws)
