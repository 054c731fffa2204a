"""Outlines of populations in two channels, and the plots of their cards."""

from __future__ import annotations

import numpy as np
import pytest
from flowutils.gating import points_in_polygon

from dpmix.populations.events import outlines
from dpmix.populations.events.rasters import Counter, grid
from dpmix.populations.gates.polygons import Binned
from dpmix.populations.gates.strategy import Search, Totals


def counted(groups: list[np.ndarray]) -> tuple[Counter, np.ndarray, np.ndarray]:
    """Count groups of events [n, D], each a population."""
    values = np.concatenate(groups)
    population = np.repeat(np.arange(len(groups)), [len(own) for own in groups])
    counter = Counter(grid(*np.quantile(values, (0.001, 0.999), axis=0)), len(groups))
    counter.add(values, population)
    return counter, values, population


@pytest.mark.parametrize("n_events", [300, 30_000])
def test_an_outline_contains_the_share(n_events: int) -> None:
    rng = np.random.default_rng(1)
    ring = rng.normal(size=(n_events, 2))
    bent = np.stack([ring[:, 0], ring[:, 0] ** 2 + 0.5 * ring[:, 1]], axis=1)  # no ellipse
    counter, values, population = counted([bent, rng.normal([8, 8], 0.5, (n_events // 3, 2))])
    (found,) = counter.rasters().outlines
    for p in range(2):
        own = values[population == p]
        inside = sum(points_in_polygon(ring.astype(float), own) for ring in found[p])
        assert inside.mean() == pytest.approx(outlines.SHARE, abs=0.05 if n_events == 300 else 0.02)
    others = values[population == 1]
    assert not sum(points_in_polygon(ring.astype(float), others) for ring in found[0]).any()


@pytest.mark.parametrize("n_channels", [5, 17, 30])
def test_an_outline_is_round_its_events_for_any_number_of_bins(n_channels: int) -> None:
    values = np.random.default_rng(1).normal(size=(3_000, n_channels))
    counter, _, _ = counted([values])
    (ring,) = counter.rasters().outlines[-1][0]
    radius = np.sqrt(-2.0 * np.log(1.0 - outlines.SHARE))
    np.testing.assert_allclose(np.linalg.norm(ring, axis=1), radius, atol=0.35)


def test_two_islands_have_two_rings() -> None:
    rng = np.random.default_rng(1)
    both = rng.normal(np.repeat([[0.0, 0.0], [9.0, 9.0]], 2_000, axis=0), 0.5)
    counter, _, _ = counted([both, rng.normal(4.0, 3.0, (500, 2))])
    assert len(counter.rasters().outlines[0][0]) == 2


def test_few_events_have_no_outline_and_a_place() -> None:
    counter, _, _ = counted([np.random.default_rng(1).normal(size=(900, 2)), np.zeros((2, 2))])
    rasters = counter.rasters()
    assert rasters.outlines[0][1] == ()
    assert 0.0 <= rasters.visible[0, 1] <= 1.0
    assert rasters.visible[0, 0] > 0.9
    assert rasters.lines.shape[:2] == (2, 2)
    np.testing.assert_array_equal(rasters.lines.sum(axis=2), [[900, 2], [900, 2]])


@pytest.mark.slow
def test_the_largest_populations_have_outlines_where_there_are_many_pairs() -> None:
    rng = np.random.default_rng(1)
    counter, _, _ = counted([rng.normal(size=(30, 40)) for _ in range(14)])
    rasters = counter.rasters()
    assert rasters.n_outlined == 12
    assert {len(own) for own in rasters.outlines} == {12}


def test_the_first_gates_isolate_a_population() -> None:
    rng = np.random.default_rng(1)
    centres = np.array([[0, 0, 0], [6, 0, 0], [6, 6, 0], [6, 6, 6]])
    own = np.repeat(np.arange(4), 500)
    values = centres[own] + rng.normal(size=(2_000, 3))
    binned = Binned.of(values, np.ones(2_000), values.min(axis=0), values.max(axis=0))
    search = Search(binned, own == 3, Totals(binned))
    gates = search.first(2)
    assert 1 <= len(gates) <= 2
    assert search.f1_of(gates) > 0.95
    assert Search(binned, own == 9, Totals(binned)).first(2) == ()
