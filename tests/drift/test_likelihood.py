"""Vecchia's likelihood against the exact Gaussian process, its derivatives, and wrong versions of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import gamma, kv
from scipy.stats import multivariate_normal

from dpmix.drift.covariance import CORRELATIONS, Correlation, Covariance
from dpmix.drift.fit import SignalPrior, fit
from dpmix.drift.likelihood import likelihood
from dpmix.drift.points import Points, coarse_to_fine, make_points
from dpmix.drift.posterior import posterior
from dpmix.engines.cpu import instruction_sets
from dpmix.model.mixture import Array

KINDS: list[Correlation] = list(CORRELATIONS)


def correlation(kind: Correlation, d: Array) -> Array:
    """Return the correlation by the general formula of Matern, independent of the closed forms."""
    if kind == "squared":
        return np.exp(-(d**2) / 2.0)
    nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[kind]
    scaled = np.sqrt(2.0 * nu) * np.where(d > 0, d, 1.0)
    return np.where(d > 0, 2.0 ** (1.0 - nu) / gamma(nu) * scaled**nu * kv(nu, scaled), 1.0)


def exact_covariance(points: Points, own: Covariance) -> Array:
    d = np.abs(points.times[:, None] - points.times) / own.range
    return own.variance * correlation(own.correlation, d) + np.diag(own.nugget + points.errors**2)


def exact_value(points: Points, own: Covariance) -> float:
    cov = exact_covariance(points, own)
    white = np.linalg.solve(cov, np.ones(len(cov)))
    mean = white @ points.values / white.sum()
    return float(multivariate_normal(np.full(len(cov), mean), cov).logpdf(points.values))


def example(n: int, m: int, seed: int = 1) -> Points:
    """Return points with uneven times, two of them equal, and unequal errors."""
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0.0, 10.0, n))
    times[n // 2] = times[n // 2 - 1]
    errors = random.uniform(0.05, 0.3, n)
    values = np.sin(times) + 3.0 + errors * random.standard_normal(n)
    return make_points(times, values, errors, m)


def numeric(points: Points, own: Covariance, of: Callable[[Points, Covariance], float]) -> Array:
    """Return the gradient by central differences."""
    logs, steps = own.logs(), 1e-5 * np.eye(3)
    return np.array(
        [(of(points, own.moved(logs + s)) - of(points, own.moved(logs - s))) / 2e-5 for s in steps]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_all_predecessors_give_the_exact_likelihood(kind: Correlation) -> None:
    points, own = example(60, 59), Covariance(kind, 0.7, 1.3, 0.02)
    assert abs(likelihood(points, own).value - exact_value(points, own)) < 1e-10 * 60


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_finite_differences(kind: Correlation) -> None:
    points, own = example(700, 12), Covariance(kind, 0.7, 1.3, 0.02)
    found = likelihood(points, own)
    expected = numeric(points, own, lambda p, c: likelihood(p, c).value)
    np.testing.assert_allclose(found.gradient, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_information_equals_its_definition(kind: Correlation) -> None:
    """With all predecessors, it is half the trace of A^-1 dA A^-1 dA (for a known mean)."""
    points, own = example(50, 49), Covariance(kind, 0.7, 1.3, 0.02)
    cov = exact_covariance(points, own)
    slopes = []
    for step in 1e-5 * np.eye(3):
        up, down = (exact_covariance(points, own.moved(own.logs() + s)) for s in (step, -step))
        slopes.append(np.linalg.solve(cov, (up - down) / 2e-5))
    expected = [[0.5 * np.trace(a @ b) for b in slopes] for a in slopes]
    np.testing.assert_allclose(likelihood(points, own).information, expected, rtol=1e-6, atol=1e-7)


def test_markov_process_needs_one_neighbour() -> None:
    """The exponential covariance without errors is Markov: with one predecessor in time it is exact."""
    times = np.sort(np.random.default_rng(2).uniform(0.0, 5.0, 300))
    points = make_points(times, np.cos(times), np.zeros(300), 1, np.arange(300))
    own = Covariance("matern12", 1.0, 0.8, 1e-300)
    assert abs(likelihood(points, own).value - exact_value(points, own)) < 1e-8


@pytest.mark.parametrize("m", [1, 5, 30])
def test_neighbours_are_the_nearest_predecessors(m: int) -> None:
    points, order = example(200, m), coarse_to_fine(200)
    for turn, point in enumerate(order):
        distances = np.sort(np.abs(points.times[order[:turn]] - points.times[point]))[:m]
        own = points.neighbours[point]
        assert set(own[own >= 0]) <= set(order[:turn])
        assert (np.diff(own[own >= 0]) > 0).all()
        np.testing.assert_array_equal(
            np.sort(np.abs(points.times[own[own >= 0]] - points.times[point])), distances
        )


def test_threads_do_not_change_a_bit() -> None:
    points, own = example(3000, 20), Covariance("matern32", 0.7, 1.3, 0.02)
    one, two = likelihood(points, own, 1), likelihood(points, own, 2)
    assert one.value == two.value
    np.testing.assert_array_equal(one.gradient, two.gradient)
    np.testing.assert_array_equal(one.information, two.information)


def test_instruction_sets_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except x86-64-v2, which has no fused multiply-add."""
    points, found = example(1003, 17), {}
    for isa in instruction_sets():
        monkeypatch.setattr("dpmix.drift.likelihood._cpu.isas", lambda isa=isa: [isa])
        found[isa] = [likelihood(points, Covariance(kind, 0.7, 1.3, 0.02)) for kind in KINDS]
    first = next(iter(found))
    for isa, own in found.items():
        for one, best in zip(own, found[first], strict=True):
            if isa == "v2":
                assert one.value == pytest.approx(best.value, rel=1e-11)
                np.testing.assert_allclose(one.gradient, best.gradient, rtol=1e-8, atol=1e-8)
            else:
                assert one.value == best.value
                np.testing.assert_array_equal(one.gradient, best.gradient)
                np.testing.assert_array_equal(one.information, best.information)


def test_wrong_versions_are_caught() -> None:
    """The checks above see a neighbour set shifted by one, and a gradient with the wrong sign."""
    points, own = example(60, 59), Covariance("matern32", 0.7, 1.3, 0.02)
    shifted = np.where(points.neighbours > 0, points.neighbours - 1, points.neighbours)
    wrong = dataclasses.replace(points, neighbours=np.ascontiguousarray(shifted))
    try:
        value = likelihood(wrong, own).value
    except np.linalg.LinAlgError:
        value = np.nan
    assert not abs(value - exact_value(points, own)) < 1e-10 * 60
    gradient = likelihood(points, own).gradient
    assert np.abs(-gradient - numeric(points, own, exact_value)).max() > 1.0


def test_singular_covariance_is_an_error() -> None:
    points = make_points(np.zeros(5), np.arange(5.0), np.zeros(5), 4)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        likelihood(points, Covariance("squared", 1.0, 1.0, 1e-300))


@pytest.mark.parametrize(
    ("times", "errors", "m"),
    [
        ([1.0, 0.0], [0.1, 0.1], 1),
        ([0.0, 1.0], [0.1, -0.1], 1),
        ([0.0, np.nan], [0.1, 0.1], 1),
        ([0.0], [0.1], 65),
    ],
)
def test_impossible_points_are_refused(times: list[float], errors: list[float], m: int) -> None:
    with pytest.raises(ValueError, match=r"need|ascend"):
        make_points(np.array(times), np.zeros(len(times)), np.array(errors), m)


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_scoring_ends_at_the_maximum(kind: Correlation) -> None:
    points, prior = example(400, 30), SignalPrior.weak(10.0, 0.1)
    found = fit(points, prior, kind)
    assert found.converged
    logs = found.covariance.logs()
    for step in (*(0.2 * np.eye(3)), *(-0.2 * np.eye(3))):
        value = likelihood(points, found.covariance.moved(logs + step)).value + prior.log_density(logs + step)
        assert value < found.log_posterior


def simulated(n: int, own: Covariance, random: np.random.Generator) -> tuple[Points, Array]:
    """Return points with a signal from the covariance, and the signal."""
    times = np.sort(random.uniform(0.0, 10.0, n))
    errors = np.full(n, 0.2)
    cov = own.between(times, times) + 1e-9 * np.eye(n)
    signal = 5.0 + np.linalg.cholesky(cov) @ random.standard_normal(n)
    noise = np.sqrt(own.nugget + errors**2) * random.standard_normal(n)
    return make_points(times, signal + noise, errors), signal


def coverage(factor: float, runs: int) -> float:
    """Return the share of simulated signals within their 90% intervals, made wider by a factor."""
    inside = []
    for seed in range(runs):
        own = Covariance("matern32", 0.5, 1.5, 0.01)
        points, signal = simulated(300, own, np.random.default_rng(seed))
        found = posterior(points, fit(points, SignalPrior.weak(10.0, 0.2)), points.times)
        inside.append((np.abs(signal - found.mean) <= factor * 1.6449 * found.sd).mean())
    return float(np.mean(inside))


@pytest.mark.slow
def test_intervals_cover_as_often_as_stated() -> None:
    """Shares in single signals vary by about 0.06, so the mean of 60 by 0.008; three of them are 0.024."""
    assert abs(coverage(1.0, 60) - 0.9) < 0.024


@pytest.mark.slow
def test_wrong_intervals_miss_their_coverage() -> None:
    assert abs(coverage(0.8, 60) - 0.9) > 0.024
