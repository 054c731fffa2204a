"""Local approximate Gaussian processes against their definitions, point by point, and wrong versions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from dense import dense_posterior

from dpmix.drift.covariance import CORRELATIONS, Correlation, Covariance
from dpmix.drift.fit import SignalFit
from dpmix.drift.judge import judge
from dpmix.drift.local import LOCAL_SDS, MAX_CANDIDATES, LocalPosterior, local_posterior, shared_trend
from dpmix.drift.points import Points, make_points
from dpmix.model.mixture import Array

KINDS: list[Correlation] = list(CORRELATIONS)
FIXED = (1e-6, 1e-6)  # prior that keeps the parameters of the stationary fit
SLOPE_SD = 0.02


def example(n: int, kind: Correlation = "matern32", seed: int = 1) -> tuple[Points, SignalFit]:
    """Return a signal that is quiet and then active, with two equal times and unequal errors, and a fit."""
    random = np.random.default_rng(seed)
    times = np.sort(random.uniform(0.0, 100.0, n))
    times[n // 2] = times[n // 2 - 1]
    errors = random.uniform(0.05, 0.15, n)
    values = 3.0 + np.where(times > 50.0, 0.5 * np.sin(times / 2.0), 0.0) + errors * random.standard_normal(n)
    return make_points(times, values, errors), SignalFit(
        Covariance(kind, 0.04, 6.0, 0.003), 3.0, 0.1, 0.0, 1, True
    )


def noise_of(points: Points, fit: SignalFit) -> Array:
    return fit.covariance.nugget + points.errors**2


def predictive_variance(
    points: Points, fit: SignalFit, own: Covariance, design: list[int], at: float
) -> float:
    """Return the variance of the signal at a time given the values of a design."""
    times = points.times[design]
    cov = own.between(times, times) + np.diag(noise_of(points, fit)[design])
    cross = own.between(np.array([at]), times)[0]
    return float(own.variance - cross @ np.linalg.solve(cov, cross))


def design_plainly(points: Points, fit: SignalFit, own: Covariance, at: float, size: int) -> list[int]:
    """Return the design by trying every point at every step."""
    design = np.argsort(np.abs(points.times - at), kind="stable")[:6].tolist()[:size]
    while len(design) < size:
        others = [k for k in range(len(points.times)) if k not in design]
        design.append(min(others, key=lambda k: predictive_variance(points, fit, own, [*design, k], at)))
    return sorted(design)


def log_posterior(points: Points, found: LocalPosterior, place: int, logs: Array) -> float:
    """Return log likelihood plus log prior of the local parameters of a design."""
    fit, design = found.fit, found.designs[place]
    own = Covariance(fit.covariance.correlation, *np.exp(logs).tolist(), 0.0)
    times = points.times[design]
    trend = found.trend.coefficients[0] + found.trend.coefficients[1] * (times - found.trend.middle)
    cov = own.between(times, times) + np.diag(noise_of(points, fit)[design])
    z = (logs - fit.covariance.logs()[:2]) / np.array(LOCAL_SDS)
    left = points.values[design] - trend
    return float(-0.5 * (np.linalg.slogdet(cov)[1] + left @ np.linalg.solve(cov, left) + z @ z))


def check_designs(points: Points, found: LocalPosterior, size: int) -> None:
    """Compare designs with designs by trial, for the parameters of the stationary fit."""
    for place in range(0, len(found.times), 7):
        expected = design_plainly(points, found.fit, found.fit.covariance, found.times[place], size)
        assert found.designs[place].tolist() == expected


def check_maxima(points: Points, found: LocalPosterior) -> None:
    for place in range(0, len(found.times), 5):
        logs = np.log([found.variances[place], found.ranges[place]])
        best = log_posterior(points, found, place, logs)
        for step in (*(0.05 * np.eye(2)), *(-0.05 * np.eye(2))):
            assert log_posterior(points, found, place, logs + step) < best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 15])
def test_designs_reduce_the_variance_most(kind: Correlation, size: int) -> None:
    points, fit = example(60, kind)
    at = np.linspace(-3.0, 103.0, 22)
    check_designs(points, local_posterior(points, fit, at, SLOPE_SD, size, FIXED), size)


def test_rounding_does_not_choose_between_equal_gains() -> None:
    """At regular times all designs have one shape, though the times are rounded."""
    times = 0.1 * np.arange(700)
    points = make_points(times, np.zeros(700), np.full(700, 0.1))
    fit = SignalFit(Covariance("matern32", 0.04, 1.0, 0.003), 0.0, 0.1, 0.0, 1, True)
    places = np.arange(150, 550, 7)
    found = local_posterior(points, fit, times[places], SLOPE_SD, 20, FIXED)
    shapes = found.designs - places[:, None]
    assert (shapes == shapes[0]).all()


def test_designs_are_taken_from_the_nearest_points() -> None:
    points, fit = example(MAX_CANDIDATES + 200)
    fit = dataclasses.replace(fit, covariance=Covariance("matern32", 0.04, 500.0, 0.003))
    found = local_posterior(points, fit, points.times[[0, 200]], SLOPE_SD, 20, FIXED)
    for place, point in enumerate((0, 200)):
        distances = np.sort(np.abs(points.times - points.times[point]))
        own = np.abs(points.times[found.designs[place]] - points.times[point])
        assert own.max() <= distances[MAX_CANDIDATES - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_local_parameters_are_at_a_maximum(kind: Correlation) -> None:
    points, fit = example(90, kind)
    check_maxima(points, local_posterior(points, fit, points.times, SLOPE_SD, 30))


@pytest.mark.parametrize("slope_sd", [0.0, SLOPE_SD])
@pytest.mark.parametrize("kind", KINDS)
def test_all_points_and_fixed_parameters_give_the_stationary_posterior(
    kind: Correlation, slope_sd: float
) -> None:
    points, fit = example(40, kind)
    mean, cov = dense_posterior(points, fit, points.times, slope_sd)
    found = local_posterior(points, fit, points.times, slope_sd, 40, FIXED)
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.sd**2, np.diag(cov), rtol=1e-4)
    for i, j in ((0, 39), (3, 4), (10, 30)):
        assert found.covariance(i, j) == pytest.approx(cov[i, j], rel=1e-4, abs=1e-9)


def test_covariances_of_two_predictions_are_those_of_their_errors() -> None:
    """The joint covariance is positive definite for all times, and its diagonal is the variance."""
    points, fit = example(80)
    found = local_posterior(points, fit, points.times[::4], SLOPE_SD, 20)
    n = len(found.times)
    cov = np.array([[found.covariance(i, j) for j in range(n)] for i in range(n)])
    np.testing.assert_allclose(cov, cov.T, atol=1e-14)
    assert np.linalg.eigvalsh(cov).min() > -1e-12
    again = dataclasses.replace(found, sd=np.zeros(n))
    twice = local_posterior(points, fit, np.repeat(points.times[::4], 2), SLOPE_SD, 20)
    for k in range(n):
        assert again.covariance(k, k) == 0.0
        assert twice.covariance(2 * k, 2 * k + 1) == pytest.approx(found.sd[k] ** 2, rel=1e-6)


def test_threads_do_not_change_a_bit() -> None:
    points, fit = example(300)
    one, two = (local_posterior(points, fit, points.times, SLOPE_SD, threads=k) for k in (1, 2))
    for name in ("mean", "sd", "designs", "weights", "variances", "ranges"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_wrong_versions_are_caught() -> None:
    """The checks see a design of the nearest points, a maximum without prior, and a wrong trend."""
    points, fit = example(60)
    at = np.linspace(-3.0, 103.0, 22)
    found = local_posterior(points, fit, at, SLOPE_SD, 15, FIXED)
    nearest = np.sort(np.argsort(np.abs(points.times - at[:, None]), axis=1)[:, :15], axis=1)
    with pytest.raises(AssertionError):
        check_designs(points, dataclasses.replace(found, designs=nearest.astype(np.int32)), 15)
    free = local_posterior(points, fit, at, SLOPE_SD, 30, sds=(20.0, 10.0))
    with pytest.raises(AssertionError):
        check_maxima(points, free)
    found = local_posterior(points, fit, at, SLOPE_SD, 30)
    trend = dataclasses.replace(found.trend, coefficients=found.trend.coefficients + 0.1)
    with pytest.raises(AssertionError):
        check_maxima(points, dataclasses.replace(found, trend=trend))


def test_the_trend_is_that_of_generalised_least_squares() -> None:
    points, fit = example(50)
    found = shared_trend(points, fit, SLOPE_SD)
    cov = fit.covariance.between(points.times, points.times) + np.diag(noise_of(points, fit))
    columns = np.column_stack([np.ones(50), points.times - found.middle])
    precision = columns.T @ np.linalg.solve(cov, columns) + np.diag([0.0, SLOPE_SD**-2.0])
    expected = np.linalg.solve(precision, columns.T @ np.linalg.solve(cov, points.values))
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-8)
    np.testing.assert_allclose(found.cov, np.linalg.inv(precision), rtol=1e-8)


@pytest.mark.parametrize("size", [0, 65])
def test_impossible_sizes_are_refused(size: int) -> None:
    points, fit = example(20)
    with pytest.raises(ValueError, match="need 1 to 64"):
        local_posterior(points, fit, points.times, SLOPE_SD, size)


def test_singular_designs_are_an_error() -> None:
    points = make_points(np.zeros(5), np.arange(5.0), np.zeros(5))
    fit = SignalFit(Covariance("squared", 1.0, 1.0, 0.0), 0.0, 1.0, 0.0, 1, True)
    with pytest.raises(np.linalg.LinAlgError, match=r"positive|singular"):
        local_posterior(points, fit, points.times, 0.0)


def test_steady_recordings_stay_steady() -> None:
    """With a mean for each design, none of these intervals held 0."""
    random, times, held = np.random.default_rng(3), np.linspace(0.0, 100.0, 80), 0
    for _ in range(10):
        found = judge("a", times, 0.1 * random.standard_normal(80), np.full(80, 0.1), local=True)
        held += found.low == 0.0
    assert held >= 7  # of 10, by intervals of 90%: fewer in 1 of 80 runs


@pytest.mark.slow
def test_a_quiet_part_is_smoother_than_by_the_stationary_fit() -> None:
    """The stationary fit takes the range of the active part for both."""
    random, times = np.random.default_rng(4), np.linspace(0.0, 100.0, 150)
    signal, quiet = 0.4 * np.sin(0.4 * np.maximum(times - 50.0, 0.0)), times < 45.0
    errors: dict[bool, list[float]] = {False: [], True: []}
    widths: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        values = signal + 0.08 * random.standard_normal(150)
        for local in (False, True):
            found = judge("a", times, values, np.full(150, 0.08), local=local)
            errors[local].append(float(np.mean((found.mean - signal)[quiet] ** 2)))
            widths[local].append(float(found.sd[quiet].mean()))
    assert np.mean(errors[True]) < 0.8 * np.mean(errors[False])
    assert np.mean(widths[True]) < 0.9 * np.mean(widths[False])
