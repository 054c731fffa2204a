"""How long a sweep takes on how many workers: a simulation of its messages, from measured parts.

    python benchmarks/cluster_limits.py

Reads benchmarks/results/cluster.json (seconds of work, cost of a task, of `python benchmarks/cluster.py`) and
sampler.json (the host's part), and assumes a network. Prints the tables of
docs/explanation/cluster-limits.md, draws docs/pictures/cluster-limits.png, and writes
benchmarks/results/cluster_limits.json.

A sweep, simulated message by message:

1. the host draws the parameters, and sends them by the scheduler to one worker;
2. the scheduler sets off a task for each worker, one after another;
3. each worker fetches the parameters from the first, whose link they share, and works on its chunks for a
   time that varies from worker to worker by 5%;
4. statistics are added up in a tree of eights: whoever adds receives seven states over its one link;
5. the last state goes by the scheduler to the host.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from record import FOLDER, write_results

Array = npt.NDArray[np.float64]

FAN_IN = 8  # of dpmix.engines.cluster.engine
JITTER = 0.05
WORKERS = (1, 3, 10, 30, 100, 300, 1000)
EVENTS = (10**6, 10**7, 10**8, 10**9, 10**10)
MOST = 5000  # workers that are thought of
FIGURE = Path(__file__).parents[1] / "docs" / "pictures" / "cluster-limits.png"


@dataclass(frozen=True)
class Parts:
    """The parts of a sweep, in seconds and bytes."""

    work: float  # of one worker, for one event
    host: float  # parameters, log posterior, run file
    task: float  # of the client and the scheduler, for a task
    merge: float  # of a state into another
    latency: float  # of a message
    bandwidth: float  # of a link, bytes a second
    parameters: float  # bytes
    statistics: float


def sweep(parts: Parts, n_events: int, workers: int, rng: np.random.Generator) -> dict[str, float]:
    """Seconds after which each part of a sweep has ended, from the first to the last."""
    send = parts.latency + parts.parameters / parts.bandwidth
    sent = parts.host + 2.0 * send
    begun = sent + parts.task * np.arange(1, workers + 1)
    # The first worker's link gives the parameters to one after another.
    fetched = np.empty(workers)
    free = sent
    for i in range(workers):
        free = max(free, begun[i]) + (parts.parameters / parts.bandwidth if i else 0.0)
        fetched[i] = free + (parts.latency if i else 0.0)
    work = parts.work * n_events / workers
    ready = fetched + work * rng.lognormal(0.0, JITTER, workers)
    worked = ready.max()
    level = ready
    scheduler = 0.0
    while len(level) > 1:
        above = []
        for group in (level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)):
            scheduler = max(scheduler, group.max()) + parts.task
            free = scheduler + parts.latency
            others = len(group) - 1
            above.append(free + others * (parts.statistics / parts.bandwidth + parts.merge))
        level = np.array(above)
    back = level.max() + 2.0 * (parts.latency + parts.statistics / parts.bandwidth)
    return {
        "host": parts.host,
        "parameters sent": fetched.max(),
        "worked": float(worked),
        "added up": float(level.max()),
        "whole": float(back),
    }


def seconds(parts: Parts, n_events: int, workers: int) -> float:
    """Mean of 20 simulated sweeps."""
    rng = np.random.default_rng(1)
    return float(np.mean([sweep(parts, n_events, workers, rng)["whole"] for _ in range(20)]))


def beside_work(parts: Parts, workers: int) -> dict[str, float]:
    """Return the seconds of a sweep in addition to the work; they do not depend on the number of events."""
    ends = sweep(parts, 0, workers, np.random.default_rng(1))
    return {
        "the host's draws": ends["host"],
        "tasks and parameters": ends["parameters sent"] - ends["host"],
        "the tree of statistics": ends["whole"] - ends["worked"],
    }


def limits(parts: Parts, n_events: int) -> dict[str, int]:
    """For each of these, the fewest workers, of powers of 1.02, with which it takes as long as the work."""
    found: dict[str, int] = {}
    for workers in sorted({round(1.02**k) for k in range(700)}):
        for name, seconds_taken in beside_work(parts, workers).items():
            if seconds_taken >= parts.work * n_events / workers:
                found.setdefault(name, workers)
        if len(found) == 3 or workers > MOST:
            break
    return found


def measured() -> Parts:
    """The parts as this machine's benchmarks found them, and a network of 10 Gbit/s and 0.2 ms."""
    cluster = json.loads((FOLDER / "cluster.json").read_text())["results"]
    sampler = json.loads((FOLDER / "sampler.json").read_text())["results"]
    spent = {int(workers): row["client and scheduler"] for workers, row in cluster["latency"].items()}
    slope, _ = np.polyfit([*spent], [*spent.values()], 1)
    return Parts(
        work=cluster["overhead"]["one process"] * 2.0 / cluster["overhead"]["events"],
        host=sampler["K=256, D=14"]["whole"]["min_ms"] / 1e3,
        task=float(slope) / (1.0 + 1.0 / (FAN_IN - 1)),
        merge=cluster["merge"],
        latency=2e-4,
        bandwidth=1.25e9,
        parameters=cluster["bytes"]["parameters"],
        statistics=cluster["bytes"]["statistics"],
    )


def draw(parts: Parts, times: dict[int, dict[int, float]]) -> None:
    """Seconds of a sweep against workers, a line for each number of events, and the ideal."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for n_events, of_workers in times.items():
        (line,) = axes.loglog(
            [*of_workers], [*of_workers.values()], "o-", label=f"$10^{{{np.log10(n_events):.0f}}}$"
        )
        ideal = [parts.work * n_events / workers for workers in of_workers]
        axes.loglog([*of_workers], ideal, ":", color=line.get_color(), linewidth=1)
    axes.axhline(parts.host, color="black", linewidth=0.8)
    axes.text(1.05, parts.host * 1.1, "the host's draws", fontsize=8)
    axes.set(xlabel="workers of one core", ylabel="seconds of a sweep", ylim=(parts.host / 2, None))
    axes.legend(title="events", ncols=5, fontsize=8, loc="upper right")
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    parts = measured()
    times = {n: {w: seconds(parts, n, w) for w in WORKERS} for n in EVENTS}
    print("| events | " + " | ".join(f"{w:,} workers" for w in WORKERS) + " |")
    print("| --- |" + " --- |" * len(WORKERS))
    for n, of_workers in times.items():
        cells = [f"{t:.3g} s ({parts.work * n / w / t:.0%})" for w, t in of_workers.items()]
        print(f"| 10^{np.log10(n):.0f} | " + " | ".join(cells) + " |")
    names = [*beside_work(parts, 1)]
    print("\n| workers | " + " | ".join(names) + " |\n| --- |" + " --- |" * len(names))
    for w in WORKERS:
        print(f"| {w:,} | " + " | ".join(f"{1e3 * t:,.1f} ms" for t in beside_work(parts, w).values()) + " |")
    found = {
        cores: {n: limits(replace(parts, work=parts.work / cores), n) for n in EVENTS} for cores in (1, 32)
    }
    for cores, rows in found.items():
        print(
            f"\n| events; workers of {cores} cores | "
            + " | ".join(names)
            + " |\n| --- |"
            + " --- |" * len(names)
        )
        for n, row in rows.items():
            cells = [f"{row[name]:,}" if name in row else f"above {MOST:,}" for name in names]
            print(f"| 10^{np.log10(n):.0f} | " + " | ".join(cells) + " |")
    draw(parts, times)
    write_results(
        "cluster_limits",
        {
            "parts": vars(parts),
            "seconds": {str(n): {str(w): t for w, t in row.items()} for n, row in times.items()},
            "limits": {str(cores): {str(n): row for n, row in rows.items()} for cores, rows in found.items()},
        },
    )


if __name__ == "__main__":
    main()
