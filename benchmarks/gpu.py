"""Test and measure the CUDA engine on a GPU, in stages of minutes: one JSON and one page.

    make bench-gpu                          in a checkout, on a machine with a GPU and a network
    make gpu-kit                            a folder for a machine without a network; there:
    python3 gpu-kit/run.py                  all stages, at most 45 minutes
    python3 gpu-kit/run.py --within 540     the stages that fit into 9 minutes; call it again for the others
    python3 gpu-kit/run.py --stage limits   one stage, again if it was done before

Each stage is a process with a time limit. A stage that fails, or passes its limit, is reported, keeps what
it measured, and the next stage runs. Results go to one JSON file, from which a later call continues, and
to a page next to it; the output of the stages goes to a folder of logs. The Python that runs this file
runs the stages. It needs NumPy; a kit brings all other packages and installs them into its folder `site`.

With --rehearsal, the stages run with tiny sizes, which checks them on emulated devices
(tests/cuda_on_cpu).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent  # the checkout, or the kit
TOOLKIT = Path("/usr/local/cuda/bin")  # where nvcc is if it is not on PATH
PYTHON = (3, 12)  # of the wheels in a kit
INSTALL_SECONDS = 60  # about
SKIPPED = 3  # exit code of a stage that cannot run here; its results have the reason


@dataclass(frozen=True)
class Stage:
    """A script of this folder, its time limit in seconds, and what it does."""

    name: str
    script: str
    limit: int
    what: str


STAGES = (
    Stage("build", "gpu_build.py", 150, "compiles the kernels for all numbers of channels used below"),
    Stage("tests", "gpu_tests.py", 400, "runs the tests of the CUDA engine"),
    Stage("sanitizer", "gpu_sanitizer.py", 240, "runs compute-sanitizer: memcheck, racecheck, initcheck"),
    Stage("limits", "gpu_limits.py", 60, "measures bandwidth, arithmetic, shared and uniform loads, clocks"),
    Stage("kernels", "gpu_kernels.py", 300, "times every kernel alone, next to its floor"),
    Stage("counters", "gpu_counters.py", 240, "reads hardware counters of every kernel with ncu"),
    Stage("variants", "cuda_variants.py", 240, "times variants of draw_labels and shapes of its blocks"),
    Stage("sweeps", "gpu_sweeps.py", 480, "times whole sweeps and steps of Bayesian EM"),
    Stage("peers", "gpu_peers.py", 180, "times scikit-learn and an EM in PyTorch on the same GPU"),
)


def main() -> int:
    """Run stages and write the JSON and the page; 1 if a stage failed."""
    arguments = parsed()
    began = time.monotonic()
    environment = prepared()
    record = read(arguments.results)
    about = described(environment, arguments)
    if problem := differs(record.get("about"), about):
        print(f"gpu: {arguments.results}: {problem}", file=sys.stderr)
        return 2
    record |= {"about": about, "command": shown(arguments), "date": now()}
    wanted = arguments.stage or [stage.name for stage in STAGES if not done(record, stage.name)]
    ok, left = True, []
    for stage in (stage for stage in STAGES if stage.name in wanted):
        if time.monotonic() - began + stage.limit > arguments.within:
            left.append(stage.name)
            continue
        record["stages"][stage.name] = result = run(stage, environment, arguments)
        ok &= result["status"] in ("done", "skipped")
        write(arguments.results, record)
    write(arguments.results, record)
    page(arguments.results, environment)
    if left:
        print(f"gpu: {', '.join(left)}: no time left (--within {arguments.within:.0f}); call again for them")
    return 0 if ok else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    names = [stage.name for stage in STAGES]
    parser.add_argument(
        "--stage", nargs="+", choices=names, help="these stages, also if they were done before"
    )
    parser.add_argument(
        "--within", type=float, default=float("inf"), metavar="SECONDS",
        help="start no stage whose limit exceeds the time that is left",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, metavar="FILE", default=ROOT / "build" / "gpu" / "gpu.json",
        help="JSON to write, and to continue from if it exists",
    )  # fmt: skip
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes; the times mean nothing then")
    return parser.parse_args()


def prepared() -> dict[str, str]:
    """Return the environment of the stages; in a kit, install its packages first, without an index."""
    wheels, site = sorted((ROOT / "wheels").glob("*.whl")), ROOT / "site"
    paths = [str(HERE)]
    if wheels:
        if sys.version_info[:2] != PYTHON:
            sys.exit(
                f"gpu: this is Python {sys.version.split()[0]}; the kit needs {'.'.join(map(str, PYTHON))}"
            )
        if not (site / "complete").exists():
            install(wheels, site)
        paths.append(str(site))
    search = os.environ["PATH"].split(os.pathsep)
    if shutil.which("nvcc") is None:
        search.append(str(TOOLKIT))
    caches = {"XDG_CACHE_HOME": str(ROOT / "cache")} if wheels else {}
    earlier = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {
        **os.environ,
        **caches,
        "PATH": os.pathsep.join(search),
        "PYTHONPATH": os.pathsep.join(paths + earlier),
        "PYTHONUNBUFFERED": "1",
    }


def install(wheels: list[Path], site: Path) -> None:
    """Install the packages of a kit in a folder; end the program if that fails."""
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-compile", "--target", str(site), *map(str, wheels)]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"gpu: pip cannot install the packages in {site}; see the error above")
    (site / "complete").touch()


def described(environment: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the device, its driver and the versions; end the program if there is no device."""
    command = [sys.executable, str(HERE / "gpu_device.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gpu: {last_line(done.stderr) or 'the device cannot be described'}")
    about: dict[str, Any] = json.loads(done.stdout)
    return about | {"rehearsal": arguments.rehearsal}


def differs(before: dict[str, Any] | None, now: dict[str, Any]) -> str:
    """Return why results may not be continued, or ""."""
    for key in ("device", "rehearsal", "versions"):
        if before is not None and before[key] != now[key]:
            return f"has results with {key} {before[key]}, and now it is {now[key]}; use --results OTHER"
    return ""


def run(stage: Stage, environment: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a stage; return its status, the reason if it is not done, its seconds and its results."""
    folder = arguments.results.parent
    output, log = folder / f"{stage.name}.part", folder / "logs" / f"{stage.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / stage.script), "--output", str(output)]
    command += ["--rehearsal"] if arguments.rehearsal else []
    print(f"gpu: {stage.name}: {stage.what}, at most {stage.limit} s", flush=True)
    began = time.monotonic()
    with log.open("w") as lines:
        code = finish(command, environment, stage.limit, lines)
    results = json.loads(output.read_text()) if output.exists() else None
    output.unlink(missing_ok=True)
    status = {0: "done", SKIPPED: "skipped", None: "timed out"}.get(code, "failed")
    reason = {"done": "", "timed out": f"stopped after {stage.limit} s"}.get(status)
    reason = last_line(log.read_text()) if reason is None else reason
    seconds = round(time.monotonic() - began, 1)
    print(f"gpu: {stage.name}: {status} in {seconds:.0f} s{reason and ': ' + reason}", flush=True)
    made = {"status": status, "reason": reason, "seconds": seconds, "limit": stage.limit, "date": now()}
    return made | {"results": results}


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
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def page(results: Path, environment: dict[str, str]) -> None:
    """Write the page next to the JSON."""
    command = [sys.executable, str(HERE / "gpu_page.py"), str(results)]
    if subprocess.run(command, env=environment).returncode == 0:
        print(f"gpu: results in {results} and {results.with_suffix('.md')}")


def read(path: Path) -> dict[str, Any]:
    """Return earlier results, or empty ones."""
    if path.exists():
        record: dict[str, Any] = json.loads(path.read_text())
        return record
    return {"stages": {}}


def write(path: Path, record: dict[str, Any]) -> None:
    """Replace the JSON file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


def done(record: dict[str, Any], name: str) -> bool:
    return record["stages"].get(name, {}).get("status") in ("done", "skipped")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def shown(arguments: argparse.Namespace) -> str:
    return "python benchmarks/gpu.py" + (" --rehearsal" if arguments.rehearsal else "")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
