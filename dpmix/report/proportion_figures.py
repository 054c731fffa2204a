"""Figures of the proportions of populations in samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmix.populations.result import Gating
from dpmix.report.drawing import new_figure, percent_axis
from dpmix.report.labels import (
    estimate_note,
    fewest_events,
    first,
    label,
    only_the_largest,
    share_limits,
    share_rows,
    short_samples,
    shortened,
    shown,
)
from dpmix.report.palette import colour_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_IN_ROWS = 6  # samples drawn in one panel; for more, each population has a panel
MOST_NAMED = 60  # samples whose names stand below the panels
# Colours and marks of samples in one panel: distinguishable by lightness and by shape.
SAMPLES = ("#111111", "#8a3b00", "#00688b", "#7a5195", "#b8860b", "#5f9e6e")
MARKERS = "osD^vP"


def proportions(gating: Gating) -> Figure:
    """Draw each population's proportion with its 90% credible interval, for each sample."""
    return _rows(gating) if len(gating.samples) <= MOST_IN_ROWS else _panels(gating)


def _rows(gating: Gating) -> Figure:
    """Draw a row for each population, with a point and an interval for each sample."""
    drawn, samples = shown(gating), len(gating.samples)
    mean, low, high = estimates = first(gating.estimates, drawn)
    left, right = share_limits(estimates, fewest_events(gating))
    figure = new_figure(7.5, 1.3 + drawn * max(0.19, 0.1 * samples) + 0.16 * (samples > 1) * samples)
    axes = figure.add_subplot()
    rows = share_rows(gating)
    for sample in range(samples):
        at = rows + (sample - (samples - 1) / 2.0) * 0.8 / samples
        colours = [colour_of(gating, p) for p in range(drawn)] if samples == 1 else [SAMPLES[sample]] * drawn
        if len(gating.proportions) > 1:
            axes.hlines(
                at,
                np.maximum(low[sample], left),
                np.maximum(high[sample], left),
                colors=colours,
                linewidth=2.0,
            )
        named = shortened(gating.samples[sample], 60)
        axes.scatter(np.maximum(mean[sample], left), at, c=colours, s=14, zorder=3, marker=MARKERS[sample])
        if samples > 1:
            axes.scatter(
                [], [], c=SAMPLES[sample], s=14, marker=MARKERS[sample], label=f"{sample + 1}: {named}"
            )
    if samples > 1:
        figure.legend(loc="outside upper left", frameon=False)
    axes.set_xlim(left, right)
    percent_axis(axes, "x")
    axes.set_ylim(drawn - 0.4, -0.6)
    axes.set_yticks(rows, [label(gating, p) for p in range(drawn)])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"proportion of the events: {estimate_note(gating)}")
    axes.set_title(f"Proportions{only_the_largest(gating)}")
    return figure


def _panels(gating: Gating) -> Figure:
    """Draw a panel for each population, with the samples side by side."""
    drawn, samples = shown(gating), len(gating.samples)
    mean, low, high = estimates = first(gating.estimates, drawn)
    bottom, top = share_limits(estimates, fewest_events(gating))
    columns = min(4, drawn)
    rows = -(-drawn // columns)
    named = short_samples(gating.samples) if samples <= MOST_NAMED else []
    figure = new_figure(
        max(3.0, 0.11 * len(named)) * columns, 1.25 * rows + 0.5 + 0.06 * max(map(len, named), default=0)
    )
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    numbers = np.arange(1, samples + 1)
    for axes in grid[drawn:]:
        axes.set_axis_off()
    for population, axes in zip(np.argsort(share_rows(gating)).tolist(), grid, strict=False):
        own = colour_of(gating, population)
        if len(gating.proportions) > 1:
            axes.vlines(
                numbers,
                np.maximum(low[:, population], bottom),
                np.maximum(high[:, population], bottom),
                colors=own,
                linewidth=max(0.6, min(2.0, 80.0 / samples)),
                alpha=0.6,
            )
        axes.plot(numbers, np.maximum(mean[:, population], bottom), "o", color=own, markersize=2.0)
        axes.set_title(label(gating, population, 32), fontsize=7.5)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    grid[0].set_ylim(bottom, top)
    percent_axis(grid[0], "y")
    for axes in grid[max(drawn - columns, 0) : drawn] if named else ():
        axes.set_xticks(numbers, named, rotation=90, fontsize=5.5)
        axes.tick_params(labelbottom=True)
    figure.supxlabel("sample, in file order", fontsize=8)
    figure.supylabel(f"proportion: {estimate_note(gating)}{only_the_largest(gating)}", fontsize=8)
    return figure
