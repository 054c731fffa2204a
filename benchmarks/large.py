"""Run on more events than the memory holds: 200,000,000 events x 8 channels, K = 64, within 4 GB.

    python benchmarks/large.py FOLDER        # keeps the events there: 6.4 GB, and takes as much for the run
    python benchmarks/large.py FOLDER --events 20000000 --memory-limit "500 MB"

The events are drawn chunk by chunk from a mixture of 30 normals. Beyond the limit no memory is given to the
process (`ulimit -d`: memory that no file is behind; the pages of mapped files are the system's, to be taken
back whenever it wants them). What the process takes is read from /proc five times a second, stage by stage.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from record import DPMIX, plain_arguments, write_results

from dpmix import open_run
from dpmix.config.engine import EngineConfig

D, K, POPULATIONS, CHUNK = 8, 64, 30, 1_000_000
SWEEPS = {"chains": 1, "burn_in": 2, "draws": 3, "init": "kmeans"}
INTERVAL = 0.2
# By what lines of the log begin with.
STAGES = {"events: ": "prepare", "engine: ": "start of the chain", "burn-in: ": "sweeps"}
WATCHED = ("VmRSS", "RssAnon", "RssFile", "VmData")


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=200_000_000)
    parser.add_argument("--memory-limit", default="4 GB")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    path, size = asked.folder / f"events_{asked.events}.npy", 4 * D * asked.events
    limit = EngineConfig(memory_limit=asked.memory_limit).memory_limit_bytes
    assert limit is not None
    seconds = {}
    if not path.exists():
        require_disk(asked.folder, 2 * size)
        began = time.perf_counter()
        generate(path, asked.events)
        seconds["generate"] = time.perf_counter() - began
    require_disk(asked.folder, size)
    config = {
        "data": {"files": [path.name], "transform": {"default": {"method": "linear"}}},
        "model": {"components": K},
        "mcmc": SWEEPS,
        "engine": {"backend": "cpu", "memory_limit": asked.memory_limit},
        "output": {"path": str(asked.folder / "run.h5")},
    }
    (asked.folder / "run.yaml").write_text(yaml.safe_dump(config))
    stages, peaks = watched(
        [*DPMIX, "mcmc", str(asked.folder / "run.yaml"), "--overwrite"], limit, asked.folder
    )
    run = open_run(asked.folder / "run.h5")
    sweeps = [float(x) for x in run.trace["seconds"][0]]
    found = {
        "events": asked.events,
        "channels": D,
        "components": K,
        "events_gb": size / 1e9,
        "limit_gb": limit / 1e9,
        "seconds": {name: round(value, 1) for name, value in (seconds | stages).items()},
        "seconds_per_sweep": [round(value, 2) for value in sweeps],
        "peak_gb": {
            stage: {name: round(1024 * most / 1e9, 3) for name, most in own.items()}
            for stage, own in peaks.items()
        },
        "log_likelihood": [float(x) for x in run.trace["log_likelihood"][0]],
    }
    most = max(own["VmRSS"] for own in found["peak_gb"].values())  # type: ignore[attr-defined]
    print(f"most memory: {most} GB, at most {limit / 1e9}: {'met' if most <= limit / 1e9 else 'MISSED'}")
    write_results("large" if asked.events >= 200_000_000 else f"large_{asked.events}", found)


def generate(path: Path, n_events: int) -> None:
    """Write events of a mixture to an NPY file, chunk by chunk."""
    random = np.random.default_rng(1)
    means = 2.0 * random.normal(size=(POPULATIONS, D))
    factors = random.normal(size=(POPULATIONS, D, D))
    roots = 0.4 * np.linalg.cholesky(np.eye(D) + 0.3 * factors @ factors.transpose(0, 2, 1))
    weights = random.dirichlet(np.full(POPULATIONS, 2.0))
    whole = np.lib.format.open_memmap(path.with_suffix(".partial"), "w+", np.float32, (n_events, D))
    for start in range(0, n_events, CHUNK):
        block = random.normal(size=(min(CHUNK, n_events - start), D))
        labels = random.choice(POPULATIONS, size=len(block), p=weights)
        for j in range(POPULATIONS):
            own = np.flatnonzero(labels == j)
            block[own] = means[j] + block[own] @ roots[j].T
        whole[start : start + len(block)] = block
    whole.flush()
    path.with_suffix(".partial").rename(path)


def watched(
    command: list[str], limit: int, folder: Path
) -> tuple[dict[str, float], dict[str, dict[str, int]]]:
    """Run a command within a limit; seconds, and the most of WATCHED (kB) by stages that its log tells."""
    log = folder / "run.log"
    with log.open("w") as writer:
        process = subprocess.Popen(
            command,
            stderr=writer,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )
    stage, began = "start", time.perf_counter()
    seconds: dict[str, float] = {}
    peaks: dict[str, dict[str, int]] = {}
    with log.open() as lines:
        while process.poll() is None:
            time.sleep(INTERVAL)
            for line in lines:
                print(line, end="", flush=True)
                following = next((name for begin, name in STAGES.items() if line.startswith(begin)), stage)
                if following != stage:
                    now = time.perf_counter()
                    seconds[stage], stage, began = now - began, following, now
            own = peaks.setdefault(stage, dict.fromkeys(WATCHED, 0))
            for name, kb in status(process.pid).items():
                own[name] = max(own[name], kb)
    seconds[stage] = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"dpmix ended with {process.returncode}: {log.read_text()}")
    return seconds, peaks


def status(pid: int) -> dict[str, int]:
    """WATCHED of a process, kB; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs: list[Any] = [line.split(":") for line in lines]
    return {name: int(value.split()[0]) for name, value in pairs if name in WATCHED}


def require_disk(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 1.1 * n_bytes:
        raise SystemExit(f"{folder}: {free / 1e9:.1f} GB are free, need {1.1 * n_bytes / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
