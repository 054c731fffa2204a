"""Tables of what gpu.py measured, for its page and for docs/benchmarks/gpu.md.

    python benchmarks/gpu_page.py FILE.json     writes FILE.md and prints the most valuable tables

A table without results says why: a stage that failed, or "Not measured yet."
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpu_counters import BUSY, STALLS
from gpu_floors import UNITS, Floor, Shape, floor
from gpu_output import Record, read

COMMITTED = Path(__file__).parent / "results" / "gpu.json"
NOT_MEASURED = "Not measured yet.\n"


def committed() -> Record:
    """Return the committed results; empty ones if there are none."""
    return read(COMMITTED) if COMMITTED.exists() else {"stages": {}}


def unmeasured(record: Record, stage: str) -> str:
    """Return why a stage has no results."""
    reason = record["stages"].get(stage, {}).get("reason")
    return f"Not measured: {reason}.\n" if reason else NOT_MEASURED


def results(record: Record, stage: str) -> Record:
    """Return the results of a stage, also of one that did not finish."""
    return record["stages"].get(stage, {}).get("results") or {}


def rows_of(record: Record, key: str) -> list[Record]:
    """Return the rows under a key of all stages."""
    return [row for stage in record["stages"].values() for row in (stage.get("results") or {}).get(key, [])]


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
    rows = []
    for name, stage in record["stages"].items():
        left_out = (stage.get("results") or {}).get("left_out")
        notes = [stage.get("reason", "").replace("|", "/"), f"left out: {left_out}" if left_out else ""]
        seconds = f"{stage['seconds']:.0f}" if "seconds" in stage else ""
        rows.append((name, stage["status"], seconds, "; ".join(filter(None, notes))))
    return table(("stage", "status", "seconds", ""), rows) or NOT_MEASURED


def checks(record: Record) -> str:
    """Return differences from the CPU engine, and results of tests and of compute-sanitizer."""
    rows: list[tuple[object, ...]] = []
    for row in rows_of(record, "checks"):
        if "labels_differing" in row:
            labels = (
                f"{row['labels_differing']} of {row['n_events']:,} labels differ; "
                if "draw" in row["what"]
                else ""
            )
            said = (
                f"{labels}sums by {row['sums']:.1e}, log likelihood by {row['log_likelihood']:.1e}, relative"
            )
        else:
            said = f"memberships by {row['memberships']:.1e}, log densities by {row['log_densities']:.1e}"
        rows.append((f"{row['what']}, next to the CPU engine", said))
    if found := results(record, "tests").get("tests"):
        counts = f"{found['passed']} passed, {len(found['failed'])} failed, {found['skipped']} skipped"
        rows.append(("tests", counts))
    for stage in ("sanitizer", "initcheck"):
        rows += [(tool, one["summary"]) for tool, one in results(record, stage).items()]
    return table(("check", "result"), rows) or unmeasured(record, "right")


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
    for row in timed_kernels(record):
        found = floor_of(record, row)
        share = f"{found.milliseconds / row['milliseconds']:.0%}" if found else ""
        least = f"{found.milliseconds:.3f}" if found else ""
        shape = row["n_channels"], row["kind"], f"{row['n_events']:,}", row["n_components"]
        time = f"{row['milliseconds']:.3f}"
        rows.append((row["kernel"], *shape, time, least, share, limiting_unit(record, row)))
    header = ("kernel", "D", "sample", "N", "K", "ms", "floor, ms", "of the floor", "limited by")
    return table(header, rows) or unmeasured(record, "kernels")


def timed_kernels(record: Record) -> list[Record]:
    """Return a row for each kernel, number of channels and sample."""
    return [row for row in rows_of(record, "kernels") if "milliseconds" in row]


def floor_of(record: Record, row: Record) -> Floor | None:
    """Return the floor of a row of the stage kernels; None without a model or without limits."""
    shape = Shape(**{name: row[name] for name in Shape._fields})
    return floor(row["kernel"], shape, rates(record))


def counters(record: Record) -> str:
    """Return the busiest units and the longest stalls of each kernel: of its longest launch."""
    longest: dict[tuple[object, ...], Record] = {}
    for launch in results(record, "counters").get("launches", []):
        key = launch["kernel"], launch["n_channels"], launch["kind"]
        if launch.get("nanoseconds", 0) >= longest.get(key, launch).get("nanoseconds", 0):
            longest[key] = launch
    rows = []
    for key, launch in longest.items():
        units = [f"{launch[unit]:.0f}" if unit in launch else "" for unit in BUSY]
        stalls = sorted(((launch[name], name) for name in STALLS if name in launch), reverse=True)[:3]
        waits = ", ".join(f"{name} {cycles:.1f}" for cycles, name in stalls)
        own = [
            f"{launch[name]:.0f}" if name in launch else "" for name in ("registers", "occupancy", "spilled")
        ]
        rows.append((*key, f"{launch.get('nanoseconds', 0) / 1e6:.3f}", *units, *own, waits))
    header = ("kernel", "D", "sample", "ms", *BUSY, "registers", "occupancy", "local", "stalls, cycles")
    return table(header, rows) or unmeasured(record, "counters")


def limiting_unit(record: Record, row: Record) -> str:
    """Return the busiest unit by hardware counters; without them by the model."""
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
    """Return milliseconds by N: passes and their parts, steps, and sweeps of one of several chains."""
    rows = []
    for row in rows_of(record, "times"):
        chains = f"{row['chains']}" if row["what"] == "sweep" else ""
        how = "pruned" if row["pruning"] else "dense"
        what = f"{row['what']}, {how}" if "draw" in row["what"] or row["what"] == "sweep" else row["what"]
        parts = milliseconds(row.get("kernels")), milliseconds(row.get("copies"))
        rows.append((f"{row['n_events']:,}", what, chains, milliseconds(row["seconds"]), *parts))
    header = ("N", "what", "chains", "ms", "kernels run", "only copies run")
    return table(header, rows) or unmeasured(record, "headline")


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
    "Checks": checks,
    "Limits of the device": limits,
    "Kernels": kernels,
    "Counters": counters,
    "Variants": variants,
    "Passes, sweeps and steps": sweeps,
    "Other tools": peers,
}


def page(record: Record) -> str:
    """Return all tables as a page."""
    return titled(record, SECTIONS)


def summary(record: Record) -> str:
    """Return the tables without counters, and of the kernels only those for D = 14, `mix`.

    They fit into the end of an output that is cut to 12,000 characters.
    """
    sections = {name: section for name, section in SECTIONS.items() if name != "Counters"}
    return titled(record, sections | {"Kernels": main_kernels})


def main_kernels(record: Record) -> str:
    """Return the rows of `kernels` for D = 14 and the sample `mix`."""
    lines = kernels(record).splitlines(keepends=True)
    return "".join(line for n, line in enumerate(lines) if n < 2 or "| 14 | mix |" in line)


def titled(record: Record, sections: dict[str, Callable[[Record], str]]) -> str:
    """Return sections with their titles."""
    return "# The CUDA engine on a GPU\n" + "".join(
        f"\n## {title}\n\n{section(record)}" for title, section in sections.items()
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    record = read(path)
    path.with_suffix(".md").write_text(page(record))
    print(summary(record), flush=True)
