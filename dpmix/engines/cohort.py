"""The CPU engine of the hierarchical model: each sample has its own weights and shift of the components.

Every sample has its own grid of chunks, and the parts of a sample are events of CPU engines with one thread
each, which work side by side. A part evaluates the mixture with the weights of its sample and with the means
moved by its shift. So kernels, pruning and random numbers are those of `dpmix.engines.cpu`, and there is no
array of events x samples. Results do not depend on threads or on the division of samples into parts: sums are
added without regard to order (dpmix.engines.cohort_sums). An engine may hold a range of the events of a run,
cut at edges of chunks (`chunk_edges`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.engines import cohort_sums, exact
from dpmix.engines.checks import check_events, check_range, check_samples, check_weights
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.sums import zeros
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Array, Ints, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key
from dpmix.system.cores import usable_cores

PART_EVENTS = 4 * CHUNK  # so that a large sample keeps several threads busy


class Part(NamedTuple):
    """Some events of one sample, in their engine."""

    sample: int
    start: int
    engine: CpuEngine


class CohortEngine:
    """Engine for mixtures with weights and shifts of samples (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D]
        As of `CpuEngine`.
    starts : int64 [S + 1]
        Ascending, from 0 to the number of events of the run: events starts[s] to starts[s + 1] belong to
        sample s.
    first_event : int
        Number of the first event, one of `chunk_edges`, for an engine that holds a part of the run.
    threads : int, optional
        Default: the number of cores that the process may use.
    pruning, weight_floor, scratch, weights
        As of `CpuEngine`.
    isa : str, optional
        As of `CpuEngine`.

    Raises
    ------
    ValueError, DataError
        As of `CpuEngine`.
    """

    def __init__(
        self,
        events: npt.NDArray[np.float32],
        starts: Ints,
        *,
        threads: int | None = None,
        pruning: bool = True,
        weight_floor: float = 25.0,
        isa: str | None = None,
        scratch: Path | None = None,
        weights: SampleWeights | None = None,
        first_event: int = 0,
    ) -> None:
        check_events(events)
        check_weights(weights, len(events))
        end = first_event + len(events)
        if starts[0] != 0 or starts[-1] < end or (np.diff(starts) < 0).any():
            raise ValueError(f"starts: need numbers ascending from 0 to {end}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads: got {threads}, need at least 1")
        self._n_events, self._n_channels = len(events), int(events.shape[1])
        self._n_samples, self._pruning = len(starts) - 1, pruning
        self._threads = threads or usable_cores()
        self._seconds = 0.0
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(self._threads, "cohort")

        def part(sample: int, start: int, stop: int) -> Part:
            own = None if weights is None else weights.part(start, stop)
            engine = CpuEngine(
                events[start:stop],
                threads=1,
                pruning=pruning,
                weight_floor=weight_floor,
                chunks_in_flight=1,
                isa=isa,
                first_event=first_event + start,
                scratch=scratch,
                weights=own,
            )
            return Part(sample, start, engine)

        own_starts = np.clip(starts, first_event, end) - first_event
        self._cut = {*np.flatnonzero(np.diff(own_starts) < np.diff(starts)).tolist()}
        ranges = [
            (sample, start, min(start + PART_EVENTS, int(end)))
            for sample, (first, end) in enumerate(pairwise(own_starts))
            for start in range(int(first), int(end), PART_EVENTS)
        ]
        self._parts = list(self._pool.map(lambda given: part(*given), ranges))
        self._samples: dict[int, list[Part]] = {}
        for one in self._parts:
            self._samples.setdefault(one.sample, []).append(one)

    @property
    def n_events(self) -> int:
        return self._n_events

    @property
    def n_channels(self) -> int:
        return self._n_channels

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Backend and hardware, for logs and run files."""
        given = self._parts[0].engine.info
        return {**given, "threads": self._threads, "samples": self._n_samples}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds of all passes so far."""
        return {"kernels": self._seconds}

    def draw_sums(self, mixture: Mixture, key: Key) -> CohortSums:
        """Draw every label and return the sums of the events by label."""

        def draw(part: Part, own: Mixture) -> Array:
            return part.engine.draw_sums(own, key, self._zeros(own))

        return self._sum(mixture, draw, 1)

    def expect_sums(self, mixture: Mixture) -> CohortSums:
        """Do the E step and return the sums."""
        return self._sum(mixture, lambda part, own: part.engine.expect_sums(own), 1)

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> CohortSums:
        """Divide events among pairs and return the sums."""
        n_pairs = len(mixture.means) // 2
        return self._sum(mixture, lambda part, own: part.engine.divide_sums(split, own, key), n_pairs)

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label and sum the statistics of the events by label, in all and by sample."""
        return cohort_sums.stats_of(self.draw_sums(mixture, key), mixture)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities, in all and by sample."""
        return cohort_sums.stats_of(self.expect_sums(mixture), mixture)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide the events of some components; see `dpmix.engines.base.Engine.divide`.

        The weights of a pair are those of `mixture` in all samples; `mixture.samples` has the shifts.
        """
        return cohort_sums.division_of(self.divide_sums(split, mixture, key), mixture)

    def memberships(
        self, mixture: Mixture, populations: Ints, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Return membership probabilities and log densities; see `dpmix.engines.base.Engine.memberships`."""
        check_range(start, stop, self._n_events)
        memberships = np.zeros((stop - start, int(populations.max()) + 1), np.float32)
        log_densities = np.empty(stop - start)
        for part in self._parts:
            first, end = max(start, part.start), min(stop, part.start + part.engine.n_events)
            if first < end:
                own, rows = of_sample(mixture, part.sample), slice(first - start, end - start)
                memberships[rows], log_densities[rows] = part.engine.memberships(
                    own, populations, first - part.start, end - part.start
                )
        return memberships, log_densities

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Return the labels of a chain, int32 [N]; see `dpmix.engines.base.Engine.labels`."""
        return np.concatenate([part.engine.labels(chain) for part in self._parts])

    def close(self) -> None:
        """Release the events and every resource; the engine cannot be used afterwards."""
        self._pool.shutdown()
        for part in self._parts:
            part.engine.close()
        self._parts, self._samples = [], {}

    def _sum(self, mixture: Mixture, sums: Callable[[Part, Mixture], Array], n_logs: int) -> CohortSums:
        """Make a pass with all parts; return their sums, with `n_logs` numbers after the moments."""
        check_samples(mixture, self._n_samples)

        def values(part: Part, own: Mixture) -> Array:
            return exact.values(sums(part, own))

        def state(part: Part, own: Mixture) -> Array:
            return sums(part, own).copy()

        def merged(states: Sequence[Future[Array]]) -> Array:
            return reduce(_merged, (one.result() for one in states))

        found, pending = cohort_sums.empty(mixture, n_logs), []
        with self._timed():
            for sample, parts in self._samples.items():
                own = of_sample(mixture, sample)
                if len(parts) == 1 and sample not in self._cut:
                    pending.append(self._pool.submit(values, parts[0], own))
                    continue
                states = [self._pool.submit(state, part, own) for part in parts]
                # It may wait for the states: they were submitted before it, so each has a thread.
                pending.append(self._pool.submit(merged, states))
            pending.reverse()
            for sample, parts in self._samples.items():
                own_sums = pending.pop().result()
                if sample in self._cut:
                    found.cut[sample] = own_sums
                    continue
                own_values = own_sums if len(parts) == 1 else exact.values(own_sums)
                cohort_sums.add_sample(found, sample, own_values, mixture)
        return found

    def _zeros(self, mixture: Mixture) -> Array:
        """Return a state of zeros that this thread of the pool uses again: a new one costs page faults."""
        state = getattr(self._own, "state", None)
        if state is None or state.shape[1] != len(mixture.means) * Layout(self._n_channels).n_moments + 1:
            state = self._own.state = zeros(mixture)
        state[...] = 0.0
        return state

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began


def chunk_edges(starts: Ints) -> Ints:
    """Return the first event of each chunk of each sample, and the number of events, int64 [chunks + 1]."""
    return np.concatenate([*(np.arange(*sample, CHUNK) for sample in pairwise(starts)), starts[-1:]])


def of_sample(mixture: Mixture, sample: int) -> Mixture:
    """Return the mixture of one sample: its weights, and the means moved by its shift.

    A mixture of other components than those of the samples' weights (of pairs) keeps its own weights.
    """
    assert mixture.samples is not None
    weights, shifts = mixture.samples
    log_weights = weights[sample] if weights.shape[1] == len(mixture.means) else mixture.log_weights
    return replace(mixture, log_weights=log_weights, means=mixture.means + shifts[sample], samples=None)


def _merged(state: Array, other: Array) -> Array:
    """Add other sums to a state, and return it."""
    exact.merge(state, other)
    return state
