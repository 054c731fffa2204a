"""The part of the data on a worker of a cluster: a range of chunks in the worker's own engine.

Everything here runs on the workers. A part can be made again from its recipe wherever the file of events can
be read. So nothing is lost when a worker dies: another worker makes the part and repeats the latest draw of
its labels.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dask.sizeof import sizeof
from distributed import get_worker

from dpmix.config.engine import EngineConfig
from dpmix.engines import cohort_sums, cpu, exact
from dpmix.engines.cohort import CohortEngine
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import engine as cuda
from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.errors import DataError
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, chain_of
from dpmix.system import memory
from dpmix.system.version import VERSION

FINGERPRINT_ROWS = 256
SHARE_OF_MEMORY = 0.5  # of a worker's available memory; larger events stay in their file


class About(NamedTuple):
    """Properties of a worker. They must be equal for all workers of a run, or draws would differ."""

    version: str
    arithmetic: str
    has_cuda: bool


@dataclass(frozen=True)
class Recipe:
    """The instructions to make a part.

    Attributes
    ----------
    path : str
        NPY file of all events, float32 [N, D].
    chunks, events : (int, int)
        First, and one after the last.
    n_bytes : int
        Size of these events.
    fingerprint : str
        `fingerprint` of its events: a worker may see another file under the same name.
    backend : str
        cpu or cuda.
    config : EngineConfig
    weights : SampleWeights or None
        Weights of these events; None: 1.
    starts : int64 [S + 1] or None
        Starts of the samples of the run, in the hierarchical model.
    neighbours : int
        Number of workers of this run on the same host, including this one; they share its memory.
    """

    path: str
    chunks: tuple[int, int]
    events: tuple[int, int]
    n_bytes: int
    fingerprint: str
    backend: str
    config: EngineConfig
    weights: SampleWeights | None
    starts: Ints | None
    neighbours: int


Pass = tuple[int, Mixture, Key | None]
"""A pass that draws labels: its number in the run, its mixture and its key; an E step has no key.

This is a plain tuple because Dask finds futures in plain tuples only.
"""


class Sums(NamedTuple):
    """Results of a pass over parts: a state of `dpmix.engines.exact`, and the seconds of each part.

    In the hierarchical model, the state comes from `dpmix.engines.cohort_sums`.
    """

    state: Array | CohortSums
    seconds: dict[tuple[int, int], float]


class Part:
    """A range of chunks in an engine, which is made where and when it is first needed.

    When Dask moves a part to another worker, it sends the recipe. `latest` holds, for each chain, the number
    of the pass that drew its labels.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.latest: dict[int, int] = {}
        self._held = 0  # bytes of events in memory

    def __reduce__(self) -> tuple[Callable[[Recipe], Part], tuple[Recipe]]:
        return Part, (self.recipe,)

    def __sizeof__(self) -> int:
        """Return the size for Dask's memory account: a part moved to disk would be made again each time."""
        return self._held

    @cached_property
    def engine(self) -> CpuEngine | CudaEngine | CohortEngine | CudaCohortEngine:
        recipe, worker = self.recipe, get_worker()
        first, stop = recipe.events
        # The file, not the network: a part of the events would be a large message to every worker.
        values = np.load(recipe.path, mmap_mode="r")[first:stop]
        free = memory.available()
        free = min(free, worker.memory_manager.memory_limit or free)
        # All workers of a machine look at the same free memory at the same time.
        fits = recipe.n_bytes < SHARE_OF_MEMORY * free / recipe.neighbours
        values = np.array(values) if fits else values
        self._held = recipe.n_bytes if fits else 0
        options: dict[str, Any] = {
            "weight_floor": recipe.config.weight_floor,
            "first_event": first,
            "weights": recipe.weights,
        }
        in_flight: dict[str, Any] = {"chunks_in_flight": recipe.config.chunks_in_flight}
        if recipe.backend == "cuda":
            options |= {"devices": [0], **in_flight}  # the first visible device is the worker's own
            if recipe.starts is not None:
                return CudaCohortEngine(values, recipe.starts, **options)
            return CudaEngine(values, **options)
        options |= {"threads": worker.state.nthreads, "pruning": recipe.config.pruning}
        options |= {} if fits else {"scratch": Path(worker.local_directory)}
        if recipe.starts is not None:
            return CohortEngine(values, recipe.starts, **options)
        return CpuEngine(values, **options, **in_flight)

    def run(self, work: Pass) -> Array | CohortSums:
        """Do a pass that draws labels, and return its sums."""
        number, mixture, key = work
        chain = chain_of(key)
        # Not known during the pass: one that fails half way leaves labels of neither draw.
        self.latest.pop(chain, None)
        engine = self.engine
        state = engine.expect_sums(mixture) if key is None else engine.draw_sums(mixture, key)
        self.latest[chain] = number
        return state

    def after(self, before: Pass | None) -> Part:
        """Return the part in its state after a pass; the pass is repeated if another worker had done it."""
        if before is not None and self.latest.get(chain_of(before[2])) != before[0]:
            self.run(before)
        return self


@sizeof.register(Mixture)  # type: ignore[untyped-decorator]
def size_of_mixture(mixture: Mixture) -> int:
    """Return the bytes of its arrays, for Dask's memory account and choice of a worker."""
    arrays = [field for field in vars(mixture).values() if isinstance(field, np.ndarray)]
    return sum(array.nbytes for array in [*arrays, *(mixture.samples or ())])


def dask_setup(worker: object) -> None:
    """Ignore Ctrl-C in each process of a cluster of this machine: it is meant for the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def about() -> About:
    """Return the properties of this worker."""
    isas = cpu.instruction_sets()
    arithmetic = "without fused multiply-add" if isas[:1] == ["v2"] else "with fused multiply-add"
    return About(VERSION, arithmetic, cuda.available()[0])


def fingerprint(path: str, events: tuple[int, int]) -> str:
    """Return the SHA-256 of 256 evenly spaced events of a range, the range and the shape of all events."""
    held = np.load(path, mmap_mode="r")
    rows = np.linspace(events[0], events[1] - 1, FINGERPRINT_ROWS).astype(np.int64)
    return hashlib.sha256(repr((held.shape, events)).encode() + held[rows].tobytes()).hexdigest()


def load(recipe: Recipe) -> Part:
    """Make a part.

    Raises
    ------
    DataError
        The file of events cannot be read here, or is another file.
    """
    remedy = "name a folder that every worker sees in engine.scratch"
    try:
        here = fingerprint(recipe.path, recipe.events)
    except (OSError, ValueError) as error:
        raise DataError(f"{recipe.path}: cannot be read by a worker ({error}); {remedy}") from None
    if here != recipe.fingerprint:
        raise DataError(f"{recipe.path}: another file where a worker is; {remedy}")
    part = Part(recipe)
    assert part.engine  # made now, not in the first pass
    return part


def as_is(mixture: Mixture) -> Mixture:
    """Hold the parameters of a pass on a worker; the others fetch them there and from one another."""
    return mixture


def sums(part: Part, before: Pass | None, work: Pass) -> Sums:
    """Draw the labels of a part, or do its E step, and return the sums."""
    began = time.perf_counter()
    state = part.after(before).run(work)
    return Sums(state, {part.recipe.chunks: time.perf_counter() - began})


def divide(part: Part, before: Pass, split: SplitAssignment, mixture: Mixture, key: Key) -> Sums:
    """Assign the events of a part to pairs and return the sums."""
    began = time.perf_counter()
    state = part.after(before).engine.divide_sums(split, mixture, key)
    return Sums(state, {part.recipe.chunks: time.perf_counter() - began})


def memberships(
    part: Part, mixture: Mixture, populations: Ints, start: int, stop: int
) -> tuple[Floats, Array]:
    """Return memberships and log densities of events, numbered within the part."""
    return part.engine.memberships(mixture, populations, start, stop)


def labels(part: Part, before: Pass, chain: int) -> npt.NDArray[np.int32]:
    """Return the labels of a part."""
    return part.after(before).engine.labels(chain)


def merged(several: list[Sums]) -> Sums:
    """Return the sums of several parts; their order does not matter."""
    return reduce(_both, several)


def _both(one: Sums, other: Sums) -> Sums:
    """Return the sums of two parts, in new arrays: Dask may use the arrays of a part again."""
    seconds = one.seconds | other.seconds
    if isinstance(one.state, CohortSums):
        assert isinstance(other.state, CohortSums)
        return Sums(cohort_sums.merged(one.state, other.state), seconds)
    assert not isinstance(other.state, CohortSums)
    state = one.state.copy()
    exact.merge(state, other.state)
    return Sums(state, seconds)
