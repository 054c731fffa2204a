"""Measure the host's part of a pass of the CUDA engine: its time, and its calls of the driver.

    E=build/cuda_on_cpu
    DPMIX_EMULATED_DEVICES=8 LD_LIBRARY_PATH=$E PATH=$E/bin:$PATH python benchmarks/cuda_host.py

Launches and asynchronous copies do nothing, since devices do both by themselves, and memory is zero. What
remains is the host's work: packing the mixture, queueing, waiting, and merging sums. A call of the emulated
driver is a function call; a real driver takes some microseconds for it. Times are processor time of all
threads, and elapsed time; minima over passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mixtures import sample
from pycuda import driver
from record import write_results
from threadpoolctl import threadpool_limits

from dpmix.engines.cuda import lane, passes
from dpmix.engines.cuda import memory as cuda_device_memory
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.kernels import Kernels
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key

DIM, N_COMPONENTS = 14, 256
SHAPES = [(4, 1), (16, 1), (64, 1), (64, 2), (64, 4), (64, 8)]
"""Resident chunks and devices."""
PASSES = 30


class IdleDriver:
    """PyCUDA's driver module with memory that is zero and copies that do nothing; it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(driver, name)
        if isinstance(found, type):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            return None if name in ("memcpy_dtoh_async", "memcpy_htod_async") else found(*arguments, **named)

        return counted

    def mem_alloc(self, size: int) -> Any:
        memory = driver.mem_alloc(size)
        driver.memset_d8(memory, 0, size)
        return memory

    def pagelocked_empty(self, *arguments: Any, **named: Any) -> Any:
        memory = driver.pagelocked_empty(*arguments, **named)
        memory[:] = 0
        return memory


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the least processor and elapsed milliseconds of a pass."""
    found = []
    for _ in range(PASSES):
        began, used = time.perf_counter(), time.process_time()
        work()
        found.append((1e3 * (time.process_time() - used), 1e3 * (time.perf_counter() - began)))
    return tuple(min(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def measure(n_chunks: int, n_devices: int, counted: IdleDriver) -> dict[str, float | int]:
    """Milliseconds and calls of a pass, a launch being a call."""
    data = sample(CHUNK, DIM, N_COMPONENTS, "mix")
    mixture, key = data.now.mixture(), Key(1, 0, 1)
    engine = CudaEngine(np.tile(data.events, (n_chunks, 1)), devices=list(range(n_devices)), pruning=False)
    try:
        found: dict[str, float | int] = {"chunks": n_chunks, "devices": n_devices}
        for name, work in (
            ("draw", lambda: engine.draw_labels(mixture, key)),
            ("expect", lambda: engine.expect_labels(mixture)),
        ):
            work()  # events and lanes come to the devices
            counted.calls = 0
            work()
            found[f"{name}_calls"] = counted.calls
            found[f"{name}_processor_ms"], found[f"{name}_elapsed_ms"] = timed(work)
        return found
    finally:
        engine.close()


def main() -> None:
    counted = IdleDriver()
    for module in (lane, cuda_device_memory, passes):
        module.driver = counted  # type: ignore[attr-defined]

    def launch(*_: object) -> None:
        counted.calls += 1

    Kernels.launch = launch  # type: ignore[method-assign]
    rows = []
    with threadpool_limits(1, "blas"):
        for n_chunks, n_devices in SHAPES:
            rows.append(measure(n_chunks, n_devices, counted))
            print(rows[-1], flush=True)
    write_results("cuda_host", rows)


if __name__ == "__main__":
    main()
