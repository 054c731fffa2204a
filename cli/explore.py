"""dpmix explore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import gating
from .values import FiniteRange, GivenPath


@click.command("explore")
@click.argument("run", type=GivenPath(path_type=Path))
@click.option(
    "--judged", multiple=True, help="CSV file or glob with judgements; repeatable. Default: none yet."
)
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    default=Path("explored"),
    show_default=True,
    help="Folder to write to.",
)
@click.option(
    "--further",
    type=FiniteRange(0.0, 1.0),
    default=0.1,
    show_default=True,
    help="From 0, more of the same, to 1, look further.",
)
@click.option(
    "--within",
    multiple=True,
    metavar="CONDITION",
    help="Choose only events with, for example, 'CD34 > 0.5' (transformed scale); repeatable.",
)
@click.option(
    "--events",
    "size",
    type=click.IntRange(1, 500),
    default=20,
    show_default=True,
    help="Number of events of the screen.",
)
@gating.population_options
def command(run: Path, output: Path, quiet: bool, **options: Any) -> None:
    """Find rare cells of RUN that are like those a person judges as wanted.

    Each call writes a screen of events. Fill in its column judgement with wanted, part or unwanted, and run
    the command again with all judgements. A Gaussian process learns from them. The next screen has events
    that are probably wanted or that would teach most, and some random ones of those found, as checks.

    Start with a few events that you know (a CSV file with the columns event and judgement, and sample if RUN
    has several), with a rough gate (--within), or with nothing: the first screen is then random.

    \b
    Files in the folder of --output:
      screen-01.csv ...  a screen: events with their population and, for each marker, the percentile
                         among all events and among the population's events
      progress.csv       a row for each screen: how many such cells there probably are, at least
                         and at most; precision and recall among judged events

    `dpmix gate --judged` writes the events that are found.

    \b
    Examples:
      dpmix explore run.h5
      dpmix explore run.h5 --within 'CD34 > 0.5'
      dpmix explore run.h5 --judged 'explored/screen-*.csv'
      dpmix gate run.h5 --judged 'explored/screen-*.csv' --output gated
    """
    from dpmix.commands import explore
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        names = ("judged", "within", "further", "size")
        own = {name: options[name] for name in names}
        step = explore.explore(run, output, **own, **gating.arguments(options))
    if not quiet:
        click.echo("\n".join(explore.summary(step)))
