"""dpmix gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import gating
from .values import GivenPath

if TYPE_CHECKING:
    from dpmix.populations.result import Gating


@click.command("gate")
@click.argument("run", type=GivenPath(path_type=Path))
@click.option("--output", type=GivenPath(path_type=Path), required=True, help="Folder to write to.")
@click.option(
    "--data", multiple=True, help="File, glob or folder to gate instead of the data of the run; repeatable."
)
@click.option(
    "--memberships", is_flag=True, help="Write the probabilities of all populations for each event."
)
@click.option(
    "--map/--no-map",
    "with_map",
    default=None,
    help="Draw a t-SNE map of the events, of 20,000 at random if there are more. Default: draw it if "
    "openTSNE is installed ('dpmix-cytometry[map]').",
)
@click.option(
    "--strategy",
    is_flag=True,
    help="Also find the shortest sequence of gates in two markers that isolates each population.",
)
@click.option(
    "--compare",
    type=GivenPath(path_type=Path),
    help="Also score the populations against the gates of a FlowJo workspace or a GatingML 2.0 file "
    "(needs 'dpmix-cytometry[flowjo]').",
)
@click.option(
    "--judged",
    multiple=True,
    help="CSV file or glob with judgements (dpmix explore): also find events like those wanted; repeatable.",
)
@click.option(
    "--calibrated",
    is_flag=True,
    help="Subtract the shifts of the samples (model.shifts) from the values in events.h5ad; FCS files get "
    "channels with these values.",
)
@click.option(
    "--without-artefacts",
    is_flag=True,
    help="Leave populations that look like debris, doublets or dead cells out of the proportions; their "
    "events stay in all files.",
)
@gating.options_with_workspace
def command(run: Path, output: Path, quiet: bool, **options: Any) -> None:
    """Find the populations of RUN, and write a report.

    Populations are separated by a valley of the posterior mean density and by some standard deviations. The
    report and tree.json show the whole tree of populations; --level or --populations cut it at another
    height. Each event gets its most probable population, the probability of this population, and the entropy
    over all populations, from the draws. Scatter and a viability stain mark the populations that look like
    debris, doublets or dead cells.

    \b
    Files in the folder of --output:
      report.html          everything on one page, for any browser
      events.parquet       one row per event; also csv, h5ad or fcs by --format
      populations.csv      size, proportion with credible interval and R-hat, markers
      proportions.csv      proportions in each sample
      figures/             figures as PNG and PDF
      tree.json            tree of populations
      aligned.nc           draws with aligned components, for ArviZ
      samples.nc           draws of the events of each sample, for dpmix associate
      types.csv            with --types: proportions of the cell types in each sample, with 90% intervals
      types.populations.csv, types.suggested.csv, types.answer.csv
                           with --types: types next to populations, unknown populations as rows, and
                           what the data say about the table
      strategy.csv         with --strategy: gates of each population, purity and yield
      shifts.csv           of a run with model.shifts: shift of each sample and channel
      explored.csv         with --judged: number, share and medians of the events found
      compare.csv          with --compare: F1 of each gate of the workspace
      gates.xml            with --strategy: these gates as GatingML 2.0, for example for FlowKit
      hierarchy.csv, .xml  with --strategy: gates of branches of the tree and populations inside
      workspace.wsp        with --format wsp: these gates, and gates of cell types, for FlowJo 10
      workspace.csv        with --format wsp: purity, yield and F1 of each gate of the workspace

    \b
    Examples:
      dpmix gate run.h5 --output gated
      dpmix gate run.h5 --output gated --format parquet --format fcs
      dpmix gate run.h5 --output coarse --level 4
      dpmix gate run.h5 --output gated --types pbmc-t
      dpmix gate run.h5 --output gated --types workspace.wsp
      dpmix gate run.h5 --output gated --strategy
      dpmix gate run.h5 --output gated --no-map
      dpmix gate run.h5 --output flowjo --format wsp
      dpmix gate run.h5 --output gated --compare workspace.wsp
      dpmix gate run.h5 --output gated --without-artefacts
      dpmix gate run.h5 --output week2 --data 'week2/*.fcs'
    """
    from dpmix.commands import gate
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        names = ("data", "memberships", "with_map", "strategy", "compare", "judged", "calibrated")
        own = {name: options[name] for name in (*names, "without_artefacts")}
        found = gate.gate(run, output, **own, **gating.arguments(options))
    if not quiet:
        click.echo(
            "\n".join([*_summary(found), f"written: {output}; open {output}/report.html in a browser"])
        )


def _summary(found: Gating) -> list[str]:
    """Return lines that summarise a gating."""
    lines = [
        f"{found.n_events.sum():,} events in {len(found.samples)} "
        f"{'sample' if len(found.samples) == 1 else 'samples'}, {found.n_populations} populations at level "
        f"{found.level:.3g} ({found.why}); single draws have {found.numbers.min()} to {found.numbers.max()}"
    ]
    lines += _table(found)
    if found.sample_weights is not None:
        lines.append("proportions: of all samples, each event with its weight in the run (data.weights)")
    implausible = int(found.n_implausible.sum())
    lines.append(f"implausible events: {implausible:,} ({implausible / found.n_events.sum():.2%})")
    lines += _types(found) + _artefacts(found)
    return lines + _explored(found) + _strategies(found) + _comparison(found)


def _artefacts(found: Gating) -> list[str]:
    """Return a line about debris, doublets and dead cells."""
    from dpmix.report.findings import artefacts

    return [line] if (line := artefacts(found)) else []


def _types(found: Gating) -> list[str]:
    """Return a line per cell type, and what the data say about the table."""
    if found.types is None:
        return []
    from dpmix.report.type_tables import findings, overall_rows

    lines = [f"cell types by {found.types.table.source}:"]
    for row in overall_rows(found):
        ends = "" if row.low is None else f" ({row.low:.2%} to {row.high:.2%})"
        lines.append(f"  {row.share:7.2%}{ends}  {row.name}")
    notes = [one.text for one in findings(found) if one.finding != "cell"]
    return (
        lines
        + [f"  {text}" for text in notes[:8]]
        + [f"  {len(notes) - 8} more in types.answer.csv"] * (len(notes) > 8)
    )


def _explored(found: Gating) -> list[str]:
    """Return a line about the events like those judged as wanted."""
    from dpmix.report.findings import explored

    return [line] if (line := explored(found)) else []


def _strategies(found: Gating) -> list[str]:
    """Return a line per population: purity, yield and F1 of its gates, and their markers."""
    if not found.strategies:
        return []
    lines = ["gating strategy (gates in two markers, one inside the other):", f"{'':7} purity   yield    F1"]
    for p, strategy in enumerate(found.strategies):
        if not strategy.gates:
            lines.append(f"  {found.number(p):3d}   no gates")
            continue
        gates = ", then ".join(" and ".join(found.channels[c] for c in g.channels) for g in strategy.gates)
        purity, recovered, f1 = strategy.purity[-1], strategy.recovered[-1], strategy.f1[-1]
        lines.append(f"  {found.number(p):3d}  {purity:7.1%} {recovered:7.1%}  {f1:.2f}  {gates}")
    return lines


def _comparison(found: Gating) -> list[str]:
    """Return a line per manual gate: matched population and its F1, best union and its F1."""
    compared = found.comparison
    if compared is None:
        return []
    matches, (unions, union_f1) = compared.matches(), compared.unions()
    lines = [f"gates of {compared.source}:", "  population    F1   union F1  gate"]
    for g, p in enumerate(matches.tolist()):
        matched = f"{found.number(p):10d}  {compared.f1[g, p]:.2f}" if p >= 0 else f"{'none':>10}      "
        union = f"{union_f1[g]:.2f} ({len(unions[g])})"
        lines.append(f"  {matched}  {union:>9}  {compared.gates[g]}")
    leaves = compared.leaves & (compared.sizes > 0)
    if leaves.any():
        of_leaves = [compared.f1[g, matches[g]] if matches[g] >= 0 else 0.0 for g in leaves.nonzero()[0]]
        mean = sum(of_leaves) / len(of_leaves)
        lines.append(f"mean F1 of the {len(of_leaves)} gates without gates inside: {mean:.2f}")
    return lines


def _table(found: Gating) -> list[str]:
    """Return a line per population: proportion, 90% interval, R-hat and ESS where known, phenotype."""
    from dpmix.report.labels import mixing_cells

    mean, low, high = found.overall
    alone = len(found.draws) == 1
    shares = ["left out" if out else f"{m:7.2%}" for m, out in zip(mean, found.left_out, strict=True)]
    ends = ["" if alone else f" ({a:.2%} to {b:.2%})" for a, b in zip(low, high, strict=True)]
    cells = [mixing_cells(found, p) for p in range(found.n_populations)]
    lines = []
    if any(ess for _, ess in cells):
        width = max(map(len, ends))
        lines = [f"{'':14}{'90% interval':{width}}  R-hat   ESS  phenotype"]
        ends = [f"{e:{width}}  {r_hat:>5}  {ess:>4}" for e, (r_hat, ess) in zip(ends, cells, strict=True)]
    for p in found.order:
        lines.append(f"  {found.number(p):3d}  {shares[p]:>7}{ends[p]}  {found.titles[p]}")
    return lines
