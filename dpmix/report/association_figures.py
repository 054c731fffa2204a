"""Figures of associations: effects with intervals, error rates, and the samples of each group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.association.design import Contrast
from dpmix.association.effects import ABUNDANCE, VARIABILITY, Effects
from dpmix.association.study import Study
from dpmix.model.mixture import Array
from dpmix.populations.proportions import posterior, posterior_mean
from dpmix.populations.result import Estimates
from dpmix.report.drawing import log_ticks, new_figure, percent_axis, styled
from dpmix.report.labels import label
from dpmix.report.palette import GREY, colour
from dpmix.system.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = ("forest", "volcano", "strips")
MOST_ROWS = 40  # effects in a figure: those found, then the most certain ones
MOST_MARKS = 30  # effects of a volcano plot; of more, only those found have a name
MOST_STRIPS = 24  # populations
LEAST_RATE = 1e-9  # of the axis of a volcano plot
AXES = {ABUNDANCE: "ratio of abundances", VARIABILITY: "ratio of standard deviations between samples"}
SHIFT = "difference of medians, transformed scale"
MARK_WIDTH, MARK_HEIGHT = 0.3, 0.045  # of a mark of a volcano plot, as shares of the ranges of the axes
STRIP_WIDTH = 0.6  # of the samples of a group


@dataclass(frozen=True)
class Panel:
    """Effects of one contrast on one measure, ready to draw.

    Attributes
    ----------
    title, axis : str
    is_ratio : bool
    names : Q str
    marks : Q str
        Short names to write next to points: the number of the population, with the channel of expression. ""
        for an effect that is not found and has no direction, or is one of more than `MOST_MARKS`.
    middle, low, high, rate : float64 [Q]
    found : bool [Q]
    """

    title: str
    axis: str
    is_ratio: bool
    names: list[str]
    marks: list[str]
    middle: Array
    low: Array
    high: Array
    rate: Array
    found: np.ndarray[tuple[int], np.dtype[np.bool_]]


def response_name(study: Study, effects: Effects, q: int, width: int = 44) -> str:
    """Return the name of a response: its population, and its channel for expression."""
    own = label(study.draws, int(effects.populations[q]), width)
    channel = int(effects.channels[q])
    return own if channel < 0 else f"{study.draws.channels[channel]} in {own}"


def _mark(study: Study, effects: Effects, q: int) -> str:
    """Return the short name of a response."""
    number, channel = str(int(effects.populations[q]) + 1), int(effects.channels[q])
    return number if channel < 0 else f"{study.draws.channels[channel]} in {number}"


def panels(study: Study, share: float) -> list[Panel]:
    """Return a panel for each contrast and measure; `share` is the accepted share of false discoveries."""
    made = []
    for one in study.effects:
        middle, low, high = one.intervals
        order = np.arange(len(middle))
        if len(order) > MOST_ROWS:
            order = np.sort(one.order(share)[:MOST_ROWS])
        found = one.found(share)[order]
        few = len(order) <= MOST_MARKS
        note = f", {len(order)} of {len(middle)}" if len(order) < len(middle) else ""
        made.append(
            Panel(
                title=f"{one.measure.capitalize()}: {one.contrast}{note}",
                axis=AXES.get(one.measure, SHIFT),
                is_ratio=one.is_ratio,
                names=[response_name(study, one, int(q)) for q in order],
                marks=[
                    _mark(study, one, int(q)) if f or (few and one.rates[q] < 0.5) else ""
                    for q, f in zip(order, found, strict=True)
                ],
                middle=middle[order],
                low=low[order],
                high=high[order],
                rate=np.maximum(one.rates, LEAST_RATE)[order],
                found=found,
            )
        )
    return made


def marks_apart(panel: Panel) -> list[str]:
    """Return the marks of a volcano plot without those that would overlap a mark of a larger effect."""
    x = np.log(panel.middle) if panel.is_ratio else panel.middle
    y = np.log(panel.rate)
    places = np.column_stack([own / max(float(np.ptp(own)), 1e-9) for own in (x, y)])
    kept, marks = list[int](), [""] * len(panel.marks)
    for q in np.argsort(-np.abs(x), kind="stable").tolist():
        near = (np.abs(places[kept] - places[q]) < (MARK_WIDTH, MARK_HEIGHT)).all(axis=1)
        if panel.marks[q] and not near.any():
            kept.append(q)
            marks[q] = panel.marks[q]
    return marks


def forest(drawn: list[Panel]) -> Figure:
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
        axes.set_xlabel(f"{panel.axis}: median and 90% interval; coloured: found")
        axes.set_title(panel.title)
    return figure


def volcano(drawn: list[Panel]) -> Figure:
    """Draw the false discovery rate of each effect against its size."""
    columns = min(2, len(drawn))
    figure = new_figure(3.7 * columns, 3.3 * -(-len(drawn) // columns))
    grid = figure.subplots(-(-len(drawn) // columns), columns, squeeze=False).ravel()
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    for panel, axes in zip(drawn, grid, strict=False):
        colours = [colour(1) if found else GREY for found in panel.found]
        axes.scatter(panel.middle, panel.rate, c=colours, s=16)
        for x, y, mark in zip(panel.middle, panel.rate, marks_apart(panel), strict=True):
            axes.annotate(mark, (x, y), (4, 2), textcoords="offset points", fontsize=7)
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
class Strips:
    """Proportions of the samples by group, or against a column of numbers.

    Attributes
    ----------
    places : float64 [S]
    ticks : mapping of float to str
        Names of the groups; empty for a column of numbers.
    column : str
    mean, low, high : float64 [S, P]
    groups : int64 [S]
        Number of the group of each sample, -1 for none of the two.
    units : list of int64 [samples of a unit]
        Samples that belong together, for example to a donor, from left to right: lines join them.
    """

    places: Array
    ticks: dict[float, str]
    column: str
    mean: Array
    low: Array
    high: Array
    groups: np.ndarray[Any, np.dtype[np.int64]]
    units: list[np.ndarray[Any, np.dtype[np.int64]]]


def strips_of(study: Study, contrast: Contrast, seed: int) -> Strips:
    """Return the proportions of all samples, in the groups of a contrast."""
    values = study.design.table[contrast.column]
    found = Estimates.of(posterior_mean(study.draws.counts), posterior(study.draws.counts, seed))
    least = 0.25 / max(1.0, float(study.draws.counts[0].sum(axis=1).min()))  # a quarter of an event
    mean, low, high = (np.maximum(end, least) for end in found)
    if contrast.groups is None:
        places = np.array(values, np.float64)
        none = np.zeros(len(values), np.int64)
        return Strips(places, {}, contrast.column, mean, low, high, none, _units(study, places))
    others = [value for value in dict.fromkeys(values) if value not in contrast.groups]
    kinds = [*reversed(contrast.groups), *others]
    at = np.array([kinds.index(value) for value in values])
    places = at.astype(np.float64)
    for kind in range(len(kinds)):
        own = np.flatnonzero(at == kind)
        places[own] += STRIP_WIDTH * ((np.arange(len(own)) + 0.5) / len(own) - 0.5)
    names = {float(k): f"{kind:g}" if isinstance(kind, float) else str(kind) for k, kind in enumerate(kinds)}
    groups = np.where(at < 2, at, -1)
    return Strips(places, names, contrast.column, mean, low, high, groups, _units(study, places))


def _units(study: Study, places: Array) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the samples of each level of the first random effect, in the order of their places."""
    column = study.design.terms[0].partition("|")[2].strip() if study.design.terms else ""
    if column not in study.design.table:
        return []
    cells = np.array([str(cell) for cell in study.design.table[column]])
    found = [np.flatnonzero(cells == cell) for cell in dict.fromkeys(cells.tolist())]
    return [own[np.argsort(places[own], kind="stable")] for own in found if len(own) > 1]


def strip_order(study: Study, contrast: Contrast, share: float) -> list[int]:
    """Return the populations to draw, those whose abundance is found to differ first."""
    (own,) = [e for e in study.effects if e.measure == ABUNDANCE and e.contrast == contrast.name]
    order: list[int] = own.order(share)[:MOST_STRIPS].tolist()
    return order


def strips(study: Study, contrast: Contrast, share: float, seed: int) -> Figure:
    """Draw the proportion of each population in each sample, with its 90% interval, by group."""
    shown, order = strips_of(study, contrast, seed), strip_order(study, contrast, share)
    columns = min(4, len(order))
    rows = -(-len(order) // columns)
    figure = new_figure(2.4 * columns, 1.9 * rows + 0.3)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(order) :]:
        axes.set_axis_off()
    colours = [colour(int(g)) if g >= 0 else GREY for g in shown.groups]
    for p, axes in zip(order, grid, strict=False):
        for own in shown.units:
            axes.plot(shown.places[own], shown.mean[own, p], color="#aaaaaa", linewidth=0.6, zorder=0)
        axes.vlines(shown.places, shown.low[:, p], shown.high[:, p], colors=colours, linewidth=1.2, alpha=0.6)
        axes.scatter(shown.places, shown.mean[:, p], c=colours, s=8)
        if shown.ticks:
            axes.set_xticks(list(shown.ticks), list(shown.ticks.values()))
            axes.set_xlim(-0.5, len(shown.ticks) - 0.5)
        percent_axis(axes, "y")
        axes.set_title(label(study.draws, p, 30), fontsize=7)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    figure.supylabel("proportion of the sample: mean and 90% interval", fontsize=8)
    figure.supxlabel(shown.column, fontsize=8)
    return figure


def figure_paths(folder: Path) -> list[Path]:
    """Return the files that `write_figures` writes."""
    return [folder / f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "pdf")]


def write_figures(folder: Path, study: Study, share: float, seed: int) -> None:
    """Draw all figures as PNG and PDF; the strips are those of the first contrast.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with styled():
        made = panels(study, share)
        figures = forest(made), volcano(made), strips(study, study.design.contrasts[0], share, seed)
        for figure, name in zip(figures, FIGURES, strict=True):
            for suffix in ("png", "pdf"):
                path = folder / f"{name}.{suffix}"
                with writing(path):
                    figure.savefig(path, metadata={"CreationDate": None} if suffix == "pdf" else None)
