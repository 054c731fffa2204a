"""The predictive density of events, the mean of their densities over the draws, and their components.

M events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
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
            # One exponential serves both cases of a running log-sum-exp; the log densities of all draws at
            # once would not fit into memory.
            scale = np.exp(-np.abs(rise))
            factor[:] = np.where(rise > 0.0, factor * scale + 1.0, factor + scale)
            np.maximum(highest, added, out=highest)

    def log(self, n_draws: int) -> Array:
        """Return the log of the mean over the draws, float64 [M]."""
        mean: Array = self._highest + np.log(self._factor / n_draws)
        return mean


def classify(engine: Engine, mixture: Mixture) -> tuple[npt.NDArray[np.int32], Array]:
    """Return the most probable component of each event, int32 [M], and the log density, float64 [M].

    The labels of chain 0 may change.
    """
    if isinstance(engine, CpuEngine):  # one pass, without the moments of an E step
        return engine.classify(mixture)
    engine.expect_labels(mixture)
    one_population = np.zeros(len(mixture.means), np.int64)
    return engine.labels(), engine.memberships(mixture, one_population, 0, engine.n_events)[1]


def classify_draws(
    engine: Engine, mixtures: Sequence[Callable[[], Mixture]]
) -> tuple[npt.NDArray[Any], Array]:
    """Return the most probable component of all events in each of T draws, and their predictive density.

    Returns
    -------
    labels : int32 [T, M]
    log_density : float64 [M]
        Log of the mean density over the draws.
    """
    labels: npt.NDArray[Any] = np.empty((len(mixtures), engine.n_events), np.int32)
    mean = MeanDensity(engine.n_events)
    for own, mixture in zip(labels, mixtures, strict=True):
        own[:], log_density = classify(engine, mixture())
        mean.add(log_density)
    return labels, mean.log(len(mixtures))
