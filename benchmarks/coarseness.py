"""Compare `model.coarseness: auto` with the default number, on simulated cases and on labelled sets.

    python benchmarks/coarseness.py RUNS    # all cases, and the first sample of each set
    python benchmarks/coarseness.py RUNS --only hipc --seeds 5

Cases are those of populations.py; sets are those of gating.py, which need ../shared. All runs are made by the
commands, with the default config but for the coarseness, and stay in the folder RUNS; what is there is not
measured again. Scores are those of simulated.py: the number of populations, mean F1 and adjusted Rand index
of the events with a known population, means over seeds. "start" are the seconds until the chains have their
initial states, which include the choice. A call with --only or --seeds is a trial: its results go to
build/benchmarks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from clusterings import Events, Ints
from gating import TOOLS, samples
from labelled_runs import gated
from populations import cases
from record import read_results, write_results
from simulated import score

from dpmix.runs.coarseness import choice_of
from dpmix.runs.reader import open_run

CASES = (
    "gaussian-d5-n20000",
    "many-d3-n20000",
    "skewed-d10-n20000",
    "heavy-d10-n20000",
    "bent-d3-n20000",
    "rare-d6-n20000",
    "cytometry-d10-n50000",
)
SETS = ("dlbcl", "hipc", "gvhd", "flowsom_68983")
SETTINGS = {"default": (), "auto": ("model.coarseness=auto",)}
SCORES = ("mean_f1", "ari")
SEEDS = 2


def data(pattern: str) -> Iterator[tuple[str, Events, Ints]]:
    """Name, events and known populations of each case and set whose name fits the pattern."""
    for name in CASES:
        if fnmatch(name, pattern):
            (case,) = cases(name)
            yield name, case.events, case.labels
    for name in SETS if TOOLS.exists() else ():
        if fnmatch(name, pattern):
            ((_, events, gates),) = samples(name, 1)
            yield name, events, gates


def measure(events: Events, known: Ints, folder: Path, seed: int, options: tuple[str, ...]) -> dict[str, Any]:
    """Return scores, seconds of the run, and its coarseness."""
    populations, _ = gated(events, folder, seed, options)
    run = open_run(folder / "run.h5")
    return score(known, populations - 1) | {
        "coarseness": choice_of(run).coarseness,
        "occupied": round(float(run.sample_stats["occupied"].mean()), 1),
        "start": run.profile["start"],
    }


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of each seed of what is a whole number or a choice, and means of the others."""
    listed = {key: [row[key] for row in rows] for key in ("found", "coarseness")}
    means = {
        key: round(float(np.mean([row[key] for row in rows])), 3) for key in (*SCORES, "occupied", "start")
    }
    return listed | means


def table(results: dict[str, Any]) -> str:
    """Markdown: each case by the default and by auto."""
    lines = [
        "| case | true | n_c by auto | found: default, auto | mean F1 | ARI | occupied | start, s |",
        "|---" * 8 + "|",
    ]
    for name, row in results.items():
        one, auto = row["default"], row["auto"]
        cells = [
            f"{row['true']}",
            ", ".join(f"{n_c:,.0f}" for n_c in auto["coarseness"]),
            "; ".join(", ".join(map(str, of["found"])) for of in (one, auto)),
            *(f"{one[key]:.2f}, {auto[key]:.2f}" for key in SCORES),
            *(f"{one[key]:.0f}, {auto[key]:.0f}" for key in ("occupied", "start")),
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    averages = [
        ", ".join(f"{np.mean([row[of][key] for row in results.values()]):.3f}" for of in SETTINGS)
        for key in SCORES
    ]
    lines.append(f"| mean | | | | {' | '.join(averages)} | | |")
    return "\n".join(lines)


def page() -> str:
    """Markdown: the table of committed results."""
    return table(read_results("coarseness")["results"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder of the run files")
    parser.add_argument("--only", default="*", help="names of cases and sets, a glob (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds (default: %(default)s)")
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    for name, events, known in data(asked.only):
        results[name] = {"true": len(np.unique(known[known > 0])), "events": len(known)}
        for setting, options in SETTINGS.items():
            folders = {
                seed: asked.runs / f"{name}_{setting}_seed{seed}" for seed in range(1, asked.seeds + 1)
            }
            rows = [measure(events, known, folder, seed, options) for seed, folder in folders.items()]
            results[name][setting] = mean(rows)
        print(name, results[name], flush=True)
        write_results("coarseness", results, quick=asked.only != "*" or asked.seeds != SEEDS)
    print(table(results))


if __name__ == "__main__":
    main()
