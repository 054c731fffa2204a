"""The memory of one CUDA device: the events of its share, the mixture, and the lanes of a pass.

A device has two lanes. Each is a stream with room for one batch of chunks. While the kernels of one lane run,
the results of the other lane are copied to the host and added, or its next events are copied to the device.
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

BATCH = 8  # chunks per launch by default
SCRATCH = (
    256 << 20
)  # limit for a lane's labels, normalisers and moments, in bytes; at least one chunk is held


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
    """A stream with room for a batch of `slots` chunks: scratch on the device and page-locked host memory."""

    def __init__(
        self,
        layout: Layout,
        slots: int,
        n_components: int,
        n_populations: int,
        *,
        weighted: bool,
        blocking: bool,
    ) -> None:
        n_moments = slots * n_components * layout.n_moments
        n_memberships = slots * CHUNK * n_populations
        n_sums = slots * n_sums_of_chunk(layout, n_components)
        self.stream = driver.Stream()
        self.began, self.sent, self.computed = (driver.Event() for _ in range(3))
        flags = driver.event_flags
        self.done = driver.Event(flags.BLOCKING_SYNC if blocking else flags.DEFAULT)
        self.chunks: list[int] = []  # of the current batch
        # Device addresses of the batch's events, chunk numbers and weights (null: every weight is 1).
        self.events_at = self.numbers_at = self.weights_at = 0

        self.events = driver.mem_alloc(slots * CHUNK * layout.padded_dim * 4)
        self.numbers = driver.mem_alloc(slots * 4)
        self.weights = driver.mem_alloc(slots * CHUNK * 4) if weighted else None
        self.labels = driver.mem_alloc(slots * CHUNK * 2)
        # Normalisers of an E step, log densities of memberships, new labels of a division, or the log
        # likelihood of each event in a pruned draw.
        self.normalisers = driver.mem_alloc(slots * CHUNK * 8)
        self.memberships = driver.mem_alloc(n_memberships * 4) if n_memberships else None
        self.moments = driver.mem_alloc(n_moments * 8)
        self.sorted = SortedEvents(layout, slots, n_components)
        self.sums = driver.mem_alloc(n_sums * 8)  # of log densities or log probabilities
        self.work = driver.mem_alloc(slots * 8)
        self.far_counts = driver.mem_alloc(slots * 4)

        self.numbers_here = driver.pagelocked_empty(slots, np.uint32)
        self.labels_here = driver.pagelocked_empty((slots, CHUNK), np.uint16)
        self.moments_here = driver.pagelocked_empty(n_moments, np.float64)
        if n_memberships:
            self.memberships_here = driver.pagelocked_empty(n_memberships, np.float32)
            self.log_densities_here = driver.pagelocked_empty((slots, CHUNK), np.float64)
        self.sums_here = driver.pagelocked_empty(n_sums, np.float64)
        self.far_counts_here = driver.pagelocked_empty(slots, np.uint32)
        self.work_here = driver.pagelocked_empty(slots, np.uint64)
        self._layout, self._slots = layout, slots
        self._events_here: Floats | None = None
        self._weights_here: Floats | None = None

    @property
    def events_here(self) -> Floats:
        """Page-locked float32 [slots, CHUNK, PADDED_DIM], allocated at the first use."""
        if self._events_here is None:
            shape = (self._slots, CHUNK, self._layout.padded_dim)
            self._events_here = driver.pagelocked_empty(shape, np.float32)
            self._events_here.fill(0.0)  # the padding stays zero
        return self._events_here

    @property
    def weights_here(self) -> Floats:
        """Page-locked float32 [slots, CHUNK], allocated at the first use."""
        if self._weights_here is None:
            self._weights_here = driver.pagelocked_empty((self._slots, CHUNK), np.float32)
            self._weights_here.fill(1.0)  # beyond the last event
        return self._weights_here

    def results_of(self, work: Pass) -> tuple[npt.NDArray[Any], Array]:
        """Return the page-locked results of the batch, by chunk; see `dpmix.engines.cuda_work.Deliver`."""
        n_slots = len(self.chunks)
        if work.gates:
            shape = (n_slots, CHUNK, work.n_populations)
            return first_of(self.memberships_here, shape), self.log_densities_here[:n_slots]
        n_components = len(work.components)
        shape = (n_slots, n_components, self._layout.n_moments)
        sums = (n_components // 2, PARTS) if work.division else (self._layout.blocks_per_chunk,)
        return first_of(self.moments_here, shape), first_of(self.sums_here, (n_slots, *sums))


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
    batch : int
        Chunks that a lane holds.
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
        self.origin, self.mixture_sent = driver.Event(), driver.Event()
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
        sizes = self._lane_sizes(n_components, n_populations)
        for n_lanes, batch in sizes:
            self._drop_lanes()
            try:
                self._allocate(n_lanes, batch, n_components, n_populations)
            except driver.MemoryError:
                self._drop_lanes()
                continue
            if batch < sizes[0][1]:
                self._warn("is short of memory: it gets %d chunks at a time, not %d", batch, sizes[0][1])
            return

    def _lane_sizes(self, n_components: int, n_populations: int) -> list[tuple[int, int]]:
        """Return candidates (number of lanes, chunks of a lane), from the preferred size to the smallest."""
        n_chunks = len(self._share)
        scratch = CHUNK * (2 + 8 + 4 * n_populations) + self._weight_bytes
        scratch += n_components * self._layout.n_moments * 8 + SortedEvents.size(self._layout, n_components)
        scratch += n_sums_of_chunk(self._layout, n_components) * 8
        wanted = self._chunks_in_flight or min(BATCH, -(-n_chunks // 2))  # half, so that both lanes have work
        batch = max(1, min(wanted, n_chunks, int(SCRATCH // scratch)))
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
        sizes = batch, n_components, n_populations
        how = {"weighted": self._weights is not None, "blocking": self._blocking}
        self.lanes = [Lane(self._layout, *sizes, **how) for _ in range(n_lanes)]
        self.batch, self._capacity = batch, (n_components, n_populations)

    def _drop_lanes(self) -> None:
        self.batch, self._capacity = 0, (0, 0)
        self.lanes = []
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
        for at, lane in zip(range(0, len(self._share), self.batch), cycle(self.lanes), strict=False):
            lane.stream.synchronize()  # the staged memory is free again
            offsets = events_at + at * self._slot_bytes, weights_at + at * self._weight_bytes
            self.send(lane, self._share[at : at + self.batch], *offsets)
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


def first_of(flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the start of a flat array as an array of the given shape."""
    return flat[: np.prod(shape)].reshape(shape)
