"""Launch kernels that were built for a sanitizer, in a separate process that loads the sanitizer first."""

from __future__ import annotations

import ctypes
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}


class Launch(NamedTuple):
    """A kernel, its grid and block, and its arguments: arrays as bytes, null, or (struct's format, value)."""

    kernel: str
    grid: tuple[int, int]
    block: int
    arguments: Sequence[bytes | tuple[str, float] | None]


class CLaunch(ctypes.Structure):
    """The struct cuda_cpu::Launch of launch.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("arguments", ctypes.c_char_p),
        ("argument_bytes", ctypes.c_size_t),
        ("os_threads", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("find_memory", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("take_stacks", ctypes.c_void_p),
        ("keep_stacks", ctypes.c_void_p),
    )


def run(library: Path, sanitizer: str, launches: Sequence[Launch], without: str = "") -> str:
    """Launch kernels of a library in turn and return the report of the sanitizer or the emulation, or "".

    With the thread sanitizer, one barrier may be left out: "FILE:LINE" of a __syncthreads.
    """
    where = ["g++", f"-print-file-name={LIBRARIES[sanitizer]}"]
    loaded = subprocess.run(where, capture_output=True, check=True, text=True).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": loaded,
        **({"CUDA_CPU_WITHOUT": without} if without else {}),
        "PYTHONMALLOC": "malloc",  # so that arrays have red zones
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": f"halt_on_error=1 suppressions={HERE / 'threads.supp'}",
    }
    job = pickle.dumps((str(library), [tuple(launch) for launch in launches]))
    command = [sys.executable, "-S", __file__]
    done = subprocess.run(command, input=job, env=environment, capture_output=True, timeout=60)
    report = done.stderr.decode()
    return report or (f"exit code {done.returncode}" if done.returncode else "")


def launch(library: ctypes.CDLL, how: Launch) -> None:
    arrays = [a and ctypes.create_string_buffer(a, len(a)) for a in how.arguments if not isinstance(a, tuple)]
    addresses = iter([ctypes.addressof(array) if array else 0 for array in arrays])
    packed = [a if isinstance(a, tuple) else ("P", next(addresses)) for a in how.arguments]
    arguments = struct.pack("".join(kind for kind, _ in packed), *(value for _, value in packed))
    function = library[f"{how.kernel}__cpu"]
    function.restype = ctypes.c_char_p
    grid, block = (ctypes.c_uint * 3)(*how.grid, 1), (ctypes.c_uint * 3)(how.block, 1, 1)
    error = function(ctypes.byref(CLaunch(grid, block, arguments, len(arguments), os_threads=1)))
    if error:
        sys.exit(f"{how.kernel}: {error.decode()}")


if __name__ == "__main__":
    path, jobs = pickle.load(sys.stdin.buffer)
    kernels = ctypes.CDLL(path)
    for job in jobs:
        launch(kernels, Launch(*job))
