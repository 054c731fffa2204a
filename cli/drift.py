"""dpmix drift."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from .values import FiniteRange, GivenPath


@click.command("drift")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    default=Path("drift"),
    show_default=True,
    help="Folder to write to.",
)
@click.option(
    "--by",
    type=click.Choice(["time", "event"]),
    default="time",
    show_default=True,
    help="Judge by the channel of time, or by event number, for files without usable time.",
)
@click.option(
    "--limit",
    type=FiniteRange(0.01, 10.0),
    default=0.2,
    show_default=True,
    help="Smallest range of drift that matters, in units of a channel's spread.",
)
@click.option(
    "--fail-above",
    type=FiniteRange(0.0, 1.0),
    help="Exit with code 1 if the share of events in unsteady stretches of any file is above this, or if a "
    "file cannot be judged.",
)
@click.option(
    "--gated",
    type=GivenPath(path_type=Path),
    help="Folder of dpmix gate, for --population; its events.parquet is read.",
)
@click.option(
    "--population",
    type=click.IntRange(1),
    help="Judge only the events of this population, by its number in --gated. Its medians do not depend on "
    "the mixture of cells.",
)
@click.option(
    "--local",
    is_flag=True,
    help="Let variance and range of the signal depend on time, for recordings that are quiet and then "
    "active. Steps are found as without it.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the signals are fitted, with --local too. auto: CUDA if available. The fits are the same "
    "within rounding.",
)
@click.option(
    "--precision",
    type=click.Choice(["single", "double"]),
    default="double",
    show_default=True,
    help="Precision of the fits. single: float32, with CUDA only; what --local adds stays float64.",
)
@click.option("--threads", type=click.IntRange(1), help="Number of threads. Default: all cores.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option("--quiet", is_flag=True, help="Show warnings and errors only.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    output: Path,
    by: Literal["time", "event"],
    limit: float,
    fail_above: float | None,
    gated: Path | None,
    population: int | None,
    local: bool,
    backend: Literal["auto", "cpu", "cuda"],
    precision: Literal["single", "double"],
    threads: int | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Show whether FILES (names, globs or folders) were recorded steadily.

    Each channel's signal over time is a Gaussian process with steps, fitted to medians of blocks of events.
    The values are not compensated. Further measurements of a scatter detector, such as SSC-W next to SSC-A,
    are judged but do not count. A file without a channel of time is named if other files have one.

    \b
    Files in the folder of --output:
      report.html   all files, the worst first, on one page for any browser
      drift.csv     for each file and channel: range of drift with its 90% interval, change points, verdict
      figures/      a PNG figure of each file

    \b
    Examples:
      dpmix drift sample.fcs
      dpmix drift day1/*.fcs --output drift --fail-above 0.05
      dpmix drift old.fcs --by event
      dpmix drift unsettled.fcs --local
      dpmix drift sample.fcs --gated gated --population 1 --output drift-1
    """
    from dpmix.commands.drift import drift
    from dpmix.runs.display import ProgressDisplay

    with ProgressDisplay(quiet):
        found = drift(
            files,
            output,
            by=by,
            limit=limit,
            gated=gated,
            population=population,
            local=local,
            backend=backend,
            precision=precision,
            threads=threads,
            overwrite=overwrite,
        )
    if not quiet:
        lines = [*(f"{one.name}: {one.sentence}" for one in found.recordings), *found.untimed]
        click.echo("\n".join([*lines, f"written: {output}; open {output}/report.html in a browser"]))
    if fail_above is not None:
        above = [one.name for one in found.recordings if one.unsteady > fail_above]
        if above or found.problems:
            named = [*above, *(problem.partition(":")[0] for problem in found.problems)]
            click.echo(f"dpmix: --fail-above {fail_above:g}: {', '.join(named)}", err=True)
            ctx.exit(1)
