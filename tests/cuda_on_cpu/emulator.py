"""Control of the emulated CUDA devices by tests, in this process and in others."""

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
    driver: int | None = None,
) -> dict[str, str]:
    """Return the environment variables of the driver, which it reads at every call.

    Parameters
    ----------
    count
        Number of devices; 0: as on a machine with a driver and no GPU.
    memory
        Bytes of every device, or a list with one number for each; None: 4 GiB.
    fail
        "device:call:n", several separated by commas: the n-th call of that name on that device fails, and so
        does every later call on it. The call "any" counts all calls but cuEventQuery. The count starts when
        this is set.
    order
        Order of a block's threads: 0 forward, 1 reverse, more: the seed of a random order. With a random
        order, streams also progress by themselves.
    threads
        Operating system threads for the blocks of a launch; None: one per processor.
    driver
        CUDA version of the driver, 1000 major + 10 minor; None: the version of the headers.
    """
    each = memory if isinstance(memory, Sequence) else [] if memory is None else [memory]
    return {
        "DPMIX_EMULATED_DEVICES": str(count),
        "DPMIX_EMULATED_MEMORY": ",".join(str(size) for size in each),
        "DPMIX_EMULATED_FAIL": f"{fail},{next(_times)}",  # a change restarts the counts of the driver
        "CUDA_CPU_ORDER": str(order),
        "CUDA_CPU_THREADS": "" if threads is None else str(threads),
        "DPMIX_EMULATED_DRIVER": "" if driver is None else str(driver),
        "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def environment(count: int = 1, **options: object) -> dict[str, str]:
    """Return the environment of a process with emulated devices; options as in `settings`."""
    return {**os.environ, "LD_LIBRARY_PATH": str(FOLDER), **settings(count, **options)}  # type: ignore[arg-type]


@functools.cache
def load() -> ctypes.CDLL:
    """Load the driver before PyCUDA requests libcuda.so.1; the linker then uses the loaded one."""
    return ctypes.CDLL(str(DRIVER), mode=ctypes.RTLD_GLOBAL)


def bytes_moved(device: int) -> tuple[int, int]:
    """Return the bytes copied to and from a device since the start of this process."""
    count = load().dpmix_emulated_bytes
    count.restype = ctypes.c_ulonglong
    return count(device, 0), count(device, 1)


def waits(device: int) -> tuple[int, int]:
    """Return the waits for events since the start of this process in which the thread spins, and sleeps.

    A thread that asks for an event by cuEventQuery spins.
    """
    count = load().dpmix_emulated_waits
    return count(device, 0), count(device, 1)


def faults(device: int) -> tuple[int, int]:
    """Return two counts of copies since the start of this process that a pass should not make.

    Those that are asynchronous and wait, because their host memory is not page-locked; and those to the host
    of memory that nothing has written.
    """
    count = load().dpmix_emulated_faults
    return count(device, 0), count(device, 1)


def calls(device: int) -> int:
    """Return the number of calls on a device, but cuEventQuery, since the setting `fail` changed."""
    count: int = load().dpmix_emulated_calls(device)
    return count
