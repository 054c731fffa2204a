"""The commands of dpmix.

Heavy libraries are imported when a command runs, so that `dpmix --help` is quick.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

import click

from dpmix.errors import ConfigError, DpmixError, printable
from dpmix.system.console import keep_unknown_characters, leave_stdout
from dpmix.system.memory import address_limit

from . import (
    app,
    associate,
    bem,
    devices,
    drift,
    explore,
    gate,
    info,
    init,
    levels,
    mcmc,
    predict,
    run,
    simulate,
    types,
)


class CommandGroup(click.Group):
    """Commands that show each error outside the program as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        keep_unknown_characters()
        try:
            _require_addresses()
            return super().invoke(ctx)
        except DpmixError as error:
            for line in error.problems if isinstance(error, ConfigError) else [str(error)]:
                click.echo(f"dpmix: {line}", err=True)
            ctx.exit(error.exit_code)
        except Exception as error:
            line = _lack_of_memory(error) or _unusable_output(error)
            if not line:
                raise
            click.echo(f"dpmix: {printable(line)}", err=True)
            ctx.exit(DpmixError.exit_code)
        except KeyboardInterrupt:
            ctx.exit(128 + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in order of first use


def _require_addresses() -> None:
    """Raise `DpmixError` if `ulimit -v` leaves too little address space to load the libraries.

    They need about 0.6 GB, and more for each core. With less, OpenBLAS may retry forever.
    """
    limit = address_limit()
    needed = 900_000_000 + 64_000_000 * (os.cpu_count() or 1)
    if limit is not None and limit < needed:
        raise DpmixError(
            f"ulimit -v: {limit / 1e9:.2f} GB of address space; loading the libraries needs at least "
            f"{needed / 1e9:.2f} GB; raise it, or limit memory with a control group"
        )


def _lack_of_memory(error: Exception) -> str:
    """Return a line for the errors by which Python reports a lack of memory, "" for others."""
    if not _is_lack_of_memory(error):
        return ""
    reason = f": {error}" if str(error) else ""
    remedy = "use fewer events (data.max_events), fewer channels, or fewer model.components"
    return f"not enough memory{reason}; {remedy}"


def _unusable_output(error: Exception) -> str:
    """Return a line if a file name is too long, or stdout goes to a full disk, "" for other errors."""
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.ENAMETOOLONG:
        return f"{error.filename}: the name is too long; give a shorter one"
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        leave_stdout()
        return f"standard output cannot be written: {error.strerror}; free some space"
    return ""


def _is_lack_of_memory(error: Exception) -> bool:
    """Return True for the errors by which Python reports a lack of memory."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, ImportError) and "failed to map segment" in str(error))
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


@click.group("dpmix", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpmix-cytometry")
def main() -> None:
    """Fit Bayesian Gaussian mixture models to large flow and mass cytometry data.

    \b
    A first run, from a file to a report:
      dpmix run sample.fcs

    \b
    The same in steps:
      dpmix init sample.fcs --output run.yaml
      dpmix mcmc run.yaml
      dpmix gate run.h5 --output gated
    """


for module in (
    run,
    init,
    drift,
    mcmc,
    bem,
    gate,
    app,
    explore,
    associate,
    predict,
    types,
    levels,
    info,
    simulate,
    devices,
):
    main.add_command(module.command)
