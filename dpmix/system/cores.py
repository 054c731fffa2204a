"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores: on Linux, of those that the process is not kept from."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
