"""dpmix bem."""

from __future__ import annotations

from typing import Any

import click

from . import sampling


@click.command("bem")
@sampling.options
def command(**options: Any) -> None:
    """Find a mode of the posterior by Bayesian EM.

    Every start makes some steps (bem.short_steps). Then the best one continues to its end, which is written
    to an HDF5 run file. With bem.update: mode it ends at a mode of the posterior; with the default, mean, it
    ends near one.

    CONFIG is a YAML file, as `dpmix init` writes it, or a run file, for the config in it.

    \b
    Examples:
      dpmix bem run.yaml --output modes.h5
      dpmix bem run.yaml --set bem.starts=20 --seed 7
      dpmix bem modes.h5 --resume
    """
    sampling.sample("bem", **options)
