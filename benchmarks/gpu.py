"""Test and measure the CUDA engine on a GPU in nine minutes, the most valuable facts first.

    make bench-gpu                                       in a checkout, on a machine with a GPU and a network
    make gpu-kit                                         a folder for a machine without a network; there:
    python3 gpu-kit/run.py --within 560 --output FOLDER  all that fits into 560 seconds
    python3 gpu-kit/run.py --stage right headline        some stages only

Each stage is a process with a time of its own: it starts no further row when this time is over, and it is
stopped when twice this time is over. A stage that fails is reported, and the next one starts. Every row is
in FOLDER/gpu.json as soon as it is measured, and the tables of all rows are in FOLDER/gpu.md after each
stage; the output of the stages is in FOLDER/log.txt. After each stage, the most valuable tables so far are
printed, so that the end of the output has them. If this process is killed, its stage ends, too.

The Python that runs this file runs the stages. A kit brings the packages that a machine with PyTorch, SciPy,
h5py and pytest lacks, and unpacks them next to this folder. With --rehearsal, the stages run with tiny sizes,
which checks them on emulated devices (tests/cuda_on_cpu).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_output import Record, read, write

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent  # the checkout, or the kit
TOOLKIT = Path("/usr/local/cuda/bin")  # where nvcc is if it is not on PATH
SKIPPED = 3  # exit code of a stage that cannot run here; the reason is its last line
SHORTEST = 4  # seconds; with less time left, no stage starts
PATIENCE = 30  # seconds for the description of the device; it takes 1 to 5
UNHURRIED = 4  # without --within, and on an emulated device, stages have this many times their seconds


@dataclass(frozen=True)
class Stage:
    """A script of this folder with its options, its time in seconds, and what it does."""

    name: str
    script: str
    seconds: int
    what: str
    options: tuple[str, ...] = ()


STAGES = (
    Stage("build", "gpu_build.py", 10, "compiles the kernels that are not compiled yet, D = 14 first"),
    Stage("right", "gpu_right.py", 15, "compares labels, sums and memberships with the CPU engine"),
    Stage(
        "headline", "gpu_sweeps.py", 25, "times passes and sweeps, pruned and dense",
        ("--events", "1_000_000", "100_000", "--chains", "1", "4", "--dense"),
    ),
    Stage("limits", "gpu_limits.py", 8, "measures bandwidth, arithmetic, shared and uniform loads, clocks"),
    Stage("peers", "gpu_peers.py", 30, "times an EM in PyTorch and scikit-learn on the same GPU"),
    Stage(
        "kernels", "gpu_kernels.py", 35, "times every kernel alone, D = 14",
        ("--channels", "14", "--kinds", "mix", "ovl", "dp"),
    ),
    Stage("sanitizer", "gpu_sanitizer.py", 75, "runs compute-sanitizer: memcheck, racecheck, synccheck"),
    Stage("counters", "gpu_counters.py", 45, "reads hardware counters of every kernel with ncu"),
    Stage(
        "channels", "gpu_kernels.py", 45, "times the kernels for other numbers of channels",
        ("--channels", "30", "64", "8", "--kinds", "mix"),
    ),
    Stage(
        "sweeps", "gpu_sweeps.py", 35, "times sweeps of 1 to 8 chains",
        ("--events", "10_000", "10_000_000", "--chains", "1", "2", "4", "8"),
    ),
    Stage("tests", "gpu_tests.py", 100, "runs the tests of the CUDA engine, its contract first"),
    Stage("variants", "cuda_variants.py", 40, "times variants of draw_labels and shapes of its blocks"),
    Stage(
        "large", "gpu_sweeps.py", 45, "times passes and sweeps of 100,000,000 events",
        ("--events", "100_000_000", "--chains", "1", "2"),
    ),
    Stage("initcheck", "gpu_sanitizer.py", 30, "runs compute-sanitizer: initcheck", ("--tools", "initcheck")),
)  # fmt: skip


def main() -> int:
    """Run stages and write the JSON and the page; 1 if a stage failed."""
    arguments, began = parsed(), time.monotonic()
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = arguments.output / "log.txt"
    log.unlink(missing_ok=True)
    results = arguments.output / "gpu.json"
    environment = prepared()
    record: Record = {"stages": {}, "command": shown(), "date": now()}
    record["about"] = described(environment, rehearsal=arguments.rehearsal)
    write(results, record)
    ok, left_out = True, []
    for stage in (stage for stage in STAGES if stage.name in (arguments.stage or names())):
        left = arguments.within - (time.monotonic() - began)
        if left < SHORTEST:
            left_out.append(stage.name)
            continue
        ok &= run(stage, environment, arguments, left, log) in ("done", "skipped")
        subprocess.run([sys.executable, str(HERE / "gpu_page.py"), str(results)], env=environment)
    if left_out:
        print(f"gpu: no time left for {', '.join(left_out)}")
    print(f"gpu: {time.monotonic() - began:.0f} s; results in {results}", flush=True)
    return 0 if ok else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--stage", nargs="+", choices=names(), help="these stages only")
    parser.add_argument(
        "--within", type=float, default=float("inf"), metavar="SECONDS",
        help=f"end after this time; without it, every stage has {UNHURRIED} times its own time",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", default=ROOT / "build" / "gpu",
        help="folder for gpu.json, gpu.md and log.txt, which are replaced (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes; the times mean nothing then")
    return parser.parse_args()


def names() -> list[str]:
    return [stage.name for stage in STAGES]


def prepared() -> dict[str, str]:
    """Return the environment of the stages; in a kit, unpack its packages and compiled kernels first."""
    paths, caches = [str(HERE)], {}
    if (ROOT / "wheels").is_dir():
        if (needed := python_of(ROOT / "wheels")) != (here := "{}.{}".format(*sys.version_info)):
            sys.exit(f"gpu: this is Python {here}; the kit needs {needed}")
        unpack(ROOT / "site", *(ROOT / "wheels").glob("*.whl"))
        unpack(ROOT / "cache", *ROOT.glob("cache.zip"))
        paths.append(str(ROOT / "site"))
        caches = {"XDG_CACHE_HOME": str(ROOT / "cache")}
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    path = os.environ["PATH"]
    if shutil.which("nvcc") is None:
        path += os.pathsep + str(TOOLKIT)
    added = {"PATH": path, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **caches, **added}


def python_of(wheels: Path) -> str:
    """Return the version of Python that the wheels of a kit are for, such as ``3.12``, by PyCUDA's name."""
    (name,) = (path.name for path in wheels.glob("pycuda-*.whl"))
    found = re.search(r"-cp(\d)(\d+)-", name)
    assert found is not None, name
    return ".".join(found.groups())


def unpack(folder: Path, *archives: Path) -> None:
    """Unpack wheels, or the cache, once; a wheel is an archive of what belongs in a folder of packages."""
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        for archive in archives:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(unfinished)
        unfinished.replace(folder)


def described(environment: dict[str, str], *, rehearsal: bool) -> dict[str, Any]:
    """Return the device, its driver and the versions; end the program if there is no device."""
    command = [sys.executable, str(HERE / "gpu_device.py")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        sys.exit(f"gpu: the device does not answer within {PATIENCE} s")
    if done.returncode != 0:
        sys.exit(f"gpu: {last_line(done.stderr) or 'the device cannot be described'}")
    about: dict[str, Any] = json.loads(done.stdout)
    print(f"gpu: {about['device']}, driver {about['driver']}, nvcc {about['nvcc']}", flush=True)
    return about | {"rehearsal": rehearsal}


def run(
    stage: Stage, environment: dict[str, str], arguments: argparse.Namespace, left: float, log: Path
) -> str:
    """Run a stage in the time that is left, add its status to the record, and return it."""
    pace = UNHURRIED if arguments.rehearsal or arguments.within == float("inf") else 1
    seconds, limit = min(pace * stage.seconds, left - 1), min(2 * pace * stage.seconds, left - 0.5)
    results = arguments.output / "gpu.json"
    command = [sys.executable, str(HERE / stage.script), *stage.options]
    command += ["--output", str(results), "--name", stage.name, "--seconds", str(seconds)]
    command += ["--runner", str(os.getpid())]
    command += ["--rehearsal"] if arguments.rehearsal else []
    print(f"gpu: {stage.name}: {stage.what}, {seconds:.0f} s", flush=True)
    began = time.monotonic()
    note(results, stage.name, {"status": "started", "reason": "the run was stopped", "results": {}})
    with log.open("a") as lines:
        lines.write(f"\n==== {stage.name}: {' '.join(command)}\n")
        lines.flush()
        code = finish(command, environment, limit, lines)
    status = {0: "done", SKIPPED: "skipped", None: "stopped"}.get(code, "failed")
    reason = {"done": "", "stopped": f"stopped after {limit:.0f} s"}.get(status)
    reason = last_line(log.read_text()) if reason is None else reason
    took = round(time.monotonic() - began, 1)
    print(f"gpu: {stage.name}: {status} in {took:.0f} s{reason and ': ' + reason}", flush=True)
    note(results, stage.name, {"status": status, "reason": reason, "seconds": took, "limit": round(limit)})
    return status


def note(results: Path, name: str, of_stage: dict[str, Any]) -> None:
    """Add to what the record says of a stage."""
    record = read(results)
    record["stages"][name] = record["stages"].get(name, {}) | of_stage
    write(results, record)


def finish(command: list[str], environment: dict[str, str], limit: float, lines: Any) -> int | None:
    """Run a process; return its exit code, or None if it passed its limit, and end it with all it started."""
    process = subprocess.Popen(
        command, env=environment, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def shown() -> str:
    """Return the command as a reader would repeat it."""
    program = "python3 gpu-kit/run.py" if (ROOT / "wheels").is_dir() else "python benchmarks/gpu.py"
    return " ".join([program, *sys.argv[1:]])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
