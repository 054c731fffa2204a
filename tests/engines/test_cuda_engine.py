"""The CUDA engine on emulated devices (tests/cuda_on_cpu): the contract of all engines, and its properties.

With DPMIX_TEST_GPU=1, tests that do not need the emulation run on the devices of this machine.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_cases import (
    FMA,
    MIB,
    SPLIT,
    WEIGHTS,
    Emulate,
    assert_same_results,
    expected_results,
    needs_fma,
    results,
    several_chunks,
)
from cuda_on_cpu import emulator
from engine_contract import (
    AnyEngine,
    Floats,
    PruningContract,
    assert_near_stats,
    halves,
    problem,
    split_of,
)
from reference import ReferenceEngine

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import engine as cuda
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.shares import ChunkQueue, interleaved_shares
from dpmix.errors import DpmixError
from dpmix.kernels import _cuda_commands
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key

# (N, D, K): the channel counts at which kernels change, ragged tiles of components and blocks of events. Each
# further count is a compilation of all kernels; the most, 64, is compared with the CPU engine alone.
SHAPES = [
    (1, 1, 1),
    (1001, 1, 2),
    (1000, 2, 31),
    (1600, 5, 32),
    (3000, 14, 256),
    (1201, 17, 32),
    (600, 33, 31),
]
DIVISIONS = [(1, 1, 2), (1000, 2, 31), (5000, 14, 40), (600, 33, 31)]
MEMBERSHIPS = [(1, 1, 1), (701, 1, 300), (333, 5, 16), (120, 33, 31)]


@pytest.mark.usefixtures("cuda_devices")
class TestCuda(PruningContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CudaEngine(events, devices=[0], **options)  # type: ignore[arg-type]

    # All shapes are compared with the CPU engine, which is compared with the reference.
    @pytest.mark.parametrize(("n", "dim", "n_components"), [SHAPES[0], SHAPES[3], SHAPES[-1]])
    def test_draw_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_draw_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [SHAPES[0], SHAPES[3], SHAPES[-1]])
    def test_expectation_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_expectation_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), MEMBERSHIPS)
    def test_memberships_agree_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_memberships_agree_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), DIVISIONS)
    def test_a_division_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_a_division_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize("dim", [14])
    def test_labels_have_the_right_frequencies(self, dim: int) -> None:
        super().test_labels_have_the_right_frequencies(dim)

    @pytest.mark.parametrize("dim", [5])  # others: test_cuda_pruned.py
    @pytest.mark.parametrize("spread", [0.3, 3.0])
    def test_pruned_and_dense_passes_are_the_same_bits(self, dim: int, spread: float) -> None:
        super().test_pruned_and_dense_passes_are_the_same_bits(dim, spread)

    @pytest.mark.parametrize(("dim", "n_components"), [(14, 64)])
    @pytest.mark.parametrize("distance", [1e15])
    def test_far_events_are_the_same_bits_pruned_and_dense(
        self, dim: int, n_components: int, distance: float
    ) -> None:
        super().test_far_events_are_the_same_bits_pruned_and_dense(dim, n_components, distance)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [(300, 14, 20), (1500, 5, 32)])
    def test_statistics_of_weighted_events_agree_with_the_reference(
        self, n: int, dim: int, n_components: int
    ) -> None:
        super().test_statistics_of_weighted_events_agree_with_the_reference(n, dim, n_components)


# ---- Comparison with the CPU engine


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize(
    ("n", "dim", "n_components"), [*SHAPES, pytest.param(500, 64, 33, marks=pytest.mark.slow), (300, 2, 4096)]
)
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


@pytest.mark.usefixtures("cuda_devices")
def test_every_block_of_a_chunk_is_in_the_log_likelihood() -> None:
    """Draws have other blocks than the E step for 5 to 8 channels."""
    events, mixture = problem(CHUNK - 3, 5, 4, spread=4.0)
    dense, pruned = (CudaEngine(events, devices=[0], pruning=pruning) for pruning in (False, True))
    want = CpuEngine(events).expect_labels(mixture).log_likelihood
    found = [
        [engine.draw_labels(mixture, Key(1, 0, i)).log_likelihood for i in range(2)]
        for engine in (dense, pruned)
    ]
    assert found[0] == found[1]
    np.testing.assert_allclose([*found[0], dense.expect_labels(mixture).log_likelihood], want, rtol=1e-6)


# ---- Choices that do not change a bit


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


@pytest.mark.parametrize("devices", [[2, 0, 1]])
def test_devices_do_not_change_a_bit(cuda_devices: Emulate, devices: list[int]) -> None:
    cuda_devices(1 + max(devices))
    want = expected_results()
    engine = CudaEngine(several_chunks()[0], devices=devices)
    assert_same_results(results(engine), want)


@pytest.mark.slow
def test_devices_and_batches_do_not_change_a_bit_of_weighted_events(cuda_devices: Emulate) -> None:
    cuda_devices(3)
    want, plain = expected_results(WEIGHTS), expected_results()
    engine = CudaEngine(several_chunks()[0], devices=[2, 0, 1], chunks_in_flight=1, weights=WEIGHTS)
    assert_same_results(results(engine), want)
    np.testing.assert_array_equal(want[1][0], plain[1][0])  # labels
    assert want[0][0].counts.sum() == pytest.approx(WEIGHTS.each().sum(dtype=float), rel=1e-6)


def test_the_order_of_threads_does_not_change_a_bit(emulated_devices: Emulate) -> None:
    want = expected_results()
    emulated_devices(2, order=5, threads=1)
    assert_same_results(results(CudaEngine(several_chunks()[0])), want)


@pytest.mark.parametrize("dim", [33])
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


def test_what_is_missing_is_said(
    emulated_devices: Emulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = np.zeros((1, 1), np.float32)

    def assert_missing(what: str) -> None:
        usable, why = cuda.available()
        assert not usable
        assert what in why
        with pytest.raises(DpmixError, match=what):
            CudaEngine(events)

    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))  # with no kernels
        patch.delenv("CUDA_HOME", raising=False)
        patch.setattr(cuda.build, "find_spec", lambda name: None)
        assert_missing("install the CUDA toolkit")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pycuda", None)
        assert_missing("PyCUDA is not installed")
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
    emulated_devices(fail="0:cuEventElapsedTime:1")
    engine = CudaEngine(events)
    with pytest.raises(DpmixError, match="no CUDA device is left"):
        engine.draw_labels(mixture, Key(1, 0, 0))
    emulated_devices()
    assert free_memory() == before


FORGETFUL = """
import numpy as np
from dpmix.model.streams import Key
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.model.mixture import Mixture
mixture = Mixture(np.zeros(1), np.zeros((1, 2)), np.eye(2)[None], np.zeros(1))
engine = CudaEngine(np.zeros((9, 2), np.float32))
print(engine.draw_labels(mixture, Key(1, 0, 0)).counts)
"""


def test_a_program_may_end_without_closing_it(emulated_devices: Emulate) -> None:
    command = [sys.executable, "-W", "error", "-c", FORGETFUL]
    ended = subprocess.run(command, env=emulator.environment(2), capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("[9.]\n", "")


FAILING = (
    FORGETFUL.replace("print(", "try:\n    print(")
    + """finally:
    engine.close()
    raise SystemExit(3)  # the interpreter ends at once
"""
)


def test_a_program_may_end_after_the_failure_of_a_device(emulated_devices: Emulate) -> None:
    failing = emulator.environment(1, fail="0:cuModuleLoadDataEx:1")
    # Several times: a thread of the device that is still in native code aborts every other program or so.
    ended = [
        subprocess.run(
            [sys.executable, "-c", FAILING], env=failing, capture_output=True, text=True, check=False
        )
        for _ in range(4)
    ]
    assert [each.returncode for each in ended] == [3] * 4, [each.stderr for each in ended]


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
    assert queue.take(0, 2, 1) == [0, 2]
    assert queue.take(1, 1, 1) == [1]
    queue.finish(1)
    queue.abandon(0)  # its sums are lost, and with them the chunks that it has done
    assert queue.take(1, 8, 2) == [0, 2]
    assert queue.take(1, 8, 2) == [4]
    assert queue.take(1, 8, 2) == [3, 5]
    assert queue.take(1, 8, 2) == []
    assert queue.unfinished()
    queue.finish(1)
    assert not queue.unfinished()


def test_a_stopped_queue_has_no_chunks_left() -> None:
    """A division stops when a device fails: the others do not have the labels of its chunks."""
    queue = ChunkQueue({0: [0, 2, 4], 1: [1, 3, 5]})
    queue.take(0, 2, 1)
    assert not queue.stopped
    queue.stop()
    assert queue.stopped
    assert queue.take(1, 8, 8) == []
    assert not queue.unfinished()


def test_time_is_counted_once() -> None:
    """Batches overlap; the times of each are its start, input on the device, results there, results here."""
    times = np.array([[4.0, 5.0, 8.0, 9.0], [0.0, 1.0, 3.0, 3.5], [1.0, 2.0, 2.5, 3.25]], np.float32)
    assert _cuda_commands.busy(times) == (2.0 + 3.0, 3.5 + 5.0 - 5.0)
    assert _cuda_commands.busy(times[:0]) == (0.0, 0.0)
