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


def available() -> int:
    """Bytes: the least of what the machine, its control group and `ulimit -v` leave to this process."""
    limits = [_of_machine(), _of_control_group("memory.max", "memory.current", "inactive_file")]
    limits.append(
        _of_control_group(
            "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"
        )
    )
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits.append(limit - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(min(found for found in limits if found is not None), 0)


def require(n_bytes: int, what: str, remedy: str) -> None:
    """Raise `DataError` where there is not so much memory.

    Parameters
    ----------
    n_bytes : int
    what : str
        What needs it, the beginning of the message.
    remedy : str
        Its end.
    """
    free = available()
    if n_bytes > free:
        raise DataError(f"{what} needs {_size(n_bytes)} of memory, {_size(free)} are available; {remedy}")


def _of_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_control_group(limit: str, usage: str, cache: str) -> int | None:
    """What a control group of either version leaves; file pages that nobody uses count as free."""
    try:
        most, used = (int((CGROUP / name).read_text()) for name in (limit, usage))
        lines = (CGROUP / limit).with_name("memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such group, or one without a limit ("max")
        return None
    idle = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache)
    return most - used + idle


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
