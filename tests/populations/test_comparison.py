"""Comparison of populations with manual gates: F1, matching and unions."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpmix.inputs.events import Events
from dpmix.populations.gates.comparison import Comparison, compare, gated_samples

GATES = ("T", "T/CD4", "T/CD8", "B", "none")


def comparison() -> Comparison:
    """Five gates and four populations: 1 and 2 split CD4, 3 is CD8 and some B."""
    overlap = np.array([[60, 30, 90, 0], [60, 30, 0, 0], [0, 0, 90, 0], [0, 0, 10, 5], [0, 0, 0, 0]])
    populations = np.array([[60, 40, 100, 5]] * 5)
    return Comparison("w.wsp", GATES, overlap.sum(1), overlap, populations)


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    found = comparison()
    precision, recall = 60 / 60, 60 / 90
    assert (found.precision[1, 0], found.recall[1, 0]) == (precision, recall)
    assert found.f1[1, 0] == pytest.approx(2 * precision * recall / (precision + recall))
    assert found.f1[4].tolist() == [0, 0, 0, 0]


def test_gates_without_gates_inside_are_matched_one_to_one() -> None:
    found = comparison()
    assert found.leaves.tolist() == [False, True, True, True, True]
    matches = found.matches()
    assert matches.tolist() == [2, 0, 2, 3, -1]
    scores, leaves = found.f1, np.flatnonzero(found.leaves)
    best = max(scores[leaves, list(order)].sum() for order in itertools.permutations(range(4)))
    assert scores[leaves[:3], matches[leaves[:3]]].sum() == pytest.approx(best)


def test_unions_are_the_best_of_all_unions() -> None:
    found = comparison()
    unions, f1 = found.unions()
    assert [union.tolist() for union in unions] == [[0, 1, 2], [0, 1], [2], [3], []]
    for g in range(4):
        best = 0.0
        for size in range(1, 5):
            for some in map(list, itertools.combinations(range(4), size)):
                inside, own = found.overlap[g, some].sum(), found.populations[g, some].sum()
                best = max(best, 2 * inside / (found.sizes[g] + own))
        assert f1[g] == pytest.approx(best)


def test_a_workspace_without_gates() -> None:
    none = Comparison("w.wsp", (), np.empty(0, int), np.empty((0, 3), int), np.empty((0, 3), int))
    assert none.matches().tolist() == []
    assert none.unions()[0] == []


def test_gates_are_counted_over_the_samples_that_have_them() -> None:
    members = {
        "a": {"T": np.array([True, False, True, True]), "B": np.array([False, True, False, False])},
        "b": {"T": np.array([False, True, True])},
    }
    gates: Any = SimpleNamespace(path="w.wsp", members=lambda source: members[source])
    events: Any = SimpleNamespace(
        sources=("a", "b"), sample_starts=np.array([0, 3, 5]), rows=np.array([0, 1, 3, 1, 2])
    )
    events.rows_in_file = partial(Events.rows_in_file, events)
    found = compare("w.wsp", gated_samples(events, gates), np.array([0, 1, 0, 0, 1], np.int32), 2)
    assert found.gates == ("T", "B")
    assert found.sizes.tolist() == [4, 1]
    assert found.overlap.tolist() == [[3, 1], [0, 1]]
    assert found.populations.tolist() == [[3, 2], [2, 1]]

    among = np.array([1, 2, 4])
    some = compare("w.wsp", gated_samples(events, gates, among), np.array([1, 0, 1], np.int32), 2)
    assert some.sizes.tolist() == [2, 1]
    assert some.overlap.tolist() == [[1, 1], [0, 1]]
    assert some.populations.tolist() == [[1, 2], [1, 1]]
