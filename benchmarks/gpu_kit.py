"""Build a folder that tests and measures dpmix on a GPU machine without a network.

    make gpu-kit                                             builds build/gpu-kit, in some minutes
    python benchmarks/gpu_kit.py --python PROGRAM            with another Python 3.12
    python benchmarks/gpu_kit.py --architectures sm_90       with kernels that are compiled already
    make gpu-rehearsal                                       builds it and runs it on an emulated device

The folder has wheels of dpmix, of PyCUDA and of what they need, the tests of the CUDA engine, and the
scripts of gpu.py, which `run.py` starts. The GPU machine needs Linux with glibc 2.34, Python 3.12 with pip
and NumPy, a driver, and the CUDA toolkit 13 with nvcc. PyCUDA is built against the headers and the
driver's interface that the emulation of CUDA uses (tests/cuda_on_cpu/build.py); it works on real devices.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EMULATION = ROOT / "tests" / "cuda_on_cpu"
LIMIT = 64 << 20  # bytes
ON_THE_MACHINE = ("numpy",)
UNUSED = ("pyarrow", "matplotlib", "bokeh", "jinja2")  # of dpmix; no stage imports them
OF_PYCUDA = ("pytools", "siphash24", "platformdirs", "mako")
OF_TESTS = ("pytest",)
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


def requirements() -> list[str]:
    """Return what the wheels must provide, except dpmix and PyCUDA."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line for line in project["dependencies"] if name_of(line) not in (*ON_THE_MACHINE, *UNUSED)]
    return [*named, *OF_PYCUDA, *OF_TESTS]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found.group().lower() if found else ""


def collect_wheels(python: Path, folder: Path, *, quick: bool) -> None:
    """Download and build wheels for Python 3.12; quick: dpmix for one instruction set."""
    folder.mkdir()
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run("packages from the index", *pip, "wheel", "--wheel-dir", folder, *requirements())
    for name in ON_THE_MACHINE:
        for wheel in folder.glob(f"{name}-*.whl"):
            wheel.unlink()
    run("PyCUDA, from source the first time", python, EMULATION / "build.py", "--wheel", folder)
    sets = ["-C", "cmake.define.DPMIX_SETS=v3"] if quick else []
    run("dpmix", *pip, "wheel", "--no-deps", *sets, "--wheel-dir", folder, ROOT)


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


def rehearse(python: str, folder: Path) -> None:
    """Run all stages by a Python that has NumPy alone, on an emulated device."""
    machine, emulated = ROOT / "build" / "gpu-kit-machine", ROOT / "build" / "cuda_on_cpu"
    if not (machine / "complete").exists():
        run("an environment with NumPy alone", python, "-m", "venv", "--clear", machine)
        run("NumPy", machine / "bin" / "python", "-m", "pip", "install", "--quiet", *ON_THE_MACHINE)
        (machine / "complete").touch()
    path = f"{emulated / 'bin'}{os.pathsep}{os.environ['PATH']}"
    emulation = {"LD_LIBRARY_PATH": str(emulated), "PATH": path, "DPMIX_EMULATED_DEVICES": "1"}
    program = [machine / "bin" / "python", folder / "run.py", "--rehearsal"]
    run("all stages on an emulated device", *program, PIP_NO_INDEX="1", **emulation)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-kit")
    parser.add_argument("--python", metavar="PROGRAM", help="a Python 3.12; default: python3.12")
    parser.add_argument("--architectures", default="", help="compile kernels for these, such as sm_90")
    parser.add_argument(
        "--rehearse", action="store_true", help="run it on an emulated device, with tiny sizes"
    )
    asked = parser.parse_args()
    chosen = find_python(asked.python)
    if chosen is None:
        missing = f"{asked.python or 'python3.12'}: no Python 3.12; name one by --python or KIT_PYTHON="
        if not asked.rehearse:
            sys.exit(f"gpu-kit: {missing}")
        print(f"gpu-kit: SKIPPED: {missing}")
        return
    shutil.rmtree(asked.output, ignore_errors=True)
    asked.output.mkdir(parents=True)
    environment = ROOT / "build" / "gpu-kit-python"
    if not (environment / "bin" / "python").exists():
        run("an environment of Python 3.12", chosen, "-m", "venv", environment)
    collect_wheels(environment / "bin" / "python", asked.output / "wheels", quick=asked.rehearse)
    copy(asked.output)
    if asked.architectures:
        build = [Path(sys.executable).with_name("dpmix"), "devices", "--build", "--architectures"]
        channels = ["--channels", "1,2,3,5,8,14,16,17,30,33,64"]
        cache = {"XDG_CACHE_HOME": str(asked.output.resolve() / "cache")}
        run("kernels", *build, asked.architectures, *channels, **cache)
    total = size(asked.output)
    print(f"gpu-kit: {asked.output}: {total / 2**20:.1f} MiB; there: python3 run.py")
    if total > LIMIT:
        sys.exit(f"gpu-kit: larger than {LIMIT >> 20} MiB")
    if asked.rehearse:
        rehearse(chosen, asked.output)


if __name__ == "__main__":
    main()
