"""Starts of thresholds of single rows: each condition next to a wrong one that fails."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.populations.types import row_starts
from dpmix.populations.types.levels import fit_levels, start_of

Array = np.ndarray
OFF, LOW, ON, HIGH = np.eye(4, dtype=bool)
PLUS = LOW | ON | HIGH
# Components: CD3, CD8 and CD14 of CD4 T cells, of CD8 T cells, and of monocytes, whose CD8 is a background.
PLACES = np.array([[4.0, 0.0, 0.0], [4.0, 4.0, 0.0], [0.0, 2.6, 4.0]])
SIZES = np.array([2_000, 1_000, 2_000])
TABLE = np.array([(PLUS, OFF, OFF), (PLUS, PLUS, OFF), (OFF, OFF, PLUS)])  # CD4 T, CD8 T, monocytes
MONOCYTES = 2


def sample(places: Array = PLACES, sizes: Array = SIZES) -> tuple[Array, Array]:
    """Events of some components, and the component of each."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return places[labels] + np.random.default_rng(3).normal(0.0, 0.3, (len(labels), 3)), labels


def cd8_of(table: Array, places: Array = PLACES, sizes: Array = SIZES) -> Array:
    """Thresholds of CD8 in each row, float64 [R]."""
    values, labels = sample(places, sizes)
    found: Array = fit_levels(values, labels, table)[1].thresholds[:, 0]
    return found


def test_a_row_with_a_background_has_its_own_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    t_cells, (monocytes,) = np.split(cd8_of(TABLE), [MONOCYTES])
    assert (t_cells < 2.3).all()
    assert 2.9 < monocytes < 3.7

    monkeypatch.setattr(row_starts, "GAIN", np.inf)  # the wrong rule: monocytes fail their cell
    assert cd8_of(TABLE)[MONOCYTES] < 2.3


@pytest.mark.parametrize("negative", [0, 200])
def test_a_row_with_a_component_that_passes_keeps_the_start(negative: int) -> None:
    """If some monocytes are negative, the others are of a type without a row."""
    places, sizes = np.vstack([PLACES, [0.0, 0.0, 4.0]]), np.append(SIZES, negative)
    values, labels = sample(places, sizes)
    starts = [start_of(values[:, m], labels, TABLE[:, m]) for m in range(3)]
    found = row_starts.own_starts(starts, values, labels, TABLE, [1, 1, 1])[1].thresholds[:, 0]
    assert (found[MONOCYTES] == found[0]) == (negative > 0)


def test_a_cell_that_divides_similar_types_keeps_the_start() -> None:
    """T cells with a background of CD8 must not become CD4 T cells."""
    places = np.array([[4.0, 2.6, 0.0], [4.0, 4.0, 0.0], [0.0, 0.0, 4.0]])
    assert (cd8_of(TABLE, places)[:MONOCYTES] < 2.3).all()


def test_a_valley_is_below_cells_that_are_on() -> None:
    """A few events above all CD8 T cells have a valley below them, which is no threshold."""
    places, sizes = np.vstack([PLACES, [0.0, 8.0, 4.0]]), np.append(SIZES, 60)
    places[MONOCYTES, 1] = 5.0
    values, _ = sample(places, sizes)
    assert (row_starts.valleys(values[:, 1]) > 6.0).any()
    assert cd8_of(TABLE, places, sizes)[MONOCYTES] < 6.0


def test_one_level_has_no_valley() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 20_000)
    assert not len(row_starts.valleys(values))
    assert len(row_starts.valleys(np.append(values, values[:5_000] + 5.0))) == 1
