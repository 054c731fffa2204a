"""Read hardware counters of every kernel with Nsight Compute (ncu), where it is installed.

    A stage of gpu.py.

A kernel's limiting unit is the one that is busiest, in percent of its peak. The reasons for stalls say for
how many cycles a warp waits between two instructions. ncu runs each kernel a few times and does not set the
clocks.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from gpu_output import Output, parser

SKIPPED = 3
SHAPES = ((262_144, 14, 256, "mix"), (262_144, 14, 256, "ovl"), (131_072, 30, 256, "mix"))
TINY = ((600, 5, 20, "mix"),)
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
STALLS = {  # reason: metric, cycles of a warp for each instruction issued
    reason: f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    for reason in (
        "barrier", "dispatch_stall", "imc_miss", "lg_throttle", "long_scoreboard", "math_pipe_throttle",
        "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "wait",
    )
}  # fmt: skip
METRICS = BUSY | OTHER | STALLS


def known(ncu: str) -> list[str]:
    """Return the metrics that ncu knows on this device; an unknown one would end it."""
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True)
    names = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    wanted = METRICS.values()
    there = [name for name in wanted if name.split(".")[0] in names or name.startswith("launch__")]
    return there if done.returncode == 0 and names else list(wanted)


def rows(lines: Iterable[str]) -> list[dict[str, float | str]]:
    """Return a row for each launch from ncu's CSV output, with the metrics under the names above.

    Metrics that ncu does not know on a device are missing.
    """
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    names = {metric: name for name, metric in METRICS.items()}
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
    asked = parser(__doc__).parse_args()
    output = Output(asked)
    ncu = shutil.which("ncu")
    if ncu is None:
        print("ncu is not here")
        sys.exit(SKIPPED)
    profile = [ncu, "--csv", "--metrics", ",".join(known(ncu)), "--clock-control", "none"]
    profile += ["--kernel-name-base", "function", sys.executable]
    failed = []
    for *sizes, kind in output.while_time_is_left(TINY if asked.rehearsal else SHAPES):
        program = [str(Path(__file__).with_name("gpu_passes.py")), *map(str, sizes), kind]
        done = subprocess.run([*profile, *program], capture_output=True, text=True)
        print(done.stderr, flush=True)
        found = rows(done.stdout.splitlines())
        for row in found:
            shape = {"kind": kind, "n_events": sizes[0], "n_channels": sizes[1]}
            output.append("launches", {**shape, **row, "limiter": limiter(row)})
        if done.returncode != 0 or not found:
            print(done.stdout[-2000:])
            failed.append(f"{kind}, D = {sizes[1]}")
    if failed:
        sys.exit(f"ncu failed for {'; '.join(failed)}")


if __name__ == "__main__":
    main()
