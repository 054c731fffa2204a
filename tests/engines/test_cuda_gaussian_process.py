"""The pass of a Gaussian process on CUDA devices: the bits of the CPU, failed devices, and wrong kernels."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpmix.config.engine import EngineConfig
from dpmix.engines.cpu import instruction_sets
from dpmix.errors import DpmixError
from dpmix.explore.exploration import HeldDevices
from dpmix.kernels import _cpu, build
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Floats

# Sizes below, at and above rounds of rows, cached points, and blocks and chunks.
SIZES = [
    (1, 1, 1, 1),
    (513, 14, 33, 24),
    (300, 33, 49, 25),
    (40, 2, 64, 3),
]
LARGE = 3 * CHUNK + 5, 2, 7, 7


class Problem(NamedTuple):
    events: Floats
    points: Floats
    scales: Floats
    rows: Floats
    targets: Floats


def problem(n_events: int, dim: int, n_points: int, n_rows: int) -> Problem:
    """Return events, points of which some are events, and the last rows of a triangular matrix."""
    random = np.random.default_rng([n_events, dim, n_points])
    events = random.standard_normal((n_events, dim), dtype=np.float32)
    points = random.standard_normal((n_points, dim), dtype=np.float32)
    points[: n_events // 2] = events[:n_points][: n_events // 2]
    rows = np.tril(random.standard_normal((n_points, n_points), dtype=np.float32))[-n_rows:].copy()
    scales = random.uniform(0.2, 1.5, dim).astype(np.float32) / np.float32(np.sqrt(dim))
    return Problem(events, points, scales, rows, random.standard_normal(n_rows, dtype=np.float32))


def before(own: Problem) -> Floats:
    """Mean and variance at the events before the pass, float32 [2, N]."""
    random = np.random.default_rng(3)
    return random.uniform([[-1.0], [0.5]], [[1.0], [2.0]], (2, len(own.events))).astype(np.float32)


def on_cpu(own: Problem, laplacian: bool) -> Floats:
    posterior = before(own)
    _cpu.update_posterior(*own[:3], laplacian, *own[3:], instruction_sets()[0], 1, *posterior)
    return posterior


def check_equal(device: Any, own: Problem, laplacian: bool) -> None:
    posterior = before(own)
    device.update(*own[1:3], laplacian, *own[3:], *posterior)
    for got, expected in zip(posterior, on_cpu(own, laplacian), strict=True):
        if instruction_sets()[0] == "v2":  # no fused multiply-add
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(got, expected)


def check_both(device: Any, own: Problem) -> None:
    for laplacian in (False, True):
        check_equal(device, own, laplacian)


@pytest.fixture
def open_device(cuda_devices: Callable[[int], None]) -> Iterator[Callable[..., Any]]:
    """Opens devices with events; closes them after the test."""
    cuda_devices(1)
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    opened = []

    def make(events: Floats, *numbers: int) -> CudaGaussianProcess:
        cuda_devices(max(len(numbers), 1))
        opened.append(CudaGaussianProcess(events, numbers or "all"))
        return opened[-1]

    yield make
    for device in opened:
        device.close()


@pytest.mark.parametrize("laplacian", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_pass_has_the_bits_of_the_cpu(
    sizes: tuple[int, int, int, int], laplacian: bool, open_device: Callable[..., Any]
) -> None:
    own = problem(*sizes)
    check_equal(open_device(own.events), own, laplacian)


@pytest.mark.parametrize("numbers", [(0,), (0, 1)])
def test_chunks_on_one_and_two_devices_have_the_bits_of_the_cpu(
    numbers: tuple[int, ...], open_device: Callable[..., Any]
) -> None:
    own = problem(*LARGE)
    device = open_device(own.events, *numbers)
    for laplacian in (False, True, False):  # the events stay on the devices after the first pass
        check_equal(device, own, laplacian)


def test_order_of_threads_does_not_change_a_bit(
    emulated_devices: Callable[..., None], open_device: Callable[..., Any]
) -> None:
    own = problem(520, 14, 40, 30)
    device = open_device(own.events)
    for order in (1, 9):
        emulated_devices(order=order)
        check_equal(device, own, False)


def test_events_stay_on_the_devices(emulated_devices: Callable[..., None]) -> None:
    from cuda_on_cpu import emulator

    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    emulated_devices(2)
    own = problem(*LARGE)
    device = CudaGaussianProcess(own.events)
    try:
        moved = []
        for _ in range(2):
            already = [emulator.bytes_moved(number)[0] for number in (0, 1)]
            check_equal(device, own, False)
            moved.append([emulator.bytes_moved(number)[0] - already[number] for number in (0, 1)])
        assert all(bytes_ >= CHUNK * 2 * 4 for bytes_ in moved[0])  # both have a part
        assert sum(moved[1]) < 4 * CHUNK * 2 * 4 + 20_000  # mean and variance of four chunks, not the events
    finally:
        device.close()


def test_events_pass_through_a_device_that_is_short_of_memory(emulated_devices: Callable[..., None]) -> None:
    from cuda_on_cpu import emulator

    from dpmix.engines.cuda.gaussian_process import SPARE, CudaGaussianProcess

    own = problem(*LARGE)
    emulated_devices(1, memory=SPARE)
    device = CudaGaussianProcess(own.events)
    try:
        for laplacian in (False, True):
            already = emulator.bytes_moved(0)[0]
            check_equal(device, own, laplacian)
            assert emulator.bytes_moved(0)[0] - already >= own.events.nbytes + 4 * CHUNK * 2 * 4
    finally:
        device.close()


@pytest.mark.parametrize(
    "call",
    [
        "cuLaunchKernel:2",
        "cuStreamSynchronize:1",
        "cuStreamSynchronize:2",
        "cuMemcpyHtoD:2",
    ],  # 2: one delivered
)
def test_a_failed_device_leaves_its_chunks_to_the_others(
    call: str, emulated_devices: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    own = problem(*LARGE)
    emulated_devices(2)
    device = CudaGaussianProcess(own.events)
    try:
        emulated_devices(2, fail=f"1:{call}")
        check_equal(device, own, False)
        assert "failed" in caplog.text
        assert "the others continue" in caplog.text
        emulated_devices(2, fail="0:cuLaunchKernel:1")
        with pytest.raises(DpmixError, match=r"^no CUDA device is left: .*cuLaunchKernel"):
            device.update(*own[1:3], False, *own[3:], *before(own))
    finally:
        device.close()


def test_a_device_that_cannot_be_opened_is_an_error(emulated_devices: Callable[..., None]) -> None:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    events = problem(*SIZES[1]).events
    emulated_devices(2, fail="1:cuCtxCreate:1")
    with pytest.raises(DpmixError, match=r"\(1\) cannot be used: cuCtxCreate"):
        CudaGaussianProcess(events)
    emulated_devices(1)
    with pytest.raises(DpmixError, match=r"engine\.devices: got 3"):
        CudaGaussianProcess(events, [3])


def test_held_devices_stay_open_until_they_fail_or_are_not_kept(
    emulated_devices: Callable[..., None],
) -> None:
    own, keep = problem(*SIZES[1]), True
    held = HeldDevices(SimpleNamespace(values=own.events), EngineConfig(), "cuda", lambda: keep)  # type: ignore[arg-type]
    with held.used() as first:
        check_equal(first, own, False)
    with held.used() as second:
        assert second is first
        check_equal(second, own, True)
    emulated_devices(fail="0:cuLaunchKernel:1")
    with pytest.raises(DpmixError, match="no CUDA device is left"), held.used() as second:
        check_equal(second, own, False)
    emulated_devices()
    with held.used() as third:
        assert third is not first
        check_equal(third, own, False)
        keep = False
    assert third is not None
    with pytest.raises(DpmixError, match="it is closed"):
        check_equal(third, own, False)


def test_a_closed_device_says_so(open_device: Callable[..., Any]) -> None:
    own = problem(*SIZES[1])
    device = open_device(own.events)
    device.close()
    with pytest.raises(DpmixError, match="it is closed"):
        device.update(*own[1:3], False, *own[3:], *before(own))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("n_points - n_rows + top + ROWS)", "n_points - n_rows + top)"),
        ("1.3981999507e-3f", "1.3981e-3f"),
    ],
)
def test_wrong_kernels_are_caught(
    right: str,
    wrong: str,
    emulated_devices: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    emulated_devices(threads=1)
    for path in [*build.FOLDER.glob("*.cuh"), build.FOLDER / "gaussian_process.cu"]:
        shutil.copy(path, tmp_path)
    text = (tmp_path / "gaussian_process.cu").read_text()
    assert right in text
    (tmp_path / "gaussian_process.cu").write_text(text.replace(right, wrong))
    monkeypatch.setattr("dpmix.kernels.build.FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = problem(520, 6, 70, 50)
    own.events[-1] = 1e3  # far from all points
    device = CudaGaussianProcess(own.events)
    try:
        with pytest.raises(AssertionError):
            check_both(device, own)
    finally:
        device.close()
