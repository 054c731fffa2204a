"""Compile the native code for other systems with Zig's clang, any warning an error.

``python tests/native/cross.py`` compiles the CPU engine and the passes on GPUs, without the Python
modules, for Windows and macOS. An instruction set does not depend on the system: the sets of x86-64 are
compiled for Windows, the set of ARM for macOS.
Objects only: linking a program would first compile Zig's C++ library, which takes minutes. Without
optimisation, debug information or the checks of undefined behaviour that Zig adds by default: nobody runs
them, and clang gives its warnings and its errors about instruction sets before it optimises.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
CPU = KERNELS / "cpu"
ZIG = [sys.executable, "-m", "ziglang", "c++"]
QUICK = ["-O0", "-g0", "-fno-sanitize=undefined"]
FLAGS = ["-std=c++17", *QUICK, "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{CPU}"]
SETS = {
    "x86_64-windows-gnu": ["v4", "v3", "v2"],
    "aarch64-macos": ["neon"],
}


def sources(target: str) -> list[tuple[Path, list[str]]]:
    """Return the files for a system, each with its own flags; sweep.cpp for each set."""
    other = CPU / ("pages_posix.cpp" if "windows" in target else "pages_windows.cpp")
    once = [path for path in sorted(CPU.glob("*.cpp")) if not path.name.startswith("module")]
    once += [KERNELS / "cuda_commands.cpp", KERNELS / "cuda_passes.cpp"]
    found: list[tuple[Path, list[str]]] = [
        (path, []) for path in once if path not in (other, CPU / "sweep.cpp")
    ]
    return found + [(CPU / "sweep.cpp", set_flags(name)) for name in SETS[target]]


def set_flags(name: str) -> list[str]:
    """Return the flags that compile sweep.cpp for an instruction set."""
    machine = [] if name == "neon" else [f"-march=x86_64_{name}"]
    own = ["-mprefer-vector-width=512"] if name == "v4" else []
    return [f"-DDPMIX_SET={name}", *machine, *own]


def compile_objects(target: str, folder: Path) -> list[Path]:
    """Compile the code for a system, and return the object files.

    Raises
    ------
    subprocess.CalledProcessError
        A file does not compile without a warning.
    """

    def compile_one(numbered: tuple[int, tuple[Path, list[str]]]) -> Path:
        number, (path, own) = numbered
        out = folder / f"{path.stem}-{number}.o"
        command = [*ZIG, "-target", target, *FLAGS, *own, "-c", str(path), "-o", str(out)]
        subprocess.run(command, check=True)
        return out

    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(compile_one, enumerate(sources(target))))


def main() -> None:
    for target in SETS:
        folder = ROOT / "build" / "cross" / target
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{target}: {len(compile_objects(target, folder))} object files without a warning")


if __name__ == "__main__":
    main()
