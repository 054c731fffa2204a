"""Measure the host's part of a pass of the CUDA engine: its time, and its calls of the driver.

    export LD_LIBRARY_PATH=build/cuda_on_cpu PATH=$PWD/build/cuda_on_cpu/bin:$PATH
    DPMIX_EMULATED_DEVICES=8 DPMIX_EMULATED_IDLE=1 python benchmarks/cuda_host.py

The devices are idle: launches and copies end at once, and memory is zero. What remains is the host's work:
packing the mixture, queueing, waiting, and merging sums. A call of the emulated driver is a function call; a
real driver takes some microseconds for it. Times are processor time of all threads, and elapsed time; minima
over passes. Draws are pruned. The parts are the processor time in the threads of the
devices, and of merging and rounding their sums.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mixtures import sample
from record import write_results
from threadpoolctl import threadpool_limits

from dpmix.engines import cohort_sums, exact
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key

DIM, N_COMPONENTS = 14, 256
SHAPES = [(4, 1), (16, 1), (64, 1), (64, 2), (64, 4), (64, 8)]
"""Resident chunks and devices."""
PASSES = 200


def calls_of(work: Callable[[], object], n_devices: int) -> int:
    """Return the calls of the driver in a pass."""
    count = ctypes.CDLL("libcuda.so.1").dpmix_emulated_calls
    before = sum(count(number) for number in range(n_devices))
    work()
    return sum(count(number) for number in range(n_devices)) - before


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the least processor and elapsed milliseconds of a pass."""
    found = []
    for _ in range(PASSES):
        began, used = time.perf_counter(), time.process_time()
        work()
        found.append((1e3 * (time.process_time() - used), 1e3 * (time.perf_counter() - began)))
    return tuple(min(column) for column in zip(*found, strict=True))  # type: ignore[return-value]


def spent(owner: Any, name: str, work: Callable[[], object]) -> float:
    """Return the least processor milliseconds of a pass that a function takes, in all threads."""
    function, seconds, sums = getattr(owner, name), list[float](), list[float]()

    def measured(*arguments: object) -> object:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            seconds.append(time.thread_time() - began)

    setattr(owner, name, measured)
    try:
        for _ in range(PASSES):
            seconds.clear()
            work()
            sums.append(1e3 * sum(seconds))
    finally:
        setattr(owner, name, function)
    return min(sums)


def measure(n_chunks: int, n_devices: int) -> dict[str, float | int]:
    """Milliseconds and calls of a pass."""
    from dpmix.engines.cuda.device import CudaDevice

    data = sample(CHUNK, DIM, N_COMPONENTS, "mix")
    mixture, key = data.now.mixture(), Key(1, 0, 1)
    engine = CudaEngine(np.tile(data.events, (n_chunks, 1)), devices=list(range(n_devices)))
    engine._next_rebalance = 0  # never: idle devices have no speeds
    try:
        found: dict[str, float | int] = {"chunks": n_chunks, "devices": n_devices}
        for name, work in (
            ("draw", lambda: engine.draw_labels(mixture, key)),
            ("expect", lambda: engine.expect_labels(mixture)),
        ):
            work()  # events and lanes come to the devices
            for device in engine._devices.values():
                device._memory.slot(0).state_here.fill(1.5 * 2.0**52)  # sums are merged sooner where all are zero
            found[f"{name}_calls"] = calls_of(work, n_devices)
            found[f"{name}_processor_ms"], found[f"{name}_elapsed_ms"] = timed(work)
            found[f"{name}_threads_ms"] = spent(CudaDevice, "serve", work)
            found[f"{name}_sums_ms"] = spent(cohort_sums, "add", work) + spent(exact, "values", work)
        return found
    finally:
        engine.close()


def main() -> None:
    rows = []
    with threadpool_limits(1, "blas"):
        for n_chunks, n_devices in SHAPES:
            rows.append(measure(n_chunks, n_devices))
            print(rows[-1], flush=True)
    write_results("cuda_host", rows)


if __name__ == "__main__":
    main()
