"""What split-merge moves are worth: a bad start, and effective samples per second on real events.

    python benchmarks/mixing.py

1. Twenty separated groups of events in 10 channels, 200,000 events, all in one component at the start: sweeps
   until a chain's log posterior is that of a chain that starts at the truth (its mean less three of its
   standard deviations), with the moves and without.
2. Effective samples per second of the number of occupied components (ArviZ's bulk effective sample size;
   Vehtari et al. 2021, Bayesian Anal. 16:667) on samples of two of the sets that gating.py loads, with the
   moves and without: the mean of chains with two seeds each.

Bars: ten times fewer sweeps; rounds of moves that take a quarter of the time of everything else at most; and
effective samples per second not lower. Written to benchmarks/results/mixing.json.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import numpy.typing as npt
from gating import samples
from record import write_results
from threadpoolctl import threadpool_limits

from dpmix import gibbs, initialise, preprocess, split_merge
from dpmix.config import DataConfig, McmcConfig, ModelConfig
from dpmix.engines.base import Key
from dpmix.engines.cpu import CpuEngine
from dpmix.model import Hyperparameters, Prior, State, Stats, log_prior, mixture_of, occupied
from dpmix.session import make_prior
from dpmix.streams import Stream

Floats = npt.NDArray[np.float32]

EVERY = McmcConfig().split_merge
GROUPS, DIM, N_EVENTS, COMPONENTS = 20, 10, 200_000, 64
TRUTH_SWEEPS, MOST_SWEEPS = (100, 200), 3_000
SETS = {"gvhd": 1, "flowsom_68983": 0}  # and the sample
REAL_COMPONENTS, REAL_SWEEPS, SEEDS = 128, (5_000, 10_000), (1, 2)


class Sweep(NamedTuple):
    """What is looked at of a sweep; seconds of all of it, and of the round of moves in it."""

    log_posterior: float
    occupied: int
    seconds: float
    of_round: float


def prior_of(dim: int) -> Prior:
    """The defaults of the config."""
    return make_prior(ModelConfig(), [f"channel {i}" for i in range(dim)])


def sweeps(events: Floats, state: State, prior: Prior, every: int, seed: int = 1) -> Iterator[Sweep]:
    """A chain, sweep by sweep, with a round of moves in every so many; 0: none."""
    engine = CpuEngine(events)
    while True:
        of_round = [0.0]
        began = time.perf_counter()
        key = Key(seed, 0, state.iteration + 1)
        stats = engine.draw_labels(mixture_of(state), key)
        log_posterior = stats.log_likelihood + log_prior(state, prior)
        regroup = None
        if every and key.iteration % every == 0:
            regroup = timed(split_merge.round_of(engine.divide, key), of_round)
        state, _ = gibbs.sweep(state, stats, prior, Stream(*key), regroup=regroup)
        yield Sweep(log_posterior, occupied(stats.counts), time.perf_counter() - began, of_round[-1])


def timed(regroup: gibbs.Regroup, seconds: list[float]) -> gibbs.Regroup:
    """The same moves; the seconds that they take are added to the list."""

    def moves(stats: Stats, given: Hyperparameters, alpha: float) -> Stats:
        began = time.perf_counter()
        stats = regroup(stats, given, alpha)
        seconds.append(time.perf_counter() - began)
        return stats

    return moves


# ---------------------------------------------------------------------------------------- a bad start


def groups() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Standardised events of separated groups, and their groups."""
    rng = np.random.default_rng(0)
    means = 3.0 * rng.standard_normal((GROUPS, DIM))
    labels = rng.integers(GROUPS, size=N_EVENTS)
    events = means[labels] + rng.standard_normal((N_EVENTS, DIM))
    return ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32), labels


def state_of(events: Floats, labels: npt.NDArray[np.int64], prior: Prior) -> State:
    """A state drawn given labels."""
    stats = gibbs.no_events(COMPONENTS, DIM)
    for j in np.unique(labels):
        own = events[labels == j].astype(np.float64)
        stats.counts[j], stats.sums[j], stats.scatters[j] = len(own), own.sum(axis=0), own.T @ own
    drawn = replace(prior, learned=frozenset())
    state = gibbs.draw_prior(drawn, COMPONENTS, 1.0, Stream(0, 0, 0))
    return gibbs.sweep(state, stats, drawn, Stream(0, 0, 0))[0]


def bad_start() -> dict[str, Any]:
    events, labels = groups()
    prior = prior_of(DIM)
    chain = sweeps(events, state_of(events, labels, prior), prior, 0)
    settled = [sweep.log_posterior for sweep in islice(chain, *TRUTH_SWEEPS)]
    level = float(np.mean(settled) - 3.0 * np.std(settled))
    result: dict[str, Any] = {"log posterior to reach": round(level)}
    for every in (EVERY, 0):
        chain = sweeps(events, state_of(events, np.zeros_like(labels), prior), prior, every)
        passed, best, reached = [], -np.inf, None
        for number, sweep in enumerate(islice(chain, MOST_SWEEPS)):
            passed.append(sweep)
            best = max(best, sweep.log_posterior)
            if sweep.log_posterior >= level:
                reached = number
                break
        last = passed[-1]
        result["with the moves" if every else "without"] = {
            "sweeps": reached,
            "sweeps made": len(passed) - 1,
            "best log posterior": round(best),
            "occupied at the end": last.occupied,
            "seconds": round(sum(sweep.seconds for sweep in passed), 1),
        } | share_of_rounds(passed)
    return result


def share_of_rounds(passed: list[Sweep]) -> dict[str, float]:
    """Time of the rounds of moves, over that of everything else."""
    rounds = sum(sweep.of_round for sweep in passed)
    return {"rounds / sweeps": round(rounds / (sum(sweep.seconds for sweep in passed) - rounds), 3)}


# ---------------------------------------------------------------------------------------- real events


def prepared(events: Floats) -> Floats:
    """Events as a run with the default config sees them."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "events.npy", events)
        return preprocess.prepare(DataConfig(files=["events.npy"]), Path(folder), seed=1).values


def effective_samples(name: str, number: int) -> dict[str, Any]:
    events = prepared(next(events for sample, events, _ in samples(name) if sample == number))
    prior = prior_of(events.shape[1])
    result: dict[str, Any] = {"events": list(events.shape)}
    for every in (EVERY, 0):
        per_second, shares, means = [], [], []
        for seed in SEEDS:
            state = initialise.from_kmeans(events, len(events), REAL_COMPONENTS, prior, Stream(seed, 0, 0))
            passed = list(islice(sweeps(events, state, prior, every, seed), sum(REAL_SWEEPS)))
            kept = passed[REAL_SWEEPS[0] :]
            count = np.array([sweep.occupied for sweep in kept], float)
            per_second.append(float(az.ess(count[None])) / sum(sweep.seconds for sweep in kept))
            shares.append(share_of_rounds(kept)["rounds / sweeps"])
            means.append(float(count.mean()))
        result["with the moves" if every else "without"] = {
            "effective samples per second": [round(value, 2) for value in per_second],
            "mean": round(float(np.mean(per_second)), 2),
            "occupied": [round(value, 1) for value in means],
            "rounds / sweeps": round(float(np.mean(shares)), 3),
        }
    return result


def main() -> None:
    with threadpool_limits(1, "blas"):
        results = {"a bad start": bad_start()}
        results |= {
            f"{name}, sample {number}": effective_samples(name, number) for name, number in SETS.items()
        }
    for title, result in results.items():
        print(f"\n{title}")
        for name, value in result.items():
            print(f"  {name}: {value}")
    start, *real = results.values()
    ours, plain = start["with the moves"], start["without"]
    at_least = (plain["sweeps"] or plain["sweeps made"]) / ours["sweeps"]
    shares = [ours["rounds / sweeps"], *(result["with the moves"]["rounds / sweeps"] for result in real)]
    gains = [result["with the moves"]["mean"] / result["without"]["mean"] for result in real]
    checked = [
        (
            f"sweeps from a bad start, without the moves / with them: {at_least:.0f} or more, need 10",
            at_least >= 10,
        ),
        (f"time of the rounds / of the sweeps: {max(shares):.2f} at most, need 0.25", max(shares) <= 0.25),
        (
            f"effective samples per second, with / without: {min(gains):.2f} at least, need 1",
            min(gains) >= 1.0,
        ),
    ]
    print()
    for line, passed in checked:
        print("pass" if passed else "MISS", line)
    write_results("mixing", results)
    if not all(passed for _, passed in checked):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
