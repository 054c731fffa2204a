"""Open the samples of a run, from a list of files or from a table with a row per sample."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpmix.errors import ConfigError, printable
from dpmix.inputs.opening import Place, named_twice, open_places, open_sources
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage

FILE, NAME = "file", "sample"
# Columns that the tables of a gating add to those of the samples.
RESERVED = ("population", "phenotype", "events", "proportion", "low", "high")
NEED = f"need a CSV file with a row per sample and a column {FILE}"

Columns = Mapping[str, Sequence[str]]


def open_samples(
    files: Sequence[str | Path], table: str | None, base: Path, storage: Storage | None = None
) -> tuple[list[Source], Columns]:
    """Open the samples of a run.

    Parameters
    ----------
    files : sequence of str or Path
        Names, globs or folders, see `dpmix.inputs.opening.open_sources`.
    table : str or None
        A CSV file, used instead of `files`. Its column `file` has the file of each sample, relative to the
        folder of the table (a part of the file follows `::`). A column `sample` has the names to show. All
        other columns are kept.
    base : Path
        Folder that names are relative to.
    storage : Storage, optional
        Holds the numbers of text files; default: memory.

    Returns
    -------
    sources : list of Source
        S samples with the names to show.
    columns : mapping of str to S str
        The other columns of the table; empty without a table.

    Raises
    ------
    ConfigError
        The table cannot be read, a column or name in it is wrong, or a file is missing.
    DataError
        A file is of an unknown kind, or cannot be read.
    """
    if table is None:
        return open_sources(files, base, storage), {}
    path = base / Path(table).expanduser()
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
    sources = open_places(places, storage)
    if names is not None:
        sources = [replace(source, name=name) for source, name in zip(sources, names, strict=True)]
    return sources, columns


def read_table(key: str, path: Path, column: str, need: str) -> tuple[list[str], list[list[str]]]:
    """Read a table with a row per sample.

    Parameters
    ----------
    key, need : str
        For messages: the key of the config that names the table, and what the table must be.
    path : Path
        A CSV file, with commas, semicolons or tabs.
    column : str
        A column that it must have.

    Returns
    -------
    head : list of str
        The first line: different names of columns.
    rows : list of list of str
        At least one, each with as many cells.

    Raises
    ------
    ConfigError
        The table cannot be read, or is not as described here.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = max(",\t;", key=file.readline().count)
            file.seek(0)
            lines = [
                [printable(cell.strip()) for cell in line] for line in csv.reader(file, delimiter=delimiter)
            ]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise ConfigError([f"{key}: {path}: cannot be read ({reason}), {need}"]) from None
    head, *rows = [line for line in lines if any(line)] or [[]]
    problem = ""
    if column not in head:
        problem = f"found the columns {', '.join(head)}, {need}" if head else f"is empty, {need}"
    elif len({*head}) < len(head) or "" in head:
        problem = "found a column without a name, or two columns with one name, need different names"
    elif not rows:
        problem = "found no row after its first line, need one per sample"
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
    return folder / Path(name).expanduser(), part


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
