"""Open CSV, TSV and Parquet files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs import Channel
from dpmix.inputs.sources import Source, named_channels, refuse_part, require_columns, require_memory
from dpmix.inputs.storage import Storage
from dpmix.system.progress import ProgressLog

LONGEST_LINE = 2**20  # characters of the first line of a text file
TEXT_BLOCK = 2**20  # bytes of a text file that are a batch of rows


def open_text(path: Path, part: str, storage: Storage) -> Source:
    """CSV or TSV: the delimiter and whether there is a header are told by the first line."""
    import pyarrow
    import pyarrow.csv

    refuse_part(path, part)
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE:
            raise DataError(
                f"{path}: its first line has {LONGEST_LINE} characters and more, need a row per event"
            )
        if not line.strip():
            raise DataError(f"{path}: found an empty first line, need a header or numbers")
        delimiter = max(",\t;", key=line.count)
        file.seek(0)
        cells = [cell.strip() for cell in next(csv.reader(file, delimiter=delimiter))]
    header = not all(_is_float(cell) for cell in cells)
    names = [cell or f"column {k + 1}" for k, cell in enumerate(cells)] if header else None
    keys = [str(k) for k in range(len(cells))]
    reading = pyarrow.csv.ReadOptions(block_size=TEXT_BLOCK, column_names=keys, skip_rows=int(header))
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter)

    with pyarrow.csv.open_csv(path, reading, parsing) as first:
        types = {key: first.schema.field(key).type for key in keys}
    numeric = [key for key, type_ in types.items() if _is_number(type_) or pyarrow.types.is_null(type_)]
    if not numeric:
        raise DataError(f"{path}: found no column of numbers (with decimal points), need a row per event")
    details = tuple(
        replace(d, numeric=key in numeric)
        for d, key in zip(named_channels(path, names, len(keys)), keys, strict=True)
    )
    table = storage.table(len(numeric))
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(numeric, pyarrow.float32()), include_columns=numeric
    )
    progress = ProgressLog(f"reading {path.name}", path.stat().st_size)
    with pyarrow.csv.open_csv(path, reading, parsing, convert) as batches:
        for batch in batches:
            table.append(np.column_stack([c.to_numpy(zero_copy_only=False) for c in batch.columns]))
            progress.add(TEXT_BLOCK)
    place = {int(key): k for k, key in enumerate(numeric)}
    return Source(
        path.name,
        details,
        len(table),
        lambda start, stop, columns: table.read(start, stop)[:, [place[c] for c in columns]],
    )


def open_parquet(path: Path, part: str) -> Source:
    import pyarrow.parquet

    refuse_part(path, part)
    with pyarrow.parquet.ParquetFile(path) as file:  # not left open: there may be thousands
        metadata, fields = file.metadata, list(file.schema_arrow)
    require_columns(path, len(fields))
    details = tuple(Channel(field.name, numeric=_is_number(field.type)) for field in fields)
    sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    latest: dict[tuple[int, tuple[int, ...]], npt.NDArray[np.float32]] = {}

    def group(g: int, columns: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Row group g; the latest one is kept, because a chunk is smaller than a row group."""
        if (g, columns) not in latest:
            latest.clear()
            require_memory(path, (sizes[g], len(columns)), np.dtype(np.float64))
            with pyarrow.parquet.ParquetFile(path, metadata=metadata) as file:
                table = file.read_row_group(g, columns=[details[c].detector for c in columns])
            latest[g, columns] = np.column_stack(
                [table.column(details[c].detector).to_numpy().astype(np.float32) for c in columns]
            )
        return latest[g, columns]

    def fetch(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
        first, last = np.searchsorted(edges, (start, stop - 1), side="right") - 1
        parts = [
            group(g, tuple(columns))[max(start - edges[g], 0) : stop - edges[g]]
            for g in range(first, last + 1)
        ]
        return np.concatenate(parts) if stop > start else np.empty((0, len(columns)), np.float32)

    return Source(path.name, details, int(edges[-1]), fetch)


def _is_number(arrow_type: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_integer(arrow_type) or pyarrow.types.is_floating(arrow_type))


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
