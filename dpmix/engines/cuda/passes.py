"""One pass over the events on one CUDA device: batches of chunks, in turn on the device's lanes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np
import pycuda.driver as driver

from dpmix.engines import exact
from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cuda.commands import Commands, Program, float_bits
from dpmix.engines.cuda.kernels import Kernels
from dpmix.engines.cuda.labels import BatchLabels, ChainLabels
from dpmix.engines.cuda.lane import HeldMixture, Lane, first_of
from dpmix.engines.cuda.memory import DeviceMemory
from dpmix.engines.cuda.work import Account, Deliver, Division, LastLabels, MembershipWork, Pass, Take
from dpmix.kernels.layout import CHUNK, EXTRAS, MOMENT_THREADS, PARTS, SECTIONS, THREADS, Layout
from dpmix.model.mixture import Array
from dpmix.model.streams import Key

NO_LABELS = 0xFFFFFFFF  # two labels of no component
MOST_PROGRAMS = 256  # kept by a lane: some for each chain


class DevicePass:
    """A pass in progress.

    Parameters
    ----------
    work : Pass
    memory : DeviceMemory
        With room for the pass.
    kernels : Kernels
    layout : Layout
    grid : ChunkGrid
        The chunks of the engine.
    first_event, weight_floor
        As of the engine.
    send_exact : bool
        Send mixtures in float64, too, for far events.

    Attributes
    ----------
    exact_sent : bool
        Mixtures in float64 were sent: from the start, or since a batch had far events.
    """

    def __init__(
        self,
        work: Pass,
        memory: DeviceMemory,
        kernels: Kernels,
        layout: Layout,
        *,
        grid: ChunkGrid,
        first_event: int,
        weight_floor: float,
        send_exact: bool,
    ) -> None:
        self._work, self._memory, self._kernels, self._layout = work, memory, kernels, layout
        self._grid, self._first_event, self._weight_floor = grid, first_event, float_bits(weight_floor)
        self._ahead, self._batch = Commands(), Commands()  # of a batch: its input, and all that follows
        self._n_components = len(work.components)
        self._blocks_per_chunk, self._joint = layout.blocks_per_chunk, layout.joint
        self._n_moments = self._n_components * layout.n_moments
        self._n_rows = self._n_components * (layout.n_channels + 1)
        self._rows: dict[int, Array] = {}  # of samples with one chunk
        self._cut: dict[int, Array] = {}  # states of the rows of other samples
        self._kernel_spans: list[tuple[float, float]] = []
        self._copy_spans: list[tuple[float, float]] = []
        self._work_done = 0  # multiply-adds of a pruned draw
        self._labels: ChainLabels | None = None  # of the share, if the pass uses them
        self._has_added = False  # to the device's sums, which the other lane waits for
        self.exact_sent = send_exact
        self._send_tables()

    def run(self, take: Take, deliver: Deliver | None) -> Account:
        """Do chunks until none are left to take; `deliver` receives memberships."""
        n_chunks = 0
        lanes, staged = self._memory.lanes, self._memory.staged
        resident = self._memory.holds_events and not self._work.gates
        # Memberships go through the staged memory, which has fewer slots than a batch.
        most = self._memory.batch if resident else staged
        # In turn: while the kernels of one lane run, this thread prepares the copies of the other.
        for lane in cycle(lanes):
            if lane.chunks:
                self._finish(lane, deliver)
            lane.chunks = take(most, staged)
            if lane.chunks:
                n_chunks += len(lane.chunks)
                self._start(lane)
            elif not any(other.chunks for other in lanes):
                break
        if self._labels and self._work.writes_labels:
            self._labels.is_sorted = self._work.key is not None
        if not n_chunks:
            self._ahead.run()  # nothing has sent the tables, which clear the sums
        kernels = union_length(self._kernel_spans)
        copies = union_length(self._kernel_spans + self._copy_spans) - kernels
        sums = None if self._work.gates else CohortSums(self._read_state(), self._rows, self._cut)
        return Account(n_chunks, kernels, copies, self._work_done, sums)

    def _read_state(self) -> Array:
        """Copy the sums to the host, after the last batch: the state, float64 [4, n], or rounded, [n].

        They are in page-locked memory, which must stay in the thread of its device.
        """
        n_sums = self._n_moments + self._work.n_log_sums
        shape, offset = ((n_sums,), 4 * n_sums * 8) if self._work.rounded else ((4, n_sums), 0)
        sums: Array = first_of(self._memory.state_here, shape)
        driver.memcpy_dtoh(sums, int(self._memory.state) + offset)
        return sums

    def _send_mixture(self, mixture: HeldMixture, sample: int, stream: int) -> None:
        """List copies of the mixture of a sample."""
        rows = self._work.rows(self._layout, sample)
        mixture.send(self._ahead, rows, sample, stream)
        if self.exact_sent:
            mixture.send_exact(self._ahead, rows, stream)

    def _send_tables(self) -> None:
        """Send the tables of the pass, and the mixture if all samples share it; all lanes wait for it."""
        work, memory = self._work, self._memory
        if work.gates:
            driver.memcpy_htod(memory.ends, work.gates.ends)
        if work.division:
            driver.memcpy_htod(memory.split, work.division.split)
        if work.last and work.last.now is not None:
            driver.memcpy_htod(memory.now, work.last.now)
        first = memory.lanes[0].queue
        self._ahead.record(memory.origin, first)
        # The same memory holds the mixture of the pass before, which may have the same sample number.
        for mixture in memory.mixtures:
            mixture.forget()
        if not memory.by_sample:
            self._send_mixture(memory.mixtures[0], 0, first)
        if not work.gates:
            n_words = 2 * 4 * (self._n_moments + work.n_log_sums)
            self._ahead.fill(memory.state, 0, n_words, first)
        others = memory.lanes[1:]
        if others:
            self._ahead.record(memory.mixture_sent, first)
        for lane in others:
            self._ahead.wait(lane.queue, memory.mixture_sent)
        for lane in memory.lanes:
            lane.chunks = []

    def _start(self, lane: Lane) -> None:
        """Queue all operations of the lane's batch."""
        work, ahead = self._work, self._ahead
        ahead.record(lane.marks.began, lane.queue)
        lane.labels = self._labels_of(lane)
        lane.sample = int(self._grid.samples[lane.chunks[0]])
        first, end = self._grid.sample(lane.sample)
        lane.n_events, lane.first_event = end - first, self._first_event + first
        if lane.mixture.sample != lane.sample:
            self._send_mixture(lane.mixture, lane.sample, lane.queue)
        addresses = self._memory.resident_addresses(lane.chunks[0])
        if addresses is None:
            numbers = lane.numbers_here[: len(lane.chunks)]
            numbers[:] = self._grid.places[lane.chunks]
            addresses = int(lane.events), int(lane.numbers), 0 if lane.weights is None else int(lane.weights)
            ahead.run()  # before the copies of the events
            self._memory.send(lane, lane.chunks, addresses[0], addresses[2])
            ahead.copy_up(lane.numbers, numbers, lane.queue)
        lane.events_at, lane.numbers_at, lane.weights_at = addresses
        ahead.run(self._program(lane), work.key)
        self._has_added = len(self._memory.lanes) > 1

    def _labels_of(self, lane: Lane) -> BatchLabels:
        """Return where the labels of the lane's batch are."""
        place = self._memory.place(lane.chunks[0])
        if self._work.gates or place is None:  # chunks of a failed device, which are not in the share
            return lane.scratch
        self._labels = self._memory.labels(self._work.chain)
        return self._labels.batch(place, len(lane.chunks), lane.scratch)

    def _program(self, lane: Lane) -> Program:
        """Return the calls from the labels of the batch to its results; equal batches share them."""
        work, labels = self._work, lane.labels
        has_now = work.last is not None and work.last.now is not None
        prunes = work.last is not None and labels.known
        how = work.kernels, has_now, prunes, prunes and labels.is_sorted
        shape = self._n_components, len(lane.chunks), lane.n_events, lane.first_event
        where = lane.events_at, lane.numbers_at, lane.weights_at, lane.mixture.exact_at, labels.addresses
        batch = *how, *shape, *where, self._has_added
        repeats = not (work.gates or work.division)  # these have values of their own
        if repeats and batch in lane.programs:
            return lane.programs[batch]
        if work.reads_labels and labels.here is not None:
            self._batch.copy_up(labels.at, labels.here, lane.queue)
        self._batch.record(lane.marks.sent, lane.queue)
        self._compute(lane)
        program = self._batch.finish()
        if repeats:
            if len(lane.programs) >= MOST_PROGRAMS:
                lane.programs.clear()
            lane.programs[batch] = program
        return program

    def _compute(self, lane: Lane) -> None:
        """List the kernels and the copies of their results."""
        work, n_slots, stream = self._work, len(lane.chunks), lane.queue
        commands = self._batch
        # Far counts of the batch before would make this one be done again in float64.
        commands.fill(lane.tallies, 0, len(lane.tallies_here), stream)
        if work.gates:
            self._launch_memberships(lane, work.gates)
        elif work.key is None:
            self._launch_expectation(lane)
        elif work.division:
            self._launch_division(lane, work.key, work.division)
        elif work.last and lane.labels.known:
            self._launch_pruned_draw(lane, work.key, work.last)
        else:
            self._launch_draw(lane, work.key)
        if not work.gates:
            self._launch_sums(lane)
        commands.record(lane.marks.computed, stream)
        commands.copy_down(lane.tallies_here, lane.tallies, stream)
        if lane.rows is not None and not work.gates:
            commands.copy_down(lane.rows_here[: n_slots * self._n_rows], lane.rows, stream)
        if work.gates:
            memberships, log_densities = lane.memberships_of(work)
            commands.copy_down(memberships, lane.memberships, stream)
            commands.copy_down(log_densities, lane.normalisers, stream)
        if work.writes_labels and lane.labels.here is not None:
            commands.copy_down(lane.labels.here, lane.labels.at, stream)
        commands.record(lane.marks.done, stream)

    def _finish(self, lane: Lane, deliver: Deliver | None) -> None:
        """Wait for the lane's batch, and deliver its memberships.

        A batch with far events is computed again if the float64 mixture had not been sent. The first time,
        its kernels have added nothing to the sums.
        """
        self._wait(lane)
        if lane.far_counts_here[: len(lane.chunks)].any():
            self.exact_sent = True
            if not lane.mixture.exact_at:  # the other lane may have sent it
                rows = self._work.rows(self._layout, lane.sample)
                lane.mixture.send_exact(self._ahead, rows, lane.queue)
            self._compute(lane)
            self._ahead.run(self._batch.finish())
            self._wait(lane)
        self._note_times(lane)
        if lane.rows is not None and not self._work.gates:
            self._add_rows(lane)
        if self._work.last:
            self._work_done += int(lane.work_here[: len(lane.chunks)].sum())
        if deliver is not None:
            for chunk, *results in zip(lane.chunks, *lane.memberships_of(self._work), strict=True):
                deliver(chunk, *results)
        lane.chunks = []

    def _add_rows(self, lane: Lane) -> None:
        """Add the sums and counts of the lane's chunks to the sums and counts of their sample."""
        rows = lane.rows_here[: len(lane.chunks) * self._n_rows].reshape(len(lane.chunks), self._n_rows)
        if self._grid.per_sample[lane.sample] == 1:
            # A sample of one chunk has one number for each sum: no exact sum is needed.
            self._rows[lane.sample] = rows[0].reshape(self._n_components, -1).copy()
            return
        state = self._cut.setdefault(lane.sample, exact.zeros(self._n_rows))
        for row in rows:
            exact.add(state, row)

    def _wait(self, lane: Lane) -> None:
        """Wait for the lane's batch, and read the times of its events."""
        if lane.waiting is None:
            self._ahead.synchronise(lane.marks.done)
            for number, mark in enumerate(lane.marks):
                self._ahead.elapsed(lane.milliseconds[number : number + 1], self._memory.origin, mark)
            lane.waiting = self._ahead.finish()
        self._ahead.run(lane.waiting)

    def _note_times(self, lane: Lane) -> None:
        began, sent, computed, done = (lane.milliseconds * 1e-3).tolist()
        self._kernel_spans.append((sent, computed))
        self._copy_spans += [(began, sent), (computed, done)]

    # Launches. The arguments are in the order of the kernel's (kernels/*.cu).

    def _launch_draw(self, lane: Lane, key: Key) -> None:
        tables = lane.mixture.exact_at, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, lane.first_event
        output = lane.labels.at, lane.sums, lane.far_counts
        mixture = self._n_components, self._weight_floor
        self._launch(lane, "draw_labels", self._blocks_per_chunk, *tables, *numbers, *mixture, key, *output)
        self._launch_accumulation(lane, lane.labels.at, lane.labels.order_at)

    def _launch_pruned_draw(self, lane: Lane, key: Key, last: LastLabels) -> None:
        numbers_at, labels_at, order_at = lane.numbers_at, lane.labels.at, lane.labels.order_at
        if not lane.labels.is_sorted:
            self._sort(lane, labels_at, order_at)
        now = 0 if last.now is None else self._memory.now
        tables = lane.mixture.exact_at, numbers_at, order_at, now
        numbers = lane.n_events, lane.first_event, self._n_components, self._weight_floor
        each = lane.normalisers
        output = labels_at, each, lane.far_counts, lane.work
        self._launch(lane, "draw_sorted", self._blocks_per_chunk, *tables, *numbers, key, *output)
        summed = each, numbers_at, lane.weights_at, lane.n_events, lane.sums
        self._list(lane, "sum_log_likelihoods", self._blocks_per_chunk, *summed)
        self._launch_accumulation(lane, labels_at, order_at)

    def _launch_division(self, lane: Lane, key: Key, division: Division) -> None:
        n_pairs, n_labels = self._n_components // 2, division.split.shape[1]
        new_labels = lane.normalisers
        # Events that are in no pair keep this label, which the sort leaves out.
        self._batch.fill(new_labels, NO_LABELS, len(lane.chunks) * CHUNK // 2, lane.queue)
        labels = self._memory.split, lane.labels.at
        tables = lane.mixture.exact_at, *labels, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, lane.first_event, n_labels, self._weight_floor
        output = new_labels, lane.sums, lane.far_counts
        self._launch(lane, "divide", n_pairs * PARTS, *tables, *numbers, key, division.word, *output)
        self._launch_accumulation(lane, new_labels, lane.scratch.order_at)

    def _launch_accumulation(self, lane: Lane, labels_at: Any, order_at: int) -> None:
        self._sort(lane, labels_at, order_at)
        by, n_components = lane.sorted, self._n_components
        tables = lane.weights_at, order_at, by.starts, by.extras
        output = n_components, lane.moments, by.of_extras
        self._launch(lane, "accumulate", n_components + EXTRAS, *tables, *output)
        self._list(lane, "add_runs", EXTRAS, n_components, by.extras, by.of_extras, lane.moments)

    def _sort(self, lane: Lane, labels_at: Any, order_at: int) -> None:
        """List the kernels that sort the batch's events by label."""
        by, n_components = lane.sorted, self._n_components
        common = labels_at, lane.numbers_at, lane.n_events, n_components, by.counts
        self._list(lane, "count_labels", SECTIONS * 32 // THREADS, *common)
        self._list(lane, "place_labels", 1, n_components, by.counts, by.starts, by.extras)
        self._list(lane, "order_events", SECTIONS * 32 // THREADS, *common, order_at)

    def _launch_expectation(self, lane: Lane) -> None:
        tables = lane.mixture.exact_at, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, self._n_components, self._weight_floor
        shared = *tables, *numbers, lane.normalisers, lane.labels.at
        self._launch(lane, "expect_totals", self._blocks_per_chunk, *shared, lane.sums, lane.far_counts)
        self._launch(lane, "expect_moments", -(-self._n_components // self._joint), *shared, lane.moments)

    def _launch_sums(self, lane: Lane) -> None:
        """List the additions to the device's sums, after the batch before in the other lane."""
        n_slots, n_totals = len(lane.chunks), self._work.n_log_sums
        n_parts = PARTS if self._work.division else self._blocks_per_chunk
        parts = lane.sums, n_parts, lane.totals
        self._kernels.launch(self._batch, "sum_parts", (n_totals, n_slots), lane.queue, *parts)
        added, state = self._memory.added, self._memory.state
        if self._has_added:
            # Both lanes add to the same sums; without the wait, a chunk's numbers could be lost.
            self._batch.wait(lane.queue, added)
        grid = (-(-(self._n_moments + n_totals) // MOMENT_THREADS), 1)
        numbers = lane.moments, lane.totals, lane.far_counts, n_slots, self._n_moments, n_totals
        self._kernels.launch(self._batch, "add_chunks", grid, lane.queue, *numbers, state)
        if len(self._memory.lanes) > 1:
            self._batch.record(added, lane.queue)
        if lane.rows is not None:
            blocks = -(-self._n_rows // MOMENT_THREADS)
            self._list(lane, "copy_rows", blocks, lane.moments, self._n_components, lane.rows)

    def _launch_memberships(self, lane: Lane, gates: MembershipWork) -> None:
        tables = lane.mixture.exact_at, self._memory.ends, lane.numbers_at
        first = lane.first_event - self._first_event
        stop = min(gates.stop - first, lane.n_events)
        numbers = max(gates.start - first, 0), stop, self._n_components, len(gates.ends), self._weight_floor
        output = lane.memberships, lane.normalisers, lane.far_counts
        self._launch(lane, "memberships", self._blocks_per_chunk, *tables, *numbers, *output)

    def _launch(self, lane: Lane, name: str, blocks_per_chunk: int, *arguments: Any) -> None:
        """List a kernel for the lane's batch; its first two arguments are the events and the mixture."""
        self._list(lane, name, blocks_per_chunk, lane.events_at, lane.mixture.rows, *arguments)

    def _list(self, lane: Lane, name: str, blocks_per_chunk: int, *arguments: Any) -> None:
        """List a kernel for the lane's batch."""
        grid = blocks_per_chunk, len(lane.chunks)
        self._kernels.launch(self._batch, name, grid, lane.queue, *arguments)


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, end)."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
