"""One pass over the events on one CUDA device: batches of chunks, in turn on the device's lanes.

This is the general form: the thread lists the calls of each batch when its lane is free. A pass over resident
events in which nothing but the mixture and the key change is listed once (`dpmix.engines.cuda.prepared`).
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pycuda.driver as driver

from dpmix.engines import exact
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cuda.batches import BatchCalls
from dpmix.engines.cuda.commands import Calls, Commands
from dpmix.engines.cuda.lane import HeldMixture, Lane, first_of
from dpmix.engines.cuda.work import Account, Deliver, Take
from dpmix.kernels import _cuda_commands
from dpmix.model.mixture import Array, Floats

MOST_PROGRAMS = 256  # kept by a lane: some for each chain


class DevicePass:
    """A pass in progress; no other one is.

    Parameters
    ----------
    calls : BatchCalls
    send_exact : bool
        Send mixtures in float64, too, for far events.

    Attributes
    ----------
    exact_sent : bool
        Mixtures in float64 were sent: from the start, or since a batch had far events.
    """

    def __init__(self, calls: BatchCalls, send_exact: bool) -> None:
        self._calls, self._memory, self._slot, self._work = calls, calls.memory, calls.slot, calls.work
        self._ahead = Commands()  # the input of a batch; `calls` lists all that follows
        self._rows: dict[int, Array] = {}  # of samples with one chunk
        self._cut: dict[int, Array] = {}  # states of the rows of other samples
        self._milliseconds: list[Floats] = []
        self._work_done = 0  # multiply-adds of a pruned draw
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
        for number, lane in cycle(enumerate(lanes)):
            if lane.chunks:
                self._finish(lane, deliver)
            chunks = take(most, staged)
            if chunks:
                n_chunks += len(chunks)
                self._calls.place(lane, chunks, number)
                self._start(lane)
            elif not any(other.chunks for other in lanes):
                break
        if not n_chunks:
            self._ahead.run()  # nothing has sent the tables, which clear the sums
        times = np.array(self._milliseconds, np.float32).reshape(-1, 4)
        kernels, copies = _cuda_commands.busy(times)
        sums = None if self._work.gates else CohortSums(self._read_state(), self._rows, self._cut)
        return Account(n_chunks, kernels * 1e-3, copies * 1e-3, self._work_done, sums)

    def _read_state(self) -> Array:
        """Copy the state of the sums to the host, float64 [4, n], after the last batch.

        It is in page-locked memory, which must stay in the thread of its device.
        """
        state: Array = first_of(self._slot.state_here, (4, self._calls.n_sums))
        driver.memcpy_dtoh(state, self._slot.state)
        return state

    def _send_mixture(self, mixture: HeldMixture, sample: int, stream: int) -> None:
        """List copies of the mixture of a sample."""
        rows = self._work.rows(self._calls.layout, sample)
        mixture.send(self._ahead, rows, sample, stream)
        if self.exact_sent:
            mixture.send_exact(self._ahead, rows, stream)

    def _send_tables(self) -> None:
        """Send the tables of the pass, and the mixture if all samples share it; all lanes wait for it."""
        work, memory, slot = self._work, self._memory, self._slot
        if work.gates:
            driver.memcpy_htod(memory.ends, work.gates.ends)
        if work.division:
            driver.memcpy_htod(memory.split, work.division.split)
        if work.last and work.last.now is not None:
            driver.memcpy_htod(slot.now, work.last.now)
        first = memory.lanes[0].queue
        self._ahead.record(slot.events.origin, first)
        for number, lane in enumerate(memory.lanes):
            lane.chunks, lane.mixture = [], slot.mixture(number)
            # The same memory holds the mixture of the pass before, which may have the same sample number.
            lane.mixture.forget()
        if not memory.by_sample:
            self._send_mixture(slot.mixtures[0], 0, first)
        if not work.gates:
            self._ahead.fill(slot.state, 0, 2 * 4 * self._calls.n_sums, first)
        others = memory.lanes[1:]
        if others:
            self._ahead.record(slot.events.mixture_sent, first)
        for lane in others:
            self._ahead.wait(lane.queue, slot.events.mixture_sent)

    def _start(self, lane: Lane) -> None:
        """Queue all operations of the lane's batch."""
        ahead = self._ahead
        ahead.record(lane.results.marks.began, lane.queue)
        if lane.mixture.sample != lane.sample:
            self._send_mixture(lane.mixture, lane.sample, lane.queue)
        addresses = self._memory.resident_addresses(lane.chunks[0])
        if addresses is None:
            numbers = lane.numbers_here[: len(lane.chunks)]
            numbers[:] = self._calls.grid.places[lane.chunks]
            addresses = int(lane.events), int(lane.numbers), 0 if lane.weights is None else int(lane.weights)
            ahead.run()  # before the copies of the events
            self._memory.send(lane, lane.chunks, addresses[0], addresses[2])
            ahead.copy_up(lane.numbers, numbers, lane.queue)
        lane.events_at, lane.numbers_at, lane.weights_at = addresses
        ahead.run(self._listed(lane), self._work.key)
        self._calls.has_added = len(self._memory.lanes) > 1

    def _listed(self, lane: Lane) -> Calls:
        """Return the calls from the labels of the batch to its results; equal batches share them."""
        work, labels, calls = self._work, lane.labels, self._calls
        last = work.last if labels.known else None
        how = work.kernels, last is not None and (last.now is not None, last.is_sorted), labels.has_order
        shape = calls.n_components, len(lane.chunks), lane.n_events, lane.first_event
        where = lane.events_at, lane.numbers_at, lane.weights_at, lane.mixture.exact_at, labels.addresses
        batch = *how, *shape, *where, calls.has_added
        repeats = not (work.gates or work.division)  # these have values of their own
        if repeats and batch in lane.programs:
            return lane.programs[batch]
        calls.compute_labelled(lane)
        listed = calls.commands.finish()
        if repeats:
            if len(lane.programs) >= MOST_PROGRAMS:
                lane.programs.clear()
            lane.programs[batch] = listed
        return listed

    def _finish(self, lane: Lane, deliver: Deliver | None) -> None:
        """Wait for the lane's batch, and deliver its memberships.

        A batch with far events is computed again if the float64 mixture had not been sent. The first time,
        its kernels have added nothing to the sums.
        """
        self._wait(lane)
        if lane.results.far_counts[: len(lane.chunks)].any():
            self.exact_sent = True
            if not lane.mixture.exact_at:  # the other lane may have sent it
                rows = self._work.rows(self._calls.layout, lane.sample)
                lane.mixture.send_exact(self._ahead, rows, lane.queue)
            self._calls.compute(lane)
            self._ahead.run(self._calls.commands.finish())
            self._wait(lane)
        self._milliseconds.append(lane.results.milliseconds.copy())
        if lane.rows is not None and not self._work.gates:
            self._add_rows(lane)
        if self._work.last:
            self._work_done += int(lane.results.work[: len(lane.chunks)].sum())
        if deliver is not None:
            for chunk, *results in zip(lane.chunks, *lane.memberships_of(self._work), strict=True):
                deliver(chunk, *results)
        lane.chunks = []

    def _add_rows(self, lane: Lane) -> None:
        """Add the sums and counts of the lane's chunks to the sums and counts of their sample."""
        calls, n_chunks = self._calls, len(lane.chunks)
        rows = lane.rows_here[: n_chunks * calls.n_rows].reshape(n_chunks, calls.n_rows)
        if calls.grid.per_sample[lane.sample] == 1:
            # A sample of one chunk has one number for each sum: no exact sum is needed.
            self._rows[lane.sample] = rows[0].reshape(calls.n_components, -1).copy()
            return
        state = self._cut.setdefault(lane.sample, exact.zeros(calls.n_rows))
        for row in rows:
            exact.add(state, row)

    def _wait(self, lane: Lane) -> None:
        """Wait for the lane's batch, and read the times of its events."""
        if lane.waiting is None:
            results = lane.results
            self._ahead.synchronise(results.marks.done)
            for number, mark in enumerate(results.marks):
                times = results.milliseconds[number : number + 1]
                self._ahead.elapsed(times, self._slot.events.origin, mark)
            lane.waiting = self._ahead.finish()
        self._ahead.run(lane.waiting)
