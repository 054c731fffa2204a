"""Options of `dpmix gate`, `dpmix predict` and `dpmix explore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .values import GivenPath

Command = Callable[..., None]

FORMATS = ("parquet", "csv", "h5ad", "fcs")


def _format(choices: Sequence[str], help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--format",
        "formats",
        type=click.Choice(choices),
        multiple=True,
        default=("parquet",),
        show_default=True,
        help=help_text,
    )


FORMAT = _format(FORMATS, "Format of the events; repeatable. fcs: the input files with added channels.")
FORMAT_OR_WORKSPACE = _format(
    (*FORMATS, "wsp"),
    "Format of the events; repeatable. fcs: the input files with added channels. wsp: a FlowJo workspace "
    "with gates for populations and types (includes --strategy).",
)
STATE_VALUES = click.option(
    "--state-values",
    is_flag=True,
    help="Also write the values of the state channels of each event to Parquet and CSV.",
)
TYPES = (
    click.option(
        "--types",
        help="Table of cell types: a CSV file with a row per type and a column per marker, or the name of a "
        "built-in table (dpmix types --list). Or examples: a FlowJo workspace or GatingML file with gates of "
        "some files of the run, FILE::COLUMN with a label of each event (CSV, AnnData, NPZ), or a CSV file "
        "with the columns sample, event and type (needs 'dpmix-cytometry[sklearn]'). Events get the column "
        "type.",
    ),
    click.option(
        "--types-zero",
        type=click.Choice(("lo", "blank")),
        help="What the number 0 means in the table of --types.",
    ),
    click.option(
        "--type-certainty",
        type=click.FloatRange(0.0, 1.0, min_open=True),
        default=0.7,
        show_default=True,
        help="Least probability of a child in the table (column parent), given its parent, for an event to "
        "get it.",
    ),
)
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace existing files.")
POPULATIONS = (
    click.option(
        "--level",
        type=click.FloatRange(min=0.0),
        help="Height at which the population tree is cut, in standard deviations. "
        "A higher cut gives fewer populations.",
    ),
    click.option(
        "--populations",
        type=click.IntRange(min=1),
        help="Number of populations to cut the tree into, instead of --level.",
    ),
    click.option(
        "--decisions",
        type=GivenPath(path_type=Path),
        help="File of decisions made by hand: cut, merges, splits, names and colours of populations. "
        "It replaces --level, --populations and --draws.",
    ),
    click.option("--draws", type=click.IntRange(min=1), help="Number of draws to use.  [default: 100]"),
    click.option(
        "--backend", type=click.Choice(("auto", "cpu", "cuda")), help="Backend (config key engine.backend)."
    ),
    click.option(
        "--threads", type=click.IntRange(1, 4096), help="Number of threads (config key engine.threads)."
    ),
    click.option(
        "--memory-limit", help="Memory for the events, for example 16GB (config key engine.memory_limit)."
    ),
    click.option(
        "--scratch", type=GivenPath(), help="Folder for temporary files (config key engine.scratch)."
    ),
)
QUIET = click.option("--quiet", is_flag=True, help="Show warnings and errors only.")


def options(command: Command) -> Command:
    """Add the options of a command that assigns events to populations."""
    return _decorated(command, FORMAT, STATE_VALUES, *TYPES, *POPULATIONS, OVERWRITE, QUIET)


def options_with_workspace(command: Command) -> Command:
    """Add the same options, with FlowJo workspaces among the formats."""
    return _decorated(command, FORMAT_OR_WORKSPACE, STATE_VALUES, *TYPES, *POPULATIONS, OVERWRITE, QUIET)


def population_options(command: Command) -> Command:
    """Add the options of a command that only shows populations."""
    return _decorated(command, *POPULATIONS, QUIET)


def _decorated(command: Command, *decorators: Callable[[Command], Command]) -> Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of `gate` and `predict` of `dpmix.commands.gate`, and of `explore`."""
    if options["level"] is not None and options["populations"] is not None:
        raise click.UsageError("--level and --populations both cut the tree; give one of them")
    if options["decisions"] is not None:
        for name in ("level", "populations", "draws"):
            if options[name] is not None:
                raise click.UsageError(f"--decisions includes --{name}; give one of them")
    from dpmix.config.yaml_text import flow

    keys = ("backend", "threads", "memory_limit", "scratch")
    given: dict[str, Any] = {
        "level": options["level"],
        "n_populations": options["populations"],
        "decisions": options["decisions"],
        "engine": [f"engine.{key}={flow(options[key])}" for key in keys if options[key] is not None],
    }
    names = ("formats", "state_values", "types", "type_certainty", "overwrite")
    given |= {name: options[name] for name in names if name in options}
    if options.get("types_zero"):
        given["types_zero"] = options["types_zero"]
    if options["draws"] is not None:
        given["n_draws"] = options["draws"]
    return given
