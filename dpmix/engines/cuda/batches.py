"""The calls of the driver that compute a batch of chunks on a CUDA device."""

from __future__ import annotations

from typing import Any

from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cuda.commands import Commands, float_bits
from dpmix.engines.cuda.kernels import Kernels
from dpmix.engines.cuda.labels import BatchLabels
from dpmix.engines.cuda.lane import Lane
from dpmix.engines.cuda.memory import DeviceMemory
from dpmix.engines.cuda.slot import Slot
from dpmix.engines.cuda.work import Division, LastLabels, MembershipWork, Pass
from dpmix.kernels.layout import CHUNK, EXTRAS, MOMENT_THREADS, PARTS, SECTIONS, THREADS, Layout
from dpmix.model.streams import Key

NO_LABELS = 0xFFFFFFFF  # two labels of no component


class BatchCalls:
    """Lists the calls of batches of a pass.

    Parameters
    ----------
    work : Pass
    memory : DeviceMemory
        With room for the pass.
    slot : Slot
        What the pass has for itself.
    kernels : Kernels
    layout : Layout
    grid : ChunkGrid
        The chunks of the engine.
    first_event, weight_floor
        As in the engine.

    Attributes
    ----------
    commands : Commands
        The list.
    has_added : bool
        A batch has been added to the sums, which the next one waits for.
    """

    def __init__(
        self,
        work: Pass,
        memory: DeviceMemory,
        slot: Slot,
        kernels: Kernels,
        layout: Layout,
        *,
        grid: ChunkGrid,
        first_event: int,
        weight_floor: float,
    ) -> None:
        self.work, self.memory, self.slot, self.layout, self.grid = work, memory, slot, layout, grid
        self.commands, self.has_added = Commands(), False
        self._kernels, self._first_event, self._weight_floor = kernels, first_event, float_bits(weight_floor)
        self.n_components = len(work.components)
        self._blocks_per_chunk, self._joint = layout.blocks_per_chunk, layout.joint
        self.n_moments = self.n_components * layout.n_moments
        self.n_rows = self.n_components * (layout.n_channels + 1)

    @property
    def n_sums(self) -> int:
        """Number of sums of the pass."""
        return self.n_moments + self.work.n_log_sums

    def place(self, lane: Lane, chunks: list[int], batch: int) -> None:
        """Give a lane its next batch, chunks of one sample, and the results with this number."""
        lane.chunks, lane.results = chunks, self.slot.results(batch)
        lane.labels = self._labels_of(lane)
        lane.sample = int(self.grid.samples[chunks[0]])
        first, end = self.grid.sample(lane.sample)
        lane.n_events, lane.first_event = end - first, self._first_event + first

    def compute_labelled(self, lane: Lane) -> None:
        """List a copy of the labels that the kernels read, if they are on the host, and the computation."""
        labels = lane.labels
        if self.work.reads_labels and labels.here is not None:
            self.commands.copy_up(labels.at, labels.here, lane.queue)
        self.commands.record(lane.results.marks.sent, lane.queue)
        self.compute(lane)

    def _labels_of(self, lane: Lane) -> BatchLabels:
        """Return where the labels of the lane's batch are."""
        place = self.memory.place(lane.chunks[0])
        if self.work.gates or place is None:  # chunks of a failed device, which are not in the share
            return lane.scratch
        return self.memory.labels(self.work.chain).batch(place, len(lane.chunks), lane.scratch)

    def compute(self, lane: Lane) -> None:
        """List the kernels and the copies of their results."""
        work, n_slots, stream = self.work, len(lane.chunks), lane.queue
        commands = self.commands
        # Far counts of the batch before would make this one be done again in float64.
        commands.fill(lane.tallies, 0, len(lane.results.tallies), stream)
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
        commands.record(lane.results.marks.computed, stream)
        commands.copy_down(lane.results.tallies, lane.tallies, stream)
        if lane.rows is not None and not work.gates:
            commands.copy_down(lane.rows_here[: n_slots * self.n_rows], lane.rows, stream)
        if work.gates:
            memberships, log_densities = lane.memberships_of(work)
            commands.copy_down(memberships, lane.memberships, stream)
            commands.copy_down(log_densities, lane.normalisers, stream)
        if work.writes_labels and lane.labels.here is not None:
            commands.copy_down(lane.labels.here, lane.labels.at, stream)
        commands.record(lane.results.marks.done, stream)

    # Launches. The arguments are in the order of the kernel's (kernels/*.cu).

    def _launch_draw(self, lane: Lane, key: Key) -> None:
        tables = lane.mixture.exact_at, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, lane.first_event
        output = lane.labels.at, lane.sums, lane.far_counts
        mixture = self.n_components, self._weight_floor
        blocks = self.layout.draw_blocks_per_chunk
        self._launch(lane, "draw_labels", blocks, *tables, *numbers, *mixture, key, *output)
        self._launch_accumulation(lane, lane.labels.at, lane.labels.order_at)

    def _launch_pruned_draw(self, lane: Lane, key: Key, last: LastLabels) -> None:
        numbers_at, labels_at, order_at = lane.numbers_at, lane.labels.at, lane.labels.order_at
        if not (last.is_sorted and lane.labels.has_order):
            self._sort(lane, labels_at, order_at)
        now = 0 if last.now is None else self.slot.now
        tables = lane.mixture.exact_at, numbers_at, order_at, now
        numbers = lane.n_events, lane.first_event, self.n_components, self._weight_floor
        each = lane.normalisers
        output = labels_at, each, lane.far_counts, lane.work
        self._launch(lane, "draw_sorted", self._blocks_per_chunk, *tables, *numbers, key, *output)
        summed = each, numbers_at, lane.weights_at, lane.n_events, lane.sums
        self._list(lane, "sum_log_likelihoods", self.layout.draw_blocks_per_chunk, *summed)
        self._launch_accumulation(lane, labels_at, order_at)

    def _launch_division(self, lane: Lane, key: Key, division: Division) -> None:
        n_pairs, n_labels = self.n_components // 2, division.split.shape[1]
        new_labels = lane.normalisers
        # Events that are in no pair keep this label, which the sort leaves out.
        self.commands.fill(new_labels, NO_LABELS, len(lane.chunks) * CHUNK // 2, lane.queue)
        labels = self.memory.split, lane.labels.at
        tables = lane.mixture.exact_at, *labels, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, lane.first_event, n_labels, self._weight_floor
        output = new_labels, lane.sums, lane.far_counts
        self._launch(lane, "divide", n_pairs * PARTS, *tables, *numbers, key, division.word, *output)
        self._launch_accumulation(lane, new_labels, lane.scratch.order_at)

    def _launch_accumulation(self, lane: Lane, labels_at: Any, order_at: int) -> None:
        self._sort(lane, labels_at, order_at)
        by, n_components = lane.sorted, self.n_components
        tables = lane.weights_at, order_at, by.starts, by.extras
        output = n_components, lane.moments, by.of_extras
        self._launch(lane, "accumulate", n_components + EXTRAS, *tables, *output)
        self._list(lane, "add_runs", EXTRAS, n_components, by.extras, by.of_extras, lane.moments)

    def _sort(self, lane: Lane, labels_at: Any, order_at: int) -> None:
        """List the kernels that sort the batch's events by label."""
        by, n_components = lane.sorted, self.n_components
        common = labels_at, lane.numbers_at, lane.n_events, n_components, by.counts
        self._list(lane, "count_labels", SECTIONS * 32 // THREADS, *common)
        self._list(lane, "place_labels", 1, n_components, by.counts, by.starts, by.extras)
        self._list(lane, "order_events", SECTIONS * 32 // THREADS, *common, order_at)

    def _launch_expectation(self, lane: Lane) -> None:
        tables = lane.mixture.exact_at, lane.numbers_at, lane.weights_at
        numbers = lane.n_events, self.n_components, self._weight_floor
        shared = *tables, *numbers, lane.normalisers, lane.labels.at
        self._launch(lane, "expect_totals", self._blocks_per_chunk, *shared, lane.sums, lane.far_counts)
        self._launch(lane, "expect_moments", -(-self.n_components // self._joint), *shared, lane.moments)

    def _launch_sums(self, lane: Lane) -> None:
        """List the additions to the device's sums, after the batch before in the other lane."""
        n_slots, n_totals = len(lane.chunks), self.work.n_log_sums
        blocks = self.layout.draw_blocks_per_chunk if self.work.key is not None else self._blocks_per_chunk
        n_parts = PARTS if self.work.division else blocks
        parts = lane.sums, n_parts, lane.totals
        self._kernels.launch(self.commands, "sum_parts", (n_totals, n_slots), lane.queue, *parts)
        added, state = self.slot.events.added, self.slot.state
        if self.has_added:
            # Both lanes add to the same sums; without the wait, a chunk's numbers could be lost.
            self.commands.wait(lane.queue, added)
        grid = (-(-(self.n_moments + n_totals) // MOMENT_THREADS), 1)
        numbers = lane.moments, lane.totals, lane.far_counts, n_slots, self.n_moments, n_totals
        self._kernels.launch(self.commands, "add_chunks", grid, lane.queue, *numbers, state)
        if len(self.memory.lanes) > 1:
            self.commands.record(added, lane.queue)
        if lane.rows is not None:
            blocks = -(-self.n_rows // MOMENT_THREADS)
            self._list(lane, "copy_rows", blocks, lane.moments, self.n_components, lane.rows)

    def _launch_memberships(self, lane: Lane, gates: MembershipWork) -> None:
        tables = lane.mixture.exact_at, self.memory.ends, lane.numbers_at
        first = lane.first_event - self._first_event
        stop = min(gates.stop - first, lane.n_events)
        numbers = max(gates.start - first, 0), stop, self.n_components, len(gates.ends), self._weight_floor
        output = lane.memberships, lane.normalisers, lane.far_counts
        self._launch(lane, "memberships", self._blocks_per_chunk, *tables, *numbers, *output)

    def _launch(self, lane: Lane, name: str, blocks_per_chunk: int, *arguments: Any) -> None:
        """List a kernel for the lane's batch; its first two arguments are the events and the mixture."""
        self._list(lane, name, blocks_per_chunk, lane.events_at, lane.mixture.rows, *arguments)

    def _list(self, lane: Lane, name: str, blocks_per_chunk: int, *arguments: Any) -> None:
        """List a kernel for the lane's batch."""
        grid = blocks_per_chunk, len(lane.chunks)
        self._kernels.launch(self.commands, name, grid, lane.queue, *arguments)
