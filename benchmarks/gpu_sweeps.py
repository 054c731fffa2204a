"""Time passes, whole sweeps and steps of Bayesian EM on a GPU, in D = 14 channels with K = 256 components.

    Stages of gpu.py.

A sweep is the engine's pass and the host's draws of all parameters. Chains advance as in a run: while the
host draws the parameters of one, the engine labels the events of others. A pass is timed alone, too, with
the parts of it in which kernels ran and in which only copies did, by the device's events. Times are
medians, by the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from gpu_output import Output, parser
from mixtures import Sample, sample

from dpmix.engines.base import Engine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.model import bem, gibbs
from dpmix.model.mixture import State, Stats, mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

TINY = 700, 2_000
DISTINCT = 1_000_000  # larger samples repeat these events, moved by a little noise


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
        with ThreadPoolExecutor(self.engine.passes_at_once) as pool:
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
    output: Output,
    events: npt.NDArray[np.float32],
    data: Sample,
    chains: list[int],
    times: int,
    pruning: bool,
) -> None:
    """Time passes, sweeps and steps on one number of events."""
    n, dim = events.shape
    prior = Prior(np.zeros(dim), 5.0, 2.0, 0.3 * np.eye(dim), 1.0, 1.0)
    mixtures = [data.before.mixture(), data.now.mixture()]
    shape = {"n_events": n, "n_channels": dim, "n_components": len(data.now.weights), "pruning": pruning}
    engine = CudaEngine(events, devices=[0], pruning=pruning)

    def add(what: str, n_chains: int, seconds: float, parts: dict[str, float] | None = None) -> None:
        output.append(
            "times", {"what": what, **shape, "chains": n_chains, "seconds": seconds, **(parts or {})}
        )

    def passes(what: str, run: Callable[[int], object]) -> None:
        run(0)
        before = engine.seconds
        seconds = median(run, times)
        after = engine.seconds
        add(what, 1, seconds, {part: (after[part] - before[part]) / (times + 1) for part in after})

    try:
        passes("pass of a draw", lambda i: engine.draw_labels(mixtures[i % 2], Key(1, 0, i)))
        for n_chains in output.while_time_is_left(chains):
            running = Chains(engine, data, prior, n_chains)
            running.sweep(1)
            add("sweep", n_chains, running.sweep(times))
        if pruning and output.left():
            passes("pass of an E step", lambda i: engine.expect_labels(mixtures[i % 2]))
            add("EM step", 1, median(Chains(engine, data, prior, 1).step, times))
    finally:
        engine.close()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--events", type=int, nargs="+", required=True)
    options.add_argument("--chains", type=int, nargs="+", required=True)
    options.add_argument("--dense", action="store_true", help="time without pruning, too")
    asked = options.parse_args()
    output, tiny = Output(asked), asked.rehearsal
    sizes, chains = (TINY[: len(asked.events)], asked.chains[:1]) if tiny else (asked.events, asked.chains)
    dim, n_components = (5, 20) if tiny else (14, 256)
    data = sample(min(DISTINCT, max(sizes)), dim, n_components, "mix")
    for n_events in output.while_time_is_left(sizes):
        times, events = 1 if tiny else int(np.clip(3e7 // n_events, 3, 50)), many(data.events, n_events)
        for pruning in (True, False) if asked.dense else (True,):
            measure(output, events, data, chains, times, pruning)


if __name__ == "__main__":
    main()
