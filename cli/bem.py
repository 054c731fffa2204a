"""dpmix bem."""

from __future__ import annotations

from typing import Any

import click

from . import sampling


@click.command("bem")
@sampling.options
def command(**options: Any) -> None:
    """Climb the posterior by Bayesian EM from several starts, as CONFIG says; keep the highest end.

    With bem.update: mode that end is a mode of the posterior; by the paper's update, mean, it is near one.

    CONFIG is a YAML file, as `dpmix init` writes it; with --resume it may be the run file itself.

    \b
    Examples:
      dpmix bem run.yaml --output modes.h5
      dpmix bem run.yaml --set bem.starts=20 --seed 7
      dpmix bem modes.h5 --resume
    """
    sampling.sample("bem", **options)
