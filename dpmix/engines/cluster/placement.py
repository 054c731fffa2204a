"""Placement of the chunks on the workers of a Dask cluster.

Dask knows the workers, sends tasks and results, and repeats lost tasks on other workers. This module decides
which worker holds which chunks.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import Client, Future

from dpmix.config.engine import EngineConfig
from dpmix.engines.chunk_grid import chunk_edges
from dpmix.engines.cluster import connect
from dpmix.engines.cluster import part as cluster_part
from dpmix.engines.cluster.connect import first_line
from dpmix.engines.cluster.part import About, Recipe
from dpmix.engines.shares import contiguous_shares, pass_seconds
from dpmix.errors import DpmixError
from dpmix.model.mixture import Ints
from dpmix.model.sample_weights import SampleWeights
from dpmix.system.version import VERSION

log = logging.getLogger("dpmix")

LOOK_SECONDS = 2.0  # between requests for the list of workers
FIRST_REBALANCE = 8  # passes before chunks may move by measured speeds; then after 16, 32, ...
WORTH = 1.2  # they move if that makes a pass this many times faster, because events are read again
SILENT_SECONDS = 20.0  # without a heartbeat after which a worker counts as hung
WAIT_SECONDS = 300.0  # for a worker, while none is alive


@dataclass(frozen=True)
class Held:
    """A part and the worker that was asked to hold it."""

    worker: str
    chunks: tuple[int, int]
    future: Future


class Placement:
    """The parts of the data on the workers of a cluster.

    Parameters
    ----------
    client : Client
    path : str
        NPY file of the events, float32 [N, D], which every worker can read.
    shape : (int, int)
        N and D.
    config : EngineConfig
    weights, starts : SampleWeights, optional; int64 [S + 1], optional
        As in the engine.

    Attributes
    ----------
    parts : list of Held
        In the order of their chunks.
    backend : str
        Engine of the workers, cpu or cuda.

    Raises
    ------
    DpmixError
        There is no worker, workers are not alike, or they cannot read the events.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        shape: tuple[int, int],
        config: EngineConfig,
        weights: SampleWeights | None = None,
        starts: Ints | None = None,
    ) -> None:
        self._client = client
        self._path = path
        n_events, self._n_channels = shape
        self._edges = chunk_edges(np.array([0, n_events]) if starts is None else starts)
        self._n_chunks = len(self._edges) - 1
        self._config, self._weights, self._starts = config, weights, starts
        self._passes, self._next_rebalance = 0, FIRST_REBALANCE
        self._looked = -LOOK_SECONDS
        self._known: dict[str, About] = {}
        self._assigned: set[str] = set()  # workers at the latest assignment, also those without a chunk
        self._late: dict[str, Future] = {}  # late workers and the tasks that they still do
        self._silent: set[str] = set()  # hung workers
        self._speeds: dict[str, float] = {}  # chunks per second
        self.parts: list[Held] = []
        threads = self._usable_workers_in_time()
        if not threads:
            raise DpmixError("no worker answers: see their logs")
        # All or none: CPU and GPU labels may differ, and the draws must not depend on which worker has which
        # chunk.
        has_cuda = all(self._known[worker].has_cuda for worker in threads)
        self.backend = "cuda" if has_cuda else "cpu"
        self._assign_to_new_set(threads)
        self._await_events()

    @property
    def n_workers(self) -> int:
        """Number of workers that hold chunks."""
        return len({held.worker for held in self.parts})

    def events_of(self, chunks: tuple[int, int]) -> tuple[int, int]:
        """Return the events (first, end) of chunks (first, end)."""
        return int(self._edges[chunks[0]]), int(self._edges[chunks[1]])

    def submit(self, task: Callable[..., Any], held: Held, *arguments: Any) -> Future:
        """Run a task on the worker that holds a part, with the part as its first argument."""
        return self.submit_anywhere(
            task, held.future, *arguments, workers=[held.worker], allow_other_workers=True
        )

    def submit_anywhere(self, task: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """Run a task on any worker that is neither late nor hung."""
        if self._late or self._silent:  # Dask itself would give them tasks too
            good = [held.worker for held in self.parts]
            options = {"workers": good, "allow_other_workers": True} | options
        key = f"{task.__name__}-{uuid.uuid4().hex}"  # Dask estimates durations by the key's first word
        return self._client.submit(task, *arguments, key=key, pure=False, **options)

    def release(self) -> None:
        """Release the parts."""
        self.parts, self._late = [], {}

    def update(self) -> None:
        """Redistribute chunks before a pass if workers joined or left, or if measured speeds suggest it."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            threads = self._usable_workers()
            if threads and {*threads} != self._assigned:
                self._assign_to_new_set(threads)
        if self._passes >= self._next_rebalance:
            self._next_rebalance = 2 * self._passes
            self._rebalance()

    def note(self, seconds: Mapping[tuple[int, int], float]) -> None:
        """Record the seconds that a pass took on each part, given by the part's chunks."""
        self._passes += 1
        spent: dict[str, float] = defaultdict(float)
        for held in self.parts:
            spent[held.worker] += seconds[held.chunks]
        for worker, n_chunks in self._counts().items():
            speed = n_chunks / spent[worker]
            # Half of it from earlier passes: a single slow pass of a shared machine must not move events.
            self._speeds[worker] = 0.5 * (speed + self._speeds.get(worker, speed))

    def redistribute(self, late: Mapping[str, Future]) -> bool:
        """Redistribute chunks during a pass if workers are late or hung, or if all holders of parts are lost.

        Dask repeats lost tasks on other workers. If there is no worker at that moment, it never does, because
        the task then waits for the lost worker.

        Parameters
        ----------
        late : mapping
            Late workers and the tasks that they still do.

        Returns
        -------
        bool
            True if chunks were redistributed.

        Raises
        ------
        DpmixError
            There has been no worker for `WAIT_SECONDS`.
        """
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        last, silent = self._looked, self._silent
        self._late |= late
        threads = self._usable_workers()
        if not threads:
            self._looked = last
            if time.monotonic() - last > WAIT_SECONDS:
                raise DpmixError(f"no worker for {WAIT_SECONDS:.0f} seconds")
            return False
        for worker in late:
            log.warning("cluster: worker %s is late; the others do its chunks", worker)
        holders = {held.worker for held in self.parts}
        if not (late or self._silent - silent) and holders & {*threads}:
            return False
        self._assign_to_new_set(threads)
        return True

    # ------------------------------------------------------------------------------------------ workers

    def _usable_workers_in_time(self) -> dict[str, int]:
        """Wait for the first worker."""
        try:
            self._client.wait_for_workers(1, timeout=connect.CONNECT_SECONDS)
        except TimeoutError:
            raise DpmixError("no worker: start some with dask worker and the scheduler's address") from None
        return self._usable_workers()

    def _usable_workers(self) -> dict[str, int]:
        """Return the threads of each worker that is neither late nor hung and answers.

        Raises
        ------
        DpmixError
            Workers are not alike, or have another dpmix than this process.
        """
        self._looked = time.monotonic()
        found = self._client.scheduler_info().get("workers")
        if found is None:  # Dask raises no error if the scheduler is gone
            raise ConnectionError("no answer")
        # Relative to the latest of all, not to the clock of this machine, which may differ from the
        # scheduler's clock.
        latest = max((about["last_seen"] for about in found.values()), default=0.0)
        silent = {worker for worker, about in found.items() if latest - about["last_seen"] > SILENT_SECONDS}
        for worker in silent - self._silent:
            log.warning("cluster: worker %s hangs; the others do its chunks", worker)
        self._silent = silent
        self._late = {
            worker: task for worker, task in self._late.items() if worker in found and not task.done()
        }
        usable = [worker for worker in found if worker not in silent and worker not in self._late]
        self._ask(usable)
        answered = [worker for worker in usable if worker in self._known]
        check_alike({worker: self._known[worker] for worker in answered})
        return {worker: found[worker]["nthreads"] for worker in answered}

    def _ask(self, workers: Sequence[str]) -> None:
        """Ask new workers for their properties; those that do not answer stay unknown."""
        new = [worker for worker in workers if worker not in self._known]
        answers = self._client.run(cluster_part.about, workers=new, on_error="return") if new else {}
        for worker, found in answers.items():
            if isinstance(found, ImportError):
                raise DpmixError(f"worker {worker}: {first_line(found)}: install dpmix there, as it is here")
            if isinstance(found, About):
                self._known[worker] = found
            elif not isinstance(found, OSError):  # an OSError: the worker has just gone
                raise DpmixError(f"worker {worker}: {first_line(found)}")

    # --------------------------------------------------------------------------------------- assignment

    def _counts(self) -> Counter[str]:
        """Return the number of chunks of each worker."""
        counts: Counter[str] = Counter()
        for held in self.parts:
            counts[held.worker] += held.chunks[1] - held.chunks[0]
        return counts

    def _rebalance(self) -> None:
        """Move chunks between workers if the measured speeds make that worthwhile."""
        counts = self._counts()
        if not {*counts} <= {*self._speeds}:
            return
        speeds = {worker: self._speeds[worker] for worker in counts}
        ranges = contiguous_shares(self._n_chunks, speeds)
        better = {worker: end - start for worker, (start, end) in ranges.items()}
        if pass_seconds(counts, speeds) > WORTH * pass_seconds(better, speeds):
            self._assign(speeds)

    def _assign_to_new_set(self, threads: Mapping[str, int]) -> None:
        """Distribute chunks to a new set of workers by threads, because their speeds are not known yet."""
        self._assigned = {*threads}
        self._assign(threads)

    def _assign(self, speeds: Mapping[str, float]) -> None:
        """Distribute chunks to the workers in proportion to their speeds."""
        ranges = contiguous_shares(self._n_chunks, speeds)
        kept = [held for held in self.parts if ranges.get(held.worker) == held.chunks]
        self.parts = kept  # the others are released before any is read
        done = {held.worker for held in kept}
        new = [
            self._hold(worker, chunks, [*ranges]) for worker, chunks in ranges.items() if worker not in done
        ]
        self.parts = sorted([*kept, *new], key=lambda held: held.chunks)
        log.info("cluster: %d chunks on %d workers", self._n_chunks, len(self.parts))

    def _hold(self, worker: str, chunks: tuple[int, int], all_workers: Sequence[str]) -> Held:
        events = self.events_of(chunks)
        recipe = Recipe(
            path=self._path,
            chunks=chunks,
            events=events,
            n_bytes=4 * (events[1] - events[0]) * self._n_channels,
            fingerprint=cluster_part.fingerprint(self._path, events),
            backend=self.backend,
            config=self._config,
            weights=None if self._weights is None else self._weights.part(*events),
            starts=self._starts,
            neighbours=sum(host_of(other) == host_of(worker) for other in all_workers),
        )
        future = self.submit_anywhere(cluster_part.load, recipe, workers=[worker], allow_other_workers=True)
        return Held(worker, chunks, future)

    def _await_events(self) -> None:
        """Wait until all workers have read their events."""
        while loading := [held.future for held in self.parts if not held.future.done()]:
            with suppress(TimeoutError):
                loading[0].result(timeout=1.0)
            self.redistribute({})
        for held in self.parts:
            held.future.result()


def check_alike(workers: Mapping[str, About]) -> None:
    """Raise DpmixError if workers differ in a property, or have another dpmix than this process."""
    for name in About._fields:
        found: dict[Any, list[str]] = {}
        for worker, about in workers.items():
            found.setdefault(getattr(about, name), []).append(worker)
        if name == "version" and not {*found} <= {VERSION}:
            raise DpmixError(f"dpmix is {VERSION} here and {found}: install the same everywhere")
        if len(found) > 1:
            raise DpmixError(f"workers are not alike, {name}: {found}: take out some")


def host_of(worker: str) -> str:
    """Return the host in the address of a worker."""
    return worker.partition("://")[2].rpartition(":")[0]
