"""One open data file: its channels, and its events by rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.fcs import header as fcs
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.fcs.text import AGAIN
from dpmix.system import memory

Kind = Literal["fluorescence", "mass"] | None
Fetch = Callable[[int, int, Sequence[int]], npt.NDArray[Any]]
MOST_COLUMNS = 65_536
FEWER = "split the file, and use a part of it"


@dataclass(frozen=True)
class Source:
    """One open data file.

    Attributes
    ----------
    name : str
        Name to show for the sample: the name of the file.
    details : tuple of Channel
        Metadata of each channel.
    n_events : int
    fetch : callable
        fetch(start, stop, columns) returns those rows and columns as numbers of any type.
    spillover : Spillover or None
    spillover_problem : str
        Why the file's own spillover cannot be read, "" where there is no problem.
    spillover_from : str
        Workspace that has the matrix, "" for the file itself.
    kind : "fluorescence", "mass" or None
        Kind of the instrument, None where the file does not show it.
    transformed : str
        What shows that another program has transformed the values already, "" where nothing does. They are
        neither compensated nor transformed again.
    notes : tuple of str
        Oddities of the file, for the report.
    warnings : tuple of str
        What may make values of the file wrong. `--quiet` does not hide it, and the run file keeps it.
    header : Header or None
        Header of an FCS file.
    path : Path
    stamp : tuple of int
        Device, inode, size and modification time when the file was opened; another stamp means a changed
        file.
    """

    name: str
    details: tuple[Channel, ...]
    n_events: int
    fetch: Fetch
    spillover: Spillover | None = None
    spillover_problem: str = ""
    spillover_from: str = ""
    kind: Kind = None
    transformed: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    header: fcs.Header | None = None
    path: Path = Path()
    stamp: tuple[int, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        """Detector names of the channels in the file."""
        return tuple(channel.detector for channel in self.details)

    def read(self, start: int, stop: int, columns: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """Read events as they are stored.

        Parameters
        ----------
        start, stop : int
            Rows [start, stop).
        columns : sequence of int, optional
            Numbers of the channels, from 0, in the order of the result; default: all.

        Returns
        -------
        float32 [stop - start, columns]

        Raises
        ------
        DataError
            The file cannot be read, or a column does not hold numbers.
        """
        # A float64 beyond float32 becomes infinite; infinite values raise an error later.
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.read_exact(start, stop, columns), dtype=np.float32)

    def read_exact(self, start: int, stop: int, columns: Sequence[int] | None = None) -> npt.NDArray[Any]:
        """Read events as `read` does, [stop - start, columns] of a type that holds all digits of the file.

        A text file has float32.
        """
        wanted = range(len(self.details)) if columns is None else columns
        words = [self.details[k].detector for k in wanted if not self.details[k].numeric]
        if words:
            why = f" ({'; '.join(self.warnings)})" if self.warnings else ""
            found = f"no numbers in {', '.join(words)}{why}"
            raise DataError(f"{self.name}: {found}; list the channels to use in data.channels")
        try:
            return np.asarray(self.fetch(start, stop, wanted))
        except (OSError, ValueError) as error:
            # For example a file truncated after its header, or a broken compressed block.
            raise DataError(
                f"{self.name}: events {start} to {stop} cannot be read ({error}); {AGAIN}"
            ) from error

    def require_unchanged(self) -> None:
        """Raise `DataError` if the file has changed since it was opened."""
        try:
            now = file_stamp(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: removed while it was read ({error.strerror})") from None
        if now != self.stamp:
            raise DataError(f"{self.path}: changed while it was read; wait until it is complete")


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return device, inode, size and modification time of a file."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def source_of_array(path: Path, array: npt.NDArray[Any], names: Sequence[str] | None = None) -> Source:
    """Return the source of an array of numbers, [N, D]; `DataError` for any other array."""
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        found = f"an array of shape {list(array.shape)} and type {array.dtype}"
        raise DataError(f"{path}: found {found}, need numbers [events, channels]")
    require_columns(path, array.shape[1])
    details = named_channels(path, names, array.shape[1])
    return Source(
        path.name, details, array.shape[0], lambda start, stop, columns: array[start:stop][:, list(columns)]
    )


def named_channels(path: Path, names: Sequence[str] | None, n_channels: int) -> tuple[Channel, ...]:
    """Return channels with the names given, by default ch0, ch1, ...; `DataError` if one is missing."""
    names = [f"ch{k}" for k in range(n_channels)] if names is None else names
    if len(names) != n_channels:
        raise DataError(
            f"{path}: found {len(names)} channel names and {n_channels} columns, need a name for each column"
        )
    return tuple(Channel(name) for name in names)


def require_columns(path: Path, found: int) -> None:
    """Raise `DataError` if a table has too many columns, for example one column per event."""
    if found > MOST_COLUMNS:
        raise DataError(
            f"{path}: found {found} columns, need a row per event and {MOST_COLUMNS} columns at most"
        )


def require_memory(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise `DataError` if an array of a file does not fit in the available memory."""
    memory.require(math.prod(shape) * dtype.itemsize, f"{path}: to read it", FEWER)


def refuse_part(path: Path, part: str) -> None:
    """Raise `ConfigError` if a part is given of a file that has no parts."""
    if part:
        raise ConfigError([f"data.files: {path}::{part}: only FCS, NPZ and HDF5 files have parts after ::"])
