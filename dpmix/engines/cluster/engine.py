"""The cluster engine: chunks of the events on the workers of a Dask cluster, each with its own engine.

A pass is one message to the workers and one back. The parameters go to one worker, where the others fetch
them. The statistics are added in a tree on their way back. The sums do not depend on order
(dpmix.engines.exact), so the results are bit for bit the same as in one process with an engine of the same
kind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Future

from dpmix.config.engine import EngineConfig
from dpmix.engines import cohort_sums, exact
from dpmix.engines.checks import (
    check_events,
    check_options,
    check_range,
    check_samples,
    check_weights,
    checked_parameters,
    checked_populations,
    checked_split,
)
from dpmix.engines.cluster import part
from dpmix.engines.cluster.connect import closing_quietly, connected, explained_errors, local_cluster
from dpmix.engines.cluster.part import Sums
from dpmix.engines.cluster.placement import Held, Placement
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.sums import division_of, stats_of
from dpmix.model.mixture import Array, Floats, Ints, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of

log = logging.getLogger("dpmix")

FAN_IN = 8  # states that one task of the tree adds
# A worker is late after this many times the time that half of the workers took, plus these seconds.
LATE_TIMES, LATE_SECONDS = 4.0, 20.0
TRANSFER_SECONDS = 20.0  # limit for the transfer of a result; doubled after each failure


class ClusterEngine:
    """Engine on the workers of a Dask cluster (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D], C-contiguous, finite
        An `np.memmap` of an NPY file that every worker can read under the same name.
    config : EngineConfig
        ``scheduler`` or ``cluster``, ``pruning``, ``weight_floor``, ``chunks_in_flight``.
    weights : SampleWeights, optional
        Weights of the events. Default: every event has weight 1.
    starts : int64 [S + 1], optional
        As in `dpmix.engines.cohort.CohortEngine`, for the hierarchical model. Every sample then has its own
        grid of chunks.

    Raises
    ------
    ValueError
        Events are not as described here.
    DpmixError
        No scheduler answers, there is no worker, workers are not alike, or they cannot read the events.

    Notes
    -----
    Each worker runs the CPU engine on all its threads, or the CUDA engine if every worker has a GPU. It holds
    a range of chunks, at first in proportion to its threads, then to its measured speed. The ranges change
    when workers join or leave. If a worker is lost during a pass, Dask repeats its part on another worker. If
    a worker is late, the others do its chunks.
    """

    passes_at_once = 1

    def __init__(
        self,
        events: npt.NDArray[np.float32],
        config: EngineConfig,
        weights: SampleWeights | None = None,
        starts: Ints | None = None,
    ) -> None:
        check_events(events)
        check_options(len(events), config.weight_floor, config.chunks_in_flight, first_event=0)
        check_weights(weights, len(events))
        if not isinstance(events, np.memmap) or events.filename is None:
            raise ValueError("events: need an np.memmap of an NPY file")
        self.n_events, self.n_channels = events.shape
        self._n_samples = None if starts is None else len(starts) - 1
        self._numbers = count()
        self._latest: dict[int, part.Pass] = {}  # for each chain, the pass that drew its labels
        self._components: dict[int, int] = {}  # number of components of these labels
        self._patience = TRANSFER_SECONDS
        self._kernel_seconds = 0.0
        with ExitStack() as stack:
            if config.scheduler is None:
                local = stack.enter_context(local_cluster(config.cluster))
                address = local.scheduler_address
                self._name = f"of this machine ({address})"
                log.info("cluster: dashboard at %s", local.dashboard_link)
            else:
                address = self._name = config.scheduler
            self._client = stack.enter_context(closing_quietly(connected(address)))
            path = str(Path(events.filename).resolve())
            with self._explained_errors():
                self._placement = Placement(self._client, path, events.shape, config, weights, starts)
            self._closing = stack.pop_all()

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Backend, scheduler and workers, for logs and run files; ``engine`` is the workers' backend."""
        return {
            "backend": "cluster",
            "engine": self._placement.backend,
            "scheduler": self._name,
            "workers": self._placement.n_workers,
        }

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes in which the slowest worker worked; the rest of a pass is messages."""
        return {"kernels": self._kernel_seconds}

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label given the mixture, and sum the statistics of the events by label.

        Gibbs step 1; Suchard et al. (2010), J. Comput. Graph. Stat. 19:419, appendix A.
        """
        return self._statistics(mixture, key)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities (the E step)."""
        return self._statistics(mixture, None)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide events among pairs of components; see `dpmix.engines.base.Engine.divide`."""
        self._check(mixture)
        split = checked_split(split, len(mixture.means))
        if self._components.get(key.chain) != len(split.pairs):
            raise ValueError(f"split: chain {key.chain} has no labels of {len(split.pairs)} components")
        with self._explained_errors():
            before = self._latest[key.chain]
            state, _ = self._summed(
                mixture,
                lambda held, sent: self._placement.submit(part.divide, held, before, split, sent, key),
            )
        if isinstance(state, CohortSums):
            return cohort_sums.division_of(state, mixture)
        return division_of(exact.values(state), mixture)

    def memberships(self, mixture: Mixture, populations: Ints, start: int, stop: int) -> tuple[Floats, Array]:
        """Return membership probabilities float32 [M, P] and log densities float64 [M].

        Memberships of the events start, ..., stop - 1; see `dpmix.engines.base.Engine.memberships`.
        """
        self._check(mixture)
        checked_populations(populations, len(mixture.means))
        check_range(start, stop, self.n_events)
        with self._explained_errors():
            sent = self._sent(mixture)

            def start_on(held: Held) -> list[Future]:
                offset, end = self._placement.events_of(held.chunks)
                here = max(start, offset) - offset, min(stop, end) - offset
                if here[0] >= here[1]:
                    return []
                return [self._placement.submit(part.memberships, held, sent, populations, *here)]

            shares, log_densities = zip(*self._gathered(start_on), strict=True)
        return np.concatenate(shares), np.concatenate(log_densities)

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Return the labels of one chain, int32 [N].

        They are its latest draw, or the most probable labels after an E step.

        Raises
        ------
        ValueError
            The chain has no labels yet.
        """
        if chain not in self._latest:
            raise ValueError(f"chain {chain} has no labels yet")
        before = self._latest[chain]
        with self._explained_errors():
            return np.concatenate(
                self._gathered(lambda held: [self._placement.submit(part.labels, held, before, chain)])
            )

    def close(self) -> None:
        """Release the workers' parts; end the cluster if it was started on this machine."""
        self._placement.release()
        self._latest = {}
        self._closing.close()

    def _explained_errors(self) -> AbstractContextManager[None]:
        return explained_errors(self._client, self._name)

    def _statistics(self, mixture: Mixture, key: Key | None) -> Stats:
        self._check(mixture)
        chain = chain_of(key)
        with self._explained_errors():
            self._placement.update()
            before = self._latest.get(chain) if key is None else None  # labels order the events of an E step
            number = next(self._numbers)
            state, sent = self._summed(
                mixture,
                lambda held, sent: self._placement.submit(part.sums, held, before, (number, sent, key)),
            )
        self._latest[chain], self._components[chain] = (number, sent, key), len(mixture.means)
        if isinstance(state, CohortSums):
            return cohort_sums.stats_of(state, mixture)
        return stats_of(exact.values(state), mixture)

    def _check(self, mixture: Mixture) -> None:
        """Raise ValueError where a mixture does not fit the channels or the samples."""
        if self._n_samples is not None:
            check_samples(mixture, self._n_samples)
            mixture = replace(mixture, samples=None)
        checked_parameters(mixture, self.n_channels)

    def _summed(
        self, mixture: Mixture, start_on: Callable[[Held, Future], Future]
    ) -> tuple[Array | CohortSums, Future]:
        """Return the sums of a pass over all parts, and the parameters sent.

        `start_on` starts the pass on one part, given the part and the parameters.
        """
        leaves: dict[Held, Future] = {}
        total = None
        while total is None:
            sent = self._sent(mixture)
            # Parts that stayed where they are keep their pass, done or in progress; only moved ones start
            # again.
            leaves = {held: leaves.get(held) or start_on(held, sent) for held in self._placement.parts}
            total = self._awaited(self._tree(leaves.values()), leaves)
        self._kernel_seconds += max(total.seconds.values())
        self._placement.note(total.seconds)
        return total.state, sent

    def _awaited(self, root: Future, leaves: Mapping[Held, Future]) -> Sums | None:
        """Wait for the sums of a pass; None if chunks were redistributed meanwhile."""
        began, half = time.monotonic(), None
        ready: dict[Held, float] = {}  # since when a part exists: it may have to be made first, or made again
        while True:
            try:
                total: Sums = self._result(root)
                return total
            except TimeoutError:
                now = time.monotonic()
            ready = {held: ready.get(held, now) for held in leaves if held.future.done()}
            if half is None and 2 * sum(leaf.done() for leaf in leaves.values()) >= len(leaves):
                half = now - began
            # By the others, not by a fixed time: what a pass takes depends on the data.
            limit = np.inf if half is None else LATE_TIMES * half + LATE_SECONDS
            late = [held for held in ready if now - ready[held] > limit and not leaves[held].done()]
            if self._placement.redistribute({held.worker: leaves[held] for held in late}):
                return None

    def _result(self, task: Future) -> Any:
        """Return the result of a task.

        Raises
        ------
        TimeoutError
            The task is not done within a second, or the transfer of its result failed or takes too long.
        """
        task.exception(timeout=1.0)
        try:
            return task.result(timeout=self._patience)
        except TimeoutError:
            self._patience *= 2.0
            raise

    def _gathered(self, start_on: Callable[[Held], list[Future]]) -> list[Any]:
        """Return the results of the tasks that `start_on` starts on each part, in the order of the events."""
        tasks = [task for held in self._placement.parts for task in start_on(held)]
        found: list[Any] = []
        while len(found) < len(tasks):
            try:
                found.append(self._result(tasks[len(found)]))
            except TimeoutError:
                if self._placement.redistribute({}):
                    tasks = [task for held in self._placement.parts for task in start_on(held)]
                    # From the start: the parts are other ranges of events now.
                    found = []
        return found

    def _tree(self, leaves: Iterable[Future]) -> Future:
        """Add the sums of all leaves, `FAN_IN` at a time."""
        level = list(leaves)
        while len(level) > 1:
            groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            level = [self._placement.submit_anywhere(part.merged, group) for group in groups]
        return level[0]

    def _sent(self, mixture: Mixture) -> Future:
        """Send the parameters of a pass to a worker."""
        return self._placement.submit_anywhere(part.as_is, mixture)
