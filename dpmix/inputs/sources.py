"""Data files of every kind, opened as rows of events that are read a range at a time.

The kind of a file is told by its content, not by its suffix (an .lmd file is FCS); text is CSV or TSV.

| kind | channels | part, after `::` in its name |
| --- | --- | --- |
| FCS | $PnN, markers $PnS | number of the data set, from 1: `sample.lmd::2` |
| CSV, TSV | first line, unless it is all numbers: ch0, ch1, ... | |
| NPY, float or integer [N, D] | ch0, ch1, ... | |
| NPZ | array `channels`, else ch0, ch1, ... | name of the array; `events`, or the only 2-D one |
| HDF5 | attribute `channels` of the data set, else a data set `channels` beside it, else ch0, ... | path of \
the data set; the first 2-D one in the order of names |
| AnnData (h5ad) | names of the variables, markers from the column `marker` of `var` | |
| Parquet | names of the columns | |

NPZ and AnnData files are held in memory while they are read; of all others only the rows asked for are (of
Parquet, a row group). A CSV or TSV file is read once, when it is opened, into a table of float32 numbers: in
memory within a share of the run's limit, beyond it in a file
(`dpmix.inputs.storage`). What a file says of its size
is compared with the memory that there is before any of it is taken: a few bytes can say that they stand for
terabytes, truthfully or not. No file is trusted otherwise: no pickle is opened, and names are shown in one
line without a terminal's commands.
"""

from __future__ import annotations

import csv
import errno
import glob
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError, DpmixError, printable
from dpmix.inputs import fcs
from dpmix.inputs.fcs import Channel, Spillover
from dpmix.inputs.storage import Storage
from dpmix.system import memory
from dpmix.system.progress import ProgressLog
from dpmix.system.run_marker import is_run_file

Place = tuple[Path, str]
Fetch = Callable[[int, int, Sequence[int]], npt.NDArray[Any]]
TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".tab")
FOLDER_SUFFIXES = (".fcs", ".lmd", ".csv", ".tsv", ".npy", ".npz", ".h5", ".h5ad", ".hdf5", ".parquet")
KNOWN = "FCS, CSV, TSV, NPY, NPZ, HDF5, h5ad or Parquet"
MOST_COLUMNS = 65_536
LONGEST_LINE = 2**20  # characters of the first line of a text file
TEXT_BLOCK = 2**20  # bytes of a text file that are a batch of rows
FEWER = "take a part of it, as a file of its own"
HOW_TO_LEAVE_OUT = "name the channels to take in data.channels"


@dataclass(frozen=True)
class Source:
    """One data file, open.

    Attributes
    ----------
    name : str
        Shown for the sample: the name of the file.
    details : tuple of Channel
        What is known of each channel.
    n_events : int
    fetch : callable
        fetch(start, stop, columns) gives those rows and columns as numbers of any type.
    spillover : Spillover or None
    spillover_problem : str
        Why the file's own spillover cannot be read, "" where nothing is wrong.
    kind : "fluorescence", "mass" or None
        None where the file does not say.
    notes : tuple of str
        What is odd about the file.
    header : Header or None
        Of an FCS file.
    path : Path
    stamp : tuple of int
        What the file system says of the file when it was opened: whether it changes is told by that.
    """

    name: str
    details: tuple[Channel, ...]
    n_events: int
    fetch: Fetch
    spillover: Spillover | None = None
    spillover_problem: str = ""
    kind: Literal["fluorescence", "mass"] | None = None
    notes: tuple[str, ...] = ()
    header: fcs.Header | None = None
    path: Path = Path()
    stamp: tuple[int, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels in the file."""
        return tuple(channel.detector for channel in self.details)

    def read(self, start: int, stop: int, columns: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """Read events as they are stored.

        Parameters
        ----------
        start, stop : int
            The rows start, ..., stop - 1.
        columns : sequence of int, optional
            Numbers of the channels, from 0, in the order wanted; all by default.

        Returns
        -------
        float32 [stop - start, columns]

        Raises
        ------
        DataError
            The file cannot be read, or a column does not hold numbers.
        """
        wanted = range(len(self.details)) if columns is None else columns
        words = [self.details[k].detector for k in wanted if not self.details[k].numeric]
        if words:
            raise DataError(f"{self.name}: {_names(words)} not numbers; {HOW_TO_LEAVE_OUT}")
        try:
            # A float64 beyond float32 becomes infinite, and is refused as such.
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(self.fetch(start, stop, wanted), dtype=np.float32)
        except (OSError, ValueError) as error:
            # A file cut short behind its header, a broken compressed block.
            raise DataError(
                f"{self.name}: events {start} to {stop} cannot be read ({error}); {fcs.AGAIN}"
            ) from error

    def require_unchanged(self) -> None:
        """Raise `DataError` where the file is no longer as it was when it was opened."""
        try:
            now = _stamp(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: gone while it was being read ({error.strerror})") from None
        if now != self.stamp:
            raise DataError(f"{self.path}: changed while it was being read; wait until it is whole")


def open_sources(
    files: Sequence[str | Path], base: Path = Path(), storage: Storage | None = None
) -> list[Source]:
    """Open the files of a run.

    Parameters
    ----------
    files : sequence of str or Path
        Names, globs or folders, relative to `base`, in the order of the run; of a glob or a folder the files
        in sorted order, of a folder those of known suffixes. A part of a file may be named after `::`.
    base : Path
        Folder that names are relative to: that of the config.
    storage : Storage, optional
        Where the numbers of text files are kept; default: in memory.

    Returns
    -------
    list of Source
        Their names differ.

    Raises
    ------
    ConfigError
        A name matches no file, a folder has none, or a file is named twice.
    DataError
        A file is of no known kind, or cannot be read.
    """
    places: list[Place] = []
    problems = []
    for given in map(str, files):
        name, _, part = given.partition("::")
        pattern = Path(name).expanduser()
        found = [base / p for p in sorted(glob.glob(str(pattern), root_dir=base, recursive=True))]
        if (base / pattern).exists():  # a name in full, whatever brackets it has
            found = [base / pattern]
        if not found:
            problems.append(
                f"data.files: {given} matches no file in {base.resolve()}, need a file name or a glob"
            )
        if (base / pattern).is_dir():
            try:
                found = _files_of(base / pattern)
                problem = "" if found else "has no data file"
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
            if problem:
                suffixes = ", ".join(FOLDER_SUFFIXES)
                problems.append(f"data.files: {base / pattern}: {problem}, need a folder with {suffixes}")
        places += [(file, part) for file in found]
    problems += [f"data.files: {file} is named twice, need each file once" for file in named_twice(places)]
    if problems:
        raise ConfigError(problems)
    return open_places(places, storage)


def open_places(places: Sequence[Place], storage: Storage | None = None) -> list[Source]:
    """Open files by their paths and parts; their names differ, by as much of the path as that takes."""
    storage = Storage() if storage is None else storage
    sources = [open_source(path, part, storage) for path, part in places]
    if len({source.name for source in sources}) == len(sources):
        return sources
    folder = os.path.commonpath([path.resolve().parent for path, _ in places])
    names = [_joined(str(path.resolve().relative_to(folder)), part) for path, part in places]
    return [replace(source, name=name) for source, name in zip(sources, names, strict=True)]


def named_twice(places: Sequence[Place]) -> list[Path]:
    """Files that are there more than once, with the same part."""
    return [file for (file, _), count in Counter(places).items() if count > 1]


def _files_of(folder: Path) -> list[Path]:
    """The data files of a folder, by their suffixes; a run may have its run file beside them."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in FOLDER_SUFFIXES
        and not file.name.startswith(".")
        and file.is_file()
        and not is_run_file(file)
    )


def open_source(path: str | Path, part: str = "", storage: Storage | None = None) -> Source:
    """Open one data file, by its content; see the table at the top of this module.

    Raises
    ------
    ConfigError
        The file has no such part, or its kind has no parts.
    DataError
        The file is of no known kind, or cannot be read.
    """
    path = Path(path)
    try:
        stamp = _stamp(path)
        reader = _reader(path, Storage() if storage is None else storage)
        source = reader(path, part)
    except (DpmixError, MemoryError):
        raise
    except Exception as error:  # every library has its own exceptions for a corrupt file
        if getattr(error, "errno", None) == errno.ENOMEM:
            size = f"{path.stat().st_size / 1e9:.1f} GB"
            raise DataError(f"{path}: needs {size} of addresses, more than ulimit -v leaves") from error
        reason = getattr(error, "strerror", None) or _line(error)
        raise DataError(f"{path}: cannot be read ({reason}), need {KNOWN}") from error
    if not source.details:
        raise DataError(
            f"{path}: found no channels, need a table with a row per event and a column per channel"
        )
    details = tuple(
        replace(channel, detector=printable(channel.detector), marker=printable(channel.marker))
        for channel in source.details
    )
    twice = sorted(name for name, count in Counter(d.detector for d in details).items() if count > 1)
    if twice:
        raise DataError(f"{path}: {_names(twice)} the name of several channels, need different names")
    return replace(source, name=printable(_joined(path.name, part)), details=details, path=path, stamp=stamp)


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _reader(path: Path, storage: Storage) -> Callable[[Path, str], Source]:
    """What reads a file, told by its first bytes."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, need files, as {path / '*.fcs'}")
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(b"FCS"):
        return _fcs
    if start.startswith(b"\x93NUMPY"):
        return _npy
    if start.startswith(b"PK"):
        return _npz
    if start.startswith(b"\x89HDF"):
        return _hdf5
    if start.startswith(b"PAR1"):
        return _parquet
    if path.suffix.lower() in TEXT_SUFFIXES:
        return partial(_text, storage=storage)
    suffix = path.suffix.lower().lstrip(".")
    claim = suffix.upper() if suffix in ("fcs", "lmd", "npy", "npz", "h5", "h5ad", "hdf5", "parquet") else ""
    found = f"is named {claim} but does not begin as such a file does" if claim else "is of no known kind"
    raise DataError(f"{path}: {found}, need {KNOWN}; {fcs.AGAIN}")


# ----------------------------------------------------------------------------------- one per kind


def _fcs(path: Path, part: str) -> Source:
    if part and not part.isdigit():
        raise ConfigError(
            [f"data.files: {path}::{part}: need the number of a data set of an FCS file, as ::1"]
        )
    header = fcs.read_header(path, int(part or 1))
    return Source(
        name=path.name,
        details=header.channels,
        n_events=header.n_events,
        fetch=lambda start, stop, columns: fcs.read_events(header, start, stop, columns),
        spillover=header.spillover,
        spillover_problem=header.spillover_problem,
        kind=header.kind,
        notes=header.notes,
        header=header,
    )


def _npy(path: Path, part: str) -> Source:
    _no_part(path, part)

    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    source = _of_array(path, mapped)
    offset, dtype, (n_events, dim) = mapped.offset, mapped.dtype, mapped.shape
    by_column = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def values(first: int, count: int) -> npt.NDArray[Any]:
        """Read, not mapped: a file that is cut short meanwhile would end the process."""
        found = np.fromfile(path, dtype, count, offset=offset + first * dtype.itemsize)
        if len(found) < count:
            raise ValueError(f"{count - len(found)} numbers are missing")
        return found

    def fetch(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
        if not by_column:
            return values(start * dim, (stop - start) * dim).reshape(-1, dim)[:, list(columns)]
        return np.column_stack([values(column * n_events + start, stop - start) for column in columns])

    return replace(source, fetch=fetch)


def _npz(path: Path, part: str) -> Source:
    with np.load(path, allow_pickle=False) as arrays:
        name = part or ("events" if "events" in arrays.files else "")
        shapes = {n: _npz_shape(arrays, n) for n in arrays.files}
        if not name:
            tables = [n for n, (shape, dtype) in shapes.items() if len(shape) == 2 and dtype.kind in "fiu"]
            if len(tables) != 1:
                raise DataError(f"{path}: found the arrays {', '.join(arrays.files)}, need one named events")
            name = tables[0]
        if name not in arrays.files:
            raise ConfigError([f"data.files: {path} has no array {name}, it has {', '.join(arrays.files)}"])
        for needed in {name, "channels"} & {*arrays.files}:
            _require_memory(path, *shapes[needed])
        names = [str(n) for n in arrays["channels"]] if "channels" in arrays.files else None
        return _of_array(path, arrays[name], names)


def _npz_shape(arrays: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array, of which nothing else is unpacked."""
    with arrays.zip.open(name if name in arrays.zip.namelist() else f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    return shape, dtype


def _hdf5(path: Path, part: str) -> Source:
    if is_run_file(path):
        raise DataError(f"{path}: is a run file of dpmix, need a file of events")
    with h5py.File(path, "r") as file:
        if file.attrs.get("encoding-type") == "anndata":
            return _anndata(path, part)
        tables: list[str] = []
        file.visititems(lambda name, item: tables.append(name) if _is_table(item) else None)
        name = part.strip("/") or (tables[0] if tables else "")
        if name not in tables:
            found = f"its 2-D data sets of numbers are {', '.join(tables)}" if tables else "it has none"
            raise ConfigError([f"data.files: {path}: no data set {part} of events: {found}"])
        data = file[name]
        _require_columns(path, data.shape[1])
        _require_memory(path, data.chunks or (1,), data.dtype)
        names = data.attrs.get("channels")
        beside = data.parent.get("channels")
        if names is None and isinstance(beside, h5py.Dataset):
            _require_columns(path, beside.size)
            names = beside.asstr()[:]
        details = _details(path, None if names is None else [_word(n) for n in names], data.shape[1])

        def fetch(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
            with h5py.File(path, "r") as file:
                return np.asarray(file[name][start:stop])[:, list(columns)]

        return Source(path.name, details, data.shape[0], fetch)


def _anndata(path: Path, part: str) -> Source:
    from anndata.io import read_elem  # takes a second to import, for one kind of file

    _no_part(path, part)
    with h5py.File(path, "r") as file:
        if "X" not in file:
            raise DataError(f"{path}: found no X, need the events in X")
        stored = file["X"]
        shape = stored.shape if isinstance(stored, h5py.Dataset) else stored.attrs["shape"]
        _require_columns(path, int(shape[1]))
        _require_memory(path, [int(size) for size in shape], np.dtype(np.float64))
        for group in (stored, file["var"]):
            _require_memory_of_parts(path, group)
        values, var = read_elem(stored), read_elem(file["var"])
    values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    source = _of_array(path, values, [str(name) for name in var.index])
    if "marker" not in var:
        return source
    markers = ["" if m is None or m != m else str(m) for m in var["marker"]]
    details = [replace(d, marker=m) for d, m in zip(source.details, markers, strict=True)]
    return replace(source, details=tuple(details))


def _require_memory_of_parts(path: Path, item: Any) -> None:
    parts = [item]
    if isinstance(item, h5py.Group):
        item.visititems(lambda name, part: parts.append(part))
    for part in parts:
        if isinstance(part, h5py.Dataset):
            _require_memory(path, part.shape, part.dtype)


def _parquet(path: Path, part: str) -> Source:
    import pyarrow.parquet

    _no_part(path, part)
    with pyarrow.parquet.ParquetFile(path) as file:  # not left open: there may be thousands
        metadata, fields = file.metadata, list(file.schema_arrow)
    _require_columns(path, len(fields))
    details = tuple(Channel(field.name, numeric=_is_number(field.type)) for field in fields)
    sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    edges = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    latest: dict[tuple[int, tuple[int, ...]], npt.NDArray[np.float32]] = {}

    def group(g: int, columns: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Row group g; the latest one is kept, because a chunk is smaller than a row group."""
        if (g, columns) not in latest:
            latest.clear()
            _require_memory(path, (sizes[g], len(columns)), np.dtype(np.float64))
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


def _text(path: Path, part: str, storage: Storage) -> Source:
    """CSV or TSV: the delimiter and whether there is a header are told by the first line."""
    import pyarrow
    import pyarrow.csv

    _no_part(path, part)
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
        for d, key in zip(_details(path, names, len(keys)), keys, strict=True)
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


# ---------------------------------------------------------------------------------------- helpers


def _of_array(path: Path, array: npt.NDArray[Any], names: Sequence[str] | None = None) -> Source:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        found = f"an array of shape {list(array.shape)} and type {array.dtype}"
        raise DataError(f"{path}: found {found}, need numbers [events, channels]")
    _require_columns(path, array.shape[1])
    details = _details(path, names, array.shape[1])
    return Source(
        path.name, details, array.shape[0], lambda start, stop, columns: array[start:stop][:, list(columns)]
    )


def _details(path: Path, names: Sequence[str] | None, n_channels: int) -> tuple[Channel, ...]:
    names = [f"ch{k}" for k in range(n_channels)] if names is None else names
    if len(names) != n_channels:
        raise DataError(f"{path}: found {len(names)} channel names and {n_channels} columns, need as many")
    return tuple(Channel(name) for name in names)


def _require_columns(path: Path, found: int) -> None:
    if found > MOST_COLUMNS:
        raise DataError(
            f"{path}: found {found} columns, need a row per event and {MOST_COLUMNS} columns at most"
        )


def _require_memory(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    memory.require(math.prod(shape) * dtype.itemsize, f"{path}: to read it", FEWER)


def _no_part(path: Path, part: str) -> None:
    if part:
        raise ConfigError([f"data.files: {path}::{part}: only FCS, NPZ and HDF5 files have parts after ::"])


def _is_table(item: Any) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim == 2 and item.dtype.kind in "fiu"


def _is_number(arrow_type: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_integer(arrow_type) or pyarrow.types.is_floating(arrow_type))


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _word(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _names(names: Sequence[str]) -> str:
    """Names in a sentence, with its verb."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _joined(name: str, part: str) -> str:
    return f"{name}::{part}" if part else name


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
