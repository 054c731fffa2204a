"""The time of each event: its channel, what is wrong with it, and a first look at what changes over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dpmix.drift.summaries import BLOCK, LIMIT, spread_of, summarise
from dpmix.errors import DataError
from dpmix.inputs.blocks import blocks
from dpmix.inputs.channel_names import why_not_measured
from dpmix.inputs.default_channels import Rows
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Array
from dpmix.system.console import first_few

By = Literal["time", "event"]

FEWEST_TIMES = 20

PARTS = 20
CERTAIN = 6.0
"""Parts of a recording at a first look, and standard errors that the range of their medians must exceed.

Of 20 equal normal variates, the range is above 6 standard deviations once in a thousand times.
"""


class NoTimeError(DataError):
    """A file has no usable time. The message says why, and the caller what to do."""


def times_of(source: Source, by: By = "time") -> Array:
    """Return the time or number of each event, float64 [N], ascending.

    Raises
    ------
    NoTimeError
        The file has no usable time.
    """
    if by == "event":
        return np.arange(source.n_events, dtype=np.float64)
    channel = time_channel(source)
    if channel is None:
        raise NoTimeError(f"{source.name}: has no channel of time")
    times = read_times(source, channel)
    if problem := time_problem(times):
        raise NoTimeError(f"{source.name}: {source.channels[channel]} {problem}")
    return times


def time_channel(source: Source) -> int | None:
    """Return the number of the channel of time in a file, None without one."""
    channels = enumerate(source.details)
    return next((k for k, one in channels if one.numeric and why_not_measured(one) == "time"), None)


def read_times(source: Source, channel: int) -> Array:
    """Return a channel of all events, float64 [N], reading them piece by piece.

    Seconds since 1970 need float64: float32 has steps of 128 there.
    """
    times = np.empty(source.n_events)
    for start, stop in blocks(source.n_events):
        times[start:stop] = source.read_exact(start, stop, [channel])[:, 0]
    return times


def time_problem(times: Array) -> str:
    """Return why times, float64 [N], cannot be used, "" if they can."""
    if not np.isfinite(times).all():
        return f"has {int((~np.isfinite(times)).sum())} values that are not finite"
    falls = np.flatnonzero(times[1:] < times[:-1])
    if len(times) and times.min() == times.max():
        return f"is constant: {times[0]:g}"
    if len(falls):
        depth = (times[falls] - times[falls + 1]).min()
        if depth > 0.5 * (times.max() - times.min()):
            return f"wraps or starts again after event {falls[0] + 1} ({len(falls)} times in all)"
        return f"is not sorted: it falls {len(falls)} times, first after event {falls[0] + 1}"
    different = int((times[1:] > times[:-1]).sum()) + 1
    if different < FEWEST_TIMES:
        return f"repeats: {different} different values in {len(times)} events, need {FEWEST_TIMES}"
    return ""


def first_look(source: Source, rows: Sequence[Rows], names: Sequence[str], values: Array) -> str:
    """Return a line about the channels that may change over time, "" without any; `dpmix drift` judges them.

    Parameters
    ----------
    source : Source
    rows : sequence of (int, int)
        Stretches of the file that were read.
    names : sequence of str
        Names of D channels.
    values : float64 [M, D]
        Their transformed values in these stretches.
    """
    channel = time_channel(source)
    if channel is None or len(values) < PARTS * BLOCK:
        return ""
    times = np.concatenate([source.read_exact(start, stop, [channel])[:, 0] for start, stop in rows])
    if problem := time_problem(times):
        part = "" if len(values) == source.n_events else " (counted among the events read)"
        return f"{source.name}: {source.channels[channel]} {problem}{part}"
    found = summarise(values, times, np.linspace(0, len(values), PARTS + 1).astype(np.int64))
    spread = np.maximum(spread_of(values), np.finfo(float).tiny)
    ranges = np.ptp(found.medians, axis=0) / spread
    bad = np.flatnonzero(ranges - CERTAIN * found.errors[0] / spread > LIMIT)
    if not len(bad):
        return ""
    shown = first_few([f"{names[j]} ({ranges[j]:.1f})" for j in bad[np.argsort(-ranges[bad])]])
    return (
        f"{source.name}: {shown} may change over time (a first look, in units of the channel's spread); "
        "dpmix drift judges it: choose data.time: drop or correct, if it finds drift"
    )
