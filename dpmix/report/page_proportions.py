"""Bokeh figures of the proportions of populations, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.populations.explored import Explored, explored_of, extended
from dpmix.populations.result import Gating
from dpmix.report.labels import (
    fewest_events,
    first,
    label,
    share_limits,
    share_rows,
    short_samples,
    shown,
    ticks,
)
from dpmix.report.page_plots import add_hover, name_axis, names_of, new_plot, plain, plot_range
from dpmix.report.palette import GREY, colour_of

if TYPE_CHECKING:
    from bokeh.model import Model
    from bokeh.plotting import figure as Plot

MOST_NAMED = 60  # samples whose names fit below a plot
PERCENT = "{0.[000]%}"  # Bokeh's format of a proportion


def proportion_plots(gating: Gating) -> dict[str, Model]:
    """Return the figures by their place in the template."""
    shown_gating = extended(gating)
    plots: dict[str, Model] = {"proportions": _overall(shown_gating, explored_of(gating))}
    if len(gating.samples) > 1:
        plots["samples"] = _samples(shown_gating)
    return plots


def _percent_axis(axis: Any, places: list[float]) -> None:
    from bokeh.models import NumeralTickFormatter

    axis.formatter = NumeralTickFormatter(format="0.[000000]%")
    axis.ticker = places


def _overall(gating: Gating, explored: Explored | None) -> Plot:
    """Return the proportions in all samples together, one row for each population."""
    from bokeh.models import ColumnDataSource

    drawn = shown(gating)
    n_draws, estimates = len(gating.draws), np.array(first(gating.overall, drawn))
    rows = share_rows(gating)
    least, most = share_limits(estimates, int(gating.n_events.sum()))
    if explored is not None and explored.index < drawn:
        ends = explored.proportion, explored.low, explored.high
        estimates[:, explored.index] = ends
        least, most = min(least, 0.7 * max(ends[1], least)), min(1.0, max(most, 1.4 * ends[2]))
    source = ColumnDataSource(
        {
            "y": rows,
            "colour": [colour_of(gating, p) for p in range(drawn)],
            "who": names_of(gating, range(drawn)),
            **dict(zip(("mean", "low", "high"), estimates, strict=True)),
        }
    )
    many = len(gating.samples)
    if many > 1:
        limits = share_limits(first(gating.estimates, drawn), fewest_events(gating))
        least, most = min(least, limits[0]), max(most, limits[1])
    plot = new_plot(
        height=80 + (20 if many == 1 else 26 + min(3 * many, 24)) * drawn,
        x_axis_type="log",
        x_range=plot_range(least, most),
        y_range=plot_range(drawn - 0.4, -0.6),
        tools="save",
    )
    if many > 1:
        _add_samples(plot, gating, least)
    if n_draws > 1:
        plot.segment("low", "y", "high", "y", source=source, line_color="colour", line_width=3)
    points = plot.scatter("mean", "y", source=source, size=9, color="colour", line_color=GREY)
    add_hover(plot, points, ("population", "@who"), *_estimate_tips(n_draws))
    name_axis(plot.yaxis, [label(gating, p, 36) for p in np.argsort(rows).tolist()])
    _percent_axis(plot.xaxis, ticks(least, most))
    plot.ygrid.visible = False
    return plot


def _add_samples(plot: Plot, gating: Gating, least: float) -> None:
    """Add the proportions in each sample: in the row of each population, one below the other."""
    from bokeh.models import ColumnDataSource

    drawn, many = shown(gating), len(gating.samples)
    mean, low, high = (np.maximum(each, least) for each in first(gating.estimates, drawn))
    offsets = (np.arange(many) + 0.5) / many * 0.8 - 0.4
    columns: dict[str, Any] = {
        "y": (share_rows(gating) + offsets[:, None]).ravel(),
        "colour": [colour_of(gating, p) for p in range(drawn)] * many,
        "who": names_of(gating, range(drawn)) * many,
        "sample": np.repeat(gating.samples, drawn),
    }
    columns |= {name: each.ravel() for name, each in (("mean", mean), ("low", low), ("high", high))}
    source = ColumnDataSource(columns)
    faint: Any = {"line_color": "colour", "line_alpha": 0.45, "line_width": max(0.5, min(1.5, 20 / many))}
    if len(gating.draws) > 1:
        plot.segment("low", "y", "high", "y", source=source, **faint)
    dots = plot.scatter(
        "mean", "y", source=source, size=4, fill_color="colour", fill_alpha=0.6, line_color=None
    )
    tips = [("population", "@who"), ("sample", "@sample"), *_estimate_tips(len(gating.draws))]
    add_hover(plot, dots, *tips)


def _estimate_tips(n_draws: int) -> list[tuple[str, str]]:
    """Return the rows of a tooltip about a proportion."""
    tips = [("proportion", f"@mean{PERCENT}"), ("90% interval", f"@low{PERCENT} to @high{PERCENT}")]
    return tips if n_draws > 1 else tips[:1]


def _samples(gating: Gating) -> Plot:
    """Return the proportion of one population in each sample, which the script of the page fills."""
    from bokeh.models import BasicTicker, ColumnDataSource

    n_draws, many = len(gating.draws), len(gating.samples)
    least, most = share_limits(first(gating.estimates, shown(gating)), fewest_events(gating))
    columns: dict[str, Any] = {"x": np.arange(1, many + 1), "sample": gating.samples}
    columns |= {name: [most] * many for name in ("mean", "low", "high")} | {"colour": ["#ffffff"] * many}
    source = ColumnDataSource(columns, name="samples")
    named = short_samples(gating.samples)
    plot = new_plot(
        height=300 + (6 * max(map(len, named)) if many <= MOST_NAMED else 0),
        name="shares",
        y_axis_type="log",
        y_range=plot_range(least, most),
        x_range=plot_range(0.3, many + 0.7),
        x_axis_label="" if many <= MOST_NAMED else "sample, in file order",
    )
    if n_draws > 1:
        plot.segment("x", "low", "x", "high", source=source, line_color="colour", line_width=2)
    points = plot.scatter("x", "mean", source=source, size=7, color="colour")
    add_hover(plot, points, ("sample", "@sample"), *_estimate_tips(n_draws))
    # The script shows only the range of one population.
    _percent_axis(plot.yaxis, [digit * 10.0**power for power in range(-9, 1) for digit in (1, 2, 3, 5, 7)])
    if many <= MOST_NAMED:
        plot.xaxis.ticker = list(range(1, many + 1))
        plot.xaxis.major_label_overrides = {k: plain(name) for k, name in enumerate(named, 1)}
        plot.xaxis.major_label_orientation = "horizontal" if many <= 4 else "vertical"
    else:
        plot.xaxis.ticker = BasicTicker(mantissas=[1, 2, 5], min_interval=1, num_minor_ticks=0)
    plot.xgrid.visible = False
    return plot
