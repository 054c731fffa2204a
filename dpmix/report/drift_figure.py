"""The figure of a recording: the signal of each channel with its interval, over the density of events."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpmix.drift.averages import average, group_starts
from dpmix.drift.judge import Judgement
from dpmix.inputs.recording import Recording, rate_of
from dpmix.model.mixture import Array
from dpmix.report.drawing import new_figure, styled
from dpmix.report.palette import colour, strength

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = (160, 48)
POINTS = 1_024
"""More blocks of a stretch are drawn in this many groups: mean of the signal, and all of the intervals."""

HALF_HEIGHT = 3.0
"""Spreads shown above and below the middle of a channel; more where the signal goes further."""


def png(recording: Recording) -> bytes:
    """Return the figure as PNG, one row per channel, the event rate last."""
    with styled():
        many = len(recording.channels)
        figure = new_figure(8.0, 1.25 * many + 0.4)
        grid = figure.subplots(many, 1, sharex=True, squeeze=False)[:, 0]
        for row, (axes, one) in enumerate(zip(grid, recording.channels, strict=True)):
            is_rate = row >= recording.shown.shape[1]
            if not is_rate:
                _density(axes, recording, row, one)
            _signal(axes, one, rate_of if is_rate else np.asarray)
        grid[-1].set_xlabel("time, as stored" if recording.by == "time" else "event number")
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()


def _density(axes: Axes, recording: Recording, row: int, one: Judgement) -> None:
    """Draw the density of events, each column of time by its own count."""
    ends = max(HALF_HEIGHT, float(np.abs(one.mean).max()) + 0.5)
    counts, x, y = np.histogram2d(
        recording.shown_times,
        recording.shown[:, row],
        bins=BINS,
        range=[(float(recording.shown_times[0]), float(recording.shown_times[-1])), (-ends, ends)],
    )
    axes.pcolormesh(x, y, strength(counts.astype(np.int64)).T, cmap="Greys", vmin=0.0, vmax=1.6)


def _signal(axes: Axes, one: Judgement, scale: Callable[[Array], Array]) -> None:
    """Draw the signal on a scale, its 90% interval, the change points and the unsteady stretches."""
    ends = [0, *one.changes, len(one.times)]
    mean, low, high = (scale(one.mean + z * one.sd) for z in (0.0, -1.6449, 1.6449))
    for start, stop in itertools.pairwise(ends):
        part, groups = slice(start, stop), group_starts(stop - start, POINTS)
        times = average(one.times[part], groups)
        lowest, highest = np.minimum.reduceat(low[part], groups), np.maximum.reduceat(high[part], groups)
        axes.fill_between(times, lowest, highest, color=colour(0), alpha=0.35, linewidth=0)
        axes.plot(times, average(mean[part], groups), color=colour(0), linewidth=1.2)
    for time in one.change_times:
        axes.axvline(time, color=colour(1), linewidth=0.8, linestyle="--")
    if one.unsteady.any():
        bottom, groups = axes.get_ylim()[0], group_starts(len(one.times), POINTS)
        times = average(one.times, groups)[np.logical_or.reduceat(one.unsteady, groups)]
        axes.plot(times, np.full(len(times), bottom), "s", color=colour(1), markersize=2.5)
    width = f"{one.range:.2f} ({one.low:.2f} to {one.high:.2f})"
    axes.set_title(f"{one.name}: {one.verdict}, range {width}")
