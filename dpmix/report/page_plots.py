"""Bokeh figures of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.populations.explored import extended
from dpmix.populations.result import Gating, Map
from dpmix.report import dendrogram
from dpmix.report.embedding import map_numbers, map_point, map_window
from dpmix.report.findings import numbers_of
from dpmix.report.heatmap import heat
from dpmix.report.labels import label, share_text, shares, shortened, ticks
from dpmix.report.pairs import densities
from dpmix.report.palette import GREY, colour, colour_of, ink
from dpmix.report.traces import Trace, thinned, traces
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run

if TYPE_CHECKING:
    from bokeh.model import Model
    from bokeh.plotting import figure as Plot

EXPLORED: Any = {"color": "black", "line_color": "white", "line_width": 0.7}  # explored cells as points
LINE = "#8c8c8c40"  # of grids, on light and dark
TRACE_POINTS = 20_000  # points of all traces of a quantity together


def page_plots(gating: Gating, run: Run, mixing: list[Mixing]) -> dict[str, Model]:
    """Return the figures by their place in the template, but for the figures of `page_proportions`."""
    plots: dict[str, Model] = {
        "markers": _markers(gating) if len(gating.rasters.pairs) else _one_marker(gating),
        "heatmap": _heatmap(extended(gating)),
        "tree": _tree(gating),
        "traces": _traces(run, mixing),
    }
    if gating.map is not None:
        plots["map"] = _map(gating, gating.map)
    return plots


def names_of(gating: Gating, populations: Any) -> list[str]:
    """Return the names of populations in tooltips."""
    return [label(gating, int(p), 70) for p in populations]


def plain(text: str) -> str:
    """Insert invisible word joiners into the marks that Bokeh would interpret as mathematics."""
    for mark in ("$$", "\\(", "\\["):
        text = text.replace(mark, f"{mark[0]}\u2060{mark[1]}")
    return text


def new_plot(**options: Any) -> Plot:
    """Return a figure as wide as its place, with tools that leave the mouse wheel to the page."""
    from bokeh.plotting import figure

    plot = figure(**({"sizing_mode": "stretch_width", "tools": "pan,box_zoom,reset,save"} | options))
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.grid.grid_line_color = LINE
    plot.background_fill_color = plot.border_fill_color = None
    plot.outline_line_color = None
    return plot


def _square(x: tuple[float, float], y: tuple[float, float], **options: Any) -> Plot:
    """Return a figure of fixed shape, without axes, that can zoom with the mouse wheel if switched on."""
    plot = new_plot(
        sizing_mode="scale_width",
        width=680,
        height=640,
        x_range=plot_range(*x),
        y_range=plot_range(*y),
        tools="pan,box_zoom,wheel_zoom,reset,save",
        x_axis_type=None,
        y_axis_type=None,
        **options,
    )
    plot.toolbar.active_scroll = None
    return plot


def plot_range(start: float, end: float) -> Any:
    from bokeh.models import Range1d

    return Range1d(start=start, end=end)


def add_hover(plot: Plot, renderer: Any, *rows: tuple[str, str], **options: Any) -> None:
    from bokeh.models import HoverTool

    plot.add_tools(HoverTool(renderers=[renderer], tooltips=list(rows), **options))


def name_axis(axis: Any, names: list[str]) -> None:
    """Show names at 0, 1, 2, ... of an axis."""
    axis.ticker = list(range(len(names)))
    axis.major_label_overrides = {place: plain(name) for place, name in enumerate(names)}
    axis.major_tick_line_color = None
    axis.axis_line_color = None


def _empty_source(name: str, *columns: str) -> Any:
    """Return a source that the script of the page fills."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({column: [] for column in columns}, name=name)


def _markers(gating: Gating) -> Plot:
    """Return the figure of two markers, which the script of the page fills."""
    from bokeh.models import ColumnDataSource, FixedTicker, LinearAxis

    bins = gating.rasters.edges.shape[1] - 1
    plot = _square((0, 1), (0, 1), name="markers")
    plot.toolbar.autohide = False
    for name, place in (("across", plot.below), ("up", plot.left)):
        ticker: Any = FixedTicker(ticks=[], minor_ticks=[])
        place.append(LinearAxis(name=name, ticker=ticker))
    columns: dict[str, Any] = {"image": [np.zeros((bins, bins), np.uint32)], "who": [""], "events": [""]}
    columns |= {"x": [0], "y": [0], "dw": [1], "dh": [1]}
    source = ColumnDataSource(columns, name="bins")
    image = plot.image_rgba("image", x="x", y="y", dw="dw", dh="dh", source=source)
    add_hover(plot, image, ("population", "@who"), ("events here", "@events"))
    outlined = _empty_source("outlines", "x", "y", "colour")
    plot.multi_line("x", "y", source=outlined, line_color="colour", line_width=2)
    if gating.exploration is not None:
        plot.scatter("x", "y", source=_empty_source("explored", "x", "y"), size=5, **EXPLORED)
    plot.add_glyph(_empty_source("numbers", "x", "y", "text", "colour", "ink"), _number_glyph())
    return plot


def _number_glyph() -> Any:
    """Return numbers of populations on their colours: columns x, y, text, colour and ink."""
    from bokeh.models import Text

    badge: Any = {"padding": 2, "border_radius": 3}  # Bokeh's own types for these are too narrow
    return Text(
        x="x",
        y="y",
        text="text",
        text_color="ink",
        text_align="center",
        text_baseline="middle",
        text_font_size="12px",
        background_fill_color="colour",
        border_line_color="white",
        **badge,
    )


def _map(gating: Gating, events: Map) -> Plot:
    """Return the map; the script of the page adds the name of each event's population."""
    from bokeh.models import ColumnDataSource, LinearColorMapper

    (left, bottom), side = map_window(events)
    plot = _square((left, left + side), (bottom, bottom + side))
    plot.grid.visible = False
    many = gating.n_populations
    columns: dict[str, Any] = {
        **dict(zip("xy", events.places.T, strict=True)),
        "population": events.populations.astype(np.int16),
        "who": [""] * len(events.places),
    }
    palette = LinearColorMapper(
        palette=[colour_of(gating, p) for p in range(many)], low=-0.5, high=many - 0.5, name="colours"
    )
    points = plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(columns, name="events"),
        size=640.0 * map_point(events),
        fill_color={"field": "population", "transform": palette},
        line_color=None,
    )
    add_hover(plot, points, ("population", "@who"), limit=1)
    populations, places = map_numbers(gating, events)
    colours = [colour_of(gating, p) for p in populations.tolist()]
    numbers = {
        **dict(zip("xy", places.T, strict=True)),
        "text": [str(gating.number(p)) for p in populations.tolist()],
        "colour": colours,
        "ink": [ink(c) for c in colours],
    }
    plot.add_glyph(ColumnDataSource(numbers), _number_glyph())
    return plot


def _one_marker(gating: Gating) -> Plot:
    """Return the density of each population in a single channel."""
    plot = new_plot(height=320, x_axis_label=plain(gating.short_channels[0]), y_axis_label="density")
    for p, (places, density) in enumerate(densities(gating)):
        source = {"x": places, "y": density, "who": names_of(gating, [p]) * len(places)}
        line = plot.line("x", "y", source=source, color=colour_of(gating, p), line_width=2)
        plot.varea(places, np.zeros_like(density), density, fill_color=colour_of(gating, p), fill_alpha=0.25)
        add_hover(plot, line, ("population", "@who"), ("at", "$x{0.00}"))
    return plot


def _heatmap(gating: Gating) -> Plot:
    from bokeh.models import FixedTicker, LinearColorMapper
    from bokeh.models.annotations import ColorBar
    from bokeh.palettes import Cividis256

    cells = heat(gating)
    rows, columns = cells.levels.shape
    y, x = np.indices(cells.levels.shape)
    chosen = np.ix_(np.arange(1, 4), cells.populations, cells.channels)
    lower, median, upper = gating.measured_quantiles[chosen].reshape(3, -1)
    channels = [gating.short_channels[c] for c in cells.channels]
    source = {
        "x": x.ravel(),
        "y": y.ravel(),
        "level": cells.levels.ravel(),
        "who": np.repeat(names_of(gating, cells.populations), columns),
        "marker": channels * rows,
        "median": [_number(value) for value in median],
        "middle": [f"{_number(a)} to {_number(b)}" for a, b in zip(lower, upper, strict=True)],
    }
    plot = new_plot(
        height=150 + 20 * rows + 6 * min(max(map(len, channels)), 24),
        max_width=480 + 46 * columns,
        x_range=plot_range(-0.5 - 0.16 * columns, columns - 0.5),
        y_range=plot_range(rows - 0.5, -0.5 - max(0.1 * rows, 2.0)),
        tools="save",
        y_axis_location="right",
    )
    mapper = LinearColorMapper(palette=list(Cividis256), low=0.0, high=1.0, nan_color="#dddddd")
    fill: Any = {"field": "level", "transform": mapper}
    boxes = plot.rect("x", "y", 1, 1, source=source, fill_color=fill, line_color=None)
    side, top = -0.6, -0.7
    for tree, turned, room in (
        (cells.row_tree, True, 0.15 * columns),
        (cells.column_tree, False, 0.9 * max(0.1 * rows, 2.0)),
    ):
        places, heights = tree
        levels = (side if turned else top) - room * heights
        xs, ys = (levels, places) if turned else (places, levels)
        plot.multi_line(xs.tolist(), ys.tolist(), line_color=GREY, line_width=1)
    bar = ColorBar(
        color_mapper=mapper,
        ticker=FixedTicker(ticks=[0.0, 0.5, 1.0]),
        major_label_overrides={0.0: "1%", 0.5: "middle", 1.0: "99%"},
        title="from the 1% to the 99% quantile of all events in the marker",
        height=10,
        width=260,
        background_fill_color=None,
    )
    plot.add_layout(bar, "below")
    tips = (("population", "@who"), ("marker", "@marker"), ("median", "@median"), ("quartiles", "@middle"))
    add_hover(plot, boxes, *tips)
    name_axis(plot.xaxis, [shortened(name, 24) for name in channels])
    name_axis(plot.yaxis, [f"{label(gating, p, 36)}  {share_text(gating, p)}" for p in cells.populations])
    plot.xaxis.major_label_orientation = "vertical"
    plot.grid.visible = False
    return plot


def _number(value: float) -> str:
    return "no events" if np.isnan(value) else f"{value:.3g}"


def _tree(gating: Gating) -> Plot:
    from bokeh.models import NumeralTickFormatter
    from bokeh.models.annotations import Span

    drawn = dendrogram.dendrogram(gating)
    leaves = len(drawn.leaves)
    top = 1.3 * max(float(drawn.levels.max(initial=0.0)), gating.level, 2.0 * drawn.floor)
    plot = new_plot(
        height=90 + 18 * leaves,
        x_axis_type="log",
        x_range=plot_range(top, drawn.floor / 1.05),
        y_range=plot_range(leaves - 0.4, -0.6),
        y_axis_location="right",
        x_axis_label=dendrogram.AXIS_LABEL,
    )
    inside = drawn.populations.tolist()
    brackets = {
        "levels": drawn.levels.tolist(),
        "places": drawn.positions.tolist(),
        "at": drawn.levels[:, 1],
        "colour": [colour_of(gating, p) if p >= 0 else GREY for p in inside],
        "what": [f"parts of {label(gating, p, 60)}" if p >= 0 else "several populations" for p in inside],
    }
    lines = plot.multi_line("levels", "places", source=brackets, line_color="colour", line_width=2)
    add_hover(plot, lines, ("merge of", "@what"), ("separation", "@at{0.[000]}"), line_policy="interp")
    single = [leaf.populations[0] if len(leaf.populations) == 1 else -1 for leaf in drawn.leaves]
    ends = {
        "x": [drawn.floor] * leaves,
        "y": list(range(leaves)),
        "colour": [colour_of(gating, p) if p >= 0 else GREY for p in single],
        "who": [
            label(gating, p, 70)
            if p >= 0
            else f"populations {numbers_of(gating, np.array(leaf.populations))}"
            for p, leaf in zip(single, drawn.leaves, strict=True)
        ],
        "modes": [leaf.modes for leaf in drawn.leaves],
    }
    squares = plot.scatter("x", "y", source=ends, marker="square", size=9, color="colour")
    add_hover(plot, squares, ("population", "@who"), ("modes in this leaf", "@modes"))
    if drawn.floor <= gating.level:
        plot.add_layout(
            Span(
                location=gating.level, dimension="height", line_dash="dashed", line_color=GREY, line_width=1.5
            )
        )
    plot.xaxis.ticker = ticks(drawn.floor, top)
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0000]")
    name_axis(plot.yaxis, dendrogram.leaf_labels(gating, drawn, shares(gating)))
    plot.ygrid.visible = False
    return plot


def _traces(run: Run, mixing: list[Mixing]) -> Model:
    from bokeh.layouts import column

    sweeps = plot_range(0, max(1, int(run.sweeps_made.max())))
    plots = [_trace(run, trace, sweeps) for trace in traces(run, mixing)]
    return column(*plots, sizing_mode="stretch_width")


def _trace(run: Run, trace: Trace, sweeps: Any) -> Plot:
    """Return the traces of one quantity, one line for each chain."""
    from bokeh.models import BasicTicker, NumeralTickFormatter
    from bokeh.models.annotations import BoxAnnotation

    step, path = ("sweep", "chain") if run.kind == "mcmc" else ("step", "start")
    grey = run.burn_in
    plot = new_plot(
        height=200,
        x_range=sweeps,
        y_range=plot_range(*trace.window(grey // 5 or int(run.sweeps_made.max()) // 10)),
        title=plain(": ".join(filter(None, (trace.quantity, trace.note)))),
        x_axis_label=step,
    )
    if grey:
        plot.add_layout(BoxAnnotation(left=0, right=grey, fill_color=GREY, fill_alpha=0.15))
    is_alpha = trace.quantity == "alpha"
    most = int(np.clip(TRACE_POINTS / len(trace.values), 100, 2000))
    for number, values in enumerate(trace.values, 1):
        places = thinned(values, most)
        kind = np.float64 if trace.quantity.startswith("log") else np.float32  # large values need all digits
        source = {"x": places.astype(np.int32), "y": values[places].astype(kind)}
        source |= {"path": np.full(len(places), number)}
        line = plot.line("x", "y", source=source, line_color=colour(number - 1), line_width=1)
        value = (trace.quantity, "@y{0.00}" if is_alpha else "@y{0,0}")
        add_hover(plot, line, (path, "@path"), (step, "@x"), value, mode="mouse")
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[00]" if is_alpha else "0,0")
    plot.yaxis.ticker = BasicTicker(desired_num_ticks=4)
    return plot
