"""The pass of a Gaussian process over all events on CUDA devices, by kernels/gaussian_process.cu.

Each device has a thread of the host. Chunks of events stay on the device that computed them first while its
memory lasts, and pass through it otherwise. Two chunks are in progress at a time, so that one is computed
while the other is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import wait
from itertools import cycle
from typing import Any, Literal, NamedTuple

import numpy as np
import pycuda.driver as driver

from dpmix.engines.cuda.allocation import allocate
from dpmix.engines.cuda.devices import DeviceInfo, chosen, describe, warn_of_few_cores
from dpmix.engines.cuda.kernels import load
from dpmix.engines.cuda.messages import failure
from dpmix.engines.cuda.thread import DeviceThread
from dpmix.engines.cuda.work import DeviceFailed, serve_all
from dpmix.engines.shares import ChunkQueue, interleaved_shares
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.kernels.layout import CHUNK, ROWS, THREADS, Layout
from dpmix.model.mixture import Floats

Posterior = tuple[Floats, Floats]
"""Mean and variance at all events, float32 [N] each."""

log = logging.getLogger("dpmix")

SPARE = 256 << 20
"""Bytes of a device that are left free when it keeps a chunk."""


class PackedRows(NamedTuple):
    """The judged points and new rows of a pass, as the kernel reads them.

    Attributes
    ----------
    kernel : str
    scales : float32 [D]
    packed : float32 [rounds, n, PADDED_DIM + ROWS]
        For each point its multiplied channels and its column of the rows of a round.
    targets : float32 [rounds * ROWS]
    n_rows : int
    """

    kernel: str
    scales: Floats
    packed: Floats
    targets: Floats
    n_rows: int


def tables(points: Floats, scales: Floats, laplacian: bool, rows: Floats, targets: Floats) -> PackedRows:
    """Pack the arguments of `_cpu.update_posterior` for the kernel."""
    (n_rows, n_points), dim = rows.shape, points.shape[1]
    padded, n_rounds = Layout(dim).padded_dim, -(-n_rows // ROWS)
    packed = np.zeros((n_rounds, n_points, padded + ROWS), np.float32)
    packed[:, :, :dim] = points * scales
    for own, start in zip(packed, range(0, n_rows, ROWS), strict=True):
        part = rows[start : start + ROWS]
        own[:, padded : padded + len(part)] = part.T
    all_targets = np.zeros(n_rounds * ROWS, np.float32)
    all_targets[:n_rows] = targets
    kernel = "posterior_laplacian" if laplacian else "posterior_gaussian"
    return PackedRows(kernel, scales, packed, all_targets, n_rows)


class CudaGaussianProcess:
    """The pass over all events on one or more devices.

    Parameters
    ----------
    events : float32 [N, D], C-contiguous
        Held by reference; D at most 64.
    devices : "all" or list of int
        Numbers of the devices; "all": as many as pay (`dpmix.engines.cuda.devices.chosen`).

    Raises
    ------
    DpmixError
        A device does not exist or cannot be used, or there is no compiler.

    Notes
    -----
    If a device fails, the others do its chunks in the same pass, with the same results. If no device is left,
    the pass raises `DpmixError`.
    """

    def __init__(self, events: Floats, devices: Literal["all"] | Sequence[int] = "all") -> None:
        infos = chosen(devices, len(events))
        build.require((info.architecture for info in infos), int(events.shape[1]))
        self._events = events
        self._devices: dict[int, _Device] = {}
        blocking, self._reason = warn_of_few_cores(len(infos)), "it is closed"
        for info in infos:
            try:
                self._devices[info.number] = _Device(info, events, blocking)
            except (DeviceFailed, DpmixError) as error:
                self.close()
                raise DpmixError(f"CUDA device {describe([info])} cannot be used: {error}") from error
        log.info("posterior of all events on: %s", describe(infos))

    def close(self) -> None:
        """Free everything on the devices; there are no more passes afterwards."""
        wait([device.close() for device in self._devices.values()], timeout=10.0)
        self._devices.clear()

    def update(
        self,
        points: Floats,
        scales: Floats,
        laplacian: bool,
        rows: Floats,
        targets: Floats,
        mean: Floats,
        variance: Floats,
    ) -> None:
        """Update mean and variance at all events by new rows, with the bits of `_cpu.update_posterior`.

        Parameters
        ----------
        points : float32 [n, D]
            All judged events.
        scales : float32 [D]
            Factors of channels.
        laplacian : bool
            Correlation exp(-|d|_1) instead of exp(-|d|^2).
        rows : float32 [m, n]
            The last rows of the inverse Cholesky factor, times the variance of the signal.
        targets : float32 [m]
            Whitened judgements.
        mean, variance : float32 [N]
            Changed in place.

        Raises
        ------
        DpmixError
            No device is left. Mean and variance are then as before.
        """
        work = tables(points, scales, laplacian, rows, targets)
        before, after = (mean, variance), (np.empty_like(mean), np.empty_like(variance))
        n_chunks = -(-len(self._events) // CHUNK)
        queue = ChunkQueue(interleaved_shares(n_chunks, dict.fromkeys(self._usable(), 1.0)))
        serve_all(
            queue,
            self._usable,
            lambda _, device: device.submit(device.serve, work, queue, before, after),
            lambda number, result: None,
            self._remove,
        )
        mean[:], variance[:] = after

    def _usable(self) -> dict[int, _Device]:
        if not self._devices:
            raise DpmixError(f"no CUDA device is left: {self._reason}")
        return self._devices

    def _remove(self, number: int, error: Exception) -> None:
        """Close a failed device."""
        device = self._devices.pop(number)
        device.close()
        self._reason = f"device {describe([device.info])} failed: {error}"
        rest = "the others continue" if self._devices else "it was the last"
        log.warning("CUDA %s; %s", self._reason, rest)


class _Lane:
    """A stream with room for one chunk on the device; mean and variance also in page-locked memory."""

    def __init__(self, n_channels: int) -> None:
        self.stream = driver.Stream()
        self.events = driver.mem_alloc(CHUNK * n_channels * 4)
        self.posterior = driver.mem_alloc(2 * CHUNK * 4)
        self.posterior_here = driver.pagelocked_empty((2, CHUNK), np.float32)
        self.chunk: int | None = None  # in progress


class _Device(DeviceThread):
    """One device with its thread and context; see `CudaGaussianProcess`."""

    def __init__(self, info: DeviceInfo, events: Floats, blocking: bool) -> None:
        self.info, self._events, self._blocking = info, events, blocking
        self._events_per_block = Layout(events.shape[1]).events_per_block
        self._held: dict[int, Any] = {}  # events of chunks on the device
        self._lanes: list[_Lane] = []
        self._functions: dict[str, Any] = {}
        super().__init__(f"cuda-gaussian-process-{info.number}")
        try:
            self._worker.submit(self._open).result()
        except BaseException:
            self.close()
            raise

    # The rest runs in the device's thread.

    def serve(self, work: PackedRows, queue: ChunkQueue, before: Posterior, after: Posterior) -> None:
        """Do chunks until none are left; if the device fails, the others may take its chunks at once.

        They do all of them again, also those delivered: so these are not updated in place.
        """
        try:
            sent = [driver.to_device(table) for table in (work.scales, work.packed, work.targets)]
            for lane in cycle(self._lanes):
                self._finish(lane, after)
                chunks = queue.take(self.info.number, 1, 1)
                if not chunks:
                    break
                self._start(lane, chunks[0], work, sent, before)
            for lane in self._lanes:
                self._finish(lane, after)
        except BaseException:
            queue.abandon(self.info.number)
            raise
        queue.finish(self.info.number)

    def _start(self, lane: _Lane, chunk: int, work: PackedRows, sent: list[Any], before: Posterior) -> None:
        lane.chunk = chunk
        events = self._events[chunk * CHUNK : (chunk + 1) * CHUNK]
        for own, whole in zip(lane.posterior_here, before, strict=True):
            own[: len(events)] = whole[chunk * CHUNK : (chunk + 1) * CHUNK]
        driver.memcpy_htod_async(lane.posterior, lane.posterior_here, lane.stream)
        numbers = len(events), work.packed.shape[1], work.n_rows, CHUNK
        self._functions[work.kernel].prepared_async_call(
            (-(-len(events) // self._events_per_block), 1),
            (THREADS, 1, 1),
            lane.stream,
            *(self._events_at(lane, chunk, events), *sent, *numbers, lane.posterior),
        )
        driver.memcpy_dtoh_async(lane.posterior_here, lane.posterior, lane.stream)

    def _events_at(self, lane: _Lane, chunk: int, events: Floats) -> Any:
        """Return the events of a chunk on the device, and queue their copy unless they are there."""
        if chunk in self._held:
            return self._held[chunk]
        kept = allocate(events.nbytes, SPARE)
        if kept is not None:
            self._held[chunk] = kept
        at = lane.events if kept is None else kept
        driver.memcpy_htod_async(at, events, lane.stream)
        return at

    def _finish(self, lane: _Lane, after: Posterior) -> None:
        """Wait for the lane's chunk, if it has one, and deliver its results."""
        if lane.chunk is None:
            return
        lane.stream.synchronize()
        for result, own in zip(after, lane.posterior_here, strict=True):
            part = result[lane.chunk * CHUNK : (lane.chunk + 1) * CHUNK]
            part[:] = own[: len(part)]
        lane.chunk = None

    def _open(self) -> None:
        flags = driver.ctx_flags.SCHED_BLOCKING_SYNC if self._blocking else driver.ctx_flags.SCHED_AUTO
        try:
            self._context = driver.Device(self.info.number).make_context(flags)
        except driver.Error as error:
            raise DeviceFailed(failure(error)) from error
        driver.Context.pop()
        self._in_context(self._allocate)

    def _allocate(self) -> None:
        n_channels = int(self._events.shape[1])
        module = load(build.cubin("gaussian_process", n_channels, self.info.architecture))
        for name in ("posterior_gaussian", "posterior_laplacian"):
            self._functions[name] = module.get_function(name).prepare("PPPPiiiiP")
        self._lanes = [_Lane(n_channels) for _ in range(2)]

    def _release(self) -> None:
        self._held, self._lanes, self._functions = {}, [], {}
