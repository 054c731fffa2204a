"""Tables of the cell types of a gating: types.csv and three tables that start with types.

| file | content |
| --- | --- |
| types.csv | one row per sample and type: proportion with 90% interval, events, certainty (mean probability \
of the type among its events), R-hat of the proportion in all samples; a parent includes its children |
| types.populations.csv | one row per population: its type, which is the deepest row that more than half of \
its events have, or "debris", "doublets" or "dead cells"; their share, and the share of each row without its \
children |
| types.suggested.csv | populations that are mostly unknown, as rows of a table of cell types |
| types.answer.csv | what the data say about each cell, and what does not fit |
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.inputs.type_cells import cells_of_column
from dpmix.inputs.type_table import NAMES, NARROW, TypeTable, type_lines
from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.estimates import Estimates, over_samples
from dpmix.populations.result import Gating
from dpmix.populations.types.cells import CONTRADICTED
from dpmix.populations.types.markers import Marker
from dpmix.populations.types.types import Types
from dpmix.report.labels import shown
from dpmix.system.console import percent
from dpmix.system.files import csv_text, write_text

FILES = ("types.csv", "types.populations.csv", "types.suggested.csv", "types.answer.csv")
LEAST_SUGGESTED = 50  # events of an unknown population that becomes a row
APART = 1.5  # standard deviations between the levels of a marker, below which it has none
EMPTY = 1e-4  # proportion of a row without cells


class TypeRow(NamedTuple):
    """A type in all samples together; `low` and `high` are None for a single draw."""

    name: str
    share: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Finding:
    """Something that the data say about the table.

    Attributes
    ----------
    finding : str
        cell (no surprise), contradicted, suspect, exchanged, no levels, same rows, empty row, or panel.
    type, marker, table : str
        Row, column and what the table says there; "" where it is about more than one.
    data : float or None
        Share of the events of the row that pass the cell.
    text : str
        For a reader.
    """

    finding: str
    type: str
    marker: str
    table: str
    data: float | None
    text: str


def paths(folder: Path) -> list[Path]:
    """Return the files that `write_types` writes."""
    return [folder / name for name in FILES]


def write_types(folder: Path, gating: Gating) -> None:
    """Write all tables of the cell types of a gating that has them.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    rows = (_type_rows(gating), _population_rows(gating), _suggested_rows(gating), _answer_rows(gating))
    for path, own in zip(paths(folder), rows, strict=True):
        write_text(path, csv_text(own))


def types_of(gating: Gating) -> Types:
    """Return the types of a gating, which must have them."""
    assert gating.types is not None
    return gating.types


def overall_rows(gating: Gating) -> list[TypeRow]:
    """Return the types in all samples together, as in the table, unknown last."""
    types = types_of(gating)
    both = types.mean_proportions, types.proportions
    found = Estimates.of(*(over_samples(each, gating.n_events, gating.sample_weights) for each in both))
    return [
        TypeRow(name, float(mean), *((None, None) if np.isnan(low) else (float(low), float(high))))
        for name, mean, low, high in zip(types.names, *found, strict=True)
    ]


def events_of(gating: Gating) -> list[tuple[int, float]]:
    """Return the events of each type with its children, unknown last, and their mean probability."""
    types = types_of(gating)
    found = []
    for own in types.includes:
        inside = own[types.of_event]  # -1, unknown, is the last row
        n_events = int(inside.sum())
        found.append((n_events, float(types.probability[inside].mean()) if n_events else float("nan")))
    return found


def _type_rows(gating: Gating) -> Iterator[Sequence[object]]:
    types = types_of(gating)
    yield "sample", "type", "parent", "proportion", "low", "high", "events", "certainty", "rhat"
    mean, low, high = types.estimates
    parents = (*types.table.parents, "")
    includes = types.includes
    starts = np.append(0, np.cumsum(gating.n_events))
    for s, (sample, (first, end)) in enumerate(zip(gating.samples, itertools.pairwise(starts), strict=True)):
        rows, probability = types.of_event[first:end], types.probability[first:end]
        for r, name in enumerate(types.names):
            inside = includes[r][rows]
            certainty = f"{probability[inside].mean():.4f}" if inside.any() else ""
            ends = (_number(mean[s, r]), _number(low[s, r]), _number(high[s, r]))
            yield sample, name, parents[r], *ends, int(inside.sum()), certainty, _number(types.r_hat[r])


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"


def _population_rows(gating: Gating) -> Iterator[Sequence[object]]:
    types, together = types_of(gating), gating.type_populations
    assert together is not None
    given = ["name"] if any(gating.names) else []
    yield "population", *given, "phenotype", "events", "type", "share", *types.names
    for p, own in enumerate(gating.population_types):
        size = max(int(together[:, p].sum()), 1)
        row = types.names.index(own) if own in types.names else -1  # marked populations are of unknown type
        share = "" if not own else f"{types.includes[row] @ together[:, p] / size:.4f}"
        shares = (f"{events / size:.4f}" for events in together[:, p])
        name = gating.names[p : p + 1] if given else ()
        yield gating.number(p), *name, gating.phenotypes[p], int(together[:, p].sum()), own, share, *shares


def unknown_populations(gating: Gating) -> list[int]:
    """Return the populations, from 0, that consist mostly of unknown events and look like cells."""
    together = gating.type_populations
    assert together is not None
    sizes = together.sum(axis=0)
    found = (together[-1] > sizes / 2) & (sizes >= LEAST_SUGGESTED)
    return [p for p in np.flatnonzero(found).tolist() if not "".join(gating.artefacts[p : p + 1])]


def suggested(gating: Gating) -> TypeTable | None:
    """Return the unknown populations as a table; None where there are none."""
    types, unknown = types_of(gating), unknown_populations(gating)
    if not unknown:
        return None
    at = [gating.measured_channels.index(channel) for channel in types.channels]
    quartiles = gating.measured_quantiles[[1, 3]][:, unknown][:, :, at]
    numbers = [gating.number(p) for p in unknown]
    return as_rows(types.table, numbers, levels_of(types.table, types.columns, types.markers, quartiles))


def levels_of(
    table: TypeTable, columns: Ints, markers: Sequence[Marker], quartiles: Array
) -> npt.NDArray[np.bool_]:
    """Return the cells of a table that populations would have as rows, bool [P, M, 4].

    A cell has a level where both quartiles of the population have it, and is silent otherwise.

    Parameters
    ----------
    table : TypeTable
    columns : int64 [C]
        Columns of the table that have a marker in the panel.
    markers : sequence of Marker
        C markers.
    quartiles : float64 [2, P, C]
        Quartiles of the populations, transformed scale.
    """
    levels = np.ones((quartiles.shape[1], len(table.markers), table.levels.shape[2]), np.bool_)
    for c, marker in enumerate(markers):
        if not divides(marker):
            continue
        limits = np.median(marker.thresholds[~marker.silent], axis=0)
        low, high = np.searchsorted(limits, quartiles[..., c])
        written = table.levels[:, columns[c]]
        for k in np.flatnonzero(low == high):
            only = np.arange(marker.allowed.shape[1]) == low[k]
            own = (marker.allowed == only).all(axis=1) & ~written.all(axis=1)  # not by their parent
            same = np.flatnonzero(own)
            if len(same):
                levels[k, columns[c]] = written[same].any(axis=0)
            elif len(only) == 2:
                levels[k, columns[c]] = [not low[k], *[bool(low[k])] * 3]
    return levels


def divides(marker: Marker) -> bool:
    """Return whether a marker of a table has levels that are apart in the data."""
    return not marker.silent.all() and marker.separation >= APART


def as_rows(table: TypeTable, numbers: Sequence[int], levels: npt.NDArray[np.bool_]) -> TypeTable:
    """Return a table with a row for each of some populations, from numbers and cells, bool [P, M, 4]."""
    none = ("",) * len(numbers)
    return replace(
        table,
        types=tuple(f"unknown {number}" for number in numbers),
        levels=levels,
        doubt=np.full(levels.shape[:2], np.nan),
        parents=none,
        kinds=("cell",) * len(numbers),
        ontology=none,
        notes=(),
    )


def _suggested_rows(gating: Gating) -> list[list[str]]:
    if not types_of(gating).table.markers:  # of examples: phenotypes, which a table can have
        phenotypes = gating.full_phenotypes
        rows = [[f"unknown {gating.number(p)}", phenotypes[p]] for p in unknown_populations(gating)]
        return [[NAMES[0], NARROW[0]], *rows]
    found = suggested(gating)
    return type_lines(types_of(gating).table)[:1] if found is None else type_lines(found)


def _answer_rows(gating: Gating) -> Iterator[Sequence[object]]:
    yield "finding", "type", "marker", "table", "data", "text"
    for one in findings(gating):
        data = "" if one.data is None else f"{one.data:.3f}"
        yield one.finding, one.type, one.marker, one.table, data, one.text


def findings(gating: Gating) -> list[Finding]:
    """Return what the data say about the table: what does not fit first, then every cell."""
    types = types_of(gating)
    table = types.table
    columns = (cells_of_column(table.levels[:, m], table.doubt[:, m]) for m in types.columns)
    cells = list(zip(*columns, strict=True))
    shares = types.mean_proportions
    overall = over_samples(shares, gating.n_events, gating.sample_weights)
    found = [*_channel_findings(types), *_contradictions(types, cells), *_suspects(types, cells)]
    found += _row_findings(types, overall)
    found += [Finding("panel", "", "", "", None, note) for note in (*types.notes, *table.notes)]
    agreement = types.agreement
    for r, m in np.argwhere(~np.isnan(agreement) & ~types.contradicted):
        row, name = table.types[r], table.markers[types.columns[m]]
        text = ""
        if agreement[r, m] < CONTRADICTED:
            share = f"{1.0 - agreement[r, m]:.0%}"
            text = (
                f"{share} of the events that fit {row} best differ from it in {name}: a type may have no row"
            )
        found.append(Finding("cell", row, name, cells[r][m], agreement[r, m], text))
    return found


def _channel_findings(types: Types) -> Iterator[Finding]:
    """Yield markers whose channels look exchanged, and markers without levels."""
    names = [types.table.markers[column] for column in types.columns]
    for a, b in types.exchanged:
        text = (
            f"{names[a]} and {names[b]} look exchanged: the table fits better with {names[a]} in the channel "
            f"{types.channels[b]} and {names[b]} in {types.channels[a]}"
        )
        yield Finding("exchanged", "", f"{names[a]}, {names[b]}", "", None, text)
    for m, marker in enumerate(types.markers):
        if marker.separation < APART and not marker.silent.all():
            name = names[m]
            text = f"{name} has no two levels apart in these data: it hardly counts"
            yield Finding("no levels", "", name, "", None, text)


def _contradictions(types: Types, cells: Sequence[Sequence[str]]) -> Iterator[Finding]:
    for r, m in np.argwhere(types.contradicted):
        row, name = types.table.types[r], types.table.markers[types.columns[m]]
        share, cell = float(types.agreement[r, m]), cells[r][m] or "by its parent"
        used = "as stated" if not np.isnan(types.table.doubt[r, types.columns[m]]) else "not used"
        text = (
            f"{name} of {row}: table {cell}, but {share:.0%} of its events agree; {used}: it is wrong, or "
            "these events are of a type without a row"
        )
        yield Finding("contradicted", row, name, cell, share, text)


def _suspects(types: Types, cells: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Yield cells that may be wrong, although the events of their row pass them."""
    for r, m in np.argwhere(types.suspect & ~types.contradicted):
        row, name = types.table.types[r], types.table.markers[types.columns[m]]
        cell = cells[r][m] or "by its parent"
        text = (
            f"{name} of {row}: table {cell}, but few events are this type alone, and unknown events fit it "
            "but for this cell; it is wrong, or a row with the same cells is, or a type has no row"
        )
        yield Finding("suspect", row, name, cell, None, text)


def _row_findings(types: Types, overall: np.ndarray) -> Iterator[Finding]:
    """Yield rows that no marker with levels tells apart, and rows without events."""
    for other, *names in same_rows(types):
        for name in names:
            text = f"{other} and {name} have the same cells in the markers of this panel that have levels"
            yield Finding("same rows", name, "", "", None, text)
    for r, name in enumerate(types.table.types):
        if overall[r] < EMPTY:
            yield Finding("empty row", name, "", "", None, f"{name}: hardly any event ({overall[r]:.3%})")


def same_rows(types: Types) -> list[list[str]]:
    """Return the groups of types that no marker with levels tells apart."""
    if not types.markers:  # examples have none
        return []
    groups: dict[bytes, list[str]] = {}
    apart = [marker for marker in types.markers if marker.separation >= APART]
    for r, name in enumerate(types.table.types):
        groups.setdefault(b"|".join(marker.allowed[r].tobytes() for marker in apart), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def warnings(gating: Gating) -> list[str]:
    """Return a line for each pair of exchanged channels, and one on types that the panel cannot tell apart.

    They concern all numbers of a table, so that `dpmix run` prints them below the types.
    """
    types = types_of(gating)
    lines = [one.text for one in _channel_findings(types) if one.finding == "exchanged"]
    if groups := same_rows(types):
        told = "; ".join(f"{', '.join(names[:-1])} and {names[-1]}" for names in groups)
        lines.append(f"this panel cannot tell apart {told}: they share their events")
    return lines


def section(gating: Gating) -> dict[str, Any]:
    """Return the section of the report: types, their shares in populations, and what does not fit."""
    types, together = types_of(gating), gating.type_populations
    assert together is not None
    shares = together / np.maximum(together.sum(axis=0), 1)
    rows = [
        {
            "name": one.name,
            "depth": _depth(types.table, r),
            "share": percent(one.share),
            "interval": _interval(one),
            "events": f"{size:,}",
            "certainty": f"{sure:.1%}" if size else "",
            "shares": [
                {"text": f"{100.0 * share:.0f}" if share >= 0.005 else "", "strength": f"{share:.2f}"}
                for share in own[: shown(gating)]
            ],
        }
        for r, (one, (size, sure), own) in enumerate(
            zip(overall_rows(gating), events_of(gating), shares, strict=True)
        )
    ]
    return {
        "source": types.table.source,
        "rows": rows,
        "populations": [str(gating.number(p)) for p in range(shown(gating))],
        "notes": [one.text for one in findings(gating) if one.finding != "cell"],
        "suggested": len(unknown_populations(gating)),
    }


def _interval(one: TypeRow) -> str:
    return "" if one.low is None or one.high is None else f"{percent(one.low)} to {percent(one.high)}"


def _depth(table: TypeTable, r: int) -> int:
    """Return the number of rows above row r of a table; 0 for unknown."""
    depth = 0
    while r < len(table.types) and table.parents[r]:
        r, depth = table.types.index(table.parents[r]), depth + 1
    return depth
