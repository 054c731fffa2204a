"""Measure cell types by a table: names of events, rows that are missing, and intervals of proportions.

    python benchmarks/cell_types.py --runs build/types            # half an hour on two free cores
    python benchmarks/cell_types.py --runs build/types --only sets
    python benchmarks/cell_types.py --page

Results go to benchmarks/results/cell_types.json; results of other parts stay. Every run has the default
config and seed 1, and is kept in the folder of `--runs`. No label is used for anything but the scores. Parts:

**sets**: real cells with a table of their own and names from manual gates. Accuracy and macro F1 over the
events whose gate is a row of the table, by four ways: the best possible label for each population;
populations named by the type of most of their events; each event by the evidence of the table alone, no
mixture; and `dpmix gate --types`. In euroflow_artefacts the scatter channels are state channels.

**missing**: up to four rows of each table, spread over it, are removed one at a time. `caught` is the share
of the row's events that become unknown, `lost` the share of other rows' events.

**coverage**: 90% intervals of the proportions in simulated blood of 10,000 events, by two tables
that are right. The truth is the share in the whole population that the events are drawn from. The other
column has the root mean squared difference between the estimate and the share of the events themselves, next
to the standard deviation of that share in a sample.

Sets and tables are in ../shared, which is not part of this project.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml
from gating import TOOLS, tools
from record import DPMIX, FOLDER, read_results, said, write_results
from sklearn.metrics import f1_score

import dpmix
from dpmix.inputs.type_table import TypeTable, read_types
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.types.levels import log_factors
from dpmix.populations.types.types import Types, assign_types, types_by_population

TABLES = TOOLS.parent / "data" / "tables"
SETS = {
    "hipc": "hipc",
    "pbmc_himc": "pbmc_himc",
    "flowsom_68983": "flowsom_68983",
    "euroflow_artefacts": "euroflow",
}
STATE = {"euroflow_artefacts": ["FSC-A", "SSC-A"]}
WAYS = {"best": "populations, best label each", "named": "populations named by the table",
        "table": "events by the table alone", "types": "dpmix gate --types"}  # fmt: skip
REMOVED, SAMPLES, EVENTS = 4, 24, 10_000
LINEAGES = """cell,CD45RA,CD4,CD25,CCR7,CD127,CD8,CD3,CD19,CD14,CD56
CD4 T,,+,,,,-,+,-,-,-
CD8 T,,-,,,,+,+,-,-,
double negative T,,-,,,,-,+,-,-,-
NKT,,-,,,,-,+,-,-,+
B,,-,,,,-,-,+,-,-
NK,,-,,,,-,-,-,-,+
monocytes,,-,,,,-,-,-,+,-
debris,,-,,,,-,-,-,-,-
"""
SUBSETS = """cell,CD45RA,CD4,CD25,CCR7,CD127,CD8,CD3,CD19,CD14,CD56
CD4 naive,+,+,-|lo,+,,-,+,-,-,-
CD4 memory,-,+,-|lo,+,,-,+,-,-,-
CD4 effector,-,+,-|lo,-,,-,+,-,-,-
CD4 regulatory,,+,+,,-,-,+,-,-,-
CD8 naive,+,-,,+,,+,+,-,-,
CD8 memory,-,-,,,,+,+,-,-,
CD8 effector,+,-,,-,,+,+,-,-,
double negative T,,-,,,,-,+,-,-,-
NKT,,-,,,,-,+,-,-,+
B,,-,,,,-,-,+,-,-
NK,,-,,,,-,-,-,-,+
NK bright,,-,,,,-,-,-,-,++
monocytes,,-,,,,-,-,-,+,-
debris,,-,,,,-,-,-,-,-
"""
OF_BLOOD = {"lineages": LINEAGES, "subsets": SUBSETS}
LINEAGE = {"CD4": "CD4 T", "CD8": "CD8 T", "double": "double negative T"}  # of the first word of a subset
Row = dict[str, Any]


def kept_results() -> Row:
    """Return the results that are there."""
    return dict(read_results("cell_types")["results"]) if (FOLDER / "cell_types.json").exists() else {}


def run_of(name: str, folder: Path) -> Path:
    """Return the run file of a set, made if it is missing."""
    run = folder / name / "run.h5"
    if not run.exists():
        labelled, _ = tools()
        events, _, channels, _ = labelled.load(name)
        run.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(events, columns=channels).to_parquet(run.parent / "events.parquet")
        data = {"files": [str((run.parent / "events.parquet").resolve())]}
        data |= {"state_channels": STATE[name]} if name in STATE else {}
        config = {"data": data, "output": {"path": str(run)}, "seed": 1}
        (run.parent / "run.yaml").write_text(yaml.safe_dump(config))
        subprocess.run([*DPMIX, "mcmc", run.parent / "run.yaml", "--quiet"], check=True)
    return run


def gates_of(name: str, table: TypeTable, task: Task) -> np.ndarray:
    """Return the row of each event's gate: -1 for a gate without a row, -2 for no gate."""
    labelled, _ = tools()
    rows = task.events.rows_in_file(0, 0, len(task.events.values))
    names = labelled.names(name)
    rows_of = {row.casefold(): r for r, row in enumerate(table.types)}
    codes = {code: rows_of.get(text.casefold(), -1) for code, text in names.items()}
    return np.array([codes.get(int(code), -2) for code in labelled.load(name)[1][rows]])


def score(gates: np.ndarray, found: np.ndarray) -> Row:
    """Return accuracy and macro F1 over the events whose gate is a row."""
    known = gates >= 0
    rows = np.unique(gates[known])
    f1 = f1_score(gates[known], found[known], labels=rows, average="macro", zero_division=0)
    return {"accuracy": round(float((gates == found)[known].mean()), 3), "f1": round(float(f1), 3)}


def ways(gates: np.ndarray, types: Types, population: np.ndarray, task: Task, count: int) -> Row:
    """Return the scores of the four ways."""
    together = types_by_population(types, population, count)
    named = together.argmax(axis=0)[population]
    best = np.full(count, -1)
    for p in range(count):
        inside = gates[(population == p) & (gates >= 0)]
        best[p] = np.bincount(inside).argmax() if len(inside) else -1
    at = [task.events.measured_channels.index(name) for name in types.channels]
    values = task.events.measured(np.arange(len(population)))[:, at]
    logs = np.pad(log_factors(types.markers, values, types.right), [(0, 0), (0, 1)])
    own = {"best": best[population], "named": named, "table": logs.argmax(axis=1), "types": types.of_event}
    return {way: score(gates, found) for way, found in own.items()}


def without(table: TypeTable, r: int) -> TypeTable:
    """Return a table without a row that is no parent."""
    kept = [k for k in range(len(table.types)) if k != r]
    parts = {
        name: tuple(getattr(table, name)[k] for k in kept)
        for name in ("types", "parents", "kinds", "ontology")
    }
    return TypeTable(
        table.source, **parts, markers=table.markers, levels=table.levels[kept], doubt=table.doubt[kept]
    )


def measure_set(name: str, folder: Path, parts: Sequence[str]) -> dict[str, Any]:
    """Return the results of a set."""
    task = prepare(run_of(name, folder))
    table = read_types(TABLES / f"{SETS[name]}.csv")
    gates = gates_of(name, table, task)
    found = task.find_populations(100, None, None)
    out: dict[str, Any] = {}
    if "sets" in parts:
        types = assign_types(task, found, table)
        engine = task.make_engine(task.events.values)
        shares, _ = found.memberships_in(found.reference, engine, 0, len(gates))
        engine.close()
        out["sets"] = ways(gates, types, shares.argmax(axis=1), task, found.n_populations)
        out["sets"]["ungated unknown"] = (
            round(float((types.of_event[gates < 0] < 0).mean()), 3) if (gates < 0).any() else None
        )
    if "missing" in parts:
        sizes = np.bincount(gates[gates >= 0], minlength=len(table.types))
        rows = np.flatnonzero(sizes >= 0.005 * len(gates))
        rows = rows[np.linspace(0, len(rows) - 1, min(REMOVED, len(rows))).round().astype(int)]
        out["missing"] = {}
        for r in rows.tolist():
            unknown = assign_types(task, found, without(table, r)).of_event < 0
            others = (gates >= 0) & (gates != r)
            out["missing"][table.types[r]] = {
                "caught": round(float(unknown[gates == r].mean()), 3),
                "lost": round(float(unknown[others].mean()), 3),
            }
            print(f"{name} without {table.types[r]}: {out['missing'][table.types[r]]}")
    return out


def coverage(folder: Path, samples: int) -> Row:
    """Return the share of the 90% intervals that contain the truth, and errors, for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name, text in OF_BLOOD.items():
        (folder / f"{name}.csv").write_text(text)
        tables[name] = read_types(folder / f"{name}.csv")
    found: Row = {name: [] for name in tables}
    for seed in range(1, samples + 1):
        made = dpmix.simulate(EVENTS, seed=seed)
        run = folder / f"{seed}.h5"
        if not run.exists():
            made.write(folder / f"{seed}.fcs")
            config = {
                "data": {"files": [str((folder / f"{seed}.fcs").resolve())]},
                "output": {"path": str(run)},
                "seed": seed,
            }
            (folder / f"{seed}.yaml").write_text(yaml.safe_dump(config))
            subprocess.run([*DPMIX, "mcmc", folder / f"{seed}.yaml", "--quiet"], check=True)
        task = prepare(run)
        populations = task.find_populations(100, None, None)
        for name, table in tables.items():
            rows = _rows_of(made.populations, table)
            types = assign_types(task, populations, table)
            mean, low, high = (np.asarray(each)[0, :-1] for each in types.estimates)
            sample = np.bincount(rows[made.labels], minlength=len(table.types)) / EVENTS
            whole = np.bincount(rows, made.weights, len(table.types))
            found[name].append((whole, mean - sample, (low <= whole) & (whole <= high)))
        print(f"coverage {seed}: {[float(own[-1][2].mean()) for own in found.values()]}")
    return {name: _summary(own) for name, own in found.items()}


def _rows_of(populations: Sequence[str], table: TypeTable) -> np.ndarray:
    """Return the row of each simulated population."""
    names = [
        name if name in table.types else LINEAGE.get(name.split()[0], name.split()[0]) for name in populations
    ]
    return np.array([table.types.index(name) for name in names])


def _summary(found: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Row:
    whole, errors, hits = (np.array(each) for each in zip(*found, strict=True))
    chance = np.sqrt(whole[0] * (1.0 - whole[0]) / EVENTS)
    return {
        "types": whole.shape[1],
        "intervals": int(hits.size),
        "whole": round(float(hits.mean()), 3),
        "least": round(float(hits.mean(axis=0).min()), 3),
        "error": round(float(np.median(np.sqrt((errors**2).mean(axis=0)) / chance)), 3),
        "largest error": round(float(np.max(np.sqrt((errors**2).mean(axis=0)) / chance)), 3),
    }


def table_of(results: Row) -> str:
    """Return the table of the page."""
    lines = ["| set | " + " | ".join(WAYS.values()) + " |", "| --- |" + " --- |" * len(WAYS)]
    for name, row in results.get("sets", {}).items():
        cells = [f"{row[way]['accuracy']:.2f}, {row[way]['f1']:.2f}" for way in WAYS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def missing_table(results: Row) -> str:
    """Return the table of missing rows of the page."""
    lines = [
        "| set | row removed | its events unknown | events of other rows unknown |",
        "| --- | --- | --- | --- |",
    ]
    for name, rows in results.get("missing", {}).items():
        lines += [
            f"| `{name}` | {row} | {own['caught']:.0%} | {own['lost']:.1%} |" for row, own in rows.items()
        ]
    return "\n".join(lines)


def coverage_table(results: Row) -> str:
    """Return the table of intervals of the page."""
    lines = [
        "| table | types | intervals | contain the share of the whole population | of the worst type "
        "| error in a sample, median and largest type |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, own in results.get("coverage", {}).items():
        lines.append(
            f"| {name} | {own['types']} | {own['intervals']} | {own['whole']:.0%} | {own['least']:.0%} "
            f"| {own['error']:.2f}, {own['largest error']:.2f} |"
        )
    return "\n".join(lines)


def page() -> str:
    """Return all tables, for docs/benchmarks/agreement.md."""
    results = kept_results()
    covered = coverage_table(results)
    return f"{table_of(results)}\n\n{missing_table(results)}\n\n{covered}\n\n{said('cell_types')}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("build/types"))
    parser.add_argument("--only", nargs="*", default=["sets", "missing", "coverage"])
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of coverage")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.page:
        print(page())
        return
    for name in asked.sets if {"sets", "missing"} & {*asked.only} else []:
        for part, own in measure_set(name, asked.runs, asked.only).items():
            kept = kept_results()
            kept.setdefault(part, {})[name] = own
            write_results("cell_types", kept)
            print(f"{name} {part}: {own}")
    if "coverage" in asked.only:
        own = coverage(asked.runs / "coverage", asked.samples)
        kept = kept_results() | {"coverage": own}
        write_results("cell_types", kept)
        print(f"coverage: {kept['coverage']}")


if __name__ == "__main__":
    main()
