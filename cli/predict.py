"""dpmix predict."""

from __future__ import annotations

from pathlib import Path

import click

from . import gating
from .values import GivenPath


@click.command("predict")
@click.argument("run", type=GivenPath(path_type=Path))
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option("--output", type=GivenPath(path_type=Path), required=True, help="Folder to write to.")
@gating.options
def command(run: Path, files: tuple[str, ...], output: Path, quiet: bool, **options: object) -> None:
    """Assign the events of FILES to the populations of RUN.

    The files are compensated, transformed and scaled as in the run. For each event the result has its most
    probable population, the probabilities of all populations, their entropy, and the log predictive density.
    An event is implausible if its density is lower than in 999 of 1,000 events simulated from the model.
    The populations are the same as in `dpmix gate` with these options. In a hierarchical run each file gets
    its own weights and shift.

    fit.csv has proportions and misfit of each file and population: the share of events in the 1% tail of
    their population. A file whose misfit is three times the misfit of any file of the run, or whose
    shift is beyond the shifts of the run, is flagged.

    With state channels (data.state_channels), populations.csv and samples.nc have their medians; `dpmix
    associate` compares them between the files.

    With --types, types.csv has the cell types of each file. The thresholds of a table come from these files;
    examples come from the run, whose files must be there.

    \b
    Examples:
      dpmix predict run.h5 new.fcs --output predicted
      dpmix predict run.h5 'week2/*.fcs' --output predicted --format csv
      dpmix predict run.h5 new.fcs --output predicted --types pbmc-t
      dpmix predict run.h5 new.fcs --output predicted --types workspace.wsp
    """
    from dpmix.commands import gate
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        found = gate.predict(run, files, output, **gating.arguments(options))
    if not quiet:
        fit = found.fit
        assert fit is not None
        for s, sample in enumerate(found.samples):
            n_events, implausible = found.n_events[s], found.n_implausible[s]
            if not n_events:
                click.echo(f"{sample}: 0 events")
                continue
            click.echo(
                f"{sample}: {n_events:,} events, {implausible:,} implausible ({implausible / n_events:.2%}), "
                f"misfit {fit.misfit[s]:.1%} (limit {fit.standard.limit:.1%})"
                f"{'' if fit.fits[s] else ': does not fit'}"
            )
        click.echo(f"written: {output}")
