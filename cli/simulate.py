"""dpmix simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from dpmix.errors import ConfigError, DataError


@click.command("simulate")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    type=click.Choice(["cytometry", "model"]),
    default="cytometry",
    show_default=True,
    help="Similar to ten-colour flow cytometry, or drawn from the model.",
)
@click.option("--events", type=click.IntRange(1), default=50_000, show_default=True, help="Number of events.")
@click.option(
    "--channels", type=click.IntRange(1, 64), help="Number of channels, for --kind model.  [default: 8]"
)
@click.option(
    "--components",
    type=click.IntRange(1, 4096),
    help="Number of components, for --kind model.  [default: 32]",
)
@click.option("--no-spill", is_flag=True, help="Without spillover between dyes, for --kind cytometry.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def command(
    output: Path,
    kind: Literal["cytometry", "model"],
    events: int,
    channels: int | None,
    components: int | None,
    no_spill: bool,
    seed: int,
    overwrite: bool,
) -> None:
    """Simulate a data set with known populations.

    The events are written to OUTPUT, as FCS, CSV or NPY by its suffix. The truth (label of each event,
    parameters of the populations) is written next to OUTPUT, to a file that ends in .truth.npz. The same
    options and seed give the same data.

    \b
    Examples:
      dpmix simulate sample.fcs
      dpmix simulate small.csv --kind model --events 5000 --channels 3 --components 20 --seed 7
    """
    if kind == "model" and no_spill:
        raise click.UsageError("--no-spill is for --kind cytometry only")
    if kind == "cytometry" and (channels, components) != (None, None):
        raise click.UsageError("--channels and --components are for --kind model only")
    from dpmix.inputs import simulate

    for path in (output, output.with_name(f"{output.stem}.truth.npz")):
        if path.exists() and not overwrite:
            raise ConfigError([f"{path}: exists already; --overwrite replaces it"])
    if kind == "model":
        made = simulate.from_model(events, channels or 8, components or 32, seed=seed)
    else:
        made = simulate.cytometry_like(events, seed=seed, spill=not no_spill)
    try:
        truth = made.write(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    n_populations = len(set(made.labels.tolist()))
    click.echo(
        f"{output}: {events:,} events, {len(made.channels)} channels; {n_populations} populations, in {truth}"
    )
