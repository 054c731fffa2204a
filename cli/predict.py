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
    """Memberships of the events of FILES in the populations of RUN.

    The files are compensated, transformed and scaled as the run was. Of each event: its most probable
    population and the probability of every one, the entropy of these, its log predictive density, and
    whether the model finds it implausible: less dense than 999 in 1,000 of the events that the model itself
    would make. Populations are those of `dpmix gate` with the same options.

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
