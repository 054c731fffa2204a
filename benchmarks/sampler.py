"""Time the part of a sweep outside the engine: the draws of the sampler, the log posterior, the run file.

    python benchmarks/sampler.py

The limit is 6 ms a sweep at K = 256, D = 14, because a sweep on a GPU waits for this part. Prints the
median, and writes it with the minimum to benchmarks/results/sampler.json.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from record import write_results
from threadpoolctl import threadpool_limits

from dpmix.model import gibbs
from dpmix.model.mixture import State, Stats, mixture_of
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Stream
from dpmix.runs.layout import Layout, Record
from dpmix.runs.writer import RunWriter

BAR_MS = 6.0
SHAPES = ((256, 14), (128, 14), (64, 8), (1024, 14), (4096, 30))
SWEEPS = 100


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


def measure(n_components: int, dim: int, folder: Path) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of a sweep."""
    prior = Prior(np.zeros(dim), 5.0, 2.0, 0.3 * np.eye(dim), 1.0, 1.0)
    stats = some_stats(n_components, dim)
    state = gibbs.draw_prior(prior, n_components, None, Stream(1, 0, 0))
    sweeps = SWEEPS if n_components <= 1024 else SWEEPS // 10
    names = [f"ch{i}" for i in range(dim)]
    attributes = dict.fromkeys(("config", "engine", "scaling", "data_hash"), "") | {"seed": 1, "n_events": 1}
    ones = (("channel",), np.ones(dim))
    constants = {"channel_means": ones, "channel_sds": ones}
    layout = Layout("mcmc", 1, sweeps, sweeps + 1, n_components, names, constants, attributes)
    parts: dict[str, list[float]] = {"sampler": [], "log posterior": [], "mixture": [], "run file": []}

    def write(writer: RunWriter, sweep: int, state: State) -> None:
        record = Record(-1.0, -1.0, 1, state.alpha, 0.0)
        writer.write_sweep(0, sweep, record)
        writer.write_draw(sweep, [state], [record])

    with RunWriter.create(folder / "run.h5", layout, overwrite=True) as writer:
        for sweep in range(sweeps):
            stream = Stream(1, 0, sweep + 1)
            parts["sampler"].append(timed(lambda: gibbs.sweep(state, stats, prior, stream)))  # noqa: B023
            state, _ = gibbs.sweep(state, stats, prior, stream)
            parts["log posterior"].append(timed(lambda: log_prior(state, prior)))  # noqa: B023
            parts["mixture"].append(timed(lambda: mixture_of(state)))  # noqa: B023
            parts["run file"].append(timed(lambda: write(writer, sweep, state)))  # noqa: B023
    parts["whole"] = [sum(values) for values in zip(*parts.values(), strict=True)]
    return {
        name: {"min_ms": 1e3 * min(values), "median_ms": 1e3 * float(np.median(values))}
        for name, values in parts.items()
    }


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, "blas"):
        for n_components, dim in SHAPES:
            parts = measure(n_components, dim, Path(folder))
            results[f"K={n_components}, D={dim}"] = parts
            shown = "  ".join(f"{name} {times['median_ms']:.2f}" for name, times in parts.items())
            print(f"K={n_components:5d} D={dim:3d}   median ms: {shown}")
    whole = results["K=256, D=14"]["whole"]["median_ms"]
    print(f"bar at K=256, D=14: {BAR_MS} ms; {whole:.2f} ms: {'met' if whole <= BAR_MS else 'MISSED'}")
    write_results("sampler", results)


if __name__ == "__main__":
    main()
