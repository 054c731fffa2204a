"""A table of cell types fitted to events: the levels of its markers, and the cells that count.

N events, R rows, M markers of the table that are in the panel, K components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpmix.inputs.controls import Control
from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.medians import evenly
from dpmix.populations.types.cells import assess_cells, other_cells
from dpmix.populations.types.levels import levels_of_draws
from dpmix.populations.types.markers import Bools, Marker, log_factors, telling, with_base
from dpmix.populations.types.shares import component_fits, event_fits

LEVELS_FITTED = 15_000  # events from which levels are computed
LEAST_LOG = -60.0  # of the evidence for a row, next to that for the best


@dataclass(frozen=True)
class TableFit:
    """Levels of the markers of a table, and what its cells count for.

    Attributes
    ----------
    markers : tuple of Marker
    soft : tuple of Marker
        The same, averaged over where their thresholds may lie: they give events their names.
    right : float64 [R, M]
        p, the probability that a cell is right.
    agreement : float64 [R, M]
        Share of the events of each row that pass each cell; NaN for a silent cell.
    contradicted : bool [R, M]
        Cells that the events of their row contradict.
    upheld : bool [R, M]
        Cells that most events of their row contradict, although a component of the row passes them.
    tells : bool [R, M]
        Cells that divide similar types, and upheld cells: an event must pass all of them.
    others : bool [R, M]
        Other cells that count, but for one.
    """

    markers: tuple[Marker, ...]
    soft: tuple[Marker, ...]
    right: Array
    agreement: Array
    contradicted: Bools
    upheld: Bools
    tells: Bools
    others: Bools

    def evidence(self, markers: tuple[Marker, ...], values: Array) -> Array:
        """Return F of events [N, M] by some of its markers, float64 [N, R + 1], up to a factor of each event.

        `markers`: of the fit, soft, or with moved thresholds.
        """
        logs = np.pad(log_factors(markers, values, self.right), [(0, 0), (0, 1)])
        found: Array = np.exp(np.maximum(logs - logs.max(axis=1, keepdims=True), LEAST_LOG))
        return found

    def event_fits(self, markers: tuple[Marker, ...], values: Array) -> tuple[Array, Array]:
        """Return k_r(x) and pi_r(x) of events [N, M], float64 [N, R] each (`Fits`)."""
        return event_fits(markers, values, self.tells, self.others)

    def component_fits(
        self, markers: tuple[Marker, ...], values: Array, labels: Sequence[Ints], n_components: int
    ) -> Array:
        """Return k_hr of components, float64 [T, K, R], by events [N, M] and their labels in T draws."""
        return component_fits(markers, values, self.tells, self.others, labels, n_components)


def fit_table(
    values: Array,
    labels: Sequence[Ints],
    levels: Bools,
    doubt: Array,
    controls: Mapping[int, Control] | None = None,
) -> TableFit:
    """Return a table fitted to events.

    Parameters
    ----------
    values : float64 [N, M]
        Transformed scale.
    labels : sequence of int64 [N]
        Component of each event in each of some draws, whose thresholds are averaged.
    levels : bool [R, M, 4]
        Cells of the table.
    doubt : float64 [R, M]
        Doubt that the table states; NaN where it states none.
    controls : mapping of int to Control, optional
        Controls of some markers.
    """
    some = evenly(len(values), LEVELS_FITTED)
    fitted = levels_of_draws(values[some], [own[some] for own in labels], levels, controls)
    markers = tuple(with_base(marker, values[:, m]) for m, marker in enumerate(fitted))
    tells = telling(levels)
    right, agreement, contradicted, upheld = assess_cells(markers, values, doubt, tells, labels)
    tells = tells | upheld
    return TableFit(
        markers=markers,
        soft=tuple(with_base(marker.softened(), values[:, m]) for m, marker in enumerate(markers)),
        right=right,
        agreement=agreement,
        contradicted=contradicted,
        upheld=upheld,
        tells=tells,
        others=other_cells(markers, tells, doubt, contradicted),
    )
