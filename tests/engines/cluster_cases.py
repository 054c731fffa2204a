"""Clusters, engines and results that the tests of the cluster engine share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from distributed import LocalCluster
from engine_contract import AnyEngine, Floats, assert_same_stats
from waiting import wait_until

from dpmix.config.engine import EngineConfig
from dpmix.engines.cluster.connect import connected
from dpmix.engines.cluster.engine import ClusterEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Ints, Mixture
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

N_CHUNKS = 5
N = (N_CHUNKS - 1) * CHUNK + 1234


def held_in_file(events: Floats, folder: Path) -> np.memmap:
    path = folder / f"{len(list(folder.glob('*.events')))}.events"
    with path.open("wb") as file:
        np.save(file, events)
    held = np.load(path, mmap_mode="r")
    assert isinstance(held, np.memmap)
    return held


@contextmanager
def threads(*of_workers: int) -> Iterator[LocalCluster]:
    """A cluster of workers in this process, with these numbers of threads."""
    cluster = LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0", memory_limit=0)
    with cluster:
        for n in of_workers:
            cluster.worker_spec[f"worker {len(cluster.worker_spec)}"] = {
                **cluster.new_spec,
                "options": {**cluster.new_spec["options"], "nthreads": n},
            }
        cluster.sync(cluster._correct_state)
        yield cluster


def engine_on(
    address: str,
    events: Floats,
    folder: Path,
    weights: SampleWeights | None = None,
    starts: Ints | None = None,
    **options: object,
) -> ClusterEngine:
    config = EngineConfig.model_construct(backend="cluster", scheduler=address, **options)
    return ClusterEngine(held_in_file(events, folder), config, weights, starts)


def everything(engine: AnyEngine, mixture: Mixture, mid: Callable[[int], None] = lambda step: None) -> list:
    """Return the results of all kinds of passes for two chains; `mid` is called between the passes."""
    k = len(mixture.means)
    pairs = np.repeat(np.arange(k // 4, dtype=np.int32), 4)
    few = Mixture(*(field[: k // 2] for field in vars(mixture).values() if field is not None))
    split = SplitAssignment(pairs, np.full(k, -1, np.int8), 2)
    found: list = []
    for step in range(3):
        mid(step)
        for chain in range(2):
            found.append(engine.draw_labels(mixture, Key(3, chain, step)))
        mid(step)
        found += [*engine.divide(split, few, Key(3, 0, step)), engine.labels(1)]
    for step in range(3):
        mid(step)
        found.append(engine.expect_labels(replace(mixture, means=mixture.means + 0.1 * step)))
    mid(3)
    found += [engine.labels(0), *engine.memberships(mixture, np.arange(k) % 3, CHUNK - 7, CHUNK + 70)]
    return found


def assert_same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert_same_stats(ours, theirs)


class Processes:
    """A scheduler and workers as separate processes on the loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start("scheduler", "--port", "0", "--no-dashboard", "--no-show")
        wait_until(self.file.exists, "the scheduler's file")

    def start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--host", "127.0.0.1"]
        return subprocess.Popen(
            [*command, "--scheduler-file", str(self.file), *options],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{what}-{len(self.workers)}.log").open("wb"),
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )

    def add(self, nthreads: int = 1) -> subprocess.Popen[bytes]:
        options = ("--no-nanny", "--no-dashboard", "--nthreads", str(nthreads), "--local-directory")
        self.workers.append(self.start("worker", *options, str(self.folder)))
        return self.workers[-1]

    def await_workers(self, count: int) -> None:
        client = connected(str(self.file))
        client.wait_for_workers(count, timeout=60)
        client.close()

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
