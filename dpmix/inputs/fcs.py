"""FCS files: HEADER and TEXT read by FlowIO, DATA by numpy, a range of rows at a time.

FlowIO refuses files that every laboratory has and expects to open. What is done about it here:

- DATA offsets blank in HEADER, in disagreement between HEADER and TEXT, or one byte too long: the segment
  that holds the events is taken, and a disagreement is said in `Header.notes`;
- several data sets in one file: any of them can be read, the first unless asked otherwise;
- integers of 24 bits, and of mixed widths in one event;
- empty values in TEXT, a supplemental TEXT segment, an ANALYSIS segment that cannot be read, FCS 2.0 without
  $TOT.

Values are given as they are stored, integers masked to $PnR as the standard demands; the logarithmic
amplification of old instruments ($PnE) and the spillover are described in the header, and undone elsewhere.

Standards: FCS 2.0, Cytometry 11:323 (1990); 3.0, 28:118 (1997); 3.1, 77A:97 (2010); 3.2, 99:100 (2021).
"""

from __future__ import annotations

import io
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import flowio
import flowutils.compensate
import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError, printable

HEADER_BYTES = 58
MARK = b"\x1e"  # delimiter of keywords and values in the TEXT that FlowIO is given
PART = re.compile(rb"(?<=[^\x1e])\x1e(?!\x1e)")  # where FlowIO parts it
SPILLOVER_KEYWORDS = ("spillover", "spill", "comp")  # FlowIO gives keywords in lower case without their $
MASS_INSTRUMENT = re.compile(r"cytof|helios|dvs|xt ?mass|mass cyto", re.IGNORECASE)
MASS_DETECTOR = re.compile(r"^\(?[A-Z][a-z]?\d{2,3}\)?D[id]$|\(([A-Z][a-z]?\d{2,3})\)D[id]$")
MOST_TEXT = 16 * 2**20  # bytes; a long one takes FlowIO some hundred times as much memory
MOST_CHANNELS = 4096
MOST_DATA_SETS = 256
AGAIN = "get the file again from the instrument or from where it was copied"


@dataclass(frozen=True)
class Channel:
    """What a data file says of one of its channels.

    Attributes
    ----------
    detector : str
        Name in the file ($PnN, or the header of a column).
    marker : str
        What was stained ($PnS), "" where the file does not say.
    range : float or None
        Values lie below it ($PnR), None where the file does not say.
    log : (float, float) or None
        Decades d and offset f of a logarithmic amplifier ($PnE): the linear value is f 10^(d x / range).
    gain : float
        Amplifier gain ($PnG); stored values are not divided by it.
    integer : bool
        Stored as integers.
    numeric : bool
        Holds numbers.
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
    """Spillover between detectors: stored = true @ matrix, matrix float64 [C, C], row i for dye i."""

    detectors: tuple[str, ...]
    matrix: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Header:
    """What one data set of an FCS file contains.

    Attributes
    ----------
    path : Path
    version : str
        As "FCS3.1".
    datatype : str
        $DATATYPE: I (integers), F (float32) or D (float64).
    n_events : int
    channels : tuple of Channel
    spillover : Spillover or None
        The file's own matrix ($SPILLOVER, SPILL or $COMP).
    spillover_problem : str
        Why the file's spillover keyword cannot be read, "" where there is nothing wrong.
    instrument : str
        $CYT.
    kind : "fluorescence" or "mass"
    data_set, n_data_sets : int
        Which of the file's data sets this is, from 1.
    notes : tuple of str
        What is odd about the file, one line each.
    keywords : dict
        All keywords of TEXT, in lower case and without their $.
    text : tuple of (bytes, bytes)
        The keywords and values of TEXT and its supplement as they are in the file, in their order; a value
        that is empty there is one blank.
    byte_order : "<" or ">"
        Little- or big-endian.
    data_start : int
        First byte of the events in the file.
    analysis : (int, int)
        First byte of ANALYSIS in the file and the number of its bytes, (0, 0) where it has none.
    row : numpy dtype
        One event as it is stored, fields c0, c1, ...
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
    keywords: dict[str, str] = field(repr=False)
    text: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    byte_order: Literal["<", ">"]
    data_start: int = field(repr=False)
    analysis: tuple[int, int] = field(repr=False)
    row: np.dtype[np.void] = field(repr=False)


# ------------------------------------------------------------------------------------------ reading


def read_header(path: str | Path, data_set: int = 1) -> Header:
    """Read what a data set of an FCS file contains, without its events.

    Parameters
    ----------
    path : str or Path
    data_set : int
        Which data set of the file, from 1.

    Raises
    ------
    DataError
        The file is not FCS, is truncated or corrupt, or of a kind that dpmix does not read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            offsets = _data_set_offsets(file, path)
            if not 1 <= data_set <= len(offsets):
                raise DataError(f"{path}: found {len(offsets)} data sets, need one of them, got {data_set}")
            return _read_data_set(file, path, data_set, offsets)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}, need a readable FCS file") from error


def read_events(
    header: Header, start: int = 0, stop: int | None = None, columns: Sequence[int] | None = None
) -> npt.NDArray[np.float32]:
    """Read a range of events, as stored (integers masked to $PnR); only those rows are touched in the file.

    Parameters
    ----------
    header : Header
    start, stop : int
        Rows [start, stop) of the data set; stop None for all.
    columns : sequence of int, optional
        Channels by number from 0, in the order wanted; all by default.

    Returns
    -------
    float32 [stop - start, len(columns)]
        Integers up to 2^24 are exact; wider integers and float64 are rounded to float32 (infinite beyond its
        range).

    Raises
    ------
    DataError
        The file cannot be read, or is shorter than when its header was read.
    """
    stop = header.n_events if stop is None else min(stop, header.n_events)
    rows = read_rows(header, start, max(start, stop)).view(header.row)[:, 0]
    wanted = range(len(header.channels)) if columns is None else columns
    events = np.empty((len(rows), len(wanted)), np.float32)
    with np.errstate(over="ignore"):
        for k, column in enumerate(wanted):
            events[:, k] = _unpacked(rows[f"c{column}"], header.channels[column], header.byte_order)
    return events


def read_rows(header: Header, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """Read a range of events as the bytes that they are in the file, uint8 [stop - start, bytes of an event].

    Raises
    ------
    DataError
        The file cannot be read, or has changed since its header was read.
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
    """The ANALYSIS segment as it is in the file, empty where there is none."""
    first, length = header.analysis
    with header.path.open("rb") as file:
        file.seek(first)
        return file.read(length)


def _unpacked(stored: npt.NDArray[Any], channel: Channel, byte_order: str) -> npt.NDArray[Any]:
    """Three-byte integers put together; integers without the bits above $PnR, rounded up to a power of 2."""
    if stored.ndim == 2:
        bytes_ = stored.astype(np.uint32)
        low, high = (0, 2) if byte_order == "<" else (2, 0)
        stored = bytes_[:, low] | bytes_[:, 1] << 8 | bytes_[:, high] << 16
    if channel.integer and channel.range is not None:
        mask = (1 << (math.ceil(channel.range) - 1).bit_length()) - 1
        if mask < np.iinfo(stored.dtype).max:
            stored = stored & stored.dtype.type(mask)
    return stored


# ------------------------------------------------------------------------------- HEADER and TEXT


def _data_set_offsets(file: BinaryIO, path: Path) -> list[int]:
    """Where each data set begins; $NEXTDATA counts from the beginning of its own data set."""
    offsets = [0]
    while True:
        keywords = _text(file, path, offsets[-1]).keywords
        step = _whole(keywords.get("nextdata", ""), 0)
        file.seek(offsets[-1] + max(step, 0))
        if step <= 0 or file.read(3) != b"FCS":  # many files give nonsense for the last data set
            return offsets
        offsets.append(offsets[-1] + step)
        if len(offsets) > MOST_DATA_SETS:
            raise DataError(f"{path}: found more than {MOST_DATA_SETS} data sets; {AGAIN}")


def _segment(file: BinaryIO, path: Path, offset: int, first: int, last: int) -> bytes:
    """Bytes first to last, last included, of the data set at an offset: of its TEXT."""
    if last - first >= MOST_TEXT:
        raise DataError(f"{path}: TEXT is said to have {last - first + 1} bytes, need {MOST_TEXT} at most")
    file.seek(offset + first)
    return file.read(last - first + 1)


def _whole(text: str | bytes, default: int) -> int:
    """An integer in blanks that could be a place in a file; the default where there is none."""
    try:
        number = int(text)
    except ValueError:
        return default
    return number if abs(number) < 2**62 else default


class _Text(NamedTuple):
    """HEADER and TEXT of one data set."""

    header: bytes
    keywords: dict[str, str]
    pairs: tuple[tuple[bytes, bytes], ...]
    analysis: tuple[int, int]  # the first and last byte that TEXT gives, 0 where it gives none


def _text(file: BinaryIO, path: Path, offset: int) -> _Text:
    """HEADER and the keywords of TEXT, by FlowIO, of the data set at an offset of the file.

    FlowIO is given HEADER and TEXT alone, repaired where it would stumble, and neither DATA nor ANALYSIS.
    """
    file.seek(offset)
    header = file.read(HEADER_BYTES)
    if not re.match(rb"FCS\d\.\d", header):
        raise DataError(f"{path}: found no FCS header, need an FCS file of version 2.0 to 3.2; {AGAIN}")
    first, last = _whole(header[10:18], -1), _whole(header[18:26], -1)
    text = _segment(file, path, offset, first, last) if HEADER_BYTES <= first < last else b""
    if len(text) < max(last - first + 1, 3):
        raise DataError(
            f"{path}: TEXT is said to be in bytes {first} to {last}, which are not there; {AGAIN}"
        )
    keywords, pairs = _parsed(header, text, path)
    extra = _segment_of_keywords(keywords, "stext")
    if extra and extra != (first, last):
        text = text.rstrip(text[:1]) + _segment(file, path, offset, *extra)
        keywords, pairs = _parsed(header, text, path)
    found = (
        re.search(rb"(?i)\$%bANALYSIS%b\s*(\d+)" % (end, re.escape(text[:1])), text)
        for end in (b"BEGIN", b"END")
    )
    first, last = (0 if match is None else _whole(match[1], 0) for match in found)
    return _Text(header, keywords, pairs, (first, last))


def _segment_of_keywords(keywords: Mapping[str, str], name: str) -> tuple[int, int] | None:
    """First and last byte of the segment that $BEGINname and $ENDname give, None where they give none."""
    first, last = (_whole(keywords.get(end + name, ""), 0) for end in ("begin", "end"))
    return (first, last) if HEADER_BYTES <= first < last else None


def _repaired(text: bytes) -> bytes:
    """TEXT as FlowIO can split it: a delimiter that means nothing to `re`, one at the end, no ANALYSIS.

    $TOT, optional in FCS 2.0 and required by FlowIO, is -1 where it is absent.
    """
    delimiter = text[:1]
    if delimiter != MARK:
        text = text.replace(MARK, b" ").replace(delimiter, MARK)
    text = text.rstrip(b" \r\n\0")
    text = text if text.endswith(MARK) and len(text) > 1 else text + MARK
    text = re.sub(rb"(?i)(\$(?:BEGIN|END)ANALYSIS\x1e)[^\x1e]+", rb"\g<1>0", text)
    return text if re.search(rb"(?i)\x1e\$TOT\x1e", text) else text + b"$TOT" + MARK + b"-1" + MARK


def _parsed(header: bytes, text: bytes, path: Path) -> tuple[dict[str, str], tuple[tuple[bytes, bytes], ...]]:
    """Keywords of TEXT by FlowIO; read again, empty values filled, where those made it lose its place.

    Also the pairs that FlowIO made them of, as they are in the file.
    """
    mark = text[:1]
    delimiter = chr(text[0])
    text = _repaired(text)
    problem = "no keywords"
    for attempt in (text, text.replace(MARK * 2, MARK + b" " + MARK)):
        offsets = (HEADER_BYTES, HEADER_BYTES + len(attempt) - 1, 0, 0, 0, 0)
        stream = io.BytesIO(header[:10] + b"".join(b"%8d" % x for x in offsets) + attempt)
        try:
            flow = flowio.FlowData(stream, only_text=True, use_header_offsets=True, nextdata_offset=0)
        except KeyError as error:
            problem = f"keyword ${str(error.args[0]).upper()} is missing"
        except Exception as error:  # corrupt bytes end in FlowIO in any of a dozen kinds of exception
            problem = f"{error}"
        else:
            channels, lost = sorted(flow.channels), any("\x1e" in key for key in flow.text)
            problem = f"$PAR is {flow.channel_count}, the channels named are {channels}"
            if (
                MOST_CHANNELS >= len(channels) == flow.channel_count > 0
                and channels[-1] == len(channels)
                and not lost
            ):
                parts = [part.replace(MARK * 2, mark) for part in PART.split(attempt[1:-1])]
                keywords = {k: printable(v.replace("\x1e", delimiter)) for k, v in flow.text.items()}
                return keywords, tuple(zip(parts[::2], parts[1::2], strict=False))
    raise DataError(f"{path}: TEXT cannot be read: {printable(problem[:200])}; {AGAIN}")


# ---------------------------------------------------------------------------------- one data set


def _read_data_set(file: BinaryIO, path: Path, data_set: int, offsets: list[int]) -> Header:
    offset = offsets[data_set - 1]
    raw, keywords, pairs, analysis = _text(file, path, offset)
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
    start, n_events, notes = _place_data(raw, keywords, row.itemsize, size, path)
    if len(offsets) > 1:
        notes.append(f"data set {data_set} of {len(offsets)} in the file")
    if any(
        not c.integer and _log_scale(keywords, n, path)[0] for n, c in zip(numbers, channels, strict=True)
    ):
        notes.append("$PnE of floating point channels not applied: the standard has them linear")
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
        keywords=keywords,
        text=pairs,
        byte_order=order,
        data_start=offset + start,
        analysis=_place_analysis(raw, analysis, offset, size),
        row=row,
    )


def _byte_order(keywords: Mapping[str, str], path: Path) -> Literal["<", ">"]:
    """$BYTEORD: "1,2,3,4" (or "1,2") is little-endian, its reverse big-endian."""
    found = keywords.get("byteord", "").replace(" ", "")
    digits = found.split(",")
    ascending = [str(k + 1) for k in range(len(digits))]
    if digits == ascending:
        return "<"
    if digits == ascending[::-1]:
        return ">"
    raise DataError(f"{path}: $BYTEORD is {found or 'missing'}, need 1,2,3,4 or 4,3,2,1; convert the file")


def _channel_type(keywords: Mapping[str, str], n: int, order: str, path: Path) -> np.dtype[Any]:
    """How channel n is stored: $PnDATATYPE (FCS 3.2) or $DATATYPE, and $PnB."""
    letter = keywords.get(f"p{n}datatype", keywords["datatype"]).strip().upper()
    bits = _whole(keywords.get(f"p{n}b", ""), 0)
    types = {("F", 32): "f4", ("D", 64): "f8"} | {("I", 8 * size): f"u{size}" for size in (1, 2, 4, 8)}
    if (letter, bits) == ("I", 24):
        return np.dtype(("u1", (3,)))
    if (letter, bits) not in types:
        found = f"$P{n}B is {keywords.get(f'p{n}b', 'missing')} with data type {letter}"
        raise DataError(f"{path}: {found}, need I with 8, 16, 24, 32 or 64 bits, F with 32 or D with 64")
    return np.dtype(order + types[letter, bits])


def _channel(keywords: Mapping[str, str], n: int, integer: bool, path: Path) -> Channel:
    """The metadata of channel n; $PnE counts for integers only, as the standard says."""
    name = keywords.get(f"p{n}n")  # FlowIO takes $P01N for it
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
    """Decades and offset of $PnE, (0, 0) for a linear channel."""
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
    """First byte of DATA, number of events, and what was odd.

    HEADER and TEXT both say where DATA is. Taken is the one whose length fits $TOT, TEXT before HEADER from
    FCS 3.0 on; an end that is one byte too far is a common slip.
    """
    in_header = _whole(raw[26:34], 0), _whole(raw[34:42], 0)
    in_text = _whole(keywords.get("begindata", ""), 0), _whole(keywords.get("enddata", ""), 0)
    places = [in_header, in_text] if raw[:6] == b"FCS2.0" else [in_text, in_header]
    places = [(first, last - first + 1) for first, last in places if HEADER_BYTES <= first <= last]
    n_events = int(keywords["tot"])
    if n_events < 0 and places:
        n_events = places[0][1] // row_bytes
    need = n_events * row_bytes
    if n_events == 0:
        return 0, 0, []
    if not places:
        raise DataError(f"{path}: neither HEADER nor TEXT says where the events are; {AGAIN}")
    fits = [place for place in places if place[1] - need in (0, 1)] + [p for p in places if p[1] >= need]
    first, length = (fits or places)[0]
    there = max(min(size - first, length), 0)
    if there < need:
        found = f"found {there // row_bytes} of the {n_events} events that $TOT promises"
        raise DataError(f"{path}: truncated or corrupt: {found}; {AGAIN}")
    if in_header != in_text and len(places) == 2:
        return first, n_events, [f"HEADER and TEXT disagree on where the events are; bytes from {first} read"]
    return first, n_events, []


def _place_analysis(raw: bytes, in_text: tuple[int, int], offset: int, size: int) -> tuple[int, int]:
    """First byte of ANALYSIS in the file, and its length; nothing where what is said is not there."""
    for first, last in (in_text, (_whole(raw[42:50], 0), _whole(raw[50:58], 0))):
        if HEADER_BYTES <= first < last < size:
            return offset + first, last - first + 1
    return 0, 0


def _spillover(keywords: Mapping[str, str]) -> tuple[Spillover | None, str]:
    """The file's spillover matrix, and why it cannot be read if so."""
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


# ---------------------------------------------------------------------------------------- writing


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
        What was stained ($PnS), "" where nothing.
    keywords : mapping, optional
        Further keywords, as {"$CYT": "simulated", "$P1R": "1024"}; $PnR is 262144 unless given.

    Raises
    ------
    ValueError
        Names and columns differ in number.
    """
    if events.ndim != 2 or events.shape[1] != len(channels):
        raise ValueError(f"events of shape {events.shape} need {len(channels)} columns, one per name")
    values = array("f")
    values.frombytes(np.ascontiguousarray(events, np.float32).tobytes())
    with Path(path).open("wb") as file:
        flowio.create_fcs(file, values, list(channels), opt_channel_names=markers, metadata_dict=keywords)
