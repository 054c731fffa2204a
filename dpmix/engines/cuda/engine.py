"""The CUDA engine: hand-written kernels (kernels/*.cu) on one or more devices, through PyCUDA.

Results depend on the events, the mixture and the key alone. They do not depend on the devices, the chunks per
launch, the assignment of chunks to engines, or whether events stay on the devices. Labels equal the CPU
engine's except where a label's uniform lies within rounding of a step of the cumulative sum.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

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
from dpmix.engines.cuda.pruning import PruningRule
from dpmix.engines.cuda.work import (
    Account,
    Deliver,
    DeviceFailed,
    Division,
    Labels,
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
        self._closing = weakref.finalize(self, close_devices, self._devices)
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
        """Draw every label, or do the E step, and return the sums: their state, or rounded."""
        self._usable()  # without a device, there are no shares
        (components, samples), chain = self._packed(mixture), chain_of(key)
        # Taken out until the pass has ended: after a failure, half-written labels must not pass for the
        # labels of a draw.
        before, shares, last = self._labelled.pop(chain, None), self._shares, None
        if key is not None and before and before.n_components == len(components) and before.shares is shares:
            last = self._pruning.last_labels(chain, mixture)
        work = Pass(components, samples, key, chain)
        sums = self._sum_up(replace(work, last=last), rounded=rounded)
        if last:
            self._pruning.note(chain, len(components), self._accounts)
        self._labelled[chain] = Labelled(work, shares)
        return sums

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
        reading = {n: usable[n].submit(usable[n].labels, chain) for n, share in self._shares.items() if share}
        wait(reading.values())
        found = {}
        for number, future in reading.items():
            try:
                found[number] = future.result()
            except DeviceFailed as error:
                self._remove(number, error)
        return found

    def _sum_up(self, work: Pass, *, rounded: bool) -> CohortSums:
        """Do a pass over all chunks and return its sums. A device rounds them if it is the only one."""
        alone = rounded and len(self._usable()) == 1
        sums = self._run(replace(work, rounded=alone), None, range(len(self._grid)))
        assert sums is not None  # each chunk is in the sums of a device
        return sums._replace(total=exact.values(sums.total)) if rounded and not alone else sums

    def _run(self, work: Pass, deliver: Deliver | None, chunks: range) -> CohortSums | None:
        """Do the chunks of a pass; if devices fail, on those that are left.

        Returns the sums. Memberships have none; they are delivered by chunk.

        Raises
        ------
        LabelsLost
            A device failed in a division.
        """
        self._usable()
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
        self._passes += 1
        if self._passes == self._next_rebalance:
            # Twice as late each time: speeds are then known better, and moving events costs as much as
            # before.
            self._next_rebalance *= 2
            self._rebalance()
        return sums.total

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


def close_devices(devices: dict[int, CudaDevice]) -> None:
    """Free the memory of devices, each in its own thread; wait at most 10 seconds for a pass in progress."""
    closing = [device.close() for device in devices.values()]
    devices.clear()
    wait(closing, timeout=10.0)
