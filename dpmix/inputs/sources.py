"""One open data file: what it says of its channels, and its events by rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs import fcs
from dpmix.inputs.fcs import Channel, Spillover
from dpmix.inputs.fcs_text import AGAIN
from dpmix.system import memory

Fetch = Callable[[int, int, Sequence[int]], npt.NDArray[Any]]
MOST_COLUMNS = 65_536
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
            raise DataError(f"{self.name}: {names_with_verb(words)} not numbers; {HOW_TO_LEAVE_OUT}")
        try:
            # A float64 beyond float32 becomes infinite, and is refused as such.
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(self.fetch(start, stop, wanted), dtype=np.float32)
        except (OSError, ValueError) as error:
            # A file cut short behind its header, a broken compressed block.
            raise DataError(
                f"{self.name}: events {start} to {stop} cannot be read ({error}); {AGAIN}"
            ) from error

    def require_unchanged(self) -> None:
        """Raise `DataError` where the file is no longer as it was when it was opened."""
        try:
            now = file_stamp(self.path)
        except OSError as error:
            raise DataError(f"{self.path}: gone while it was being read ({error.strerror})") from None
        if now != self.stamp:
            raise DataError(f"{self.path}: changed while it was being read; wait until it is whole")


def file_stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def source_of_array(path: Path, array: npt.NDArray[Any], names: Sequence[str] | None = None) -> Source:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        found = f"an array of shape {list(array.shape)} and type {array.dtype}"
        raise DataError(f"{path}: found {found}, need numbers [events, channels]")
    require_columns(path, array.shape[1])
    details = named_channels(path, names, array.shape[1])
    return Source(
        path.name, details, array.shape[0], lambda start, stop, columns: array[start:stop][:, list(columns)]
    )


def named_channels(path: Path, names: Sequence[str] | None, n_channels: int) -> tuple[Channel, ...]:
    names = [f"ch{k}" for k in range(n_channels)] if names is None else names
    if len(names) != n_channels:
        raise DataError(f"{path}: found {len(names)} channel names and {n_channels} columns, need as many")
    return tuple(Channel(name) for name in names)


def require_columns(path: Path, found: int) -> None:
    if found > MOST_COLUMNS:
        raise DataError(
            f"{path}: found {found} columns, need a row per event and {MOST_COLUMNS} columns at most"
        )


def require_memory(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    memory.require(math.prod(shape) * dtype.itemsize, f"{path}: to read it", FEWER)


def refuse_part(path: Path, part: str) -> None:
    if part:
        raise ConfigError([f"data.files: {path}::{part}: only FCS, NPZ and HDF5 files have parts after ::"])


def names_with_verb(names: Sequence[str]) -> str:
    """Names in a sentence, with its verb."""
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
