"""Scan a file once for the limits of its channels, where the instrument clips, and for digests of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from dpmix.errors import DataError
from dpmix.inputs.blocks import blocks
from dpmix.inputs.channel import Channel
from dpmix.inputs.file_plans import FilePlan
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.system.progress import ProgressLog

FLOAT_LIMIT = 1.0 - 2.0**-18  # of $PnR: 262143 of 262144, where instruments with float values saturate
FALSE_TIMES, FALSE_SHARE = 2.0, 0.25  # values so far above $PnR, or this many, show that it is no limit
MOST_NOT_FINITE = 0.01  # of the events of a file may be left out, because a value of them is not finite
PILE_SHARE, PILE_EVENTS = 0.001, 10  # an extreme value is a limit if at least this many events have it


@dataclass(frozen=True)
class Scan:
    """Limits and digests of the chosen channels of one file, as stored.

    Margin events have a value at a limit or beyond it.

    Attributes
    ----------
    low, high : float64 [D]
        -inf and inf where a channel has no limit.
    digests : tuple of bytes
        D digests of the values of each channel in all rows, 16 bytes each.
    not_finite : str
        Which channels have values that are not finite, in so few events that these are left out; "" for none.
    """

    low: Array
    high: Array
    digests: tuple[bytes, ...]
    not_finite: str = ""


class _Extreme:
    """The smallest (or largest) value of each column read so far, and the number of events that have it."""

    def __init__(self, n_columns: int, pick: np.ufunc, worst: float) -> None:
        self._pick, self._worst = pick, worst
        self.values = np.full(n_columns, worst)
        self.counts = np.zeros(n_columns, np.int64)

    def add(self, block: Floats) -> None:
        """Take in a block of events, float32 [M, columns]; values that are not finite are ignored."""
        block = np.where(np.isfinite(block), block, np.float32(self._worst))
        here = self._pick.reduce(block, axis=0).astype(np.float64)
        n_here = (block == here).sum(0)
        both = self._pick(here, self.values)
        self.counts = np.where(here == both, n_here, 0) + np.where(self.values == both, self.counts, 0)
        self.values = both


class _Above:
    """The number of events above the range of each column read so far."""

    def __init__(self, plan: FilePlan) -> None:
        ranges = [plan.source.details[k].range for k in plan.columns]
        self._ranges = np.array([np.inf if limit is None else limit for limit in ranges])
        self.counts = np.zeros(len(ranges), np.int64)

    def add(self, block: Floats) -> None:
        """Take in a block of events, float32 [M, columns]."""
        self.counts += (block > self._ranges).sum(0)


class _NotFinite:
    """Counts of NaN and infinite values in each column read so far, and the first row with one."""

    def __init__(self, n_columns: int) -> None:
        self._not_numbers, self._infinite = np.zeros((2, n_columns), np.int64)
        self._first: Ints = np.full(n_columns, -1)

    def add(self, block: Floats, start: int) -> None:
        """Take in a block of events, float32 [M, columns], that starts at a row of the file."""
        finite = np.isfinite(block)
        self._not_numbers += np.isnan(block).sum(0)
        self._infinite += np.isinf(block).sum(0)
        found = (self._first < 0) & ~finite.all(0)
        self._first = np.where(found, start + finite.argmin(0), self._first)

    def require_few(self, plan: FilePlan) -> str:
        """Return the channels, counts and rows of such values; raise `DataError` if they are many."""
        found = zip(plan.columns, self._not_numbers, self._infinite, self._first, strict=True)
        bad = [
            f"{plan.source.channels[k]} ({n_nan} NaN, {n_inf} infinite, first in event {first})"
            for k, n_nan, n_inf, first in found
            if first >= 0
        ]
        text = f"values that are not finite in {', '.join(bad)}, counting events from 0" if bad else ""
        most = max(self._not_numbers + self._infinite, default=0)
        if most > MOST_NOT_FINITE * plan.source.n_events:
            raise DataError(
                f"{plan.source.name}: {text}; remove these events from the file, or exclude the channel "
                "(list the others in data.channels)"
            )
        return text


class _Digests:
    """BLAKE2b of the values of each column read so far; 0 and -0 count as the same value."""

    def __init__(self, n_columns: int) -> None:
        self._hashes = [hashlib.blake2b(digest_size=16) for _ in range(n_columns)]

    def add(self, block: Floats) -> None:
        """Take in a block of events, float32 [M, columns]."""
        for column, of_column in zip(block.T, self._hashes, strict=True):
            # In one byte order, and without the sign of 0: the noise of atoms must not depend on how a file
            # stores its values.
            of_column.update((column + np.float32(0)).astype("<f4", copy=False).data)

    def digests(self) -> list[bytes]:
        """Return the digest of each column."""
        return [of_column.digest() for of_column in self._hashes]


def scan_file(plan: FilePlan, progress: ProgressLog) -> Scan:
    """Read a file once for the limits and the digests of its channels.

    Raises
    ------
    DataError
        More than `MOST_NOT_FINITE` of the events have a value that is not finite in one channel.
    """
    n_columns = len(plan.columns)
    lowest, highest = _Extreme(n_columns, np.minimum, np.inf), _Extreme(n_columns, np.maximum, -np.inf)
    not_finite, contents, above = _NotFinite(n_columns), _Digests(n_columns), _Above(plan)
    for start, stop in blocks(plan.source.n_events, progress):
        block = plan.read_stored(start, stop)
        not_finite.add(block, start)
        lowest.add(block)
        highest.add(block)
        above.add(block)
        contents.add(block)
    few = not_finite.require_few(plan)
    places = plan.places(plan.chosen)
    low = [
        _bottom(plan.source, k, lowest.values[c], int(lowest.counts[c]))
        for k, c in zip(plan.chosen, places, strict=True)
    ]
    shares = above.counts / max(plan.source.n_events, 1)
    false = {
        plan.source.details[k].range
        for k, c in zip(plan.chosen, places, strict=True)
        if _is_false(plan.source.details[k], highest.values[c], shares[c])
    }
    high = [
        _top(plan.source, k, lowest.values[c], highest.values[c], int(highest.counts[c]), false)
        for k, c in zip(plan.chosen, places, strict=True)
    ]
    digests = contents.digests()
    return Scan(np.array(low), np.array(high), tuple(digests[c] for c in places), few)


def _pile(source: Source) -> float:
    """Return the number of events at an extreme value that makes it a limit."""
    return max(PILE_EVENTS, PILE_SHARE * source.n_events)


def _bottom(source: Source, k: int, lowest: float, at_lowest: int) -> float:
    """Return the lower limit of channel k as stored, -inf where nothing indicates one.

    It is 0 for stored integers, else the smallest value if many events have it. A mass cytometer has none:
    its zeros are events without ions.
    """
    if source.kind == "mass":
        return -np.inf
    if source.details[k].integer and lowest <= 0:
        return 0.0
    return lowest if at_lowest >= _pile(source) else -np.inf


def _is_false(channel: Channel, highest: float, share_above: float) -> bool:
    """Return True if values show that $PnR is not the end of the scale, for example 1024 written for all.

    Saturated events of some instruments lie a little above it.
    """
    limit = channel.range
    return limit is not None and (highest > FALSE_TIMES * limit or share_above > FALSE_SHARE)


def _top(
    source: Source,
    k: int,
    lowest: float,
    highest: float,
    at_highest: int,
    false: Collection[float | None],
) -> float:
    """Return the upper limit of channel k as stored, inf where nothing indicates one.

    It is the end of the range that the file declares ($PnR) if values reach it, else the largest value if
    many events have it. A range that is `false` for one channel is so for all that have it.
    """
    channel, declared = source.details[k], np.inf
    if channel.range is not None and channel.range not in false:
        declared = channel.range - 1 if channel.integer else channel.range * FLOAT_LIMIT
    if highest >= declared:
        return declared
    return highest if at_highest >= _pile(source) and highest > lowest else np.inf
