"""dpmix devices."""

from __future__ import annotations

import click


@click.command("devices")
def command() -> None:
    """List the engines that this machine offers, and why any is not available.

    \b
    Example:
      dpmix devices
    """
    from dpmix.engines import cpu

    available, detail = cpu.available()
    click.echo(f"cpu   {'available' if available else 'not available'}: {detail}")
    click.echo("cuda  not available: not in this version")
