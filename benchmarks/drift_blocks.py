"""Measure `dpmix drift` with many noisy blocks: which fits are good, and the time of posterior and steps.

    python benchmarks/drift_blocks.py [--quick]

Takes about five minutes of one core. Two parts:

- *fits*: blocks of 100 events, with standard errors of 0.125 spreads and a known signal. Fits of the
  covariance by Vecchia's likelihood with 30 neighbours: of 1,024 averages of blocks, of the blocks, and the
  best one of all resolutions, which dpmix takes. Of each: how far its density of all blocks, which is exact,
  is below the maximum, which a simplex search finds from the best fit; the root mean square error of the
  posterior mean, compared with that at the maximum; how often the signal is in the 90% interval.
- *times*: of one density, one posterior with the covariance of two times, and one search for change points,
  by the number of blocks. Processor time, the smallest of three rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from record import arguments, read_results, write_results
from threadpoolctl import threadpool_limits

from dpmix.drift import fit as fitting
from dpmix.drift.averages import average, group_starts
from dpmix.drift.covariance import Covariance
from dpmix.drift.fit import SignalFit, SignalPrior, fit, fit_blocks
from dpmix.drift.judge import NORMAL_95
from dpmix.drift.likelihood import likelihood
from dpmix.drift.points import make_points
from dpmix.drift.posterior import posterior
from dpmix.drift.steps import change_points

ERROR, DURATION = 0.125, 100.0
BLOCKS, SEEDS = 16_384, 3
SIGNALS = {  # amplitude and period
    "steady": (0.0, 1.0),
    "slow, small": (0.05, 100.0),
    "slow": (0.4, 100.0),
    "15 units": (0.4, 15.0),
    "1 unit": (0.1, 1.0),
    "0.1 units": (0.1, 0.1),
}
WAYS = {"averages": "1,024 averages", "blocks": "blocks", "best": "the best of all (dpmix)"}
SIZES = (10_000, 100_000, 1_000_000)

Array = np.ndarray


def fit_averages(times: Array, values: Array, errors: Array, prior: SignalPrior) -> SignalFit:
    """Return the fit of 1,024 averages as one of the blocks."""
    starts = group_starts(len(times), fitting.COARSEST)
    size = int(starts[1])
    shown, means = average(times, starts), average(values, starts)
    one = fit(make_points(shown, means, np.full(len(starts), errors[0] / size**0.5)), prior.of_averages(size))
    return replace(one, covariance=replace(one.covariance, nugget=one.covariance.nugget * size))


def maximum(found: SignalFit, *given: Any) -> SignalFit:
    """Return the fit with the highest exact density of all blocks near a fit."""
    from scipy.optimize import minimize

    def of(logs: Array) -> SignalFit:
        own = replace(found, covariance=found.covariance.moved(logs))
        return fitting._with_all_blocks(own, *given)

    options = {"xatol": 0.01, "fatol": 0.01, "maxiter": 400}
    best = minimize(
        lambda logs: -of(logs).log_posterior, found.covariance.logs(), method="Nelder-Mead", options=options
    )
    return of(best.x)


def compare(n: int, kind: str, seed: int) -> dict[str, Any]:
    """Return density, error and coverage of the fits of one recording."""
    amplitude, period = SIGNALS[kind]
    random = np.random.default_rng([seed, n])
    times = np.sort(random.uniform(0.0, DURATION, n))
    signal = amplitude * np.sin(2.0 * np.pi * times / period + seed)
    values, errors = signal + ERROR * random.standard_normal(n), np.full(n, ERROR)
    prior = SignalPrior.weak(DURATION, ERROR)
    given = times, values, errors, prior
    fits = {
        "averages": fit_averages(*given),
        "blocks": fit(make_points(times, values, errors), prior),
        "best": fit_blocks(*given),
    }
    fits = {name: fitting._with_all_blocks(one, *given) for name, one in fits.items()}
    top = maximum(max(fits.values(), key=lambda one: one.log_posterior), *given)

    def curve(one: SignalFit) -> tuple[float, float]:
        got = posterior(make_points(times, values, errors, 0), one, times)
        inside = np.abs(got.mean - signal) <= NORMAL_95 * got.sd
        return float(((got.mean - signal) ** 2).mean() ** 0.5), float(inside.mean())

    least, _ = curve(top)
    row: dict[str, Any] = {"signal": kind}
    for name, one in fits.items():
        error, inside = curve(one)
        row |= {f"{name} below": top.log_posterior - one.log_posterior, f"{name} error": error}
        row |= {f"{name} ratio": error / least, f"{name} inside": inside}
    print(row, flush=True)
    return row


def least_seconds(run: Callable[[], object], rounds: int = 3) -> float:
    """Return the smallest processor time of some rounds."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return min(found)


def measure_times(n: int) -> dict[str, float]:
    """Return seconds of the linear computations of n blocks."""
    random, times = np.random.default_rng(n), np.linspace(0.0, DURATION, n)
    noise, wave = ERROR * random.standard_normal(n), 0.4 * np.sin(2.0 * np.pi * times / 100.0)
    errors, own = np.full(n, ERROR), Covariance("matern32", 0.1, 30.0, 1e-4)
    found, prior = SignalFit(own, 0.0, 0.0, 0.0, 1, True), SignalPrior.weak(DURATION, ERROR)
    points, plain = make_points(times, wave + noise, errors), make_points(times, wave + noise, errors, 0)
    row = {
        "blocks": n,
        "pass": least_seconds(lambda: likelihood(points, own)),
        "density": least_seconds(lambda: fitting._with_all_blocks(found, times, wave + noise, errors, prior)),
        "posterior": least_seconds(lambda: posterior(plain, found, times, 0.001).covariance(0, n - 1)),
        "steps, steady": least_seconds(lambda: change_points(noise, ERROR)),
        "steps, wave": least_seconds(lambda: change_points(wave + noise, ERROR), 1),
    }
    print(row, flush=True)
    return row


def table_fits() -> str:
    """Return the table of fits, means over recordings."""
    head = [
        "signal",
        "fit of",
        "density below the maximum, nats",
        "error over that at the maximum",
        "in the interval",
    ]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | ---: | ---: | ---: |"]
    rows = read_results("drift_blocks")["results"]["fits"]
    for kind in SIGNALS:
        own = [row for row in rows if row["signal"] == kind]
        for name, title in WAYS.items():
            below, ratio, inside = (
                float(np.mean([row[f"{name} {key}"] for row in own])) for key in ("below", "ratio", "inside")
            )
            lines.append(f"| {kind} | {title} | {below:,.1f} | {ratio:.2f} | {inside:.0%} |")
    return "\n".join(lines) + "\n"


def table_times() -> str:
    """Return the table of times."""
    keys = {
        "pass": "a pass of Vecchia's likelihood",
        "density": "exact density",
        "posterior": "posterior",
        "steps, steady": "search for steps, steady",
        "steps, wave": "search for steps, a wave",
    }
    lines = [f"| blocks | {' | '.join(keys.values())} |", "| ---: |" + " ---: |" * len(keys)]
    for row in read_results("drift_blocks")["results"]["times"]:
        lines.append(f"| {row['blocks']:,} | {' | '.join(f'{row[key]:.2g}' for key in keys)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    given = arguments(__doc__).parse_args()
    n, seeds, sizes = (2_000, 1, SIZES[:1]) if given.quick else (BLOCKS, SEEDS, SIZES)
    with threadpool_limits(1, "blas"):
        results = {
            "fits": [compare(n, kind, seed) for kind in SIGNALS for seed in range(seeds)],
            "times": [measure_times(size) for size in sizes],
        }
    write_results("drift_blocks", results, quick=given.quick)


if __name__ == "__main__":
    main()
