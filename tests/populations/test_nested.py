"""Gates along the tree, and ellipses: of simulated populations whose branches are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_strategy import clouds, gates_of

from dpmix.populations.gates.ellipses import EllipseGate, best_ellipse
from dpmix.populations.gates.nested import Node, find_nested, unions_of
from dpmix.populations.gates.polygons import f_measure
from dpmix.populations.gates.strategy import find_strategies

Array = np.ndarray


def events_of(values: Array) -> Any:
    """Return events whose values are on the transformed scale."""
    scaling = SimpleNamespace(to_transformed=np.asarray)
    sources, starts = (SimpleNamespace(header=None),), np.array([0, len(values)])
    return SimpleNamespace(values=values, scaling=scaling, sources=sources, sample_starts=starts)


def hierarchy_of(values: Array, population: Array, unions: list[tuple[int, ...]]) -> tuple[Node, ...]:
    events = events_of(values)
    alone = find_strategies(events, population, int(population.max()) + 1, 1)
    return find_nested(events, population, alone, unions, 1)


def test_unions_are_the_merges_of_whole_populations() -> None:
    modes = np.array([0, 0, 1, 2, 3])
    tree: Any = SimpleNamespace(merges=np.array([[1, 0], [3, 2], [0, 2], [4, 2]]))
    assert unions_of(tree, modes) == [(0, 1, 2), (1, 2)]
    across: Any = SimpleNamespace(merges=np.array([[1, 2], [0, 2], [4, 3], [3, 2]]))
    assert unions_of(across, modes) == [(0, 1), (2, 3)]


def test_populations_are_gated_inside_their_branch() -> None:
    centres = np.array([[0.0, 0, 0], [0, 0, 9], [9, 0, 0], [9, 9, 0], [9, 9, 9]])
    values, population = clouds(centres, 1_000)
    nodes = hierarchy_of(values, population, [(2, 3, 4), (0, 1), (3, 4)])
    assert [node.populations for node in nodes] == [(2, 3, 4), (0, 1), (3, 4), (0,), (1,), (2,), (3,), (4,)]
    assert [node.parent for node in nodes] == [-1, -1, 0, 1, 1, 0, 2, 2]
    for node in nodes:
        before = nodes[node.parent].strategy.gates if node.parent >= 0 else ()
        assert node.strategy.gates[: len(before)] == before
        assert len(node.strategy.gates) == len(before) + node.n_own
        assert node.n_own > 0
        inside = np.ones(len(values), bool)
        for gate in node.strategy.gates:
            inside &= gate.contains(values)
        wanted = np.isin(population, node.populations)
        f1 = f_measure((inside & wanted).sum(), inside.sum(), wanted.sum())
        assert node.strategy.f1[-1] == pytest.approx(float(f1))
        assert f1 > 0.97


def test_a_branch_that_no_gate_isolates_is_left_out() -> None:
    centres = np.array([[0.0, 0], [1.5, 0], [8, 8], [8, 0]])
    nodes = hierarchy_of(*clouds(centres, 1_000), [(0, 2), (1, 3)])
    assert [node.populations for node in nodes] == [(0,), (1,), (2,), (3,)]
    assert {node.parent for node in nodes} == {-1}


def test_a_population_that_a_branch_would_spoil_is_gated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmix.populations.gates.nested.BRANCH", 0.0)
    values, population = clouds(np.array([[0.0, 0], [9, 0], [4.5, 9]]), 1_000)
    population = np.where((population == 0) & (values[:, 1] > 1), 3, population).astype(np.int32)
    nodes = hierarchy_of(values, population, [(0, 1)])
    alone = find_strategies(events_of(values), population, 4, 1)
    for node in nodes:
        if not node.is_branch:
            assert node.strategy.f1[-1] > alone[node.populations[0]].f1[-1] - 0.02


def test_the_ellipse_is_the_best_of_its_shape() -> None:
    random = np.random.default_rng(4)
    values = np.vstack([random.normal(size=(500, 2)) @ [[2, 1], [0, 1]], random.uniform(-9, 9, (3_000, 2))])
    own = np.arange(3_500) < 500
    gate = best_ellipse(values, own, np.ones(3_500), (0, 1), 500.0)
    assert gate is not None
    np.testing.assert_allclose(gate.centre, values[own].mean(0))

    def f1(distance: float) -> float:
        inside = EllipseGate((0, 1), gate.centre, gate.covariance, distance).contains(values)
        return float(f_measure((inside & own).sum(), inside.sum(), 500))

    assert f1(gate.distance) >= max(f1(distance) for distance in np.linspace(0.2, 20, 400))
    assert best_ellipse(values, own, np.ones(3_500), (0, 0), 500.0) is None
    assert best_ellipse(values[:10], own[:10], np.ones(10), (0, 1), 500.0) is None


def test_an_ellipse_is_used_where_it_is_better_than_polygons() -> None:
    random = np.random.default_rng(8)
    small = random.normal(size=(150, 2)) * 0.3
    values = np.vstack([small, random.uniform(-8, 8, (20_000, 2))])
    population = (np.arange(len(values)) >= 150).astype(np.int32)
    (few, _) = gates_of(values, population, 2)
    assert isinstance(few.gates[-1], EllipseGate)
