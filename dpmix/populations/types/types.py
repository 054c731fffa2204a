"""Cell types of the events of a gating, and how they follow from probabilities.

**Parents.** A child has the cells of its parent, too. The probability of a parent includes its children. An
event gets the most probable row without parent, then the child whose probability, given the row, is at least
the certainty asked for, and so on down.

**Proportions** are expected numbers of events in the draws. Intervals are for the population from which the N
events are a random sample: they contain the uncertainty of the draws, of the thresholds and of the sample.

N events, S samples, R rows, M markers, T draws, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.type_table import TypeTable
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.events.artefacts import Marks
from dpmix.populations.events.estimates import Estimates
from dpmix.populations.events.proportions import posterior
from dpmix.populations.types.draws import TypeDraws
from dpmix.populations.types.markers import Marker

UNKNOWN = "unknown"
INTERVAL_DRAWS = 400  # of proportions, at least: with 40, 90% intervals contain the truth in 86%
CERTAINTY = 0.7


@dataclass(frozen=True)
class Types:
    """Cell types of the events of a gating.

    Attributes
    ----------
    table : TypeTable
        As read.
    markers : tuple of Marker
        Markers of the table in the panel.
    columns : int64 [M]
        Their columns in the table.
    channels : tuple of str
        Their channels.
    notes : tuple of str
        On markers that the panel lacks.
    certainty : float
    of_event : int32 [N]
        Row of each event, -1 for unknown.
    probability : float32 [N]
        Posterior probability of this row, with its children.
    counts : float64 [T, S, R + 1]
        Expected events by row in each draw, without children; the last is unknown.
    proportions : float64 [V, S, R + 1]
        Draws of the proportions, with children; V is T or a multiple of T.
    mean_proportions : float64 [S, R + 1]
    r_hat : float64 [R + 1]
        R-hat of the proportions in all samples together; NaN where not known.
    agreement : float64 [R, M]
        Share of the events of each row that pass each cell; NaN for a silent cell.
    contradicted : bool [R, M]
        Cells that the events of their row contradict.
    suspect : bool [R, M]
        Cells that may be wrong because unknown events fit their row but for them (`cells.suspect_cells`), or
        because most events contradict them, although a component of the row passes.
    right : float64 [R, M]
        p of each cell that was used.
    exchanged : tuple of (int, int)
        Pairs of markers whose channels look exchanged.
    draws : TypeDraws, optional
        What `dpmix associate --types` compares; None before `dpmix gate` has added it.
    """

    table: TypeTable
    markers: tuple[Marker, ...]
    columns: Ints
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    certainty: float
    of_event: npt.NDArray[np.int32]
    probability: Floats
    counts: Array
    proportions: Array
    mean_proportions: Array
    r_hat: Array
    agreement: Array
    contradicted: npt.NDArray[np.bool_]
    suspect: npt.NDArray[np.bool_]
    right: Array
    exchanged: tuple[tuple[int, int], ...] = ()
    draws: TypeDraws | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """R + 1 names; the last is unknown."""
        return (*self.table.types, UNKNOWN)

    @property
    def includes(self) -> npt.NDArray[np.bool_]:
        """Types s that count as type r: itself, and those below it, bool [R + 1, R + 1]."""
        return included(self.table)

    @property
    def estimates(self) -> Estimates:
        """Mean and 90% interval of the proportions, each float64 [S, R + 1]."""
        return Estimates.of(self.mean_proportions, self.proportions)

    @property
    def rows(self) -> Ints:
        """Row of the table of each event, int64 [N]; the last is unknown."""
        return np.where(self.of_event < 0, len(self.table.types), self.of_event).astype(np.int64)

    def of_populations(self, together: Ints) -> tuple[str, ...]:
        """Return the type of each population; see `main_types`."""
        return main_types(self.table, together)


def descendants(parents: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether column s is row r or below it, bool [R, R]."""
    below = np.eye(len(names), dtype=np.bool_)
    for s in range(len(names)):
        above = parents[s]
        while above:
            r = names.index(above)
            below[r, s] = True
            above = parents[r]
    return below


def parent_rows(table: TypeTable) -> list[int]:
    """Return the row of the parent of each of R rows, -1 for none."""
    return [table.types.index(name) if name else -1 for name in table.parents]


def included(table: TypeTable) -> npt.NDArray[np.bool_]:
    """Return the result of `descendants` with a last row and column for the unknown type."""
    found: npt.NDArray[np.bool_] = np.pad(descendants(table.parents, table.types), [(0, 1), (0, 1)])
    found[-1, -1] = True
    return found


def decide(
    shares: Array, parents: Sequence[str], names: Sequence[str], certainty: float
) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return the row of each event, -1 for unknown, and its probability with children.

    Parameters
    ----------
    shares : float64 [N, R + 1]
        Probabilities without children; the last is unknown.
    parents, names : sequence of str
        Columns of the table.
    certainty : float
        Least probability of a child, given its parent.
    """
    # A parent competes with all that its children have: otherwise a type divided into many subtypes would
    # lose to one that is not.
    whole = np.hstack([shares[:, :-1] @ descendants(parents, names).T, shares[:, -1:]])
    n_rows = len(names)
    roots = np.array([r for r in range(n_rows) if not parents[r]] + [n_rows])
    rows = roots[whole[:, roots].argmax(axis=1)]
    children = {r: [s for s in range(n_rows) if parents[s] == names[r]] for r in range(n_rows)}
    active = np.arange(len(rows))
    while len(active):
        below = []
        for r in np.unique(rows[active]):
            own = active[rows[active] == r]
            if not (inside := children.get(int(r), [])):
                continue
            best = np.array(inside)[whole[np.ix_(own, inside)].argmax(axis=1)]
            # Given the parent: an uncertain parent must not keep its events from a child that is clear within
            # it.
            sure = whole[own, best] >= certainty * whole[own, r]
            rows[own[sure]] = best[sure]
            below.append(own[sure])
        active = np.concatenate(below) if below else np.empty(0, np.int64)
    probability = whole[np.arange(len(rows)), rows].astype(np.float32)
    return np.where(rows == n_rows, -1, rows).astype(np.int32), probability


def types_by_population(types: Types, population: npt.NDArray[np.int32], n_populations: int) -> Ints:
    """Return the events by row of the table, the last unknown, and population, int64 [R + 1, P]."""
    size = len(types.names), n_populations
    flat = np.bincount(types.rows * n_populations + population, minlength=size[0] * size[1])
    found: Ints = flat.reshape(size)
    return found


def main_types(table: TypeTable, together: Ints) -> tuple[str, ...]:
    """Return the type of each population, "" for none: P names.

    It is the deepest row that more than half of its events have, with the children of the row.

    Parameters
    ----------
    table : TypeTable
    together : int64 [R + 1, P]
        Events by row and population (`types_by_population`).
    """
    names, includes = (*table.types, UNKNOWN), included(table)
    most = 2 * (includes @ together) > together.sum(axis=0)
    depth = np.where(most, len(includes) + 1 - includes.sum(axis=1)[:, None], 0)
    return tuple(names[r] if depth[r, p] else "" for p, r in enumerate(depth.argmax(axis=0)))


def marked_types(types: Sequence[str], marks: Marks) -> tuple[str, ...]:
    """Return the types of populations with the mark of each that is unknown and has one."""
    if not marks:
        return tuple(types)
    return tuple(mark if mark and name == UNKNOWN else name for name, mark in zip(types, marks, strict=True))


def type_proportions(counts: Array, below: npt.NDArray[np.bool_], seed: int) -> tuple[Array, Array]:
    """Return draws of the proportions of types, and their posterior means; NaN for empty samples.

    Parameters
    ----------
    counts : float64 [T, S, R + 1]
        Expected numbers of events. Draws are repeated, for at least `INTERVAL_DRAWS` of the proportions.
    below : bool [R + 1, R + 1]
        Rows whose events a row includes (`included`).
    seed : int

    Returns
    -------
    proportions : float64 [.., S, R + 1]
    mean : float64 [S, R + 1]
    """
    # Several Dirichlet draws for each draw of counts: the ends of an interval need more draws than the counts
    # have.
    repeated = np.repeat(counts, -(-INTERVAL_DRAWS // len(counts)) if len(counts) > 1 else 1, axis=0)
    proportions: Array = posterior(repeated, seed) @ below.T
    mean: Array = (counts / np.maximum(counts.sum(axis=2, keepdims=True), 1.0)).mean(axis=0) @ below.T
    empty = counts.sum(axis=(0, 2)) == 0.0
    proportions[:, empty], mean[empty] = np.nan, np.nan
    return proportions, mean
