"""HEADER and TEXT of an FCS file, read by FlowIO."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import flowio

from dpmix.errors import DataError, printable

HEADER_BYTES = 58
MARK = b"\x1e"  # delimiter in the TEXT that FlowIO parses
PART = re.compile(rb"(?<=[^\x1e])\x1e(?!\x1e)")  # where FlowIO splits TEXT
MOST_TEXT = 16 * 2**20  # bytes; FlowIO needs about a hundred times as much memory
MOST_CHANNELS = 4096
MOST_DATA_SETS = 256
AGAIN = "export or copy the file again"


class Text(NamedTuple):
    """HEADER and TEXT of one data set."""

    header: bytes
    keywords: dict[str, str]
    pairs: tuple[tuple[bytes, bytes], ...]
    analysis: tuple[int, int]  # first and last byte by TEXT, 0 where TEXT has none


def data_set_offsets(file: BinaryIO, path: Path) -> list[int]:
    """Return the offset of each data set; $NEXTDATA counts from the start of its own data set."""
    offsets = [0]
    while True:
        keywords = read_text(file, path, offsets[-1]).keywords
        step = whole_number(keywords.get("nextdata", ""), 0)
        file.seek(offsets[-1] + max(step, 0))
        if step <= 0 or file.read(3) != b"FCS":  # nonsense in the last data set of many files
            return offsets
        offsets.append(offsets[-1] + step)
        if len(offsets) > MOST_DATA_SETS:
            raise DataError(f"{path}: found more than {MOST_DATA_SETS} data sets; {AGAIN}")


def read_text(file: BinaryIO, path: Path, offset: int) -> Text:
    """Read HEADER and TEXT of the data set at an offset of the file.

    FlowIO parses a copy of HEADER and TEXT, repaired where it would fail, without DATA and ANALYSIS.
    """
    file.seek(offset)
    header = file.read(HEADER_BYTES)
    if not re.match(rb"FCS\d\.\d", header):
        raise DataError(f"{path}: found no FCS header, need an FCS file of version 2.0 to 3.2; {AGAIN}")
    first, last = whole_number(header[10:18], -1), whole_number(header[18:26], -1)
    text = _segment(file, path, offset, first, last) if HEADER_BYTES <= first < last else b""
    if len(text) < max(last - first + 1, 3):
        raise DataError(
            f"{path}: TEXT has bytes {first} to {last} by HEADER, which the file does not have; {AGAIN}"
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
    first, last = (0 if match is None else whole_number(match[1], 0) for match in found)
    return Text(header, keywords, pairs, (first, last))


def _segment(file: BinaryIO, path: Path, offset: int, first: int, last: int) -> bytes:
    """Return bytes first to last (included) of TEXT of the data set at an offset."""
    if last - first >= MOST_TEXT:
        raise DataError(f"{path}: TEXT has {last - first + 1} bytes by its offsets, need {MOST_TEXT} at most")
    file.seek(offset + first)
    return file.read(last - first + 1)


def _segment_of_keywords(keywords: Mapping[str, str], name: str) -> tuple[int, int] | None:
    """Return the first and last byte of a segment by $BEGINname and $ENDname, None where they have none."""
    first, last = (whole_number(keywords.get(end + name, ""), 0) for end in ("begin", "end"))
    return (first, last) if HEADER_BYTES <= first < last else None


def whole_number(text: str | bytes, default: int) -> int:
    """Return an integer that may be padded with blanks, or the default if it is missing or too large."""
    try:
        number = int(text)
    except ValueError:
        return default
    return number if abs(number) < 2**62 else default


def _repaired(text: bytes) -> bytes:
    """Return TEXT in a form that FlowIO can split.

    Its delimiter has no meaning in regular expressions and is also its last byte, and ANALYSIS is empty. A
    missing $TOT, optional in FCS 2.0 but required by FlowIO, becomes -1.
    """
    delimiter = text[:1]
    if delimiter != MARK:
        text = text.replace(MARK, b" ").replace(delimiter, MARK)
    text = text.rstrip(b" \r\n\0")
    text = text if text.endswith(MARK) and len(text) > 1 else text + MARK
    text = re.sub(rb"(?i)(\$(?:BEGIN|END)ANALYSIS\x1e)[^\x1e]+", rb"\g<1>0", text)
    return text if re.search(rb"(?i)\x1e\$TOT\x1e", text) else text + b"$TOT" + MARK + b"-1" + MARK


def _parsed(header: bytes, text: bytes, path: Path) -> tuple[dict[str, str], tuple[tuple[bytes, bytes], ...]]:
    """Parse TEXT by FlowIO, and again with empty values filled if they shifted the keywords.

    Returns
    -------
    keywords : dict
        In lower case and without $.
    pairs : tuple of (bytes, bytes)
        The same keywords and values as in the file.
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
        except Exception as error:  # FlowIO raises a dozen kinds of exceptions for corrupt bytes
            problem = f"{error}"
        else:
            channels, lost = sorted(flow.channels), any("\x1e" in key for key in flow.text)
            problem = f"$PAR is {flow.channel_count}, but the named channels are {channels}"
            if (
                MOST_CHANNELS >= len(channels) == flow.channel_count > 0
                and channels[-1] == len(channels)
                and not lost
            ):
                parts = [part.replace(MARK * 2, mark) for part in PART.split(attempt[1:-1])]
                keywords = {k: printable(v.replace("\x1e", delimiter)) for k, v in flow.text.items()}
                return keywords, tuple(zip(parts[::2], parts[1::2], strict=False))
    raise DataError(f"{path}: TEXT cannot be read: {printable(problem[:200])}; {AGAIN}")
