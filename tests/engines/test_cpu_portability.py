"""The CPU engine on other systems: compiled for them and run under emulators that this machine has.

aarch64 Linux by g++ and qemu, x86-64 Windows by Zig's clang and wine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_contract import problem

from dpmix.engines.cpu import CpuEngine, instruction_sets
from dpmix.model.streams import Key

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "kernels" / "cpu"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{CPU}",
]

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif("v3" not in instruction_sets(), reason="no processor with a fused multiply-add"),
]


PASSES = [
    "clearance", "engine", "exact", "far", "order", "parallel", "partition", "pass_divide", "pass_draw",
    "pass_expect", "pass_memberships", "sweep", "tables",
]  # fmt: skip
"""The engine, without what only draws parameters or fits recordings."""


def compiled(compiler: list[str], set_name: str, system: str, program: Path) -> Path:
    """Compile tests/native/passes.cpp with the engine, without warnings."""
    sources = [CPU / f"{name}.cpp" for name in (*PASSES, f"pages_{system}")]
    defines = [f"-DDPMIX_SET={set_name}", f"-DDPMIX_SWEEP=sweep_{set_name}"]
    passes = ROOT / "tests" / "native" / "passes.cpp"
    command = [*compiler, *FLAGS, *defines, *sources, passes, "-o", program]
    subprocess.run([str(part) for part in command], check=True)
    return program


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no aarch64-linux-gnu-g++ or no qemu-aarch64")
    program = tmp_path_factory.mktemp("aarch64") / "passes"
    return [emulator, str(compiled([compiler, "-static", "-pthread"], "neon", "posix", program))]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Zig compiles its own C++ library for Windows first, once, which takes one or two minutes."""
    emulator = shutil.which("wine")
    if emulator is None or importlib.util.find_spec("ziglang") is None:
        pytest.skip("no wine, or no ziglang")
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-windows-gnu", "-march=x86_64_v3"]
    return [emulator, str(compiled(zig, "v3", "windows", tmp_path_factory.mktemp("windows") / "passes.exe"))]


def passes_here(dim: int) -> tuple[bytes, list[str]]:
    """Return the input of tests/native/passes.cpp, and what this machine's engine makes of it."""
    events, mixture = problem(1500, dim, 40)
    events[7] += 1e5  # one far event
    engine = CpuEngine(events, isa="v3")
    expected: list[str] = []
    for iteration in range(3):
        if iteration < 2:
            stats = engine.draw_labels(mixture, Key(7, 0, iteration))
        else:
            stats = engine.expect_labels(mixture)
        expected += [str(label) for label in engine.labels()]
        expected.append(stats.log_likelihood.hex())
    constants = mixture.log_weights + mixture.log_norms
    arrays = (np.array([1500, dim, 40], np.int32), events, constants, mixture.means, mixture.whiteners)
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays), expected


def numbers(printed: list[str]) -> list[float]:
    return [float.fromhex(text) if "x" in text else float(text) for text in printed]


@pytest.mark.parametrize("dim", [1, 3, 8, 14, 33])
@pytest.mark.parametrize("system", ["aarch64", "windows"])
def test_another_system_gives_the_same_bits(
    request: pytest.FixtureRequest, tmp_path: Path, system: str, dim: int
) -> None:
    """With the labels in files, of which nothing is left."""
    command: list[str] = request.getfixturevalue(system)
    stdin, expected = passes_here(dim)
    quiet = {**os.environ, "WINEDEBUG": "-all"}
    done = subprocess.run(command, input=stdin, capture_output=True, check=True, env=quiet, cwd=tmp_path)
    assert numbers(done.stdout.decode().split()) == numbers(expected)
    assert list(tmp_path.iterdir()) == []
