"""How much memory this process may still take, so that what cannot fit is refused before it is tried.

Linux promises memory that it does not have and ends the process that takes it: an allocation that succeeds
says nothing.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from dpmix.errors import DataError

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def available() -> int:
    """Bytes: the least of what the machine, control groups and `ulimit -v` leave to this process."""
    limits = [_of_machine(), _of_addresses(), *(_of_control_group(group) for group in _control_groups())]
    return max(min(found for found in limits if found is not None), 0)


def require(n_bytes: int, what: str, remedy: str, mapped: int = 0) -> None:
    """Raise `DataError` where there is not so much memory.

    Parameters
    ----------
    n_bytes : int
    what : str
        What needs it, the beginning of the message.
    remedy : str
        Its end.
    mapped : int
        Bytes of files that will be mapped: they take addresses, which `ulimit -v` limits, but no memory.
    """
    free, addresses = available(), _of_addresses()
    if n_bytes > free:
        raise DataError(f"{what} needs {shown(n_bytes)} of memory, {shown(free)} are available; {remedy}")
    if addresses is not None and n_bytes + mapped > addresses:
        raise DataError(
            f"{what} needs {shown(n_bytes + mapped)} of addresses, as it maps files, and ulimit -v "
            f"leaves {shown(addresses)}; raise it, or {remedy}"
        )


def _of_addresses() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _of_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_groups() -> list[Path]:
    """Folders of the control groups of either version that limit this process: its own and those above it."""
    found: list[Path] = []
    lines = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []
    for _, controllers, name in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            root = CGROUP / controllers
            own = root / name.strip("/")  # not there in a container, which sees its own group as the root
            found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found


def _of_control_group(folder: Path) -> int | None:
    """What a control group leaves; file pages that nobody uses count as free."""
    first_version = (folder / "memory.limit_in_bytes").exists()
    names = ("limit_in_bytes", "usage_in_bytes") if first_version else ("max", "current")
    try:
        most, used = (int((folder / f"memory.{name}").read_text()) for name in names)
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None
    cache = "total_inactive_file" if first_version else "inactive_file"
    idle = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
    return most - used + idle


def shown(n_bytes: int) -> str:
    """A number of bytes for a reader."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
