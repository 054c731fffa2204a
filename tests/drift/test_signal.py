"""The posterior in linear time against dense matrices, the resolution of a fit, and wrong versions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dense import dense_posterior

from dpmix.drift import fit as fitting
from dpmix.drift import markov
from dpmix.drift.averages import average, group_sizes, group_starts
from dpmix.drift.covariance import CORRELATIONS, Correlation, Covariance
from dpmix.drift.exact import smooth, whiten
from dpmix.drift.fit import SignalFit, SignalPrior, fit, fit_blocks
from dpmix.drift.points import Points, make_points
from dpmix.drift.posterior import SignalPosterior, posterior
from dpmix.model.mixture import Array

RANGES = (0.003, 1.3, 400.0)
SLOPE_SD = 0.3


def example(n: int, kind: Correlation, reach: float) -> tuple[Points, SignalFit]:
    """Return points with uneven times, two of them equal, and unequal errors, and a fit."""
    random = np.random.default_rng(n)
    times = np.sort(random.uniform(0.0, 10.0, n))
    times[n // 2] = times[n // 2 - 1]
    errors = random.uniform(0.05, 0.3, n)
    values = np.sin(times) + 3.0 + errors * random.standard_normal(n)
    points = make_points(times, values, errors, 0)
    return points, SignalFit(Covariance(kind, 0.7, reach, 0.02), 0.0, 0.0, 0.0, 1, True)


@pytest.mark.parametrize("kind", CORRELATIONS)
@pytest.mark.parametrize("reach", RANGES)
def test_whitening_is_by_the_cholesky_factor(kind: Correlation, reach: float) -> None:
    points, found = example(200, kind, reach)
    noise = found.covariance.nugget + points.errors**2
    columns = np.random.default_rng(1).standard_normal((200, 3))
    log_det, white = whiten(points.times, noise, found.covariance, columns)
    root = np.linalg.cholesky(found.covariance.between(points.times, points.times) + np.diag(noise))
    assert log_det == pytest.approx(2.0 * np.log(np.diag(root)).sum(), abs=1e-8)
    np.testing.assert_allclose(white, np.linalg.solve(root, columns), atol=1e-8)


def check_posterior(points: Points, found: SignalFit, times: Array, got: SignalPosterior) -> None:
    """Compare with dense matrices; the smallest standard deviation here is 0.02."""
    mean, cov = dense_posterior(points, found, times, SLOPE_SD)
    np.testing.assert_allclose(got.mean, mean, atol=1e-8)
    np.testing.assert_allclose(got.sd, np.sqrt(np.diag(cov)), atol=1e-8)
    for i, j in ((0, len(times) - 1), (10, 11), (15, 4)):
        assert got.covariance(i, j) == pytest.approx(cov[i, j], abs=1e-8)


@pytest.mark.parametrize("kind", CORRELATIONS)
@pytest.mark.parametrize("reach", RANGES)
def test_the_posterior_is_that_of_dense_matrices(kind: Correlation, reach: float) -> None:
    """At the blocks, and at other times: between, before and after them, and one of the blocks' times."""
    points, found = example(400, kind, reach)
    others = np.sort(np.append(np.linspace(-1.0, 11.0, 30), points.times[[3, 200]]))
    for times in (points.times, others):
        check_posterior(points, found, times, posterior(points, found, times, SLOPE_SD))


def test_the_posterior_of_thousands_of_noisy_blocks_is_that_of_dense_matrices() -> None:
    """Medians of 100 events have a standard error of 0.125, more than the signal. A range has 400 blocks."""
    random, n = np.random.default_rng(2), 2_000
    times = np.sort(random.uniform(0.0, 100.0, n))
    values = 0.05 * np.sin(times / 10.0) + 0.125 * random.standard_normal(n)
    points = make_points(times, values, np.full(n, 0.125), 0)
    found = SignalFit(Covariance("matern32", 0.05**2, 20.0, 1e-4), 0.0, 0.0, 0.0, 1, True)
    mean, cov = dense_posterior(points, found, times)
    got = posterior(points, found, times)
    np.testing.assert_allclose(got.mean, mean, atol=1e-9)
    np.testing.assert_allclose(got.sd, np.sqrt(np.diag(cov)), rtol=1e-8)


def test_wrong_posteriors_are_caught() -> None:
    """The checks see a forgotten trend, a known mean, and a nugget left out."""
    points, found = example(400, "matern32", 1.3)
    right = posterior(points, found, points.times, SLOPE_SD)
    bare = dataclasses.replace(found, covariance=dataclasses.replace(found.covariance, nugget=0.0))
    noise = found.covariance.nugget + points.errors**2
    known = dataclasses.replace(
        right, sd=np.sqrt(smooth(points.times, noise, found.covariance, points.values[:, None])[1])
    )
    for wrong in (
        posterior(points, found, points.times),
        posterior(points, bare, points.times, SLOPE_SD),
        known,
    ):
        with pytest.raises(AssertionError):
            check_posterior(points, found, points.times, wrong)


def test_the_nearest_blocks_alone_know_less_of_a_slow_signal() -> None:
    """Each block given its 30 neighbours, instead of all blocks, would be the posterior of another model."""
    points, found = example(2_000, "matern32", 5.0)
    near = slice(985, 1016)
    few = make_points(points.times[near], points.values[near], points.errors[near], 0)
    alone, right = (posterior(some, found, points.times[1000:1001]).sd[0] for some in (few, points))
    assert alone > 1.3 * right


def test_a_million_blocks_are_smoothed() -> None:
    """Dense matrices would take 8 TB."""
    random, n = np.random.default_rng(3), 1_000_000
    times, signal = np.linspace(0.0, 100.0, n), 0.1 * np.sin(np.linspace(0.0, 12.0, n))
    points = make_points(times, signal + 0.125 * random.standard_normal(n), np.full(n, 0.125), 0)
    found = SignalFit(Covariance("matern32", 0.01, 20.0, 1e-9), 0.0, 0.0, 0.0, 1, True)
    got = posterior(points, found, times, 0.001)
    assert got.covariance(0, n - 1) < got.sd[0] ** 2
    assert np.abs(got.mean - signal).max() < 6.0 * got.sd.max() < 0.02


def test_impossible_posteriors_are_refused() -> None:
    points, found = example(20, "matern32", 1.0)
    with pytest.raises(ValueError, match="ascend"):
        posterior(points, found, np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="got squared, need one of matern12, matern32, matern52"):
        markov.whiten(points.times, points.errors, Covariance("squared", 1.0, 1.0, 0.1), np.ones((20, 1)))


def test_averages_of_groups() -> None:
    starts = group_starts(10, 3)
    assert starts.tolist() == [0, 4, 8]
    assert group_sizes(10, starts).tolist() == [4, 4, 2]
    np.testing.assert_allclose(average(np.arange(10.0), starts), [1.5, 5.5, 8.5])
    np.testing.assert_allclose(average(np.eye(10), starts)[0], np.repeat([0.25, 0.0], [4, 6]))
    assert group_starts(10, 10).tolist() == list(range(10))


def blocks(n: int, signal: Array, seed: int = 1) -> tuple[Array, Array, Array]:
    """Return times, values and errors of blocks of 100 events."""
    random = np.random.default_rng([n, seed])
    return np.linspace(0.0, 100.0, n), signal + 0.125 * random.standard_normal(n), np.full(n, 0.125)


def test_few_blocks_are_fitted_as_they_are() -> None:
    given = blocks(300, np.sin(np.linspace(0.0, 9.0, 300)))
    prior = SignalPrior.weak(100.0, 0.125)
    assert fit_blocks(*given, prior) == fit(make_points(*given), prior)


def exact_density(given: tuple[Array, Array, Array], own: Covariance) -> float:
    """Return the log density of blocks, with the mean at its maximum, by dense matrices."""
    times, values, errors = given
    root = np.linalg.cholesky(own.between(times, times) + np.diag(own.nugget + errors**2))
    white = np.linalg.solve(root, np.column_stack([values, np.ones(len(values))]))
    left = white[:, 0] - white[:, 1] * (white[:, 0] @ white[:, 1]) / (white[:, 1] @ white[:, 1])
    return float(-0.5 * (len(times) * np.log(2.0 * np.pi) + left @ left) - np.log(np.diag(root)).sum())


def test_the_best_resolution_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow signal by averages, a fast one by the blocks; the density is the exact one of all blocks."""
    n, prior = 1_500, SignalPrior.weak(100.0, 0.125)
    at = np.linspace(0.0, 100.0, n)
    for signal, reach in ((0.1 * np.sin(at / 15.0), (5.0, 60.0)), (0.5 * np.sin(at / 0.06), (0.01, 1.0))):
        given = blocks(n, signal)
        best = fit_blocks(*given, prior)
        assert reach[0] < best.covariance.range < reach[1]
        expected = exact_density(given, best.covariance) + prior.log_density(best.covariance.logs())
        assert best.log_posterior == pytest.approx(expected, abs=1e-6)
    monkeypatch.setattr(fitting, "_with_all_blocks", lambda one, *_: one)  # densities of different averages
    assert fit_blocks(*given, prior).covariance.range > 1.0


@pytest.mark.slow
def test_many_blocks_are_judged_as_well_as_their_averages() -> None:
    """By the blocks alone, 30 neighbours each, the density of a slow signal is several nats lower."""
    lower = []
    for seed in range(3):
        random, n = np.random.default_rng(seed), 12_000
        times = np.linspace(0.0, 100.0, n)
        values = 0.4 * np.sin(times / 2.4 + seed) + 0.125 * random.standard_normal(n)
        prior = SignalPrior.weak(100.0, 0.125)
        best = fit_blocks(times, values, np.full(n, 0.125), prior)
        alone = fit(make_points(times, values, np.full(n, 0.125)), prior)
        exact = fitting._with_all_blocks(alone, times, values, np.full(n, 0.125), prior)
        lower.append(best.log_posterior - exact.log_posterior)
    assert min(lower) >= 0.0
    assert np.mean(lower) > 3.0


def test_intervals_of_many_noisy_blocks_cover_as_often_as_stated() -> None:
    """90% intervals in 12 signals of 4,000 blocks, fit included; single shares vary by about 0.06."""
    own, nodes = Covariance("matern32", 0.01, 10.0, 0.0), np.linspace(0.0, 100.0, 401)
    root, inside = np.linalg.cholesky(own.between(nodes, nodes) + 1e-12 * np.eye(401)), []
    for seed in range(12):
        signal = np.interp(
            np.linspace(0.0, 100.0, 4_000), nodes, root @ np.random.default_rng(seed).standard_normal(401)
        )
        times, values, errors = blocks(4_000, signal, seed)
        found = fit_blocks(times, values, errors, SignalPrior.weak(100.0, 0.125))
        got = posterior(make_points(times, values, errors, 0), found, times)
        inside.append((np.abs(signal - got.mean) <= 1.6449 * got.sd).mean())
    assert abs(np.mean(inside) - 0.9) < 0.06
