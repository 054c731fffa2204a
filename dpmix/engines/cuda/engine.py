"""The CUDA engine: hand-written kernels (kernels/*.cu) on one or more devices, through PyCUDA.

Results depend on the events, the mixture and the key alone. They do not depend on the devices, the chunks per
launch, the assignment of chunks to engines, or whether events stay on the devices. Labels equal the CPU
engine's except where a label's uniform lies within rounding of a step of the cumulative sum.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

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
from dpmix.engines.cuda.devices import available, chosen, devices
from dpmix.engines.cuda.fleet import Fleet, LabelsLost
from dpmix.engines.cuda.flights import Flight, Shape
from dpmix.engines.cuda.pruning import PruningRule
from dpmix.engines.cuda.work import (
    SLOTS,
    Division,
    Labels,
    LastLabels,
    MembershipWork,
    Pass,
    SampleParameters,
)
from dpmix.engines.sums import SummingEngine, division_of, stats_of
from dpmix.kernels import build
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Array, Floats, Ints, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of

__all__ = ["CudaEngine", "available", "chosen", "devices"]

log = logging.getLogger("dpmix")


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


class CudaOptions(TypedDict, total=False):
    """Options of `CudaPasses`."""

    devices: Literal["all"] | Sequence[int]
    pruning: bool
    weight_floor: float
    chunks_in_flight: int | None
    first_event: int
    weights: SampleWeights | None


class CudaPasses(Fleet):
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
        self.n_events, self.n_channels = len(events), int(events.shape[1])
        self._layout = Layout(self.n_channels)
        super().__init__(
            infos,
            events,
            ChunkGrid(starts),
            chunks_in_flight=chunks_in_flight,
            first_event=first_event,
            by_sample=self._by_sample,
            weight_floor=weight_floor,
            weights=weights,
        )
        per_block = self._layout.events_per_block
        evaluated = int((-(-self._grid.sizes // per_block) * per_block).sum())  # by whole blocks
        self._pruning = PruningRule(pruning, self._layout, evaluated)
        self._labelled: dict[int, Labelled] = {}  # by chain

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Backend and devices, for logs and run files."""
        return {"backend": "cuda", "devices": ", ".join(self._names.values())}

    def memberships(self, mixture: Mixture, populations: Ints, start: int, stop: int) -> tuple[Floats, Array]:
        """Return membership probabilities float32 [M, P] and log densities float64 [M].

        Memberships of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        components, samples = self._packed(mixture)
        numbers = checked_populations(populations, len(mixture.means))
        check_range(start, stop, self.n_events)
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
        labels = np.empty(self.n_events, np.int32)
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

    def _packed(self, mixture: Mixture) -> tuple[Array, SampleParameters | None]:
        """Check a mixture and return its packed rows, and the parameters of samples that replace them."""
        return self._layout.pack(*checked_parameters(mixture, self.n_channels)), None

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
            if not self._landed(flight, shares):  # its labels may be of this draw or of the last one
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
