"""The work of CUDA devices in one pass: input, output, timing, and how devices share the chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.shares import ChunkQueue
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Array
from dpmix.model.streams import Key

Labels = npt.NDArray[np.uint16]
SLOTS = 2
"""Passes that may be in progress at a time."""

D = TypeVar("D")
T = TypeVar("T")


class DeviceFailed(Exception):
    """A device cannot be used any more; the message gives the reason."""


@dataclass(frozen=True)
class MembershipWork:
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
    """The assignment of the events of a chain to pairs of the pass's components, by their labels.

    Attributes
    ----------
    split : int32 [2, K of the labels]
        For each component of the labels, the pair and the side of its events
        (`dpmix.model.split_merge.SplitAssignment`).
    word : int
        Word of the random generator.
    """

    split: npt.NDArray[np.int32]
    word: int


SUMMING = "sum_parts", "add_chunks"
"""Kernels that add the sums of chunks."""


@dataclass(frozen=True)
class LastLabels:
    """Use of the chain's last labels, which bound the components that can have weight in a draw.

    Attributes
    ----------
    now : uint16 [K], optional
        The number that the component of each label has now; None: the same.
    is_sorted : bool
        The last pass was a draw, which has sorted the events by label.
    """

    now: Labels | None = None
    is_sorted: bool = False


@dataclass(frozen=True)
class SampleParameters:
    """The parameters of each sample, instead of the mixture's.

    Attributes
    ----------
    log_constants : float64 [S, K]
        log pi_sj + log of the normal density at its mean.
    shifts : float64 [S, D]
        Added to all means.
    """

    log_constants: Array
    shifts: Array


@dataclass(frozen=True)
class Pass:
    """The input of a pass over the events; its results depend on this and the events alone.

    Attributes
    ----------
    components : float64 [K, PACK_DIM]
        The mixture in packed rows; with `gates`, sorted by population.
    samples : SampleParameters, optional
        For mixtures that differ between samples.
    key : Key, optional
        None for an E step.
    chain : int
        Chain whose labels a draw or an E step replaces, and a division reads.
    gates : MembershipWork, optional
        For memberships.
    division : Division, optional
        For sides of pairs; needs a key.
    last : LastLabels, optional
        For a pruned draw. Chunks whose last labels are not on the device are drawn densely.
    """

    components: Array
    samples: SampleParameters | None = None
    key: Key | None = None
    chain: int = 0
    gates: MembershipWork | None = None
    division: Division | None = None
    last: LastLabels | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that the pass launches."""
        if self.gates:
            return ("memberships",)
        adding = (*SUMMING, "copy_rows") if self.samples else SUMMING
        if self.key is None:
            return "expect_totals", "expect_moments", *adding
        sums = "count_labels", "place_labels", "order_events", "accumulate", "add_runs"
        if self.division:
            return "divide", *sums, *adding
        pruned = ("draw_sorted", "sum_log_likelihoods") if self.last else ()
        return "draw_labels", *pruned, *sums, *adding

    def rows(self, layout: Layout, sample: int) -> Array:
        """Return the packed mixture of a sample, float64 [K, PACK_DIM]."""
        if self.samples is None:
            return self.components
        own = self.samples.log_constants[sample], self.samples.shifts[sample]
        packed: Array = layout.of_sample(self.components, *own)
        return packed

    @property
    def reads_labels(self) -> bool:
        """True if the kernels read the chain's labels."""
        return self.division is not None or self.last is not None

    @property
    def writes_labels(self) -> bool:
        """True if the kernels replace the chain's labels."""
        return self.division is None and self.gates is None

    @property
    def n_log_sums(self) -> int:
        """Number of sums of log densities: the log likelihood, or one for each pair of a division."""
        return len(self.components) // 2 if self.division else 1

    @property
    def n_populations(self) -> int:
        """Number of populations; 0 for a pass without memberships."""
        return len(self.gates.ends) if self.gates else 0


class Account(NamedTuple):
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
        Multiply-adds of a pruned draw, for one event of each warp.
    sums : CohortSums, optional
        Sums of these chunks; None for memberships. Without parameters of samples, the total alone. `rows` has
        the samples of one chunk, `cut` all others. The total is a state.
    """

    chunks: int
    kernels: float
    copies: float
    work: int = 0
    sums: CohortSums | None = None


Take = Callable[[int, int], list[int]]
"""Return chunks of one sample to do: at most the first number of the device's own, in order, or at most the
second number of others' chunks; none if all are taken."""

Collect = Callable[[CohortSums], None]
"""Receive the sums of a device's chunks, in its thread. The total is overwritten afterwards."""

Deliver = Callable[[int, npt.NDArray[Any], Array], None]
"""Receive the memberships of a chunk: its number, memberships [CHUNK, P] and log densities [CHUNK].

The arrays are overwritten afterwards.
"""


def serve_all(
    queue: ChunkQueue,
    usable: Callable[[], Mapping[int, D]],
    start: Callable[[int, D], Future[T]],
    done: Callable[[int, T], None],
    failed: Callable[[int, DeviceFailed], None],
) -> None:
    """Let devices do the chunks of a queue; if some fail, those that are left.

    Parameters
    ----------
    queue : ChunkQueue
    usable : callable
        Returns the devices that are left, by number; it raises if none is left.
    start : callable
        Lets a device serve the queue.
    done : callable
        Takes the number of a device and what it returned.
    failed : callable
        Removes a device from those that are left.
    """
    while queue.unfinished():
        running = {
            number: start(number, device) for number, device in usable().items() if queue.has_for(number)
        }
        try:
            # All of them, before any result: a failed device leaves orphans, which the next round gives to
            # the others.
            wait(running.values())
        except BaseException:
            queue.stop()
            raise
        for number, future in running.items():
            try:
                result = future.result()
            except DeviceFailed as error:
                failed(number, error)
                continue
            done(number, result)
