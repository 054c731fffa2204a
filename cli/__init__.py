"""The commands of dpmix.

Nothing heavy is imported before a command runs, so that `dpmix --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import Any

import click

from dpmix.errors import ConfigError, DpmixError, printable

from . import bem, devices, gate, info, init, mcmc, predict, simulate


class Commands(click.Group):
    """Commands that show what is wrong outside the program in a line each, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            _require_addresses()
            return super().invoke(ctx)
        except DpmixError as error:
            for line in error.problems if isinstance(error, ConfigError) else [str(error)]:
                click.echo(f"dpmix: {printable(line)}", err=True)
            ctx.exit(error.exit_code)
        except Exception as error:
            if not _is_lack_of_memory(error):
                raise
            reason = f": {printable(str(error))}" if str(error) else ""
            remedy = "take fewer events (data.max_events) or channels, or fewer model.components"
            click.echo(f"dpmix: not enough memory{reason}; {remedy}", err=True)
            ctx.exit(DpmixError.exit_code)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a first use


def _require_addresses() -> None:
    """Raise `DpmixError` where `ulimit -v` leaves too few addresses to load the libraries that commands use.

    They take some 0.6 GB and more for every core, and one of them, OpenBLAS, may try for ever.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    needed = 900_000_000 + 64_000_000 * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise DpmixError(
            f"ulimit -v: {limit / 1e9:.2f} GB of addresses, need at least {needed / 1e9:.2f} GB to load the "
            "libraries; raise it, or limit memory by a control group"
        )


def _is_lack_of_memory(error: Exception) -> bool:
    """Whether an error is one of the ways in which Python says that there is no memory."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, ImportError) and "failed to map segment" in str(error))
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


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
