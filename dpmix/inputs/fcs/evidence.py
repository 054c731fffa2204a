"""Evidence for a place of the events in an FCS file whose HEADER and TEXT disagree.

Two things can confirm a place:

- a channel that counts time or events ascends there, and the bytes before and after do not continue it;
- the events fill the file between TEXT and the next segment, the next data set, or the end. There may be
  padding on one side, or a checksum behind the events. Instead of the end, HEADER and TEXT may agree on the
  last byte, where only the other first byte lies in TEXT.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs.text import AGAIN, PADDING, Text, quoted, segment_of, whole_number
from dpmix.inputs.fcs.values import Order, unpacked

CLOCK = re.compile(
    r"^time(?!r)|^HDR-T$|^(event|row)[ _.-]?(#|no|num|number|count|id|index)$", re.IGNORECASE
)  # names of channels that ascend from event to event
SAMPLED, FEW = 4096, 256  # events of a channel that are read to see whether it ascends
LEAST_STEPS = 8  # changes from one of these events to the next, below which nothing can be said
MOST_DESCENTS = 0.05  # share of the changes: a clock may be reset, and noise has a half
EDGE = 16  # events at either end that show how far a clock goes from one event to the next
NEXT_STEP = 4.0  # largest step to an event outside, in largest steps of those at the edge
TINY = 1e-3  # of that step: smaller floats other than 0 are bytes of something else
MOST_PADDING = 2**20  # bytes
BLANK = re.compile(rb"[ \t\r\n\0]*")
CHECKSUM = re.compile(rb"[ \t\r\n\0]*([0-9A-Fa-f]{8})?[ \t\r\n\0]*")


Owner = Literal["HEADER", "TEXT"]


class DataPlace(NamedTuple):
    """Place of DATA, by HEADER or by TEXT: first and last byte, counted from the start of the data set."""

    owner: Owner
    first: int
    last: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.last - self.first + 1


class Clock(NamedTuple):
    """A channel that should ascend, with what is needed to read it (`dpmix.inputs.fcs.values`)."""

    name: str
    field: str
    order: Order
    mask: int | None


@dataclass(frozen=True)
class DataSet:
    """An open data set of an FCS file.

    Attributes
    ----------
    file : BinaryIO
    path : Path
    offset : int
        Offset of the data set in the file.
    size : int
        Bytes from there to the end of the file.
    text : Text
    n_events : int or None
        $TOT; None where TEXT has none.
    """

    file: BinaryIO
    path: Path
    offset: int
    size: int
    text: Text
    n_events: int | None

    @classmethod
    def of(cls, file: BinaryIO, path: Path, offset: int, text: Text) -> DataSet:
        """Return a data set, or raise `DataError` where $TOT is not a number of events."""
        found = text.keywords.get("tot", "").strip()
        n_events = whole_number(found, -1) if found else None
        if n_events is not None and n_events < 0:
            raise DataError(f"{path}: $TOT is {quoted(found)}, need the number of events; {AGAIN}")
        return cls(file, path, offset, file.seek(0, io.SEEK_END) - offset, text, n_events)

    def count(self, place: DataPlace, row_bytes: int) -> int:
        """Return the number of events: $TOT, or where it is missing what a place has room for."""
        return place.size // row_bytes if self.n_events is None else self.n_events

    def fits(self, place: DataPlace, row_bytes: int) -> bool:
        """Return whether the length of a place fits the events; instruments make it one byte too long."""
        return place.size - self.count(place, row_bytes) * row_bytes in (0, 1)

    def bytes(self, first: int, stop: int) -> bytes:
        """Return bytes [first, stop) of the data set, as far as the file has them."""
        self.file.seek(self.offset + first)
        return self.file.read(max(stop - first, 0))


# ------------------------------------------------------------------------------ events that fill the file


def fills_file(data: DataSet, place: DataPlace, row_bytes: int, places: Sequence[DataPlace]) -> bool:
    """Return whether the events fill the file between TEXT and what follows them.

    Padding on both sides shows nothing: the events may lie anywhere in it. `places` are the places by HEADER
    and TEXT, and the length of `place` fits $TOT.
    """
    stop = place.first + data.count(place, row_bytes) * row_bytes
    ends = {data.text.end + 1, *(last + 1 for _, last in data.text.segments)}
    analysis = segment_of(data.text.keywords, "analysis")[0]
    following = whole_number(data.text.keywords.get("nextdata", ""), 0)
    # Only a segment behind the events counts: offsets that lie elsewhere are false, and would make the gap
    # negative.
    after = min([data.size, *(start for start in (analysis, following) if stop <= start < data.size)])
    if place.first in ends:
        # The other place starts within TEXT, so its first byte is wrong; that both have the same last byte
        # confirms this one.
        agreed = [one for one in places if one.last == place.last and one.first <= data.text.end]
        return bool(agreed) or _only_bytes(data, stop, after, CHECKSUM)
    before = max([end for end in ends if end <= place.first], default=0)
    # A checksum stands behind the events, never before them.
    return before > 0 and stop == after and _only_bytes(data, before, place.first, BLANK)


def _only_bytes(data: DataSet, first: int, stop: int, pattern: re.Pattern[bytes]) -> bool:
    """Return whether bytes [first, stop) are padding, or padding and a checksum."""
    return stop - first <= MOST_PADDING and pattern.fullmatch(data.bytes(first, stop)) is not None


# ----------------------------------------------------------------------------- channels that ascend


def clock_confirms(data: DataSet, place: DataPlace, row: np.dtype[np.void], clock: Clock) -> bool | None:
    """Return whether a channel shows a place to be right, None where it is constant or nearly so.

    It shows the place to be wrong where it does not ascend, up to ties and a few resets, and where an event
    outside continues it: then the place is moved by whole events.
    """
    found = ascends(data, place, row, clock, SAMPLED)
    return found and not _continues(data, place, row, clock, data.count(place, row.itemsize))


def ascends(
    data: DataSet, place: DataPlace, row: np.dtype[np.void], clock: Clock, sampled: int = FEW
) -> bool | None:
    """Return whether a channel ascends, up to ties and a few resets; None where it hardly changes."""
    n_events = data.count(place, row.itemsize)
    numbers = np.unique(np.linspace(0, n_events - 1, min(n_events, sampled)).astype(np.int64))
    return _ascending(_clock_values(data, place, row, clock, numbers.tolist()), LEAST_STEPS)


def _ascending(values: npt.NDArray[np.float64], least_changes: float) -> bool | None:
    """Return whether values ascend, up to ties and a few resets; None where they hardly change."""
    # A clock counts; NaN or infinity are bytes of something else.
    if not np.isfinite(values).all():
        return False
    steps = np.diff(values)
    changes, descents = np.count_nonzero(steps), np.count_nonzero(steps < 0)
    # Ties say nothing: slow clocks have the same value for many events.
    return None if changes < least_changes else bool(descents <= MOST_DESCENTS * changes)


def bytes_to_clock(data: DataSet, place: DataPlace, row: np.dtype[np.void], clock: Clock) -> int:
    """Return by how many bytes a place must move, less than an event, for a channel to ascend; 0 for none.

    Half of the values must change, because other columns may ascend, for example the numbers of samples.
    """
    assert row.fields is not None
    dtype, at = row.fields[clock.field][:2]
    size, n_events = row.itemsize, data.count(place, row.itemsize)
    numbers = np.unique(np.linspace(1, n_events - 2, min(max(n_events - 2, 0), FEW)).astype(np.int64))
    least = max(LEAST_STEPS, len(numbers) / 2)
    firsts = [place.first + number * size + at for number in numbers.tolist()]
    # One read of three events for each sampled one, instead of one for each step that is tried.
    around = [data.bytes(first - size, first + size + dtype.itemsize) for first in firsts]
    for step in sorted(range(1 - size, size), key=abs):
        start = size + step
        cut = b"".join(part[start : start + dtype.itemsize] for part in around)
        with np.errstate(invalid="ignore"):
            values = unpacked(np.frombuffer(cut, dtype), clock.order, clock.mask).astype(np.float64)
        if _ascending(values, least):
            return step
    return 0


def _continues(data: DataSet, place: DataPlace, row: np.dtype[np.void], clock: Clock, n_events: int) -> bool:
    """Return whether the bytes before the first event, or after the last, continue the channel."""
    edges = list(range(min(EDGE, n_events))), list(range(n_events - 1, max(n_events - EDGE, 0) - 1, -1))
    for edge, outside, sign in zip(edges, (-1, n_events), (1, -1), strict=True):
        first = place.first + outside * row.itemsize
        around = data.bytes(first, first + row.itemsize) if first > data.text.end else b""
        # Padding, or the end of the file, continues nothing.
        if len(around) < row.itemsize or not around.strip(PADDING):
            continue
        values = _clock_values(data, place, row, clock, edge)
        value = float(_clock_values(data, place, row, clock, [outside])[0])
        # By the steps next to it: events outside must continue the clock, and most other bytes are far
        # off.
        limit = NEXT_STEP * float(np.abs(np.diff(values)).max(initial=0.0))
        step = sign * (float(values[0]) - value)
        if 0 <= step <= limit and (value == 0 or abs(value) > TINY * limit):
            return True
    return False


def _clock_values(
    data: DataSet, place: DataPlace, row: np.dtype[np.void], clock: Clock, numbers: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the values of a channel in some events, float64 [len(numbers)]."""
    assert row.fields is not None
    dtype, at = row.fields[clock.field][:2]
    firsts = [place.first + number * row.itemsize + at for number in numbers]
    values = np.frombuffer(b"".join(data.bytes(first, first + dtype.itemsize) for first in firsts), dtype)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return unpacked(values, clock.order, clock.mask).astype(np.float64)
