"""Count how often 90% intervals of proportions contain the truth, and how many rare populations are found.

    python benchmarks/interval_coverage.py                                    # the default config, an hour
    python benchmarks/interval_coverage.py --kinds skewed --events 5000 --samples 12   # more of one cell
    python benchmarks/interval_coverage.py --events 5000 20000 --set model.coarseness=null   # exact posterior
    python benchmarks/interval_coverage.py rare --set model.coarseness=null  # rare populations
    python benchmarks/interval_coverage.py table                              # what was measured before

**intervals**: samples with one large population and up to six others of 0.3% to 30%, in 4 to 12 channels;
their centres are at least 3.5 to 6 standard deviations apart. Found populations and true ones are matched one
to one on F1; a match needs a Jaccard similarity above 1/2. Of the matched ones, the interval should contain
the **mixing proportion**, from which the number of events of each population was drawn. This is the quantity
that dpmix promises an interval for: the proportion among the cells that the sample was taken from. "Draws
alone" are the intervals of the same runs without the uncertainty of shapes
(`dpmix.populations.events.borders`). "width" is the median width relative to these, and "half width" the
median of half the width relative to the proportion. Each sample is kept under its number: `--samples`
measures those that a cell lacks. "all" is the mean over the kinds. "expected" is the share that would be
contained on average over the number of events that other samples have of each population (`expected`).

**rare**: samples with populations of 0.05% to 0.5%; the share that is found, by the same rule of a match.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import yaml
from clusterings import matches
from in_process import Found, gate_run
from populations import Array, Ints, Shape, apart, join, shaped
from record import FOLDER, QUICK_FOLDER, arguments, write_results
from threadpoolctl import threadpool_limits

from dpmix.config.load import parse_config
from dpmix.populations.events.estimates import INTERVAL
from dpmix.runs.mcmc import run_mcmc

KINDS = ("gaussian", "skewed", "heavy", "bent", "mixed")
SHAPES: tuple[Shape, ...] = ("gaussian", "skewed", "heavy", "bent")  # of the populations of "mixed"
SIZES = (5_000, 20_000, 100_000)  # events
SHARES, MOST_SMALL = (0.003, 0.3), 6  # of the populations but the largest, and their number
DISTANCES, CHANNELS = (3.5, 6.0), (4, 6, 8, 12)
LARGE = 50  # events of a population that should be matched
SETTINGS: dict[str, Any] = {"engine": {"backend": "cpu"}}
RARE = (0.0005, 0.001, 0.002, 0.003, 0.005)
MAIN = (0.4, 0.3, 0.18)
RARE_EVENTS, RARE_CHANNELS, RARE_SAMPLES = 40_000, (6, 8, 10), 12
RARE_SETTINGS = {
    "model": {"components": 64},
    "mcmc": {"chains": 2, "burn_in": 150, "draws": 100},
    "engine": {"backend": "cpu", "threads": 1},
}


class Sample(NamedTuple):
    """Simulated events [N, D], the population of each from 0, and the mixing proportions [P]."""

    events: Array
    labels: Ints
    proportions: Array


# -------------------------------------------------------------------------------------- samples


def sample_of(kind: str, n: int, number: int) -> Sample:
    """Simulate a sample of one of `KINDS`, with n events; the arguments give its random numbers."""
    random = np.random.default_rng(zlib.crc32(f"{kind}-{n}-{number}".encode()))
    dim = int(random.choice(CHANNELS))
    small = np.exp(random.uniform(*np.log(SHARES), MOST_SMALL))
    small = small[np.cumsum(small) < 0.6]
    shares = np.concatenate([[1.0 - small.sum()], small])
    centres = apart(random, len(shares), dim, random.uniform(*DISTANCES))
    shapes = [str(random.choice(SHAPES)) if kind == "mixed" else kind for _ in shares]
    return _mixture(random, shares, centres, shapes, n)


def rare_sample(number: int) -> Sample:
    """Simulate three large skewed populations and the populations of `RARE`, at least 6 deviations apart."""
    random = np.random.default_rng(zlib.crc32(f"rare-{number}".encode()))
    shares = np.array([*MAIN, *RARE])
    shares[0] += 1.0 - shares.sum()
    centres = apart(random, len(shares), RARE_CHANNELS[number % len(RARE_CHANNELS)], 6.0)
    return _mixture(random, shares, centres, ["skewed"] * len(shares), RARE_EVENTS)


def _mixture(
    random: np.random.Generator, shares: Array, centres: Array, shapes: Sequence[Any], n: int
) -> Sample:
    """Simulate populations of these shapes around their centres, with random widths."""
    sizes = random.multinomial(n, shares)
    parts = [
        centre + random.uniform(0.7, 1.1) * shaped(random, shape, size, centres.shape[1])
        for centre, shape, size in zip(centres, shapes, sizes, strict=True)
    ]
    events, labels = join(random, parts)
    return Sample(events, labels - 1, shares)


# ------------------------------------------------------------------------------------ measuring


@contextmanager
def run_on(sample: Sample, settings: dict[str, Any], options: Sequence[str] = ()) -> Iterator[Path]:
    """Run MCMC on a sample; the run file is there within the context."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "events.npy", sample.events.astype(np.float32))
        data = {"files": [str(folder / "events.npy")], "transform": {"default": {"method": "linear"}}}
        text = yaml.safe_dump(settings | {"data": data, "output": {"path": str(folder / "run.h5")}})
        run_mcmc(parse_config(text, "coverage", options))
        yield folder / "run.h5"


def gate(sample: Sample, settings: dict[str, Any], options: Sequence[str]) -> Found:
    """Run MCMC on a sample and gate it."""
    with run_on(sample, settings, options) as run:
        return gate_run(run)


def matched_pairs(labels: Ints, population: Ints) -> list[tuple[int, int]]:
    """Return pairs of a true and a found population, as `clusterings.matches`."""
    table = np.zeros((labels.max() + 1, population.max() + 1), np.int64)
    np.add.at(table, (labels, population), 1)
    return matches(table)


def intervals_of(case: tuple[str, int, int], options: Sequence[str]) -> dict[str, Any]:
    """Measure one sample: whether the intervals of matched populations contain the truth, and widths."""
    sample = sample_of(*case)
    with threadpool_limits(1, "blas"):
        found = gate(sample, SETTINGS, options)
    alone = [ends[0] for ends in np.quantile(found.draws_alone, INTERVAL, axis=0, method="weibull")]
    rows, pairs = [], matched_pairs(sample.labels, found.population)
    for true, own in pairs:
        truth = float(sample.proportions[true])
        ends = found.low[own], found.mean[own], found.high[own]
        wider = (found.high[own] - found.low[own]) / (alone[1][own] - alone[0][own])
        rows.append(
            {
                "proportion": round(truth, 5),
                "counted": round(float(np.mean(sample.labels == true)), 5),
                **{key: round(float(end), 5) for key, end in zip(("low", "mean", "high"), ends, strict=True)},
                "contained": bool(found.low[own] <= truth <= found.high[own]),
                "alone": bool(alone[0][own] <= truth <= alone[1][own]),
                "width": round(float(wider), 3),
            }
        )
    kind, events, number = case
    about = {"kind": kind, "events": events, "number": number, "channels": sample.events.shape[1]}
    counted = np.bincount(sample.labels, minlength=len(sample.proportions))
    missed = np.delete(counted, [true for true, _ in pairs]).tolist()
    about |= {"true": len(counted), "found": len(found.low)}
    return about | {"events of unmatched": missed, "rows": rows}


def rare_of(number: int, options: Sequence[str]) -> dict[str, Any]:
    """Measure one sample with rare populations: which of them are found."""
    sample = rare_sample(number)
    with threadpool_limits(1, "blas"):
        found = gate(sample, RARE_SETTINGS, options)
    matched = {true for true, _ in matched_pairs(sample.labels, found.population)}
    here = [share for number, share in enumerate(RARE, len(MAIN)) if number in matched]
    return {"found": here, "populations": len(found.low)}


def of_cell(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return shares over the samples of one kind and size."""
    rows = [row | {"events": sample["events"]} for sample in samples for row in sample["rows"]]
    large = sum(row["counted"] * row["events"] >= LARGE for row in rows)
    missed = sum(events >= LARGE for sample in samples for events in sample["events of unmatched"])
    return {
        "samples": len(samples),
        "intervals": len(rows),
        "contained": round(float(np.mean([row["contained"] for row in rows])), 3),
        "expected": round(float(np.mean([expected(row) for row in rows])), 3),
        "alone": round(float(np.mean([row["alone"] for row in rows])), 3),
        "width": round(float(np.median([row["width"] for row in rows])), 2),
        "half width": round(
            float(np.median([(row["high"] - row["low"]) / 2.0 / row["proportion"] for row in rows])), 3
        ),
        "matched": round(len(rows) / sum(sample["true"] for sample in samples), 3),
        "large matched": [large, large + missed],
    }


def expected(row: dict[str, Any]) -> float:
    """Return the probability that the interval contains the proportion, had other events been sampled.

    The number of events of a population is binomial. An interval is taken to move with this number, and its
    error at the borders to stay.
    """
    sd = (row["proportion"] * (1.0 - row["proportion"]) / row["events"]) ** 0.5
    low, high = (NormalDist(row["counted"], sd).cdf(row[end]) for end in ("low", "high"))
    return high - low


def of_size(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums, and the means of the shares, over the cells of one size."""
    sums = {key: sum(cell[key] for cell in cells) for key in ("samples", "intervals")}
    means = {
        key: round(float(np.mean([cell[key] for cell in cells])), 3)
        for key in ("contained", "alone", "width", "matched")
    }
    return sums | means


def cells_of(results: dict[str, Any], config: str) -> dict[str, Any]:
    """Return the shares by kind and size: of the samples that are kept, or else those measured earlier."""
    cells = dict(results["intervals"].get(config, {}))
    samples = results["samples"].get(config, [])
    for kind, n in {(sample["kind"], sample["events"]) for sample in samples}:
        own = [sample for sample in samples if (sample["kind"], sample["events"]) == (kind, n)]
        name = f"{kind}, {n:,}"
        # Earlier shares stay until as many samples are measured again.
        if len(own) >= cells.get(name, {"samples": 0})["samples"]:
            cells[name] = of_cell(own)
    return cells


def measure_intervals(asked: argparse.Namespace, results: dict[str, Any]) -> None:
    """Add the samples that the cells asked for lack; keep the results after each."""
    config = " ".join(asked.set) or "default"
    chosen = [(kind, n) for n in sorted(asked.events) for kind in asked.kinds]
    kept = [
        sample
        for sample in results["samples"].get(config, [])
        if not (asked.again and (sample["kind"], sample["events"]) in chosen)
    ]
    there = {(sample["kind"], sample["events"], sample["number"]) for sample in kept}
    cases = [(*cell, k) for k in range(asked.samples) for cell in chosen if (*cell, k) not in there]
    for sample in _each(partial(intervals_of, options=asked.set), cases, asked.jobs):
        kept.append(sample)
        results["samples"][config] = sorted(kept, key=lambda s: (s["events"], s["kind"], s["number"]))
        results["intervals"][config] = cells_of(results, config)
        write_results("interval_coverage", results, quick=asked.quick)


def measure_rare(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the share of rare populations that are found, by their proportion."""
    rows = list(_each(partial(rare_of, options=asked.set), range(RARE_SAMPLES), asked.jobs))
    recall = {f"{s:.2%}": round(float(np.mean([s in row["found"] for row in rows])), 3) for s in RARE}
    mean = round(float(np.mean(list(recall.values()))), 3)
    numbers = [row["populations"] for row in rows]
    true = len(MAIN) + len(RARE)
    return {"samples": len(rows), **recall, "mean": mean, "true": true, "populations": numbers}


def _each(measure: Any, cases: Iterable[Any], jobs: int) -> Iterable[Any]:
    """Measure each case, several at a time; report progress."""
    cases = list(cases)
    with ProcessPoolExecutor(jobs) as pool:
        for done, row in enumerate(pool.map(measure, cases), 1):
            print(f"{done} of {len(cases)}: {row}", flush=True)
            yield row


# -------------------------------------------------------------------------------------- showing


def table_intervals(results: dict[str, Any]) -> str:
    """Markdown: coverage by kind and size, for each config that was measured."""
    lines = [
        "| config | kind, events | samples | intervals | contain the mixing proportion | expected | "
        "draws alone | relative width | half width | populations matched | of 50 events or more |",
        "|---" * 11 + "|",
    ]

    def line(title: str, row: dict[str, Any]) -> None:
        # By Agresti and Coull (1998): with all or none contained, the error is not 0 either.
        share = (row["contained"] * row["intervals"] + 2.0) / (row["intervals"] + 4.0)
        error = (share * (1.0 - share) / (row["intervals"] + 4.0)) ** 0.5
        other = f"{row['expected']:.0%}" if "expected" in row else ""
        half = f"{row['half width']:.1%}" if "half width" in row else ""
        large = "{} of {}".format(*row["large matched"]) if "large matched" in row else ""
        lines.append(
            f"| {title} | {row['samples']} | {row['intervals']} | {row['contained']:.0%} ± {error:.0%} | "
            f"{other} | {row['alone']:.0%} | {row['width']:.2f} | {half} | {row['matched']:.0%} | {large} |"
        )

    for config in dict.fromkeys([*results["intervals"], *results["samples"]]):
        cells = cells_of(results, config)
        for kind in KINDS:
            for n in SIZES:
                if row := cells.get(f"{kind}, {n:,}"):
                    line(f"{config} | {kind} {n:,}", row)
        for n in SIZES:
            if of := [cells[name] for kind in KINDS if (name := f"{kind}, {n:,}") in cells]:
                line(f"{config} | all {n:,}", of_size(of))
    return "\n".join(lines)


def table_rare(measured: dict[str, Any]) -> str:
    """Markdown: recall of rare populations, for each config that was measured."""
    heads = [f"{share:.2%}" for share in RARE]
    lines = [f"| config | samples | {' | '.join(heads)} | mean | populations found, true |"]
    lines.append("|---" * (len(heads) + 4) + "|")
    for config, row in measured.items():
        shares = " | ".join(f"{row[key]:.0%}" for key in (*heads, "mean"))
        numbers = f"{np.mean(row['populations']):.1f}, {row['true']}"
        lines.append(f"| {config} | {row['samples']} | {shares} | {numbers} |")
    return "\n".join(lines)


def earlier(*, quick: bool = False) -> dict[str, Any]:
    """Return earlier measurements by config: "intervals", the "samples" of these, and "rare"."""
    path = (QUICK_FOLDER if quick else FOLDER) / "interval_coverage.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    return {"intervals": {}, "samples": {}, "rare": {}} | results


def page(what: str) -> str:
    """Markdown: a table of earlier measurements, "intervals" or "rare"."""
    results = earlier()
    return (table_intervals(results) if what == "intervals" else table_rare(results["rare"])) + "\n"


def main() -> None:
    parser = arguments(__doc__)
    what = ("intervals", "rare", "table")
    parser.add_argument("what", nargs="?", choices=what, default="intervals")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the config")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    parser.add_argument("--events", nargs="+", type=int, default=SIZES, help="of a sample (default: all)")
    parser.add_argument("--samples", type=int, default=4, help="of each kind and size (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="measure the samples that are there again")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    asked = parser.parse_args()
    if asked.quick:
        asked.events, asked.samples = SIZES[:1], 1
    results = earlier(quick=asked.quick)
    if asked.what == "intervals":
        measure_intervals(asked, results)
    elif asked.what == "rare":
        results["rare"][" ".join(asked.set) or "default"] = measure_rare(asked)
        write_results("interval_coverage", results, quick=asked.quick)
    print(table_intervals(results), table_rare(results["rare"]), sep="\n\n")


if __name__ == "__main__":
    main()
