"""Run dpmix on real files with its defaults, and say what its chains agree on.

    python benchmarks/real_runs.py RUNS                  # 15 runs, half an hour on two free cores
    python benchmarks/real_runs.py RUNS --sets hipc      # the results of the other sets stay
    python benchmarks/real_runs.py RUNS --before         # with the posterior of 1.0.0

Every set is run once by its default config and seed 1, and gated: labelled sets (one sample of each, all
channels that labelled.py of the tools gives, as a table), FCS files, and a cohort of 16 files with ten
lineage markers, pooled. Kept are the number of populations above 0.2% of the events, the shares of them whose
proportion has an R-hat below 1.05 and 1.1, the largest R-hat, and the verdict, which the run file
must have, too; of labelled sets also mean F1 and the adjusted Rand index. Runs stay in the folder RUNS, and a
run that is there is not made again. The sets are in ../shared, which is not part of this project.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from clusterings import Ints
from gating import TOOLS, tools
from in_process import gate_run
from labelled_runs import MOST_RHAT, SHARE
from record import DPMIX, FOLDER, plain_arguments, read_results, said, write_results

from dpmix.runs.reader import open_run
from dpmix.runs.verdict import NO_HELP

DATA = TOOLS.parent / "data"
STIMULATED = tuple(f"fcs/G69019FF_{name}_CD4.fcs" for name in ("CMVpp65", "Costim", "SEB"))
FILES = {
    "flowsom_68983": ("labelled/flowsom_68983.fcs",),
    "G69019FF": STIMULATED,
    "100715": ("fcs/100715.fcs",),
    "3FITC_4PE_004": ("fcs/3FITC_4PE_004.fcs",),
}
TABLES = (
    *("hipc", "dlbcl", "gvhd", "pbmc_cytomem", "multicenter_cytof", "barcode", "euroflow"),
    *("euroflow_artefacts", "bodenmiller", "pbmc_himc"),
)
COHORT = "cohort_bcrxl"
LINEAGE = ["CD3", "CD45", "CD4", "CD20", "CD33", "CD123", "CD14", "IgM", "HLA-DR", "CD7"]
SETS = (*FILES, *TABLES, COHORT)
RHATS = (1.05, 1.1)
DEFAULT, BEFORE = "default", "before"
POSTERIOR_BEFORE = {"coarseness": 5000, "full_events": 0}
Row = dict[str, Any]


def data_of(name: str, own: Path) -> Row:
    """Return the section data of the config of a set; write the table of a labelled one."""
    if name in FILES:
        return {"files": [str((DATA / file).resolve()) for file in FILES[name]]}
    if name == COHORT:
        return {"samples": str((DATA / COHORT / "samples.csv").resolve()), "channels": LINEAGE}
    import pyarrow
    import pyarrow.parquet

    events, _, channels, sample = tools()[0].load(name)
    first = events[sample == sample[0]]
    table = pyarrow.table({channel: first[:, d] for d, channel in enumerate(channels)})
    pyarrow.parquet.write_table(table, own / "events.parquet")
    return {"files": [str((own / "events.parquet").resolve())]}


def gates_of(name: str) -> Ints | None:
    """Return the gate of each event of a labelled set, or None."""
    if name not in (*TABLES, "flowsom_68983"):
        return None
    _, gates, _, sample = tools()[0].load(name)
    first: Ints = gates[sample == sample[0]]
    return first


def run_of(name: str, runs: Path, before: bool) -> Path:
    """Make the run of a set, unless it is there."""
    own = runs / "before" / name if before else runs / name
    path = own / "run.h5"
    if path.exists():
        return path
    own.mkdir(parents=True, exist_ok=True)
    config = {"data": data_of(name, own), "seed": 1} | ({"model": POSTERIOR_BEFORE} if before else {})
    (own / "run.yaml").write_text(yaml.safe_dump(config))
    partial = own / "partial.h5"
    subprocess.run(
        [*DPMIX, "mcmc", own / "run.yaml", "--output", partial, "--overwrite", "--quiet"], check=True
    )
    return partial.rename(path)


def measured(run: Path, gates: Ints | None) -> Row:
    """Return what the chains of a run agree on, as `dpmix gate` and `dpmix info` say it."""
    found = gate_run(run)
    if str(open_run(run).verdict) != str(found.verdict):
        raise SystemExit(f"{run}: dpmix info and dpmix gate disagree about the run")
    known = found.r_hat[(found.mean > SHARE) & ~np.isnan(found.r_hat)]
    shares = {f"rhat below {most}": round(float(np.mean(known < most)), 3) for most in RHATS}
    scores = {}
    if gates is not None:
        score = tools()[1].score(gates, found.population + 1)
        scores = {key: round(score[key], 3) for key in ("mean_f1", "ari")}
    return {
        "events": len(found.population),
        "channels": len(open_run(run).channels),
        "populations": len(found.mean),
        "judged": len(known),
        **shares,
        "rhat most": round(min(float(known.max()), MOST_RHAT), 2),
        "verdict": str(found.verdict),
        **scores,
    }


def page() -> str:
    """Return the table of the default, Markdown, from earlier measurements."""
    found = read_results("real_runs")["results"][DEFAULT]
    lines = [
        "| set | events x channels | populations | above 0.2% | R-hat < 1.05 | < 1.1 | largest | verdict |",
        "|---" * 8 + "|",
    ]
    for name, row in found.items():
        shares = " | ".join(f"{row[f'rhat below {most}']:.0%}" for most in RHATS)
        sentence = row["verdict"].replace(f": read these with care; {NO_HELP}", "")
        lines.append(
            f"| {name} | {row['events']:,} x {row['channels']} | {row['populations']} | {row['judged']} | "
            f"{shares} | {row['rhat most']:.2f} | {sentence} |"
        )
    total, means = of_all(found)
    lines.append(f"| all | | | {total} | {' | '.join(means)} | | |")
    return "\n".join([*lines, "", said("real_runs"), ""])


def of_all(found: dict[str, Row]) -> tuple[int, list[str]]:
    """Return the number of populations above 0.2%, and the shares with an R-hat below 1.05 and 1.1."""
    total = sum(row["judged"] for row in found.values())
    below = (sum(row[f"rhat below {most}"] * row["judged"] for row in found.values()) for most in RHATS)
    return total, [f"{share / total:.0%}" for share in below]


def before_page() -> str:
    """Return the table of the posterior of 1.0.0 next to the default, Markdown."""
    results = read_results("real_runs")["results"]
    before, now = results[BEFORE], results[DEFAULT]
    names = [name for name in before if name in now]
    lines = [
        "| set | populations | R-hat < 1.05 | < 1.1 | largest R-hat | mean F1 | ARI to the gates |",
        "|---" * 7 + "|",
    ]
    for name in names:
        rows = before[name], now[name]
        cells = [", ".join(str(row["populations"]) for row in rows)]
        cells += [", ".join(f"{row[f'rhat below {most}']:.0%}" for row in rows) for most in RHATS]
        cells += [", ".join(f"{row['rhat most']:.2f}" for row in rows)]
        for key in ("mean_f1", "ari"):
            cells.append(", ".join(f"{row[key]:.2f}" for row in rows if key in row))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    each = [of_all({name: one[name] for name in names})[1] for one in (before, now)]
    shares = " | ".join(", ".join(pair) for pair in zip(*each, strict=True))
    lines.append(f"| all | | {shares} | | | |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("runs", type=Path, metavar="RUNS", help="folder of the runs")
    parser.add_argument("--sets", default=",".join(SETS), help="sets to measure (default: all)")
    parser.add_argument("--before", action="store_true", help="with the posterior of 1.0.0")
    parser.add_argument("--only-runs", action="store_true", help="make the runs, and measure nothing")
    asked = parser.parse_args()
    names = asked.sets.split(",")
    if unknown := set(names) - set(SETS):
        raise SystemExit(f"--sets: got {', '.join(sorted(unknown))}, need some of {', '.join(SETS)}")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    results = read_results("real_runs")["results"] if (FOLDER / "real_runs.json").exists() else {}
    label = BEFORE if asked.before else DEFAULT
    found = results.get(label, {})
    for name in names:
        run = run_of(name, asked.runs, asked.before)
        print(name, open_run(run).profile, flush=True)
        if not asked.only_runs:
            found[name] = measured(run, gates_of(name))
            print(name, found[name], flush=True)
            results[label] = {name: found[name] for name in SETS if name in found}
            write_results("real_runs", results)
    if not asked.only_runs:
        print(page())


if __name__ == "__main__":
    main()
