"""Compare dpmix with other clustering tools on ten sets of real events with manual gates.

    python benchmarks/gating.py                        # everything by one seed, and the table
    python benchmarks/gating.py --only peers           # all but dpmix, which needs: pip install '.[peers]'
    python benchmarks/gating.py --only dpmix --seeds 5 --runs FOLDER
    python benchmarks/gating.py --only dpmix --sets hipc,dlbcl --samples 1 --set model.coarseness=null
    python benchmarks/gating.py --only none            # the table and the bars, from what was measured before

The script measures what is asked for and takes the rest from benchmarks/results/gating.json, which keeps
every figure with its date and versions. dpmix's runs stay in the folder of --runs, and what is there is not
measured again: an interrupted call continues, and several calls may fill the folder. Results of calls with
--samples or --set are trials: they go to build/benchmarks, next to the peers' results on all samples.

The sets and the scores come from ../shared/tools (labelled.py, gating_score.py), which are not part of this
project: mean F1 after matching clusters and gates one to one (Weber and Robinson 2016, Cytometry A 89:1084),
the F-measure of FlowCAP-I (Aghaeepour et al. 2013, Nat. Methods 10:228) and the adjusted Rand index, of the
gated events, sample by sample and averaged over the samples of a set, then over seeds. All tools have the
same events of one sample at a time: dpmix on the transformed scale, with the names of the channels, where it
recognises the counts of mass cytometry and arcsinh scales that divide noise; the others standardised, as
dpmix does for itself. Some of the peers get the number of gates as input; dpmix does not, has one config for
all, its defaults, and is run by its commands, as a user would.

Also the share of the gates of 0.05% to 0.5% of a sample's events that a cluster matches. Of dpmix, also the
adjusted Rand index of the gatings of all events of a sample by two seeds and the number of populations.
real_runs.py has what the chains of a run agree on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import METHODS, PEERS, Events, Ints, matches
from labelled_runs import Gated, agreement, gated
from record import FOLDER, plain_arguments, said, write_results

TOOLS = Path(__file__).resolve().parents[2] / "shared" / "tools"
OLDER = ("flowsom_68983", "gvhd", "multicenter_cytof", "barcode", "pbmc_cytomem", "dlbcl", "hipc")
SETS = (*OLDER, "euroflow", "pbmc_himc", "bodenmiller")
BEFORE = "before"  # the version without a resolution of the measurement; what was measured with it stays
SCORES = ("mean_f1", "flowcap_f", "ari")
BARS = {"mean_f1": 0.84, "flowcap_f": 0.93, "ari": 0.90}  # on the mean over the older sets
BEHIND = 0.03  # most that dpmix's mean F1 may lie below the best peer's on a set
RARE_SHARES = 0.0005, 0.005  # of the gates whose recall is measured
STABLE_MEAN, STABLE_EACH, SPREAD = 0.97, 0.90, 1  # agreement between seeds, and difference of numbers
SEED = 1

Row = dict[str, Any]
Scores = dict[str, dict[str, Row]]  # by method and set


# -------------------------------------------------------------------------------------- measuring


def tools() -> tuple[Any, Any]:
    """The modules that load and score the sets."""
    if not (TOOLS / "labelled.py").exists():
        raise SystemExit(f"{TOOLS}: not found; this folder of labelled sets and their tools is required")
    sys.path.insert(0, str(TOOLS))
    return importlib.import_module("labelled"), importlib.import_module("gating_score")


def samples(name: str, most: int | None = None) -> Iterator[tuple[int, Events, Ints, tuple[str, ...]]]:
    """Number, events on the transformed scale, gates and channels of each sample, or of some first ones."""
    labelled, _ = tools()
    events, gates, channels, sample = labelled.load(name)
    for number in islice(np.unique(sample), most):
        yield int(number), events[sample == number].astype(np.float32), gates[sample == number], channels


def standardised(events: Events) -> Events:
    """Return the events with mean 0 and standard deviation 1 in each channel."""
    own = events.astype(np.float64)
    sds = own.std(axis=0)
    scaled: Events = ((own - own.mean(axis=0)) / np.where(sds > 0, sds, 1.0)).astype(np.float32)
    return scaled


def sample_folder(runs: Path, name: str, number: int, seed: int) -> Path:
    """Where dpmix's run of a sample is."""
    return runs / f"{name}_{number}_seed{seed}"


def measure(method: str, name: str, seed: int, asked: argparse.Namespace) -> Row:
    """Scores of a method on a set, the mean over its samples; seconds are of all samples together."""
    _, gating_score = tools()
    about = METHODS[method]
    scores, seconds, results, recall = [], 0.0, [], []
    for number, events, gates, channels in samples(name, asked.samples):
        if about.cluster is None:
            folder = sample_folder(asked.runs, name, number, seed)
            labels, result = gated(events, channels, folder, seed, asked.set)
            results.append(result)
            seconds += sum(result.seconds.values())
        else:
            began = time.perf_counter()
            labels = about.cluster(standardised(events), len(np.unique(gates[gates > 0])), seed)
            seconds += time.perf_counter() - began
        scores.append(gating_score.score(gates, labels))
        recall += _rare_found(gating_score.confusion(gates, labels), len(events))
    mean = {key: round(float(np.mean([score[key] for score in scores])), 4) for key in (*SCORES, "clusters")}
    return mean | {
        "per_sample": [round(score["mean_f1"], 4) for score in scores],
        "seconds": round(seconds, 1),
        "version": version(about.distribution),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **({"rare found": round(float(np.mean(recall)), 3), "rare": len(recall)} if recall else {}),
        **(_of_stages(results) if results else {}),
    }


def _rare_found(table: Ints, n_events: int) -> list[bool]:
    """Return whether each gate of 0.05% to 0.5% of the events is found (`clusterings.matches`)."""
    found = {gate for gate, _ in matches(table)}
    shares = table.sum(axis=1) / n_events
    return [
        int(gate) in found for gate in np.flatnonzero((shares >= RARE_SHARES[0]) & (shares < RARE_SHARES[1]))
    ]


def _of_stages(results: list[Gated]) -> Row:
    return {"seconds of gate": round(sum(result.seconds["gate"] for result in results), 1)}


def stability(name: str, seeds: Sequence[int], asked: argparse.Namespace) -> Row:
    """Agreement between the gatings that `measure` left in the folder of runs."""
    numbers = [number for number, *_ in samples(name, asked.samples)]
    gatings = [
        [np.load(sample_folder(asked.runs, name, number, seed) / "populations.npy") for seed in seeds]
        for number in numbers
    ]
    return agreement(gatings)


def measure_all(asked: argparse.Namespace, methods: list[str], names: list[str], kept: Row) -> None:
    """Measure what is asked for into `kept`, and write it after each set."""
    for method in methods:
        for name in names:
            for seed in asked.seeds:
                row = measure(method, name, seed, asked)
                kept["scores"].setdefault(str(seed), {}).setdefault(method, {})[name] = row
                print(method, name, seed, {k: v for k, v in row.items() if k != "date"}, flush=True)
                write_results("gating", kept, quick=is_trial(asked))
            if method == "dpmix" and len(asked.seeds) > 1:
                kept["stability"][name] = stability(name, asked.seeds, asked)
                print(method, name, kept["stability"][name], flush=True)
                write_results("gating", kept, quick=is_trial(asked))


def is_trial(asked: argparse.Namespace) -> bool:
    return asked.samples is not None or bool(asked.set)


def earlier() -> Row:
    """Return earlier measurements: "scores" by seed, method and set, and "stability" by method and set."""
    path = FOLDER / "gating.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    return {
        "methods": {method: about.given for method, about in METHODS.items()},
        "scores": results.get("scores", {}),
        "stability": results.get("stability", {}),
        BEFORE: results.get(BEFORE, {}),
    }


def only_peers(kept: Row) -> Row:
    """Return the measurements of the peers alone."""
    scores = {
        seed: {method: by_set for method, by_set in by_method.items() if method in PEERS}
        for seed, by_method in kept["scores"].items()
    }
    return kept | {"scores": scores, "stability": {}}


# ---------------------------------------------------------------------------------------- showing


def over_seeds(kept: Row) -> Scores:
    """Means over the seeds that were measured, of each method on each set."""
    found: Scores = {method: {} for method in METHODS}
    for method in METHODS:
        for name in SETS:
            rows = [by_method.get(method, {}).get(name) for by_method in kept["scores"].values()]
            if rows := [row for row in rows if row is not None]:
                found[method][name] = _mean(rows)
    return {method: by_set for method, by_set in found.items() if by_set}


def _mean(rows: list[Row]) -> Row:
    numbers = [key for key, value in rows[0].items() if isinstance(value, int | float)]
    mean: Row = {key: float(np.mean([row[key] for row in rows if key in row])) for key in numbers}
    return mean | {"seeds": len(rows)}


def mean_over_sets(by_set: dict[str, Row], names: Sequence[str] = OLDER) -> dict[str, float]:
    known = [name for name in names if name in by_set]
    return {key: float(np.mean([by_set[name][key] for name in known])) for key in SCORES}


def table(scores: Scores) -> str:
    """Markdown: mean F1 / FlowCAP F / ARI · clusters of each method, over the older sets and on each set."""
    names = [name for name in SETS if any(name in by_set for by_set in scores.values())]

    lines = [f"| | mean over the seven | {' | '.join(names)} | seconds |", "|---" * (len(names) + 3) + "|"]
    for method, by_set in scores.items():
        known = sum(name in by_set for name in OLDER)
        mean = _figures(mean_over_sets(by_set)) if known else ""
        mean += "" if known == len(OLDER) else f" (on {known} of {len(OLDER)})"
        cells = [f"{_figures(by_set[s])} · {by_set[s]['clusters']:.0f}" if s in by_set else "" for s in names]
        seconds = sum(of_set["seconds"] for of_set in by_set.values())
        lines.append(f"| {METHODS[method].title} | {mean} | {' | '.join(cells)} | {seconds:,.0f} |")
    return "\n".join(lines)


def agreement_table(kept: Row, scores: Scores) -> str:
    """Markdown: agreement between seeds and rare gates found, of dpmix on each set."""
    lines = [
        "| set | ARI between seeds before | now, mean (least) | seeds | populations by seed, first sample | "
        "rare gates found |",
        "|---" * 6 + "|",
    ]
    for name, row in scores.get("dpmix", {}).items():
        before = kept[BEFORE].get("stability", {}).get(name)
        cells = [f"{before['ari']:.3f}" if before else "", "", str(row["seeds"]), ""]
        if between := kept["stability"].get(name):
            cells[1] = f"{between['ari']:.3f} ({between['least']:.2f})"
            cells[3] = ", ".join(map(str, between["populations"][0]))
        rare = f"{row['rare found']:.0%} of {row['rare']:.0f}" if "rare" in row else ""
        lines.append(f"| {' | '.join([name, *cells, rare])} |")
    return "\n".join(lines)


def brief() -> str:
    """Markdown: dpmix before and now on each set, and the best other tool by each of two scores."""
    kept = earlier()
    by_method = {BEFORE: kept[BEFORE].get("scores", {}), **over_seeds(kept)}
    rows = {
        name: {method: by_set[name] for method, by_set in by_method.items() if name in by_set}
        for name in SETS
    }
    rows["mean of the first seven"] = {
        method: mean_over_sets(by_set) for method, by_set in by_method.items() if set(OLDER) <= set(by_set)
    }
    lines = ["| set | before | now | best other tool: mean F1, ARI |", "|---" * 4 + "|"]
    for title, of in rows.items():
        others = []
        for key in ("mean_f1", "ari"):
            best = max((method for method in PEERS if method in of), key=lambda method: of[method][key])
            others.append(f"{of[best][key]:.2f} ({METHODS[best].title})")
        cells = [_figures(of[method]) if method in of else "" for method in (BEFORE, "dpmix")]
        lines.append(f"| {' | '.join([title, *cells, ', '.join(others)])} |")
    return "\n".join([*lines, "", said("gating"), ""])


def _figures(of: Row) -> str:
    return " / ".join(f"{of[key]:.2f}" for key in SCORES)


def page() -> str:
    """Markdown: the table of agreement from earlier measurements."""
    kept = earlier()
    return agreement_table(kept, over_seeds(kept)) + "\n"


def bars(kept: Row, scores: Scores) -> list[tuple[str, bool]]:
    """Return the limits for dpmix, each with whether it is met; those that need what was not measured are
    left out."""
    ours = scores.get("dpmix", {})
    lines = []
    if set(OLDER) <= set(ours):
        mean = mean_over_sets(ours)
        lines = [
            (f"{key} on the mean over sets: {mean[key]:.3f}, need {bar:.2f}", mean[key] >= bar)
            for key, bar in BARS.items()
        ]
    for name in SETS:
        peers = {
            method: scores[method][name]["mean_f1"] for method in PEERS if name in scores.get(method, {})
        }
        if not peers or name not in ours:
            continue
        best = max(peers, key=lambda method: peers[method])
        need, found = peers[best] - BEHIND, ours[name]["mean_f1"]
        text = f"mean_f1 on {name}: {found:.3f}, need {need:.3f} ({METHODS[best].title} less {BEHIND})"
        lines.append((text, found >= need))
    return lines + _stability_bars(kept["stability"])


def _stability_bars(stable: dict[str, Row]) -> list[tuple[str, bool]]:
    lines = []
    if set(stable) == set(SETS):
        mean = float(np.mean([row["ari"] for row in stable.values()]))
        lines = [(f"ARI between seeds, mean: {mean:.3f}, need {STABLE_MEAN}", mean >= STABLE_MEAN)]
    for name, row in stable.items():
        text = f"ARI between seeds on {name}: {row['ari']:.3f}, need {STABLE_EACH}"
        lines.append((text, row["ari"] >= STABLE_EACH))
        text = f"populations by seed on {name}: differ by {row['spread']} at most, need {SPREAD}"
        lines.append((text, row["spread"] <= SPREAD))
    return lines


def spreads(kept: Row) -> Iterator[str]:
    """How much a method's mean F1 depends on its seed, of those that were measured with several."""
    for method in METHODS:
        found = []
        for name in SETS:
            rows = [by_method.get(method, {}).get(name) for by_method in kept["scores"].values()]
            of_set = [row["mean_f1"] for row in rows if row is not None]
            if len(of_set) > 1:
                found.append(f"{name} {min(of_set):.2f} to {max(of_set):.2f} ({len(of_set)} seeds)")
        if found:
            yield f"{METHODS[method].title}, mean F1 by seed: {', '.join(found)}"


def _some_of(text: str, known: Sequence[str], groups: dict[str, Sequence[str]]) -> list[str]:
    """Names in a comma-separated list, in the order of `known`; a group stands for its names."""
    asked = {name for word in text.split(",") for name in groups.get(word, [word])}
    if unknown := asked - set(known):
        raise SystemExit(f"got {', '.join(sorted(unknown))}, need some of {', '.join([*groups, *known])}")
    return [name for name in known if name in asked]


def _asked() -> argparse.Namespace:
    parser = plain_arguments(__doc__)
    parser.add_argument("--only", default="peers,dpmix", help=f"of all, peers, none, {', '.join(METHODS)}")
    parser.add_argument("--sets", default="all", help=f"of all, older, {', '.join(SETS)}")
    parser.add_argument("--samples", type=int, help="first samples of each set (default: all)")
    parser.add_argument("--runs", type=Path, help="keep dpmix's runs in this folder, and use those there")
    parser.add_argument("--seed", type=int, default=SEED, help="first seed (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of dpmix's config")
    asked = parser.parse_args()
    asked.seeds = range(asked.seed, asked.seed + asked.seeds)
    return asked


def main() -> None:
    asked = _asked()
    methods = _some_of(asked.only, list(METHODS), {"all": list(METHODS), "peers": PEERS, "none": []})
    names = _some_of(asked.sets, SETS, {"all": SETS, "older": OLDER})
    kept = only_peers(earlier()) if is_trial(asked) else earlier()
    with tempfile.TemporaryDirectory() as folder:
        asked.runs = asked.runs or Path(folder)
        measure_all(asked, methods, names, kept)
    scores = over_seeds(kept)
    print(table(scores), *spreads(kept), agreement_table(kept, scores), sep="\n")
    checked = bars(kept, scores)
    for line, passed in checked:
        print("pass" if passed else "MISS", line)
    if not all(passed for _, passed in checked):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
