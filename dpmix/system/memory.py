"""Find the memory available to this process, to refuse work that cannot fit before it starts.

On Linux an allocation that is too large often succeeds, and the process is killed when it uses the memory.
psutil knows the memory of the machine, but not the limits of control groups and of `ulimit -v`, which other
systems do not have.
"""

from __future__ import annotations

from pathlib import Path

from dpmix.errors import DataError
from dpmix.system.optional import module

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def available() -> int:
    """Return the bytes available: the minimum over the machine, control groups and `ulimit -v`."""
    limits = [_of_machine(), _of_addresses(), *(_of_control_group(group) for group in _control_groups())]
    return max(min(found for found in limits if found is not None), 0)


def require(n_bytes: int, what: str, remedy: str, mapped: int = 0) -> None:
    """Raise an error if less memory is available than required.

    Parameters
    ----------
    n_bytes : int
        Memory required, in bytes.
    what : str
        The work that requires it, as the start of the message.
    remedy : str
        What to do, as the end of the message.
    mapped : int
        Bytes of files that will be mapped. They take address space, which `ulimit -v` limits, but no memory.

    Raises
    ------
    DataError
        Too little memory or address space is available.
    """
    free, addresses = available(), _of_addresses()
    if n_bytes > free:
        raise DataError(f"{what} needs {shown(n_bytes)} of memory, {shown(free)} are available; {remedy}")
    if addresses is not None and n_bytes + mapped > addresses:
        raise DataError(
            f"{what} needs {shown(n_bytes + mapped)} of address space, because it maps files, and "
            f"ulimit -v leaves {shown(addresses)}; raise it, or {remedy}"
        )


def _of_addresses() -> int | None:
    limit = address_limit()
    if limit is None:
        return None
    import psutil

    return limit - int(psutil.Process().memory_info().vms)


def address_limit() -> int | None:
    """Return the limit of this process's address space in bytes (`ulimit -v`); None without a limit."""
    resource = module("resource")
    if resource is None:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _of_machine() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _control_groups() -> list[Path]:
    """Return the folders of the control groups (version 1 or 2) of this process, parents included."""
    found: list[Path] = []
    lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines() if OWN_GROUPS.exists() else []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            root = CGROUP / controllers
            own = root / name.strip("/")  # missing in a container, whose group appears as the root
            # The limit of every group above this one applies, too.
            found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found


def _of_control_group(folder: Path) -> int | None:
    """Return the bytes that a control group leaves; inactive file pages count as available."""
    first_version = (folder / "memory.limit_in_bytes").exists()
    names = ("limit_in_bytes", "usage_in_bytes") if first_version else ("max", "current")
    try:
        most, used = (int((folder / f"memory.{name}").read_text(encoding="utf-8")) for name in names)
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return None
    cache = "total_inactive_file" if first_version else "inactive_file"
    # The system drops these pages when memory is short.
    idle = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
    return most - used + idle


def shown(n_bytes: int) -> str:
    """Return a number of bytes as text, in MB or GB."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
