"""The page of associations: one self-contained HTML file with interactive figures, drawn by Bokeh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.association.effects import ABUNDANCE, EXPRESSION, Effects
from dpmix.association.study import Study
from dpmix.populations.result import with_type
from dpmix.report import templates
from dpmix.report.association_figures import (
    AXES,
    MARGINS,
    SHIFT,
    Differences,
    EffectPanel,
    differences_of,
    panels,
)
from dpmix.report.association_samples import (
    MAP_MARGIN,
    MOST_STRIPS,
    Groups,
    Strips,
    groups_of,
    own_name,
    response_name,
    sample_map,
    strips_of,
)
from dpmix.report.page_data import script_json
from dpmix.report.page_plots import add_hover, name_axis, new_plot, plain, plot_range
from dpmix.report.page_proportions import PERCENT
from dpmix.report.palette import GREY, colour

if TYPE_CHECKING:
    from bokeh.model import Model

SPOKEN = {colour(0): "blue", colour(1): "orange", GREY: "grey"}
MOST_ROWS = 200  # of the table
MOST_SENTENCES = 20  # of a contrast and measure
HEAD = ("Response", "Effect", "90% interval", "Direction", "False discovery rate")
VALUE = "@middle{0.[00]} (@low{0.[00]} to @high{0.[00]})"
HOVER = ("response", "@who"), ("effect", VALUE), ("false discovery rate", "@rate{%.2g}")
TEXT: Any = {
    "text": "mark",
    "text_align": "side",
    "x_offset": "offset",
    "text_baseline": "middle",
    "text_font_size": "10px",
}


def render(study: Study, share: float, seed: int, warnings: list[str]) -> str:
    """Return the page."""
    from bokeh.embed import json_item
    from bokeh.resources import Resources

    figures, plots = _figures(study, share, seed)
    rows = [row for effects in study.effects for row in _rows(study, effects, share)]
    rows.sort(key=lambda row: not row["found"])
    library = Resources(mode="inline", components=["bokeh"], log_level="warn")
    return templates.render(
        "associations.html",
        title=f"Associations with {', '.join(dict.fromkeys(c.column for c in study.design.contrasts))}",
        summary=summary(study, share),
        warnings=warnings,
        head=HEAD,
        rows=rows[:MOST_ROWS],
        more=f"The first {MOST_ROWS} of {len(rows)}; associations.csv has all." * (len(rows) > MOST_ROWS),
        figures=figures,
        outliers=_outliers(study),
        noun=study.draws.noun.capitalize(),
        bokeh="\n".join(library.js_raw),
        plots=script_json({name: json_item(plot) for name, plot in plots.items()}),
    )


def summary(study: Study, share: float) -> list[str]:
    """Return what was fitted and what was found, in sentences."""
    lines = [
        f"{len(study.draws.samples)} samples, {len(study.draws.phenotypes)} {study.draws.noun}s, formula "
        f"{study.design.formula}. Found: false discovery rate of at most {share:.0%}.",
        f"Columns: {'; '.join(study.design.readings)}. Design: "
        + ", ".join(("intercept", *study.design.columns))
        + "".join(f", ({term})" for term in study.design.terms)
        + ".",
    ]
    lines += [f"The gating: {study.draws.verdict}"] if study.draws.verdict else []
    for effects in study.effects:
        found = effects.found(share)
        lines.append(
            f"{effects.contrast}, {effects.measure}: {found.sum()} of {len(found)} found "
            f"({AXES.get(effects.measure, SHIFT)}, with 90% interval)."
        )
        listed = [int(q) for q in effects.order(share) if found[q]]
        lines += [sentence(study, effects, q) for q in listed[:MOST_SENTENCES]]
        if len(listed) > MOST_SENTENCES:
            lines.append(f"and {len(listed) - MOST_SENTENCES} more, in associations.csv.")
    return lines


def sentence(study: Study, effects: Effects, q: int) -> str:
    """Return an effect as a sentence."""
    middle, low, high = (end[q] for end in effects.intervals)
    p = effects.populations[q]
    phenotype = study.draws.phenotypes[p]  # "" in some files of earlier versions
    where = phenotype if study.draws.by_type else f"population {study.draws.number(p)}"
    if effects.measure == "abundance":
        text = f"{where} is {middle:.2f} times as frequent ({low:.2f} to {high:.2f})"
    elif effects.is_ratio:
        text = f"{where} varies {middle:.2f} times as much between samples ({low:.2f} to {high:.2f})"
    else:
        channel = study.draws.channels[effects.channels[q]]
        text = f"{channel} in {where} differs by {middle:#.3g} ({low:#.3g} to {high:#.3g})"
    described = with_type(phenotype, "".join(study.draws.population_types[p : p + 1]))
    named = f": {described}" if phenotype and not study.draws.by_type else ""
    # An effect almost without some samples may differ from the one that a reader sees in the figure.
    at = p, effects.channels[q]
    odd = [one.sample for one in study.outliers if (one.population, one.channel) == at]
    listed = f" (outliers: {', '.join(odd)})" if odd else ""
    return f"{text}{named}{listed}."


def _rows(study: Study, effects: Effects, share: float) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    middle, low, high = effects.intervals
    found, rates, direction = effects.found(share), effects.rates, effects.direction
    several = len(study.effects) > 1
    return [
        {
            "name": response_name(study, int(effects.populations[q]), int(effects.channels[q]), 70)
            + (f" ({effects.measure}, {effects.contrast})" if several else ""),
            "cells": (
                f"{middle[q]:.3g}",
                f"{low[q]:.3g} to {high[q]:.3g}",
                f"{direction[q]:.3f}",
                f"{rates[q]:.2g}" if effects.converged[q] else "not converged",
            ),
            "found": bool(found[q]),
        }
        for q in effects.order(share)
    ]


def _figures(study: Study, share: float, seed: int) -> tuple[list[dict[str, str]], dict[str, Model]]:
    """Return titles and captions of the figures, and the figures, by their place in the template."""
    figures, plots = [], dict[str, Any]()

    def add(name: str, plot: Model, title: str, caption: str) -> None:
        plots[name] = plot
        figures.append({"id": name, "title": title, "caption": caption})

    every = [groups_of(study, contrast) for contrast in study.design.contrasts]
    colours = ", ".join(f"{name} {SPOKEN.get(own, own)}" for name, own in every[0].key.items())
    add(
        "samples",
        _map(study, every[0]),
        f"Samples by the proportions of their {study.draws.noun}s",
        "Principal components of the logarithms of the proportions: similar samples are near each other. "
        f"{every[0].column}: {colours or 'darker is lower'}.",
    )
    for number, panel in enumerate(panels(study, share)):
        caption = f"{panel.axis.capitalize()}: median and 90% interval. Coloured: found."
        add(f"forest{number}", _forest(panel), panel.title, caption)
        caption = "False discovery rate against the size of the effect. Certain effects are at the top."
        add(f"volcano{number}", _volcano(panel), f"{panel.title}, certainty", caption)
    for number, one in enumerate(differences_of(study, share)):
        caption = f"{SHIFT.capitalize()}. Dots: found. Grey: too few events."
        add(f"differences{number}", _heatmap(one), f"Differences of medians: {one.contrast}", caption)
    for number, (contrast, groups) in enumerate(zip(study.design.contrasts, every, strict=True)):
        for measure in (ABUNDANCE, EXPRESSION) if study.medians is not None else (ABUNDANCE,):
            shown = strips_of(study, contrast, measure, share, seed)
            what = "Proportions" if shown.is_share else "Medians"
            (many,) = [
                len(e.means) for e in study.effects if (e.contrast, e.measure) == (contrast.name, measure)
            ]
            note = f"The first {MOST_STRIPS} of {many}. " if many > MOST_STRIPS else ""
            joined = "Lines join samples that belong together. " if groups.units else ""
            caption = f"{shown.axis.capitalize()}, by {groups.column}. {note}{joined}Those found come first."
            add(f"{measure}{number}", _strips(study, shown, groups), f"{what}: {contrast.name}", caption)
    return figures, plots


def _map(study: Study, groups: Groups) -> Model:
    from bokeh.models import ColumnDataSource

    found = sample_map(study)
    plot = new_plot(height=420, x_axis_label=found.axis(0), y_axis_label=found.axis(1))
    lines = [found.places[own, 0] for own in groups.units], [found.places[own, 1] for own in groups.units]
    plot.multi_line(*lines, line_color="#aaaaaa", line_width=1)
    columns = {"x": found.places[:, 0], "y": found.places[:, 1], "colour": groups.colours}
    columns |= {"sample": study.draws.samples, "group": list(map(str, study.design.table[groups.column]))}
    columns |= _texts([plain(name) for name in found.names], found.sides)
    source = ColumnDataSource(columns)
    points = plot.scatter("x", "y", source=source, size=9, color="colour")
    plot.text("x", "y", source=source, **TEXT)
    plot.x_range.update(range_padding=2.0 * MAP_MARGIN)
    add_hover(plot, points, ("sample", "@sample"), (plain(groups.column), "@group"))
    return plot


def _heatmap(one: Differences) -> Model:
    from bokeh.models import LinearColorMapper
    from bokeh.models.annotations import ColorBar
    from bokeh.palettes import RdBu11, interp_palette

    rows, columns = one.values.shape
    y, x = np.indices(one.values.shape)
    source = {
        "x": x.ravel(),
        "y": y.ravel(),
        "value": one.values.ravel(),
        "who": np.repeat(one.populations, columns),
        "marker": one.channels * rows,
    }
    plot = new_plot(
        height=140 + 18 * rows,
        x_range=plot_range(-0.5, columns - 0.5),
        y_range=plot_range(rows - 0.5, -0.5),
        tools="save",
    )
    palette = list(interp_palette(RdBu11, 255))
    mapper = LinearColorMapper(palette=palette, low=-one.limit, high=one.limit, nan_color="#dddddd")
    fill: Any = {"field": "value", "transform": mapper}
    boxes = plot.rect("x", "y", 1, 1, source=source, fill_color=fill, line_color="white")
    found_y, found_x = (where.astype(np.float64) for where in np.nonzero(one.found))
    plot.scatter(found_x, found_y, size=4, color="black")
    add_hover(plot, boxes, (one.noun, "@who"), ("marker", "@marker"), ("difference", "@value{0.00}"))
    name_axis(plot.xaxis, one.channels)
    name_axis(plot.yaxis, one.populations)
    plot.xaxis.major_label_orientation = "vertical"
    plot.grid.visible = False
    plot.add_layout(ColorBar(color_mapper=mapper, width=12), "right")
    return plot


def _texts(marks: list[str], sides: list[str]) -> dict[str, Any]:
    """Return the columns that `TEXT` draws: labels next to their points."""
    return {"mark": marks, "side": sides, "offset": [7 if side == "left" else -7 for side in sides]}


def _source(panel: EffectPanel) -> dict[str, Any]:
    """Return the columns of a panel for Bokeh."""
    colours = [colour(1) if found else GREY for found in panel.found]
    return {
        "y": np.arange(len(panel.names)),
        "middle": panel.middle,
        "low": panel.low,
        "high": panel.high,
        "rate": panel.rate,
        "who": panel.names,
        "colour": colours,
        **_texts(panel.marks, panel.sides),
    }


def _forest(panel: EffectPanel) -> Model:
    from bokeh.models import ColumnDataSource, Range1d
    from bokeh.models.annotations import Span

    source, many = ColumnDataSource(_source(panel)), len(panel.names)
    plot = new_plot(
        height=90 + 20 * many,
        x_axis_type="log" if panel.is_ratio else "linear",
        y_range=Range1d(start=many - 0.4, end=-0.6),
        x_axis_label=panel.axis,
        tools="save",
    )
    plot.segment("low", "y", "high", "y", source=source, line_color="colour", line_width=3)
    points = plot.scatter("middle", "y", source=source, size=8, color="colour")
    line = Span(location=1.0 if panel.is_ratio else 0.0, dimension="height", line_width=1)
    plot.add_layout(line)
    add_hover(plot, points, *HOVER, formatters={"@rate": "printf"})
    name_axis(plot.yaxis, panel.names)
    _short_axis(plot.xaxis, panel.is_ratio)
    plot.ygrid.visible = False
    return plot


def _volcano(panel: EffectPanel) -> Model:
    from bokeh.models import ColumnDataSource, Range1d

    plot = new_plot(
        height=360,
        x_axis_type="log" if panel.is_ratio else "linear",
        y_axis_type="log",
        y_range=Range1d(start=1.3, end=min(0.7 * float(panel.rate.min()), 0.04)),
        x_axis_label=panel.axis,
        y_axis_label="false discovery rate",
    )
    source = ColumnDataSource(_source(panel))
    points = plot.scatter("middle", "rate", source=source, size=9, color="colour")
    plot.text("middle", "rate", source=source, **TEXT)
    plot.x_range.update(range_padding=2.0 * MARGINS[0])  # for the names
    add_hover(plot, points, *HOVER, formatters={"@rate": "printf"})
    _short_axis(plot.xaxis, panel.is_ratio)
    _short_axis(plot.yaxis, True)
    return plot


def _short_axis(axis: Any, logarithmic: bool) -> None:
    """Write the numbers of an axis in short."""
    from bokeh.models import LogTicker, PrintfTickFormatter

    if logarithmic:
        axis.ticker = LogTicker(mantissas=[1, 2, 5], num_minor_ticks=0)
        axis.formatter = PrintfTickFormatter(format="%.3g")


def _strips(study: Study, shown: Strips, groups: Groups) -> Model:
    from bokeh.layouts import gridplot
    from bokeh.models import ColumnDataSource, NumeralTickFormatter
    from bokeh.models.annotations import Title

    plots: list[Any] = []
    number = PERCENT if shown.is_share else "{0.00}"
    for q, name in enumerate(shown.titles):
        columns = {"x": groups.places, "sample": study.draws.samples, "colour": groups.colours}
        columns |= {"mean": shown.mean[:, q], "low": shown.low[:, q], "high": shown.high[:, q]}
        source = ColumnDataSource(columns)
        title = Title(text=plain(name), text_font_size="11px")
        scale = "log" if shown.is_share else "linear"
        plot = new_plot(height=210, y_axis_type=scale, tools="", title=title)
        lines: Any = [[values[own] for own in groups.units] for values in (groups.places, shown.mean[:, q])]
        plot.multi_line(*lines, line_color="#aaaaaa", line_width=1)
        plot.segment("x", "low", "x", "high", source=source, line_color="colour", line_width=2)
        points = plot.scatter("x", "mean", source=source, size=6, color="colour")
        value = ("value", f"@mean{number} (@low{number} to @high{number})")
        add_hover(plot, points, ("sample", "@sample"), value)
        if shown.is_share:
            plot.yaxis.formatter = NumeralTickFormatter(format="0.[0000]%")
        if groups.ticks:
            name_axis(plot.xaxis, list(groups.ticks.values()))
        else:
            plot.xaxis.axis_label = groups.column
        plots.append(plot)
    grid: Model = gridplot(plots, ncols=4, sizing_mode="stretch_width", merge_tools=False)
    return grid


def _outliers(study: Study) -> list[dict[str, str]]:
    """Return the table of outliers."""
    return [
        {
            "sample": one.sample,
            "name": own_name(study, one.population, 60)
            + (f", {study.draws.channels[one.channel]}" if one.channel >= 0 else ""),
            "weight": f"{one.weight:.2f}",
        }
        for one in study.outliers
    ]
