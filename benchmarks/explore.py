"""Measure how many cells of a hidden rare population are found by relevance feedback, judged by an oracle.

    python benchmarks/explore.py SHARED [--quick] [--starts 20]

SHARED is a folder with `data/labelled`; without it only the simulated cases run. All cases take about ten
minutes of two cores; `--quick` takes seconds. A simulated case has twelve populations in ten channels, and a
hidden one that differs from the largest in three of them, by 1.2: two to four standard deviations. Of a
labelled case, cells of the hidden population are left out at random until it has the stated share.

A start has three hidden cells and 17 random others. A screen has 20 events. All ways but the linear one score
events by the posterior mean of the same Gaussian process. The linear classifier is logistic regression with
balanced classes, and its screens are the events closest to its boundary. `mistakes` is feedback; 5% of it
is wrong. `determinantal` chooses the first event of a screen as GP-UCB does, and the others by the
determinant of their posterior covariance among those that may be best (GP-UCB-PE, Contal et al. 2013, ECML).

Recall is the share of the hidden cells among the R events with the highest score, where R is their number: a
way cannot gain by taking more events. It is a mean over the starts. For feedback, the results also have the
F1 of the gate that dpmix chooses, and how often its interval contains the number of hidden cells.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from record import arguments, read_results, said, write_results

from dpmix.explore.explorer import Explorer
from dpmix.explore.screen import FURTHER, SIZE, confidence

KNOWN, SCREENS, MISTAKES = 3, (5, 10, 20), 0.05
WAYS = ("feedback", "mistakes", "determinantal", "exploitation", "linear", "random")
SIMULATED = {
    "simulated 0.5%": (50_000, 0.005),
    "simulated 0.05%": (50_000, 0.0005),
    "simulated 0.01%": (100_000, 0.0001),
}
LABELLED = {  # file, label, share, cofactor of arcsinh
    "dendritic cells 0.1%": ("pbmc_cytomem.npz", 3, 0.001, 15.0),
    "CD4 effector 0.17%": ("hipc_stanford_1228.npz", 4, 0.0017, None),
}
Floats = np.ndarray
Bools = np.ndarray


def standardised(events: np.ndarray) -> Floats:
    return np.ascontiguousarray((events - events.mean(axis=0)) / events.std(axis=0), np.float32)


def simulated(n_events: int, share: float, seed: int) -> tuple[Floats, Bools]:
    """Return events and which are hidden."""
    random = np.random.default_rng([seed, n_events])
    means, sds = random.uniform(-2.0, 2.0, (12, 10)), random.uniform(0.3, 0.6, (12, 10))
    weights = np.sort(random.dirichlet(np.full(12, 2.0)))[::-1]
    hidden = means[0].copy()
    hidden[random.choice(10, 3, replace=False)] += 1.2 * random.choice([-1.0, 1.0], 3)
    n = round(share * n_events)
    labels = random.permutation(np.concatenate([random.choice(12, n_events - n, p=weights), np.full(n, 12)]))
    means, sds = np.vstack([means, hidden]), np.vstack([sds, sds[0]])
    return standardised(means[labels] + sds[labels] * random.standard_normal((n_events, 10))), labels == 12


def labelled(folder: Path, name: str, seed: int) -> tuple[Floats, Bools]:
    """Return events and which are hidden."""
    file, label, share, cofactor = LABELLED[name]
    data = np.load(folder / file)
    events, wanted = data["events"].astype(np.float64), data["labels"] == label
    n = round(share * (~wanted).sum())
    random = np.random.default_rng([seed, label])
    own = np.flatnonzero(wanted)
    kept = np.sort(
        np.concatenate([np.flatnonzero(~wanted), random.choice(own, min(n, len(own)), replace=False)])
    )
    events = events[kept] if cofactor is None else np.arcsinh(events[kept] / cofactor)
    return standardised(events), wanted[kept]


def diverse(explorer: Explorer, events: Floats) -> np.ndarray:
    """Return a screen by GP-UCB and then by the determinant of the posterior covariance."""
    posterior = explorer.posterior
    weight = FURTHER * confidence(len(events), 1 + len(explorer.rows) // SIZE)
    upper, lower = (posterior.mean + sign * weight * posterior.sd for sign in (1.0, -1.0))
    upper[explorer.rows] = -np.inf
    best = int(upper.argmax())
    relevant = np.flatnonzero(posterior.mean + 2.0 * weight * posterior.sd >= lower.max())
    relevant = np.setdiff1d(relevant, [*explorer.rows.tolist(), best])
    if len(relevant) > 1_023:
        relevant = relevant[np.argsort(-upper[relevant], kind="stable")[:1_023]]
    pool = np.concatenate([[best], relevant])
    values = events[pool].astype(np.float64)
    whitened, covariance = posterior.judged.whitened(values), posterior.judged.covariance
    left = covariance.between(values, values) - whitened.T @ whitened
    chosen = [0]
    for _ in range(min(SIZE, len(pool)) - 1):
        last = left[chosen[-1]]
        left = left - np.outer(last, last) / (last[chosen[-1]] + covariance.noise)
        sds = left.diagonal().copy()
        sds[chosen] = -np.inf
        chosen.append(int(sds.argmax()))
    return pool[chosen]


def linear(events: Floats, rows: np.ndarray, values: np.ndarray) -> Floats:
    """Return the score of all events by logistic regression."""
    from sklearn.linear_model import LogisticRegression

    if np.ptp(values) == 0.0:
        return np.zeros(len(events), np.float32)
    return LogisticRegression(class_weight="balanced").fit(events[rows], values).decision_function(events)


def run(events: Floats, wanted: Bools, way: str, seed: int) -> dict[str, Any]:
    """Return recall after each number of `SCREENS`, of one start."""
    random = np.random.default_rng([seed, 21])
    n_hidden = int(wanted.sum())
    rows = np.concatenate(
        [
            random.choice(np.flatnonzero(wanted), KNOWN, replace=False),
            random.choice(np.flatnonzero(~wanted), SIZE - KNOWN, replace=False),
        ]
    )
    values, checks = wanted[rows].astype(float), np.zeros(SIZE, bool)
    explorer, judged, judgements = Explorer(events, seed, 1), rows, values
    result: dict[str, Any] = {}
    score = explorer.posterior.mean
    for screen in range(max(SCREENS) + 1):
        lazy = way == "random" and screen not in SCREENS
        if screen:
            judged, judgements = np.concatenate([judged, rows]), np.concatenate([judgements, values])
        if way == "linear":
            score = linear(events, judged, judgements)
        elif not lazy:
            done = len(explorer.rows)
            marks = np.concatenate([np.zeros(len(judged) - done - len(checks), bool), checks])
            explorer.judge(judged[done:], judgements[done:], marks, np.arange(done, len(judged)) // SIZE)
            score = explorer.posterior.mean
        if screen in SCREENS:
            highest = np.argpartition(-score, n_hidden)[:n_hidden]
            result[f"recall {screen}"] = float(wanted[highest].mean())
            if way in ("feedback", "mistakes"):
                result |= gate(explorer, wanted, screen)
        rows, checks = following(way, explorer, events, score, judged, random)
        values = wanted[rows].astype(float)
        if way == "mistakes":
            wrong = random.random(len(rows)) < MISTAKES
            values[wrong] = 1.0 - values[wrong]
    return result


def following(
    way: str,
    explorer: Explorer,
    events: Floats,
    score: Floats,
    judged: np.ndarray,
    random: np.random.Generator,
) -> tuple[np.ndarray, Bools]:
    """Return the next screen and its checks."""
    none = np.zeros(SIZE, bool)
    if way in ("feedback", "mistakes"):
        return explorer.screen()
    if way == "exploitation":
        return explorer.screen(further=0.0, checks=0)
    if way == "determinantal":
        rows = diverse(explorer, events)
        return rows, none[: len(rows)]
    if way == "random":
        return random.choice(np.setdiff1d(np.arange(len(events)), judged), SIZE, replace=False), none
    distance = np.abs(score)
    distance[judged] = np.inf
    return np.argpartition(distance, SIZE)[:SIZE], none


def gate(explorer: Explorer, wanted: Bools, screen: int) -> dict[str, float]:
    """Return F1 of the gate, and whether the interval contains the number of hidden cells."""
    found = explorer.found()
    if found is None:
        return {f"f1 {screen}": 0.0, f"covered {screen}": 0.0}
    inside = explorer.posterior.mean >= np.float32(found.threshold)
    f1 = 2.0 * (inside & wanted).sum() / (inside.sum() + wanted.sum())
    covered = np.floor(found.low) <= wanted.sum() <= np.ceil(found.high)
    width = (found.high - found.low) / wanted.sum()
    return {f"f1 {screen}": float(f1), f"covered {screen}": float(covered), f"width {screen}": float(width)}


def start(task: tuple[str, str, int, Path | None, int]) -> tuple[str, str, dict[str, Any]]:
    """Return case, way and result of one start."""
    case, way, seed, folder, fewer = task
    if case in SIMULATED:
        n_events, share = SIMULATED[case]
        events, wanted = simulated(n_events // fewer, share * fewer, seed)
    else:
        assert folder is not None
        events, wanted = labelled(folder, case, seed)
    began = time.process_time()
    result = run(events, wanted, way, seed)
    return case, way, result | {"processor seconds": time.process_time() - began}


def table_gate() -> str:
    """Return the table of the events that dpmix finds: F1, and how often its interval has the true number."""
    both = ("feedback", "mistakes")
    keys = [(key, n) for key in ("f1", "covered") for n in SCREENS]
    head = ["hidden population", *(f"{'F1' if key == 'f1' else 'interval'}, {n}" for key, n in keys)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case, ways in read_results("explore")["results"].items():
        for way in both:
            own = [ways[way][f"{key} {n}"] for key, n in keys]
            cells = [
                f"{value:.2f}" if key == "f1" else f"{value:.0%}"
                for (key, _), value in zip(keys, own, strict=True)
            ]
            lines.append(f"| {case}{', mistakes' if way == 'mistakes' else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Return the table of recall of docs/benchmarks/explore.md."""
    record = read_results("explore")["results"]
    head = ["hidden population", "screens", *WAYS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case, ways in record.items():
        for n in SCREENS:
            cells = [f"{ways[way][f'recall {n}']:.0%}" for way in WAYS]
            lines.append(f"| {case if n == SCREENS[0] else ''} | {n} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", said("explore", packages=("dpmix", "numpy", "scikit-learn"))])


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("shared", nargs="?", type=Path)
    parser.add_argument("--starts", type=int, default=20)
    given = parser.parse_args()
    folder = given.shared / "data" / "labelled" if given.shared else None
    cases = [*SIMULATED, *(LABELLED if folder else ())]
    starts, fewer = (1, 10) if given.quick else (given.starts, 1)
    tasks = [(case, way, seed, folder, fewer) for seed in range(starts) for case in cases for way in WAYS]
    with ProcessPoolExecutor(2) as pool:
        done = list(pool.map(start, tasks))
    results: dict[str, Any] = {case: {} for case in cases}
    for case in cases:
        for way in WAYS:
            own = [result for c, w, result in done if (c, w) == (case, way)]
            results[case][way] = {key: round(float(np.mean([one[key] for one in own])), 3) for key in own[0]}
            print(case, way, results[case][way], flush=True)
    write_results("explore", results, quick=given.quick)


if __name__ == "__main__":
    main()
