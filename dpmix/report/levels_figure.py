"""The figure of a channel for `dpmix levels`: its events with its thresholds, and positive shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dpmix.model.mixture import Array
from dpmix.populations.positive import Positive
from dpmix.report.drawing import new_figure
from dpmix.report.labels import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOUNDARIES = "- lo", "- +", "+ hi"
SHOWN = 30  # populations of a figure, the largest
BINS = 160


def channel_figure(measured: Positive, phenotypes: Mapping[int, str], channel: int, values: Array) -> Figure:
    """Draw the events of a channel [N] with its thresholds, and the positive share of each population."""
    from matplotlib.ticker import PercentFormatter

    shares = measured.shares(channel)
    drawn = min(len(phenotypes), SHOWN)
    figure = new_figure(8.0, 1.4 + (0.19 * drawn if shares else 1.2))
    axes, rows = figure.subplots(1, 2, width_ratios=(1.0, 0.8))
    low, high = np.quantile(values, (0.001, 0.999))
    axes.hist(np.clip(values, low, high), BINS, range=(low, high + 1e-9), color="#9aa5b1")
    for k, colour in enumerate(("#8a3b00", "#111111", "#00688b")):
        if (known := measured.thresholds(k, channel)) is not None:
            axes.axvspan(known[1], known[2], color=colour, alpha=0.25, linewidth=0)
            axes.axvline(known[0], color=colour, linewidth=1.0)
            axes.text(known[0], 1.01, BOUNDARIES[k], transform=axes.get_xaxis_transform(), ha="center")
    axes.set_yticks([])
    axes.set_xlabel(f"{shortened(measured.channels[channel], 40)}, transformed scale")
    axes.set_ylabel("events")
    if shares is None:
        rows.set_axis_off()
        rows.text(0.0, 0.5, f"no threshold: {measured.support[1, channel]:.0%} of the draws have one")
        return figure
    mean, below, above = (each[-1, :drawn] for each in shares)
    at = np.arange(drawn)
    rows.hlines(at, below, above, colors="#111111", linewidth=2.0)
    rows.scatter(mean, at, c="#111111", s=14, zorder=3)
    rows.set_xlim(-0.02, 1.02)
    rows.set_ylim(drawn - 0.4, -0.6)
    names = [f"{number} {shortened(name, 26)}".strip() for number, name in phenotypes.items()]
    rows.set_yticks(at, names[:drawn])
    rows.grid(axis="x", color="#dddddd", linewidth=0.5)
    rows.set_axisbelow(True)
    rows.xaxis.set_major_formatter(PercentFormatter(1.0))
    rows.set_xlabel("positive cells, with 90% intervals")
    return figure
