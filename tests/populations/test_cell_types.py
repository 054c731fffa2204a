"""Cell types of events: each conditional next to a wrong one that fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpmix.populations.types import cells, types
from dpmix.populations.types.cells import assess_cells, other_cells, suspect_cells
from dpmix.populations.types.levels import fit_levels
from dpmix.populations.types.markers import DOUBT, Marker, log_factors, telling, with_base
from dpmix.populations.types.shares import (
    Fits,
    barred_rows,
    component_fits,
    component_shares,
    event_fits,
    event_shares,
    name_shares,
)
from dpmix.populations.types.types import decide, descendants

Array = np.ndarray
OFF, PLUS, SILENT = np.array([1, 0, 0, 0], bool), np.array([0, 1, 1, 1], bool), np.ones(4, bool)


def blood(random: np.random.Generator, sizes: tuple[int, ...], signs: Array) -> tuple[Array, Array]:
    """Return events of types whose markers are at 0 or 3, [N, M], and the type of each."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return 3.0 * signs[labels] + random.normal(0.0, 0.4, (len(labels), signs.shape[1])), labels


def table(signs: Array) -> Array:
    """Levels of a table without silent cells, bool [R, M, 4]."""
    return np.where(signs[..., None] > 0, PLUS, OFF)


SIGNS = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1]])


def evidence(values: Array, labels: Array, levels: Array, right: Array | None = None) -> Array:
    markers = fit_levels(values, labels, levels)
    p = np.full(levels.shape[:2], 1.0 - DOUBT) if right is None else right
    return np.exp(np.pad(log_factors(markers, values, p), [(0, 0), (0, 1)]))


def test_one_draw_with_another_threshold_does_not_decide() -> None:
    """Three of four draws have the threshold of high at 10, one has it at 4, below 20 events that are on."""

    def draw(high: float) -> Marker:
        allowed = np.array([[0, 1, 0], [0, 0, 1]], bool)  # rows + and ++
        thresholds = np.tile([0.0, high], (2, 1))
        return Marker(allowed, thresholds, np.zeros((2, 2)), np.full(2, 0.1), np.ones(2), np.ones(2))

    values = np.repeat([-2.0, 2.0, 5.0, 12.0], [475, 500, 20, 5])[:, None]
    marker = with_base(replace(draw(10.0), others=(draw(10.0), draw(4.0), draw(10.0))), values[:, 0])
    logs = log_factors((marker,), values, np.full((2, 1), 1.0 - DOUBT))
    np.testing.assert_array_equal(logs[475:].argmax(axis=1), np.repeat([0, 1], [520, 5]))


def test_shares_of_events_are_sums_over_components() -> None:
    random = np.random.default_rng(1)
    memberships = random.dirichlet(np.ones(5), 20)
    shares = random.dirichlet(np.ones(4), 5)
    own = random.gamma(1.0, size=(20, 4))
    expected = np.zeros((20, 4))
    for h in range(5):
        part = shares[h] * own
        expected += memberships[:, [h]] * part / part.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(event_shares(memberships, shares, own), expected)


def test_a_component_that_straddles_a_threshold_is_divided() -> None:
    values = np.linspace(-2.0, 2.0, 1_001)
    own = np.column_stack([np.exp(-3.0 * values), np.exp(3.0 * values)])
    labels = np.zeros(len(values), np.int64)
    shares = component_shares(own, labels, 1)
    divided = event_shares(np.ones((len(values), 1)), shares, own)
    assert (divided.argmax(axis=1) == (values > 0)).mean() > 0.99
    whole = np.tile(shares[0], (len(values), 1))  # the wrong rule: the component has one type
    assert len(np.unique(whole.argmax(axis=1))) == 1


def test_a_component_on_one_side_goes_whole() -> None:
    own = np.tile([30.0, 1.0, 1.0], (400, 1))
    own[:20] = [0.4, 1.0, 0.1]  # events of its tail
    shares = component_shares(own, np.zeros(400, np.int64), 2)
    assert shares[0, 0] > (1.0 + 0.9) / 4.0
    np.testing.assert_allclose(shares[1], 1.0 / 3.0)  # a component without events says nothing
    found = event_shares(np.ones((400, 1)), shares[:1], own)
    assert (found.argmax(axis=1) == 0).mean() > 0.94


def test_the_row_of_a_component_counts_twice_whatever_the_number_of_rows() -> None:
    for n_rows in (2, 30):
        own = np.full((400, n_rows), 1e-6)
        own[:, 0] = 1.0
        shares = component_shares(own, np.zeros(400, np.int64), 1)[0]
        assert shares[0] / shares[1] == pytest.approx(2.0, rel=0.01)
        wrong = 0.1 * np.eye(n_rows)[0] + 0.9 / n_rows  # the wrong rule: a tenth of the weight
        assert abs(wrong[0] / wrong[1] - 2.0) > 0.7
        assert shares.sum() == pytest.approx(1.0)


def test_learned_shares_count_events_that_fit_two_rows_for_the_frequent_one() -> None:
    own = np.vstack([np.tile([50.0, 0.1], (900, 1)), np.tile([0.1, 50.0], (50, 1)), np.ones((50, 2))])
    labels = np.repeat([0, 1, 2], [900, 50, 50])
    even = component_shares(own, labels, 3)
    learned = component_shares(own, labels, 3, learn=True)
    assert even[2].tolist() == pytest.approx([0.5, 0.5])
    assert learned[2, 0] > 0.85


def test_a_component_of_debris_has_only_rows_of_artefacts() -> None:
    own = np.tile([50.0, 20.0, 1.0], (400, 1))
    labels = np.repeat([0, 1], 200)
    for kind, row in (("cell", 2), ("debris", 1)):
        barred = barred_rows(("cell", kind), np.array([False, True]))
        for learn in (False, True):
            shares = component_shares(own, labels, 2, learn, barred)
            found = event_shares(np.eye(2)[labels], shares, own)
            assert (found[:200].argmax(axis=1) == 0).all()
            assert (found[200:].argmax(axis=1) == row).all()
            np.testing.assert_allclose(shares.sum(axis=1), 1.0)
            assert found[200:, 0].max() == 0.0


def test_a_population_keeps_an_event_between_two_rows_and_loses_one_that_fits_another() -> None:
    own = np.vstack([np.tile([9.0, 0.1, 1.0], (900, 1)), np.tile([1.0, 1.1, 0.5], (100, 1))])
    own[-10:] = [0.1, 9.0, 1.0]
    labels, populations = np.repeat([0, 1], [900, 100]), np.array([0, 0, 1])
    alone = event_shares(np.eye(3)[labels], component_shares(own, labels, 3), own)
    found = event_shares(np.eye(3)[labels], name_shares(own, labels, populations), own)
    assert (alone[900:990].argmax(axis=1) == 1).all()  # by its component
    assert (found[900:990].argmax(axis=1) == 0).all()
    assert (found[990:].argmax(axis=1) == 1).all()
    np.testing.assert_allclose(name_shares(own, labels, populations)[2], 1.0 / 3.0)


def test_names_use_the_average_over_the_places_of_a_threshold() -> None:
    both = np.array([[True, False], [False, True]])
    tiled = [np.tile(value, (2, 1)) for value in (0.3, 0.7)]
    marker = Marker(both, *tiled, np.array([0.2]), np.array([2.0]), np.full(2, 0.5))
    values = np.linspace(-3.0, 3.0, 50)
    deviates = np.random.default_rng(1).normal(size=20_000)
    average = np.mean([marker.moved(e).passes(values, 1) for e in deviates], axis=0)
    np.testing.assert_allclose(marker.softened().passes(values, 1), average, atol=0.03)
    assert np.abs(marker.passes(values, 1) - average).max() > 0.1  # the threshold alone
    joined = replace(marker, others=(marker,)).softened()
    np.testing.assert_allclose(joined.passes(values, 1), marker.softened().passes(values, 1))
    assert marker.same(1) != joined.same(1)


def test_doubt_moves_no_events_of_a_rare_type_to_a_frequent_one() -> None:
    own = np.vstack([np.tile([1.0, 0.001], (2_000, 1)), np.tile([0.05, 1.0], (100, 1))])
    labels = np.repeat([0, 1], [2_000, 100])
    memberships = np.eye(2)[labels]
    learned = event_shares(memberships, component_shares(own, labels, 2, learn=True), own)
    assert learned[:, 1].sum() == pytest.approx(100, abs=2)
    mixed = np.array([0.955, 0.045]) * 0.9 + 0.1 * np.eye(2)  # the wrong rule: shares mostly of all events
    assert event_shares(memberships, mixed, own)[:, 1].sum() < 85


def test_a_removed_row_leaves_its_events_unknown() -> None:
    values, labels = blood(np.random.default_rng(2), (2_000, 1_500, 800, 300), SIGNS)
    own = evidence(values, labels, table(SIGNS))
    assert (own.argmax(axis=1) == labels).mean() > 0.99
    fewer = evidence(values, labels, table(SIGNS)[:3]).argmax(axis=1)
    assert (fewer[labels == 3] == 3).mean() > 0.9  # 3 is unknown here
    assert (fewer[labels != 3] == 3).mean() < 0.02


def test_silent_cells_neither_help_nor_hurt() -> None:
    values, labels = blood(np.random.default_rng(3), (1_500, 1_500, 1_000, 500), SIGNS)
    own = table(SIGNS)
    own[2, :3] = SILENT  # one cell left, which row 3 has, too: the row with more cells wins where they fit
    found = evidence(values, labels, own).argmax(axis=1)
    assert (found == labels).mean() > 0.98


def test_a_wrong_sign_is_found_and_not_used() -> None:
    values, labels = blood(np.random.default_rng(4), (2_000, 1_500, 800, 400), SIGNS)
    wrong = SIGNS.copy()
    wrong[0, 3] = 1
    markers = fit_levels(values, labels, table(wrong))
    doubt, tells = np.full(wrong.shape, np.nan), telling(table(wrong))
    right, _, contradicted, _ = assess_cells(markers, values, doubt, tells, [labels])
    assert np.argwhere(contradicted).tolist() == [[0, 3]]
    assert right[0, 3] == pytest.approx(markers[3].base[0])
    stated = assess_cells(markers, values, np.full(wrong.shape, 0.01), tells, [labels]).right
    assert (stated == 0.99).all()  # a doubt that the table states stays
    kept = log_factors(markers, values, stated).argmax(axis=1)
    used = log_factors(markers, values, right).argmax(axis=1)
    assert (used == labels).mean() >= (kept == labels).mean()


def test_a_rare_row_does_not_lose_its_cell_to_a_frequent_neighbour() -> None:
    signs = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]])
    values, labels = blood(np.random.default_rng(5), (8_000, 80, 2_000), signs)
    markers = fit_levels(values, labels, table(signs))
    doubt, tells = np.full(signs.shape, np.nan), telling(table(signs))
    agreement = assess_cells(markers, values, doubt, tells, [labels]).agreement
    assert np.nanmin(agreement) > cells.CONTRADICTED
    logs = log_factors(
        markers, values, np.full(signs.shape, 0.98)
    )  # the wrong rule: all events by probability
    parts = np.exp(logs - logs.max(axis=1, keepdims=True))
    parts /= parts.sum(axis=1, keepdims=True)
    passed = markers[2].passes(values[:, 2], 1)
    assert parts[:, 1] @ passed / parts[:, 1].sum() < cells.CONTRADICTED


QUADRANTS = np.array(
    [[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 0]]
)  # the last differs in two from two


def typed(
    values: Array, labels: Array, levels: Array, whole: bool = False, not_others: bool = False
) -> Array:
    """Rows of events whose components are known, the last unknown.

    `whole`: every row explains its part; `not_others`: only cells that divide similar types count.
    """
    n = labels.max() + 1
    markers = fit_levels(values, labels, levels)
    doubt = np.full(levels.shape[:2], np.nan)
    right, _, contradicted, upheld = assess_cells(markers, values, doubt, telling(levels), [labels])
    own = np.exp(np.pad(log_factors(markers, values, right), [(0, 0), (0, 1)]))
    counting = telling(levels) | upheld
    others = other_cells(markers, counting, doubt, contradicted)
    if not_others:
        others[:] = False
    of_components = component_fits(markers, values, counting, others, [labels], n)[0]
    of_events, passed = event_fits(markers, values, counting, others)
    fits = Fits(of_events, of_components, passed)
    shares = component_shares(own, labels, n)
    found = event_shares(np.eye(n)[labels], shares, own, None if whole else fits, [-1] * len(levels))
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    return found.argmax(axis=1)


def test_cells_that_divide_types_which_are_otherwise_alike() -> None:
    levels = table(np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]]))
    levels[2, 1] = SILENT
    assert telling(levels).tolist() == [[False, True, False], [False, True, False], [False, False, False]]
    quadrants = table(QUADRANTS[[0, 2, 3, 4]])  # (1, 0) in the last two markers has no row
    told = telling(quadrants)
    assert told[:, 1:].tolist() == [[True, True], [True, True], [True, True], [False, True]]
    quadrants[0, 1] = [False, False, True, False]  # lo, ++ and the like: the boundary is uncertain
    assert not telling(quadrants)[:, 1].any()


def test_a_population_that_differs_from_a_row_in_one_cell_is_unknown() -> None:
    """One of four quadrants has no row; it is large, and fits four of five cells of its neighbours."""
    more = np.column_stack([QUADRANTS, QUADRANTS[:, 0], QUADRANTS[:, 0]])
    values, labels = blood(np.random.default_rng(7), (600, 2_500, 700, 800, 12_000), more)
    assert (typed(values, labels, table(more)) == labels).mean() > 0.98
    kept = np.array([0, 2, 3, 4])
    found = typed(values, labels, table(more[kept]))
    assert (found[labels == 1] == len(kept)).mean() > 0.95
    for row, k in enumerate(kept):
        assert (found[labels == k] == row).mean() > 0.95
    wrong = typed(values, labels, table(more[kept]), whole=True)  # the wrong rule: other cells make up for it
    assert (wrong[labels == 1] == len(kept)).mean() < 0.05


def test_a_population_that_fails_two_cells_is_unknown_though_they_divide_no_similar_types() -> None:
    """The last two types have no row; they differ in one and in two cells from the first."""
    signs = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]])
    signs = np.hstack([signs, np.tile(signs[:, :2], 3), signs[:, 2:3]])
    values, labels = blood(np.random.default_rng(12), (2_500, 1_500, 800, 600, 600), signs)
    levels = table(signs[:3])
    levels[2, 3:5] = PLUS  # so that the markers have two levels; its events fail the cells
    assert not telling(levels).any()
    found = typed(values, labels, levels)
    assert (found[labels == 4] == 3).mean() > 0.95
    for kind, row in enumerate((0, 1, 2, 0)):  # one cell may be wrong for a part of a row, or for all of it
        assert (found[labels == kind] == row).mean() > 0.95
    none = typed(values, labels, levels, not_others=True)
    assert (none[labels == 4] == 0).mean() > 0.9  # its other cells make up for it


@pytest.mark.parametrize("wrong", [False, True])
def test_the_least_factor_of_the_other_cells_is_left_out(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    if wrong:  # all count
        monkeypatch.setattr(
            "dpmix.populations.types.shares._multiply",
            lambda product, factor, _: np.multiply(product, factor, product),
        )
    signs = np.array([[1, 1, 1, 1], [0, 0, 0, 0]])
    values, labels = blood(np.random.default_rng(3), (600, 600), signs)
    markers = fit_levels(values, labels, table(signs))
    tells, others = np.zeros((2, 2, 4), bool)
    tells[:, 0], others[:, 1:] = True, True
    places = 3.0 * np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0], [0, 1, 1, 1]])
    fits = event_fits(markers, places, tells, others)[0][:, 0]
    kinds = component_fits(markers, places, tells, others, [np.arange(5)], 6)[0][:, 0]
    expected = [1, not wrong, not wrong, 0, 0]
    np.testing.assert_allclose(fits, expected, atol=0.02)
    np.testing.assert_allclose(kinds, [*expected, 1], atol=0.02)


def test_cells_with_a_doubt_do_not_make_events_unknown() -> None:
    levels = table(np.array([[1, 0], [0, 1]]))
    markers = fit_levels(*blood(np.random.default_rng(1), (500, 500), np.array([[1, 0], [0, 1]])), levels)
    doubt = np.array([[np.nan, 0.2], [0.01, np.nan]])
    tells, contradicted = np.array([[True, False], [False, False]]), np.array([[False] * 2, [False, True]])
    assert other_cells(markers, tells, doubt, contradicted).tolist() == [[False, False], [True, False]]


def test_cells_of_a_marker_without_clear_levels_do_not_make_events_unknown() -> None:
    """All events lie near its threshold, and about half of them fail each cell."""
    signs = np.array([[1, 0], [0, 1]])
    values, labels = blood(np.random.default_rng(1), (500, 500), signs)
    values[:, 1] /= 10.0
    values[:, 1] += np.random.default_rng(2).normal(0.0, 0.2, len(values))
    markers = fit_levels(values, labels, table(signs))
    none = np.zeros((2, 2), np.bool_)
    assert other_cells(markers, none, np.full((2, 2), np.nan), none).tolist() == [[True, False]] * 2


NEXT = np.array([[1, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])  # the last has no row
NEXT = np.hstack([NEXT, np.tile(NEXT[:, :2], 2), NEXT[:, 2:3]])


@pytest.mark.parametrize("wrong", [False, True])
def test_a_frequent_type_without_a_row_is_unknown_next_to_a_rare_row(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """It differs from the rare row in a cell that divides no rows, and that a component of the row passes."""
    if wrong:  # most events of the row decide alone
        monkeypatch.setattr(cells, "_passed", lambda passing, *_: np.zeros(passing[0].shape[1:], bool))
    values, labels = blood(np.random.default_rng(15), (80, 1_500, 800, 2_500), NEXT)
    levels = table(NEXT[:3])
    assert not telling(levels).any()
    markers, doubt = fit_levels(values, labels, levels), np.full(levels.shape[:2], np.nan)
    found = assess_cells(markers, values, doubt, telling(levels), [labels])
    assert found.agreement[0, 3] < cells.CONTRADICTED
    assert np.argwhere(found.contradicted).tolist() == ([[0, 3]] if wrong else [])
    assert np.argwhere(found.upheld).tolist() == ([] if wrong else [[0, 3]])
    rows = typed(values, labels, levels)
    assert (rows[labels == 3] == (0 if wrong else 3)).mean() > 0.95
    for row in range(3):
        assert (rows[labels == row] == row).mean() > 0.95


@pytest.mark.parametrize("rare", ["absent", "19 events", "fails two cells", "of another row"])
def test_a_cell_is_contradicted_if_no_component_of_its_row_passes_it(rare: str) -> None:
    more = np.vstack([NEXT, NEXT[:1], NEXT[:1]])
    more[4, 4:6] = 0  # passes the cell, and fails two that the frequent type passes
    more = np.column_stack([more, np.arange(6) == 5])
    levels = table(more[[0, 1, 2, 5]] if rare == "of another row" else more[:3])
    levels[0, -1] = SILENT  # that row has all cells of the first
    last = {"absent": (0, 0, 0), "19 events": (19, 0, 0), "fails two cells": (0, 80, 0)}.get(rare, (0, 0, 80))
    sizes = (last[0], 8_000, 800, 1_500, *last[1:])
    values, labels = blood(np.random.default_rng(16), sizes, more)
    markers, doubt = fit_levels(values, labels, levels), np.full(levels.shape[:2], np.nan)
    found = assess_cells(markers, values, doubt, telling(levels), [labels])
    assert found.contradicted[0, 3]
    assert not found.upheld.any()


def test_the_only_cell_that_excludes_another_row_is_not_contradicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NK cell is bright, and NK cells fail CD8, as the table has it: bright ones must not get them."""
    random = np.random.default_rng(4)
    labels = np.repeat(np.arange(3), (3_000, 1_500, 2_000))
    places = np.array([[4.0, 0.0, 0.0], [4.0, 0.0, 4.0], [0.0, 4.0, 0.0]])  # CD3, CD56, CD8
    values = places[labels] + random.normal(0.0, 0.4, (len(labels), 3))
    on, high = np.array([0, 1, 1, 0], bool), np.array([0, 0, 0, 1], bool)
    levels = np.array([(PLUS, OFF, SILENT), (OFF, on, PLUS), (OFF, high, SILENT)])  # T, NK, NK bright
    markers, doubt = fit_levels(values, labels, levels), np.full(levels.shape[:2], np.nan)

    def contradicted() -> list[list[int]]:
        found = assess_cells(markers, values, doubt, telling(levels), [labels])
        return np.argwhere(found.contradicted).tolist()

    assert contradicted() == [[1, 2]]
    monkeypatch.setattr(cells, "_only_differences", lambda markers: np.zeros((3, 3), bool))  # the wrong rule
    assert [2, 1] in contradicted()


def test_a_cell_is_upheld_by_most_draws_and_not_against_a_stated_doubt() -> None:
    values, labels = blood(np.random.default_rng(17), (80, 1_500, 800, 2_500), NEXT)
    joined = np.where(labels == 0, 3, labels)  # no component of its own in these draws
    levels = table(NEXT[:3])
    markers, doubt = fit_levels(values, labels, levels), np.full(levels.shape[:2], np.nan)

    def upheld(draws: list[Array], doubt: Array = doubt) -> bool:
        found = assess_cells(markers, values, doubt, telling(levels), draws)
        assert found.contradicted[0, 3] != found.upheld[0, 3]
        return bool(found.upheld[0, 3])

    assert upheld([labels, labels, joined])
    assert not upheld([labels, joined])
    assert not upheld([labels, joined, joined])
    stated = doubt.copy()
    stated[0, 3] = 0.2
    assert not upheld([labels], stated)


def test_the_tail_of_a_population_stays_with_its_row() -> None:
    own = np.tile([30.0, 1.0, 1.0], (400, 1))
    even = np.full((1, 3), 1.0 / 3.0)
    outside = np.full((400, 2), 0.01)
    none, whole = np.zeros((400, 2)), np.ones((400, 1))
    inside = event_shares(whole, even, own, Fits(outside, np.ones((1, 2)), none), [-1, -1])
    np.testing.assert_allclose(inside, own / own.sum(axis=1, keepdims=True))
    of_component = np.full((1, 2), 0.01)
    against = event_shares(whole, even, own, Fits(outside, of_component, none), [-1, -1])
    assert (against[:, 2] > 0.95).all()
    event = event_shares(whole, even, own, Fits(np.ones((400, 2)), of_component, none), [-1, -1])
    np.testing.assert_allclose(event, inside)  # an event that passes itself needs no component


def test_an_event_that_passes_all_cells_of_a_row_is_not_unknown() -> None:
    """Its component is of a frequent type that the event fails in a cell: a rare type keeps its events."""
    evidence = np.array([[20.0, 5.0, 1.0]])  # rare, frequent, unknown
    theta = np.array([[0.02, 0.94, 0.04]])
    passed = np.array([[0.9, 0.0]])
    fits = Fits(np.array([[1.0, 0.05]]), np.array([[0.1, 0.1]]), passed)
    found = event_shares(np.ones((1, 1)), theta, evidence, fits, [-1, -1])[0]
    before = evidence[0] * theta / (evidence @ theta.T)
    left = 0.95 * 0.9 * before[0, 1]
    assert found[0] == pytest.approx(before[0, 0] + 0.9 * left)
    assert found[2] == pytest.approx(before[0, 2] + 0.1 * left)
    assert found[0] > 0.6
    wrong = event_shares(np.ones((1, 1)), theta, evidence, fits._replace(all_cells=0.0 * passed), [-1, -1])[0]
    assert wrong[2] > 0.7  # when all of it goes to unknown


def test_events_pass_all_cells_of_a_row() -> None:
    levels = np.concatenate([table(np.array([[1, 0], [1, 1]])), np.ones((1, 2, 4), bool)])
    levels[1, 1] = True
    markers = fit_levels(*blood(np.random.default_rng(1), (500, 500), np.array([[1, 0], [1, 1]])), levels)
    values = np.array([[3.0, 0.0], [3.0, 3.0], [0.0, 1.4]])
    odds = [p / (1.0 - p) for p in (markers[m].passes(values[:, m], 0) for m in (0, 1))]
    first, second = (own**2 / (1.0 + own**2) for own in odds)
    found = event_fits(markers, values, *np.zeros((2, 3, 2), bool))[1]
    np.testing.assert_allclose(found[:, 0], first * second)
    np.testing.assert_allclose(found[:, 1], first)  # silent in the second marker
    assert not found[:, 2].any()  # a row without cells passes nothing


def test_what_a_child_does_not_explain_goes_to_its_parent() -> None:
    own = np.array([[8.0, 20.0, 40.0, 1.0]])  # parent, child, grandchild, unknown
    even, ones = np.full((1, 4), 0.25), np.ones((1, 3))
    fits = Fits(np.array([[1.0, 0.02, 0.02]]), np.array([[1.0, 0.02, 0.02]]), np.zeros((1, 3)))
    found = event_shares(ones[:, :1], even, own, fits, [-1, 0, 1])[0]
    assert found[0] > 0.9
    assert found[3] == pytest.approx(1.0 / 69.0)
    flat = event_shares(ones[:, :1], even, own, fits, [-1, -1, -1])[0]  # the wrong rule
    assert flat[3] > 0.8


def test_a_cell_that_divides_similar_types_is_not_contradicted() -> None:
    """Six times as many events of another type differ from the row in one cell; the row can be absent."""
    more = np.column_stack([QUADRANTS, QUADRANTS[:, 0], QUADRANTS[:, 0]])
    kept = np.array([0, 2, 3, 4])
    doubt = np.full((4, 5), np.nan)
    for sizes in ((400, 2_500, 700, 800, 12_000), (0, 2_500, 700, 800, 12_000)):
        values, labels = blood(np.random.default_rng(8), sizes, more)
        markers = fit_levels(values, labels, table(more[kept]))
        tells = telling(table(more[kept]))
        _, agreement, contradicted, _ = assess_cells(markers, values, doubt, tells, [labels])
        assert agreement[0, 2] < cells.CONTRADICTED  # the wrong rule: this alone
        assert not contradicted.any()


def test_a_wrong_sign_that_makes_two_rows_alike_is_suspect() -> None:
    more = np.column_stack([QUADRANTS, QUADRANTS[:, 0], QUADRANTS[:, 0]])
    values, labels = blood(np.random.default_rng(9), (600, 2_500, 700, 800, 12_000), more)
    wrong = more.copy()
    wrong[1, 2] = 1  # now as row 0
    for signs, expected in ((more, []), (wrong, [[0, 2], [1, 2]])):
        rows = typed(values, labels, table(signs))
        rows = np.where(rows == len(signs), -1, rows).astype(np.int32)
        markers = fit_levels(values, labels, table(signs))
        right, _, contradicted, _ = assess_cells(
            markers, values, np.full(signs.shape, np.nan), telling(table(signs)), [labels]
        )
        assert not contradicted.any()  # the wrong rule: the events of a row pass its cells, wrong or not
        found = suspect_cells(markers, values, labels, rows, right, np.eye(len(signs), dtype=bool))
        assert np.argwhere(found).tolist() == expected


NAMES = ("T", "CD4", "CD8", "naive", "B")
PARENTS = ("", "T", "T", "CD4", "")


def test_descendants_include_the_row_itself() -> None:
    below = descendants(PARENTS, NAMES)
    assert below[0].tolist() == [True, True, True, True, False]
    assert below[1].tolist() == [False, True, False, True, False]
    assert below[4].tolist() == [False] * 4 + [True]


def test_an_event_goes_to_the_deepest_type_that_is_certain_enough() -> None:
    shares = np.array(
        [
            [0.05, 0.05, 0.02, 0.80, 0.03, 0.05],  # naive
            [0.05, 0.40, 0.02, 0.45, 0.03, 0.05],  # CD4, not certainly naive
            [0.10, 0.30, 0.35, 0.10, 0.10, 0.05],  # T, neither CD4 nor CD8 for certain
            [0.10, 0.10, 0.10, 0.05, 0.50, 0.15],  # B
            [0.10, 0.05, 0.05, 0.05, 0.15, 0.60],  # unknown
        ]
    )
    rows, probability = decide(shares, PARENTS, NAMES, 0.7)
    assert rows.tolist() == [3, 1, 0, 4, -1]
    np.testing.assert_allclose(probability, [0.80, 0.85, 0.85, 0.5, 0.6], rtol=1e-6)
    flat = shares[:, :-1].argmax(axis=1)  # the wrong rule: the most probable row, without its children
    assert flat[2] == 2


def test_intervals_of_types_have_enough_draws() -> None:
    """Ten draws alone would leave a 90% interval between their extremes."""
    counts = np.random.default_rng(9).uniform(90.0, 110.0, (10, 2, 3))
    counts[:, 1] = 0.0  # a sample without events
    below = np.eye(3, dtype=bool)
    below[0, 1] = True  # row 1 is a child of row 0
    proportions, mean = types.type_proportions(counts, below, 1)
    assert len(proportions) >= types.INTERVAL_DRAWS
    np.testing.assert_allclose(proportions[:, 0].mean(axis=0), mean[0], atol=0.01)
    assert mean[0, 0] == pytest.approx(2 / 3, abs=0.03)
    assert np.isnan(proportions[:, 1]).all()
    assert np.isnan(mean[1]).all()
