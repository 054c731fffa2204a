"""The figures of a gating, each as PNG and as PDF."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmix.model.mixture import Array
from dpmix.populations.events.outlines import SHARE
from dpmix.populations.explored import NAME, extended
from dpmix.populations.result import Gating, Map
from dpmix.report import dendrogram
from dpmix.report import traces as trace
from dpmix.report.biaxial import outlined_in
from dpmix.report.coarseness import coarseness
from dpmix.report.comparison_figure import comparison
from dpmix.report.decades import ticks_of
from dpmix.report.drawing import (
    figure_with_key,
    log_ticks,
    name_population,
    new_figure,
    number_populations,
    short_ticks,
    styled,
)
from dpmix.report.embedding import MAP_NOTE, map_caption, map_numbers, map_point, map_window
from dpmix.report.gate_tree import gate_tree
from dpmix.report.heatmap import heat
from dpmix.report.labels import label, only_the_largest, share_text, shares, shortened, shown
from dpmix.report.pairs import densities, separating_pairs
from dpmix.report.palette import GREY, colour, colour_of, rgb
from dpmix.report.proportion_figures import proportions
from dpmix.report.shifts import shift_figure
from dpmix.runs.coarseness import choice_of
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run
from dpmix.system.files import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 1_000  # of the explored cells
LEAST_ROWS = 5  # of a heatmap, whose tree and colour bar need room
HALO = "#ffffffd0"  # around outlines
FIGURES = ("heatmap", "pairs", "proportions", "tree", "traces")
ADDED = ("coarseness", "shifts", "map", "gates", "compare")  # of some runs, or on request


def figure_paths(directory: Path, added: Sequence[str] = ()) -> list[Path]:
    """Return the files that `write_figures` writes; `added` names some of `ADDED`."""
    return [directory / f"{name}.{suffix}" for name in (*FIGURES, *added) for suffix in ("png", "pdf")]


def write_figures(
    directory: str | Path,
    gating: Gating,
    run: Run,
    mixing: list[Mixing],
    names: Sequence[str] = (*FIGURES, *ADDED),
) -> None:
    """Draw figures of a run, on the transformed scale, into a folder, which is created if missing.

    Parameters
    ----------
    directory : str or Path
    gating : Gating
    run : Run
    mixing : list of Mixing
        Mixing of the run (`dpmix.runs.diagnostics.convergence`).
    names : sequence of str
        Default: all that the gating has.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    drawn = _drawings(gating, run, mixing)
    folder, asked = Path(directory), {*names} & {*drawn}
    paths = [path for path in figure_paths(folder, ADDED) if path.stem in asked]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with styled():
        for both in zip(paths[::2], paths[1::2], strict=True):
            figure = drawn[both[0].stem]()
            if (engine := figure.get_layout_engine()) is not None:
                engine.execute(figure)
            figure.set_layout_engine(None)  # one layout for both formats; "none" would draw twice
            for path in both:
                with writing(path):
                    # Without a date, the same figure is the same file.
                    figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)


def _drawings(gating: Gating, run: Run, mixing: list[Mixing]) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure, by its name, of those that there are."""
    drawn: dict[str, Callable[[], Figure]] = {
        "heatmap": lambda: heatmap(extended(gating)),
        "pairs": lambda: pairs(gating),
        "proportions": lambda: proportions(extended(gating)),
        "tree": lambda: tree(gating),
        "traces": lambda: traces(run, mixing),
    }
    if (choice := choice_of(run)).curve is not None:
        drawn["coarseness"] = lambda: coarseness(choice)
    if "shifts" in run.cohort:
        drawn["shifts"] = lambda: shift_figure(run)
    if (events := gating.map) is not None:
        drawn["map"] = lambda: event_map(gating, events)
    if gating.hierarchy:
        drawn["gates"] = lambda: gate_tree(gating)
    if (compared := gating.comparison) is not None:
        drawn["compare"] = lambda: comparison(gating, compared)
    return drawn


def heatmap(gating: Gating) -> Figure:
    """Draw the medians of the populations (rows), each channel (column) on its own scale."""
    cells = heat(gating)
    rows, columns = cells.levels.shape
    names = [shortened(gating.short_channels[c], 24) for c in cells.channels]
    tall = max(rows, LEAST_ROWS)
    figure = new_figure(5.5 + 0.24 * columns, 2.1 + 0.19 * tall + 0.08 * max(map(len, names)))
    axes = figure.add_subplot()
    image = axes.imshow(np.ma.masked_invalid(cells.levels), cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_facecolor("#dddddd")
    axes.set_xticks(range(columns), names)
    axes.tick_params(axis="x", rotation=90)
    axes.set_yticks([])
    axes.tick_params(length=0)
    for row, population in enumerate(cells.populations):
        name_population(axes, columns - 0.5, row, gating, population, share_text(gating, population))
    axes.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, color="white", linewidth=0.5)
    axes.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, color="white", linewidth=0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    for own_tree, turned, place_of_tree in (
        (cells.row_tree, True, (-0.11, 0.0, 0.1, 1.0)),
        (
            cells.column_tree,
            False,
            (0.0, 1.0 + 0.1 / tall, len(gating.channels) / columns, 1.0 / tall + 0.04),
        ),
    ):
        if len(own_tree[0]):
            _tree_next_to(axes, own_tree, turned, place_of_tree)
    if gating.state is not None:
        place = len(gating.channels) - 0.5
        axes.axvline(place, color="white", linewidth=5.0)
        axes.set_xlabel(
            "right of the gap: state channels, which the populations are not found by", fontsize=7
        )
    axes.set_title(f"Median of each population{only_the_largest(gating)}")
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=min(1.0, 8.0 / columns), aspect=25)
    bar.set_ticks([0.0, 1.0], labels=["1%", "99%"])
    bar.set_label("quantile of all events in the channel")
    bar.outline.set_visible(False)
    return figure


def _tree_next_to(
    axes: Axes, tree: tuple[Array, Array], turned: bool, place: tuple[float, float, float, float]
) -> None:
    """Draw the tree of rows (turned) or columns of a heatmap in a part of its axes' surroundings."""
    own = axes.inset_axes(place)
    own.set_axis_off()
    for places, heights in zip(*tree, strict=True):
        own.plot(*((heights, places) if turned else (places, heights)), color=GREY, linewidth=0.7)
    if turned:
        own.set_ylim(axes.get_ylim())
        own.set_xlim(1.02, 0.0)
    else:
        own.set_xlim(-0.5, len(tree[0]) + 0.5)
        own.set_ylim(0.0, 1.02)


def pairs(gating: Gating) -> Figure:
    """Draw the density of the events in the pairs of channels that separate the populations."""
    chosen = separating_pairs(gating)
    if not chosen:
        return _one_channel(gating)
    columns = 2 if len(chosen) == 4 else min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    gating = extended(gating)
    key = [f"{label(gating, p, 50)}" for p in range(shown(gating))]
    figure, body = figure_with_key(3.9 * columns, 3.8 * rows + 0.3, key, columns)
    grid = body.subplots(rows, columns, squeeze=False).ravel()
    for axes, pair, own in zip(grid, chosen, outlined_in(gating, chosen), strict=False):
        _density(axes, gating, pair, own)
    for axes in grid[len(chosen) :]:
        axes.set_axis_off()
    dots = "" if gating.exploration is None else f". Dots: some of the {NAME}"
    outlined = gating.rasters.n_outlined
    few = f" (the {outlined} largest)" if outlined < shown(gating) else ""
    title = (
        "Colour: most frequent population of each bin; darker bins hold more events. Outlines: "
        f"{SHARE:.0%} of the events of a population{few}, where it stands apart"
        f"{only_the_largest(gating)}{dots}"
    )
    body.suptitle(textwrap.fill(title, 60 * columns), fontsize=9, x=0.01, ha="left")
    return figure


def _density(axes: Axes, gating: Gating, pair: int, outlined: Sequence[int]) -> None:
    """Draw one panel: coloured raster, outlines and numbers."""
    from matplotlib.patheffects import withStroke

    rasters = gating.rasters
    x, y = rasters.pairs[pair]
    ends = (*rasters.edges[x][[0, -1]], *rasters.edges[y][[0, -1]])
    numbers = np.array(gating.colours or range(gating.n_populations))
    image = rgb(numbers[rasters.populations[pair]], rasters.counts[pair]).transpose(1, 0, 2)
    axes.imshow(image, origin="lower", extent=ends, aspect="auto", interpolation="nearest")
    axes.set_xlim(*ends[:2])
    axes.set_ylim(*ends[2:])
    for axis, channel in ((axes.xaxis, int(x)), (axes.yaxis, int(y))):
        own = ticks_of(gating, channel)
        axis.set_ticks(own.places, own.texts)
        short_ticks(axes, axis, own.minor)
    names = gating.short_channels
    axes.set_xlabel(shortened(names[x], 40))
    axes.set_ylabel(shortened(names[y], 40))
    if gating.exploration is not None:
        own_cells = gating.exploration.values[:: -(-len(gating.exploration.values) // MOST_POINTS) or 1]
        axes.plot(own_cells[:, x], own_cells[:, y], "o", color="black", markersize=2.0, mec="white", mew=0.3)
    for population in outlined:
        for ring in rasters.outlines[pair][population] if population < rasters.n_outlined else ():
            (line,) = axes.plot(*np.append(ring, ring[:1], axis=0).T, color=colour_of(gating, population))
            line.set(linewidth=1.0, path_effects=[withStroke(linewidth=2.2, foreground=HALO)])
    medians = gating.quantiles[2][:, [x, y]]
    there = np.array([p for p in outlined if np.isfinite(medians[p]).all()], np.int64)
    number_populations(axes, gating, there, medians[there], ends)


def _one_channel(gating: Gating) -> Figure:
    """Draw the density of the populations in a single channel."""
    figure = new_figure(6.0, 3.2)
    axes = figure.add_subplot()
    for population, (places, density) in enumerate(densities(gating)):
        axes.fill_between(places, density, color=colour_of(gating, population), alpha=0.35, linewidth=0)
        axes.plot(places, density, color=colour_of(gating, population), linewidth=1.0)
        peak = int(np.argmax(density))
        axes.annotate(
            f"{gating.number(population)}",
            (places[peak], density[peak]),
            (0, 2),
            textcoords="offset points",
            ha="center",
        )
    axes.set_xlabel(gating.short_channels[0])
    axes.set_ylabel("density")
    axes.set_title("Density of each population")
    return figure


def tree(gating: Gating) -> Figure:
    """Draw the tree of modes and the cut."""
    drawn = dendrogram.dendrogram(gating)
    size = shares(gating)
    figure = new_figure(8.0, 1.4 + 0.17 * len(drawn.leaves))
    axes = figure.add_subplot()
    for levels, places, population in zip(drawn.levels, drawn.positions, drawn.populations, strict=True):
        own = colour_of(gating, population) if population >= 0 else "#444444"
        axes.plot(levels, places, color=own, linewidth=1.3 if population >= 0 else 0.9)
    axes.set_xscale("log")
    top = max(float(drawn.levels.max(initial=0.0)), gating.level, 2.0 * drawn.floor)
    axes.set_xlim(1.3 * top, drawn.floor)
    if drawn.floor <= gating.level:
        axes.axvline(gating.level, color="black", linestyle=(0, (4, 3)), linewidth=0.9)
    axes.set_ylim(len(drawn.leaves) - 0.4, -0.6)
    axes.yaxis.tick_right()
    axes.spines["left"].set_visible(False)
    axes.set_yticks(range(len(drawn.leaves)), dendrogram.leaf_labels(gating, drawn, size))
    axes.tick_params(axis="y", length=0)
    for text, leaf in zip(axes.get_yticklabels(), drawn.leaves, strict=True):
        text.set_color("black" if len(leaf.populations) == 1 else GREY)
    for position, leaf in enumerate(drawn.leaves):
        if len(leaf.populations) == 1:
            axes.plot(
                drawn.floor,
                position,
                "s",
                color=colour_of(gating, leaf.populations[0]),
                markersize=5,
                clip_on=False,
            )
    log_ticks(axes.xaxis, lambda value: f"{value:g}")
    axes.set_xlabel(dendrogram.AXIS_LABEL)
    axes.set_title(
        f"{gating.n_populations} populations from {len(gating.tree.heights)} modes, "
        f"cut at {gating.level:.3g} (dashed)"
    )
    return figure


def traces(run: Run, mixing: list[Mixing]) -> Figure:
    """Draw the traces of log density, occupied components and alpha, one line per chain."""
    found = trace.traces(run, mixing)
    burn_in = run.burn_in
    figure = new_figure(7.5, 5.6)
    panels = figure.subplots(len(found), 1, sharex=True)
    for axes, one in zip(panels, found, strict=True):
        for chain, values in enumerate(one.values):
            places = trace.thinned(values)
            axes.plot(places, values[places], color=colour(chain), linewidth=0.7)
        axes.set_ylim(*one.window(burn_in // 5 or int(run.sweeps_made.max()) // 10))
        if burn_in:
            axes.axvspan(0, burn_in, color="#000000", alpha=0.07, linewidth=0)
        axes.set_title("   ".join(filter(None, (one.quantity, one.note))))
        axes.ticklabel_format(axis="y", useOffset=False, style="plain")
        axes.yaxis.get_major_locator().set_params(integer=one.quantity.startswith("occupied"))
    chains = len(found[0].values)
    if run.kind == "mcmc":
        many = f"; {chains} chains" if chains > 1 else ""
        panels[-1].set_xlabel(
            f"sweep (grey: {burn_in:,} burn-in sweeps; the initial increase is not shown){many}"
        )
    else:
        panels[-1].set_xlabel(
            f"step; {chains} starts of Bayesian EM" if chains > 1 else "step of Bayesian EM"
        )
    panels[-1].set_xlim(0, max(1, int(run.sweeps_made.max())))
    return figure


def event_map(gating: Gating, events: Map) -> Figure:
    """Draw the events on the map, each in the colour of its population."""
    populations, points = map_numbers(gating, events)
    key = [label(gating, int(p), 50) for p in populations]
    figure, body = figure_with_key(7.0, 7.4, key, 2)
    axes = body.subplots()
    colours = np.array([colour_of(gating, p) for p in range(gating.n_populations)])
    # A raster in the PDF too: this many points are slow to display.
    axes.scatter(
        events.places[:, 0],
        events.places[:, 1],
        c=colours[events.populations],
        s=(map_point(events) * 460.0) ** 2,
        linewidths=0,
        rasterized=True,
    )
    corner, side = map_window(events)
    ends = (corner[0], corner[0] + side, corner[1], corner[1] + side)
    axes.axis(ends)
    axes.set_box_aspect(1)
    axes.set_axis_off()
    number_populations(axes, gating, populations, points, ends)
    caption = "\n".join((map_caption(gating, events), *MAP_NOTE))
    body.suptitle(caption, fontsize=8, x=0.01, ha="left")
    return figure
