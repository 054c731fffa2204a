"""Rules that merge the components of a mixture into populations, compared on gated and on simulated events.

    python benchmarks/gating.py --only dpmix --runs RUNS      # makes the runs of the gated sets
    python benchmarks/populations.py CACHE                    # makes those of the simulated cases
    python benchmarks/rules.py --gated RUNS --simulated CACHE

Each rule is given a mixture and gives the population of each component: that of `dpmix.populations.tree` at
several levels, its two parts alone, the exact modes (Chan et al. 2008), a fixed prominence of 0.3 sqrt(D)
nats, and directly estimated misclassification probabilities (Hennig 2010, Adv. Data Anal. Classif. 4:3). The
mixture is the mean density of several draws, as dpmix takes it, or that of the last draw alone. Scores as in
gating.py; what is not asked for is taken from benchmarks/results/rules.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from gating import SETS, Ints, samples, tools
from populations import cases
from record import FOLDER, write_results

from dpmix.config.load import parse_config
from dpmix.engines.cpu import CpuEngine
from dpmix.inputs import preprocess
from dpmix.model.mixture import Array
from dpmix.populations import find, pooling, tree
from dpmix.populations.modes import Density as Mixture
from dpmix.populations.modes import Saddle, find_modes, find_saddles
from dpmix.populations.tree import LEAST_EVENTS, Tree
from dpmix.populations.valleys import Separation
from dpmix.runs.reader import Run, open_run

MOST = 4_000  # events scored
SEED = 1


@dataclass
class Density:
    """A mixture, and what rules ask of it; J components that hold events.

    Attributes
    ----------
    mixture : Mixture
    n_events : int
    events : float64 [M, D]
        That are scored.
    """

    mixture: Mixture
    n_events: int
    events: Array

    @cached_property
    def modes(self) -> tuple[Ints, Array, Array]:
        return find_modes(self.mixture)

    @cached_property
    def saddles(self) -> list[Saddle]:
        return find_saddles(self.mixture, *self.modes, self.n_events)

    @cached_property
    def responsibilities(self) -> Array:
        """Float64 [M, J]."""
        terms = self.mixture.log_terms(self.events)
        weights: Array = np.exp(terms - terms.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def separation(self) -> Separation:
        own, _, heights = self.modes
        mixture = self.mixture
        moments = tree.mode_moments(mixture.weights, mixture.means, mixture.covariances, own, len(heights))
        return Separation(moments, self.events, own[self.responsibilities.argmax(axis=1)])

    def tree(self, tolerance: Callable[[float, int, bool], float] = tree.valley_tolerance) -> Tree:
        """The tree, another tolerance of valleys instead of that of chance."""
        kept, tree.valley_tolerance = tree.valley_tolerance, tolerance
        try:
            return Tree(*self.modes, *tree.merge_modes(self.saddles, self.events.shape[1], self.separation()))
        finally:
            tree.valley_tolerance = kept


Rule = Callable[[Density], Ints]


def at_level(level: float) -> Rule:
    return lambda density: density.tree().cut(level)


def modes(density: Density) -> Ints:
    return density.modes[0]


def fixed_prominence(density: Density) -> Ints:
    return density.tree(lambda events, n_channels, measured: 0.3 * np.sqrt(n_channels)).cut(1e-9)


def separation_alone(density: Density) -> Ints:
    return density.tree(lambda events, n_channels, measured: -1.0).cut(tree.LEVEL)


def misclassification(density: Density, most: float = 0.1) -> Ints:
    """Hennig (2010): merge the groups whose events are most often taken for the other's, until below most."""
    shares = density.responsibilities.copy()
    groups = np.arange(shares.shape[1])
    while shares.shape[1] > 1:
        own = np.zeros_like(shares)
        own[np.arange(len(own)), shares.argmax(axis=1)] = 1.0
        taken = own.T @ shares / np.maximum(shares.sum(axis=0), 1e-9)
        np.fill_diagonal(taken, 0.0)
        worst = np.maximum(taken, taken.T)
        if worst.max() < most:
            break
        one, other = sorted(np.unravel_index(worst.argmax(), worst.shape))
        shares[:, one] += shares[:, other]
        shares = np.delete(shares, other, axis=1)
        groups[groups == other] = one
        groups[groups > other] -= 1
    return groups


MEAN, LAST = "mean density", "last draw"
RULES: dict[str, tuple[str, Rule]] = {
    "exact modes": (MEAN, modes),
    "prominence 0.3 sqrt(D)": (MEAN, fixed_prominence),
    "valley deeper than chance, alone": (MEAN, at_level(1e-9)),
    "separation 2.4, alone": (MEAN, separation_alone),
    "both, level 2": (MEAN, at_level(2.0)),
    "both, level 2.25": (MEAN, at_level(2.25)),
    "**both, level 2.4**": (MEAN, at_level(2.4)),
    "both, level 2.5": (MEAN, at_level(2.5)),
    "both, level 2.75": (MEAN, at_level(2.75)),
    "both, level 3": (MEAN, at_level(3.0)),
    "exact modes of the last draw": (LAST, modes),
    "prominence 0.3 sqrt(D) of the last draw": (LAST, fixed_prominence),
    "misclassification 0.1 of the last draw": (LAST, misclassification),
    "both, level 2.4, of the last draw": (LAST, at_level(2.4)),
}


def densities(path: Path, seed: int = SEED) -> tuple[dict[str, Density], Ints]:
    """Both mixtures of a run, and the rows of the events that are scored."""
    run = open_run(path)
    config = parse_config(run.config_text, str(path))
    events = preprocess.prepare(config.data, Path(run.attributes["base"]), config.seed).values
    rows = np.sort(np.random.default_rng(seed).permutation(len(events))[:MOST])
    draws = pooling.spread(run, find.DRAWS)
    pooled = draws[pooling.pooled_draws(run, draws)[0]]
    chosen = {MEAN: pooled, LAST: draws[-1:]}
    return {name: _density(run, some, events[rows]) for name, some in chosen.items()}, rows


def _density(run: Run, draws: Ints, events: Array) -> Density:
    weights, means, covariances = pooling.mean_density(run, draws)
    n_events = int(run.attributes["n_events"])
    heavy = weights * n_events * len(draws) >= LEAST_EVENTS
    mixture = Mixture(weights[heavy], means[heavy], covariances[heavy], CpuEngine)
    return Density(mixture, n_events, events.astype(np.float64))


def found(density: Density, rule: Rule) -> Ints:
    """Population of each event that is scored."""
    own = rule(density)
    members = np.equal(own[:, None], np.arange(own.max() + 1)).astype(np.float64)
    most: Ints = (density.responsibilities @ members).argmax(axis=1)
    return most


def on_gated(runs: Path) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Scores of all rules on each set, the mean over its samples."""
    _, gating_score = tools()
    for name in SETS:
        scores: dict[str, list[dict[str, float]]] = {rule: [] for rule in RULES}
        for number, _, gates in samples(name):
            both, rows = densities(runs / f"{name}_{number}_seed{SEED}" / "run.h5")
            for title, (which, rule) in RULES.items():
                labels = found(both[which], rule)
                scores[title].append(gating_score.score(gates[rows], labels))
        yield name, {rule: _mean(own) for rule, own in scores.items()}


def _mean(scores: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(float(np.mean([score[key] for score in scores])), 3) for key in scores[0]}


def on_simulated(cache: Path) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Populations found and true, and F1 and ARI, of all rules on each case that the cache has.

    A population that is at least half noise is neither right nor wrong: it is not counted.
    """
    _, gating_score = tools()
    for case in cases(most=sys.maxsize):  # the cache says which
        path = cache / f"{case.name}.h5"
        if not path.exists():
            continue
        both, rows = densities(path)
        truth = case.labels[rows]
        scores = {}
        for title, (which, rule) in RULES.items():
            labels = found(both[which], rule)
            true = len(np.unique(case.labels[case.labels > 0]))
            one = true == 1  # F1 of one population: the share of its largest part
            largest = float(np.bincount(labels).max() / len(labels))
            score = (
                {"mean_f1": largest, "ari": float(largest == 1.0)}
                if one
                else gating_score.score(truth, labels)
            )
            scores[title] = {
                "found": int((np.bincount(labels, truth > 0) > 0.5 * np.bincount(labels)).sum()),
                "true": true,
                "mean_f1": round(score["mean_f1"], 3),
                "ari": round(score["ari"], 3),
            }
        yield case.name, scores


def print_gated(sets: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"\nmean F1 / FlowCAP F / ARI, populations found\n\n| rule | mean | {' | '.join(sets)} |")
    print("|---" * (len(sets) + 2) + "|")
    for rule in next(iter(sets.values()), {}):
        rows = [scores[rule] for scores in sets.values()]
        mean = "/".join(
            f"{np.mean([row[key] for row in rows]):.3f}" for key in ("mean_f1", "flowcap_f", "ari")
        )
        cells = [f"{r['mean_f1']:.2f}/{r['flowcap_f']:.2f}/{r['ari']:.2f}, {r['clusters']:.0f}" for r in rows]
        print(f"| {rule} | {mean} | {' | '.join(cells)} |")


def print_simulated(every: dict[str, dict[str, dict[str, float]]]) -> None:
    print("\n| rule | right number | mean F1 | ARI |\n|---|---|---|---|")
    for rule in next(iter(every.values()), {}):
        rows = [scores[rule] for scores in every.values()]
        right = np.mean([row["found"] == row["true"] for row in rows])
        f1, ari = (np.mean([row[key] for row in rows]) for key in ("mean_f1", "ari"))
        print(f"| {rule} | {right:.0%} | {f1:.3f} | {ari:.3f} |")
    shown = (
        "exact modes",
        "prominence 0.3 sqrt(D)",
        "**both, level 2.4**",
        "both, level 2.4, of the last draw",
    )
    print(f"\npopulations found, F1\n\n| case | true | {' | '.join(shown)} |\n{'|---' * (len(shown) + 2)}|")
    for name, scores in every.items():
        cells = [f"{scores[rule]['found']}, {scores[rule]['mean_f1']:.2f}" for rule in shown]
        print(f"| {name} | {scores[shown[0]]['true']} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--gated", type=Path, metavar="RUNS", help="folder of the runs of gating.py")
    parser.add_argument(
        "--simulated", type=Path, metavar="CACHE", help="folder of the runs of populations.py"
    )
    asked = parser.parse_args()
    kept = FOLDER / "rules.json"
    results = json.loads(kept.read_text())["results"] if kept.exists() else {"gated": {}, "simulated": {}}
    gated, simulated = results["gated"], results["simulated"]
    if asked.gated:
        for name, scores in on_gated(asked.gated):
            gated[name] = scores
            print(f"{name}: done", flush=True)
    if asked.simulated:
        for name, scores in on_simulated(asked.simulated):
            simulated[name] = scores
            print(f"{name}: done", flush=True)
    print_gated(gated)
    print_simulated(simulated)
    write_results("rules", results)


if __name__ == "__main__":
    main()
