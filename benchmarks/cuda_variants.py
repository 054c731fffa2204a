"""The ladder: ways to draw labels on a GPU, each checked against the one installed, then timed.

    python benchmarks/cuda_variants.py            on the first CUDA device: a minute
    python benchmarks/cuda_variants.py --quick    few events, as a check of the script

N = 1,000,000 events in D = 14 channels, K = 256 components, all on the device. From the paper's two kernels
with an array of N x K between them to the fused kernel, and that with other numbers of events per thread,
threads, cached rows and tiles. The floor counts D (D + 1) / 2 + 2 D multiply-adds per event and component at
the device's nominal float32 rate. Times are medians over launches, by CUDA events.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pycuda.driver as cuda
from mixtures import sample
from pycuda.compiler import compile_plain
from record import write_results
from rich.console import Console
from rich.table import Table

from dpmix.kernels.build import FOLDER, OPTIONS, find_nvcc
from dpmix.kernels.layout import CHUNK, THREADS, Layout
from dpmix.model.mixture import Mixture

WEIGHT_FLOOR = np.float32(25.0)
SEED, CHAIN, ITERATION = np.uint64(1), np.uint32(0), np.uint32(0)
CORES = {(7, 5): 64, (8, 0): 64}
"""float32 units of a multiprocessor by compute capability; 128 where not listed."""

FUSED: list[dict[str, int]] = [
    {},
    {"EVENTS_PER_THREAD": 1},
    {"EVENTS_PER_THREAD": 2},
    {"THREADS": 64},
    {"THREADS": 256},
    {"CACHED": 8},
    {"CACHED": 32},
    {"TILES": 8},
    {"TILES": 32},
]
"""Constants that draw_labels.cu is compiled with; the first set is installed."""


@dataclass(frozen=True)
class Timing:
    """One rung: its name, median milliseconds, and the share of the floor."""

    name: str
    milliseconds: float
    of_floor: float


@dataclass(frozen=True)
class Problem:
    """The sample on the device, and the arguments of its kernels."""

    n_events: int
    n_components: int
    layout: Layout
    events: cuda.DeviceAllocation
    components: cuda.DeviceAllocation
    chunks: cuda.DeviceAllocation
    labels: cuda.DeviceAllocation

    @property
    def n_slots(self) -> int:
        return -(-self.n_events // CHUNK)

    def labels_on_host(self) -> np.ndarray[Any, np.dtype[np.uint16]]:
        labels = np.empty(self.n_slots * CHUNK, np.uint16)
        cuda.memcpy_dtoh(labels, self.labels)
        return labels[: self.n_events]


def problem(n_events: int, dim: int, n_components: int) -> Problem:
    """A sample such as a sweep meets in the middle of a run."""
    data, layout = sample(n_events, dim, n_components, "mix"), Layout(dim)
    padded = np.zeros((-(-n_events // CHUNK) * CHUNK, layout.padded_dim), np.float32)
    padded[:n_events, :dim] = data.events
    return Problem(
        n_events,
        n_components,
        layout,
        cuda.to_device(padded),
        cuda.to_device(packed(layout, data.now.mixture())),
        cuda.to_device(np.arange(len(padded) // CHUNK, dtype=np.uint32)),
        cuda.mem_alloc(2 * len(padded)),
    )


def packed(layout: Layout, mixture: Mixture) -> np.ndarray[Any, np.dtype[np.float32]]:
    constants = mixture.log_weights + mixture.log_norms
    return layout.pack(constants, mixture.means, mixture.whiteners).astype(np.float32)


def kernel(name: str, dim: int, defines: Mapping[str, int]) -> cuda.Function:
    """A kernel compiled with other constants than those it has."""
    major, minor = cuda.Context.get_device().compute_capability()
    options = [*OPTIONS, f"-I{FOLDER}", f"-arch=sm_{major}{minor}", f"-DN_CHANNELS={dim}"]
    options += [f"-D{key}={value}" for key, value in defines.items()]
    code = compile_plain((FOLDER / f"{name}.cu").read_text(), options, False, str(find_nvcc()), None)
    return cuda.module_from_buffer(code).get_function(name)


def fused(p: Problem, defines: Mapping[str, int]) -> Callable[[], None]:
    """draw_labels: every label in one launch."""
    draw = kernel("draw_labels", p.layout.n_channels, defines)
    threads = defines.get("THREADS", THREADS)
    events_per_thread = defines.get("EVENTS_PER_THREAD", p.layout.events_per_block // THREADS)
    blocks = CHUNK // (threads * events_per_thread)
    likelihoods, far = cuda.mem_alloc(8 * p.n_slots * blocks), cuda.to_device(np.zeros(p.n_slots, np.uint32))
    arguments = [p.events, p.components, np.uintp(0), p.chunks, np.uintp(0), np.uint64(p.n_events)]
    arguments += [
        np.uint64(0),
        np.int32(p.n_components),
        WEIGHT_FLOOR,
        SEED,
        CHAIN,
        ITERATION,
        p.labels,
        likelihoods,
        far,
    ]
    return lambda: draw(*arguments, grid=(blocks, p.n_slots), block=(threads, 1, 1))


def paper(p: Problem) -> Callable[[], None]:
    """mvn_log_density, then sample_indicators: densities of a chunk lie in device memory between them."""
    density = kernel("mvn_log_density", p.layout.n_channels, {})
    indicators = kernel("sample_indicators", p.layout.n_channels, {})
    densities, likelihoods = cuda.mem_alloc(4 * CHUNK * p.n_components), cuda.mem_alloc(4 * CHUNK)
    count = np.int32(p.n_components)

    def run() -> None:
        for first in range(0, p.n_events, CHUNK):
            n = np.int32(min(CHUNK, p.n_events - first))
            events = np.uintp(int(p.events) + 4 * first * p.layout.padded_dim)
            grid = (-(-int(n) // p.layout.events_per_block), 1)
            density(events, p.components, n, count, densities, grid=grid, block=(THREADS, 1, 1))
            labels = np.uintp(int(p.labels) + 2 * first)
            key = (SEED, CHAIN, ITERATION)
            arguments = (densities, n, np.uint64(first), count, WEIGHT_FLOOR, *key, labels, likelihoods)
            indicators(*arguments, grid=(-(-int(n) // THREADS), 1), block=(THREADS, 1, 1))

    return run


def median_milliseconds(run: Callable[[], None], launches: int) -> float:
    """Of so many launches, after two that warm up."""
    times = []
    for launch in range(launches + 2):
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        if launch >= 2:
            times.append(begin.time_till(end))
    return float(np.median(times))


def floor_milliseconds(n_events: int, dim: int, n_components: int) -> float:
    """Return the milliseconds of the multiply-adds at the device's nominal rate."""
    device = cuda.Context.get_device()
    units = device.multiprocessor_count * CORES.get(device.compute_capability(), 128)
    per_pair = dim * (dim + 1) // 2 + 2 * dim
    return n_events * n_components * per_pair / (units * device.clock_rate)  # clock_rate: kHz


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few events; the times mean nothing then")
    quick = parser.parse_args().quick
    n_events, dim, n_components = (2000, 14, 40) if quick else (1_000_000, 14, 256)
    cuda.init()
    context = cuda.Device(0).make_context()
    try:
        p, floor = problem(n_events, dim, n_components), floor_milliseconds(n_events, dim, n_components)
        installed = fused(p, {})
        installed()
        labels = p.labels_on_host()
        rungs = {"two kernels, N x K between them (the paper)": paper(p)}
        for defines in FUSED:
            what = ", ".join(f"{key} {value}" for key, value in defines.items())
            rungs[f"fused, {what or 'as installed'}"] = fused(p, defines)
        timings = []
        for name, run in rungs.items():
            run()
            differing = int((p.labels_on_host() != labels).sum())
            if differing > 1e-4 * n_events:
                raise SystemExit(f"{name}: {differing} labels differ from those of the kernel installed")
            time = median_milliseconds(run, 1 if quick else 20)
            timings.append(Timing(name, time, floor / time))
        show(timings, floor)
        if not quick:
            about = {"device": context.get_device().name(), "driver": cuda.get_driver_version()}
            shape = {"events": n_events, "channels": dim, "components": n_components}
            results = {"about": about, "shape": shape, "floor_milliseconds": floor}
            write_results("cuda_variants", results | {"timings": [asdict(timing) for timing in timings]})
    finally:
        context.pop()


def show(timings: list[Timing], floor: float) -> None:
    table = Table("drawing labels", "ms", "of the floor")
    for timing in timings:
        table.add_row(timing.name, f"{timing.milliseconds:.3f}", f"{timing.of_floor:.2f}")
    Console().print(table)
    print(f"floor: {floor:.3f} ms")


if __name__ == "__main__":
    main()
