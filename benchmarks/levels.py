"""Choose the level for each labelled set on the other sets, and compare it with the default.

    python benchmarks/gating.py --only dpmix --seeds 5 --runs RUNS    # makes the runs
    python benchmarks/levels.py RUNS                                  # all samples and seeds that are there
    python benchmarks/levels.py RUNS --sets gvhd,hipc                 # the other sets from earlier calls

Each run gives one tree, that of its mean density, which is cut at every level. Populations that few draws
support are not merged, so results differ a little from those of gating.py. The events are those that the run
file keeps.

The level for a set is the one with the best score on the other sets: the mean of mean F1, F-measure and
adjusted Rand index, averaged over samples and seeds, then over sets. `benchmarks/results/levels.json` keeps
the scores of every set and level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import Ints
from gating import SCORES, SETS, complete_runs, mean_scores, measure_sets
from record import read_results, said

from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Floats
from dpmix.populations.find import Populations, find_populations
from dpmix.populations.tree import LEVEL
from dpmix.runs.layout import EVENT_SUBSET
from dpmix.runs.reader import open_run

LEVELS = (2.1, 2.25, 2.4, LEVEL, 2.6, 2.75, 3.0)

Means = dict[str, float]  # by score, and "between seeds"


def modes_of_events(found: Populations, events: Floats) -> Ints:
    """Return the mode of the mean density that each event belongs to, int64 [M]."""
    tree = found.tree
    total = np.full((len(events), len(tree.heights)), -np.inf)
    with closing(CpuEngine(events, threads=1)) as engine:
        of_draws = tree.modes.reshape(len(found.pooled), -1)
        for draw, modes in zip(found.draws[found.pooled], of_draws, strict=True):
            shares, log_density = engine.memberships(found.mixture(*draw), modes, 0, len(events))
            with np.errstate(divide="ignore"):
                terms = np.log(shares) + log_density[:, None]
            total[:, : shares.shape[1]] = np.logaddexp(total[:, : shares.shape[1]], terms)
    best: Ints = total.argmax(axis=1)
    return best


def cuts(path: Path) -> dict[float, Ints]:
    """Return the populations of the events that a run file keeps, by level."""
    run = open_run(path)
    events = np.ascontiguousarray(run.constants[EVENT_SUBSET])
    found = find_populations(run, lambda points: CpuEngine(points, threads=1))
    modes = modes_of_events(found, events)
    first = np.unique(found.tree.modes, return_index=True)[1]  # a component of each mode
    return {level: found.tree.cut(level)[first][modes] for level in LEVELS}


def of_sample(paths: list[Path], gates: Ints) -> dict[float, Means]:
    """Return means of a sample over its seeds, by level."""
    by_seed = [cuts(path) for path in paths]
    return {level: mean_scores(gates, [by_level[level] for by_level in by_seed]) for level in LEVELS}


def of_set(runs: Path, name: str) -> dict[str, Any]:
    """Return means of a set over its samples, by level, and the number of runs."""
    found, n_runs = [], 0
    for number, gates, paths in complete_runs(runs, name):
        found.append(of_sample(paths, gates))
        n_runs += len(paths)
        print(name, number, len(paths), "runs", found[-1][LEVEL], flush=True)
    keys = found[0][LEVEL]
    means = {
        str(level): {key: round(float(np.nanmean([one[level][key] for one in found])), 4) for key in keys}
        for level in LEVELS
    }
    return {"runs": n_runs, "levels": means}


def chosen(sets: Sequence[dict[str, Means]], default: float) -> str:
    """Return the value with the best mean score on some sets; of equal ones, that nearest to the default.

    Parameters
    ----------
    sets : sequence of dict of str to Means
        Means of each set by value, such as a level.
    default : float
    """

    def score(value: str) -> tuple[float, float]:
        mean = np.mean([np.mean([means[value][key] for key in SCORES]) for means in sets])
        return round(float(mean), 3), -abs(float(value) - default)

    return max(sets[0], key=score)


def chosen_on_others(sets: dict[str, dict[str, Means]], name: str, default: float) -> str:
    """Return the value that is `chosen` on all sets but one; on that one, if it is the only one."""
    others = [means for other, means in sets.items() if other != name]
    return chosen(others or [sets[name]], default)


def _figures(means: Means) -> str:
    scores = " / ".join(f"{means[key]:.2f}" for key in SCORES)
    return f"{scores}; {means['between seeds']:.3f}"


def _rows(results: dict[str, Any]) -> Iterator[str]:
    names = [name for name in SETS if name in results]
    yield "| set | runs | level from the other sets | scores at this level | at 2.5 | best level | scores |"
    yield "|---" * 7 + "|"
    kept: dict[str, list[Means]] = {"others": [], "default": [], "best": []}
    sets = {name: results[name]["levels"] for name in names}
    for name, levels in sets.items():
        level, best = chosen_on_others(sets, name, LEVEL), chosen([levels], LEVEL)
        for key, at in (("others", level), ("default", str(LEVEL)), ("best", best)):
            kept[key].append(levels[at])
        cells = [str(results[name]["runs"]), level, _figures(levels[level]), _figures(levels[str(LEVEL)])]
        yield f"| {' | '.join([name, *cells, best, _figures(levels[best])])} |"
    means = [
        _figures({key: float(np.mean([one[key] for one in own])) for key in own[0]}) for own in kept.values()
    ]
    yield f"| mean | | | {means[0]} | {means[1]} | | {means[2]} |"


def _by_level(results: dict[str, Any]) -> Iterator[str]:
    yield "| level | mean F1 / F / ARI over the sets | ARI between seeds |"
    yield "|---" * 3 + "|"
    for level in map(str, LEVELS):
        own = [result["levels"][level] for result in results.values()]
        means = {key: float(np.mean([one[key] for one in own])) for key in own[0]}
        yield f"| {level} | {' | '.join(_figures(means).split('; '))} |"


def page() -> str:
    """Markdown: scores with the level chosen on the other sets, and the means at every level."""
    results = read_results("levels")["results"]
    tables = "\n".join([*_rows(results), "", *_by_level(results)])
    return f"{tables}\n\n{said('levels')}\n"


def main() -> None:
    measure_sets("levels", __doc__, of_set)
    print(page())


if __name__ == "__main__":
    main()
