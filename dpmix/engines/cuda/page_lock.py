"""Page-locking of memory of the host, by the CUDA driver itself.

`pycuda.driver.register_host_memory` of PyCUDA 2026.1 ends the process with NumPy 2.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

PORTABLE = 1  # for all contexts: CU_MEMHOSTREGISTER_PORTABLE
LIBRARIES = "libcuda.so.1", "nvcuda.dll"  # names of the driver; a system has one of them


def lock(memory: npt.NDArray[np.generic]) -> int:
    """Page-lock an array in the current context; return the driver's error code, 0 for success.

    The array must stay alive until `unlock`, or until the context is destroyed.
    """
    size = ctypes.c_size_t(memory.nbytes)
    code: int = _driver().cuMemHostRegister_v2(ctypes.c_void_p(memory.ctypes.data), size, PORTABLE)
    return code


def unlock(memory: npt.NDArray[np.generic]) -> None:
    """Undo `lock`, in the same context."""
    _driver().cuMemHostUnregister(ctypes.c_void_p(memory.ctypes.data))


@cache
def _driver() -> Any:
    for name in LIBRARIES[:-1]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(LIBRARIES[-1])
