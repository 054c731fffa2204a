"""Compare the cluster engine with one process: seconds of a sweep, bytes sent, cost of one more worker.

    python benchmarks/cluster.py [--folder FOLDER]

Three parts, written to benchmarks/results/cluster.json; benchmarks/cluster_limits.py makes
docs/explanation/cluster-limits.md from them.

1. Overhead: 5,000,000 events, D = 14, K = 256. A cluster of this machine with two workers of one thread,
   and one process of two threads, take turns sweep by sweep. The limit is a ratio of 1.15.
2. Bytes: what workers send to each other and to the host in a sweep, counted by Dask, for 1,000,000 and
   4,000,000 events: the same for both, the parameters and the statistics.
3. Latency: sweeps over very little work on 1 to 16 workers: the cost of messages, and the share of client
   and scheduler in it. All workers share this machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mixtures import sample
from record import write_results

from dpmix.config.engine import ClusterConfig, EngineConfig
from dpmix.engines import exact
from dpmix.engines.cluster import part
from dpmix.engines.cluster.connect import connected
from dpmix.engines.cluster.engine import ClusterEngine
from dpmix.engines.cpu import CpuEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

N, D, K = 5_000_000, 14, 256
SWEEPS = 7
BAR = 1.15


def case(n_events: int, dim: int, n_components: int) -> tuple[npt.NDArray[np.float32], Mixture]:
    """Events, and a mixture like a chain's in the middle of a run."""
    drawn = sample(n_events, dim, n_components, "mix")
    return drawn.events, drawn.now.mixture()


@contextmanager
def on_disk(events: npt.NDArray[np.float32], folder: Path) -> Iterator[np.memmap]:
    """Events in a file, as workers read them."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".npy") as file:
        np.save(file, events)
        file.flush()
        yield np.load(file.name, mmap_mode="r")


def cluster(events: np.memmap, workers: int) -> ClusterEngine:
    local = ClusterConfig(workers=workers, threads_per_worker=1)
    return ClusterEngine(events, EngineConfig(backend="cluster", cluster=local))


def seconds(engine: CpuEngine | ClusterEngine, mixture: Mixture, sweep: int) -> float:
    began = time.perf_counter()
    engine.draw_labels(mixture, Key(1, 0, sweep))
    return time.perf_counter() - began


def overhead(folder: Path) -> dict[str, float]:
    events, mixture = case(N, D, K)
    with (
        on_disk(events, folder) as held,
        closing(CpuEngine(events, threads=2)) as one,
        closing(cluster(held, 2)) as many,
    ):
        times: dict[str, list[float]] = {"one process": [], "cluster": []}
        for sweep in range(SWEEPS):
            times["one process"].append(seconds(one, mixture, sweep))
            times["cluster"].append(seconds(many, mixture, sweep))
    medians = {name: float(np.median(all_times[1:])) for name, all_times in times.items()}
    ratio = medians["cluster"] / medians["one process"]
    print(f"overhead: {medians}, ratio {ratio:.3f}, bar {BAR}: {'met' if ratio <= BAR else 'MISSED'}")
    return {**medians, "ratio": ratio, "events": N}


def bytes_sent(engine: ClusterEngine) -> int:
    """Return the bytes that the workers have sent so far, by Dask's count."""
    address = str(engine.info["scheduler"]).partition("(")[2].rstrip(")")
    with closing(connected(address)) as client:
        counts = client.run(lambda dask_worker: int(dask_worker.transfer_outgoing_bytes_total))
    return sum(counts.values())


def bytes_of_a_sweep(folder: Path) -> dict[str, object]:
    found = {}
    for n in (1_000_000, 4_000_000):
        events, mixture = case(n, D, K)
        with on_disk(events, folder) as held, closing(cluster(held, 2)) as engine:
            engine.draw_labels(mixture, Key(1, 0, 0))
            before = bytes_sent(engine)
            for sweep in range(3):
                engine.draw_labels(mixture, Key(1, 0, 1 + sweep))
            found[n] = (bytes_sent(engine) - before) / 3
    parameters = part.size_of_mixture(mixture)
    statistics = 4 * 8 * (K * (D + 1) * (D + 2) // 2 + 1)
    print(f"bytes of a sweep on two workers: {found}; parameters {parameters}, statistics {statistics}")
    return {
        "by events": {str(n): sent for n, sent in found.items()},
        "parameters": parameters,
        "statistics": statistics,
    }


def latency(folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of a sweep over one chunk a worker, K = 2, D = 1, by workers.

    The median, and what this process spends of its processor's time: it is client and scheduler in one, and
    what these spend on a worker no other machine can take from them.
    """
    found = {}
    for workers in (1, 2, 4, 8, 16):
        events, mixture = case(workers * CHUNK, 1, 2)
        with on_disk(events, folder) as held, closing(cluster(held, workers)) as engine:
            for sweep in range(10):
                seconds(engine, mixture, sweep)
            spent = time.process_time()
            times = [seconds(engine, mixture, sweep) for sweep in range(50)]
            spent = (time.process_time() - spent) / len(times)
        found[str(workers)] = {"median": float(np.median(times)), "client and scheduler": spent}
        print(
            f"latency: {workers} workers, {1e3 * np.median(times):.1f} ms, of which here {1e3 * spent:.1f} ms"
        )
    return found


def merge() -> float:
    """Seconds of adding one state to another, K = 256, D = 14."""
    one, other = (exact.zeros(K * (D + 1) * (D + 2) // 2 + 1) for _ in range(2))
    for state in (one, other):
        exact.add(state, np.random.default_rng(0).normal(size=state.shape[1]))
    began = time.perf_counter()
    for _ in range(100):
        exact.merge(one, other)
    return (time.perf_counter() - began) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for the events")
    folder = parser.parse_args().folder
    results = {
        "overhead": overhead(folder),
        "bytes": bytes_of_a_sweep(folder),
        "latency": latency(folder),
        "merge": merge(),
    }
    write_results("cluster", results)


if __name__ == "__main__":
    main()
