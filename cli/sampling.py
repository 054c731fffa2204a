"""What `dpmix mcmc` and `dpmix bem` share: their options, the run, its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NoReturn

import click

from dpmix.errors import EngineError, OutputError

Kind = Literal["mcmc", "bem"]
Command = Callable[..., None]


def options(command: Command) -> Command:
    """Argument and options of a command that samples."""
    for decorate in reversed(
        (
            click.argument("config", type=click.Path(path_type=Path)),
            click.option("--output", type=click.Path(), help="Run file to write (key output.path)."),
            click.option(
                "--resume",
                is_flag=True,
                help="Go on with a run that was stopped or killed, or to more draws.",
            ),
            click.option("--overwrite", is_flag=True, help="Replace an existing run file."),
            click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Key seed."),
            click.option("--threads", type=click.IntRange(1, 4096), help="Key engine.threads."),
            click.option(
                "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any config key; repeatable."
            ),
            click.option("--profile", is_flag=True, help="Say at the end where the time went."),
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
    """Run one of the samplers to its end, or until it is asked to stop."""
    if resume and overwrite:
        raise click.UsageError(
            "--resume goes on with a run file and --overwrite replaces it: give one of them"
        )
    from dpmix.config.yaml_text import flow
    from dpmix.runs.bem import run_bem
    from dpmix.runs.describe import describe_profile, describe_run
    from dpmix.runs.display import ProgressDisplay
    from dpmix.runs.mcmc import run_mcmc
    from dpmix.runs.reader import open_run
    from dpmix.runs.resume import choose
    from dpmix.system.stop import Stop

    given = {"output.path": output, "seed": seed, "engine.threads": threads}
    overrides = [*settings, *(f"{key}={flow(value)}" for key, value in given.items() if value is not None)]
    chosen = choose(kind, config, overrides, resume)
    if chosen.finished is not None:
        if not quiet:
            click.echo(f"dpmix: {chosen.output}: complete already, nothing to resume", err=True)
            click.echo("\n".join(describe_run(chosen.finished)))
        if profile:
            click.echo("\n".join(describe_profile(chosen.finished)))
        return

    begin = {"mcmc": run_mcmc, "bem": run_bem}[kind]
    try:
        with Stop() as stop, ProgressDisplay(quiet) as display:
            result = begin(
                chosen.config,
                base=chosen.base,
                resume=resume,
                overwrite=overwrite,
                on_sweep=display.on_sweep,
                should_stop=stop,
            )
    except (EngineError, OutputError) as error:
        click.echo(f"dpmix: {error}", err=True)
        _end_unfinished(kind, str(chosen.output), error.exit_code)
    if quiet:
        for line in result.summary:
            if line.startswith("warning: "):
                click.echo(line, err=True)
    else:
        click.echo("\n".join(result.summary))
    if profile:
        click.echo("\n".join(describe_profile(open_run(result.path))))
    if not result.completed:
        _end_unfinished(kind, str(result.path), stop.exit_code)


def _end_unfinished(kind: Kind, path: str, exit_code: int) -> NoReturn:
    """Say how the run goes on, and end the command."""
    click.echo(f"dpmix: stopped; go on with: dpmix {kind} {shlex.quote(path)} --resume", err=True)
    click.get_current_context().exit(exit_code)
