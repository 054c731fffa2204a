"""Some events of an FCS file, and what their values show: a false place, byte order or range.

**Place and byte order.** Light and ion counts are neither 1e-39 nor 1e38. Floating point numbers that are
read some bytes away from their place, or in the wrong byte order, are that in large part: other bytes become
their exponents. Without a channel of time, nothing else shows a false place that HEADER and TEXT agree on.
Integers show it where their words have more bits than their range: most are above it then.

**Range of integers.** By the standard, bits above $PnR do not belong to the value. Instruments use them in
two ways: the XL, FC500 and Navios number the channels there, in every event; the Accuri stores saturated
events with values just above $PnR, which without their high bits would lie amid the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.fcs.evidence import DataSet
from dpmix.inputs.fcs.text import AGAIN
from dpmix.inputs.fcs.values import Order, range_mask, unpacked

STRETCHES, STRETCH = 32, 128  # stretches of consecutive events that are read, and events in each
LEAST, MOST = 1e-20, 1e20  # values beyond cannot be measurements
FALSE_SHARE = 0.05  # of the values other than 0, beyond which their place is doubted
LEAST_VALUES = 100  # fewer values show no false place
BETTER = 0.1  # of that share remains at most at the right place
FEWEST = 20  # events; of fewer, integers are masked as the standard says
TAGGED = 0.98  # of the events have the number of their channel in their high bits
OUTSIDE, INSIDE = 0.5, 0.001  # of integers above their ranges at a false place, and at the right one
FALSE_TIMES, FALSE_ABOVE = 2, 0.25  # values so far above their range, or this share, show that it is false
NEAR = 2  # high bits of the smallest value above the range, at most, where values continue beyond it


class IntegerMasks(NamedTuple):
    """The bits that belong to the values of each channel.

    Attributes
    ----------
    masks : tuple of int or None
        None where all bits belong to the value.
    false : tuple of int
        Numbers of linear channels, from 0, whose range is false: values are far above it, or very many are.
    notes, warnings : tuple of str
    """

    masks: tuple[int | None, ...]
    false: tuple[int, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def sample_rows(data: DataSet, first: int, n_events: int, row: np.dtype[np.void]) -> npt.NDArray[Any]:
    """Read evenly spaced stretches of events whose first byte is `first`, as far as the file has them."""
    length = STRETCH if n_events > STRETCHES * STRETCH else n_events
    # Stretches all over the file, because flags and saturated events come in parts of a recording.
    starts = sorted({*np.linspace(0, n_events - length, STRETCHES).astype(np.int64).tolist()})
    size = row.itemsize
    parts = [data.bytes(first + start * size, first + (start + length) * size) for start in starts]
    return np.concatenate([np.frombuffer(part[: len(part) // size * size], row) for part in parts])


# ------------------------------------------------------------------------------- place and byte order


def require_measurements(
    data: DataSet,
    first: int,
    n_events: int,
    row: np.dtype[np.void],
    channels: Sequence[Channel],
    order: Order,
) -> list[str]:
    """Return a warning where many floating point values cannot be measurements.

    Raises
    ------
    DataError
        They are measurements some bytes away, or in the other byte order; or most integers are above their
        ranges, and all are in range there.
    """
    if n_events:
        _require_integers_in_range(data, first, n_events, row, channels, order)
    floats = [name for name in row.names or () if row[name].kind == "f"]
    if not floats or not n_events:
        return []
    share, example = _not_measured(sample_rows(data, first, n_events, row), floats)
    if share < FALSE_SHARE:
        return []
    odd = f"{share:.0%} of the values cannot be measurements (for example {example:.3g})"
    found = f"{data.path}: {odd} at byte {first}, where the file places its events"
    swapped, _ = _not_measured(sample_rows(data, first, n_events, row.newbyteorder()), floats)
    if swapped <= BETTER * share:
        raise DataError(f"{found}; in the other byte order they are plausible: $BYTEORD is false; {AGAIN}")
    width = min(row[name].itemsize for name in floats)
    # Less than one value away: beyond that, the values are plausible again, only of other channels.
    for step in sorted(range(1 - width, width), key=abs):
        there, _ = _not_measured(sample_rows(data, first + step, max(n_events - 1, 1), row), floats)
        if there <= BETTER * share:
            where = f"{abs(step)} bytes {'later' if step > 0 else 'earlier'}"
            raise DataError(f"{found}; {where} they are plausible: this place is false; {AGAIN}")
    return [f"{odd}; the file may be corrupt"]


def _require_integers_in_range(
    data: DataSet,
    first: int,
    n_events: int,
    row: np.dtype[np.void],
    channels: Sequence[Channel],
    order: Order,
) -> None:
    """Raise `DataError` if most integers are above their ranges, but not elsewhere or in the other order."""
    limits = {f"c{k}": mask for k, mask in _masks_below_words(row, channels).items() if mask}

    def share(at: int, kind: np.dtype[Any], order: Order, count: int = n_events) -> float:
        rows = sample_rows(data, at, count, kind)
        values = [(unpacked(rows[name], order, None), limit) for name, limit in limits.items()]
        n_values = sum(np.count_nonzero(own) for own, _ in values)
        above = sum(np.count_nonzero(own > limit) for own, limit in values)
        return above / n_values if n_values >= LEAST_VALUES else 0.0

    if not limits or (here := share(first, row, order)) <= OUTSIDE:
        return
    other: Order = ">" if order == "<" else "<"
    options = ["in the other byte order"] if share(first, row.newbyteorder(), other) <= INSIDE else []
    width = min(_bytes(row, k) for k, channel in enumerate(channels) if f"c{k}" in limits)
    # Of two bytes, one byte away and in the other order look alike.
    options += [
        f"{abs(step)} bytes {'later' if step > 0 else 'earlier'}"
        for step in sorted(range(1 - width, width), key=abs)
        if step and share(first + step, row, order, max(n_events - 1, 1)) <= INSIDE
    ]
    if options:
        found = f"{data.path}: {here:.0%} of the values are above their ranges at byte {first}, and none is"
        raise DataError(
            f"{found} {' or '.join(options)}: $BYTEORD or the place of the events is false; {AGAIN}"
        )


def _not_measured(rows: npt.NDArray[Any], floats: Sequence[str]) -> tuple[float, float]:
    """Return the share of values other than 0 that cannot be measurements, and one of them.

    The share is 0 where less than half of the channels have many such values, or there are few values.
    """
    counts, example = np.zeros((len(floats), 2), np.int64), math.nan
    for k, name in enumerate(floats):
        with np.errstate(invalid="ignore"):  # signalling NaN
            values = np.abs(rows[name].astype(np.float64))
        odd = ((values > 0) & (values < LEAST)) | (values > MOST)
        counts[k] = odd.sum(), ((values != 0) & ~np.isnan(values)).sum()
        example = float(values[odd][0]) if odd.any() and math.isnan(example) else example
    with_odd = np.count_nonzero(counts[:, 0] > 0.5 * FALSE_SHARE * counts[:, 1])
    # A false place spoils all channels alike; one odd channel is a channel with odd values.
    if 2 * with_odd < np.count_nonzero(counts[:, 1]) or not with_odd:
        return 0.0, example
    n_odd, n_values = counts.sum(0)
    return float(n_odd / n_values) if n_values >= LEAST_VALUES else 0.0, example


# ---------------------------------------------------------------------------------- range of integers


def integer_masks(
    data: DataSet,
    first: int,
    n_events: int,
    row: np.dtype[np.void],
    channels: Sequence[Channel],
    order: Order,
) -> IntegerMasks:
    """Return which bits belong to the values of each channel, by some events; see the top of this module."""
    masks = [range_mask(channel.range) if channel.integer else None for channel in channels]
    notes, warnings = [], []
    rows = sample_rows(data, first, n_events, row) if any(masks) and n_events >= FEWEST else None
    highs = {
        k: unpacked(rows[f"c{k}"], order, None).astype(np.uint64) >> np.uint64(mask.bit_length())
        for k, mask in _masks_below_words(row, channels).items()
        if rows is not None
    }
    false = [k for k, high in highs.items() if channels[k].log is None and _is_beyond(high, far=True)]
    # A range that is false for one channel is so for all that have it.
    ranges = {channels[k].range for k in false}
    for k, high in highs.items():
        channel, above = channels[k], high[high > 0]
        limit = f"$P{k + 1}R ({channel.range:.0f})"
        if not len(above):
            # For a saturated event that was not read, without flags in higher bits.
            masks[k] = 2 * (masks[k] or 0) + 1
        elif _is_beyond(high) or (channel.range in ranges and channel.log is None and not _is_tag(high)):
            masks[k] = None
            false += [k] if channel.range in ranges and k not in false else []
            found = f"{channel.detector}: {len(above)} of {len(high)} values read are above {limit}"
            warnings.append(f"{found}; they are used as they are")
        elif (high != high[0]).any():
            notes.append(f"{channel.detector}: bits above {limit} differ between events; removed")
    return IntegerMasks(tuple(masks), tuple(false), tuple(notes), tuple(warnings))


def _is_beyond(high: npt.NDArray[np.uint64], far: bool = False) -> bool:
    """Return True if values continue beyond the range, by their high bits.

    `far` asks for more: so far above it, or such a share, that it is not their range.
    """
    above = high[high > 0]
    if not len(above) or above.min() > NEAR or _is_tag(high):
        return False
    return not far or bool(above.max() >= FALSE_TIMES or len(above) > FALSE_ABOVE * len(high))


def _is_tag(high: npt.NDArray[np.uint64]) -> bool:
    """Return True if the high bits are the same number in nearly all events, as the number of a channel is.

    Saturated events may be more than half of all.
    """
    above = high[high > 0]
    return bool(len(above) >= TAGGED * len(high) and (above == above[0]).all())


def _masks_below_words(row: np.dtype[np.void], channels: Sequence[Channel]) -> dict[int, int]:
    """Return the masks of the integer channels whose words have more bits than their range, by number."""
    masks = {k: range_mask(channel.range) for k, channel in enumerate(channels) if channel.integer}
    return {k: mask for k, mask in masks.items() if mask is not None and mask < 2 ** (8 * _bytes(row, k)) - 1}


def _bytes(row: np.dtype[np.void], k: int) -> int:
    """Return the bytes of channel k in an event."""
    return row[f"c{k}"].itemsize
