"""Open CSV, TSV and Parquet files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import why_not_measured
from dpmix.inputs.fcs.text import quoted
from dpmix.inputs.sources import Source, named_channels, refuse_part, require_columns, require_memory
from dpmix.inputs.storage import Storage
from dpmix.inputs.text_format import NO_VALUES, TextFormat, is_number, text_format
from dpmix.system.paths import encoding_of
from dpmix.system.progress import ProgressLog

DATA_FILE = re.compile(r"\.(fcs|lmd|h5ad|npy|npz|parquet)(::\w*)?$", re.IGNORECASE)  # a table names samples
EXACT = 2.0**24  # up to here, float32 has all whole numbers
TEXT_BLOCK = 2**20  # bytes of a text file that are parsed together


def open_text(path: Path, part: str, storage: Storage) -> Source:
    """Open a CSV or TSV file; its first lines show its format (`dpmix.inputs.text_format`)."""
    import pyarrow

    refuse_part(path, part)
    text = text_format(path)
    try:
        return _read_text(path, text, storage)
    except pyarrow.ArrowInvalid as error:
        if problem := _uneven_row(path, text):
            raise DataError(f"{path}: {problem}") from error
        raise


def _uneven_row(path: Path, text: TextFormat) -> str:
    """Return what is wrong with the first row that has another number of cells than the first line, or ""."""
    with path.open(encoding=encoding_of(path), newline="") as file:
        rows = (row for row in csv.reader(file, delimiter=text.delimiter) if row)
        for number, row in enumerate(rows, start=1 - text.n_skipped):
            if number > 0 and len(row) != len(text.head):
                found = f"row {number}: the number of cells is {len(row)}, need {len(text.head)}"
                if len(text.head) == 1:
                    found += f" as in the first line, {quoted(text.head[0])}"
                    return f"{found}; remove the lines above the names of the columns"
                return f"{found} as in the first line; correct this row"
    return ""


def _read_text(path: Path, text: TextFormat, storage: Storage) -> Source:
    """Read the columns of numbers of a text file."""
    import pyarrow
    import pyarrow.csv

    names = [cell or f"column {k + 1}" for k, cell in enumerate(text.head)] if text.has_header else None
    # Numbers instead of names, which may be empty or occur twice.
    keys = [str(k) for k in range(len(text.head))]
    encoding = encoding_of(path).removesuffix("-sig")  # the reader of UTF-8 skips a byte order mark itself
    reading = pyarrow.csv.ReadOptions(
        block_size=TEXT_BLOCK, column_names=keys, skip_rows=text.n_skipped, encoding=encoding
    )
    parsing = pyarrow.csv.ParseOptions(delimiter=text.delimiter)
    missing = [*pyarrow.csv.ConvertOptions().null_values, *NO_VALUES]
    convert = partial(pyarrow.csv.ConvertOptions, decimal_point=text.decimal, null_values=missing)

    with pyarrow.csv.open_csv(path, reading, parsing, convert()) as first:
        types = {key: first.schema.field(key).type for key in keys}
        start = next(iter(first), None)  # None for a table without rows
    # A column that is empty in the first block may have numbers later.
    numeric = [key for key, type_ in types.items() if _is_number(type_) or pyarrow.types.is_null(type_)]
    if not numeric:
        raise _without_numbers(path, text)
    details = tuple(
        replace(channel, numeric=key in numeric)
        for channel, key in zip(named_channels(path, names, len(keys)), keys, strict=True)
    )
    table = storage.table(len(numeric))
    offsets = _clock_offsets(start, numeric, details)
    exact = {key: pyarrow.float64() for key, offset in zip(numeric, offsets, strict=True) if offset}
    types = dict.fromkeys(numeric, pyarrow.float32()) | exact
    as_numbers = convert(column_types=types, include_columns=numeric)
    progress = ProgressLog(f"reading {path.name}", path.stat().st_size)
    try:
        with pyarrow.csv.open_csv(path, reading, parsing, as_numbers) as batches:
            for batch in batches:
                values = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
                since = [(v - at).astype(np.float32) for v, at in zip(values, offsets, strict=True)]
                table.append(np.column_stack(since))
                progress.add(TEXT_BLOCK)
    except pyarrow.ArrowInvalid as error:
        as_text = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(numeric, pyarrow.string()), include_columns=numeric
        )
        with pyarrow.csv.open_csv(path, reading, parsing, as_text) as batches:
            problem = _first_text(batches, [details[int(key)].detector for key in numeric], text.decimal)
        raise DataError(f"{path}: {problem or error}; correct the file") from error
    place = {int(key): k for k, key in enumerate(numeric)}
    shown = ", ".join([channel.detector for channel in details[:3]] + ["..."] * (len(details) > 3))
    return Source(
        path.name,
        details,
        len(table),
        lambda start, stop, columns: table.read(start, stop)[:, [place[c] for c in columns]],
        notes=(
            *(["decimal commas, read as decimal points"] if text.decimal == "," else []),
            *([] if text.has_header else [f"its first line has numbers: an event, and no names ({shown})"]),
        ),
        warnings=() if start is None else _mixed_columns(start, details, text.decimal),
    )


def _without_numbers(path: Path, text: TextFormat) -> DataError:
    """Return the error for a text file without a column of numbers."""
    columns = [k for k, cell in enumerate(text.start[0] if text.start else []) if DATA_FILE.search(cell)]
    if columns and text.has_header:
        found = f"names data files in its column {text.head[columns[0]]}"
        return DataError(f"{path}: {found}, and a table of samples needs a column file; rename this column")
    need = "need a row per event; if the table has no events, give the data files instead of their folder"
    cells = _texts([row[0] for row in text.start if row], text.decimal)
    example = f" (row {cells[0][0] + 1} starts with {quoted(cells[0][1])})" if cells else ""
    return DataError(f"{path}: found no column of numbers{example}, {need}")


def _clock_offsets(start: Any, numeric: Sequence[str], details: Sequence[Channel]) -> list[float]:
    """Return what is subtracted from each column of numbers: the first time of a clock with large values.

    Values are kept as float32, which has steps of 128 at the seconds since 1970: such a clock would stand.
    """
    offsets = []
    for key in numeric:
        is_clock = start is not None and start.num_rows and why_not_measured(details[int(key)]) == "time"
        first = float(start.column(int(key))[0].as_py() or 0.0) if is_clock else 0.0
        offsets.append(first if EXACT < abs(first) < np.inf else 0.0)
    return offsets


def _mixed_columns(start: Any, details: Sequence[Channel], decimal: str) -> tuple[str, ...]:
    """Return a warning for each column of an Arrow batch, the start of a table, with texts among numbers."""
    warnings = []
    for k in [k for k, channel in enumerate(details) if not channel.numeric]:
        cells = start.column(k).cast("string").to_pylist()
        texts = _texts(cells, decimal)
        if len(cells) > 2 * len(texts):
            row, cell = texts[0]
            found = f"row {row + 1} is {quoted(cell)}, which is not a number"
            warnings.append(
                f"column {details[k].detector} is not used: {found} ({len(texts)} of {len(cells)} rows)"
            )
    return tuple(warnings)


def _first_text(batches: Iterable[Any], names: Sequence[str], decimal: str) -> str:
    """Return the first cell of Arrow batches of texts, a column for each name, that is not a number."""
    before = 0
    for batch in batches:
        found = [
            (row, name, cell)
            for name, column in zip(names, batch.columns, strict=True)
            for row, cell in _texts(column.to_pylist(), decimal)[:1]
        ]
        if found:
            row, name, cell = min(found)
            return f"row {before + row + 1} of column {name} is {quoted(cell)}, which is not a number"
        before += batch.num_rows
    return ""


def _texts(cells: Sequence[str | None], decimal: str) -> list[tuple[int, str]]:
    """Return rows and cells that are neither numbers nor missing values."""
    import pyarrow.csv

    missing = {*pyarrow.csv.ConvertOptions().null_values, *NO_VALUES}
    return [
        (row, cell)
        for row, cell in enumerate(cells)
        if cell is not None and cell not in missing and not is_number(cell, decimal)
    ]


class _ParquetRows:
    """Read rows of a Parquet file. It keeps the latest row group, which is larger than a block of events."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._path = path
        with pyarrow.parquet.ParquetFile(path) as file:  # not kept open: a run may have thousands of files
            self._metadata, fields = file.metadata, list(file.schema_arrow)
        require_columns(path, len(fields))
        self.details = tuple(Channel(field.name, numeric=_is_number(field.type)) for field in fields)
        sizes = [self._metadata.row_group(g).num_rows for g in range(self._metadata.num_row_groups)]
        self._edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self._latest: tuple[object, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return int(self._edges[-1])

    def fetch(self, start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
        """Return rows [start, stop) of some columns."""
        if stop <= start:
            return np.empty((0, len(columns)), np.float32)
        first, last = np.searchsorted(self._edges, (start, stop - 1), side="right") - 1
        parts = []
        for g in range(first, last + 1):
            edge = self._edges[g]
            parts.append(self._group(g, tuple(columns))[max(start - edge, 0) : stop - edge])
        return np.concatenate(parts)

    def _group(self, g: int, columns: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return some columns of row group g."""
        import pyarrow.parquet

        if self._latest is None or self._latest[0] != (g, columns):
            self._latest = None  # free it before the next one is read
            size = int(self._edges[g + 1] - self._edges[g])
            require_memory(self._path, (size, len(columns)), np.dtype(np.float64))
            names = [self.details[c].detector for c in columns]
            with pyarrow.parquet.ParquetFile(self._path, metadata=self._metadata) as file:
                table = file.read_row_group(g, columns=names)
            values = np.column_stack([_numbers(table.column(n)) for n in names])
            self._latest = (g, columns), values
        return self._latest[1]


def open_parquet(path: Path, part: str) -> Source:
    """Open a Parquet file."""
    refuse_part(path, part)
    rows = _ParquetRows(path)
    return Source(path.name, rows.details, len(rows), rows.fetch)


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Return an Arrow column of numbers; decimals, which NumPy does not have, as float64."""
    import pyarrow

    own = column.cast(pyarrow.float64()) if pyarrow.types.is_decimal(column.type) else column
    numbers: npt.NDArray[Any] = own.to_numpy()
    return numbers


def _is_number(arrow_type: Any) -> bool:
    """Return True for the Arrow types of integers, floating point numbers and decimals."""
    from pyarrow import types

    return bool(types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type))
