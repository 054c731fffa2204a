"""What `dpmix gate` and `dpmix predict` share: their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

Command = Callable[..., None]

FORMATS = ("parquet", "csv", "h5ad", "fcs")


def options(command: Command) -> Command:
    """Options of a command that assigns events to populations."""
    for decorate in reversed(
        (
            click.option(
                "--format",
                "formats",
                type=click.Choice(FORMATS),
                multiple=True,
                default=("parquet",),
                show_default=True,
                help="Of the events; repeatable. fcs: the files themselves with channels added.",
            ),
            click.option("--level", type=click.FloatRange(min=0.0), help="Cut the tree of populations here."),
            click.option("--populations", type=click.IntRange(min=1), help="Cut it into so many."),
            click.option(
                "--draws", type=click.IntRange(min=1), help="Draws of the run to use.  [default: 100]"
            ),
            click.option("--backend", type=click.Choice(("auto", "cpu", "cuda")), help="Key engine.backend."),
            click.option("--threads", type=click.IntRange(1, 4096), help="Key engine.threads."),
            click.option("--memory-limit", help="Key engine.memory_limit."),
            click.option("--scratch", type=click.Path(), help="Key engine.scratch."),
            click.option("--overwrite", is_flag=True, help="Replace files that are there."),
            click.option("--quiet", is_flag=True, help="Show warnings and errors only."),
        )
    ):
        command = decorate(command)
    return command


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as arguments of the functions in `dpmix.report.gate`."""
    if options["level"] is not None and options["populations"] is not None:
        raise click.UsageError("--level and --populations both say where the tree is cut: give one of them")
    from dpmix.config.yaml_text import flow

    keys = ("backend", "threads", "memory_limit", "scratch")
    given: dict[str, Any] = {
        "formats": options["formats"],
        "level": options["level"],
        "n_populations": options["populations"],
        "engine": [f"engine.{key}={flow(options[key])}" for key in keys if options[key] is not None],
        "overwrite": options["overwrite"],
    }
    if options["draws"] is not None:
        given["n_draws"] = options["draws"]
    return given
