"""Run dpmix on a sample of events by its commands, as a user does, and keep its populations and scores.

A sample has a folder of its own. `gated.json` is written last: where it is, and events and config are the
same, nothing is measured again. After a change of the code, use another folder.
"""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from clusterings import Events, Ints
from record import DPMIX

from dpmix.config.compare import RESUMABLE, differences
from dpmix.config.load import parse_config
from dpmix.runs.reader import open_run

SHARE = 0.002  # populations whose R-hat is counted are larger
RHATS = (1.1, 1.05)
MOST_RHAT = 99.0  # infinite if chains differ and do not move; JSON has no such number


@dataclass(frozen=True)
class Gated:
    """Results of a gating that are kept.

    Attributes
    ----------
    seconds : dict of str to float
        "mcmc", the run, and "gate".
    shares : list of float
        Proportions of the populations.
    rhat, ess : list of float or None
        R-hat and effective sample size of the proportions; empty if the version has none.
    """

    seconds: dict[str, float]
    shares: list[float]
    rhat: list[float | None]
    ess: list[float | None]


def gated(
    events: Events, channels: Sequence[str], folder: Path, seed: int, options: Sequence[str] = ()
) -> tuple[Ints, Gated]:
    """Run MCMC and gate, with the default config except for `options`, unless the results are there.

    All channels are used, also those that the default config would leave out by their names.

    Returns
    -------
    int64 [N]
        Populations, from 1.
    Gated
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, run, kept = folder / "events.npz", folder / "run.h5", folder / "gated.json"
    text = yaml.safe_dump(
        {
            "data": {"files": [str(data.resolve())], "channels": list(channels)},
            "output": {"path": str(run)},
            "seed": seed,
        }
    )
    config = folder / "run.yaml"
    same_events = data.exists() and np.array_equal(np.load(data)["events"], events)
    same = same_events and is_complete(run, text, options)
    if same and kept.exists():
        return np.load(folder / "populations.npy"), Gated(**json.loads(kept.read_text()))
    kept.unlink(missing_ok=True)
    if not same:
        np.savez(data, events=events, channels=channels)
        config.write_text(text)
        sets = [word for option in options for word in ("--set", option)]
        _command("mcmc", config, "--overwrite", *sets)
    began = time.perf_counter()
    output = folder / "gated"
    _command("gate", run, "--output", output, "--format", "parquet", "--overwrite")
    seconds = {"mcmc": sum(open_run(run).profile.values()), "gate": time.perf_counter() - began}
    populations = _populations(output, len(events))
    result = Gated({stage: round(s, 1) for stage, s in seconds.items()}, *_table(output / "populations.csv"))
    np.save(folder / "populations.npy", populations)
    kept.write_text(json.dumps(asdict(result)))
    return populations, result


def _command(*words: str | Path) -> None:
    subprocess.run([*DPMIX, *words, "--quiet"], check=True)


def is_complete(run: Path, text: str, options: Sequence[str]) -> bool:
    """Return whether the run file has all draws of this config."""
    if not run.exists() or not (opened := open_run(run)).complete:
        return False
    changed = differences(parse_config(text, "defaults", options), parse_config(opened.config_text, "run"))
    return RESUMABLE.issuperset(changed)


def _populations(folder: Path, n_events: int) -> Ints:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "events.parquet", columns=["event", "population"])
    rows = table["event"].to_numpy()
    if not np.array_equal(np.sort(rows), np.arange(n_events)):
        raise SystemExit(f"{folder}: {len(rows)} of {n_events} events, need each of them once")
    populations = np.empty(n_events, np.int64)
    populations[rows] = table["population"].to_numpy()
    return populations


def _table(path: Path) -> tuple[list[float], list[float | None], list[float | None]]:
    """Return proportions, R-hat and effective sample sizes from populations.csv."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [
        [float(row[key]) if row[key] else None for row in rows if key in row] for key in ("rhat", "ess")
    ]
    return [float(row["proportion"]) for row in rows], columns[0], columns[1]


def agreement(gatings: Sequence[Sequence[Ints]]) -> dict[str, Any]:
    """Compare gatings of the same samples by several seeds.

    Parameters
    ----------
    gatings : sequence of sequences of int64 [N]
        Populations of all events, by sample and seed.

    Returns
    -------
    dict
        "ari", the mean over samples of the mean adjusted Rand index of each pair of seeds; "least" of all
        pairs; "populations", their numbers by sample and seed; "spread", the largest difference of numbers.
    """
    pairs = [list(rand_indices(by_seed)) for by_seed in gatings]
    numbers = [[len(np.unique(one)) for one in by_seed] for by_seed in gatings]
    return {
        "seeds": len(gatings[0]),
        "ari": round(float(np.mean([np.mean(own) for own in pairs])), 4),
        "least": round(min(map(min, pairs)), 4),
        "populations": numbers,
        "spread": max(max(own) - min(own) for own in numbers),
    }


def rand_indices(gatings: Sequence[Ints]) -> Iterator[float]:
    """Yield the adjusted Rand index of each pair of gatings of the same events."""
    from sklearn.metrics import adjusted_rand_score

    for one, other in itertools.combinations(gatings, 2):
        yield float(adjusted_rand_score(one, other))
