"""The posterior at all events: native code next to float64, later judgements, threads, instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.engines.cpu import instruction_sets
from dpmix.explore.covariance import SHAPES, JudgementCovariance, Shape, first_covariance
from dpmix.explore.posterior import EventPosterior, Judged
from dpmix.model.mixture import Array, Floats


def problem(
    n_events: int, dim: int, n: int, shape: Shape = "gaussian"
) -> tuple[Floats, JudgementCovariance, Array]:
    """Return events, a covariance whose ranges differ between channels, and n judgements."""
    random = np.random.default_rng([n_events, dim, n])
    events = random.standard_normal((n_events, dim)).astype(np.float32)
    ranges = random.uniform(0.5, 1.5, dim) * (dim if shape == "laplacian" else np.sqrt(dim))
    return events, JudgementCovariance(shape, ranges, 0.3, 0.01), random.integers(0, 3, n) / 2.0


def exact(events: Floats, covariance: JudgementCovariance, n: int, values: Array) -> tuple[Array, Array]:
    """Return mean and variance in float64 by the textbook; the first n events are judged."""
    points = events[:n].astype(np.float64)
    known = covariance.between(points, points) + covariance.noise * np.eye(n)
    across = covariance.between(events, points)
    solved = np.linalg.solve(known, np.column_stack([values, across.T]))
    return across @ solved[:, 0], covariance.variance - np.einsum("ij,ji->i", across, solved[:, 1:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n_events", "dim", "n"), [(1, 1, 1), (33, 3, 5), (4_100, 20, 67), (700, 64, 130)])
def test_the_posterior_is_that_of_the_textbook(shape: Shape, n_events: int, dim: int, n: int) -> None:
    events, covariance, values = problem(max(n_events, n), dim, n, shape)
    posterior = EventPosterior(events, covariance)
    posterior.add(events[:n].astype(np.float64), values)
    mean, variance = exact(events, covariance, n, values)
    np.testing.assert_allclose(posterior.mean, mean, atol=2e-5)
    np.testing.assert_allclose(posterior.variance, variance, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_judgements_that_are_added_later_give_the_same(shape: Shape) -> None:
    events, covariance, values = problem(300, 7, 90, shape)
    points = events[:90].astype(np.float64)
    at_once, in_parts = EventPosterior(events, covariance), EventPosterior(events, covariance)
    at_once.add(points, values)
    for start, stop in ((0, 1), (1, 24), (24, 24), (24, 90)):
        in_parts.add(points[start:stop], values[start:stop])
    np.testing.assert_allclose(in_parts.mean, at_once.mean, atol=1e-5)
    np.testing.assert_allclose(in_parts.variance, at_once.variance, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", instruction_sets())
def test_screens_that_are_added_together_give_the_same_bits(shape: Shape, isa: str) -> None:
    events, covariance, values = problem(700, 7, 90, shape)
    points = events[:90].astype(np.float64)
    together, one_by_one = (
        EventPosterior(events, covariance, 1, isa),
        EventPosterior(events, covariance, 2, isa),
    )
    together.add(points, values, ends=[1, 24, 30, 70])
    for start, stop in ((0, 1), (1, 24), (24, 30), (30, 70), (70, 90)):
        one_by_one.add(points[start:stop], values[start:stop])
    np.testing.assert_array_equal(one_by_one.mean, together.mean)
    np.testing.assert_array_equal(one_by_one.variance, together.variance)


@pytest.mark.parametrize("shape", SHAPES)
def test_threads_and_instruction_sets_give_the_same_bits(shape: Shape) -> None:
    """Except x86-64-v2, which has no fused multiply-add."""
    events, covariance, values = problem(9_000, 5, 70, shape)
    results = []
    for threads, isa in [(1, None), (3, None), *((1, isa) for isa in instruction_sets())]:
        posterior = EventPosterior(events, covariance, threads, isa)
        posterior.add(events[:70].astype(np.float64), values)
        results.append((isa, posterior.mean, posterior.variance))
    for isa, mean, variance in results[1:]:
        if isa == "v2":
            np.testing.assert_allclose(mean, results[0][1], atol=2e-5)
        else:
            np.testing.assert_array_equal(mean, results[0][1])
            np.testing.assert_array_equal(variance, results[0][2])


def test_each_judgement_is_left_out() -> None:
    events, covariance, values = problem(40, 4, 40)
    points = events.astype(np.float64)
    means, variances = Judged(covariance, points, values).left_out()
    for i in (0, 17, 39):
        others = np.arange(40) != i
        order = np.concatenate([np.flatnonzero(others), [i]])
        mean, variance = exact(events[order], covariance, 39, values[others])
        assert means[i] == pytest.approx(mean[-1], abs=1e-9)
        assert variances[i] == pytest.approx(variance[-1], abs=1e-9)


def test_without_judgements_the_posterior_is_the_prior() -> None:
    events, covariance, _ = problem(10, 2, 0)
    posterior = EventPosterior(events, covariance)
    posterior.add(np.empty((0, 2)), np.empty(0))
    assert (posterior.mean == 0.0).all()
    assert (posterior.variance == np.float32(covariance.variance)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_ranges_follow_the_scale_of_the_events(shape: Shape) -> None:
    events = problem(2_500, 6, 0)[0]
    one, ten = (first_covariance(events * np.float32(scale), 3, shape) for scale in (1.0, 10.0))
    np.testing.assert_allclose(ten.ranges, 10.0 * one.ranges, rtol=1e-5)
    correlations = one.between(events[:500], events[500:1_000]) / one.variance
    assert np.median(correlations) == pytest.approx(np.exp(-2.5), rel=0.1)
