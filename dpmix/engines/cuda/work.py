"""The work of CUDA devices in one pass: input, output, timing, and how devices share the chunks."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.shares import ChunkQueue
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Array, Ints
from dpmix.model.streams import Key

Labels = npt.NDArray[np.uint16]
D = TypeVar("D")
T = TypeVar("T")


class HostLabels:
    """The labels of all events on the host, in the order of the devices' shares.

    The labels of a share are then consecutive rows, which one operation copies, whatever the number of
    chunks.

    Parameters
    ----------
    shares : mapping
        The chunks of each device.
    earlier : HostLabels, optional
        Labels whose memory is used again if it has the same order.

    Attributes
    ----------
    rows : uint16 [chunks, CHUNK]
        At the start of a page, and a chunk is whole pages, so that devices can page-lock the chunks of their
        shares.
    """

    def __init__(self, shares: Mapping[int, Sequence[int]], earlier: HostLabels | None = None) -> None:
        order = np.concatenate([np.array(share, np.intp) for share in shares.values()])
        self._row_of = np.argsort(order).tolist()
        # In another order, a chunk's new labels would replace another's labels before these are read.
        again = earlier is not None and self._row_of == earlier._row_of
        self.rows: Labels
        self.rows = earlier.rows if earlier and again else whole_pages(len(order))
        self._address: int = self.rows.ctypes.data

    def by_event(self, sizes: Ints) -> Labels:
        """Return the labels in the order of the events, uint16 [N], given the number of events by chunk."""
        return np.concatenate([self.rows[row][:n] for row, n in zip(self._row_of, sizes, strict=True)])

    def place(self, chunks: Sequence[int]) -> tuple[int, ...]:
        """Return what fixes the addresses of the labels of chunks: all rows' address, and their rows."""
        return self._address, *map(self._row_of.__getitem__, chunks)

    def parts(self, chunks: Sequence[int]) -> Iterator[tuple[int, Labels]]:
        """Return the labels of chunks as few arrays [.., CHUNK], each with the place of its first chunk."""
        rows = [self._row_of[chunk] for chunk in chunks]  # few: lists are faster than arrays
        start = 0
        for end in range(1, len(rows) + 1):
            # Few large copies instead of one for each chunk: each copy costs a call of the driver.
            if end == len(rows) or rows[end] != rows[end - 1] + 1:
                yield start, self.rows[rows[start] : rows[end - 1] + 1]
                start = end


def whole_pages(n_chunks: int) -> Labels:
    """Return labels of chunks that start at a page, uint16 [n_chunks, CHUNK]."""
    pages = mmap.mmap(-1, n_chunks * CHUNK * 2)
    return np.frombuffer(pages, np.uint16).reshape(n_chunks, CHUNK)


class DeviceFailed(Exception):
    """A device cannot be used any more; the message gives the reason."""


@dataclass(frozen=True)
class MembershipWork:
    """The memberships that a pass computes.

    Attributes
    ----------
    ends : int32 [P]
        For each population, the number of the pass's components in this population and those before it.
    start, stop : int
        The events start, ..., stop - 1.
    """

    ends: npt.NDArray[np.int32]
    start: int
    stop: int


@dataclass(frozen=True)
class Division:
    """The assignment of events to pairs of the pass's components.

    Attributes
    ----------
    split : int32 [2, K of the labels]
        For each component of the labels, the pair and the side of its events
        (`dpmix.model.split_merge.SplitAssignment`).
    word : int
        Word of the random generator.
    labels : HostLabels
        Labels of all events.
    """

    split: npt.NDArray[np.int32]
    word: int
    labels: HostLabels


SUMMING = "sum_parts", "add_chunks"
"""Kernels that add the sums of chunks."""


@dataclass(frozen=True)
class LastLabels:
    """The labels of the last draw, which bound the components that can have weight in this one.

    Attributes
    ----------
    labels : HostLabels
        May share memory with those that the pass fills: a chunk is read before it is written.
    now : uint16 [K], optional
        The number that the component of each label has now; None: the same.
    """

    labels: HostLabels
    now: Labels | None = None


@dataclass(frozen=True)
class SampleParameters:
    """The parameters of each sample, instead of the mixture's.

    Attributes
    ----------
    log_constants : float64 [S, K]
        log pi_sj + log of the normal density at its mean.
    shifts : float64 [S, D]
        Added to all means.
    """

    log_constants: Array
    shifts: Array


@dataclass(frozen=True)
class Pass:
    """The input of a pass over the events; its results depend on this and the events alone.

    Attributes
    ----------
    components : float64 [K, PACK_DIM]
        The mixture in packed rows; with `gates`, sorted by population.
    samples : SampleParameters, optional
        For mixtures that differ between samples.
    key : Key, optional
        None for an E step.
    labels : HostLabels, optional
        Array that a draw or an E step fills with the labels of all events.
    gates : MembershipWork, optional
        For memberships.
    division : Division, optional
        For sides of pairs; needs a key.
    last : LastLabels, optional
        For a pruned draw.
    rounded : bool
        Return the rounded sums instead of their state, a quarter of the bytes; for a pass on one device.
    """

    components: Array
    samples: SampleParameters | None = None
    key: Key | None = None
    labels: HostLabels | None = None
    gates: MembershipWork | None = None
    division: Division | None = None
    last: LastLabels | None = None
    rounded: bool = False

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that the pass launches."""
        if self.gates:
            return ("memberships",)
        adding = (*SUMMING, "copy_rows") if self.samples else SUMMING
        if self.key is None:
            return "expect_totals", "expect_moments", *adding
        sums = "count_labels", "place_labels", "order_events", "accumulate", "add_runs"
        if self.division:
            return "divide", *sums, *adding
        draw = ("draw_sorted", "sum_log_likelihoods") if self.last else ("draw_labels",)
        return *draw, *sums, *adding

    def rows(self, layout: Layout, sample: int) -> Array:
        """Return the packed mixture of a sample, float64 [K, PACK_DIM]."""
        if self.samples is None:
            return self.components
        own = self.samples.log_constants[sample], self.samples.shifts[sample]
        packed: Array = layout.of_sample(self.components, *own)
        return packed

    @property
    def labels_to_send(self) -> HostLabels | None:
        """The labels that the kernels read; None if they read none."""
        before = self.division or self.last
        return before.labels if before else None

    @property
    def n_log_sums(self) -> int:
        """Number of sums of log densities: the log likelihood, or one for each pair of a division."""
        return len(self.components) // 2 if self.division else 1

    @property
    def n_populations(self) -> int:
        """Number of populations; 0 for a pass without memberships."""
        return len(self.gates.ends) if self.gates else 0


@dataclass(frozen=True)
class Account:
    """The work that a device did in a pass.

    Attributes
    ----------
    chunks : int
        Number of chunks.
    kernels : float
        Seconds in which kernels ran.
    copies : float
        Seconds in which only copies ran.
    work : int
        Multiply-adds of a pruned draw, for one event of each warp.
    sums : CohortSums, optional
        Sums of these chunks; None for memberships. Without parameters of samples, the total alone. `rows` has
        the samples of one chunk, `cut` all others. The total is as the pass wants it.
    """

    chunks: int
    kernels: float
    copies: float
    work: int = 0
    sums: CohortSums | None = None


Take = Callable[[int, int], list[int]]
"""Return chunks of one sample to do: at most the first number of the device's own, in order, or at most the
second number of others' chunks; none if all are taken."""

Deliver = Callable[[int, npt.NDArray[Any], Array], None]
"""Receive the memberships of a chunk: its number, memberships [CHUNK, P] and log densities [CHUNK].

The arrays are overwritten afterwards.
"""


def serve_all(
    queue: ChunkQueue,
    usable: Callable[[], Mapping[int, D]],
    start: Callable[[int, D], Future[T]],
    done: Callable[[int, T], None],
    failed: Callable[[int, DeviceFailed], None],
) -> None:
    """Let devices do the chunks of a queue; if some fail, those that are left.

    Parameters
    ----------
    queue : ChunkQueue
    usable : callable
        Returns the devices that are left, by number; it raises if none is left.
    start : callable
        Lets a device serve the queue.
    done : callable
        Takes the number of a device and what it returned.
    failed : callable
        Removes a device from those that are left.
    """
    while queue.unfinished():
        running = {
            number: start(number, device) for number, device in usable().items() if queue.has_for(number)
        }
        try:
            # All of them, before any result: a failed device leaves orphans, which the next round gives to
            # the others.
            wait(running.values())
        except BaseException:
            queue.stop()
            raise
        for number, future in running.items():
            try:
                result = future.result()
            except DeviceFailed as error:
                failed(number, error)
                continue
            done(number, result)
