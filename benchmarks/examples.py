"""Measure cell types by examples: train on the labels of one file, test on the other files of a run.

    python benchmarks/examples.py --runs build/examples           # half an hour on two free cores
    python benchmarks/examples.py --only missing --sets bcrxl
    python benchmarks/examples.py --only                          # the figure, from what was measured before
    python benchmarks/examples.py --page

Results go to benchmarks/results/examples.json, and the reliability figure to docs/pictures; results of other
parts stay. A run has all files of a set, at most 20,000 events, K = 64, 400 and 200 sweeps, seed 1, and is
kept in the folder of `--runs`. It sees no label. The gvhd sets are two halves of one sample. Peers are
classes of scikit-learn with their defaults (forest: 300 trees, neighbours: 15), trained on the standardised
events of the labelled file.

**scores**: events of the labelled file in no gate are examples of no type, for all methods, as a workspace
gives them. Macro F1 over the gated events of the other files, the Brier score over all of their events, and
the calibration error: the mean difference of the probability of the best type and its accuracy in 15 bins.
Means over the files trained on (`TRAINED`). Differences of macro F1 have bootstrap intervals over the events.

**missing**: labels of types only; up to three types, one at a time, have no label, and their events are not
in the training of any peer. `caught` is the share of their events in the other files that become unknown,
`lost` the share of other gated events. For the peers, an event is unknown where no probability reaches 0.7.

Sets are in ../shared, which is not part of this project.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml
from gating import TOOLS, tools
from record import DPMIX, FOLDER, PICTURES, read_results, said, write_results
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score
from sklearn.neighbors import KNeighborsClassifier

from dpmix.inputs.opening import open_places
from dpmix.inputs.type_examples import Examples
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.types import examples as model

EVENTS, SETTINGS = 20_000, {"burn_in": 400, "draws": 200}
TRAINED = {
    "multicenter_cytof": (0,),
    "bodenmiller": (0, 1, 2),
    "bcrxl": (0, 3),
    "gvhd 1": (0,),
    "gvhd 7": (0,),
    "gvhd 9": (0,),
}
REMOVED, LEAST, SURE, BINS = 3, 0.01, 0.7, 15
RESAMPLES = 200
LINEAGE = ("CD3", "CD45", "CD4", "CD20", "CD33", "CD123", "CD14", "IgM", "HLA-DR", "CD7")
OURS = "dpmix"
METHODS = {
    OURS: "dpmix gate --types",
    "lda": "linear discriminant",
    "qda": "quadratic discriminant",
    "forest": "random forest",
    "knn": "15 nearest neighbours",
}
Row = dict[str, Any]
Array = np.ndarray


def kept_results() -> Row:
    """Return the results that are there."""
    return dict(read_results("examples")["results"]) if (FOLDER / "examples.json").exists() else {}


def files_of(name: str) -> tuple[list[tuple[str, Array, Array]], list[str]]:
    """Return the name, events [N, D] and gates [N] (0: in none) of each file of a set, and the channels."""
    random = np.random.default_rng(1)
    if name == "bcrxl":
        files, channels = list(_bcrxl()), list(LINEAGE)
    elif name.startswith("gvhd"):
        events, gates, channels, sample = tools()[0].load("gvhd")
        rows = random.permutation(np.flatnonzero(sample == int(name.split()[1])))[:6_000]
        halves = np.array_split(rows, 2)
        files = [(half, events[own], gates[own]) for half, own in zip("ab", halves, strict=True)]
    else:
        events, gates, channels, sample = tools()[0].load(name)
        files = [(f"{k}", events[sample == k], gates[sample == k]) for k in np.unique(sample)]
    made = []
    for file, events, gates in files:
        chosen = np.sort(random.permutation(len(events))[: EVENTS // len(files)])
        made.append((file, events[chosen].astype(np.float32), gates[chosen].astype(int)))
    return made, list(channels)


def _bcrxl() -> Iterator[tuple[str, Array, Array]]:
    folder = TOOLS.parent / "data" / "cohort_bcrxl"
    gates = np.load(folder / "gates.npz")
    for row in pandas.read_csv(folder / "samples.csv").itertuples():
        (source,) = open_places([(folder / row.file, "")], None)
        names = [_plain(one.marker or one.detector) for one in source.details]
        columns = [names.index(_plain(marker)) for marker in LINEAGE]
        events = np.arcsinh(source.read(0, source.n_events, columns) / 5.0)
        yield row.sample, events, gates["gate"][gates["sample"] == row.sample]


def _plain(name: str) -> str:
    return "".join(c for c in name.split("(")[0].casefold() if c.isalnum())


class Set:
    """A run of a set, with the gate of each event: -1 in none."""

    def __init__(self, name: str, folder: Path) -> None:
        files, channels = files_of(name)
        own = folder / name.replace(" ", "_")
        own.mkdir(parents=True, exist_ok=True)
        paths = [own / f"{file}.parquet" for file, _, _ in files]
        run = own / "run.h5"
        if not run.exists():
            for path, (_, events, _) in zip(paths, files, strict=True):
                pandas.DataFrame(events, columns=channels).to_parquet(path)
            config = {
                "data": {"files": [str(path.resolve()) for path in paths]},
                "model": {"components": 64},
                "mcmc": SETTINGS,
                "output": {"path": str(run)},
                "seed": 1,
            }
            (own / "run.yaml").write_text(yaml.safe_dump(config))
            subprocess.run([*DPMIX, "mcmc", own / "run.yaml", "--quiet"], check=True)
        self.name, self.task = name, prepare(run)
        self.found = self.task.find_populations(100, None, None)
        events = self.task.events
        starts = events.sample_starts
        gates = np.concatenate(
            [files[s][2][events.rows_in_file(s, starts[s], starts[s + 1])] for s in range(len(files))]
        )
        codes = np.unique(gates[gates > 0])
        self.n_types = len(codes)
        self.gates = np.where(gates > 0, np.searchsorted(codes, gates), -1)
        self.file = np.repeat(np.arange(len(files)), np.diff(starts))
        self.codes = codes


def probabilities(task: Task, found: Populations, labels: Array, n_types: int) -> Array:
    """Return P(r | x) of dpmix, float64 [N, R + 1], given labels [N] (R: no type, -1: none)."""
    names = tuple(f"{r}" for r in range(n_types))
    given = Examples("labels", names, ("",) * n_types, labels.astype(np.int32), ())
    caught: list[Array] = []
    decide = model.decide

    def keep(shares: Array, *rest: Any) -> Any:
        caught.append(shares)
        return decide(shares, *rest)

    model.decide = keep  # the probabilities of all types, not only of the best
    try:
        model.assign_by_examples(task, found, given, task)
    finally:
        model.decide = decide
    return np.concatenate(caught)


def predictions(one: Set, labels: Array) -> Iterator[tuple[str, Array]]:
    """Yield the probabilities of all events by each method, float64 [N, R + 1]."""
    yield OURS, probabilities(one.task, one.found, labels, one.n_types)
    values, known = np.asarray(one.task.events.values), labels >= 0
    enough = known & (np.bincount(labels[known], minlength=one.n_types + 1)[labels] > values.shape[1] + 1)
    for name, method, own in (
        ("lda", LinearDiscriminantAnalysis(), known),
        ("qda", QuadraticDiscriminantAnalysis(reg_param=1e-3), enough),  # needs more events than channels
        ("forest", RandomForestClassifier(300, random_state=1), known),
        ("knn", KNeighborsClassifier(15), known),
    ):
        method.fit(values[own], labels[own])
        found = np.zeros((len(values), one.n_types + 1))
        found[:, method.classes_] = method.predict_proba(values)
        yield name, found


def calibration(sure: Array, right: Array) -> Array:
    """Return the share of events, mean probability and accuracy in bins of the probability, [bins, 3]."""
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    each = [bins == b for b in np.unique(bins)]
    return np.array([(inside.mean(), sure[inside].mean(), right[inside].mean()) for inside in each])


def scores(one: Set) -> Row:
    """Return the scores of each method."""
    found: dict[str, list[Row]] = {name: [] for name in METHODS}
    n = one.n_types
    truth = np.where(one.gates < 0, n, one.gates)
    for file in TRAINED[one.name]:
        test, gated = one.file != file, (one.file != file) & (one.gates >= 0)
        labels, random = np.where(one.file == file, truth, -1), np.random.default_rng(0)
        # The same events for all methods, so that differences have intervals of their own.
        chosen = [random.choice(np.flatnonzero(gated), gated.sum()) for _ in range(RESAMPLES)]
        for name, shares in predictions(one, labels):
            best = shares.argmax(axis=1)
            bins = calibration(shares[test].max(axis=1), (best == truth)[test])
            brier = ((shares[test] - np.eye(n + 1)[truth[test]]) ** 2).sum(axis=1).mean()
            f1 = macro_f1(truth[gated], best[gated])
            again = np.array([macro_f1(truth[own], best[own]) for own in chosen])
            error = bins[:, 0] @ abs(bins[:, 1] - bins[:, 2])
            found[name].append({"f1": f1, "brier": brier, "error": error, "bins": bins, "again": again})
    means: Row = {}
    resampled = {name: np.mean([r["again"] for r in rows], axis=0) for name, rows in found.items()}
    for name, rows in found.items():
        means[name] = {
            key: round(float(np.mean([r[key] for r in rows])), 4) for key in ("f1", "brier", "error")
        }
        ends = np.quantile(resampled[OURS] - resampled[name], (0.05, 0.95))
        means[name]["dpmix more"] = [round(float(end), 4) for end in ends]
        means[name]["bins"] = [" ".join(f"{v:.4f}" for v in line) for line in rows[0]["bins"]]
    return means


def macro_f1(truth: Array, best: Array) -> float:
    return float(f1_score(truth, best, labels=np.unique(truth), average="macro", zero_division=0))


def missing(one: Set) -> Row:
    """Return caught and lost of each method by the type without labels."""
    file = TRAINED[one.name][0]
    own, test = one.file == file, one.file != file
    sizes = [min((one.gates[own] == r).mean(), (one.gates[test] == r).mean()) for r in range(one.n_types)]
    types = np.flatnonzero(np.array(sizes) >= LEAST)
    types = types[np.linspace(0, len(types) - 1, min(REMOVED, len(types))).round().astype(int)]
    found: Row = {}
    for r in types.tolist():
        labels = np.where(own & (one.gates != r), one.gates, -1)
        out, others = test & (one.gates == r), test & (one.gates >= 0) & (one.gates != r)
        found[f"{one.codes[r]}"] = {}
        for name, shares in predictions(one, labels):
            unknown = shares.argmax(axis=1) == one.n_types
            if name != OURS:
                unknown |= shares.max(axis=1) < SURE
            row = {"caught": unknown[out].mean(), "lost": unknown[others].mean()}
            found[f"{one.codes[r]}"][name] = {key: round(float(v), 4) for key, v in row.items()}
        print(one.name, "without", one.codes[r], found[f"{one.codes[r]}"], flush=True)
    return found


def figure(results: Row) -> None:
    """Draw the reliability of the best type's probability: a panel for each set."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9.0, 6.2), layout="constrained")
    axes = drawn.subplots(2, 3, sharex=True, sharey=True).ravel()
    shown = {OURS: "#0072b2", "forest": "#d55e00", "qda": "#009e73", "knn": "#999999"}
    for ax, (name, row) in zip(axes, results.get("scores", {}).items(), strict=False):
        ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
        for method, colour in shown.items():
            bins = np.array([line.split() for line in row[method]["bins"]], float)
            bins = bins[bins[:, 0] >= 0.002]
            ax.plot(
                bins[:, 1], bins[:, 2], "o-", color=colour, markersize=3, linewidth=1.2, label=METHODS[method]
            )
        ax.set_title(name, fontsize=10)
        ax.set(xlim=(0.2, 1.02), ylim=(0.0, 1.02))
    axes[0].legend(fontsize=8, frameon=False)
    drawn.supxlabel("probability of the best type", fontsize=10)
    drawn.supylabel("share of events of this type", fontsize=10)
    drawn.savefig(PICTURES / "bench-examples.png", dpi=120)


def page() -> str:
    """Return both tables, for docs/benchmarks/agreement.md."""
    results = kept_results()
    lines = [
        "| set | " + " | ".join(METHODS.values()) + " | macro F1 of dpmix less the best of the others |",
        "| --- |" + " --- |" * (len(METHODS) + 1),
    ]
    for name, row in results.get("scores", {}).items():
        cells = [f"{own['f1']:.3f}, {own['brier']:.3f}, {own['error']:.3f}" for own in map(row.get, METHODS)]
        best = max((method for method in METHODS if method != OURS), key=lambda method: row[method]["f1"])
        low, high = row[best]["dpmix more"]
        cells.append(f"{row[OURS]['f1'] - row[best]['f1']:.4f} ({low:.4f} to {high:.4f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| set, types removed | " + " | ".join(METHODS.values()) + " |",
        "| --- |" + " --- |" * len(METHODS),
    ]
    for name, types in results.get("missing", {}).items():
        means = [
            [np.mean([own[method][key] for own in types.values()]) for key in ("caught", "lost")]
            for method in METHODS
        ]
        cells = [f"{caught:.0%}, {lost:.1%}" for caught, lost in means]
        lines.append(f"| {name}, {len(types)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{said('examples')}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("build/examples"))
    parser.add_argument("--only", nargs="*", default=["scores", "missing"])
    parser.add_argument("--sets", nargs="*", default=list(TRAINED))
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.page:
        print(page())
        return
    measures = {"scores": scores, "missing": missing}
    for name in asked.sets if asked.only else []:
        one = Set(name, asked.runs)
        for part in asked.only:
            began = time.perf_counter()
            found = measures[part](one)
            kept = kept_results()
            kept.setdefault(part, {})[name] = found
            kept[part] = {key: kept[part][key] for key in TRAINED if key in kept[part]}
            write_results("examples", kept)
            shown = {m: {k: v for k, v in row.items() if k != "bins"} for m, row in found.items()}
            print(f"{name} {part} ({time.perf_counter() - began:.0f} s): {shown}", flush=True)
    figure(kept_results())


if __name__ == "__main__":
    main()
