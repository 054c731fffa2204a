"""Copy an FCS file and add channels; existing channels stay unchanged.

The bytes of the existing channels are copied, and all keywords except segment positions and the number of
channels. Added channels use the storage type of the file, because all channels of a file share one $DATATYPE
(before FCS 3.2), and because FlowIO, FlowKit and others read no other files:

- float32 in float32 files, float64 in float64 files;
- integers in integer files, with the greatest width of the existing channels (at least 16 bits). A fraction
  is multiplied by `Added.scale` and rounded. $PnG is that scale, so readers that divide by the gain, as
  FlowIO and FlowKit do by default, return the fraction; DPMIX_SCALE states it in words. Conversion of the
  file to floats would change its meaning: old instruments store logarithms as integers ($PnE), which floats
  must not be.
- float32 with its own $PnDATATYPE in files of mixed types (FCS 3.2; FlowIO cannot read such files).

Necessary changes: 24-bit integers become 32-bit integers with the same values, because FlowIO and FlowKit
cannot read 24 bits. A file with events beyond byte 99,999,999, which FCS 2.0 cannot describe, becomes FCS
3.0. Empty values, which the standards forbid, become a blank. Supplemental TEXT moves into TEXT. Other data
sets of the file and vendor segments (OTHER) are omitted. DPMIX_WARNING states what may
make values of the file wrong.

Standards: see `dpmix.inputs.fcs.header`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs.data import read_analysis, read_rows
from dpmix.inputs.fcs.header import Header
from dpmix.inputs.fcs.text import HEADER_BYTES, whole_number
from dpmix.system.own_file import sync

Bytes = npt.NDArray[np.uint8]

IN_HEADER = 99_999_999  # largest offset with eight digits
EVENTS = 32_768  # events copied at a time
DELIMITERS = (b"\x0c", b"|", b"/", b"\x1e", b"!", b"~", b"\x1f", b"\x1d", b"\x1c", b"\x01", b"\x02")
UNUSED = "DPMIX_UNUSED"  # keyword whose blanks fill the room of the reserved keywords
CRC = b"00000000"  # by the standard: not computed


@dataclass(frozen=True)
class Added:
    """A channel to add to an FCS file.

    Attributes
    ----------
    name, label : str
        $PnN and $PnS.
    limit : float
        Upper limit of the values; the lower limit is 0.
    scale : int
        Factor by which values are multiplied before rounding, if the file stores integers.
    """

    name: str
    label: str
    limit: float
    scale: int = 1


def gating_channels(n_populations: int, explored: bool, n_types: int) -> list[Added]:
    """Return the channels that a gating adds; their labels are the columns of the events."""
    return [
        Added("dpmix_population", "population", n_populations),
        Added("dpmix_probability", "probability", 1, scale=10_000),
        Added("dpmix_entropy", "entropy", math.log(n_populations), scale=1_000),
        Added("dpmix_implausible", "implausible", 1),
        *([Added("dpmix_explored", "explored", 1)] if explored else []),
        *([Added("dpmix_type", "type", n_types)] if n_types else []),
        *([Added("dpmix_type_probability", "type_probability", 1, scale=10_000)] if n_types else []),
    ]


def calibrated_channels(headers: Sequence[Header], channels: Sequence[str]) -> list[Added]:
    """Return the channels for values without shifts, with the largest range of the files."""
    top = max((channel.range or 0.0) for header in headers for channel in header.channels)
    return [Added(f"dpmix_calibrated_{name}", f"{name} calibrated", top) for name in channels]


class Copy:
    """Copy of one data set, written front to back.

    Parameters
    ----------
    header : Header
        Header of the data set.
    path : Path
        File to write.
    added : sequence of Added
    reserved : mapping of str to str, optional
        Keywords whose values are known only after the events, with the longest that each may have (`fill`).

    Attributes
    ----------
    place : Place
        Place of the reserved keywords.
    """

    def __init__(
        self, header: Header, path: Path, added: Sequence[Added], reserved: Mapping[str, str] | None = None
    ) -> None:
        self._header = header
        self._type, self._scales = _stored(header, added)
        self._places, size = _places(header)
        self._added_at = [size + k * self._type.itemsize for k in range(len(added))]
        self._bytes = size + len(added) * self._type.itemsize
        self._done = 0
        analysis = read_analysis(header)
        room = {**reserved, UNUSED: " "} if reserved else {}
        heading = _heading(header, added, self._type, self._bytes, len(analysis), room)
        delimiter = heading[HEADER_BYTES : HEADER_BYTES + 1]
        length = len(_joined(room, delimiter))
        self.place = Place(len(heading) - length, length, delimiter)
        self._tail = analysis + (CRC if header.version != "FCS2.0" else b"")
        self._file = path.open("wb")
        self._file.write(heading)

    def write(self, rows: npt.NDArray[np.int64], values: Sequence[npt.NDArray[Any]]) -> None:
        """Write all events up to the last of the given rows.

        Parameters
        ----------
        rows : int64 [M]
            Ascending, greater than those written before. Events between them get 0 in the added channels.
        values : sequence of arrays [M]
            Values of the added channels.

        Raises
        ------
        DataError
            The file being copied cannot be read.
        ValueError
            Rows do not ascend, or exceed the file.
        """
        if not len(rows):
            return
        if rows[0] < self._done or rows[-1] >= self._header.n_events or (np.diff(rows) <= 0).any():
            raise ValueError(f"rows {rows[0]} to {rows[-1]} do not ascend from {self._done}")
        self._advance(int(rows[-1]) + 1, rows, values)

    def close(self) -> None:
        """Write the remaining events and close the file."""
        none = np.empty(0, np.int64)
        self._advance(self._header.n_events, none, [none] * len(self._added_at))
        self._file.write(self._tail)
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close the incomplete file."""
        self._file.close()

    def _advance(self, stop: int, rows: npt.NDArray[np.int64], values: Sequence[npt.NDArray[Any]]) -> None:
        for start in range(self._done, stop, EVENTS):
            end = min(start + EVENTS, stop)
            first, last = np.searchsorted(rows, (start, end))
            events: Bytes = np.zeros((end - start, self._bytes), np.uint8)
            events[:, self._places] = read_rows(self._header, start, end)
            for at, scale, column in zip(self._added_at, self._scales, values, strict=True):
                part = column[first:last]  # float64 avoids a second rounding
                stored = part if scale == 1 else np.rint(part.astype(np.float64) * scale)
                as_bytes = stored.astype(self._type).view(np.uint8).reshape(-1, self._type.itemsize)
                events[rows[first:last] - start, at : at + self._type.itemsize] = as_bytes
            self._file.write(events.tobytes())
        self._done = max(self._done, stop)


@dataclass(frozen=True)
class Place:
    """Where the reserved keywords of a copy are: at the end of TEXT."""

    start: int
    length: int
    delimiter: bytes


def population_keywords(names: Mapping[int, str]) -> dict[str, str]:
    """Return the keywords that name populations, given the name of each number, which starts the value."""
    return {f"DPMIX_POPULATION_{number}": f"{number} {name}".strip() for number, name in names.items()}


def fill(path: Path, place: Place, keywords: Mapping[str, str]) -> None:
    """Give the reserved keywords of a complete copy their values; blanks fill the remaining room.

    Raises
    ------
    ValueError
        The values need more room than was reserved.
    """
    room = place.length - len(_joined({**keywords, UNUSED: ""}, place.delimiter))
    if room < 1:
        raise ValueError(f"keywords need {1 - room} bytes more than were reserved in {path}")
    with path.open("r+b") as file:
        file.seek(place.start)
        file.write(_joined({**keywords, UNUSED: " " * room}, place.delimiter))
        file.flush()
        sync(file.fileno())


def _joined(keywords: Mapping[str, str], delimiter: bytes) -> bytes:
    """Return keywords as they stand in TEXT after a delimiter."""
    words = (word.encode() for pair in keywords.items() for word in pair)
    return b"".join(word + delimiter for word in words)


def _stored(header: Header, added: Sequence[Added]) -> tuple[np.dtype[np.generic], list[int]]:
    """Return the storage type of added channels and the scale of each."""
    if all(channel.integer for channel in header.channels):
        size = max(2, *(_width(kind) for kind in _types(header)))
        return np.dtype(f"{header.byte_order}u{size}"), [channel.scale for channel in added]
    size = 8 if all(kind.kind == "f" and kind.itemsize == 8 for kind in _types(header)) else 4
    return np.dtype(f"{header.byte_order}f{size}"), [1] * len(added)


def _types(header: Header) -> list[np.dtype[np.generic]]:
    return [header.row[k] for k in range(len(header.channels))]


def _width(kind: np.dtype[np.generic]) -> int:
    """Return the bytes of a channel in the copy."""
    return 4 if kind.itemsize == 3 else kind.itemsize


def _places(header: Header) -> tuple[slice | npt.NDArray[np.int64], int]:
    """Return the position of each byte of an old event in a new one, and the bytes of the old channels."""
    size = sum(_width(kind) for kind in _types(header))
    if size == header.row.itemsize:
        return slice(size), size
    places: list[int] = []
    at = 0
    for kind in _types(header):
        padding = _width(kind) - kind.itemsize
        first = at + (padding if header.byte_order == ">" else 0)
        places += range(first, first + kind.itemsize)
        at += _width(kind)
    return np.array(places), size


def _heading(
    header: Header,
    added: Sequence[Added],
    kind: np.dtype[np.generic],
    row_bytes: int,
    analysis_bytes: int,
    last_keywords: Mapping[str, str],
) -> bytes:
    """Return HEADER and TEXT of the copy, up to the first byte of DATA; TEXT ends with `last_keywords`."""
    changes = _channel_keywords(header, added, kind)
    # fixed width, so that the numbers do not change the length of TEXT
    places = ("$BEGINDATA", "$ENDDATA", "$BEGINANALYSIS", "$ENDANALYSIS", "$BEGINSTEXT", "$ENDSTEXT")
    changes |= dict.fromkeys(places, "0" * 12) | {"$NEXTDATA": "0"} | {**last_keywords}
    text_end = HEADER_BYTES + len(_text(header, changes)) - 1
    first = text_end + 1
    last = first + header.n_events * row_bytes - 1
    segments = [(HEADER_BYTES, text_end), (first, last)]
    segments.append((last + 1, last + analysis_bytes) if analysis_bytes else (0, 0))
    numbers = [number for segment in segments[1:] for number in segment]
    changes |= {name: f"{number:012d}" for name, number in zip(places[:4], numbers, strict=True)}
    in_header = [segment if max(segment) <= IN_HEADER else (0, 0) for segment in segments]
    too_far = segments != in_header
    version = "FCS3.0" if header.version == "FCS2.0" and too_far else header.version
    offsets = b"".join(b"%8d" % number for segment in in_header for number in segment)
    return version.encode() + b"    " + offsets + _text(header, changes)


def _channel_keywords(header: Header, added: Sequence[Added], kind: np.dtype[np.generic]) -> dict[str, str]:
    """Return new and changed keywords of the copy, except segment positions."""
    letter = {"u": "I", "f": "F" if kind.itemsize == 4 else "D"}[kind.kind]
    keywords = {
        f"$P{n}B": f"{8 * _width(old)}"
        for n, old in enumerate(_types(header), start=1)
        if whole_number(header.keywords[f"p{n}b"], 0) != 8 * _width(old)
    }
    for n, channel in enumerate(added, start=len(header.channels) + 1):
        scale = channel.scale if letter == "I" else 1
        keywords |= {f"$P{n}N": channel.name, f"$P{n}S": channel.label, f"$P{n}B": f"{8 * kind.itemsize}"}
        # values must be below $PnR; flowCore truncates them to $PnR - 1
        keywords |= {f"$P{n}R": f"{max(math.ceil(channel.limit * scale), 1) + 1}", f"$P{n}E": "0,0"}
        keywords |= {f"$P{n}G": f"{scale}"}
        if letter != header.datatype:
            keywords[f"$P{n}DATATYPE"] = letter
    keywords["$PAR"] = f"{len(header.channels) + len(added)}"
    if letter == "I":
        parts = ", ".join(f"{channel.name} {channel.scale}" for channel in added if channel.scale > 1)
        keywords["DPMIX_SCALE"] = f"stored integer = value times scale: {parts}"
    if whole_number(header.keywords.get("tot", ""), -1) != header.n_events:  # FCS 2.0 may omit it
        keywords["$TOT"] = f"{header.n_events}"
    if header.warnings:  # the copy agrees with itself, and nothing else would show how it was read
        keywords["DPMIX_WARNING"] = "; ".join(header.warnings)
    if "originality" in header.keywords:
        keywords["$ORIGINALITY"] = "Appended"
    return keywords


def _text(header: Header, changes: dict[str, str]) -> bytes:
    """Return TEXT with a delimiter that no keyword or value contains: FlowIO misreads some escaped ones.

    A keyword without $ means the standard's only where the file has none with $ (`dpmix.inputs.fcs.text`).
    """
    named = {key.upper() for key, _ in header.text}
    new = {
        key.upper() if key.upper() in named else _bare(key): value.encode()
        for key, value in ((key.encode(), value) for key, value in changes.items())
    }
    pairs = [(key, new.get(key.upper(), value)) for key, value in header.text]
    pairs += [
        (key.encode(), value.encode())
        for key, value in changes.items()
        if not {key.encode().upper(), _bare(key.encode())} & named
    ]
    words = b"".join(key + value for key, value in pairs)
    delimiter = next((mark for mark in DELIMITERS if mark not in words), None)
    if delimiter is None:
        raise DataError(f"{header.path}: TEXT contains every possible delimiter; use --format csv")
    return delimiter + b"".join(key + delimiter + value + delimiter for key, value in pairs)


def _bare(key: bytes) -> bytes:
    return key.replace(b"$", b"").upper()
