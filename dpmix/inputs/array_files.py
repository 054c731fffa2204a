"""Open NPY, NPZ, HDF5 and AnnData files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.sources import (
    Source,
    named_channels,
    refuse_part,
    require_columns,
    require_memory,
    source_of_array,
)
from dpmix.system.extras import require_extra
from dpmix.system.hdf5_links import lies_elsewhere
from dpmix.system.run_marker import is_run_file

DETECTORS = ("channel", "channelname", "detector", "pnn", "name")
"""Columns of AnnData's `var` with the detectors where the index repeats a name; letters, in lower case."""


def open_npy(path: Path, part: str) -> Source:
    """Open an NPY file."""
    refuse_part(path, part)
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    source = source_of_array(path, mapped)
    offset, dtype, (n_events, dim) = mapped.offset, mapped.dtype, mapped.shape
    by_column = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def values(first: int, count: int) -> npt.NDArray[Any]:
        """Read numbers. A mapped file that is truncated meanwhile would kill the process."""
        found = np.fromfile(path, dtype, count, offset=offset + first * dtype.itemsize)
        if len(found) < count:
            raise ValueError(f"{count - len(found)} numbers are missing")
        return found

    def fetch(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
        if not by_column:
            return values(start * dim, (stop - start) * dim).reshape(-1, dim)[:, list(columns)]
        return np.column_stack([values(column * n_events + start, stop - start) for column in columns])

    return replace(source, fetch=fetch)


def open_npz(path: Path, part: str) -> Source:
    """Open an NPZ file: the array that `part` names, else `events`, else its only 2-D array of numbers."""
    with np.load(path, allow_pickle=False) as arrays:
        shapes = {n: _npz_shape(arrays, n) for n in arrays.files}
        tables = [n for n, (shape, dtype) in shapes.items() if len(shape) == 2 and dtype.kind in "fiu"]
        name = part or ("events" if "events" in arrays.files else _only_table(path, "arrays", tables))
        if name not in arrays.files:
            raise ConfigError([f"data.files: {path} has no array {name}, it has {', '.join(arrays.files)}"])
        for needed in {name, "channels"} & {*arrays.files}:
            require_memory(path, *shapes[needed])
        names = [str(n) for n in arrays["channels"]] if "channels" in arrays.files else None
        return source_of_array(path, arrays[name], names)


def _only_table(path: Path, kind: str, tables: Sequence[str]) -> str:
    """Return the table of a file that is named `events`, in whatever group, else its only one."""
    for chosen in ([name for name in tables if name.rpartition("/")[2] == "events"], tables):
        if len(chosen) == 1:
            return chosen[0]
    if not tables:
        raise DataError(f"{path}: none of its {kind} has two dimensions of numbers; need one with the events")
    raise DataError(
        f"{path}: the {kind} {', '.join(tables)} may be the events; name one, as in {path.name}::{tables[0]}"
    )


def _npz_shape(arrays: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type of an array; only its header is unpacked."""
    with arrays.zip.open(name if name in arrays.zip.namelist() else f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    return shape, dtype


def open_hdf5(path: Path, part: str) -> Source:
    """Open an HDF5 file: the data set that `part` names, else `events`, else its only 2-D one of numbers."""
    if is_run_file(path):
        raise DataError(f"{path}: is a run file of dpmix; give a data file, or read it with dpmix info")
    with h5py.File(path, "r") as file:
        if file.attrs.get("encoding-type") == "anndata":
            return _anndata(path, part)
        tables: list[str] = []
        file.visititems(lambda name, item: tables.append(name) if _is_table(item) else None)
        name = part.strip("/") or _only_table(path, "data sets", tables)
        if name not in tables:
            found = f"its 2-D data sets of numbers are {', '.join(tables)}" if tables else "it has none"
            raise ConfigError([f"data.files: {path}: no data set {part} of events: {found}"])
        _require_own(path, file, name)
        data = file[name]
        require_columns(path, data.shape[1])
        require_memory(path, data.chunks or (1,), data.dtype)
        names = data.attrs.get("channels")
        _require_own(path, data.parent, "channels")
        in_group = data.parent.get("channels")
        if names is None and isinstance(in_group, h5py.Dataset):
            require_columns(path, in_group.size)
            names = in_group.asstr()[:]
        details = named_channels(path, None if names is None else [_word(n) for n in names], data.shape[1])

        def fetch(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
            with h5py.File(path, "r") as file:
                return np.asarray(file[name][start:stop])[:, list(columns)]

        return Source(path.name, details, data.shape[0], fetch)


def _anndata(path: Path, part: str) -> Source:
    """Open an AnnData file: the events in X, markers from the column `marker` of var."""
    require_extra("anndata", "anndata", f"{path}: a file of AnnData")
    from anndata.io import read_elem  # imported here because it takes a second

    refuse_part(path, part)
    with h5py.File(path, "r") as file:
        if "X" not in file:
            raise DataError(f"{path}: found no X, need the events in X")
        for name in ("X", "var"):
            _require_own(path, file, name)
            group = file.get(name)
            for inside in group if isinstance(group, h5py.Group) else ():
                _require_own(path, group, inside)
        stored = file["X"]
        shape = stored.shape if isinstance(stored, h5py.Dataset) else stored.attrs["shape"]
        require_columns(path, int(shape[1]))
        require_memory(path, [int(size) for size in shape], np.dtype(np.float64))
        for group in (stored, file["var"]):
            _require_memory_of_parts(path, group)
        values, var = read_elem(stored), read_elem(file["var"])
    values = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    detectors, markers = variable_names(var)
    source = source_of_array(path, values, detectors)
    details = [replace(d, marker=m) for d, m in zip(source.details, markers, strict=True)]
    return replace(source, details=tuple(details))


def variable_names(var: Any) -> tuple[list[str], list[str]]:
    """Return the detectors and markers of the variables of an AnnData object, "" for no marker.

    The index has the detectors, unless it repeats a name: readfcs and pytometry put markers there, and the
    detectors in a column `channel`.

    Parameters
    ----------
    var : pandas.DataFrame
        With a row per variable.
    """
    index = [str(name) for name in var.index]
    detectors = index
    if len({*index}) < len(index):
        plain = {re.sub(r"[^a-z]", "", str(column).casefold()): column for column in var}
        columns = [[str(name) for name in var[plain[key]]] for key in DETECTORS if key in plain]
        detectors = next((names for names in columns if len({*names}) == len(names)), index)
    if "marker" in var:
        return detectors, ["" if name is None or name != name else str(name) for name in var["marker"]]
    shown = zip(index, detectors, strict=True)
    return detectors, ["" if name == detector else name for name, detector in shown]


def _require_own(path: Path, group: Any, name: str) -> None:
    """Raise `DataError` for a name in an HDF5 group that leads into another file."""
    if lies_elsewhere(group, name):
        raise DataError(f"{path}: {name} lies in another file, which is not opened; give one complete file")


def _require_memory_of_parts(path: Path, item: Any) -> None:
    """Raise `DataError` if a data set of an HDF5 group does not fit in the available memory."""
    parts = [item]
    if isinstance(item, h5py.Group):
        item.visititems(lambda name, part: parts.append(part))
    for part in parts:
        if isinstance(part, h5py.Dataset):
            require_memory(path, part.shape, part.dtype)


def _is_table(item: Any) -> bool:
    """Return True for a 2-D HDF5 data set of numbers."""
    return isinstance(item, h5py.Dataset) and item.ndim == 2 and item.dtype.kind in "fiu"


def _word(name: str | bytes) -> str:
    """Return a channel name of an attribute as text."""
    return name.decode() if isinstance(name, bytes) else str(name)
