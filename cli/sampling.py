"""Options and runs of `dpmix mcmc` and `dpmix bem`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dpmix.errors import EngineError, OutputError
from dpmix.system.console import quoted

from .values import GivenPath

if TYPE_CHECKING:
    from dpmix.runs.loop import Result
    from dpmix.runs.resume import Chosen

Kind = Literal["mcmc", "bem"]
Command = Callable[..., None]


def options(command: Command) -> Command:
    """Add the argument and options of a command that runs the sampler or Bayesian EM."""
    for decorate in reversed(
        (
            click.argument("config", type=GivenPath(path_type=Path)),
            click.option("--output", type=GivenPath(), help="Run file to write (config key output.path)."),
            click.option(
                "--resume",
                is_flag=True,
                help="Resume a run that was stopped or killed; with mcmc, also add draws.",
            ),
            click.option("--overwrite", is_flag=True, help="Replace an existing run file."),
            click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Random seed (config key seed)."),
            click.option(
                "--threads",
                type=click.IntRange(1, 4096),
                help="Number of threads (config key engine.threads).",
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="KEY=VALUE",
                help="Set any config key; repeatable.",
            ),
            click.option("--profile", is_flag=True, help="Print the time spent in each part at the end."),
            click.option("--quiet", is_flag=True, help="Show warnings and errors only."),
        )
    ):
        command = decorate(command)
    return command


def sample(
    kind: Kind,
    *,
    config: Path,
    output: str | None,
    resume: bool,
    overwrite: bool,
    seed: int | None,
    threads: int | None,
    settings: tuple[str, ...],
    profile: bool,
    quiet: bool,
) -> None:
    """Run a sampler to its end, or until a signal stops it, and print its summary."""
    if resume and overwrite:
        raise click.UsageError("--resume continues a run file and --overwrite replaces it; give one of them")
    from dpmix.config.yaml_text import flow

    given = {"output.path": output, "seed": seed, "engine.threads": threads}
    overrides = [*settings, *(f"{key}={flow(value)}" for key, value in given.items() if value is not None)]
    sample_to_end(kind, config, overrides, resume, overwrite, quiet, profile=profile)


def sample_to_end(
    kind: Kind,
    config: Path,
    overrides: Sequence[str],
    resume: bool,
    overwrite: bool,
    quiet: bool,
    *,
    profile: bool = False,
    summary: bool = True,
    again: str = "",
) -> None:
    """Run a sampler; exit if it does not reach its end, and print the command that continues it.

    Parameters
    ----------
    overrides : sequence of str
        ``key=value`` of the config.
    profile, summary : bool
        Print the time spent in each part, and the summary of the run.
    again : str
        Command that continues a stopped run. Default: the sampler's.
    """
    from dpmix.runs.resume import choose

    chosen = choose(kind, config, overrides, resume)
    if chosen.finished is not None and summary and not quiet:
        click.echo(f"dpmix: {chosen.output}: already complete, nothing to resume", err=True)
    result, exit_code = _run(kind, chosen, overwrite, quiet)
    if result is not None and summary:
        _show_result(result, profile, quiet)
    if result is None or not result.completed:
        again = again or f"dpmix {kind} {quoted(chosen.output)} --resume"
        click.echo(f"dpmix: stopped; resume with: {again}", err=True)
        click.get_current_context().exit(exit_code)


def _run(kind: Kind, chosen: Chosen, overwrite: bool, quiet: bool) -> tuple[Result | None, int]:
    """Run a sampler; return its result, None if it failed, and the exit code if it has not completed."""
    from dpmix.commands.whole_run import run_to_end
    from dpmix.runs.display import ProgressDisplay
    from dpmix.system.stop import Stop

    stop = Stop()
    try:
        with ProgressDisplay(quiet) as display:
            result = run_to_end(kind, chosen, stop, overwrite=overwrite, on_sweep=display.on_sweep)
        return result, stop.exit_code
    except (EngineError, OutputError) as error:
        click.echo(f"dpmix: {error}", err=True)
        return None, error.exit_code


def _show_result(result: Result, profile: bool, quiet: bool) -> None:
    from dpmix.runs.describe import describe_profile, describe_run
    from dpmix.runs.reader import open_run

    run = open_run(result.path)
    for line in describe_run(run):
        if not quiet:
            click.echo(line)
        elif line.startswith("warning: "):
            click.echo(line, err=True)
    if profile:
        click.echo("\n".join(describe_profile(run)))
