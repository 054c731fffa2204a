"""Errors of a machine with GPUs are reported in one line, with what to do."""

from __future__ import annotations

import builtins
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_cases import Emulate
from cuda_on_cpu import emulator
from engine_contract import problem

from dpmix.cli import main
from dpmix.engines.cuda import devices as cuda_devices
from dpmix.engines.cuda import engine as cuda
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.model.streams import Key

REAL_CODE = b"\x7fELF" + bytes(14) + struct.pack("<H", 190) + bytes(44)  # an ELF header for NVIDIA's devices


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        ("libcuda.so.1: cannot open shared object file", "no NVIDIA driver .*: install the driver"),
        (
            "_driver.so: undefined symbol: cuCtxCreate_v4",
            "newer CUDA than the driver's .*: update the driver",
        ),
        (
            "libcurand.so.9: cannot open shared object file",
            "built for another CUDA .*: build PyCUDA again: pip",
        ),
        ("numpy.core.multiarray failed to import", "another CUDA or NumPy .*: build PyCUDA again: pip"),
    ],
)
def test_why_pycuda_cannot_be_imported(said: str, explained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def fail(name: str, *rest: Any) -> Any:
        if name == "pycuda.driver":
            raise ImportError(said)
        return import_module(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(DpmixError, match=rf"^[^\n]*{explained}[^\n]*$"):
        cuda.devices()
    assert not cuda.available()[0]


@pytest.mark.parametrize(
    ("driver", "explained"),
    [
        (
            12040,
            "nvcc of CUDA 12.5 is newer than the driver, which supports CUDA 12.4: update the driver, or ",
        ),
        (13000, "do not suit the driver, which supports CUDA 13.0: update the driver, or build them again"),
    ],
)
def test_a_driver_that_refuses_the_kernels(
    emulated_devices: Emulate, driver: int, explained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated_devices(driver=driver)
    events, mixture = problem(100, 2, 4)
    monkeypatch.setattr(build, "cubin", lambda *_: REAL_CODE)
    monkeypatch.setattr(build, "release", lambda _: "12.5")
    with pytest.raises(DpmixError, match=rf"no kernel image is available .*: [^\n]*{explained}[^\n]*$"):
        CudaEngine(events).draw_labels(mixture, Key(1, 0, 0))


def use(engine: CudaEngine, mixture: Any) -> None:
    engine.draw_labels(mixture, Key(1, 0, 0))
    engine.expect_labels(mixture)
    engine.memberships(mixture, np.arange(4), 0, 100)


@pytest.mark.slow
def test_an_error_of_any_call_is_one_line(emulated_devices: Emulate) -> None:
    """Like a sticky error, it makes every later call on the device fail, calls of clean-up too."""
    events, mixture = problem(100, 2, 4)
    engine = CudaEngine(events)
    use(engine, mixture)
    n_calls = emulator.calls(0)
    engine.close()
    assert n_calls > 100
    for call in range(1, n_calls + 1, 3):
        emulated_devices(fail=f"0:any:{call}")
        with pytest.raises(DpmixError, match=r"^(no CUDA device is left|CUDA device).*ECC error[^\n]*$"):
            use(CudaEngine(events), mixture)
    emulated_devices()
    use(CudaEngine(events), mixture)


def test_an_error_of_a_kernel_says_where_to_look(
    emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpmix.engines.cuda.messages import failure

    said = failure(RuntimeError("cuEventSynchronize failed: an illegal memory access was encountered - "))
    assert said.startswith("cuEventSynchronize failed: an illegal memory access was encountered: ")
    assert "dmesg" in said
    assert failure(RuntimeError("out of memory")) == "out of memory"


@pytest.mark.parametrize("n_cores", [1, 2])
def test_threads_sleep_while_they_wait_where_gpus_outnumber_cores(
    emulated_devices: Emulate, n_cores: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emulated_devices(2)
    events, mixture = problem(100, 2, 4)
    monkeypatch.setattr(cuda_devices, "usable_cores", lambda: n_cores)
    before = np.array(emulator.waits(0))
    engine = CudaEngine(events)
    engine.draw_labels(mixture, Key(1, 0, 0))
    engine.close()
    spinning, sleeping = emulator.waits(0) - before
    assert (spinning > 0, sleeping > 0) == (n_cores == 2, n_cores == 1)
    said = "2 GPUs and 1 processor cores: each GPU's thread sleeps" in caplog.text
    assert said == (n_cores == 1)


def test_of_all_devices_as_many_as_pay_are_used(
    emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emulated_devices(8)
    monkeypatch.setattr(cuda_devices, "EVENTS_PER_DEVICE", 100)
    used = [len(cuda_devices.chosen("all", n)) for n in (1, 199, 200, 799, 800, 5_000)]
    assert used == [1, 1, 2, 7, 8, 8]
    assert len(cuda_devices.chosen("all")) == 8
    caplog.clear()
    with caplog.at_level("INFO", "dpmix"):
        assert [info.number for info in cuda_devices.chosen([0, 5], 1)] == [0, 5]
        assert not caplog.text
        engine = CudaEngine(problem(250, 2, 4)[0])
    assert "CUDA: 2 of 8 GPUs for 250 events, one for each 100: more would take longer" in caplog.text
    assert str(engine.info["devices"]).count("(") == 2
    engine.close()


# ---- dpmix devices --build


def dpmix(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["devices", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.slow
def test_kernels_built_once_are_used_without_a_compiler(
    emulated_devices: Emulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ("vecchia", "local_designs", "local_fits", "gaussian_process")  # a pass over events uses none
    wanted = [name for name in build.sources() if name not in others]
    monkeypatch.setattr(build, "sources", lambda: wanted)
    there = [*build.cache_folder().glob("*-2-sm_90-*")]  # what other tests have compiled, but one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.cache_folder().mkdir(parents=True)
    for one in there:
        if not one.name.startswith("accumulate-"):
            shutil.copy(one, build.cache_folder())
    code, said = dpmix("--build", "--channels", "2")
    assert code == 0
    assert said.startswith(f"{len(wanted)} files of kernels for 2 channels, sm_90: ")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    code, said = dpmix()
    assert "cuda  available" in said
    assert "  no compiler; kernels for sm_90 are built for 2 channels\n" in said
    events, mixture = problem(100, 2, 4)
    use(CudaEngine(events), mixture)
    with pytest.raises(DpmixError, match=r"^no CUDA compiler: .* --channels 3 "):
        CudaEngine(problem(100, 3, 4)[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--channels", "8"], "--channels requires --build"),
        (["--build", "--channels", "8,0-3"], "got 8,0-3; it must be like 8,14 or 1-64"),
        (["--build", "--channels", "x"], "got x; "),
        (["--build", "--channels", "20-8"], "got 20-8; "),
    ],
)
def test_what_is_wrong_with_the_options_is_said(arguments: list[str], said: str) -> None:
    code, output = dpmix(*arguments)
    assert code == 2
    assert said in output.splitlines()[-1]
