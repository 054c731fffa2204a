"""The CPU engine: events in memory or in a file, and passes in native code (kernels/cpu) on all cores.

Results depend on the events, the mixture and the key alone. They do not depend on threads, chunks in flight,
the assignment of chunks to engines, pruning or the instruction set. (One exception: x86-64-v2 has no fused
multiply-add and rounds differently.)
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
    numbers_now,
)
from dpmix.engines.sums import SummingEngine, zeros
from dpmix.errors import DataError
from dpmix.kernels import _cpu
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key
from dpmix.system.cores import usable_cores

BATCH_BYTES = 64 << 20  # BUDGET of kernels/cpu/pass.hpp


def available() -> tuple[bool, str]:
    """Return whether this machine can run the engine, and its hardware or the reason."""
    isas = instruction_sets()
    if not isas:
        return False, f"{platform.machine()} without SSE4.2 (x86-64-v2), which the native code needs"
    return True, f"{platform.machine()} {isas[0]}, {usable_cores()} cores"


def instruction_sets() -> list[str]:
    """Return the instruction sets of this processor that dpmix has code for, best first."""
    return list(_cpu.isas())


def scratch_bytes(
    n_events: int, n_channels: int, n_components: int, threads: int | None, chunks_in_flight: int | None
) -> int:
    """Estimate the working memory of passes, in bytes (kernels/cpu/pass_*.cpp, clearance.cpp).

    Options are as in `CpuEngine`.
    """
    chunks: int = -(-n_events // CHUNK)
    moments = 8 * (1 + n_channels * (n_channels + 3) // 2)
    chunk: int = 8 * CHUNK + (n_components + 32) * moments
    threads = threads or usable_cores()
    in_flight = chunks_in_flight or max(1, min(BATCH_BYTES // chunk, 2 * threads))
    sums = (4 + 1 + 1) * n_components * moments  # states and values; of the present chunk
    near = min(n_components, n_events // n_channels**2)
    clearances = 8 * n_components * (n_channels * (n_channels + 3) + near)
    return min(chunks, in_flight) * chunk + threads * n_components * moments + sums + clearances


class NativeMixture(NamedTuple):
    """A mixture as native passes take it.

    Attributes
    ----------
    constants : float64 [K]
        log pi_j + log of the normal density at its mean.
    means : float64 [K, D]
    whiteners : dpmix.kernels._cpu.Whiteners
        May be shared by mixtures that differ in weights and means.
    """

    constants: Array
    means: Array
    whiteners: _cpu.Whiteners


def native_mixture(mixture: Mixture, n_channels: int) -> NativeMixture:
    """Return a mixture as native passes take it; raises as `checked_parameters`."""
    constants, means, whiteners = checked_parameters(mixture, n_channels)
    return NativeMixture(constants, means, _cpu.Whiteners(whiteners))


class CpuEngine(SummingEngine):
    """Engine on the cores of this machine (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D], C-contiguous, finite
        Held by reference, never copied or changed; D at most 64.
    threads : int, optional
        Default: the number of cores that the process may use.
    pruning : bool
        Skip components as soon as their weight is known to be 0. It switches itself off if that does not pay.
        Labels are the same, bit for bit, either way.
    weight_floor : float
        A component whose log density is this many nats below the event's best component has weight 0.
    chunks_in_flight : int, optional
        Chunks of 65,536 events worked on at a time. Default: one per thread, or fewer if their scratch would
        exceed 64 MB.
    isa : str, optional
        Instruction set, one of ``v2``, ``v3``, ``v4`` (x86-64) or ``neon``. Default: the best one available.
    first_event : int
        Number of the first event, for an engine that holds a part of the data.
    scratch : Path, optional
        Folder for unnamed files with the engine's values of every event, for data larger than memory. Events
        are then an `np.memmap` that does not change.
    weights : SampleWeights, optional
        Weights of the events. Default: every event has weight 1.
    workspaces : dpmix.kernels._cpu.Workspaces, optional
        Working memory that engines share if their passes take turns. Default: its own.

    Raises
    ------
    ValueError
        Events or options are not as described here.
    DataError
        The folder has too little space; also raised in the first pass of a chain.

    Notes
    -----
    Memory in addition to the events: 2 bytes per event, 4 bytes per event and chain, 4 bytes per event if
    events have weights, 4 bytes per event of the range whose memberships were asked for last, and scratch
    that does not grow with N. With a folder, everything that grows with N is in files, except for that range.
    Then 32 MB of them, or a chunk for each thread, are in memory at a time, and a separate thread reads as
    much ahead.

    `draw_labels` is a function of events, mixture and key. The last bits of the results of `expect_labels`
    depend on the order in which events are added. That is the order of the labels of the previous pass of
    chain 0, so `expect_labels` is a function of events, previous mixture and mixture. After loading the
    events again, repeat the last E step; the bits are then the same as in an uninterrupted run.
    """

    def __init__(
        self,
        events: npt.NDArray[np.float32],
        *,
        threads: int | None = None,
        pruning: bool = True,
        weight_floor: float = 25.0,
        chunks_in_flight: int | None = None,
        isa: str | None = None,
        first_event: int = 0,
        scratch: Path | None = None,
        weights: SampleWeights | None = None,
        workspaces: _cpu.Workspaces | None = None,
    ) -> None:
        check_events(events)
        check_options(len(events), weight_floor, chunks_in_flight, first_event)
        check_weights(weights, len(events))
        isas = instruction_sets()
        if not isas:
            raise ValueError(available()[1])
        if isa is not None and isa not in isas:
            raise ValueError(f"isa: got {isa!r}, this processor has {', '.join(isas)}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads: got {threads}, need at least 1")
        self.n_events, self.n_channels = len(events), int(events.shape[1])
        self._isa = isa or isas[0]
        self._threads = threads or usable_cores()
        self._pruning = pruning
        self._seconds = 0.0
        self._scratch = "" if scratch is None else str(scratch)
        mapped = scratch is not None and is_shared_map(events)
        options = self._isa, self._threads, pruning, weight_floor, chunks_in_flight or 0, first_event
        starts, values = (None, None) if weights is None else (weights.starts, weights.values)
        shared = workspaces or _cpu.Workspaces()
        with self._room():
            self._native = _cpu.Engine(events, *options, self._scratch, mapped, starts, values, shared)

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Backend and hardware, for logs and run files."""
        return {"backend": "cpu", "isa": self._isa, "threads": self._threads, "pruning": self._pruning}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds of all passes so far."""
        return {"kernels": self._seconds}

    def draw_sums(self, mixture: Mixture, key: Key) -> Array:
        state = zeros(mixture)
        self.add_draw(native_mixture(mixture, self.n_channels), numbers_now(mixture), key, state)
        return state

    def expect_sums(self, mixture: Mixture) -> Array:
        state = zeros(mixture)
        self.add_expected(native_mixture(mixture, self.n_channels), state)
        return state

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> Array:
        own, state = native_mixture(mixture, self.n_channels), zeros(mixture, len(mixture.means) // 2)
        self.add_division(checked_split(split, len(mixture.means)), own, key, state)
        return state

    # The same passes for mixtures that have been checked. They add to a state. An engine with one chunk also
    # writes `rows`, float64 [K, D + 1]: for each component with events its sum of x - centre, then its count.

    def add_draw(
        self,
        mixture: NativeMixture,
        now: npt.NDArray[np.uint16],
        key: Key,
        state: Array,
        rows: Array | None = None,
    ) -> None:
        """Draw every label; `now` is from `dpmix.engines.checks.numbers_now`."""
        with self._timed():
            self._native.draw_labels(*mixture, now, *key, state, rows)

    def add_expected(self, mixture: NativeMixture, state: Array, rows: Array | None = None) -> None:
        """Do the E step."""
        with self._timed():
            self._native.expect_labels(*mixture, state, rows)

    def add_division(
        self,
        split: SplitAssignment,
        mixture: NativeMixture,
        key: Key,
        state: Array,
        rows: Array | None = None,
    ) -> None:
        """Divide events among pairs; `split` has been checked."""
        with self._timed():
            done = self._native.divide(split.pairs, split.sides, *mixture, *key, split.word, state, rows)
        if not done:
            raise ValueError(f"split: chain {key.chain} has no labels of {len(split.pairs)} components")

    def memberships(
        self, mixture: Mixture, populations: Ints, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Return membership probabilities float32 [M, P] and log densities float64 [M].

        Memberships of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        parameters = native_mixture(mixture, self.n_channels)
        numbers = checked_populations(populations, len(mixture.means))
        check_range(start, stop, self.n_events)
        memberships = np.empty((stop - start, int(numbers.max()) + 1), np.float32)
        log_densities = np.empty(stop - start)
        with self._timed():
            self._native.memberships(*parameters, numbers, start, memberships, log_densities)
        return memberships, log_densities

    def classify(self, mixture: Mixture) -> tuple[npt.NDArray[np.int32], Array]:
        """Return the most probable component of each event, int32 [N], and its log density, float64 [N].

        The labels of chains do not change.
        """
        parameters = native_mixture(mixture, self.n_channels)
        one_population = np.zeros(len(mixture.means), np.int32)
        memberships = np.empty((self.n_events, 1), np.float32)
        log_densities, components = np.empty(self.n_events), np.empty(self.n_events, np.int32)
        with self._timed():
            self._native.memberships(*parameters, one_population, 0, memberships, log_densities, components)
        return components, log_densities

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Return the labels of one chain, int32 [N].

        They are its latest draw, or the most probable labels after an E step.

        Raises
        ------
        ValueError
            The chain has no labels yet.
        """
        labels = np.empty(self.n_events, np.int32)
        if not self._native.labels(chain, labels):
            raise ValueError(f"chain {chain} has no labels yet")
        return labels

    def close(self) -> None:
        """Release the events and every resource; the engine cannot be used afterwards."""
        del self._native

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        with self._room():
            yield
        self._seconds += time.perf_counter() - began

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self._scratch}: cannot hold 2 bytes for each of {self.n_events} events "
                f"({error.strerror}); give another folder in engine.scratch, or use fewer events "
                "(data.max_events)"
            ) from None


def is_shared_map(events: npt.NDArray[np.float32]) -> bool:
    """Return True if events lie in a file together with all their changes, so their pages may be released."""
    return isinstance(events, np.memmap) and events.mode in ("r", "r+", "w+")
