"""The CPU engine of the hierarchical model: each sample has its own weights and shift of the components.

Every sample has its own grid of chunks, and the parts of a sample are events of CPU engines with one thread
each, which work side by side. A part evaluates the mixture with the weights of its sample and with the means
moved by its shift. So kernels, pruning and random numbers are as in `dpmix.engines.cpu`, and there is no
array of events x samples. Results do not depend on threads or on the division of samples into parts: sums are
added without regard to order (dpmix.engines.cohort_sums). An engine may hold a range of the events of a run,
cut at edges of chunks (`dpmix.engines.chunk_grid.chunk_edges`).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.engines import cohort_sums, exact
from dpmix.engines.checks import (
    check_constants,
    check_events,
    check_finite,
    check_range,
    check_samples,
    check_weights,
    checked_split,
    numbers_now,
)
from dpmix.engines.chunk_grid import cut_samples, starts_of_part
from dpmix.engines.cohort_sums import CohortSummingEngine, CohortSums
from dpmix.engines.cpu import CpuEngine, NativeMixture, native_mixture
from dpmix.kernels import _cpu
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key
from dpmix.system.cores import usable_cores

PART_EVENTS = 4 * CHUNK  # so that a large sample keeps several threads busy


class SamplePart(NamedTuple):
    """Some events of one sample, in their engine."""

    sample: int
    start: int
    engine: CpuEngine


AddPart = Callable[[SamplePart, NativeMixture, Array, Array | None], None]
"""Make a pass of a part with the mixture of its sample: add to a state, and write rows if they are given."""


class CohortEngine(CohortSummingEngine):
    """Engine for mixtures with weights and shifts of samples (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D]
        As in `CpuEngine`.
    starts : int64 [S + 1]
        Ascending, from 0 to the number of events of the run: events starts[s] to starts[s + 1] belong to
        sample s.
    first_event : int
        Number of the first event, one of `chunk_edges`, for an engine that holds a part of the run.
    threads : int, optional
        Default: the number of cores that the process may use.
    pruning, weight_floor, scratch, weights
        As in `CpuEngine`.
    isa : str, optional
        As in `CpuEngine`.

    Raises
    ------
    ValueError, DataError
        As in `CpuEngine`.
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
        own_starts = starts_of_part(starts, first_event, len(events))
        if threads is not None and threads < 1:
            raise ValueError(f"threads: got {threads}, need at least 1")
        self.n_events, self.n_channels = len(events), int(events.shape[1])
        self._n_samples = len(starts) - 1
        self._threads = threads or usable_cores()
        self._seconds = 0.0
        self._pool = ThreadPoolExecutor(self._threads, "cohort")

        workspaces = _cpu.Workspaces()

        def part(sample: int, start: int, stop: int) -> SamplePart:
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
                workspaces=workspaces,
            )
            return SamplePart(sample, start, engine)

        self._cut = cut_samples(starts, own_starts)
        ranges = [
            (sample, start, min(start + PART_EVENTS, int(end)))
            for sample, (first, end) in enumerate(pairwise(own_starts))
            for start in range(int(first), int(end), PART_EVENTS)
        ]
        self._parts = list(self._pool.map(lambda given: part(*given), ranges))
        self._n_parts = Counter(one.sample for one in self._parts)

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
        now = numbers_now(mixture)
        return self._sum(mixture, lambda part, own, *to: part.engine.add_draw(own, now, key, *to), 1)

    def expect_sums(self, mixture: Mixture) -> CohortSums:
        return self._sum(mixture, lambda part, own, *to: part.engine.add_expected(own, *to), 1)

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> CohortSums:
        n_pairs, checked = len(mixture.means) // 2, checked_split(split, len(mixture.means))
        return self._sum(
            mixture,
            lambda part, own, *to: part.engine.add_division(checked, own, key, *to),
            n_pairs,
        )

    def memberships(
        self, mixture: Mixture, populations: Ints, start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Return membership probabilities and log densities; see `dpmix.engines.base.Engine.memberships`."""
        check_range(start, stop, self.n_events)
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
        self._parts = []

    def _sum(self, mixture: Mixture, add: AddPart, n_logs: int) -> CohortSums:
        """Make a pass with all parts; return their sums, with `n_logs` numbers after the moments."""
        check_samples(mixture, self._n_samples)
        own = native_mixtures(mixture, self.n_channels)
        queue, states = deque(self._parts), _States(self._n_parts)

        def work() -> CohortSums:
            found = cohort_sums.empty(mixture, n_logs)
            while queue:
                try:
                    part = queue.popleft()
                except IndexError:  # another thread took the last one
                    break
                self._add_part(found, part, own[part.sample], add, states, mixture)
            return found

        with self._timed():
            found = [self._pool.submit(work) for _ in range(self._threads)]
            return reduce(cohort_sums.merged, (one.result() for one in found))

    def _add_part(
        self,
        found: CohortSums,
        part: SamplePart,
        own: NativeMixture,
        add: AddPart,
        states: _States,
        mixture: Mixture,
    ) -> None:
        """Add the sums of a part and, if it is the last part of its sample, the rows of the sample."""
        sample, (n_components, dim) = part.sample, mixture.means.shape
        whole = sample not in self._cut
        if whole and self._n_parts[sample] == 1 and part.engine.n_events <= CHUNK:
            rows = found.rows[sample] = np.zeros((n_components, dim + 1))
            add(part, own, found.total, rows)  # one number for each sum, so there is nothing to round
            return
        state = np.zeros_like(found.total)
        add(part, own, state, None)
        exact.merge(found.total, state)
        # Only the state of all parts of a sample may be rounded: rounding each part would make the bits
        # depend on the division into parts.
        merged = states.merged(sample, cohort_sums.state_of_rows(state, mixture))
        if merged is None:
            return
        if whole:
            found.rows[sample] = cohort_sums.rows_of(merged, mixture)
        else:
            found.cut[sample] = merged

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began


def native_mixtures(mixture: Mixture, n_channels: int) -> list[NativeMixture]:
    """Check the mixtures of all samples, as `of_sample` returns them, and let them share their whiteners."""
    assert mixture.samples is not None
    weights, shifts = mixture.samples
    shared = native_mixture(replace(mixture, samples=None), n_channels)
    constants = np.tile(shared.constants, (len(shifts), 1))
    if weights.shape[1] == len(mixture.means):
        constants = weights + mixture.log_norms
    check_constants(constants)
    if not shifts.any():
        return [shared._replace(constants=own) for own in constants]
    means = mixture.means + shifts[:, None]
    check_finite(means)
    return [shared._replace(constants=one, means=own) for one, own in zip(constants, means, strict=True)]


def of_sample(mixture: Mixture, sample: int) -> Mixture:
    """Return the mixture of one sample: its weights, and the means moved by its shift.

    A mixture whose components have no weights by sample (of pairs) keeps its own weights.
    """
    assert mixture.samples is not None
    weights, shifts = mixture.samples
    log_weights = weights[sample] if weights.shape[1] == len(mixture.means) else mixture.log_weights
    return replace(mixture, log_weights=log_weights, means=mixture.means + shifts[sample], samples=None)


class _States:
    """The states of the rows of samples that have several parts, until all parts of a sample are there."""

    def __init__(self, n_parts: Counter[int]) -> None:
        self._n_parts, self._states, self._lock = n_parts, defaultdict[int, list[Array]](list), Lock()

    def merged(self, sample: int, state: Array) -> Array | None:
        """Add the state of a part; return the state of the sample if this was its last part."""
        with self._lock:
            states = self._states[sample]
            states.append(state)
            if len(states) < self._n_parts[sample]:
                return None
        # Outside the lock: nobody else adds to a sample whose last part is here.
        for other in states[:-1]:
            exact.merge(state, other)
        del self._states[sample]
        return state
