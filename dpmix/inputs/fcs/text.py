"""HEADER and TEXT of an FCS file: the places of its segments, and its keywords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dpmix.errors import DataError, printable

HEADER_BYTES = 58
PADDING = b" \t\r\n\0"  # around keywords, and after the last value of TEXT
MOST_TEXT = 16 * 2**20  # bytes; every keyword of them takes about fifty more in memory
MOST_CHANNELS = 4096
MOST_DATA_SETS = 256
MOST_BETWEEN = 2**16  # bytes between two data sets that $NEXTDATA does not link
# Behind the last byte of a data set, which may be stated one too early or late: padding, a checksum, HEADER.
NEXT_HEADER = re.compile(rb"[\s\S]{0,2}[ \t\r\n\0]*([0-9A-Fa-f]{8})?[ \t\r\n\0]*(?=FCS[23]\.\d {4}[ \d]{16})")
ANY_HEADER = re.compile(rb"FCS[23]\.\d {4}[ \d]{16}")
# Without $ something else, in a file that has $PAR: the standard allows a file to lack these.
NEEDS_DOLLAR = re.compile(r"mode|nextdata|(begin|end)(data|stext|analysis)|p\d+(n|datatype)")
AGAIN = "export or copy the file again"

Pairs = tuple[tuple[bytes, bytes], ...]


class Text(NamedTuple):
    """HEADER and TEXT of one data set.

    Attributes
    ----------
    header : bytes
        The 58 bytes of HEADER.
    keywords : dict
        Values by keyword, in lower case and without $.
    pairs : tuple of (bytes, bytes)
        The same keywords and values as in the file, without blanks around the keywords.
    segments : tuple of (int, int)
        First and last byte of TEXT by HEADER, and of supplemental TEXT where the file has it.
    end : int
        Last byte of TEXT, without the padding at its end.
    """

    header: bytes
    keywords: dict[str, str]
    pairs: Pairs
    segments: tuple[tuple[int, int], ...]
    end: int


class DataSets(NamedTuple):
    """The data sets of a file.

    Attributes
    ----------
    offsets : list of int
        Offset of each data set in the file.
    linked : bool
        $NEXTDATA names all of them, as the standard demands.
    """

    offsets: list[int]
    linked: bool


def find_data_sets(file: BinaryIO, path: Path) -> DataSets:
    """Find the data sets of a file.

    $NEXTDATA counts from the start of its own data set. Some programs write whole files one after another,
    with a $NEXTDATA of 0 or one that counts from the start of the file: then a data set is found by its
    HEADER behind the last segment of the one before.

    Raises
    ------
    DataError
        The first data set, or one that $NEXTDATA names, is not FCS, or there are too many.
    """
    offsets, linked = [0], True
    while len(offsets) <= MOST_DATA_SETS:
        try:
            text = read_text(file, path, offsets[-1])
        except DataError:
            if linked:
                raise
            return DataSets(offsets, linked)  # what follows looks like a data set, and may be broken
        step = whole_number(text.keywords.get("nextdata", ""), 0)
        file.seek(offsets[-1] + max(step, 0))
        if step <= 0 or file.read(3) != b"FCS":  # nonsense in the last data set of many files
            step = _next_header(file, path, offsets[-1], text)
            if not step:
                return DataSets(offsets, linked)
            linked = False
        offsets.append(offsets[-1] + step)
    raise DataError(
        f"{path}: has more than {MOST_DATA_SETS} data sets, the most that dpmix reads; split the file"
    )


def _next_header(file: BinaryIO, path: Path, offset: int, text: Text) -> int:
    """Return where another HEADER follows the segments of a data set, counted from its start; 0 for none.

    Behind other bytes than padding, such as a segment that no keyword states, it must have a TEXT that can be
    read.
    """
    ends = [text.end, *(last for _, last in text.segments)]
    ends += [whole_number(text.header[at : at + 8], 0) for at in (34, 50)]
    ends += [segment_of(text.keywords, name)[1] for name in ("data", "analysis")]
    last = max(ends)
    file.seek(offset + last)
    following = file.read(MOST_BETWEEN)
    if match := NEXT_HEADER.match(following):
        return last + match.end()
    for match in ANY_HEADER.finditer(following):
        try:
            read_text(file, path, offset + last + match.start())
        except DataError:
            continue
        return last + match.start()
    return 0


def read_text(file: BinaryIO, path: Path, offset: int) -> Text:
    """Read HEADER and TEXT, with its supplement, of the data set at an offset of the file.

    Raises
    ------
    DataError
        The bytes are not HEADER and TEXT of an FCS file.
    """
    file.seek(offset)
    header = file.read(HEADER_BYTES)
    if not re.match(rb"FCS\d\.\d", header):
        raise DataError(f"{path}: found no FCS header, need an FCS file of version 2.0 to 3.2; {AGAIN}")
    first, last = (_header_number(header, at, path) for at in (10, 18))
    text = _segment(file, path, offset, first, last) if HEADER_BYTES <= first < last else b""
    if len(text) < max(last - first + 1, 3):
        raise DataError(
            f"{path}: TEXT has bytes {first} to {last} by HEADER, which the file does not have; {AGAIN}"
        )
    end = first + len(text.rstrip(PADDING)) - 1
    keywords, pairs = _parsed(text, path)
    extra = segment_of(keywords, "stext")
    if not HEADER_BYTES <= extra[0] < extra[1] or extra == (first, last):
        return Text(header, keywords, pairs, ((first, last),), end)
    more = _segment(file, path, offset, *extra).lstrip(PADDING.replace(text[:1], b""))
    start = b"" if more.startswith(text[:1]) else text[:1]  # some writers omit the first delimiter
    keywords, pairs = _parsed(_trimmed(text) + start + more, path)
    return Text(header, keywords, pairs, ((first, last), extra), end)


def _header_number(header: bytes, at: int, path: Path) -> int:
    """Return the offset at some byte of HEADER; `DataError` quotes it where it is not a number."""
    number = whole_number(header[at : at + 8], -1)
    if number < 0:
        raise DataError(
            f"{path}: HEADER has {quoted(header[at : at + 8])} at byte {at}, need an offset of TEXT; {AGAIN}"
        )
    return number


def _segment(file: BinaryIO, path: Path, offset: int, first: int, last: int) -> bytes:
    """Return bytes first to last (included) of TEXT of the data set at an offset."""
    if last - first >= MOST_TEXT:
        raise DataError(f"{path}: TEXT has {last - first + 1} bytes by its offsets, need {MOST_TEXT} at most")
    file.seek(offset + first)
    return file.read(last - first + 1)


def segment_of(keywords: Mapping[str, str], name: str) -> tuple[int, int]:
    """Return the first and last byte of a segment by $BEGINname and $ENDname, 0 where they have no number."""
    first, last = (whole_number(keywords.get(end + name, ""), 0) for end in ("begin", "end"))
    return first, last


def whole_number(text: str | bytes, default: int) -> int:
    """Return an integer that may be padded, or the default if it is missing, no number, or too large."""
    digits = (text.decode("latin-1") if isinstance(text, bytes) else text).strip(PADDING.decode())
    # At most 30 digits: `int` of a long text takes time with the square of its length.
    number = int(digits) if re.fullmatch(r"[+-]?[0-9]{1,30}", digits) else default
    return number if abs(number) < 2**62 else default


def quoted(text: str | bytes, most: int = 60) -> str:
    """Return a text of a file for a message: in quotes, in one line, and not too long."""
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    return f'"{printable(text[:most])}{"..." if len(text) > most else ""}"'


def _parsed(text: bytes, path: Path) -> tuple[dict[str, str], Pairs]:
    """Return the keywords of TEXT and their values.

    A doubled delimiter stands for one that belongs to a value. Many files have it for an empty value instead,
    which shifts all keywords after it: they no longer fit $PAR, and TEXT is read again in this other sense.
    """
    problem = ""
    # The standard first: an empty value is not allowed, so only keywords that make no sense show the other
    # way.
    for split in (_split_escaped, _split_empty):
        parts = split(text)
        pairs = tuple(
            (key.strip(PADDING), value) for key, value in zip(parts[::2], parts[1::2], strict=False)
        )
        keywords = _decoded(pairs)
        problem = problem or _problem(keywords)
        if not _problem(keywords) and not any(text[:1] in key for key, _ in pairs):
            return keywords, pairs
    raise DataError(f"{path}: TEXT cannot be read: {problem or 'keywords and values are mixed up'}; {AGAIN}")


def _trimmed(text: bytes) -> bytes:
    """Return TEXT without its last delimiter, and the padding after it; its first byte is the delimiter."""
    mark = text[:1]
    return mark + text[1:].rstrip(PADDING.replace(mark, b"")).removesuffix(mark)


def _split_escaped(text: bytes) -> list[bytes]:
    """Split TEXT into keywords and values; two delimiters in a row stand for one in a value."""
    parts: list[bytes] = []
    joins = False
    pieces = _trimmed(text)[1:].split(text[:1])
    for k, piece in enumerate(pieces):
        if joins:
            parts[-1] += text[:1] + piece
            joins = False
        elif piece == b"" and 0 < k < len(pieces) - 1:
            joins = True
        else:
            parts.append(piece)
    return parts


def _split_empty(text: bytes) -> list[bytes]:
    """Split TEXT into keywords and values; two delimiters in a row are an empty value, one blank."""
    return [piece or b" " for piece in _trimmed(text)[1:].split(text[:1])]


def _decoded(pairs: Pairs) -> dict[str, str]:
    """Return values by keyword, in lower case and without $; UTF-8, or else Latin-1.

    Keywords without $ belong to the maker of the instrument, who may give them any name: they never replace
    the keywords of the standard.
    """
    try:
        texts = [(key.decode(), value.decode()) for key, value in pairs]
    except UnicodeDecodeError:
        # Every byte is a character of Latin-1, so that this cannot fail.
        texts = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in pairs]
    standard = {key[1:].lower(): printable(value) for key, value in texts if key.startswith("$")}
    others = {key.lower(): printable(value) for key, value in texts if not key.startswith("$")}
    if "par" in standard:  # else all keywords of the file lack their $
        others = {key: value for key, value in others.items() if not NEEDS_DOLLAR.fullmatch(key)}
    return others | standard


def _problem(keywords: Mapping[str, str]) -> str:
    """Return what is wrong with the keywords as a whole, "" where nothing is."""
    missing = [name for name in ("par", "datatype") if name not in keywords]
    if missing:
        return f"keyword ${missing[0].upper()} is missing"
    n_channels = whole_number(keywords["par"], 0)
    if not 1 <= n_channels <= MOST_CHANNELS:
        return f"$PAR is {quoted(keywords['par'])}, need the number of channels, 1 to {MOST_CHANNELS}"
    named = sorted({int(match[1]) for key in keywords if (match := re.fullmatch(r"p(\d{1,9})n", key))})
    if named != list(range(1, n_channels + 1)):
        return f"$PAR is {n_channels}, but the named channels are {_listed(named)}"
    return ""


def _listed(numbers: list[int], most: int = 8) -> str:
    """Return numbers separated by commas, at most `most` of them."""
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")
