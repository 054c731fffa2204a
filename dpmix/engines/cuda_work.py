"""The work of a CUDA device in one pass: its input, its output and its timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array
from dpmix.model.streams import Key

Labels = npt.NDArray[np.uint16]


class DeviceFailed(Exception):
    """A device cannot be used any more; the message gives the reason."""


@dataclass(frozen=True)
class Gates:
    """The memberships that a pass computes.

    Attributes
    ----------
    ends : int32 [P]
        For each population, the number of the pass's components in this population and those before it.
    start, stop : int
        The events start, ..., stop - 1.
    """

    ends: npt.NDArray[np.int32]
    start: int
    stop: int


@dataclass(frozen=True)
class Division:
    """The assignment of events to pairs of the pass's components.

    Attributes
    ----------
    split : int32 [2, K of the labels]
        For each component of the labels, the pair and the side of its events
        (`dpmix.model.split_merge.SplitAssignment`).
    word : int
        Word of the random generator.
    labels : uint16 [chunks, CHUNK]
        Labels of all events.
    """

    split: npt.NDArray[np.int32]
    word: int
    labels: Labels


@dataclass(frozen=True)
class LastLabels:
    """The labels of the last draw, which bound the components that can have weight in this one.

    Attributes
    ----------
    labels : uint16 [chunks, CHUNK]
        May be the array that the pass fills: a chunk's labels are read before they are written.
    now : uint16 [K], optional
        The number that the component of each label has now; None: the same.
    """

    labels: Labels
    now: Labels | None = None


@dataclass(frozen=True)
class Pass:
    """The input of a pass over the events; its results depend on this and the events alone.

    Attributes
    ----------
    components : float64 [K, PACK_DIM]
        The mixture in packed rows; with `gates`, sorted by population.
    key : Key, optional
        None for an E step.
    labels : uint16 [chunks, CHUNK], optional
        Array that a draw or an E step fills with the labels of all events.
    gates : Gates, optional
        For memberships.
    division : Division, optional
        For sides of pairs; needs a key.
    last : LastLabels, optional
        For a pruned draw.
    """

    components: Array
    key: Key | None = None
    labels: Labels | None = None
    gates: Gates | None = None
    division: Division | None = None
    last: LastLabels | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that the pass launches."""
        if self.gates:
            return ("memberships",)
        if self.key is None:
            return "expect_totals", "expect_moments"
        sums = "count_labels", "place_labels", "order_events", "accumulate", "add_runs"
        if self.division:
            return "divide", *sums
        return ("draw_sorted", "sum_log_likelihoods", *sums) if self.last else ("draw_labels", *sums)

    @property
    def labels_to_send(self) -> Labels | None:
        """The labels that the kernels read, uint16 [chunks, CHUNK]; None if they read none."""
        before = self.division or self.last
        return before.labels if before else None

    @property
    def n_populations(self) -> int:
        """Number of populations; 0 for a pass without memberships."""
        return len(self.gates.ends) if self.gates else 0


@dataclass(frozen=True)
class Account:
    """The work that a device did in a pass.

    Attributes
    ----------
    chunks : int
        Number of chunks.
    kernels : float
        Seconds in which kernels ran.
    copies : float
        Seconds in which only copies ran.
    work : int
        Multiply-adds of a pruned draw, for each warp those of one of its events.
    """

    chunks: int
    kernels: float
    copies: float
    work: int = 0


Take = Callable[[int], list[int]]
"""Return at most the given number of chunks to do: the device's own in order, none if all are taken."""

Deliver = Callable[[int, npt.NDArray[Any], Array], None]
"""Receive the results of a chunk: its number and two arrays, which are overwritten afterwards.

Draw, E step: moments [K, N_MOMENTS]; sums of log densities [blocks].
Division: moments [K, N_MOMENTS]; sums of log probabilities [pairs, PARTS].
Memberships: memberships [CHUNK, P]; log densities [CHUNK].
"""
