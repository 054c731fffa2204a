"""Empty figures of the page, which its script fills: pairs of channels, and the tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmix.report.dendrogram import AXIS_LABEL
from dpmix.report.page_plots import new_plot

BINS = 128


def figures(n_pairs: int) -> dict[str, Any]:
    """Return the figures as Bokeh's JSON, by name: `pair0`, `pair1`, ... and `tree`."""
    from bokeh.embed import json_item

    plots = {f"pair{k}": _pair(k) for k in range(n_pairs)} | {"tree": _tree()}
    return {name: json_item(plot) for name, plot in plots.items()}


def _pair(number: int) -> Any:
    """Return the figure of two channels; an image of the density in colours of the populations."""
    from bokeh.models import ColumnDataSource, FixedTicker, Range1d

    plot = new_plot(
        name=f"pair{number}",
        sizing_mode="scale_width",
        width=420,
        height=380,
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
        tools="box_select,lasso_select,pan,wheel_zoom,reset,save",
        active_drag="box_select",
    )
    plot.toolbar.autohide = False
    plot.toolbar.active_scroll = None
    plot.grid.visible = False
    for axis in (plot.xaxis, plot.yaxis):
        axis.ticker = FixedTicker(ticks=[], minor_ticks=[])
    columns: dict[str, Any] = {"image": [np.zeros((BINS, BINS), np.uint32)]}
    columns |= {"x": [0], "y": [0], "dw": [1], "dh": [1]}
    source = ColumnDataSource(columns, name=f"image{number}")
    plot.image_rgba("image", x="x", y="y", dw="dw", dh="dh", source=source)
    return plot


def _tree() -> Any:
    """Return the figure of the tree: brackets in the colours of the populations, leaves, and the cut."""
    from bokeh.models import ColumnDataSource, NumeralTickFormatter, Range1d
    from bokeh.models.annotations import Span

    plot = new_plot(
        name="tree",
        height=200,
        x_axis_type="log",
        x_axis_label=AXIS_LABEL,
        x_range=Range1d(start=10, end=1),
        y_range=Range1d(start=1, end=0),
        tools="save",
    )
    plot.xaxis.ticker = []  # the script sets them
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0000]")
    plot.yaxis.visible = False
    plot.grid.visible = False
    brackets = ColumnDataSource({"x": [], "y": [], "colour": []}, name="brackets")
    plot.multi_line("x", "y", line_color="colour", line_width=2, source=brackets)
    leaves = ColumnDataSource({"x": [], "y": [], "text": [], "colour": []}, name="leaves")
    plot.scatter("x", "y", marker="square", size=9, color="colour", source=leaves)
    plot.text(
        "x",
        "y",
        "text",
        x_offset=10,
        text_baseline="middle",
        text_font_size="12px",
        source=leaves,
        name="names",
    )
    plot.add_layout(Span(name="cut", location=1, dimension="height", line_dash="dashed", line_width=1.5))
    return plot
