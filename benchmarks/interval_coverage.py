"""Count how often 90% intervals of proportions contain the truth, and how many rare populations are found.

    python benchmarks/interval_coverage.py                                    # the default config
    python benchmarks/interval_coverage.py --set model.coarseness=null       # the exact posterior
    python benchmarks/interval_coverage.py rare --set model.coarseness=null  # rare populations
    python benchmarks/interval_coverage.py table                              # what was measured before

**intervals**: samples of three to five populations of one kind, whose truth is known and whose shape is not
that of the model (except for "gaussian", the control). Found populations and true ones are matched one to
one on F1; a match needs a Jaccard similarity above 1/2. Of the matched ones, the interval should contain the
**mixing proportion**, from which the number of events of each population was drawn. This is the quantity that
dpmix promises an interval for: the proportion among the cells that the sample was taken from. The proportion
among the events of the sample itself is shown, too; it is known more precisely and contained more often.
"width" is the mean width in units of that of a binomial proportion with certain memberships.

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
from typing import Any, NamedTuple

import numpy as np
import yaml
from clusterings import matches
from in_process import Found, gate_run
from populations import Array, Ints, Shape, apart, join, shaped
from record import FOLDER, QUICK_FOLDER, write_results
from threadpoolctl import threadpool_limits

from dpmix.config.load import parse_config
from dpmix.runs.mcmc import run_mcmc

KINDS = ("gaussian", "skewed", "heavy", "bent", "flat", "clipped", "mixed")
SHAPES: tuple[Shape, ...] = ("gaussian", "skewed", "heavy", "bent")  # of the populations of "mixed"
SETTINGS = {
    "model": {"components": 32},
    "mcmc": {"chains": 2, "burn_in": 150, "draws": 100},
    "engine": {"backend": "cpu", "threads": 1},
}
RARE = (0.0005, 0.001, 0.002, 0.003, 0.005)
MAIN = (0.4, 0.3, 0.18)
RARE_EVENTS, RARE_CHANNELS = 40_000, (6, 8, 10)
RARE_SETTINGS = SETTINGS | {"model": {"components": 64}}
NORMAL_90 = 3.29  # width of a 90% interval in standard errors


class Sample(NamedTuple):
    """Simulated events [N, D], the population of each from 0, and the mixing proportions [P]."""

    events: Array
    labels: Ints
    proportions: Array


# -------------------------------------------------------------------------------------- samples


def sample_of(
    kind: str,
    number: int,
    *,
    events: tuple[int, int] = (2_000, 5_000),
    distances: tuple[float, float] = (4.5, 7.0),
    study: str = "",
) -> Sample:
    """Simulate three to five populations in 3 to 6 channels.

    Parameters
    ----------
    kind, number : str, int
        One of `KINDS`, and the number of the sample, which give the random numbers.
    events, distances : tuple of two numbers
        Range of the number of events, and of the least distance of populations, in standard deviations.
    study : str
        Gives other samples of the same kind and number.
    """
    random = np.random.default_rng(zlib.crc32(f"{study}{kind}-{number}".encode()))
    count, dim = random.integers(3, 6), int(random.integers(3, 7))
    n = int(random.integers(events[0], events[1] + 1))
    shares = 0.05 + (1.0 - 0.05 * count) * random.dirichlet(np.full(count, 2.0))
    centres = apart(random, int(count), dim, random.uniform(*distances))
    shapes = [str(random.choice(SHAPES)) if kind == "mixed" else kind for _ in shares]
    return _mixture(random, shares, centres, shapes, n)


def rare_sample(number: int) -> Sample:
    """Simulate three large skewed populations and those of `RARE`, at least 6 deviations apart."""
    random = np.random.default_rng(zlib.crc32(f"rare-{number}".encode()))
    shares = np.array([*MAIN, *RARE])
    shares[0] += 1.0 - shares.sum()
    centres = apart(random, len(shares), RARE_CHANNELS[number % len(RARE_CHANNELS)], 6.0)
    return _mixture(random, shares, centres, ["skewed"] * len(shares), RARE_EVENTS)


def _mixture(
    random: np.random.Generator, shares: Array, centres: Array, shapes: Sequence[str], n: int
) -> Sample:
    """Simulate populations of these shapes around their centres, with random widths."""
    sizes = random.multinomial(n, shares)
    parts = [
        centre + random.uniform(0.7, 1.1) * _shaped(random, shape, size, centres.shape[1])
        for centre, shape, size in zip(centres, shapes, sizes, strict=True)
    ]
    events, labels = join(random, parts)
    return Sample(events, labels - 1, shares)


def _shaped(random: np.random.Generator, shape: Any, size: int, dim: int) -> Array:
    """Return events of a shape: those of populations.py, and "flat", uniform in a ball."""
    if shape != "flat":
        return shaped(random, shape, size, dim)
    directions = random.normal(size=(size, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return np.sqrt(dim + 2.0) * directions * random.uniform(size=(size, 1)) ** (1.0 / dim)


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


def intervals_of(case: tuple[str, int], options: Sequence[str]) -> dict[str, Any]:
    """Measure one sample: counts of intervals that contain the proportions."""
    sample = sample_of(*case)
    with threadpool_limits(1, "blas"):
        found = gate(sample, SETTINGS, options)
    matched = matched_pairs(sample.labels, found.population)
    true, own = (np.array(side, int) for side in zip(*matched, strict=True)) if matched else ([], [])
    n, low, high = len(sample.labels), found.low[own], found.high[own]
    realised = np.bincount(sample.labels, minlength=len(sample.proportions))[true] / n
    mixing = sample.proportions[true]
    usual = NORMAL_90 * np.sqrt(mixing * (1.0 - mixing) / n)
    contained = int(((low <= mixing) & (mixing <= high)).sum())
    right = len(found.low) == len(sample.proportions)
    return {
        "kind": case[0],
        "populations": len(sample.proportions),
        "matched": len(matched),
        "right number": right,
        "mixing": contained,
        "mixing if right": contained if right else 0,
        "matched if right": len(matched) if right else 0,
        "realised": int(((low <= realised) & (realised <= high)).sum()),
        "width": float(((high - low) / usual).sum()),
    }


def rare_of(number: int, options: Sequence[str]) -> dict[str, Any]:
    """Measure one sample with rare populations: which of them are found."""
    sample = rare_sample(number)
    with threadpool_limits(1, "blas"):
        found = gate(sample, RARE_SETTINGS, options)
    matched = {true for true, _ in matched_pairs(sample.labels, found.population)}
    here = [share for number, share in enumerate(RARE, len(MAIN)) if number in matched]
    return {"found": here, "populations": len(found.low)}


def of_kind(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return shares over the samples of a kind."""
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "kind"}
    matched = max(total["matched"], 1)
    return {
        "samples": len(rows),
        "intervals": total["matched"],
        "mixing": round(total["mixing"] / matched, 3),
        "mixing, right number": round(total["mixing if right"] / max(total["matched if right"], 1), 3),
        "realised": round(total["realised"] / matched, 3),
        "width": round(total["width"] / matched, 2),
        "matched": round(total["matched"] / total["populations"], 3),
        "right number": round(total["right number"] / len(rows), 3),
    }


def measure_intervals(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the shares by kind, and over all samples."""
    cases = [(kind, number) for number in range(asked.samples or 32) for kind in asked.kinds]
    rows = list(_each(partial(intervals_of, options=asked.set), cases, asked.jobs))
    by_kind = {kind: of_kind([row for row in rows if row["kind"] == kind]) for kind in asked.kinds}
    wrong = [row for row in rows if row["kind"] != "gaussian"]
    return by_kind | ({"all but gaussian": of_kind(wrong)} if wrong else {})


def measure_rare(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the share of rare populations that are found, by their proportion."""
    rows = list(_each(partial(rare_of, options=asked.set), range(asked.samples or 12), asked.jobs))
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


def table_intervals(measured: dict[str, Any]) -> str:
    """Markdown: coverage by kind, for each config that was measured."""
    lines = [
        "| config | kind | samples | intervals | contain the mixing proportion | in samples with the right "
        "number | contain the sample's | width | populations matched | right number |",
        "|---" * 10 + "|",
    ]
    for config, by_kind in measured.items():
        for kind, row in by_kind.items():
            shares = (f"{row[key]:.0%}" for key in ("mixing", "mixing, right number", "realised"))
            others = (f"{row['width']:.2f}", f"{row['matched']:.0%}", f"{row['right number']:.0%}")
            counts = (f"{row['samples']}", f"{row['intervals']}")
            lines.append(f"| {' | '.join([config, kind, *counts, *shares, *others])} |")
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
    """Return earlier measurements: "intervals" and "rare", by config."""
    path = (QUICK_FOLDER if quick else FOLDER) / "interval_coverage.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    return {"intervals": {}, "rare": {}} | results


def page(what: str) -> str:
    """Markdown: a table of earlier measurements, "intervals" or "rare"."""
    measured = earlier()[what]
    shown = {"intervals": table_intervals, "rare": table_rare}[what]
    return (shown(measured) if measured else "Not measured yet.") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    what = ("intervals", "rare", "table")
    parser.add_argument("what", nargs="?", choices=what, default="intervals")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the config")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="default: all")
    parser.add_argument("--samples", type=int, help="of each kind (32), or rare ones (12); else a trial")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    asked = parser.parse_args()
    trial = asked.samples is not None or asked.kinds != KINDS
    results = earlier(quick=trial)
    if asked.what != "table":
        measure = {"intervals": measure_intervals, "rare": measure_rare}[asked.what]
        results[asked.what][" ".join(asked.set) or "default"] = measure(asked)
        write_results("interval_coverage", results, quick=trial)
    print(table_intervals(results["intervals"]), table_rare(results["rare"]), sep="\n\n")


if __name__ == "__main__":
    main()
