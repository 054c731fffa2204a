"""The report of a gating: one self-contained HTML page with interactive figures, drawn by Bokeh."""

from __future__ import annotations

from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.inputs.events import RESOLUTION
from dpmix.populations.events.outlines import SHARE
from dpmix.populations.events.phenotypes import signs
from dpmix.populations.explored import NAME, explored_of, extended
from dpmix.populations.result import Gating
from dpmix.populations.tree.support import MAJORITY
from dpmix.report import templates, type_tables
from dpmix.report.biaxial import gate_plot, outlined_in, populations_plot
from dpmix.report.coarseness import caption, coarseness_plot
from dpmix.report.embedding import MAP_NOTE, map_caption
from dpmix.report.findings import (
    border_note,
    count,
    draws_used,
    explored,
    mixing_note,
    numbers_of,
    summary,
    warnings,
)
from dpmix.report.gate_tree import gate_tree_plot
from dpmix.report.gate_tree import table as gate_table
from dpmix.report.labels import (
    estimate_note,
    label,
    mixing_cells,
    named_channels,
    overall_note,
    share_text,
    shown,
    title,
)
from dpmix.report.page_data import page_data, script_json
from dpmix.report.page_plots import page_plots
from dpmix.report.page_proportions import proportion_plots
from dpmix.report.pairs import neighbours, separating_pairs
from dpmix.report.palette import colour_of, ink
from dpmix.runs.coarseness import choice_of
from dpmix.runs.describe import describe_engine, resolution_text
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run
from dpmix.system.console import percent
from dpmix.system.files import write_text


def write_report(path: str | Path, gating: Gating, run: Run, mixing: list[Mixing]) -> None:
    """Write the report, one HTML file of a few megabytes for any number of events.

    Parameters and errors are as in `dpmix.report.figures.write_figures`, except that `path` is a file.
    """
    write_text(Path(path), render(gating, run, mixing))


def render(gating: Gating, run: Run, mixing: list[Mixing]) -> str:
    """Return the page."""
    from bokeh.embed import json_item
    from bokeh.resources import Resources

    plots = page_plots(gating, run, mixing) | proportion_plots(gating)
    if (choice := choice_of(run)).curve is not None:
        plots["coarseness"] = coarseness_plot(choice)
    if gating.hierarchy:
        plots["gates"] = gate_tree_plot(gating)
    library = Resources(mode="inline", components=["bokeh"], log_level="warn")
    return templates.render(
        "page.html",
        **_texts(gating, run),
        bokeh="\n".join(library.js_raw),
        plots=script_json({name: json_item(plot) for name, plot in plots.items()}),
        data=script_json(page_data(gating)),
        script=templates.read("page.js"),
    )


def _texts(gating: Gating, run: Run) -> dict[str, Any]:
    """Return everything that the template shows except the plots."""
    drawn, several = shown(gating), len(gating.samples) > 1
    raster = len(gating.rasters.pairs) > 0
    return {
        "title": "Cell populations of "
        + (f"{len(gating.samples)} samples" if several else gating.samples[0]),
        "summary": summary(gating),
        "verdict": str(gating.verdict),
        "differs": gating.verdict.level >= WARNING,
        "warnings": warnings(gating, run),
        "intervals": len(gating.draws) > 1,
        "compared": "the chains, and of their halves," if gating.n_chains > 1 else "the halves of the chain",
        "bad_r_hat": f"{gating.verdict.limit:.2f}",
        "monitored": count(gating.n_chains * gating.verdict.n_draws, "draw"),
        "border_note": border_note(gating),
        "mixing_note": mixing_note(gating),
        "rows": _rows(gating),
        "channels": gating.short_channels[: len(gating.channels)],
        "raster": raster,
        "panels": _panels(gating),
        "panels_caption": _panels_caption(gating),
        "outline_share": f"{SHARE:.0%}",
        "most_outlined": _most_outlined(gating),
        "cards": _cards(gating),
        "largest": f" Shown: the {drawn} largest of {gating.n_populations}."
        if drawn < gating.n_populations
        else "",
        "map_caption": " ".join((map_caption(gating, gating.map), *MAP_NOTE)) if gating.map else "",
        "map_values": gating.map is not None and gating.map.values is not None,
        "proportions_caption": f"{overall_note(gating)}: {estimate_note(gating)}."
        + (
            " Small dots: the samples, in file order from top to bottom; hover to see a name."
            if several
            else ""
        ),
        "traces_caption": (
            f"All sweeps of each chain. The grey area marks {run.burn_in:,} burn-in sweeps; the initial "
            "increase is not shown. The number of components may still change where the proportions of the "
            "populations agree: the sentence at the top is the verdict."
            if run.kind == "mcmc"
            else "All steps of each start of Bayesian EM. The best start was gated."
        ),
        "strategies": _strategies(gating),
        "gate_tree": gate_table(gating),
        "comparison": _comparison(gating),
        "types": None if gating.types is None else type_tables.section(gating),
        "explored": explored(gating),
        "explored_rows": _explored(gating),
        "coarseness_caption": caption(choice_of(run)),
        "facts": _facts(gating, run),
        "samples": _samples(gating),
        "alt": _descriptions(gating, raster),
    }


def _rows(gating: Gating) -> list[dict[str, Any]]:
    """Return the table of populations."""
    _, low, high = gating.overall
    sizes, apart, full = gating.sizes.sum(axis=0), gating.verdict.apart, gating.full_phenotypes
    left_out = gating.left_out
    own_types = gating.population_types or ("",) * gating.n_populations
    rows = [
        {
            "index": p,
            "number": gating.number(p),
            "name": label(gating, p, 60),
            "drawn": p < shown(gating),
            "colour": colour_of(gating, p),
            "ink": ink(colour_of(gating, p)),
            "title": gating.titles[p],
            "type": own_types[p],
            "given": gating.names[p] if gating.names else "",
            "phenotype": gating.phenotypes[p],
            "full": full[p],
            "events": f"{sizes[p]:,}",
            "share": share_text(gating, p),
            "interval": "" if left_out[p] else f"{percent(low[p])} to {percent(high[p])}",
            "mixing": mixing_cells(gating, p),
            "apart": p in apart,
            "support": f"{gating.support[p]:.0%}",
            "weak": bool(gating.support[p] <= MAJORITY),
            "certainty": f"{gating.certainty[p]:.1%}" if sizes[p] else "",
        }
        for p in gating.order
    ]
    return rows + _explored_row(gating)


def _panels(gating: Gating) -> list[str]:
    """Return the plots of the pairs of markers that separate most."""
    chosen = separating_pairs(gating)
    if not chosen:
        return []
    gating = extended(gating)
    both = zip(chosen, outlined_in(gating, chosen), strict=True)
    return [populations_plot(gating, pair, own) for pair, own in both]


def _panels_caption(gating: Gating) -> str:
    """Return what the plots show."""
    few = _most_outlined(gating)
    return (
        "The pairs of markers that together separate the populations most. Colour: most frequent population "
        f"of a bin; stronger colours hold more events. Outlines contain {SHARE:.0%} of the events of a "
        f"population{f', of the {few} largest,' if few else ''} in the plots where it stands apart. Click a "
        f"population to see it alone.{f' Dots: {NAME}.' if gating.exploration else ''}"
    )


def _most_outlined(gating: Gating) -> int:
    """Return the number of populations with outlines if not all shown have them, else 0."""
    return gating.rasters.n_outlined if gating.rasters.n_outlined < shown(gating) else 0


def _cards(gating: Gating) -> list[dict[str, Any]]:
    """Return the cards of populations: plots, proportion, levels of all markers and neighbours."""
    _, low, high = gating.overall
    sizes, left_out = gating.sizes.sum(axis=0), gating.left_out
    levels = signs(gating.quantiles[1], gating.quantiles[3], gating.levels)
    near = neighbours(gating) if gating.cards else []
    names = gating.short_channels
    return [
        {
            "index": p,
            "number": gating.number(p),
            "name": title(gating, p, 60),
            "colour": colour_of(gating, p),
            "ink": ink(colour_of(gating, p)),
            "share": share_text(gating, p),
            "interval": "" if left_out[p] or np.isnan(low[p]) else f"{percent(low[p])} to {percent(high[p])}",
            "events": f"{sizes[p]:,}",
            "artefact": gating.artefacts[p] if gating.artefacts else "",
            "plots": [gate_plot(gating, p, k) for k in range(len(card.plots))],
            "purity": f"{card.purity:.1%}",
            "recovered": f"{card.recovered:.1%}",
            "levels": [(names[d], sign) for d, sign in enumerate(levels[p].tolist()) if sign and sizes[p]],
            "neighbours": [
                {
                    "number": gating.number(q),
                    "colour": colour_of(gating, q),
                    "ink": ink(colour_of(gating, q)),
                    "how": f"has {'higher' if higher else 'lower'} {names[d]}",
                }
                for q, d, higher in near[p]
            ],
        }
        for p in gating.order
        for card in gating.cards[p : p + 1]
    ]


def _explored_row(gating: Gating) -> list[dict[str, Any]]:
    """Return the row of the explored cells; none without judgements."""
    own = explored_of(gating)
    if own is None:
        return []
    view, p = extended(gating), own.index
    row = {
        "index": p,
        "number": gating.number(p),
        "name": label(view, p, 60),
        "drawn": p < shown(view),
        "colour": colour_of(view, p),
        "ink": ink(colour_of(view, p)),
        "title": f"{NAME} (also in other populations)",
        "type": "",
        "given": f"{NAME} (also in other populations)",
        "phenotype": own.phenotype,
        "full": view.full_phenotypes[own.index],
        "events": f"{int(own.sizes.sum()):,}",
        "share": percent(own.proportion),
        "interval": f"{percent(own.low)} to {percent(own.high)}",
    }
    return [row | {"mixing": ("", ""), "apart": False, "support": "", "weak": False, "certainty": ""}]


def _strategies(gating: Gating) -> list[dict[str, Any]]:
    """Return the table of gating strategies, one row per population, last of the explored cells."""
    view, added = extended(gating), gating.explored_strategy
    strategies = (*gating.strategies, *(() if added is None else (added,)))
    return [
        {
            "number": gating.number(p),
            "colour": colour_of(view, p),
            "ink": ink(colour_of(view, p)),
            "phenotype": view.titles[p],
            "gates": [named_channels(gating.short_channels, gate) for gate in strategy.gates],
            "purity": [percent(share) for share in strategy.purity],
            "recovered": [percent(share) for share in strategy.recovered],
            "f1": f"{strategy.f1[-1]:.2f}" if strategy.gates else "",
            "poor": strategy.size > 0 and not strategy.good,
            "shortfall": strategy.shortfall,
        }
        for p, strategy in enumerate(strategies)
    ]


def _comparison(gating: Gating) -> dict[str, Any] | None:
    """Return the table of manual gates and its source; None without a comparison."""
    compared = gating.comparison
    if compared is None:
        return None
    matches, (unions, union_f1) = compared.matches().tolist(), compared.unions()
    rows = [
        {
            "depth": name.count("/"),
            "name": name.rpartition("/")[2],
            "events": f"{compared.sizes[g]:,}",
            "number": matches[g] + 1,
            "colour": colour_of(gating, matches[g]),
            "ink": ink(colour_of(gating, matches[g])),
            "phenotype": gating.titles[matches[g]],
            "f1": f"{compared.f1[g, matches[g]]:.2f}",
            "union": numbers_of(gating, unions[g]),
            "union_f1": f"{union_f1[g]:.2f}",
        }
        for g, name in enumerate(compared.gates)
    ]
    return {"source": compared.source, "rows": rows}


def _explored(gating: Gating) -> list[tuple[str, str, str, str]]:
    """Return the table of explored events: sample, events, found, share."""
    one = gating.exploration
    if one is None:
        return []
    counted = zip(gating.samples, gating.n_events.tolist(), one.sizes.tolist(), strict=True)
    return [(name, f"{n:,}", f"{found:,}", percent(found / max(n, 1))) for name, n, found in counted]


def _samples(gating: Gating) -> list[dict[str, str]]:
    """Return the table of samples."""
    counted = zip(gating.samples, gating.n_events.tolist(), gating.n_implausible.tolist(), strict=True)
    return [
        {
            "name": name,
            "events": f"{events:,}",
            "implausible": f"{implausible:,} ({percent(implausible / max(events, 1))})",
        }
        for name, events, implausible in counted
    ]


def _facts(gating: Gating, run: Run) -> list[tuple[str, str]]:
    """Return names and values of the table about the run."""
    method = "Gibbs sampling of the posterior" if run.kind == "mcmc" else "Bayesian EM"
    text = resolution_text(run)
    return [
        ("Run file", gating.run),
        ("Started", str(run.attributes["created"])),
        ("Method", f"{method}, at most {run.n_components} components"),
        ("Draws used", draws_used(gating)),
        *_agreement(gating),
        ("Fitted to", f"{int(run.attributes['n_events']):,} events"),
        ("Seed", str(run.attributes["seed"])),
        ("Engine", describe_engine(run.engine)),
        ("Software", ", ".join(f"{name} {number}" for name, number in run.versions.items())),
        ("Channels", ", ".join(gating.channels)),
        *([(RESOLUTION.capitalize(), text)] if text else []),
    ]


def _agreement(gating: Gating) -> list[tuple[str, str]]:
    """Return the mean adjusted Rand index of draws within a chain and between chains, for several chains."""
    if gating.n_chains < 2:
        return []
    own = gating.agreement.diagonal()
    within = f"{own[np.isfinite(own)].mean():.2f} in a chain and " if np.isfinite(own).any() else ""
    between = gating.agreement[~np.eye(len(gating.agreement), dtype=bool)].mean()
    text = f"adjusted Rand index {within}{between:.2f} between chains"
    return [("Populations of two draws", text)]


def _descriptions(gating: Gating, raster: bool) -> dict[str, str]:
    """Return a description of each plot for screen readers."""
    drawn, modes = shown(gating), len(gating.tree.heights)
    return {
        "markers": "Events in two markers, coloured by population"
        if raster
        else "Density of the populations in one marker",
        "map": "Map of events by t-SNE, coloured by population",
        "map_marker": "The same map, coloured by the values of a marker",
        "heatmap": f"Heatmap of the medians of {drawn} populations in {len(gating.channels)} markers",
        "proportions": f"Proportions of {drawn} populations, as in the table of populations",
        "samples": f"Proportion of one population in each of {len(gating.samples)} samples",
        "tree": f"Tree of {modes} modes, cut into {gating.n_populations} populations",
        "traces": "Traces of log likelihood or log posterior, occupied components and alpha",
        "gates": "Tree of gates, as in the table of gates",
        "coarseness": "Fit and number of components by coarseness",
    }
