"""dpmix mcmc."""

from __future__ import annotations

from typing import Any

import click

from . import sampling


@click.command("mcmc")
@sampling.options
def command(**options: Any) -> None:
    """Draw from the posterior by MCMC (block Gibbs sampling).

    The draws are written to an HDF5 run file, which can be read during the run.

    CONFIG is a YAML file, as `dpmix init` writes it, or a run file, for the config in it.

    The run ends when its chains agree (mcmc.until), or after mcmc.draws. Then the populations of `dpmix gate`
    are found and kept in the run file, to say on which of them the chains agree. Ctrl-C meanwhile keeps all
    draws, and --resume finds the populations.

    --resume continues a stopped or killed run, to the same draws as without the interruption. It also extends
    a complete run, if mcmc.draws is larger than before or mcmc.until=null.

    \b
    Examples:
      dpmix mcmc run.yaml
      dpmix mcmc run.yaml --output k64.h5 --set model.components=64 --set mcmc.chains=4
      dpmix mcmc k64.h5 --resume
      dpmix mcmc k64.h5 --resume --set mcmc.draws=2000
    """
    sampling.sample("mcmc", **options)
