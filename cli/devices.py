"""dpmix devices."""

from __future__ import annotations

import click


@click.command("devices")
def command() -> None:
    """List the engines that this machine offers, each GPU by its number, and why any is not available.

    \b
    Example:
      dpmix devices
    """
    from dpmix.engines import cpu, cuda
    from dpmix.errors import DpmixError

    found, detail = cpu.available()
    click.echo(f"cpu   {'available' if found else 'not available'}: {detail}")
    found, detail = cuda.available()
    click.echo("cuda  available" if found else f"cuda  not available: {detail}")
    try:
        devices = cuda.devices()
    except DpmixError:
        return  # and the line above says why
    for number, name, memory, capability in devices:
        click.echo(f"  {number}  {name}, {memory / 2**30:.1f} GiB, compute capability {capability}")
