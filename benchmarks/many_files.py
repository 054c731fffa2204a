"""Run the hierarchical model on a cohort of 1,000 files within a limit of memory, and meet a broken file.

    python benchmarks/many_files.py FOLDER                                    some minutes; writes 1.2 GB
    python benchmarks/many_files.py FOLDER --events 100000 --channels 20      half an hour; writes 16 GB

The files have 14 channels of a simulated sample, or, with --channels, that number of channels drawn from the
model. Their events are drawn from one sample with replacement. `dpmix mcmc` makes some sweeps with
engine.memory_limit: 500 MB, in a process that is given 1 GB (large.py). Then a file is cut short: the run has
to name it and say what to do, and what it says has to work. Each size keeps its own results.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from large import require_disk, watched
from record import DPMIX, plain_arguments, write_results

import dpmix

FILES, BROKEN = 1_000, 617
FOR_EVENTS, LIMIT = "500 MB", 1_000_000_000
"""Value of engine.memory_limit, and bytes of the process."""
CONFIG = {
    "data": {"samples": "samples.csv"},
    "model": {"samples": "hierarchical", "components": 128},
    "mcmc": {"chains": 1, "burn_in": 2, "draws": 3, "init": "kmeans"},
    "engine": {"backend": "cpu", "memory_limit": FOR_EVENTS},
}


def write_cohort(folder: Path, n_events: int, channels: int | None) -> None:
    """Write the files and samples.csv."""
    kind: Any = {} if channels is None else {"kind": "model", "channels": channels}
    made, random = dpmix.simulate(n_events, seed=1, **kind), np.random.default_rng(1)
    for number in range(FILES):
        kept = np.sort(random.integers(n_events, size=n_events))
        replace(made, events=made.events[kept], labels=made.labels[kept]).write(folder / name_of(number))
    rows = [f"{name_of(number)},S{number}" for number in range(FILES)]
    (folder / "samples.csv").write_text("\n".join(["file,sample", *rows]) + "\n")


def name_of(number: int) -> str:
    return f"S{number:04d}.fcs"


def meet_broken_file(folder: Path, command: list[str]) -> tuple[str, float]:
    """Cut a file short; return what dpmix says, and the seconds until it says it. Then follow its advice."""
    path = folder / name_of(BROKEN)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    began = time.perf_counter()
    try:
        refused = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 1, refused
        assert path.name in line, line
        advice = re.search(r"data\.leave_out: (\[.*\])", line)
        assert advice is not None, line
        subprocess.run([*command, "--set", f"data.leave_out={advice.group(1)}"], check=True)
    finally:
        path.write_bytes(whole)
    return line, seconds


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=20_000, help="of each file")
    parser.add_argument("--channels", type=int, help="of each file, drawn from the model")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    n_channels = asked.channels or 14
    require_disk(asked.folder, 2 * 4 * (n_channels + 1) * asked.events * FILES)
    write_cohort(asked.folder, asked.events, asked.channels)
    output = {"path": str(asked.folder / "run.h5")}
    (asked.folder / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "output": output}))
    command = [*DPMIX, "mcmc", str(asked.folder / "run.yaml"), "--overwrite"]
    seconds, peaks = watched(command, LIMIT, asked.folder)
    line, until = meet_broken_file(asked.folder, [*command, "--quiet"])
    found = {
        "files": FILES,
        "events": FILES * asked.events,
        "channels": n_channels,
        "limit_gb": LIMIT / 1e9,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "peak_gb": {
            stage: {name: round(1024 * most / 1e9, 3) for name, most in own.items()}
            for stage, own in peaks.items()
        },
        "broken": line,
        "seconds_until_broken": round(until, 1),
    }
    print(found)
    write_results("many_files" if asked.channels is None else f"many_files_{asked.channels}", found)


if __name__ == "__main__":
    main()
