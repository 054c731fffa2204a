"""Find the events of a data set of an FCS file.

HEADER and TEXT both say where DATA lies. Where they disagree, a place is discarded that overlaps HEADER or
TEXT, ends beyond the file, or has a length that does not fit $TOT. One of the remaining places must be
confirmed (`dpmix.inputs.fcs.evidence`): by a channel that counts time or events, or because the events fill
the file there. Otherwise the user chooses one of them, or the file is refused. Every disagreement gives a
warning. So does a channel of time that does not ascend where they agree; the file is refused if it ascends
some bytes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmix.errors import DataError
from dpmix.inputs.fcs.evidence import (
    Clock,
    DataPlace,
    DataSet,
    Owner,
    ascends,
    bytes_to_clock,
    clock_confirms,
    fills_file,
)
from dpmix.inputs.fcs.text import AGAIN, HEADER_BYTES, Text, quoted, whole_number

FILLS = "the events fill the file between TEXT and its end there"
TOO_SHORT = (
    "HEADER and TEXT place the events in bytes {} to {}, which is too short; they are read as $TOT says, "
    "because they then fill the file"
)
REORDERED = "the values of {} do not ascend: the events are in another order, or elsewhere in the file"


class Stated(NamedTuple):
    """Places of DATA by HEADER and TEXT.

    Attributes
    ----------
    places : list of DataPlace
        HEADER first.
    agree : bool
        All numbers that state a first byte are the same, and nothing else stands in their place.
    warnings : list of str
        Warnings about values that are not numbers.
    """

    places: list[DataPlace]
    agree: bool
    warnings: list[str]


@dataclass(frozen=True)
class DataFound:
    """The events of a data set.

    Attributes
    ----------
    first : int
        First byte, counted from the start of the data set.
    n_events : int
    owner : "HEADER" or "TEXT"
        Who states this place; HEADER where both do.
    is_chosen : bool
        Nothing in the file shows that this place is right; the user chose it.
    warnings : tuple of str
    """

    first: int
    n_events: int
    owner: Owner = "HEADER"
    is_chosen: bool = False
    warnings: tuple[str, ...] = ()


def stated_places(text: Text) -> Stated:
    """Return the places that HEADER and TEXT state.

    Zeros and blanks state nothing: HEADER has no room for the offsets, or for the end, of large files.
    """
    stated: dict[Owner, tuple[str, str]] = {
        "HEADER": (text.header[26:34].decode("latin-1"), text.header[34:42].decode("latin-1")),
        "TEXT": (text.keywords.get("begindata", ""), text.keywords.get("enddata", "")),
    }
    places, firsts, warnings = [], set(), []
    for owner, values in stated.items():
        first, last = (whole_number(value, 0) for value in values)
        odd = [value for value in values if value.strip(" \0") and whole_number(value, -1) < 0]
        warnings += [f"{owner} has {quoted(value)} as the place of the events; not used" for value in odd]
        firsts |= {first} if first or last else set()
        if not odd and last:
            places.append(DataPlace(owner, first, last))
    if not places and not warnings:  # both ends are missing: the events of $TOT may fill the file from there
        places = [
            DataPlace(owner, first, first - 1)
            for owner, values in stated.items()
            if (first := whole_number(values[0], 0)) > 0
        ]
    return Stated(places, len(firsts) == 1 and not warnings, warnings)


def place_events(
    data: DataSet, row: np.dtype[np.void], clocks: Sequence[Clock], choice: Owner | None = None
) -> DataFound:
    """Find the events of a data set whose rows have a type.

    Parameters
    ----------
    data : DataSet
    row : numpy dtype
    clocks : sequence of Clock
    choice : "HEADER" or "TEXT", optional
        Whose place the user wants where nothing in the file shows which is right.

    Raises
    ------
    DataError
        The file does not hold the events; or its offsets do not fit each other or $TOT, nothing in the
        file shows which of them are right, and the user chose none; or the file shows the choice to be wrong.
    """
    places, agree, warnings = stated_places(data.text)
    if data.n_events == 0:
        return DataFound(0, 0, warnings=(*warnings, *_spare(data, places, row.itemsize)))
    # All places, also where one is right: the warning says what is wrong with the other.
    problems = {place: _problem(data, place, row.itemsize, places, agree) for place in places}
    standing = [place for place in places if not problems[place]]
    why, is_chosen = "", False
    if not standing:
        place = _only_place(data, problems, agree, row.itemsize)
        if place.size < data.count(place, row.itemsize) * row.itemsize:
            warnings.append(TOO_SHORT.format(place.first, place.last))
            warnings += _clock_warning(data, place, row, clocks)
        else:
            warnings += _spare(data, [place], row.itemsize)
    elif agree:
        place = standing[0]
        warnings += _clock_warning(data, place, row, clocks)
    else:
        place, why, is_chosen = _confirmed(data, standing, places, row, clocks, choice)
    if agree and _overlaps_text(data.text, place.first, row.itemsize, with_padding=False):
        warnings.append(
            f"TEXT ends at byte {data.text.segments[0][1]} by HEADER, after the start of the events"
        )
    reason = why if is_chosen else _reason(place, problems, why) if standing else ""
    if reason and len(places) > 1:
        warnings.append(f"{_disagreement(places)}; {place.owner} is used: {reason}")
    if choice and place.first not in [one.first for one in places if one.owner == choice]:
        found = reason or f"{choice} has no place of the events"
        raise DataError(f"{data.path}: {found}; remove ::{choice.lower()} from the name of the file")
    return DataFound(place.first, data.count(place, row.itemsize), place.owner, is_chosen, tuple(warnings))


def _problem(
    data: DataSet, place: DataPlace, row_bytes: int, places: Sequence[DataPlace], agree: bool
) -> str:
    """Return why a place cannot be right, "" where it can.

    Two places that agree on their first byte and fit $TOT may overlap TEXT: then its end is wrong. A place
    without another may overlap the padding of TEXT. Any may overlap its last byte, because ends are often
    one byte too large.
    """
    need = data.count(place, row_bytes) * row_bytes
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


def _confirmed(
    data: DataSet,
    candidates: Sequence[DataPlace],
    places: Sequence[DataPlace],
    row: np.dtype[np.void],
    clocks: Sequence[Clock],
    choice: Owner | None,
) -> tuple[DataPlace, str, bool]:
    """Return the one candidate that something in the file confirms, what does, and False.

    If nothing does, the user's choice is returned, with True.

    Raises
    ------
    DataError
        None or several are confirmed, and the user chose none; or a channel of time ascends in none.
    """
    found = "nothing in the file shows which is right"
    noise = False
    for clock in clocks:
        verdicts = [clock_confirms(data, place, row, clock) for place in candidates]
        if verdicts.count(True) == 1:
            return candidates[verdicts.index(True)], f"the values of {clock.name} ascend only there", False
        if all(verdict is False for verdict in verdicts):
            noise, found = True, f"the events of neither have ascending values of {clock.name}"
    filling = [place for place in candidates if fills_file(data, place, row.itemsize, places)]
    # A clock that ascends at neither place makes both doubtful, however well one fills the file.
    if len(filling) == 1 and not noise:
        return filling[0], FILLS, False
    remedy = AGAIN
    if not noise:
        for place in candidates:
            if place.owner == choice:
                return place, f"::{choice.lower()} asks for it; {found}", True
        names = " or ".join(f"{data.path.name}::{place.owner.lower()}" for place in candidates)
        remedy = f"{AGAIN}, or choose one by the name {names}"
    raise DataError(f"{data.path}: {_disagreement(places)}; {found}; {remedy}")


def _reason(place: DataPlace, problems: dict[DataPlace, str], why: str) -> str:
    """Return why a place is used: what is wrong with another one, or what confirms it; "" if neither."""
    for other, problem in problems.items():
        if other != place and problem:
            return f"the place by {other.owner} {problem}"
    return why


def _clock_warning(
    data: DataSet, place: DataPlace, row: np.dtype[np.void], clocks: Sequence[Clock]
) -> list[str]:
    """Return a warning where no channel of time ascends at the place that HEADER and TEXT agree on.

    Raises
    ------
    DataError
        Such a channel ascends near this place.
    """
    verdicts = [ascends(data, place, row, clock) for clock in clocks]
    # One clock that ascends is enough: another may have been reset, or count something else.
    if True in verdicts or False not in verdicts:
        return []
    clock = clocks[verdicts.index(False)]
    if step := bytes_to_clock(data, place, row, clock):
        where = f"{abs(step)} bytes {'after' if step > 0 else 'before'} this place"
        found = (
            f"HEADER and TEXT place the events at byte {place.first}, but {clock.name} ascends only {where}"
        )
        raise DataError(f"{data.path}: {found}; {AGAIN}")
    return [REORDERED.format(clock.name)]


def _only_place(data: DataSet, problems: dict[DataPlace, str], agree: bool, row_bytes: int) -> DataPlace:
    """Return the place that HEADER and TEXT agree on, where its length does not fit $TOT.

    It may be too short only if the events of $TOT fill the file from there: then its last byte is false.

    Raises
    ------
    DataError
        None exists, they disagree, or the file has no room for all events there.
    """
    where = data.path
    if not problems:
        raise DataError(f"{where}: neither HEADER nor TEXT has the place of the events; {AGAIN}")
    possible = [place for place, problem in problems.items() if "overlaps" not in problem and place.size >= 0]
    lasts = [place.last for place in problems]
    if not possible or not agree or max(lasts) - min(lasts) > 1:  # ends are often one byte too large
        found = "; ".join(f"{_shown(place)}, which {problem}" for place, problem in problems.items())
        raise DataError(f"{where}: the place of the events is wrong: {found}; {AGAIN}")
    place = possible[0]
    n_events = data.count(place, row_bytes)
    is_there = place.first + n_events * row_bytes <= data.size
    if is_there and (place.size >= n_events * row_bytes or fills_file(data, place, row_bytes, [])):
        return place
    there = max(min(data.size - place.first, place.size), 0) // row_bytes
    found = f"found {there} of the {n_events} events of $TOT"
    if is_there:
        found += f" in bytes {place.first} to {place.last}, and the bytes after these may be something else"
    raise DataError(f"{where}: truncated or corrupt: {found}; {AGAIN}")


def _spare(data: DataSet, places: Sequence[DataPlace], row_bytes: int) -> list[str]:
    """Return a warning where a place has room for more events than $TOT, or bytes that no event needs."""
    sizes = [min(place.size, data.size - place.first) for place in places if place.first >= HEADER_BYTES]
    room, spare = divmod(max([0, *sizes]), row_bytes)
    n_events = room if data.n_events is None else data.n_events
    if room > n_events:
        return [
            f"$TOT is {n_events}, but DATA has room for {room} events; only the first {n_events} are read"
        ]
    return [f"DATA has {spare} bytes more than its {n_events} events need"] if spare > 1 else []


def _shown(place: DataPlace) -> str:
    """Return a place in words."""
    return f"{place.owner} says bytes {place.first} to {place.last}"


def _disagreement(places: Sequence[DataPlace]) -> str:
    """Return the places that HEADER and TEXT state in words."""
    return f"HEADER and TEXT disagree on the place of the events: {' and '.join(map(_shown, places))}"
