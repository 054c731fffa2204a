"""Levels of markers in context: each rule next to a wrong one that fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpmix.populations.types import levels
from dpmix.populations.types.levels import fit_levels, levels_of_draws
from dpmix.populations.types.markers import DOUBT, Marker, distinguished, log_factors, with_base

Array = np.ndarray
OFF, LOW, ON, HIGH = np.eye(4, dtype=bool)
PLUS, SILENT = LOW | ON | HIGH, np.ones(4, bool)


def cells(*rows: tuple[Array, ...]) -> Array:
    """Levels of a table, bool [R, M, 4]."""
    return np.array(rows)


def marker(thresholds: list[list[float]], allowed: Array, width: float = 0.1) -> Marker:
    limits = np.array(thresholds)
    n = limits.shape[1]
    base = np.full(len(limits), 0.5)
    return Marker(allowed, limits, np.zeros(limits.shape), np.full(n, width), np.full(n, 1.0), base)


def two_lineages(random: np.random.Generator, n: int = 4_000) -> tuple[Array, Array, Array]:
    """CD3 tells T cells from the others; CCR7 is off and on at 0 and 2 in T cells, at 1.5 and 4 in others."""
    lineage, state = np.arange(n) % 2, np.arange(n) // 2 % 2
    centre = np.array([[1.5, 4.0], [0.0, 2.0]])[lineage, state]
    values = np.column_stack([4.0 * lineage, centre]) + random.normal(0.0, 0.25, (n, 2))
    return values, lineage, state


def test_the_levels_of_a_column_are_those_that_exclude_each_other() -> None:
    assert distinguished(np.array([OFF, PLUS, SILENT])).tolist() == [
        [True, False],
        [False, True],
        [True, True],
    ]
    graded = distinguished(np.array([OFF, LOW, ON | HIGH]))
    assert graded.tolist() == np.eye(3, dtype=bool).tolist()
    bright = distinguished(
        np.array([OFF, LOW | ON, HIGH])
    )  # + where another row says ++: three levels, not four
    assert bright.tolist() == np.eye(3, dtype=bool).tolist()
    without_off = distinguished(np.array([LOW | ON, HIGH, SILENT]))  # + and ++: neither is off
    assert without_off.tolist() == [[False, True, False], [False, False, True], [True, True, True]]
    assert distinguished(np.array([SILENT, SILENT])).tolist() == [[True], [True]]


def test_probabilities_of_the_levels_sum_to_1() -> None:
    one = marker([[0.0, 1.0]] * 3, np.eye(3, dtype=bool))
    values = np.linspace(-2.0, 3.0, 50)
    parts = np.array([one.passes(values, r) for r in range(3)])
    np.testing.assert_allclose(parts.sum(axis=0), 1.0)
    np.testing.assert_allclose(parts[0], 1.0 / (1.0 + np.exp(values / 0.1)), atol=1e-12)
    assert (parts >= 0.0).all()


def test_evidence_is_relative_to_the_base_rate() -> None:
    allowed = np.array([[False, True], [True, False], [True, True]])
    one = replace(marker([[0.0]] * 3, allowed), base=np.array([0.1, 0.9, 1.0]))
    values = np.array([[-5.0], [5.0]])
    right = np.full((3, 1), 1.0 - DOUBT)
    found = log_factors((one,), values, right)
    expected = np.log([[DOUBT / 0.9, (1.0 - DOUBT) / 0.9, 1.0], [(1.0 - DOUBT) / 0.1, DOUBT / 0.1, 1.0]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    silent_halves = np.log(0.5)  # the wrong rule: a silent cell counts 1/2, and a row with many of them loses
    assert (found[:, 2] == 0.0).all()
    assert not np.isclose(found[:, 2], silent_halves).any()


def test_a_threshold_is_that_of_the_context() -> None:
    values, lineage, state = two_lineages(np.random.default_rng(1))
    table = cells((PLUS, OFF), (PLUS, PLUS), (OFF, OFF), (OFF, PLUS))
    labels = 2 * lineage + state
    right = np.full((4, 2), 1.0 - DOUBT)
    truth = np.array([2, 3, 0, 1])[labels]
    fitted = fit_levels(values, labels, table)
    assert (log_factors(fitted, values, right).argmax(axis=1) == truth).mean() > 0.98
    in_t, in_others = fitted[1].thresholds[:2, 0], fitted[1].thresholds[2:, 0]
    assert (abs(in_t - 1.0) < 0.3).all()
    assert (abs(in_others - 2.7) < 0.5).all()
    assert in_t[0] == in_t[1]  # rows that differ in this marker alone share its threshold

    start = levels.start_of(values[:, 1], labels, table[:, 1])  # the wrong rule: one for all
    everywhere = (fitted[0], with_base(start, values[:, 1]))
    assert (log_factors(everywhere, values, right).argmax(axis=1) == truth).mean() < 0.9


def test_high_is_above_the_cells_of_rows_that_are_on() -> None:
    """CD56 of NK cells: 4, bright 5.6; T cells with 2.2 must not decide where high begins."""
    random = np.random.default_rng(6)
    sizes, lineage = [6_000, 800, 800, 60], [4.0, 4.0, 0.0, 0.0]
    labels = np.repeat(np.arange(4), sizes)
    values = np.column_stack([np.take(lineage, labels), np.take([0.0, 2.2, 4.0, 5.6], labels)])
    values += random.normal(0.0, 0.4, values.shape)
    table = cells((PLUS, OFF), (OFF, LOW | ON), (OFF, HIGH))
    fitted = fit_levels(values, labels, table)
    assert (abs(fitted[1].thresholds[1:, 1] - 4.8) < 0.4).all()
    groups = levels._groups(
        np.array([0.0, 2.2, 4.0, 5.6]), np.sqrt(sizes), 3
    )  # the wrong rule: of all events
    assert groups.tolist() == [0, 1, 2, 2]

    without = labels < 3  # no cell is high: all are on
    alone = fit_levels(values[without], labels[without], table)[1]
    assert (alone.thresholds[1:, 1] > 5.0).all()


def test_a_level_that_a_cell_names_with_another_has_its_own_cells() -> None:
    """CD25 of T cells: 0, 1.5 in most, 4 in regulatory T cells; the table has `-|lo` and `+`."""
    random = np.random.default_rng(7)
    sizes = np.array([3_000, 3_000, 300])
    labels = np.repeat(np.arange(3), sizes)
    values = np.take([0.0, 1.5, 4.0], labels) + random.normal(0.0, 0.3, len(labels))
    start = levels.start_of(values, labels, np.array([OFF | LOW, ON | HIGH]))
    assert start.thresholds.shape == (2, 1)
    assert abs(start.thresholds[0, 0] - 2.75) < 0.2
    plain = levels.start_of(
        values, labels, np.array([OFF, PLUS])
    )  # the wrong rule: as many groups as boundaries
    assert plain.thresholds[0, 0] < 2.4


def test_a_marker_without_levels_says_little() -> None:
    random = np.random.default_rng(2)
    values, labels = random.normal(0.0, 1.0, (3_000, 1)), np.arange(3_000) % 6
    table = cells((OFF,), (PLUS,))
    one = fit_levels(values, labels, table)[0]
    assert one.separation < 1.0
    logs = log_factors((one,), values, np.full((2, 1), 1.0 - DOUBT))
    assert np.abs(logs).max() < 0.5
    sharp = replace(one, widths=0.08 * one.gaps)  # the wrong rule: a threshold is sharp everywhere
    assert np.abs(log_factors((sharp,), values, np.full((2, 1), 1.0 - DOUBT))).max() > 2.0


@pytest.mark.parametrize(("other", "telling"), [(PLUS, False), (SILENT, True)])
def test_a_marker_that_all_rows_share_does_not_divide_its_one_level(other: Array, telling: bool) -> None:
    """Gated T cells: components are slices of one level of CD3, 2 standard deviations apart."""
    random = np.random.default_rng(8)
    labels = np.repeat(np.arange(4), 2_000)
    values = np.array([0.0, 0.3, 2.0, 2.3])[labels] + random.normal(size=8_000)
    levels_of = cells((PLUS,), (other,))
    (found,) = fit_levels(values[:, None], labels, levels_of)
    factors = log_factors((found,), values[:, None], np.full((2, 1), 1.0 - DOUBT))[:, 0]
    # A row that says nothing may stand for cells without the marker: then the threshold is asked for.
    assert (factors.min() < -1.0) == telling
    assert (np.abs(factors).max() < 0.5) != telling


def test_large_components_do_not_decide_the_start_alone() -> None:
    random = np.random.default_rng(3)
    sizes = [9_000, 9_000, 200]
    places = [0.0, 0.6, 6.0]
    values = np.concatenate([random.normal(m, 0.2, n) for m, n in zip(places, sizes, strict=True)])
    labels = np.repeat(np.arange(3), sizes)
    start = levels.start_of(values, labels, np.array([OFF, PLUS]))
    assert 1.0 < start.thresholds[0, 0] < 5.5
    assert levels._groups(np.array(places), np.array([1.0, 1.0, 1.0]), 3).tolist() == [0, 1, 2]


def test_few_components_give_a_threshold_that_says_nothing() -> None:
    values, labels = np.random.default_rng(4).normal(size=500), np.zeros(500, np.int64)
    start = levels.start_of(values, labels, np.array([OFF, PLUS]))
    assert np.abs(start.passes(values, 1) - 0.5).max() < 0.3


@pytest.mark.parametrize("n", [30, 2_000])
def test_a_threshold_without_a_valley_stays_near_the_start(n: int) -> None:
    values = np.random.default_rng(5).normal(0.0, 1.0, n)
    edges = levels._edges(values)
    bins = np.searchsorted(edges, values, "right")
    found, error = levels._threshold(values, bins, np.ones(n), edges, 0.4, 0.25)
    assert abs(found - 0.4) < 0.25
    assert 0.0 < error < 0.25


def test_a_marker_without_any_cell_has_no_separation() -> None:
    values = np.random.default_rng(1).normal(size=(200, 1))
    (marker,) = fit_levels(values, np.zeros(200, np.int64), np.ones((2, 1, 4), bool))
    assert marker.silent.all()
    assert marker.separation == 0.0


def test_a_threshold_that_differs_between_draws_makes_levels_between_them_uncertain() -> None:
    """Components at 0, 3 and 6: draws differ in whether the middle one is divided."""
    random = np.random.default_rng(6)
    labels = np.repeat(np.arange(3), [3_000, 3_000, 3_000])
    values = (3.0 * labels + random.normal(0.0, 0.3, len(labels)))[:, None]
    table = cells((OFF,), (PLUS,))
    below = np.where(labels == 1, np.arange(len(labels)) % 9 + 3, labels)  # the root of events: more weight
    above = np.where(labels == 2, np.arange(len(labels)) % 9 + 3, labels)
    single = [fit_levels(values, own, table)[0] for own in (below, above)]
    middle = labels == 1
    each = [one.passes(values[middle, 0], 1).mean() for one in single]
    assert max(each) > 0.9  # the wrong rule: one draw decides
    assert min(each) < 0.1
    (joined,) = levels_of_draws(values, [below, above], table)
    together = joined.passes(values[:, 0], 1)
    assert together[middle].mean() == pytest.approx(np.mean(each), abs=1e-12)
    assert together[labels == 2].mean() > 0.95
    assert together[labels == 0].mean() < 0.05
    assert joined.base[1] == pytest.approx(together.mean())
    moved = joined.moved(1.0).passes(values[:, 0], 1)
    assert (moved <= together + 1e-12).all()  # the thresholds of all draws move
    np.testing.assert_allclose(moved, np.mean([m.moved(1.0).passes(values[:, 0], 1) for m in single], axis=0))
    assert joined.same(1) != single[0].same(1)


def test_the_softness_is_that_of_the_tails_that_face_each_other() -> None:
    """Off is narrow and on is wide, as IgM of B cells: a value in the midst of off is off."""
    random = np.random.default_rng(1)
    off, on = random.normal(0.0, 0.1, 2_000), random.normal(3.0, 1.8, 2_000)
    values, labels = np.append(off, on)[:, None], np.repeat([0, 1], 2_000)
    (one,) = fit_levels(values, labels, cells((OFF,), (PLUS,)))
    middle = np.array([0.0])
    assert one.passes(middle, 0) > 0.97
    by_variances = replace(one, widths=np.array([(0.1**2 + 1.8**2) / 2.0 / 3.0]))  # the wrong rule
    assert by_variances.passes(middle, 0) < 0.9
    backward = fit_levels(-values, labels, cells((OFF,), (PLUS,)))[0]  # on is narrow
    assert backward.passes(middle, 1) > 0.97
