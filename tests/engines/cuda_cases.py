"""Events, results and measurements that the tests of the CUDA engine share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from cuda_on_cpu import emulator
from engine_contract import (
    Floats,
    assert_same_stats,
    halves,
    problem,
    weights_of,
)

from dpmix.engines.cpu import instruction_sets
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

Emulate = Callable[..., None]
MIB = 1 << 20
FMA = next((isa for isa in ("v4", "v3", "neon") if isa in instruction_sets()), None)
"""Instruction set with the rounding of the devices; None where this processor has no such set."""
needs_fma = pytest.mark.skipif(FMA is None, reason="this processor has no fused multiply-add")


@cache
def several_chunks() -> tuple[Floats, Mixture]:
    return problem(3 * CHUNK + 777, 2, 4)


WEIGHTS = weights_of(3 * CHUNK + 777)
RESIDENT_BYTES = (3 * CHUNK + 777) * 4 * 4 + 4 * 4
"""Size on a device of the padded events of `several_chunks` and of their chunk numbers."""


class BytesMoved:
    """Counter of the bytes copied to and from the first emulated devices within a with statement."""

    def __init__(self, n_devices: int = 1) -> None:
        self._n_devices = n_devices

    def _sums(self) -> tuple[int, int]:
        up, down = zip(*map(emulator.bytes_moved, range(self._n_devices)), strict=True)
        return sum(up), sum(down)

    def __enter__(self) -> BytesMoved:
        self._before = self._sums()
        return self

    def __exit__(self, *_: object) -> None:
        self.up, self.down = np.subtract(self._sums(), self._before)


Results = tuple[list[Stats], list[np.ndarray]]
SPLIT = SplitAssignment(np.array([1, 0, -1, 1], np.int32), np.array([-1, -1, 0, 1], np.int8), 2)


def results(engine: CudaEngine) -> Results:
    """Return the results of two draws, a division and an E step, with labels and log probabilities."""
    _, mixture = several_chunks()
    stats = [engine.draw_labels(mixture, Key(1, 0, iteration)) for iteration in (0, 1)]
    labels = [engine.labels()]
    divided, log_probabilities = engine.divide(SPLIT, halves(mixture, SPLIT, 2), Key(1, 0, 1))
    stats += [divided, engine.expect_labels(mixture)]
    return stats, [*labels, log_probabilities, engine.labels()]


@cache
def expected_results(weights: SampleWeights | None = None) -> Results:
    """Return the results of one device with resident events; needs the fixture `cuda_devices`."""
    engine = CudaEngine(several_chunks()[0], devices=[0], weights=weights)
    made = results(engine)
    engine.close()
    return made


def assert_same_results(got: Results, want: Results) -> None:
    for one, other in zip(got[0], want[0], strict=True):
        assert_same_stats(one, other)
    for mine, theirs in zip(got[1], want[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


Divided = tuple[Stats, np.ndarray]


def divided(engine: CudaEngine) -> Divided:
    """Divide the labels of `drawn`."""
    return engine.divide(SPLIT, halves(several_chunks()[1], SPLIT, 2), Key(1, 0, 1))


def drawn(**options: object) -> CudaEngine:
    """Return an engine that has drawn labels."""
    events, mixture = several_chunks()
    engine = CudaEngine(events, **options)  # type: ignore[arg-type]
    engine.draw_labels(mixture, Key(1, 0, 1))
    return engine


def assert_same_division(got: Divided, want: Divided) -> None:
    assert_same_stats(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])
