"""Divisions and memberships on CUDA devices: the same bits for any devices, batches and failures."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import pytest
from cuda_cases import (
    MIB,
    RESIDENT_BYTES,
    SPLIT,
    BytesMoved,
    Emulate,
    assert_same_division,
    divided,
    drawn,
    expected_results,
    several_chunks,
)
from engine_contract import (
    assert_right_memberships,
    halves,
    problem,
)

from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

# ---- Divisions


@pytest.mark.slow
@pytest.mark.parametrize("fail", ["1:cuMemcpyDtoHAsync:2,2:cuEventRecord:3"])
@pytest.mark.usefixtures("equal_speeds")
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


@pytest.mark.parametrize("fail", ["0:cuMemcpyDtoH:1,2:cuLaunchKernel:3"])
@pytest.mark.usefixtures("equal_speeds")
def test_labels_of_a_lost_device_are_drawn_again(
    emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a division, while they are read, and while they are drawn again."""
    want, labels = expected_results(), expected_results()[1][0]
    emulated_devices(3)
    engine = drawn(devices=[0, 1, 2])
    emulated_devices(3, fail=fail)
    with caplog.at_level(logging.INFO, "dpmix"):
        assert_same_division(divided(engine), (want[0][2], want[1][1]))
        np.testing.assert_array_equal(engine.labels(), labels)
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")
    assert "the labels of chain 0 are drawn again" in caplog.text
    caplog.clear()
    np.testing.assert_array_equal(engine.labels(), labels)
    assert not caplog.messages  # once


def test_without_a_device_there_are_no_labels(emulated_devices: Emulate) -> None:
    engine = drawn()
    emulated_devices(fail="0:cuLaunchKernel:1")
    for work in divided, CudaEngine.labels:
        with pytest.raises(DpmixError, match="no CUDA device is left"):
            work(engine)


def test_a_pass_that_did_not_end_leaves_no_labels(emulated_devices: Emulate) -> None:
    engine = drawn()
    emulated_devices(fail="0:cuLaunchKernel:3")
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        engine.draw_labels(several_chunks()[1], Key(1, 0, 2))
    with pytest.raises(ValueError, match="chain 0 has no labels"):
        engine.labels()
    with pytest.raises(ValueError, match="chain 0 has no labels of 4 components"):
        divided(engine)


def test_labels_of_redistributed_chunks_are_drawn_again(cuda_devices: Emulate) -> None:
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
    assert not engine._devices[0].has_far
    size, rest = 4 * Layout(2).pack_dim * 4, 2 * 4 * 4
    with BytesMoved() as moved:
        first = engine.divide(SPLIT, away, key)
    assert moved.up == size + 2 * size + rest  # once for two batches
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


@pytest.mark.parametrize(("devices", "chunks"), [([1], 3), ([2, 0, 1], 1)])
def test_devices_and_batches_do_not_change_a_bit_of_memberships(
    cuda_devices: Emulate, devices: list[int], chunks: int
) -> None:
    cuda_devices(1 + max(devices))
    assert_gated_as_expected(CudaEngine(several_chunks()[0], devices=devices, chunks_in_flight=chunks))


@pytest.mark.parametrize("order", [5])
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
@pytest.mark.usefixtures("equal_speeds")
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
