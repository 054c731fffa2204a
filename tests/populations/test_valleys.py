"""The distance of two populations by the valley in the events between them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from dpmix.populations.tree.tree import mode_moments
from dpmix.populations.tree.valleys import (
    LEAST_EVENTS,
    QUARTILES,
    VALLEY,
    Separation,
    _variance,
    distance_of,
    profile_of,
)

Array = NDArray[np.float64]
FIRST, SECOND = np.array([True, False]), np.array([False, True])


def depth_of_normals(distance: float) -> float:
    """Return the depth of the valley of two equal normals, by minimisation."""

    def density(x: float) -> float:
        return float(norm.pdf(x) + norm.pdf(x - distance))

    peak = -minimize_scalar(lambda x: -density(x), bounds=(-0.5, distance / 2), method="bounded").fun
    return float(np.log(peak / density(distance / 2)))


def separation(first: Array, second: Array, weights: Array | None = None) -> Separation:
    """Return the distances of two modes whose events these are, [n, D], with moments of their own."""
    means = np.array([part.mean(axis=0) for part in (first, second)])
    covariances = np.array([np.atleast_2d(np.cov(part.T, bias=True)) for part in (first, second)])
    moments = mode_moments(np.full(2, 0.5), means, covariances, np.arange(2), 2)
    modes = np.repeat([0, 1], [len(first), len(second)])
    return Separation(moments, np.concatenate([first, second]).astype(np.float32), modes, weights)


def split(events: Array, at: float) -> tuple[Array, Array]:
    """Return the events below and above a position in the first channel."""
    below = events[:, 0] < at
    return events[below], events[~below]


@pytest.mark.parametrize("distance", [2.2, 2.5, 2.85, 3.3, 3.9])
def test_the_distance_of_a_depth_is_that_of_two_normals(distance: float) -> None:
    assert distance_of(depth_of_normals(distance)) == pytest.approx(distance, abs=1e-3)


def test_distances_end_where_valleys_end_and_where_they_cannot_be_measured() -> None:
    assert distance_of(0.0) == 2.0
    assert distance_of(99.0) == 4.0


@pytest.mark.parametrize(
    ("distance", "share", "error"), [(2.6, 0.5, 0.15), (3.0, 0.5, 0.15), (3.5, 0.5, 0.15), (3.5, 0.05, 0.3)]
)
def test_two_normals_have_the_distance_of_their_valley_whatever_their_sizes(
    distance: float, share: float, error: float
) -> None:
    random = np.random.default_rng(3)
    events = random.normal(size=(60_000, 3))
    events[random.random(60_000) < share, 0] += distance
    first, second = split(events, distance / 2 + np.log((1 - share) / share) / distance)
    assert separation(first, second).between(FIRST, SECOND) == pytest.approx(distance / VALLEY, abs=error)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 30, 31, 32, 33, 1_000])
def test_equal_weights_give_the_variance_of_any_other_equal_weights(n: int) -> None:
    """Quartiles of unweighted events are found without a sort."""
    for positions in (np.random.default_rng(n).standard_cauchy(n), np.arange(n)[::-1] // 3.0):
        ranked = np.sort(positions)
        expected = (ranked[-(-3 * n // 4) - 1] - ranked[-(-n // 4) - 1]) / QUARTILES
        for weight in (1.0, 2.0):
            found = _variance(positions, np.full(n, weight))
            assert found == pytest.approx(min(positions.var(), expected**2), rel=1e-12, abs=1e-300)


def test_one_skewed_population_in_two_parts_has_no_valley() -> None:
    """The distance of the means alone would make two populations of it."""
    random = np.random.default_rng(4)
    events = np.column_stack([random.gamma(2.0, size=40_000), random.normal(size=40_000)])
    first, second = split(events, 2.5)
    gap = (second.mean(axis=0) - first.mean(axis=0))[0]
    assert gap / np.sqrt((first[:, 0].var() + second[:, 0].var()) / 2) > 2.4
    assert separation(first, second).between(FIRST, SECOND) < 2.1


def test_the_far_tail_of_a_population_has_no_valley() -> None:
    """Its mean is more than six standard deviations away."""
    random = np.random.default_rng(4)
    events = np.column_stack([random.exponential(size=100_000), random.normal(size=100_000)])
    first, second = split(events, 6.5)
    apart = separation(first, second)
    assert len(second) >= LEAST_EVENTS
    gap = (second.mean(axis=0) - first.mean(axis=0))[0]
    assert gap / np.sqrt((first[:, 0].var() + second[:, 0].var()) / 2) > 6.0
    assert apart.between(FIRST, SECOND) < 2.1


def test_far_populations_and_small_ones_have_the_distance_of_their_means() -> None:
    random = np.random.default_rng(5)
    first = random.normal(size=(5_000, 2))
    first = (first - first.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(first.T, bias=True))).T
    for distance, size in ((2.2, LEAST_EVENTS - 1), (7.0, 5_000)):
        second = first[:size] - first[:size].mean(axis=0)
        second = second @ np.linalg.inv(np.linalg.cholesky(np.cov(second.T, bias=True))).T
        found = separation(first, second + np.array([distance, 0.0])).between(FIRST, SECOND)
        assert found == pytest.approx(distance, rel=1e-5)


@pytest.mark.parametrize("of_means", [1.5, 2.2, 2.7, 5.0])
def test_means_nearer_than_the_valley_allows_count_half(of_means: float) -> None:
    """Two normals 3.3 apart, with moments of components that widen the populations or narrow them."""
    random = np.random.default_rng(6)
    events = random.normal(size=(60_000, 2))
    events[::2, 0] += 3.3
    first, second = split(events, 1.65)
    gap = second[:, 0].mean() - first[:, 0].mean()
    covariances = np.tile(np.eye(2) * (gap / of_means) ** 2, (2, 1, 1))
    means = np.array([first.mean(axis=0), second.mean(axis=0)])
    moments = mode_moments(np.full(2, 0.5), means, covariances, np.arange(2), 2)
    both = np.concatenate([first, second]).astype(np.float32)
    between = Separation(moments, both, np.repeat([0, 1], [len(first), len(second)])).between(FIRST, SECOND)
    allowed = 3.3 / VALLEY
    assert between == pytest.approx(min(allowed, np.sqrt(of_means * allowed)), abs=0.1)


def test_events_count_by_their_weights() -> None:
    random = np.random.default_rng(6)
    positions = random.normal(size=4_000), random.normal(3.0, size=4_000)
    bridge = random.normal(1.5, 0.6, 4_000)
    ones, zeros = np.ones(4_000), np.zeros(4_000)
    alone = profile_of(*positions, ones, ones).depth
    with_bridge = np.concatenate([positions[0], bridge])
    weightless = profile_of(with_bridge, positions[1], np.concatenate([ones, zeros]), ones).depth
    assert weightless == pytest.approx(alone, rel=1e-12)
    assert profile_of(with_bridge, positions[1], np.concatenate([ones, ones]), ones).depth < 0.75 * alone


def test_modes_left_out_do_not_widen_a_population() -> None:
    random = np.random.default_rng(7)
    near, far, stray = (random.normal(mean, size=(2_000, 1)) for mean in (0.0, 7.0, 90.0))
    means = np.array([part.mean(axis=0) for part in (near, far, stray)])
    moments = mode_moments(np.array([1.0, 1.0, 0.01]), means, np.ones((3, 1, 1)), np.arange(3), 3)
    modes = np.repeat([0, 1], 2_000)
    events = np.concatenate([near, far]).astype(np.float32)
    sides = np.array([True, False, False]), np.array([False, True, True])
    with_stray = Separation(moments, events, modes)
    wide = with_stray.between(*sides)
    with_stray.leave_out(np.array([False, False, True]))
    assert with_stray.between(*sides) == pytest.approx(7.0, abs=0.1)
    assert wide < 4.5


def test_the_depth_does_not_depend_on_where_a_log_concave_density_is_divided() -> None:
    """Gamma and uniform densities, divided in parts of 1 to 50% of the events, have no valley."""
    random = np.random.default_rng(9)
    for events in (random.gamma(2.0, size=40_000), random.uniform(size=40_000), random.normal(size=40_000)):
        for share in (0.5, 0.8, 0.95, 0.99):
            below = events < np.quantile(events, share)
            first, second = events[below], events[~below]
            assert profile_of(first, second, np.ones(len(first)), np.ones(len(second))).depth < 0.15


def test_heavy_tails_are_not_a_population() -> None:
    """Student's t with five degrees of freedom in three channels, its tail on one side divided off."""
    random = np.random.default_rng(10)
    events = random.normal(size=(40_000, 3)) / np.sqrt(random.chisquare(5, size=(40_000, 1)) / 5)
    assert separation(*split(events, 2.0)).between(FIRST, SECOND) < 2.2


def test_equal_positions_have_no_valley() -> None:
    same, ones = np.zeros(50), np.ones(50)
    assert profile_of(same, same, ones, ones).depth == 0.0


@pytest.mark.parametrize("far", [1e3, 1e6])
def test_one_distant_event_hides_no_valley(far: float) -> None:
    random = np.random.default_rng(11)
    first, second = random.normal(size=10_000), random.normal(6.0, size=10_000)
    ones = np.ones(10_000)
    alone = profile_of(first, second, ones, ones).depth
    with_stray = profile_of(first, np.append(second, far), ones, np.ones(10_001)).depth
    assert distance_of(alone) == 4.0
    assert distance_of(with_stray) == 4.0


def test_the_kernel_has_the_width_of_weighted_events() -> None:
    """Events with weight 2 count as two events."""
    random = np.random.default_rng(12)
    first, second = random.normal(size=2_000), random.normal(3.0, size=2_000)
    twice, half = np.full(2_000, 2.0), np.arange(2_000) % 2.0
    once = profile_of(first, second, np.ones(2_000), np.ones(2_000)).depth
    assert profile_of(first, second, twice, twice).depth == pytest.approx(once, rel=1e-12)
    kept = half > 0
    fewer = profile_of(first[kept], second[kept], np.ones(1_000), np.ones(1_000)).depth
    assert profile_of(first, second, half, half).depth == pytest.approx(fewer, rel=1e-12)
