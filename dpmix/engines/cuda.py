"""The CUDA engine: the sweep in hand-written kernels (kernels/*.cu) on one or more devices, through PyCUDA.

Results depend on the events, the mixture and the key alone: not on the devices, on the chunks of a launch,
on how chunks are shared out among engines, or on whether events stay on the devices or pass through them in
every sweep. Labels are those of the CPU engine but where a label's uniform lies within rounding of a step of
the cumulative sum.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.engines import exact
from dpmix.engines.checks import (
    check_events,
    check_options,
    check_range,
    checked_parameters,
    checked_populations,
    checked_split,
)
from dpmix.engines.sums import SummingEngine, zeros
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of

if TYPE_CHECKING:
    from dpmix.engines.cuda_device import Account, Deliver, Device, Labels, Pass

log = logging.getLogger("dpmix")

FIRST_DEAL = 8  # passes after which chunks may be dealt anew by the speeds measured; then after 16, 32, ...
WORTH = 1.1  # they are where that makes a pass this many times faster, since events move


class DeviceInfo(NamedTuple):
    """A device as the driver describes it; memory in bytes."""

    number: int
    name: str
    memory: int
    compute_capability: str


def available() -> tuple[bool, str]:
    """Whether this machine can run the engine, and on what (or why not, and what to do)."""
    try:
        found = devices()
        build.find_nvcc()
    except DpmixError as error:
        return False, str(error)
    return True, describe(found)


def devices() -> list[DeviceInfo]:
    """The CUDA devices of this machine.

    Raises
    ------
    DpmixError
        There is no PyCUDA, no driver or no device.
    """
    try:
        import pycuda  # noqa: F401
    except ImportError:
        raise DpmixError("PyCUDA is not installed: pip install 'dpmix[cuda]'") from None
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise DpmixError(f"no NVIDIA driver ({error}): install the driver of the GPU") from None
    try:
        driver.init()
        found = [described(number, driver.Device(number)) for number in range(driver.Device.count())]
    except driver.Error as error:
        raise DpmixError(f"no CUDA device ({error}): see that nvidia-smi lists one") from None
    if not found:
        raise DpmixError("no CUDA device: see what nvidia-smi lists, and CUDA_VISIBLE_DEVICES")
    return found


def described(number: int, device: Any) -> DeviceInfo:
    """What PyCUDA says of a device."""
    major, minor = device.compute_capability()
    return DeviceInfo(number, device.name(), device.total_memory(), f"{major}.{minor}")


def describe(found: Sequence[DeviceInfo]) -> str:
    """Devices in a line."""
    return ", ".join(f"{device.name} ({device.number})" for device in found)


class CudaEngine(SummingEngine):
    """Engine on CUDA devices (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D], C-contiguous, finite
        Held by reference, never copied here or changed; D at most 64. They are kept on the devices too where
        those have memory enough, else pass through them in every sweep.
    devices : "all" or list of int
        Numbers of the devices.
    weight_floor : float
        Nats below an event's best component at which a component's weight is 0.
    chunks_in_flight : int, optional
        Chunks of 65,536 events of a launch; two launches are under way at a time. Default: 8, fewer where
        their scratch would pass 256 MB.
    first_event : int
        Number of the first event, for an engine that holds a part of the data.

    Raises
    ------
    ValueError
        For events or options that are not as said here.
    DpmixError
        For devices that are not there or cannot be used, and where there is no compiler.

    Notes
    -----
    Where a device fails, the others do its chunks, in the same pass and with the same results; when none is
    left, the pass raises `DpmixError`. Labels are kept on the host, 2 bytes per event and chain, where no
    device takes them with it; a chain whose pass did not end has none.
    """

    def __init__(
        self,
        events: npt.NDArray[np.float32],
        *,
        devices: Literal["all"] | Sequence[int] = "all",
        weight_floor: float = 25.0,
        chunks_in_flight: int | None = None,
        first_event: int = 0,
    ) -> None:
        check_events(events)
        check_options(len(events), weight_floor, chunks_in_flight, first_event)
        infos = chosen(devices)
        build.find_nvcc()
        from dpmix.engines.cuda_device import Device, DeviceFailed

        self._n_events, self._n_channels = len(events), int(events.shape[1])
        self._n_chunks = -(-self._n_events // CHUNK)
        self._layout = Layout(self._n_channels)
        self._names = {info.number: describe([info]) for info in infos}
        self._devices: dict[int, Device] = {}
        self._closing = weakref.finalize(self, close_devices, self._devices)
        for number, name in self._names.items():
            try:
                self._devices[number] = Device(
                    number,
                    events,
                    first_event=first_event,
                    weight_floor=weight_floor,
                    chunks_in_flight=chunks_in_flight,
                )
            except DeviceFailed as error:
                self._closing()
                raise DpmixError(f"CUDA device {name} cannot be used: {error}") from error
        self._work_done = dict.fromkeys(self._devices, (0, 0.0))  # chunks and seconds of each
        self._shares = deal_out(self._n_chunks, dict.fromkeys(self._devices, 1.0))
        self._passes, self._next_deal = 0, FIRST_DEAL
        self._labelled: dict[int, Labelled] = {}  # by chain
        self._accounts: list[Account] = []  # of the latest pass
        self._seconds = {"kernels": 0.0, "copies": 0.0}

    @property
    def n_events(self) -> int:
        return self._n_events

    @property
    def n_channels(self) -> int:
        return self._n_channels

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """What the engine runs on, for logs and run files."""
        return {"backend": "cuda", "devices": ", ".join(self._names.values())}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes in which kernels ran, and in which only copies did; the devices' mean."""
        return dict(self._seconds)

    @property
    def bytes_up(self) -> int:
        """Bytes that went to the devices in the latest pass, but for events that stay there."""
        return sum(account.bytes_up for account in self._accounts)

    @property
    def bytes_down(self) -> int:
        """Bytes that came from the devices in the latest pass."""
        return sum(account.bytes_down for account in self._accounts)

    def draw_sums(self, mixture: Mixture, key: Key) -> Array:
        return self._label(mixture, key)

    def expect_sums(self, mixture: Mixture) -> Array:
        return self._label(mixture, None)

    def memberships(
        self, mixture: Mixture, populations: Ints, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Membership probabilities in populations, float32 [M, P], and log densities, float64 [M].

        Of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        from dpmix.engines.cuda_device import Gates, Pass

        components = self._packed(mixture)
        numbers = checked_populations(populations, len(mixture.means))
        check_range(start, stop, self._n_events)
        ends = np.bincount(numbers).cumsum(dtype=np.int32)
        work = Pass(components[numbers.argsort(kind="stable")], gates=Gates(ends, start, stop))
        memberships = np.empty((stop - start, len(ends)), np.float32)
        log_densities = np.empty(stop - start)

        def keep(chunk: int, rows: npt.NDArray[Any], densities: Array) -> None:
            first, last = max(start, chunk * CHUNK), min(stop, (chunk + 1) * CHUNK)
            here, there = (
                slice(first - chunk * CHUNK, last - chunk * CHUNK),
                slice(first - start, last - start),
            )
            memberships[there], log_densities[there] = rows[here], densities[here]

        self._run(work, keep, range(start // CHUNK, (stop - 1) // CHUNK + 1))
        return memberships, log_densities

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> Array:
        from dpmix.engines.cuda_device import Division, Pass

        components = self._packed(mixture)
        split = checked_split(split, len(components))
        labelled = self._labelled.get(key.chain)
        if labelled is None or labelled.n_components != len(split.pairs):
            raise ValueError(f"split: chain {key.chain} has no labels of {len(split.pairs)} components")
        table = np.stack([split.pairs, split.sides.astype(np.int32)])
        work = Pass(components, key, division=Division(table, split.word, labelled.labels))
        return self._add_up(work, zeros(mixture, len(components) // 2))

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Labels of one chain, int32 [N]: its latest draw, or the most probable ones after the E step.

        Raises
        ------
        ValueError
            If the chain has none yet.
        """
        self._check_open()
        if chain not in self._labelled:
            raise ValueError(f"chain {chain} has no labels yet")
        return self._labelled[chain].labels.ravel()[: self._n_events].astype(np.int32)

    def log_densities(self, events: npt.NDArray[np.float32], mixture: Mixture) -> npt.NDArray[np.float32]:
        """log pi_j N(x_i | mu_j, Sigma_j) of any events as the sweep computes it, float32 [M, K]."""
        from dpmix.engines.cuda_device import DeviceFailed

        check_events(events)
        if events.shape[1] != self._n_channels:
            raise ValueError(f"events: got {events.shape[1]} channels, need {self._n_channels}")
        components = self._packed(mixture)
        while True:
            number, device = next(iter(self._usable().items()))
            try:
                return device.submit(device.log_densities, events, components).result()
            except DeviceFailed as error:
                self._leave_out(number, error)

    def close(self) -> None:
        """Free everything on the devices, and the labels; the engine cannot be used afterwards."""
        self._closing()
        self._labelled.clear()

    def _packed(self, mixture: Mixture) -> Array:
        packed: Array = self._layout.pack(*checked_parameters(mixture, self._n_channels))
        return packed

    def _label(self, mixture: Mixture, key: Key | None) -> Array:
        from dpmix.engines.cuda_device import Pass

        components, chain = self._packed(mixture), chain_of(key)
        before = self._labelled.pop(chain, None)
        labels = before.labels if before else np.empty((self._n_chunks, CHUNK), np.uint16)
        state = self._add_up(Pass(components, key, labels), zeros(mixture))
        self._labelled[chain] = Labelled(labels, len(components))
        return state

    def _add_up(self, work: Pass, state: Array) -> Array:
        """Have a pass over all chunks done; the sums of what it delivers."""
        lock = Lock()

        def add(chunk: int, moments: Array, log_densities: Array) -> None:
            # Those of a chunk in one order; of a division by pair and part, else by block.
            sums = log_densities.sum(axis=-1)
            with lock:
                exact.add(state, np.append(moments, sums))

        self._run(work, add, range(self._n_chunks))
        return state

    def _run(self, work: Pass, deliver: Deliver, chunks: range) -> None:
        """Have the chunks of a pass done, by the devices that are left where some fail."""
        from dpmix.engines.cuda_device import DeviceFailed

        shares = self._shares
        rota = Rota(
            {number: [chunk for chunk in share if chunk in chunks] for number, share in shares.items()}
        )
        self._accounts = []
        while rota.unfinished():
            running = {
                number: device.submit(serve, device, work, shares[number], rota, deliver)
                for number, device in self._usable().items()
                if rota.has_for(number)
            }
            try:
                wait(running.values())
            except BaseException:
                rota.stop()
                raise
            for number, future in running.items():
                try:
                    self._note(number, future.result())
                except DeviceFailed as error:
                    self._leave_out(number, error)
        self._passes += 1
        if self._passes == self._next_deal:
            self._next_deal *= 2
            self._deal_anew_where_it_pays()

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise RuntimeError("the engine is closed")

    def _usable(self) -> dict[int, Device]:
        self._check_open()
        if not self._devices:
            raise DpmixError(f"no CUDA device is left: {self._reason}")
        return self._devices

    def _leave_out(self, number: int, error: Exception) -> None:
        self._devices.pop(number).close()
        self._shares = deal_out(self._n_chunks, self._speeds())
        self._reason = f"device {self._names[number]} failed: {error}"
        log.warning("CUDA %s; %s", self._reason, "the others go on" if self._devices else "it was the last")

    def _note(self, number: int, account: Account) -> None:
        self._accounts.append(account)
        self._seconds["kernels"] += account.kernels / len(self._devices)
        self._seconds["copies"] += account.copies / len(self._devices)
        chunks, seconds = self._work_done[number]
        self._work_done[number] = chunks + account.chunks, seconds + account.kernels + account.copies

    def _speeds(self) -> dict[int, float]:
        """Chunks a second of each device; of one that has done nothing yet, the mean of the others."""
        done = [self._work_done[number] for number in self._devices]
        usual = sum(chunks for chunks, _ in done) / (sum(seconds for _, seconds in done) or 1.0) or 1.0
        return {
            number: chunks / seconds if chunks else usual
            for number, (chunks, seconds) in zip(self._devices, done, strict=True)
        }

    def _deal_anew_where_it_pays(self) -> None:
        speeds = self._speeds()
        shares = deal_out(self._n_chunks, speeds)
        if slowest(self._shares, speeds) > WORTH * slowest(shares, speeds):
            self._shares = shares
            log.info("CUDA devices: chunks dealt anew: %s", {n: len(share) for n, share in shares.items()})


class Labelled(NamedTuple):
    """Labels of all events, uint16 [chunks, CHUNK], as one pass left them, and of how many components."""

    labels: Labels
    n_components: int


class Rota:
    """Which device does which chunks of one pass: what is left of its own, or a failed one's."""

    def __init__(self, shares: Mapping[int, Sequence[int]]) -> None:
        self._lock = Lock()
        self._queues = {number: deque(share) for number, share in shares.items()}
        self._held = {number: set(share) for number, share in shares.items()}  # not finished
        self.orphans: deque[int] = deque()  # of failed devices, in the order of the grid

    def take(self, number: int, most: int) -> list[int]:
        """At most so many chunks for a device to do: orphans first."""
        with self._lock:
            queue = self.orphans or self._queues[number]
            chunks = [queue.popleft() for _ in range(min(most, len(queue)))]
            self._held[number].update(chunks)
        return chunks

    def has_for(self, number: int) -> bool:
        """Whether there are chunks for a device to take."""
        with self._lock:
            return bool(self.orphans or self._queues[number])

    def finish(self, number: int, chunk: int) -> None:
        with self._lock:
            self._held[number].remove(chunk)

    def give_up(self, number: int) -> None:
        """A device has failed: what it held is for the others."""
        with self._lock:
            self.orphans = deque(sorted([*self.orphans, *self._held[number]]))
            self._held[number].clear()
            self._queues[number].clear()

    def stop(self) -> None:
        """Give nothing more to do."""
        with self._lock:
            for queue in (self.orphans, *self._queues.values()):
                queue.clear()

    def unfinished(self) -> bool:
        with self._lock:
            return bool(self.orphans) or any(self._held.values())


def serve(device: Device, work: Pass, share: Sequence[int], rota: Rota, deliver: Deliver) -> Account:
    """A device's part in a pass; where it fails, the others may take its chunks at once."""

    def hand_in(chunk: int, results: npt.NDArray[Any], log_densities: Array) -> None:
        deliver(chunk, results, log_densities)
        rota.finish(device.number, chunk)

    try:
        return device.run(work, share, partial(rota.take, device.number), hand_in)
    except BaseException:
        rota.give_up(device.number)
        raise


def deal_out(n_chunks: int, speeds: Mapping[int, float]) -> dict[int, list[int]]:
    """Chunks of the grid, in its order, each to the device that would have done it first."""
    shares: dict[int, list[int]] = {number: [] for number in speeds}
    for chunk in range(n_chunks) if shares else ():
        first = min(shares, key=lambda number: (len(shares[number]) + 1) / speeds[number])
        shares[first].append(chunk)
    return shares


def slowest(shares: Mapping[int, Sequence[int]], speeds: Mapping[int, float]) -> float:
    """Seconds until the last device has done its share."""
    return max(len(shares[number]) / speed for number, speed in speeds.items())


def chosen(wanted: Literal["all"] | Sequence[int]) -> list[DeviceInfo]:
    """The devices that are wanted, as far as they are there."""
    found = devices()
    if wanted == "all":
        return found
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"devices: got {list(wanted)}, need 'all' or different numbers of devices")
    for number in wanted:
        if not 0 <= number < len(found):
            raise DpmixError(f"engine.devices: got {number}, this machine has {describe(found)}")
    return [found[int(number)] for number in wanted]


def close_devices(devices: dict[int, Device]) -> None:
    """Free what devices hold, each in its own thread; waited for, but not without end if a pass goes on."""
    closing = [device.close() for device in devices.values()]
    devices.clear()
    wait(closing, timeout=10.0)
