"""Time ways to draw labels on a GPU, each checked against the one installed.

    A stage of gpu.py.

N = 1,000,000 events, K = 256 components, all on the device. From the paper's two kernels with an array of N
x K between them to the fused kernel, and that with other shapes of blocks: numbers of events per thread,
threads, cached rows and tiles. The floor counts D (D + 1) / 2 + 2 D multiply-adds per event and component
at the device's nominal float32 rate. Times are medians over launches, by CUDA events.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pycuda.driver as cuda
from gpu_code import PAPER, VARIANTS, cubin
from gpu_device import context, nominal_rate
from gpu_limits import milliseconds
from gpu_output import Output, parser
from mixtures import sample

from dpmix.kernels.build import FOLDER
from dpmix.kernels.layout import CHUNK, THREADS, Layout
from dpmix.model.mixture import Mixture

WEIGHT_FLOOR = np.float32(25.0)
SEED, CHAIN, ITERATION = np.uint64(1), np.uint32(0), np.uint32(0)
TINY = {14: VARIANTS[14][:2]}


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


def code_of(name: str, dim: int, defines: Mapping[str, int], architecture: str) -> bytes:
    """Return a kernel compiled with other constants than those it has."""
    return cubin(FOLDER / f"{name}.cu", architecture, {"N_CHANNELS": dim, **defines})


def architecture() -> str:
    """Return the architecture of the first device."""
    major, minor = cuda.Device(0).compute_capability()
    return f"sm_{major}{minor}"


def function(name: str, code: bytes) -> cuda.Function:
    return cuda.module_from_buffer(code).get_function(name)


def fused(p: Problem, defines: Mapping[str, int], code: bytes) -> Callable[[], None]:
    """draw_labels: every label in one launch."""
    draw = function("draw_labels", code)
    threads = defines.get("THREADS", p.layout.draw_threads)
    usual = p.layout.draw_events_per_block // p.layout.draw_threads
    events_per_thread = defines.get("EVENTS_PER_THREAD", usual)
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
    density, indicators = (function(name, code_of(name, dim, {}, architecture())) for name in PAPER)
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


def rungs(p: Problem, variants: list[dict[str, int]]) -> dict[str, Callable[[], Callable[[], None]]]:
    """Return what makes each variant ready, by its name, the installed kernel first."""
    dim, made = p.layout.n_channels, architecture()
    with ThreadPoolExecutor() as pool:  # compiles what a kit does not bring
        codes = list(pool.map(lambda defines: code_of("draw_labels", dim, defines, made), variants))
    ready: dict[str, Callable[[], Callable[[], None]]] = {}
    for defines, code in zip(variants, codes, strict=True):
        what = ", ".join(f"{key} {value}" for key, value in defines.items())
        ready[f"fused, {what or 'as installed'}"] = lambda d=defines, c=code: fused(p, d, c)
    ready["two kernels, N x K between them (the paper)"] = lambda: paper(p)
    return ready


def main() -> None:
    asked = parser(__doc__).parse_args()
    output, failed = Output(asked), []
    n_events, n_components, launches = (2000, 40, 1) if asked.rehearsal else (1_000_000, 256, 10)
    with context():
        for dim, variants in output.while_time_is_left((TINY if asked.rehearsal else VARIANTS).items()):
            p = problem(n_events, dim, n_components)
            floor = n_events * n_components * (dim * (dim + 1) // 2 + 2 * dim) / nominal_rate() * 1e3
            labels = None
            for name, prepare in output.while_time_is_left(rungs(p, variants).items()):
                try:
                    run = prepare()
                    run()
                    drawn = p.labels_on_host()
                    labels = drawn if labels is None else labels
                    differing = int((drawn != labels).sum())
                    if differing > 1e-4 * n_events:
                        raise ValueError(f"{differing} labels differ from the labels by the kernel installed")
                    time = milliseconds(cuda, run, launches)
                except (ValueError, subprocess.CalledProcessError, cuda.Error) as error:
                    print(f"D = {dim}: {name}: {error}", flush=True)
                    failed.append(f"D = {dim}: {name}")
                    continue
                shape = {"n_events": n_events, "n_channels": dim, "n_components": n_components}
                row = {"variant": name, **shape, "milliseconds": time, "of_nominal_floor": floor / time}
                output.append("variants", row)
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
