"""Change points: the best partition, its evidence, and what is kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats as st
from scipy.special import logsumexp

from dpmix.drift import steps
from dpmix.drift.covariance import Covariance
from dpmix.drift.fit import SignalPrior
from dpmix.drift.judge import judge
from dpmix.drift.steps import (
    MOST_SHORTEST,
    PENALTY,
    SHORTEST,
    change_points,
    keep_steps,
    noise_sd,
    without_outliers,
)
from dpmix.model.mixture import Array


def best_by_trial(values: Array, sd: float) -> list[int]:
    """Return the change points with the least cost of all partitions, each tried."""
    n, best, found = len(values), np.inf, []
    for many in range(n // SHORTEST):
        for changes in itertools.combinations(range(SHORTEST, n - SHORTEST + 1), many):
            ends = [0, *changes, n]
            if min(np.diff(ends)) < SHORTEST:
                continue
            cost = many * PENALTY * np.log(n)
            for start, stop in itertools.pairwise(ends):
                x, y = np.arange(start, stop), values[start:stop] / sd
                cost += float(((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2).sum())
            if cost < best:
                best, found = cost, list(changes)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_change_points_are_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.repeat(random.normal(0.0, 30.0, 4), [4, 3, 3, 4]) + random.standard_normal(14)
    found = change_points(values, 1.0)
    assert found == best_by_trial(values, 1.0)
    assert found


def test_change_points_are_steps_and_not_drift() -> None:
    random, times = np.random.default_rng(1), np.arange(300.0)
    errors, noise = np.full(300, 1.0), random.standard_normal((20, 300))
    steady = [bool(change_points(one, noise_sd(one, errors))) for one in noise]
    ramps = [bool(change_points(one, noise_sd(one, errors))) for one in noise + 0.1 * times]
    stepped = noise + 5.0 * (times >= 120)
    found = [change_points(one, noise_sd(one, errors)) for one in stepped]
    assert sum(steady) <= 1
    assert sum(ramps) <= 1
    assert all(len(one) == 1 and abs(one[0] - 120) <= 2 for one in found)


def best_by_plain_recursion(values: Array, sd: float, penalty: float = PENALTY) -> list[int]:
    """Return the change points by optimal partitioning without any bound."""
    n, y, x = len(values), values / sd, np.arange(len(values))
    shortest = min(max(SHORTEST, n * 3 // 1024), MOST_SHORTEST)
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, int)
    best[0] = -penalty * np.log(n)
    for stop in range(shortest, n + 1):
        starts = np.arange(stop - shortest + 1)
        sizes = stop - starts
        # Sums from each start to the stop, about the last block, so that nothing cancels.
        sums = [np.cumsum(part[:stop][::-1])[::-1][starts] for part in (y, (x - stop) * y, y * y)]
        middle = -0.5 * (sizes + 1)
        slope = (sums[1] - middle * sums[0]) ** 2 * 12 / (sizes * (sizes**2 - 1.0))
        totals = best[starts] + sums[2] - sums[0] ** 2 / sizes - slope + penalty * np.log(n)
        last[stop] = np.argmin(totals)
        best[stop] = totals[last[stop]]
    found: list[int] = []
    while last[n] > 0:
        n = int(last[n])
        found.append(n)
    return found[::-1]


SIGNALS = {
    "steady": lambda x: np.zeros_like(x),
    "line": lambda x: 50.0 * x,
    "steps": lambda x: 4.0 * (np.floor(12 * x) % 2),
    "wave": lambda x: 8.0 * np.sin(25.0 * x),
    "bubble, level": lambda x: 1e4 + 6.0 * ((x > 0.4) & (x < 0.41)),
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("n", [3, 33, 3000])
def test_bounds_leave_the_best_partition(signal: str, n: int) -> None:
    """Groups of starts are skipped, and never the best one."""
    random = np.random.default_rng(n)
    for _ in range(2):
        values = SIGNALS[signal](np.linspace(0.0, 1.0, n)) + random.standard_normal(n)
        assert change_points(values, 1.0) == best_by_plain_recursion(values, 1.0)
    if n == 3000 and signal == "wave":
        assert change_points(values, 1.0) != best_by_plain_recursion(values, 1.0, 0.4 * PENALTY)


def test_a_million_blocks_are_divided() -> None:
    """Without bounds, they would take 5e11 costs: more than ten minutes."""
    values = np.random.default_rng(1).standard_normal(1_000_000)
    values[600_000:] += 0.1
    (found,) = change_points(values, 1.0)
    assert abs(found - 600_000) < 5_000


def test_medians_far_off_side_by_side_are_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 40 of 60,000 medians lies between two populations. The change points of a wave take them."""
    random, x = np.random.default_rng(3), np.linspace(0.0, 1.0, 60_000)
    far = random.random(60_000) < 0.025
    values = 0.25 * np.sin(6.0 * x) + np.where(
        far, random.uniform(0.5, 1.2, 60_000), 0.06 * random.standard_normal(60_000)
    )
    noise = noise_sd(values, np.full(60_000, 0.06))
    plain = without_outliers(values, noise)

    def kept() -> list[int]:
        return keep_steps(100.0 * x, plain, np.full(60_000, noise), change_points(plain, noise))

    assert kept() == []
    monkeypatch.setattr(steps, "MOST_SHORTEST", SHORTEST)
    assert len(kept()) >= 2


def test_the_largest_jumps_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_CHANGES", 2)
    values = np.repeat([0.0, 0.1, 1.1, 1.3, 0.2], 40)
    assert steps._largest_jumps(values, [40, 80, 120, 160]) == [80, 160]


@pytest.mark.parametrize("size", [1, 2])  # blocks that are averaged
def test_the_evidence_of_steps_is_the_density_of_the_values(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_BLOCKS", 20 // size)
    monkeypatch.setattr(steps, "JUMP_SD", 0.5)
    random, changes = np.random.default_rng(2), [8, 13]
    groups = steps._groups(20, changes)
    sizes = np.diff(groups, append=20)
    means = (np.searchsorted(groups, np.arange(20), "right") - 1 == np.arange(len(groups))[:, None]) / sizes[
        :, None
    ]
    assert sizes.max() == size
    assert set(changes) <= set(groups)
    times, errors = np.sort(random.uniform(0.0, 10.0, 20)), random.uniform(0.1, 0.2, 20)
    values = 0.4 * (np.arange(20) >= 8) + 0.15 * random.standard_normal(20)
    prior = SignalPrior.weak(float(times[-1] - times[0]), float(np.median(errors)))

    def plainly(kept: list[int]) -> float:
        logs = []
        for z in map(np.array, itertools.product(steps.VARIANCES, steps.RANGES, steps.NUGGETS)):
            own = Covariance("matern32", *np.exp(prior.centres + z * prior.sds).tolist())
            total = own.between(means @ times, means @ times) + steps.MEAN_SD**2
            total += np.diag((own.nugget + means @ errors**2) / sizes)
            for one in kept:
                after = means @ (np.arange(20) >= changes[one])
                total += steps.JUMP_SD**2 * np.outer(after, after)
            density = st.multivariate_normal(cov=total).logpdf(means @ (values - values.mean()))
            logs.append(density - 0.5 * z @ z)
        return float(logsumexp(logs))

    given = steps._products(times, values, errors, changes, "matern32")
    none = steps._log_evidence(*given, [])
    for kept in ([0], [1], [0, 1]):
        raised = steps._log_evidence(*given, kept) - none
        assert raised == pytest.approx(plainly(kept) - plainly([]), abs=1e-6)


@pytest.mark.parametrize("n_blocks", [150, 600, 20_000])  # 20,000 blocks are averaged
def test_steps_are_kept_and_bends_are_not(n_blocks: int) -> None:
    random, sd = np.random.default_rng(5), 0.1 * max(n_blocks / 600, 1.0) ** 0.5
    errors = np.full(n_blocks, sd)
    times = np.linspace(0.0, 100.0, n_blocks)
    bends, made = 0, 0
    for _ in range(8):
        noise = sd * random.standard_normal(n_blocks)
        place = int(n_blocks * random.uniform(0.2, 0.8))
        stepped = noise + 0.3 * (np.arange(n_blocks) >= place)
        wave = noise + 0.5 * np.sin(2.0 * np.pi * (times / 20.0 + random.random()))
        (found,) = keep_steps(times, stepped, errors, change_points(stepped, sd))
        assert abs(found - place) <= 5 * max(n_blocks / 600, 1.0)
        bent = change_points(wave, sd)
        bends += len(bent)
        made += len(keep_steps(times, wave, errors, bent))
    assert made <= 1
    assert bends > 40


@pytest.mark.slow
def test_a_wave_of_a_hundred_periods_leaves_few_steps() -> None:
    """Without the two shortest ranges, more than 30 were left."""
    random, x, errors = np.random.default_rng(4), np.linspace(0.0, 100.0, 5_000), np.full(5_000, 0.1)
    values = 0.3 * np.sin(2.0 * np.pi * x) + 0.1 * random.standard_normal(5_000)
    candidates = change_points(values, 0.1)
    assert len(candidates) > 100
    assert len(keep_steps(x, values, errors, candidates)) <= 5


def test_a_single_block_is_no_step() -> None:
    values = 0.1 * np.random.default_rng(6).standard_normal(60)
    values[[20, 40, 41, 42]] += 2.0
    plain = without_outliers(values, 0.1)
    assert abs(plain[20]) < 0.6
    assert plain[40:43] == pytest.approx(values[40:43], abs=0.1)
    others = np.delete(np.arange(60), [20, 40, 41, 42])
    assert plain[others] == pytest.approx(values[others], abs=0.1)
    found = judge("a", np.arange(60.0), values, np.full(60, 0.1))
    assert found.changes == (40, 43)
    assert found.values is values
