"""The memory of one CUDA device: the events and labels of its share, the mixture, and the lanes of a pass.

A device has two lanes. Each is a stream with room for one batch of chunks. While the kernels of one lane run,
the next events of the other lane are copied to the device, if they do not stay there. The lanes add their
statistics to one state of the sums on the device, which the host reads once a pass. Two passes may be in
progress: they share the lanes, in the order of their streams, and each has a slot for all else
(`dpmix.engines.cuda.slot`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pycuda.driver as driver

from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cuda.allocation import allocate
from dpmix.engines.cuda.labels import ChainLabels
from dpmix.engines.cuda.lane import Lane, SortedEvents, n_log_sums, n_sums_of_chunk
from dpmix.engines.cuda.slot import Slot, SlotEvents
from dpmix.engines.cuda.work import SLOTS, DeviceFailed
from dpmix.kernels import _cuda_commands
from dpmix.kernels.layout import CHUNK, MAX_COMPONENTS, Layout
from dpmix.model.mixture import Floats
from dpmix.model.sample_weights import SampleWeights

log = logging.getLogger("dpmix")

BATCH = 8  # chunks per launch by default, of events that pass through the device and of memberships
SCRATCH = 256 << 20  # bytes of a lane's labels, normalisers and moments then, unless one chunk needs more
MOST_SLOTS = 65_535  # of a grid


class DeviceMemory:
    """The memory of one device; every method needs its context to be current.

    Parameters
    ----------
    number : int
        Number of the device, for messages.
    events : float32 [N, D]
        All events of the engine.
    grid : ChunkGrid
        Their chunks.
    layout : Layout
    chunks_in_flight : int, optional
        Chunks per launch.
    weights : SampleWeights, optional
        Weights of the events.
    by_sample : bool
        Every sample has its own mixture and sums.
    blocking : bool
        Let the thread sleep while it waits for a batch.

    Attributes
    ----------
    lanes : list of Lane
    batch, staged : int
        Chunks that a lane holds: resident, and others or with memberships.
    ends, split
        Tables of memberships and of a division on the device (`dpmix.engines.cuda.work`).
    prepared : dict
        Lists of calls that are passes over the share (`dpmix.engines.cuda.prepared`).
    """

    def __init__(
        self,
        number: int,
        events: Floats,
        grid: ChunkGrid,
        layout: Layout,
        chunks_in_flight: int | None,
        weights: SampleWeights | None = None,
        *,
        by_sample: bool = False,
        blocking: bool = False,
    ) -> None:
        self._number = number
        self._events, self._grid, self._weights = events, grid, weights
        self.by_sample = by_sample
        self._layout = layout
        self._chunks_in_flight = chunks_in_flight
        self._event_bytes = layout.padded_dim * 4
        self._weight_bytes = 0 if weights is None else 4
        self._share: list[int] = []
        self._places: dict[int, int] = {}  # of the chunks in the share
        self._resident: Any = None  # the share's events, its weights if there are any, its chunk numbers
        self._offsets = np.zeros(1, np.int64)  # resident events before each of these chunks, and all
        self._chains: dict[int, ChainLabels] = {}
        self._capacity = 0, 0  # components and populations that fit
        self.lanes: list[Lane] = []
        self._slots: list[Slot] = []
        self._slot_events = [SlotEvents(blocking) for _ in range(SLOTS)]
        self.prepared: dict[tuple[object, ...], _cuda_commands.Program] = {}
        self.drop()

    def drop(self) -> None:
        """Release the events, the labels, the lanes and the mixture."""
        self._resident = None
        self._chains.clear()
        self._drop_lanes()

    def make_room(self, share: list[int], n_components: int, n_populations: int) -> None:
        """Allocate what a pass needs and hold the events of the share if they fit.

        Raises
        ------
        DeviceFailed
            Not one chunk fits.
        """
        # Room only grows: chains and draws with other numbers of components would otherwise allocate in every
        # pass.
        room = max(n_components, self._capacity[0]), max(n_populations, self._capacity[1])
        if share == self._share and room == self._capacity:
            return
        if share != self._share:
            self._share, self._places = share, {chunk: place for place, chunk in enumerate(share)}
            self._resident = None
            self._chains.clear()
        self._allocate_lanes(*room)
        # Lanes come first: without them there is no pass at all, and labels and events can be streamed.
        for release in (self._release_labels, self._release_events):
            if not self.lanes and release():
                self._allocate_lanes(*room)
        if not self.lanes:
            populations = f" and {room[1]} populations" if room[1] else ""
            raise DeviceFailed(f"out of memory: not one chunk with {room[0]} components{populations} fits")
        if share and self._resident is None:
            self._hold_events()

    def labels(self, chain: int) -> ChainLabels:
        """Return the labels of a chain for the share, which are new in the chain's first pass."""
        if chain not in self._chains:
            self._chains[chain] = ChainLabels(self._number, chain, len(self._share))
        return self._chains[chain]

    def slot(self, number: int) -> Slot | None:
        """Return what a pass has for itself; None if there is no memory for a second one."""
        if number == len(self._slots):
            try:
                self._slots.append(self._make_slot(number, 1, self.batch, self._capacity[0]))
            except driver.MemoryError:
                return None
        return self._slots[number]

    @property
    def share(self) -> list[int]:
        """Chunks whose events the device should hold."""
        return self._share

    def place(self, chunk: int) -> int | None:
        """Return the place of a chunk in the share; None if the chunk is not in it."""
        return self._places.get(chunk)

    @property
    def holds_events(self) -> bool:
        """True if the events of the share are resident."""
        return self._resident is not None

    def resident_addresses(self, chunk: int) -> tuple[int, int, int] | None:
        """Return the device addresses of a chunk's events, number and weights (0: every weight is 1).

        None if the chunk is not resident.
        """
        place = self.place(chunk)
        if place is None or not self.holds_events:
            return None
        weights_at, numbers_at = self._resident_parts()
        offset = int(self._offsets[place])
        own_weights = weights_at + offset * self._weight_bytes if self._weights else 0
        return int(self._resident) + offset * self._event_bytes, numbers_at + 4 * place, own_weights

    def send(self, lane: Lane, chunks: Sequence[int], events_at: int, weights_at: int) -> None:
        """Queue copies of the events, padded, and of the weights of chunks to device addresses.

        They lie without gaps. The chunks of a launch are CHUNK events apart, because they belong to one
        sample, and only the last one of a sample has fewer.
        """
        ranges = [self._grid.events(chunk) for chunk in chunks]
        ends = np.cumsum([end - first for first, end in ranges])
        staged = lane.events_here[: ends[-1]]
        for own, end in zip(ranges, ends, strict=True):
            events = self._events[slice(*own)]
            staged[end - len(events) : end, : self._layout.n_channels] = events
        driver.memcpy_htod_async(events_at, staged, lane.stream)
        if self._weights:
            weights = lane.weights_here[: ends[-1]]
            for own, end in zip(ranges, ends, strict=True):
                each = self._weights.part(*own).each()
                weights[end - len(each) : end] = each
            driver.memcpy_htod_async(weights_at, weights, lane.stream)

    def _resident_parts(self) -> tuple[int, int]:
        """Return the device addresses of the weights and of the chunk numbers of the share."""
        n_events = int(self._offsets[-1])
        weights_at = int(self._resident) + n_events * self._event_bytes
        return weights_at, weights_at + n_events * self._weight_bytes

    def _share_bytes(self) -> int:
        """Return the bytes of the events and weights of the share."""
        return int(self._grid.sizes[self._share].sum()) * (self._event_bytes + self._weight_bytes)

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
        if self.by_sample:
            scratch += n_components * (self._layout.n_channels + 1) * 8
        staged = CHUNK * (self._event_bytes + self._weight_bytes + 4 * n_populations)
        # Half of the memory that the resident events and the staged slots leave; the rest is for labels and
        # others.
        share = 0 if self.holds_events else self._share_bytes()
        # A sixteenth more than the share, as `_hold_events` leaves free for others.
        spare = driver.mem_get_info()[0] - share * 17 // 16 - 2 * self._usual * staged
        room = max(spare // 4, SCRATCH)
        wanted = self._chunks_in_flight or -(-n_chunks // 2)  # half, so that both lanes have work
        wanted = min(wanted, self._most_of_a_sample())
        if spare // 4 < SCRATCH:
            wanted = min(wanted, self._usual)
        batch = max(1, min(wanted, n_chunks, int(room // scratch), MOST_SLOTS))
        # A second lane has nothing to do if one batch holds all chunks.
        sizes = [(2 if batch < n_chunks else 1, batch)]
        # The driver's free memory is no promise: it may be in pieces, or another process may take it first.
        while (batch := batch // 2) > 0:
            sizes.append((2, batch))
        return sizes if sizes[-1] == (1, 1) else [*sizes, (1, 1)]

    def _most_of_a_sample(self) -> int:
        """Return the largest number of chunks of one sample in the share; a batch never has more."""
        return int(np.bincount(self._grid.samples[self._share]).max(initial=1))

    def _allocate(self, n_lanes: int, batch: int, n_components: int, n_populations: int) -> None:
        self.ends = driver.mem_alloc(n_populations * 4) if n_populations else None
        self.split = driver.mem_alloc(2 * MAX_COMPONENTS * 4)
        slot = self._make_slot(0, n_lanes if self.by_sample else 1, batch, n_components)
        staged = min(batch, self._usual)
        sizes = batch, staged, n_components, n_populations
        how = {"weighted": self._weights is not None, "by_sample": self.by_sample}
        self.lanes = [
            Lane(self._layout, *sizes, results=slot.results(number), mixture=slot.mixture(number), **how)
            for number in range(n_lanes)
        ]
        self._slots = [slot]
        self.batch, self.staged = batch, staged
        self._capacity = n_components, n_populations

    def _make_slot(self, number: int, n_mixtures: int, batch: int, n_components: int) -> Slot:
        return Slot(self._layout, n_components, n_mixtures, batch, self._slot_events[number])

    def _drop_lanes(self) -> None:
        self.batch, self.staged, self._capacity = 0, 0, (0, 0)
        self.prepared.clear()
        self.lanes, self._slots = [], []
        self.ends = self.split = None

    def _hold_events(self) -> None:
        """Copy the share's events to the device to stay there, if they fit."""
        size = self._share_bytes() + 4 * len(self._share)
        self._resident = allocate(size)
        if self._resident is None:
            free = driver.mem_get_info()[0]
            need = f"{free / 1e9:.2f} GB free of {size / 1e9:.2f} GB that its events need"
            self._warn("has %s: they pass through it in every sweep", need)
            return
        self._offsets = np.append(0, np.cumsum(self._grid.sizes[self._share]))
        weights_at, numbers_at = self._resident_parts()
        for at, lane in zip(range(0, len(self._share), self.staged), cycle(self.lanes), strict=False):
            lane.stream.synchronize()  # the staged memory is free again
            offset = int(self._offsets[at])
            events_at = int(self._resident) + offset * self._event_bytes
            chunks = self._share[at : at + self.staged]
            self.send(lane, chunks, events_at, weights_at + offset * self._weight_bytes)
        for lane in self.lanes:
            lane.stream.synchronize()
        driver.memcpy_htod(numbers_at, self._grid.places[self._share].astype(np.uint32))

    def _release_events(self) -> bool:
        """Release the events, which then pass through the device; return False if they do already."""
        if self.holds_events:
            self._warn("is short of memory: events pass through it in every sweep")
            self._resident = None
            return True
        return False

    def _release_labels(self) -> bool:
        """Move the labels of all chains to the host; return False if they are there."""
        on_device = [labels for labels in self._chains.values() if labels.on_device]
        for labels in on_device:
            labels.leave_device()
        return bool(on_device)

    def _warn(self, text: str, *values: Any) -> None:
        log.warning("CUDA device %d " + text, self._number, *values)
