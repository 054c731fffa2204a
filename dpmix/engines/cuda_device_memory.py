"""The memory of one CUDA device: the events of its share, the mixture, and the lanes of a pass.

A device has two lanes. Each is a stream with room for one batch of chunks. While the kernels of one lane run,
the labels of the other lane are copied to the host, or its next events to the device. The lanes add their
statistics to one state of the sums on the device, which the host reads once a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import pycuda.driver as driver

from dpmix.engines.cuda_work import DeviceFailed, Pass
from dpmix.kernels.layout import CHUNK, EXTRAS, MAX_COMPONENTS, PARTS, SECTIONS, Layout
from dpmix.model.mixture import Array, Floats
from dpmix.model.sample_weights import SampleWeights

log = logging.getLogger("dpmix")

BATCH = 8  # chunks per launch by default, of events that pass through the device and of memberships
SCRATCH = (
    256 << 20
)  # limit for a lane's labels, normalisers and moments then, in bytes; at least one chunk is held
MOST_SLOTS = 65_535  # of a grid


class SortedEvents:
    """The order of a batch's events by label (sort_labels.cu), and the moments of extra runs."""

    def __init__(self, layout: Layout, slots: int, n_components: int) -> None:
        self.counts = driver.mem_alloc(slots * SECTIONS * n_components * 2)
        self.starts = driver.mem_alloc(slots * (n_components + 1) * 4)
        self.extras = driver.mem_alloc(slots * EXTRAS * 4)
        self.order = driver.mem_alloc(slots * CHUNK * 2)
        self.of_extras = driver.mem_alloc(slots * EXTRAS * layout.n_moments * 8)

    @staticmethod
    def size(layout: Layout, n_components: int) -> int:
        """Return the bytes for one chunk."""
        of_components = n_components * (2 * SECTIONS + 4) + 4
        return of_components + CHUNK * 2 + EXTRAS * (4 + layout.n_moments * 8)


class Lane:
    """A stream with room for a batch of `slots` chunks: scratch on the device and page-locked host memory.

    Only the first `staged` slots have room for events that are not resident, and for memberships.
    """

    def __init__(
        self,
        layout: Layout,
        slots: int,
        staged: int,
        n_components: int,
        n_populations: int,
        *,
        weighted: bool,
        blocking: bool,
    ) -> None:
        n_moments = slots * n_components * layout.n_moments
        n_memberships = staged * CHUNK * n_populations
        n_sums = slots * n_sums_of_chunk(layout, n_components)
        self.stream = driver.Stream()
        self.began, self.sent, self.computed = (driver.Event() for _ in range(3))
        flags = driver.event_flags
        self.done = driver.Event(flags.BLOCKING_SYNC if blocking else flags.DEFAULT)
        self.chunks: list[int] = []  # of the current batch
        # Device addresses of the batch's events, chunk numbers and weights (null: every weight is 1).
        self.events_at = self.numbers_at = self.weights_at = 0

        self.events = driver.mem_alloc(staged * CHUNK * layout.padded_dim * 4)
        self.numbers = driver.mem_alloc(staged * 4)
        self.weights = driver.mem_alloc(staged * CHUNK * 4) if weighted else None
        self.labels = driver.mem_alloc(slots * CHUNK * 2)
        # Normalisers of an E step, log densities of memberships, new labels of a division, or the log
        # likelihood of each event in a pruned draw.
        self.normalisers = driver.mem_alloc(slots * CHUNK * 8)
        self.memberships = driver.mem_alloc(n_memberships * 4) if n_memberships else None
        self.moments = driver.mem_alloc(n_moments * 8)
        self.sorted = SortedEvents(layout, slots, n_components)
        self.sums = driver.mem_alloc(n_sums * 8)  # of log densities or log probabilities, by part
        self.totals = driver.mem_alloc(slots * n_log_sums(n_components) * 8)  # the same, by chunk
        self.work = driver.mem_alloc(slots * 8)
        self.far_counts = driver.mem_alloc(slots * 4)

        self.numbers_here = driver.pagelocked_empty(staged, np.uint32)
        if n_memberships:
            self.memberships_here = driver.pagelocked_empty(n_memberships, np.float32)
            self.log_densities_here = driver.pagelocked_empty((staged, CHUNK), np.float64)
        self.far_counts_here = driver.pagelocked_empty(slots, np.uint32)
        self.work_here = driver.pagelocked_empty(slots, np.uint64)
        self._layout, self._staged = layout, staged
        self._events_here: Floats | None = None
        self._weights_here: Floats | None = None

    @property
    def events_here(self) -> Floats:
        """Page-locked float32 [staged, CHUNK, PADDED_DIM], allocated at the first use."""
        if self._events_here is None:
            shape = (self._staged, CHUNK, self._layout.padded_dim)
            self._events_here = driver.pagelocked_empty(shape, np.float32)
            self._events_here.fill(0.0)  # the padding stays zero
        return self._events_here

    @property
    def weights_here(self) -> Floats:
        """Page-locked float32 [staged, CHUNK], allocated at the first use."""
        if self._weights_here is None:
            self._weights_here = driver.pagelocked_empty((self._staged, CHUNK), np.float32)
            self._weights_here.fill(1.0)  # beyond the last event
        return self._weights_here

    def memberships_of(self, work: Pass) -> tuple[Floats, Array]:
        """Return the page-locked memberships and log densities of the batch, by chunk."""
        shape = len(self.chunks), CHUNK, work.n_populations
        return first_of(self.memberships_here, shape), self.log_densities_here[: len(self.chunks)]


class DeviceMemory:
    """The memory of one device; every method needs its context to be current.

    Parameters
    ----------
    number : int
        Number of the device, for messages.
    events : float32 [N, D]
        All events of the engine.
    layout : Layout
    chunks_in_flight : int, optional
        Chunks per launch.
    weights : SampleWeights, optional
        Weights of the events.
    blocking : bool
        Let the thread sleep while it waits for a batch.

    Attributes
    ----------
    lanes : list of Lane
    batch, staged : int
        Chunks that a lane holds: resident, and others or with memberships.
    state, state_here
        The sums of the pass (`dpmix.engines.exact`), float64 flat, on the device and page-locked on the host.
    components, components_here
        The mixture in float32, float32 [K, PACK_DIM], on the device and page-locked on the host.
    exact
        The mixture in float64 on the device.
    ends, split, now
        Tables of memberships, of a division and of a pruned draw on the device (`dpmix.engines.cuda_work`).
    """

    def __init__(
        self,
        number: int,
        events: Floats,
        layout: Layout,
        chunks_in_flight: int | None,
        weights: SampleWeights | None = None,
        *,
        blocking: bool = False,
    ) -> None:
        self._number, self._blocking = number, blocking
        self._events, self._weights = events, weights
        self._layout = layout
        self._chunks_in_flight = chunks_in_flight
        self._slot_bytes = CHUNK * layout.padded_dim * 4
        self._weight_bytes = 0 if weights is None else CHUNK * 4
        self._share: list[int] = []
        self._resident: Any = None  # the share's events, its weights if there are any, its chunk numbers
        self._slots: dict[int, int] = {}  # slot of each resident chunk
        self._capacity = 0, 0  # components and populations that fit
        self.lanes: list[Lane] = []
        self.origin, self.mixture_sent, self.added = (driver.Event() for _ in range(3))
        self.drop()

    def drop(self) -> None:
        """Release the events, the lanes and the mixture."""
        self._drop_events()
        self._drop_lanes()

    def make_room(self, share: list[int], n_components: int, n_populations: int) -> None:
        """Allocate what a pass needs and hold the events of the share if they fit.

        Raises
        ------
        DeviceFailed
            Not one chunk fits.
        """
        room = max(n_components, self._capacity[0]), max(n_populations, self._capacity[1])
        if share == self._share and room == self._capacity:
            return
        if share != self._share:
            self._share = share
            self._drop_events()
        self._allocate_lanes(*room)
        if not self.lanes and self._slots:
            self._warn("is short of memory: events pass through it in every sweep")
            self._drop_events()
            self._allocate_lanes(*room)
        if not self.lanes:
            populations = f" and {room[1]} populations" if room[1] else ""
            raise DeviceFailed(f"out of memory: not one chunk with {room[0]} components{populations} fits")
        if share and not self._slots:
            self._hold_events()

    @property
    def holds_events(self) -> bool:
        """True if the events of the share are resident."""
        return bool(self._slots)

    def resident_addresses(self, chunk: int) -> tuple[int, int, int] | None:
        """Return the device addresses of a chunk's events, number and weights (0: every weight is 1).

        None if the chunk is not resident.
        """
        slot = self._slots.get(chunk)
        if slot is None:
            return None
        weights_at, numbers_at = self._resident_parts()
        own_weights = weights_at + slot * self._weight_bytes if self._weights else 0
        return int(self._resident) + slot * self._slot_bytes, numbers_at + 4 * slot, own_weights

    def send(self, lane: Lane, chunks: Sequence[int], events_at: int, weights_at: int) -> None:
        """Queue copies of the events, padded, and of the weights of chunks to device addresses."""
        staged = lane.events_here[: len(chunks)]
        for slot, chunk in zip(staged, chunks, strict=True):
            events = self._events[chunk * CHUNK : (chunk + 1) * CHUNK]
            slot[: len(events), : self._layout.n_channels] = events
            slot[len(events) :] = 0.0
        driver.memcpy_htod_async(events_at, staged, lane.stream)
        if self._weights:
            weights = lane.weights_here[: len(chunks)]
            for slot, chunk in zip(weights, chunks, strict=True):
                own = self._weights.part(chunk * CHUNK, (chunk + 1) * CHUNK).each()
                slot[: len(own)] = own
            driver.memcpy_htod_async(weights_at, weights, lane.stream)

    def _resident_parts(self) -> tuple[int, int]:
        """Return the device addresses of the weights and of the chunk numbers of the share."""
        weights_at = int(self._resident) + len(self._share) * self._slot_bytes
        return weights_at, weights_at + len(self._share) * self._weight_bytes

    def _allocate_lanes(self, n_components: int, n_populations: int) -> None:
        """Allocate lanes as large as memory allows; no lanes if not one chunk fits."""
        self._drop_lanes()
        sizes = self._lane_sizes(n_components, n_populations)
        for n_lanes, batch in sizes:
            try:
                self._allocate(n_lanes, batch, n_components, n_populations)
            except driver.MemoryError:
                self._drop_lanes()
                continue
            usual = min(sizes[0][1], self._usual)
            if batch < usual:
                self._warn("is short of memory: it gets %d chunks at a time, not %d", batch, usual)
            return

    @property
    def _usual(self) -> int:
        """Chunks per launch if memory is scarce, or as the user chose."""
        return self._chunks_in_flight or BATCH

    def _lane_sizes(self, n_components: int, n_populations: int) -> list[tuple[int, int]]:
        """Return candidates (number of lanes, chunks of a lane), from the preferred size to the smallest."""
        n_chunks = len(self._share)
        scratch = CHUNK * (2 + 8) + SortedEvents.size(self._layout, n_components)
        scratch += n_components * self._layout.n_moments * 8
        scratch += (n_sums_of_chunk(self._layout, n_components) + n_log_sums(n_components)) * 8
        staged = self._slot_bytes + self._weight_bytes + CHUNK * 4 * n_populations
        # Half of the memory that the resident events and the staged slots leave; the rest is for others.
        share = 0 if self._slots else n_chunks * (self._slot_bytes + self._weight_bytes)
        spare = driver.mem_get_info()[0] - share * 17 // 16 - 2 * self._usual * staged
        room = max(spare // 4, SCRATCH)
        wanted = self._chunks_in_flight or -(-n_chunks // 2)  # half, so that both lanes have work
        if spare // 4 < SCRATCH:
            wanted = min(wanted, self._usual)
        batch = max(1, min(wanted, n_chunks, int(room // scratch), MOST_SLOTS))
        sizes = [(2 if batch < n_chunks else 1, batch)]
        while (batch := batch // 2) > 0:
            sizes.append((2, batch))
        return sizes if sizes[-1] == (1, 1) else [*sizes, (1, 1)]

    def _allocate(self, n_lanes: int, batch: int, n_components: int, n_populations: int) -> None:
        self.components_here = driver.pagelocked_empty((n_components, self._layout.pack_dim), np.float32)
        self.components = driver.mem_alloc(self.components_here.nbytes)
        self.exact = driver.mem_alloc(self.components_here.nbytes * 2)
        self.ends = driver.mem_alloc(n_populations * 4) if n_populations else None
        self.split = driver.mem_alloc(2 * MAX_COMPONENTS * 4)
        self.now = driver.mem_alloc(MAX_COMPONENTS * 2)
        n_sums = n_components * self._layout.n_moments + n_log_sums(n_components)
        self.state = driver.mem_alloc(4 * n_sums * 8)
        self.state_here = driver.pagelocked_empty(4 * n_sums, np.float64)
        staged = min(batch, self._usual)
        sizes = batch, staged, n_components, n_populations
        how = {"weighted": self._weights is not None, "blocking": self._blocking}
        self.lanes = [Lane(self._layout, *sizes, **how) for _ in range(n_lanes)]
        self.batch, self.staged = batch, staged
        self._capacity = n_components, n_populations

    def _drop_lanes(self) -> None:
        self.batch, self.staged, self._capacity = 0, 0, (0, 0)
        self.lanes = []
        self.state = self.state_here = None
        self.components = self.components_here = self.exact = self.ends = self.split = self.now = None

    def _hold_events(self) -> None:
        """Copy the share's events to the device to stay there, if they fit."""
        size = len(self._share) * (self._slot_bytes + self._weight_bytes + 4)
        free = driver.mem_get_info()[0]
        self._resident = allocate(size) if size <= free - free // 16 else None
        if self._resident is None:
            need = f"{free / 1e9:.2f} GB free of {size / 1e9:.2f} GB that its events need"
            self._warn("has %s: they pass through it in every sweep", need)
            return
        events_at = int(self._resident)
        weights_at, numbers_at = self._resident_parts()
        for at, lane in zip(range(0, len(self._share), self.staged), cycle(self.lanes), strict=False):
            lane.stream.synchronize()  # the staged memory is free again
            offsets = events_at + at * self._slot_bytes, weights_at + at * self._weight_bytes
            self.send(lane, self._share[at : at + self.staged], *offsets)
        for lane in self.lanes:
            lane.stream.synchronize()
        driver.memcpy_htod(numbers_at, np.array(self._share, np.uint32))
        self._slots = {chunk: slot for slot, chunk in enumerate(self._share)}

    def _drop_events(self) -> None:
        self._slots, self._resident = {}, None

    def _warn(self, text: str, *values: Any) -> None:
        log.warning("CUDA device %d " + text, self._number, *values)


def allocate(size: int) -> Any:
    """Allocate memory on the current device; None if it has too little."""
    try:
        return driver.mem_alloc(size)
    except driver.MemoryError:
        return None


def n_sums_of_chunk(layout: Layout, n_components: int) -> int:
    """Return the largest number of sums per chunk: log densities by block, or log probabilities by part."""
    most: int = max(layout.blocks_per_chunk, n_components // 2 * PARTS)
    return most


def n_log_sums(n_components: int) -> int:
    """Return the largest number of sums of log densities: one, or one for each pair of a division."""
    return max(1, n_components // 2)


def first_of(flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the start of a flat array as an array of the given shape."""
    return flat[: np.prod(shape)].reshape(shape)
