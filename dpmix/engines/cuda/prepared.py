"""A pass over the resident events of a CUDA device as one list of calls, which is made again in later passes.

Only the mixture, the key and the table of a pruned draw change. The device's thread makes the calls in native
code (kernels/cuda_passes.cpp), reads the sums and merges them with the sums of other devices.
"""

from __future__ import annotations

from array import array

from dpmix.engines.cuda.batches import BatchCalls
from dpmix.engines.cuda.commands import Value
from dpmix.engines.cuda.flights import Shape
from dpmix.engines.cuda.lane import Lane
from dpmix.kernels import _cuda_commands


def prepare(calls: BatchCalls, shape: Shape, context: int) -> _cuda_commands.Program:
    """List the calls of a pass over all chunks of the share, whose events are resident.

    Parameters
    ----------
    calls : BatchCalls
        For a draw or an E step; only the size of its mixture is used.
    shape : Shape
    context : int
        Handle of the device's context.
    """
    memory, slot, commands = calls.memory, calls.slot, calls.commands
    events, first = slot.events, memory.lanes[0].queue
    commands.record(events.origin, first)
    slot.mixtures[0].send_later(commands, calls.n_components, shape.exact, first)
    if shape.has_now:
        now_here = slot.now_here[: calls.n_components]
        commands.copy_here(now_here, Value.NOW)
        commands.copy_up(slot.now, now_here, first)
    commands.fill(slot.state, 0, 2 * 4 * calls.n_sums, first)
    if len(memory.lanes) > 1:
        commands.record(events.mixture_sent, first)
    for lane in memory.lanes[1:]:
        commands.wait(lane.queue, events.mixture_sent)
    last = _list_batches(calls)
    others = [lane for lane in memory.lanes if lane is not last and lane.chunks]
    for lane in others:
        commands.wait(last.queue, lane.results.marks.done)
    sums = slot.state_here[: calls.n_sums if shape.rounded else 4 * calls.n_sums]
    offset = 4 * calls.n_sums * 8 if shape.rounded else 0
    commands.copy_down(sums, int(slot.state) + offset, last.queue)
    commands.record(events.ended, last.queue)
    start = commands.finish()
    batches = _list_times(calls)
    where = events.ended, sums.ctypes.data, len(sums), events.blocking
    return _cuda_commands.Program(start.words, commands.finish().words, start.holes, batches, context, *where)


def _list_batches(calls: BatchCalls) -> Lane:
    """List the batches, in turn on the lanes; return the lane of the last one."""
    memory = calls.memory
    for lane in memory.lanes:
        lane.chunks = []
    for number, start in enumerate(range(0, len(memory.share), memory.batch)):
        lane = memory.lanes[number % len(memory.lanes)]
        lane.mixture = calls.slot.mixtures[0]
        calls.place(lane, memory.share[start : start + memory.batch], number)
        addresses = memory.resident_addresses(lane.chunks[0])
        assert addresses is not None
        lane.events_at, lane.numbers_at, lane.weights_at = addresses
        calls.commands.record(lane.results.marks.began, lane.queue)
        calls.compute_labelled(lane)
        calls.has_added = len(memory.lanes) > 1
    return lane


def _list_times(calls: BatchCalls) -> array[int]:
    """List the reading of all batches' times; return where the results of each batch are, and its chunks."""
    memory, batches = calls.memory, array("Q")
    for number, start in enumerate(range(0, len(memory.share), memory.batch)):
        results = calls.slot.results(number)
        for i, mark in enumerate(results.marks):
            calls.commands.elapsed(results.milliseconds[i : i + 1], calls.slot.events.origin, mark)
        tallies, times = results.tallies.ctypes.data, results.milliseconds.ctypes.data
        n_chunks = len(memory.share[start : start + memory.batch])
        batches.extend((tallies, len(results.work), n_chunks, times))
    return batches
