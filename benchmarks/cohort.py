"""Measure what a sweep of the hierarchical model costs, next to a sweep of the pooled model.

    python benchmarks/cohort.py [--quick]

Both models sweep the same events: 100 samples of 10,000 events with different proportions of the components,
in 14 channels, with 256 components. This takes a minute, with `--quick` seconds. A sweep is a pass of the
engine and all draws of the sampler, with label swaps, without split-merge moves. Contenders take turns, each
has its own chain, and the first sweeps do not count. The table has processor seconds of all threads, because
the machine may be shared, and wall seconds. These are medians over rounds; a ratio is the median over rounds
of a sweep's processor seconds by the pooled sweep's in the same round.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from mixtures import sample
from record import arguments, read_results, write_results
from threadpoolctl import threadpool_limits

from dpmix.engines.base import Engine
from dpmix.engines.cohort import CohortEngine
from dpmix.engines.cpu import CpuEngine
from dpmix.model import cohort, gibbs
from dpmix.model.mixture import Array, Ints, State, mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

D, SAMPLES, FIRST = 14, 100, 3


def one_sweep(state: State, order: Ints | None, engine: Engine, prior: Prior) -> tuple[State, Ints | None]:
    """Return the next state and the order of its components: the seeds of pruning hold for the old one."""
    key = Key(1, 0, state.iteration + 1)
    stats = engine.draw_labels(mixture_of(state, order), key)
    state, swept = gibbs.sweep(state, stats, prior, Stream(*key))
    return state, swept.order


def measure(n_events: int, n_components: int, rounds: int) -> dict[str, Array]:
    """Return processor and wall seconds of the sweeps of each model, [rounds, 2]."""
    data = sample(n_events, D, n_components, "sep")
    events = data.events[np.argsort(np.random.default_rng(1).random(n_events) + data.events[:, 0] / 8.0)]
    starts = np.linspace(0, n_events, SAMPLES + 1).astype(np.int64)
    prior = Prior(
        np.zeros(D), 5.0, 2.0, 0.3 * np.eye(D), 1.0, 1.0, frozenset({"alpha", "gamma", "nu", "phi"})
    )
    plain = gibbs.draw_prior(prior, n_components, 1.0, Stream(1, 0, 0))
    start = data.now.mixture()
    covariances = np.linalg.inv(start.whiteners.transpose(0, 2, 1) @ start.whiteners)
    plain = replace(plain, means=start.means, covariances=covariances, whiteners=start.whiteners)
    shares = np.diff(starts) / n_events
    groups = {"hierarchical": np.full(SAMPLES, -1), "hierarchical with shifts": np.arange(SAMPLES)}
    states = {"pooled": plain} | {
        name: replace(plain, cohort=cohort.start(plain.log_base_weights, shares, own, prior))
        for name, own in groups.items()
    }
    engines: dict[str, Engine] = {name: CohortEngine(events, starts) for name in groups}
    engines = {"pooled": CpuEngine(events), **engines}
    orders: dict[str, Ints | None] = dict.fromkeys(states)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in states}
    for _ in range(FIRST + rounds):
        for name, engine in engines.items():
            began = time.process_time(), time.perf_counter()
            states[name], orders[name] = one_sweep(states[name], orders[name], engine, prior)
            times[name].append((time.process_time() - began[0], time.perf_counter() - began[1]))
    for engine in engines.values():
        engine.close()
    return {name: np.array(own[FIRST:]) for name, own in times.items()}


def summary(times: dict[str, Array]) -> dict[str, Any]:
    """Return median seconds of each model, and median ratios to the pooled sweep of the same round."""
    medians = {name: np.median(own, axis=0).round(4).tolist() for name, own in times.items()}
    ratios = {name: np.median(own[:, 0] / times["pooled"][:, 0]) for name, own in times.items()}
    return {
        "seconds": {
            name: dict(zip(("processor", "wall"), own, strict=True)) for name, own in medians.items()
        },
        "processor seconds over pooled": {
            name: round(float(ratio), 3) for name, ratio in ratios.items() if name != "pooled"
        },
    }


def table() -> str:
    """The committed results as a table."""
    ((title, own),) = read_results("cohort")["results"].items()
    rows = [
        "| model | processor, ms | wall, ms | processor time over pooled |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, seconds in own["seconds"].items():
        ratio = own["processor seconds over pooled"].get(name)
        cells = [f"{1e3 * seconds['processor']:.0f}", f"{1e3 * seconds['wall']:.0f}"]
        rows.append(f"| {name} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.2f}'} |")
    return "\n".join([*rows, "", f"{title.replace(' ', ', ').replace('=', ' = ')}; two threads.", ""])


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    n_events, n_components, rounds = (50_000, 32, 2) if quick else (1_000_000, 256, 25)
    with threadpool_limits(1, "blas"):  # as in a run
        found = summary(measure(n_events, n_components, rounds))
    for name, own in found.items():
        print(name, own)
    title = f"N={n_events:,} D={D} K={n_components} S={SAMPLES}"
    write_results("cohort", {title: found}, quick=quick)


if __name__ == "__main__":
    main()
