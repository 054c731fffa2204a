"""Measure how fast cell types on the page of dpmix app follow a change of their table.

    python benchmarks/app_types.py [--quick]

Real events with a table of their own (../shared, which is not part of this project), in runs of 64 components
and 10 draws after 60 sweeps. "First" is the time until the page has what does not depend on the table, once
for a run. "Change" is a cell of the table that becomes silent: from the call of the page to the answer, which
has the types of up to 20,000 events and of all populations. The median and the longest are over ten cells.
Processor seconds are their mean. "Same names" is the share of these events with the name that
`dpmix gate --types` gives them. Takes five minutes of a core; `--quick` measures the smallest set.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml
from gating import TOOLS, tools
from record import arguments, read_results, said, write_results

from dpmix.app.cell_types import types_path
from dpmix.app.workspace import Workspace
from dpmix.config.load import load_config
from dpmix.inputs.type_table import match_markers, read_types
from dpmix.populations.draws.find import DRAWS
from dpmix.populations.draws.task import prepare
from dpmix.populations.marks import find_artefacts
from dpmix.populations.types.assign import assign_types
from dpmix.runs.mcmc import run_mcmc

SETS = ("hipc", "pbmc_himc", "flowsom_68983")
CHANGES = 10


def make_run(name: str, folder: Path) -> Path:
    """Write the events of a set, and make a short run; return the run file."""
    labelled, _ = tools()
    events, _, channels, _ = labelled.load(name)
    pandas.DataFrame(events, columns=channels).to_parquet(folder / "events.parquet")
    config = {
        "data": {"files": [str(folder / "events.parquet")]},
        "model": {"components": 64},
        "mcmc": {"chains": 1, "burn_in": 60, "draws": 10, "until": None},
        "output": {"path": str(folder / "run.h5")},
        "seed": 1,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    assert run_mcmc(load_config(folder / "run.yaml")).completed
    return folder / "run.h5"


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return seconds, and the share of events with the same name."""
    run = make_run(name, folder)
    (folder / "table.csv").write_bytes((TOOLS.parent / "data" / "tables" / f"{name}.csv").read_bytes())
    page = Workspace(folder)
    page.open("run.h5")
    began = time.perf_counter()
    shown = page.types("run.h5")
    first = time.perf_counter() - began
    shown = page.load_types("run.h5", shown["revision"], "table.csv")
    table = read_types(types_path(run))
    task = prepare(run, (), ("engine.threads=1",), with_quality=True)
    found = task.find_populations(DRAWS, None, None)
    types = assign_types(task, found, table, artefacts=find_artefacts(task, found))
    live, drawn = page._opened_drawn("run.h5")
    of_event = page._opened_types("run.h5").of_event
    same = float((types.of_event[live.rows[drawn.rows]] == of_event).mean())
    seconds, used, before = [], time.process_time(), shown["lines"]
    cells = [(r, c) for r, line in enumerate(before[1:], 1) for c, cell in enumerate(line[2:], 2) if cell]
    for r, c in (cells[k] for k in np.linspace(0, len(cells) - 1, CHANGES).astype(int)):
        lines = [[*line] for line in before]
        lines[r][c] = ""
        began = time.perf_counter()
        shown = page.edit_types("run.h5", shown["revision"], lines)
        seconds.append(time.perf_counter() - began)
    return {
        "events": len(drawn.rows),
        "rows": len(table.types),
        "markers": int((match_markers(table, drawn.channels)[0] >= 0).sum()),
        "first": first,
        "median": float(np.median(seconds)),
        "longest": max(seconds),
        "processor": (time.process_time() - used) / CHANGES,
        "same": same,
    }


def page() -> str:
    """Return the table of docs/benchmarks/app.md."""
    lines = [
        "| set | events | table | first | change: median | longest | processor | same names |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in read_results("app_types")["results"].items():
        times = " | ".join(f"{own[key]:.2g} s" for key in ("first", "median", "longest", "processor"))
        lines.append(
            f"| {name} | {own['events']:,} | {own['rows']} x {own['markers']} | {times} | {own['same']:.1%} |"
        )
    return "\n".join([*lines, "", said("app_types", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    results = {}
    for name in SETS[-1:] if given.quick else SETS:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(name, Path(folder))
            print(name, results[name], flush=True)
    write_results("app_types", results, quick=given.quick)


if __name__ == "__main__":
    main()
