"""Exchanged channels are found where the table can tell, and not in right data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dpmix.populations.types import exchanged as module
from dpmix.populations.types.exchanged import exchanged

Array = np.ndarray
OFF, PLUS, SILENT = np.array([[1, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]], bool)
MARKERS = ("CD3", "CD4", "CD8", "CD19", "CD14", "CD56")
SIGNS = ("++---.", "+-+--.", "----.+", "---+--", ".?--+-")  # CD4 T, CD8 T, NK, B, monocytes; ? has both
SIZES = (3_000, 1_800, 900, 1_100, 2_200)


def levels() -> Array:
    """Cells of the table, bool [5, 6, 4]."""
    return np.array([[{"+": PLUS, "-": OFF}.get(sign, SILENT) for sign in row] for row in SIGNS])


def blood(seed: int = 1) -> tuple[Array, Array]:
    """Values [N, 6] and components [N]; CD4 of monocytes is dim, and each type has two components."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(5), SIZES)
    centres = np.array([[{"+": 4.0, "?": 1.6}.get(sign, 0.0) for sign in row] for row in SIGNS])
    values = centres[labels] + random.normal(0.0, 0.4, (len(labels), 6))
    return values, 2 * labels + (np.arange(len(labels)) % 2)


def test_right_names_are_not_exchanged() -> None:
    for seed in range(3):
        assert exchanged(*blood(seed), levels()) == ()


@pytest.mark.parametrize(("a", "b"), list(combinations(range(6), 2)))
def test_exchanged_names_are_found(a: int, b: int) -> None:
    values, labels = blood()
    values[:, [a, b]] = values[:, [b, a]]
    only_permuted = {a, b} <= {1, 2} or {a, b} <= {3, 4, 5}  # CD4 and CD8 T; B, monocytes and NK
    assert exchanged(values, labels, levels()) == (() if only_permuted else ((a, b),))


def test_two_exchanges_are_found() -> None:
    values, labels = blood()
    values = values[:, [3, 1, 4, 0, 2, 5]]
    assert set(exchanged(values, labels, levels())) == {(0, 3), (2, 4)}


@pytest.mark.parametrize("wrong", [False, True])
def test_a_marker_that_is_on_in_all_events_is_not_exchanged(
    monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Gated T cells: CD3 is on in all components, which differ a little in it; CCR7 is on in most."""
    if wrong:  # two levels in every channel
        monkeypatch.setattr(module, "_possible", lambda marker: [marker])
    signs = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 0]])  # CD3, CD4, CD8, CCR7
    found = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        types = np.repeat([0, 0, 0, 1, 2, 2, 2, 3], 10)  # of 80 components
        centres = 4.0 * signs[types]
        centres[:, 0] += np.repeat([0.0, 0.0, 0.8, 0.0], 20) + random.normal(0.0, 0.1, 80)
        labels = np.repeat(np.arange(80), 50)
        values = centres[labels] + random.normal(0.0, 0.4, (4_000, 4))
        found.append(exchanged(values, labels, np.where(signs[..., None] > 0, PLUS, OFF)))
    assert found == [((0, 3),) if wrong else ()] * 4


def test_no_pair_without_two_markers_or_components() -> None:
    values, labels = blood()
    assert exchanged(values[:, :1], labels, levels()[:, :1]) == ()
    assert exchanged(values[:10], np.arange(10), levels()) == ()
