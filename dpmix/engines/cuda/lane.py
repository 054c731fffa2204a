"""The lanes of a CUDA device: streams with memory for a batch of chunks, and the mixtures that they read."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pycuda.driver as driver

from dpmix.engines.cuda import library
from dpmix.engines.cuda.allocation import cleared
from dpmix.engines.cuda.commands import Calls, Commands, Value
from dpmix.engines.cuda.labels import BatchLabels
from dpmix.engines.cuda.work import Pass
from dpmix.kernels.layout import CHUNK, EXTRAS, PARTS, SECTIONS, Layout
from dpmix.model.mixture import Array, Floats


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


class HeldMixture:
    """The packed mixture of a sample on a device, with page-locked memory.

    Attributes
    ----------
    sample : int
        The sample whose mixture is here in the present pass; -1: none.
    rows, exact
        The mixture in float32, [K, PACK_DIM], and in float64 for far events.
    exact_at : int
        Address of `exact`; 0: not sent.
    """

    def __init__(self, layout: Layout, n_components: int) -> None:
        shape = n_components, layout.pack_dim
        self.rows_here = driver.pagelocked_empty(shape, np.float32)
        self.rows = driver.mem_alloc(self.rows_here.nbytes)
        self.exact = driver.mem_alloc(self.rows_here.nbytes * 2)
        self._shape = shape
        # Allocated when the first far event needs it: most runs have none, and page-locked memory is scarce.
        self._exact_here: Array | None = None
        self.forget()

    def forget(self) -> None:
        """Hold no mixture, at the start of a pass."""
        self.sample, self.exact_at = -1, 0

    def send(self, commands: Commands, rows: Array, sample: int, stream: int) -> None:
        """List a copy of the mixture of a sample in float32; the copy before must have ended."""
        here = self.rows_here[: len(rows)]
        np.copyto(here, rows, casting="same_kind")
        commands.copy_up(self.rows, here, stream)
        self.sample, self.exact_at = sample, 0

    def send_exact(self, commands: Commands, rows: Array, stream: int) -> None:
        """List a copy of the mixture in float64."""
        here = self._exact_rows_here(len(rows))
        here[...] = rows
        commands.copy_up(self.exact, here, stream)
        self.exact_at = int(self.exact)

    def send_later(self, commands: Commands, n_components: int, exact: bool, stream: int) -> None:
        """List copies of a mixture that is given later, as it is and in float64 if `exact`."""
        here = self.rows_here[:n_components]
        commands.copy_here(here, Value.ROWS)
        commands.copy_up(self.rows, here, stream)
        self.exact_at = int(self.exact) if exact else 0
        if exact:
            exact_here = self._exact_rows_here(n_components)
            commands.copy_here(exact_here, Value.EXACT_ROWS)
            commands.copy_up(self.exact, exact_here, stream)

    def _exact_rows_here(self, n_components: int) -> Array:
        if self._exact_here is None:
            self._exact_here = driver.pagelocked_empty(self._shape, np.float64)
        return self._exact_here[:n_components]


class LaneEvents(NamedTuple):
    """The events of a lane's batch: start, input on the device, results there, results on the host.

    The copies of one lane run at the time of the other's kernels, so only the union of spans says how long a
    device waited for copies.
    """

    began: int
    sent: int
    computed: int
    done: int

    @classmethod
    def make(cls, blocking: bool) -> LaneEvents:
        """Return new events; `blocking`: the thread sleeps while it waits for the last one."""
        flags = driver.event_flags
        # With fewer cores than devices, a thread that spins would keep another from feeding its device.
        done = library.make_event(flags.BLOCKING_SYNC if blocking else flags.DEFAULT)
        began, sent, computed = (library.make_event() for _ in range(3))
        return cls(began, sent, computed, done)


class BatchResults:
    """Results of a batch of chunks in page-locked memory, and the events that time it.

    Attributes
    ----------
    marks : LaneEvents
    milliseconds : float32 [4]
        Times of these events since the start of the pass.
    tallies : uint32 [3 slots]
        By slot: `work`, uint64, multiply-adds of a pruned draw; then `far_counts`.
    """

    def __init__(self, slots: int, marks: LaneEvents) -> None:
        self.marks = marks
        self.milliseconds = np.zeros(len(marks), np.float32)
        self.tallies = driver.pagelocked_empty(slots * 3, np.uint32)
        self.work = self.tallies[: slots * 2].view(np.uint64)
        self.far_counts = self.tallies[slots * 2 :]


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
        results: BatchResults,
        mixture: HeldMixture,
        weighted: bool,
        by_sample: bool,
    ) -> None:
        n_rows = slots * n_components * (layout.n_channels + 1) if by_sample else 0
        n_moments = slots * n_components * layout.n_moments
        n_memberships = staged * CHUNK * n_populations
        n_sums = slots * n_sums_of_chunk(layout, n_components)
        self.stream = driver.Stream()
        self.queue: int = self.stream.handle
        self.programs: dict[tuple[object, ...], Calls] = {}  # by what they depend on
        self.waiting: Calls | None = None
        self.results = results  # of the batch
        self.mixture = mixture
        self.chunks: list[int] = []  # of the current batch, all of one sample
        self.sample = 0
        self.n_events = self.first_event = 0  # of the sample
        # Device addresses of the batch's events, chunk numbers and weights (null: every weight is 1).
        self.events_at = self.numbers_at = self.weights_at = 0

        self.events = driver.mem_alloc(staged * CHUNK * layout.padded_dim * 4)
        self.numbers = driver.mem_alloc(staged * 4)
        self.weights = driver.mem_alloc(staged * CHUNK * 4) if weighted else None
        self._labels = cleared(slots * CHUNK * 2)
        # Normalisers of an E step, log densities of memberships, new labels of a division, or the log
        # likelihood of each event in a pruned draw.
        self.normalisers = cleared(slots * CHUNK * 8)
        self.memberships = cleared(n_memberships * 4) if n_memberships else None
        self.moments = driver.mem_alloc(n_moments * 8)
        self.sorted = SortedEvents(layout, slots, n_components)
        self.scratch = BatchLabels(int(self._labels), int(self.sorted.order))
        self.labels = self.scratch  # of the batch
        self.sums = driver.mem_alloc(n_sums * 8)  # of log densities or log probabilities, by part
        self.totals = driver.mem_alloc(slots * n_log_sums(n_components) * 8)  # the same, by chunk
        self.tallies = driver.mem_alloc(slots * 12)  # work, 8 bytes by slot, then far counts, 4 bytes
        self.work, self.far_counts = int(self.tallies), int(self.tallies) + slots * 8
        self.rows = driver.mem_alloc(n_rows * 8) if n_rows else None  # sums and counts by chunk

        self.numbers_here = driver.pagelocked_empty(staged, np.uint32)
        if n_memberships:
            self.memberships_here = driver.pagelocked_empty(n_memberships, np.float32)
            self.log_densities_here = driver.pagelocked_empty((staged, CHUNK), np.float64)
        if n_rows:
            self.rows_here = driver.pagelocked_empty(n_rows, np.float64)
        self._layout, self._staged = layout, staged
        self._events_here: Floats | None = None
        self._weights_here: Floats | None = None

    @property
    def events_here(self) -> Floats:
        """Page-locked float32 [staged * CHUNK, PADDED_DIM], allocated at the first use."""
        if self._events_here is None:
            shape = (self._staged * CHUNK, self._layout.padded_dim)
            self._events_here = driver.pagelocked_empty(shape, np.float32)
            self._events_here.fill(0.0)  # the padding stays zero
        return self._events_here

    @property
    def weights_here(self) -> Floats:
        """Page-locked float32 [staged * CHUNK], allocated at the first use."""
        if self._weights_here is None:
            self._weights_here = driver.pagelocked_empty(self._staged * CHUNK, np.float32)
        return self._weights_here

    def memberships_of(self, work: Pass) -> tuple[Floats, Array]:
        """Return the page-locked memberships and log densities of the batch, by chunk."""
        shape = len(self.chunks), CHUNK, work.n_populations
        return first_of(self.memberships_here, shape), self.log_densities_here[: len(self.chunks)]


def n_sums_of_chunk(layout: Layout, n_components: int) -> int:
    """Return the largest number of sums per chunk: log densities by block, or log probabilities by part."""
    blocks = max(layout.blocks_per_chunk, layout.draw_blocks_per_chunk)
    most: int = max(blocks, n_components // 2 * PARTS)
    return most


def n_log_sums(n_components: int) -> int:
    """Return the largest number of sums of log densities: one, or one for each pair of a division."""
    return max(1, n_components // 2)


def first_of(flat: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the start of a flat array as an array of the given shape."""
    return flat[: prod(shape)].reshape(shape)
