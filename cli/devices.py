"""dpmix devices."""

from __future__ import annotations

import click


@click.command("devices")
def command() -> None:
    """List the backends and the GPUs of this machine.

    If a backend is not available, the reason is shown.

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
        return  # the line above has the reason
    for number, name, memory, capability in devices:
        click.echo(f"  {number}  {name}, {memory / 2**30:.1f} GiB, compute capability {capability}")
