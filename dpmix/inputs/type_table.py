"""Tables of cell types: which level of each marker a cell type has.

A table is a CSV file with a row per cell type. Its first column has the names; a wide table has a column per
marker with cells such as `+` (`dpmix.inputs.type_cells`), a narrow one a column of texts such as "CD3+ CD4+".
R cell types, M markers.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, printable
from dpmix.inputs.marker_names import marker_keys
from dpmix.inputs.text_format import read_cells
from dpmix.inputs.type_cells import (
    LEVELS,
    OFF,
    PLUS,
    Cell,
    cells_of_column,
    levels_of_column,
    parse_cell,
    parse_phenotype,
)
from dpmix.model.mixture import Array, Ints
from dpmix.system.paths import from_home

BUILT_IN = Path(__file__).parent / "types"
NAMES = ("population", "cell", "cell type", "type", "name")
NARROW = ("phenotype", "gate", "definition", "markers", "signature")
PARENT, LEVEL, KIND, ONTOLOGY = "parent", "level", "kind", "cl"
KINDS = ("cell", "debris", "doublet", "dead")
CELL_ONTOLOGY = re.compile(r"CL[:_](\d{7})", re.IGNORECASE)
NEED = "need a CSV file with a row per cell type, its names in the first column and a column per marker"
SILENT = Cell(frozenset(range(len(LEVELS))), math.nan)


@dataclass(frozen=True)
class TypeTable:
    """R cell types by M markers.

    Attributes
    ----------
    source : str
        Path, or the name of a built-in table.
    types : tuple of str
        R names.
    markers : tuple of str
        M names, as written.
    levels : bool [R, M, 4]
        Levels (off, low, on, high) that the type may have; all true: the table is silent.
    doubt : float64 [R, M]
        Probability that the cell is wrong (1 - p); NaN: not stated (`dpmix.populations.types.levels.DOUBT`).
    parents : tuple of str
        R names of parents, "" for none. Every parent is itself a row.
    kinds : tuple of str
        "cell", "debris", "doublet" or "dead".
    ontology : tuple of str
        Cell Ontology ids such as "CL:0000624", "" for none.
    notes : tuple of str
        For a reader of the report.
    """

    source: str
    types: tuple[str, ...]
    markers: tuple[str, ...]
    levels: npt.NDArray[np.bool_]
    doubt: Array
    parents: tuple[str, ...]
    kinds: tuple[str, ...]
    ontology: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_silent(self) -> npt.NDArray[np.bool_]:
        """The table says nothing about a marker of a type, bool [R, M]."""
        return np.asarray(self.levels.all(axis=2), np.bool_)

    def with_inherited(self) -> TypeTable:
        """Return the table where silent cells have the parent's values, or its parent's, and so on."""
        levels, doubt = self.levels.copy(), self.doubt.copy()
        for r in range(len(self.types)):
            above = self.parents[r]
            while above:
                p = self.types.index(above)
                takes = levels[r].all(axis=1)
                levels[r, takes], doubt[r, takes] = self.levels[p, takes], self.doubt[p, takes]
                above = self.parents[p]
        return replace(self, levels=levels, doubt=doubt)


def read_types(path: str | Path, zero: str = "") -> TypeTable:
    """Read a table of cell types.

    Parameters
    ----------
    path : str or Path
        CSV file with commas, semicolons or tabs, or the name of a built-in table such as pbmc-t. Lines that
        start with # are remarks.
    zero : "lo", "blank" or ""
        What the number 0 means; "": it is an error, because tables differ.

    Raises
    ------
    ConfigError
        The file cannot be read, or cells are wrong; one line for each problem.
    """
    file = built_in(str(path)) or from_home(str(path))
    try:
        lines = [[printable(cell) for cell in line] for line in read_cells(file, numbers=True)]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise ConfigError([f"{file}: cannot be read ({reason}), {NEED}{_known(str(path))}"]) from None
    return parse_types(str(path), lines, zero)


def parse_types(source: str, lines: Sequence[Sequence[str]], zero: str = "") -> TypeTable:
    """Return the table in rows of cells, the first with the names of columns; see `read_types`.

    Parameters
    ----------
    source : str
        Where the rows come from, for errors.
    lines : sequence of sequence of str
    zero : "lo", "blank" or ""

    Raises
    ------
    ConfigError
        As in `read_types`.
    """
    spoken = [[*line] for line in lines if any(line) and not line[0].startswith("#")]
    return _Reader(source, spoken, zero).table()


def _known(name: str) -> str:
    """Return the end of an error: the built-in tables, for a text that may be the name of one."""
    listed = f", or the name of a built-in table: {', '.join(built_in_names())}"
    return "" if Path(name).suffix or Path(name).name != name else listed


def built_in(name: str) -> Path | None:
    """Return the file of a built-in table; None for another name."""
    return BUILT_IN / f"{name}.csv" if name in built_in_names() else None


def built_in_names() -> list[str]:
    """Return the names of the built-in tables."""
    return sorted(file.stem for file in BUILT_IN.glob("*.csv"))


def remarks(name: str) -> list[str]:
    """Return the remarks in a built-in table: what it is, and its source."""
    lines = (BUILT_IN / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("#")]


class _Reader:
    """Turns the lines of a file into a table, and collects its problems."""

    def __init__(self, source: str, lines: list[list[str]], zero: str) -> None:
        self._source, self._zero = source, zero
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._head, *rows = lines or [[]]
        while (
            self._head
            and not self._head[-1]
            and all(len(row) < len(self._head) or not row[-1] for row in rows)
        ):
            self._head.pop()  # empty columns at the right, as spreadsheets write them
            rows = [row[: len(self._head)] for row in rows]
        self._rows = rows

    def table(self) -> TypeTable:
        """Return the table, or raise `ConfigError` with all problems."""
        self._check_shape()
        self._stop()
        types = [row[0] for row in self._rows]
        self._check_names(types)
        places = {plain: k for k, name in enumerate(self._head) if (plain := _plain(name)) and k}
        special = {name: places.get(name, -1) for name in (PARENT, LEVEL, KIND, ONTOLOGY)}
        narrow = next(
            (places[name] for name in NARROW if name in places), 0 if _plain(self._head[0]) in NARROW else -1
        )
        markers, columns = self._narrow(narrow) if narrow >= 0 else self._wide(special)
        parents = self._column(special[PARENT])
        kinds = [
            self._kind(r, cell) or kind_of(types[r]) for r, cell in enumerate(self._column(special[KIND]))
        ]
        ontology = [self._ontology(r, cell) for r, cell in enumerate(self._column(special[ONTOLOGY]))]
        groups = self._column(special[LEVEL])
        if special[PARENT] >= 0 and special[LEVEL] >= 0:
            self._problems.append(f"{self._source}: has the columns parent and level, need one of them")
        self._check_parents(types, parents)
        self._stop()
        self._check_circles(dict(zip(types, groups if any(groups) else parents, strict=True)))
        self._stop()
        shape = (len(types), len(markers))
        levels = np.ones((*shape, len(LEVELS)), np.bool_)
        doubt = np.full(shape, np.nan)
        for m, cells in enumerate(columns):
            levels[:, m] = levels_of_column(cells)
            doubt[:, m] = [cell.doubt for cell in cells]
            _widen_parents(levels[:, m], cells, types, parents)
        made = TypeTable(
            self._source,
            tuple(types),
            tuple(markers),
            levels,
            doubt,
            tuple(parents),
            tuple(kinds),
            tuple(ontology),
        )
        made = _with_groups(made, groups)
        self._check_cells(made)
        self._stop()
        return replace(made, notes=(*self._notes, *made.notes))

    def _stop(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)

    def _at(self, r: int, name: str = "") -> str:
        """Return where a problem is."""
        row = f"{self._source}: row {r + 1} ({self._rows[r][0] or 'without a name'})"
        return f"{row}, column {name}" if name else row

    def _column(self, k: int) -> list[str]:
        return [row[k] if k >= 0 else "" for row in self._rows]

    def _check_shape(self) -> None:
        head = self._head
        if not head:
            self._problems.append(f"{self._source}: is empty, {NEED}")
            return
        if head[0] and _plain(head[0]) not in (*map(_plain, NAMES), *NARROW):
            self._problems.append(
                f"{self._source}: the first column is {head[0]}, need the names of the types in the first "
                "column, named population, cell, cell type, type or name"
            )
        seen: set[str] = set()
        for k, name in enumerate(head[1:], start=2):
            if not name:
                self._problems.append(
                    f"{self._source}: column {k} has no name in the first line; name it, or remove it"
                )
            elif name.casefold() in seen:
                self._problems.append(f"{self._source}: two columns are named {name}; remove or rename one")
            seen.add(name.casefold())
        if not self._rows:
            self._problems.append(
                f"{self._source}: found no row after its first line, need one per cell type"
            )
        self._problems += [
            f"{self._at(r)} has {len(row)} cells, need {len(head)} as in the first line"
            for r, row in enumerate(self._rows)
            if len(row) != len(head)
        ]

    def _check_names(self, types: Sequence[str]) -> None:
        first: dict[str, int] = {}
        for r, name in enumerate(types):
            if not name:
                self._problems.append(f"{self._at(r)}: need a name in the first column")
            elif name in first:
                self._problems.append(
                    f"{self._at(r)}: row {first[name] + 1} has this name, too; rename one, or write one row "
                    "with | for either"
                )
            first.setdefault(name, r)

    def _wide(self, special: dict[str, int]) -> tuple[list[str], list[list[Cell]]]:
        """Return the markers of a wide table, and the cells of each."""
        numbers = [k for k in range(1, len(self._head)) if k not in special.values()]
        if not numbers:
            self._problems.append(f"{self._source}: has no column of a marker, {NEED}")
        columns = []
        for k in numbers:
            cells = []
            for r, text in enumerate(self._column(k)):
                try:
                    cells.append(parse_cell(text, self._zero))
                except ValueError as error:
                    self._problems.append(f"{self._at(r, self._head[k])}: got {text}; {error}")
                    cells.append(SILENT)
            columns.append(cells)
        return [self._head[k] for k in numbers], columns

    def _narrow(self, k: int) -> tuple[list[str], list[list[Cell]]]:
        """Return the markers in a column of phenotypes, and the cells of each."""
        found: list[dict[str, Cell]] = []
        for r, text in enumerate(self._column(k)):
            try:
                found.append(parse_phenotype(text))
            except ValueError as error:
                self._problems.append(f"{self._at(r, self._head[k])}: got {text}; {error}")
                found.append({})
        markers = list(dict.fromkeys(marker for row in found for marker in row))
        used = {
            0,
            k,
            *(n for n, name in enumerate(self._head) if _plain(name) in (PARENT, LEVEL, KIND, ONTOLOGY)),
        }
        if others := [name for n, name in enumerate(self._head) if n not in used]:
            self._notes.append(
                f"{self._source}: markers are read from the column {self._head[k]}; "
                f"not used: {', '.join(others)}"
            )
        return markers, [[row.get(marker, SILENT) for row in found] for marker in markers]

    def _kind(self, r: int, cell: str) -> str:
        plain = _plain(cell).removesuffix("s")
        plain = "debris" if plain == "debri" else plain
        if plain and plain not in KINDS:
            self._problems.append(f"{self._at(r, KIND)}: got {cell}; need {', '.join(KINDS)}, or nothing")
        return plain

    def _ontology(self, r: int, cell: str) -> str:
        found = CELL_ONTOLOGY.fullmatch(cell)
        if cell and found is None:
            self._problems.append(
                f"{self._at(r, ONTOLOGY)}: got {cell}; need an id such as CL:0000624, or nothing"
            )
        return f"CL:{found[1]}" if found else ""

    def _check_parents(self, types: Sequence[str], parents: Sequence[str]) -> None:
        """Refuse parents that are not rows."""
        for r, parent in enumerate(parents):
            if parent and parent not in types:
                near = difflib.get_close_matches(parent, types, n=1)
                hint = f", nearest: {near[0]}" if near else ""
                self._problems.append(
                    f"{self._at(r, PARENT)}: no row is named {parent}{hint}; add this row, or correct it"
                )

    def _check_circles(self, parents: dict[str, str]) -> None:
        """Refuse types that are their own parents."""
        found: set[str] = set()
        for name in parents:
            path = [name]
            while (above := parents.get(path[-1], "")) and above not in path:
                path.append(above)
            if above == name and name not in found:
                found.update(path)
                circle = " in ".join([*path, name])
                self._problems.append(
                    f"{self._source}: the parents go in a circle: {circle}; correct one of them"
                )

    def _check_cells(self, table: TypeTable) -> None:
        """Refuse rows that say nothing, and note rows that say the same."""
        own = table.with_inherited()
        seen: dict[bytes, str] = {}
        for r, name in enumerate(table.types):
            if table.is_silent[r].all() and name not in table.parents:
                self._problems.append(f"{self._at(r)}: has no cell; write at least one, or remove the row")
                continue
            other = seen.setdefault(own.levels[r].tobytes(), name)
            if other != name:
                self._notes.append(
                    f"{self._source}: {other} and {name} have the same cells; no event can tell them apart"
                )


def _widen_parents(
    levels: npt.NDArray[np.bool_], cells: Sequence[Cell], types: Sequence[str], parents: Sequence[str]
) -> None:
    """Add, in place, the levels of children to a + of their parents: bool [R, 4] of one marker."""
    for r, parent in enumerate(parents):
        while parent and not levels[r].all():
            p = types.index(parent)
            if PLUS in cells[p].atoms:
                levels[p, OFF + 1 :] |= levels[r, OFF + 1 :]
            parent = parents[p]


def _with_groups(table: TypeTable, groups: Sequence[str]) -> TypeTable:
    """Return the table with a parent for each name in a column `level`.

    A parent that is not a row becomes one; it allows what any of its children allows.
    """
    if not any(groups):
        return table
    new = [name for name in dict.fromkeys(groups) if name and name not in table.types]
    parents = tuple(group if group != name else "" for group, name in zip(groups, table.types, strict=True))
    rows = [table.levels[np.array(groups) == name].any(axis=0) for name in new]
    n, shape = len(new), (len(new), len(table.markers))
    return replace(
        table,
        types=(*table.types, *new),
        levels=np.concatenate([table.levels, np.reshape(rows, (*shape, len(LEVELS))).astype(np.bool_)]),
        doubt=np.concatenate([table.doubt, np.full(shape, np.nan)]),
        parents=(*parents, *[""] * n),
        kinds=(*table.kinds, *[KINDS[0]] * n),
        ontology=(*table.ontology, *[""] * n),
        notes=(*table.notes, f"{table.source}: rows made of the column level: {', '.join(new)}")
        if new
        else table.notes,
    )


def match_markers(table: TypeTable, names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Find the channel of each marker of a table.

    Names are compared as written, then as `dpmix init` compares names of markers: without case, hyphens, dye
    and isotope, and by synonyms such as CD8 and CD8a (`dpmix.inputs.marker_names.marker_keys`).

    Parameters
    ----------
    table : TypeTable
    names : sequence of str
        D names of channels.

    Returns
    -------
    numbers : int64 [M]
        Channel of each marker, -1 where the panel lacks it.
    notes : tuple of str

    Raises
    ------
    ConfigError
        No marker is in the panel, a marker matches several channels, or two markers match one channel.
    """
    keys = [marker_keys(name) for name in names]
    numbers = np.full(len(table.markers), -1, np.int64)
    problems = []
    for m, marker in enumerate(table.markers):
        found = [d for d, name in enumerate(names) if name == marker]
        wanted = marker_keys(marker)[0]
        for depth in range(max(map(len, keys), default=0)):
            found = found or [d for d, key in enumerate(keys) if wanted in key[depth : depth + 1]]
        if len(found) > 1:
            both = ", ".join(names[d] for d in found)
            problems.append(
                f"{table.source}: marker {marker} matches {both}; name the channel as the panel does"
            )
        elif found:
            numbers[m] = found[0]
    for d in np.unique(numbers[numbers >= 0]):
        if len(twice := np.flatnonzero(numbers == d)) > 1:
            both = " and ".join(table.markers[m] for m in twice)
            problems.append(
                f"{table.source}: markers {both} match one channel, {names[d]}; remove one column"
            )
    missing = [table.markers[m] for m in np.flatnonzero(numbers < 0)]
    if len(missing) == len(table.markers):
        problems.append(
            f"{table.source}: none of its markers is in the panel: {', '.join(missing)}; "
            f"the panel has {', '.join(names)}"
        )
    if problems:
        raise ConfigError(problems)
    return numbers, (f"{table.source}: ignored, not in the panel: {', '.join(missing)}",) if missing else ()


def kind_of(name: str) -> str:
    """Return the kind that the name of a type says: Debris RBC, doublets of T cells, dead cells."""
    words = re.findall("[a-z]+", name.casefold())
    return next((kind for kind in KINDS[1:] if {kind, f"{kind}s"} & {*words}), KINDS[0])


def type_lines(table: TypeTable) -> list[list[str]]:
    """Return a table as rows of cells that `read_types` reads, the first with the names of columns."""
    columns = [cells_of_column(table.levels[:, m], table.doubt[:, m]) for m in range(len(table.markers))]
    extra = {
        PARENT: table.parents,
        KIND: ["" if k == kind_of(name) else k for name, k in zip(table.types, table.kinds, strict=True)],
        ONTOLOGY: table.ontology,
    }
    used = {name: cells for name, cells in extra.items() if any(cells)}
    head = [NAMES[0], *used, *table.markers]
    return [head, *map(list, zip(table.types, *used.values(), *columns, strict=True))]


def _plain(name: str) -> str:
    """Return the name of a column without case, blanks and plural: Cell type, celltype, Populations."""
    plain = re.sub(r"[\s_-]+", "", name.casefold())
    return plain.removesuffix("s") if plain not in NARROW else plain
