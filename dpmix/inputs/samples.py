"""Open the samples of a run, from a list of files or from a table with a row per sample."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError, DataError, printable
from dpmix.inputs.opening import SAMPLE_FILE, Place, file_column, find_places, named_twice, open_places
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage
from dpmix.inputs.text_format import read_cells
from dpmix.system.paths import from_home, with_slashes

FILE, NAME = SAMPLE_FILE, "sample"
# Columns that the tables of a gating add to the columns of the samples.
RESERVED = ("population", "phenotype", "events", "proportion", "low", "high")
NEED = f"need a CSV file with a row per sample and a column {FILE}"

Columns = Mapping[str, Sequence[str]]


def open_samples(
    files: Sequence[str | Path],
    table: str | None,
    base: Path,
    storage: Storage | None = None,
    leave_out: Sequence[str] = (),
) -> tuple[list[Source], Columns]:
    """Open the samples of a run.

    Parameters
    ----------
    files : sequence of str or Path
        Names, globs or folders, see `dpmix.inputs.opening.find_places`.
    table : str or None
        A CSV file, used instead of `files`. Its column `file` (or file_name, see
        `dpmix.inputs.opening.file_column`) has the file of each sample, relative to the folder of the table
        (a part of the file follows `::`). A column `sample` has the names to show. All
        other columns are kept.
    base : Path
        Folder that names are relative to.
    storage : Storage, optional
        Holds the numbers of text files; default: memory.
    leave_out : sequence of str, optional
        Names or globs of files, or names of samples in the table, which are not opened (data.leave_out).

    Returns
    -------
    sources : list of Source
        S samples with the names to show.
    columns : mapping of str to S str
        The other columns of the table; empty without a table.

    Raises
    ------
    ConfigError
        The table cannot be read, a column or name in it is wrong, a file is missing, or `leave_out` matches
        no file or all.
    DataError
        A file is of an unknown kind, or cannot be read.
    """
    if table is None:
        places = find_places(files, base)
        return _open([places[k] for k in _kept(places, [], leave_out)], storage), {}
    path = base / from_home(table)
    head, rows = read_table("data.samples", path, FILE, NEED)
    places = [_place(path.parent, row[head.index(FILE)]) for row in rows]
    columns = {
        printable(name): [printable(row[k]) for row in rows] for k, name in enumerate(head) if name != FILE
    }
    names = columns.pop(NAME, None)
    problems = [*_head_problems(head), *_file_problems(places)]
    problems += _name_problems(names) if names is not None else []
    if problems:
        raise ConfigError([f"data.samples: {path}: {problem}" for problem in problems])
    kept = _kept(places, names or [], leave_out)
    sources = _open([places[k] for k in kept], storage)
    if names is not None:
        sources = [replace(source, name=names[k]) for source, k in zip(sources, kept, strict=True)]
    return sources, {name: [cells[k] for k in kept] for name, cells in columns.items()}


@contextmanager
def advise_leaving_out(owners: Mapping[str, str]) -> Iterator[None]:
    """Add to an error about one of several files how to leave the file out.

    Parameters
    ----------
    owners : mapping of str to str
        Names to give to data.leave_out, by what a message about the file starts with.
    """
    try:
        yield
    except DataError as error:
        name = next((name for start, name in owners.items() if str(error).startswith(f"{start}: ")), None)
        if name is None or len({*owners.values()}) < 2:
            raise
        raise DataError(f"{error}; or leave the file out by data.leave_out: [{flow(name)}]") from error


def _open(places: Sequence[Place], storage: Storage | None) -> list[Source]:
    """Open files; an error says how to leave the file out."""
    with advise_leaving_out({str(path): path.name for path, _ in places}):
        return open_places(places, storage)


def _kept(places: Sequence[Place], names: Sequence[str], leave_out: Sequence[str]) -> list[int]:
    """Return the numbers of the files that data.leave_out does not name."""
    out: set[int] = set()
    problems = []
    for pattern in leave_out:
        found = {
            k
            for k, (path, part) in enumerate(places)
            if pattern in (path.name, f"{path.name}::{part}", *names[k : k + 1])
            or fnmatchcase(path.name, pattern)
            or fnmatchcase(with_slashes(path), f"*/{with_slashes(pattern)}")
        }
        out |= found
        if not found:
            problems.append(f"data.leave_out: {pattern} matches no file; correct the name, or remove it")
    if not problems and len(out) == len(places):
        problems.append("data.leave_out: all files are left out; need at least one file")
    if problems:
        raise ConfigError(problems)
    return [k for k in range(len(places)) if k not in out]


def read_table(
    key: str, path: Path, column: str | tuple[str, ...], need: str
) -> tuple[list[str], list[list[str]]]:
    """Read a table with names of columns in its first line.

    Parameters
    ----------
    key, need : str
        For messages: the key of the config that names the table, and what the table must be.
    path : Path
        A CSV file, with commas, semicolons or tabs.
    column : str or tuple of str
        A column that it must have, or several names: it must have one of them. `file` may have another name
        (`dpmix.inputs.opening.file_column`).

    Returns
    -------
    head : list of str
        Different names of columns, with `file` for the column of data files.
    rows : list of list of str
        At least one, each with as many cells.

    Raises
    ------
    ConfigError
        The table cannot be read, or is not as described here.
    """
    try:
        lines = [[printable(cell) for cell in line] for line in read_cells(path)]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise ConfigError([f"{key}: {path}: cannot be read ({reason}), {need}"]) from None
    head, *rows = [line for line in lines if any(line)] or [[]]
    if rows and all(len(row) == len(head) + 1 for row in rows):  # row names of R's write.table
        head = ["", *head]
    if head[:1] == [""]:  # row names of R's write.csv
        head, rows = head[1:], [row[1:] for row in rows]
    if column == FILE and (named := file_column(head)):
        head = [FILE if name == named else name for name in head]
    problem = ""
    if not {*head}.intersection((column,) if isinstance(column, str) else column):
        problem = f"found the columns {', '.join(head)}, {need}" if head else f"is empty, {need}"
    elif len({*head}) < len(head) or "" in head:
        problem = "found a column without a name, or two columns with one name, need different names"
    elif not rows:
        problem = "found no row after its first line, need at least one"
    elif odd := [row for row in rows if len(row) != len(head)]:
        problem = (
            f"row {rows.index(odd[0]) + 1} has {len(odd[0])} cells, need {len(head)} as in the first line"
        )
    if problem:
        raise ConfigError([f"{key}: {path}: {problem}"])
    return head, rows


def _place(folder: Path, cell: str) -> Place:
    """Return the path and the part that a cell of the column `file` names."""
    name, _, part = cell.partition("::")
    return folder / from_home(name), part


def _head_problems(head: Sequence[str]) -> list[str]:
    """Return what is wrong with the names of the columns of a table of samples."""
    reserved = sorted({*head} & {*RESERVED})
    return [f"{', '.join(reserved)} is a column of the result tables, need another name"] if reserved else []


def _file_problems(places: Sequence[Place]) -> list[str]:
    """Return what is wrong with the files of a table."""
    missing = [
        f"row {k}: no such file: {file}" for k, (file, _) in enumerate(places, 1) if not file.is_file()
    ]
    return missing + [f"{file} is named twice, need each file once" for file in named_twice(places)]


def _name_problems(names: Sequence[str]) -> list[str]:
    """Return what is wrong with the names of samples in a table."""
    odd = [
        f'row {k}: got the sample "{name}", need a name without /'
        for k, name in enumerate(names, 1)
        if name in ("", ".", "..") or "/" in name
    ]
    twice = [name for name, count in Counter(names).items() if count > 1 and name]
    return odd + [f"the sample {name} is named twice, need a different name for each" for name in twice]
