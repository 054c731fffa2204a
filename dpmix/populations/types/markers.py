"""A marker of a table of cell types: probabilities of its levels, and the evidence of events for its cells.

P(above | value) of a boundary is logistic in the value. An event supports a cell by the factor

    p q / b + (1 - p) (1 - q) / (1 - b),

with q the probability of the levels that the cell allows, b its mean over all events (the base rate) and 1
- p the doubt. Where several draws have boundaries of their own, b is of the mean q, and the factor is the
geometric mean over the draws. A silent cell has the factor 1. `dpmix.populations.types.levels` fits the
boundaries.

N events, H components, R cell types, M markers, C levels of a marker that the table distinguishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints

DOUBT = 0.02  # of a cell for which the table states none
CHANCE = 0.02, 0.98  # range of base rates
LEAST_EVENTS = 20  # of a component whose median is used
BIMODAL = 2.0  # distance in standard deviations from which two normals have two modes
LOGISTIC = np.sqrt(3.0) / np.pi  # scale of a logistic distribution of standard deviation 1

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Marker:
    """One marker of a table.

    Attributes
    ----------
    allowed : bool [R, C]
        Levels that each cell allows; all: it is silent.
    thresholds, errors : float64 [R, C - 1]
        Boundaries, ascending, and their standard deviations.
    widths : float64 [C - 1]
        Scales of the logistic.
    gaps : float64 [C - 1]
        Distances of the levels.
    base : float64 [R]
        Base rates of the cells.
    others : tuple of Marker
        The same marker in other draws; the probability of a level is the average.
    soft : bool
        Probabilities of levels are averages over the places that a threshold may have.
    """

    allowed: Bools
    thresholds: Array
    errors: Array
    widths: Array
    gaps: Array
    base: Array
    others: tuple[Marker, ...] = ()
    soft: bool = False

    @property
    def silent(self) -> Bools:
        """Cells that say nothing, bool [R]."""
        silent: Bools = np.asarray(self.allowed.all(axis=1))
        return silent

    @property
    def alike(self) -> bool:
        """True if all cells that say something are the same."""
        spoken = self.allowed[~self.silent]
        return bool((spoken == spoken[:1]).all())

    @property
    def separation(self) -> float:
        """Distance of two levels in standard deviations of a component, the largest; 0: silent."""
        return float(np.sqrt(np.max(self.gaps / self.widths, initial=0.0)))

    def passes(self, values: Array, row: int) -> Array:
        """Return the probability that events pass the cell of a row, float64 [N], from values [N]."""
        found = self._passes(values, row)
        for other in self.others:
            found += other._passes(values, row)
        return found / (1.0 + len(self.others))

    def _passes(self, values: Array, row: int) -> Array:
        allowed, scales = self.allowed[row], self._scales(row)
        found, reached = np.zeros(len(values)), np.ones(len(values))  # reached: level c or a higher one
        for c in range(int(np.flatnonzero(allowed)[-1]) + 1):
            beyond = np.zeros(len(values))
            if c < len(scales):
                z = (values - self.thresholds[row, c]) / scales[c]
                # Soft boundaries of different widths may cross, and a level would then have a negative
                # probability.
                beyond = np.minimum(reached, 1.0 / (1.0 + np.exp(-np.clip(z, -40.0, 40.0))))
            if allowed[c]:
                found += reached - beyond
            reached = beyond
        return found

    def _scales(self, row: int) -> Array:
        """Return the scales of the logistic in a row, float64 [C - 1].

        The average over a normal threshold is nearly a logistic whose variance is the sum of both.
        """
        if not self.soft:
            return self.widths
        scales: Array = np.hypot(self.widths, LOGISTIC * self.errors[row])
        return scales

    def softened(self) -> Marker:
        """Return the marker with average probabilities of levels."""
        return replace(self, soft=True, others=tuple(other.softened() for other in self.others))

    def moved(self, deviate: float) -> Marker:
        """Return the marker with all thresholds moved by some of their standard deviations."""
        others = tuple(other.moved(deviate) for other in self.others)
        return replace(self, thresholds=self.thresholds + deviate * self.errors, others=others)

    def same(self, row: int) -> bytes:
        """Return what the probabilities of a cell depend on, equal for equal cells."""
        places = [
            part.tobytes() for one in (self, *self.others) for part in (one.thresholds[row], one._scales(row))
        ]
        return b"".join([*places, self.allowed[row].tobytes()])


def distinguished(levels: Bools) -> Bools:
    """Return which of the levels that a column distinguishes its cells allow, bool [R, C].

    A boundary between two of the four levels (off, low, on, high) is left out if no cell ends there, or if it
    divides a cell and all cells that exclude each other remain distinguished.

    Parameters
    ----------
    levels : bool [R, 4]
        Cells of one marker (`dpmix.inputs.type_table.TypeTable`).
    """
    number = level_numbers(levels)
    return np.array([[row[number == c].any() for c in range(number.max() + 1)] for row in levels])


def level_numbers(levels: Bools) -> Ints:
    """Return the number of the distinguished level of off, low, on and high, int64 [4], from cells [R, 4]."""
    spoken = levels[~levels.all(axis=1)]
    sides: dict[tuple[int, ...], int] = {}
    for b in range(3):
        below, above = spoken[:, : b + 1].any(axis=1), spoken[:, b + 1 :].any(axis=1)
        side = np.where(below & above, 2, above.astype(int))
        if (side < 2).any():
            sides.setdefault(tuple(side.tolist()), b)
    graded = bool(len(spoken)) and bool((spoken[:, 1] & ~spoken[:, 2]).any())
    if any(0 in side and 1 in side for side in sides) and not graded:
        # In a column of + and ++ alone, without any -, all cells are above off.
        sides = {side: b for side, b in sides.items() if {0, 1} <= {*side} or (b == 0 and {*side} == {1})}
    for cut in list(sides):
        others = [one for one in sides if one != cut]
        if 2 in cut and others and _separated(others) == _separated(list(sides)):
            del sides[cut]
    return np.array([sum(level > b for b in sides.values()) for level in range(4)], np.int64)


def _separated(sides: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    """Return the pairs of cells on different sides of a boundary."""
    return {
        (i, j) for side in sides for i, a in enumerate(side) for j, b in enumerate(side) if a == 0 and b == 1
    }


def with_base(marker: Marker, values: Array) -> Marker:
    """Return the marker with base rates from events [N]."""
    base = np.ones(len(marker.allowed))
    for r, passed in each_cell(marker, values, ~marker.silent):
        base[r] = passed.mean()
    return replace(marker, base=np.clip(base, *CHANCE))


def log_factor(passed: Array, base: float, right: float) -> Array:
    """Return the log of the evidence for a cell, float64 [N].

    Parameters
    ----------
    passed : float64 [N]
        q.
    base, right : float
        b and p.
    """
    found: Array = np.log(right * passed / base + (1.0 - right) * (1.0 - passed) / (1.0 - base))
    return found


def log_factors(markers: tuple[Marker, ...], values: Array, right: Array) -> Array:
    """Return the log of the evidence of events for the rows, float64 [N, R]; unknown would have 0.

    Parameters
    ----------
    markers : tuple of Marker
    values : float64 [N, M]
    right : float64 [R, M]
        p, the probability that a cell is right.
    """
    total = np.zeros((len(values), len(right)))
    for m, marker in enumerate(markers):
        draws = replace(marker, others=()), *marker.others
        # The geometric mean over the draws: with the mean of q, one draw of four with another threshold gave
        # events of a frequent level the evidence of a rare one.
        for one in draws:
            for r, q in each_cell(one, values[:, m], ~marker.silent):
                total[:, r] += log_factor(q, marker.base[r], right[r, m]) / len(draws)
    return total


def component_log_factor(passed: Array, weights: Array) -> Array:
    """Return the log of the evidence for a cell of components with weights [H] that pass it, float64 [H]."""
    return log_factor(passed, float(np.clip(weights @ passed, *CHANCE)), 1.0 - DOUBT)


def component_medians(values: Array, labels: Ints) -> tuple[Array, Array]:
    """Return the medians of H components with enough events, float64 [H, M], and their shares of these, [H].

    Parameters
    ----------
    values : float64 [N, M]
    labels : int64 [N]
        Component of each event in one draw.
    """
    sizes = np.bincount(labels)
    numbers = np.flatnonzero(sizes >= LEAST_EVENTS)
    medians = np.array([np.median(values[labels == h], axis=0) for h in numbers])
    return medians.reshape(len(numbers), values.shape[1]), sizes[numbers] / max(sizes[numbers].sum(), 1)


def each_cell(marker: Marker, values: Array, rows: Bools) -> Iterator[tuple[int, Array]]:
    """Yield each of some rows [R], and the probability that events [N] pass its cell."""
    done: dict[bytes, Array] = {}
    for r in np.flatnonzero(rows).tolist():
        # Most rows of a large table share cells and thresholds: each probability is computed once.
        key = marker.same(r)
        if key not in done:
            done[key] = marker.passes(values, r)
        yield r, done[key]


def telling(levels: Bools) -> Bools:
    """Return the cells that divide types which are otherwise alike, bool [R, M].

    Such a cell alone tells its row from another one: the other has no cell in the other markers that excludes
    the row, and in this marker it allows a level that the row does not. Or the cell is the same in a row that
    differs in one other marker, and alone tells that row from a third: three of the four quadrants of two
    markers have a row, and the cells towards the fourth divide, too. Markers with other cells than - and +
    are left out, because boundaries between higher levels are uncertain.

    Parameters
    ----------
    levels : bool [R, M, 4]
        Cells of the table.
    """
    excluded = ~(levels[:, None] & levels[None]).any(axis=3)  # [R, R, M]
    beyond = (~levels[:, None] & levels[None]).any(axis=3)
    same = (levels[:, None] == levels[None]).all(axis=3)
    number = excluded.sum(axis=2, keepdims=True)  # of the markers in which two rows exclude each other
    alone = ((number - excluded == 0) & beyond).any(axis=1)
    on = levels[..., 1:]
    plain = (
        levels.all(axis=2) | (on.all(axis=2) != levels[..., 0]) & (on.all(axis=2) == on.any(axis=2))
    ).all(axis=0)
    found: Bools = (alone | ((number <= 1) & same & alone[None]).any(axis=1)) & plain
    return found
