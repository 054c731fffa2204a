"""How far a small peak of the density must rise to count, chosen for each labelled set on the other sets.

    python benchmarks/gating.py --only dpmix --seeds 5 --runs RUNS    # makes the runs
    python benchmarks/small_peaks.py RUNS                             # all samples and seeds that are there
    python benchmarks/small_peaks.py RUNS --sets gvhd,hipc            # the other sets from earlier calls

Two modes of a density are one population if the lower one rises above the saddle between them by less than
this many standard deviations of chance, where the valley is also measured in the events
(`dpmix.populations.tree.CHANCE_MEASURED`). The populations of the runs are found with several values of it,
as `dpmix gate` finds them, but for the points that all draws share: the events that the run file keeps serve
for these and for the scores, and each belongs to its most probable mode. As in levels.py, the value for a set
is the one with the best scores on the other sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from clusterings import Ints
from gating import OLDER, SCORES, SETS, complete_runs, mean_scores, measure_sets
from levels import Means, chosen_on_others
from record import read_results, said
from threadpoolctl import threadpool_limits

from dpmix.engines.cpu import CpuEngine
from dpmix.populations import forest, tree
from dpmix.populations.cut import CutRule
from dpmix.populations.find import DRAWS
from dpmix.populations.pooling import mixture_of_draw, pooled_draws, spread
from dpmix.populations.predictive import classify_draws
from dpmix.populations.support import merge_unsupported, populations_of_modes
from dpmix.runs.reader import open_run

DEFAULT, AS_UNMEASURED = tree.CHANCE_MEASURED, tree.CHANCE
VALUES = (0.0, 0.25, DEFAULT, 0.75, 1.0, AS_UNMEASURED)


@contextmanager
def remembered(name: str, key: Callable[..., Any]) -> Iterator[None]:
    """Let a function of `dpmix.populations.forest` compute only once what does not depend on the value."""
    function, known = getattr(forest, name), {}

    def answer(*arguments: Any) -> Any:
        own = key(*arguments)
        if own not in known:
            known[own] = function(*arguments)
        return known[own]

    with patch.object(forest, name, answer):
        yield


def of_run(path: Path) -> dict[float, Ints]:
    """Return the population of each event that a run file keeps, by value."""
    run, rule, make_engine = open_run(path), CutRule(), partial(CpuEngine, threads=1)
    draws = spread(run, DRAWS)
    groups = pooled_draws(run, draws)
    mixtures = [mixture_of_draw(run, *draw) for draw in draws]
    subset = forest.subset_of(run, draws[groups[0]])
    ready = [lambda mixture=mixture: mixture for mixture in mixtures]
    build = partial(forest.mean_tree, run, draws, ready, subset, make_engine)
    with closing(make_engine(subset[0])) as engine:
        labels, _ = classify_draws(engine, ready)
    populations = {}
    with (
        threadpool_limits(1, "blas"),
        remembered("find_peaks", lambda weights, *_: weights.tobytes()),
        remembered("_mean_memberships", lambda engine, mixtures, peaks: id(peaks)),
    ):
        for value in VALUES:
            with patch.object(tree, "CHANCE_MEASURED", value):
                chosen = forest.typical(groups, partial(map, build), rule)
                trees = [build(np.array([t])).tree for t in range(len(draws))]
            weights = chosen.density[0]
            own = forest.by_weight(rule.cut(chosen.tree), weights)
            of_events = populations_of_modes(chosen.tree, own)[chosen.of_events]
            own, _ = merge_unsupported(
                chosen.tree,
                own,
                np.eye(int(own.max()) + 1)[of_events],
                trees,
                labels,
                np.array([rule.cut(one)[found] for one, found in zip(trees, labels, strict=True)]),
                weights,
                int(run.attributes["n_events"]),
            )
            populations[value] = populations_of_modes(chosen.tree, own)[chosen.of_events]
    return populations


def of_sample(paths: list[Path], gates: Ints, pool: ProcessPoolExecutor) -> dict[float, Means]:
    """Return means of a sample over its seeds, by value."""
    by_seed = list(pool.map(of_run, paths))
    means = {}
    for value in VALUES:
        labels = [by_value[value] for by_value in by_seed]
        numbers = [len(np.unique(own)) for own in labels]
        means[value] = mean_scores(gates, labels)
        means[value] |= {"populations": float(np.mean(numbers)), "spread": float(np.ptp(numbers))}
    return means


def of_set(pool: ProcessPoolExecutor, runs: Path, name: str) -> dict[str, Any]:
    """Return means of a set over its samples, by value (of spreads, the largest), and the number of runs."""
    found, n_runs = [], 0
    for number, gates, paths in complete_runs(runs, name):
        found.append(of_sample(paths, gates, pool))
        n_runs += len(paths)
        print(name, number, len(paths), "runs", found[-1][DEFAULT], flush=True)
    means = {}
    for value in VALUES:
        rows = [one[value] for one in found]
        own = {key: round(float(np.nanmean([row[key] for row in rows])), 4) for key in rows[0]}
        means[f"{value:g}"] = own | {"spread": max(row["spread"] for row in rows)}
    return {"runs": n_runs, "values": means}


def _cell(means: Means) -> str:
    scores = f"{means['mean_f1']:.2f}; {means['ari']:.2f}"
    return f"{scores}; {means['between seeds']:.3f}; {means['populations']:.1f}"


def _rows(results: dict[str, Any]) -> Iterator[str]:
    names = [name for name in SETS if name in results]
    yield f"| set | runs | {' | '.join(f'{value:g}' for value in VALUES)} | value from the other sets |"
    yield "|---" * (len(VALUES) + 3) + "|"
    sets = {name: results[name]["values"] for name in names}
    for name, means_of_set in sets.items():
        cells = [_cell(means_of_set[f"{value:g}"]) for value in VALUES]
        others = chosen_on_others(sets, name, DEFAULT)
        yield f"| {name} | {results[name]['runs']} | {' | '.join(cells)} | {others} |"
    older = [name for name in names if name in OLDER]
    means = []
    for value in VALUES:
        rows = [results[name]["values"][f"{value:g}"] for name in older]
        scores = " / ".join(f"{np.mean([row[key] for row in rows]):.3f}" for key in SCORES)
        means.append(f"{scores}; {np.mean([row['between seeds'] for row in rows]):.3f}")
    yield f"| mean of the first seven | | {' | '.join(means)} | |"


def page() -> str:
    """Markdown: scores and agreement between seeds, by value."""
    rows = "\n".join(_rows(read_results("small_peaks")["results"]))
    return f"{rows}\n\n{said('small_peaks')}\n"


def main() -> None:
    with ProcessPoolExecutor() as pool:
        measure_sets("small_peaks", __doc__, partial(of_set, pool))
    print(page())


if __name__ == "__main__":
    main()
