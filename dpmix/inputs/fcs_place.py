"""Find the events of a data set of an FCS file.

HEADER and TEXT both say where DATA lies. Where they disagree, a place is discarded that overlaps HEADER or
TEXT, ends beyond the file, or has a length that does not fit $TOT. If both places remain, a channel that
counts time or events decides: it ascends in one of them, and is noise in the other. Otherwise HEADER has
precedence. Every disagreement gives a warning.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs_text import AGAIN, HEADER_BYTES, Text, quoted, whole_number
from dpmix.inputs.fcs_values import Order, unpacked

CLOCK = re.compile(
    r"^time|^HDR-T$|^(event|row)[ _.-]?(#|no|num|number|count|id|index)$", re.IGNORECASE
)  # names of channels that ascend from event to event
SAMPLED = 4096  # events of a channel that are read to see whether it ascends
LEAST_STEPS = 8  # changes from one of these events to the next, below which nothing can be said
MOST_DESCENTS = 0.05  # share of the changes: a clock may be reset, and noise has a half
UNDECIDED = "nothing in the file shows which is right; compare the values with those of another program"


class Place(NamedTuple):
    """Place of DATA, by HEADER or by TEXT: first and last byte, counted from the start of the data set."""

    owner: str
    first: int
    last: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.last - self.first + 1


class Clock(NamedTuple):
    """A channel that should ascend, with what is needed to read it (`dpmix.inputs.fcs_values`)."""

    name: str
    field: str
    order: Order
    mask: int | None


@dataclass(frozen=True)
class Found:
    """The events of a data set.

    Attributes
    ----------
    first : int
        First byte, counted from the start of the data set.
    n_events : int
    warnings : tuple of str
    undecided : bool
        HEADER and TEXT disagree, and nothing shows which of them is right.
    """

    first: int
    n_events: int
    warnings: tuple[str, ...] = ()
    undecided: bool = False


@dataclass(frozen=True)
class DataSet:
    """An open data set of an FCS file.

    Attributes
    ----------
    file : BinaryIO
    path : Path
    offset : int
        Of the data set in the file.
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

    def count(self, place: Place, row_bytes: int) -> int:
        """Return the number of events: $TOT, or where it is missing what a place has room for."""
        return place.size // row_bytes if self.n_events is None else self.n_events

    def fits(self, place: Place, row_bytes: int) -> bool:
        """Return whether the length of a place fits the events; instruments make it one byte too long."""
        return place.size - self.count(place, row_bytes) * row_bytes in (0, 1)


def stated_places(text: Text) -> tuple[list[Place], list[str]]:
    """Return the places that HEADER and TEXT state, HEADER first, and warnings of what is not a number.

    Zeros and blanks state nothing: HEADER has no room for the offsets, or for the end, of large files.
    """
    stated = {
        "HEADER": (text.header[26:34].decode("latin-1"), text.header[34:42].decode("latin-1")),
        "TEXT": (text.keywords.get("begindata", ""), text.keywords.get("enddata", "")),
    }
    places, warnings = [], []
    for owner, values in stated.items():
        first, last = (whole_number(value, 0) for value in values)
        odd = [value for value in values if value.strip(" \0") and whole_number(value, -1) < 0]
        warnings += [f"{owner} has {quoted(value)} as the place of the events; not used" for value in odd]
        if not odd and last:
            places.append(Place(owner, first, last))
    return places, warnings


def place_events(data: DataSet, row: np.dtype[np.void], clocks: Sequence[Clock]) -> Found:
    """Find the events of a data set whose rows have a type.

    Raises
    ------
    DataError
        The file does not hold the events, or its offsets fit neither each other nor $TOT.
    """
    places, warnings = stated_places(data.text)
    if data.n_events == 0:
        return Found(0, 0, (*warnings, *_spare(data, places, row.itemsize)))
    agree = len({place.first for place in places}) == 1
    problems = {place: _problem(data, place, row.itemsize, places) for place in places}
    standing = [place for place in places if not problems[place]]
    why = ""
    if not standing:
        place = _only_place(data, problems, row.itemsize)
        warnings += _spare(data, [place], row.itemsize)
    elif len({place.first for place in standing}) == 1:
        place = standing[0]
    else:
        place, why = _by_clock(data, standing, row, clocks)
    if agree and _overlaps_text(data.text, place.first, row.itemsize, with_padding=False):
        warnings.append(
            f"TEXT ends at byte {data.text.segments[0][1]} by HEADER, after the start of the events"
        )
    undecided = len({place.first for place in standing}) > 1 and not why
    if not agree or 0 < len(standing) < len(places):
        (other,) = (other for other in places if other != place)
        why = why or (f"the place by {other.owner} {problems[other]}" if problems[other] else UNDECIDED)
        said = " and ".join(map(_shown, places))
        warnings.append(
            f"HEADER and TEXT disagree on the place of the events: {said}; {place.owner} is used: {why}"
        )
    return Found(place.first, data.count(place, row.itemsize), tuple(warnings), undecided)


def _problem(data: DataSet, place: Place, row_bytes: int, places: Sequence[Place]) -> str:
    """Return why a place cannot be right, "" where it can.

    Two places that agree and fit $TOT may overlap TEXT: then its end is wrong. A place without another may
    overlap the padding of TEXT. Any may overlap its last byte, because ends are often one byte too large.
    """
    need = data.count(place, row_bytes) * row_bytes
    agree = len({place.first for place in places}) == 1
    if place.first < HEADER_BYTES:
        return "overlaps HEADER"
    overlaps = _overlaps_text(data.text, place.first, need, with_padding=not agree)
    if overlaps and not (agree and len(places) == 2 and data.fits(place, row_bytes)):
        return "overlaps the keywords"
    if place.last < place.first:
        return "ends before it starts"
    if place.first + need > data.size:
        return "ends beyond the file"
    if not data.fits(place, row_bytes):
        return f"has {place.size} bytes, and the {need // row_bytes} events of $TOT need {need}"
    return ""


def _overlaps_text(text: Text, first: int, size: int, with_padding: bool) -> bool:
    """Return whether bytes of the data set overlap TEXT or its supplement."""
    (start, last), *supplement = text.segments
    segments = [(start, last if with_padding else text.end), *supplement]
    return any(first < end and first + size > start for start, end in segments)


def _only_place(data: DataSet, problems: dict[Place, str], row_bytes: int) -> Place:
    """Return the place that is not of the length that $TOT needs, but has room for all events.

    Raises
    ------
    DataError
        None exists, or HEADER and TEXT disagree on where it starts.
    """
    where = data.path
    if not problems:
        raise DataError(f"{where}: neither HEADER nor TEXT has the place of the events; {AGAIN}")
    possible = [place for place, problem in problems.items() if "overlaps" not in problem and place.size > 0]
    if len({place.first for place in possible}) != 1:
        found = "; ".join(f"{_shown(place)}, which {problem}" for place, problem in problems.items())
        raise DataError(f"{where}: the place of the events is wrong: {found}; {AGAIN}")
    place = max(possible, key=lambda place: place.size)
    n_events = data.count(place, row_bytes)
    there = max(min(data.size - place.first, place.size), 0) // row_bytes
    if there < n_events:
        raise DataError(
            f"{where}: truncated or corrupt: found {there} of the {n_events} events of $TOT; {AGAIN}"
        )
    return place


def _spare(data: DataSet, places: Sequence[Place], row_bytes: int) -> list[str]:
    """Return a warning where a place has room for more events than $TOT, or bytes that no event needs."""
    sizes = [min(place.size, data.size - place.first) for place in places if place.first >= HEADER_BYTES]
    room, spare = divmod(max([0, *sizes]), row_bytes)
    n_events = room if data.n_events is None else data.n_events
    if room > n_events:
        return [
            f"$TOT is {n_events}, but DATA has room for {room} events; only the first {n_events} are read"
        ]
    return [f"DATA has {spare} bytes more than its {n_events} events need"] if spare > 1 else []


def _shown(place: Place) -> str:
    """Return a place in words."""
    return f"{place.owner} says bytes {place.first} to {place.last}"


# ----------------------------------------------------------------------------- channels that ascend


def _by_clock(
    data: DataSet, places: Sequence[Place], row: np.dtype[np.void], clocks: Sequence[Clock]
) -> tuple[Place, str]:
    """Return the one place where a channel of time ascends, and the reason; else that of HEADER, and ""."""
    for clock in clocks:
        ascending = [place for place in places if _ascends(_sample(data, place, row, clock))]
        if len(ascending) == 1:
            return ascending[0], f"the values of {clock.name} ascend there, and do not in the other place"
    return places[0], ""


def _sample(data: DataSet, place: Place, row: np.dtype[np.void], clock: Clock) -> npt.NDArray[np.float64]:
    """Return values of a channel, float64 [at most SAMPLED], from events spread over a place."""
    assert row.fields is not None
    dtype, at = row.fields[clock.field][:2]
    n_events = data.count(place, row.itemsize)
    stored = []
    for number in np.unique(np.linspace(0, n_events - 1, min(n_events, SAMPLED)).astype(np.int64)):
        data.file.seek(data.offset + place.first + int(number) * row.itemsize + at)
        stored.append(data.file.read(dtype.itemsize))
    values = np.frombuffer(b"".join(stored), dtype)
    return unpacked(values, clock.order, clock.mask).astype(np.float64)


def _ascends(values: npt.NDArray[np.float64]) -> bool:
    """Return whether values ascend, up to ties and a few resets; values that are not finite do not."""
    if not np.isfinite(values).all():
        return False
    steps = np.diff(values)
    changes, descents = np.count_nonzero(steps), np.count_nonzero(steps < 0)
    return bool(changes >= LEAST_STEPS and descents <= MOST_DESCENTS * changes)
