"""The next screen: the highest upper confidence bounds, updated after each event that is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.explore import screen as module
from dpmix.explore.covariance import JudgementCovariance
from dpmix.explore.posterior import EventPosterior
from dpmix.explore.screen import confidence, next_screen
from dpmix.model.mixture import Floats, Ints

N, DIM, JUDGED = 400, 3, 12


@pytest.fixture
def events() -> Floats:
    return np.random.default_rng(1).standard_normal((N, DIM)).astype(np.float32)


@pytest.fixture
def posterior(events: Floats) -> EventPosterior:
    made = EventPosterior(events, JudgementCovariance("gaussian", np.full(DIM, 1.0), 0.2, 0.01))
    made.add(events[:JUDGED].astype(np.float64), (events[:JUDGED, 0] > 0.5).astype(float))
    return made


def chosen(posterior: EventPosterior, events: Floats, further: float) -> Ints:
    closed = np.arange(N) < JUDGED
    return next_screen(posterior, events, closed, screen=2, further=further, size=8)


def by_textbook(posterior: EventPosterior, events: Floats, further: float) -> list[int]:
    """GP-BUCB over all events, with the whole posterior again after each event that is chosen."""
    covariance, found = posterior.judged.covariance, list[int]()
    for _ in range(8):
        points = events[[*range(JUDGED), *found]].astype(np.float64)
        known = covariance.between(points, points) + covariance.noise * np.eye(len(points))
        across = covariance.between(events, points)
        variance = covariance.variance - np.einsum("ij,ji->i", across, np.linalg.solve(known, across.T))
        bounds = posterior.mean + further * confidence(N, 2) * np.sqrt(variance)
        bounds[[*range(JUDGED), *found]] = -np.inf
        found.append(int(bounds.argmax()))
    return found


@pytest.mark.parametrize("further", [0.02, 0.1, 1.0])
def test_a_screen_is_that_of_all_events(
    posterior: EventPosterior, events: Floats, further: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_textbook(posterior, events, further)
    assert chosen(posterior, events, further).tolist() == expected
    monkeypatch.setattr(module, "POOL", 150)
    assert chosen(posterior, events, further).tolist() == expected


def test_more_of_the_same_has_the_highest_means(posterior: EventPosterior, events: Floats) -> None:
    best = JUDGED + np.argsort(-posterior.mean[JUDGED:], kind="stable")[:8]
    assert chosen(posterior, events, 0.0).tolist() == best.tolist()


def test_further_events_are_less_certain(posterior: EventPosterior, events: Floats) -> None:
    near, far = (posterior.sd[chosen(posterior, events, further)].mean() for further in (0.0, 1.0))
    assert far > 1.2 * near


def test_before_any_judgement_events_are_random_and_far_from_each_other(events: Floats) -> None:
    prior = EventPosterior(events, JudgementCovariance("gaussian", np.full(DIM, 1.0)))
    first, other = (
        next_screen(prior, events, np.zeros(N, bool), screen=1, seed=seed).tolist() for seed in (1, 2)
    )
    assert len(set(first)) == len(first) == module.SIZE
    prior = EventPosterior(np.tile(events, (10, 1)), JudgementCovariance("gaussian", np.full(DIM, 1.0)))
    many = np.tile(events, (10, 1))
    seeds = [next_screen(prior, many, np.zeros(10 * N, bool), screen=1, seed=s).tolist() for s in (1, 2)]
    assert seeds[0] != seeds[1]
    assert len({row % N for row in seeds[0]}) == module.SIZE  # copies of an event are not shown
    assert other == first  # all events fit into the pool


def test_fewer_events_than_a_screen(posterior: EventPosterior, events: Floats) -> None:
    closed = np.ones(N, bool)
    closed[[50, 60]] = False
    found = next_screen(posterior, events, closed, screen=2)
    assert sorted(found.tolist()) == [50, 60]
