"""Count in how many simulated cases dpmix finds the right number of populations, by several seeds.

    python benchmarks/simulated.py CACHE                 # every case of populations.py, default config
    python benchmarks/simulated.py CACHE --cases 'mass-*' --seeds 5 --set model.coarseness=null

Runs are kept in CACHE and gated as `dpmix gate` does by default; what is there is not measured again. After a
change of the code, use another CACHE. Scores are those of gating.py; for a single population, F1 is the share
of its largest part. A population that is at least half noise (label 0) is not counted. Calls with --cases,
--most or --set are trials: their results go to build/benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import Ints
from gating import tools
from in_process import gate_run
from labelled_runs import agreement
from populations import BIG, Case, case_parser, cases, fit
from record import write_results

from dpmix.errors import DpmixError

BAR = 0.90  # least share of the cases with the right number


def found(case: Case, folder: Path, options: Sequence[str]) -> Ints:
    """Return the population of each event, from 0; run and gate unless it is there."""
    run, _ = fit(case, folder, options)
    kept = folder / f"{case.name}_found.npy"
    if not kept.exists() or kept.stat().st_mtime < run.stat().st_mtime:
        np.save(kept, gate_run(run).population)
    populations: Ints = np.load(kept)
    return populations


def score(labels: Ints, populations: Ints) -> dict[str, Any]:
    """Return the number of populations and the scores of a gating."""
    known = labels > 0
    number = int((np.bincount(populations, known) > 0.5 * np.bincount(populations)).sum())
    if len(np.unique(labels[known])) > 1:
        scores = tools()[1].score(labels, populations)
        return {"found": number, "mean_f1": scores["mean_f1"], "ari": scores["ari"]}
    largest = float(np.bincount(populations[known]).max() / known.sum())
    return {"found": number, "mean_f1": largest, "ari": float(number == 1)}


def measure(case: Case, cache: Path, seeds: Sequence[int], options: Sequence[str]) -> dict[str, Any]:
    """Return scores of a case, means over seeds, and the agreement between seeds."""
    gatings = [found(case, cache / f"seed{seed}", [*options, f"seed={seed}"]) for seed in seeds]
    rows = [score(case.labels, populations) for populations in gatings]
    true = len(np.unique(case.labels[case.labels > 0]))
    return {
        "true": true,
        "found": [row["found"] for row in rows],
        "right": float(np.mean([row["found"] == true for row in rows])),
        **{key: round(float(np.mean([row[key] for row in rows])), 3) for key in ("mean_f1", "ari")},
        **({"between seeds": agreement([gatings])["ari"]} if len(seeds) > 1 else {}),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each case, and the means."""
    lines = ["| case | true | found | mean F1 | ARI | ARI between seeds |", "|---" * 6 + "|"]
    for name, row in results.items():
        numbers = ", ".join(map(str, row["found"]))
        between = f"{row['between seeds']:.3f}" if "between seeds" in row else ""
        scores = f"{row['mean_f1']:.2f} | {row['ari']:.2f}"
        lines.append(f"| {name} | {row['true']} | {numbers} | {scores} | {between} |")
    means = [float(np.mean([row[key] for row in results.values()])) for key in ("right", "mean_f1", "ari")]
    lines.append(f"| mean | | right number: {means[0]:.0%} | {means[1]:.2f} | {means[2]:.2f} | |")
    return "\n".join(lines)


def main() -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: %(default)s)")
    asked = parser.parse_args()
    trial = bool(asked.set) or asked.cases != "*" or asked.most != BIG
    results: dict[str, dict[str, Any]] = {}
    for case in cases(asked.cases, asked.most):
        try:
            results[case.name] = measure(case, asked.cache, range(1, asked.seeds + 1), asked.set)
        except DpmixError as error:
            raise SystemExit(str(error)) from None
        print(case.name, results[case.name], flush=True)
        write_results("simulated", results, quick=trial)
    print(table(results))
    right = float(np.mean([row["right"] for row in results.values()]))
    print("pass" if right >= BAR else "MISS", f"right number in {right:.0%} of the cases, need {BAR:.0%}")
    if right < BAR:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
