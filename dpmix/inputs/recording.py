"""A recording as a whole: the blocks of its channels, its event rate, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.data import DataConfig
from dpmix.drift.device import Device
from dpmix.drift.judge import Judgement, judge
from dpmix.drift.summaries import BLOCK, LIMIT, Blocks, block_starts, spread_of, summarise
from dpmix.errors import DataError
from dpmix.inputs.blocks import READ_BLOCK
from dpmix.inputs.channel_names import measurement, why_not_measured
from dpmix.inputs.default_channels import some_rows
from dpmix.inputs.event_times import By, times_of
from dpmix.inputs.file_plans import FilePlan, plan_files
from dpmix.inputs.quality_channels import SIZES
from dpmix.inputs.sources import Source
from dpmix.inputs.suggest import suggest
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array
from dpmix.system.console import first_few
from dpmix.system.cores import usable_cores
from dpmix.system.progress import ProgressLog
from dpmix.system.threads import one_thread

RATE = "event rate"
RATE_LIMIT = 0.4
"""A change of the rate by a third or a half is a change of the pump; by a tenth it is usual."""

BIN_EVENTS = 50
"""Mean number of events of a bin of time, at least."""


@dataclass(frozen=True)
class Recording:
    """The judgement of one file.

    Attributes
    ----------
    name : str
    by : "time" or "event"
    n_events : int
    channels : tuple of Judgement
        In units of each channel's spread; then the event rate, if there is time.
    counted : tuple of bool
        False for a further measurement of a scatter detector, such as SSC-W next to SSC-A, which no run uses.
        The event rate counts.
    shares : tuple of float
        Share of the events in unsteady stretches of each of these.
    unsteady : float
        Share of the events in stretches where any channel that counts is unsteady.
    is_unsteady : bool [N]
        These events.
    shown_times, shown : float64 [M], [M, D]
        Some events, in units of the spread, for figures.
    """

    name: str
    by: By
    n_events: int
    channels: tuple[Judgement, ...]
    counted: tuple[bool, ...]
    shares: tuple[float, ...]
    unsteady: float
    is_unsteady: npt.NDArray[np.bool_]
    shown_times: Array
    shown: Array

    def without_arrays(self) -> Recording:
        """Return the recording with empty arrays, for when its figure is drawn, to save memory."""
        none = np.empty(0)
        channels = tuple(one.without_arrays() for one in self.channels)
        return replace(self, channels=channels, is_unsteady=none > 0, shown_times=none, shown=none[:, None])

    @property
    def sentence(self) -> str:
        """Return what was found, in one line without the name of the file."""
        bad = sorted(
            (one.low / one.limit, f"{one.name} ({one.verdict}, {one.range:.2f})", counts)
            for one, counts in zip(self.channels, self.counted, strict=True)
            if one.verdict in ("drift", "steps")
        )[::-1]
        drifting = [text for _, text, counts in bad if counts]
        others = [text for _, text, counts in bad if not counts]
        start = f"{self.n_events:,} events by {self.by}, "
        end = f"; not counted: {first_few(others)}" if others else ""
        if drifting:
            return f"{start}{self.unsteady:.1%} in unsteady stretches: {first_few(drifting)}{end}"
        both = zip(self.channels, self.counted, strict=True)
        unsure = sum(one.verdict == "unsure" for one, counts in both if counts)
        return start + (f"no drift found, {unsure} channels unsure" if unsure else "steady") + end

    @property
    def worst(self) -> Judgement:
        """Return the channel that counts whose range of drift is most certainly above its limit."""
        used = [one for one, counts in zip(self.channels, self.counted, strict=True) if counts]
        return max(used or self.channels, key=lambda one: one.low / one.limit)


def study(
    source: Source,
    by: By = "time",
    limit: float = LIMIT,
    threads: int | None = None,
    device: Device | None = None,
    local: bool = False,
) -> Recording:
    """Study a recording.

    Each thread judges a channel at a time, with one BLAS thread: the same bits for any number of threads.

    Parameters
    ----------
    source : Source
    by : "time" or "event"
    limit : float
        Smallest range of drift that matters, in units of a channel's spread.
    threads : int, optional
        Default: all cores.
    device : Device, optional
        Fit on this device. Default: the CPU.
    local : bool
        Variance and range of the signals depend on time (`dpmix.drift.local`).

    Raises
    ------
    DataError
        The file has too few events or no usable channel; `NoTimeError`: it has no usable time.
    """
    times = times_of(source, by)
    if source.n_events < 10 * BLOCK:
        raise DataError(f"{source.name}: {source.n_events} events; need at least {10 * BLOCK}")
    plan, names, transforms, taken = _channels(source)
    shown_rows = some_rows([source])[0]
    shown = np.concatenate([_read(plan, transforms, *rows) for rows in shown_rows])
    shown_times = np.concatenate([times[start:stop] for start, stop in shown_rows])
    centre, spread = np.median(shown, axis=0), spread_of(shown)
    usable = np.flatnonzero(np.isfinite(spread) & (spread > 0))
    if not len(usable):
        raise DataError(f"{source.name}: every channel is constant or not finite; give another file")
    blocks = _blocks(source, plan, transforms, times)
    tasks = [
        partial(judge, names[k], blocks.times, (blocks.medians[:, k] - centre[k]) / spread[k],
                blocks.errors[:, k] / spread[k], limit, device=device, local=local)
        for k in usable
    ]  # fmt: skip
    if by == "time":
        tasks.append(partial(judge_rate, times, device, local))
    with one_thread(), ThreadPoolExecutor(threads or usable_cores()) as pool:
        channels = list(pool.map(lambda task: task(), tasks))
    rate = channels[-1] if by == "time" else None
    counted = tuple(taken[k] for k in usable)
    is_unsteady, shares = _unsteady_events(channels[: len(usable)], counted, blocks, rate, times)
    return Recording(
        source.name,
        by,
        source.n_events,
        tuple(channels),
        (*counted, *([True] if by == "time" else [])),
        shares,
        float(is_unsteady.mean()),
        is_unsteady,
        shown_times,
        ((shown - centre) / spread)[:, usable],
    )


def _unsteady_events(
    channels: Sequence[Judgement],
    counted: Sequence[bool],
    blocks: Blocks,
    rate: Judgement | None,
    times: Array,
) -> tuple[npt.NDArray[np.bool_], tuple[float, ...]]:
    """Return which events are unsteady [N], and the shares by channel, then the rate's."""
    sizes = np.diff(blocks.starts)
    shares = [float(sizes @ one.unsteady / len(times)) for one in channels]
    used = [one.unsteady for one, counts in zip(channels, counted, strict=True) if counts]
    found = np.repeat(np.logical_or.reduce([np.zeros(len(sizes), bool), *used]), sizes)
    if rate is not None:
        many = 0
        for start in range(0, len(times), READ_BLOCK):
            place = np.searchsorted(rate.times, times[start : start + READ_BLOCK])
            own = rate.unsteady[np.minimum(place, len(rate.times) - 1)]
            found[start : start + READ_BLOCK] |= own
            many += int(own.sum())
        shares.append(many / len(times))
    return found, tuple(shares)


def judge_rate(times: Array, device: Device | None = None, local: bool = False) -> Judgement:
    """Judge the event rate by the counts in bins of time, in units of the usual rate.

    The counts k are transformed to 2 sqrt((k + 3/8) / median) - 1, whose standard error is 1 / sqrt(median)
    for Poisson counts (Anscombe 1948, Biometrika 35:246), good to 3% from a mean of 10 on; bins have at
    least 50 events on average. Near the usual rate, a difference is a relative change of the rate. The nugget
    has what varies more than Poisson counts.

    Parameters
    ----------
    times : float64 [N]
        Ascending.
    device : Device, optional
        Fit on this device. Default: the CPU.
    local : bool
        As in `judge`.
    """
    count = int(np.clip(len(times) // BIN_EVENTS, 10, 500))
    edges = np.linspace(times[0], times[-1], count + 1)
    counts = np.histogram(times, edges)[0]
    usual = max(float(np.median(counts)), 1.0)
    values = 2.0 * np.sqrt((counts + 0.375) / usual) - 1.0
    # The ends of bins, so that the first end at or after an event ends its bin.
    return judge(RATE, edges[1:], values, np.full(count, usual**-0.5), RATE_LIMIT, device=device, local=local)


def rate_of(values: Array) -> Array:
    """Return the event rate in units of the usual rate, from values on the scale of `judge_rate`."""
    return np.asarray((0.5 * np.maximum(values + 1.0, 0.0)) ** 2)


def _channels(source: Source) -> tuple[FilePlan, list[str], list[Transform], list[bool]]:
    """Return how to read the channels, uncompensated: the markers of the default config, and scatter.

    The last list is True for the channels of the default config, and for one measurement of each scatter
    detector: its area, or else its height. Scatter shows bubbles and clogs that no marker shows.
    """
    settings = suggest([source], "none").channels
    numeric = [channel.numeric for channel in source.details]
    usual = [k for k, one in enumerate(settings) if numeric[k] and (one.taken or one.why == "scatter")]
    plans, _ = plan_files(DataConfig(files=["-"], compensation="none"), Path(), [source], [usual])
    transforms = [settings[k].transform or Transform() for k in usual]
    names = [settings[k].marker or settings[k].detector for k in usual]
    return plans[0], names, transforms, [settings[k].taken or k in _sizes(source, usual) for k in usual]


def _sizes(source: Source, numbers: Sequence[int]) -> set[int]:
    """Return the best measurement of each scatter detector among some channels."""
    best: dict[str, tuple[int, int]] = {}
    for k in numbers:
        if why_not_measured(source.details[k]) == "scatter":
            own = measurement(source.channels[k], source.channels, source.kind is not None)
            if own.quantity in SIZES:
                best[own.stem] = min(best.get(own.stem, (len(SIZES), k)), (SIZES.index(own.quantity), k))
    return {k for _, k in best.values()}


def _read(plan: FilePlan, transforms: list[Transform], start: int, stop: int) -> Array:
    """Read events on the scale of the sampler before it is standardised, float64 [M, D]."""
    raw = plan.read(start, stop, None)[1]
    return np.column_stack([one.apply(raw[:, j]) for j, one in enumerate(transforms)])


def _blocks(source: Source, plan: FilePlan, transforms: list[Transform], times: Array) -> Blocks:
    """Return the summaries of all events, reading whole blocks of bounded size."""
    starts = block_starts(source.n_events)
    progress = ProgressLog(f"reading {source.name}", source.n_events)
    parts, first = [], 0
    while first < len(starts) - 1:
        last = max(int(np.searchsorted(starts, starts[first] + READ_BLOCK, "right")) - 1, first + 1)
        begin, end = int(starts[first]), int(starts[last])
        values = _read(plan, transforms, begin, end)
        if not np.isfinite(values).all():
            raise DataError(
                f"{source.name}: values that are not finite in events {begin} to {end}; remove them"
            )
        parts.append(summarise(values, times[begin:end], starts[first : last + 1] - begin))
        progress.add(end - begin)
        first = last
    medians = np.concatenate([part.medians for part in parts])
    sizes = np.array([len(part.times) for part in parts])
    errors = np.average([part.errors[0] for part in parts], axis=0, weights=sizes)
    return Blocks(
        starts,
        np.concatenate([part.times for part in parts]),
        medians,
        np.broadcast_to(errors, medians.shape),
    )
