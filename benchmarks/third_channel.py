"""Measure what gates in three channels add to gates in two, on events that the gates never saw.

    python benchmarks/third_channel.py            # about 4 minutes; needs the folder ../shared
    python benchmarks/third_channel.py --quick    # 2,000 simulated events, to build/: a check of the script

Populations are those of people (labelled files, which are not part of this project) and those of dpmix in two
files. Gates are found in one half of the events and applied to the other half:

- the sequence in two channels (`dpmix gate --strategy`), but not stopped at an F1 of 0.97;
- the same with the best ellipsoid in three channels: after all gates, instead of the last, or of all. At
  least two of its channels are those of the gates; it is chosen by F1 in the first half.

An ellipsoid is better or worse if F1 in the second half differs by more than 0.01, and the number of events
on the right side by two standard errors. Events outside all labelled populations should stay outside the
gates. The page is docs/benchmarks/files.md.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import yaml
from clusterings import Ints
from in_process import gate_run
from record import ROOT, arguments, read_results, said, write_results

from dpmix import run_mcmc
from dpmix.config.load import parse_config
from dpmix.inputs.simulate import cytometry_like
from dpmix.populations import strategy
from dpmix.populations.polygons import Binned, f_measure
from dpmix.populations.strategy import Gates, Search, Totals
from dpmix.populations.task import prepare

DATA = ROOT.parent / "shared" / "data"
LABELLED = (
    ("hipc_stanford_1228", None, None, -1),
    ("pbmc_cytomem", None, 15.0, -1),
    ("multicenter_cytof_01-08", 1, 5.0, 0),
    ("gvhd_flowcap1", 1, None, 0),
    ("barcode_flowpeaks", None, None, -1),
    ("euroflow_optimal", 16, None, -1),
)  # file, sample, cofactor of arcsinh, label of events outside all populations
OWN = ("labelled/flowsom_68983.fcs", "fcs/G69019FF_SEB_CD4.fcs")
LEAST = 40  # events of a population
GAIN, STANDARD_ERRORS = 0.01, 2.0
SEED = 1

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Sample = tuple[str, Array, Ints]
Row = dict[str, Any]


@dataclass(frozen=True)
class Ellipsoid:
    """Points whose squared Mahalanobis distance in three channels is at most `distance`."""

    channels: tuple[int, ...]
    centre: Array
    precision: Array
    distance: float

    def distances(self, values: Array) -> Array:
        away = values[:, self.channels] - self.centre
        found: Array = np.einsum("mi,ij,mj->m", away, self.precision, away)
        return found

    def contains(self, values: Array) -> Flags:
        inside: Flags = self.distances(values) <= self.distance
        return inside


def samples(quick: bool) -> Iterator[Sample]:
    """Yield names, transformed values and populations of events, -1 outside all."""
    if quick:
        blood = cytometry_like(2_000, seed=1)
        yield "simulated blood", np.arcsinh(blood.events / 150.0), blood.labels.astype(np.int64)
        return
    for name, number, cofactor, ungated in LABELLED:
        with np.load(DATA / "labelled" / f"{name}.npz") as stored:
            chosen = np.ones(len(stored["labels"]), bool) if number is None else stored["sample"] == number
            values = stored["events"][chosen].astype(np.float64)
            labels, codes = np.unique(stored["labels"][chosen], return_inverse=True)
        if labels.dtype.kind != "U":
            codes = np.where(labels[codes] == ungated, -1, codes)
        yield name, values if cofactor is None else np.arcsinh(values / cofactor), codes.astype(np.int64)
    for name in OWN:
        yield own_populations(name)


def own_populations(name: str) -> Sample:
    """Run and gate a file by the default config."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run.h5"
        text = yaml.safe_dump({"data": {"files": [str(DATA / name)]}, "output": {"path": str(run)}})
        run_mcmc(parse_config(text, name))
        events = prepare(run, output=run.parent / "gated").events_without_noise()
        values = events.scaling.to_transformed(events.values[np.arange(len(events.values))])
        return f"{Path(name).stem}, populations of dpmix", values, gate_run(run).population


def inside(gates: tuple[Any, ...], values: Array) -> Flags:
    """Return which events are inside all gates."""
    chosen = np.arange(len(values))
    for gate in gates:
        chosen = chosen[gate.contains(values[chosen])]
    return np.isin(np.arange(len(values)), chosen)


def f1_of(gated: Flags, own: Flags) -> float:
    return float(f_measure((gated & own).sum(), gated.sum(), own.sum()))


def with_ellipsoid(values: Array, own: Flags, gates: Gates) -> tuple[Any, ...]:
    """Return the best sequence with an ellipsoid, by F1; the gates themselves where no ellipsoid exists."""
    known = {channel for gate in gates for channel in gate.channels}
    best: tuple[float, tuple[Any, ...]] = (0.0, gates)
    for start in {0, len(gates) - 1, len(gates)}:
        left = np.flatnonzero(inside(gates[:start], values))
        points, mine = values[left], own[left]
        for channels in itertools.combinations(range(values.shape[1]), 3):
            if len(known.intersection(channels)) < 2 or mine.sum() < 20:
                continue
            covariance = np.cov(points[mine][:, channels].T)
            if not np.linalg.det(covariance) > 1e-6 * covariance.diagonal().prod():
                continue
            centre = points[mine][:, channels].mean(0)
            whole = Ellipsoid(channels, centre, np.linalg.inv(covariance), np.inf)
            distances = whole.distances(points)
            order = np.argsort(distances)
            scores = f_measure(np.cumsum(mine[order]), np.arange(1, len(order) + 1), own.sum())
            if (f1 := float(scores.max())) > best[0]:
                edge = float(distances[order[int(scores.argmax())]])
                best = f1, (*gates[:start], Ellipsoid(channels, centre, whole.precision, edge))
    return best[1]


def measured(name: str, values: Array, populations: Ints) -> Row:
    """Return F1 in the second half of both kinds of gates of each population, and which is better."""
    first = np.random.default_rng(SEED).random(len(populations)) < 0.5
    ends = values.min(0), values.max(0)
    binned = Binned.of(values[first], np.ones(int(first.sum())), *ends)
    totals, found = Totals(binned), []
    for code in sorted({*populations.tolist()} - {-1}):
        own = populations == code
        if own.sum() < LEAST:
            continue
        with patch.object(strategy, "ENOUGH", 1.0):
            gates = Search(binned, own[first], totals).best()
        kinds = gates, with_ellipsoid(values[first], own[first], gates)
        two, three = (inside(kind, values[~first]) for kind in kinds)
        true = own[~first]
        f1 = [f1_of(two, true), f1_of(three, true)]
        gain = (three == true).astype(np.int64) - (two == true)
        sure = abs(gain.sum()) >= STANDARD_ERRORS * np.sqrt(np.abs(gain).sum())
        change = f1[1] - f1[0]
        better = int(np.sign(change)) if sure and abs(change) > GAIN else 0
        found.append({"f1": f1, "better": better, "gates": [len(kind) for kind in kinds]})
    return {"name": name, "populations": found}


def notes() -> str:
    """Return the sentence on machine and date, for the page."""
    return said("third_channel", packages=("dpmix", "numpy"))


def table() -> str:
    """Return one row for each sample, for the page."""
    head = "| sample | populations | mean F1, two channels | with an ellipsoid in three | better | worse |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in read_results("third_channel")["results"]["samples"]:
        found = row["populations"]
        means = " | ".join(f"{x:.3f}" for x in np.mean([one["f1"] for one in found], axis=0))
        counts = [sum(one["better"] == sign for one in found) for sign in (1, -1)]
        lines.append(f"| {row['name']} | {len(found)} | {means} | {counts[0]} | {counts[1]} |")
    return "\n".join(lines)


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    rows = []
    for sample in samples(quick):
        rows.append(measured(*sample))
        changed = [one for one in rows[-1]["populations"] if one["better"]]
        print(rows[-1]["name"], len(rows[-1]["populations"]), changed, flush=True)
    write_results("third_channel", {"samples": rows}, quick=quick)


if __name__ == "__main__":
    main()
