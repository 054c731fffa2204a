"""dpmix simulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dpmix.errors import ConfigError, DataError

from .values import FiniteRange, GivenPath

if TYPE_CHECKING:
    from dpmix.inputs.simulate.faults import Fault


@click.command("simulate")
@click.argument("output", type=GivenPath(path_type=Path))
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
@click.option(
    "--drift",
    type=click.Choice(["slow", "step", "bubble", "clog"]),
    multiple=True,
    help="A fault of the recording, for --kind cytometry; repeatable. slow: a third of the detectors drift. "
    "step: they jump. bubble: all signals fall for 3% of the time. clog: few events for 10% of the time.",
)
@click.option(
    "--drift-size",
    type=FiniteRange(0.0, 5.0, min_open=True),
    help="Size of a drift, step or bubble, as log gain.  [default: 0.5]",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def command(
    output: Path,
    kind: Literal["cytometry", "model"],
    events: int,
    channels: int | None,
    components: int | None,
    no_spill: bool,
    drift: tuple[Fault, ...],
    drift_size: float | None,
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
      dpmix simulate tube.fcs --drift slow --drift bubble
      dpmix simulate small.csv --kind model --events 5000 --channels 3 --components 20 --seed 7
    """
    if kind == "model" and no_spill:
        raise click.UsageError("--no-spill is for --kind cytometry only")
    if kind == "model" and drift:
        raise click.UsageError("--drift is for --kind cytometry only")
    if drift_size is not None and not {*drift} & {"slow", "step", "bubble"}:
        raise click.UsageError("--drift-size is for --drift slow, step and bubble only")
    if kind == "cytometry" and (channels, components) != (None, None):
        raise click.UsageError("--channels and --components are for --kind model only")
    if not output.name:
        raise ConfigError([f"{output}: is a folder; give the name of a file to write, such as sample.fcs"])
    from dpmix.inputs.simulate import simulation
    from dpmix.inputs.simulate.faults import SIZE

    for path in (output, output.with_name(f"{output.stem}.truth.npz")):
        if path.exists() and not overwrite:
            raise ConfigError([f"{path}: exists already; --overwrite replaces it"])
    if kind == "model":
        made = simulation.from_model(events, channels or 8, components or 32, seed=seed)
    else:
        size = SIZE if drift_size is None else drift_size
        made = simulation.cytometry_like(events, seed, not no_spill, tuple(dict.fromkeys(drift)), size)
    try:
        truth = made.write(output)
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    n_populations = len(set(made.labels.tolist()))
    click.echo(
        f"{output}: {events:,} events, {len(made.channels)} channels; {n_populations} populations, in {truth}"
    )
