"""Tables of what gpu.py measured, for its page and for docs/benchmarks/gpu.md.

    python benchmarks/gpu_page.py FILE.json     writes FILE.md

A table without results says why: a stage that failed, or "Not measured yet."
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu_floors import UNITS, Floor, Shape, floor

COMMITTED = Path(__file__).parent / "results" / "gpu.json"
NOT_MEASURED = "Not measured yet.\n"
Record = dict[str, Any]


def committed() -> Record:
    """Return the committed results; empty ones if there are none."""
    return json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {"stages": {}}


def unmeasured(record: Record, stage: str) -> str:
    """Return why a stage has no results."""
    reason = record["stages"].get(stage, {}).get("reason")
    return f"Not measured: {reason}.\n" if reason else NOT_MEASURED


def results(record: Record, stage: str) -> Record:
    """Return the results of a stage, also of one that did not finish."""
    return record["stages"].get(stage, {}).get("results") or {}


def rates(record: Record) -> dict[str, float]:
    return {name: results(record, "limits").get(name) for name in UNITS.values()}


def about(record: Record) -> str:
    """Return the device and the versions in a sentence."""
    if "about" not in record:
        return NOT_MEASURED
    it = record["about"]
    versions = ", ".join(f"{name} {number}" for name, number in it["versions"].items())
    rehearsal = " **A rehearsal: the times mean nothing.**" if it["rehearsal"] else ""
    return (
        f"`{record['command']}` on {it['device']} (compute capability {it['compute_capability']}, "
        f"{it['multiprocessors']} multiprocessors, {it['memory'] / 2**30:.0f} GiB), "
        f"driver {it['driver'] or '?'}, CUDA {it['nvcc'] or '?'}, {record['date'][:10]}; "
        f"Python {it['python']}, {versions}.{rehearsal}\n"
    )


def stages(record: Record) -> str:
    """Return the status of all stages."""
    rows = [
        (name, stage["status"], f"{stage['seconds']:.0f}", stage["limit"], stage["reason"].replace("|", "/"))
        for name, stage in record["stages"].items()
    ]
    return table(("stage", "status", "seconds", "limit", ""), rows) or NOT_MEASURED


def tests(record: Record) -> str:
    rows: list[tuple[object, ...]] = []
    if found := results(record, "tests"):
        rows.append(("tests", f"{found['passed']} passed, {len(found['failed'])} failed", found["skipped"]))
    for tool, one in results(record, "sanitizer").items():
        rows.append((tool, one["summary"], ""))
    return table(("check", "result", "skipped"), rows) or unmeasured(record, "tests")


def limits(record: Record) -> str:
    found = results(record, "limits")
    units = {
        "copy_bytes_per_second": ("copies, reads and writes", 1e12, "TB/s"),
        "multiply_add_per_second": ("float32 multiply-adds", 1e12, "10^12/s"),
        "multiply_add_double_per_second": ("float64 multiply-adds", 1e12, "10^12/s"),
        "exponential_per_second": ("exponentials", 1e12, "10^12/s"),
        "load_shared_per_second": ("uniform loads of 16 bytes by a warp, shared memory", 1e12, "10^12/s"),
        "load_uniform_per_second": ("uniform loads of 16 bytes by a warp, global memory", 1e12, "10^12/s"),
        "clock_hz": ("clock under load", 1e6, "MHz"),
    }
    rows = [
        (what, f"{found[name] / scale:.3g} {unit}")
        for name, (what, scale, unit) in units.items()
        if found.get(name)
    ]
    return table(("limit", "measured"), rows) or unmeasured(record, "limits")


def kernels(record: Record) -> str:
    """Return a row for each kernel and sample: milliseconds, floor, share of the floor, limiting unit."""
    rows = []
    for row in results(record, "kernels").get("kernels", []):
        found = floor_of(record, row)
        share = f"{found.milliseconds / row['milliseconds']:.0%}" if found else ""
        least = f"{found.milliseconds:.3f}" if found else ""
        shape = row["n_channels"], row["kind"], f"{row['n_events']:,}", row["n_components"]
        time = f"{row['milliseconds']:.3f}"
        rows.append((row["kernel"], *shape, time, least, share, limiting_unit(record, row)))
    header = ("kernel", "D", "sample", "N", "K", "ms", "floor, ms", "of the floor", "limited by")
    return table(header, rows) or unmeasured(record, "kernels")


def floor_of(record: Record, row: Record) -> Floor | None:
    """Return the floor of a row of the stage kernels; None without a model or without limits."""
    shape = Shape(**{name: row[name] for name in Shape._fields})
    return floor(row["kernel"], shape, rates(record))


def limiting_unit(record: Record, row: Record) -> str:
    """Return the busiest unit by hardware counters; without them that of the model."""
    for launch in results(record, "counters").get("launches", []):
        same = all(launch[key] == row[key] for key in ("kernel", "kind", "n_channels"))
        if same and launch["limiter"]:
            return f"{launch['limiter']} {launch[launch['limiter']]:.0f}%"
    found = floor_of(record, row)
    return f"{found.unit} (model)" if found else ""


def variants(record: Record) -> str:
    rows = [
        (row["variant"], row["n_channels"], f"{row['milliseconds']:.3f}", f"{row['of_nominal_floor']:.0%}")
        for row in results(record, "variants").get("variants", [])
    ]
    header = ("variant of draw_labels", "D", "ms", "of the nominal floor")
    return table(header, rows) or unmeasured(record, "variants")


def sweeps(record: Record) -> str:
    """Return milliseconds by N, a column for each pass, step and number of chains."""
    times = results(record, "sweeps").get("times", [])
    names: dict[str, dict[int, float]] = {}
    for row in times:
        chains = "" if row["what"] != "sweep" else f", {row['chains']} chains".replace("1 chains", "1 chain")
        names.setdefault(row["what"] + chains, {})[row["n_events"]] = row["seconds"]
    sizes = sorted({row["n_events"] for row in times})
    rows = [(f"{n:,}", *(milliseconds(column.get(n)) for column in names.values())) for n in sizes]
    return table(("N", *names), rows) or unmeasured(record, "sweeps")


def peers(record: Record) -> str:
    rows = [
        (row["what"], f"{row['n_events']:,}", milliseconds(row["seconds"]))
        for row in results(record, "peers").get("steps", [])
    ]
    return table(("one step of EM", "N", "ms"), rows) or unmeasured(record, "peers")


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; "" without rows."""
    lines = [" | ".join(map(str, row)) for row in rows]
    if not lines:
        return ""
    head = [" | ".join(header), " | ".join("---" for _ in header)]
    return "".join(f"| {line} |\n" for line in [*head, *lines])


SECTIONS: dict[str, Callable[[Record], str]] = {
    "Device": about,
    "Stages": stages,
    "Tests": tests,
    "Limits of the device": limits,
    "Kernels": kernels,
    "Variants": variants,
    "Sweeps and steps, ms": sweeps,
    "Other tools": peers,
}


def page(record: Record) -> str:
    """Return all tables as a page."""
    return "# The CUDA engine on a GPU\n" + "".join(
        f"\n## {title}\n\n{section(record)}" for title, section in SECTIONS.items()
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.with_suffix(".md").write_text(page(json.loads(path.read_text())))
