"""The emulated CUDA devices report mistakes, and every kernel of dpmix passes on them."""

from __future__ import annotations

import concurrent.futures
import gc
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator, nvcc

BROKEN = Path(nvcc.__file__).with_name("broken.cu")
Emulate = Callable[..., None]

pytestmark = pytest.mark.usefixtures("emulated_devices")


@contextmanager
def device(number: int = 0) -> Iterator[Any]:
    """A context on a device, current within a with statement; yields pycuda.driver."""
    import pycuda.driver as cuda

    cuda.init()
    context = cuda.Device(number).make_context()
    try:
        yield cuda
    finally:
        context.pop()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The module with the kernels of broken.cu."""
    path = tmp_path_factory.mktemp("broken") / "broken.cubin"
    nvcc.compile_kernels(BROKEN, path, [])
    return path.read_bytes()


X = np.arange(1, 257, dtype=np.float32)


def run(cuda: Any, module: bytes, name: str, x: np.ndarray = X) -> np.ndarray:
    """Return the output of a kernel of broken.cu for x."""
    y = np.zeros_like(x)
    loaded = cuda.module_from_buffer(module)  # its kernels live as long as it does
    loaded.get_function(name)(cuda.In(x), cuda.Out(y), grid=(1, 1), block=(256, 1, 1))
    return y


# Wrong kernels under the emulation alone.


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("divergent_barrier", "threads of one block wait at different __syncthreads"),
        ("barrier_against_warp", "deadlock"),
        ("shuffle_after_exit", "deadlock"),
        ("mask_without_caller", "a lane calls a *_sync operation whose mask leaves it out"),
        ("mask_without_source", "a shuffle reads a lane that its mask leaves out"),
        ("two_masks", "lanes of one warp wait in different *_sync operations or masks"),
        ("past_global", "wrote outside of its arrays"),
        ("bounded", "more threads in a block than the kernel's launch bounds"),
        ("reads_output_as_constant", "__ldg of an array that the kernel may write"),
    ],
)
def test_wrong_kernels_are_reported(
    broken: bytes, capfd: pytest.CaptureFixture[str], name: str, reported: str
) -> None:
    with device() as cuda:
        with pytest.raises(cuda.LaunchError):
            run(cuda, broken, name)
        with pytest.raises(cuda.LaunchError):  # that context has failed
            cuda.mem_get_info()
    assert f"{name}: {reported}" in capfd.readouterr().err
    with device() as cuda:
        np.testing.assert_array_equal(run(cuda, broken, "reversed"), X[::-1])


@pytest.mark.usefixtures("emulated_devices")
@pytest.mark.parametrize("grid", [(1, 65_536, 1), (1, 1, 65_536)])
def test_a_grid_has_limits(
    broken: bytes, capfd: pytest.CaptureFixture[str], grid: tuple[int, int, int]
) -> None:
    with device() as cuda:
        loaded = cuda.module_from_buffer(broken)
        with pytest.raises(cuda.LaunchError):
            loaded.get_function("bounded")(cuda.In(X), cuda.Out(X.copy()), grid=grid, block=(1, 1, 1))
    assert "bounded: a grid of more than 65,535 in y or z" in capfd.readouterr().err


def test_shared_memory_has_its_limit(tmp_path: Path) -> None:
    text = """
        inline float more() { __shared__ float few[8]; return few[threadIdx.x]; }
        extern "C" __global__ void large(float* y) {
            __shared__ float one[SIZE], other[2048];
            one[threadIdx.x] = other[threadIdx.x] = *y;
            __syncthreads();
            *y = one[threadIdx.x + 1] + other[threadIdx.x + 1] + more();
        }"""
    source, made = tmp_path / "large.cu", tmp_path / "large.so"
    source.write_text(text)
    most = 12_288 - 2_048 - 8
    nvcc.compile_kernels(source, made, [f"-DSIZE={most}"])
    with pytest.raises(
        ValueError, match=r"^large.cu: large has 49,156 bytes of shared memory, at most 49,152$"
    ):
        nvcc.compile_kernels(source, made, [f"-DSIZE={most + 1}"])


@pytest.mark.parametrize("order", [0, 1, 7])
def test_right_kernels_are_right_in_any_order(emulated_devices: Emulate, broken: bytes, order: int) -> None:
    emulated_devices(order=order)
    lane = np.arange(256) % 32
    with device() as cuda:
        np.testing.assert_array_equal(run(cuda, broken, "reversed"), X[::-1])
        np.testing.assert_array_equal(run(cuda, broken, "reversed_in_warps"), X[np.arange(256) ^ 31])
        np.testing.assert_array_equal(run(cuda, broken, "barrier_after_exit")[:37], X[:37])
        before, after = X - (lane > 0), X + 8 * (lane % 16 < 8)
        np.testing.assert_array_equal(
            run(cuda, broken, "warp_operations"), before + 3 + 16 + (lane + 1) + after
        )


def test_shared_memory_starts_as_nan_in_every_block(broken: bytes) -> None:
    with device() as cuda:
        for _ in range(2):
            y = run(cuda, broken, "reads_shared_before_writing")
            assert np.isnan(y[7])
            np.testing.assert_array_equal(np.delete(y, 7), np.delete(X, 7))


def test_missing_barriers_show_in_one_order_or_the_other(emulated_devices: Emulate, broken: bytes) -> None:
    for order in (0, 1, 7):
        emulated_devices(order=order)
        with device() as cuda:
            assert np.isnan(run(cuda, broken, "reversed_without_barrier")).any()


def test_threads_run_in_the_order_asked_for(emulated_devices: Emulate, broken: bytes) -> None:
    ranks = {}
    for order in (0, 1, 7, 8):
        emulated_devices(order=order)
        with device() as cuda:
            ranks[order] = run(cuda, broken, "rank") - X[0]
    np.testing.assert_array_equal(ranks[0], np.arange(256))
    np.testing.assert_array_equal(ranks[1], np.arange(256)[::-1])
    for order in (7, 8):
        np.testing.assert_array_equal(np.sort(ranks[order]), np.arange(256))
    assert len({tuple(rank) for rank in ranks.values()}) == 4


def test_blocks_give_the_same_on_any_number_of_threads(emulated_devices: Emulate, broken: bytes) -> None:
    for threads in (1, 3):
        emulated_devices(threads=threads)
        with device() as cuda:
            y = np.zeros_like(X)
            module = cuda.module_from_buffer(broken)
            kernel = module.get_function("reversed")
            kernel(cuda.In(X), cuda.Out(y), grid=(50, 4), block=(256, 1, 1))
            np.testing.assert_array_equal(y, X[::-1])


# Wrong calls.


def test_copies_and_kernels_wait_for_somebody_to_synchronise(broken: bytes) -> None:
    with device() as cuda:
        module = cuda.module_from_buffer(broken)
        kernel = module.get_function("reversed")
        on_device, back = cuda.mem_alloc(1024), cuda.mem_alloc(1024)
        up, down = cuda.pagelocked_empty(256, np.float32), cuda.pagelocked_empty(256, np.float32)
        stream, event = cuda.Stream(), cuda.Event()

        def begin() -> None:
            up[:], down[:] = X, -1
            cuda.memcpy_htod_async(on_device, up, stream)
            kernel(on_device, back, grid=(1, 1), block=(256, 1, 1), stream=stream)
            cuda.memcpy_dtoh_async(down, back, stream)
            event.record(stream)

        begin()
        np.testing.assert_array_equal(down, -1)
        assert not stream.is_done()
        stream.synchronize()
        assert stream.is_done()
        np.testing.assert_array_equal(down, X[::-1])

        begin()
        event.synchronize()
        np.testing.assert_array_equal(down, X[::-1])

        begin()
        while not event.query():
            pass
        np.testing.assert_array_equal(down, X[::-1])

        begin()
        cuda.Context.synchronize()
        np.testing.assert_array_equal(down, X[::-1])

        begin()
        up[:] = 0  # while it is being copied
        stream.synchronize()
        np.testing.assert_array_equal(down, 0)


def test_streams_wait_for_each_others_events_and_for_nothing_else(broken: bytes) -> None:
    with device() as cuda:
        module = cuda.module_from_buffer(broken)
        kernel = module.get_function("reversed")
        on_device, back = cuda.mem_alloc(1024), cuda.mem_alloc(1024)
        up = cuda.pagelocked_empty(256, np.float32)
        up[:] = X
        y = cuda.pagelocked_empty(256, np.float32)
        copies, kernels, event = cuda.Stream(), cuda.Stream(), cuda.Event()
        for waits in (False, True):
            cuda.memset_d8_async(on_device, 0xFF, 1024, copies)
            cuda.memcpy_htod_async(on_device, up, copies)
            event.record(copies)
            if waits:
                kernels.wait_for_event(event)
            kernel(on_device, back, grid=(1, 1), block=(256, 1, 1), stream=kernels)
            cuda.memcpy_dtoh_async(y, back, kernels)
            kernels.synchronize()
            assert np.array_equal(y, X[::-1]) == waits


def test_the_default_stream_waits_for_the_others(broken: bytes) -> None:
    with device() as cuda:
        on_device, stream = cuda.mem_alloc(1024), cuda.Stream()
        up, y = cuda.pagelocked_empty(256, np.float32), np.empty_like(X)
        up[:] = X
        cuda.memcpy_htod_async(on_device, up, stream)
        cuda.memcpy_dtoh(y, on_device)
        np.testing.assert_array_equal(y, X)


def test_ordinary_memory_is_copied_before_the_call_returns() -> None:
    with device() as cuda:
        on_device, stream = cuda.mem_alloc(1024), cuda.Stream()
        x, y = X.copy(), np.empty_like(X)
        cuda.memcpy_htod_async(on_device, x, stream)
        x[:] = 0
        cuda.memcpy_dtoh_async(y, on_device, stream)
        np.testing.assert_array_equal(y, X)


def test_in_random_order_streams_get_on_by_themselves(emulated_devices: Emulate) -> None:
    emulated_devices(order=7)
    with device() as cuda:
        on_device, stream = cuda.mem_alloc(4), cuda.Stream()
        cuda.memcpy_htod(on_device, np.float32([3]))
        down = cuda.pagelocked_empty(50, np.float32)
        down[:] = -1
        for i in range(50):
            cuda.memcpy_dtoh_async(down[i : i + 1], on_device, stream)
        assert (down == 3).any()
        stream.synchronize()
        assert (down == 3).all()


def test_events_time_what_lies_between_them(broken: bytes) -> None:
    with device() as cuda:
        module = cuda.module_from_buffer(broken)
        kernel = module.get_function("reversed")
        memory, start, end, stream = cuda.mem_alloc(2048), cuda.Event(), cuda.Event(), cuda.Stream()
        start.record(stream)
        kernel(memory, np.uintp(int(memory) + 1024), grid=(1, 1), block=(256, 1, 1), stream=stream)
        end.record(stream)
        with pytest.raises(cuda.Error, match="not ready"):
            start.time_till(end)
        end.synchronize()
        assert start.time_till(end) > 0


def test_memory_has_its_limit(emulated_devices: Emulate) -> None:
    gc.collect()  # contexts that earlier tests left in the traceback of an exception hold memory until then
    emulated_devices(3, memory=[3000, 1000])
    for number, total in ((0, 3000), (1, 1000), (2, 1000)):
        with device(number) as cuda:
            assert cuda.Device(number).total_memory() == total
            assert cuda.mem_get_info() == (total, total)
            first = cuda.mem_alloc(total - 400)
            assert cuda.mem_get_info() == (400, total)
            with pytest.raises(cuda.MemoryError):
                cuda.mem_alloc(401)
            second = cuda.mem_alloc(400)
            first.free()
            assert cuda.mem_get_info() == (total - 400, total)
            second.free()
    with device() as cuda:  # the memory of a destroyed context is free
        cuda.mem_alloc(3000)
    with device() as cuda:
        assert cuda.mem_get_info() == (3000, 3000)


def test_memory_starts_as_nan_and_freed_memory_is_refused() -> None:
    with device() as cuda:
        memory, y = cuda.mem_alloc(1024), np.zeros_like(X)
        cuda.memcpy_dtoh(y, memory)
        assert np.isnan(y).all()
        with pytest.raises(cuda.LogicError, match="invalid argument"):
            cuda.memcpy_dtoh(y, int(memory) + 4)
        address = int(memory)
        memory.free()
        with pytest.raises(cuda.LogicError, match="invalid argument"):
            cuda.memcpy_dtoh(y, address)


def test_one_devices_memory_is_nothing_to_another(
    emulated_devices: Emulate, broken: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    emulated_devices(2)
    with device(0) as cuda:
        foreign, stream = cuda.mem_alloc(1024), cuda.Stream()
        with device(1) as cuda:
            own = cuda.mem_alloc(1024)
            with pytest.raises(cuda.LogicError, match="invalid argument"):
                cuda.memcpy_htod(foreign, X)
            with pytest.raises(cuda.LogicError, match="invalid resource handle"):
                cuda.memcpy_dtoh_async(X.copy(), own, stream)
            module = cuda.module_from_buffer(broken)
            kernel = module.get_function("reversed")
            kernel(foreign, own, grid=(1, 1), block=(256, 1, 1))
            with pytest.raises(cuda.LaunchError):
                cuda.Context.synchronize()
    assert "a pointer argument is no address of this device" in capfd.readouterr().err


def test_a_context_is_current_in_its_own_thread_only() -> None:
    with device() as cuda, concurrent.futures.ThreadPoolExecutor(1) as other:
        assert cuda.mem_get_info()
        with pytest.raises(cuda.LogicError, match="invalid device context"):
            other.submit(cuda.mem_get_info).result()


def test_arguments_must_be_as_many_bytes_as_the_kernel_takes(
    broken: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with device() as cuda:
        memory = cuda.mem_alloc(1024)
        module = cuda.module_from_buffer(broken)
        kernel = module.get_function("reversed")
        kernel(memory, memory, np.int32(1), grid=(1, 1), block=(256, 1, 1))
        with pytest.raises(cuda.LaunchError):
            cuda.Context.synchronize()
    assert "the arguments are not as many bytes as the kernel takes" in capfd.readouterr().err


def test_a_device_dies_at_the_call_named(emulated_devices: Emulate) -> None:
    emulated_devices(2, fail="1:cuMemcpyHtoD:3")
    for number in (0, 1):
        with device(number) as cuda:
            memory = cuda.mem_alloc(1024)
            for _ in range(2):
                cuda.memcpy_htod(memory, X)
            if number == 0:
                cuda.memcpy_htod(memory, X)
                continue
            for _ in range(2):
                with pytest.raises(cuda.Error, match="ECC"):
                    cuda.memcpy_htod(memory, X)
            with pytest.raises(cuda.Error, match="ECC"):
                cuda.mem_get_info()
    del memory  # releases the context, too
    emulated_devices(2)
    with device(1) as cuda:  # a new context
        free, total = cuda.mem_get_info()
        assert free == total


def test_calls_are_counted_anew_whenever_a_failure_is_asked_for(emulated_devices: Emulate) -> None:
    for _ in range(2):
        emulated_devices(fail="0:cuMemGetInfo:2")
        with device() as cuda:
            assert cuda.mem_get_info()
            with pytest.raises(cuda.Error, match="ECC"):
                cuda.mem_get_info()


def test_an_array_is_not_read_only_and_written(broken: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with device() as cuda:
        memory = cuda.mem_alloc(2048)
        module = cuda.module_from_buffer(broken)
        kernel = module.get_function("reversed")
        kernel(memory, np.uintp(int(memory) + 1024), grid=(1, 1), block=(256, 1, 1))
        cuda.Context.synchronize()
        kernel(memory, memory, grid=(1, 1), block=(256, 1, 1))
        with pytest.raises(cuda.LaunchError):
            cuda.Context.synchronize()
    assert "reversed: an array is a read-only argument and one that is written" in capfd.readouterr().err


def test_copies_that_wait_and_copies_of_unwritten_memory_are_counted() -> None:
    with device() as cuda:
        memory, stream = cuda.mem_alloc(1024), cuda.Stream()
        x, locked = X.copy(), cuda.pagelocked_empty(256, np.float32)
        before = np.array(emulator.faults(0))

        def found() -> list[int]:
            stream.synchronize()
            return list(emulator.faults(0) - before)

        cuda.memcpy_dtoh_async(locked, memory, stream)
        assert found() == [0, 1]
        cuda.memcpy_htod_async(memory, locked.view(np.uint8)[:1020] * 0, stream)
        assert found() == [1, 1]
        cuda.memcpy_dtoh_async(locked[:255], memory, stream)
        assert found() == [1, 1]
        cuda.memcpy_dtoh_async(x[:255], memory, stream)
        assert found() == [2, 1]


def test_bytes_are_counted() -> None:
    with device() as cuda:
        memory, y = cuda.mem_alloc(1024), np.empty_like(X)
        up, down = emulator.bytes_moved(0)
        cuda.memcpy_htod(memory, X)
        cuda.memcpy_dtoh(y[:3], memory)
        assert emulator.bytes_moved(0) == (up + 1024, down + 12)


def test_code_for_real_devices_is_refused() -> None:
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    header[18:20] = struct.pack("<H", 190)
    with device() as cuda, pytest.raises(cuda.RuntimeError, match="cuModuleLoadData"):
        cuda.module_from_buffer(bytes(header))


def test_no_devices_is_an_error_of_its_own(emulated_devices: Emulate) -> None:
    import pycuda.driver as cuda

    emulated_devices(0)
    with pytest.raises(cuda.RuntimeError, match="no CUDA-capable device"):
        cuda.init()
