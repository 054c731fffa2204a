"""Measure what `dpmix drift` finds in simulated recordings with known faults, and what correction is worth.

    python benchmarks/drift_proof.py [--quick] [--files 12] [--many]

Takes about four minutes of two cores. Three parts:

- *stretches*: files of 30,000 events by `dpmix simulate --drift`, steady or with one fault. The share of the
  events at faulty times that is flagged, and of all other events, by dpmix and by the rules of flowAI and
  PeacoQC (recording_rules.py). The areas under the ROC curves of scores are means over the files of a fault.
- *coverage*: one channel of two populations, with a known signal added: smooth, steps or nothing. How often
  the signal is inside the 90% interval of a block, and the true range inside the interval of the range; how
  many steps are found within three blocks of their places, and how many recordings have steps elsewhere.
  --many measures only this, in recordings of a million events: 10,000 blocks of 100 events, and 30 blocks
  instead of three. There the means of signal and truth over the recording are set equal: the mean of medians
  that lie between two populations is moved by more than its error, by the same at all times.
- *gates*: the adjusted Rand index between populations and truth without drift, with a slow drift, and after
  the signal that dpmix finds was subtracted from each event. Another gain also moves dim events less than
  bright ones, which subtracting cannot undo.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import recording_rules as rules
from record import arguments, read_results, write_results
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from threadpoolctl import threadpool_limits

from dpmix.api.estimator import DPMixture
from dpmix.drift.judge import Judgement, judge
from dpmix.drift.summaries import block_starts, summarise
from dpmix.inputs.opening import open_source
from dpmix.inputs.recording import Recording, study
from dpmix.inputs.simulate.simulation import COFACTOR, DYES, SCATTER, cytometry_like
from dpmix.inputs.steadiness import correct

EVENTS, QUICK_EVENTS = 30_000, 8_000
CASES = {  # fault, sizes
    "steady": (None, (0.0,)),
    "step": ("step", (0.25, 0.5, 1.0)),
    "bubble": ("bubble", (0.25, 0.5, 1.0)),
    "clog": ("clog", (0.5,)),
    "slow drift": ("slow", (0.25, 0.5, 1.0)),
}
TOOLS = ("dpmix", "flowAI", "flowAI, BIC", "PeacoQC")
SIGNALS = {  # amplitude or height, and shortest and longest period of a wave; the duration is 100
    "none": (0.0, None),
    "wave": (0.4, (60.0, 200.0)),
    "small wave": (0.1, (60.0, 200.0)),
    "fast wave": (0.4, (10.0, 20.0)),
    "straight line": (0.5, None),
    "step": (0.5, None),
    "small step": (0.25, None),
    "step on a wave": (0.5, (60.0, 200.0)),
    "bubble": (0.5, None),
}
BUBBLE = 8.0  # its duration
MANY_EVENTS, NEAR = (
    1_000_000,
    {False: 3, True: 30},
)  # blocks between a step and where it is found, by many or not

GATE_SIZES = (0.5, 1.0)
GATE_EVENTS, GATE_SEEDS = 20_000, 3

Array = np.ndarray
Row = dict[str, Any]


def scale(stored: Array) -> Array:
    """Return scatter as it is and dyes on an arcsinh scale, for the peers."""
    dyes = slice(len(SCATTER), len(SCATTER) + len(DYES))
    return np.column_stack((stored[:, : len(SCATTER)], np.arcsinh(stored[:, dyes] / COFACTOR)))


def dpmix_scores(found: Recording, times: Array) -> Array:
    """Return how many limits the signal of any channel is certainly from its usual level, float64 [N]."""
    scores = []
    for one in found.channels:
        certain = (np.abs(one.mean - np.median(one.mean)) - 1.6449 * one.sd) / one.limit
        place = np.searchsorted(one.times, times).clip(0, len(one.times) - 1)
        scores.append(certain[place])
    return np.max(scores, axis=0)


def measure_file(task: tuple[str, float, int, int]) -> Row:
    """Return flags and areas of all tools on one file."""
    case, size, seed, n_events = task
    fault = CASES[case][0]
    made = cytometry_like(n_events, seed, faults=(fault,) if fault else (), fault_size=size)
    faulty = np.zeros(n_events, bool) if made.faulty is None else made.faulty
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.fcs"
        made.write(path)
        found = study(open_source(path), threads=1)
    events, times = scale(made.events.astype(float)), made.events[:, -1].astype(float)
    dyes = events[:, len(SCATTER) :]  # flowAI leaves scatter out
    scores = {"dpmix": dpmix_scores(found, times), "PeacoQC": rules.peacoqc_scores(events)}
    flags = {
        "dpmix": scores["dpmix"] > 1.0,
        "flowAI": rules.flowai_signal(dyes) | rules.flowai_rate(times),
        "flowAI, BIC": rules.flowai_signal(dyes, rules.bic(n_events)) | rules.flowai_rate(times),
        "PeacoQC": scores["PeacoQC"] > rules.MADS,
    }
    row: Row = {"case": case, "size": size, "verdict": found.worst.verdict}
    for tool, flagged in flags.items():
        row[f"{tool} flagged"] = float(flagged[~faulty].mean())
        if faulty.any():
            row[f"{tool} found"] = float(flagged[faulty].mean())
            if tool in scores:
                row[f"{tool} area"] = float(roc_auc_score(faulty, scores[tool]))
    return row


# ----------------------------------------------------------------------------------------- coverage


def signal_of(kind: str, times: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Return a signal, and the times of its steps."""
    size, periods = SIGNALS[kind]
    signal, places = np.zeros(len(times)), np.empty(0)
    if periods:
        waves = np.sin(2.0 * np.pi * (times / random.uniform(*periods) + random.random()))
        signal += (0.5 * size if "step" in kind else size) * waves
    if kind == "straight line":
        signal += size * times / 100.0
    if "step" in kind or kind == "bubble":
        start = random.uniform(20.0, 80.0)
        places = np.array([start, start + BUBBLE] if kind == "bubble" else [start])
        signal += size * (np.searchsorted(places, times) == 1)
    return signal, places


def measure_coverage(task: tuple[str, int, int]) -> Row:
    """Return how often a known signal is inside its intervals, in one simulated channel."""
    kind, seed, n_events = task
    random = np.random.default_rng([seed, 7])
    times = np.sort(random.uniform(0.0, 100.0, n_events))
    values = two_populations(random, n_events)
    signal, places = signal_of(kind, times, random)
    spread = 0.5 * float(np.diff(np.quantile(values, [0.16, 0.84]))[0])
    starts = block_starts(n_events)
    blocks = summarise((values + signal)[:, None], times, starts)
    found = judge("a", blocks.times, blocks.medians[:, 0] / spread, blocks.errors[:, 0] / spread)
    usual = usual_median(n_events // len(blocks.times))
    truth = (np.interp(found.times, times, signal) + usual) / spread
    if n_events >= MANY_EVENTS:
        truth += found.mean.mean() - truth.mean()
    inside = np.abs(found.mean - truth) <= 1.6449 * found.sd
    width = float(np.ptp(signal)) / spread
    row: Row = {"kind": kind, "blocks": float(inside.mean()), "range": float(_holds(found, width))}
    away = (
        np.abs(np.subtract.outer(np.searchsorted(found.times, places), found.changes))
        > NEAR[n_events >= MANY_EVENTS]
    )
    row["elsewhere"] = float(away.all(axis=0).any())
    if len(places):
        row["steps"] = float((~away).any(axis=1).mean())
    return row if width == 0.0 else {**row, "ratio": found.range / width}


def _holds(found: Judgement, width: float) -> bool:
    return found.low <= width <= found.high


def two_populations(random: np.random.Generator, shape: int | tuple[int, int]) -> Array:
    """Return values of 0.6 N(0, 0.25) + 0.4 N(3, 0.25)."""
    return np.where(random.random(shape) < 0.4, 3.0, 0.0) + 0.5 * random.standard_normal(shape)


@cache
def usual_median(size: int) -> float:
    """Return the expected median of a block without signal, by simulation.

    It differs from the median of the population by a ninth of a block's standard error, which is much for the
    mean of a recording, and nothing that drift is about: it is the same in every block.
    """
    medians = np.median(two_populations(np.random.default_rng(0), (20_000, size)), axis=1)
    return float(medians.mean())


# -------------------------------------------------------------------------------------------- gates


def measure_gates(task: tuple[float, int, int]) -> Row:
    """Return the adjusted Rand index with the truth, without drift, with it, and after correction."""
    size, seed, n_events = task
    plain, drifted = (
        cytometry_like(n_events, seed, spill=False, faults=faults, fault_size=size)
        for faults in ((), ("slow",))
    )
    events = {
        "without drift": scale(plain.events.astype(float)),
        "with drift": scale(drifted.events.astype(float)),
    }
    times = drifted.events[:, -1].astype(float)
    corrected = events["with drift"].astype(np.float32)
    correct(corrected, times, (*SCATTER, *DYES))
    events["corrected"] = corrected
    row: Row = {"size": size}
    for name, values in events.items():
        own = (values - values.mean(axis=0)) / values.std(axis=0)
        labels = DPMixture(random_state=seed).fit_predict(own.astype(np.float32))
        row[name] = float(adjusted_rand_score(plain.labels, labels))
    return row


# --------------------------------------------------------------------------------------------- page


def means(rows: list[Row], by: tuple[str, ...]) -> list[Row]:
    """Return the means of rows with equal values of some keys, and their number."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), []).append(row)
    found = []
    for group in groups.values():
        numbers = {
            k: float(np.mean([row[k] for row in group])) for k, v in group[0].items() if isinstance(v, float)
        }
        found.append({**numbers, **{key: group[0][key] for key in by}, "n": len(group)})
    return found


def _share(row: Row, key: str) -> str:
    return f"{row[key]:.0%}" if key in row else ""


def table_stretches() -> str:
    """Return the table of flagged events."""
    head = [f"{tool}: {what}" for tool in TOOLS for what in ("found", "false")]
    lines = [f"| fault | size | files | {' | '.join(head)} |", "| --- | --- | --- |" + " ---: |" * len(head)]
    for row in read_results("drift_proof")["results"]["stretches"]:
        cells = [_share(row, f"{tool} {key}") for tool in TOOLS for key in ("found", "flagged")]
        size = "" if row["case"] in ("steady", "clog") else f"{row['size']:g}"
        lines.append(f"| {row['case']} | {size} | {row['n']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_areas() -> str:
    """Return the table of areas under the ROC curve."""
    lines = ["| fault | dpmix | PeacoQC |", "| --- | ---: | ---: |"]
    rows = [row for row in read_results("drift_proof")["results"]["stretches"] if "dpmix area" in row]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        cells = [f"{np.mean([row[f'{tool} area'] for row in own]):.3f}" for tool in ("dpmix", "PeacoQC")]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_coverage(name: str = "drift_proof") -> str:
    """Return the table of coverage; "drift_proof_many" has the table for a million events."""
    head = [
        "signal",
        "recordings",
        "blocks in their interval",
        "range in its interval",
        "range over true one",
    ]
    head += ["steps found", "recordings with false steps"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in read_results(name)["results"]["coverage"]:
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        cells = [
            _share(row, "blocks"),
            _share(row, "range"),
            ratio,
            _share(row, "steps"),
            _share(row, "elsewhere"),
        ]
        lines.append(f"| {row['kind']} | {row['n']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_gates() -> str:
    """Return the table of adjusted Rand indices."""
    lines = ["| size of the drift | samples | without drift | with drift | corrected |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in read_results("drift_proof")["results"]["gates"]:
        cells = [f"{row[key]:.3f}" for key in ("without drift", "with drift", "corrected")]
        lines.append(f"| {row['size']:g} | {row['n']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_many(files: int) -> None:
    """Measure coverage in recordings of a million events, this many of each kind."""
    tasks = [(kind, seed, MANY_EVENTS) for kind in SIGNALS for seed in range(1, files + 1)]
    with ProcessPoolExecutor(2, initializer=threadpool_limits, initargs=(1,)) as pool:
        rows = means(list(pool.map(measure_coverage, tasks)), ("kind",))
    for row in rows:
        print(row)
    write_results("drift_proof_many", {"coverage": rows}, quick=False)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=12, help="files of each kind and size")
    parser.add_argument("--many", action="store_true", help="the coverage of a million events, and no more")
    given = parser.parse_args()
    if given.many:
        return measure_many(given.files // 2)
    files, n_events = (2, QUICK_EVENTS) if given.quick else (given.files, EVENTS)
    seeds = range(1, files + 1)
    stretches = [
        (c, size, seed, n_events) for c, (_, sizes) in CASES.items() for size in sizes for seed in seeds
    ]
    signals = [(kind, seed, n_events) for kind in SIGNALS for seed in range(1, 4 * files + 1)]
    gates = [(size, seed, GATE_EVENTS) for size in GATE_SIZES for seed in range(1, GATE_SEEDS + 1)]
    # Two processes whose BLAS has two threads each wait for each other.
    with ProcessPoolExecutor(2, initializer=threadpool_limits, initargs=(1,)) as pool:
        results = {
            "stretches": means(list(pool.map(measure_file, stretches)), ("case", "size")),
            "coverage": means(list(pool.map(measure_coverage, signals)), ("kind",)),
        }
    results["gates"] = [] if given.quick else means([measure_gates(task) for task in gates], ("size",))
    for name, rows in results.items():
        for row in rows:
            print(name, row)
    write_results("drift_proof", results, quick=given.quick)


if __name__ == "__main__":
    main()
