"""The best match with manual gates that the tree of populations allows, with the gates known.

    python benchmarks/gating.py --only dpmix --seeds 5 --runs RUNS    # makes the runs
    python benchmarks/best_branches.py RUNS                           # the first seed of each sample

dpmix cuts the tree of the mean density at one height and does not know the gates. Two limits tell how much a
better choice could gain:

- the best branches: any branches of the tree that do not overlap, at most one for each gate, with the highest
  mean F1. No rule that cuts the tree, and nobody who merges and splits its branches by hand, can do better;
- the best unions: for each gate the modes of the density whose union has the highest F1, whatever the tree
  and the other gates say.

In the branches, modes without a valley beyond chance between them are one (merges of height 0). Scores are
those of gating.py, on the events that the run file keeps. `benchmarks/results/best_branches.json` keeps the
means over the samples of each set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from clusterings import PEERS, Ints
from gating import OLDER, SETS, Scores, earlier, over_seeds, sample_folder, samples, tools
from levels import modes_of_events
from record import read_results, said, write_results
from scipy.optimize import Bounds, LinearConstraint, milp

from dpmix.engines.cpu import CpuEngine
from dpmix.populations.find import find_populations
from dpmix.populations.tree import LEVEL, Tree
from dpmix.runs.layout import EVENT_SUBSET, subset_rows
from dpmix.runs.reader import open_run

SEED = 1
LIMITS = ("default cut", "best branches", "best unions")

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def branches(tree: Tree) -> Flags:
    """Return the modes in each branch, bool [branches, L]; merges of height 0 come before them."""
    own = np.arange(len(tree.heights))
    found = []
    for (child, parent), level in zip(tree.merges, tree.levels, strict=True):
        if level > 0.0 and not found:
            found += [own == mode for mode in np.unique(own)]
        own[own == own[child]] = own[parent]
        if level > 0.0:
            found.append(own == own[parent])
    return np.array(found or [own == own[0]])


def f1(shared: Array, gates: Array, sizes: Array) -> Array:
    """Return the F1 of each gate and set of events, from the events in both and in each."""
    return 2.0 * shared / (gates[:, None] + sizes)


def best_branches(table: Array, modes_of: Flags) -> float:
    """Return the highest mean F1 of non-overlapping branches, at most one for each gate.

    Parameters
    ----------
    table : float64 [gates, L]
        Events in each gate and mode.
    modes_of : bool [branches, L]
    """
    shared = table @ modes_of.T
    scores = f1(shared, table.sum(axis=1), shared.sum(axis=0))
    n_gates, n_branches = scores.shape
    one_branch = np.kron(np.eye(n_gates), np.ones(n_branches))  # for each gate
    one_use = np.kron(np.ones(n_gates), modes_of.T)  # of each mode
    constraint = LinearConstraint(np.concatenate([one_branch, one_use]), ub=1.0)
    result = milp(-scores.ravel(), integrality=1, bounds=Bounds(0.0, 1.0), constraints=constraint)
    if not result.success:
        raise SystemExit(f"the best branches were not found: {result.message}")
    return float(-result.fun / n_gates)


def best_unions(table: Array) -> float:
    """Return the mean over gates of the highest F1 of any union of modes.

    The F1 is a ratio of sums over the modes, so the best union has the modes with the largest share of the
    gate.
    """
    sizes = table.sum(axis=0)
    best = []
    for own in table:
        order = np.argsort(-own / np.maximum(sizes, 1.0), kind="stable")
        best.append(f1(np.cumsum(own[order])[None], own.sum()[None], np.cumsum(sizes[order])).max())
    return float(np.mean(best))


def limits(path: Path, gates: Ints) -> dict[str, float]:
    """Return the mean F1 of the default cut of a run's tree, and the two limits.

    Parameters
    ----------
    path : Path
        The run file.
    gates : int64 [N]
        Gate of each event, from 1; less than 1 for none.
    """
    run = open_run(path)
    events = np.ascontiguousarray(run.constants[EVENT_SUBSET])
    kept = np.maximum(gates[subset_rows(int(run.attributes["n_events"]), len(events))], 0)
    found = find_populations(run, lambda points: CpuEngine(points, threads=1))
    tree, modes = found.tree, modes_of_events(found, events)
    table = np.zeros((int(kept.max()) + 1, len(tree.heights)))
    np.add.at(table, (kept, modes), 1.0)
    table = table[1:][table[1:].sum(axis=1) > 0]
    first = np.unique(tree.modes, return_index=True)[1]  # a component of each mode
    default = tools()[1].score(kept, tree.cut(LEVEL)[first][modes])["mean_f1"]
    return dict(zip(LIMITS, (default, best_branches(table, branches(tree)), best_unions(table)), strict=True))


def of_set(runs: Path, name: str) -> dict[str, Any]:
    """Return means over the samples of a set."""
    found = []
    for number, _, gates in samples(name):
        found.append(limits(sample_folder(runs, "dpmix", name, number, SEED) / "run.h5", gates))
        print(name, number, found[-1], flush=True)
    means = {key: round(float(np.mean([one[key] for one in found])), 4) for key in LIMITS}
    return means | {"samples": len(found)}


def best_peer(scores: Scores, name: str) -> float:
    """Return the highest mean F1 of another tool on a set; NaN if none was measured."""
    own = [scores[tool][name]["mean_f1"] for tool in PEERS if name in scores.get(tool, {})]
    return max(own, default=np.nan)


def page() -> str:
    """Markdown: a row for each set, and the mean over the seven."""
    results, scores = read_results("best_branches")["results"], over_seeds(earlier())
    lines = [f"| set | {' | '.join(LIMITS)} | best other tool |", "|---" * (len(LIMITS) + 2) + "|"]
    for name, row in results.items():
        peer = best_peer(scores, name)
        cells = [*(f"{row[key]:.2f}" for key in LIMITS), "" if np.isnan(peer) else f"{peer:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [np.mean([results[name][key] for name in OLDER]) for key in LIMITS]
    lines.append(f"| mean of the first seven | {' | '.join(f'{mean:.3f}' for mean in means)} | |")
    return "\n".join([*lines, "", said("best_branches"), ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder of the runs of gating.py")
    asked = parser.parse_args()
    results = {name: of_set(asked.runs, name) for name in SETS}
    write_results("best_branches", results)


if __name__ == "__main__":
    main()
