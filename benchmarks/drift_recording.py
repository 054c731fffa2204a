"""Measure `dpmix drift` on whole recordings of up to 10^7 events: time and memory of the command.

    python benchmarks/drift_recording.py [--quick] [--events 10000000]

Takes some minutes of two cores, 1 GB of memory and 200 MB of disk with the default. Each recording is an FCS
file with time and four channels of two populations: steady, with a wave, with a step, and with a wave of a
hundred periods. The command reads it, judges the channels and the event rate, and writes table, figure and
page. The time of the processor is the sum over all threads, and hardly depends on what else the machine does.
The memory is the largest resident set of the process, files that are mapped included.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import DPMIX, arguments, read_results, write_results

from dpmix.drift.summaries import block_starts
from dpmix.inputs.fcs.data import write_fcs

CHANNELS = ("Time", "steady", "wave", "step", "fast wave")
SIZES = (100_000, 1_000_000)
PIECE = 1_000_000


def simulate(path: Path, n: int) -> None:
    """Write a recording of n events in 1,000 units of time."""
    random, events = np.random.default_rng(n), np.empty((n, len(CHANNELS)), np.float32)
    events[:, 0] = np.linspace(0.0, 1000.0, n)
    for start in range(0, n, PIECE):
        own = events[start : start + PIECE]
        at = own[:, 0] / 1000.0
        signals = (0.0 * at, 0.4 * np.sin(5.0 * at), 0.4 * (at > 0.7), 0.4 * np.sin(628.0 * at))
        for column, signal in enumerate(signals, 1):
            bright = random.random(len(own)) < 0.3
            own[:, column] = 3.0 * bright + signal + 0.5 * random.standard_normal(len(own))
    write_fcs(path, events, CHANNELS)


def measure(n: int, threads: int) -> dict[str, Any]:
    """Return seconds, memory and verdicts of the command on a recording."""
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder) / "made.fcs", Path(folder) / "out"
        simulate(file, n)
        command = [*DPMIX, "drift", str(file), "--output", str(output), "--threads", str(threads), "--quiet"]
        started = time.perf_counter()
        running = subprocess.Popen(command)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        assert running.returncode == 0
        seconds = time.perf_counter() - started
        with (output / "drift.csv").open() as table:
            verdicts = {row["channel"]: row["verdict"] for row in csv.DictReader(table)}
        pages = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    row = {
        "events": n,
        "blocks": len(block_starts(n)) - 1,
        "threads": threads,
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss * 1024,
        "output": pages,
        "verdicts": verdicts,
    }
    print(row, flush=True)
    return row


def table() -> str:
    """Return the table of recordings."""
    lines = [
        "| events | blocks | seconds by the clock | processor seconds | memory, MB | files written, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in read_results("drift_recording")["results"]:
        times = f"{row['seconds']:.0f} | {row['processor_seconds']:.0f}"
        sizes = f"{row['memory'] / 1e6:.0f} | {row['output'] / 1e6:.1f}"
        lines.append(f"| {row['events']:,} | {row['blocks']:,} | {times} | {sizes} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--events", type=int, default=10_000_000, help="of the largest recording (10^7)")
    given = parser.parse_args()
    sizes = (10_000, 20_000) if given.quick else (*SIZES, given.events)
    write_results("drift_recording", [measure(n, 2) for n in sizes], quick=given.quick)


if __name__ == "__main__":
    main()
