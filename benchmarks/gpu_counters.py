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


def known(ncu: str) -> list[str]:
    """Return the metrics that ncu knows on this device; an unknown one would end it."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True)
    names = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    wanted = (BUSY | OTHER).values()
    there = [name for name in wanted if name.split(".")[0] in names or name.startswith("launch__")]
    return there if done.returncode == 0 and names else list(wanted)


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
    metrics = ",".join(known(ncu))
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
    for n_events, dim, n_components, kind in chosen(shapes(asked.rehearsal)):
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


def chosen(samples: list[tuple[int, int, int, str]]) -> list[tuple[int, int, int, str]]:
    """Return `mix` for all numbers of channels and all kinds for one, first that of the kernels' cards."""
    main = 14 if any(dim == 14 for _, dim, *_ in samples) else samples[0][1]
    some = [sample for sample in samples if sample[3] == "mix" or sample[1] == main]
    return sorted(some, key=lambda sample: (sample[3] != "mix", sample[1] != main))


if __name__ == "__main__":
    main()
