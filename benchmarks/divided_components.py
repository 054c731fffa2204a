"""Measure what dividing components between populations does to R-hat and to intervals.

    python benchmarks/gating.py --only dpmix --seeds 5 --runs RUNS   # makes the runs
    python benchmarks/divided_components.py RUNS                     # 20 minutes on two cores
    python benchmarks/divided_components.py RUNS --samples 2         # a trial, to build/benchmarks

Everything is measured twice on the same draws: with components that count for one population as a whole,
and divided where they lie in several (`dpmix.populations.divisions`).

**labelled**: the run of seed 1 of each sample of the labelled sets (gating.py). Share of the populations of
at least 0.2% of the events whose proportion has an R-hat below 1.1 and 1.05; smallest effective sample size.

**close**: simulated samples as in interval_coverage.py, but with populations 2.8 to 4.2 deviations apart, so
that many components lie in several, and 5,000 to 20,000 events. Coverage of 90% intervals of the mixing
proportion, their width in units of that of a binomial proportion with certain memberships, and R-hat.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gating import SETS, complete_runs
from in_process import Found, gate_run
from interval_coverage import KINDS, NORMAL_90, SETTINGS, Sample, matched_pairs, run_on, sample_of
from record import FOLDER, QUICK_FOLDER, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.populations import divisions

WAYS = {"whole": 0.0, "divided": divisions.WHOLE}
LEAST_SHARE = 0.002  # of the events, of populations whose R-hat counts
APART, EVENTS = (2.8, 4.2), (5_000, 20_000)
CLOSE_SETTINGS = SETTINGS | {
    "model": {"components": 64},
    "mcmc": {"chains": 4, "burn_in": 200, "draws": 100},
}
CLOSE_SAMPLES = 8  # of each kind

Row = dict[str, float]


@contextmanager
def dividing(share: float) -> Iterator[None]:
    """Divide components whose largest share is below this one."""
    before, divisions.WHOLE = divisions.WHOLE, share
    try:
        yield
    finally:
        divisions.WHOLE = before


def both_ways(run: Path) -> dict[str, Found]:
    """Gate a run with whole components and with divided ones."""
    found = {}
    for way, share in WAYS.items():
        with dividing(share):
            found[way] = gate_run(run)
    return found


def convergence(found: Found) -> Row:
    """Return shares of the larger populations with an R-hat below two values, and the smallest ESS."""
    large = found.mean >= LEAST_SHARE
    r_hat, ess = found.r_hat[large], found.ess[large]
    below = {f"below {limit}": float(np.mean(~(r_hat >= limit))) for limit in (1.1, 1.05)}
    return below | {"ess": float(np.nanmin(ess, initial=np.inf))}


def close_of(case: tuple[str, int]) -> dict[str, Row]:
    """Measure one simulated sample, by way."""
    sample = sample_of(*case, events=EVENTS, distances=APART, study="close-")
    with threadpool_limits(1, "blas"), run_on(sample, CLOSE_SETTINGS) as run:
        return {way: _covered(sample, found) for way, found in both_ways(run).items()}


def _covered(sample: Sample, found: Found) -> Row:
    """Count the intervals that contain the mixing proportion of the population matched."""
    pairs = matched_pairs(sample.labels, found.population)
    true, own = (np.array(side, int) for side in zip(*pairs, strict=True)) if pairs else ([], [])
    mixing, low, high = sample.proportions[true], found.low[own], found.high[own]
    usual = NORMAL_90 * np.sqrt(mixing * (1.0 - mixing) / len(sample.labels))
    return convergence(found) | {
        "intervals": float(len(mixing)),
        "contained": float(((low <= mixing) & (mixing <= high)).sum()),
        "width": float(((high - low) / usual).sum()),
    }


def labelled_of(run: Path) -> dict[str, Row]:
    """Measure one run of a labelled sample, by way."""
    with threadpool_limits(1, "blas"):
        return {way: convergence(found) for way, found in both_ways(run).items()}


def means(rows: Sequence[dict[str, Row]]) -> dict[str, Row]:
    """Return means over samples, by way; coverage and width are per interval."""
    found = {}
    for way in WAYS:
        total = {key: sum(row[way][key] for row in rows) for key in rows[0][way]}
        intervals = total.pop("intervals", 0.0)
        summed = {key: total.pop(key) / intervals for key in ("contained", "width") if key in total}
        found[way] = {key: value / len(rows) for key, value in total.items()} | summed
    return {way: {key: round(value, 3) for key, value in own.items()} for way, own in found.items()}


def measure(runs: Path, samples: int | None, jobs: int) -> dict[str, Any]:
    """Measure labelled and simulated samples."""
    labelled = {
        name: [path for _, _, paths in complete_runs(runs, name) for path in paths[:1]][:samples]
        for name in SETS
    }
    close = {kind: [(kind, n) for n in range(samples or CLOSE_SAMPLES)] for kind in KINDS[:4] + KINDS[-1:]}
    with ProcessPoolExecutor(jobs) as pool:
        return {
            "labelled": {
                name: means(_told(pool.map(labelled_of, paths))) for name, paths in labelled.items()
            },
            "close": {kind: means(_told(pool.map(close_of, cases))) for kind, cases in close.items()},
        }


def _told(rows: Iterable[dict[str, Row]]) -> list[dict[str, Row]]:
    """Print each row as it comes."""
    found = []
    for row in rows:
        print(row, flush=True)
        found.append(row)
    return found


# -------------------------------------------------------------------------------------- showing


def page(what: str, *, quick: bool = False) -> str:
    """Markdown: a table of earlier measurements, "labelled" or "close"."""
    path = (QUICK_FOLDER if quick else FOLDER) / "divided_components.json"
    if not path.exists():
        return "Not measured yet.\n"
    measured = json.loads(path.read_text())["results"][what]
    heads = ["below 1.1", "below 1.05", "ess", *(["contained", "width"] if what == "close" else [])]
    lines = [
        f"| {'set' if what == 'labelled' else 'kind'} | R-hat below 1.1 | below 1.05 | least ESS"
        f"{' | contain the mixing proportion | width' if what == 'close' else ''} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name, by_way in measured.items():
        cells = [", ".join(_cell(key, by_way[way][key]) for way in WAYS) for key in heads]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    average = [
        ", ".join(_cell(key, float(np.mean([own[way][key] for own in measured.values()]))) for way in WAYS)
        for key in heads
    ]
    lines.append(f"| mean | {' | '.join(average)} |")
    return "\n".join([*lines, "", *([] if quick else [said("divided_components")]), ""])


def _cell(key: str, value: float) -> str:
    return {"ess": f"{value:.0f}", "width": f"{value:.2f}"}.get(key, f"{value:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--samples", type=int, help="of each set and kind; a trial")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    asked = parser.parse_args()
    trial = asked.samples is not None
    results = measure(asked.runs, asked.samples, asked.jobs)
    write_results("divided_components", results, quick=trial)
    print(page("labelled", quick=trial), page("close", quick=trial), sep="\n")


if __name__ == "__main__":
    main()
