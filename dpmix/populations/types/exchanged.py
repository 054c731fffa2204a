"""Channels whose names look exchanged: two columns of a table that fit each other's channel.

Exchanged names leave no contradiction: rows lose their events to unknown, or to other rows. So the table is
compared with itself. A component has the level of its median in each channel, with a threshold for all rows
(`levels.start_of`), and the weight w_h, its share of the events. With F_r(h) its evidence for row r
(`dpmix.populations.types.levels`), the fit of the table is

    sum_h w_h log (1 + sum_r F_r(h)) / (R + 1).

A component fits a row if it passes all cells of the row. The exchange of two channels that raises the fit
most is reported if the fit rises by `GAIN` nats, more rows have a component that fits them, and components
that fit a row have `COVERED` more of the events. The search continues with the pair exchanged. (The fit alone
also rises where an exchange makes several types fit one row, and leaves others without a component.)

An exchange that only permutes rows, such as CD4 and CD8 in a table of the subsets of both, cannot be found.

H components, R cell types, M markers, C levels of a marker that the table distinguishes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.types.levels import (
    CHANCE,
    DOUBT,
    LEAST_EVENTS,
    Bools,
    Marker,
    distinguished,
    start_of,
)

GAIN = 0.1  # nats for an event
COVERED = 0.02  # of the events


class _Cells(NamedTuple):
    """Cells of a table by components: the log of their factors and whether they pass, both [R, H]."""

    logs: Array
    passed: Bools


def exchanged(values: Array, labels: Ints, levels: Bools) -> tuple[tuple[int, int], ...]:
    """Return the pairs of markers whose channels look exchanged.

    Parameters
    ----------
    values : float64 [N, M]
        Transformed scale.
    labels : int64 [N]
        Component of each event in one draw.
    levels : bool [R, M, 4]
        Cells of the table.
    """
    sizes = np.bincount(labels)
    numbers = np.flatnonzero(sizes >= LEAST_EVENTS)
    spoken = np.flatnonzero(~levels.all(axis=(0, 2))).tolist()
    if not len(numbers) or len(spoken) < 2:
        return ()
    weights = sizes[numbers] / sizes[numbers].sum()
    medians = np.array([np.median(values[labels == h], axis=0) for h in numbers])
    starts: dict[tuple[int, bytes], Marker] = {}
    cells = {}
    for m, c in product(spoken, spoken):
        key = c, np.unique(levels[:, m], axis=0).tobytes()  # columns with the same cells share their levels
        if key not in starts:
            starts[key] = start_of(values[:, c], labels, levels[:, m])
        marker = replace(starts[key], allowed=distinguished(levels[:, m]))
        cells[m, c] = _cells(marker, medians[:, c], weights)

    def fit(channels: dict[int, int]) -> tuple[float, int, float]:
        own = [cells[pair] for pair in channels.items()]
        logs = sum((one.logs for one in own), np.zeros((len(levels), len(numbers))))
        passed = np.all([one.passed for one in own], axis=0)
        highest = np.maximum(logs.max(axis=0), 0.0)
        sums = np.exp(logs - highest).sum(axis=0) + np.exp(-highest)
        covered = float(weights @ passed.any(axis=0))
        return float(weights @ (highest + np.log(sums))), int(passed.any(axis=1).sum()), covered

    channels = {m: m for m in spoken}
    found: list[tuple[int, int]] = []
    while True:
        free = [m for m in spoken if channels[m] == m]
        after = {(a, b): fit(channels | {a: b, b: a}) for a, b in combinations(free, 2)}
        pair = max(after, key=lambda one: after[one][0], default=None)
        if pair is None or not _better(fit(channels), after[pair]):
            return tuple(found)
        found.append(pair)
        channels |= {pair[0]: pair[1], pair[1]: pair[0]}


def _better(before: tuple[float, int, float], after: tuple[float, int, float]) -> bool:
    """Return whether the fit, the rows with a component and the events of such components all rise."""
    return after[0] > before[0] + GAIN and after[1] > before[1] and after[2] > before[2] + COVERED


def _cells(marker: Marker, medians: Array, weights: Array) -> _Cells:
    """Return the cells of a column in a channel, for components with these medians and weights [H]."""
    size = len(marker.allowed), len(medians)
    logs, passed = np.zeros(size), np.ones(size, np.bool_)
    for r in np.flatnonzero(~marker.silent).tolist():
        q = marker.passes(medians, r)
        b = np.clip(weights @ q, *CHANCE)
        logs[r] = np.log((1.0 - DOUBT) * q / b + DOUBT * (1.0 - q) / (1.0 - b))
        passed[r] = q > 0.5
    return _Cells(logs, passed)
