"""The tree of gates of hierarchy.xml, for the report: its layout, figure, plot and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.populations.gates.nested import Node
from dpmix.populations.result import Gating
from dpmix.report.drawing import name_population, new_figure
from dpmix.report.findings import numbers_of
from dpmix.report.gatingml import nested
from dpmix.report.labels import label, named_channels, shortened
from dpmix.report.page_plots import add_hover, name_axis, new_plot
from dpmix.report.palette import GREY, colour_of, ink
from dpmix.system.console import percent

if TYPE_CHECKING:
    from bokeh.plotting import figure as Plot
    from matplotlib.figure import Figure

MOST_MARKERS = 22  # characters on a line of the figure
STEP, LABEL = 1.3, 3.0  # width of a level and of a name, in inches
NUMBERS = (2.1, 5.2)  # width of the numbers, without and with a shortfall


@dataclass(frozen=True)
class Row:
    """A branch or population of the hierarchy as drawn, in the order from top to bottom.

    Attributes
    ----------
    node : Node
    name : str
        Name of its last gate in hierarchy.xml, or what it would be.
    path : tuple of str
        Names of all gates from the first to its last.
    depth : int
        Number of branches around it.
    parent : int
        Row of the branch around it, -1 for all events.
    """

    node: Node
    name: str
    path: tuple[str, ...]
    depth: int
    parent: int


def rows_of(gating: Gating, hierarchy: Sequence[Node]) -> list[Row]:
    """Return the rows of the tree: each branch before what is inside it, large populations first."""
    named = nested(gating, hierarchy)
    rows: list[Row] = []

    def add(parent: int, above: int, depth: int) -> None:
        inside = [k for k, node in enumerate(hierarchy) if node.parent == parent]
        for k in sorted(inside, key=lambda k: min(hierarchy[k].populations)):
            before = rows[above].path if above >= 0 else ()
            rows.append(Row(hierarchy[k], named[k].title, (*before, *named[k].names), depth, above))
            if hierarchy[k].is_branch:
                add(k, len(rows) - 1, depth + 1)

    add(-1, -1, 0)
    return rows


def own_gates(gating: Gating, row: Row) -> list[str]:
    """Return the channels of each gate that a branch or population adds to those around it."""
    gates = row.node.strategy.gates
    return [named_channels(gating.short_channels, gate) for gate in gates[len(gates) - row.node.n_own :]]


def table(gating: Gating) -> list[dict[str, Any]]:
    """Return the table of the tree of gates, one row for each branch and population."""
    return [_cells(gating, row) for row in rows_of(gating, gating.hierarchy)]


def _cells(gating: Gating, row: Row) -> dict[str, Any]:
    """Return the cells of a branch or population."""
    own, first = row.node.strategy, row.node.populations[0]
    gated = len(own.gates) > 0
    return {
        "depth": row.depth,
        "name": row.name,
        "number": 0 if row.node.is_branch else first + 1,
        "colour": colour_of(gating, first),
        "ink": ink(colour_of(gating, first)),
        "what": _populations(gating, row) if row.node.is_branch else gating.titles[first],
        "path": " / ".join(row.path),
        "own": own_gates(gating, row),
        "events": f"{own.selected[-1]:,}" if gated else "",
        "purity": percent(own.purity[-1]) if gated else "",
        "recovered": percent(own.recovered[-1]) if gated else "",
        "f1": f"{own.f1[-1]:.2f}" if gated else "",
        "shortfall": own.shortfall or ("" if gated else "no gates"),
    }


def _populations(gating: Gating, row: Row) -> str:
    """Return the populations of a branch in words."""
    return f"populations {numbers_of(gating, np.array(row.node.populations))}"


def _measured(row: Row) -> str:
    """Return F1, purity and yield of the gates of a row, and what they miss."""
    own = row.node.strategy
    if not own.gates:
        return "no gates"
    purity, recovered = percent(own.purity[-1]), percent(own.recovered[-1])
    shortfall = f" ({own.shortfall})" if own.shortfall else ""
    return f"F1 {own.f1[-1]:.2f}, purity {purity}, yield {recovered}{shortfall}"


def _short(gating: Gating, row: Row) -> str:
    """Return name, F1 and shortfall of a row."""
    own = row.node.strategy
    name = row.name if row.node.is_branch else label(gating, row.node.populations[0], 40)
    f1 = f"F1 {own.f1[-1]:.2f}" if own.gates else "no gates"
    return f"{name}   {f1}{f', {own.shortfall}' if own.shortfall else ''}"


def _lines(rows: Sequence[Row]) -> list[tuple[list[float], list[float]]]:
    """Return the line from the branch around each row: places in depth, and in rows."""
    return [
        ([row.depth, row.depth, row.depth + 1], [row.parent, place, place]) for place, row in enumerate(rows)
    ]


def gate_tree(gating: Gating) -> Figure:
    """Draw the tree of gates: branches, populations inside, and the channels of their own gates."""
    rows = rows_of(gating, gating.hierarchy)
    deepest = 1 + max(row.depth for row in rows)
    numbers = deepest + LABEL / STEP  # where purity, yield and F1 stand
    wide = NUMBERS[any(row.node.strategy.shortfall for row in rows)]
    figure = new_figure(STEP * numbers + wide, 0.6 + 0.26 * len(rows))
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.05, numbers + wide / STEP)
    axes.set_ylim(len(rows) - 0.4, -1.4)
    style: Any = {"textcoords": "offset points", "fontsize": 7, "va": "center"}
    axes.annotate("all events", (0.0, -1.0), (4, 0), **style)
    axes.hlines(range(len(rows)), 0.0, numbers, colors="#eeeeee", linewidth=0.5, zorder=-1)
    for (across, down), row in zip(_lines(rows), rows, strict=True):
        axes.plot(across, down, color=GREY, linewidth=0.8, zorder=0)
        markers = shortened("; ".join(own_gates(gating, row)), MOST_MARKERS)
        axes.annotate(markers, (across[1], down[2]), (3, 5), **style | {"fontsize": 5.5})
        if row.node.is_branch:
            axes.plot(across[2], down[2], "o", color=GREY, markersize=4)
            text = f"{row.name}: {len(row.node.populations)} populations"
            axes.annotate(text, (across[2], down[2]), (6, 0), **style)
        else:
            name_population(axes, across[2], down[2], gating, row.node.populations[0])
        weight = "bold" if row.node.strategy.shortfall else "normal"
        axes.text(numbers, down[2], _measured(row), va="center", fontsize=7, weight=weight)
    return figure


def gate_tree_plot(gating: Gating) -> Plot:
    """Return the same tree as a figure of the page."""
    rows = rows_of(gating, gating.hierarchy)
    deepest = 1 + max(row.depth for row in rows)
    plot = new_plot(
        height=80 + 22 * len(rows),
        x_range=(-0.1, deepest + 0.1),
        y_range=(len(rows) - 0.4, -1.6),
        y_axis_location="right",
        tools="save",
    )
    lines = _lines(rows)
    plot.multi_line(
        [across for across, _ in lines], [down for _, down in lines], line_color=GREY, line_width=1.5
    )
    plot.scatter([0], [-1], size=8, color=GREY)
    branches = [row.node.is_branch for row in rows]
    source = {
        "x": [row.depth + 1 for row in rows],
        "y": list(range(len(rows))),
        "colour": [
            GREY if row.node.is_branch else colour_of(gating, row.node.populations[0]) for row in rows
        ],
        "marker": ["circle" if branch else "square" for branch in branches],
        "who": [
            f"{row.name}, {_populations(gating, row)}"
            if row.node.is_branch
            else label(gating, row.node.populations[0], 70)
            for row in rows
        ],
        "path": [" / ".join(row.path) for row in rows],
        "gates": ["; ".join(own_gates(gating, row)) for row in rows],
        "measured": [_measured(row) for row in rows],
    }
    nodes = plot.scatter("x", "y", source=source, marker="marker", size=10, color="colour")
    add_hover(plot, nodes, ("of", "@who"), ("path", "@path"), ("gates", "@gates"), ("", "@measured"))
    name_axis(plot.yaxis, [_short(gating, row) for row in rows])
    plot.xaxis.visible = False
    plot.grid.visible = False
    return plot
