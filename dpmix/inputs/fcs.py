"""Read what a data set of an FCS file contains: its channels, and where its events are.

FlowIO parses TEXT (`dpmix.inputs.fcs_text`), numpy reads DATA (`dpmix.inputs.fcs_data`). FlowIO alone refuses
files that are common in laboratories. dpmix also reads:

- DATA offsets that are blank in HEADER, differ between HEADER and TEXT, or are one byte too large; it uses
  the segment that holds the events, and `Header.notes` reports a difference;
- any of several data sets in one file, by default the first;
- integers of 24 bits, and integers of different widths in one event;
- empty values in TEXT, a supplemental TEXT segment, an ANALYSIS segment that cannot be read, and FCS 2.0
  without $TOT.

The header describes the logarithmic amplification of old instruments ($PnE) and the spillover;
`dpmix.inputs.file_plans` undoes both.

Standards: FCS 2.0, Cytometry 11:323 (1990); 3.0, 28:118 (1997); 3.1, 77A:97 (2010); 3.2, 99:100 (2021).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import flowutils.compensate
import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.fcs_text import AGAIN, HEADER_BYTES, data_set_offsets, read_text, whole_number

SPILLOVER_KEYWORDS = ("spillover", "spill", "comp")  # FlowIO returns keywords in lower case without $
MASS_INSTRUMENT = re.compile(r"cytof|helios|dvs|xt ?mass|mass cyto", re.IGNORECASE)
MASS_DETECTOR = re.compile(r"^\(?[A-Z][a-z]?\d{2,3}\)?D[id]$|\(([A-Z][a-z]?\d{2,3})\)D[id]$")


@dataclass(frozen=True)
class Channel:
    """Metadata of one channel of a data file.

    Attributes
    ----------
    detector : str
        Name in the file ($PnN, or the header of a column).
    marker : str
        Stained marker ($PnS), "" where the file names none.
    range : float or None
        Upper bound of the values ($PnR), None where the file has none.
    log : (float, float) or None
        Decades d and offset f of a logarithmic amplifier ($PnE): the linear value is f 10^(d x / range).
    gain : float
        Amplifier gain ($PnG); stored values are not divided by it.
    integer : bool
        Values are stored as integers.
    numeric : bool
        Values are numbers.
    """

    detector: str
    marker: str = ""
    range: float | None = None
    log: tuple[float, float] | None = None
    gain: float = 1.0
    integer: bool = False
    numeric: bool = True


@dataclass(frozen=True)
class Spillover:
    """Spillover between C detectors: stored = true @ matrix, with matrix float64 [C, C], row i for dye i."""

    detectors: tuple[str, ...]
    matrix: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Header:
    """Contents of one data set of an FCS file, without its events.

    Attributes
    ----------
    path : Path
    version : str
        For example "FCS3.1".
    datatype : str
        $DATATYPE: I (integers), F (float32) or D (float64).
    n_events : int
    channels : tuple of Channel
    spillover : Spillover or None
        The file's own matrix ($SPILLOVER, SPILL or $COMP).
    spillover_problem : str
        Why the file's spillover keyword cannot be read, "" where there is no problem.
    instrument : str
        $CYT.
    kind : "fluorescence" or "mass"
    data_set, n_data_sets : int
        Number of this data set, from 1, and of data sets in the file.
    notes : tuple of str
        Oddities of the file, one line each.
    warnings : tuple of str
        What may make its values wrong, one line each.
    keywords : dict
        All keywords of TEXT, in lower case and without $.
    text : tuple of (bytes, bytes)
        Keywords and values of TEXT and its supplement as in the file, in their order; an empty value is one
        blank.
    byte_order : "<" or ">"
        Little- or big-endian.
    data_start : int
        First byte of the events in the file.
    analysis : (int, int)
        First byte of ANALYSIS in the file and its length in bytes, (0, 0) where it has none.
    row : numpy dtype
        One event as stored, with fields c0, c1, ...
    """

    path: Path
    version: str
    datatype: str
    n_events: int
    channels: tuple[Channel, ...]
    spillover: Spillover | None
    spillover_problem: str
    instrument: str
    kind: Literal["fluorescence", "mass"]
    data_set: int
    n_data_sets: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    keywords: dict[str, str] = field(repr=False)
    text: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    byte_order: Literal["<", ">"]
    data_start: int = field(repr=False)
    analysis: tuple[int, int] = field(repr=False)
    row: np.dtype[np.void] = field(repr=False)


def read_header(path: str | Path, data_set: int = 1) -> Header:
    """Read the metadata of a data set of an FCS file.

    Parameters
    ----------
    path : str or Path
    data_set : int
        Number of the data set in the file, from 1.

    Raises
    ------
    DataError
        The file is not FCS, is truncated or corrupt, or is of a kind that dpmix does not read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            offsets = data_set_offsets(file, path)
            if not 1 <= data_set <= len(offsets):
                raise DataError(f"{path}: found {len(offsets)} data sets, need one of them, got {data_set}")
            return _read_data_set(file, path, data_set, offsets)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}, need a readable FCS file") from error


def _read_data_set(file: BinaryIO, path: Path, data_set: int, offsets: list[int]) -> Header:
    """Read the metadata of a data set, given the offsets of all data sets of the file."""
    offset = offsets[data_set - 1]
    raw, keywords, pairs, analysis = read_text(file, path, offset)
    version = raw[:6].decode()
    mode = keywords.get("mode", "L").strip().upper()
    if mode != "L":
        raise DataError(f"{path}: $MODE is {mode}, a histogram; need list mode (L), one row per event")
    order = _byte_order(keywords, path)
    numbers = range(1, int(keywords["par"]) + 1)
    types = [_channel_type(keywords, n, order, path) for n in numbers]
    channels = tuple(
        _channel(keywords, n, kind.kind in "uV", path) for n, kind in zip(numbers, types, strict=True)
    )
    row = np.dtype([(f"c{k}", kind) for k, kind in enumerate(types)])
    size = file.seek(0, io.SEEK_END) - offset
    start, n_events, warnings = _place_data(raw, keywords, row.itemsize, size, path)
    notes = []
    if len(offsets) > 1:
        notes.append(f"data set {data_set} of {len(offsets)} in the file")
    if any(
        not c.integer and _log_scale(keywords, n, path)[0] for n, c in zip(numbers, channels, strict=True)
    ):
        notes.append("$PnE ignored for floating point channels: the standard defines them as linear")
    spillover, problem = _spillover(keywords)
    instrument = keywords.get("cyt", "").strip()
    mass = MASS_INSTRUMENT.search(instrument) or any(MASS_DETECTOR.search(c.detector) for c in channels)
    return Header(
        path=path,
        version=version,
        datatype=keywords["datatype"].strip().upper(),
        n_events=n_events,
        channels=channels,
        spillover=spillover,
        spillover_problem=problem,
        instrument=instrument,
        kind="mass" if mass else "fluorescence",
        data_set=data_set,
        n_data_sets=len(offsets),
        notes=tuple(notes),
        warnings=tuple(warnings),
        keywords=keywords,
        text=pairs,
        byte_order=order,
        data_start=offset + start,
        analysis=_place_analysis(raw, analysis, offset, size),
        row=row,
    )


def _byte_order(keywords: Mapping[str, str], path: Path) -> Literal["<", ">"]:
    """Return the byte order by $BYTEORD: "1,2,3,4" (or "1,2") is little-endian, the reverse big-endian."""
    found = keywords.get("byteord", "").replace(" ", "")
    digits = found.split(",")
    ascending = [str(k + 1) for k in range(len(digits))]
    if digits == ascending:
        return "<"
    if digits == ascending[::-1]:
        return ">"
    raise DataError(f"{path}: $BYTEORD is {found or 'missing'}, need 1,2,3,4 or 4,3,2,1; convert the file")


def _channel_type(keywords: Mapping[str, str], n: int, order: str, path: Path) -> np.dtype[Any]:
    """Return the stored type of channel n by $PnDATATYPE (FCS 3.2) or $DATATYPE, and $PnB."""
    letter = keywords.get(f"p{n}datatype", keywords["datatype"]).strip().upper()
    bits = whole_number(keywords.get(f"p{n}b", ""), 0)
    types = {("F", 32): "f4", ("D", 64): "f8"} | {("I", 8 * size): f"u{size}" for size in (1, 2, 4, 8)}
    if (letter, bits) == ("I", 24):
        return np.dtype(("u1", (3,)))
    if (letter, bits) not in types:
        found = f"$P{n}B is {keywords.get(f'p{n}b', 'missing')} with data type {letter}"
        raise DataError(f"{path}: {found}, need I with 8, 16, 24, 32 or 64 bits, F with 32 or D with 64")
    return np.dtype(order + types[letter, bits])


def _channel(keywords: Mapping[str, str], n: int, integer: bool, path: Path) -> Channel:
    """Return the metadata of channel n. $PnE applies to integers only, as in the standard."""
    name = keywords.get(f"p{n}n")  # FlowIO also accepts $P01N
    if name is None:
        raise DataError(f"{path}: $P{n}N, the name of channel {n}, is missing; {AGAIN}")
    try:
        limit, gain = float(keywords[f"p{n}r"]), float(keywords.get(f"p{n}g", "1"))
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: $P{n}R or $P{n}G cannot be read ({error}); {AGAIN}") from error
    known = math.isfinite(limit) and limit > 0
    decades, offset = _log_scale(keywords, n, path)
    return Channel(
        detector=name.strip(),
        marker=keywords.get(f"p{n}s", "").strip(),
        range=limit if known else None,
        log=(decades, offset or 1.0) if integer and known and decades > 0 else None,
        gain=gain,
        integer=integer,
    )


def _log_scale(keywords: Mapping[str, str], n: int, path: Path) -> tuple[float, float]:
    """Return decades and offset of $PnE, (0, 0) for a linear channel."""
    found = keywords.get(f"p{n}e", "0,0")
    try:
        decades, offset = (float(x) for x in found.split(","))
    except ValueError:
        decades, offset = math.nan, math.nan
    if not (0 <= decades <= 20 and 0 <= offset < math.inf):
        raise DataError(f"{path}: $P{n}E is {found}, need decades (0 to 20) and an offset; {AGAIN}")
    return decades, offset


def _place_data(
    raw: bytes, keywords: Mapping[str, str], row_bytes: int, size: int, path: Path
) -> tuple[int, int, list[str]]:
    """Return the first byte of DATA, the number of events, and warnings.

    HEADER and TEXT both have the place of DATA. The place whose length fits $TOT is used; if both do, TEXT
    has precedence from FCS 3.0 on. An end that is one byte too far is a common error of instruments.
    """
    in_header = whole_number(raw[26:34], 0), whole_number(raw[34:42], 0)
    in_text = whole_number(keywords.get("begindata", ""), 0), whole_number(keywords.get("enddata", ""), 0)
    places = [in_header, in_text] if raw[:6] == b"FCS2.0" else [in_text, in_header]
    places = [(first, last - first + 1) for first, last in places if HEADER_BYTES <= first <= last]
    n_events = int(keywords["tot"])
    if n_events < 0 and places:
        n_events = places[0][1] // row_bytes
    need = n_events * row_bytes
    if n_events == 0:
        return 0, 0, []
    if not places:
        raise DataError(f"{path}: neither HEADER nor TEXT has the place of the events; {AGAIN}")
    fits = [place for place in places if place[1] - need in (0, 1)] + [p for p in places if p[1] >= need]
    first, length = (fits or places)[0]
    there = max(min(size - first, length), 0)
    if there < need:
        found = f"found {there // row_bytes} of the {n_events} events of $TOT"
        raise DataError(f"{path}: truncated or corrupt: {found}; {AGAIN}")
    if in_header != in_text and len(places) == 2:
        warning = f"HEADER and TEXT disagree on the place of the events; reading from byte {first}"
        return first, n_events, [warning]
    return first, n_events, []


def _place_analysis(raw: bytes, in_text: tuple[int, int], offset: int, size: int) -> tuple[int, int]:
    """Return the first byte of ANALYSIS in the file and its length, (0, 0) if it lies outside the file."""
    for first, last in (in_text, (whole_number(raw[42:50], 0), whole_number(raw[50:58], 0))):
        if HEADER_BYTES <= first < last < size:
            return offset + first, last - first + 1
    return 0, 0


def _spillover(keywords: Mapping[str, str]) -> tuple[Spillover | None, str]:
    """Return the file's spillover matrix, or why it cannot be read."""
    name = next((key for key in SPILLOVER_KEYWORDS if keywords.get(key, "").strip()), None)
    if name is None:
        return None, ""
    try:
        matrix, detectors = flowutils.compensate.get_spill(keywords[name])
        if len(set(detectors)) < len(detectors) or not np.isfinite(matrix).all():
            raise ValueError("names or values are not usable")
    except (ValueError, IndexError) as error:
        return None, f"${name.upper()} is not a square matrix with channel names ({error})"
    return (Spillover(tuple(detectors), matrix), "") if detectors else (None, "")
