"""Count in how many simulated cases dpmix finds the right number of populations, by several seeds.

    python benchmarks/simulated.py CACHE --seeds 3       # every case of populations.py, default config
    python benchmarks/simulated.py OTHER --cases 'mass-*' --set model.coarseness=null

Runs are kept in CACHE and gated as `dpmix gate` does by default; what is there is not measured again. After a
change of the code, use another CACHE. Scores are as in gating.py; for a single population, F1 is the share of
its largest part. A population that is at least half noise (label 0) is not counted. Where the populations are
normals, the number is given that the rule of dpmix finds in their true density. Calls with --cases, --most or
--set are trials: their results go to build/benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import Ints
from gating import tools
from in_process import gate_run
from labelled_runs import agreement
from populations import BIG, TABLE, Array, Case, case_parser, cases, fit, nested, overlap, quadrants
from record import read_results, said, write_results

from dpmix.engines.cpu import CpuEngine
from dpmix.errors import DpmixError
from dpmix.populations.tree.modes import nearest_components
from dpmix.populations.tree.tree import LEVEL, find_peaks
from dpmix.populations.tree.valleys import Separation

BAR = 0.90  # least share of the cases with the right number
MANY = 1_000_000  # events with which the rule sees a true density


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


def true_densities() -> dict[str, tuple[Array, Array, Array]]:
    """Return weights [P], means [P, D] and standard deviations [P] of the cases of spherical normals."""
    found = {}
    for kind, make, given, dim, n in TABLE:
        name, first = f"{kind}-d{dim}-n{n}", np.eye(dim)[0]
        if make is overlap:
            found[name] = np.full(2, 0.5), np.outer([0.0, given["distance"]], first), np.ones(2)
        elif make is nested:
            weights = np.array([given["share"], 1.0 - given["share"]])
            found[name] = weights, np.outer([given["offset"], 0.0], first), np.array([0.15, 1.0])
        elif make is quadrants:
            corners = np.array(list(product((0, 1), (0, 1), range(given["lineages"]))), float)
            means = np.zeros((len(corners), dim))
            means[:, :3] = corners * [given["distance"], given["distance"], 8.0]
            shares = np.repeat([0.35, 0.25, 0.25, 0.15], given["lineages"]) / given["lineages"]
            found[name] = shares, means, np.ones(len(means))
    return found


def separated(weights: Array, means: Array, sds: Array) -> int:
    """Return the number of populations that the rule of dpmix finds in a density of spherical normals."""
    dim = means.shape[1]
    density = weights, means, sds[:, None, None] ** 2 * np.eye(dim)
    peaks = find_peaks(*density, MANY, CpuEngine)
    random = np.random.default_rng(1)
    drawn = random.choice(len(weights), BIG, p=weights)
    events = means[drawn] + sds[drawn, None] * random.normal(size=(BIG, dim))
    parts = peaks.modes[nearest_components(*density, events)]
    tree, _ = peaks.tree(Separation(peaks.moments, events.astype(np.float32), parts))
    return int(tree.cut(LEVEL).max()) + 1


def right_shares(results: dict[str, dict[str, Any]]) -> tuple[float, float]:
    """Return the share of gatings with the true number, and with the rule's number in the true density."""
    by_rule = [
        float(np.mean([number == row.get("by rule", row["true"]) for number in row["found"]]))
        for row in results.values()
    ]
    return float(np.mean([row["right"] for row in results.values()])), float(np.mean(by_rule))


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: a row for each case, and the means."""
    lines = [
        "| case | true | rule, true density | found | mean F1 | ARI | ARI between seeds |",
        "|---" * 7 + "|",
    ]
    for name, row in results.items():
        numbers = ", ".join(map(str, row["found"]))
        between = f"{row['between seeds']:.3f}" if "between seeds" in row else ""
        scores = f"{row['mean_f1']:.2f} | {row['ari']:.2f} | {between}"
        lines.append(f"| {name} | {row['true']} | {row.get('by rule', '')} | {numbers} | {scores} |")
    right, by_rule = right_shares(results)
    f1, ari = (float(np.mean([row[key] for row in results.values()])) for key in ("mean_f1", "ari"))
    found = f"as true: {right:.0%}, as the rule sees it: {by_rule:.0%}"
    return "\n".join([*lines, f"| mean | | | {found} | {f1:.2f} | {ari:.2f} | |"])


def page() -> str:
    """Markdown: the table of the committed results, and where it comes from."""
    return f"{table(read_results('simulated')['results'])}\n\n{said('simulated')}\n"


def main() -> None:
    parser = case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: %(default)s)")
    asked = parser.parse_args()
    trial = bool(asked.set) or asked.cases != "*" or asked.most != BIG
    results: dict[str, dict[str, Any]] = {}
    densities = true_densities()
    for case in cases(asked.cases, asked.most):
        try:
            row = measure(case, asked.cache, range(1, asked.seeds + 1), asked.set)
        except DpmixError as error:
            raise SystemExit(str(error)) from None
        by_rule = {"by rule": separated(*densities[case.name])} if case.name in densities else {}
        results[case.name] = row | by_rule
        print(case.name, results[case.name], flush=True)
        write_results("simulated", results, quick=trial)
    print(table(results))
    right, _ = right_shares(results)
    print("pass" if right >= BAR else "MISS", f"right number in {right:.0%} of the cases, need {BAR:.0%}")
    if right < BAR:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
