"""Figures of associations: effects with intervals, their error rates, and differences of medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.association.effects import ABUNDANCE, EXPRESSION, VARIABILITY, Effects
from dpmix.association.study import Study
from dpmix.model.mixture import Array
from dpmix.report.association_samples import draw_map, groups_of, own_name, response_name, strips, strips_of
from dpmix.report.drawing import labels_apart, log_ticks, new_figure, place_texts, styled, within_margins
from dpmix.report.palette import GREY, colour
from dpmix.system.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("samples", "forest", "volcano", "strips", "differences", "medians")
MOST_ROWS = 40  # effects in a figure: those found, then the most certain ones
MOST_MARKS = 30  # effects of a volcano plot; of more, only those found have a name
VOLCANO_SIZE = 2.9, 2.7  # of the axes of a volcano plot, inches
MARGINS = 0.2, 0.05  # left and right, above and below its points, as shares of their ranges
LEAST_RATE = 1e-9  # of the axis of a volcano plot
AXES = {ABUNDANCE: "ratio of abundances", VARIABILITY: "ratio of standard deviations between samples"}
SHIFT = "difference of medians, transformed scale"


@dataclass(frozen=True)
class EffectPanel:
    """Effects of one contrast on one measure, ready to draw.

    Attributes
    ----------
    title, axis : str
    is_ratio : bool
    names : Q str
    marks, sides : Q str
        Short names to write next to points: the number of the population, or the type, with the channel of
        expression. "" for an effect that is not found and has no direction, or is one of more than
        `MOST_MARKS`, or whose name would cover another. Their alignment.
    middle, low, high, rate : float64 [Q]
    found : bool [Q]
    """

    title: str
    axis: str
    is_ratio: bool
    names: list[str]
    marks: list[str]
    sides: list[str]
    middle: Array
    low: Array
    high: Array
    rate: Array
    found: np.ndarray[tuple[int], np.dtype[np.bool_]]


def _mark(study: Study, effects: Effects, q: int) -> str:
    """Return the short name of a response."""
    population, channel = int(effects.populations[q]), int(effects.channels[q])
    number = own_name(study, population, 16) if study.draws.by_type else str(study.draws.number(population))
    return number if channel < 0 else f"{study.draws.channels[channel]} in {number}"


def panels(study: Study, share: float) -> list[EffectPanel]:
    """Return a panel for each contrast and measure; `share` is the accepted share of false discoveries."""
    return [_panel(study, one, share) for one in study.effects]


def _panel(study: Study, one: Effects, share: float) -> EffectPanel:
    middle, low, high = one.intervals
    first = one.order(share)[:MOST_ROWS]
    found, rates = one.found(share), np.maximum(one.rates, LEAST_RATE)
    few = len(first) <= MOST_MARKS
    texts = [_mark(study, one, int(q)) if found[q] or (few and rates[q] < 0.5) else "" for q in first]
    x = np.log(middle) if one.is_ratio else middle
    points = within_margins(np.column_stack([x[first], -np.log(rates[first])]), MARGINS)
    placed = zip(*labels_apart(points, texts, VOLCANO_SIZE), strict=True)
    written = dict(zip(first.tolist(), placed, strict=True))
    order = np.sort(first)
    note = f", the first {len(order)} of {len(middle)}" if len(order) < len(middle) else ""
    return EffectPanel(
        title=f"{one.measure.capitalize()}: {one.contrast}{note}",
        axis=AXES.get(one.measure, SHIFT),
        is_ratio=one.is_ratio,
        names=[response_name(study, int(one.populations[q]), int(one.channels[q])) for q in order],
        marks=[written[q][0] for q in order.tolist()],
        sides=[written[q][1] for q in order.tolist()],
        middle=middle[order],
        low=low[order],
        high=high[order],
        rate=rates[order],
        found=found[order],
    )


def forest(drawn: list[EffectPanel]) -> Figure:
    """Draw each effect with its 90% interval; those found are coloured."""
    heights = [0.19 * len(panel.names) + 0.8 for panel in drawn]
    figure = new_figure(7.5, sum(heights))
    grid = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axes in zip(drawn, grid, strict=True):
        rows = np.arange(len(panel.names))
        colours = [colour(1) if found else GREY for found in panel.found]
        axes.hlines(rows, panel.low, panel.high, colors=colours, linewidth=2.0)
        axes.scatter(panel.middle, rows, c=colours, s=16, zorder=3)
        axes.axvline(1.0 if panel.is_ratio else 0.0, color="black", linewidth=0.6)
        if panel.is_ratio:
            axes.set_xscale("log")
            log_ticks(axes.xaxis, lambda value: f"{value:g}")
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(rows, panel.names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.set_xlabel(f"{panel.axis}\nmedian and 90% interval; coloured: found")
        axes.set_title(panel.title)
    return figure


def volcano(drawn: list[EffectPanel]) -> Figure:
    """Draw the false discovery rate of each effect against its size."""
    columns = min(2, len(drawn))
    figure = new_figure(3.7 * columns, 3.3 * -(-len(drawn) // columns))
    grid = figure.subplots(-(-len(drawn) // columns), columns, squeeze=False).ravel()
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    for panel, axes in zip(drawn, grid, strict=False):
        colours = [colour(1) if found else GREY for found in panel.found]
        axes.margins(x=MARGINS[0])
        axes.scatter(panel.middle, panel.rate, c=colours, s=16)
        place_texts(axes, np.column_stack([panel.middle, panel.rate]), panel.marks, panel.sides)
        if panel.is_ratio:
            axes.set_xscale("log")
            log_ticks(axes.xaxis, lambda value: f"{value:g}")
        else:
            axes.locator_params(axis="x", nbins=4)
        axes.set_yscale("log")
        axes.set_ylim(1.3, min(0.7 * panel.rate.min(), 0.04))
        log_ticks(axes.yaxis, lambda value: f"{value:g}")
        axes.set_xlabel(panel.axis)
        axes.set_ylabel("false discovery rate")
        axes.set_title(panel.title)
    return figure


@dataclass(frozen=True)
class Differences:
    """Differences of medians of one contrast: populations by channels.

    Attributes
    ----------
    contrast, noun : str
        `noun` is population or type.
    populations, channels : list of str
    values : float64 [populations, channels]
        NaN where there are too few events.
    found : bool [populations, channels]
    """

    contrast: str
    noun: str
    populations: list[str]
    channels: list[str]
    values: Array
    found: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def limit(self) -> float:
        """Largest difference, for the ends of the colours."""
        return max(float(np.nanmax(np.abs(self.values))), 1e-9)


def differences_of(study: Study, share: float) -> list[Differences]:
    """Return the differences of medians of each contrast; none without --expression."""
    made = []
    for one in study.effects:
        if one.measure != EXPRESSION:
            continue
        rows, row = np.unique(one.populations, return_inverse=True)
        columns, column = np.unique(one.channels, return_inverse=True)
        values = np.full((len(rows), len(columns)), np.nan)
        values[row, column] = one.intervals[0]
        found = np.zeros(values.shape, bool)
        found[row, column] = one.found(share)
        names = [own_name(study, int(p)) for p in rows]
        made.append(
            Differences(
                one.contrast,
                study.draws.noun,
                names,
                [study.draws.channels[c] for c in columns],
                values,
                found,
            )
        )
    return made


def heatmap(drawn: list[Differences]) -> Figure:
    """Draw the differences of medians as colours; a dot marks those found."""
    sizes = [0.17 * len(one.populations) + 1.3 for one in drawn]
    figure = new_figure(4.2 + 0.22 * max(len(one.channels) for one in drawn), sum(sizes))
    grid = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for one, axes in zip(drawn, grid, strict=True):
        image = axes.imshow(one.values, cmap="RdBu_r", vmin=-one.limit, vmax=one.limit, aspect="auto")
        axes.scatter(*np.argwhere(one.found).T[::-1], s=4, c="black", linewidths=0.0)
        axes.set_facecolor("#dddddd")
        axes.set_xticks(np.arange(len(one.channels)), one.channels, rotation=90)
        axes.set_yticks(np.arange(len(one.populations)), one.populations)
        axes.tick_params(length=0)
        # In the title, because a label of the colours is longer than the axes of few populations.
        axes.set_title(f"{one.contrast}: {SHIFT}\nDots: found")
        figure.colorbar(image, ax=axes)
    return figure


def figure_paths(folder: Path, names: Sequence[str] = FIGURES) -> list[Path]:
    """Return the files of figures."""
    return [folder / f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")]


def write_figures(folder: Path, study: Study, share: float, seed: int) -> None:
    """Draw all figures as PNG and PDF; figures of samples show the first contrast.

    Figures of an earlier study that this one does not have are removed.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    first = study.design.contrasts[0]
    with styled():
        made, groups = panels(study, share), groups_of(study, first)
        figures = {
            "samples": draw_map(study, groups),
            "forest": forest(made),
            "volcano": volcano(made),
            "strips": strips(strips_of(study, first, ABUNDANCE, share, seed), groups),
        }
        if study.medians is not None:
            figures["differences"] = heatmap(differences_of(study, share))
            figures["medians"] = strips(strips_of(study, first, EXPRESSION, share, seed), groups)
        for path in figure_paths(folder):
            with writing(path):
                if path.stem in figures:
                    created = {"CreationDate": None} if path.suffix == ".pdf" else None
                    figures[path.stem].savefig(path, metadata=created)
                else:
                    path.unlink(missing_ok=True)
