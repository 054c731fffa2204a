"""Parts of matplotlib figures: sizes, colour labels, number labels and axis ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.result import Gating
from dpmix.report.labels import ticks, title
from dpmix.report.palette import colour_of, ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

_drawing = Lock()

# Names of channels and files are shown literally, with "$"; text in a PDF stays text.
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


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of dpmix, one thread at a time: the style of Matplotlib is one of the process."""
    import matplotlib

    with _drawing, matplotlib.rc_context(STYLE):
        yield


SPREAD_ROUNDS = 200  # at most, of moving labels apart


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_with_key(width: float, height: float, lines: list[str], columns: int) -> tuple[Figure, SubFigure]:
    """Return a figure, and the part of it above lines of text in columns, its key."""
    each = -(-len(lines) // columns)
    heights = height, 0.14 * each + 0.1
    figure = new_figure(width, sum(heights))
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    body, key = parts
    for number, line in enumerate(lines):
        column, row = divmod(number, each)
        key.text(0.01 + column / columns, 1.0 - (row + 0.5) / each, line, fontsize=6.5, va="center")
    return figure, body


def name_population(axes: Axes, x: float, y: float, gating: Gating, population: int, note: str = "") -> None:
    """Write the number of a population on its colour, its phenotype and a note, to the right of a point."""
    own = colour_of(gating, population)
    style: Any = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    box = {"boxstyle": "round,pad=0.2", "facecolor": own, "edgecolor": "none"}
    axes.annotate(
        f"{gating.number(population)}",
        (x, y),
        (14, 0),
        ha="center",
        fontsize=7,
        color=ink(own),
        bbox=box,
        **style,
    )
    axes.annotate(f"{title(gating, population, 48)}  {note}".rstrip(), (x, y), (25, 0), **style)


def number_populations(
    axes: Axes, gating: Gating, populations: Ints, points: Array, ends: tuple[float, ...]
) -> None:
    """Write numbers of populations at their points [Q, 2], moved apart where they would overlap."""
    low, width = np.array(ends[::2]), np.array([ends[1] - ends[0], ends[3] - ends[2]])
    points = np.clip((points - low) / width, 0.02, 0.98)
    places = np.clip(spread_out(points, np.array([0.055, 0.055])), 0.02, 0.98)
    for population, point, place in zip(populations.tolist(), points, places, strict=True):
        own = colour_of(gating, population)
        if np.abs(place - point).max() > 0.02:
            axes.plot(*zip(point, place, strict=True), color="black", linewidth=0.5, transform=axes.transAxes)
            axes.plot(*point, ".", color="black", markersize=2.5, transform=axes.transAxes)
        axes.text(
            place[0],
            place[1],
            f"{gating.number(population)}",
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=6.5,
            color=ink(own),
            bbox={"boxstyle": "round,pad=0.15", "facecolor": own, "edgecolor": "white", "linewidth": 0.5},
        )


def spread_out(points: Array, apart: Array) -> Array:
    """Move labels apart until they hardly overlap, and keep them near their points.

    Parameters
    ----------
    points : float64 [n, 2]
    apart : float64 [2]
        Width and height of a label.

    Returns
    -------
    float64 [n, 2]
    """
    # Labels at the same point first move a little, each in its own direction.
    turn = 2.4 * np.arange(len(points))
    places = points / apart + 0.01 * np.stack((np.cos(turn), np.sin(turn)), axis=1)
    for _ in range(SPREAD_ROUNDS):
        gap = places[:, None] - places[None]
        distance = np.linalg.norm(gap, axis=2) + np.eye(len(places))
        lacking = np.maximum(1.0 - distance, 0.0)
        np.fill_diagonal(lacking, 0.0)
        if not (lacking > 0.02).any():
            break
        places = places + 0.4 * (gap / distance[..., None] * lacking[..., None]).sum(axis=1)
    return places * apart


CHARACTER, LINE_HEIGHT, GAP = 0.062, 0.13, 0.06  # of a label of 7 points and next to its point, inches


def labels_apart(
    points: Array, texts: Sequence[str], size: tuple[float, float]
) -> tuple[list[str], list[str]]:
    """Return the labels that fit next to their points, and their alignment, in the order of importance.

    A label is right of its point ("left"), else left of it ("right"), else "", so that it covers no point and
    no label before it.

    Parameters
    ----------
    points : float64 [Q, 2]
        As shares of the sides of the axes.
    texts : sequence of str
        "" for none.
    size : float, float
        Sides of the axes, inches.
    """
    points = points * size
    taken: list[Array] = []  # left, right, bottom, top
    fitting, sides = list[str](), list[str]()
    for q, ((x, y), text) in enumerate(zip(points, texts, strict=True)):
        width = CHARACTER * len(text)
        others = np.delete(points, q, axis=0)
        chosen = "", "left"
        for side, start in (("left", x + GAP), ("right", x - GAP - width)):
            box = np.array([start, start + width, y - LINE_HEIGHT / 2.0, y + LINE_HEIGHT / 2.0])
            on = (others >= box[::2] - 0.8 * GAP) & (others <= box[1::2] + 0.8 * GAP)
            crossed = any(box[0] < b[1] and b[0] < box[1] and box[2] < b[3] and b[2] < box[3] for b in taken)
            if text and start >= 0.0 and not crossed and not on.all(axis=1).any():
                taken.append(box)
                chosen = text, side
                break
        fitting.append(chosen[0])
        sides.append(chosen[1])
    return fitting, sides


def within_margins(points: Array, margins: tuple[float, float]) -> Array:
    """Return points [Q, 2] as shares of the sides of axes with margins, which are shares of their ranges."""
    shares: Array = (points - points.min(axis=0)) / np.maximum(np.ptp(points, axis=0), 1e-9)
    return (shares + margins) / (1.0 + 2.0 * np.array(margins))


def place_texts(axes: Axes, points: Array, texts: Sequence[str], sides: Sequence[str]) -> None:
    """Write the labels that `labels_apart` has placed."""
    for point, text, side in zip(points, texts, sides, strict=True):
        style: Any = {"textcoords": "offset points", "va": "center", "fontsize": 7, "ha": side}
        axes.annotate(text, point, (4 if side == "left" else -4, 0), **style)


def percent_axis(axes: Axes, which: str) -> None:
    """Make an axis logarithmic, with shares in percent."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    log_ticks(axis, lambda value: f"{100.0 * value:.6g}%")


def short_ticks(axes: Axes, axis: Axis, places: Sequence[float]) -> None:
    """Draw short ticks without labels at places of an axis: one line, since Matplotlib's ticks are slow."""
    from matplotlib.markers import TICKDOWN, TICKLEFT

    zeros, is_x = [0.0] * len(places), axis is axes.xaxis
    (line,) = axes.plot(
        *((places, zeros) if is_x else (zeros, places)),
        color="black",
        linestyle="none",
        marker=TICKDOWN if is_x else TICKLEFT,
        markersize=2.0,
        markeredgewidth=0.6,
        transform=axes.get_xaxis_transform() if is_x else axes.get_yaxis_transform(),
        clip_on=False,
    )
    line.set_in_layout(False)


def log_ticks(axis: Axis, text: Callable[[float], str]) -> None:
    """Set the ticks of a logarithmic axis and their labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(FixedLocator(ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
