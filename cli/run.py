"""dpmix run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpmix.errors import ConfigError, DataError
from dpmix.system.console import quoted
from dpmix.system.files import check_outputs, write_text, writing

from . import sampling
from .init import open_files, write_config
from .values import GivenPath

if TYPE_CHECKING:
    from dpmix.populations.result import Gating

CONFIG, RUN, GATED, DRIFT, COMMANDS = "run.yaml", "run.h5", "gated", "drift", "commands.txt"
SHOWN = 5  # populations that are printed: ten lines in all, for a first reader


@click.command("run")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    default=Path("dpmix-run"),
    show_default=True,
    help="Folder to write to.",
)
@click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="NAME",
    help="Channel to use: a marker, a detector, or a glob such as 'CD8*'; repeatable. Default: all markers.",
)
@click.option(
    "--transform",
    type=click.Choice(("logicle", "arcsinh", "log", "linear")),
    help="Transform of all channels. Default: one that fits the instrument and the events of each channel.",
)
@click.option(
    "--types",
    help="Table of cell types to name the cells by: a CSV file, or the name of a built-in table "
    "(dpmix types --list); or examples, as in dpmix gate.",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Random seed.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Number of threads. Default: all cores.")
@click.option(
    "--quick",
    is_flag=True,
    help="Use Bayesian EM: one estimate, without intervals and without a check by several chains.",
)
@click.option("--no-map", is_flag=True, help="Do not draw the t-SNE map of the events.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier run in the folder.")
@click.option("--quiet", is_flag=True, help="Show warnings and errors only.")
def command(
    files: tuple[str, ...],
    output: Path,
    channels: tuple[str, ...],
    transform: str | None,
    types: str | None,
    seed: int | None,
    threads: int | None,
    quick: bool,
    no_map: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Find the cell populations of FILES, from files to report, in one command.

    It does what these commands do with their defaults: `dpmix drift`, if the files have a channel of time;
    `dpmix init`; `dpmix mcmc`, or `dpmix bem` with --quick; `dpmix gate`. If it is stopped, the same command
    continues. FILES are data files, globs, folders, or a table of samples, as for `dpmix init`.

    \b
    In the folder of --output:
      gated/report.html    the populations; gated has the tables, events and figures, too
      drift/report.html    whether the files were recorded steadily
      run.yaml, run.h5     the config, and the draws of the posterior
      commands.txt         the commands that do the same, to change and repeat a step

    \b
    Examples:
      dpmix run sample.fcs
      dpmix run week1/*.fcs --output week1 --quick
      dpmix run sample.fcs --types pbmc-t
      dpmix run sample.fcs --channel CD3 --channel CD4 --channel 'CD8*' --seed 7
    """
    if types is not None:
        from dpmix.inputs.type_examples import are_examples
        from dpmix.inputs.type_table import read_types
        from dpmix.populations.types.examples import require_classifiers

        if are_examples(types):
            require_classifiers()
        else:
            read_types(types)  # an error in the table ends the command before its work
    with_map = False if no_map else None
    settings = [*_settings(channels, transform, seed, threads)]
    config, run = output / CONFIG, output / RUN
    kind: sampling.Kind = "bem" if quick else "mcmc"
    if output.exists() and not output.is_dir():
        raise ConfigError([f"{output}: is a file; give the name of a folder for --output"])
    resume = _write_config(files, config, run, overwrite)
    steps = [*_drift(files, output / DRIFT, overwrite, threads, quiet)]
    options = " ".join(f"--set {quoted(setting)}" for setting in settings)
    steps += [
        f"dpmix init {' '.join(map(quoted, files))} --output {quoted(config)}",
        f"dpmix {kind} {quoted(config)} --output {quoted(run)} {options}".rstrip(),
        f"dpmix gate {quoted(run)} --output {quoted(output / GATED)}"
        + (" --no-map" if no_map else "")
        + (f" --types {quoted(types)}" if types else ""),
    ]
    write_text(output / COMMANDS, "".join(f"{step}\n" for step in steps))
    sampling.sample_to_end(
        kind,
        config,
        [*settings, f"output.path={_flow(str(run))}"],
        resume,
        overwrite,
        quiet,
        summary=False,
        again="the same dpmix run command",
    )
    found = _gate(run, output / GATED, types, threads, with_map, quiet)
    if not quiet:
        click.echo("\n".join(_summary(found)))
        page = output / GATED / "report.html"
        click.echo(f"open {page} in a browser; the commands of each step are in {output / COMMANDS}")


def _settings(
    channels: Sequence[str], transform: str | None, seed: int | None, threads: int | None
) -> Iterator[str]:
    """Yield the settings of the config that the options mean."""
    if channels:
        yield f"data.channels={_flow(list(channels))}"
    if transform is not None:
        yield f"data.transform={_flow({'default': {'method': transform}})}"
    if seed is not None:
        yield f"seed={seed}"
    if threads is not None:
        yield f"engine.threads={threads}"


def _flow(value: object) -> str:
    from dpmix.config.yaml_text import flow

    return flow(value)


def _write_config(files: Sequence[str], config: Path, run: Path, overwrite: bool) -> bool:
    """Write the config, unless an earlier run has the same; return whether the run file is to be resumed.

    Raises
    ------
    ConfigError
        The folder has the run of another config.
    """
    from dpmix.inputs.opening import find_places

    text, _ = write_config(files, config.parent, "auto")
    inputs = [path for path, _ in find_places(files)]
    if config.exists() and not overwrite:
        if config.read_text(encoding="utf-8") != text:
            raise ConfigError(
                [
                    f"{config}: is not the config for these files: it was edited, or made for others; give "
                    f"another --output, or --overwrite to start again, or dpmix mcmc {quoted(config)}"
                ]
            )
        return run.exists()
    check_outputs([config, run], overwrite, inputs)
    with writing(config.parent):
        config.parent.mkdir(parents=True, exist_ok=True)
    write_text(config, text)
    return False


def _drift(
    files: Sequence[str], folder: Path, overwrite: bool, threads: int | None, quiet: bool
) -> Iterator[str]:
    """Check the recording of files with a channel of time; yield the command, if there are any.

    A folder from before the run was stopped is kept.
    """
    from dpmix.inputs.event_times import time_channel

    timed = [str(source.path) for source in open_files(files) if time_channel(source) is not None]
    if not timed:
        return
    if overwrite or not (folder / "report.html").exists():
        from dpmix.commands.drift import drift
        from dpmix.runs.display import ProgressDisplay

        try:
            with ProgressDisplay(quiet):
                found = drift(timed, folder, threads=threads, overwrite=True)
        except DataError:  # a warning has said why no file can be judged
            return
        if not quiet:
            click.echo("\n".join(f"{one.name}: {one.sentence}" for one in found.recordings[:3]))
    yield f"dpmix drift {' '.join(map(quoted, timed))} --output {quoted(folder)}"


def _gate(
    run: Path, folder: Path, types: str | None, threads: int | None, with_map: bool | None, quiet: bool
) -> Gating:
    from dpmix.commands.gate import gate
    from dpmix.runs.display import ProgressDisplay

    engine = [] if threads is None else [f"engine.threads={threads}"]
    with ProgressDisplay(quiet):
        return gate(run, folder, types=types, engine=engine, with_map=with_map, overwrite=True)


def _summary(found: Gating) -> list[str]:
    """Return lines with the number of populations, the largest ones, artefacts and cell types."""
    from dpmix.report.findings import artefacts

    mean, low, high = found.overall
    lines = [f"{found.n_events.sum():,} events, {found.n_populations} populations"]
    for p in found.order[:SHOWN]:
        ends = f" ({low[p]:.2%} to {high[p]:.2%})" if len(found.draws) > 1 else ""
        lines.append(f"  {found.number(p):3d}  {mean[p]:7.2%}{ends}  {found.titles[p]}")
    if found.n_populations > SHOWN:
        rest = mean[found.order[SHOWN:]].sum()
        lines.append(f"       {rest:7.2%}  in {found.n_populations - SHOWN} smaller populations")
    if line := artefacts(found):
        lines.append(line)
    if found.types is not None:
        from dpmix.report.type_tables import overall_rows, warnings

        lines.append(f"cell types by {found.types.table.source}:")
        lines += [f"       {row.share:7.2%}  {row.name}" for row in overall_rows(found)]
        lines += [f"  {line}" for line in warnings(found)]
    return lines
