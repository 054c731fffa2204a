"""Measure the benefit of split-merge moves: a bad start, and effective samples per second on real events.

    python benchmarks/mixing.py                # 1 and 2: mixing.json
    python benchmarks/mixing.py stationary     # 3: mixing-stationary.json

1. Twenty separated groups of events in 10 channels, 200,000 events, all in one component at the start: sweeps
   until a chain's log posterior is that of a chain that starts at the truth (its mean less three of its
   standard deviations), with the moves and without.
2. Effective samples per second of the number of occupied components (ArviZ's bulk effective sample size;
   Vehtari et al. 2021, Bayesian Anal. 16:667) on samples of two of the sets that gating.py loads, with the
   moves and without: the mean of chains with two seeds each. Chains there are not stationary: no bar.
3. The same on so few of their events, drawn at random, that chains become stationary: many long chains from
   starts far apart, R-hat and effective sample size over all of them, per sweep and per second of processor
   time. Chains with the moves and without have the same starts and are run sweep by sweep in turns, so that
   whatever else the machine does slows down both. The interval of a ratio is by the jackknife over starts.

Bars: ten times fewer sweeps; rounds of moves that take a quarter of the time of everything else at most
(1 and 2); R-hat below 1.05, and effective samples of the occupied components per second not lower (3).
Written to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import numpy.typing as npt
from gating import samples
from record import write_results
from scipy.cluster.vq import vq
from scipy.stats import t as student
from threadpoolctl import threadpool_limits

from dpmix.config.data import DataConfig
from dpmix.config.schema import McmcConfig, ModelConfig
from dpmix.engines.cpu import CpuEngine
from dpmix.inputs import preprocess
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import Array, Hyperparameters, State, Stats, mixture_of, no_events, occupied
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Key, Stream
from dpmix.runs import initialise
from dpmix.runs.session import make_prior

Floats = npt.NDArray[np.float32]

EVERY = McmcConfig().split_merge
GROUPS, DIM, N_EVENTS, COMPONENTS = 20, 10, 200_000, 64
TRUTH_SWEEPS, MOST_SWEEPS = (100, 200), 3_000
SETS = {"gvhd": 1, "flowsom_68983": 0}  # and the sample
REAL_COMPONENTS, REAL_SWEEPS, SEEDS = 128, (5_000, 10_000), (1, 2)
FEW_COMPONENTS = 64
FEW = (("gvhd", 500), ("flowsom_68983", 500), ("gvhd", 1_000))  # events of the sample
FEW_SWEEPS = {500: (4_000, 30_000), 1_000: (8_000, 50_000)}  # left out and looked at
START_GROUPS = (64, 4, 32) * 2  # of each chain
RATIOS = "per second, with / without"
QUANTITIES = ("occupied", "alpha", "log_posterior")


class Sweep(NamedTuple):
    """Monitored quantities of a sweep; seconds of the sweep and of its round of moves."""

    log_posterior: float
    occupied: int
    alpha: float
    seconds: float
    of_round: float


def prior_of(dim: int) -> Prior:
    """The defaults of the config."""
    return make_prior(ModelConfig(), [f"channel {i}" for i in range(dim)])


def sweeps(
    events: Floats,
    state: State,
    prior: Prior,
    every: int,
    seed: int = 1,
    *,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Sweep]:
    """A chain, sweep by sweep, with a round of moves in every this many; 0: none."""
    engine = CpuEngine(events, threads=threads)
    while True:
        of_round = [0.0]
        began = clock()
        key = Key(seed, 0, state.iteration + 1)
        stats = engine.draw_labels(mixture_of(state), key)
        log_posterior, alpha = stats.log_likelihood + log_prior(state, prior), state.alpha
        regroup = None
        if every and key.iteration % every == 0:
            regroup = timed(split_merge.round_of(engine.divide, key), of_round, clock)
        state, _ = gibbs.sweep(state, stats, prior, Stream(*key), regroup=regroup)
        yield Sweep(log_posterior, occupied(stats.counts), alpha, clock() - began, of_round[-1])


def timed(
    regroup: split_merge.Regroup, seconds: list[float], clock: Callable[[], float]
) -> split_merge.Regroup:
    """The same moves; the seconds that they take are added to the list."""

    def moves(stats: Stats, hyper: Hyperparameters, alpha: float) -> tuple[Stats, split_merge.Moves]:
        began = clock()
        regrouped = regroup(stats, hyper, alpha)
        seconds.append(clock() - began)
        return regrouped

    return moves


# ---------------------------------------------------------------------------------------- a bad start


def groups() -> tuple[Floats, npt.NDArray[np.int64]]:
    """Standardised events of separated groups, and their groups."""
    rng = np.random.default_rng(0)
    means = 3.0 * rng.standard_normal((GROUPS, DIM))
    labels = rng.integers(GROUPS, size=N_EVENTS)
    events = means[labels] + rng.standard_normal((N_EVENTS, DIM))
    return ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32), labels


def state_of(events: Floats, labels: npt.NDArray[np.int64], n_components: int, prior: Prior) -> State:
    """A state drawn given labels."""
    stats = no_events(n_components, events.shape[1])
    for j in np.unique(labels):
        own = events[labels == j].astype(np.float64)
        stats.counts[j], stats.sums[j], stats.scatters[j] = len(own), own.sum(axis=0), own.T @ own
    drawn = replace(prior, learned=frozenset())
    state = gibbs.draw_prior(drawn, n_components, 1.0, Stream(0, 0, 0))
    return gibbs.sweep(state, stats, drawn, Stream(0, 0, 0))[0]


def bad_start() -> dict[str, Any]:
    events, labels = groups()
    prior = prior_of(DIM)
    chain = sweeps(events, state_of(events, labels, COMPONENTS, prior), prior, 0)
    settled = [sweep.log_posterior for sweep in islice(chain, *TRUTH_SWEEPS)]
    level = float(np.mean(settled) - 3.0 * np.std(settled))
    result: dict[str, Any] = {"log posterior to reach": round(level)}
    for every in (EVERY, 0):
        chain = sweeps(events, state_of(events, np.zeros_like(labels), COMPONENTS, prior), prior, every)
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


def sample_of(name: str) -> Floats:
    """The events of the sample of a set that is looked at."""
    return next(events for number, events, _ in samples(name) if number == SETS[name])


def effective_samples(name: str) -> dict[str, Any]:
    events = prepared(sample_of(name))
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


# ------------------------------------------------------------------------------- stationary chains


class Pair(NamedTuple):
    """A chain with the moves and one without, of one start: what was looked at, float64 [2, S, 3]."""

    traces: Array
    seconds: list[float]
    of_rounds: list[float]


def pair_of_chains(name: str, n_events: int, chain: int) -> Pair:
    events = sample_of(name)
    events = prepared(events[np.random.default_rng(0).permutation(len(events))[:n_events]])
    prior = prior_of(events.shape[1])
    points = events.astype(np.float64)
    centres = initialise.seed_centres(points, START_GROUPS[chain], np.random.default_rng(chain))
    state = state_of(events, vq(points, centres)[0].astype(np.int64), FEW_COMPONENTS, prior)
    left_out, looked_at = FEW_SWEEPS[n_events]
    with threadpool_limits(1, "blas"):
        both = [
            sweeps(events, state, prior, every, chain, threads=1, clock=time.process_time)
            for every in (EVERY, 0)
        ]
        passed = list(islice(zip(*both, strict=True), left_out, left_out + looked_at))
    arms = list(zip(*passed, strict=True))
    return Pair(
        np.array([[[getattr(sweep, name) for name in QUANTITIES] for sweep in arm] for arm in arms]),
        [sum(sweep.seconds for sweep in arm) for arm in arms],
        [sum(sweep.of_round for sweep in arm) for arm in arms],
    )


def log_ratio(pairs: list[Pair], quantity: int) -> float:
    """Return the log ratio of effective samples per second, with the moves over without."""
    with_moves, without = (
        np.log(float(az.ess(np.stack([pair.traces[arm, :, quantity] for pair in pairs]))))
        - np.log(sum(pair.seconds[arm] for pair in pairs))
        for arm in (0, 1)
    )
    return float(with_moves - without)


def interval(pairs: list[Pair], quantity: int) -> list[float]:
    """95% of the ratio, by the jackknife over pairs of chains (Efron and Tibshirani 1993, chapter 11)."""
    count = len(pairs)
    left = [log_ratio(pairs[:c] + pairs[c + 1 :], quantity) for c in range(count)]
    half = student.ppf(0.975, count - 1) * np.sqrt((count - 1) * np.var(left))
    middle = log_ratio(pairs, quantity)
    return [round(float(np.exp(middle + side)), 2) for side in (-half, half)]


def compared(pairs: list[Pair]) -> dict[str, Any]:
    """Both arms and their ratios."""
    result: dict[str, Any] = {"chains": len(pairs), "sweeps of each": pairs[0].traces.shape[1]}
    for arm, title in enumerate(("with the moves", "without")):
        traces = np.stack([pair.traces[arm] for pair in pairs])
        seconds = sum(pair.seconds[arm] for pair in pairs)
        rounds = sum(pair.of_rounds[arm] for pair in pairs)
        result[title] = {
            "milliseconds per sweep": round(1e3 * seconds / traces[..., 0].size, 3),
            "rounds / sweeps": round(rounds / (seconds - rounds), 3),
        }
        for q, quantity in enumerate(QUANTITIES):
            effective = float(az.ess(traces[..., q]))
            result[title][quantity] = {
                "mean": round(float(traces[..., q].mean()), 2),
                "R-hat": round(float(az.rhat(traces[..., q])), 3),
                "effective samples": round(effective, 1),
                "sweeps per effective sample": round(traces[..., q].size / effective),
                "per second": round(effective / seconds, 3),
            }
    result[RATIOS] = {
        quantity: {"ratio": round(float(np.exp(log_ratio(pairs, q))), 2), "95%": interval(pairs, q)}
        for q, quantity in enumerate(QUANTITIES)
    }
    return result


def together(results: dict[str, Any]) -> dict[str, Any]:
    """Geometric means of the cases' ratios; their intervals' halves, of logs, are added in quadrature."""
    means = {}
    for quantity in QUANTITIES:
        ratios = [result[RATIOS][quantity] for result in results.values()]
        middle = np.mean([np.log(ratio["ratio"]) for ratio in ratios])
        halves = [0.5 * np.log(ratio["95%"][1] / ratio["95%"][0]) for ratio in ratios]
        half = np.linalg.norm(halves) / len(halves)
        low, mean, high = (round(float(np.exp(middle + side)), 2) for side in (-half, 0.0, half))
        means[quantity] = {"ratio": mean, "95%": [low, high]}
    return {RATIOS: means}


def stationary() -> list[tuple[str, bool]]:
    results: dict[str, Any] = {}
    checked = []
    with ProcessPoolExecutor() as pool:
        jobs = [
            [pool.submit(pair_of_chains, *case, chain) for chain in range(len(START_GROUPS))] for case in FEW
        ]
        for (name, n_events), own in zip(FEW, jobs, strict=True):
            title = f"{name}, sample {SETS[name]}, {n_events} events"
            result = compared([job.result() for job in own])
            results[title] = result
            show(title, result)
            write_results("mixing-stationary", results)
            r_hat = max(result[arm][q]["R-hat"] for arm in ("with the moves", "without") for q in QUANTITIES)
            ratio = result[RATIOS]["occupied"]
            checked += [
                (f"{title}: R-hat {r_hat}, need less than 1.05", r_hat < 1.05),
                (
                    f"{title}: effective samples of the occupied components per second, with / without: "
                    f"{ratio['ratio']} ({ratio['95%'][0]} to {ratio['95%'][1]}), need 1",
                    ratio["ratio"] >= 1.0,
                ),
            ]
    results["all together"] = together(results)
    show("all together", results["all together"])
    write_results("mixing-stationary", results)
    return checked


# ---------------------------------------------------------------------------------------- the command


def show(title: str, result: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in result.items():
        print(f"  {name}: {value}", flush=True)


def whole() -> list[tuple[str, bool]]:
    with threadpool_limits(1, "blas"):
        results = {"a bad start": bad_start()}
        results |= {f"{name}, sample {number}": effective_samples(name) for name, number in SETS.items()}
    for title, result in results.items():
        show(title, result)
    write_results("mixing", results)
    start, *real = results.values()
    ours, plain = start["with the moves"], start["without"]
    at_least = (plain["sweeps"] or plain["sweeps made"]) / ours["sweeps"]
    shares = [ours["rounds / sweeps"], *(result["with the moves"]["rounds / sweeps"] for result in real)]
    return [
        (
            f"sweeps from a bad start, without the moves / with them: {at_least:.0f} or more, need 10",
            at_least >= 10,
        ),
        (f"time of the rounds / of the sweeps: {max(shares):.2f} at most, need 0.25", max(shares) <= 0.25),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("what", nargs="?", choices=["whole", "stationary"], default="whole")
    checked = {"whole": whole, "stationary": stationary}[parser.parse_args().what]()
    print()
    for line, passed in checked:
        print("pass" if passed else "MISS", line)
    if not all(passed for _, passed in checked):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
