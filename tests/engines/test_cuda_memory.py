"""Memory of CUDA devices, devices that fail, and transfers."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from cuda_cases import (
    MIB,
    RESIDENT_BYTES,
    SPLIT,
    WEIGHTS,
    BytesMoved,
    Emulate,
    assert_same_division,
    assert_same_results,
    divided,
    expected_results,
    results,
    several_chunks,
)
from engine_contract import (
    assert_same_stats,
    problem,
)

from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.streams import Key

pytestmark = pytest.mark.slow

# ---- Memory. In 2 channels a chunk's events take 1 MiB, a lane's scratch 0.63 MiB and a chunk


def test_events_that_do_not_fit_pass_through(
    emulated_devices: Emulate, caplog: pytest.LogCaptureFixture
) -> None:
    want, devices = expected_results(), [0, 1]
    emulated_devices(2, memory=4 * MIB)
    engine = CudaEngine(several_chunks()[0], devices=devices)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(engine), want)
    assert sum("pass through it in every sweep" in line for line in caplog.messages) == len(devices)
    with BytesMoved(len(devices)) as moved:
        engine.expect_labels(several_chunks()[1])
    assert moved.up > RESIDENT_BYTES


def test_weighted_events_that_do_not_fit_pass_through(emulated_devices: Emulate) -> None:
    want = expected_results(WEIGHTS)
    emulated_devices(memory=8 * MIB)
    engine = CudaEngine(several_chunks()[0], weights=WEIGHTS)
    assert_same_results(results(engine), want)
    with BytesMoved() as moved:
        engine.expect_labels(several_chunks()[1])
    assert moved.up > (3 * CHUNK + 777) * (16 + 4)


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
    emulated_devices(memory=4 * MIB)  # another program takes the rest
    with caplog.at_level(logging.WARNING, "dpmix"):
        engine.draw_labels(more, Key(1, 0, 1))
    assert "short of memory: events pass through it" in caplog.text
    with BytesMoved() as moved:
        assert_same_stats(engine.draw_labels(few, Key(1, 0, 0)), before)
    assert moved.up > RESIDENT_BYTES


def test_labels_leave_where_more_components_need_the_room(
    emulated_devices: Emulate, caplog: pytest.LogCaptureFixture
) -> None:
    """They take 1 MiB in each chain, the events 3 MiB, and a lane with a chunk 1.7 MiB."""
    events, few = several_chunks()
    want = expected_results()
    _, more = problem(10, 2, 5)
    emulated_devices(memory=64 * MIB)
    engine = CudaEngine(events)
    for chain in range(2):
        engine.draw_labels(few, Key(1, chain, 1))
    memory = engine._devices[0]._memory
    assert memory.labels(0).on_device
    emulated_devices(memory=int(5.25 * MIB))  # another program takes the rest
    with caplog.at_level(logging.WARNING, "dpmix"):
        engine.draw_labels(more, Key(1, 1, 2))
    assert "needs the room of the labels of chain 0: they are copied in every sweep" in caplog.text
    assert not memory.labels(0).on_device
    assert memory.holds_events
    np.testing.assert_array_equal(engine.labels(), want[1][0])
    assert_same_division(divided(engine), (want[0][2], want[1][1]))


def test_a_device_without_room_for_a_chunk_has_failed(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    want = expected_results()
    emulated_devices(2, memory=[MIB, 64 * MIB])
    assert_same_results(results(CudaEngine(events)), want)
    with pytest.raises(DpmixError, match=r"no CUDA device is left: .*\(0\) failed: out of memory"):
        CudaEngine(events, devices=[0]).draw_labels(mixture, Key(1, 0, 0))


# ---- Devices that fail


@pytest.mark.parametrize("fail", ["0:cuStreamWaitEvent:3,1:cuLaunchKernel:4"])
@pytest.mark.usefixtures("equal_speeds")
def test_the_others_take_over(emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    want = expected_results()
    emulated_devices(3, fail=fail)
    engine = CudaEngine(several_chunks()[0], chunks_in_flight=1)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(engine), want)
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")
    engine.close()


def test_where_none_is_left_the_pass_ends_in_one_line(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    emulated_devices(2, fail="0:cuLaunchKernel:20,1:cuEventElapsedTime:9")
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


def test_a_sweep_moves_the_mixture_up_and_statistics_down(emulated_devices: Emulate) -> None:
    events, mixture = several_chunks()
    layout = Layout(2)
    mixture_size = 4 * layout.pack_dim * 4
    sums_size, tallies_size = 8 * (4 * layout.n_moments + 1), 4 * 12  # of four chunks
    emulated_devices(2)
    for devices in ([0], [0, 1]):
        engine = CudaEngine(events, devices=devices)
        engine.draw_labels(mixture, Key(1, 0, 0))
        shares = [number for number in devices if engine._shares[number]]
        lanes = [lane for number in devices for lane in engine._devices[number]._memory.lanes]
        with BytesMoved(len(devices)) as moved:
            engine.draw_labels(mixture, Key(1, 0, 1))
        down = (1 if len(shares) == 1 else 4 * len(shares)) * sums_size + tallies_size  # one device rounds
        assert (moved.up, moved.down) == (len(shares) * mixture_size, down)
        assert lanes == [lane for number in devices for lane in engine._devices[number]._memory.lanes]


@pytest.mark.usefixtures("emulated_devices")
def test_a_division_moves_its_mixture_up_and_statistics_down() -> None:
    events, mixture = several_chunks()
    layout = Layout(2)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    lanes = engine._devices[0]._memory.lanes
    with BytesMoved() as moved:
        engine.divide(SPLIT, mixture, Key(1, 0, 0))
    assert moved.up == 4 * layout.pack_dim * 4 + 2 * 4 * 4
    assert moved.down == 4 * 8 * (4 * layout.n_moments + 2) + 4 * 12
    assert engine._devices[0]._memory.lanes is lanes


@pytest.mark.usefixtures("cuda_devices")
def test_events_are_padded_with_zeros() -> None:
    events, mixture = problem(700, 2, 4)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    (lane,) = engine._devices[0]._memory.lanes
    assert lane.events_here.shape == (CHUNK, 4)
    np.testing.assert_array_equal(lane.events_here[:700, :2], events)
    assert (lane.events_here[:, 2:] == 0).all()


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
        # The first pass is made again, with the mixture in both precisions.
        assert moved.up == 3 * size + (size + RESIDENT_BYTES if iteration == 0 else 0)
        np.testing.assert_array_equal(
            engine.labels()[2 * CHUNK + 5 :: 1000], cpu_engine.labels()[2 * CHUNK + 5 :: 1000]
        )
        assert abs(got.log_likelihood / want.log_likelihood - 1) < 1e-9
        np.testing.assert_allclose(got.counts, want.counts, atol=3)
    got, want = engine.expect_labels(mixture), cpu_engine.expect_labels(mixture)
    np.testing.assert_allclose(got.counts, want.counts, rtol=1e-6)
    fresh = CudaEngine(far, devices=[0])
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
