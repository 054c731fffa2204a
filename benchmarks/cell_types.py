"""Measure cell types by a table: names of events, rows that are missing, and intervals of proportions.

    python benchmarks/cell_types.py --runs build/types            # half an hour on two free cores
    python benchmarks/cell_types.py --runs build/types --only sets
    python benchmarks/cell_types.py --page

Results go to benchmarks/results/cell_types.json; results of other parts stay. Every run has the default
config and seed 1, and is kept in the folder of `--runs`. No label is used for anything but the scores. Parts:

**sets**: real cells with a table of their own and names from manual gates. Accuracy and macro F1 over the
events whose gate is a row of the table, by four ways: the best possible label for each population;
populations named by the type of most of their events; each event by the evidence of the table alone, no
mixture; and `dpmix gate --types`. In both sets of euroflow the scatter channels are state channels.

**missing**: each row with 0.5% of the events is removed. `caught` is the share of its events that become
unknown, `lost` the share of other rows' events that become unknown without it, `fit` the share of its events
that pass all cells of another row: no rule can tell these. `told` is the share that is unknown or in a row
with a cell that is contradicted or suspect only without the row: dpmix reports that a type may have no row.

**signs**: up to 20 cells of each table, drawn at random, get the opposite sign, one at a time. `found` is the
number that is contradicted or suspect, `others` the number of other cells that are so only with the wrong
sign, `right` the number that is so in the right table.

**exchanged**: each pair of markers of each table is exchanged in the data. `same` counts pairs whose exchange
only permutes rows of the table, `found` the pairs found, `wrong` the cases in which only another pair is
found, `right` the pairs found in the right data.

**coverage**: 90% intervals of the proportions in simulated blood of 10,000 events, by two tables
that are right. The truth is the share in the whole population that the events are drawn from. The other
column has the root mean squared difference between the estimate and the share of the events themselves, next
to the standard deviation of that share in a sample.

**counted**: the same intervals if the type of each event is known, without a run: what chance alone gives.

`missing`, `signs` and `exchanged` use the model on 8,000 events and four draws, with the most probable
component of each event, and four more sets, whose tables are below.

Sets and tables are in ../shared, which is not part of this project.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import yaml
from gating import TOOLS, tools
from record import DPMIX, FOLDER, read_results, said, write_results
from sklearn.metrics import f1_score

import dpmix
from dpmix.inputs.type_table import TypeTable, match_markers, read_types
from dpmix.populations.draws.predictive import classify
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.marks import find_artefacts
from dpmix.populations.types.assign import TYPE_DRAWS, assign_types, level_draws
from dpmix.populations.types.cells import suspect_cells
from dpmix.populations.types.exchanged import exchanged
from dpmix.populations.types.markers import Marker, log_factors
from dpmix.populations.types.shares import Fits, event_shares, name_shares
from dpmix.populations.types.table_fit import fit_table
from dpmix.populations.types.types import Types, type_proportions, types_by_population

TABLES = TOOLS.parent / "data" / "tables"
SETS = {
    "hipc": "hipc",
    "pbmc_himc": "pbmc_himc",
    "flowsom_68983": "flowsom_68983",
    "euroflow_artefacts": "euroflow",
    "euroflow": "euroflow",
}
STATE = {"euroflow_artefacts": ["FSC-A", "SSC-A"], "euroflow": ["FSC-A LINEAR", "SSC-A Exp-SSC Low"]}
WAYS = {"best": "populations, best label each", "named": "populations named by the table",
        "table": "events by the table alone", "types": "dpmix gate --types"}  # fmt: skip
OTHERS = {
    "multicenter_cytof": """cell,ch0,ch1,ch3,ch5,ch6,ch7
B cells,+,+,-,-,-,-
CD4 T cells,-,-,-,-,+,+
CD8 T cells,-,-,-,+,+,-
monocytes,-,-,+,-,-,
""",
    "gvhd": """cell,FL1.H,FL2.H,FL3.H,FL4.H
CD4 T,+,-,+,-
CD8 T,-,+,+,+
other,-,-,-,-
""",
    "pbmc_cytomem": """cell,CD3,CD4,CD8,CD19,CD20,IgM,CD14,CD11c,HLADR,CD16,CD56
CD4 T,+,+,-,-,-,-,-,-,,-,
CD8 T,+,-,+,-,-,-,-,-,,,
DC,-,,-,-,-,-,-,+,+,,-
IgM- B,-,-,-,+,+,-,-,-,+,-,-
IgM+ B,-,-,-,+,+,+,-,-,+,-,-
monocytes,-,,-,-,-,-,+,+,+,,-
NK,-,-,,-,-,-,-,,-,+,+
""",
    "cohort_bcrxl": """cell,CD3,CD4,CD20,CD33,CD123,CD14,IgM,HLA-DR,CD7
CD4 T,+,+,-,-,-,-,-,-,+
CD8 T,+,-,-,-,-,-,-,-,+
B,-,-,+,-,-,-,,+,-
Mono,-,,-,+,,,-,+,
NK,-,-,-,-,-,-,-,-,+
""",
}
ROWS = {  # of the gates with a number, in the tables above; sample 1 of the sets with several
    "multicenter_cytof": {1: 0, 2: 1, 3: 2, 4: 3},
    "gvhd": {1: 0, 3: 1, 4: 2, 2: -1},
    "pbmc_cytomem": {k: k - 1 for k in range(1, 8)},
}
SPELLED = {  # names of gates of euroflow (sample 36) that the table spells otherwise
    "CD4+CD8negativo": "CD4+CD8-",
    "CD8+CD4-CD5+": "CD8+CD4-",
    "NK CELLS": "CD56dim",
    "Neutrophils (main population)": "Neutrophils",
    "Plasmacytoid DC": "Plasmocytoid DC",
    "TCRgd+CD5+CD8+": "TCRgd+",
    "TCRgd+CD5+CD8-": "TCRgd+",
    "TCRgd-CD5+": "TCRgd-",
}
COHORT = TOOLS.parent / "data" / "cohort_bcrxl"
LINEAGE_MARKERS = ["CD3", "CD45", "CD4", "CD20", "CD33", "CD123", "CD14", "IgM", "HLA-DR", "CD7"]
SAMPLES, EVENTS, SOME, PLANTED = 40, 10_000, 8_000, 20
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
NKT,,-,,,,-,+,-,-,++
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
        run.parent.mkdir(parents=True, exist_ok=True)
        data: Row = {"samples": str((COHORT / "samples.csv").resolve()), "channels": LINEAGE_MARKERS}
        if name != "cohort_bcrxl":
            events, _, channels, sample = labelled.load(name)
            events = events[sample == sample[0]]
            pandas.DataFrame(events, columns=channels).to_parquet(run.parent / "events.parquet")
            data = {"files": [str((run.parent / "events.parquet").resolve())]}
        data |= {"state_channels": STATE[name]} if name in STATE else {}
        config = {"data": data, "output": {"path": str(run)}, "seed": 1}
        (run.parent / "run.yaml").write_text(yaml.safe_dump(config))
        subprocess.run([*DPMIX, "mcmc", run.parent / "run.yaml", "--quiet"], check=True)
    return run


def table_for(name: str, folder: Path) -> TypeTable:
    """Return the table of a set."""
    if name in SETS:
        return read_types(TABLES / f"{SETS[name]}.csv")
    (folder / f"{name}.csv").write_text(OTHERS[name])
    return read_types(folder / f"{name}.csv")


def gates_of(name: str, table: TypeTable, task: Task) -> np.ndarray:
    """Return the row of each event's gate: -1 for a gate without a row, -2 for no gate."""
    labelled, _ = tools()
    rows_of = {row.casefold(): r for r, row in enumerate(table.types)}
    if name == "cohort_bcrxl":
        with np.load(COHORT / "gates.npz") as own:
            texts, gate, sample = [str(text) for text in own["names"]], own["gate"], own["sample"]
        codes = {code: rows_of.get(text.casefold(), -2) for code, text in enumerate(texts)}
        starts = task.events.sample_starts
        parts = []
        for s, of_sample in enumerate(task.events.samples):
            inside = gate[sample == of_sample]
            parts.append(inside[task.events.rows_in_file(s, int(starts[s]), int(starts[s + 1]))])
        return np.array([codes[int(code)] for code in np.concatenate(parts)])
    rows = task.events.rows_in_file(0, 0, len(task.events.values))
    if name == "euroflow":  # the names of its gates are labels in the file; debris and doublets have no gate
        with np.load(TOOLS.parent / "data" / "labelled" / "euroflow_optimal.npz") as own:
            texts = own["labels"][own["sample"] == own["sample"][0]][rows].tolist()
        return np.array([rows_of.get(SPELLED.get(text, text).casefold(), -2) for text in texts])
    _, labels, _, sample = labelled.load(name)
    names = labelled.names(name)
    codes = ROWS.get(name) or {code: rows_of.get(text.casefold(), -1) for code, text in names.items()}
    return np.array([codes.get(int(code), -2) for code in labels[sample == sample[0]][rows]])


class Case(NamedTuple):
    """Some events of a set: values, components in some draws, their populations, gates and cells."""

    values: np.ndarray
    labels: list[np.ndarray]
    populations: list[np.ndarray]
    gates: np.ndarray
    table: TypeTable
    levels: np.ndarray
    doubt: np.ndarray


class Model(NamedTuple):
    """Types of some events: rows, levels of markers, and cells that are contradicted or suspect."""

    rows: np.ndarray
    markers: tuple[Marker, ...]
    flagged: np.ndarray


def case_of(name: str, folder: Path) -> Case:
    """Return some events of a set."""
    task = prepare(run_of(name, folder))
    table = table_for(name, folder)
    numbers, _ = match_markers(table, task.events.all_channels)
    columns, full = np.flatnonzero(numbers >= 0), table.with_inherited()
    found = task.find_populations(20, None, None)
    n_events = len(task.events.values)
    some = np.sort(np.random.default_rng(1).choice(n_events, min(n_events, SOME), replace=False))
    engine = task.make_engine(np.ascontiguousarray(task.events.values[some]))
    draws = level_draws(found.reference, np.arange(len(found.draws)))
    labels = [classify(engine, found.mixture_of(t, None))[0].astype(np.int64) for t in draws]
    populations = [found.components[t] for t in draws]
    engine.close()
    values = task.events.all_values(some)[:, numbers[columns]].astype(float)
    gates = gates_of(name, table, task)[some]
    return Case(values, labels, populations, gates, table, full.levels[:, columns], full.doubt[:, columns])


def model_of(case: Case, levels: np.ndarray, doubt: np.ndarray, kept: Sequence[int]) -> Model:
    """Return the types of the events of a case by the rows of its table that are kept."""
    values, parents = case.values, [-1] * len(kept)
    fit = fit_table(values, case.labels, levels, doubt)
    evidence, (fits, passed) = fit.evidence(fit.soft, values), fit.event_fits(fit.soft, values)
    total = np.zeros_like(evidence)
    for labels, populations in zip(case.labels, case.populations, strict=True):
        n_components = len(populations)
        shares = name_shares(evidence, labels, populations)
        (inside,) = fit.component_fits(fit.soft, values, [labels], n_components)
        given = Fits(fits, inside, passed)
        total += event_shares(np.eye(n_components)[labels], shares, evidence, given, parents)
    rows = total.argmax(axis=1).astype(np.int32)
    rows[rows == len(kept)] = -1
    below = np.eye(len(kept), dtype=bool)
    suspect = suspect_cells(fit.markers, values, case.labels[0], rows, fit.right, below)
    flagged = fit.contradicted | fit.upheld | suspect
    return Model(np.where(rows < 0, -1, np.array(kept)[rows]), fit.markers, flagged)


def missing_rows(case: Case) -> Row:
    """Return the shares of the events of each removed row, and of others."""
    every = list(range(len(case.table.types)))
    known = case.gates >= 0
    whole = model_of(case, case.levels, case.doubt, every)
    out = {}
    for r in np.flatnonzero(np.bincount(case.gates[known], minlength=len(every)) >= 0.005 * len(known)):
        kept = [k for k in every if k != r]
        found = model_of(case, case.levels[kept], case.doubt[kept], kept)
        own, others = case.gates == r, known & (case.gates != r)
        fit = np.zeros(int(own.sum()), bool)
        for k in range(len(kept)):
            spoken = [(m, one) for m, one in enumerate(found.markers) if not one.silent[k]]
            passed = [one.passes(case.values[own, m], k) > 0.5 for m, one in spoken]
            fit |= np.all(passed, axis=0) if passed else True
        told = np.array(kept)[(found.flagged & ~whole.flagged[kept]).any(axis=1)]
        out[case.table.types[r]] = {
            "events": int(own.sum()),
            "caught": round(float((found.rows[own] < 0).mean()), 3),
            "told": round(float(((found.rows[own] < 0) | np.isin(found.rows[own], told)).mean()), 3),
            "fit": round(float(fit.mean()), 3),
            "lost": round(float((found.rows[others] < 0).mean() - (whole.rows[others] < 0).mean()), 3),
        }
    return out


def wrong_signs(case: Case) -> Row:
    """Return how many planted wrong signs are found."""
    every = list(range(len(case.table.types)))
    sizes = np.bincount(case.gates[case.gates >= 0], minlength=len(every))
    cells = [(r, m) for r, m in np.argwhere(~case.levels.all(axis=2)) if sizes[r] >= 60]
    np.random.default_rng(0).shuffle(cells)
    before = model_of(case, case.levels, case.doubt, every).flagged
    out = {"planted": 0, "found": 0, "others": 0, "right": int(before.sum())}
    for r, m in cells[:PLANTED]:
        levels = case.levels.copy()
        levels[r, m] = ~levels[r, m]
        flagged = model_of(case, levels, case.doubt, every).flagged
        out["planted"] += 1
        out["found"] += int(flagged[r, m])
        out["others"] += int((flagged & ~before).sum()) - int(flagged[r, m] and not before[r, m])
    return out


def exchanges(case: Case) -> Row:
    """Return how many exchanged pairs of channels are found."""
    levels, labels = case.levels, case.labels[0]
    out = {"pairs": 0, "same": 0, "found": 0, "wrong": 0}
    out["right"] = len(exchanged(case.values, labels, levels))
    for a, b in combinations(np.flatnonzero(~levels.all(axis=(0, 2))).tolist(), 2):
        values, moved = case.values.copy(), levels.copy()
        values[:, [a, b]], moved[:, [a, b]] = values[:, [b, a]], moved[:, [b, a]]
        pairs = exchanged(values, labels, levels)
        same = sorted(row.tobytes() for row in moved) == sorted(row.tobytes() for row in levels)
        out["pairs"] += 1
        out["same"] += int(same)
        out["found"] += int((a, b) in pairs)
        out["wrong"] += int(bool(pairs) and (a, b) not in pairs)
    return out


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


def measure_set(name: str, folder: Path) -> Row:
    """Return the scores of a set by the four ways."""
    task = prepare(run_of(name, folder), with_quality=True)
    table = table_for(name, folder)
    gates = gates_of(name, table, task)
    found = task.find_populations(100, None, None)
    types = assign_types(task, found, table, artefacts=find_artefacts(task, found))
    engine = task.make_engine(task.events.values)
    shares, _ = found.memberships_in(found.reference, engine, 0, len(gates))
    engine.close()
    own = ways(gates, types, shares.argmax(axis=1), task, found.n_populations)
    rows = np.unique(gates[gates >= 0])
    scores = f1_score(
        gates[gates >= 0], types.of_event[gates >= 0], labels=rows, average=None, zero_division=0
    )
    unknown = round(float((types.of_event[gates < 0] < 0).mean()), 3) if (gates < 0).any() else None
    by_row = {table.types[r]: round(float(f1), 2) for r, f1 in zip(rows, scores, strict=True)}
    return own | {"ungated unknown": unknown, "by row": by_row}


def simulated_tables(folder: Path) -> dict[str, TypeTable]:
    """Return the two tables of simulated blood."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name, text in OF_BLOOD.items():
        (folder / f"{name}.csv").write_text(text)
        tables[name] = read_types(folder / f"{name}.csv")
    return tables


def counted(folder: Path, samples: int) -> Row:
    """Return the share of the 90% intervals by known types that contain the truth, of each sample."""
    tables = simulated_tables(folder)
    found: Row = {name: [] for name in tables}
    for seed in range(1, samples + 1):
        made = dpmix.simulate(EVENTS, seed=seed)
        for name, table in tables.items():
            rows, size = _rows_of(made.populations, table), len(table.types) + 1
            counts = np.bincount(rows[made.labels], minlength=size).astype(float)
            draws, _ = type_proportions(np.tile(counts, (TYPE_DRAWS, 1, 1)), np.eye(size, dtype=bool), seed)
            low, high = np.quantile(draws[:, 0], (0.05, 0.95), axis=0)
            whole = np.bincount(rows, made.weights, size)
            hits = (low <= whole) & (whole <= high)
            found[name].append(round(float(hits[:-1].mean()), 3))
    return found


def coverage(folder: Path, samples: int) -> Row:
    """Return the share of the 90% intervals that contain the truth, and errors, for each table."""
    tables = simulated_tables(folder)
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
        task = prepare(run, with_quality=True)
        populations = task.find_populations(100, None, None)
        artefacts = find_artefacts(task, populations)
        for name, table in tables.items():
            rows = _rows_of(made.populations, table)
            types = assign_types(task, populations, table, artefacts=artefacts)
            mean, low, high = (np.asarray(each)[0, :-1] for each in types.estimates)
            sample = np.bincount(rows[made.labels], minlength=len(table.types)) / EVENTS
            whole = np.bincount(rows, made.weights, len(table.types))
            found[name].append((whole, mean - sample, (low <= whole) & (whole <= high)))
        print(f"coverage {seed}: {[float(own[-1][2].mean()) for own in found.values()]}")
    return {name: _summary(own, tables[name].types) for name, own in found.items()}


def _rows_of(populations: Sequence[str], table: TypeTable) -> np.ndarray:
    """Return the row of each simulated population."""
    names = [
        name if name in table.types else LINEAGE.get(name.split()[0], name.split()[0]) for name in populations
    ]
    return np.array([table.types.index(name) for name in names])


def _summary(found: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], types: Sequence[str]) -> Row:
    whole, errors, hits = (np.array(each) for each in zip(*found, strict=True))
    chance = np.sqrt(whole[0] * (1.0 - whole[0]) / EVENTS)
    return {
        "types": whole.shape[1],
        "intervals": int(hits.size),
        "whole": round(float(hits.mean()), 3),
        "samples": len(hits),
        "least": round(float(hits.mean(axis=0).min()), 3),
        "by type": dict(zip(types, hits.mean(axis=0).round(3).tolist(), strict=True)),
        "error": round(float(np.median(np.sqrt((errors**2).mean(axis=0)) / chance)), 3),
        "largest error": round(float(np.max(np.sqrt((errors**2).mean(axis=0)) / chance)), 3),
    }


def table_of(results: Row) -> str:
    """Return the table of the page."""
    lines = ["| set | " + " | ".join(WAYS.values()) + " |", "| --- |" + " --- |" * len(WAYS)]
    for name, row in results.get("sets", {}).items():
        cells = [f"{row[way]['accuracy']:.3f}, {row[way]['f1']:.3f}" for way in WAYS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def missing_table(results: Row) -> str:
    """Return the table of missing rows of the page: each set, and the rows below the bar."""
    lines = [
        "| set | rows removed | all their events: unknown | 75% of the events of a row unknown "
        "| or in a row with a flagged cell | median unknown | fit another row, median "
        "| most of other rows lost "
        "| below 75%: unknown, or in a row with a flagged cell (fit another row) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in results.get("missing", {}).items():
        events, caught, told, fit, lost = (
            np.array([own[key] for own in rows.values()])
            for key in ("events", "caught", "told", "fit", "lost")
        )
        below = [
            f"{row} {own['caught']:.0%}, {own['told']:.0%} ({own['fit']:.0%})"
            for row, own in rows.items()
            if own["caught"] < 0.75
        ]
        lines.append(
            f"| `{name}` | {len(rows)} | {events @ caught / events.sum():.0%} "
            f"| {(caught >= 0.75).sum()} | {(told >= 0.75).sum()} "
            f"| {np.median(caught):.0%} | {np.median(fit):.0%} | {lost.max():.1%} | {', '.join(below)} |"
        )
    return "\n".join(lines)


def checks_table(results: Row) -> str:
    """Return the table of planted wrong signs and exchanged channels of the page."""
    lines = [
        "| set | wrong signs found | other cells flagged | flagged in the right table "
        "| exchanged pairs found | cannot be seen | another pair only | found in right data |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in SETS | OTHERS:
        signs, pairs = (results.get(part, {}).get(name) for part in ("signs", "exchanged"))
        first, last = "| |", "| | |"
        if signs:
            first = f"{signs['found']} of {signs['planted']} | {signs['others']} | {signs['right']}"
        if pairs:
            last = f"{pairs['found']} of {pairs['pairs']}"
            last += "".join(f" | {pairs[key]}" for key in ("same", "wrong", "right"))
        if signs or pairs:
            lines.append(f"| `{name}` | {first} | {last} |")
    return "\n".join(lines)


def coverage_table(results: Row) -> str:
    """Return the table of intervals of the page."""
    lines = [
        "| table | types | intervals | contain the share of the whole population | of the worst type "
        "| types known, same samples | types known, all samples "
        "| error in a sample, median and largest type |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, own in results.get("coverage", {}).items():
        known = results["counted"][name]
        lines.append(
            f"| {name} | {own['types']} | {own['intervals']} | {own['whole']:.0%} | {own['least']:.0%} "
            f"| {np.mean(known[: own['samples']]):.0%} | {np.mean(known):.0%} ({len(known)}) "
            f"| {own['error']:.2f}, {own['largest error']:.2f} |"
        )
    return "\n".join(lines)


def page() -> str:
    """Return all tables, for docs/benchmarks/agreement.md."""
    results = kept_results()
    tables = [make(results) for make in (table_of, missing_table, checks_table, coverage_table)]
    return "\n\n".join([*tables, said("cell_types")]) + "\n"


SMALL: dict[str, Callable[[Case], Row]] = {
    "missing": missing_rows,
    "signs": wrong_signs,
    "exchanged": exchanges,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("build/types"))
    parser.add_argument("--only", nargs="*", default=["sets", *SMALL, "counted", "coverage"])
    parser.add_argument("--sets", nargs="*", default=[*SETS, *OTHERS])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of coverage")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    if asked.page:
        print(page())
        return
    for name in asked.sets:
        found: Row = {"sets": measure_set(name, asked.runs)} if "sets" in asked.only else {}
        if parts := [part for part in SMALL if part in asked.only]:
            case = case_of(name, asked.runs)
            found |= {part: SMALL[part](case) for part in parts}
        for part, own in found.items():
            kept = kept_results()
            kept.setdefault(part, {})[name] = own
            write_results("cell_types", kept)
            print(f"{name} {part}: {own}")
    if "counted" in asked.only:
        write_results("cell_types", kept_results() | {"counted": counted(asked.runs / "coverage", SAMPLES)})
    if "coverage" in asked.only:
        own = coverage(asked.runs / "coverage", asked.samples)
        kept = kept_results() | {"coverage": own}
        write_results("cell_types", kept)
        print(f"coverage: {kept['coverage']}")


if __name__ == "__main__":
    main()
