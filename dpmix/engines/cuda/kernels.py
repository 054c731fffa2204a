"""The compiled kernels of one CUDA device."""

from __future__ import annotations

from typing import Any

import pycuda.driver as driver

from dpmix.engines.cuda.messages import load_failure
from dpmix.engines.cuda.work import DeviceFailed
from dpmix.kernels import build
from dpmix.kernels.layout import MOMENT_THREADS, THREADS

KERNELS = {  # file, threads of a block, argument types (letters of the module struct)
    "draw_labels": ("draw_labels", THREADS, "PPPPPQQifQIIPPP"),
    "draw_sorted": ("draw_sorted", THREADS, "PPPPPPQQifQIIPPPP"),
    "sum_log_likelihoods": ("draw_sorted", THREADS, "PPPQP"),
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

    A kernel is compiled and loaded when it is first needed, in the current context.
    """

    def __init__(self, n_channels: int, architecture: str) -> None:
        self._n_channels, self._architecture = n_channels, architecture
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return a kernel, prepared for its argument types."""
        if name not in self._functions:
            file, _, arguments = KERNELS[name]
            if file not in self._modules:
                code = build.cubin(file, self._n_channels, self._architecture)
                self._modules[file] = load(code)
            self._functions[name] = self._modules[file].get_function(name).prepare(arguments)
        return self._functions[name]

    def launch(self, name: str, grid: tuple[int, int], stream: Any, *arguments: Any) -> None:
        """Queue a kernel on a stream."""
        self.function(name).prepared_async_call(grid, (KERNELS[name][1], 1, 1), stream, *arguments)

    def unload(self) -> None:
        """Release all kernels."""
        self._functions, self._modules = {}, {}


def load(code: bytes) -> Any:
    """Load compiled kernels in the current context.

    Raises
    ------
    DeviceFailed
        The driver refuses them.
    """
    try:
        return driver.module_from_buffer(code)
    except driver.Error as error:
        raise DeviceFailed(load_failure(error, driver.get_driver_version())) from error
