"""nvcc compiles every kernel for the supported architectures within the budget on its card."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.kernels.build import FOLDER, OPTIONS

SOURCES = sorted(path.stem for path in FOLDER.glob("*.cu"))
CARD = re.compile(
    r"// Budget    (\w+), D = 14: registers (\d+), stack (\d+), shared ([\d,]+) bytes; "
    r"(?:no spills|spills (\d+) bytes)\."
)
REPORT = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads"
    r".*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
"""The ptxas report of one kernel: name, stack, spill stores and loads, registers, rest of the line."""


@cache
def nvcc() -> Path | None:
    """Return NVIDIA's compiler from PATH or CUDA_HOME, not its replacement in other tests."""
    for folder in [*os.get_exec_path(), os.path.join(os.environ.get("CUDA_HOME", ""), "bin")]:
        candidate = Path(folder) / "nvcc"
        if os.access(candidate, os.X_OK):
            said = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, check=False
            ).stdout
            if "NVIDIA" in said:
                return candidate
    return None


needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="there is no nvcc on this machine")


@cache
def hardly_optimised() -> tuple[str, ...]:
    """Return the option that saves most of a compilation; older compilers have none.

    Errors, warnings and the limit of shared memory do not depend on it. Registers and stack do.
    """
    help_text = subprocess.run([str(nvcc()), "--help"], capture_output=True, text=True, check=True).stdout
    return ("--Ofast-compile=max",) if "--Ofast-compile" in help_text else ()


def compiled(source: str, n_channels: int, architecture: str, folder: Path, *more: str) -> str:
    """Compile a source, with warnings as errors and `more` options, and return the compiler's report."""
    command = [str(nvcc()), *OPTIONS, f"-DN_CHANNELS={n_channels}", f"-arch={architecture}", f"-I{FOLDER}"]
    command += ["-Werror", "all-warnings", "--ptxas-options=-v", "-cubin", *more]
    output = folder / f"{source}-{n_channels}-{architecture}.cubin"
    result = subprocess.run(
        [*command, str(FOLDER / f"{source}.cu"), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{source}.cu, D = {n_channels}, {architecture}: {result.stderr}"
    return result.stderr


def budgets(source: str) -> dict[str, tuple[int, int, int, int]]:
    """Return registers, stack, shared and spilled bytes at D = 14 from the card of each kernel."""
    return {
        name: (int(registers), int(stack), int(shared.replace(",", "")), int(spilled or 0))
        for name, registers, stack, shared, spilled in CARD.findall((FOLDER / f"{source}.cu").read_text())
    }


@pytest.mark.native
@needs_nvcc
def test_kernels_keep_within_the_budgets_on_their_cards(tmp_path: Path) -> None:
    architecture = "sm_90"  # by other architectures: benchmarks/gpu_cards.py --registers
    with ThreadPoolExecutor() as pool:
        reports = pool.map(lambda source: compiled(source, 14, architecture, tmp_path), SOURCES)
        for source, report in zip(SOURCES, reports, strict=True):
            stated, entries = budgets(source), REPORT.findall(report)
            assert sorted(stated) == sorted(name for name, *_ in entries), source
            for name, stack, stores, loads, registers, rest in entries:
                shared = re.search(r"(\d+) bytes smem", rest)
                used = (int(registers), int(stack), int(shared.group(1)) if shared else 0, int(stores))
                print(architecture, name, "registers, stack, shared and spilled bytes:", *used)
                assert (stores == "0") == (loads == "0")
                assert all(is_ <= most for is_, most in zip(used, stated[name], strict=True)), (name, used)


@pytest.mark.native
@needs_nvcc
@pytest.mark.parametrize(("n_channels", "architecture"), [(33, "sm_120")])
def test_kernels_compile_for_any_number_of_channels(
    n_channels: int, architecture: str, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:
        list(
            pool.map(lambda s: compiled(s, n_channels, architecture, tmp_path, *hardly_optimised()), SOURCES)
        )


@pytest.mark.native
@needs_nvcc
def test_nothing_of_an_event_leaves_the_registers_at_64_channels(tmp_path: Path) -> None:
    for name, stack, *_ in REPORT.findall(compiled("mvn_log_density", 64, "sm_90", tmp_path)):
        assert (name, stack) == ("mvn_log_density", "0")


@pytest.mark.native
@needs_nvcc
def test_what_nvcc_says_of_usual_errors_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvcc()
    assert found is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(found.parent), os.environ["PATH"]]))
    with pytest.raises(DpmixError, match=r"CUDA [\d.]+ does not know sm_999: install a newer CUDA toolkit$"):
        build.cubin("accumulate", 2, "sm_999")
    shell = tmp_path / "shell"
    shell.mkdir()
    (shell / "sh").symlink_to("/bin/sh")  # nvcc is a script on some machines
    monkeypatch.setenv("CUDA_HOME", str(found.parent.parent))
    monkeypatch.setenv("PATH", str(shell))
    with pytest.raises(DpmixError, match=r"nvcc needs a C\+\+ compiler: install g\+\+"):
        build.cubin("accumulate", 2, "sm_90")
