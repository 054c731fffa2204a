"""The cluster engine: chunks of the events on the workers of a Dask cluster, each with an engine of its own.

Dask finds out which workers there are, sends tasks, results and parameters, and makes lost parts anew on
other workers; what is decided here is which chunks a worker has. A pass is one message out and one back:
parameters go to one worker, where the others fetch them, and statistics are added up on their way in a tree.
Sums do not depend on order (dpmix.engines.exact): results are bit for bit those of one process with an engine
of the same kind.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client, Future, KilledWorker, LocalCluster

import dpmix
from dpmix.config.schema import ClusterConfig, EngineConfig
from dpmix.engines import exact, part
from dpmix.engines.checks import (
    check_events,
    check_options,
    check_range,
    checked_parameters,
    checked_populations,
    checked_split,
)
from dpmix.engines.part import About, Recipe, Sums
from dpmix.engines.sums import division_of, stats_of
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Array, Ints, Mixture, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of

log = logging.getLogger("dpmix")

FAN_IN = 8  # states that one task of the tree adds up
LOOK_SECONDS = 2.0  # between looks at which workers there are
FIRST_DEAL = 8  # passes after which chunks may be dealt anew by the speeds measured; then after 16, 32, ...
WORTH = 1.2  # they are where that makes a pass this many times faster, since events are read anew
LATE_TIMES, LATE_SECONDS = 4.0, 20.0  # of what half of the workers took, and beside: then a worker is late
SILENT_SECONDS = 20.0  # without a heartbeat after which a worker is taken for hung
TRANSFER_SECONDS = 20.0  # of a result; then twice as long, and so on
WAIT_SECONDS = 300.0  # for a worker, where there is none
CONNECT_SECONDS, CONNECT_TIMES = 10.0, 3


@dataclass(frozen=True)
class Held:
    """A part, on the worker that was asked to hold it."""

    worker: str
    chunks: tuple[int, int]
    future: Future


def available(config: EngineConfig) -> tuple[bool, str]:
    """Whether the cluster of a config can be used, and what it is (or why not, and what to do)."""
    if config.scheduler is None:
        return True, "a cluster of this machine"
    try:
        with closing_quietly(connected(config.scheduler)) as client:
            found = client.nthreads()
    except DpmixError as error:
        return False, str(error)
    return True, f"{config.scheduler}, {len(found)} workers with {sum(found.values())} threads"


def connected(scheduler: str) -> Client:
    """A client of a scheduler, or of the one in a scheduler file.

    Raises
    ------
    DpmixError
        Nobody answers there.
    """
    address = scheduler if "://" in scheduler else address_in(Path(scheduler))
    for _ in range(CONNECT_TIMES):
        try:
            return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except AssertionError as error:  # also where other news come along with a scheduler's first message
            reason = first_line(error)
        except Exception as error:  # of any kind, as the place may be wrong in any way
            reason = first_line(error)
            break
    raise DpmixError(
        f"no Dask scheduler answers at {scheduler} ({reason}): start one with dask scheduler, and workers "
        "with dask worker"
    )


def address_in(file: Path) -> str:
    """The address in a scheduler file; Dask itself would wait for one that is not there without end.

    Raises
    ------
    DpmixError
        It is no such file.
    """
    try:
        return str(json.loads(file.read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "no address in it"
        raise DpmixError(
            f"engine.scheduler: {file}: no scheduler file ({reason}): need the one that dask scheduler "
            "--scheduler-file writes"
        ) from None


class ClusterEngine:
    """Engine on the workers of a Dask cluster (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D], C-contiguous, finite
        An `np.memmap` of an NPY file that every worker can read under the same name.
    config : EngineConfig
        ``scheduler`` or ``cluster``, ``pruning``, ``weight_floor``, ``chunks_in_flight``.

    Raises
    ------
    ValueError
        For events that are not as said here.
    DpmixError
        No scheduler answers, there is no worker, workers are not alike, or cannot read the events.

    Notes
    -----
    A worker runs its own CPU engine on all its threads; where all workers have a GPU each, the CUDA engine.
    Chunks are dealt out in ranges, by threads at first and then by the speeds measured, anew when workers
    come or go. Where a worker is lost in the midst of a pass, Dask has its part made by another; where it is
    late, the others do its chunks.
    """

    def __init__(self, events: npt.NDArray[np.float32], config: EngineConfig) -> None:
        check_events(events)
        check_options(len(events), config.weight_floor, config.chunks_in_flight, first_event=0)
        if not isinstance(events, np.memmap) or events.filename is None:
            raise ValueError("events: need an np.memmap of an NPY file")
        self._path = str(Path(events.filename).resolve())
        self._n_events, self._n_channels = events.shape
        self._n_chunks = -(-self._n_events // CHUNK)
        self._config = config
        self._numbers = count()
        self._passes, self._next_deal = 0, FIRST_DEAL
        self._looked = -LOOK_SECONDS
        self._known: dict[str, About] = {}
        self._parts: list[Held] = []
        self._among: set[str] = set()  # workers that chunks were dealt out to, also those that got none
        self._late: dict[str, Future] = {}  # workers that were too late, and what they are still at
        self._silent: set[str] = set()  # workers that hang
        self._speeds: dict[str, float] = {}  # chunks a second
        self._latest: dict[int, part.Pass] = {}  # that left the labels of each chain
        self._components: dict[int, int] = {}  # that they are of
        self._patience = TRANSFER_SECONDS
        self._kernel_seconds = 0.0
        with ExitStack() as stack:
            if config.scheduler is None:
                local = stack.enter_context(own_cluster(config.cluster))
                address = local.scheduler_address
                self._name = f"of this machine ({address})"
                log.info("cluster: dashboard at %s", local.dashboard_link)
            else:
                address = self._name = config.scheduler
            self._client = stack.enter_context(closing_quietly(connected(address)))
            with self._told():
                threads = self._alike(self._workers_in_time())
                if not threads:
                    raise DpmixError("no worker answers: see their logs")
                has_cuda = all(self._known[worker].has_cuda for worker in threads)
                self._backend = "cuda" if has_cuda else "cpu"
                self._deal_among(threads)
                self._await_events()
            self._closing = stack.pop_all()

    @property
    def n_events(self) -> int:
        return int(self._n_events)

    @property
    def n_channels(self) -> int:
        return int(self._n_channels)

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """What the engine runs on, for logs and run files; ``engine`` is that of the workers."""
        return {
            "backend": "cluster",
            "engine": self._backend,
            "scheduler": self._name,
            "workers": len({held.worker for held in self._parts}),
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes in which the slowest worker worked; what a pass took beside is messages."""
        return {"kernels": self._kernel_seconds}

    def bytes_sent(self) -> int:
        """Bytes that the workers have sent one another and this process so far, by Dask's own count."""
        with self._told():
            return sum(self._client.run(part.bytes_sent).values())

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label given the mixture, and sum the statistics of the events by label.

        Gibbs step 1; Suchard et al. (2010), J. Comput. Graph. Stat. 19:419, appendix A.
        """
        return self._statistics(mixture, key)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities."""
        return self._statistics(mixture, None)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide events among pairs of components; see `dpmix.engines.base.Engine.divide`."""
        checked_parameters(mixture, self.n_channels)
        split = checked_split(split, len(mixture.means))
        if self._components.get(key.chain) != len(split.pairs):
            raise ValueError(f"split: chain {key.chain} has no labels of {len(split.pairs)} components")
        with self._told():
            before = self._latest[key.chain]
            values, _ = self._summed(
                mixture, lambda held, sent: self._submit(part.divide, held, before, split, sent, key)
            )
        return division_of(values, mixture)

    def memberships(
        self, mixture: Mixture, populations: Ints, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Membership probabilities in populations, float32 [M, P], and log densities, float64 [M].

        Of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        checked_parameters(mixture, self.n_channels)
        checked_populations(populations, len(mixture.means))
        check_range(start, stop, self.n_events)
        with self._told():
            sent = self._sent(mixture)

            def begin(held: Held) -> list[Future]:
                offset, end = self._events_of(held.chunks)
                here = max(start, offset) - offset, min(stop, end) - offset
                if here[0] >= here[1]:
                    return []
                return [self._submit(part.memberships, held, sent, populations, *here)]

            shares, log_densities = zip(*self._gathered(begin), strict=True)
        return np.concatenate(shares), np.concatenate(log_densities)

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Labels of one chain, int32 [N]: its latest draw, or the most probable ones after the E step.

        Raises
        ------
        ValueError
            If the chain has none yet.
        """
        if chain not in self._latest:
            raise ValueError(f"chain {chain} has no labels yet")
        before = self._latest[chain]
        with self._told():
            return np.concatenate(
                self._gathered(lambda held: [self._submit(part.labels, held, before, chain)])
            )

    def close(self) -> None:
        """Let go of the workers' parts; a cluster of this machine ends."""
        self._parts, self._latest, self._late = [], {}, {}
        self._closing.close()

    # ------------------------------------------------------------------------------------------ passes

    def _statistics(self, mixture: Mixture, key: Key | None) -> Stats:
        checked_parameters(mixture, self.n_channels)
        chain = chain_of(key)
        with self._told():
            self._look()
            before = self._latest.get(chain) if key is None else None  # labels order the events of an E step
            number = next(self._numbers)
            values, sent = self._summed(
                mixture, lambda held, sent: self._submit(part.sums, held, before, (number, sent, key))
            )
        self._latest[chain], self._components[chain] = (number, sent, key), len(mixture.means)
        return stats_of(values, mixture)

    def _summed(self, mixture: Mixture, begin: Callable[[Held, Future], Future]) -> tuple[Array, Future]:
        """The sums of a pass over all parts, and the parameters sent; `begin` begins it on one part."""
        leaves: dict[Held, Future] = {}
        total = None
        while total is None:
            sent = self._sent(mixture)
            leaves = {held: leaves.get(held) or begin(held, sent) for held in self._parts}
            total = self._awaited(self._tree(leaves.values()), leaves)
        self._note(total.seconds)
        return exact.values(total.state), sent

    def _awaited(self, root: Future, leaves: Mapping[Held, Future]) -> Sums | None:
        """The sums of a pass; None where others have been given what some workers held."""
        began, half = time.monotonic(), None
        there: dict[Held, float] = {}  # since when: a part may have to be made first, elsewhere after a loss
        while True:
            try:
                total: Sums = self._result(root)
                return total
            except TimeoutError:
                now = time.monotonic()
            there = {held: there.get(held, now) for held in leaves if held.future.done()}
            if half is None and 2 * sum(leaf.done() for leaf in leaves.values()) >= len(leaves):
                half = now - began
            limit = np.inf if half is None else LATE_TIMES * half + LATE_SECONDS
            late = {held.worker: leaves[held] for held, since in there.items()
                    if now - since > limit and not leaves[held].done()}  # fmt: skip
            if self._moved(late):
                return None

    def _result(self, task: Future) -> Any:
        """The result of a task.

        Raises
        ------
        TimeoutError
            It is not there within a second; or was lost on its way here, or that takes longer than thought.
        """
        task.exception(timeout=1.0)
        try:
            return task.result(timeout=self._patience)
        except TimeoutError:
            self._patience *= 2.0
            raise

    def _gathered(self, begin: Callable[[Held], list[Future]]) -> list[Any]:
        """What the tasks give that `begin` begins on a part, of all parts as their events come."""
        begun = [task for held in self._parts for task in begin(held)]
        found: list[Any] = []
        while len(found) < len(begun):
            try:
                found.append(self._result(begun[len(found)]))
            except TimeoutError:
                if self._moved({}):
                    begun, found = [task for held in self._parts for task in begin(held)], []
        return found

    def _await_events(self) -> None:
        """Wait until all workers have read their events."""
        while loading := [held.future for held in self._parts if not held.future.done()]:
            with suppress(TimeoutError):
                loading[0].result(timeout=1.0)
            self._moved({})
        for held in self._parts:
            held.future.result()

    def _tree(self, leaves: Iterable[Future]) -> Future:
        level = list(leaves)
        while len(level) > 1:
            pairs = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            level = [self._submit_anywhere(part.merged, several) for several in pairs]
        return level[0]

    def _note(self, seconds: Mapping[tuple[int, int], float]) -> None:
        self._passes += 1
        self._kernel_seconds += max(seconds.values())
        spent: Counter[str] = Counter()
        for held in self._parts:
            spent[held.worker] += seconds[held.chunks]  # type: ignore[assignment]
        for worker, n_chunks in self._chunks().items():
            speed = n_chunks / spent[worker]
            self._speeds[worker] = 0.5 * (speed + self._speeds.get(worker, speed))

    def _sent(self, mixture: Mixture) -> Future:
        """The parameters of a pass, on a worker."""
        return self._submit_anywhere(part.as_is, mixture)

    def _submit(self, task: Callable[..., Any], held: Held, *arguments: Any) -> Future:
        """Have a task done where a part is, or was to be."""
        return self._submit_anywhere(
            task, held.future, *arguments, workers=[held.worker], allow_other_workers=True
        )

    def _submit_anywhere(self, task: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        if self._late or self._silent:  # whom Dask would give tasks, too
            good = [held.worker for held in self._parts]
            options = {"workers": good, "allow_other_workers": True} | options
        key = f"{task.__name__}-{uuid.uuid4().hex}"  # Dask knows the time that a task takes by its first word
        return self._client.submit(task, *arguments, key=key, pure=False, **options)

    # ------------------------------------------------------------------------- which chunks a worker has

    def _look(self) -> None:
        """Redistribute chunks where workers joined or left, or differ from their expected speeds."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            threads = self._alike(self._workers())
            if threads and {*threads} != self._among:
                self._deal_among(threads)
        if self._passes >= self._next_deal:
            self._next_deal = 2 * self._passes
            chunks = self._chunks()
            if {*chunks} <= {*self._speeds}:
                speeds = {worker: self._speeds[worker] for worker in chunks}
                ranges = dealt(self._n_chunks, speeds)
                better = {worker: end - start for worker, (start, end) in ranges.items()}
                if slowest(chunks, speeds) > WORTH * slowest(better, speeds):
                    self._deal(speeds)

    def _events_of(self, chunks: tuple[int, int]) -> tuple[int, int]:
        return chunks[0] * CHUNK, min(chunks[1] * CHUNK, self.n_events)

    def _chunks(self) -> Counter[str]:
        """How many chunks each worker has."""
        chunks: Counter[str] = Counter()
        for held in self._parts:
            chunks[held.worker] += held.chunks[1] - held.chunks[0]
        return chunks

    def _workers(self) -> dict[str, int]:
        """Threads of each worker that may be given chunks: not of those that are late or hang."""
        self._looked = time.monotonic()
        found = self._client.scheduler_info().get("workers")
        if found is None:  # Dask is silent about a scheduler that is gone
            raise ConnectionError("no answer")
        latest = max((about["last_seen"] for about in found.values()), default=0.0)
        silent = {worker for worker, about in found.items() if latest - about["last_seen"] > SILENT_SECONDS}
        late = {worker: task for worker, task in self._late.items() if worker in found and not task.done()}
        for worker in silent - {*self._silent}:
            log.warning("cluster: worker %s hangs; the others do its chunks", worker)
        self._late, self._silent = late, silent
        return {
            worker: about["nthreads"] for worker, about in found.items() if worker not in {*late, *silent}
        }

    def _workers_in_time(self) -> dict[str, int]:
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise DpmixError("no worker: start some with dask worker and the scheduler's address") from None
        return self._workers()

    def _moved(self, late: Mapping[str, Future]) -> bool:
        """Whether others have been given what workers hold that are late (with what they are at), or hang.

        So it is where all workers of the parts are lost, too: Dask has a lost part made by another worker,
        but where there is none at that moment, it never does, as the task then waits for that very one.

        Raises
        ------
        DpmixError
            There has been no worker for long.
        """
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        last, silent = self._looked, self._silent
        self._late |= late
        threads = self._alike(self._workers())
        if not threads:
            self._looked = last
            if time.monotonic() - last > WAIT_SECONDS:
                raise DpmixError(f"no worker for {WAIT_SECONDS:.0f} seconds")
            return False
        for worker in late:
            log.warning("cluster: worker %s is late; the others do its chunks", worker)
        holders = {held.worker for held in self._parts}
        if not (late or self._silent - silent) and holders & {*threads}:
            return False
        self._deal_among(threads)
        return True

    def _alike(self, workers: Mapping[str, int]) -> dict[str, int]:
        """Of the workers, those that answer.

        Raises
        ------
        DpmixError
            They are not alike, or have another dpmix than this process.
        """
        new = [worker for worker in workers if worker not in self._known]
        answers = self._client.run(part.about, workers=new, on_error="return") if new else {}
        for worker, found in answers.items():
            if isinstance(found, ImportError):
                raise DpmixError(f"worker {worker}: {first_line(found)}: install dpmix there, as it is here")
            if isinstance(found, About):
                self._known[worker] = found
            elif not isinstance(found, OSError):  # that is one that has just gone
                raise DpmixError(f"worker {worker}: {first_line(found)}")
        answered = {worker: self._known[worker] for worker in workers if worker in self._known}
        for what in About._fields:
            differ: dict[Any, list[str]] = {}
            for worker, about in answered.items():
                differ.setdefault(getattr(about, what), []).append(worker)
            if what == "version" and not {*differ} <= {dpmix.__version__}:
                raise DpmixError(
                    f"dpmix is {dpmix.__version__} here and {differ}: install the same everywhere"
                )
            if len(differ) > 1:
                raise DpmixError(f"workers are not alike, {what}: {differ}: take out some")
        return {worker: workers[worker] for worker in answered}

    def _deal_among(self, threads: Mapping[str, int]) -> None:
        """Distribute chunks to a new set of workers, whose speeds are not known yet."""
        self._among = {*threads}
        self._deal(threads)

    def _deal(self, speeds: Mapping[str, float]) -> None:
        """Have the workers hold chunks in proportion to their speeds."""
        ranges = dealt(self._n_chunks, speeds)
        kept = [held for held in self._parts if ranges.get(held.worker) == held.chunks]
        self._parts = kept  # the others are let go before any is read
        there = {held.worker for held in kept}
        new = [
            self._hold(worker, chunks, [*ranges]) for worker, chunks in ranges.items() if worker not in there
        ]
        self._parts = sorted([*kept, *new], key=lambda held: held.chunks)
        log.info("cluster: %d chunks on %d workers", self._n_chunks, len(self._parts))

    def _hold(self, worker: str, chunks: tuple[int, int], all_workers: Sequence[str]) -> Held:
        recipe = Recipe(
            path=self._path,
            chunks=chunks,
            events=(events := self._events_of(chunks)),
            n_bytes=4 * (events[1] - events[0]) * self.n_channels,
            fingerprint=part.fingerprint(self._path, events),
            backend=self._backend,
            config=self._config,
            neighbours=sum(host_of(other) == host_of(worker) for other in all_workers),
        )
        future = self._submit_anywhere(part.load, recipe, workers=[worker], allow_other_workers=True)
        return Held(worker, chunks, future)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say of Dask's errors, inside, what they mean for a run."""
        try:
            if self._client.status == "closed":  # as it is some time after its scheduler is gone
                raise ConnectionError("no answer")
            yield
        except DpmixError as error:
            raise DpmixError(f"cluster {self._name}: {error}") from error
        except KilledWorker as error:
            raise DpmixError(
                f"cluster {self._name}: workers die at this, the last {error.last_worker.address}: see their "
                "logs; often their memory is too small"
            ) from error
        except (CancelledError, MemoryError, OSError) as error:
            said = first_line(error)  # of a worker, where the scheduler is there
            if self._client.status != "running":
                said = f"the scheduler is gone ({said})"
            raise DpmixError(f"cluster {self._name}: {said}") from error


def dealt(n_chunks: int, speeds: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """A range of chunks for each worker, in proportion to its speed; workers without any are left out."""
    ends = np.rint(np.cumsum([*speeds.values()]) / sum(speeds.values()) * n_chunks).astype(int).tolist()
    ranges = zip(speeds, [0, *ends[:-1]], ends, strict=True)
    return {worker: (start, end) for worker, start, end in ranges if start < end}


def slowest(chunks: Mapping[str, int], speeds: Mapping[str, float]) -> float:
    """Seconds until the last worker has done its chunks."""
    return max(count / speeds[worker] for worker, count in chunks.items())


def host_of(worker: str) -> str:
    """The host in the address of a worker."""
    return worker.partition("://")[2].rpartition(":")[0]


def first_line(error: BaseException) -> str:
    """What an exception says, in a line."""
    return (str(error) or type(error).__name__).splitlines()[0]


def own_cluster(config: ClusterConfig) -> LocalCluster:
    """A cluster of processes of this machine, seen from this machine alone."""
    return LocalCluster(
        n_workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        memory_limit=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        preload=[part.__name__],
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def closing_quietly(client: Client) -> Iterator[Client]:
    """A client that is closed at the end, also where its scheduler is gone."""
    try:
        yield client
    finally:
        client.close(timeout=2)
