"""Time the CUDA engine on a GPU, next to its limits and the floor set by its arithmetic.

    python benchmarks/cuda.py                 everything on the first device, some minutes
    python benchmarks/cuda.py --devices all   on all devices
    python benchmarks/cuda.py --quick         small samples, as a check of the script

A whole sweep is the engine's pass and the host's part, the draws of all parameters, as in a chain; a step of
Bayesian EM likewise. The floor of a dense pass counts D (D + 1) / 2 + 2 D multiply-adds per event and
component at the devices' nominal float32 rate. Times are medians, by the host's clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from cuda_variants import CORES
from mixtures import Sample, sample
from record import write_results
from rich.console import Console
from rich.table import Table

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import CudaEngine
from dpmix.model import bem, gibbs
from dpmix.model.mixture import Mixture, State, Stats, mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

BARS = {"labels and statistics": 2.5e-3, "sweep": 5e-3, "100 sweeps": 0.6, "EM step": 10e-3}
"""Seconds on one H200 at N = 1,000,000, D = 14, K = 256."""


@dataclass(frozen=True)
class Result:
    """One number, its limit if it has one, and the floor of the arithmetic."""

    name: str
    seconds: float
    bar: float | None
    floor: float


def median(run: Callable[[int], object], times: int) -> float:
    """Median seconds of run(0), run(1), ... after two that warm up."""
    seconds = []
    for i in range(times + 2):
        begin = time.perf_counter()
        run(i)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[2:]))


def whole(data: Sample, devices: str | list[int], times: int, floor: float, *, bars: bool) -> list[Result]:
    """Passes and whole sweeps and steps on one sample."""
    mixtures = [data.before.mixture(), data.now.mixture()]
    prior = Prior(np.zeros(data.events.shape[1]), 5.0, 2.0, 0.3 * np.eye(data.events.shape[1]), 1.0, 1.0)
    engine = CudaEngine(data.events, devices=devices)
    try:
        check(engine, data, mixtures[1])
        chain = Chain(engine, engine.draw_labels(mixtures[1], Key(1, 0, 0)), prior)
        measured = {
            "labels and statistics": (
                median(lambda i: engine.draw_labels(mixtures[i % 2], Key(1, 0, i)), times),
                1.0,
            ),
            "sweep": (median(chain.sweep, times), 1.0),
            "100 sweeps": (median(lambda _: [chain.sweep(i) for i in range(100)], 3), 100.0),
            "labels and statistics, E step": (
                median(lambda i: engine.expect_labels(mixtures[i % 2]), times),
                2.0,
            ),
            "EM step": (median(chain.step, times), 2.0),
        }
    finally:
        engine.close()
    shape = f"N={len(data.events):,} D={data.events.shape[1]} K={len(data.now.weights)}"
    return [
        Result(f"{name}, {shape}", seconds, BARS.get(name) if bars else None, passes * floor)
        for name, (seconds, passes) in measured.items()
    ]


def check(engine: Engine, data: Sample, mixture: Mixture) -> None:
    """The same labels as the CPU engine draws, but for a few on the border; before anything is timed."""
    part = data.events[:50_000]
    cpu, key = CpuEngine(part), Key(1, 0, 0)
    cpu.draw_labels(mixture, key)
    engine.draw_labels(mixture, key)
    differing = int((engine.labels()[: len(part)] != cpu.labels()).sum())
    if differing > 1e-4 * len(part) + 1:
        raise SystemExit(f"{differing} of {len(part)} labels differ from those of the CPU engine")


class Chain:
    """A chain of the sampler and a climb of Bayesian EM from one state."""

    def __init__(self, engine: Engine, stats: Stats, prior: Prior) -> None:
        self.engine, self.prior = engine, prior
        start = gibbs.draw_prior(prior, len(stats.counts), None, Stream(1, 0, 0))
        self.drawn: State = gibbs.sweep(start, stats, prior, Stream(1, 0, 0))[0]
        self.expected = self.drawn

    def sweep(self, iteration: int) -> None:
        stats = self.engine.draw_labels(mixture_of(self.drawn), Key(1, 0, iteration))
        self.drawn, _ = gibbs.sweep(self.drawn, stats, self.prior, Stream(1, 0, iteration + 1))

    def step(self, _: int) -> None:
        stats = self.engine.expect_labels(mixture_of(self.expected))
        self.expected, _info = bem.step(self.expected, stats, self.prior)


def many(n_events: int, devices: str | list[int], floor: float) -> list[Result]:
    """Very many events: a sweep and an E step go through without running out of anything."""
    small = sample(2000, 14, 256, "mix")
    rng, events = np.random.default_rng(0), np.empty((n_events, 14), np.float32)
    for start in range(0, n_events, 1_000_000):
        rng.standard_normal(dtype=np.float32, out=events[start : start + 1_000_000])
    engine = CudaEngine(events, devices=devices)
    try:
        draw = median(lambda i: engine.draw_labels(small.now.mixture(), Key(1, 0, i)), 3)
        expect = median(lambda _: engine.expect_labels(small.now.mixture()), 3)
    finally:
        engine.close()
    shape = f"N={n_events:,} D=14 K=256"
    return [
        Result(f"labels and statistics, {shape}", draw, None, floor),
        Result(f"labels and statistics, E step, {shape}", expect, None, 2 * floor),
    ]


def floor_seconds(devices: str | list[int], n_events: int, dim: int, n_components: int) -> float:
    """Return the seconds of the multiply-adds of a dense pass on all devices together."""
    import pycuda.driver as cuda

    numbers = range(cuda.Device.count()) if devices == "all" else devices
    rate = 0.0
    for device in (cuda.Device(number) for number in numbers):
        units = device.multiprocessor_count * CORES.get(device.compute_capability(), 128)
        rate += units * device.clock_rate * 1e3
    return n_events * n_components * (dim * (dim + 1) // 2 + 2 * dim) / rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="0", help="all, or numbers with commas")
    parser.add_argument("--quick", action="store_true", help="small samples; the bars mean nothing then")
    arguments = parser.parse_args()
    devices = arguments.devices
    if devices != "all":
        devices = [int(number) for number in devices.split(",")]
    import pycuda.driver as cuda

    cuda.init()
    results = []
    shapes = (
        [(2000, 14, 40)]
        if arguments.quick
        else [(1_000_000, 14, 256), (1_000_000, 8, 64), (1_000_000, 30, 128)]
    )
    for shape in shapes:
        floor = floor_seconds(devices, *shape)
        times = 1 if arguments.quick else 20
        results += whole(sample(*shape, "mix"), devices, times, floor, bars=shape == (1_000_000, 14, 256))
    large = 140_000 if arguments.quick else 100_000_000
    results += many(large, devices, floor_seconds(devices, large, 14, 256))
    show(results)
    if not arguments.quick:
        names = [cuda.Device(i).name() for i in range(cuda.Device.count())]
        about = {"devices": names, "used": devices, "driver": cuda.get_driver_version()}
        write_results("cuda", {"about": about, "results": [asdict(result) for result in results]})


def show(results: list[Result]) -> None:
    table = Table("measured", "ms", "bar", "floor", "")
    for result in results:
        bar = "" if result.bar is None else f"{result.bar * 1e3:.1f}"
        verdict = "" if result.bar is None else "pass" if result.seconds <= result.bar else "MISS"
        table.add_row(result.name, f"{result.seconds * 1e3:.2f}", bar, f"{result.floor * 1e3:.2f}", verdict)
    Console().print(table)


if __name__ == "__main__":
    main()
