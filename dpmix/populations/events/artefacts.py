"""Populations that look like debris, doublets or dead cells, by scatter and a viability stain.

Each population is compared with the main cells of the same events: populations with at least 5% of the events
and a marker that is clearly on (where cells are few, 5% of the events of such populations). No threshold is
fixed beforehand.

- **Debris** is small: by 5% quantiles of forward scatter, a quarter of its events lie below the smallest main
  cells and half below most main cells (the median of these quantiles, by events).
- **Dead cells** are stained: half of their events lie above the 95% quantile of the viability stain in main
  cells (again the median).
- **Doublets** are two cells in one pulse: in every marker, the population is as high as the higher one of two
  larger populations, it differs from both, its forward scatter is above the upper quartile of both, and the
  ratio of area to height of the pulse is above the ratio of both. Two cells of the same kind make no
  population of their own and are not found.

A population is compared as a whole, so a part of its events may be cells. It is marked if most of it is
small, because lymphocytes without a marker that is on can share a population with debris (`gvhd`). Such an
event may have a cell type: it is as large as most main cells at their 5% quantile, and no more stained than
most at their 95% quantile (`look_like_cells`). Nothing
is said about doublets without area and height, about debris without forward scatter, as in mass cytometry,
and about dead cells without a viability stain.

P populations, D markers, Q quality channels, T draws, K components.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpmix.inputs.quality_channels import DEAD, SIZE
from dpmix.model.mixture import Array, Floats, Ints

DEBRIS, DOUBLETS, DEAD_CELLS = "debris", "doublets", "dead cells"
KINDS = (DOUBLETS, DEAD_CELLS, DEBRIS)
MAIN = 0.05  # least share of the events of main cells
Q05, Q25, Q50, Q75, Q95 = range(5)  # rows of quantiles (`dpmix.populations.events.phenotypes.QUANTILES`)
NORMAL = 1.349  # interquartile range of a normal distribution of standard deviation 1
BELOW, ABOVE = 1.5, 2.0  # standard deviations by which doublets may differ from the higher of their cells
DIFFERS = 2.0  # standard deviations by which they differ from each of them, in one marker

Marks = tuple[str, ...]


def artefacts(
    sizes: Ints, markers: Array, thresholds: Array, quality: Mapping[str, Array], pulse: Array | None = None
) -> Marks:
    """Return what each population looks like: "debris", "doublets", "dead cells", or "" for cells.

    Parameters
    ----------
    sizes : int64 [P]
        Events of each population.
    markers : float64 [5, P, D]
        Quantiles (`dpmix.populations.events.phenotypes.QUANTILES`) of the markers, without scatter; NaN for
        a population without events.
    thresholds : float64 [D]
        Thresholds of the markers (`dpmix.populations.events.phenotypes.thresholds`).
    quality : mapping of str to float64 [5, P]
        Quantiles of forward scatter ("size") and of a viability stain ("dead"), where known.
    pulse : float64 [5, P], optional
        Quantiles of the ratio of area to height of forward scatter; None: doublets are not looked for.
    """
    marks = [""] * len(sizes)
    main = main_cells(sizes, markers, thresholds)
    most = limits(sizes, main, quality)
    there = np.flatnonzero(sizes > 0)
    if SIZE in quality and pulse is not None:
        for p in there[~main[there]]:
            if _is_doublet(p, sizes, markers, quality[SIZE], pulse):
                marks[p] = DOUBLETS
    if SIZE in quality:
        smallest, size = quality[SIZE][Q05, main].min(), quality[SIZE][:, there]
        for p in there[(size[Q25] < smallest) & (size[Q50] < most[SIZE])]:
            marks[p] = DEBRIS
    if DEAD in quality:
        for p in there[quality[DEAD][Q50, there] > most[DEAD]]:
            marks[p] = DEAD_CELLS
    return tuple(marks)


def limits(sizes: Ints, main: npt.NDArray[np.bool_], quality: Mapping[str, Array]) -> dict[str, float]:
    """Return the least forward scatter ("size") and the highest stain ("dead") of cells, where known.

    They are the medians over main cells bool [P], by events, of their 5% and 95% quantiles. Other parameters
    are as in `artefacts`.
    """
    ends = {SIZE: Q05, DEAD: Q95}
    return {
        role: _weighted_median(quality[role][end, main], sizes[main])
        for role, end in ends.items()
        if role in quality
    }


def look_like_cells(values: Mapping[str, Floats], limits: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Return the events that are as large as cells and not stained, bool [M].

    Parameters
    ----------
    values : mapping of str to float32 [M]
        Channels by role; forward scatter ("size") and a viability stain ("dead") are used where known.
    limits : mapping of str to float
        Result of the function `limits`.
    """
    found = np.ones(len(next(iter(values.values()))), np.bool_)
    if SIZE in limits:
        found &= values[SIZE] >= limits[SIZE]
    if DEAD in limits:
        found &= values[DEAD] <= limits[DEAD]
    return found


@dataclass(frozen=True)
class Artefacts:
    """Marks of populations, and the events that may be cells although their population is marked.

    Attributes
    ----------
    marks : tuple of str
        Result of `artefacts`; empty where files have neither scatter nor viability.
    cells : bool [N]
        Result of `look_like_cells` for all events; empty without `marks`.
    """

    marks: Marks = ()
    cells: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def marked(self, components: Ints, events_are_cells: bool = False) -> npt.NDArray[np.bool_]:
        """Return which components, with populations int [..., K], have no cell type, bool [..., K].

        For events that look like cells these are only the doublets, which forward scatter does not exclude.
        """
        if not self.marks:
            return np.zeros(components.shape, np.bool_)
        barred = (DOUBLETS,) if events_are_cells else KINDS
        return np.array([mark in barred for mark in self.marks])[components]

    def of_events(self, rows: Ints | slice, n_events: int) -> npt.NDArray[np.bool_]:
        """Return which of some events look like cells, of `n_events` that there are."""
        return self.cells[rows] if self.marks else np.zeros(n_events, np.bool_)[rows]


def main_cells(sizes: Ints, markers: Array, thresholds: Array) -> npt.NDArray[np.bool_]:
    """Return the populations that others are compared with, bool [P]; at least one.

    They have 5% of the events and a marker that is on, so that much debris is not taken for cells. If none
    has, they have 5% of the events of populations with a marker that is on; else they are all with 5% of the
    events, or the largest one.
    """
    large: npt.NDArray[np.bool_] = sizes >= MAIN * sizes.sum()
    on = (markers[Q25] > thresholds).any(axis=1)
    few = on & (sizes > 0) & (sizes >= MAIN * sizes[on].sum())
    # Debris may be the largest population, but no marker is on in it.
    for found in (large & on, few, large):
        if found.any():
            return found
    alone: npt.NDArray[np.bool_] = np.arange(len(sizes)) == sizes.argmax()
    return alone


def _is_doublet(p: int, sizes: Ints, markers: Array, size: Array, pulse: Array) -> bool:
    """Return True if population p looks like a cell of one larger population and one of another."""
    larger = np.flatnonzero(sizes > sizes[p])
    above = (size[Q50, p] > size[Q75, larger]) & (pulse[Q50, p] > pulse[Q50, larger])
    width = np.maximum((markers[Q75, p] - markers[Q25, p]) / NORMAL, np.finfo(np.float64).tiny)
    for a, b in itertools.combinations(larger[above], 2):
        both = np.array([a, b])
        gaps = (markers[Q50, p] - markers[Q50, both]) / width
        # On a logarithmic scale the sum of two signals is hardly above the higher one.
        to_higher = gaps[markers[Q50, both].argmax(axis=0), np.arange(gaps.shape[1])]
        as_high = (to_higher > -BELOW).all() and (to_higher < ABOVE).all()
        if as_high and (np.abs(gaps).max(axis=1) > DIFFERS).all():
            return True
    return False


def _weighted_median(values: Array, weights: Ints) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order[np.searchsorted(reached, 0.5)]])
