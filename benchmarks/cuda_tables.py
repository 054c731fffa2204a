"""Tables of what is counted without a GPU, for docs/benchmarks/gpu.md."""

from __future__ import annotations

from gpu_page import table
from record import read_results, said


def instructions() -> str:
    """Return the counts of cuda_instructions.py."""
    header = (
        "kernel",
        "pairs",
        "least",
        "all",
        "float32",
        "matrix",
        "least for a pair",
        "registers",
        "model, ms",
    )
    rows = [
        [
            *(row[name] for name in ("form", "pairs", "least", "all", "float32", "matrix")),
            f"{row['per_pair']:.0f}",
            row["registers"],
            f"{row['milliseconds']:.2f}",
        ]
        for row in read_results("cuda_instructions")["results"]
    ]
    return table(header, rows) + source("cuda_instructions", "dpmix")


def host(name: str = "cuda_host") -> str:
    """Return the times and calls of cuda_host.py, now or as they were (cuda_host_before)."""
    header = ["chunks", "devices"]
    for of in ("draw", "E step"):
        header += [f"{of}: calls", "processor, ms", "in threads of devices", "sums", "elapsed, ms"]
    rows = []
    for row in read_results(name)["results"]:
        cells = [row["chunks"], row["devices"]]
        for of in ("draw", "expect"):
            cells += [row[f"{of}_calls"], *times_of(row, of, "processor", "threads", "sums", "elapsed")]
        rows.append(cells)
    return table(header, rows) + source(name, "dpmix", "pycuda")


def critical_path(name: str = "cuda_host") -> str:
    """Return the serial part of a pass, the time in the thread of a device, and their sum (cuda_host.py)."""
    header = ["devices"]
    for of in ("draw", "E step"):
        header += [f"{of}: engine's thread, ms", "thread of a device", "derived elapsed"]
    most = max(row["chunks"] for row in read_results(name)["results"])
    rows = [
        [
            row["devices"],
            *(t for of in ("draw", "expect") for t in times_of(row, of, "serial", "device", "derived")),
        ]
        for row in read_results(name)["results"]
        if row["chunks"] == most
    ]
    return table(header, rows)


def times_of(row: dict[str, float], of: str, *names: str) -> list[str]:
    """Return the milliseconds of a row as text."""
    return [f"{row[f'{of}_{what}_ms']:.2f}" for what in names]


def source(name: str, *packages: str) -> str:
    return f"\n{said(name, '../../benchmarks/results', packages)}\n"
