"""Read hardware counters of every kernel with Nsight Compute (ncu), where it is installed.

    python benchmarks/gpu_counters.py --output PATH     a stage of gpu.py

A kernel's limiting unit is the one that is busiest, in percent of its peak. ncu runs each kernel a few
times and does not set the clocks.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from gpu_device import Output, arguments, shapes

SKIPPED = 3
BUSY = {  # unit: metric, percent of the peak
    "float32": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "float64": "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
    "exponential": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
}
OTHER = {
    "nanoseconds": "gpu__time_duration.sum",
    "registers": "launch__registers_per_thread",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "spilled": "smsp__inst_executed_op_local.sum",
}


def rows(lines: Iterable[str]) -> list[dict[str, float | str]]:
    """Return a row for each launch from ncu's CSV output, with the metrics under the names above.

    Metrics that ncu does not know on a device are missing.
    """
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    names = {metric: name for name, metric in (BUSY | OTHER).items()}
    launches: dict[str, dict[str, float | str]] = {}
    for line in table:
        launch = launches.setdefault(line["ID"], {"kernel": line["Kernel Name"].split("(")[0]})
        value = line["Metric Value"].replace(",", "")
        if line["Metric Name"] in names and value.replace(".", "", 1).isdigit():
            scale = {"usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6}.get(line["Metric Unit"], 1.0)
            launch[names[line["Metric Name"]]] = float(value) * scale
    return list(launches.values())


def limiter(row: dict[str, float | str]) -> str:
    """Return the busiest unit of a launch; "" without counters."""
    there = {unit: float(row[unit]) for unit in BUSY if unit in row and unit != "issue"}
    return max(there, key=lambda unit: there[unit]) if there else ""


def main() -> None:
    asked = arguments(__doc__)
    output = Output(asked.output)
    ncu = shutil.which("ncu")
    if ncu is None:
        print("ncu is not here")
        sys.exit(SKIPPED)
    metrics = ",".join((BUSY | OTHER).values())
    profile = [
        ncu,
        "--csv",
        "--metrics",
        metrics,
        "--clock-control",
        "none",
        "--kernel-name-base",
        "function",
    ]
    failed = []
    for n_events, dim, n_components, kind in order(shapes(asked.rehearsal)):
        program = [str(Path(__file__).with_name("gpu_passes.py")), str(n_events), str(dim), str(n_components)]
        done = subprocess.run([*profile, sys.executable, *program, kind], capture_output=True, text=True)
        print(done.stderr, flush=True)
        found = rows(done.stdout.splitlines())
        for row in found:
            output.append("launches", {"kind": kind, "n_channels": dim, **row, "limiter": limiter(row)})
        if done.returncode != 0 or not found:
            print(done.stdout[-2000:])
            failed.append(f"{kind}, D = {dim}")
    if failed:
        sys.exit(f"ncu failed for {'; '.join(failed)}")


def order(samples: list[tuple[int, int, int, str]]) -> list[tuple[int, int, int, str]]:
    """Return the samples with D = 14 and `mix` first, which the cards of the kernels use."""
    return sorted(samples, key=lambda sample: (sample[3] != "mix", sample[1] != 14))


if __name__ == "__main__":
    main()
