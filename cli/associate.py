"""dpmix associate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .values import FiniteRange, GivenPath


@click.command("associate")
@click.argument("gated", type=GivenPath(path_type=Path))
@click.option("--formula", required=True, help="Columns of the table, for example '~ group + (1 | donor)'.")
@click.option(
    "--contrast",
    "contrasts",
    multiple=True,
    required=True,
    help="Two values of a column, for example 'treated - control'; a column of numbers, over its range from "
    "the 10th to the 90th percentile; or 'age: 10' for a step of 10; repeatable.",
)
@click.option(
    "--design", type=GivenPath(path_type=Path), help="Table of samples.  [default: the one of the run]"
)
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    help="Folder to write to.  [default: GATED/associate, with --types GATED/associate-types]",
)
@click.option("--variability", help="Also columns of the differences between samples, for example '~ group'.")
@click.option(
    "--expression",
    is_flag=True,
    help="Also compare medians: of the state channels (data.state_channels), else of all channels.",
)
@click.option(
    "--all-channels",
    is_flag=True,
    help="With --expression: of all channels, also where there are state channels.",
)
@click.option(
    "--types",
    is_flag=True,
    help="Compare the cell types of dpmix gate --types, not the populations.",
)
@click.option(
    "--least-ratio",
    type=FiniteRange(min=1.0),
    default=1.1,
    show_default=True,
    help="Smallest ratio of abundances that counts as an effect.",
)
@click.option(
    "--false-share",
    type=FiniteRange(0.0, 1.0),
    default=0.05,
    show_default=True,
    help="Accepted share of false discoveries among those found.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option("--quiet", is_flag=True, help="Show warnings and errors only.")
def command(gated: Path, output: Path | None, quiet: bool, **options: Any) -> None:
    """Find populations that differ between groups of samples, in the folder GATED of `dpmix gate`.

    A regression of the counts of all populations together, with the uncertainty of the gating, variation
    between samples, and random effects (1 | column). A contrast names two values of a column. The effect is
    the ratio of abundances compared with the populations that do not change. Needs
    'dpmix-cytometry[associate]'.

    With --types, cell types take the place of populations. They do not overlap: a parent counts without its
    children, as "T (other)".

    A column of numbers is a slope, unless a contrast names two of its values or it has at most 6 different
    integers: then it is groups. numeric(column) in the formula makes it a slope. The output says how each
    column was read.

    \b
    Files in the folder of --output:
      report.html        table and figures on one page, for any browser
      associations.csv   effects with 90% intervals and error rates
      outliers.csv       samples with unusual values, which count less
      figures/           figures as PNG and PDF

    \b
    Examples:
      dpmix associate gated --formula '~ group' --contrast 'treated - control'
      dpmix associate gated --design samples.csv --formula '~ group + age + (1 | donor)' \\
          --contrast 'treated - control' --contrast age
      dpmix associate gated --formula '~ day + (1 | donor)' --contrast '7 - 0' --expression
      dpmix associate typed --types --formula '~ group' --contrast 'treated - control'
    """
    from dpmix.commands.associate import TABLE, associate
    from dpmix.errors import DataError
    from dpmix.report import association_page
    from dpmix.runs.display import ProgressDisplay

    folder = output or gated / ("associate-types" if options["types"] else "associate")
    with ProgressDisplay(quiet):
        study = associate(gated, folder, **options)
    if not quiet:
        lines = association_page.summary(study, options["false_share"])
        click.echo("\n".join([*lines, f"written: {folder}; open {folder}/report.html in a browser"]))
    if study.not_converged:
        raise DataError(
            f"{study.not_converged} effects have not converged; see the column found of {folder}/{TABLE}"
        )
