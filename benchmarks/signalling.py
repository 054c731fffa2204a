"""Run the commands of docs/how-to/signalling.md on its cohort, and compare with gates drawn by hand.

    python benchmarks/signalling.py                             # about 3 minutes on two cores
    python benchmarks/signalling.py --folder build/signalling   # keeps its files; next, only associate runs

The cohort is in ../shared/data/cohort_bcrxl, next to the checkout. It has a gate for each event, and the mean
paired difference of the medians in each gate. A population is compared with the gate that has most of its
events in gates. Writes the figures of the page to docs/pictures.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from record import DPMIX, PICTURES, ROOT, plain_arguments, read_results, said, write_results

from dpmix.association.effects import EXPRESSION
from dpmix.commands.associate import associate
from dpmix.report.association_figures import differences_of, heatmap
from dpmix.report.association_samples import draw_map, groups_of, strips, strips_of
from dpmix.report.drawing import styled

COHORT = ROOT.parent / "shared" / "data" / "cohort_bcrxl"
PAGE = ROOT / "docs" / "how-to" / "signalling.md"
GATED = "signalling"  # folder of the page
SHARE, SHOWN, LISTED, LEAST_F1 = 0.05, 8, 10, 0.7
QUICK = ("--set", "mcmc.burn_in=40", "--set", "mcmc.draws=10", "--set", "model.components=32")


def commands(page: str) -> list[list[str]]:
    """Return the commands of dpmix of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def follow(folder: Path, more: Sequence[str] = ()) -> dict[str, float]:
    """Run the commands of the page in a folder with the files of the cohort; return seconds of each.

    In a folder where they ran before, only `associate` runs again.
    """
    folder.mkdir(exist_ok=True, parents=True)
    page = PAGE.read_text(encoding="utf-8")
    for path in COHORT.iterdir():
        if (path.suffix == ".fcs" or path.name == "samples.csv") and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    for name, text in re.findall(r"^```yaml (\S+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)
    done = folder / "seconds.json"
    seconds: dict[str, float] = json.loads(done.read_text()) if done.exists() else {}
    for words in commands(page):
        if words[0] in seconds and words[0] != "associate":
            continue
        start = time.perf_counter()
        own = more if words[0] == "mcmc" else ("--overwrite",) if words[0] == "associate" else ()
        subprocess.run([*DPMIX, *words, *own], cwd=folder, check=True)
        seconds[words[0]] = time.perf_counter() - start
    done.write_text(json.dumps(seconds))
    return seconds


def gates_of(folder: Path) -> list[dict[str, Any]]:
    """Return for each population the gate with most of its events, and F1 of the two."""
    drawn = np.load(COHORT / "gates.npz")
    events = pyarrow.parquet.read_table(folder / GATED / "events.parquet")
    samples = np.array(events["sample"].to_pylist())
    gates = np.empty(len(samples), np.int64)
    for name in np.unique(samples):
        rows = events["event"].to_numpy()[samples == name]
        gates[samples == name] = drawn["gate"][drawn["sample"] == name][rows]
    populations = events["population"].to_numpy()
    rows = []
    for p in range(1, populations.max() + 1):
        inside = np.bincount(gates[populations == p], minlength=len(drawn["names"]))
        gate = 1 + int(inside[1:].argmax())
        f1 = 2.0 * inside[gate] / (inside.sum() + (gates == gate).sum())
        rows.append({"population": p, "gate": str(drawn["names"][gate]), "f1": float(f1)})
    return rows


def by_hand() -> dict[tuple[str, str], float]:
    """Return the differences in the gates drawn by hand."""
    with (COHORT / "expression_by_gates.csv").open() as file:
        return {(row["pop"], row["marker"]): float(row["diff"]) for row in csv.DictReader(file)}


def measure(folder: Path, more: Sequence[str]) -> dict[str, Any]:
    """Return the differences found, in their order, and the gates."""
    seconds = follow(folder, more)
    with (folder / GATED / "associate" / "associations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == EXPRESSION]
    found = [row for row in rows if row["found"] == "yes"]
    kept = [
        {"population": int(row["population"]), "phenotype": row["phenotype"], "marker": row["channel"]}
        | {key: float(row[key]) for key in ("effect", "low", "high")}
        for row in found[:LISTED]
    ]
    return {
        "seconds": seconds,
        "responses": len(rows),
        "found": len(found),
        "first": kept,
        "populations": gates_of(folder),
        "by hand": [[*where, value] for where, value in by_hand().items()],
    }


def draw(folder: Path) -> None:
    """Draw the figures of the page."""
    options = {"expression": True, "false_share": SHARE}
    contrast = ["BCRXL - Ref"]
    study = associate(folder / GATED, folder / "again", "~ condition + (1 | donor)", contrast, **options)
    with styled():
        groups = groups_of(study, study.design.contrasts[0])
        all_of = strips_of(study, study.design.contrasts[0], EXPRESSION, SHARE, 1)
        parts = {key: getattr(all_of, key)[:, :SHOWN] for key in ("mean", "low", "high")}
        shown = replace(all_of, titles=all_of.titles[:SHOWN], **parts)
        heatmap(differences_of(study, SHARE)).savefig(PICTURES / "signalling-differences.png")
        strips(shown, groups).savefig(PICTURES / "signalling-medians.png")
        draw_map(study, groups).savefig(PICTURES / "signalling-samples.png")


def page() -> str:
    """Return the table of docs/how-to/signalling.md."""
    results = read_results("signalling")["results"]
    gates = {row["population"]: row for row in results["populations"]}
    hand = {(gate, marker): value for gate, marker, value in results["by hand"]}
    lines = [
        f"Of {results['responses']} medians, {results['found']} differ. The first {LISTED}, with the mean "
        f"difference in a gate drawn by hand, where one is like the population (F1 above {LEAST_F1:g}):",
        "",
        "| marker | population | phenotype | difference (90% interval) | gate | difference there |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["first"]:
        own = gates[row["population"]]
        like = own["gate"] if own["f1"] >= LEAST_F1 else ""
        there = f"{hand[like, row['marker']]:.2f}" if like else ""
        lines.append(
            f"| {row['marker']} | {row['population']} | {row['phenotype']} | {row['effect']:.2f} "
            f"({row['low']:.2f} to {row['high']:.2f}) | {like} | {there} |"
        )
    return "\n".join([*lines, ""])


def notes() -> str:
    """Return machine, date and times for docs/benchmarks/end-to-end.md."""
    seconds = read_results("signalling")["results"]["seconds"]
    times = ", ".join(f"{name} {one:.0f} s" for name, one in seconds.items())
    return f"{said('signalling')} {times}.\n"


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sweeps; keeps the committed results")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        results = measure(folder, QUICK if options.quick else ())
        write_results("signalling", results, quick=options.quick)
        if not options.quick:
            draw(folder)


if __name__ == "__main__":
    main()
