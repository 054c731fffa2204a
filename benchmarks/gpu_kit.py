"""Build a folder that tests and measures dpmix on a GPU machine without a network.

    make gpu-kit                                             builds build/gpu-kit, in some minutes
    python benchmarks/gpu_kit.py --python PROGRAM            with another Python 3.12
    python benchmarks/gpu_kit.py --architectures sm_80 sm_90 with kernels compiled for other devices
    make gpu-rehearsal                                       builds it, for the Python of this script, and
                                                             runs it on an emulated device

The folder has wheels of dpmix, of PyCUDA and of what else the machine lacks, compiled kernels, the tests of
the CUDA engine, and the scripts of gpu.py, which `run.py` starts. The GPU machine needs Linux with glibc
2.34, a driver, the CUDA toolkit 13 with nvcc, and Python 3.12 with NumPy, SciPy, h5py, PyYAML, rich, click,
psutil, threadpoolctl, pytest and pytest-xdist. PyCUDA is built against the headers and the driver's
interface that the emulation of CUDA uses (tests/cuda_on_cpu/build.py); it works on real devices.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_code
from gpu import python_of

from dpmix.kernels import build
from dpmix.system.cores import usable_cores

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "gpu-kit-cache"
EMULATION = ROOT / "tests" / "cuda_on_cpu"
LIMIT = 40 << 20  # bytes of the kit and the project's files together
BROUGHT = (  # without what the machine has
    "pydantic", "flowio", "flowutils", "h5netcdf", "pytools", "mako",
    "pydantic-core", "annotated-types", "typing-inspection", "platformdirs", "siphash24",
)  # fmt: skip
ON_THE_MACHINE = (
    "numpy", "scipy", "h5py", "pyyaml", "rich", "click", "psutil", "threadpoolctl", "pytest", "pytest-xdist",
    "hypothesis", "packaging", "typing-extensions", "markupsafe",
)  # fmt: skip
CHANNELS = (5, 8, 14, 30, 64)  # of compiled kernels
TINY_CHANNELS = (5,)  # the fewest with pruned draws
SCRIPTS = ("gpu*.py", "gpu*.cu", "cuda_variants.py", "mixtures.py", "torch_em.py")
TESTS = ("conftest.py", "cuda_on_cpu/*.py", "engines/*.py", "runs/whole_runs.py")
RUN = """\"\"\"Test and measure dpmix on this machine's GPU: see `python3 run.py --help`.\"\"\"

import runpy
import sys
from pathlib import Path

script = Path(__file__).resolve().parent / "benchmarks" / "gpu.py"
sys.path.insert(0, str(script.parent))
runpy.run_path(str(script), run_name="__main__")
"""


def run(what: str, *command: object, **environment: str) -> None:
    """Print the purpose of a command and run it; end the program if it fails."""
    print(f"gpu-kit: {what}", flush=True)
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=os.environ | environment)
    if done.returncode != 0:
        sys.exit(f"gpu-kit: failed: {what}; see the error above")


def find_python(wanted: str | None) -> str | None:
    """Return a Python 3.12 that runs, from PATH or pyenv; None if it is missing."""
    names = [wanted] if wanted else ["python3.12", "python3"]
    check = "import sys; sys.exit(sys.version_info[:2] != (3, 12))"
    versions = Path.home() / ".pyenv" / "versions"
    for name in [*names, *map(str, sorted(versions.glob("3.12*/bin/python3.12")) if not wanted else [])]:
        if shutil.which(name) and subprocess.run([name, "-c", check], capture_output=True).returncode == 0:
            return name
    return None


def collect_wheels(python: Path, folder: Path, *, quick: bool, dpmix: Path | None) -> None:
    """Download and build wheels for a Python; quick: dpmix for one instruction set, little optimised.

    `dpmix` is a wheel of it that was built before, for the same Python.
    """
    folder.mkdir()
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as all_wheels:
        run("packages from the index", *pip, "wheel", "--wheel-dir", all_wheels, *BROUGHT[:6])
        for wheel in Path(all_wheels).glob("*.whl"):
            if wheel.name.split("-")[0].lower().replace("_", "-") in BROUGHT:
                shutil.move(wheel, folder)
    run("PyCUDA, from source the first time", python, EMULATION / "build.py", "--wheel", folder)
    if dpmix is not None:
        shutil.copy(dpmix, folder)
        return
    less = ["-C", "cmake.define.DPMIX_SETS=v3", "-C", "cmake.define.DPMIX_OPTIMISE=-O1"] if quick else []
    run("dpmix", *pip, "wheel", "--no-deps", *less, "--wheel-dir", folder, ROOT)


def compile_kernels(folder: Path, architectures: list[str], channels: tuple[int, ...]) -> None:
    """Compile the kernels that CACHE lacks, and pack all of them into cache.zip, which gpu.py unpacks."""
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    print(
        f"gpu-kit: kernels for {', '.join(architectures)} and D = {', '.join(map(str, channels))}", flush=True
    )
    with zipfile.ZipFile(folder / "cache.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for made in build.build(channels, architectures, [*build.sources(), *build.PAPER]):
            packed.write(made, made.relative_to(CACHE))


def compile_variants(folder: Path, architectures: list[str]) -> None:
    """Compile what gpu_limits.py and cuda_variants.py need."""
    folder.mkdir()
    wanted = [(*source, architecture) for source in gpu_code.sources() for architecture in architectures]

    def one(source: Path, defines: dict[str, int], architecture: str) -> None:
        kept = CACHE / gpu_code.file_name(source, architecture, defines)
        if not kept.exists():
            kept.write_bytes(gpu_code.compiled(source, architecture, defines))
        shutil.copy(kept, folder)

    print(f"gpu-kit: {len(wanted)} variants", flush=True)
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(lambda each: one(*each), wanted))


def copy(folder: Path) -> None:
    """Copy the scripts and tests."""
    for source, patterns in (("benchmarks", SCRIPTS), ("tests", TESTS)):
        for pattern in patterns:
            for path in (ROOT / source).glob(pattern):
                target = folder / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    (folder / "run.py").write_text(RUN)


def emulated_path() -> str:
    """Return PATH with the emulated nvcc first."""
    return f"{ROOT / 'build' / 'cuda_on_cpu' / 'bin'}{os.pathsep}{os.environ['PATH']}"


def rehearse(python: str, folder: Path) -> None:
    """Run all stages on an emulated device, in an environment that has what the machine has."""
    machine = ROOT / "build" / f"gpu-kit-machine-{python_of(folder / 'wheels')}"
    emulated = ROOT / "build" / "cuda_on_cpu"
    if not (machine / "complete").exists():
        run("an environment like the machine's", python, "-m", "venv", "--clear", machine)
        install = [
            machine / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        run("its packages", *install, *ON_THE_MACHINE)
        (machine / "complete").touch()
    emulation = {"LD_LIBRARY_PATH": str(emulated), "DPMIX_EMULATED_DEVICES": "1"}
    program = [machine / "bin" / "python", folder / "run.py", "--rehearsal", "--within", "560"]
    run("all stages on an emulated device", *program, PIP_NO_INDEX="1", **emulation)


def size_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def report_sizes(folder: Path) -> None:
    """Print the size of each part of the kit and of the project's files; end the program above the limit."""
    for part in sorted(folder.iterdir()):
        size = size_of([part, *part.rglob("*")])
        print(f"gpu-kit: {part.name}: {size / 2**20:.1f} MiB")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    project = size_of(ROOT / name for name in tracked.stdout.split("\0") if name)
    total = size_of(folder.rglob("*")) + project
    print(f"gpu-kit: {folder}: {total / 2**20:.1f} MiB with the {project / 2**20:.1f} MiB of the project")
    if total > LIMIT:
        sys.exit(f"gpu-kit: larger than {LIMIT >> 20} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-kit")
    parser.add_argument(
        "--python", metavar="PROGRAM", help="a Python 3.12; default: python3.12, with --rehearse this one"
    )
    parser.add_argument("--dpmix", type=Path, metavar="WHEEL", help="this wheel of dpmix; default: build one")
    parser.add_argument(
        "--architectures", nargs="+", default=["sm_90"], help="of the devices (default: sm_90)"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="run it on an emulated device, with tiny sizes"
    )
    asked = parser.parse_args()
    chosen = sys.executable if asked.rehearse and asked.python is None else find_python(asked.python)
    if chosen is None:
        missing = f"{asked.python or 'python3.12'}: no Python 3.12; name one by --python or KIT_PYTHON="
        sys.exit(f"gpu-kit: {missing}")
    shutil.rmtree(asked.output, ignore_errors=True)
    asked.output.mkdir(parents=True)
    python = Path(chosen)
    if chosen != sys.executable:
        environment = ROOT / "build" / "gpu-kit-python"
        python = environment / "bin" / "python"
        if not python.exists():
            run("an environment of Python 3.12", chosen, "-m", "venv", environment)
    collect_wheels(python, asked.output / "wheels", quick=asked.rehearse, dpmix=asked.dpmix)
    copy(asked.output)
    if asked.rehearse:  # the variants are compiled on the machine, as where a kit was built without nvcc
        os.environ["PATH"] = emulated_path()
        compile_kernels(asked.output, ["sm_90"], TINY_CHANNELS)
    else:
        compile_kernels(asked.output, asked.architectures, CHANNELS)
        compile_variants(asked.output / "cubins", asked.architectures)
    report_sizes(asked.output)
    if asked.rehearse:
        rehearse(chosen, asked.output)
    else:
        print("gpu-kit: there: python3 gpu-kit/run.py --within 560 --output FOLDER")


if __name__ == "__main__":
    main()
