"""The CPU kernel on aarch64: cross-compiled and run under an emulator, if this machine has both."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engine_contract import problem

from dpmix.engines.cpu import CpuEngine, instruction_sets
from dpmix.model.streams import Key

COMPILER = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMPILER is None or EMULATOR is None, reason="no aarch64-linux-gnu-g++ or no qemu-aarch64"
    ),
    pytest.mark.skipif("v3" not in instruction_sets(), reason="no processor with a fused multiply-add"),
]


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile tests/native/passes.cpp for aarch64, without warnings."""
    program = tmp_path_factory.mktemp("aarch64") / "passes"
    sources = [
        path for path in (ROOT / "kernels" / "cpu").glob("*.cpp") if not path.name.startswith("module")
    ]
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    defines = ["-DDPMIX_SET=neon", "-DDPMIX_SWEEP=sweep_neon", f"-I{ROOT / 'kernels' / 'cpu'}"]
    command = [COMPILER, *flags, *defines, *sources, ROOT / "tests" / "native" / "passes.cpp", "-o", program]
    subprocess.run([str(part) for part in command], check=True)
    return program


@pytest.mark.parametrize("dim", [1, 3, 8, 14, 33])
def test_aarch64_gives_the_same_bits(passes: Path, dim: int) -> None:
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
    stdin = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    done = subprocess.run([str(EMULATOR), str(passes)], input=stdin, capture_output=True, check=True)
    got = done.stdout.decode().split()
    assert [float.fromhex(x) if "x" in x else x for x in got] == [
        float.fromhex(x) if "x" in x else x for x in expected
    ]
