"""Measure what the resolution of a measurement and a prior that cannot collapse change.

    python benchmarks/resolution.py                       # this version, ten minutes on two free cores
    python benchmarks/resolution.py --label before --program build/before/dpmix
    python benchmarks/resolution.py --only sets --set data.resolution=0 --label points

Results go to benchmarks/results/resolution.json under their label; results of other labels and parts stay.
`--program` is the command of another version, for "before". Every run has the default config, seed 1, and
what `--set` says. Parts:

**battery**: one large population of 5,000 to 200,000 events (normal, t with 5 degrees of freedom, log-normal,
bent, clipped; `--cases` of each) in 2 to 20 channels, and a small normal one of 25 to 500 events, 5 to 8
standard deviations away and narrow (0.5) or wide (1). The small one is found where a population has a Jaccard
similarity above 1/2 with it. "added" counts populations besides the two; with a small population of 0 events,
besides the one. Each case has a seed of its own, and each factor has all its levels about equally often.
Cases that were measured before are kept; `--most` leaves the large ones out.

**sets**: real mass cytometry with manual gates, as in gating.py: mean F1, F-measure of FlowCAP-I, adjusted
Rand index, and the shares of the proportions above 0.2% whose R-hat is below 1.1 and 1.05, with whole
components (agreement.py of the tools). The events are tables on the transformed scale, which dpmix recognises
as counts by their zeros. Of pbmc_himc, 20,000 events drawn at random.

**cohort**: 16 files of mass cytometry, pooled, with the config of `dpmix init` and the ten lineage markers:
best F1 of a population with each of five plain gates, and the adjusted Rand index to them. **plain** is
k-means with 100 clusters and average linkage of their centres to 20, on the transformed scale of the same
events: fifteen lines of code.

Sets, gates and scores are in ../shared, which is not part of this project.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from clusterings import Events, Ints, matches
from gating import TOOLS, tools
from labelled_runs import is_complete
from populations import shaped
from record import DPMIX, FOLDER, plain_arguments, read_results, said, write_results

COHORT = TOOLS.parent / "data" / "cohort_bcrxl"
LINEAGE = ["CD3", "CD45", "CD4", "CD20", "CD33", "CD123", "CD14", "IgM", "HLA-DR", "CD7"]
SETS = ("pbmc_himc", "bodenmiller", "pbmc_cytomem", "multicenter_cytof")
MOST = {"pbmc_himc": 20_000}  # events
SAMPLES = {"multicenter_cytof": 2}
KINDS = ("normal", "t5", "log-normal", "bent", "clipped")
LARGE = (5_000, 20_000, 50_000, 200_000)
SMALL = (0, 25, 50, 100, 200, 500)
PLACES = ((5.0, 0.5), (6.0, 0.5), (6.0, 1.0), (8.0, 0.5), (8.0, 1.0))  # distance and standard deviation
CHANNELS = (2, 4, 10, 20)
CASES = 30  # of each kind, by default
PLAIN, PLAIN_TITLE = "plain", "k-means and linkage"
Row = dict[str, Any]


# ------------------------------------------------------------------------------------------ battery


class Case(NamedTuple):
    """A large population of n events, and a small one: distance and width in deviations of the large one."""

    kind: str
    n: int
    small: int
    distance: float
    sd: float
    dim: int

    @property
    def name(self) -> str:
        place = f"{self.distance:g} sd away, {self.sd:g} wide"
        return f"{self.kind}, {self.n} + {self.small}, {place}, {self.dim} channels"


def cases(n_cases: int) -> Iterator[Case]:
    """Yield the cases, a Latin hypercube for each kind."""
    for k, kind in enumerate(KINDS):
        order = np.random.default_rng(k)
        levels = [
            order.permutation(np.arange(n_cases) % len(own)) for own in (LARGE, SMALL, PLACES, CHANNELS)
        ]
        for n, small, place, dim in zip(*levels, strict=True):
            yield Case(kind, LARGE[n], SMALL[small], *PLACES[place], CHANNELS[dim])


def simulate(case: Case) -> tuple[Events, Ints]:
    """Return the events of a case, and the population of each: 1 the large one, 2 the small one."""
    kind, n, small, distance, sd, dim = case
    random = np.random.default_rng(zlib.crc32(case.name.encode()))
    large = population(random, kind, n, dim)
    direction = random.normal(size=dim)
    direction /= np.linalg.norm(direction)
    reach = np.sqrt(direction @ np.cov(large.T) @ direction)
    centre = large.mean(axis=0) + distance * reach * direction
    events = np.concatenate([large, centre + sd * reach * random.normal(size=(small, dim))])
    order = random.permutation(len(events))
    return events[order].astype(np.float32), np.repeat([1, 2], [n, small])[order]


def population(random: np.random.Generator, kind: str, n: int, dim: int) -> np.ndarray:
    """Return events of one large population, float64 [n, dim]."""
    if kind == "t5":
        return random.normal(size=(n, dim)) / np.sqrt(random.chisquare(5.0, (n, 1)) / 5.0)
    if kind == "log-normal":
        return np.exp(0.4 * random.normal(size=(n, dim)))
    return shaped(random, "gaussian" if kind == "normal" else kind, n, dim)  # type: ignore[arg-type]


def battery(folder: Path, asked: argparse.Namespace, results: Row) -> Iterator[None]:
    """Add the cases of at most `--most` events that were not measured before; yield after each."""
    design = sorted(cases(asked.cases), key=lambda case: case.n * case.dim)
    rows = {} if asked.again else dict(results.get("battery", {}).get("cases", {}))
    for case in design:
        if case.name in rows or case.n > asked.most:
            continue
        events, labels = simulate(case)
        rows[case.name] = judged(labels, gated_here(folder / case.name, events, asked))
        print(case.name, rows[case.name], flush=True)
        results["battery"] = battery_sums(rows)
        yield


def judged(labels: Ints, found: Ints) -> Row:
    """Return whether the small population, label 2, was found, and the number of populations added."""
    table = np.zeros((2, found.max()), np.int64)
    np.add.at(table, (labels - 1, found - 1), 1)
    hit = any(row == 1 for row, _ in matches(table))
    events, of = int(labels.sum()) - len(labels), len(labels)
    return {"events": events, "of": of, "found": hit, "added": int(found.max()) - 1 - hit}


def battery_sums(rows: dict[str, Row]) -> Row:
    """Return what was found of the cases, and the cases."""

    def found(least: int, share: float, most: int = max(SMALL)) -> list[int]:
        hits = [
            row["found"]
            for row in rows.values()
            if least <= row["events"] <= most and row["events"] >= share * row["of"]
        ]
        return [sum(hits), len(hits)]

    return {
        "small populations of 50 to 500 events found": found(50, 0.0),
        "those with 0.1% of the events or more": found(50, 0.001),
        "small populations of 25 events found": found(25, 0.0, 25),
        "cases with an added population": [sum(row["added"] > 0 for row in rows.values()), len(rows)],
        "cases": rows,
    }


# --------------------------------------------------------------------------------------------- sets


def sets(folder: Path, asked: argparse.Namespace, results: Row) -> Iterator[None]:
    """Add the scores of each set, the mean over its samples."""
    results["sets"] = {name: of_set(folder, name, asked) for name in SETS}
    yield


def of_set(folder: Path, name: str, asked: argparse.Namespace) -> Row:
    labelled, gating_score = tools()
    events, gates, _, sample = labelled.load(name)
    rows = []
    for number in np.unique(sample)[: SAMPLES.get(name)] if name in SAMPLES else [None]:
        chosen = np.arange(len(events)) if number is None else np.flatnonzero(sample == number)
        if len(chosen) > MOST.get(name, len(events)):
            chosen = np.sort(np.random.default_rng(1).choice(chosen, MOST[name], replace=False))
        own = folder / f"{name}_{number or 0}"
        np.save(own.with_suffix(".npy"), events[chosen])
        data: Row = {"files": [str(own.with_suffix(".npy"))]}
        found = gated(own, data, asked)
        score = gating_score.score(gates[chosen], found)
        rows.append({key: score[key] for key in ("mean_f1", "flowcap_f", "ari")} | whole_rhats(own))
        rows[-1]["populations"] = int(found.max())
        print(name, number, rows[-1], flush=True)
    return {key: round(float(np.mean([row[key] for row in rows])), 3) for key in rows[0]}


def whole_rhats(own: Path) -> dict[str, float]:
    """Return the shares of the proportions above 0.2% whose R-hat is below 1.1 and 1.05, components whole."""
    import arviz

    agreement = importlib.import_module("agreement")
    sums, shares = agreement.population_weights(own.with_suffix(".h5"), own)
    rhats = [float(arviz.rhat(sums[..., p], method="rank")) for p in np.flatnonzero(shares >= 0.002)]
    return {f"rhat below {most}": float(np.mean(np.less(rhats, most))) for most in (1.1, 1.05)}


# ------------------------------------------------------------------------------------------- cohort


def cohort(folder: Path, asked: argparse.Namespace, results: Row) -> Iterator[None]:
    """Add the best F1 with each gate, and the adjusted Rand index to all of them."""
    own = folder / "cohort"
    config = own.with_suffix(".init.yaml")
    command(asked, "init", COHORT / "samples.csv", "--all", "--output", config, "--overwrite")
    data = yaml.safe_load(config.read_text())["data"]
    data = {key: data[key] for key in ("samples", "transform")} | {"channels": LINEAGE}
    data["samples"] = str((COHORT / "samples.csv").resolve())
    found = gated(own, data, asked)
    with np.load(COHORT / "gates.npz") as file:
        gates, of_sample, names = file["gate"], file["sample"], [str(name) for name in file["names"]]
    with (COHORT / "samples.csv").open(newline="") as text:
        order = [row["sample"] for row in csv.DictReader(text)]
    truth = np.concatenate([gates[of_sample == name] for name in order])
    row = against_gates(truth, found, names) | {"populations": int(found.max())}
    print("cohort", row, flush=True)
    results["cohort"] = row
    yield


def against_gates(gates: Ints, found: Ints, names: Sequence[str]) -> Row:
    from sklearn.metrics import adjusted_rand_score

    table = np.zeros((len(names), found.max() + 1), np.int64)
    np.add.at(table, (gates, found), 1)
    f1 = 2.0 * table / np.maximum(table.sum(axis=1, keepdims=True) + table.sum(axis=0), 1)
    best = {name: round(float(f1[k].max()), 3) for k, name in enumerate(names) if k}
    inside = gates > 0
    return {"f1": best, "ari": round(float(adjusted_rand_score(gates[inside], found[inside])), 3)}


def plain_cohort() -> Row:
    """Return the scores of k-means and average linkage on the same events."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.cluster import KMeans

    from dpmix.config.data import DataConfig
    from dpmix.inputs.preprocess import prepare

    table = str((COHORT / "samples.csv").resolve())
    settings = DataConfig(samples=table, channels=LINEAGE, standardize=False)
    events = prepare(settings, COHORT, 1)
    means = KMeans(100, n_init=1, random_state=1).fit(events.values)
    groups = fcluster(linkage(means.cluster_centers_, "average"), 20, "maxclust")
    with np.load(COHORT / "gates.npz") as file:
        gates, of_sample, names = file["gate"], file["sample"], [str(name) for name in file["names"]]
    truth = np.concatenate([gates[of_sample == name] for name in events.samples])
    return against_gates(truth, groups[means.labels_].astype(np.int64), names)


# ------------------------------------------------------------------------------------------ running


def gated_here(own: Path, events: Events, asked: argparse.Namespace) -> Ints:
    """Run MCMC on events, unless its run is kept, and gate; return populations as `gated`.

    All in this process, without a report.
    """
    from in_process import gate_run

    from dpmix.config.load import parse_config
    from dpmix.runs.mcmc import run_mcmc

    own.mkdir(exist_ok=True)
    of_events, run = own / "events.npy", own / "run.h5"
    data = {"files": [str(of_events)]}
    text = yaml.safe_dump({"data": data, "output": {"path": str(run)}, "seed": 1})
    if not is_complete(run, text, asked.set):
        np.save(of_events, events)
        run_mcmc(parse_config(text, "battery", asked.set), overwrite=True)
    found = gate_run(run).population + 1
    if not asked.runs:
        shutil.rmtree(own)
    return found


def gated(own: Path, data: Row, asked: argparse.Namespace) -> Ints:
    """Run MCMC and gate with the default config except for the data; return populations from 1, int64 [N]."""
    import pyarrow.parquet

    config, run = own.with_suffix(".yaml"), own.with_suffix(".h5")
    config.write_text(yaml.safe_dump({"data": data, "output": {"path": str(run)}, "seed": 1}))
    options = [word for option in asked.set for word in ("--set", option)]
    command(asked, "mcmc", config, "--overwrite", "--quiet", *options)
    command(asked, "gate", run, "--output", own, "--format", "parquet", "--overwrite", "--quiet")
    table = pyarrow.parquet.read_table(own / "events.parquet", columns=["population"])
    return np.asarray(table["population"].to_numpy()).astype(np.int64)


def command(asked: argparse.Namespace, *words: str | Path) -> None:
    program = shlex.split(asked.program) if asked.program else DPMIX
    subprocess.run([*program, *words], check=True, stderr=subprocess.DEVNULL)


# ------------------------------------------------------------------------------------------ showing


def page() -> str:
    """Markdown: one table of all labels that were measured."""
    results = read_results("resolution")["results"]
    labels = [label for label in results if label != PLAIN_TITLE]
    lines = [f"| | {' | '.join(labels)} |", "|---" * (len(labels) + 1) + "|"]

    def line(title: str, cells: list[str]) -> None:
        lines.append(f"| {title} | {' | '.join(cells)} |")

    of = [results[label] for label in labels]
    for key in next(one["battery"] for one in of if "battery" in one):
        if key != "cases":
            line(
                key,
                [
                    "{} of {}".format(*one["battery"][key]) if key in one.get("battery", {}) else ""
                    for one in of
                ],
            )
    for name in SETS:
        cells = []
        for one in of:
            row = one.get("sets", {}).get(name)
            cells.append(
                f"{row['mean_f1']:.2f} / {row['flowcap_f']:.2f} / {row['ari']:.2f}; "
                f"{row['rhat below 1.05']:.0%}"
                if row
                else ""
            )
        line(name, cells)
    gates = list(results[PLAIN_TITLE]["f1"])
    cells = [_cohort_cell(one.get("cohort"), gates) for one in of]
    line(f"cohort: best F1 of {', '.join(gates)}; ARI", cells)
    plain = _cohort_cell(results[PLAIN_TITLE], gates)
    lines += ["", f"K-means and average linkage on the cohort: {plain}."]
    lines += [
        battery_sentence(label, one["battery"]["cases"]) for label, one in results.items() if "battery" in one
    ]
    return "\n".join([*lines, "", said("resolution"), ""])


def battery_sentence(label: str, rows: dict[str, Row]) -> str:
    """Return which cases of the battery were measured, and where it failed."""
    design = {case.name for case in cases(CASES)}
    missed = [name for name, row in rows.items() if row["events"] >= 50 and not row["found"]]
    added = [f"{name} ({row['added']})" for name, row in rows.items() if row["added"]]
    measured = len(design & set(rows))
    share = "all" if measured == len(design) else f"{measured} of the"
    return (
        f"\nSmall populations, *{label}*: {share} {len(design)} cases of the default design. "
        f"Of 50 events or more, not found: {'; '.join(missed) or 'none'}. "
        f"With added populations: {'; '.join(added) or 'none'}."
    )


def _cohort_cell(row: Row | None, gates: Sequence[str]) -> str:
    if not row:
        return ""
    each = ", ".join(f"{row['f1'][gate]:.2f}" for gate in gates)
    return f"{each}; {row['ari']:.2f}"


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--only", default="plain,battery,sets,cohort", help="parts (default: %(default)s)")
    parser.add_argument("--label", default="after", help="name of these results (default: %(default)s)")
    parser.add_argument("--program", help="command of another version; not for the battery")
    parser.add_argument("--cases", type=int, default=CASES, help="of each kind in the battery")
    parser.add_argument("--most", type=int, default=max(LARGE), help="events of a case of the battery")
    parser.add_argument("--runs", type=Path, help="folder of the battery's runs, which are not sampled again")
    parser.add_argument("--again", action="store_true", help="measure all cases of the battery again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of dpmix's config")
    asked = parser.parse_args()
    parts = {"battery": battery, "sets": sets, "cohort": cohort}
    if unknown := set(asked.only.split(",")) - {PLAIN, *parts}:
        raise SystemExit(
            f"--only: got {', '.join(sorted(unknown))}, need some of {', '.join([PLAIN, *parts])}"
        )
    if not TOOLS.exists():
        raise SystemExit(f"{TOOLS}: not found; this folder of labelled sets and their tools is required")
    sys.path.insert(0, str(TOOLS))
    path = FOLDER / "resolution.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for part in asked.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            if part == PLAIN:
                results[PLAIN_TITLE] = plain_cohort()
                write_results("resolution", results)
                continue
            kept = asked.runs if asked.runs and part == "battery" else Path(folder)
            kept.mkdir(parents=True, exist_ok=True)
            for _ in parts[part](kept, asked, results.setdefault(asked.label, {})):
                write_results("resolution", results)


if __name__ == "__main__":
    main()
