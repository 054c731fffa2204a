"""Measure which populations dpmix gate marks as debris, doublets or dead cells, on sets with manual gates.

    python benchmarks/artefacts.py                  # minutes on two free cores; needs the folder ../shared
    python benchmarks/artefacts.py --seeds 1

Every run has the default config. Of the samples of euroflow (tables with FSC-A and SSC-A, in the model as in
the other benchmarks, without height or a viability stain) the gates name debris and doublets. Of
flowsom_68983 (area, height and a viability stain, which the model does not see) and gvhd (height alone, in
the model) they name cells only: an event outside all gates may be a cell of another type. "found" is the
share of the artefacts that lie in marked populations, "lost" is the share of the cells. The gates of gvhd
have one "cell" gate for all events without a marker, debris included: in sample 9 these 44% of the events
start at the limit of detection of forward scatter and half of them are below 111, where other cells have 450
to 650. The rules were chosen with euroflow_artefacts, flowsom_68983 and gvhd in view; the samples of
euroflow_optimal were not looked at.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet
import yaml
from clusterings import Events
from gating import TOOLS
from record import DPMIX, plain_arguments, read_results, said, write_results

LABELLED = TOOLS.parent / "data" / "labelled"
ARTEFACTS = ("debris", "doublet", "other type of")  # in names of labels
Row = dict[str, Any]
Flags = npt.NDArray[np.bool_]


def euroflow_artefacts(folder: Path) -> tuple[Row, Flags, Flags]:
    """Return the settings of the data, and which events are artefacts and cells, bool [N]."""
    with np.load(LABELLED / "euroflow_artefacts.npz") as file:
        names = file["label_names"][file["labels"]]
        return _table(folder, file["channels"], file["events"], names)


def euroflow(folder: Path, sample: int) -> tuple[Row, Flags, Flags]:
    """Return `euroflow_artefacts` for another sample."""
    with np.load(LABELLED / "euroflow_optimal.npz") as file:
        own = file["sample"] == sample
        return _table(folder, file["channels"], file["events"][own], file["labels"][own])


def _table(
    folder: Path, channels: npt.NDArray[np.str_], events: Events, names: npt.NDArray[np.str_]
) -> tuple[Row, Flags, Flags]:
    path = folder / "events.csv"
    np.savetxt(path, events, "%.6g", ",", header=",".join(channels), comments="")
    names = np.char.lower(names)
    is_artefact: Flags = np.any([np.char.find(names, word) >= 0 for word in ARTEFACTS], axis=0)
    is_cell = ~is_artefact & (names != "events")
    return {"files": [str(path)], "channels": [str(name) for name in channels]}, is_artefact, is_cell


def gvhd(folder: Path, sample: int) -> tuple[Row, Flags, Flags]:
    """Return `euroflow_artefacts` for a sample in which no event is known to be an artefact."""
    with np.load(LABELLED / "gvhd_flowcap1.npz") as file:
        own = file["sample"] == sample
        names = file["labels"][own].astype(str)
        settings, none, _ = _table(folder, file["channels"], file["events"][own], names)
    return settings, none, names != "0"


def flowsom(folder: Path) -> tuple[Row, Flags, Flags]:
    """Return `gvhd` for the FCS file."""
    with (LABELLED / "flowsom_68983_labels.csv").open(newline="") as file:
        names = np.array([row[-1] for row in csv.reader(file) if row])
    is_cell = names != "Unlabeled"
    return {"files": [str(LABELLED / "flowsom_68983.fcs")]}, np.zeros_like(is_cell), is_cell


SETS: dict[str, Callable[[Path], tuple[Row, Flags, Flags]]] = {
    "euroflow_artefacts": euroflow_artefacts,
    "flowsom_68983": flowsom,
    "euroflow, sample 16": partial(euroflow, sample=16),
    "euroflow, sample 36": partial(euroflow, sample=36),
    "gvhd, sample 1": partial(gvhd, sample=1),
    "gvhd, sample 7": partial(gvhd, sample=7),
    "gvhd, sample 9": partial(gvhd, sample=9),
}


def measure(name: str, seed: int, folder: Path) -> Row:
    """Run, gate, and compare the marked populations with the manual gates."""
    data, is_artefact, is_cell = SETS[name](folder)
    run, config, output = folder / "run.h5", folder / "run.yaml", folder / "gated"
    config.write_text(yaml.safe_dump({"data": data, "output": {"path": str(run)}, "seed": seed}))
    for words in (("mcmc", config), ("gate", run, "--output", output)):
        subprocess.run([*DPMIX, *words, "--quiet", "--overwrite"], check=True)
    table = pyarrow.parquet.read_table(output / "events.parquet", columns=["event", "population"])
    population = np.empty(len(is_cell), np.int64)
    population[table["event"].to_numpy()] = table["population"].to_numpy()
    with (output / "populations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    marked = np.array(["", *(row["artefact"] for row in rows)])[population]
    found: Row = {
        "set": name,
        "seed": seed,
        "populations": len(rows),
        "marked": {
            kind: {
                "populations": sum(row["artefact"] == kind for row in rows),
                "events": float((marked == kind).mean()),
                "in_no_cell_gate": float((~is_cell)[marked == kind].mean()),
            }
            for kind in sorted({row["artefact"] for row in rows} - {""})
        },
        "found": float((marked != "")[is_artefact].mean()) if is_artefact.any() else None,
        "lost": float((marked != "")[is_cell].mean()),
    }
    print(found, flush=True)
    return found


def page() -> str:
    """Return the table for docs/benchmarks/agreement.md."""
    rows = read_results("artefacts")["results"]["sets"]
    lines = [
        "| set | seed | populations | marked: populations, events, of these in no gate of cells | "
        "artefacts found | cells lost |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        marked = [
            f"{kind}: {own['populations']}, {own['events']:.1%}, {own['in_no_cell_gate']:.0%}"
            for kind, own in row["marked"].items()
        ]
        found = "" if row["found"] is None else f"{row['found']:.1%}"
        cells = [row["set"], row["seed"], row["populations"], "; ".join(marked), found, f"{row['lost']:.2%}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", said("artefacts"), ""])


def main() -> None:
    """Measure all sets and write results/artefacts.json."""
    parser = plain_arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    if not LABELLED.is_dir():
        sys.exit(f"{LABELLED} is missing: the labelled sets are not part of this project")
    rows = []
    for name in SETS:
        for seed in range(1, asked.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(name, seed, Path(folder)))
    write_results("artefacts", {"sets": rows})


if __name__ == "__main__":
    main()
