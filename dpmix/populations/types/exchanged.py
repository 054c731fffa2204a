"""Channels whose names look exchanged: two columns of a table that fit each other's channel.

Exchanged names leave no contradiction: rows lose their events to unknown, or to other rows. So the table is
compared with itself. A component has the level of its median in each channel, with a threshold for all rows
(`levels.start_of`), and the weight w_h, its share of the events. With F_r(h) its evidence for row r
(`dpmix.populations.types.markers`), the fit of the table is

    sum_h w_h log (1 + sum_r F_r(h)) / (R + 1).

A marker with the same cell in all rows is no evidence where all events are at one level, as CD3 in gated T
cells; there, a threshold somewhere in CD3 made CD3 and CCR7 look exchanged. So where its two groups of
components lie less than `APART` standard deviations of a component apart in the channel of its name, all
events may also have the lowest or the highest level, and the one of the three counts with which the table
fits best.

A component fits a row if it passes all cells of the row. The exchange of two channels that raises the fit
most is reported if the fit rises by `GAIN` nats, more rows have a component that fits them, and components
that fit a row have `COVERED` more of the events. The search continues with the pair exchanged. (The fit alone
also rises where an exchange makes several types fit one row, and leaves others without a component.)

An exchange that only permutes rows, such as CD4 and CD8 in a table of the subsets of both, cannot be found.

H components, R cell types, M markers, C levels of a marker that the table distinguishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.types.levels import APART, start_of
from dpmix.populations.types.markers import (
    Bools,
    Marker,
    component_log_factor,
    component_medians,
    distinguished,
)

GAIN = 0.1  # nats for an event
COVERED = 0.02  # of the events


class _Cells(NamedTuple):
    """Cells of a table by components: the log of their factors and whether they pass, both [R, H]."""

    logs: Array
    passed: Bools


class _Fit(NamedTuple):
    """Fit of a table in nats for an event, rows with a component, and events of components that fit a row."""

    gain: float
    rows: int
    covered: float


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
    medians, weights = component_medians(values, labels)
    spoken = np.flatnonzero(~levels.all(axis=(0, 2))).tolist()
    if not len(weights) or len(spoken) < 2:
        return ()
    starts: dict[tuple[int, bytes], Marker] = {}
    cells: dict[tuple[int, int], list[_Cells]] = {}
    for m, c in product(spoken, spoken):
        key = c, np.unique(levels[:, m], axis=0).tobytes()  # columns with the same cells share their levels
        if key not in starts:
            starts[key] = start_of(values[:, c], labels, levels[:, m])
        marker = replace(starts[key], allowed=distinguished(levels[:, m]))
        cells[m, c] = [_cells(one, medians[:, c], weights) for one in _possible(marker)]

    def fit(channels: Mapping[int, int], ways: Mapping[int, int]) -> _Fit:
        own = [cells[m, c][ways[m]] for m, c in channels.items()]
        logs = sum((one.logs for one in own), np.zeros((len(levels), len(weights))))
        passed = np.all([one.passed for one in own], axis=0)
        highest = np.maximum(logs.max(axis=0), 0.0)
        sums = np.exp(logs - highest).sum(axis=0) + np.exp(-highest)
        covered = float(weights @ passed.any(axis=0))
        return _Fit(float(weights @ (highest + np.log(sums))), int(passed.any(axis=1).sum()), covered)

    channels, ways = {m: m for m in spoken}, dict.fromkeys(spoken, 0)
    for m in spoken:
        ways[m] = max(range(len(cells[m, m])), key=lambda way: fit(channels, ways | {m: way}).gain)
    found: list[tuple[int, int]] = []
    while True:
        free = [m for m in spoken if channels[m] == m]
        after = {(a, b): fit(channels | {a: b, b: a}, ways | {a: 0, b: 0}) for a, b in combinations(free, 2)}
        pair = max(after, key=lambda one: after[one].gain, default=None)
        if pair is None or not _better(fit(channels, ways), after[pair]):
            return tuple(found)
        found.append(pair)
        channels |= {pair[0]: pair[1], pair[1]: pair[0]}
        ways |= dict.fromkeys(pair, 0)


def _better(before: _Fit, after: _Fit) -> bool:
    """Return whether the fit, the rows with a component and the events of such components all rise."""
    more = after.gain > before.gain + GAIN and after.rows > before.rows
    return more and after.covered > before.covered + COVERED


def _possible(marker: Marker) -> list[Marker]:
    """Return a marker and, if neither cells nor levels are apart, it with all events at one of its ends."""
    found = [marker]
    if marker.separation < APART and marker.alike:
        ends = [np.full_like(marker.thresholds, end) for end in (np.inf, -np.inf)]
        found += [replace(marker, thresholds=end) for end in ends]
    return found


def _cells(marker: Marker, medians: Array, weights: Array) -> _Cells:
    """Return the cells of a column in a channel, for components with these medians and weights [H]."""
    size = len(marker.allowed), len(medians)
    logs, passed = np.zeros(size), np.ones(size, np.bool_)
    for r in np.flatnonzero(~marker.silent).tolist():
        q = marker.passes(medians, r)
        logs[r] = component_log_factor(q, weights)
        passed[r] = q > 0.5
    return _Cells(logs, passed)
