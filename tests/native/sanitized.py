"""Run tests of the native modules on code built for a sanitizer: sanitized.py [address] [thread].

The code is built in build/sanitized for one instruction set and with little optimisation. The builds run in
parallel, because most of a build is one large file. A sanitizer's report ends the process: the tests fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "DPMIX_SANITIZED_FOLDER"
MODULES = "_cpu", "_cuda_commands"
CXX = os.environ.get("CXX", "g++")


class Sanitizer(NamedTuple):
    """A sanitizer: its checks, runtime library, options, tests and which of these run, mistakes it finds."""

    checked: str
    runtime: str
    options: dict[str, str]
    tests: tuple[str, ...]
    chosen: str
    mistakes: tuple[str, ...]


ENGINE = "tests/engines/test_cpu_engine.py"
OTHERS = (
    "tests/engines/test_cuda_commands.py",
    "tests/engines/test_exact.py",
    "tests/explore/test_posterior.py",
    "tests/populations/test_averages.py",
)
SANITIZERS = {
    "address": Sanitizer(
        "address,undefined",
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},  # gives arrays red zones
        # The contract once, and what it does not reach: these run every line that the whole files run.
        (
            f"{ENGINE}::TestBest",
            f"{ENGINE}::test_threads_batches_and_parts_do_not_change_a_bit_of_weighted_events",
            f"{ENGINE}::test_components_and_log_densities_of_draw_after_draw_are_those_of_separate_passes",
            f"{ENGINE}::test_pruning_is_measured_and_switches_itself_off",
            f"{ENGINE}::test_log_densities_are_within_rounding_of_float64",
            f"{ENGINE}::test_helpers_are_kept_for_the_next_pass_and_made_anew_after_a_fork",
            f"{ENGINE}::test_a_full_disk_is_a_line_and_no_end",
            f"{ENGINE}::test_an_output_of_another_type_is_refused",
            f"{ENGINE}::test_what_is_wrong_with_events_is_said",
            f"{ENGINE}::test_what_is_wrong_with_options_is_said",
            f"{ENGINE}::test_what_is_wrong_with_a_mixture_is_said",
            *OTHERS,
        ),
        # Without numbers that need many draws, many examples of one code, and more combinations of it.
        "not right_frequencies and not any_order and not within_its_bound and not like_size and not cancels"
        " and not (0.3 and same_bits) and not number_of_components_may and not 3-1-False"
        " and not (separate_passes and (90000 or 3000))",
        ("read_beyond_the_end", "overflow"),
    ),
    # Only tests with several threads; the others would run the same code, slower.
    "thread": Sanitizer(
        "thread",
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=1"},
        (ENGINE, *OTHERS),
        "threads and not 14-40 and not 3-None and not 3-1-False or TestBest and depend",
        ("race",),
    ),
}


def build(name: str) -> Path:
    """Build the native modules of dpmix.kernels for a sanitizer and return their folder."""
    checked = SANITIZERS[name].checked
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
        sys.exit("cmake is missing: pip install '.[dev]'")
    subprocess.run([cmake, "-S", ROOT, "-B", folder, *defined], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    return folder


def control(name: str) -> None:
    """Check that the sanitizer finds deliberate mistakes; otherwise the tests would prove nothing."""
    folder = ROOT / "build" / "sanitized"
    library = folder / f"wrong-{name}.so"
    flags = [f"-fsanitize={SANITIZERS[name].checked}", "-fno-sanitize-recover=all", "-O1", "-fPIC", "-shared"]
    subprocess.run(
        [CXX, *flags, Path(__file__).with_name("wrong.cpp"), "-o", library, "-pthread"], check=True
    )
    for mistake in SANITIZERS[name].mistakes:
        code = f"import ctypes; ctypes.CDLL({str(library)!r}).{mistake}(4)"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(name), capture_output=True, text=True
        )
        if done.returncode == 0 or not any(word in done.stderr for word in ("Sanitizer", "runtime error")):
            sys.exit(f"the {name} sanitizer does not see {mistake}: {done.stderr}")


def environment(name: str) -> dict[str, str]:
    """Return an environment that loads the sanitizer's runtime, then C++'s, with the throw it wraps."""
    where = [
        subprocess.run([CXX, f"-print-file-name={library}"], capture_output=True, check=True, text=True)
        for library in (SANITIZERS[name].runtime, "libstdc++.so.6")
    ]
    libraries = " ".join(found.stdout.strip() for found in where)
    paths = {"LD_PRELOAD": libraries, "PYTHONPATH": str(Path(__file__).parent)}
    return {**os.environ, **SANITIZERS[name].options, **paths, "OPENBLAS_NUM_THREADS": "1"}


def start_tests(name: str, folder: Path) -> subprocess.Popen[str]:
    """Start the tests on the modules of a folder, in parallel with the other sanitizer's."""
    sanitizer = SANITIZERS[name]
    options = ["-q", "-p", "sanitized", "-k", sanitizer.chosen, "--durations=5"]
    command = [sys.executable, "-m", "pytest", *options, *sanitizer.tests]
    variables = {**environment(name), FOLDER: str(folder)}
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def take(name: str, path: Path) -> None:
    """Replace an installed module of dpmix.kernels by another."""
    import dpmix.kernels

    spec = importlib.util.spec_from_file_location(f"dpmix.kernels.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    setattr(dpmix.kernels, name, module)  # the installed package may have none


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(SANITIZERS)
    with ThreadPoolExecutor() as pool:
        folders = dict(zip(chosen, pool.map(build, chosen), strict=True))
    for name in chosen:
        control(name)
    processes = {name: start_tests(name, folder) for name, folder in folders.items()}
    for name, process in processes.items():
        print(f"== {name}\n{process.communicate()[0]}", flush=True)
    sys.exit(any(process.returncode for process in processes.values()))
if FOLDER in os.environ:  # loaded by pytest (-p sanitized)
    for module_name in MODULES:
        take(module_name, next(Path(os.environ[FOLDER]).glob(f"{module_name}.*.so")))
