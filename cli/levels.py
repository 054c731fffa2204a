"""dpmix levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import gating
from .values import GivenPath


@click.command("levels")
@click.argument("run", type=GivenPath(path_type=Path))
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    default=Path("levels"),
    show_default=True,
    help="Folder to write to.",
)
@gating.OVERWRITE
@gating.population_options
def command(run: Path, output: Path, quiet: bool, **options: Any) -> None:
    """Show the threshold of each channel of RUN and the share of positive cells in each population.

    Thresholds are those that name populations. Each draw has its own, and intervals contain the differences
    between draws. A channel without a clear valley has no threshold, unless the run had an FMO or unstained
    file for it (data.controls).

    \b
    Files in the folder of --output:
      levels.csv     thresholds with 90% intervals, and the share of the draws that have them
      positive.csv   share of positive cells by sample, population and channel, with 90% intervals
      figures/       a figure per channel, PNG and PDF

    \b
    Examples:
      dpmix levels run.h5
      dpmix levels run.h5 --output run-levels --draws 50
    """
    from dpmix.commands import levels
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        made = levels.levels(run, output, **gating.arguments(options))
    if not quiet:
        click.echo("\n".join([*levels.summary(made), f"written: {output}"]))
