"""The report of a gating: one page that holds all it needs, with figures to point at, drawn by Bokeh."""

from __future__ import annotations

import base64
import json
import zlib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.model.mixture import Array
from dpmix.populations.rasters import Rasters
from dpmix.populations.result import INTERVAL, Gating, Map, interval
from dpmix.report import views
from dpmix.runs.describe import describe_engine
from dpmix.runs.diagnostics import GOOD_ESS, GOOD_R_HAT, Mixing, truncation_warning_of
from dpmix.runs.reader import Run
from dpmix.system.files import write_text

if TYPE_CHECKING:
    from bokeh.model import Model
    from bokeh.plotting import figure as Plot

# A population that fewer draws find again is told of.
LOW_SUPPORT = 0.5
# Chains whose partitions agree this much less than those of one chain differ more than chance makes them.
CHAINS_APART = 0.05
# Implausible events that a sample may have before it is told of.
MANY_IMPLAUSIBLE = 0.05
# Points of all traces of a quantity together.
TRACE_POINTS = 20_000


def write_report(path: str | Path, gating: Gating, run: Run, mixing: list[Mixing]) -> None:
    """Write the report, one HTML file of a few megabytes whatever N is.

    Parameters
    ----------
    path : str or Path
    gating : Gating
    run : Run
        The run that was gated.
    mixing : list of Mixing
        `dpmix.runs.diagnostics.convergence` of the run.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(Path(path), render(gating, run, mixing))


def render(gating: Gating, run: Run, mixing: list[Mixing]) -> str:
    """The page."""
    from bokeh.embed import json_item
    from bokeh.resources import Resources
    from jinja2 import Environment, StrictUndefined

    folder = files("dpmix.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    plots = _plots(gating, run, mixing)
    library = Resources(mode="inline", components=["bokeh"], log_level="warn")
    return template.render(
        **_words(gating, run, mixing),
        bokeh="\n".join(library.js_raw),
        plots=_json({name: json_item(plot) for name, plot in plots.items()}),
        data=_json(_data(gating)),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
    )


# --------------------------------------------------------------------------------------------- words


def summary(gating: Gating) -> list[str]:
    """What was found, in sentences."""
    events, many = int(gating.n_events.sum()), gating.n_populations
    samples, channels = _count(len(gating.samples), "sample"), _count(len(gating.channels), "channel")
    found = f"{_count(many, 'population')} in {_count(events, 'event')} of {samples}, {channels}."
    if len(gating.draws) > 1:
        low, high = np.quantile(gating.numbers, INTERVAL, method="inverted_cdf").astype(int)
        found += (
            f" By the posterior their number is {low} to {high} with probability 90% "
            f"({_draws(gating)}, each cut by the same rule)."
        )
    else:
        found += f" This is one estimate, {_draws(gating)}: it has no intervals."
    size = views.shares(gating)
    mean = float(np.nan_to_num(gating.certainty) @ gating.sizes.sum(axis=0) / max(events, 1))
    largest = int(np.argmax(size))
    sure = (
        f"The largest is {views.label(gating, largest)} with {views.percent(size[largest])} of the events. "
        f"On average the most probable population of an event has a probability of {mean:.1%}."
    )
    modes = _count(len(gating.tree.heights), "mode")
    cut = f"Cut at level {gating.level:.3g} of the tree of {modes}: {gating.why}."
    return [found, sure, cut]


def warnings(gating: Gating, run: Run, mixing: list[Mixing]) -> list[str]:
    """What a reader should know before trusting the numbers, one line each."""
    return [
        line
        for line in (
            _unfinished(run),
            _chains_apart(gating),
            _truncated(run),
            _slow(mixing),
            _weak(gating),
            _empty(gating),
            _implausible(gating),
        )
        if line
    ]


def _unfinished(run: Run) -> str | None:
    if run.complete:
        return None
    return f"The run is not complete: {run.committed} of {run.draws} draws were there."


def _chains_apart(gating: Gating) -> str | None:
    if gating.n_chains < 2:
        return None
    own = gating.agreement.diagonal()
    within = float(own[np.isfinite(own)].mean()) if np.isfinite(own).any() else 1.0
    between = float(gating.agreement[~np.eye(len(gating.agreement), dtype=bool)].mean())
    if not between < within - CHAINS_APART:
        return None
    return (
        f"Chains disagree: the partitions of different chains agree less (adjusted Rand index {between:.2f}) "
        f"than those of one chain ({within:.2f}). Raise mcmc.burn_in, and read the intervals as too narrow."
    )


def _truncated(run: Run) -> str | None:
    if not run.committed:
        return None
    warning = truncation_warning_of(run)
    return None if warning is None else f"{warning[0].upper()}{warning[1:]}."


def _slow(mixing: list[Mixing]) -> str | None:
    slow = [row for row in mixing if not row.good]
    if not slow:
        return None
    worst = min(slow, key=lambda row: row.ess_bulk if np.isfinite(row.ess_bulk) else np.inf)
    return (
        f"Few effective draws: {len(slow)} of the {len(mixing)} quantities that are followed have fewer than "
        f"{GOOD_ESS}, or R-hat above {GOOD_R_HAT}; the slowest is {worst.quantity} with "
        f"{views.effective(worst)} (R-hat {worst.r_hat:.2f}). "
        "Raise mcmc.draws and mcmc.burn_in for firm intervals."
    )


def _weak(gating: Gating) -> str | None:
    if len(gating.draws) < 2:
        return None
    weak = np.flatnonzero(gating.support < LOW_SUPPORT)
    if not len(weak):
        return None
    return (
        f"{_count(len(weak), 'population')} with low support, found again by fewer than half of the draws: "
        f"{_numbers(weak)}."
    )


def _empty(gating: Gating) -> str | None:
    empty = np.flatnonzero(gating.sizes.sum(axis=0) == 0)
    if not len(empty):
        return None
    return f"No event is most probably of {_count(len(empty), 'population')}: {_numbers(empty)}."


def _implausible(gating: Gating) -> str | None:
    share = gating.n_implausible / np.maximum(gating.n_events, 1)
    many = np.flatnonzero(share > MANY_IMPLAUSIBLE)
    if not len(many):
        return None
    worst = int(many[np.argmax(share[many])])
    others = f" and {_count(len(many) - 1, 'other sample')}" if len(many) > 1 else ""
    return (
        f"The model finds {share[worst]:.1%} of the events of {gating.samples[worst]} implausible{others}: "
        "they may hold populations that the run has not seen."
    )


def _numbers(populations: Array | Any, most: int = 20) -> str:
    numbers = [str(p + 1) for p in populations[:most]]
    return ", ".join(numbers) + (f" and {len(populations) - most} more" if len(populations) > most else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _draws(gating: Gating) -> str:
    if gating.kind == "bem":
        return "the best start of Bayesian EM"
    return f"{_count(len(gating.draws), 'draw')} of {_count(gating.n_chains, 'chain')}"


def _words(gating: Gating, run: Run, mixing: list[Mixing]) -> dict[str, Any]:
    """All that the template says beside the plots."""
    intervals = len(gating.draws) > 1
    drawn = views.shown(gating)
    what = "posterior mean and 90% interval" if intervals else "one estimate, no interval"
    raster = len(gating.rasters.pairs) > 0
    burn_in = views.burn_in(run)
    return {
        "title": f"Cell populations of {Path(gating.run).name}",
        "version": version("dpmix"),
        "summary": summary(gating),
        "warnings": warnings(gating, run, mixing),
        "intervals": intervals,
        "rows": _rows(gating),
        "channels": gating.channels,
        "raster": raster,
        "broad": max(560, 330 + 16 * len(gating.channels)),
        "most_ellipses": views.MOST_ELLIPSES if gating.n_populations > views.MOST_ELLIPSES else 0,
        "largest": f" The {drawn} largest of {gating.n_populations}." if drawn < gating.n_populations else "",
        "map_caption": " ".join((views.map_told(gating, gating.map), *views.MAP_NOTE)) if gating.map else "",
        "proportions_caption": f"Share of the events of all samples: {what}.",
        "traces_caption": (
            f"Every sweep of each chain; the {burn_in:,} of the burn-in on grey, the first climb cut off. "
            "R-hat near 1 and many effective draws say that the chains have found the posterior."
            if run.kind == "mcmc"
            else "Every step of each start of Bayesian EM; the best start is what was gated."
        ),
        "facts": _facts(gating, run),
        "samples": [
            {
                "name": name,
                "events": f"{events:,}",
                "implausible": f"{odd:,} ({views.percent(odd / max(events, 1))})",
            }
            for name, events, odd in zip(
                gating.samples, gating.n_events.tolist(), gating.n_implausible.tolist(), strict=True
            )
        ],
        "alt": {
            "markers": "Density of the events in two markers, coloured by population"
            if raster
            else "Density of the populations in the one marker",
            "map": "Map of events by t-SNE, coloured by population",
            "heatmap": f"Heatmap of the medians of {drawn} populations in {len(gating.channels)} markers",
            "proportions": f"Proportions of {drawn} populations, as in the table of populations",
            "samples": f"Proportion of one population in each of {len(gating.samples)} samples",
            "tree": f"Tree of {len(gating.tree.heights)} modes, cut into {gating.n_populations} populations",
            "traces": "Traces of log posterior, occupied components and alpha",
        },
    }


def _rows(gating: Gating) -> list[dict[str, Any]]:
    """The table of populations."""
    mean, low, high = interval(gating.overall)
    sizes = gating.sizes.sum(axis=0)
    return [
        {
            "index": p,
            "number": p + 1,
            "name": views.label(gating, p, 60),
            "drawn": p < views.shown(gating),
            "colour": views.colour(p),
            "ink": views.ink(views.colour(p)),
            "phenotype": gating.phenotypes[p],
            "events": f"{sizes[p]:,}",
            "share": views.percent(mean[p]),
            "interval": f"{views.percent(low[p])} to {views.percent(high[p])}",
            "support": f"{gating.support[p]:.0%}",
            "weak": bool(gating.support[p] < LOW_SUPPORT),
            "certainty": f"{gating.certainty[p]:.1%}" if sizes[p] else "",
        }
        for p in range(gating.n_populations)
    ]


def _facts(gating: Gating, run: Run) -> list[tuple[str, str]]:
    method = "Gibbs sampling of the posterior" if run.kind == "mcmc" else "Bayesian EM"
    return [
        ("Run", gating.run),
        ("Begun", str(run.attributes["created"])),
        ("Method", f"{method}, at most {run.n_components} components"),
        ("Gated from", _draws(gating)),
        ("Fitted to", f"{int(run.attributes['n_events']):,} events"),
        ("Seed", str(run.attributes["seed"])),
        ("Engine", describe_engine(run.engine)),
        ("Written by", ", ".join(f"{name} {number}" for name, number in run.versions.items())),
        ("Channels", ", ".join(gating.channels)),
    ]


# ---------------------------------------------------------------------------------------------- data


def _json(value: object) -> str:
    """For a script element: nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _data(gating: Gating) -> dict[str, Any]:
    """What the page's script draws the choices from (dpmix/report.js)."""
    rasters, drawn = gating.rasters, views.shown(gating)
    means, covariances = views.moments(gating)
    pairs = rasters.pairs
    chosen = views.separating_pairs(gating)
    mean, low, high = interval(gating.proportions[:, :, :drawn])
    medians = gating.quantiles[2]
    best = _best_pairs(gating)
    counts = rasters.counts.reshape(len(pairs), (rasters.edges.shape[1] - 1) ** 2)
    full = np.log1p(counts.max(axis=1, initial=1))
    return {
        "channels": gating.channels,
        "bins": rasters.edges.shape[1] - 1,
        "ranges": rasters.edges[:, [0, -1]].tolist(),
        "rasters": _packed(rasters, full),
        "full": full.tolist(),
        "scale": [_full_step(row, top) for row, top in zip(counts, full, strict=True)],
        "most_ellipses": views.MOST_ELLIPSES,
        "first": pairs[chosen[0]].tolist() if chosen else [0, 0],
        "names": [views.label(gating, p, 70) for p in range(gating.n_populations)],
        "populations": [
            {
                "colour": views.colour(p),
                "ink": views.ink(views.colour(p)),
                "best": best[p],
                "means": _known(means[p]),
                "variances": _known(covariances[p].diagonal()),
                "covariances": _known(covariances[p][pairs[:, 0], pairs[:, 1]]),
                "medians": _known(medians[p]),
            }
            for p in range(drawn)
        ],
        "samples": {
            "mean": _rounded(mean),
            "low": _rounded(low),
            "high": _rounded(high),
            "least": views.share_limits(gating.proportions[:, :, :drawn], int(gating.n_events.min()))[0],
        }
        if len(gating.samples) > 1
        else None,
    }


def _best_pairs(gating: Gating) -> list[list[int]]:
    """For each population shown, the channels that set it apart best from the others, by their shares."""
    pairs, drawn = gating.rasters.pairs, views.shown(gating)
    if not len(pairs) or drawn < 2:
        return [[0, min(1, len(gating.channels) - 1)]] * drawn
    apart, size = views.separation(gating, pairs), np.sqrt(views.shares(gating))
    a, b = np.triu_indices(drawn, 1)
    return [
        pairs[np.argmax(apart[:, with_p] @ size[np.where(a == p, b, a)[with_p]])].tolist()
        for p in range(drawn)
        for with_p in [(a == p) | (b == p)]
    ]


def _packed(rasters: Rasters, full: Array) -> list[str]:
    """Each pair's bins, first channel first: steps of the logarithm of the events, then the low and the high
    bytes of the population plus 1; deflated, base64."""
    packed = []
    for counts, populations, top in zip(rasters.counts, rasters.populations, full, strict=True):
        steps = np.rint(255.0 * np.log1p(counts) / top).astype(np.uint8)
        numbers = (populations.astype(np.int64) + 1).astype("<u2")
        bytes_ = (steps, (numbers & 255).astype(np.uint8), (numbers >> 8).astype(np.uint8))
        packed.append(base64.b64encode(zlib.compress(b"".join(b.tobytes() for b in bytes_), 9)).decode())
    return packed


def _full_step(counts: Array | Any, full: float) -> float:
    """The step that is drawn darkest, as `dpmix.report.views.strength` has it."""
    filled = counts[counts > 0]
    return float(255.0 * np.log1p(np.quantile(filled, 0.995)) / full) if len(filled) else 255.0


def _known(values: Array) -> Any:
    return None if np.isnan(values).any() else _rounded(values)


def _rounded(values: Array) -> Any:
    """Lists of numbers to five digits, which no picture shows more than."""
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [float(f"{value:.5g}") for value in values]


# --------------------------------------------------------------------------------------------- plots


def _plots(gating: Gating, run: Run, mixing: list[Mixing]) -> dict[str, Model]:
    """Bokeh's figures by the place that they have in the template."""
    plots: dict[str, Model] = {
        "markers": _markers(gating) if len(gating.rasters.pairs) else _one_marker(gating),
        "heatmap": _heatmap(gating),
        "proportions": _proportions(gating),
        "tree": _tree(gating),
        "traces": _traces(run, mixing),
    }
    if len(gating.samples) > 1:
        plots["samples"] = _samples(gating)
    if gating.map is not None:
        plots["map"] = _map(gating, gating.map)
    return plots


def _plain(text: str) -> str:
    """Text that Bokeh would set as mathematics, with word joiners, which are not seen, in its marks."""
    for mark in ("$$", "\\(", "\\["):
        text = text.replace(mark, f"{mark[0]}\u2060{mark[1]}")
    return text


def _figure(**options: Any) -> Plot:
    """A figure as wide as its place, with tools that do not take the wheel from the page."""
    from bokeh.plotting import figure

    options = {"sizing_mode": "stretch_width", "tools": "pan,box_zoom,reset,save", **options}
    plot = figure(**options)
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.grid.grid_line_color = "#e5e5e5"
    plot.outline_line_color = None
    return plot


def _hover(plot: Plot, renderer: Any, *rows: tuple[str, str], **options: Any) -> None:
    from bokeh.models import HoverTool

    plot.add_tools(HoverTool(renderers=[renderer], tooltips=list(rows), **options))


def _named(axis: Any, names: list[str]) -> None:
    """Names at 0, 1, 2, ... of an axis."""
    axis.ticker = list(range(len(names)))
    axis.major_label_overrides = {place: _plain(name) for place, name in enumerate(names)}
    axis.major_tick_line_color = None
    axis.axis_line_color = None


def _markers(gating: Gating) -> Plot:
    """Filled by the page's script."""
    from bokeh.models import ColumnDataSource, Ellipse, LinearAxis, Range1d

    bins = gating.rasters.edges.shape[1] - 1
    across, up = LinearAxis(name="across"), LinearAxis(name="up")
    plot = _figure(
        name="markers",
        sizing_mode="scale_width",
        width=680,
        height=640,
        x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1),
        tools="pan,box_zoom,wheel_zoom,reset,save",
        x_axis_type=None,
        y_axis_type=None,
    )
    plot.toolbar.active_scroll = None
    plot.toolbar.autohide = False
    plot.add_layout(across, "below")
    plot.add_layout(up, "left")
    columns: dict[str, Any] = {
        "image": [np.zeros((bins, bins), np.uint32)],
        **{
            name: [value]
            for name, value in (("x", 0), ("y", 0), ("dw", 1), ("dh", 1), ("who", ""), ("events", ""))
        },
    }
    source = ColumnDataSource(columns, name="bins")
    image = plot.image_rgba("image", x="x", y="y", dw="dw", dh="dh", source=source)
    _hover(plot, image, ("population", "@who"), ("events here", "@events"), ("at", "$x{0.00}, $y{0.00}"))
    shapes: dict[str, Any] = {name: [] for name in ("x", "y", "width", "height", "angle", "colour")}
    plot.add_glyph(
        ColumnDataSource(shapes, name="ellipses"),
        Ellipse(
            x="x", y="y", width="width", height="height", angle="angle", fill_alpha=0.0, line_color="colour"
        ),
    )
    numbers: dict[str, Any] = {name: [] for name in ("x", "y", "text", "colour", "ink")}
    plot.add_glyph(ColumnDataSource(numbers, name="numbers"), _number_glyph())
    return plot


def _number_glyph() -> Any:
    """Numbers of populations on their colours: columns x, y, text, colour and ink."""
    from bokeh.models import Text

    badge: Any = {"padding": 2, "border_radius": 3}  # for which Bokeh's own types are too narrow
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
    """The page's script says who each event is."""
    from bokeh.models import ColumnDataSource, LinearColorMapper, Range1d

    corner, side = views.map_window(events)
    plot = _figure(
        sizing_mode="scale_width",
        width=680,
        height=640,
        x_range=Range1d(start=corner[0], end=corner[0] + side),
        y_range=Range1d(start=corner[1], end=corner[1] + side),
        tools="pan,box_zoom,wheel_zoom,reset,save",
        x_axis_type=None,
        y_axis_type=None,
    )
    plot.toolbar.active_scroll = None
    plot.grid.visible = False
    many = gating.n_populations
    columns: dict[str, Any] = {
        **dict(zip("xy", events.places.T, strict=True)),
        "population": events.populations.astype(np.int16),
        "who": [""] * len(events.places),
    }
    palette = LinearColorMapper(palette=[views.colour(p) for p in range(many)], low=-0.5, high=many - 0.5)
    points = plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(columns, name="events"),
        size=640.0 * views.map_point(events),
        fill_color={"field": "population", "transform": palette},
        line_color=None,
    )
    _hover(plot, points, ("population", "@who"), limit=1)
    populations, places = views.map_numbers(gating, events)
    colours = [views.colour(p) for p in populations.tolist()]
    numbers = {
        **dict(zip("xy", places.T, strict=True)),
        "text": [str(p + 1) for p in populations.tolist()],
        "colour": colours,
        "ink": [views.ink(c) for c in colours],
    }
    plot.add_glyph(ColumnDataSource(numbers), _number_glyph())
    return plot


def _one_marker(gating: Gating) -> Plot:
    plot = _figure(height=320, x_axis_label=_plain(gating.channels[0]), y_axis_label="density")
    for p, (places, density) in enumerate(views.densities(gating)):
        named = {"who": [views.label(gating, p, 70)] * len(places)}
        line = plot.line(
            "x", "y", source={"x": places, "y": density, **named}, color=views.colour(p), line_width=2
        )
        plot.varea(
            x=places, y1=np.zeros_like(density), y2=density, fill_color=views.colour(p), fill_alpha=0.25
        )
        _hover(plot, line, ("population", "@who"), ("at", "$x{0.00}"))
    return plot


def _heatmap(gating: Gating) -> Plot:
    from bokeh.models import LinearColorMapper, Range1d
    from bokeh.palettes import Cividis256

    heat = views.heat(gating)
    rows, columns = heat.levels.shape
    size = views.shares(gating)
    y, x = np.indices(heat.levels.shape)
    quarter, three = (
        gating.quantiles[k, : views.shown(gating)][np.ix_(heat.populations, heat.channels)] for k in (1, 3)
    )
    source = {
        "x": x.ravel(),
        "y": y.ravel(),
        "level": heat.levels.ravel(),
        "who": [views.label(gating, p, 70) for p in heat.populations for _ in range(columns)],
        "marker": [gating.channels[c] for _ in range(rows) for c in heat.channels],
        "median": [_number(v) for v in heat.medians.ravel()],
        "middle": [
            f"{_number(a)} to {_number(b)}" for a, b in zip(quarter.ravel(), three.ravel(), strict=True)
        ],
    }
    longest = max(len(gating.channels[c]) for c in heat.channels)
    plot = _figure(
        height=90 + 18 * rows + 6 * min(longest, 24),
        x_range=Range1d(start=-0.5, end=columns - 0.5),
        y_range=Range1d(start=rows - 0.5, end=-0.5),
        tools="save",
        y_axis_location="right",
    )
    mapper = LinearColorMapper(palette=list(Cividis256), low=0.0, high=1.0, nan_color="#dddddd")
    cells = plot.rect(
        "x", "y", 1, 1, source=source, fill_color={"field": "level", "transform": mapper}, line_color="white"
    )
    _hover(
        plot,
        cells,
        ("population", "@who"),
        ("marker", "@marker"),
        ("median", "@median"),
        ("middle half", "@middle"),
    )
    _named(plot.xaxis, [views.shortened(gating.channels[c], 24) for c in heat.channels])
    _named(plot.yaxis, [f"{views.label(gating, p, 36)}  {views.percent(size[p])}" for p in heat.populations])
    plot.xaxis.major_label_orientation = "vertical"
    plot.grid.visible = False
    plot.toolbar.autohide = True
    return plot


def _number(value: float) -> str:
    return "no events" if np.isnan(value) else f"{value:.3g}"


def _proportions(gating: Gating) -> Plot:
    """All samples together: a row of every population."""
    from bokeh.models import ColumnDataSource, Range1d

    drawn = views.shown(gating)
    overall = gating.overall[:, :drawn]
    least, most = views.share_limits(overall, int(gating.n_events.sum()))
    source = ColumnDataSource(
        {
            "y": np.arange(drawn),
            "colour": [views.colour(p) for p in range(drawn)],
            "who": [views.label(gating, p, 70) for p in range(drawn)],
            **dict(zip(("mean", "low", "high"), interval(overall), strict=True)),
        }
    )
    plot = _figure(
        height=80 + 20 * drawn,
        x_axis_type="log",
        x_range=Range1d(start=least, end=most),
        y_range=Range1d(start=drawn - 0.4, end=-0.6),
        tools="save",
    )
    told = [("population", "@who"), ("proportion", "@mean{0.[000]%}")]
    if len(overall) > 1:
        plot.segment("low", "y", "high", "y", source=source, line_color="colour", line_width=3)
        told.append(("90% interval", "@low{0.[000]%} to @high{0.[000]%}"))
    points = plot.scatter("mean", "y", source=source, size=8, color="colour")
    _hover(plot, points, *told)
    _named(plot.yaxis, [views.label(gating, p, 36) for p in range(drawn)])
    _in_percent(plot.xaxis)
    plot.xaxis.ticker = views.ticks(least, most)
    plot.ygrid.visible = False
    return plot


def _samples(gating: Gating) -> Plot:
    """One population in every sample; filled by the page's script."""
    from bokeh.models import BasicTicker, ColumnDataSource, Range1d

    drawn, many = gating.proportions[:, :, : views.shown(gating)], len(gating.samples)
    least, most = views.share_limits(drawn, int(gating.n_events.min()))
    columns: dict[str, Any] = {"x": np.arange(1, many + 1), "sample": gating.samples}
    columns |= {name: [most] * many for name in ("mean", "low", "high")} | {"colour": ["#ffffff"] * many}
    source = ColumnDataSource(columns, name="samples")
    plot = _figure(
        height=300,
        name="shares",
        y_axis_type="log",
        y_range=Range1d(start=least, end=most),
        x_range=Range1d(start=0.3, end=many + 0.7),
        x_axis_label="sample",
    )
    told = [("sample", "@sample"), ("proportion", "@mean{0.[000]%}")]
    if len(drawn) > 1:
        plot.segment("x", "low", "x", "high", source=source, line_color="colour", line_width=2)
        told.append(("90% interval", "@low{0.[000]%} to @high{0.[000]%}"))
    points = plot.scatter("x", "mean", source=source, size=7, color="colour")
    _hover(plot, points, *told)
    # The script shows a part of it, a population's.
    _in_percent(plot.yaxis)
    plot.yaxis.ticker = [digit * 10.0**power for power in range(-9, 1) for digit in (1, 2, 3, 5, 7)]
    plot.xaxis.ticker = BasicTicker(mantissas=[1, 2, 5], min_interval=1, num_minor_ticks=0)
    plot.xgrid.visible = False
    return plot


def _in_percent(axis: Any) -> None:
    from bokeh.models import NumeralTickFormatter

    axis.formatter = NumeralTickFormatter(format="0.[000000]%")


def _tree(gating: Gating) -> Plot:
    from bokeh.models import NumeralTickFormatter, Range1d
    from bokeh.models.annotations import Span

    drawn = views.dendrogram(gating)
    leaves = len(drawn.leaves)
    single = [leaf.populations[0] if len(leaf.populations) == 1 else -1 for leaf in drawn.leaves]
    top = max(float(drawn.levels.max(initial=0.0)), gating.level, 2.0 * drawn.floor)
    plot = _figure(
        height=90 + 18 * leaves,
        x_axis_type="log",
        x_range=Range1d(start=1.3 * top, end=drawn.floor / 1.05),
        y_range=Range1d(start=leaves - 0.4, end=-0.6),
        y_axis_location="right",
        x_axis_label=views.LEVEL_NAME,
    )
    source = {
        "levels": drawn.levels.tolist(),
        "places": drawn.positions.tolist(),
        "at": drawn.levels[:, 1],
        "colour": [views.colour(p) if p >= 0 else "#444444" for p in drawn.populations.tolist()],
        "what": [
            f"parts of {views.label(gating, p, 60)}" if p >= 0 else "several populations"
            for p in drawn.populations.tolist()
        ],
    }
    lines = plot.multi_line("levels", "places", source=source, line_color="colour", line_width=2)
    _hover(plot, lines, ("these merge", "@what"), ("level", "@at{0.[000]}"), line_policy="interp")
    ends = {
        "x": [drawn.floor] * leaves,
        "y": list(range(leaves)),
        "colour": [views.colour(p) if p >= 0 else views.GREY for p in single],
        "who": [
            views.label(gating, p, 70) if p >= 0 else f"populations {_numbers(np.array(leaf.populations))}"
            for p, leaf in zip(single, drawn.leaves, strict=True)
        ],
        "modes": [leaf.modes for leaf in drawn.leaves],
    }
    squares = plot.scatter("x", "y", source=ends, marker="square", size=9, color="colour")
    _hover(plot, squares, ("population", "@who"), ("modes in this leaf", "@modes"))
    if drawn.floor <= gating.level:
        plot.add_layout(Span(location=gating.level, dimension="height", line_dash="dashed", line_width=1.5))
    plot.xaxis.ticker = views.ticks(drawn.floor, 1.3 * top)
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0000]")
    _named(plot.yaxis, views.leaf_labels(gating, drawn, views.shares(gating)))
    plot.ygrid.visible = False
    return plot


def _traces(run: Run, mixing: list[Mixing]) -> Model:
    from bokeh.layouts import column
    from bokeh.models import BasicTicker, NumeralTickFormatter, Range1d
    from bokeh.models.annotations import BoxAnnotation

    found, burn_in, made = views.traces(run, mixing), views.burn_in(run), int(run.sweeps_made.max())
    sweeps = Range1d(start=0, end=max(1, made))
    step, path = ("sweep", "chain") if run.kind == "mcmc" else ("step", "start")
    plots = []
    for trace in found:
        low, high = trace.window(burn_in // 5 or made // 10)
        plot = _figure(
            height=200,
            x_range=sweeps,
            y_range=Range1d(start=low, end=high),
            title=_plain(": ".join(filter(None, (trace.quantity, trace.told)))),
            x_axis_label=step,
        )
        if burn_in:
            plot.add_layout(BoxAnnotation(left=0, right=burn_in, fill_color="black", fill_alpha=0.07))
        most = int(np.clip(TRACE_POINTS / len(trace.values), 100, 2000))
        for number, values in enumerate(trace.values, 1):
            places = views.thinned(values, most)
            source = {
                "x": places.astype(np.int32),
                "y": values[places].astype(np.float32)
                if trace.quantity != "log posterior"
                else values[places],
                "path": [number] * len(places),
            }
            line = plot.line("x", "y", source=source, line_color=views.colour(number - 1), line_width=1)
            shown = "@y{0,0}" if trace.quantity != "alpha" else "@y{0.00}"
            _hover(plot, line, (path, "@path"), (step, "@x"), (trace.quantity, shown), mode="mouse")
        plot.yaxis.formatter = NumeralTickFormatter(format="0,0" if trace.quantity != "alpha" else "0.[00]")
        plot.yaxis.ticker = BasicTicker(desired_num_ticks=4)
        plots.append(plot)
    return column(*plots, sizing_mode="stretch_width")
