"""Measure recall and false findings of rare populations: hierarchical, pooled and sample-by-sample runs.

    python benchmarks/rare.py [--quick] [--cohorts 4]

A cohort has six samples of 40,000 events in six channels, which takes 40 seconds of one core;
`--quick` takes seconds. Six common populations are in every sample, with proportions that differ between
samples. Three rare ones, of 0.01%, 0.03% and 0.1% of the events, are in three of the six samples each: 4, 12
and 40 events of a sample. All are Gaussian, so the runs are of the exact posterior (`model.coarseness:
null`): under the default coarseness 240,000 events count as 2,000 for weights, and 40 events as less than
one. Each sample is shifted by 0.2 standard deviations of a population in each channel.

All runs have the same settings except for the model. The hierarchical run has shifts, and no split-merge
moves, which it does not support; the others have them. A sample-by-sample run is one run for each sample.

The unit is a sample. A rare population is found in a sample if a population of the gating has F1 of at least
0.5 with its events there. A false finding is a population with at least 3 and less than 1% of the events of
the sample that has no such F1 with any population of the simulation.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from record import arguments, read_results, said, write_results

from dpmix.config.schema import Config
from dpmix.populations.assign import assign_events
from dpmix.populations.draws.find import DRAWS
from dpmix.populations.draws.task import prepare
from dpmix.runs.mcmc import run_mcmc

SAMPLES, WITH, D, COMMON = 6, 3, 6, 6
RARE = (0.0001, 0.0003, 0.001)
SHIFT, APART = 0.2, 6.0
LEAST_F1, LEAST_EVENTS, SMALL = 0.5, 3, 0.01
MODELS: dict[str, dict[str, Any]] = {
    "hierarchical": {"samples": "hierarchical", "shifts": "sample"},
    "pooled": {},
    "sample by sample": {},
}


def cohort(number: int, n_events: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return events and labels of each sample; the rare populations come after the common ones."""
    random = np.random.default_rng([number, 18])
    means: list[np.ndarray] = []
    while len(means) < COMMON + len(RARE):  # all at least APART standard deviations from each other
        mean = random.uniform(-8.0, 8.0, D)
        if all(np.linalg.norm(mean - other) > APART for other in means):
            means.append(mean)
    sds = random.uniform(0.7, 1.3, (len(means), D))
    base = random.dirichlet(np.full(COMMON, 3.0))
    owners = [random.choice(SAMPLES, WITH, replace=False) for _ in RARE]
    made = []
    for s in range(SAMPLES):
        counts = [int(share * n_events) if s in own else 0 for share, own in zip(RARE, owners, strict=True)]
        common = random.multinomial(n_events - sum(counts), random.dirichlet(30.0 * base))
        labels = random.permutation(np.repeat(np.arange(len(means)), [*common, *counts]))
        noise = random.standard_normal((n_events, D))
        shift = SHIFT * random.standard_normal(D)
        made.append(((np.array(means)[labels] + shift + sds[labels] * noise).astype(np.float32), labels))
    return made


def gated(files: list[Path], model: dict[str, Any], sweeps: int, folder: Path) -> list[np.ndarray]:
    """Run dpmix on files; return the population of each event of each file."""
    config = Config.model_validate(
        {
            "data": {"files": [str(file) for file in files]},
            "model": {"components": 32, "coarseness": None} | model,
            "mcmc": {
                "chains": 2,
                "burn_in": sweeps,
                "draws": sweeps // 4,
                "until": None,
                "split_merge": 0 if model else 10,
            },
            "engine": {"backend": "cpu", "threads": 1},
            "output": {"path": str(folder / "run.h5")},
        }
    )
    task = prepare(run_mcmc(config, overwrite=True).path, (), (), folder)
    found = task.find_populations(DRAWS, None, None)
    parts: list[list[np.ndarray]] = [[] for _ in files]
    for block, _ in assign_events(task, found):
        parts[block.sample].append(block.population)
    return [np.concatenate(part) for part in parts]


def judged(found: np.ndarray, truth: np.ndarray) -> tuple[dict[str, bool], int]:
    """Return which rare populations are found in a sample that has them, and the number of false findings."""
    table = np.zeros((int(found.max()) + 1, COMMON + len(RARE)))
    np.add.at(table, (found, truth), 1.0)
    sizes = table.sum(axis=1)
    f1 = 2.0 * table / np.maximum(sizes[:, None] + table.sum(axis=0), 1.0)
    is_found = {
        f"{share:.2%}": bool(f1[:, COMMON + r].max() >= LEAST_F1)
        for r, share in enumerate(RARE)
        if table[:, COMMON + r].any()
    }
    small = (sizes >= LEAST_EVENTS) & (sizes < SMALL * len(found))
    return is_found, int((small & (f1.max(axis=1) < LEAST_F1)).sum())


def measure(number: int, n_events: int, sweeps: int) -> dict[str, dict[str, Any]]:
    """Return for each model the samples in which each rare population is found, and the false findings."""
    made = cohort(number, n_events)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"s{s}.npy" for s in range(SAMPLES)]
        for file, (events, _) in zip(files, made, strict=True):
            np.save(file, events)
        for model, settings in MODELS.items():
            began = time.process_time()
            if model == "sample by sample":
                found = [gated([file], settings, sweeps, folder)[0] for file in files]
            else:
                found = gated(files, settings, sweeps, folder)
            own: dict[str, Any] = {f"{share:.2%}": [0, 0] for share in RARE} | {"false": 0}
            for populations, (_, truth) in zip(found, made, strict=True):
                is_found, n_false = judged(populations, truth)
                own["false"] += n_false
                for share, yes in is_found.items():
                    own[share][0] += yes
                    own[share][1] += 1
            results[model] = own | {"processor seconds": round(time.process_time() - began, 1)}
            print(number, model, results[model], flush=True)
    return results


def page() -> str:
    """Return the table of docs/benchmarks/rare.md."""
    record = read_results("rare")["results"]
    shares = [f"{share:.2%}" for share in RARE]
    head = ["run", *(f"{share} found" for share in shares), "false findings in a sample", "processor minutes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for model in MODELS:
        own = [one[model] for one in record.values()]
        cells = []
        for share in shares:
            found, of = (sum(one[share][k] for one in own) for k in (0, 1))
            cells.append(f"{found} of {of}")
        false = sum(one["false"] for one in own) / (SAMPLES * len(own))
        minutes = sum(one["processor seconds"] for one in own) / 60.0 / len(own)
        lines.append(f"| {model} | {' | '.join(cells)} | {false:.2f} | {minutes:.1f} |")
    return "\n".join([*lines, "", said("rare", packages=("dpmix", "numpy"))])


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--cohorts", type=int, default=4)
    given = parser.parse_args()
    n_events, sweeps, cohorts = (3_000, 12, 1) if given.quick else (40_000, 120, given.cohorts)
    results = {f"cohort {number}": measure(number, n_events, sweeps) for number in range(1, cohorts + 1)}
    write_results("rare", results, quick=given.quick)


if __name__ == "__main__":
    main()
