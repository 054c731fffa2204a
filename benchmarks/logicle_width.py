"""Compare gatings with a fitted w of logicle and with w = 0.5, on events with known populations.

    python benchmarks/logicle_width.py            # about 20 minutes
    python benchmarks/logicle_width.py --quick    # 2,000 simulated events, to build/: a check of the script

Each sample is gated twice, by the default config. The first run fits t, w and m of each fluorescence channel
(method `auto`). The second takes t and m from it, and w = 0.5, the default of dpmix 0.1.0. The samples:

- simulated blood (`dpmix simulate`) with the noise of its detectors, and with added normal noise;
- if the folder ../shared exists, labelled files with raw fluorescence, which are not part of this project:
  flowsom_68983, and two samples of gvhd, whose channel numbers of 4 logarithmic decades become linear again.

Scores are those of gating.py: mean F1 after matching one to one, and the adjusted Rand index. The page is
docs/benchmarks/files.md.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from clusterings import Ints
from gating import tools
from in_process import gate_run
from record import ROOT, arguments, read_results, said, write_results

from dpmix import run_mcmc
from dpmix.config.load import parse_config
from dpmix.inputs.fcs_data import write_fcs
from dpmix.inputs.simulate import SCATTER, cytometry_like
from dpmix.runs.reader import open_run

LABELLED = ROOT.parent / "shared" / "data" / "labelled"
FIXED_W = 0.5
NOISE = (0.0, 300.0, 1_000.0)  # standard deviation that is added, in stored units
EVENTS, QUICK_EVENTS = 20_000, 2_000
GVHD = (1, 7)
DECADES, RANGE = 4.0, 1024.0  # of the logarithmic amplifiers of gvhd

Row = dict[str, Any]


class Sample(NamedTuple):
    """A file with known populations, 0 for events outside all of them."""

    name: str
    file: Path
    labels: Ints


def simulated(folder: Path, n_events: int) -> Iterator[Sample]:
    """Yield simulated blood with more and more noise in the fluorescence channels."""
    for number, noise in enumerate(NOISE):
        blood = cytometry_like(n_events, seed=1)
        random = np.random.default_rng(number)
        light = [d for d, name in enumerate(blood.channels) if name not in SCATTER]
        events = blood.events.copy()
        events[:, light] += random.normal(0.0, noise, (n_events, len(light))).astype(np.float32)
        file = folder / f"blood_{number}.fcs"
        replace(blood, events=events).write(file)
        name = f"simulated blood, noise {noise:,.0f} added" if noise else "simulated blood"
        yield Sample(name, file, blood.labels.astype(np.int64) + 1)


def labelled(folder: Path) -> Iterator[Sample]:
    """Yield labelled samples with raw fluorescence, none if their folder is not there."""
    if not LABELLED.exists():
        return
    with (LABELLED / "flowsom_68983_labels.csv").open(newline="") as file:
        words = [row[-1] for row in csv.reader(file) if row]
    codes = {word: code for code, word in enumerate(sorted(set(words) - {"Unlabeled"}), 1)}
    labels = np.array([codes.get(word, 0) for word in words])
    yield Sample("flowsom_68983", LABELLED / "flowsom_68983.fcs", labels)
    with np.load(LABELLED / "gvhd_flowcap1.npz") as gvhd:
        for number in GVHD:
            own = gvhd["sample"] == number
            path = folder / f"gvhd_{number}.fcs"
            linear = 10.0 ** (DECADES * gvhd["events"][own, 2:] / RANGE)
            ends = {f"$P{k}R": f"{10.0**DECADES:.0f}" for k in range(1, 5)}
            write_fcs(path, linear.astype(np.float32), ["FL1-H", "FL2-H", "FL3-H", "FL4-H"], None, ends)
            yield Sample(f"gvhd, sample {number}", path, gvhd["labels"][own].astype(np.int64))


def gated(sample: Sample, folder: Path, transform: Row) -> tuple[Row, list[Row]]:
    """Run and gate a sample; return its scores, and the transforms of its channels."""
    run = folder / "run.h5"
    data = {"files": [str(sample.file)], "transform": transform}
    text = yaml.safe_dump({"data": data, "output": {"path": str(run)}})
    run_mcmc(parse_config(text, sample.name), overwrite=True)
    scores = tools()[1].score(sample.labels, gate_run(run).population)
    opened = open_run(run)
    transforms = opened.scaling["transforms"]
    return scores, [{"channel": name, **own} for name, own in zip(opened.channels, transforms, strict=True)]


def compared(sample: Sample, folder: Path) -> Row:
    """Return the scores of a sample with fitted w and with w = 0.5."""
    fitted, transforms = gated(sample, folder, {})
    fixed: Row = {}
    for own in transforms:
        if own["method"] == "logicle":
            fixed[own["channel"]] = {key: own[key] for key in ("method", "t", "m", "a")} | {"w": FIXED_W}
    widths = [own["w"] for own in transforms if own["method"] == "logicle"]
    scores = {"fitted": fitted, "fixed": gated(sample, folder, fixed)[0]}
    return {"name": sample.name, "events": len(sample.labels), "w": [min(widths), max(widths)], **scores}


def notes() -> str:
    """Return the sentence on machine and date, for the page."""
    return said("logicle_width", packages=("dpmix", "numpy"))


def table() -> str:
    """Return the scores, for the page."""
    head = "| sample | events | fitted w | mean F1, fitted | w = 0.5 | ARI, fitted | w = 0.5 | populations |"
    lines = [head, "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |"]
    for row in read_results("logicle_width")["results"]["samples"]:
        both = row["fitted"], row["fixed"]
        cells = [f"{one[key]:.3f}" for key in ("mean_f1", "ari") for one in both]
        found = ", ".join(str(one["clusters"]) for one in both)
        low, high = row["w"]
        lines.append(
            f"| {row['name']} | {row['events']:,} | {low:.2f} to {high:.2f} | {' | '.join(cells)} | {found} |"
        )
    return "\n".join(lines)


def main() -> None:
    asked = arguments(__doc__).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        samples = [*simulated(folder, QUICK_EVENTS if asked.quick else EVENTS)]
        samples += [] if asked.quick else labelled(folder)
        for sample in samples:
            rows.append(compared(sample, folder))
            print(rows[-1], flush=True)
    write_results("logicle_width", {"samples": rows}, quick=asked.quick)


if __name__ == "__main__":
    main()
