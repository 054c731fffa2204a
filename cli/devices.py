"""dpmix devices."""

from __future__ import annotations

import re

import click

from .files import columns


def numbers_of(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    """Return numbers of channels from numbers and ranges, separated by commas."""
    from dpmix.kernels.layout import MAX_CHANNELS

    numbers: set[int] = set()
    for part in value.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        ends = [int(end) for end in found.groups(found[1])] if found else []
        if not ends or not 1 <= ends[0] <= ends[1] <= MAX_CHANNELS:
            raise click.BadParameter(f"got {value}; it must be like 8,14 or 1-{MAX_CHANNELS}")
        numbers.update(range(ends[0], ends[1] + 1))
    return sorted(numbers)


@click.command("devices")
@click.option(
    "--build", "compiles", is_flag=True, help="Compile the CUDA kernels now; runs then need no compiler."
)
@click.option(
    "--channels",
    callback=numbers_of,
    default="1-64",
    show_default=True,
    metavar="NUMBERS",
    help="With --build: numbers of channels, such as 8,14 or 1-20.",
)
@click.option(
    "--architectures",
    metavar="NAMES",
    help="With --build: such as sm_80,sm_90; default: this machine's GPUs.",
)
@click.pass_context
def command(ctx: click.Context, compiles: bool, channels: list[int], architectures: str | None) -> None:
    """List the backends, the GPUs and the promises of this machine, or build the CUDA kernels.

    If a backend is not available, the reason is shown. The promises concern files, memory and stopping; they
    depend on the operating system.

    A run compiles its kernels at the first use of a number of channels, with nvcc, and caches them for the
    user. --build does this ahead of runs: once on a machine with nvcc, for machines without it that share the
    cache folder (~/.cache/dpmix, or XDG_CACHE_HOME).

    \b
    Examples:
      dpmix devices
      dpmix devices --build
      dpmix devices --build --channels 8,14,30-40 --architectures sm_80,sm_90
    """
    from dpmix.engines import cpu
    from dpmix.engines.cuda import engine as cuda
    from dpmix.system.promises import promises, system_name

    if compiles:
        build_kernels(channels, architectures)
        return
    for name in ("channels", "architectures"):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} requires --build")
    found, detail = cpu.available()
    click.echo(f"cpu   {'available' if found else 'not available'}: {detail}")
    found, detail = cuda.available()
    click.echo("cuda  available" if found else f"cuda  not available: {detail}")
    show_devices()
    click.echo(f"{system_name()}:")
    for line in columns([[f"  {what}", how] for what, how in promises().items()]):
        click.echo(line)


def show_devices() -> None:
    """Print each GPU; without a compiler, also the numbers of channels for which kernels are built."""
    from dpmix.engines.cuda import engine as cuda
    from dpmix.errors import DpmixError
    from dpmix.kernels import build

    try:
        found = cuda.devices()
    except DpmixError:
        return  # the line of the backend has the reason
    for device in found:
        memory, capability = f"{device.memory / 2**30:.1f} GiB", device.compute_capability
        click.echo(f"  {device.number}  {device.name}, {memory}, compute capability {capability}")
    try:
        build.find_nvcc()
    except DpmixError:
        for architecture in sorted({device.architecture for device in found}):
            there = as_ranges(build.built(architecture)) or "no"
            click.echo(f"  no compiler; kernels for {architecture} are built for {there} channels")


def build_kernels(channels: list[int], architectures: str | None) -> None:
    """Compile kernels and print where they are."""
    from dpmix.engines.cuda import engine as cuda
    from dpmix.kernels import build

    if architectures is None:
        wanted = {device.architecture for device in cuda.devices()}
    else:
        wanted = {name.strip() for name in architectures.split(",")}
    files = build.build(channels, wanted)
    size = sum(path.stat().st_size for path in files) / 1e6
    click.echo(
        f"{len(files)} files of kernels for {as_ranges(channels)} channels, {', '.join(sorted(wanted))}: "
        f"{size:.1f} MB in {build.cache_folder()}"
    )


def as_ranges(numbers: list[int]) -> str:
    """Return sorted numbers as text, such as 8, 14, 30-40."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
