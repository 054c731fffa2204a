"""A replacement of nvcc: compiles a .cu file with g++ and cuda_cpu.h to a shared object for the driver."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "cuda_on_cpu"
HEADER = "cuda_cpu.h"
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\(([^)]*)\)\s*)?(\w+)\s*\(")
MAX_SHARED = 48 << 10
"""Bytes of a block's static shared memory on every device."""
MAX_THREADS = "1024"
SHARED = re.compile(r" (\d+) TLS .* _ZZ(\d+)(\w+)$", re.MULTILINE)
"""A local array in shared memory as `readelf` lists it: bytes, length of its function's name, the name."""
UNROLLED = 8
"""Most channels at which -O3 pays: with more, what is unrolled takes longer to compile than tests to run."""
MANY_CHANNELS = ["-O1", "-fexpensive-optimizations"]  # the latter contracts multiply-adds as -O3 does
SANITIZERS = {
    "": ["-O3", "-march=native"],
    "address": ["-O0", "-g1", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment"],
    "thread": ["-O1", "-g1", "-fsanitize=thread"],
}
COMMON = [
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
    "-w",
    "-U_FORTIFY_SOURCE",
]


def version() -> str:
    """Return a version that changes with the compiler, the processor and the files of the emulation."""
    predefined = ["g++", "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    macros = subprocess.run(predefined, capture_output=True, check=True).stdout
    ours = [(HERE / name).read_bytes() for name in ("nvcc.py", HEADER, "launch.h")]
    digest = hashlib.sha256(b"".join([macros, *ours]))
    return f"nvcc of the emulated CUDA devices {digest.hexdigest()[:16]}"


def kernels_of(text: str) -> dict[str, str]:
    """Return the kernels of a source, each with the most threads of a block by its launch bounds."""
    return {name: bounds.split(",")[0] or MAX_THREADS for bounds, name in KERNEL.findall(text)}


def compile_kernels(source: Path, output: Path, options: list[str], sanitizer: str = "") -> None:
    """Compile a .cu file, optionally for the address or thread sanitizer; messages go to stderr.

    Raises
    ------
    subprocess.CalledProcessError
        The compiler rejects the source.
    ValueError
        The source has no kernel, or one has too much shared memory.
    """
    kernels = kernels_of(source.read_text())
    if not kernels:
        raise ValueError(f"{source}: no __global__ function in it")
    exports = "".join(f"CUDA_CPU_EXPORT({name}, {most})\n" for name, most in kernels.items())
    flags = [*COMMON, *SANITIZERS[sanitizer], *options]
    if not sanitizer and n_channels(options) > UNROLLED:
        flags += MANY_CHANNELS
    command = ["g++", "-x", "c++", *flags, "-shared", "-Wl,-Bsymbolic"]
    command += ["-include", str(precompiled(flags)), "-", "-o", str(output)]
    generated = f'#include "{source.resolve()}"\n{exports}'
    subprocess.run(command, input=generated, text=True, check=True)
    for name, size in shared_bytes(output, list(kernels)).items():
        if size > MAX_SHARED:
            raise ValueError(
                f"{source.name}: {name} has {size:,} bytes of shared memory, at most {MAX_SHARED:,}"
            )


def n_channels(options: list[str]) -> int:
    """Return the number of channels that options define, or 0."""
    return max((int(one.partition("=")[2]) for one in options if one.startswith("-DN_CHANNELS=")), default=0)


def precompiled(flags: list[str]) -> Path:
    """Return a header that includes cuda_cpu.h, with a precompiled one next to it.

    Without it, the standard library's headers are most of a compilation. The compiler ignores a precompiled
    header of another compiler or processor, and reads the header itself.
    """
    used = [flag for flag in flags if not flag.startswith(("-D", "-I"))]  # cuda_cpu.h depends on no other
    sources = [(HERE / name).read_bytes() for name in (HEADER, "launch.h")]
    digest = hashlib.sha256(b"\0".join([" ".join([str(HERE), *used]).encode(), *sources])).hexdigest()[:16]
    header = BUILD / "precompiled" / digest / HEADER
    if not header.is_file():
        header.parent.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="new-", dir=header.parent.parent))
        (folder / HEADER).write_text(f'#include "{HERE / HEADER}"\n')
        command = ["g++", "-x", "c++-header", *used, HEADER, "-o", f"{HEADER}.gch"]
        subprocess.run(command, cwd=folder, check=True)
        try:
            folder.replace(header.parent)
        except OSError:  # another process has just made it
            shutil.rmtree(folder)
    return header


def shared_bytes(module: Path, kernels: list[str]) -> dict[str, int]:
    """Return the bytes of static shared memory of each kernel, including all device functions.

    With the address sanitizer, they are 0.
    """
    listed = subprocess.run(
        ["readelf", "-sW", str(module)], capture_output=True, text=True, check=True
    ).stdout
    found = {(name[: int(length)], name, int(size)) for size, length, name in SHARED.findall(listed)}
    of_others = sum(size for function, _, size in found if function not in kernels)
    return {
        kernel: of_others + sum(size for function, _, size in found if function == kernel)
        for kernel in kernels
    }


def main() -> int:
    """Parse the options of nvcc and compile; unknown options are errors."""
    parser = argparse.ArgumentParser(prog="nvcc", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument("-cubin", "--cubin", action="store_true", required=True)
    parser.add_argument("-o", dest="output", type=Path)
    parser.add_argument("-D", dest="defines", action="append", default=[])
    parser.add_argument("-I", dest="folders", action="append", default=[])
    parser.add_argument("-fmad", "--fmad", choices=["true", "false"], default="true")
    for ignored in ("arch", "std", "ptxas-options"):  # for devices, or always set here
        parser.add_argument(f"-{ignored}", f"--{ignored}")
    parser.add_argument("source", type=Path)
    arguments = parser.parse_args()
    options = ["-ffp-contract=fast" if arguments.fmad == "true" else "-ffp-contract=off"]
    options += [f"-D{name}" for name in arguments.defines] + [f"-I{folder}" for folder in arguments.folders]
    output = arguments.output or Path(arguments.source.with_suffix(".cubin").name)
    try:
        compile_kernels(arguments.source, output, options)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
