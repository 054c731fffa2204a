"""Tests of the CPU engine on native code built for a sanitizer: sanitized.py [address] [thread].

Built apart, in build/sanitized, for one instruction set and with little optimisation, so that both take about
a minute on two cores. What a sanitizer reports ends the process, and so the tests fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = "DPMIX_SANITIZED_MODULE"
CXX = os.environ.get("CXX", "g++")
SANITIZERS = {
    # name: (what is checked, the runtime that is loaded first, its options, the tests)
    "address": (
        "address,undefined",
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "UBSAN_OPTIONS": "print_stacktrace=1"},
        "not TestBest",
    ),
    "thread": ("thread", "libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1"}, "TestBest or threads"),
}


def build(name: str) -> Path:
    """The module dpmix.kernels._cpu, built for a sanitizer."""
    checked = SANITIZERS[name][0]
    folder = ROOT / "build" / "sanitized" / name
    flags = f"-g1 -fsanitize={checked} -fno-sanitize-recover=all -fno-omit-frame-pointer"
    options = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_CXX_COMPILER": CXX,
        "CMAKE_CXX_FLAGS": flags,
        "DPMIX_SETS": "v3",
        "DPMIX_OPTIMISE": "-O1",
        "Python_EXECUTABLE": sys.executable,
    }
    defined = [f"-D{key}={value}" for key, value in options.items()]
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        sys.exit("cmake is not here: pip install '.[dev]'")
    subprocess.run([cmake, "-S", ROOT, "-B", folder, *defined], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("_cpu.*.so"))


def test(name: str, module: Path) -> int:
    """Run the tests on it in a process that has the sanitizer's runtime loaded first; the exit code."""
    _, library, options, chosen = SANITIZERS[name]
    where = subprocess.run([CXX, f"-print-file-name={library}"], capture_output=True, check=True, text=True)
    environment = {
        **os.environ,
        **options,
        "LD_PRELOAD": where.stdout.strip(),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        MODULE: str(module),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "sanitized",
        "tests/test_cpu_engine.py",
        "-k",
        chosen,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def take(path: str) -> None:
    """Put a module in the place of the installed dpmix.kernels._cpu."""
    import dpmix.kernels

    spec = importlib.util.spec_from_file_location("dpmix.kernels._cpu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    dpmix.kernels._cpu = module


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(SANITIZERS)
    modules = {name: build(name) for name in chosen}
    sys.exit(max(test(name, module) for name, module in modules.items()))
if MODULE in os.environ:  # loaded by pytest (-p sanitized)
    take(os.environ[MODULE])
