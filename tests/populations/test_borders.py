"""Uncertainty of proportions from the shape of populations."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.model.mixture import Array, Ints
from dpmix.populations.events import proportions
from dpmix.populations.events.borders import MOST, Borders, compare_shapes, estimate_proportions, widen
from dpmix.populations.events.estimates import interval

SHARES = np.array([0.8, 0.15, 0.05])


def sample(
    seed: int, n: int, *, distance: float, freedom: float = np.inf, skewed: bool = False
) -> tuple[Array, Ints]:
    """Three populations in a row in three channels, normal, t or skewed along the row: events and labels."""
    random = np.random.default_rng(seed)
    labels = random.choice(3, n, p=SHARES)
    events = random.normal(size=(n, 3))
    if skewed:
        events[:, 0] = (random.gamma(2.0, size=n) - 2.0) / np.sqrt(2.0)
    if np.isfinite(freedom):
        events *= np.sqrt(freedom / random.chisquare(freedom, (n, 1)))
    events[:, 0] += distance * labels
    return events, labels


def by_normals(events: Array, distance: float) -> Array:
    """Memberships by three normals of one width, fitted by EM: the larger ones get too many of the tails."""
    weights, memberships = np.full(3, 1 / 3), np.empty((len(events), 3))
    means, sd = distance * np.arange(3.0), 1.0
    for _ in range(30):
        squares = np.array([((events - [m, 0.0, 0.0]) ** 2).sum(axis=1) for m in means])
        logs = -squares / (2.0 * sd**2) + np.log(weights)[:, None]
        terms = np.exp(logs - logs.max(axis=0))
        memberships = (terms / terms.sum(axis=0)).T
        weights = memberships.mean(axis=0)
        sd = float(np.sqrt((memberships.T * squares).sum() / (3 * len(events))))
    return memberships


def estimate(events: Array, memberships: Array, seed: int) -> tuple[Array, Array, Borders]:
    """Estimate proportions from 60 draws of labels by the memberships."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(memberships, axis=1)
    drawn = ((random.uniform(size=(60, len(events), 1)) > ends[None]).sum(axis=2)).clip(max=2)
    counts = np.array([[np.bincount(one, minlength=3)] for one in drawn])
    own = memberships.argmax(axis=1).astype(np.int32)
    return estimate_proportions(counts, seed, None, events.astype(np.float32), own)


def test_populations_that_do_not_touch_have_the_intervals_of_the_draws() -> None:
    events, labels = sample(1, 5_000, freedom=np.inf, distance=30.0)
    drawn, mean, borders = estimate(events, np.eye(3)[labels], 1)
    np.testing.assert_allclose(borders.ratios, 1.0, atol=1e-6)
    np.testing.assert_allclose(borders.overlap(SHARES), 0.0, atol=1e-4)
    counts = np.tile(np.bincount(labels, minlength=3), (60, 1, 1))
    np.testing.assert_allclose(drawn, proportions.posterior(counts, 1), rtol=1e-5)
    np.testing.assert_array_equal(mean, proportions.posterior_mean(counts))


def test_an_affine_map_of_the_events_changes_nothing() -> None:
    events, labels = sample(2, 3_000, freedom=4.0, distance=4.0)
    mapped = events @ np.array([[2.0, 0.3, 0.0], [0.0, 0.1, 0.5], [1.0, 0.0, 9.0]]) - 7.0
    own, shares = np.ones(3_000), np.bincount(labels) / 3_000
    borders = compare_shapes(events, labels, own, shares)
    for before, after in zip(borders, compare_shapes(mapped, labels, own, shares), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-6)
    assert np.abs(np.log(borders.ratios)).max() > 1e-3
    assert borders.overlaps[0, 1] > 1e-3


def test_an_event_that_represents_many_counts_as_many() -> None:
    events, labels = sample(3, 4_000, freedom=4.0, distance=5.0)
    shares = np.bincount(labels) / 4_000
    kept = (labels > 0) | (np.arange(4_000) % 2 == 0)
    each = np.where(labels > 0, 1.0, (labels == 0).sum() / ((labels == 0) & kept).sum())[kept]
    whole = compare_shapes(events, labels, np.ones(4_000), shares)
    for some, all_of_them in zip(
        compare_shapes(events[kept], labels[kept], each, shares), whole, strict=True
    ):
        np.testing.assert_allclose(some, all_of_them, atol=0.05)


@pytest.mark.parametrize("events", [1, 2, 40])
def test_populations_of_few_or_no_events_and_far_ones_have_finite_ratios(events: int) -> None:
    values, labels = sample(4, 1_000, freedom=np.inf, distance=6.0)
    labels = np.where(labels == 2, 1, labels)
    labels[:events] = 3  # population 2 has no events
    values[0] = 1e15
    shares = np.array([0.8, 0.19, 0.0, 0.01])
    borders = compare_shapes(values.astype(np.float32), labels, np.ones(1_000), shares)
    assert borders.ratios[2] == 1.0
    assert ((borders.ratios >= 1.0 / MOST) & (borders.ratios <= MOST)).all()
    assert (borders.overlaps[2] == 0.0).all()
    assert ((borders.overlaps >= 0.0) & (borders.overlaps <= 0.5)).all()


def test_draws_move_between_the_two_answers_and_stay_proportions() -> None:
    drawn = np.tile(SHARES, (20_000, 2, 1))
    ratios = np.array([0.97, 1.05, 1.6])
    moved = widen(drawn, Borders(ratios, np.zeros((3, 3))), np.random.default_rng(5))
    np.testing.assert_allclose(moved.sum(axis=2), 1.0)
    logs = np.log(moved[:, 0] / moved[:, 0, :1])
    np.testing.assert_allclose(logs[:, 1:].std(axis=0), np.log(ratios[1:] / ratios[0]), rtol=0.02)
    np.testing.assert_allclose(np.median(moved[:, 1], axis=0), SHARES, rtol=0.02)
    assert np.corrcoef(moved[:, 0].T)[0, 2] < -0.9  # what one gains, the others lose


def test_what_a_population_gains_by_overlap_its_neighbour_loses() -> None:
    """The same holds in a sample with other proportions, where a rare population has more at stake."""
    own = np.array([SHARES, [0.98, 0.01, 0.01]])
    overlaps = np.zeros((3, 3))
    overlaps[0, 1] = overlaps[1, 0] = 0.02
    borders = Borders(np.ones(3), overlaps)
    moved = widen(np.tile(own, (20_000, 1, 1)), borders, np.random.default_rng(6))
    np.testing.assert_allclose(moved.sum(axis=2), 1.0)
    gains = moved - own
    np.testing.assert_allclose(gains[:, 0, 0] + gains[:, 0, 1], 0.0, atol=1e-3)
    np.testing.assert_allclose(gains[:, 0, 2], 0.0, atol=1e-3)
    want = 0.02 * np.sqrt(own[:, 0] * own[:, 1])  # of all events
    np.testing.assert_allclose(gains[:, :, 1].std(axis=0), want, rtol=0.1)
    np.testing.assert_allclose(borders.overlap(SHARES)[:2], 0.02 * np.sqrt(SHARES[[1, 0]] / SHARES[:2]))


def coverage(*, distance: float, freedom: float = np.inf, skewed: bool = False) -> tuple[float, float, float]:
    """Return the shares of 90% intervals of 24 samples that hold the truth.

    The first is of `estimate_proportions`, the second without overlaps, the third of the draws alone.
    """
    contained = []
    for seed in range(24):
        events, _ = sample(100 + seed, 20_000, freedom=freedom, distance=distance, skewed=skewed)
        memberships = by_normals(events, distance)
        drawn, _, borders = estimate(events, memberships, seed)
        counts = np.rint(memberships.sum(axis=0) + 1 / 3)
        alone = np.random.default_rng(seed).dirichlet(counts, 60)
        by_ratios = widen(
            alone[:, None], Borders(borders.ratios, np.zeros((3, 3))), np.random.default_rng(seed)
        )
        ends = [interval(one)[1:] for one in (drawn[:, 0], by_ratios[:, 0], alone)]
        contained.append([(low <= SHARES) & (high >= SHARES) for low, high in ends])
    whole, ratios_only, draws_only = np.mean(contained, axis=(0, 2))
    return float(whole), float(ratios_only), float(draws_only)


@pytest.mark.slow
def test_coverage_where_the_shape_is_wrong_and_where_it_is_right() -> None:
    """With t distributions of 4 degrees of freedom, the intervals of draws alone are much too narrow."""
    whole, ratios_only, alone = coverage(freedom=4.0, distance=5.0)
    assert alone < 0.7
    assert ratios_only > 0.85
    assert whole > 0.85
    whole, _, alone = coverage(distance=5.0)
    assert 0.8 < alone < 0.99
    assert whole > 0.85


@pytest.mark.slow
def test_coverage_of_skewed_populations_needs_their_overlap() -> None:
    """A tail on one side is the neighbour's for normal and t distributions, so the two answers agree."""
    whole, ratios_only, _ = coverage(distance=4.0, skewed=True)
    assert ratios_only < 0.3
    assert whole > 0.8
