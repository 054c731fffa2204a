"""The CUDA devices of an engine: their shares of the chunks, their failures, and passes over them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from dpmix.engines import cohort_sums, exact
from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cuda.devices import DeviceInfo, describe, warn_of_few_cores
from dpmix.engines.cuda.flights import Flight, Flights, Lists, Shape
from dpmix.engines.cuda.work import Account, Deliver, DeviceFailed, Pass, serve_all
from dpmix.engines.shares import ChunkQueue, counts, interleaved_shares, pass_seconds
from dpmix.errors import DpmixError
from dpmix.model.mixture import Floats

if TYPE_CHECKING:
    from dpmix.engines.cuda.device import CudaDevice  # imports PyCUDA, which is optional

log = logging.getLogger("dpmix")
T = TypeVar("T")

FIRST_REBALANCE = 8  # passes before chunks may move between devices; then after 16, 32, ...
CLOSING = 10.0  # seconds that the end of a device is waited for
WORTH = 1.1  # they move if that makes a pass this many times faster, because events move with them


class LabelsLost(Exception):
    """A device has failed in a division; the others do not have the labels of its chunks."""


class SumsOfDevices:
    """The sums of a pass, to which each device adds its own, in its thread and in any order.

    Attributes
    ----------
    total : CohortSums or None
        None before the first.
    """

    def __init__(self) -> None:
        self.total: CohortSums | None = None
        self._lock = Lock()

    def add(self, own: CohortSums) -> None:
        """Add the sums of a device, which keeps their memory."""
        with self._lock:
            if self.total is None:
                self.total = own._replace(total=own.total.copy())
            else:
                cohort_sums.add(self.total, own)


class Fleet:
    """The devices that share the chunks of an engine.

    Parameters
    ----------
    infos : sequence of DeviceInfo
    events : float32 [N, D]
    grid : ChunkGrid
    by_sample : bool
        Every sample has its own mixture and sums.
    options
        As in `dpmix.engines.cuda.device.CudaDevice`.

    Raises
    ------
    DpmixError
        A device cannot be used.
    """

    def __init__(
        self, infos: Sequence[DeviceInfo], events: Floats, grid: ChunkGrid, *, by_sample: bool, **options: Any
    ) -> None:
        self._grid = grid
        self._names = {info.number: describe([info]) for info in infos}
        self._devices: dict[int, CudaDevice] = {}
        self._flights = Flights()
        self._closing = weakref.finalize(self, close_devices, self._devices, self._flights)
        self._open_devices(events, by_sample=by_sample, **options)
        self._samples = grid.samples if by_sample else None  # of the chunks of a batch, one
        self._work_done = dict.fromkeys(self._devices, (0, 0.0))  # chunks and seconds of each device
        self._shares = interleaved_shares(len(grid), dict.fromkeys(self._devices, 1.0))
        self._passes, self._next_rebalance = 0, FIRST_REBALANCE
        self._accounts: list[Account] = []  # of the latest pass
        self._seconds = {"kernels": 0.0, "copies": 0.0}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes in which kernels ran, and in which only copies ran; mean over the devices.

        A time in which two passes are in progress may count twice.
        """
        return dict(self._seconds)

    def _open_devices(self, events: Floats, **options: Any) -> None:
        from dpmix.engines.cuda.device import CudaDevice

        blocking = warn_of_few_cores(len(self._names))
        for number, name in self._names.items():
            try:
                self._devices[number] = CudaDevice(number, events, self._grid, blocking=blocking, **options)
            except DeviceFailed as error:
                self._closing()
                raise DpmixError(f"CUDA device {name} cannot be used: {error}") from error

    def _collected(self, running: Mapping[int, Future[T]]) -> dict[int, T]:
        """Wait for tasks of devices and return their results; remove devices that fail."""
        wait(running.values())
        found = {}
        for number, future in running.items():
            try:
                found[number] = future.result()
            except DeviceFailed as error:
                self._remove(number, error)
        return found

    def _sum_up(self, work: Pass, *, rounded: bool) -> CohortSums:
        """Do a pass over all chunks in the general form and return its sums."""
        sums = self._run(work, None, range(len(self._grid)))
        assert sums is not None  # each chunk is in the sums of a device
        return sums._replace(total=exact.values(sums.total)) if rounded else sums

    def _run(self, work: Pass, deliver: Deliver | None, chunks: range) -> CohortSums | None:
        """Do the chunks of a pass, when no other is in progress; if devices fail, on those that are left.

        Returns the sums. Memberships have none; they are delivered by chunk.

        Raises
        ------
        LabelsLost
            A device failed in a division.
        """
        self._usable()
        self._flights.drain()
        shares = self._shares
        queue = ChunkQueue(
            {number: [chunk for chunk in share if chunk in chunks] for number, share in shares.items()},
            self._samples,
        )
        self._accounts = []
        sums = SumsOfDevices()
        serve_all(
            queue,
            self._usable,
            lambda number, device: device.submit(
                device.serve, work, shares[number], queue, deliver, sums.add
            ),
            self._note,
            self._remove,
        )
        if queue.stopped:
            raise LabelsLost
        self._count_pass()
        return sums.total

    def _lists(self, work: Pass, shape: Shape) -> Lists | None:
        """Return the line and the list of calls of each device that has a share; None if one has no list."""
        owners = {number: self._devices[number] for number, share in self._shares.items() if share}
        found = {number: device.prepared(shape, self._shares[number]) for number, device in owners.items()}
        missing = [number for number, program in found.items() if program is None]
        if missing:
            self._flights.drain()
            shares = self._shares
            making = {n: owners[n].submit(owners[n].prepare, work, shares[n], shape) for n in missing}
            found |= dict.fromkeys(missing) | self._collected(making)
        lists = {n: (owners[n].line, program) for n, program in found.items() if program is not None}
        return lists if lists and len(lists) == len(owners) else None

    def _landed(self, flight: Flight, shares: dict[int, list[int]]) -> bool:
        """Note what the devices say of a pass that has ended; return False if it must be made again."""
        outcomes = flight.outcomes
        failed = {number: each for number, each in outcomes.items() if each.error}
        if failed:
            self._flights.drain()  # another pass may merge sums that lie in the memory of these devices
            lost = {n: self._devices[n] for n in failed if n in self._devices}
            self._collected({n: lost[n].submit(lost[n].fail, *failed[n][:2]) for n in lost})
            return False
        if any(each.far for each in outcomes.values()):
            for device in self._devices.values():
                device.has_far = True
            return False
        self._accounts = []
        for number, (_, _, _, work, kernels, copies) in outcomes.items():
            done = work if flight.work.last else 0
            self._note(number, Account(len(shares[number]), kernels * 1e-3, copies * 1e-3, done))
        self._count_pass()
        return True

    def _count_pass(self) -> None:
        """Move chunks between devices after some passes, if it pays; the next pass has the new shares."""
        self._passes += 1
        if self._passes == self._next_rebalance and self._devices:
            # Twice as late each time: speeds are then known better, and moving events costs as much as
            # before.
            self._next_rebalance *= 2
            self._rebalance()

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise RuntimeError("the engine is closed")

    def _usable(self) -> dict[int, CudaDevice]:
        self._check_open()
        if not self._devices:
            raise DpmixError(f"no CUDA device is left: {self._reason}")
        return self._devices

    def _remove(self, number: int, error: Exception) -> None:
        """Close a failed device."""
        # Its thread must not be in native code when the interpreter ends, which may be next.
        wait([self._devices.pop(number).close()], timeout=CLOSING)
        self._shares = interleaved_shares(len(self._grid), self._speeds())
        self._reason = f"device {self._names[number]} failed: {error}"
        rest = "the others continue" if self._devices else "it was the last"
        log.warning("CUDA %s; %s", self._reason, rest)

    def _note(self, number: int, account: Account) -> None:
        self._accounts.append(account)
        n_devices = max(1, len(self._devices))  # others may have failed in another pass
        self._seconds["kernels"] += account.kernels / n_devices
        self._seconds["copies"] += account.copies / n_devices
        chunks, seconds = self._work_done[number]
        self._work_done[number] = chunks + account.chunks, seconds + account.kernels + account.copies

    def _speeds(self) -> dict[int, float]:
        """Return chunks per second of each device; the mean of the others for one without a chunk yet."""
        done = [self._work_done[number] for number in self._devices]
        usual = sum(chunks for chunks, _ in done) / (sum(seconds for _, seconds in done) or 1.0) or 1.0
        return {
            number: chunks / seconds if chunks else usual
            for number, (chunks, seconds) in zip(self._devices, done, strict=True)
        }

    def _rebalance(self) -> None:
        """Move chunks between devices if the measured speeds make that worthwhile."""
        speeds = self._speeds()
        shares = interleaved_shares(len(self._grid), speeds)
        now, then = (pass_seconds(counts(each), speeds) for each in (self._shares, shares))
        if now > WORTH * then:
            self._shares = shares
            log.info("CUDA devices: chunks redistributed: %s", counts(shares))


def close_devices(devices: dict[int, CudaDevice], flights: Flights) -> None:
    """Free the memory of devices, each in its own thread; wait for a pass in progress, but not for ever."""
    flights.drain()
    closing = [device.close() for device in devices.values()]
    devices.clear()
    wait(closing, timeout=CLOSING)
