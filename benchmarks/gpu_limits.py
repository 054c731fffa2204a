"""Measure the limits of a device: copy bandwidth, arithmetic, loads, clocks under load.

    A stage of gpu.py.

The floors of kernels follow from these rates (gpu_floors.py). Times are medians over launches, by CUDA
events. A load is one of 16 bytes by one warp, all threads from the same address, as kernels read
components.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_code import cubin
from gpu_device import context, nominal_rate, smi
from gpu_output import Output, parser

SOURCE = Path(__file__).with_name("gpu_limits.cu")
THREADS = 256
PER_ROUND = {
    "multiply_add": 16 * 8,
    "multiply_add_double": 16 * 8,
    "exponential": 16,
    "load_shared": 16,
    "load_uniform": 16,
}
CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


def milliseconds(driver: Any, launch: Callable[[], object], launches: int) -> float:
    """Return the median milliseconds of a launch, after two that warm up."""
    times = []
    for _ in range(launches + 2):
        start, end = driver.Event(), driver.Event()
        start.record()
        launch()
        end.record()
        end.synchronize()
        times.append(start.time_till(end))
    return float(np.median(times[2:]))


def measure(driver: Any, output: Output, rehearsal: bool) -> None:
    device = driver.Context.get_device()
    major, minor = device.compute_capability()
    module = driver.module_from_buffer(cubin(SOURCE, f"sm_{major}{minor}", {}))
    launches, rounds, n_quads = (1, 2, 1 << 10) if rehearsal else (20, 2000, 1 << 26)
    resident = 1 if rehearsal else device.max_threads_per_multiprocessor // THREADS
    grid = (resident * device.multiprocessor_count, 1)
    shape: dict[str, Any] = {"grid": grid, "block": (THREADS, 1, 1)}
    threads = grid[0] * THREADS

    source, target = driver.mem_alloc(16 * n_quads), driver.mem_alloc(16 * n_quads)
    driver.memset_d32(source, 0x3F800000, 4 * n_quads)
    copy = module.get_function("copy")
    time = milliseconds(driver, lambda: copy(source, target, np.int32(n_quads), **shape), launches)
    output.add("copy_bytes_per_second", 2 * 16 * n_quads / time * 1e3)

    out, cycles = driver.mem_alloc(8 * threads), driver.mem_alloc(8 * grid[0])
    factor, n_rounds = np.float32(0.5), np.int32(rounds)
    runs: dict[str, tuple[Any, ...]] = {
        "multiply_add": (factor, n_rounds, out, cycles),
        "multiply_add_double": (np.float64(0.5), n_rounds, out),
        "exponential": (factor, n_rounds, out),
        "load_shared": (source, n_rounds, out),
        "load_uniform": (source, n_rounds, out),
    }
    for name, inputs in output.while_time_is_left(runs.items()):
        function = module.get_function(name)
        time = milliseconds(driver, lambda f=function, i=inputs: f(*i, **shape), launches)
        lanes = 32 if name.startswith("load") else 1
        output.add(f"{name}_per_second", threads / lanes * rounds * PER_ROUND[name] / time * 1e3)
        if name == "multiply_add":
            taken = np.empty(grid[0], np.int64)
            driver.memcpy_dtoh(taken, cycles)
            # All blocks are resident at once, and the last one to end took the cycles of the launch.
            output.add("clock_hz", float(taken.max()) / time * 1e3 or None)
            output.add("share_of_nominal", output.results["multiply_add_per_second"] / nominal_rate())
            for _ in range(1 if rehearsal else 700):  # seconds of load, in which nvidia-smi reads
                function(*inputs, **shape)
            said = smi(CLOCKS)
            output.add(
                "under_load", dict(zip(CLOCKS.split(","), said.split(", "), strict=True)) if said else None
            )
            driver.Context.synchronize()


def main() -> None:
    asked = parser(__doc__).parse_args()
    output = Output(asked)
    with context() as driver:
        measure(driver, output, asked.rehearsal)


if __name__ == "__main__":
    main()
