"""Passes in progress on the CUDA devices of an engine, each made by the native threads of the devices."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from dpmix.engines.cuda.work import SLOTS, Labels, Pass
from dpmix.model.mixture import Array, Floats

if TYPE_CHECKING:
    from dpmix.kernels import _cuda_commands  # imported where a device is used

Lists: TypeAlias = "dict[int, tuple[_cuda_commands.Line, _cuda_commands.Program]]"
"""The line of each device, and its list of calls."""


class Shape(NamedTuple):
    """Properties of a pass that the list of a device depends on, with its share and the memory there.

    Attributes
    ----------
    chain, n_components : int
    kernels : tuple of str
    is_sorted, has_now : bool
        As in `dpmix.engines.cuda.work.LastLabels`, for a pruned draw.
    slot : int
    rounded : bool
        The device rounds its sums, which the host reads instead of their state: a quarter of the bytes.
    exact : bool
        Send the mixture in float64, too, for far events.
    """

    chain: int
    n_components: int
    kernels: tuple[str, ...]
    is_sorted: bool
    has_now: bool
    slot: int
    rounded: bool
    exact: bool


class Outcome(NamedTuple):
    """The end of a device's part of a pass; see kernels/cuda_passes.hpp."""

    error: int
    operation: int
    far: bool
    work: int
    kernels_ms: float
    copies_ms: float


@dataclass(frozen=True, eq=False)
class Flight:
    """A pass in progress.

    Attributes
    ----------
    work : Pass
    numbers : list of int
        The devices.
    slot : int
    native : _cuda_commands.Pass
    inputs
        The mixture and the table of a pruned draw, which the threads of the devices read.
    """

    work: Pass
    numbers: list[int]
    slot: int
    native: _cuda_commands.Pass
    inputs: tuple[Floats, Array, Labels]

    def wait(self) -> None:
        """Wait until all devices have ended their parts."""
        self.native.wait()

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """The outcome of each device, after the end of the pass."""
        return dict(zip(self.numbers, map(Outcome._make, self.native.outcomes()), strict=True))


class Flights:
    """The passes in progress of an engine.

    Attributes
    ----------
    turn : Condition
        Whoever uses the engine's state has it. A pass in progress is waited for without it.
    """

    def __init__(self) -> None:
        self.turn = Condition()
        self._free = list(range(SLOTS))[::-1]
        self._flying: list[Flight] = []

    def take_slot(self) -> int:
        """Wait for a slot, and take it; needs `turn`, which others have meanwhile."""
        while not self._free:
            self.turn.wait()
        return self._free.pop()

    def give_slot(self, slot: int) -> None:
        """Give a slot back; needs `turn`."""
        self._free.append(slot)
        self._free.sort(reverse=True)  # the first one is preferred: the second may need memory
        self.turn.notify()

    def start(
        self,
        work: Pass,
        slot: int,
        lists: Lists,
        n_sums: int,
    ) -> Flight:
        """Start a pass on devices, given the line and the list of each; needs `turn`."""
        from dpmix.kernels import _cuda_commands

        rows = work.components.astype(np.float32)
        now = np.zeros(0, np.uint16) if work.last is None or work.last.now is None else work.last.now
        inputs = rows, work.components, now
        values = array("Q", [*(work.key or (0, 0, 0)), *(each.ctypes.data for each in inputs)])
        lines, programs = map(list, zip(*lists.values(), strict=True))
        flight = Flight(work, list(lists), slot, _cuda_commands.Pass(lines, programs, values, n_sums), inputs)
        self._flying.append(flight)
        return flight

    def end(self, flight: Flight) -> None:
        """Wait for a pass, and give its slot back."""
        flight.native.wait()
        with self.turn:
            self._flying.remove(flight)
            self.give_slot(flight.slot)

    def drain(self) -> None:
        """Wait until no device has a pass in progress; with `turn`, none starts after that."""
        for flight in list(self._flying):
            flight.wait()
