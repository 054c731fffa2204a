"""Populations that look like debris, doublets or dead cells, on populations with known quantiles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from dpmix.populations.events.artefacts import (
    DEAD_CELLS,
    DEBRIS,
    DOUBLETS,
    Artefacts,
    artefacts,
    limits,
    look_like_cells,
    main_cells,
)
from dpmix.populations.events.phenotypes import QUANTILES

Array = np.ndarray
# CD4 T cells, B cells, NK cells, monocytes; then candidates. Markers CD3, CD19, CD56, CD14.
NAMES = ("T", "B", "NK", "monocytes")
SIZES = [5000, 2000, 1500, 1000]
MARKERS = [[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]]
FORWARD = [90.0, 88.0, 95.0, 140.0]
RATIO = [1.20, 1.18, 1.21, 1.22]


def quantiles(medians: object, sd: object) -> Array:
    """Return quantiles of normal events, [5, P, ...]."""
    centre, width = np.broadcast_arrays(np.asarray(medians, float), np.asarray(sd, float))
    return centre + width * ndtri(QUANTILES).reshape(5, *[1] * centre.ndim)


def marks(
    sizes: list[int],
    markers: list[list[float]],
    forward: list[float],
    ratio: list[float] | None,
    **more: object,
) -> tuple[str, ...]:
    """Judge the four cell types and further populations."""
    quality = {"size": quantiles(FORWARD + forward, 8.0)}
    if "dead" in more:
        quality["dead"] = quantiles([0.5, 0.6, 0.5, 0.9, *more["dead"]], 0.4)  # type: ignore[misc]
    pulse = None if ratio is None else quantiles(RATIO + ratio, 0.08)
    found = artefacts(
        np.array(SIZES + sizes), quantiles(MARKERS + markers, 0.5), np.full(4, 2.0), quality, pulse
    )
    assert found[:4] == ("",) * 4  # the cells are cells
    return found[4:]


def test_debris_is_small() -> None:
    nothing = [0.0, 0.0, 0.0, 0.0]
    assert marks([600, 50, 40], [nothing, [4, 0, 0, 0], nothing], [35.0, 70.0, 84.0], None) == (
        "debris",
        "debris",
        "",
    )
    # Much of it is not taken for cells: no marker is on.
    assert marks([9600], [nothing], [35.0], None) == ("debris",)
    # A population most of which is not small has cells: lymphocytes without a marker that is on.
    for median, mark in ((76.0, "debris"), (78.0, "")):
        wide = {"size": np.column_stack([quantiles(FORWARD, 8.0), [20.0, 40.0, median, 120.0, 160.0]])}
        own = artefacts(np.array([*SIZES, 300]), quantiles([*MARKERS, nothing], 0.5), np.full(4, 2.0), wide)
        assert own[4] == mark


@pytest.mark.parametrize(
    ("markers", "forward", "ratio", "mark"),
    [
        ([4.2, 4.1, 0, 0], 150.0, 1.60, "doublets"),  # T and B
        ([4.2, 0, 0, 4.1], 180.0, 1.60, "doublets"),  # T and monocyte
        ([4.2, 4.1, 0, 0], 91.0, 1.60, ""),  # no larger: a cell with both markers
        ([4.2, 4.1, 0, 0], 150.0, 1.19, ""),  # a large cell
        ([4.2, 4.1, 0, 0], 150.0, None, ""),  # the height is not known
        ([4.2, 2.0, 0, 0], 150.0, 1.60, ""),  # less CD19 than a B cell
        ([4.2, 0, 0, 0], 150.0, 1.60, ""),  # a large T cell, or two of them: no population is added
        ([4.2, 4.1, 0, 3.0], 150.0, 1.60, ""),  # CD14 of neither
        ([7.0, 4.1, 0, 0], 150.0, 1.60, ""),  # more CD3 than a T cell
    ],
)
def test_doublets_have_the_markers_of_two_and_a_larger_pulse(
    markers: list[float], forward: float, ratio: float | None, mark: str
) -> None:
    assert marks([80], [markers], [forward], None if ratio is None else [ratio]) == (mark,)


def test_a_doublet_is_rarer_than_its_cells() -> None:
    """The cells must be larger populations: two rare ones are hardly ever together."""
    rare = [0.0, 4.0, 4.0, 0.0]
    both = [4.0, 4.0, 4.0, 0.0]
    assert marks([40, 80], [rare, both], [90.0, 200.0], [1.2, 1.7]) == ("", "")


def test_a_large_cell_is_no_doublet_with_a_cell_without_markers() -> None:
    """It has the markers of both, but does not differ from its own type."""
    nothing, large = [0.0, 0.0, 0.0, 0.0], [4.2, 0.0, 0.0, 0.0]
    assert marks([3_000, 80], [nothing, large], [90.0, 150.0], [1.2, 1.6]) == ("", "")


def test_dead_cells_are_stained() -> None:
    own = [4.0, 0.0, 0.0, 0.0]
    assert marks([300, 200], [own, own], [85.0, 85.0], None, dead=[3.0, 1.0]) == ("dead cells", "")
    # Most main cells set the limit, although monocytes bind more of the stain.
    assert marks([200], [own], [85.0], None, dead=[1.4]) == ("dead cells",)


def test_only_what_is_known_is_judged() -> None:
    sizes, cells = np.array(SIZES), quantiles(MARKERS, 0.5)
    assert artefacts(sizes, cells, np.full(4, 2.0), {}) == ("",) * 4
    empty = np.array([*SIZES, 0])
    nan = np.full((5, 1), np.nan)
    with_empty = np.concatenate([cells, np.full((5, 1, 4), np.nan)], axis=1)
    forward = np.concatenate([quantiles(FORWARD, 8.0), nan], axis=1)
    assert artefacts(empty, with_empty, np.full(4, 2.0), {"size": forward, "dead": forward})[4] == ""


def test_main_cells() -> None:
    cells = quantiles([*MARKERS, [0, 0, 0, 0], [4, 0, 0, 0]], 0.5)
    sizes = np.array([*SIZES, 4000, 30])
    assert main_cells(sizes, cells, np.full(4, 2.0)).tolist() == [True] * 4 + [False] * 2
    assert main_cells(sizes, cells, np.full(4, np.nan)).tolist() == [True] * 5 + [False]  # no level is known
    # Cells are a tenth of the events: each type has less than 5% of all.
    assert (
        main_cells(np.array([*SIZES, 200_000, 30]), cells, np.full(4, 2.0)).tolist()
        == [True] * 4 + [False] * 2
    )
    # A population of debris with a marker that is on, below 5% of all events.
    debris = np.array([20_000, 2000, 1500, 1300, 4000, 1200])
    assert main_cells(debris, cells, np.full(4, 2.0)).tolist() == [True] * 3 + [False] * 3
    many = np.ones(30, np.int64)
    assert main_cells(many, np.zeros((5, 30, 1)), np.full(1, np.nan)).sum() == 1


def test_events_of_debris_that_are_as_large_as_cells_may_be_cells() -> None:
    """Lymphocytes without a marker that is on share a population with debris; doublets keep their mark."""
    sizes, markers = np.array([*SIZES, 3000]), quantiles([*MARKERS, [0.0] * 4], 0.5)
    quality = {"size": np.column_stack([quantiles(FORWARD, 8.0), [10.0, 20.0, 40.0, 90.0, 100.0]])}
    quality["dead"] = quantiles([0.5] * 5, 0.4)
    main = main_cells(sizes, markers, np.full(4, 2.0))
    found = limits(sizes, main, quality)
    assert found["size"] == pytest.approx(90.0 + 8.0 * ndtri(0.05))  # of T cells, half of the main cells
    values = {"size": np.array([40, 90, 90], np.float32), "dead": np.array([0.5, 0.5, 3.0], np.float32)}
    looks = look_like_cells(values, found)
    assert looks.tolist() == [False, True, False]
    one = Artefacts(("", DEBRIS, DOUBLETS, DEAD_CELLS), looks)
    components = np.array([0, 1, 2, 3, 0])
    assert one.marked(components).tolist() == [False, True, True, True, False]
    assert one.marked(components, events_are_cells=True).tolist() == [False, False, True, False, False]
    assert one.of_events(np.array([1, 2]), 3).tolist() == [True, False]
    assert not Artefacts().of_events(slice(1, 3), 3).any()
