"""Learning of a covariance: its gradient, the channels that matter, and the noise of judgements."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.explore.covariance import SHAPES, JudgementCovariance, Shape
from dpmix.explore.learn import can_learn, learn, log_posterior
from dpmix.model.mixture import Array


def judged(n: int, mistakes: float) -> tuple[Array, Array]:
    """Return events in five channels, and judgements by the first channel only."""
    random = np.random.default_rng([n, int(1000 * mistakes)])
    points = random.standard_normal((n, 5))
    values = (points[:, 0] > 0.5).astype(float)
    wrong = random.random(n) < mistakes
    return points, np.where(wrong, 1.0 - values, values)


def firsts(dim: int) -> list[JudgementCovariance]:
    return [
        JudgementCovariance("gaussian", np.full(dim, 2.0)),
        JudgementCovariance("laplacian", np.full(dim, 4.0)),
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_finite_differences(shape: Shape) -> None:
    points, values = judged(30, 0.1)
    first = JudgementCovariance(shape, np.full(5, 2.0))
    logs = first.logs() + np.linspace(-0.5, 0.4, 7)
    gradient = log_posterior(first.moved(logs), first, points, values)[1]
    for k, step in enumerate(1e-5 * np.eye(7)):
        ends = [log_posterior(first.moved(logs + s), first, points, values)[0] for s in (step, -step)]
        assert gradient[k] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-6)


def test_channels_that_do_not_matter_get_long_ranges() -> None:
    learned = learn(firsts(5), *judged(150, 0.0))
    assert learned.ranges[0] < 0.5 * learned.ranges[1:].min()


def test_mistakes_are_learned_as_noise() -> None:
    few, many = (learn(firsts(5), *judged(180, mistakes)).noise for mistakes in (0.0, 0.15))
    assert many > 3.0 * few


def test_a_covariance_is_learned_only_from_judgements_that_differ() -> None:
    assert not can_learn(np.ones(50))
    assert not can_learn(np.array([0.0, 1.0] * 4))
    assert can_learn(np.array([0.0, 1.0] * 5))
