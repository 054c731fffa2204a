"""The ladder: ways to draw labels on a GPU, each checked against the one installed, then timed.

    python benchmarks/cuda_variants.py --output PATH                 a stage of gpu.py: two minutes
    python benchmarks/cuda_variants.py --output PATH --rehearsal     few events, as a check of the script

N = 1,000,000 events in D = 14, 8, 30 and 64 channels, K = 256 components, all on the device. From the
paper's two kernels with an array of N x K between them to the fused kernel, and that with other shapes of
blocks: numbers of events per thread, threads, cached rows and tiles. The floor counts D (D + 1) / 2 + 2 D
multiply-adds per event and component at the device's nominal float32 rate. Times are medians over
launches, by CUDA events.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as cuda
from gpu_device import Output, arguments, context, nominal_rate
from gpu_limits import milliseconds
from mixtures import sample

from dpmix.kernels.build import FOLDER, OPTIONS, find_nvcc
from dpmix.kernels.layout import CHUNK, THREADS, Layout
from dpmix.model.mixture import Mixture

WEIGHT_FLOOR = np.float32(25.0)
SEED, CHAIN, ITERATION = np.uint64(1), np.uint32(0), np.uint32(0)
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
    {"PICK_FROM_SHARED": 1, "CACHED": 16},
    {"CACHED": 16},
]
"""Constants that draw_labels.cu is compiled with; the first set is installed.

PICK_FROM_SHARED: the second level of the draw reads rows from shared memory, as the first does, in place of
device memory. Its tiles, of a 16th of K, have to fit in CACHED rows.
"""


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


def code_of(name: str, dim: int, defines: Mapping[str, int]) -> bytes:
    """Compile a kernel with other constants than those it has."""
    major, minor = cuda.Device(0).compute_capability()
    options = [*OPTIONS, f"-I{FOLDER}", f"-arch=sm_{major}{minor}", f"-DN_CHANNELS={dim}"]
    options += [f"-D{key}={value}" for key, value in defines.items()]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "made.cubin"
        command = [str(find_nvcc()), "--cubin", *options, str(FOLDER / f"{name}.cu"), "-o", str(output)]
        subprocess.run(command, check=True)
        return output.read_bytes()


def function(name: str, code: bytes) -> cuda.Function:
    return cuda.module_from_buffer(code).get_function(name)


def suits(dim: int, defines: Mapping[str, int]) -> bool:
    """Return whether the constants are others than those installed and leave room in registers and memory."""
    layout = Layout(dim)
    installed = layout.events_per_block // THREADS
    events = defines.get("EVENTS_PER_THREAD", installed)
    shared = defines.get("CACHED", 4) * layout.pack_dim * 4 + 18 * events * defines.get("THREADS", THREADS)
    return (not defines or events < installed or "EVENTS_PER_THREAD" not in defines) and shared < 46_000


def fused(p: Problem, defines: Mapping[str, int], code: bytes) -> Callable[[], None]:
    """draw_labels: every label in one launch."""
    draw = function("draw_labels", code)
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
    dim = p.layout.n_channels
    density, indicators = (
        function(name, code_of(name, dim, {})) for name in ("mvn_log_density", "sample_indicators")
    )
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


def ladder(output: Output, n_events: int, dim: int, n_components: int, launches: int) -> list[str]:
    """Time all variants for one number of channels; return those that failed."""
    p = problem(n_events, dim, n_components)
    floor = n_events * n_components * (dim * (dim + 1) // 2 + 2 * dim) / nominal_rate() * 1e3
    variants = [defines for defines in FUSED if suits(dim, defines)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = [pool.submit(code_of, "draw_labels", dim, defines) for defines in variants]
    fused(p, {}, codes[0].result())()
    labels, failed = p.labels_on_host(), []
    rungs = {"two kernels, N x K between them (the paper)": lambda: paper(p)}
    for defines, code in zip(variants, codes, strict=True):
        what = ", ".join(f"{key} {value}" for key, value in defines.items())
        rungs[f"fused, {what or 'as installed'}"] = lambda d=defines, c=code: fused(p, d, c.result())
    for name, prepare in rungs.items():
        try:
            run = prepare()
            run()
            differing = int((p.labels_on_host() != labels).sum())
            if differing > 1e-4 * n_events:
                raise ValueError(f"{differing} labels differ from those of the kernel installed")
            time = milliseconds(cuda, run, launches)
        except (ValueError, subprocess.CalledProcessError, cuda.Error) as error:
            print(f"D = {dim}: {name}: {error}", flush=True)
            failed.append(f"D = {dim}: {name}")
            continue
        shape = {"n_events": n_events, "n_channels": dim, "n_components": n_components}
        row = {"variant": name, **shape, "milliseconds": time, "of_nominal_floor": floor / time}
        output.append("variants", row)
    return failed


def main() -> None:
    asked = arguments(__doc__)
    output, failed = Output(asked.output), []
    sizes = [(2000, 14, 40)] if asked.rehearsal else [(1_000_000, dim, 256) for dim in (14, 8, 30, 64)]
    with context():
        for n_events, dim, n_components in sizes:
            failed += ladder(output, n_events, dim, n_components, 1 if asked.rehearsal else 20)
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
