"""Compare `dpmix drift --local` with the stationary fit, in simulated recordings with known signals.

    python benchmarks/drift_local.py [--quick] [--recordings 100]

Takes about five minutes of two cores. Each recording has 30,000 events of one channel with two populations,
as in drift_proof.py, with a known signal added: none, a smooth one that is stationary, or one that is 0 in
the first part of the recording (40% to 60%) and then a fast wave. Both judge the same blocks, with the same
change points and the same stationary fit.

Of each: how often the signal is inside the 90% interval of a block, the mean standard deviation of a block,
and the root mean square error, in quiet and active parts; how often the true range is inside its 90%
interval, the mean width of this, and the mean range over the true one. Numbers are in units of the channel's
spread.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from drift_proof import means, two_populations, usual_median
from record import arguments, read_results, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.drift.covariance import Covariance
from dpmix.drift.judge import NORMAL_95, judge
from dpmix.drift.summaries import block_starts, summarise

SIGNALS = {  # amplitude, and shortest and longest period of a wave; the duration is 100
    "steady": (0.0, None),
    "smooth wave": (0.4, (60.0, 200.0)),
    "stationary process": (0.3, None),
    "quiet, then a wave": (0.4, (10.0, 20.0)),
    "quiet, then a small wave": (0.2, (10.0, 20.0)),
}
EVENTS, QUICK_EVENTS = 30_000, 8_000
RANGES = (10.0, 30.0)  # of the stationary process, Matern 3/2
QUIET = (40.0, 60.0)  # earliest and latest start of activity

Array = np.ndarray
Row = dict[str, Any]


def signal_of(kind: str, times: Array, random: np.random.Generator) -> tuple[Array, float]:
    """Return a signal, and when it becomes active."""
    size, periods = SIGNALS[kind]
    if kind == "stationary process":
        own, nodes = Covariance("matern32", size**2, random.uniform(*RANGES), 0.0), np.linspace(0, 100, 401)
        root = np.linalg.cholesky(own.between(nodes, nodes) + 1e-9 * np.eye(len(nodes)))
        return np.interp(times, nodes, root @ random.standard_normal(len(nodes))), 0.0
    if periods is None:
        return np.zeros(len(times)), np.inf
    if "quiet" not in kind:
        return size * np.sin(2.0 * np.pi * (times / random.uniform(*periods) + random.random())), 0.0
    start = random.uniform(*QUIET)
    return size * np.sin(2.0 * np.pi * np.maximum(times - start, 0.0) / random.uniform(*periods)), start


def measure(task: tuple[str, int, int]) -> list[Row]:
    """Return what the stationary and the local posterior find in one simulated channel."""
    kind, seed, n_events = task
    random = np.random.default_rng([seed, 11])
    times = np.sort(random.uniform(0.0, 100.0, n_events))
    values = two_populations(random, n_events)
    signal, start = signal_of(kind, times, random)
    spread = 0.5 * float(np.diff(np.quantile(values, [0.16, 0.84]))[0])
    blocks = summarise((values + signal)[:, None], times, block_starts(n_events))
    medians, errors = blocks.medians[:, 0] / spread, blocks.errors[:, 0] / spread
    usual = usual_median(n_events // len(blocks.times))
    truth, width = (np.interp(blocks.times, times, signal) + usual) / spread, float(np.ptp(signal)) / spread
    active, rows = blocks.times > start, []
    for local in (False, True):
        found = judge("a", blocks.times, medians, errors, local=local)
        inside = np.abs(found.mean - truth) <= NORMAL_95 * found.sd
        row: Row = {"kind": kind, "method": "local" if local else "stationary"}
        for part, own in (("quiet", ~active), ("active", active)):
            if own.any():
                row[f"{part} inside"] = float(inside[own].mean())
                row[f"{part} sd"] = float(found.sd[own].mean())
                row[f"{part} square"] = float(((found.mean - truth)[own] ** 2).mean())
        row["range inside"] = float(found.low <= width <= found.high)
        row["range width"] = found.high - found.low
        row["range"] = found.range
        row["called steady"] = float(found.verdict == "steady")
        rows.append(row if width == 0.0 else {**row, "ratio": found.range / width})
    return rows


def table() -> str:
    """Return the table of the comparison."""
    head = ["signal", "fit", "quiet blocks in their interval", "their sd", "their error"]
    head += ["active blocks in their interval", "their sd", "their error"]
    head += ["range in its interval", "width of that", "range over true one"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for row in read_results("drift_local")["results"]["signals"]:
        cells = [row["kind"], row["method"]]
        for part in ("quiet", "active"):
            there = f"{part} inside" in row
            cells += [f"{row[f'{part} inside']:.0%}", f"{row[f'{part} sd']:.3f}"] if there else ["", ""]
            cells.append(f"{row[f'{part} square'] ** 0.5:.3f}" if there else "")
        cells += [f"{row['range inside']:.0%}", f"{row['range width']:.3f}"]
        cells.append(f"{row['ratio']:.2f}" if "ratio" in row else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def source() -> str:
    """Return command, machine and date."""
    return said("drift_local", packages=("dpmix", "numpy", "scipy"))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--recordings", type=int, default=100, help="of each signal and size")
    given = parser.parse_args()
    recordings, n_events = (4, QUICK_EVENTS) if given.quick else (given.recordings, EVENTS)
    tasks = [(kind, seed, n_events) for kind in SIGNALS for seed in range(1, recordings + 1)]
    with threadpool_limits(1, "blas"), ProcessPoolExecutor(2) as pool:
        rows = [row for own in pool.map(measure, tasks) for row in own]
    found = means(rows, ("kind", "method"))
    for row in found:
        print(row)
    write_results("drift_local", {"signals": found}, quick=given.quick)


if __name__ == "__main__":
    main()
