"""Functions of the CUDA driver's library that PyCUDA does not offer.

PyCUDA does not give the handles of contexts, kernels and events, which `dpmix.engines.cuda.commands` needs.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

import pycuda.driver as driver

LIBRARIES = "libcuda.so.1", "nvcuda.dll"  # names of the driver; a system has one of them


def make_event(flags: int = 0) -> int:
    """Return a handle of a new event of the current context, which lives as long as the context."""
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), flags)
    return event.value or 0


def current_context() -> int:
    """Return a handle of the current context."""
    context = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value or 0


def load_module(code: bytes) -> int:
    """Load compiled kernels in the current context and return a handle.

    Raises
    ------
    pycuda.driver.Error
        The driver refuses them.
    """
    module = ctypes.c_void_p()
    _call("cuModuleLoadDataEx", ctypes.byref(module), code, 0, None, None)
    return module.value or 0


def unload_module(module: int) -> None:
    """Undo `load_module`, in the same context."""
    _library().cuModuleUnload(ctypes.c_void_p(module))


def kernel_of(module: int, name: str) -> int:
    """Return a handle of a kernel of a module, valid while the module is loaded."""
    kernel = ctypes.c_void_p()
    _call("cuModuleGetFunction", ctypes.byref(kernel), ctypes.c_void_p(module), name.encode())
    return kernel.value or 0


def address(*names: str) -> int:
    """Return the address of the first of these functions that the driver has."""
    for name in names:
        function = getattr(_library(), name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise driver.Error(f"the CUDA driver has no function {names[0]}")


def error(call: str, code: int) -> driver.Error:
    """Return the exception of a call that failed, with the text that PyCUDA's have."""
    text = ctypes.c_char_p()
    _library().cuGetErrorString(code, ctypes.byref(text))
    return driver.Error(f"{call} failed: {(text.value or b'unknown error').decode()}")


def _call(name: str, *arguments: Any) -> None:
    if code := getattr(_library(), name)(*arguments):
        raise error(name, code)


@cache
def _library() -> Any:
    for name in LIBRARIES[:-1]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return ctypes.CDLL(LIBRARIES[-1])
