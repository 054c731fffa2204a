"""Counts of events on the grids of all pairs of channels."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.populations.events import rasters
from dpmix.populations.events.rasters import Counter, bins_for, grid


def sample(n: int, d: int, p: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    population = rng.choice(p, n, p=rng.dirichlet(np.ones(p)))
    return rng.normal(rng.normal(0, 2, (p, d))[population], 0.7).astype(np.float32), population


def inside(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Move values beyond the grid to the middle of the first or last bin."""
    half = (edges[:, 1] - edges[:, 0]) / 2
    return np.clip(values.astype(float), edges[:, 0] + half, edges[:, -1] - half)


@pytest.mark.parametrize("dense", [0, 1 << 21], ids=["sorted", "dense"])
def test_counts_are_those_of_numpy_for_every_pair(monkeypatch: pytest.MonkeyPatch, dense: int) -> None:
    monkeypatch.setattr(rasters, "DENSE", dense)
    monkeypatch.setattr(rasters, "BUFFER", 700)  # blocks span the buffer, and the last one is partly filled
    values, population = sample(5_003, 4, 6)
    edges = grid(np.quantile(values, 0.01, axis=0), np.quantile(values, 0.99, axis=0))
    counter = Counter(edges, 6)
    for first, last in ((0, 1), (1, 1), (1, 2_500), (2_500, 5_003)):
        counter.add(values[first:last], population[first:last])
    counted = counter.rasters()
    assert counted.pairs.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert (inside(values, edges) != values).any(), "no event is beyond the grid: the ends are not tested"
    placed = inside(values, edges)
    for pair, (x, y) in enumerate(counted.pairs):
        by_population = np.array(
            [
                np.histogram2d(*placed[population == p][:, [x, y]].T, bins=(edges[x], edges[y]))[0]
                for p in range(6)
            ]
        )
        np.testing.assert_array_equal(counted.counts[pair], by_population.sum(axis=0))
        most = np.where(by_population.sum(axis=0) > 0, by_population.argmax(axis=0), -1)
        np.testing.assert_array_equal(counted.populations[pair], most)


def test_intermediate_results_change_nothing() -> None:
    values, population = sample(2_000, 3, 3)
    edges = grid(values.min(axis=0), values.max(axis=0))
    once, twice = Counter(edges, 3), Counter(edges, 3)
    once.add(values, population)
    twice.add(values[:900], population[:900])
    assert twice.rasters().counts.sum() == 3 * 900
    twice.add(values[900:], population[900:])
    a, b = once.rasters(), twice.rasters()
    np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_array_equal(a.populations, b.populations)


def test_the_lower_number_wins_ties() -> None:
    counter = Counter(grid([0.0, 0.0], [1.0, 1.0]), 3)
    counter.add(np.full((4, 2), 0.5), np.array([2, 1, 2, 1]))
    counted = counter.rasters()
    assert counted.counts.max() == 4
    assert set(np.unique(counted.populations)) == {-1, 1}


def test_no_events_and_one_channel() -> None:
    nothing = Counter(grid([0.0, 0.0], [1.0, 1.0]), 2).rasters()
    assert nothing.counts.sum() == 0
    assert (nothing.populations == -1).all()
    counter = Counter(grid([0.0], [1.0]), 2)
    counter.add(np.zeros((5, 1)), np.zeros(5, int))
    single = counter.rasters()
    assert single.pairs.shape == (0, 2)
    assert single.counts.shape == single.populations.shape == (0, 128, 128)


def test_all_pairs_fit_for_any_number_of_channels() -> None:
    for d in range(2, 65):
        bins = bins_for(d)
        assert 24 <= bins <= 128
        assert d * (d - 1) // 2 * bins**2 <= 2_000_000
    assert bins_for(14) == 128
    assert bins_for(64) == 31


def test_the_grid_has_a_margin_and_a_constant_channel_a_width() -> None:
    edges = grid([0.0, 3.0], [10.0, 3.0])
    np.testing.assert_allclose(edges[:, [0, -1]], [[-0.5, 10.5], [2.5, 3.5]])
    np.testing.assert_allclose(np.diff(edges[0]), 11 / 128)


@pytest.mark.parametrize(
    ("values", "population"),
    [
        (np.zeros((2, 3)), np.zeros(2, int)),
        (np.zeros((2, 2)), np.zeros(3, int)),
        (np.zeros((2, 2)), np.array([0, 2])),
        (np.zeros((2, 2)), np.array([0, -1])),
        (np.array([[0.0, np.nan]]), np.zeros(1, int)),
        (np.array([[0.0, np.inf]]), np.zeros(1, int)),
    ],
)
def test_invalid_events_are_refused(values: np.ndarray, population: np.ndarray) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Counter(grid([0.0, 0.0], [1.0, 1.0]), 2).add(values, population)


def test_invalid_ends_are_refused() -> None:
    for lows, highs in (([0.0], [np.nan]), ([1.0], [0.0]), ([0.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match=r"ends|above"):
            grid(lows, highs)
    with pytest.raises(ValueError, match="bins"):
        Counter(np.zeros((2, 300)), 2)
