"""The curve from which a run chose its coarseness (model.coarseness: auto), for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmix.report.drawing import log_ticks, new_figure
from dpmix.report.page_plots import add_hover, new_plot
from dpmix.report.palette import GREY, colour
from dpmix.runs.coarseness import CoarsenessChoice

if TYPE_CHECKING:
    from bokeh.model import Model
    from matplotlib.figure import Figure

AXIS = "coarseness, events"
FIT = "held-out log density, difference from the best (nats)"
COMPLEXITY = "occupied components"


def caption(choice: CoarsenessChoice) -> str:
    """Return what the figure shows, in sentences; "" where there is no curve to show."""
    if choice.curve is None:
        return ""
    return (
        "Bayesian EM was fitted to a part of the events with several values of the coarseness. Fit: mean "
        "log density of other events, compared with the best fit, with one standard error. Dashed: the "
        f"coarseness of the run, {choice.coarseness:,.0f} events. There, the fit begins to level off while "
        "the number of components grows (model.coarseness: auto)."
    )


def coarseness(choice: CoarsenessChoice) -> Figure:
    """Draw fit and complexity against the coarseness, one above the other."""
    curve = choice.curve
    assert curve is not None
    figure = new_figure(5.0, 4.0)
    fit, complexity = figure.subplots(2, 1, sharex=True)
    line = {"marker": "o", "markersize": 3, "linewidth": 1.0}
    fit.errorbar(
        curve.grid, curve.held_out - curve.held_out[curve.best], curve.errors, color=colour(0), **line
    )
    complexity.plot(curve.grid, curve.components, color=colour(1), **line)
    for axes, title in ((fit, FIT), (complexity, COMPLEXITY)):
        axes.axvline(curve.grid[choice.place], color=GREY, linestyle=(0, (4, 3)), linewidth=0.9)
        axes.set_title(title)
    complexity.set_ylim(0, None)
    complexity.set_xscale("log")
    log_ticks(complexity.xaxis, lambda value: f"{value:,.0f}")
    complexity.set_xlabel(f"{AXIS} (dashed: chosen)")
    return figure


def coarseness_plot(choice: CoarsenessChoice) -> Model:
    """Return the same as a figure of the page."""
    from bokeh.layouts import column
    from bokeh.models import NumeralTickFormatter, Range1d
    from bokeh.models.annotations import Span

    curve = choice.curve
    assert curve is not None
    below = curve.held_out - curve.held_out[curve.best]
    source = {"x": curve.grid, "fit": below, "components": curve.components, "error": curve.errors}
    source |= {"low": below - curve.errors, "high": below + curve.errors}
    plots = []
    for number, (name, title) in enumerate((("fit", FIT), ("components", COMPLEXITY))):
        plot = new_plot(height=200, x_axis_type="log", title=title, x_axis_label=AXIS)
        plot.line("x", name, source=source, line_color=colour(number), line_width=1)
        if name == "fit":
            plot.segment("x", "low", "x", "high", source=source, line_color=colour(number))
        points = plot.scatter("x", name, source=source, size=7, color=colour(number))
        value = (FIT, "@fit{0.000}, error @error{0.000}") if name == "fit" else (COMPLEXITY, "@components")
        add_hover(plot, points, (AXIS, "@x{0,0}"), value)
        line = Span(location=choice.coarseness, dimension="height", line_dash="dashed", line_width=1.5)
        plot.add_layout(line)
        plot.xaxis.ticker = curve.grid.tolist()
        plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
        plots.append(plot)
    plots[1].y_range = Range1d(start=0, end=1.05 * curve.components.max())
    return column(*plots, sizing_mode="stretch_width")
