"""What `dpmix mcmc` and `dpmix bem` share: their options, the config that results, the run, its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from dpmix.errors import ConfigError, EngineError, OutputError

if TYPE_CHECKING:
    from dpmix.config.schema import Config
    from dpmix.runs.draws import Run

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
    from dpmix.runs import diagnostics, draws, run

    from .progress import Reporter
    from .stop import Stop

    given = {"output.path": output, "seed": seed, "engine.threads": threads}
    overrides = [*settings, *(f"{key}={flow(value)}" for key, value in given.items() if value is not None)]
    chosen, base, earlier = choose(kind, config, overrides, resume)
    if earlier is not None and earlier.complete and not adds_draws(kind, chosen, earlier):
        if not quiet:
            click.echo(f"dpmix: {chosen.output.path}: complete already, nothing to resume", err=True)
            click.echo("\n".join(diagnostics.describe_run(earlier)))
        if profile:
            click.echo("\n".join(diagnostics.describe_profile(earlier)))
        return

    begin = {"mcmc": run.run_mcmc, "bem": run.run_bem}[kind]
    try:
        with Stop() as stop, Reporter(quiet) as reporter:
            result = begin(
                chosen,
                base=base,
                resume=resume,
                overwrite=overwrite,
                on_sweep=reporter.on_sweep,
                should_stop=stop,
            )
    except (EngineError, OutputError) as error:
        click.echo(f"dpmix: {error}", err=True)
        _end_unfinished(kind, chosen.output.path, error.exit_code)
    if quiet:
        for line in result.summary:
            if line.startswith("warning: "):
                click.echo(line, err=True)
    else:
        click.echo("\n".join(result.summary))
    if profile:
        click.echo("\n".join(diagnostics.describe_profile(draws.open_run(result.path))))
    if not result.completed:
        _end_unfinished(kind, str(result.path), stop.exit_code)


def _end_unfinished(kind: Kind, path: str, exit_code: int) -> NoReturn:
    """Say how the run goes on, and end the command."""
    click.echo(f"dpmix: stopped; go on with: dpmix {kind} {shlex.quote(path)} --resume", err=True)
    click.get_current_context().exit(exit_code)


def choose(kind: Kind, path: Path, overrides: list[str], resume: bool) -> tuple[Config, Path, Run | None]:
    """The config of a run, the folder that its data paths start from, and the run to go on with, if any."""
    import h5py

    from dpmix.config.schema import RESUMABLE, differences, load_config, parse_config, resets
    from dpmix.config.yaml_text import flow

    if not h5py.is_hdf5(path):
        config = load_config(path, overrides)
        base = path.parent
        if not resume:
            return config, base, None
        earlier = _earlier(kind, Path(config.output.path))
    else:
        if not resume:
            raise ConfigError([f"{path}: HDF5, need a config in YAML; a run file goes on with --resume"])
        earlier = _earlier(kind, path)
        # Keys of the backend that it began with are in nobody's way where it goes to another.
        own = [f"output.path={flow(str(path))}", *resets(overrides)]
        config = parse_config(earlier.config_text, str(path), [*own, *overrides])
        base = earlier.base
        if Path(config.output.path) != path:
            raise ConfigError(
                [f"--output: got {config.output.path}, but {path} goes on in place; leave it out"]
            )
    began = parse_config(earlier.config_text, str(earlier.path))
    allowed = RESUMABLE | ({"mcmc.draws"} if adds_draws(kind, config, earlier) else set())
    changed = [key for key in differences(config, began) if key not in allowed]
    if changed:
        raise ConfigError(
            [
                f"{path}: {key}: not what {earlier.path} began with; go on as it began with "
                f"dpmix {earlier.kind} {earlier.path} --resume, or begin anew with --overwrite"
                for key in changed
            ]
        )
    return config, base, earlier


def adds_draws(kind: Kind, config: Config, earlier: Run) -> bool:
    """Whether a run is to go on to more draws than it began with."""
    return kind == "mcmc" and config.mcmc.draws > earlier.draws


def _earlier(kind: Kind, path: Path) -> Run:
    """The run that is to go on."""
    from dpmix.runs.draws import open_run

    if not path.exists():
        raise ConfigError([f"{path}: no such run file to resume; leave --resume out to begin it"])
    earlier = open_run(path)
    if earlier.kind != kind:
        raise ConfigError([f"{path}: made by dpmix {earlier.kind}; go on with dpmix {earlier.kind} --resume"])
    return earlier
