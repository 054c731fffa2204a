"""The commands of dpmix.

Nothing heavy is imported before a command runs, so that `dpmix --help` answers at once.
"""

from __future__ import annotations

import signal
from typing import Any

import click

from dpmix.errors import ConfigError, DpmixError, printable

from . import bem, devices, gate, info, init, mcmc, predict, simulate


class Commands(click.Group):
    """Commands that show what is wrong outside the program in a line each, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DpmixError as error:
            for line in error.problems if isinstance(error, ConfigError) else [str(error)]:
                click.echo(f"dpmix: {printable(line)}", err=True)
            ctx.exit(error.exit_code)
        except MemoryError as error:
            reason = f": {printable(str(error))}" if str(error) else ""
            remedy = "take fewer events (data.max_events) or channels, or fewer model.components"
            click.echo(f"dpmix: not enough memory{reason}; {remedy}", err=True)
            ctx.exit(DpmixError.exit_code)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a first use


@click.group("dpmix", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpmix")
def main() -> None:
    """Sample truncated Dirichlet process mixtures of normals, for the events of flow and mass cytometry.

    \b
    A first run:
      dpmix init sample.fcs --output run.yaml
      dpmix mcmc run.yaml
      dpmix gate run.h5 --output gated
    """


for module in (init, mcmc, bem, gate, predict, info, simulate, devices):
    main.add_command(module.command)
