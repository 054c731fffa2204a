"""dpmix predict."""

from __future__ import annotations

from pathlib import Path

import click

from . import gating


@click.command("predict")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder to write to.")
@gating.options
def command(run: Path, files: tuple[str, ...], output: Path, quiet: bool, **options: object) -> None:
    """Assign the events of FILES to the populations of RUN.

    The files are compensated, transformed and scaled as in the run. For each event the result has its most
    probable population, the probabilities of all populations, their entropy, and the log predictive density.
    An event is implausible if its density is lower than that of 999 in 1,000 events simulated from the model.
    The populations are those of `dpmix gate` with the same options.

    \b
    Examples:
      dpmix predict run.h5 new.fcs --output predicted
      dpmix predict run.h5 'week2/*.fcs' --output predicted --format csv
    """
    from dpmix.report import gate
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        found = gate.predict(run, files, output, **gating.arguments(options))
    if not quiet:
        for sample, n_events, implausible in zip(
            found.samples, found.n_events, found.n_implausible, strict=True
        ):
            click.echo(
                f"{sample}: {n_events:,} events, {implausible:,} implausible ({implausible / n_events:.2%})"
            )
        click.echo(f"written: {output}")
