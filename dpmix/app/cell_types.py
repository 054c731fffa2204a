"""Cell types by a table that a person edits on the page.

The table is in its file only, run.types.csv next to run.h5, in the form that `dpmix gate --types` reads. The
memberships of some events in some draws are computed once. Types then follow an edited table within a second,
by the functions of `dpmix.populations.types`, with fewer events and draws and without the errors of
thresholds: names of events equal the names by `dpmix gate --types` but for events near a threshold.

M events, T draws, H components of a draw that have some of them, R rows of the table, C markers in the panel,
P populations.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.app.files import TYPES, tables_of_types
from dpmix.app.judging import revision
from dpmix.app.live import Live, inside, population_of_events
from dpmix.errors import ConfigError
from dpmix.inputs.controls import by_number
from dpmix.inputs.text_format import read_cells
from dpmix.inputs.type_table import (
    LEVEL,
    NAMES,
    PARENT,
    TypeTable,
    built_in,
    built_in_names,
    match_markers,
    parse_types,
    read_types,
    type_lines,
)
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws import decide
from dpmix.populations.draws.decide import Decided
from dpmix.populations.draws.find import decided_populations
from dpmix.populations.events.artefacts import Artefacts, Marks
from dpmix.populations.events.medians import evenly
from dpmix.populations.events.phenotypes import quartiles_of
from dpmix.populations.marks import find_artefacts
from dpmix.populations.tree.decisions import Decisions
from dpmix.populations.types.markers import Marker
from dpmix.populations.types.shares import Fits, barred_rows, event_shares, name_shares
from dpmix.populations.types.table_fit import fit_table
from dpmix.populations.types.types import (
    CERTAINTY,
    UNKNOWN,
    included,
    main_types,
    marked_types,
    parent_rows,
)
from dpmix.populations.types.types import decide as decide_types
from dpmix.report.type_tables import as_rows, divides, levels_of
from dpmix.system.console import percent, quoted
from dpmix.system.files import csv_text, write_text, writing
from dpmix.system.threads import one_thread

EVENTS = 20_000  # that get a type, evenly spaced over the events of the plots
FITTED = 4_000  # of them, from which levels and shares of components are computed
DRAWS = 5
LEAST = 1e-3  # components without a membership above it are left out
LEAST_SUGGESTED = 20  # events of an unknown population that is listed
NONE = "no table"
Lines = list[list[str]]


@dataclass(frozen=True)
class Drawn:
    """Events of a run and their memberships, which do not depend on the table.

    Attributes
    ----------
    rows : int64 [M]
        Numbers of the events among the events of the plots.
    channels : tuple of str
        All that the files have: of the model, state channels, scatter and viability.
    values : float64 [M, channels]
        Transformed scale.
    labels : tuple of int64 [M]
        The most probable of the H components of the events in each of T draws.
    memberships : tuple of float32 [M, H]
        Memberships of the events in the components of these draws; rows sum to 1.
    populations : tuple of int64 [H]
        Populations of these components when the run was opened: later decisions do not change them.
    artefacts : Artefacts
        What these populations look like (`dpmix.populations.marks`).
    """

    rows: Ints
    channels: tuple[str, ...]
    values: Array
    labels: tuple[Ints, ...]
    memberships: tuple[Floats, ...]
    populations: tuple[Ints, ...]
    artefacts: Artefacts


@dataclass(frozen=True)
class Typed:
    """A table, and the types of the events.

    Attributes
    ----------
    table : TypeTable
    numbers : int64 [markers]
        Channel of each marker of the table, -1 where the panel lacks it.
    columns : int64 [C]
        Markers in the panel.
    markers : tuple of Marker
    agreement, contradicted : float64, bool [R, C]
        As in `dpmix.populations.types.types.Types`.
    of_event : int32 [M]
        Row of the table, -1 for unknown.
    probability : float32 [M]
    """

    table: TypeTable
    numbers: Ints
    columns: Ints
    markers: tuple[Marker, ...]
    agreement: Array
    contradicted: npt.NDArray[np.bool_]
    of_event: npt.NDArray[np.int32]
    probability: Floats


# --------------------------------------------------------------------------- the file


def types_path(run: Path) -> Path:
    """Return the table of cell types of a run file: run.types.csv next to run.h5."""
    return run.with_name(run.stem + TYPES)


def lines_of(path: Path) -> Lines:
    """Return the cells of a table, the first row with the names of columns; none without such a file."""
    try:
        cells = read_cells(path, numbers=True)
    except (OSError, ValueError, csv.Error):
        return []
    lines = [line for line in cells if any(line) and not line[0].startswith("#")]
    return lines if len({len(line) for line in lines}) == 1 else []


def store(path: Path, lines: Sequence[Sequence[str]]) -> None:
    """Write a table, which must be one; without rows, its file is removed. Remarks in the file stay.

    Raises
    ------
    ConfigError
        It is not a table of cell types.
    """
    if len(lines) < 2:
        with writing(path):
            path.unlink(missing_ok=True)
        return
    if hidden := [line[0] for line in lines if line and line[0].startswith("#")]:
        raise ConfigError([f"{path.name}: {hidden[0]}: a name that starts with # is a remark; rename it"])
    parse_types(path.name, lines)
    _write(path, lines, _remarks(path))


def load(path: Path, source: str, folder: Path, channels: Sequence[str]) -> None:
    """Take a built-in table, or one of the folder, as the table of the run; `NONE` removes it.

    A table of phenotypes, or with a column `level`, is written with a column for each marker and parents.

    Raises
    ------
    ConfigError
        It cannot be read, or has no marker of the channels.
    """
    if source == NONE:
        store(path, [])
        return
    file = built_in(source) or folder / source
    table = read_types(source if built_in(source) else file)
    match_markers(table, channels)
    lines = lines_of(file)
    is_wide = {*table.markers} <= {*lines[0]} and LEVEL not in lines[0]
    _write(path, with_parents(lines if is_wide else type_lines(table)), _remarks(file))


def with_parents(lines: Lines) -> Lines:
    """Return the rows with a column of parents after the names, empty if they have none."""
    if not lines or PARENT in lines[0]:
        return lines
    return [[line[0], PARENT if k == 0 else "", *line[1:]] for k, line in enumerate(lines)]


def _remarks(path: Path) -> list[str]:
    """Return the lines of a table that start with #."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.startswith("#")]


def _write(path: Path, lines: Sequence[Sequence[str]], remarks: Sequence[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in remarks) + csv_text(lines))


# --------------------------------------------------------------------------- types of events


def draw(live: Live, decisions: Decisions) -> Drawn:
    """Return the events that get a type, and their memberships; this takes seconds at most."""
    task, events = live.task, live.task.events
    found = decided_populations(live.forest, decide.decided(live.forest, decisions))
    rows = evenly(len(live.rows), EVENTS)
    numbers = live.rows[rows]
    ends = np.searchsorted(numbers, events.sample_starts)
    each = np.arange(found.run.n_components)
    labels, memberships, populations = [], [], []
    with one_thread(), closing(task.make_engine(np.ascontiguousarray(events.values[numbers]))) as engine:
        for t in evenly(len(found.draws), DRAWS).tolist():
            parts = []
            for sample, (start, stop) in enumerate(pairwise(ends.tolist())):
                if start < stop:
                    mixture = found.mixture_of(t, task.own_terms(found, sample))
                    parts.append(engine.memberships(mixture, each, start, stop)[0])
            whole = np.concatenate(parts)
            there = whole.max(axis=0) >= min(LEAST, 1.0 / len(each))
            own = whole[:, there]
            populations.append(found.components[t, there])
            memberships.append(own / own.sum(axis=1, keepdims=True))
            labels.append(own.argmax(axis=1).astype(np.int64))
    return Drawn(
        rows,
        events.all_channels,
        events.all_values(numbers),
        tuple(labels),
        tuple(memberships),
        tuple(populations),
        find_artefacts(task, found),
    )


def typed(live: Live, drawn: Drawn, table: TypeTable) -> Typed:
    """Return the types of the events by a table.

    Raises
    ------
    ConfigError
        No marker of the table is in the panel, or one matches several channels.
    """
    numbers, _ = match_markers(table, drawn.channels)
    columns = np.flatnonzero(numbers >= 0)
    at = numbers[columns]
    full = table.with_inherited()
    values = drawn.values[:, at]
    some = evenly(len(values), FITTED)
    controls = by_number(live.task.run.controls, [drawn.channels[d] for d in at.tolist()])
    with one_thread():
        own_labels = [own[some] for own in drawn.labels]
        fit = fit_table(values[some], own_labels, full.levels[:, columns], full.doubt[:, columns], controls)
        evidence, (own_fits, passed) = fit.evidence(fit.soft, values), fit.event_fits(fit.soft, values)
        parents = parent_rows(table)
        total = np.zeros_like(evidence)
        like_cells = drawn.artefacts.of_events(live.rows[drawn.rows], len(live.task.events.values))
        for own, one, of in zip(drawn.labels, drawn.memberships, drawn.populations, strict=True):
            (fits,) = fit.component_fits(fit.soft, values[some], [own[some]], one.shape[1])
            for cells, rows in enumerate((~like_cells, like_cells)):
                if not rows.any():
                    continue
                barred = barred_rows(table.kinds, drawn.artefacts.marked(of, bool(cells)))
                shares = name_shares(evidence[some], own[some], of, barred)
                of_events = Fits(own_fits[rows], fits, passed[rows])
                total[rows] += event_shares(one[rows], shares, evidence[rows], of_events, parents)
    of_event, probability = decide_types(total / len(drawn.labels), table.parents, table.types, CERTAINTY)
    return Typed(table, numbers, columns, fit.markers, fit.agreement, fit.contradicted, of_event, probability)


# --------------------------------------------------------------------------- what the page shows


def state(
    live: Live, decisions: Decisions, path: Path, drawn: Drawn, one: Typed | None, problem: str
) -> dict[str, Any]:
    """Return the table, the types of events and populations, and the populations that are unknown.

    Parameters
    ----------
    live : Live
    decisions : Decisions
    path : Path
        File of the table.
    drawn : Drawn
    one : Typed, optional
        None without a table, and where it cannot be used.
    problem : str
        Why it cannot, "" where it can.
    """
    name = inside(live, path)
    shown: dict[str, Any] = {
        "revision": revision(path),
        "file": path.name,
        "option": f"--types {quoted(name)}" if path.exists() else "",
        "lines": with_parents(lines_of(path)),
        "remarks": [remark.lstrip("# ") for remark in _remarks(path)],
        "empty": [[NAMES[0], PARENT, *drawn.channels]],
        "sources": [*built_in_names(), *tables_of_types(live.folder)],
        "channels": drawn.channels,
        "problem": problem,
        "events": len(drawn.rows),
    }
    if one is None:
        return shown
    return shown | _answer(one) | _populations(live, decisions, drawn, one)


def _answer(one: Typed) -> dict[str, Any]:
    """Return the share of each row, unknown last, and what the data say about cells and markers."""
    rows = np.where(one.of_event < 0, len(one.table.types), one.of_event)
    counted = []
    for own in included(one.table):
        of_row = own[rows]
        n_events = int(of_row.sum())
        certainty = f"{one.probability[of_row].mean():.0%}" if n_events else ""
        counted.append({"share": percent(n_events / len(rows)), "certainty": certainty})
    names = [one.table.markers[column] for column in one.columns]
    known = np.argwhere(~np.isnan(one.agreement))
    agreement = {f"{r} {names[c]}": float(one.agreement[r, c].round(3)) for r, c in known}
    contradicted = [f"{r} {names[c]}" for r, c in np.argwhere(one.contradicted)]
    flat = [
        name
        for name, marker in zip(names, one.markers, strict=True)
        if not divides(marker) and not marker.silent.all()
    ]
    absent = [one.table.markers[m] for m in np.flatnonzero(one.numbers < 0)]
    return {
        "rows": counted,
        "agreement": agreement,
        "contradicted": contradicted,
        "flat": flat,
        "absent": absent,
    }


def _populations(live: Live, decisions: Decisions, drawn: Drawn, one: Typed) -> dict[str, Any]:
    """Return the type of each population after decisions, and the unknown populations as rows."""
    chosen = decide.decided(live.forest, decisions)
    population, n_populations = population_of_events(live, chosen)[drawn.rows], len(chosen.names)
    n_rows = len(one.table.types) + 1
    rows = np.where(one.of_event < 0, n_rows - 1, one.of_event)
    together = np.bincount(rows * n_populations + population, minlength=n_rows * n_populations)
    together = together.reshape(n_rows, n_populations)
    marks = marks_of_populations(drawn, population, n_populations)
    types, sizes = marked_types(main_types(one.table, together), marks), together.sum(axis=0)
    unknown = [p for p, name in enumerate(types) if name == UNKNOWN and sizes[p] >= LEAST_SUGGESTED]
    suggested = suggestion(drawn, one, population, chosen, unknown)
    cells = [line[1:] for line in type_lines(suggested)[1:]] if unknown else []
    markers = suggested.markers
    return {
        "types": types,
        "shares": (together / np.maximum(sizes, 1)).round(3).T.tolist(),
        "unknown": [
            {
                "population": p,
                "cells": " ".join(f"{m}{cell}" for m, cell in zip(markers, own, strict=True) if cell),
            }
            for p, own in zip(unknown, cells, strict=True)
        ],
    }


def marks_of_populations(drawn: Drawn, population: Ints, n_populations: int) -> Marks:
    """Return the mark that more than half of the events of each population after decisions have, "" for none.

    Parameters
    ----------
    drawn : Drawn
    population : int64 [M]
        Population of each event.
    n_populations : int
    """
    found = [""] * n_populations
    if not drawn.artefacts.marks:
        return tuple(found)
    marks = np.array(drawn.artefacts.marks)[drawn.populations[0][drawn.labels[0]]]
    for mark in {*drawn.artefacts.marks} - {""}:
        own = np.bincount(population[marks == mark], minlength=n_populations)
        for p in np.flatnonzero(2 * own > np.bincount(population, minlength=n_populations)):
            found[p] = mark
    return tuple(found)


def suggestion(
    drawn: Drawn, one: Typed, population: Ints, chosen: Decided, which: Sequence[int]
) -> TypeTable:
    """Return populations as rows of a table; each event has a `population`, int64 [M]."""
    channels = one.numbers[one.columns]
    quartiles = quartiles_of(drawn.values[:, channels], population, len(chosen.names))[:, [*which]]
    numbers = [chosen.labels[p] for p in which]
    return as_rows(one.table, numbers, levels_of(one.table, one.columns, one.markers, quartiles))


def with_population(
    live: Live, decisions: Decisions, drawn: Drawn, one: Typed, population: int, row: int | None
) -> Lines:
    """Return the table where a population is a row of its own, or where a row has its levels, too.

    A cell of the row then allows the level of the population; it becomes silent if the population has several
    levels.

    Parameters
    ----------
    live, decisions, drawn, one
        As in `state`.
    population : int
        From 0, after decisions.
    row : int, optional
        Row of the table, from 0; None: a row of its own.

    Raises
    ------
    ConfigError
        There is no such population or row, or the row would say nothing.
    """
    chosen = decide.decided(live.forest, decisions)
    table = one.table
    if not 0 <= population < len(chosen.names):
        raise ConfigError([f"population: need a number from 0 to {len(chosen.names) - 1}"])
    number, of_event = chosen.labels[population], population_of_events(live, chosen)[drawn.rows]
    if not (of_event == population).any():
        raise ConfigError([f"population {number} has none of the {len(of_event):,} events"])
    new = suggestion(drawn, one, of_event, chosen, [population])
    if row is None:
        if new.is_silent.all():
            raise ConfigError([f"population {number} has no level of any marker of the table"])
        name, numbers = chosen.names[population] or new.types[0], range(2, len(table.types) + 3)
        free = next(text for text in (name, *(f"{name} {k}" for k in numbers)) if text not in table.types)
        made = _joined(table, replace(new, types=(free,)))
    else:
        if not 0 <= row < len(table.types):
            raise ConfigError([f"row: need a number from 0 to {len(table.types) - 1}"])
        levels, doubt = table.levels.copy(), table.doubt.copy()
        apart = [c for c, marker in zip(one.columns, one.markers, strict=True) if divides(marker)]
        levels[row, apart] |= new.levels[0, apart]
        doubt[row, levels[row].all(axis=1)] = np.nan
        if levels[row].all():
            raise ConfigError([f"{table.types[row]} would have no cell left; make a row of the population"])
        made = replace(table, levels=levels, doubt=doubt)
    return with_parents(type_lines(made))


def _joined(table: TypeTable, more: TypeTable) -> TypeTable:
    """Return a table with the rows of another one, which has the same markers, at the end."""
    return replace(
        table,
        types=table.types + more.types,
        levels=np.concatenate([table.levels, more.levels]),
        doubt=np.concatenate([table.doubt, more.doubt]),
        parents=table.parents + more.parents,
        kinds=table.kinds + more.kinds,
        ontology=table.ontology + more.ontology,
    )
