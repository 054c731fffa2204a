"""dpmix mcmc."""

from __future__ import annotations

from typing import Any

import click

from . import sampling


@click.command("mcmc")
@sampling.options
def command(**options: Any) -> None:
    """Draw from the posterior by block Gibbs sampling, as CONFIG says, into an HDF5 run file.

    CONFIG is a YAML file, as `dpmix init` writes it; with --resume it may be the run file itself. The run
    file may be read while it is written. A run that was stopped or killed goes on with --resume, to the same
    draws that it would have given; with more mcmc.draws, to more of them.

    \b
    Examples:
      dpmix mcmc run.yaml
      dpmix mcmc run.yaml --output k64.h5 --set model.components=64 --set mcmc.chains=4
      dpmix mcmc k64.h5 --resume
      dpmix mcmc k64.h5 --resume --set mcmc.draws=2000
    """
    sampling.sample("mcmc", **options)
