"""The page of associations: one self-contained HTML file with interactive figures, drawn by Bokeh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpmix.association.design import Contrast
from dpmix.association.effects import Effects
from dpmix.association.study import Study
from dpmix.report import templates
from dpmix.report.association_figures import (
    MOST_STRIPS,
    Panel,
    marks_apart,
    panels,
    response_name,
    strip_order,
    strips_of,
)
from dpmix.report.labels import label
from dpmix.report.page_data import script_json
from dpmix.report.page_plots import add_hover, name_axis, new_plot, plain
from dpmix.report.page_proportions import PERCENT
from dpmix.report.palette import GREY, colour

if TYPE_CHECKING:
    from bokeh.model import Model

MOST_ROWS = 200  # of the table
MOST_SENTENCES = 20  # of a contrast and measure
HEAD = ("Response", "Effect", "90% interval", "Direction", "False discovery rate")
VALUE = "@middle{0.[00]} (@low{0.[00]} to @high{0.[00]})"


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
        bokeh="\n".join(library.js_raw),
        plots=script_json({name: json_item(plot) for name, plot in plots.items()}),
    )


def summary(study: Study, share: float) -> list[str]:
    """Return what was fitted and what was found, in sentences."""
    lines = [
        f"{len(study.draws.samples)} samples, {len(study.draws.phenotypes)} populations, formula "
        f"{study.design.formula}. Found: false discovery rate of at most {share:.0%}.",
        f"Columns: {'; '.join(study.design.readings)}. Design: "
        + ", ".join(("intercept", *study.design.columns))
        + "".join(f", ({term})" for term in study.design.terms)
        + ".",
    ]
    lines += [f"The gating: {study.draws.verdict}"] if study.draws.verdict else []
    for effects in study.effects:
        found = effects.found(share)
        lines.append(f"{effects.contrast}, {effects.measure}: {found.sum()} of {len(found)} found.")
        listed = [int(q) for q in effects.order(share) if found[q]]
        lines += [sentence(study, effects, q) for q in listed[:MOST_SENTENCES]]
        if len(listed) > MOST_SENTENCES:
            lines.append(f"and {len(listed) - MOST_SENTENCES} more, in associations.csv.")
    return lines


def sentence(study: Study, effects: Effects, q: int) -> str:
    """Return an effect as a sentence."""
    middle, low, high = (end[q] for end in effects.intervals)
    where = f"population {effects.populations[q] + 1}"
    if effects.measure == "abundance":
        text = f"{where} is {middle:.2f} times as frequent ({low:.2f} to {high:.2f})"
    elif effects.is_ratio:
        text = f"{where} varies {middle:.2f} times as much between samples ({low:.2f} to {high:.2f})"
    else:
        channel = study.draws.channels[effects.channels[q]]
        text = f"{channel} in {where} differs by {middle:.3g} ({low:.3g} to {high:.3g})"
    phenotype = study.draws.phenotypes[effects.populations[q]]  # "" in some files of earlier versions
    return f"{text}: {phenotype}." if phenotype else f"{text}."


def _rows(study: Study, effects: Effects, share: float) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    middle, low, high = effects.intervals
    found, rates, direction = effects.found(share), effects.rates, effects.direction
    several = len(study.effects) > 1
    return [
        {
            "name": response_name(study, effects, q, 70)
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
    for number, panel in enumerate(panels(study, share)):
        plots[f"forest{number}"], plots[f"volcano{number}"] = _forest(panel), _volcano(panel)
        caption = f"{panel.axis.capitalize()}: median and 90% interval. Coloured: found."
        figures.append({"id": f"forest{number}", "title": panel.title, "caption": caption})
        caption = "False discovery rate against the size of the effect. Certain effects are at the top."
        figures.append({"id": f"volcano{number}", "title": f"{panel.title}, certainty", "caption": caption})
    for number, contrast in enumerate(study.design.contrasts):
        plots[f"strips{number}"] = _strips(study, contrast, share, seed)
        note = f"The {MOST_STRIPS} populations with the most certain effects. "
        caption = (
            f"Proportion of each population in each sample by {contrast.column}, with its 90% interval. "
            f"{note if len(study.draws.phenotypes) > MOST_STRIPS else ''}Those found come first."
        )
        figures.append({"id": f"strips{number}", "title": f"Samples: {contrast.name}", "caption": caption})
    return figures, plots


def _source(panel: Panel) -> dict[str, Any]:
    """Return the columns of a panel for Bokeh."""
    colours = [colour(1) if found else GREY for found in panel.found]
    return {
        "y": np.arange(len(panel.names)),
        "middle": panel.middle,
        "low": panel.low,
        "high": panel.high,
        "rate": panel.rate,
        "who": panel.names,
        "mark": marks_apart(panel),
        "colour": colours,
    }


def _forest(panel: Panel) -> Model:
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
    add_hover(
        plot, points, ("response", "@who"), ("effect", VALUE), ("false discovery rate", "@rate{0.0000}")
    )
    name_axis(plot.yaxis, panel.names)
    _decimal_axis(plot.xaxis, panel.is_ratio)
    plot.ygrid.visible = False
    return plot


def _volcano(panel: Panel) -> Model:
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
    plot.text("middle", "rate", "mark", source=source, x_offset=7, y_offset=-3, text_font_size="10px")
    add_hover(
        plot, points, ("response", "@who"), ("effect", VALUE), ("false discovery rate", "@rate{0.0000}")
    )
    _decimal_axis(plot.xaxis, panel.is_ratio)
    _decimal_axis(plot.yaxis, True)
    return plot


def _decimal_axis(axis: Any, logarithmic: bool) -> None:
    """Write the numbers of an axis as decimals."""
    from bokeh.models import LogTicker, NumeralTickFormatter

    if logarithmic:
        axis.ticker = LogTicker(mantissas=[1, 2, 5], num_minor_ticks=0)
        axis.formatter = NumeralTickFormatter(format="0.[0000]")


def _strips(study: Study, contrast: Contrast, share: float, seed: int) -> Model:
    from bokeh.layouts import gridplot
    from bokeh.models import ColumnDataSource, NumeralTickFormatter
    from bokeh.models.annotations import Title

    shown = strips_of(study, contrast, seed)
    colours = [colour(int(g)) if g >= 0 else GREY for g in shown.groups]
    plots: list[Any] = []
    for p in strip_order(study, contrast, share):
        columns = {"x": shown.places, "sample": study.draws.samples, "colour": colours}
        columns |= {"mean": shown.mean[:, p], "low": shown.low[:, p], "high": shown.high[:, p]}
        source = ColumnDataSource(columns)
        title = Title(text=plain(label(study.draws, p, 34)), text_font_size="11px")
        plot = new_plot(height=210, y_axis_type="log", tools="", title=title)
        lines = [shown.places[own] for own in shown.units], [shown.mean[own, p] for own in shown.units]
        plot.multi_line(*lines, line_color="#aaaaaa", line_width=1)
        plot.segment("x", "low", "x", "high", source=source, line_color="colour", line_width=2)
        points = plot.scatter("x", "mean", source=source, size=6, color="colour")
        value = ("proportion", f"@mean{PERCENT} (@low{PERCENT} to @high{PERCENT})")
        add_hover(plot, points, ("sample", "@sample"), value)
        plot.yaxis.formatter = NumeralTickFormatter(format="0.[0000]%")
        if shown.ticks:
            name_axis(plot.xaxis, list(shown.ticks.values()))
        else:
            plot.xaxis.axis_label = shown.column
        plots.append(plot)
    grid: Model = gridplot(plots, ncols=4, sizing_mode="stretch_width", merge_tools=False)
    return grid


def _outliers(study: Study) -> list[dict[str, str]]:
    """Return the table of outliers."""
    return [
        {
            "sample": one.sample,
            "name": label(study.draws, one.population, 60)
            + (f", {study.draws.channels[one.channel]}" if one.channel >= 0 else ""),
            "weight": f"{one.weight:.2f}",
        }
        for one in study.outliers
    ]
