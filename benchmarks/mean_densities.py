"""How the number of mean densities affects the agreement between seeds, and the scores.

    python benchmarks/gating.py --only dpmix --seeds 5 --runs RUNS    # makes the runs
    python benchmarks/mean_densities.py RUNS                          # all samples with two seeds or more
    python benchmarks/mean_densities.py RUNS --sets gvhd,hipc         # the other sets from earlier calls

For each run, the trees of the mean densities of all groups of draws (`dpmix.populations.pooling`) are cut at
the default level. The medoid of some of them, evenly spaced over the run, gives the populations. "default" is
the rule of `dpmix.populations.forest.typical`: all groups where the first ones disagree. As in levels.py,
populations that few draws support are not merged, and the events are those that the run file keeps.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import Ints
from gating import SETS, complete_runs, mean_scores, measure_sets
from record import read_results, said
from threadpoolctl import threadpool_limits

from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Array
from dpmix.populations import forest
from dpmix.populations.cut import CutRule
from dpmix.populations.find import DRAWS
from dpmix.populations.pooling import FIRST_GROUPS, mixture_of_draw, pooled_draws, spread
from dpmix.populations.support import populations_of_modes
from dpmix.runs.reader import open_run

COUNTS = (1, 5, 9, 15, 25)  # of mean densities
DEFAULT = "default"
OPTIONS = (*map(str, COUNTS), DEFAULT)
SHOWN = ("between seeds", "mean_f1")


def trees_of(path: Path) -> list[forest.MeanTree]:
    """Return the trees of the mean densities of all groups of draws of a run."""
    run = open_run(path)
    draws = spread(run, DRAWS)
    mixture = lru_cache(None)(partial(mixture_of_draw, run))
    groups = pooled_draws(run, draws)
    build = partial(
        forest.mean_tree,
        run,
        draws,
        [partial(mixture, *draw) for draw in draws],
        forest.subset_of(run, draws[groups[0]]),
        partial(CpuEngine, threads=1),
    )
    with threadpool_limits(1, "blas"):
        return [build(group) for group in groups]


def chosen(trees: list[forest.MeanTree], agreement: Array, option: str) -> int:
    """Return the tree that defines the populations, given the agreement of each pair."""
    if option == DEFAULT:
        first = agreement[:FIRST_GROUPS, :FIRST_GROUPS]
        some = np.arange(FIRST_GROUPS if first.min() >= forest.AGREED else len(trees))
    else:
        by_time = np.argsort([tree.pooled[0] for tree in trees])
        places = (np.arange(int(option)) + 0.5) / int(option) * len(trees)
        some = np.unique(by_time[places.astype(np.int64)])
    return int(some[agreement[np.ix_(some, some)].sum(axis=1).argmax()])


def of_run(path: Path) -> tuple[dict[str, Ints], bool]:
    """Return the populations of the events by option, and whether the first groups agreed."""
    trees, rule = trees_of(path), CutRule()
    agreement = forest.agreement_of(trees, rule)
    labels = {}
    for option in OPTIONS:
        tree = trees[chosen(trees, agreement, option)]
        labels[option] = populations_of_modes(tree.tree, rule.cut(tree.tree))[tree.of_events]
    return labels, bool(agreement[:FIRST_GROUPS, :FIRST_GROUPS].min() >= forest.AGREED)


def of_set(runs: Path, name: str) -> dict[str, Any]:
    """Return means of a set over its samples, by option, and the share of runs whose first groups agreed."""
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    agreed: list[bool] = []
    for number, gates, paths in complete_runs(runs, name, least=2):
        by_seed, alike = zip(*map(of_run, paths), strict=True)
        agreed += alike
        for option in OPTIONS:
            rows[option].append(mean_scores(gates, [found[option] for found in by_seed]))
        print(name, number, len(paths), "runs", rows[DEFAULT][-1], flush=True)
    means = {
        option: {key: round(float(np.mean([row[key] for row in own])), 4) for key in own[0]}
        for option, own in rows.items()
    }
    return {"runs": len(agreed), "agreed": round(float(np.mean(agreed)), 3), "options": means}


def page() -> str:
    """Markdown: agreement between seeds and mean F1, by number of mean densities."""
    results = read_results("mean_densities")["results"]
    names = [name for name in SETS if name in results]
    heads = [*(f"{count}" for count in COUNTS), "default rule"]
    lines = [f"| set | runs | first four agree | {' | '.join(heads)} |", "|---" * (3 + len(heads)) + "|"]
    for name in names:
        own = results[name]
        cells = [_cell(own["options"][option]) for option in OPTIONS]
        lines.append(f"| {name} | {own['runs']} | {own['agreed']:.0%} | {' | '.join(cells)} |")
    means = [
        _cell({key: float(np.mean([results[n]["options"][o][key] for n in names])) for key in SHOWN})
        for o in OPTIONS
    ]
    lines.append(f"| mean | | | {' | '.join(means)} |")
    return "\n".join([*lines, "", said("mean_densities"), ""])


def _cell(means: dict[str, float]) -> str:
    return f"{means['between seeds']:.3f}; {means['mean_f1']:.2f}"


def main() -> None:
    measure_sets("mean_densities", __doc__, of_set)
    print(page())


if __name__ == "__main__":
    main()
