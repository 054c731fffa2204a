"""Gating strategies: gates of simulated populations, and their counts by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.path import Path as Polygon

from dpmix.populations.gates import strategy
from dpmix.populations.gates.polygons import VERTICES, Binned, PolygonGate, best_regions, f_measure
from dpmix.populations.gates.strategy import find_gates, measure, stratified

Array = np.ndarray


def clouds(centres: Array, n_each: int = 2_000, seed: int = 3) -> tuple[Array, Array]:
    """Return events of standard normal populations at these centres, and their populations."""
    random = np.random.default_rng(seed)
    population = np.repeat(np.arange(len(centres)), n_each).astype(np.int32)
    values = centres[population] + random.normal(size=(len(population), centres.shape[1]))
    shuffled = random.permutation(len(population))
    return values[shuffled], population[shuffled]


def gates_of(values: Array, population: Array, n_populations: int) -> list[strategy.Strategy]:
    binned = Binned.of(values, np.ones(len(values)), values.min(0), values.max(0))
    return measure(find_gates(binned, population, n_populations), [(values, population)])


def test_one_gate_isolates_a_population_that_two_channels_separate() -> None:
    centres = np.array([[0.0, 0, 0, 0], [0, 7, 0, 7], [0, 7, 0, 0], [0, 0, 0, 7]])
    for own in gates_of(*clouds(centres), 4):
        assert [gate.channels for gate in own.gates] == [(1, 3)]
        assert own.f1[-1] > 0.98
        assert own.good
        assert len(own.gates[0].vertices) <= VERTICES


def test_a_corner_of_three_channels_takes_two_gates() -> None:
    corners = np.array([[a, b, c] for a in (0, 7) for b in (0, 7) for c in (0, 7)], float)
    found = gates_of(*clouds(corners, 500), 8)
    assert [len(own.gates) for own in found] == [2] * 8
    for own in found:
        assert {channel for gate in own.gates for channel in gate.channels} == {0, 1, 2}
        assert own.f1[0] < 0.75 < 0.97 < own.f1[-1]


def test_populations_that_overlap_are_reported_as_poor() -> None:
    poor = gates_of(*clouds(np.array([[0.0, 0], [1, 0]])), 2)
    assert not any(own.good for own in poor)
    assert all(0.5 < own.f1[-1] < 0.85 for own in poor)


def test_a_population_without_events_has_no_gates() -> None:
    values, population = clouds(np.array([[0.0, 0], [9, 0]]))
    none = gates_of(values, population, 3)[2]
    assert none.gates == ()
    assert (none.size, none.good) == (0, False)


def test_many_channels_are_screened_and_the_right_ones_found() -> None:
    random = np.random.default_rng(5)
    values, population = clouds(np.array([[0.0, 0], [6, 6]]), 500)
    wide = np.column_stack([random.normal(size=(1_000, 14)), values, random.normal(size=(1_000, 4))])
    for own in gates_of(wide, population, 2):
        assert [gate.channels for gate in own.gates] == [(14, 15)]


def test_counts_are_those_of_a_brute_force_pass() -> None:
    values, population = clouds(np.array([[0.0, 0, 0], [3, 0, 1], [0, 3, 3]]))
    found = gates_of(values, population, 3)
    blocks = [(values[:700], population[:700]), (values[700:], population[700:])]
    again = measure([own.gates for own in found], blocks)
    for p, (own, other) in enumerate(zip(found, again, strict=True)):
        inside = np.ones(len(values), bool)
        for k, gate in enumerate(own.gates):
            inside &= Polygon(gate.vertices).contains_points(values[:, gate.channels])
            kept, selected = (inside & (population == p)).sum(), inside.sum()
            assert (own.kept[k], own.selected[k]) == (other.kept[k], other.selected[k]) == (kept, selected)
            purity, recovered = kept / selected, kept / 2_000
            assert own.purity[k] == pytest.approx(purity)
            assert own.recovered[k] == pytest.approx(recovered)
            assert own.f1[k] == pytest.approx(2 * purity * recovered / (purity + recovered))


def test_the_best_region_is_the_best_of_all_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmix.populations.gates.polygons._SMOOTHER", np.eye(48))
    random = np.random.default_rng(1)
    target, others = np.zeros(48), np.zeros(48)
    target[:8], others[:8] = random.integers(0, 9, (2, 8))
    total = target.sum() + 3.0
    f1, regions = best_regions(target, others, total)
    every = (np.arange(256)[:, None] >> np.arange(8)) & 1
    true, selected = every @ target[:8], every @ (target + others)[:8]
    for beta, region in zip((0.5, 1.0, 2.0), regions, strict=True):
        best = f_measure(true, selected, total, beta).max()
        assert f_measure(target[region].sum(), (target + others)[region].sum(), total, beta) == best
    assert f1 == f_measure(true, selected, total).max()


def test_the_sample_of_the_search_keeps_rare_populations() -> None:
    population = np.repeat(np.array([0, 1, 2], np.int32), [90_000, 9_990, 10])
    events, weights = stratified(population, 4, seed=1)
    assert (np.diff(events) > 0).all()
    drawn = np.bincount(population[events], minlength=4)
    assert drawn.tolist() == [36_000, 3_996, 10, 0]
    np.testing.assert_allclose(np.bincount(population[events], weights), [90_000, 9_990, 10])


def test_a_gate_holds_the_events_in_it() -> None:
    square = PolygonGate((2, 0), np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]]))
    values = np.array([[0.5, 9, 0.5], [0.5, 9, 1.5], [1.5, 9, 0.5], [-0.1, 9, 0.5]])
    assert square.contains(values).tolist() == [True, False, False, False]
    assert square.contains(values[:0]).tolist() == []
