"""Find single values that lie so far from all others that they hide them.

One value of 1e9 among values of 1e3, as after a failed measurement or a wrong unit, sets the top of a fitted
scale and the standard deviation of a channel: all other events then share one value, as far as a model can
tell. Such events are few by definition; rare cells are not meant, which lie among the others on a logarithmic
scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpmix.inputs.atoms import evenly_spaced
from dpmix.inputs.blocks import blocks
from dpmix.inputs.transformed import thinned
from dpmix.model.mixture import Array, Floats

FAR = 1000.0  # times as far from the median as all other values
FEW = 3  # such values of a channel, at most
ENOUGH = 100  # events, of which this can be said


class Outlier(NamedTuple):
    """Values of one channel far beyond all others.

    Attributes
    ----------
    channel : int
    n_events : int
        Number of such values.
    value : float
        The farthest of them.
    lowest, highest : float
        Extremes of all other values.
    """

    channel: int
    n_events: int
    value: float
    lowest: float
    highest: float


def outliers(values: Floats, lowest: Array, highest: Array) -> list[Outlier]:
    """Return the outliers of each channel that has some.

    Parameters
    ----------
    values : float32 [N, D]
        Raw values.
    lowest, highest : float64 [D]
        Extremes of the raw values.
    """
    if len(values) < ENOUGH:
        return []
    seen = thinned(evenly_spaced(values)).astype(np.float64)
    middle = np.median(seen, axis=0)
    limit = np.maximum(highest - middle, middle - lowest) / FAR
    # From a sample first: most channels have no outliers, and the pass over all events is left out.
    suspect = np.flatnonzero(np.quantile(np.abs(seen - middle), 0.99, axis=0) < limit)
    if not len(suspect):
        return []
    counts = np.zeros(len(suspect), np.int64)
    low, high = np.full(len(suspect), np.inf), np.full(len(suspect), -np.inf)
    for start, stop in blocks(len(values)):
        block = values[start:stop, suspect].astype(np.float64)
        beyond = np.abs(block - middle[suspect]) > limit[suspect]
        counts += beyond.sum(0)
        low = np.minimum(low, np.where(beyond, np.inf, block).min(0))
        high = np.maximum(high, np.where(beyond, -np.inf, block).max(0))
    return [
        Outlier(int(k), int(n), float(_farther(lowest[k], highest[k], middle[k])), float(a), float(b))
        for k, n, a, b in zip(suspect, counts, low, high, strict=True)
        if 0 < n <= FEW and a < b
    ]


def usual_highest(highest: Array, found: Sequence[Outlier]) -> Array:
    """Return the largest value of each channel, float64 [D], without the outliers."""
    usual = highest.copy()
    for one in found:
        usual[one.channel] = min(usual[one.channel], one.highest)
    return usual


def _farther(lowest: float, highest: float, middle: float) -> float:
    """Return the extreme that is farther from the median."""
    return highest if highest - middle >= middle - lowest else lowest
