"""Build the CPU emulation of CUDA in build/cuda_on_cpu, and install PyCUDA if it is missing.

PyCUDA is published as source only. This script builds it against NVIDIA's headers from pip and the emulated
driver in about two minutes, and caches the wheel in ~/.cache/dpmix/wheels. It works on real devices too.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

PYCUDA = "2026.1"
HEADERS = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-profiler-api==13.0.85"]
HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "cuda_on_cpu"
INCLUDE = BUILD / "headers" / "nvidia" / "cu13" / "include"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpmix" / "wheels"
STUB = "CUDA_ERROR_STUB_LIBRARY"


def run(what: str, *command: object, **environment: str) -> None:
    """Print the purpose of a command and run it; end the program if it fails."""
    print(f"cuda_on_cpu: {what}", flush=True)
    if subprocess.run([str(part) for part in command], env={**os.environ, **environment}).returncode != 0:
        sys.exit(f"cuda_on_cpu: failed: {what}; see the error above")


def pip(what: str, command: str, *arguments: object, **environment: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    run(what, sys.executable, "-m", "pip", command, *quiet, *arguments, **environment)


def write_stubs(path: Path) -> None:
    """Write a source file with all entries of the CUDA driver; each only returns that it is a stub."""
    includes = "#include <cuda.h>\n#include <cudaProfiler.h>\n"
    command = ["g++", "-E", "-P", "-x", "c++", f"-I{INCLUDE}", "-"]
    declared = subprocess.run(command, input=includes, text=True, capture_output=True, check=True).stdout
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", declared)))
    stubs = [f"__attribute__((weak)) int {name}(void) {{ return {STUB}; }}\n" for name in names]
    path.write_text(f"enum {{ {STUB} = 34 }};\n" + "".join(stubs))


def build_driver() -> None:
    """Make libcuda.so.1, and libcuda.so next to it for the linker."""
    stubs = BUILD / "stubs.c"
    write_stubs(stubs)
    run("its driver's stubs", "gcc", "-c", "-fPIC", "-w", stubs, "-o", BUILD / "stubs.o")
    options = ["-O2", "-std=c++17", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", f"-I{INCLUDE}"]
    made = BUILD / "libcuda.so.1"
    link = ["-Wl,-soname,libcuda.so.1", BUILD / "stubs.o", "-ldl"]
    run("its driver", "g++", *options, HERE / "driver.cpp", *link, "-o", made.with_suffix(".new"))
    made.with_suffix(".new").replace(made)  # a process that uses the old one keeps it intact
    (BUILD / "libcuda.so").unlink(missing_ok=True)
    (BUILD / "libcuda.so").symlink_to(made.name)


def write_nvcc() -> None:
    """Write the replacement of nvcc as a program, in a folder that can be first on PATH."""
    program = BUILD / "bin" / "nvcc"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'nvcc.py'}' \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def pycuda_wheel() -> Path:
    """Find the wheel for this Python in the cache, or build it."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"pycuda-{PYCUDA}-{tag}-*.whl"
    if not any(CACHE.glob(pattern)):
        CACHE.mkdir(parents=True, exist_ok=True)
        flags = {"CFLAGS": "-O2 -g0 -w", "LDFLAGS": "-s", "CPATH": str(INCLUDE), "LIBRARY_PATH": str(BUILD)}
        no_curand = "-C--global-option=--conf:CUDA_ENABLE_CURAND=False"
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            what = f"PyCUDA {PYCUDA} from source, some two minutes, once"
            pip(what, "wheel", "--no-deps", no_curand, "--wheel-dir", folder, f"pycuda=={PYCUDA}", **flags)
            for wheel in Path(folder).glob(pattern):
                wheel.replace(CACHE / wheel.name)
    found = sorted(CACHE.glob(pattern))
    if not found:
        sys.exit(f"cuda_on_cpu: failed: building PyCUDA gave no {pattern}")
    return found[0]


def main() -> None:
    """Build everything, and install PyCUDA in the environment of this Python, or copy its wheel."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--wheel", type=Path, metavar="FOLDER", help="put PyCUDA's wheel there, uninstalled")
    wheels = parser.parse_args().wheel
    BUILD.mkdir(parents=True, exist_ok=True)
    if not INCLUDE.is_dir():
        pip("NVIDIA's headers", "install", "--no-deps", "--target", BUILD / "headers", *HEADERS)
    build_driver()
    if wheels:
        shutil.copy(pycuda_wheel(), wheels)
        return
    write_nvcc()
    if importlib.util.find_spec("pycuda") is None:
        pip("PyCUDA into this environment", "install", pycuda_wheel())
    print(f"cuda_on_cpu: {BUILD}: ready")


if __name__ == "__main__":
    main()
