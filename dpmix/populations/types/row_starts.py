"""Starts of thresholds that a row does not share with the others: markers with a background on some cells.

On granulocytes and monocytes, a marker that they lack can lie above its threshold among lymphocytes. So a
row whose cell allows off may take a higher **valley** of the density of all events for the start of the
boundary above its levels, if the table then fits the events better. With F_r(h) the evidence of the
medians of component h for row r (`dpmix.populations.types.markers`) and w_h its share of the events, the
fit is

    sum_h w_h log (1 + sum_r F_r(h)).

A row moves to the valley with the highest fit if this raises the fit by `GAIN` nats for an event. A valley
is a minimum of the density h with h <= `DEPTH` min(highest h below, highest h above), and above it is at
least a share `LEAST_ON` of the events of the components that are on. Rows and markers are visited in turn,
`SWEEPS` times. A row with a component that passes all its cells keeps the start: with another one, it
would get components of types without a row. So do cells that divide similar types (`markers.telling`): the
row would get the place of its neighbour.

N events, H components, R rows, M markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.ndimage import gaussian_filter1d

from dpmix.model.mixture import Array, Ints
from dpmix.populations.types.markers import (
    Bools,
    Marker,
    component_log_factor,
    component_medians,
    telling,
)

GAIN = 0.02  # nats for an event
DEPTH = 0.8
LEAST_ON = 0.25  # of the events of components that are on
SWEEPS = 3
BINS = 256


def own_starts(
    starts: Sequence[Marker], values: Array, labels: Ints, levels: Bools, movable: Sequence[int]
) -> list[Marker]:
    """Return M markers with the starts of thresholds of each row.

    Parameters
    ----------
    starts : sequence of Marker
        M markers with the same thresholds for all rows.
    values : float64 [N, M]
        Transformed scale.
    labels : int64 [N]
        Component of each event in one draw.
    levels : bool [R, M, 4]
        Cells of the table.
    movable : sequence of int
        Number of boundaries of each marker that can move, from the lowest; 0 for none.
    """
    found = list(starts)
    medians, weights = component_medians(values, labels)
    if not len(weights):
        return found
    logs = np.zeros((len(starts), len(levels), len(weights)))
    fits: Bools = np.ones((len(levels), len(weights)), np.bool_)
    for m, r in np.argwhere(~np.array([one.silent for one in starts])):
        passed = starts[m].passes(medians[:, m], r)
        logs[m, r] = component_log_factor(passed, weights)
        fits[r] &= passed > 0.5
    own: Bools = np.asarray(fits.any(axis=1))
    fixed = telling(levels) | own[:, None]
    choices = {}
    for m in np.flatnonzero(movable).tolist():
        places = _places(starts[m], values[:, m], medians[:, m], weights, movable[m])
        for r in np.flatnonzero(~fixed[:, m]).tolist():
            if markers := _choices(starts[m], r, places, movable[m]):
                passes = [one.passes(medians[:, m], r) for one in markers]
                choices[m, r] = markers, np.array([component_log_factor(one, weights) for one in passes])
    total = logs.sum(axis=0)
    for _ in range(SWEEPS):
        before = total.copy()
        for (m, r), (markers, tried) in choices.items():
            rest = 1.0 + np.exp(np.delete(total, r, axis=0)).sum(axis=0)
            moved = total[r] - logs[m, r] + tried
            gains = np.log(rest + np.exp(moved)) @ weights - np.log(rest + np.exp(total[r])) @ weights
            best = int(gains.argmax())
            if gains[best] > GAIN:
                thresholds = found[m].thresholds.copy()
                thresholds[r] = markers[best].thresholds[r]
                found[m] = replace(found[m], thresholds=thresholds)
                logs[m, r], total[r] = tried[best], moved[best]
        if np.array_equal(before, total):
            break
    return found


def valleys(values: Array) -> Array:
    """Return the places of the valleys of the density of some events [N], float64 [V], ascending."""
    low, high = np.quantile(values, (0.0005, 0.9995))
    edges = np.linspace(low, high + 1e-9, BINS + 1)
    counts = np.histogram(values, edges)[0].astype(float)
    centres = (edges[1:] + edges[:-1]) / 2.0
    # The spread of most events: a few far ones would smooth valleys away.
    spread = min(float(values.std()), float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / 1.349)
    bandwidth = 0.74 * spread * len(values) ** -0.2
    density = gaussian_filter1d(counts, max(bandwidth / (centres[1] - centres[0]), 1.0), mode="constant")
    minimum = (density[1:-1] < density[:-2]) & (density[1:-1] <= density[2:])
    found: Array = centres[1:-1][minimum & (relative_height(density)[1:-1] <= DEPTH)]
    return found


def relative_height(density: Array) -> Array:
    """Return h / min(highest h below, highest h above) of a density h on a grid, both float64 [X]."""
    below = np.maximum.accumulate(density)
    above = np.maximum.accumulate(density[::-1])[::-1]
    found: Array = density / np.maximum(np.minimum(below, above), 1e-300)
    return found


def _places(start: Marker, values: Array, medians: Array, weights: Array, movable: int) -> Array:
    """Return the valleys above which there are enough components that are on, float64 [V]."""
    found = valleys(values)
    on = start.thresholds[0, movable - 1] < medians
    above = np.array([weights[on & (medians > place)].sum() for place in found])
    kept: Array = found[above >= LEAST_ON * weights[on].sum()]
    return kept


def _choices(start: Marker, row: int, places: Array, movable: int) -> list[Marker]:
    """Return a marker with each threshold that a row may have: places [V] above its start."""
    allowed = start.allowed[row]
    above = int(np.flatnonzero(allowed)[-1])  # the boundary above the levels of the cell
    if not allowed[0] or above >= movable:
        return []
    found = []
    for place in places[places > start.thresholds[row, above]].tolist():
        own = start.thresholds.copy()
        own[row, above:] = np.maximum(own[row, above:], place)
        found.append(replace(start, thresholds=own))
    return found
