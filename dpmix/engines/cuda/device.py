"""One CUDA device of the engine, with its own thread and context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pycuda.driver as driver

from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cuda import library
from dpmix.engines.cuda.batches import BatchCalls
from dpmix.engines.cuda.commands import failed
from dpmix.engines.cuda.flights import Shape
from dpmix.engines.cuda.kernels import Kernels
from dpmix.engines.cuda.memory import DeviceMemory
from dpmix.engines.cuda.passes import DevicePass
from dpmix.engines.cuda.prepared import prepare
from dpmix.engines.cuda.thread import DeviceThread
from dpmix.engines.cuda.work import Account, Collect, Deliver, DeviceFailed, Labels, Pass, Take
from dpmix.engines.shares import ChunkQueue
from dpmix.kernels import _cuda_commands
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Floats
from dpmix.model.sample_weights import SampleWeights

MOST_PREPARED = 256  # lists of calls of a device: some for each chain


class CudaDevice(DeviceThread):
    """One device.

    Parameters
    ----------
    number : int
        Number of the device in the driver.
    events : float32 [N, D]
        All events of the engine. The device holds the events of its share if they fit.
    grid : ChunkGrid
        Their chunks.
    by_sample : bool
        Every sample has its own mixture and sums.
    first_event, weight_floor, chunks_in_flight, weights
        As in the engine.
    blocking : bool
        Let the thread sleep while it waits for the device. Otherwise it spins, which needs a core of its own.

    Raises
    ------
    DeviceFailed
        The device cannot be opened.

    Attributes
    ----------
    has_far : bool
        A pass had far events: mixtures are sent in float64, too.
    """

    def __init__(
        self,
        number: int,
        events: Floats,
        grid: ChunkGrid,
        *,
        by_sample: bool,
        first_event: int,
        weight_floor: float,
        chunks_in_flight: int | None,
        weights: SampleWeights | None,
        blocking: bool,
    ) -> None:
        self.number = number
        self._blocking = blocking
        self._events, self._grid, self._weights = events, grid, weights
        self._by_sample = by_sample
        self._first_event = first_event
        self._weight_floor = weight_floor
        self._chunks_in_flight = chunks_in_flight
        self._layout = Layout(events.shape[1])
        self.has_far = False
        self._prepared_for: Sequence[int] = ()  # the share of `prepared` lists
        super().__init__(f"cuda-{number}")
        self._worker.submit(self._open).result()

    def prepared(self, shape: Shape, share: Sequence[int]) -> _cuda_commands.Program | None:
        """Return the list of calls of a pass over a share, the same object as before; None: none yet.

        The device's thread must have no task.
        """
        return self._memory.prepared.get(shape) if share is self._prepared_for else None

    # The rest runs in the device's thread.

    def prepare(self, work: Pass, share: Sequence[int], shape: Shape) -> _cuda_commands.Program | None:
        """List the calls of a pass over the share; None if its events or the slot have no room."""
        calls = self._calls(work, share, shape.slot)
        if calls is None or not self._memory.holds_events:
            return None
        program = prepare(calls, shape, library.current_context())
        if len(self._memory.prepared) >= MOST_PREPARED:
            self._memory.prepared.clear()
        self._memory.prepared[shape] = program
        self._prepared_for = share
        return program

    def fail(self, error: int, operation: int) -> None:
        """Raise the error of the driver that a pass ended with."""
        raise failed(error, operation)

    def serve(
        self, work: Pass, share: Sequence[int], queue: ChunkQueue, deliver: Deliver | None, collect: Collect
    ) -> Account:
        """Do the device's part of a pass; `collect` receives its sums.

        If it fails, the others may take its chunks at once, or a division stops.
        """
        try:
            account = self.run(work, share, partial(queue.take, self.number), deliver)
            if account.sums is not None:
                collect(account.sums)
        except BaseException:
            if work.division:  # the others do not have the labels of its chunks
                queue.stop()
            else:
                queue.abandon(self.number)
            raise
        queue.finish(self.number)
        return account._replace(sums=None)

    def run(self, work: Pass, share: Sequence[int], take: Take, deliver: Deliver | None) -> Account:
        """Do chunks of a pass until none are left to take.

        Parameters
        ----------
        work : Pass
        share : sequence of int
            Chunks whose events the device should hold, for this pass and the next ones.
        take, deliver : callable
        """
        calls = self._calls(work, share, 0)
        assert calls is not None
        running = DevicePass(calls, self.has_far)
        account = running.run(take, deliver)
        self.has_far = running.exact_sent  # the next pass sends float64 mixtures from the start
        return account

    def _calls(self, work: Pass, share: Sequence[int], slot: int) -> BatchCalls | None:
        """Make room for a pass, and return what lists its calls; None if there is no room for its slot."""
        self._memory.make_room(list(share), len(work.components), work.n_populations)
        for name in work.kernels:
            self._kernels.load(name)
        own = self._memory.slot(slot)
        if own is None:
            return None
        return BatchCalls(
            work,
            self._memory,
            own,
            self._kernels,
            self._layout,
            grid=self._grid,
            first_event=self._first_event,
            weight_floor=self._weight_floor,
        )

    def labels(self, chain: int) -> Labels:
        """Return the labels of a chain for the chunks of the share, uint16 [chunks, CHUNK]."""
        return self._memory.labels(chain).read()

    def _open(self) -> None:
        try:
            device = driver.Device(self.number)
            architecture = "sm_{}{}".format(*device.compute_capability())
            self._kernels = Kernels(self._layout.n_channels, architecture)
            flags = driver.ctx_flags.SCHED_BLOCKING_SYNC if self._blocking else driver.ctx_flags.SCHED_AUTO
            self._context = device.make_context(flags)
            self._memory = DeviceMemory(
                self.number,
                self._events,
                self._grid,
                self._layout,
                self._chunks_in_flight,
                self._weights,
                by_sample=self._by_sample,
                blocking=self._blocking,
            )
            self._context.pop()
        except driver.Error as error:
            raise DeviceFailed(str(error)) from error

    def _release(self) -> None:
        self._kernels.unload()
        self._memory.drop()
        del self._memory  # with its events
