"""Populations on the shoulder of a larger one, where the density has no mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Array
from dpmix.populations.tree import valleys
from dpmix.populations.tree.modes import Density, find_modes, joining_lines, nearest_components
from dpmix.populations.tree.parts import find_parts
from dpmix.populations.tree.tree import LEVEL, Peaks, Tree, find_peaks, valley_tolerance
from dpmix.populations.tree.valleys import Separation, profile_of

PLATEAU = 0.05, 0.045, 0.04
"""Weights of normals in a row: the density falls, hardly, from the first to the last."""
NEARLY_A_MODE = 0.055, 0.05, 0.04


def mixture(plateau: Sequence[float] = PLATEAU) -> tuple[Array, Array, Array]:
    """Return a normal and a plateau on its slope, in the first of two channels."""
    means = np.array([[0.0, 0.0], [2.2, 0.0], [2.8, 0.0], [3.4, 0.0]])
    covariances = np.array([np.eye(2), *3 * [np.diag([0.16, 1.0])]])
    return np.array([1.0 - sum(plateau), *plateau]), means, covariances


def events_of(parts: tuple[Array, Array, Array], n: int, seed: int = 1) -> Array:
    random = np.random.default_rng(seed)
    which = random.choice(len(parts[0]), n, p=parts[0])
    roots = np.linalg.cholesky(parts[2])
    drawn = random.normal(size=(n, parts[1].shape[1]))
    return parts[1][which] + np.einsum("nij,nj->ni", roots[which], drawn)


def tree_of(parts: tuple[Array, Array, Array], events: Array) -> tuple[Peaks, Tree]:
    peaks = find_peaks(*parts, len(events), CpuEngine)
    own = peaks.modes[nearest_components(*parts, events)]
    return peaks, peaks.tree(Separation(peaks.moments, events.astype(np.float32), own))[0]


def test_a_plateau_is_a_population() -> None:
    parts = mixture()
    peaks, tree = tree_of(parts, events_of(parts, 20_000))
    assert len(peaks.heights) == 1  # the density only falls
    assert len(tree.heights) == 2
    assert tree.levels[0] > LEVEL
    assert tree.modes.tolist() == [0, 1, 1, 1]
    assert 2.0 < tree.points[1, 0] < 3.5
    density = Density(*parts, CpuEngine)
    np.testing.assert_allclose(tree.heights, density.log_density(tree.points))


def test_without_a_plateau_in_the_events_it_is_none() -> None:
    """The density has the same components, but the events fall steadily."""
    peaks, tree = tree_of(mixture(), np.random.default_rng(2).normal(size=(20_000, 2)) * [1.4, 1.0])
    assert len(peaks.parts.modes) == 2
    assert len(tree.heights) == 1
    assert tree.modes.tolist() == [0, 0, 0, 0]


def test_few_events_are_no_shoulder() -> None:
    parts = mixture()
    _, tree = tree_of(parts, events_of(parts, 200))
    assert len(tree.heights) == 1


@pytest.mark.parametrize("kind", ["normal", "t3", "log-normal", "gamma", "exponential"])
@pytest.mark.parametrize("cut", [0.6, 0.8, 0.9, 0.97, 0.99])
def test_a_tail_is_no_shoulder(kind: str, cut: float) -> None:
    """Wherever a density that falls steadily is divided."""
    random = np.random.default_rng(3)
    n = 40_000
    drawn = {
        "normal": lambda: random.normal(size=n),
        "t3": lambda: random.standard_t(3, n),
        "log-normal": lambda: random.lognormal(0.0, 0.5, n),
        "gamma": lambda: random.gamma(2.0, size=n),
        "exponential": lambda: random.exponential(size=n),
    }[kind]()
    at = np.quantile(drawn, cut)
    one, other = drawn[drawn < at], drawn[drawn >= at]
    assert not profile_of(one, other, np.ones(len(one)), np.ones(len(other))).has_shoulder


def test_a_shoulder_is_one_on_either_side_and_for_weights() -> None:
    parts = mixture()
    x = events_of(parts, 20_000)[:, 0]
    one, other = x[x < 1.8], x[x >= 1.8]
    ones = np.ones(len(one)), np.ones(len(other))
    assert profile_of(one, other, *ones).has_shoulder
    assert profile_of(other, one, *ones[::-1]).has_shoulder
    assert profile_of(-one, -other, *ones).has_shoulder
    assert profile_of(1e3 * one, 1e3 * other, *ones).has_shoulder
    assert profile_of(one, other, 3 * ones[0], 3 * ones[1]).has_shoulder


def test_a_tail_is_a_shoulder_only_next_to_a_part_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts in a row: the last is far from the first, and connected by the second."""
    means = np.array([[0.0, 0.0], [1.7, 0.0], [3.4, 0.0]])
    parts = np.array([0.7, 0.24, 0.06]), means, np.tile(np.eye(2), (3, 1, 1))
    monkeypatch.setattr("dpmix.populations.tree.parts.NARROWED", 0.3)  # a part of each
    events = events_of(parts, 40_000)
    peaks, tree = tree_of(parts, events)
    assert len(peaks.parts.modes) == 3
    assert len(tree.heights) == 1
    own = nearest_components(*parts, events)
    first, last = events[own == 0, 0], events[own == 2, 0]
    assert profile_of(first, last, np.ones(len(first)), np.ones(len(last))).has_shoulder


def test_parts_can_be_a_shoulder_together() -> None:
    """Two parts lie beyond the same valley; the middle one alone is no shoulder."""
    means = np.array([[0.0, 0.0], [2.8, 0.0], [3.6, 2.4]])
    parts = np.array([0.65, 0.25, 0.1]), means, np.tile(np.eye(2), (3, 1, 1))
    events = events_of(parts, 20_000)
    peaks, tree = tree_of(parts, events)
    assert tree.cut(LEVEL).tolist() == [0, 1, 1]
    own = nearest_components(*parts, events)
    separation = Separation(peaks.moments, events.astype(np.float32), peaks.modes[own])
    middle = peaks.modes == peaks.modes[1]
    assert not separation.is_shoulder(middle, ~middle)


def test_lines_join_neighbours() -> None:
    """From the end of a row, the lines to all others cross the same valley."""
    points = np.stack([np.arange(6.0), np.zeros(6)], axis=1)
    density = Density(0.5 ** np.arange(1.0, 7.0), points, np.tile(0.04 * np.eye(2), (6, 1, 1)), CpuEngine)
    lines = np.sort(joining_lines(density, points))
    assert sorted(map(tuple, lines.tolist())) == [(n, n + 1) for n in range(5)]


def test_modes_without_a_valley_are_divided_at_a_shoulder() -> None:
    """With a little more weight, the plateau is a mode that chance could explain."""
    parts = mixture(NEARLY_A_MODE)
    peaks, tree = tree_of(parts, events_of(parts, 20_000))
    assert len(peaks.heights) == 2
    tolerance = valley_tolerance(peaks.saddles[0].events, 2, measured=True)
    assert peaks.saddles[0].prominence < tolerance
    assert len(tree.heights) == 2
    assert tree.levels[0] > LEVEL


def test_parts_have_the_numbers_of_their_modes() -> None:
    random = np.random.default_rng(5)
    means = np.concatenate([4.0 * random.normal(size=(12, 3)), [[30.0, 0.0, 0.0]]])
    density = Density(np.full(13, 1.0 / 13.0), means, np.tile(np.eye(3), (13, 1, 1)), CpuEngine)
    modes, tops, _ = find_modes(density)
    parts = find_parts(density, modes, tops)
    np.testing.assert_array_equal(parts.modes[parts.own], modes)
    np.testing.assert_array_equal(parts.modes[: len(tops)], np.arange(len(tops)))
    np.testing.assert_array_equal(np.unique(parts.own), np.arange(len(parts.modes)))
    assert parts.points.shape == (len(parts.modes), 3)


def test_no_part_is_without_components() -> None:
    """At the top of the lower mode, the most probable component belongs to the other mode."""
    covariances = np.array([np.eye(2), np.diag([0.04, 1.0])])
    density = Density(np.array([0.97, 0.03]), np.array([[0.0, 0.0], [2.0, 0.0]]), covariances, CpuEngine)
    modes, tops, _ = find_modes(density)
    assert modes.tolist() == [0, 1]
    assert density.log_terms(tops).argmax(axis=1).tolist() == [0, 0]
    parts = find_parts(density, modes, tops)
    assert np.unique(parts.own).tolist() == list(range(len(parts.modes)))


def test_the_tilt_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it only valleys are left, and the plateau is missed: the test above can fail."""
    monkeypatch.setattr(valleys, "TILT", 0.0)
    parts = mixture()
    _, tree = tree_of(parts, events_of(parts, 20_000))
    assert len(tree.heights) == 1
