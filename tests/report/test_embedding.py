"""The map of a gating by t-SNE."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpmix.errors import ConfigError
from dpmix.populations.result import Map
from dpmix.report import embedding

Array = np.ndarray


def blobs(n: int, dim: int = 5, n_populations: int = 4, seed: int = 1) -> tuple[Array, Array]:
    """Draw events of separated populations, float32 [n, dim], and the population of each."""
    rng = np.random.default_rng(seed)
    population = rng.integers(0, n_populations, n).astype(np.int32)
    means = 10.0 * rng.permutation(np.eye(max(n_populations, dim)))[:n_populations, :dim]
    return (means[population] + rng.normal(size=(n, dim))).astype(np.float32), population


def make_map(values: Array, populations: Array, seed: int) -> Map:
    rows, places = embedding.place_events(values, seed)
    return Map(places, populations[rows])


def neighbours_alike(places: Array, populations: Array) -> float:
    """Return the share of the events whose nearest neighbour has the same population."""
    gaps = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    return float((populations[gaps.argmin(axis=1)] == populations).mean())


def test_neighbours_on_the_map_are_neighbours_in_all_channels() -> None:
    found = make_map(*blobs(400), seed=3)
    assert found.places.dtype == np.float32
    assert neighbours_alike(found.places, found.populations) == 1.0
    others = np.random.default_rng(1).permutation(found.populations)
    assert neighbours_alike(found.places, others) < 0.5, "a map of other events would pass"


@pytest.mark.parametrize("n_events", [300, 3_000])
def test_a_seed_gives_one_map_for_any_threads(n_events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "EARLY", 20)
    monkeypatch.setattr(embedding, "LATE", 30)
    events = blobs(n_events)
    with threadpool_limits(1):
        first = make_map(*events, seed=3)
    with threadpool_limits(4):
        again = make_map(*events, seed=3)
    np.testing.assert_array_equal(first.places, again.places)
    np.testing.assert_array_equal(first.populations, again.populations)
    assert not np.array_equal(first.places, make_map(*events, seed=4).places)


@pytest.mark.parametrize(("n_events", "dim"), [(1, 2), (3, 2), (7, 1), (95, 5)])
def test_few_events_have_a_map(n_events: int, dim: int, recwarn: pytest.WarningsRecorder) -> None:
    values, populations = blobs(n_events, dim, n_populations=1)
    gc.collect()  # warnings of what earlier tests left open are not about the map
    recwarn.clear()
    places = make_map(values, populations, seed=3).places
    assert places.shape == (n_events, 2)
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) == n_events
    assert [str(one.message) for one in recwarn] == []


def test_numbers_stand_on_the_map() -> None:
    """The number of a small island at the edge stands above it."""
    random = np.random.default_rng(1)
    small = [[0.0, 10.0], [0.0, -10.0], [10.0, 0.0]] + 0.01 * random.normal(size=(30, 3, 2))
    places = np.concatenate([random.normal(size=(900, 2)), small.swapaxes(0, 1).reshape(90, 2)])
    events = Map(places.astype(np.float32), np.repeat([0, 1, 2, 3], [900, 30, 30, 30]))
    gating: Any = SimpleNamespace(n_populations=4)
    _, points = embedding.map_numbers(gating, events)
    corner, side = embedding.map_window(events)
    assert points[1, 1] > places[900:930, 1].max()
    assert (np.abs((points - corner) / side - 0.5) < 0.48).all()  # half of a number is 2% of the side


def test_events_that_are_all_the_same_have_a_map() -> None:
    places = make_map(np.ones((50, 3), np.float32), np.zeros(50, np.int32), seed=3).places
    assert np.isfinite(places).all()


def test_events_are_drawn_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MOST_EVENTS", 300)
    monkeypatch.setattr(embedding, "_embed", lambda values, random: values)
    rows = np.arange(3_000)
    values = np.stack((rows, -rows), axis=1).astype(np.float32)
    found = make_map(values, rows, seed=3)
    assert len(np.unique(found.populations)) == 300
    np.testing.assert_array_equal(found.places, values[found.populations])
    assert abs(found.populations.mean() - 1_500) < 4 * 866 / np.sqrt(300)
    assert not (np.diff(found.populations) > 0).all()
    assert not np.array_equal(found.populations, make_map(values, rows, seed=4).populations)


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding.need()
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(
        ConfigError, match=r"^a map needs openTSNE \(.*\): pip install 'dpmix-cytometry\[map\]'$"
    ):
        embedding.need()
