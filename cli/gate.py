"""dpmix gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import gating

if TYPE_CHECKING:
    from dpmix.populations.result import Gating


@click.command("gate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@click.option(
    "--data", multiple=True, help="File, glob or folder to gate in place of the run's own; repeatable."
)
@gating.options
@click.option("--memberships", is_flag=True, help="Write the probability of every population, not one only.")
@click.option(
    "--map", "with_map", is_flag=True, help="Draw a map of 20,000 events, too (t-SNE; needs 'dpmix[map]')."
)
def command(
    run: Path,
    output: Path,
    data: tuple[str, ...],
    memberships: bool,
    with_map: bool,
    quiet: bool,
    **options: object,
) -> None:
    """Gate the events of RUN: populations, memberships, tables, figures and a report.

    Populations are where the posterior mean density shows a valley and lies some standard deviations apart;
    tree.json and the report have the whole tree, --level and --populations another cut of it. Every event
    gets its most probable population, the probability of that, and the entropy of all, from the draws.

    \b
    Written to the folder of --output:
      report.html          everything on one page, for any browser
      events.parquet       a row per event; --format csv, h5ad or fcs (the files with channels added)
      populations.csv      size, proportion with its interval, markers
      proportions.csv      of each sample
      figures/             PNG and PDF
      tree.json, aligned.nc

    \b
    Examples:
      dpmix gate run.h5 --output gated
      dpmix gate run.h5 --output gated --format parquet --format fcs
      dpmix gate run.h5 --output coarse --level 4
      dpmix gate run.h5 --output week2 --data 'week2/*.fcs'
    """
    from dpmix.report import gate
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        found = gate.gate(
            run, output, data=data, memberships=memberships, with_map=with_map, **gating.arguments(options)
        )
    if not quiet:
        click.echo("\n".join([*_summary(found), f"written: {output}/report.html and what it is made of"]))


def _summary(found: Gating) -> list[str]:
    """What a reader wants to know first."""
    from dpmix.populations.result import interval

    mean, low, high = interval(found.overall)
    lines = [
        f"{found.n_events.sum():,} events in {len(found.samples)} "
        f"{'sample' if len(found.samples) == 1 else 'samples'}, {found.n_populations} populations at level "
        f"{found.level:.3g} ({found.why}); draws have {found.numbers.min()} to {found.numbers.max()} each"
    ]
    wide = len(found.draws) > 1
    for p in range(found.n_populations):
        ends = f" ({low[p]:.2%} to {high[p]:.2%})" if wide else ""
        lines.append(f"  {p + 1:3d}  {mean[p]:7.2%}{ends}  {found.phenotypes[p]}")
    implausible = int(found.n_implausible.sum())
    lines.append(f"implausible events: {implausible:,} ({implausible / found.n_events.sum():.2%})")
    return lines
