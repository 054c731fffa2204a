"""The figures of a gating, each as PNG and as PDF."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.result import Gating, Map, interval
from dpmix.report import views
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run
from dpmix.system.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

# Names of channels and files are shown as they are, "$" too; text in a PDF stays text.
STYLE: Any = {
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "savefig.dpi": 150.0,
}
# Samples whose intervals are drawn beside each other; more of them get a panel for each population.
BESIDE = 6
# Samples up to which a panel's numbers are explained below it.
NAMED = 60
HALO = "#ffffffd0"
FIGURES = ("heatmap", "pairs", "proportions", "tree", "traces")


def figure_paths(directory: Path, with_map: bool = False) -> list[Path]:
    """The files that `write_figures` will write, of a gating with or without a map."""
    names = (*FIGURES, "map") if with_map else FIGURES
    return [directory / f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")]


def write_figures(directory: str | Path, gating: Gating, run: Run, mixing: list[Mixing]) -> None:
    """Draw all figures, the files of `figure_paths`, into a folder, which is made where it is missing.

    Parameters
    ----------
    directory : str or Path
    gating : Gating
    run : Run
        The run that was gated.
    mixing : list of Mixing
        `dpmix.runs.diagnostics.convergence` of the run.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    import matplotlib

    drawn: dict[str, Callable[[], Figure]] = {
        "heatmap": lambda: heatmap(gating),
        "pairs": lambda: pairs(gating),
        "proportions": lambda: proportions(gating),
        "tree": lambda: tree(gating),
        "traces": lambda: traces(run, mixing),
    }
    if gating.map is not None:
        drawn["map"] = partial(event_map, gating, gating.map)
    folder = Path(directory)
    paths = figure_paths(folder, gating.map is not None)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for both in zip(paths[::2], paths[1::2], strict=True):
            figure = drawn[both[0].stem]()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, for both
            for path in both:
                with writing(path):
                    # Without its date a figure is the same file whenever it is drawn.
                    figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


def heatmap(gating: Gating) -> Figure:
    """Medians of the populations (rows), each channel (column) on its own scale."""
    heat = views.heat(gating)
    rows, columns = heat.levels.shape
    names = [views.shortened(gating.channels[c], 24) for c in heat.channels]
    figure = _figure(5.0 + 0.24 * columns, 1.5 + 0.19 * rows + 0.08 * max(map(len, names)))
    axes = figure.add_subplot()
    image = axes.imshow(np.ma.masked_invalid(heat.levels), cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_facecolor("#dddddd")
    axes.set_xticks(range(columns), names)
    axes.tick_params(axis="x", rotation=90)
    size = views.shares(gating)
    axes.set_yticks(range(rows), [views.percent(size[p]) for p in heat.populations])
    axes.tick_params(length=0)
    for row, population in enumerate(heat.populations):
        _name(axes, columns - 0.5, row, gating, population)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(f"Median of each population{_only_the_largest(gating)}")
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=min(1.0, 8.0 / columns), aspect=25)
    bar.set_ticks([0.0, 1.0], labels=["1%", "99%"])
    bar.set_label("quantile of all events of the marker")
    bar.outline.set_visible(False)
    return figure


def pairs(gating: Gating) -> Figure:
    """Density of the events in the pairs of channels that set the populations apart."""
    chosen = views.separating_pairs(gating)
    if not chosen:
        return _one_channel(gating)
    columns = 2 if len(chosen) == 4 else min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    key = [f"{views.label(gating, p, 50)}" for p in range(views.shown(gating))]
    figure, body = _with_foot(3.9 * columns, 3.8 * rows + 0.3, key, columns)
    grid = body.subplots(rows, columns, squeeze=False).ravel()
    for axes, pair in zip(grid, chosen, strict=False):
        _density(axes, gating, pair)
    for axes in grid[len(chosen) :]:
        axes.set_axis_off()
    few = f", of the {views.MOST_ELLIPSES} largest" if gating.n_populations > views.MOST_ELLIPSES else ""
    title = (
        "Each bin in the colour of its most frequent population, the darker the more events; ellipses: 90% "
        f"of the normals with the populations' moments{few}{_only_the_largest(gating)}"
    )
    body.suptitle(textwrap.fill(title, 60 * columns), fontsize=9, x=0.01, ha="left")
    return figure


def proportions(gating: Gating) -> Figure:
    """Posterior mean of each population's proportion and its 90% interval, sample by sample."""
    return _beside(gating) if len(gating.samples) <= BESIDE else _panels(gating)


def tree(gating: Gating) -> Figure:
    """The tree of modes, and where it is cut."""
    drawn = views.dendrogram(gating)
    size = views.shares(gating)
    figure = _figure(8.0, 1.4 + 0.17 * len(drawn.leaves))
    axes = figure.add_subplot()
    for levels, places, population in zip(drawn.levels, drawn.positions, drawn.populations, strict=True):
        own = views.colour(population) if population >= 0 else "#444444"
        axes.plot(levels, places, color=own, linewidth=1.3 if population >= 0 else 0.9)
    axes.set_xscale("log")
    top = max(float(drawn.levels.max(initial=0.0)), gating.level, 2.0 * drawn.floor)
    axes.set_xlim(1.3 * top, drawn.floor)
    if drawn.floor <= gating.level:
        axes.axvline(gating.level, color="black", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_ylim(len(drawn.leaves) - 0.4, -0.6)
    axes.yaxis.tick_right()
    axes.spines["left"].set_visible(False)
    axes.set_yticks(range(len(drawn.leaves)), views.leaf_labels(gating, drawn, size))
    axes.tick_params(axis="y", length=0)
    for text, leaf in zip(axes.get_yticklabels(), drawn.leaves, strict=True):
        text.set_color("black" if len(leaf.populations) == 1 else views.GREY)
    for position, leaf in enumerate(drawn.leaves):
        if len(leaf.populations) == 1:
            axes.plot(
                drawn.floor,
                position,
                "s",
                color=views.colour(leaf.populations[0]),
                markersize=5,
                clip_on=False,
            )
    _ticks(axes.xaxis, lambda value: f"{value:g}")
    axes.set_xlabel(views.LEVEL_NAME)
    axes.set_title(
        f"{gating.n_populations} populations at level {gating.level:.3g} (dashed), of "
        f"{len(gating.tree.heights)} modes"
    )
    return figure


def traces(run: Run, mixing: list[Mixing]) -> Figure:
    """The path of log posterior, occupied components and alpha, each chain a line."""
    found = views.traces(run, mixing)
    burn_in = views.burn_in(run)
    figure = _figure(7.5, 5.6)
    panels = figure.subplots(len(found), 1, sharex=True)
    for axes, trace in zip(panels, found, strict=True):
        for chain, values in enumerate(trace.values):
            places = views.thinned(values)
            axes.plot(places, values[places], color=views.colour(chain), linewidth=0.7)
        axes.set_ylim(*trace.window(burn_in // 5 or int(run.sweeps_made.max()) // 10))
        if burn_in:
            axes.axvspan(0, burn_in, color="#000000", alpha=0.07, linewidth=0)
        axes.set_title("   ".join(filter(None, (trace.quantity, trace.told))))
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        axes.yaxis.get_major_locator().set_params(integer=trace.quantity.startswith("occupied"))
    chains = len(found[0].values)
    if run.kind == "mcmc":
        many = f"; {chains} chains" if chains > 1 else ""
        panels[-1].set_xlabel(f"sweep (grey: the burn-in of {burn_in:,}; the first climb is cut off){many}")
    else:
        panels[-1].set_xlabel(
            f"step; {chains} starts of Bayesian EM" if chains > 1 else "step of Bayesian EM"
        )
    panels[-1].set_xlim(0, max(1, int(run.sweeps_made.max())))
    return figure


def event_map(gating: Gating, events: Map) -> Figure:
    """Events on the map, each in the colour of its population."""
    populations, points = views.map_numbers(gating, events)
    key = [views.label(gating, int(p), 50) for p in populations]
    figure, body = _with_foot(7.0, 7.4, key, 2)
    axes = body.subplots()
    colours = np.array([views.colour(p) for p in range(gating.n_populations)])
    # A raster in the PDF, too: so many points are slow to show.
    axes.scatter(
        events.places[:, 0],
        events.places[:, 1],
        c=colours[events.populations],
        s=(views.map_point(events) * 460.0) ** 2,
        linewidths=0,
        rasterized=True,
    )
    corner, side = views.map_window(events)
    ends = (corner[0], corner[0] + side, corner[1], corner[1] + side)
    axes.axis(ends)
    axes.set_box_aspect(1)
    axes.set_axis_off()
    _numbers(axes, populations, points, ends)
    told = "\n".join((views.map_told(gating, events), *views.MAP_NOTE))
    body.suptitle(told, fontsize=8, x=0.01, ha="left")
    return figure


# -------------------------------------------------------------------------------------------- parts


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _with_foot(width: float, height: float, lines: list[str], columns: int) -> tuple[Figure, SubFigure]:
    """A figure with a place to draw in and, below it, lines of text in columns."""
    each = -(-len(lines) // columns)
    heights = height, 0.14 * each + 0.1
    figure = _figure(width, sum(heights))
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    body, foot = parts
    for number, line in enumerate(lines):
        column, row = divmod(number, each)
        foot.text(0.01 + column / columns, 1.0 - (row + 0.5) / each, line, fontsize=6.5, va="center")
    return figure, body


def _only_the_largest(gating: Gating) -> str:
    drawn = views.shown(gating)
    return f": the {drawn} largest of {gating.n_populations}" if drawn < gating.n_populations else ""


def _name(axes: Axes, x: float, y: float, gating: Gating, population: int) -> None:
    """The number of a population on its colour and its phenotype, right of a point."""
    own = views.colour(population)
    style: Any = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    box = {"boxstyle": "round,pad=0.2", "facecolor": own, "edgecolor": "none"}
    axes.annotate(
        f"{population + 1}", (x, y), (14, 0), ha="center", fontsize=7, color=views.ink(own), bbox=box, **style
    )
    axes.annotate(views.phenotype(gating, population, 48), (x, y), (25, 0), **style)


def _density(axes: Axes, gating: Gating, pair: int) -> None:
    """One panel: coloured raster, ellipses, numbers."""
    from matplotlib.patches import Ellipse
    from matplotlib.patheffects import withStroke

    rasters = gating.rasters
    x, y = rasters.pairs[pair]
    ends = (*rasters.edges[x][[0, -1]], *rasters.edges[y][[0, -1]])
    image = views.rgb(rasters.populations[pair], rasters.counts[pair]).transpose(1, 0, 2)
    axes.imshow(image, origin="lower", extent=ends, aspect="auto", interpolation="nearest")
    axes.set_xlim(*ends[:2])
    axes.set_ylim(*ends[2:])
    axes.set_xlabel(views.shortened(gating.channels[x], 40))
    axes.set_ylabel(views.shortened(gating.channels[y], 40))
    means, covariances = views.moments(gating)
    for population in np.flatnonzero(np.isfinite(means[: views.MOST_ELLIPSES, 0])).tolist():
        place = [x, y]
        width, height, angle = views.ellipse(covariances[population][np.ix_(place, place)])
        centre = float(means[population, x]), float(means[population, y])
        patch = Ellipse(centre, width, height, angle=np.degrees(angle), fill=False)
        patch.set(edgecolor=views.colour(population), linewidth=0.9)
        patch.set_path_effects([withStroke(linewidth=1.8, foreground=HALO)])
        axes.add_patch(patch)
    medians = gating.quantiles[2, : views.shown(gating)][:, [x, y]]
    there = np.flatnonzero(np.isfinite(medians).all(axis=1))
    _numbers(axes, there, medians[there], ends)


def _numbers(axes: Axes, populations: Ints, points: Array, ends: tuple[float, ...]) -> None:
    """Numbers of populations at their points [Q, 2], moved apart where they would overlap."""
    low, width = np.array(ends[::2]), np.array([ends[1] - ends[0], ends[3] - ends[2]])
    points = np.clip((points - low) / width, 0.02, 0.98)
    places = np.clip(views.spread_out(points, np.array([0.055, 0.055])), 0.02, 0.98)
    for population, point, place in zip(populations.tolist(), points, places, strict=True):
        own = views.colour(population)
        if np.abs(place - point).max() > 0.02:
            axes.plot(*zip(point, place, strict=True), color="black", linewidth=0.5, transform=axes.transAxes)
            axes.plot(*point, ".", color="black", markersize=2.5, transform=axes.transAxes)
        axes.text(
            place[0],
            place[1],
            f"{population + 1}",
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=6.5,
            color=views.ink(own),
            bbox={"boxstyle": "round,pad=0.15", "facecolor": own, "edgecolor": "white", "linewidth": 0.5},
        )


def _one_channel(gating: Gating) -> Figure:
    """The mixture's density by population, where there is no second channel."""
    figure = _figure(6.0, 3.2)
    axes = figure.add_subplot()
    for population, (places, density) in enumerate(views.densities(gating)):
        axes.fill_between(places, density, color=views.colour(population), alpha=0.35, linewidth=0)
        axes.plot(places, density, color=views.colour(population), linewidth=1.0)
        peak = int(np.argmax(density))
        axes.annotate(
            f"{population + 1}",
            (places[peak], density[peak]),
            (0, 2),
            textcoords="offset points",
            ha="center",
        )
    axes.set_xlabel(gating.channels[0])
    axes.set_ylabel("density")
    axes.set_title("The mixture's density by population")
    return figure


def _percent_axis(axes: Axes, which: str) -> None:
    """Logarithms of shares, told in percent."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    _ticks(axis, lambda value: f"{100.0 * value:.6g}%")


def _ticks(axis: Axis, told: Callable[[float], str]) -> None:
    """Named ticks of an axis of logarithms."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(FixedLocator(views.ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: told(value)))
    axis.set_minor_formatter(NullFormatter())


def _beside(gating: Gating) -> Figure:
    """A row of every population, a point and interval of every sample in it."""
    drawn, samples = views.shown(gating), len(gating.samples)
    mean, low, high = interval(gating.proportions[:, :, :drawn])
    left, right = views.share_limits(gating.proportions[:, :, :drawn], int(gating.n_events.min()))
    figure = _figure(7.5, 1.3 + drawn * max(0.19, 0.1 * samples) + 0.16 * (samples > 1) * samples)
    axes = figure.add_subplot()
    rows = np.arange(drawn)
    for sample in range(samples):
        at = rows + (sample - (samples - 1) / 2.0) * 0.8 / samples
        colours = [views.colour(p) for p in range(drawn)] if samples == 1 else [SAMPLES[sample]] * drawn
        if len(gating.proportions) > 1:
            axes.hlines(
                at,
                np.maximum(low[sample], left),
                np.maximum(high[sample], left),
                colors=colours,
                linewidth=2.0,
            )
        named = views.shortened(gating.samples[sample], 60)
        axes.scatter(np.maximum(mean[sample], left), at, c=colours, s=14, zorder=3, marker=MARKERS[sample])
        if samples > 1:
            axes.scatter(
                [], [], c=SAMPLES[sample], s=14, marker=MARKERS[sample], label=f"{sample + 1}: {named}"
            )
    if samples > 1:
        figure.legend(loc="outside upper left", frameon=False)
    axes.set_xlim(left, right)
    _percent_axis(axes, "x")
    axes.set_ylim(drawn - 0.4, -0.6)
    axes.set_yticks(rows, [views.label(gating, int(p)) for p in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"proportion of the events: {_what_is_shown(gating)}")
    axes.set_title(f"Proportions{_only_the_largest(gating)}")
    return figure


# Of samples in one picture: dark to light, as told apart by lightness, and each its own mark.
SAMPLES = ("#111111", "#8a3b00", "#00688b", "#7a5195", "#b8860b", "#5f9e6e")
MARKERS = "osD^vP"


def _panels(gating: Gating) -> Figure:
    """A panel of every population, the samples side by side in it."""
    drawn, samples = views.shown(gating), len(gating.samples)
    mean, low, high = interval(gating.proportions[:, :, :drawn])
    bottom, top = views.share_limits(gating.proportions[:, :, :drawn], int(gating.n_events.min()))
    columns = min(4, drawn)
    rows = -(-drawn // columns)
    key = [f"{n}: {views.shortened(name, 44)}" for n, name in enumerate(gating.samples, 1)]
    figure, body = _with_foot(3.0 * columns, 1.25 * rows + 0.5, key if samples <= NAMED else [], 3)
    grid = body.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    numbers = np.arange(1, samples + 1)
    for population, axes in enumerate(grid):
        if population >= drawn:
            axes.set_axis_off()
            continue
        own = views.colour(population)
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
        axes.set_title(views.label(gating, population, 32), fontsize=7.5)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    grid[0].set_ylim(bottom, top)
    _percent_axis(grid[0], "y")
    body.supxlabel("sample, in the order of the files", fontsize=8)
    body.supylabel(f"proportion: {_what_is_shown(gating)}{_only_the_largest(gating)}", fontsize=8)
    return figure


def _what_is_shown(gating: Gating) -> str:
    if len(gating.proportions) > 1:
        return "posterior mean and 90% interval"
    return "one estimate, no interval" if gating.kind == "bem" else "of one draw, no interval"
