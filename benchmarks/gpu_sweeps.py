"""Time whole sweeps and steps of Bayesian EM on a GPU, for N from 10,000 to 100,000,000 and 1 to 8 chains.

    python benchmarks/gpu_sweeps.py --output PATH     a stage of gpu.py

A sweep is the engine's pass and the host's draws of all parameters. Chains advance as in a run: while the
host draws the parameters of one, the engine labels the events of another. A pass is timed alone, too.
Before anything is timed, the labels of some events are compared with those of the CPU engine. Times are
medians, by the host's clock, in D = 14 channels with K = 256 components.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from gpu_device import Output, arguments
from mixtures import Sample, sample

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import CudaEngine
from dpmix.model import bem, gibbs
from dpmix.model.mixture import State, Stats, mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
CHAINS = (1, 2, 4, 8)
DISTINCT = 1_000_000  # larger samples repeat these events, moved by a little noise
CHECKED = 50_000


def median(run: Callable[[int], object], times: int) -> float:
    """Median seconds of run(0), run(1), ... after one that warms up."""
    seconds = []
    for i in range(times + 1):
        begin = time.perf_counter()
        run(i)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[1:]))


class Chains:
    """Chains of the sampler, and a climb of Bayesian EM, from one state."""

    def __init__(self, engine: Engine, data: Sample, prior: Prior, n_chains: int) -> None:
        self.engine, self.prior = engine, prior
        stats = engine.draw_labels(data.now.mixture(), Key(1, 0, 0))
        start = gibbs.draw_prior(prior, len(stats.counts), None, Stream(1, 0, 0))
        drawn = gibbs.sweep(start, stats, prior, Stream(1, 0, 0))[0]
        self.states: list[State] = [drawn] * n_chains
        self.expected = drawn

    def sweep(self, n_sweeps: int) -> float:
        """Make some sweeps of all chains in lockstep; return seconds per sweep of one chain."""
        with ThreadPoolExecutor(1) as pool:
            begin = time.perf_counter()
            passes = [pool.submit(self._label, number, 0) for number in range(len(self.states))]
            for iteration in range(1, n_sweeps + 1):
                for number, state in enumerate(self.states):
                    stats = passes[number].result()
                    stream = Stream(1, number, iteration)
                    self.states[number] = gibbs.sweep(state, stats, self.prior, stream)[0]
                    if iteration < n_sweeps:
                        passes[number] = pool.submit(self._label, number, iteration)
            seconds = time.perf_counter() - begin
        return seconds / n_sweeps / len(self.states)

    def _label(self, number: int, iteration: int) -> Stats:
        return self.engine.draw_labels(mixture_of(self.states[number]), Key(1, number, iteration))

    def step(self, _: int) -> None:
        stats = self.engine.expect_labels(mixture_of(self.expected))
        self.expected, _info = bem.step(self.expected, stats, self.prior)


def check(events: npt.NDArray[np.float32], data: Sample) -> None:
    """Compare labels with those of the CPU engine: only a few on a border may differ."""
    part, key = events[:CHECKED], Key(1, 0, 0)
    labels = []
    for engine in (CpuEngine(part), CudaEngine(part, devices=[0])):
        engine.draw_labels(data.now.mixture(), key)
        labels.append(engine.labels())
        engine.close()
    differing = int((labels[0] != labels[1]).sum())
    if differing > 1e-4 * len(part) + 1:
        sys.exit(f"{differing} of {len(part)} labels differ from those of the CPU engine")


def many(events: npt.NDArray[np.float32], n_events: int) -> npt.NDArray[np.float32]:
    """Return events, repeated with a little noise if there are too few."""
    if n_events <= len(events):
        return events[:n_events]
    rng, made = np.random.default_rng(0), np.empty((n_events, events.shape[1]), np.float32)
    for start in range(0, n_events, len(events)):
        part = made[start : start + len(events)]
        np.add(events[: len(part)], np.float32(0.01) * rng.random(dtype=np.float32), out=part)
    return made


def measure(
    output: Output, events: npt.NDArray[np.float32], data: Sample, chains: tuple[int, ...], times: int
) -> None:
    """Time passes, sweeps and steps on one number of events."""
    n, dim = events.shape
    prior = Prior(np.zeros(dim), 5.0, 2.0, 0.3 * np.eye(dim), 1.0, 1.0)
    mixtures = [data.before.mixture(), data.now.mixture()]
    shape = {"n_events": n, "n_channels": dim, "n_components": len(data.now.weights)}
    engine = CudaEngine(events, devices=[0])
    try:
        running = Chains(engine, data, prior, 1)
        for name, run in {
            "pass of a draw": lambda i: engine.draw_labels(mixtures[i % 2], Key(1, 0, i)),
            "pass of an E step": lambda i: engine.expect_labels(mixtures[i % 2]),
            "EM step": running.step,
        }.items():
            output.append("times", {"what": name, **shape, "chains": 1, "seconds": median(run, times)})
        for n_chains in chains:
            running = Chains(engine, data, prior, n_chains)
            running.sweep(1)
            seconds = running.sweep(times)
            output.append("times", {"what": "sweep", **shape, "chains": n_chains, "seconds": seconds})
    finally:
        engine.close()


def main() -> None:
    asked = arguments(__doc__)
    output = Output(asked.output)
    sizes, chains = ((700, 2_000), (1, 2)) if asked.rehearsal else (SIZES, CHAINS)
    dim, n_components = (2, 8) if asked.rehearsal else (14, 256)
    data = sample(min(DISTINCT, max(sizes)), dim, n_components, "mix")
    check(data.events, data)
    for n_events in sizes:
        times = 1 if asked.rehearsal else int(np.clip(3e7 // n_events, 3, 50))
        measure(output, many(data.events, n_events), data, chains, times)


if __name__ == "__main__":
    main()
