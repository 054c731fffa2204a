"""Tables 1 and 2 of the paper, rebuilt: seconds for 100 iterations of MCMC and of Bayesian EM.

    python benchmarks/paper.py            some 10 minutes on a quiet machine of two cores
    python benchmarks/paper.py --quick    few events, half a minute, as a check of the script

D = 14 channels, K = 256 components, N = 100 to 10,000,000 events. An iteration is a whole one: the labels of
all events and their statistics by the contender, then new parameters by `gibbs.sweep` or `bem.step`, the same
for all. All begin at the same state of the same events; their log likelihoods of it are compared. The serial
program (algorithm_1.py) is the baseline; it and the host's part have one thread for linear algebra.

100 iterations are timed where they fit into a limit of seconds, else as many as do, at least 3, and scaled.
Two iterations of the engines go before and are not counted: they meet memory for the first time, and have no
labels to prune by.
"""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol

import numpy as np
from algorithm_1 import SerialEngine
from mixtures import sample
from plots import COLOURS, panels, significant
from record import arguments, read_results, said, write_results
from threadpoolctl import threadpool_limits

from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import engine as cuda
from dpmix.model import bem, gibbs
from dpmix.model.mixture import Floats, Mixture, State, Stats, mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

D, K = 14, 256
SIZES = tuple(10**power for power in range(2, 8))
QUICK_SIZES = SIZES[:3]
SERIAL = "serial NumPy"
LARGEST_SERIAL = 1_000_000
"""Events up to which the serial program is timed: beyond, three iterations would take most of the time."""
ITERATIONS, FEWEST, WARM_UP = 100, 3, 2
LIMIT, QUICK_LIMIT = 8.0, 0.3
TOLERANCE = 1e-5
"""Nats per event by which log likelihoods of the same state may differ between contenders: float32."""
KINDS = {"mcmc": "MCMC", "bem": "Bayesian EM"}


class Passes(Protocol):
    """The part of an engine that is compared."""

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats: ...

    def expect_labels(self, mixture: Mixture) -> Stats: ...

    def close(self) -> None: ...


def contenders(events: Floats) -> Iterator[tuple[str, Callable[[], Passes]]]:
    """Yield the contenders at this number of events: names, and functions that make them."""
    if len(events) <= LARGEST_SERIAL:
        yield SERIAL, lambda: SerialEngine(events)
    yield "dpmix, 1 thread, dense", lambda: CpuEngine(events, threads=1, pruning=False)
    yield "dpmix, 1 thread", lambda: CpuEngine(events, threads=1)
    yield "dpmix, 2 threads", lambda: CpuEngine(events, threads=2)
    if cuda.available()[0]:
        yield f"dpmix, CUDA: {cuda.available()[1]}", lambda: cuda.CudaEngine(events, devices="all")


def first_state(events: Floats, mixture: Mixture, prior: Prior) -> State:
    """A state as in the middle of a run, by the CPU engine."""
    with closing(CpuEngine(events)) as engine:
        stats = engine.draw_labels(mixture, Key(1, 0, 0))
    before = gibbs.draw_prior(prior, K, None, Stream(1, 0, 0))
    return gibbs.sweep(before, stats, prior, Stream(1, 0, 0))[0]


def chain(kind: str, engine: Passes, state: State, prior: Prior) -> Iterator[float]:
    """Iterate from a state; gives the log likelihood of the mixture that each iteration began with."""
    order = None
    for iteration in itertools.count():
        mixture = mixture_of(state, order)
        if kind == "mcmc":
            stats = engine.draw_labels(mixture, Key(1, 0, iteration))
            state, info = gibbs.sweep(state, stats, prior, Stream(1, 0, iteration + 1))
            order = info.order
        else:
            stats = engine.expect_labels(mixture)
            state, _ = bem.step(state, stats, prior)
        yield stats.log_likelihood


def measure(iterations: Iterator[float], warm_up: int, limit: float) -> dict[str, float]:
    """Seconds for 100 iterations, from this many of them as the limit of seconds allows."""
    log_likelihood = next(iterations)
    for _ in range(warm_up - 1):
        next(iterations)
    seconds: list[float] = []
    while len(seconds) < ITERATIONS and (len(seconds) < FEWEST or sum(seconds) < limit):
        began = time.perf_counter()
        next(iterations)
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": ITERATIONS * float(np.mean(seconds)),
        "by the median": ITERATIONS * float(np.median(seconds)),
        "iterations": len(seconds),
        "log likelihood at the start": log_likelihood,
    }


def agree(found: list[dict[str, float]], n_events: int) -> None:
    """Stop where contenders differ in the log likelihood of the state that all began at."""
    values = [one["log likelihood at the start"] for one in found]
    if not max(values) - min(values) <= TOLERANCE * n_events:
        raise SystemExit(f"log likelihoods of the same state differ: {values}")


def run(sizes: tuple[int, ...], limit: float) -> dict[str, Any]:
    """Both tables: seconds by kind, contender and number of events."""
    prior = Prior(np.zeros(D), 5.0, 2.0, 0.3 * np.eye(D), 1.0, 1.0)
    tables: dict[str, dict[str, dict[str, dict[str, float]]]] = {kind: {} for kind in KINDS}
    for n_events in sizes:
        data = sample(n_events, D, K, "mix")
        state = first_state(data.events, data.now.mixture(), prior)
        found = []
        for name, make in contenders(data.events):
            for kind in KINDS:
                with closing(make()) as engine:
                    iterations = chain(kind, engine, state, prior)
                    one = measure(iterations, 1 if name == SERIAL else WARM_UP, limit)
                tables[kind].setdefault(name, {})[str(n_events)] = one
                found.append(one)
                print(f"N={n_events:,} {KINDS[kind]}, {name}: {one['seconds']:.3g} s", flush=True)
        agree(found, n_events)
    absent = "" if cuda.available()[0] else cuda.available()[1]
    return {"D": D, "K": K, "cuda_absent": absent, **tables}


def table(kind: str) -> str:
    """Markdown of one of the tables, "mcmc" or "bem", from the committed results."""
    results = read_results("paper")["results"]
    of_kind = results[kind]
    sizes = sorted({int(n) for row in of_kind.values() for n in row})
    lines = [
        f"| seconds for {ITERATIONS} iterations of {KINDS[kind]}, N = | "
        + " | ".join(f"{n:,}" for n in sizes)
        + " |",
        "| --- |" + " ---: |" * len(sizes),
    ]
    for name, row in of_kind.items():
        lines.append(f"| {name} | " + " | ".join(_cell(row.get(str(n))) for n in sizes) + " |")
    if results["cuda_absent"]:
        lines.append("| dpmix, CUDA | " + " | ".join("no device" for _ in sizes) + " |")
    for name, row in of_kind.items():
        if name != SERIAL:
            ratios = (_ratio(of_kind[SERIAL].get(str(n)), row.get(str(n))) for n in sizes)
            lines.append(f"| *{SERIAL} / {name}* | " + " | ".join(ratios) + " |")
    return "\n".join(lines) + "\n"


def _cell(one: dict[str, float] | None) -> str:
    if one is None:
        return "not run"
    return significant(one["seconds"]) + (" \\*" if one["iterations"] < ITERATIONS else "")


def _ratio(slow: dict[str, float] | None, fast: dict[str, float] | None) -> str:
    return f"*{significant(slow['seconds'] / fast['seconds'], 2)}*" if slow and fast else ""


def in_brief() -> str:
    """A sentence for the README: the largest sample that the serial program was run on."""
    results = read_results("paper")["results"]
    largest = str(max(int(n) for n in results["mcmc"][SERIAL]))
    mcmc, em = ({name: row[largest]["seconds"] for name, row in results[kind].items()} for kind in KINDS)
    threads = "dpmix, 2 threads"
    text = (
        f"{ITERATIONS} iterations for {int(largest):,} events, {D} channels and {K} components take "
        f"{significant(mcmc[threads])} s (MCMC) or {significant(em[threads])} s (Bayesian EM) on two "
        f"threads; a serial program in NumPy takes {significant(mcmc[SERIAL])} s or "
        f"{significant(em[SERIAL])} s ([all sizes](docs/benchmarks/paper.md))."
    )
    return textwrap.fill(text, 115, break_on_hyphens=False) + "\n"


def notes() -> str:
    """How the tables were measured, from the committed results."""
    results = read_results("paper")["results"]
    counts = [
        int(one["iterations"]) for kind in KINDS for row in results[kind].values() for one in row.values()
    ]
    fewer = [count for count in counts if count < ITERATIONS]
    lines = [
        f"D = {results['D']}, K = {results['K']}. \\* scaled from fewer than {ITERATIONS} iterations "
        f"({min(fewer)} to {max(fewer)})."
        if fewer
        else f"D = {results['D']}, K = {results['K']}."
    ]
    if results["cuda_absent"]:
        lines.append("CUDA: not measured, because the machine has no device.")
    return " ".join([*lines, said("paper", packages=("dpmix", "numpy"))]) + "\n"


def draw(results: dict[str, Any], *, quick: bool) -> None:
    """Both tables as a picture."""
    with panels("paper", 1, 2, height=3.4, quick=quick) as axes:
        for ax, (kind, title) in zip(axes.flat, KINDS.items(), strict=True):
            for (name, row), colour in zip(results[kind].items(), COLOURS, strict=False):
                seconds = [one["seconds"] for one in row.values()]
                ax.loglog([int(n) for n in row], seconds, "o-", color=colour, label=name, markersize=3.5)
            ax.set_title(title)
            ax.set_xlabel("events")
            ax.grid(color="#dddddd", linewidth=0.5)
        axes.flat[0].set_ylabel(f"seconds for {ITERATIONS} iterations")
        axes.flat[0].legend(frameon=False)


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    with threadpool_limits(1, "blas"):
        results = run(QUICK_SIZES if quick else SIZES, QUICK_LIMIT if quick else LIMIT)
    write_results("paper", results, quick=quick)
    draw(results, quick=quick)


if __name__ == "__main__":
    main()
