"""One CUDA device of the engine: its thread and context, the events it holds, the batches of a pass.

A device has two lanes, each a stream with room for one batch of chunks. While the kernels of one lane run,
the results of the other are copied down and added up, or its next events are copied up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import cycle
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pycuda.driver as driver

from dpmix.kernels import build
from dpmix.kernels.layout import CHUNK, MAX_COMPONENTS, MOMENT_THREADS, PARTS, THREADS, Layout
from dpmix.model.mixture import Array, Floats
from dpmix.model.streams import Key

log = logging.getLogger("dpmix")

Labels = npt.NDArray[np.uint16]
T = TypeVar("T")

BATCH = 8  # chunks of a launch, where nothing speaks against it
SCRATCH = 256 << 20  # bytes of a lane's labels, normalisers and moments, where that is a chunk or more
DENSITIES = 1 << 24  # log densities made at a time, at most
NO_LABELS = 0xFFFFFFFF  # two of them, of no component

KERNELS = {  # file, threads of a block, arguments (in the letters of the module struct)
    "draw_labels": ("draw_labels", THREADS, "PPPPQQifQIIPPP"),
    "accumulate": ("accumulate", MOMENT_THREADS, "PPPPQiP"),
    "expect_totals": ("expect_labels", THREADS, "PPPPQifPPPP"),
    "expect_moments": ("expect_labels", MOMENT_THREADS, "PPPPQifPPP"),
    "memberships": ("memberships", THREADS, "PPPPPQQiifPPP"),
    "divide": ("divide", MOMENT_THREADS, "PPPPPPQQifQIIiPPP"),
    "mvn_log_density": ("mvn_log_density", THREADS, "PPiiP"),
}


class DeviceFailed(Exception):
    """A device cannot be used any more; the message says why."""


@dataclass(frozen=True)
class Gates:
    """Which memberships a pass is to give.

    Attributes
    ----------
    ends : int32 [P]
        The first of the pass's components that belong to the populations up to this one, how many.
    start, stop : int
        The events start, ..., stop - 1.
    """

    ends: npt.NDArray[np.int32]
    start: int
    stop: int


@dataclass(frozen=True)
class Division:
    """How a pass deals events out to pairs of its components.

    Attributes
    ----------
    split : int32 [2, components that labels are of]
        The pair and the side of the events of each (`dpmix.model.split_merge.SplitAssignment`).
    word : int
        Of the generator.
    labels : uint16 [chunks, CHUNK]
        Of all events.
    """

    split: npt.NDArray[np.int32]
    word: int
    labels: Labels


@dataclass(frozen=True)
class Pass:
    """What a pass over the events is given; all that it gives is a function of it and the events.

    Attributes
    ----------
    components : float64 [K, PACK_DIM]
        The mixture in packed rows; with gates, sorted by population.
    key : Key, optional
        None for an E step.
    labels : uint16 [chunks, CHUNK], optional
        Where a draw or an E step puts the labels of all events.
    gates : Gates, optional
        For memberships.
    division : Division, optional
        For sides of pairs; with a key.
    """

    components: Array
    key: Key | None = None
    labels: Labels | None = None
    gates: Gates | None = None
    division: Division | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """What it launches."""
        if self.gates:
            return ("memberships",)
        if self.division:
            return "divide", "accumulate"
        return ("draw_labels", "accumulate") if self.key else ("expect_totals", "expect_moments")

    @property
    def n_populations(self) -> int:
        """0 where it gives no memberships."""
        return len(self.gates.ends) if self.gates else 0


@dataclass(frozen=True)
class Account:
    """What a device did in a pass.

    `kernels` are the seconds in which kernels ran, `copies` those in which only copies did.
    """

    chunks: int
    kernels: float
    copies: float
    bytes_up: int
    bytes_down: int


Take = Callable[[int], list[int]]
"""Gives at most so many chunks to do; those of the device's share in its order; none when all are taken."""

Deliver = Callable[[int, npt.NDArray[Any], Array], None]
"""Takes a chunk's moments and the sums of its log densities by block, or, of a division, those of its log
probabilities by pair and part; or its memberships and log densities. All are overwritten afterwards."""


class Worker:
    """A thread that does its tasks one after another: a PyCUDA context belongs to the thread that made it."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = SimpleQueue()
        Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, task: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, task, arguments))
        return future

    def stop(self) -> None:
        """End the thread after the tasks that it has."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            future, task, arguments = item
            try:
                future.set_result(task(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del item, future, task, arguments  # an idle thread keeps nothing alive


class Lane:
    """A stream with room for a batch of `slots` chunks: scratch on the device, page-locked memory here."""

    def __init__(self, layout: Layout, slots: int, n_components: int, n_populations: int) -> None:
        n_moments = slots * n_components * layout.n_moments
        n_memberships = slots * CHUNK * n_populations
        n_sums = slots * n_sums_of_chunk(layout, n_components)
        self.stream = driver.Stream()
        self.began, self.sent, self.computed, self.done = (driver.Event() for _ in range(4))
        self.chunks: list[int] = []  # of the batch in work
        self.source = (0, 0)  # where its events and chunk numbers are on the device

        self.events = driver.mem_alloc(slots * CHUNK * layout.padded_dim * 4)
        self.numbers = driver.mem_alloc(slots * 4)
        self.labels = driver.mem_alloc(slots * CHUNK * 2)
        self.normalisers = driver.mem_alloc(slots * CHUNK * 8)  # or log densities; or labels dealt out
        self.memberships = driver.mem_alloc(n_memberships * 4) if n_memberships else None
        self.moments = driver.mem_alloc(n_moments * 8)
        self.sums = driver.mem_alloc(n_sums * 8)  # of log densities or log probabilities
        self.far_counts = driver.mem_alloc(slots * 4)

        self.numbers_here = driver.pagelocked_empty(slots, np.uint32)
        self.labels_here = driver.pagelocked_empty((slots, CHUNK), np.uint16)
        self.moments_here = driver.pagelocked_empty(n_moments, np.float64)
        if n_memberships:
            self.memberships_here = driver.pagelocked_empty(n_memberships, np.float32)
            self.log_densities_here = driver.pagelocked_empty((slots, CHUNK), np.float64)
        self.sums_here = driver.pagelocked_empty(n_sums, np.float64)
        self.far_counts_here = driver.pagelocked_empty(slots, np.uint32)
        self._slots, self._padded_dim = slots, layout.padded_dim
        self._events_here: Floats | None = None

    @property
    def events_here(self) -> Floats:
        """Page-locked float32 [slots, CHUNK, PADDED_DIM]; made when first needed."""
        if self._events_here is None:
            self._events_here = driver.pagelocked_empty((self._slots, CHUNK, self._padded_dim), np.float32)
            self._events_here.fill(0.0)  # the padding stays so
        return self._events_here


class Device:
    """One device. `run` and `log_densities` are for its own thread: they are called through `submit`.

    Parameters
    ----------
    number : int
        As the driver numbers devices.
    events : float32 [N, D]
        All events of the engine; those of the device's share are kept on it where they fit.
    first_event, weight_floor, chunks_in_flight
        As of the engine.

    Raises
    ------
    DeviceFailed
        The device cannot be opened.
    """

    def __init__(
        self,
        number: int,
        events: Floats,
        *,
        first_event: int,
        weight_floor: float,
        chunks_in_flight: int | None,
    ) -> None:
        self.number = number
        self._events = events
        self._first_event = first_event
        self._weight_floor = weight_floor
        self._chunks_in_flight = chunks_in_flight
        self._layout = Layout(events.shape[1])
        self._slot_bytes = CHUNK * self._layout.padded_dim * 4
        self._modules: dict[str, Any] = {}
        self._kernels: dict[str, Any] = {}

        self._share: list[int] = []
        self._resident: Any = None  # the share's events, then its chunk numbers
        self._slots: dict[int, int] = {}  # of the chunks that are resident

        self._capacity = 0, 0  # components and populations that there is room for
        self._batch = 0  # chunks of a lane
        self._lanes: list[Lane] = []
        self._components: Any = None
        self._components_here: Any = None
        self._exact: Any = None
        self._ends: Any = None
        self._deal: Any = None

        self._has_far = False  # a pass met far events
        self._exact_address = 0  # null: not sent in this pass
        self._bytes_up = self._bytes_down = 0  # of this pass, as are the times
        self._kernel_times: list[tuple[float, float]] = []
        self._copy_times: list[tuple[float, float]] = []

        self._context: Any = None
        self._worker = Worker(f"cuda-{number}")
        self._worker.submit(self._open).result()

    def submit(self, task: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a task in the device's thread, its context current.

        The future raises `DeviceFailed` where the device fails, which frees all that it has.
        """
        return self._worker.submit(self._in_context, task, *arguments)

    def close(self) -> Future[None]:
        """Free everything and end the thread; also after a failure."""
        future = self._worker.submit(self._free)
        self._worker.stop()
        return future

    def run(self, work: Pass, share: Sequence[int], take: Take, deliver: Deliver) -> Account:
        """Do chunks of a pass until there are none to take.

        Parameters
        ----------
        work : Pass
        share : sequence of int
            Chunks whose events the device should hold, for this pass and the next ones.
        take, deliver : callable
        """
        self._make_room(list(share), len(work.components), work.n_populations)
        for name in work.kernels:
            self._kernel(name)
        self._begin(work)
        n_chunks = 0
        for lane in cycle(self._lanes):
            if lane.chunks:
                self._finish(lane, work, deliver)
            lane.chunks = take(self._batch)
            if lane.chunks:
                n_chunks += len(lane.chunks)
                self._start(lane, work)
            elif not any(other.chunks for other in self._lanes):
                break
        kernels = covered(self._kernel_times)
        return Account(
            chunks=n_chunks,
            kernels=kernels,
            copies=covered(self._kernel_times + self._copy_times) - kernels,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
        )

    def log_densities(self, events: Floats, components: Array) -> Floats:
        """log pi_j N(x_i | mu_j, Sigma_j) of any events, float32 [M, K]."""
        layout, n_components = self._layout, len(components)
        size = min(len(events), DENSITIES // max(n_components, layout.padded_dim))
        padded = np.zeros((size, layout.padded_dim), np.float32)
        made = np.empty((len(events), n_components), np.float32)
        rows = driver.to_device(components.astype(np.float32))
        events_there, made_there = driver.mem_alloc(padded.nbytes), driver.mem_alloc(4 * n_components * size)
        for first in range(0, len(events), size):
            piece = events[first : first + size]
            padded[: len(piece), : layout.n_channels] = piece
            driver.memcpy_htod(events_there, padded)
            grid = (-(-len(piece) // layout.events_per_block), 1)
            self._launch(
                "mvn_log_density", grid, None, events_there, rows, len(piece), n_components, made_there
            )
            by_component = np.empty((n_components, len(piece)), np.float32)
            driver.memcpy_dtoh(by_component, made_there)
            made[first : first + size] = by_component.T
        return made

    # Opening, failing and closing, in the thread.

    def _open(self) -> None:
        try:
            device = driver.Device(self.number)
            self._architecture = "sm_{}{}".format(*device.compute_capability())
            self._context = device.make_context()
            self._origin, self._mixture_sent = driver.Event(), driver.Event()
            self._context.pop()
        except driver.Error as error:
            raise DeviceFailed(str(error)) from error

    def _in_context(self, task: Callable[..., T], *arguments: Any) -> T:
        """No context stays current between tasks: PyCUDA aborts the process where a thread ends with one."""
        try:
            self._context.push()
            try:
                return task(*arguments)
            finally:
                self._context.pop()
        except (driver.Error, DeviceFailed) as error:
            self._context.detach()  # frees what the device has, whatever state it is in
            self._context = None
            raise DeviceFailed(str(error)) from error

    def _free(self) -> None:
        if self._context is None:
            return
        self._context.push()
        self._kernels, self._modules = {}, {}
        self._drop_events()
        self._drop_lanes()
        del self._origin, self._mixture_sent
        self._context.detach()

    # Room for events, mixture and scratch.

    def _make_room(self, share: list[int], n_components: int, n_populations: int) -> None:
        room = max(n_components, self._capacity[0]), max(n_populations, self._capacity[1])
        if share == self._share and room == self._capacity:
            return
        if share != self._share:
            self._share = share
            self._drop_events()
        if not self._fit_lanes(*room) and self._slots:
            self._say("is short of memory: events pass through it in every sweep")
            self._drop_events()
            self._fit_lanes(*room)
        if not self._lanes:
            populations = f" and {room[1]} populations" if room[1] else ""
            raise DeviceFailed(f"out of memory: not one chunk with {room[0]} components{populations} fits")
        if share and not self._slots:
            self._hold_events()

    def _fit_lanes(self, n_components: int, n_populations: int) -> bool:
        """Make lanes, as large as there is memory for; whether any fit."""
        sizes = self._lane_sizes(n_components, n_populations)
        for n_lanes, batch in sizes:
            if self._make_lanes(n_lanes, batch, n_components, n_populations):
                if batch < sizes[0][1]:
                    self._say("is short of memory: it gets %d chunks at a time, not %d", batch, sizes[0][1])
                return True
        return False

    def _lane_sizes(self, n_components: int, n_populations: int) -> list[tuple[int, int]]:
        """Lanes and chunks of a lane, from what is wanted down to the least that works."""
        n_chunks = len(self._share)
        scratch = CHUNK * (2 + 8 + 4 * n_populations) + n_components * self._layout.n_moments * 8
        scratch += n_sums_of_chunk(self._layout, n_components) * 8
        wanted = self._chunks_in_flight or min(BATCH, -(-n_chunks // 2))  # half, for two lanes to have work
        batch = max(1, min(wanted, n_chunks, int(SCRATCH // scratch)))
        sizes = [(2 if batch < n_chunks else 1, batch)]
        while (batch := batch // 2) > 0:
            sizes.append((2, batch))
        return sizes if sizes[-1] == (1, 1) else [*sizes, (1, 1)]

    def _make_lanes(self, n_lanes: int, batch: int, n_components: int, n_populations: int) -> bool:
        """Whether there was memory for them."""
        self._drop_lanes()
        shape = (n_components, self._layout.pack_dim)
        try:
            self._components_here = driver.pagelocked_empty(shape, np.float32)
            self._components = driver.mem_alloc(self._components_here.nbytes)
            self._exact = driver.mem_alloc(self._components_here.nbytes * 2)
            self._ends = driver.mem_alloc(n_populations * 4) if n_populations else None
            self._deal = driver.mem_alloc(2 * MAX_COMPONENTS * 4)
            self._lanes = [Lane(self._layout, batch, n_components, n_populations) for _ in range(n_lanes)]
        except driver.MemoryError:
            return False
        self._batch, self._capacity = batch, (n_components, n_populations)
        return True

    def _drop_lanes(self) -> None:
        self._capacity, self._lanes = (0, 0), []
        self._components = self._components_here = self._exact = self._ends = self._deal = None

    def _hold_events(self) -> None:
        """Bring the share's events to the device to stay, if there is memory enough."""
        events_size = len(self._share) * self._slot_bytes
        size, free = events_size + 4 * len(self._share), driver.mem_get_info()[0]
        self._resident = allocate(size) if size <= free - free // 16 else None
        if self._resident is None:
            need = f"{free / 1e9:.2f} GB free of {size / 1e9:.2f} GB that its events need"
            self._say("has %s: they pass through it in every sweep", need)
            return
        for at, lane in zip(range(0, len(self._share), self._batch), cycle(self._lanes), strict=False):
            lane.stream.synchronize()  # what was staged before has left
            staged = self._stage(lane, self._share[at : at + self._batch])
            driver.memcpy_htod_async(int(self._resident) + at * self._slot_bytes, staged, lane.stream)
        for lane in self._lanes:
            lane.stream.synchronize()
        driver.memcpy_htod(int(self._resident) + events_size, np.array(self._share, np.uint32))
        self._slots = {chunk: slot for slot, chunk in enumerate(self._share)}

    def _drop_events(self) -> None:
        self._slots, self._resident = {}, None

    def _stage(self, lane: Lane, chunks: Sequence[int]) -> Floats:
        """Events of the chunks, padded, in page-locked memory."""
        staged = lane.events_here[: len(chunks)]
        for slot, chunk in zip(staged, chunks, strict=True):
            events = self._events[chunk * CHUNK : (chunk + 1) * CHUNK]
            slot[: len(events), : self._layout.n_channels] = events
            slot[len(events) :] = 0.0
        return staged

    # A pass.

    def _begin(self, work: Pass) -> None:
        """Send the mixture."""
        self._bytes_up = self._bytes_down = 0
        self._kernel_times, self._copy_times = [], []
        self._exact_address = 0
        if self._has_far:
            self._send_exact(work)
        if work.gates:
            driver.memcpy_htod(self._ends, work.gates.ends)
            self._bytes_up += work.gates.ends.nbytes
        if work.division:
            driver.memcpy_htod(self._deal, work.division.split)
            self._bytes_up += work.division.split.nbytes
        rows, first = self._components_here[: len(work.components)], self._lanes[0].stream
        np.copyto(rows, work.components, casting="same_kind")
        self._origin.record(first)
        self._up(self._components, rows, first)
        self._mixture_sent.record(first)
        for lane in self._lanes:
            lane.chunks = []
            lane.stream.wait_for_event(self._mixture_sent)

    def _send_exact(self, work: Pass) -> None:
        """Send the mixture in float64 too, for far events; where a pass had some the next begins with it."""
        driver.memcpy_htod(self._exact, work.components)
        self._bytes_up += work.components.nbytes
        self._has_far, self._exact_address = True, int(self._exact)

    def _start(self, lane: Lane, work: Pass) -> None:
        """Queue everything that is to be done for the lane's batch."""
        lane.began.record(lane.stream)
        slot = self._slots.get(lane.chunks[0])
        if slot is None:
            numbers = lane.numbers_here[: len(lane.chunks)]
            numbers[:] = lane.chunks
            self._up(lane.events, self._stage(lane, lane.chunks), lane.stream)
            self._up(lane.numbers, numbers, lane.stream)
            lane.source = int(lane.events), int(lane.numbers)
        else:
            resident = int(self._resident)
            numbers_at = resident + len(self._share) * self._slot_bytes
            lane.source = resident + slot * self._slot_bytes, numbers_at + 4 * slot
        if work.division:
            labels = lane.labels_here[: len(lane.chunks)]
            for slot, chunk in zip(labels, lane.chunks, strict=True):
                slot[:] = work.division.labels[chunk]
            self._up(lane.labels, labels, lane.stream)
        lane.sent.record(lane.stream)
        self._compute(lane, work)

    def _compute(self, lane: Lane, work: Pass) -> None:
        """Queue the kernels, and the copies of what they make."""
        n_slots, n_components, stream = len(lane.chunks), len(work.components), lane.stream
        driver.memset_d32_async(lane.far_counts, 0, n_slots, stream)
        if work.gates:
            self._launch_memberships(lane, n_components, work.gates)
        elif work.key is None:
            self._launch_expectation(lane, n_components)
        elif work.division:
            self._launch_division(lane, n_components, work.key, work.division)
        else:
            self._launch_draw(lane, n_components, work.key)
        lane.computed.record(stream)
        results, sums = self._results(lane, work)
        self._down(results, lane.memberships if work.gates else lane.moments, stream)
        self._down(sums, lane.normalisers if work.gates else lane.sums, stream)
        if work.labels is not None:
            self._down(lane.labels_here[:n_slots], lane.labels, stream)
        self._down(lane.far_counts_here[:n_slots], lane.far_counts, stream)
        lane.done.record(stream)

    def _launch_draw(self, lane: Lane, n_components: int, key: Key) -> None:
        events, numbers = lane.source
        n_slots, n_events = len(lane.chunks), len(self._events)
        self._launch(
            "draw_labels", (self._layout.blocks_per_chunk, n_slots), lane.stream,
            events, self._components, self._exact_address, numbers, n_events, self._first_event, n_components,
            self._weight_floor, *key, lane.labels, lane.sums, lane.far_counts,
        )  # fmt: skip
        self._launch_accumulation(lane, n_components, lane.labels)

    def _launch_division(self, lane: Lane, n_components: int, key: Key, division: Division) -> None:
        events, numbers = lane.source
        n_slots, n_events = len(lane.chunks), len(self._events)
        dealt = lane.normalisers
        driver.memset_d32_async(dealt, NO_LABELS, n_slots * CHUNK // 2, lane.stream)
        self._launch(
            "divide", (n_components // 2 * PARTS, n_slots), lane.stream,
            events, self._components, self._exact_address, self._deal, lane.labels, numbers, n_events,
            self._first_event, division.split.shape[1], self._weight_floor, *key, division.word,
            dealt, lane.sums, lane.far_counts,
        )  # fmt: skip
        self._launch_accumulation(lane, n_components, dealt)

    def _launch_accumulation(self, lane: Lane, n_components: int, labels: Any) -> None:
        events, numbers = lane.source
        self._launch(
            "accumulate", (n_components, len(lane.chunks)), lane.stream,
            events, self._components, labels, numbers, len(self._events), n_components, lane.moments,
        )  # fmt: skip

    def _launch_expectation(self, lane: Lane, n_components: int) -> None:
        events, numbers = lane.source
        n_slots, n_events = len(lane.chunks), len(self._events)
        self._launch(
            "expect_totals", (self._layout.blocks_per_chunk, n_slots), lane.stream,
            events, self._components, self._exact_address, numbers, n_events, n_components,
            self._weight_floor, lane.normalisers, lane.labels, lane.sums, lane.far_counts,
        )  # fmt: skip
        self._launch(
            "expect_moments", (n_components, n_slots), lane.stream,
            events, self._components, self._exact_address, numbers, n_events, n_components,
            self._weight_floor, lane.normalisers, lane.labels, lane.moments,
        )  # fmt: skip

    def _launch_memberships(self, lane: Lane, n_components: int, gates: Gates) -> None:
        events, numbers = lane.source
        self._launch(
            "memberships", (self._layout.blocks_per_chunk, len(lane.chunks)), lane.stream,
            events, self._components, self._exact_address, self._ends, numbers, gates.start, gates.stop,
            n_components, len(gates.ends), self._weight_floor, lane.memberships, lane.normalisers,
            lane.far_counts,
        )  # fmt: skip

    def _finish(self, lane: Lane, work: Pass, deliver: Deliver) -> None:
        """Wait for the lane's batch and deliver what came of it."""
        lane.done.synchronize()
        if lane.far_counts_here[: len(lane.chunks)].any():
            self._send_exact(work)
            self._compute(lane, work)
            lane.done.synchronize()
        marks = (lane.began, lane.sent, lane.computed, lane.done)
        began, sent, computed, done = (mark.time_since(self._origin) * 1e-3 for mark in marks)
        self._kernel_times.append((sent, computed))
        self._copy_times += [(began, sent), (computed, done)]
        results, sums = self._results(lane, work)
        for slot, chunk in enumerate(lane.chunks):
            if work.labels is not None:
                work.labels[chunk] = lane.labels_here[slot]
            deliver(chunk, results[slot], sums[slot])
        lane.chunks = []

    def _results(self, lane: Lane, work: Pass) -> tuple[npt.NDArray[Any], Array]:
        """Where what is delivered of the lane's batch comes to, page-locked, by chunk (`Deliver`)."""
        n_slots = len(lane.chunks)
        if work.gates:
            shape = (n_slots, CHUNK, work.n_populations)
            return first_of(lane.memberships_here, shape), lane.log_densities_here[:n_slots]
        n_components = len(work.components)
        shape = (n_slots, n_components, self._layout.n_moments)
        sums = (n_components // 2, PARTS) if work.division else (self._layout.blocks_per_chunk,)
        return first_of(lane.moments_here, shape), first_of(lane.sums_here, (n_slots, *sums))

    def _up(self, to: Any, rows: npt.NDArray[Any], stream: Any) -> None:
        driver.memcpy_htod_async(to, rows, stream)
        self._bytes_up += rows.nbytes

    def _down(self, rows: npt.NDArray[Any], origin: Any, stream: Any) -> None:
        driver.memcpy_dtoh_async(rows, origin, stream)
        self._bytes_down += rows.nbytes

    def _launch(self, name: str, grid: tuple[int, int], stream: Any, *arguments: Any) -> None:
        self._kernel(name).prepared_async_call(grid, (KERNELS[name][1], 1, 1), stream, *arguments)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            file, _, arguments = KERNELS[name]
            if file not in self._modules:
                code = build.cubin(file, self._layout.n_channels, self._architecture)
                self._modules[file] = driver.module_from_buffer(code)
            self._kernels[name] = self._modules[file].get_function(name).prepare(arguments)
        return self._kernels[name]

    def _say(self, what: str, *values: Any) -> None:
        log.warning("CUDA device %d " + what, self.number, *values)


def allocate(size: int) -> Any:
    """Memory on the current device, None where it has too little."""
    try:
        return driver.mem_alloc(size)
    except driver.MemoryError:
        return None


def n_sums_of_chunk(layout: Layout, n_components: int) -> int:
    """Sums of log densities by block, or of log probabilities by pair and part, whichever are more."""
    most: int = max(layout.blocks_per_chunk, n_components // 2 * PARTS)
    return most


def first_of(flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The start of a flat array, as an array of a shape."""
    return flat[: np.prod(shape)].reshape(shape)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (start, end)."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
