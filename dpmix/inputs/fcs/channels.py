"""The channels of an FCS file, by their keywords."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpmix.errors import DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.fcs.text import AGAIN, quoted
from dpmix.system.console import first_few

THOUSANDS = re.compile(r"\d{1,3}([.,]\d{3})+")  # of an integer, as 262,144 or 262.144


def read_channel(keywords: Mapping[str, str], n: int, integer: bool, path: Path) -> Channel:
    """Return the metadata of channel n.

    $PnE applies to integers only, as in the standard. Integers need $PnR, which says which of their bits
    belong to the value; floating point numbers do not.

    Raises
    ------
    DataError
        A keyword is missing, or cannot be read.
    """
    name = keywords.get(f"p{n}n")
    if name is None:  # for example $P01N
        raise DataError(f"{path}: $P{n}N, the name of channel {n}, is missing; {AGAIN}")
    limit = number_of(keywords.get(f"p{n}r", ""))
    if integer and (limit is None or limit % 1) and THOUSANDS.fullmatch(keywords.get(f"p{n}r", "").strip()):
        limit = float(re.sub("[.,]", "", keywords[f"p{n}r"]))
    if limit is None and integer:
        found = quoted(keywords[f"p{n}r"]) if f"p{n}r" in keywords else "missing"
        raise DataError(f"{path}: $P{n}R is {found}, need the range of the values; {AGAIN}")
    known = limit is not None and math.isfinite(limit) and limit > 0
    scale = _log_scale(keywords, n)
    if scale is None and integer:
        found = quoted(keywords[f"p{n}e"])
        raise DataError(f"{path}: $P{n}E is {found}, need decades (0 to 20) and an offset; {AGAIN}")
    decades, offset = scale or (0.0, 0.0)
    return Channel(
        detector=name.strip() or f"channel {n}",
        marker=keywords.get(f"p{n}s", "").strip(),
        range=limit if known else None,
        log=(decades, offset or 1.0) if integer and known and decades > 0 else None,
        gain=1.0 if (gain := _gain(keywords, n)) is None else gain,
        integer=integer,
    )


def number_of(text: str) -> float | None:
    """Return a number, which may have a decimal comma; None where the text is none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _gain(keywords: Mapping[str, str], n: int) -> float | None:
    """Return $PnG, 1 where it is missing, None where it is not a number."""
    gain = number_of(keywords.get(f"p{n}g", "").strip() or "1")
    return None if gain is None or not math.isfinite(gain) else gain


def _log_scale(keywords: Mapping[str, str], n: int) -> tuple[float, float] | None:
    """Return decades and offset of $PnE, (0, 0) for a linear channel, None where it cannot be read."""
    parts = (keywords.get(f"p{n}e", "").strip() or "0,0").split(",")
    if len(parts) == 4:  # decimal commas, as in 4,0,0,0
        parts = [",".join(parts[:2]), ",".join(parts[2:])]
    found = [number_of(part) for part in parts]
    decades, offset = found if len(found) == 2 else (None, None)
    if decades is None or offset is None or not (0 <= decades <= 20 and 0 <= offset < math.inf):
        return None
    return decades, offset


def channel_notes(keywords: Mapping[str, str], channels: Sequence[Channel]) -> list[str]:
    """Return notes on keywords of channels that are wrong, or that dpmix does not use."""
    numbers = range(1, len(channels) + 1)
    odd = [n for n in numbers if _gain(keywords, n) is None]
    floats = [n for n, channel in enumerate(channels, start=1) if not channel.integer]
    unnamed = [n for n in numbers if not keywords[f"p{n}n"].strip()]
    ranges = [n for n in numbers if number_of(keywords.get(f"p{n}r", "")) is None]
    notes = [f'$P{n}N is blank; the channel is named "{channels[n - 1].detector}"' for n in unnamed]
    if any(_log_scale(keywords, n) != (0, 0) for n in floats):
        notes.append("$PnE ignored for floating point channels: the standard defines them as linear")
    if odd:
        found = quoted(keywords[f"p{odd[0]}g"])
        notes.append(f"{_listed(odd, 'G')}: {found} is not a number; the gain is taken as 1")
    if ranges:
        found = quoted(keywords.get(f"p{ranges[0]}r", ""))
        notes.append(
            f"{_listed(ranges, 'R')}: {found} is not a number; floating point channels need no range"
        )
    return notes


def _listed(numbers: Sequence[int], letter: str) -> str:
    """Return the keywords of some channels, at most eight of them."""
    return first_few([f"$P{n}{letter}" for n in numbers], 8)
