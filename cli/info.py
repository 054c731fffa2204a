"""dpmix info."""

from __future__ import annotations

from pathlib import Path

import click

from . import files
from .values import GivenPath


@click.command("info")
@click.argument("file", type=GivenPath())
def command(file: str) -> None:
    """Describe FILE: a data file of any supported kind, or a run file.

    For a run: its config, progress, engine, occupied components, alpha and other learned hyperparameters, log
    posterior, convergence of the chains (R-hat), effective sample size (ESS), advice if these are
    insufficient, and the time spent in each part. This also works during the run.

    \b
    Examples:
      dpmix info sample.fcs
      dpmix info run.h5
    """
    from dpmix.errors import printable
    from dpmix.system.run_marker import is_run_file

    about = _about_run if is_run_file(Path(file)) else _about_data
    click.echo("\n".join(map(printable, about(file))))


def _about_run(file: str) -> list[str]:
    from dpmix.runs.describe import describe_profile, describe_run
    from dpmix.runs.reader import open_run

    run = open_run(file)
    config = [f"  {line}" for line in run.config_text.splitlines()]
    warnings = [f"warning: {warning}" for warning in run.data_warnings]
    return [*describe_run(run), *warnings, *describe_profile(run), "config:", *config]


def _about_data(file: str) -> list[str]:
    from dpmix.inputs.opening import open_source
    from dpmix.inputs.storage import Storage
    from dpmix.inputs.suggest import describe_only

    name, _, part = file.partition("::")
    source = open_source(name, part, Storage.temporary())
    suggestions, problem = describe_only(source)
    rows = [("", "detector", "marker", "range", "transform", "")]
    for k, (channel, s) in enumerate(zip(source.details, suggestions, strict=True), start=1):
        limit = "" if channel.range is None else f"{channel.range:g}"
        scale = files.scale(s).strip("{}").removeprefix("method: ")
        rows.append((str(k), channel.detector, channel.marker, limit, scale, s.why and f"left out: {s.why}"))
    why = [f"no config is suggested: {problem}"] if problem else []
    return [*files.describe(source), *why, "", *files.columns(rows)]
