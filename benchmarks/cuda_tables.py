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
            times = (f"{row[f'{of}_{what}_ms']:.2f}" for what in ("processor", "threads", "sums", "elapsed"))
            cells += [row[f"{of}_calls"], *times]
        rows.append(cells)
    return table(header, rows) + source(name, "dpmix", "pycuda")


def source(name: str, *packages: str) -> str:
    return f"\n{said(name, '../../benchmarks/results', packages)}\n"
