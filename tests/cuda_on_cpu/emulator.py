"""The emulated CUDA devices as tests use them, in this process and in others."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "cuda_on_cpu"
DRIVER = FOLDER / "libcuda.so.1"
_times = itertools.count()


def settings(
    count: int = 1,
    *,
    memory: int | Sequence[int] | None = None,
    fail: str = "",
    order: int = 0,
    threads: int | None = None,
) -> dict[str, str]:
    """Environment variables that the driver reads anew at every call.

    Parameters
    ----------
    count
        Number of devices; 0: as on a machine with a driver and no GPU.
    memory
        Bytes of every device, or of each; None: 4 GiB.
    fail
        "device:call:n", several separated by commas: the n-th call of that name on that device fails, and
        every later call on it. Counted from when this is set.
    order
        Of a block's threads: 0 forward, 1 reverse, more: the seed of a random order, and streams then get on
        by themselves.
    threads
        Threads of the operating system that blocks are spread over; None: as many as there are processors.
    """
    each = memory if isinstance(memory, Sequence) else [] if memory is None else [memory]
    return {
        "DPMIX_EMULATED_DEVICES": str(count),
        "DPMIX_EMULATED_MEMORY": ",".join(str(size) for size in each),
        "DPMIX_EMULATED_FAIL": f"{fail},{next(_times)}",  # the driver counts anew where this has changed
        "CUDA_CPU_ORDER": str(order),
        "CUDA_CPU_THREADS": "" if threads is None else str(threads),
        "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def environment(count: int = 1, **options: object) -> dict[str, str]:
    """The environment of another process that is to see emulated devices; options as those of `settings`."""
    return {**os.environ, "LD_LIBRARY_PATH": str(FOLDER), **settings(count, **options)}  # type: ignore[arg-type]


@functools.cache
def load() -> ctypes.CDLL:
    """Load the driver before PyCUDA asks for libcuda.so.1: the linker takes the one that is there."""
    return ctypes.CDLL(str(DRIVER), mode=ctypes.RTLD_GLOBAL)


def bytes_moved(device: int) -> tuple[int, int]:
    """Bytes copied up to and down from a device since this process began."""
    count = load().dpmix_emulated_bytes
    count.restype = ctypes.c_ulonglong
    return count(device, 0), count(device, 1)
