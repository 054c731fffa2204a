"""Read and write the events of FCS files."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flowio
import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs.header import Header
from dpmix.inputs.fcs.text import AGAIN
from dpmix.inputs.fcs.values import unpacked


def read_events(
    header: Header,
    start: int = 0,
    stop: int | None = None,
    columns: Sequence[int] | None = None,
    exact: bool = False,
) -> npt.NDArray[Any]:
    """Read a range of events as stored. Integers are masked as `Header.masks` says.

    Parameters
    ----------
    header : Header
    start, stop : int
        Rows [start, stop) of the data set; stop None for the last.
    columns : sequence of int, optional
        Numbers of the channels, from 0, in the order of the result; default: all.
    exact : bool
        Return float64 where a column has integers of more than 24 bits or float64.

    Returns
    -------
    float32 or float64 [stop - start, len(columns)]
        In float32, integers up to 2^24 are exact. Larger integers and float64 are rounded, and are infinite
        beyond its range.

    Raises
    ------
    DataError
        The file cannot be read, or is shorter than its header says.
    """
    stop = header.n_events if stop is None else min(stop, header.n_events)
    # Read, not mapped: a file that is shortened meanwhile would kill the process.
    rows = read_rows(header, start, max(start, stop)).view(header.row)[:, 0]
    wanted = range(len(header.channels)) if columns is None else columns
    wide = exact and any(_is_wide(header.row[f"c{column}"]) for column in wanted)
    events = np.empty((len(rows), len(wanted)), np.float64 if wide else np.float32)
    with np.errstate(over="ignore"):
        for k, column in enumerate(wanted):
            events[:, k] = unpacked(rows[f"c{column}"], header.byte_order, header.masks[column])
    return events


def _is_wide(kind: np.dtype[Any]) -> bool:
    """Return True for stored values that float32 does not hold."""
    return kind.itemsize > 4 or (kind.kind == "u" and kind.itemsize == 4)


def read_rows(header: Header, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """Read the bytes of a range of events, uint8 [stop - start, bytes of an event].

    Raises
    ------
    DataError
        The file cannot be read, or is shorter than its header says.
    """
    size = header.row.itemsize
    try:
        with header.path.open("rb") as file:
            file.seek(header.data_start + start * size)
            found = file.read((stop - start) * size)
    except OSError as error:
        raise DataError(f"{header.path}: the events cannot be read ({error.strerror}); {AGAIN}") from error
    if len(found) < (stop - start) * size:
        raise DataError(f"{header.path}: found {len(found) // size} of events {start} to {stop}; {AGAIN}")
    return np.frombuffer(found, np.uint8).reshape(stop - start, size)


def read_analysis(header: Header) -> bytes:
    """Read the bytes of the ANALYSIS segment, empty where the file has none."""
    first, length = header.analysis
    with header.path.open("rb") as file:
        file.seek(first)
        return file.read(length)


def write_fcs(
    path: str | Path,
    events: npt.NDArray[np.float32],
    channels: Sequence[str],
    markers: Sequence[str] | None = None,
    keywords: Mapping[str, str] | None = None,
) -> None:
    """Write events as FCS 3.1, float32.

    Parameters
    ----------
    path : str or Path
    events : float32 [N, D]
    channels : sequence of str
        Detector names ($PnN).
    markers : sequence of str, optional
        Stained markers ($PnS), "" for none.
    keywords : mapping, optional
        Further keywords, for example {"$CYT": "simulated", "$P1R": "1024"}; $PnR is 262144 by default.

    Raises
    ------
    ValueError
        The numbers of names and columns differ.
    """
    if events.ndim != 2 or events.shape[1] != len(channels):
        raise ValueError(f"events of shape {events.shape} need {len(channels)} columns, one per name")
    # flowio writes an `array` as it is; a list of Python floats would need many times the memory.
    values = array("f")
    values.frombytes(np.ascontiguousarray(events, np.float32).tobytes())
    with Path(path).open("wb") as file:
        flowio.create_fcs(file, values, list(channels), opt_channel_names=markers, metadata_dict=keywords)
