"""The CUDA engine on emulated devices (tests/cuda_on_cpu): the contract of all engines, and its properties.

With DPMIX_TEST_GPU=1, tests that do not need the emulation run on the devices of this machine.
"""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import pytest
from cuda_on_cpu import emulator
from engine_contract import (
    AnyEngine,
    EngineContract,
    Floats,
    assert_near_stats,
    assert_parts_have_the_bits_of_the_whole,
    assert_right_memberships,
    assert_same_stats,
    halves,
    problem,
    split_of,
)
from reference import ReferenceEngine

from dpmix.engines import cuda
from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine, instruction_sets
from dpmix.engines.cuda import CudaEngine
from dpmix.engines.shares import ChunkQueue, interleaved_shares
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK, PARTS, Layout
from dpmix.model.mixture import Mixture, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

Emulate = Callable[..., None]
MIB = 1 << 20

# (N, D, K): the channel counts at which kernels change, ragged tiles of components and blocks of events.
SHAPES = [
    (1, 1, 1),
    (1001, 1, 2),
    (1000, 2, 31),
    (2000, 2, 1000),
    (1600, 5, 32),
    (3000, 14, 256),
    (1500, 16, 33),
    (1201, 17, 32),
    (600, 33, 31),
    (500, 64, 33),
]
FMA = next((isa for isa in ("v4", "v3", "neon") if isa in instruction_sets()), None)


@pytest.mark.usefixtures("cuda_devices")
class TestCuda(EngineContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CudaEngine(events, devices=[0], **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
    def test_draw_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_draw_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
    def test_expectation_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_expectation_agrees_with_the_reference(n, dim, n_components)


# ---- Comparison with the CPU engine


@pytest.mark.skipif(FMA is None, reason="this processor has no fused multiply-add")
@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize(("n", "dim", "n_components"), [*SHAPES, (300, 2, 4096)])
def test_it_agrees_with_the_cpu_engine_label_by_label(n: int, dim: int, n_components: int) -> None:
    events, mixture = problem(n, dim, n_components, spread=0.5)
    cuda_engine, cpu_engine = CudaEngine(events, devices=[0]), CpuEngine(events, isa=FMA)
    key = Key(seed=7, chain=0, iteration=3)
    got, want = cuda_engine.draw_labels(mixture, key), cpu_engine.draw_labels(mixture, key)
    moved = cuda_engine.labels() != cpu_engine.labels()
    assert (ReferenceEngine(events).step_distances(mixture, key)[moved] < 1e-5).all()
    if not moved.any():
        assert_near_stats(got, want, n)
    assert_near_stats(cuda_engine.expect_labels(mixture), cpu_engine.expect_labels(mixture), n)
    assert (cuda_engine.labels() != cpu_engine.labels()).sum() <= 1  # two components equally probable
    populations = np.arange(n_components) * 7 % 11
    engines = (cuda_engine, cpu_engine)
    (got_rows, got_logs), (rows, logs) = (e.memberships(mixture, populations, 0, n) for e in engines)
    np.testing.assert_allclose(got_rows, rows, rtol=1e-5, atol=1e-6)
    rounding = 1e-6 + 2e-9 * n_components  # of float32 sums over the components
    np.testing.assert_allclose(got_logs, logs, rtol=5e-7, atol=rounding)


# ---- Choices that do not change a bit


@cache
def several_chunks() -> tuple[Floats, Mixture]:
    return problem(3 * CHUNK + 777, 2, 4)


RESIDENT_BYTES = 4 * (CHUNK * 4 * 4 + 4)
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
def expected_results() -> Results:
    """Return the results of one device with resident events; needs the fixture `cuda_devices`."""
    engine = CudaEngine(several_chunks()[0], devices=[0])
    made = results(engine)
    engine.close()
    return made


def assert_same_results(got: Results, want: Results) -> None:
    for one, other in zip(got[0], want[0], strict=True):
        assert_same_stats(one, other)
    for mine, theirs in zip(got[1], want[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_expected_is_right(cuda_devices: Emulate) -> None:
    events, mixture = several_chunks()
    stats, labels = expected_results()
    reference = ReferenceEngine(events)
    for iteration in (0, 1):
        want = reference.draw_labels(mixture, Key(1, 0, iteration))
        np.testing.assert_allclose(stats[iteration].counts, want.counts, atol=3)
    moved = labels[0] != reference.labels()
    assert (reference.step_distances(mixture, Key(1, 0, 1))[moved] < 1e-4).all()
    reference._labels[0] = labels[0]
    divided, log_probabilities = reference.divide(SPLIT, halves(mixture, SPLIT, 2), Key(1, 0, 1))
    assert divided.counts.min() > 5000
    np.testing.assert_allclose(stats[2].counts, divided.counts, atol=3)
    np.testing.assert_allclose(labels[1], log_probabilities, rtol=1e-5)
    assert_near_stats(stats[3], reference.expect_labels(mixture), len(events))


@pytest.mark.parametrize("devices", [[1], [0, 1], [2, 0, 1]])
def test_devices_do_not_change_a_bit(cuda_devices: Emulate, devices: list[int]) -> None:
    cuda_devices(1 + max(devices))
    want = expected_results()
    engine = CudaEngine(several_chunks()[0], devices=devices)
    assert_same_results(results(engine), want)


@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize("chunks", [1, 3, 100])
def test_batches_do_not_change_a_bit(chunks: int) -> None:
    want = expected_results()
    assert_same_results(results(CudaEngine(several_chunks()[0], devices=[0], chunks_in_flight=chunks)), want)


@pytest.mark.parametrize("order", [1, 5])
def test_the_order_of_threads_does_not_change_a_bit(emulated_devices: Emulate, order: int) -> None:
    want = expected_results()
    emulated_devices(2, order=order, threads=1)
    assert_same_results(results(CudaEngine(several_chunks()[0])), want)


@pytest.mark.parametrize("dim", [5, 14, 33])
def test_the_order_of_threads_does_not_change_a_bit_in_many_channels(
    emulated_devices: Emulate, dim: int
) -> None:
    events, mixture = problem(700, dim, 70, spread=0.3)
    made = []
    for order in (0, 1, 9):
        emulated_devices(order=order)
        engine = CudaEngine(events)
        stats = [engine.draw_labels(mixture, Key(1, 0, 0))]
        split, n_pairs = split_of(70)
        divided, log_probabilities = engine.divide(split, halves(mixture, split, n_pairs), Key(1, 0, 0))
        stats += [divided, engine.expect_labels(mixture)]
        memberships = engine.memberships(mixture, np.arange(70) % 9, 10, 690)
        made.append((stats, [log_probabilities, engine.labels(), *memberships]))
    assert_same_results(made[1], made[0])
    assert_same_results(made[2], made[0])


@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize("cut", [1, 2])
def test_parts_of_the_chunks_have_the_bits_of_the_whole(cut: int) -> None:
    events, mixture = several_chunks()
    _, other = problem(100, 2, 4, seed=1)
    parts = [
        CudaEngine(events[: cut * CHUNK], devices=[0]),
        CudaEngine(events[cut * CHUNK :], devices=[0], first_event=cut * CHUNK, chunks_in_flight=1),
    ]
    whole = CudaEngine(events, devices=[0])
    assert_parts_have_the_bits_of_the_whole(whole, parts, (mixture, other), seed=cut)


# ---- Divisions


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


@pytest.mark.parametrize(
    "fail",
    [
        "0:cuLaunchKernel:1",
        "1:cuLaunchKernel:2,0:cuMemcpyHtoD:1",
        "0:cuMemcpyHtoDAsync:2",
        "2:cuMemsetD32Async:2",
        "1:cuMemcpyDtoHAsync:2,2:cuEventRecord:3",
        "0:cuEventSynchronize:1,2:cuStreamWaitEvent:1",
    ],
)
def test_the_others_take_over_a_division(
    emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    want, labels = expected_results(), expected_results()[1][0]
    emulated_devices(3)
    engine = drawn(chunks_in_flight=1)
    emulated_devices(3, fail=fail)
    with caplog.at_level(logging.WARNING, "dpmix"):
        for _ in range(2):
            assert_same_division(divided(engine), (want[0][2], want[1][1]))
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")
    np.testing.assert_array_equal(engine.labels(), labels)


def test_labels_outlive_the_devices(emulated_devices: Emulate) -> None:
    labels, engine = expected_results()[1][0], drawn()
    emulated_devices(fail="0:cuLaunchKernel:1")
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        divided(engine)
    np.testing.assert_array_equal(engine.labels(), labels)


def test_a_pass_that_did_not_end_leaves_no_labels(emulated_devices: Emulate) -> None:
    engine = drawn()
    emulated_devices(fail="0:cuLaunchKernel:3")
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        engine.draw_labels(several_chunks()[1], Key(1, 0, 2))
    with pytest.raises(ValueError, match="chain 0 has no labels"):
        engine.labels()
    with pytest.raises(ValueError, match="chain 0 has no labels of 4 components"):
        divided(engine)


def test_redistributed_chunks_keep_their_labels(cuda_devices: Emulate) -> None:
    want = expected_results()
    cuda_devices(2)
    engine = drawn(devices=[0, 1])
    engine._shares = {0: [3], 1: [0, 1, 2]}
    assert_same_division(divided(engine), (want[0][2], want[1][1]))


@pytest.mark.usefixtures("emulated_devices")
def test_a_division_of_far_events_is_done_again_with_the_exact_mixture() -> None:
    """The two sides of a pair are equally far from its events, in opposite directions."""
    events, mixture = several_chunks()
    two = halves(mixture, SPLIT, 2, apart=0.0)
    away = replace(two, means=two.means + np.array([[-2e3, 0.0], [2e3, 0.0]] * 2))
    engine, cpu_engine, key = drawn(devices=[0]), CpuEngine(events), Key(1, 0, 1)
    cpu_engine.draw_labels(mixture, key)
    assert not engine._devices[0]._has_far
    size, rest = 4 * Layout(2).pack_dim * 4, 2 * 4 * 4 + 4 * CHUNK * 2
    with BytesMoved() as moved:
        first = engine.divide(SPLIT, away, key)
    assert moved.up == size + 2 * 2 * size + rest  # for each of two batches
    with BytesMoved() as moved:
        assert_same_division(engine.divide(SPLIT, away, key), first)
    assert moved.up == size + 2 * size + rest
    want = cpu_engine.divide(SPLIT, away, key)
    assert want[0].counts.min() > 5000
    np.testing.assert_allclose(first[0].counts, want[0].counts, atol=3)
    assert np.isneginf(want[1][1])  # all events of a component were given the same side
    np.testing.assert_allclose(first[1], want[1], rtol=1e-5)


@pytest.mark.usefixtures("cuda_devices")
def test_there_may_be_more_pairs_than_labels() -> None:
    """Some pairs have no events, and some of these have no component."""
    events, mixture = problem(3000, 2, 4)
    _, many = problem(10, 2, 60)
    split = SPLIT._replace(pairs=np.array([29, 0, -1, 29], np.int32))
    engines, made = (CudaEngine(events, devices=[0]), CpuEngine(events)), []
    for engine in engines:
        engine.draw_labels(mixture, Key(1, 0, 0))
        made.append(engine.divide(split, many, Key(1, 0, 0)))
    (got, logs), (want, want_logs) = made
    np.testing.assert_array_equal(got.counts, want.counts)
    assert (got.counts[2:-2] == 0).all()
    np.testing.assert_allclose(logs, want_logs, rtol=1e-5)
    with pytest.raises(ValueError, match=r"^split: got a mixture of 3 components"):
        engines[0].divide(
            split,
            Mixture(many.log_weights[:3], many.means[:3], many.whiteners[:3], many.log_norms[:3]),
            Key(1, 0, 0),
        )


# ---- Memberships


POPULATIONS = np.array([2, 0, 2, 4])
RANGES = [
    (0, 3 * CHUNK + 777),
    (CHUNK - 3, 2 * CHUNK + 5),
    (2 * CHUNK, 3 * CHUNK),
    (3 * CHUNK + 600, 3 * CHUNK + 601),
]


def gated(engine: CudaEngine) -> list[np.ndarray]:
    """Return memberships and log densities of some ranges."""
    mixture = several_chunks()[1]
    return list(chain.from_iterable(engine.memberships(mixture, POPULATIONS, *part) for part in RANGES))


@cache
def expected_gated() -> list[np.ndarray]:
    """Return the results of one device with resident events; needs the fixture `cuda_devices`."""
    engine = CudaEngine(several_chunks()[0], devices=[0])
    made = gated(engine)
    engine.close()
    return made


def assert_gated_as_expected(engine: CudaEngine) -> None:
    for got, want in zip(gated(engine), expected_gated(), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("cuda_devices")
def test_expected_memberships_are_right() -> None:
    events, mixture = several_chunks()
    assert_right_memberships(CudaEngine(events, devices=[0]), events, mixture, POPULATIONS)
    made = expected_gated()
    for (start, stop), rows, log_densities in zip(RANGES, made[::2], made[1::2], strict=True):
        np.testing.assert_array_equal(rows, made[0][start:stop])
        np.testing.assert_array_equal(log_densities, made[1][start:stop])


@pytest.mark.parametrize("devices", [[1], [0, 1], [2, 0, 1]])
@pytest.mark.parametrize("chunks", [1, 3])
def test_devices_and_batches_do_not_change_a_bit_of_memberships(
    cuda_devices: Emulate, devices: list[int], chunks: int
) -> None:
    cuda_devices(1 + max(devices))
    assert_gated_as_expected(CudaEngine(several_chunks()[0], devices=devices, chunks_in_flight=chunks))


@pytest.mark.parametrize("order", [1, 5])
def test_the_order_of_threads_does_not_change_a_bit_of_memberships(
    emulated_devices: Emulate, order: int
) -> None:
    expected_gated()
    emulated_devices(2, order=order, threads=1)
    assert_gated_as_expected(CudaEngine(several_chunks()[0]))


def test_memberships_of_events_that_do_not_fit(
    emulated_devices: Emulate, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk's memberships take 1.25 MiB. Resident events are released if memberships need their memory."""
    expected_gated()
    emulated_devices(memory=8 * MIB)
    engine = CudaEngine(several_chunks()[0], chunks_in_flight=1)
    engine.draw_labels(several_chunks()[1], Key(1, 0, 0))
    assert not caplog.messages
    emulated_devices(memory=6 * MIB)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_gated_as_expected(engine)
    assert "short of memory: events pass through it" in caplog.text
    emulated_devices(memory=2 * MIB)
    with pytest.raises(
        DpmixError, match="out of memory: not one chunk with 4 components and 5 populations fits"
    ):
        gated(CudaEngine(several_chunks()[0]))


@pytest.mark.parametrize(
    "fail",
    [
        "0:cuLaunchKernel:1",
        "0:cuMemcpyDtoHAsync:2",
        "1:cuEventSynchronize:1",
        "1:cuLaunchKernel:2,0:cuLaunchKernel:4",
        "2:cuMemAlloc:9",
        "0:cuMemcpyHtoD:1,2:cuStreamWaitEvent:2",
    ],
)
def test_the_others_take_over_memberships(
    emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected_gated()
    emulated_devices(3, fail=fail)
    engine = CudaEngine(several_chunks()[0], chunks_in_flight=1)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_gated_as_expected(engine)
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")


@pytest.mark.usefixtures("emulated_devices")
def test_memberships_of_far_events_have_the_exact_mixture_sent() -> None:
    events, mixture = several_chunks()
    far = events.copy()
    far[2 * CHUNK + 5 :: 1000] += 1e6
    engine, cpu_engine = CudaEngine(far, devices=[0]), CpuEngine(far)
    size = 4 * Layout(2).pack_dim * 4 + 5 * 4
    sent = (RESIDENT_BYTES + size, 3 * size - 2 * 5 * 4, 3 * size - 2 * 5 * 4)
    for start, expected in zip((0, CHUNK, 0), sent, strict=True):
        stop = start + CHUNK + 9
        with BytesMoved() as moved:
            rows, log_densities = engine.memberships(mixture, POPULATIONS, start, stop)
        assert moved.up == expected
        want, want_densities = cpu_engine.memberships(mixture, POPULATIONS, start, stop)
        np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(log_densities, want_densities, rtol=5e-7, atol=1e-6)


def test_room_is_made_for_populations_and_for_components(emulated_devices: Emulate) -> None:
    events, few = several_chunks()
    _, many = problem(10, 2, 40)
    engine, cpu_engine = CudaEngine(events), CpuEngine(events)
    for mixture, populations in ((few, 2), (few, 4), (many, 3), (few, 1), (many, 40), (few, 4)):
        numbers = np.arange(len(mixture.means)) % populations
        rows, _ = engine.memberships(mixture, numbers, 70_000, 70_500)
        want, _ = cpu_engine.memberships(mixture, numbers, 70_000, 70_500)
        np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-6)
        engine.draw_labels(mixture, Key(1, 0, 0))
    lanes = engine._devices[0]._memory.lanes
    engine.memberships(few, np.zeros(4, int), 0, 5)
    assert engine._devices[0]._memory.lanes is lanes


def test_only_devices_with_events_of_the_range_work(emulated_devices: Emulate) -> None:
    emulated_devices(2)
    engine = CudaEngine(several_chunks()[0])
    assert engine._shares == {0: [0, 2], 1: [1, 3]}
    engine.memberships(several_chunks()[1], POPULATIONS, 2 * CHUNK, 3 * CHUNK)
    assert [account.chunks for account in engine._accounts] == [1]
    assert engine._devices[1]._memory.lanes == []


# ---- Memory. In 2 channels a chunk's events take 1 MiB, a lane's scratch 0.63 MiB and a chunk


@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_events_that_do_not_fit_pass_through(
    emulated_devices: Emulate, devices: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    want = expected_results()
    emulated_devices(2, memory=8 * MIB if devices == [0] else 4 * MIB)
    engine = CudaEngine(several_chunks()[0], devices=devices)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(engine), want)
    assert sum("pass through it in every sweep" in line for line in caplog.messages) == len(devices)
    with BytesMoved(len(devices)) as moved:
        engine.expect_labels(several_chunks()[1])
    assert moved.up > 4 * CHUNK * 16


def test_little_memory_means_smaller_batches(
    emulated_devices: Emulate, caplog: pytest.LogCaptureFixture
) -> None:
    want = expected_results()
    emulated_devices(memory=4 * MIB)
    engine = CudaEngine(several_chunks()[0], chunks_in_flight=4)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(engine), want)
    assert "short of memory: it gets 1 chunks at a time, not 4" in caplog.text
    assert len(engine._devices[0]._memory.lanes) == 2


def test_one_lane_is_enough(emulated_devices: Emulate) -> None:
    want = expected_results()
    emulated_devices(memory=2 * MIB)
    assert_same_results(results(CudaEngine(several_chunks()[0])), want)


def test_events_leave_where_more_components_need_the_room(
    emulated_devices: Emulate, caplog: pytest.LogCaptureFixture
) -> None:
    events, few = several_chunks()
    _, more = problem(10, 2, 5)
    emulated_devices(memory=12 * MIB)
    engine = CudaEngine(events)
    before = engine.draw_labels(few, Key(1, 0, 0))
    with BytesMoved() as moved:
        assert_same_stats(engine.draw_labels(few, Key(1, 0, 0)), before)
    assert moved.up < CHUNK
    emulated_devices(memory=5 * MIB)  # another program takes the rest
    with caplog.at_level(logging.WARNING, "dpmix"):
        engine.draw_labels(more, Key(1, 0, 1))
    assert "short of memory: events pass through it" in caplog.text
    with BytesMoved() as moved:
        assert_same_stats(engine.draw_labels(few, Key(1, 0, 0)), before)
    assert moved.up > 4 * CHUNK * 16


def test_a_device_without_room_for_a_chunk_has_failed(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    want = expected_results()
    emulated_devices(2, memory=[MIB, 64 * MIB])
    assert_same_results(results(CudaEngine(events)), want)
    with pytest.raises(DpmixError, match=r"no CUDA device is left: .*\(0\) failed: out of memory"):
        CudaEngine(events, devices=[0]).draw_labels(mixture, Key(1, 0, 0))


# ---- Devices that fail


@pytest.mark.parametrize(
    "fail",
    [
        "0:cuMemcpyDtoHAsync:2",
        "1:cuEventSynchronize:2",
        "1:cuLaunchKernel:4,0:cuLaunchKernel:9",
        "2:cuMemAlloc:3",
        "0:cuStreamWaitEvent:3,1:cuStreamWaitEvent:2",
    ],
)
def test_the_others_take_over(emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    want = expected_results()
    emulated_devices(3, fail=fail)
    engine = CudaEngine(several_chunks()[0], chunks_in_flight=1)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(engine), want)
    assert sum(
        "failed" in line and "the others continue" in line for line in caplog.messages
    ) == 1 + fail.count(",")
    engine.close()


def test_where_none_is_left_the_pass_ends_in_one_line(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    emulated_devices(2, fail="0:cuLaunchKernel:5,1:cuEventSynchronize:3")
    engine = CudaEngine(events)
    engine.draw_labels(mixture, Key(1, 0, 0))
    with pytest.raises(DpmixError, match=r"^no CUDA device is left: device .*[^\n]$"):
        engine.draw_labels(mixture, Key(1, 0, 1))
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        engine.expect_labels(mixture)
    engine.close()


def test_a_device_that_cannot_be_opened_is_named(emulated_devices: Emulate) -> None:
    emulated_devices(2, fail="1:cuCtxCreate:1")
    with pytest.raises(DpmixError, match=r"^CUDA device .*\(1\) cannot be used: "):
        CudaEngine(several_chunks()[0])


# ---- Transfers and times


def test_a_sweep_moves_the_mixture_up_and_statistics_and_labels_down(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    layout = Layout(2)
    mixture_size = 4 * layout.pack_dim * 4
    chunk_size = 4 * layout.n_moments * 8 + layout.blocks_per_chunk * 8 + CHUNK * 2 + 4
    emulated_devices(2)
    for devices in ([0], [0, 1]):
        engine = CudaEngine(events, devices=devices)
        engine.draw_labels(mixture, Key(1, 0, 0))
        shares = [number for number in devices if engine._shares[number]]
        lanes = [lane for number in devices for lane in engine._devices[number]._memory.lanes]
        with BytesMoved(len(devices)) as moved:
            engine.draw_labels(mixture, Key(1, 0, 1))
        assert (moved.up, moved.down) == (len(shares) * mixture_size, 4 * chunk_size)
        assert lanes == [lane for number in devices for lane in engine._devices[number]._memory.lanes]


@pytest.mark.usefixtures("emulated_devices")
def test_a_division_moves_labels_up_and_statistics_down() -> None:
    events, mixture = several_chunks()
    layout = Layout(2)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    lanes = engine._devices[0]._memory.lanes
    with BytesMoved() as moved:
        engine.divide(SPLIT, mixture, Key(1, 0, 0))
    assert moved.up == 4 * layout.pack_dim * 4 + 2 * 4 * 4 + 4 * CHUNK * 2
    assert moved.down == 4 * (4 * layout.n_moments * 8 + 2 * PARTS * 8 + 4)
    assert engine._devices[0]._memory.lanes is lanes


@pytest.mark.usefixtures("cuda_devices")
def test_events_are_padded_with_zeros() -> None:
    events, mixture = problem(700, 2, 4)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    (lane,) = engine._devices[0]._memory.lanes
    np.testing.assert_array_equal(lane.events_here[0, :700, :2], events)
    assert (lane.events_here[0, :, 2:] == 0).all()
    assert (lane.events_here[0, 700:] == 0).all()


@pytest.mark.usefixtures("emulated_devices")
def test_far_events_have_the_exact_mixture_sent() -> None:
    events, mixture = several_chunks()
    far = events.copy()
    far[2 * CHUNK + 5 :: 1000] += 1e6
    engine, cpu_engine = CudaEngine(far, devices=[0]), CpuEngine(far)
    size = 4 * Layout(2).pack_dim * 4
    for iteration in range(2):
        with BytesMoved() as moved:
            got = engine.draw_labels(mixture, Key(1, 0, iteration))
        want = cpu_engine.draw_labels(mixture, Key(1, 0, iteration))
        assert moved.up == 3 * size + (RESIDENT_BYTES if iteration == 0 else 0)
        np.testing.assert_array_equal(
            engine.labels()[2 * CHUNK + 5 :: 1000], cpu_engine.labels()[2 * CHUNK + 5 :: 1000]
        )
        assert abs(got.log_likelihood / want.log_likelihood - 1) < 1e-9
        np.testing.assert_allclose(got.counts, want.counts, atol=3)
    got, want = engine.expect_labels(mixture), cpu_engine.expect_labels(mixture)
    np.testing.assert_allclose(got.counts, want.counts, rtol=1e-6)
    fresh = CudaEngine(far, devices=[0])  # the batch with far events is done again
    assert_same_stats(fresh.expect_labels(mixture), got)


@pytest.mark.usefixtures("cuda_devices")
def test_it_measures_the_seconds_of_its_passes() -> None:
    events, mixture = problem(1000, 2, 4)
    engine = CudaEngine(events, devices=[0])
    assert engine.seconds == {"kernels": 0.0, "copies": 0.0}
    engine.draw_labels(mixture, Key(1, 0, 0))
    first = engine.seconds
    engine.draw_labels(mixture, Key(1, 0, 1))
    assert 0.0 < first["kernels"] < engine.seconds["kernels"] < 60.0
    assert 0.0 < first["copies"] < engine.seconds["copies"] < 60.0


# ---- Opening and closing


def test_it_says_what_it_runs_on(cuda_devices: Emulate) -> None:
    cuda_devices(2)
    found = cuda.devices()
    usable, what = cuda.available()
    assert usable
    assert f"{found[1].name} (1)" in what
    assert [device.number for device in found] == list(range(len(found)))
    assert all(device.memory > 0 and "." in device.compute_capability for device in found)
    engine: Engine = CudaEngine(np.zeros((1, 1), np.float32), devices=[1])
    assert engine.info == {"backend": "cuda", "devices": f"{found[1].name} (1)"}
    assert next(iter(engine.info)) == "backend"


def test_what_is_missing_is_said(emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch) -> None:
    events = np.zeros((1, 1), np.float32)

    def assert_missing(what: str) -> None:
        usable, why = cuda.available()
        assert not usable
        assert what in why
        with pytest.raises(DpmixError, match=what):
            CudaEngine(events)

    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.delenv("CUDA_HOME", raising=False)
        patch.setattr(cuda.build, "find_spec", lambda name: None)
        assert_missing("install the CUDA toolkit")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pycuda", None)
        assert_missing("PyCUDA is not installed")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pycuda.driver", None)
        assert_missing("no NVIDIA driver")
    emulated_devices(0)
    assert_missing("no CUDA device")


def test_what_is_wrong_with_options_is_said(emulated_devices: Emulate) -> None:
    emulated_devices(2)
    good = np.zeros((10, 3), np.float32)
    for bad in (good.astype(np.float64), good[:, ::2], good[:0], np.zeros((4, 65), np.float32)):
        with pytest.raises(ValueError, match=r"^events: got"):
            CudaEngine(bad)  # type: ignore[arg-type]
    for name, value in (("chunks_in_flight", 0), ("weight_floor", 100.0), ("first_event", -1)):
        with pytest.raises(ValueError, match=f"^{name}: got"):
            CudaEngine(good, **{name: value})  # type: ignore[arg-type]
    for devices in ([], [0, 0]):
        with pytest.raises(ValueError, match=r"^devices: got"):
            CudaEngine(good, devices=devices)
    for devices in ([2], [0, -1]):
        with pytest.raises(DpmixError, match=rf"^engine.devices: got {devices[-1]}, this machine has "):
            CudaEngine(good, devices=devices)


@pytest.mark.usefixtures("cuda_devices")
def test_what_is_wrong_with_a_mixture_is_said() -> None:
    events, _ = problem(100, 3, 4)
    _, wrong_dim = problem(100, 2, 4)
    engine = CudaEngine(events, devices=[0])
    with pytest.raises(ValueError, match=r"^mixture: "):
        engine.draw_labels(wrong_dim, Key(1, 0, 0))


@pytest.mark.usefixtures("cuda_devices")
def test_a_closed_engine_is_closed() -> None:
    events, mixture = problem(100, 2, 4)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    engine.close()
    engine.close()
    for use in (engine.labels, lambda: engine.draw_labels(mixture, Key(1, 0, 1))):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def free_memory() -> int:
    """Return the free bytes of the first device."""
    import pycuda.driver as driver

    context = driver.Device(0).make_context()
    free, _ = driver.mem_get_info()
    context.detach()
    return int(free)


def test_memory_comes_back(emulated_devices: Emulate) -> None:
    """After closing an engine, dropping the last reference to it, and the failure of its device."""
    events, mixture = several_chunks()
    gc.collect()
    before = free_memory()
    engine = CudaEngine(events)
    engine.draw_labels(mixture, Key(1, 0, 0))
    assert before - free_memory() > 10 * MIB
    engine.close()
    assert free_memory() == before
    engine = CudaEngine(events)
    engine.draw_labels(mixture, Key(1, 0, 0))
    del engine
    gc.collect()
    assert free_memory() == before
    emulated_devices(fail="0:cuEventSynchronize:1")
    engine = CudaEngine(events)
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        engine.draw_labels(mixture, Key(1, 0, 0))
    emulated_devices()
    assert free_memory() == before


FORGETFUL = """
import numpy as np
from dpmix.model.streams import Key
from dpmix.engines.cuda import CudaEngine
from dpmix.model.mixture import Mixture
mixture = Mixture(np.zeros(1), np.zeros((1, 2)), np.eye(2)[None], np.zeros(1))
engine = CudaEngine(np.zeros((9, 2), np.float32))
print(engine.draw_labels(mixture, Key(1, 0, 0)).counts)
"""


def test_a_program_may_end_without_closing_it(emulated_devices: Emulate) -> None:
    command = [sys.executable, "-W", "error", "-c", FORGETFUL]
    ended = subprocess.run(command, env=emulator.environment(2), capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("[9.]\n", "")


# ---- Parts of the engine


def test_chunks_are_assigned_by_speed_and_in_turn() -> None:
    shares = interleaved_shares(12, {0: 2.0, 3: 1.0})
    assert [len(shares[0]), len(shares[3])] == [8, 4]
    assert shares[3] == [2, 5, 8, 11] or shares[3] == [1, 4, 7, 10]
    assert sorted(shares[0] + shares[3]) == list(range(12))


def test_chunks_are_redistributed_only_if_it_pays(cuda_devices: Emulate) -> None:
    cuda_devices(2)
    engine = CudaEngine(np.zeros((10 * CHUNK, 1), np.float32), devices=[0, 1])
    even = engine._shares
    engine._work_done = {0: (100, 10.0), 1: (110, 10.0)}
    engine._rebalance()
    assert engine._shares is even
    engine._work_done = {0: (100, 10.0), 1: (200, 10.0)}
    engine._rebalance()
    assert [len(share) for share in engine._shares.values()] == [3, 7]


def test_chunks_of_a_failed_device_are_for_the_others_first() -> None:
    queue = ChunkQueue({0: [0, 2, 4], 1: [1, 3, 5]})
    assert queue.take(0, 2) == [0, 2]
    assert queue.take(1, 1) == [1]
    queue.finish(0, 0)
    queue.abandon(0)
    assert queue.take(1, 8) == [2, 4]
    assert queue.take(1, 8) == [3, 5]
    assert queue.take(1, 8) == []
    assert queue.unfinished()
    for chunk in (1, 2, 3, 4, 5):
        queue.finish(1, chunk)
    assert not queue.unfinished()


def test_time_is_counted_once() -> None:
    from dpmix.engines.cuda_device_pass import union_length

    assert union_length([]) == 0.0
    assert union_length([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5), (1.1, 1.2)]) == 3.5
