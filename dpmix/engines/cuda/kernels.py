"""The compiled kernels of one CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pycuda.driver as driver

from dpmix.engines.cuda import library
from dpmix.engines.cuda.commands import Commands, Kernel
from dpmix.engines.cuda.messages import load_failure
from dpmix.engines.cuda.work import DeviceFailed
from dpmix.kernels import build
from dpmix.kernels.layout import MOMENT_THREADS, THREADS, Layout

T = TypeVar("T")
# File, threads of a block (None: `Layout.draw_threads`), argument types (letters of the module struct).
KERNELS: dict[str, tuple[str, int | None, str]] = {
    "draw_labels": ("draw_labels", None, "PPPPPQQifQIIPPP"),
    "draw_sorted": ("draw_sorted", THREADS, "PPPPPPQQifQIIPPPP"),
    "sum_log_likelihoods": ("draw_labels", None, "PPPQP"),
    "count_labels": ("sort_labels", THREADS, "PPQiP"),
    "place_labels": ("sort_labels", MOMENT_THREADS, "iPPP"),
    "order_events": ("sort_labels", THREADS, "PPQiPP"),
    "accumulate": ("accumulate", MOMENT_THREADS, "PPPPPPiPP"),
    "add_runs": ("accumulate", MOMENT_THREADS, "iPPP"),
    "expect_totals": ("expect_labels", THREADS, "PPPPPQifPPPP"),
    "expect_moments": ("expect_labels", THREADS, "PPPPPQifPPP"),
    "sum_parts": ("sum_chunks", THREADS, "PiP"),
    "add_chunks": ("sum_chunks", MOMENT_THREADS, "PPPiiiP"),
    "copy_rows": ("sum_chunks", MOMENT_THREADS, "PiP"),
    "memberships": ("memberships", THREADS, "PPPPPQQiifPPP"),
    "divide": ("divide", MOMENT_THREADS, "PPPPPPPQQifQIIiPPP"),
}


class Kernels:
    """Kernels for events of `n_channels` channels on an architecture such as ``sm_90``.

    A kernel is compiled and loaded when `load` first names it, in the current context.
    """

    def __init__(self, n_channels: int, architecture: str) -> None:
        self._n_channels, self._architecture = n_channels, architecture
        self._modules: dict[str, int] = {}
        self._kernels: dict[str, Kernel] = {}

    def load(self, name: str) -> None:
        """Compile and load a kernel, unless it is loaded."""
        if name not in self._kernels:
            file, threads, arguments = KERNELS[name]
            if file not in self._modules:
                code = build.cubin(file, self._n_channels, self._architecture)
                self._modules[file] = loaded(code, library.load_module)
            handle = library.kernel_of(self._modules[file], name)
            if threads is None:
                threads = Layout(self._n_channels).draw_threads
            self._kernels[name] = Kernel.of(handle, threads, arguments)

    def handle(self, name: str) -> int:
        """Return the handle of a loaded kernel."""
        return self._kernels[name].handle

    def launch(
        self, commands: Commands, name: str, grid: tuple[int, int], stream: int, *arguments: Any
    ) -> None:
        """List a launch of a loaded kernel on a stream."""
        commands.launch(self._kernels[name], grid, stream, *arguments)

    def unload(self) -> None:
        """Release all kernels."""
        for module in self._modules.values():
            library.unload_module(module)
        self._kernels, self._modules = {}, {}


def load(code: bytes) -> Any:
    """Load compiled kernels in the current context, as a module of PyCUDA.

    Raises
    ------
    DeviceFailed
        The driver refuses them.
    """
    return loaded(code, driver.module_from_buffer)


def loaded(code: bytes, load: Callable[[bytes], T]) -> T:
    """Return what `load` returns; if the driver refuses the kernels, raise `DeviceFailed` with the reason."""
    try:
        return load(code)
    except driver.Error as error:
        raise DeviceFailed(load_failure(error, driver.get_driver_version())) from error
