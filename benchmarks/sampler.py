"""Time the part of a sweep outside the engine: the draws of the sampler, the log posterior, the run file.

    python benchmarks/sampler.py

The limits of the draws, whatever hyperparameters are learned, are 1 ms a sweep at K = 256, D = 14, and
0.25 ms at K = 64, D = 8, because a sweep on a GPU waits for this part. They apply to minima, because other
work on the machine only adds time. Whole sweeps of the CPU engine at few events show what this is worth
there. Prints minima, and writes them with the medians to benchmarks/results/sampler.json; sampler_before.json
has the times of draws by NumPy and LAPACK. Takes two minutes.
"""

from __future__ import annotations

import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from mixtures import sample
from record import read_results, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.engines.cpu import CpuEngine
from dpmix.model import gibbs
from dpmix.model.mixture import HYPERPARAMETERS, State, Stats, mixture_of
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Key, Stream
from dpmix.runs.layout import FileLayout, Record
from dpmix.runs.writer import RunWriter

BARS_MS = {"K=256, D=14": 1.0, "K=64, D=8": 0.25}
SHAPES = ((256, 14), (128, 14), (64, 14), (64, 8), (1024, 14), (4096, 30))
SWEEPS = 100
EVENTS = 1_000, 10_000, 100_000
ENGINE_SHAPES = ((256, 14), (64, 8))
THREADS = 2


def some_stats(n_components: int, dim: int) -> Stats:
    """Statistics of events at random: a thousand for each component, a fifth of the components empty."""
    rng = np.random.default_rng(1)
    counts = np.where(rng.random(n_components) < 0.2, 0.0, 1000.0)
    roots = rng.standard_normal((n_components, dim, 3 * dim))
    scatters = counts[:, None, None] * (roots @ roots.transpose(0, 2, 1)) / dim
    sums = np.sqrt(counts)[:, None] * rng.standard_normal((n_components, dim))
    return Stats(counts, sums, scatters, rng.standard_normal((n_components, dim)), -1.0)


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def prior_of(dim: int, *learned: str) -> Prior:
    phi = 0.3 * np.eye(dim)
    return Prior(np.zeros(dim), 5.0, 2.0, phi, 1.0, 1.0, frozenset({"alpha", *learned}))


def in_ms(seconds: list[float]) -> dict[str, float]:
    return {"min_ms": 1e3 * min(seconds), "median_ms": 1e3 * float(np.median(seconds))}


def measure_learned(n_components: int, dim: int) -> dict[str, float]:
    """Milliseconds of the draws of a sweep in which all hyperparameters are learned, the default."""
    prior, stats = prior_of(dim, *HYPERPARAMETERS), some_stats(n_components, dim)
    state, seconds = gibbs.draw_prior(prior, n_components, None, Stream(1, 0, 0)), []
    for sweep in range(SWEEPS):
        began = time.perf_counter()
        state, _ = gibbs.sweep(state, stats, prior, Stream(1, 0, sweep + 1), threads=THREADS)
        seconds.append(time.perf_counter() - began)
    return in_ms(seconds)


def measure_engine(n_events: int, n_components: int, dim: int) -> dict[str, float]:
    """Milliseconds of whole sweeps of the CPU engine: labels, statistics and draws."""
    prior, data = prior_of(dim, *HYPERPARAMETERS), sample(n_events, dim, n_components, "mix")
    state, order, seconds = gibbs.draw_prior(prior, n_components, None, Stream(1, 0, 0)), None, []
    with closing(CpuEngine(data.events, threads=THREADS)) as engine:
        for sweep in range(1, SWEEPS + 1):
            began = time.perf_counter()
            stats = engine.draw_labels(mixture_of(state, order), Key(1, 0, sweep))
            state, info = gibbs.sweep(state, stats, prior, Stream(1, 0, sweep), threads=THREADS)
            order = info.order
            seconds.append(time.perf_counter() - began)
    return in_ms(seconds[SWEEPS // 4 :])


def measure(n_components: int, dim: int, folder: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of a sweep."""
    prior = prior_of(dim)
    stats = some_stats(n_components, dim)
    state = gibbs.draw_prior(prior, n_components, None, Stream(1, 0, 0))
    sweeps = SWEEPS if n_components <= 1024 else SWEEPS // 10
    names = [f"ch{i}" for i in range(dim)]
    attributes = dict.fromkeys(("config", "engine", "scaling", "data_hash"), "") | {"seed": 1, "n_events": 1}
    ones = (("channel",), np.ones(dim))
    constants = {"channel_means": ones, "channel_sds": ones}
    layout = FileLayout("mcmc", 1, sweeps, sweeps + 1, n_components, names, constants, attributes)
    parts: dict[str, list[float]] = {"sampler": [], "log posterior": [], "mixture": [], "run file": []}

    def write(writer: RunWriter, sweep: int, state: State) -> None:
        record = Record(-1.0, -1.0, 1, state.alpha, 0.0)
        writer.write_sweep(0, sweep, record)
        writer.write_draw(sweep, [state], [record])

    with RunWriter.create(folder / "run.h5", layout, overwrite=True) as writer:
        for sweep in range(sweeps):
            stream = Stream(1, 0, sweep + 1)
            parts["sampler"].append(timed(lambda: gibbs.sweep(state, stats, prior, stream, threads=THREADS)))  # noqa: B023
            state, _ = gibbs.sweep(state, stats, prior, stream, threads=THREADS)
            parts["log posterior"].append(timed(lambda: log_prior(state, prior)))  # noqa: B023
            parts["mixture"].append(timed(lambda: mixture_of(state)))  # noqa: B023
            parts["run file"].append(timed(lambda: write(writer, sweep, state)))  # noqa: B023
    parts["whole"] = [sum(values) for values in zip(*parts.values(), strict=True)]
    return {name: in_ms(values) for name, values in parts.items()}


def table() -> str:
    """Markdown of sweeps of the CPU engine and of their draws, before and after native draws."""
    before, after = (read_results(name)["results"] for name in ("sampler_before", "sampler"))
    lines = ["| milliseconds | NumPy and LAPACK | native |", "| :--- | ---: | ---: |"]
    for shape in (f"K={n_components}, D={dim}" for n_components, dim in SHAPES):
        for what, part in (("alpha learned", shape), ("all learned", "all learned")):
            old, new = (r[part][shape if part != shape else "sampler"]["min_ms"] for r in (before, after))
            lines.append(f"| draws, {shape}, {what} | {old:.2f} | {new:.2f} |")
    for name in (name for name in after["sweeps of the CPU engine"]):
        old, new = (r["sweeps of the CPU engine"][name]["min_ms"] for r in (before, after))
        lines.append(f"| whole sweep, {name} | {old:.2f} | {new:.2f} |")
    where = said("sampler", "../../benchmarks/results", ("dpmix", "numpy"))
    return (
        "\n".join([*lines, "", textwrap.fill(where, 115, break_long_words=False, break_on_hyphens=False)])
        + "\n"
    )


def main() -> None:
    results, learned, engine = {}, {}, {}
    np.ones(4_000_000)  # like the arrays of any run, so that malloc no longer returns small arrays at once
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, "blas"):
        for n_components, dim in SHAPES:
            parts = measure(n_components, dim, Path(folder))
            results[f"K={n_components}, D={dim}"] = parts
            shown = "  ".join(f"{name} {times['min_ms']:.2f}" for name, times in parts.items())
            print(f"K={n_components:5d} D={dim:3d}   ms: {shown}")
            learned[f"K={n_components}, D={dim}"] = times = measure_learned(n_components, dim)
            print(f"{'':23}all hyperparameters learned: sampler {times['min_ms']:.2f}")
        for n_events in EVENTS:
            for n_components, dim in ENGINE_SHAPES:
                name = f"N={n_events}, K={n_components}, D={dim}"
                engine[name] = times = measure_engine(n_events, n_components, dim)
                print(f"{name}: {times['min_ms']:.2f} ms a sweep, {THREADS} threads")
    for shape, bar in BARS_MS.items():
        took = max(results[shape]["sampler"]["min_ms"], learned[shape]["min_ms"])
        print(f"bar at {shape}: {bar} ms; {took:.2f} ms: {'met' if took <= bar else 'MISSED'}")
    write_results("sampler", {**results, "all learned": learned, "sweeps of the CPU engine": engine})


if __name__ == "__main__":
    main()
