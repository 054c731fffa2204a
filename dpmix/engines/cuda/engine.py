"""The CUDA engine: hand-written kernels (kernels/*.cu) on one or more devices, through PyCUDA.

Results depend on the events, the mixture and the key alone. They do not depend on the devices, the chunks per
launch, the assignment of chunks to engines, or whether events stay on the devices. Labels equal the CPU
engine's except where a label's uniform lies within rounding of a step of the cumulative sum.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from dpmix.engines import cohort_sums, exact
from dpmix.engines.checks import (
    check_events,
    check_options,
    check_range,
    check_weights,
    checked_parameters,
    checked_populations,
    checked_split,
)
from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cuda.devices import available, chosen, describe, devices, warn_of_few_cores
from dpmix.engines.cuda.flights import Flight, Flights, Lists
from dpmix.engines.cuda.prepared import Shape
from dpmix.engines.cuda.pruning import PruningRule
from dpmix.engines.cuda.work import (
    SLOTS,
    Account,
    Deliver,
    DeviceFailed,
    Division,
    Labels,
    LastLabels,
    MembershipWork,
    Pass,
    SampleParameters,
    serve_all,
)
from dpmix.engines.shares import ChunkQueue, counts, interleaved_shares, pass_seconds
from dpmix.engines.sums import SummingEngine, division_of, stats_of
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Array, Floats, Ints, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of

if TYPE_CHECKING:
    from dpmix.engines.cuda.device import CudaDevice  # imports PyCUDA, which is optional

__all__ = ["CudaEngine", "available", "chosen", "devices"]

log = logging.getLogger("dpmix")
T = TypeVar("T")

FIRST_REBALANCE = 8  # passes before chunks may move between devices; then after 16, 32, ...
WORTH = 1.1  # they move if that makes a pass this many times faster, because events move with them


class Labelled(NamedTuple):
    """The labels of a chain: the pass that made them, and the shares of the devices that hold them.

    They are lost if the engine has other shares now. The pass makes them again, with the same bits.
    """

    work: Pass
    shares: dict[int, list[int]]

    @property
    def n_components(self) -> int:
        """Number of components of the labels."""
        return len(self.work.components)


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


class CudaOptions(TypedDict, total=False):
    """Options of `CudaPasses`."""

    devices: Literal["all"] | Sequence[int]
    pruning: bool
    weight_floor: float
    chunks_in_flight: int | None
    first_event: int
    weights: SampleWeights | None


class CudaPasses:
    """Passes over events on CUDA devices: the common part of `CudaEngine` and of the engine of samples.

    Parameters
    ----------
    events : float32 [N, D], C-contiguous, finite
        Held by reference, never copied on the host or changed; D at most 64. The devices hold them too if
        they fit. Otherwise events pass through the devices in every sweep.
    starts : int64 [S + 1]
        Ascending, from 0 to N: events starts[s] to starts[s + 1] belong to sample s, which has its own grid
        of chunks.
    devices : "all" or list of int
        Numbers of the devices; "all": as many as pay (`dpmix.engines.cuda.devices.chosen`).
    pruning : bool
        Skip components that add nothing to the sums of an event. It changes no bit of any result.
    weight_floor : float
        A component has weight 0 for an event if its log density is this many nats below the best one, or in
        label draws from one to two times as many (kernels/weights.cuh).
    chunks_in_flight : int, optional
        Chunks of 65,536 events per launch, fewer for a sample that has fewer; two launches are in progress at
        a time. Default: half of a device's chunks if it holds their events and has the memory; otherwise 8,
        or fewer if their scratch would exceed 256 MB.
    first_event : int
        Number of the first event, for an engine that holds a part of the data.
    weights : SampleWeights, optional
        Weights of the events, 4 bytes per event on the devices. Default: every event has weight 1.

    Raises
    ------
    ValueError
        Events or options are not as described here.
    DpmixError
        A device does not exist or cannot be used, or there is no compiler.

    Notes
    -----
    If a device fails, the others do its chunks in the same pass, with the same results. If no device is left,
    the pass raises `DpmixError`. A device holds the labels of its chunks, 4 bytes per event and chain
    (`dpmix.engines.cuda.labels`). If it fails, or if chunks move between devices, the labels are drawn again
    when they are needed. A chain whose pass did not finish has no labels.
    """

    passes_at_once = SLOTS
    _by_sample = False  # each sample has its own parameters and sums

    def __init__(
        self,
        events: Floats,
        starts: Ints,
        *,
        devices: Literal["all"] | Sequence[int] = "all",
        pruning: bool = True,
        weight_floor: float = 25.0,
        chunks_in_flight: int | None = None,
        first_event: int = 0,
        weights: SampleWeights | None = None,
    ) -> None:
        check_events(events)
        check_options(len(events), weight_floor, chunks_in_flight, first_event)
        check_weights(weights, len(events))
        infos = chosen(devices, len(events))
        build.require((info.architecture for info in infos), int(events.shape[1]))
        self._n_events, self._n_channels = len(events), int(events.shape[1])
        self._grid = ChunkGrid(starts)
        self._layout = Layout(self._n_channels)
        per_block = self._layout.events_per_block
        evaluated = int((-(-self._grid.sizes // per_block) * per_block).sum())  # by whole blocks
        self._pruning = PruningRule(pruning, self._layout, evaluated)
        self._names = {info.number: describe([info]) for info in infos}
        self._devices: dict[int, CudaDevice] = {}
        self._flights = Flights()
        self._closing = weakref.finalize(self, close_devices, self._devices, self._flights)
        self._open_devices(
            events,
            chunks_in_flight=chunks_in_flight,
            first_event=first_event,
            by_sample=self._by_sample,
            weight_floor=weight_floor,
            weights=weights,
        )
        self._work_done = dict.fromkeys(self._devices, (0, 0.0))  # chunks and seconds of each device
        self._shares = interleaved_shares(len(self._grid), dict.fromkeys(self._devices, 1.0))
        self._passes, self._next_rebalance = 0, FIRST_REBALANCE
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
        """Backend and devices, for logs and run files."""
        return {"backend": "cuda", "devices": ", ".join(self._names.values())}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes in which kernels ran, and in which only copies ran; mean over the devices."""
        return dict(self._seconds)

    def memberships(self, mixture: Mixture, populations: Ints, start: int, stop: int) -> tuple[Floats, Array]:
        """Return membership probabilities float32 [M, P] and log densities float64 [M].

        Memberships of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        components, samples = self._packed(mixture)
        numbers = checked_populations(populations, len(mixture.means))
        check_range(start, stop, self._n_events)
        ends = np.bincount(numbers).cumsum(dtype=np.int32)
        order = numbers.argsort(kind="stable")
        if samples is not None:
            samples = replace(samples, log_constants=samples.log_constants[:, order])
        work = Pass(components[order], samples, gates=MembershipWork(ends, start, stop))
        memberships = np.empty((stop - start, len(ends)), np.float32)
        log_densities = np.empty(stop - start)

        def store(chunk: int, rows: npt.NDArray[Any], densities: Array) -> None:
            offset, end = self._grid.events(chunk)
            first, last = max(start, offset), min(stop, end)
            memberships[first - start : last - start] = rows[first - offset : last - offset]
            log_densities[first - start : last - start] = densities[first - offset : last - offset]

        with self._flights.turn:
            self._run(work, store, self._grid.covering(start, stop))
        return memberships, log_densities

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Return the labels of a chain, int32 [N]: its latest draw, or the most probable after an E step.

        Raises
        ------
        ValueError
            The chain has no labels yet.
        DpmixError
            No device is left.
        """
        self._check_open()
        if chain not in self._labelled:
            raise ValueError(f"chain {chain} has no labels yet")
        labels = np.empty(self._n_events, np.int32)
        with self._flights.turn:
            while True:
                self._restore_labels(chain)
                shares = self._shares
                for number, rows in self._read_labels(chain).items():
                    for chunk, row in zip(shares[number], rows, strict=True):
                        first, end = self._grid.events(chunk)
                        labels[first:end] = row[: end - first]
                if shares is self._shares:  # no device has failed
                    return labels

    def close(self) -> None:
        """Free everything on the devices, and the labels; the engine cannot be used afterwards."""
        self._closing()
        self._labelled.clear()

    def _open_devices(self, events: Floats, **options: Any) -> None:
        from dpmix.engines.cuda.device import CudaDevice

        blocking = warn_of_few_cores(len(self._names))
        for number, name in self._names.items():
            try:
                self._devices[number] = CudaDevice(number, events, self._grid, blocking=blocking, **options)
            except DeviceFailed as error:
                self._closing()
                raise DpmixError(f"CUDA device {name} cannot be used: {error}") from error

    def _packed(self, mixture: Mixture) -> tuple[Array, SampleParameters | None]:
        """Check a mixture and return its packed rows, and the parameters of samples that replace them."""
        return self._layout.pack(*checked_parameters(mixture, self._n_channels)), None

    def _label(self, mixture: Mixture, key: Key | None, *, rounded: bool = False) -> CohortSums:
        """Draw every label, or do the E step, and return the sums: their state, or rounded.

        Two threads may do this at a time, for different chains: a device has the calls of one pass while the
        host reads the sums of the other.
        """
        self._usable()  # without a device, there are no shares
        (components, samples), chain, flight = self._packed(mixture), chain_of(key), None
        with self._flights.turn:
            slot = self._flights.take_slot()
            try:
                # Taken out until the pass has ended: after a failure, half-written labels must not pass for
                # the labels of a draw.
                shares, before = self._shares, self._labelled.pop(chain, None)
                work = Pass(components, samples, key, chain)
                work = replace(work, last=self._last_labels(before, work, mixture))
                flight = self._start(work, slot, rounded=rounded)
            finally:
                if flight is None:
                    self._flights.give_slot(slot)
            if flight is None:
                known = shares is self._shares  # no device has failed
                return self._label_now(work if known else replace(work, last=None), rounded=rounded)
        try:
            flight.wait()
        finally:  # also after Ctrl-C
            self._flights.end(flight)
        with self._flights.turn:
            if not self._landed(flight, shares):  # its labels may be those of this draw or of the last one
                return self._label_now(replace(work, last=None), rounded=rounded)
            self._note_labels(work, shares)
        sums = flight.native.sums()
        return CohortSums(sums if rounded else sums.reshape(4, -1), {}, {})

    def _last_labels(self, before: Labelled | None, work: Pass, mixture: Mixture) -> LastLabels | None:
        """Return how a draw uses the labels of the chain's last pass; None for a dense draw or an E step."""
        alike = before is not None and before.n_components == len(work.components)
        if work.key is None or before is None or not alike or before.shares is not self._shares:
            return None
        return self._pruning.last_labels(work.chain, mixture, before.work.key is not None)

    def _label_now(self, work: Pass, *, rounded: bool) -> CohortSums:
        """Make a pass that replaces the chain's labels in the general form; return its sums."""
        shares, sums = self._shares, self._sum_up(work, rounded=rounded)
        self._note_labels(work, shares)
        return sums

    def _note_labels(self, work: Pass, shares: dict[int, list[int]]) -> None:
        """Note that a pass has replaced the labels of its chain."""
        if work.last:
            self._pruning.note(work.chain, len(work.components), self._accounts)
        self._labelled[work.chain] = Labelled(replace(work, last=None), shares)

    def _start(self, work: Pass, slot: int, *, rounded: bool) -> Flight | None:
        """Start a pass over all chunks as lists of calls, prepared at the first pass of a kind.

        None if it must be made in the general form: samples have their own mixtures, or a device has no room
        for its events or a second pass, or has failed.
        """
        if self._by_sample:
            return None
        n_devices, last = sum(map(bool, self._shares.values())), work.last
        shape = Shape(
            work.chain,
            len(work.components),
            work.kernels,
            last is not None and last.is_sorted,
            last is not None and last.now is not None,
            slot,
            rounded and n_devices == 1,
            any(device.has_far for device in self._devices.values()),
        )
        lists = self._lists(work, shape)
        if lists is None:
            return None
        n_sums = len(work.components) * self._layout.n_moments + 1
        return self._flights.start(work, slot, lists, n_sums if rounded else 4 * n_sums)

    def _lists(self, work: Pass, shape: Shape) -> Lists | None:
        """Return the line of each device that has a share, and its list of calls; None if one has no list."""
        owners = {number: self._devices[number] for number, share in self._shares.items() if share}
        found = {number: device.prepared(shape, self._shares[number]) for number, device in owners.items()}
        missing = [number for number, program in found.items() if program is None]
        if missing:
            self._flights.drain()
            shares = self._shares
            making = {n: owners[n].submit(owners[n].prepare, work, shares[n], shape) for n in missing}
            found |= dict.fromkeys(missing) | self._collected(making)
        lists = {n: (owners[n].line, program) for n, program in found.items() if program is not None}
        return lists if len(lists) == len(owners) else None

    def _landed(self, flight: Flight, shares: dict[int, list[int]]) -> bool:
        """Note what the devices say of a pass that has ended; return False if it must be made again."""
        outcomes = flight.outcomes
        failed = {number: each for number, each in outcomes.items() if each.error and number in self._devices}
        if failed:
            self._flights.drain()  # another pass may merge sums that lie in the memory of these devices
            self._collected(
                {n: self._devices[n].submit(self._devices[n].fail, *each[:2]) for n, each in failed.items()}
            )
        if any(each.error for each in outcomes.values()):
            return False
        if any(each.far for each in outcomes.values()):
            for device in self._devices.values():
                device.has_far = True
            return False
        self._accounts = []
        for number, each in outcomes.items():
            seconds = each.kernels_ms * 1e-3, each.copies_ms * 1e-3
            work = each.work if flight.work.last else 0
            self._note(number, Account(len(shares[number]), *seconds, work))
        self._count_pass()
        return True

    def _divide(
        self, split: SplitAssignment, mixture: Mixture, key: Key, *, rounded: bool = False
    ) -> CohortSums:
        """Divide events among pairs and return the sums: their state, or rounded."""
        components, samples = self._packed(mixture)
        split = checked_split(split, len(components))
        labelled = self._labelled.get(key.chain)
        if labelled is None or labelled.n_components != len(split.pairs):
            raise ValueError(f"split: chain {key.chain} has no labels of {len(split.pairs)} components")
        table = np.stack([split.pairs, split.sides.astype(np.int32)])
        work = Pass(components, samples, key, key.chain, division=Division(table, split.word))
        with self._flights.turn:
            while True:
                self._restore_labels(key.chain)
                with suppress(LabelsLost):
                    return self._sum_up(work, rounded=rounded)

    def _restore_labels(self, chain: int) -> None:
        """Draw the labels of a chain again if they are lost."""
        while (labelled := self._labelled[chain]).shares is not self._shares:
            log.info("CUDA: the labels of chain %d are drawn again: a device failed, or chunks moved", chain)
            shares = self._shares
            self._run(labelled.work, None, range(len(self._grid)))
            self._labelled[chain] = labelled._replace(shares=shares)

    def _read_labels(self, chain: int) -> dict[int, Labels]:
        """Return each device's labels of a chain, uint16 [chunks, CHUNK]; remove devices that fail."""
        usable = self._usable()
        self._flights.drain()
        return self._collected(
            {n: usable[n].submit(usable[n].labels, chain) for n, share in self._shares.items() if share}
        )

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
            self._grid.samples if self._by_sample else None,
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

    def _count_pass(self) -> None:
        """Move chunks between devices after some passes, if it pays; the next pass has the new shares."""
        self._passes += 1
        if self._passes == self._next_rebalance:
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
        self._devices.pop(number).close()
        self._shares = interleaved_shares(len(self._grid), self._speeds())
        self._reason = f"device {self._names[number]} failed: {error}"
        rest = "the others continue" if self._devices else "it was the last"
        log.warning("CUDA %s; %s", self._reason, rest)

    def _note(self, number: int, account: Account) -> None:
        self._accounts.append(account)
        self._seconds["kernels"] += account.kernels / len(self._devices)
        self._seconds["copies"] += account.copies / len(self._devices)
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


class CudaEngine(CudaPasses, SummingEngine):
    """Engine on CUDA devices (interface: dpmix.engines.base.Engine).

    Parameters as in `CudaPasses`, without `starts`.
    """

    def __init__(self, events: Floats, **options: Unpack[CudaOptions]) -> None:
        super().__init__(events, np.array([0, len(events)]), **options)

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        return stats_of(self._label(mixture, key, rounded=True).total, mixture)

    def expect_labels(self, mixture: Mixture) -> Stats:
        return stats_of(self._label(mixture, None, rounded=True).total, mixture)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        return division_of(self._divide(split, mixture, key, rounded=True).total, mixture)

    def draw_sums(self, mixture: Mixture, key: Key) -> Array:
        return self._label(mixture, key).total

    def expect_sums(self, mixture: Mixture) -> Array:
        return self._label(mixture, None).total

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> Array:
        return self._divide(split, mixture, key).total


def close_devices(devices: dict[int, CudaDevice], flights: Flights) -> None:
    """Free the memory of devices, each in its own thread; wait at most 10 seconds for a pass in progress."""
    flights.drain()
    closing = [device.close() for device in devices.values()]
    devices.clear()
    wait(closing, timeout=10.0)
