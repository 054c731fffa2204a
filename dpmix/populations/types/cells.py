"""Cells of a table of cell types that the data contradict, and those that make an event unknown.

**Contradicted cells.** Of the events that a row explains better than all other rows, fewer than
`CONTRADICTED` may pass one of its cells, each event counted by its probability of the row. This cell is
taken for wrong: its p is the base rate, and it neither helps nor hurts, nor counts in k. Rows and such
cells are computed in turn. (With probabilities instead of the best row, a rare row whose neighbour differs
in one cell took the events of this neighbour.) A cell that divides similar types is never contradicted:
events that differ from the row in this cell alone are of a type without a row, also where the row itself
is rare or absent. If its sign is wrong, it is suspect (`suspect_cells`). Nor is a cell contradicted, of
any level, that is the only one to exclude another row: without ++ of bright NK cells, they would have the
cells of all NK cells.

**A population that passes.** A cell that most events of its row contradict may be right, and these events be
of a type without a row. p of a cell is the same for all components of a row. So where a component of the row
passes the cell, a wrong cell leaves this component without a type, and a right one leaves the others without:
both need an unknown type next to the row, and a wrong cell needs an error of the table, too. A component is
of the row that explains at least half of its events, and fails a cell if fewer than half of them pass. The
components of a row that fail the fewest cells decide: a contradicted cell that none of them fails is
**upheld** if most draws say so. It is used, and divides like the cells of `markers.telling`.

N events, R rows, M markers, T draws, K components.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints
from dpmix.populations.types.markers import (
    BIMODAL,
    DOUBT,
    LEAST_EVENTS,
    Bools,
    Marker,
    each_cell,
    log_factors,
)

CONTRADICTED, ROUNDS = 0.25, 3
OWN = 0.05  # events of a row alone, per unknown event that it gains without a cell: below, this is suspect
FEWEST = 30  # events of a row whose cells can be contradicted


class Assessed(NamedTuple):
    """Result of `assess_cells`.

    Attributes
    ----------
    right : float64 [R, M]
        Probability that the cell is right.
    agreement : float64 [R, M]
        Share of the events of the row that pass it; NaN where the row has too few, or the cell is silent.
    contradicted : bool [R, M]
    upheld : bool [R, M]
        Cells that would be contradicted if no component of the row passed them.
    """

    right: Array
    agreement: Array
    contradicted: Bools
    upheld: Bools


def other_cells(
    markers: tuple[Marker, ...],
    tells: Bools,
    doubt: Array,
    contradicted: Bools,
) -> Bools:
    """Return the cells that count, but for one, although they do not divide similar types, bool [R, M].

    Parameters
    ----------
    markers : tuple of Marker
    tells, contradicted : bool [R, M]
    doubt : float64 [R, M]
        Doubt that the table states, NaN where it states none; a cell with a larger one than `DOUBT` does not
        count. Nor do the cells of a marker whose levels run into each other: all events are near its
        threshold, and many fail its cells by chance.
    """
    silent = np.array([marker.silent for marker in markers]).T
    apart = np.array([marker.separation >= BIMODAL for marker in markers])
    found: Bools = ~(silent | tells | contradicted | (doubt > DOUBT)) & apart
    return found


def assess_cells(
    markers: tuple[Marker, ...],
    values: Array,
    doubt: Array,
    tells: Bools,
    labels: Sequence[Ints],
) -> Assessed:
    """Return what the events of the rows say about each cell.

    Parameters
    ----------
    markers : tuple of Marker
    values : float64 [N, M]
    doubt : float64 [R, M]
        Doubt that the table states; NaN where it states none.
    tells : bool [R, M]
        Cells that divide similar types (`markers.telling`), which are not contradicted.
    labels : sequence of int64 [N]
        Component of each event in each of T draws.
    """
    stated = 1.0 - np.where(np.isnan(doubt), DOUBT, doubt)
    right = stated.copy()
    base = np.array([marker.base for marker in markers]).T
    silent = np.array([marker.silent for marker in markers]).T
    agreement = np.full(right.shape, np.nan)
    contradicted = upheld = np.zeros(right.shape, np.bool_)
    kept = tells | _only_differences(markers)
    passing = [component_means(markers, values, own) for own in labels]
    for _ in range(ROUNDS):
        logs = log_factors(markers, values, right)
        best = logs.argmax(axis=1)
        highest = logs.max(axis=1)
        # The term after the sum is the unknown type, whose evidence is 1.
        weights = 1.0 / (np.exp(logs - highest[:, None]).sum(axis=1) + np.exp(-highest))
        sizes = np.bincount(best, weights, len(right))
        for r, m in np.argwhere(~silent & (sizes >= FEWEST)[:, None]):
            own = best == r
            agreement[r, m] = weights[own] @ markers[m].passes(values[own, m], r) / sizes[r]
        agreement[sizes < FEWEST] = np.nan
        contradicted = (agreement < CONTRADICTED) & ~kept
        # A doubt that the table states is the user's own, and stays.
        upheld = contradicted & ~(doubt > DOUBT) & _passed(passing, labels, best, weights)
        contradicted &= ~upheld
        right = np.where(np.isnan(doubt) & contradicted, np.minimum(base, stated), stated)
    return Assessed(right, agreement, contradicted, upheld)


def _only_differences(markers: tuple[Marker, ...]) -> Bools:
    """Return the cells that are the only ones of their row to exclude some other row, bool [R, M]."""
    allowed = [one.allowed for one in markers]
    excluded = np.stack([~(own[:, None] & own).any(axis=2) for own in allowed], axis=2)  # [R, R, M]
    found: Bools = np.asarray((excluded & (excluded.sum(axis=2, keepdims=True) == 1)).any(axis=1))
    return found


def component_means(markers: tuple[Marker, ...], values: Array, labels: Ints) -> Array:
    """Return the share of the events of each component that pass each cell, float64 [K, R, M].

    It is 1 for silent cells and for components without events.
    """
    sizes = np.bincount(labels)
    found = np.ones((len(sizes), len(markers[0].allowed), len(markers)))
    for m, marker in enumerate(markers):
        for r, passed in each_cell(marker, values[:, m], ~marker.silent):
            found[:, r, m] = np.where(sizes > 0, np.bincount(labels, passed) / np.maximum(sizes, 1), 1.0)
    return found


def _passed(passing: Sequence[Array], labels: Sequence[Ints], best: Ints, weights: Array) -> Bools:
    """Return the cells that the components of their row which fit it best pass in most draws, bool [R, M].

    Parameters
    ----------
    passing : sequence of float64 [K, R, M]
        Result of `component_means` in each draw.
    labels : sequence of int64 [N]
    best : int64 [N]
        Row that explains each event best.
    weights : float64 [N]
        Probability of this row.
    """
    n_rows, n_markers = passing[0].shape[1:]
    votes = np.zeros((n_rows, n_markers))
    for means, own in zip(passing, labels, strict=True):
        sizes = np.bincount(own)[:, None]
        shares = np.bincount(own * n_rows + best, weights, len(sizes) * n_rows).reshape(-1, n_rows)
        of_row = (sizes >= LEAST_EVENTS) & (shares >= 0.5 * sizes)
        failed = means < 0.5
        number = np.where(of_row, failed.sum(axis=2), n_markers + 1)
        fewest = of_row & (number == number.min(axis=0))
        votes += fewest.any(axis=0)[:, None] & ~(failed & fewest[:, :, None]).any(axis=0)
    found: Bools = 2.0 * votes > len(labels)
    return found


def suspect_cells(
    markers: tuple[Marker, ...],
    values: Array,
    labels: Ints,
    rows: npt.NDArray[np.int32],
    right: Array,
    below: Bools,
) -> Bools:
    """Return the cells without which unknown events would fit a row that has hardly an event, bool [R, M].

    Parameters
    ----------
    markers : tuple of Marker
    values : float64 [N, M]
    labels : int64 [N]
        Component of each event in one draw.
    rows : int32 [N]
        Row of each event, -1 for unknown.
    right : float64 [R, M]
        p of each cell.
    below : bool [R, R]
        Result of `descendants`.
    """
    logs = log_factors(markers, values, right)
    silent = np.array([marker.silent for marker in markers]).T
    means = component_means(markers, values, labels)
    found = np.zeros(right.shape, np.bool_)
    for r in np.flatnonzero(~silent.all(axis=1)).tolist():
        spoken = np.flatnonzero(~silent[r])
        failed = np.array([markers[m].passes(values[:, m], r) < 0.5 for m in spoken])
        gained = (failed & (failed.sum(axis=0) == 1) & (rows < 0)).sum(axis=1)
        others = logs[:, ~below[r]].max(axis=1, initial=0.0)
        passing: Bools = np.asarray((means[:, r] >= 0.5).all(axis=1))
        own = below[r][rows] & (rows >= 0) & (logs[:, r] > others + np.log(2.0)) & passing[labels]
        most = int(gained.argmax())
        found[r, spoken[most]] = gained[most] >= FEWEST and own.sum() < OWN * gained[most]
    return found
