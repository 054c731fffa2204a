"""Measure the host's part of a pass of the CUDA engine: its time, and its calls of the driver.

    export LD_LIBRARY_PATH=build/cuda_on_cpu PATH=$PWD/build/cuda_on_cpu/bin:$PATH
    DPMIX_EMULATED_DEVICES=8 DPMIX_EMULATED_IDLE=1 python benchmarks/cuda_host.py

The devices are idle: launches and copies end at once, and memory is zero. What remains is the host's work:
packing the mixture, queueing, waiting, and merging sums. A call of the emulated driver is a function call; a
real driver takes some microseconds for it. Draws are pruned. Times are minima over passes: processor time of
all threads, elapsed time, and processor time of the threads of all devices together, and of merging and
rounding sums.

On a machine with fewer cores than devices, elapsed time is hardly less than processor time. The time on a
machine with a core for each device is therefore derived: the processor time of the engine's thread, which is
serial and includes all Python; and of a device's thread, when all end at a time. This is the mean of the
threads, of their calls and their merging, since each merges its own sums, and its part of the rounding. Waits
for other threads at a slice of the sums, the memory's bandwidth and the waking of a thread are not in it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
from gpu_page import table
from mixtures import sample
from record import read_results, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.engines import exact
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.streams import Key

DIM, N_COMPONENTS = 14, 256
SHAPES = [(4, 1), (16, 1), (64, 1), (64, 2), (64, 4), (64, 8)]
"""Resident chunks and devices."""
PASSES = 1000
TOP = 1.5 * 2.0**52  # of sums (dpmix.engines.exact)


def calls_of(work: Callable[[], object], n_devices: int) -> int:
    """Return the calls of the driver in a pass."""
    count = ctypes.CDLL("libcuda.so.1").dpmix_emulated_calls
    before = sum(count(number) for number in range(n_devices))
    work()
    return sum(count(number) for number in range(n_devices)) - before


def timed(work: Callable[[], object], n_devices: int) -> dict[str, float]:
    """Return the least milliseconds of a pass, of each kind of time."""
    of_devices = {f"cuda-{number}" for number in range(n_devices)}
    clocks = [
        time.pthread_getcpuclockid(thread.ident or 0)
        for thread in threading.enumerate()
        if thread.name in of_devices
    ]

    def now() -> np.ndarray:
        in_threads = sum(map(time.clock_gettime, clocks))
        return np.array([time.process_time(), time.perf_counter(), time.thread_time(), in_threads])

    found = []
    for _ in range(PASSES):
        before = now()
        work()
        found.append(1e3 * (now() - before))
    names = "processor", "elapsed", "serial", "threads"
    return dict(zip(names, np.min(found, axis=0).tolist(), strict=True))


def sums_of(n: int, n_devices: int) -> tuple[float, float]:
    """Return the least milliseconds of merging the sums of one device, and of rounding all sums."""
    states = np.zeros((n_devices, 4, n))
    states[:, 0] = TOP
    merging, rounding = [], []
    for _ in range(PASSES):
        for state in states[1:]:
            began = time.thread_time()
            exact.merge(states[0], state)
            merging.append(time.thread_time() - began)
        began = time.thread_time()
        exact.values(states[0])
        rounding.append(time.thread_time() - began)
    return (1e3 * min(merging), 1e3 * min(rounding)) if merging else (0.0, 0.0)


def measure(n_chunks: int, n_devices: int) -> dict[str, float | int]:
    """Milliseconds and calls of a pass."""
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
                # Sums are merged sooner where all are zero.
                device._memory.slot(0).state_here.fill(TOP)  # type: ignore[union-attr]
            work()  # a pruned draw
            found[f"{name}_calls"] = calls_of(work, n_devices)
            times = timed(work, n_devices)
            merge, rounding = sums_of(N_COMPONENTS * Layout(DIM).n_moments + 1, n_devices)
            times["sums"] = (n_devices - 1) * merge + rounding
            # The first device copies its sums; all others merge theirs.
            calls = (times["threads"] - times["sums"]) / n_devices
            times["device"] = calls + merge + rounding / n_devices
            times["derived"] = times["serial"] + times["device"]
            found |= {f"{name}_{what}_ms": milliseconds for what, milliseconds in times.items()}
        return found
    finally:
        engine.close()


def page() -> str:
    """Return the table of calls and times."""
    header = ["chunks", "devices"]
    for of in ("draw", "E step"):
        header += [f"{of}: calls", "processor, ms", "in threads of devices", "sums", "elapsed, ms"]
    rows = []
    for row in read_results("cuda_host")["results"]:
        cells = [row["chunks"], row["devices"]]
        for of in ("draw", "expect"):
            cells += [row[f"{of}_calls"], *times_of(row, of, "processor", "threads", "sums", "elapsed")]
        rows.append(cells)
    return table(header, rows) + f"\n{said('cuda_host', packages=('dpmix', 'pycuda'))}\n"


def critical_path() -> str:
    """Return the serial part of a pass, the time in the thread of a device, and their sum."""
    header = ["devices"]
    for of in ("draw", "E step"):
        header += [f"{of}: engine's thread, ms", "thread of a device", "derived elapsed"]
    most = max(row["chunks"] for row in read_results("cuda_host")["results"])
    rows = [
        [
            row["devices"],
            *(t for of in ("draw", "expect") for t in times_of(row, of, "serial", "device", "derived")),
        ]
        for row in read_results("cuda_host")["results"]
        if row["chunks"] == most
    ]
    return table(header, rows)


def times_of(row: dict[str, float], of: str, *names: str) -> list[str]:
    """Return the milliseconds of a row as text."""
    return [f"{row[f'{of}_{what}_ms']:.2f}" for what in names]


def main() -> None:
    rows = []
    with threadpool_limits(1, "blas"):
        for n_chunks, n_devices in SHAPES:
            rows.append(measure(n_chunks, n_devices))
            print(rows[-1], flush=True)
    write_results("cuda_host", rows)


if __name__ == "__main__":
    main()
