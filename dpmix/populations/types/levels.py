"""Levels of markers for a table of cell types: off, low, on and high, in the context of each type.

A column of the table with n distinct levels has n - 1 **boundaries**. A boundary of marker m has a threshold
for each row r of the table, because the level of a marker among T cells need not be that among monocytes:

1. **Start.** The medians of the components in a channel, weighted by the root of their events so that large
   components do not decide alone, are cut into n groups with the least variance within groups. The boundaries
   t0 are midway between the centres of the groups; g is the distance of the centres. A row may have a start
   of its own (`dpmix.populations.types.row_starts`).
2. **Context.** Each event counts with the probability that it passes all other cells of the row. Of the
   density h of these events, the threshold is the minimum of

       log(h(t) / min(highest h below t, highest h above t) + 0.02) + ((t - t0) / (g / 4))^2 / 2,

   that is, a valley near t0, or t0 itself where the density has no valley. Two rows that differ in one marker
   alone have the same context for it, so they share its threshold. Contexts and thresholds are computed in
   turn.
3. **Softness.** P(above | value) is logistic with the scale s t / g, the scale for two normals if s = t, and
   at least 0.08 g. s is the distance of the 95% quantile of a component of the lower group from its median,
   and t the same for the 5% quantile and the upper group, both in units of a standard normal distribution:
   only the tails that face each other matter. (With the mean of the variances, IgM- B cells, all at 0, were
   IgM+, because IgM of IgM+ B cells has a wide distribution.) A marker whose groups are not apart says
   nothing. Nor does one with the same cell in every row if g^2 < 9 s t: all events are then likely to be at
   one level, as CD3 in gated T cells, and a threshold would divide this level.
4. **Uncertainty.** exp(-10 minimand) is taken for the density of the threshold; its standard deviation moves
   the thresholds of a draw, all rows by the same number of standard deviations. (With 1 instead of 10,
   thresholds without a valley moved by a quarter of the distance of two levels, and proportions of rare types
   with them.)
5. **Draws.** Where the groups of a channel are not clear, they differ from draw to draw. Steps 1 to 4 are
   repeated in several draws, and P(above | value) is the average (`levels_of_draws`): an event between two
   places of a threshold has an uncertain level, which hardly counts. (With the thresholds of one draw, half
   of the events of a set had another type in another draw.)

**With a control** of the marker (`dpmix.inputs.controls`), t0 of the boundary between off and the next level
is the 99% quantile c of the control, and s, its distance from the 95% quantile, takes the place of g / 4 in
step 2: a valley near c, or c itself. There, g is twice the distance of c from the median of the control, so
that the softness does not depend on whether there are positive components. The standard deviation of step 4
contains the standard error of c. A boundary between higher levels has no control.

N events, R cell types, M markers, C levels of a marker that the table distinguishes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.ndimage import gaussian_filter1d

from dpmix.inputs.controls import Control
from dpmix.model.mixture import Array, Ints
from dpmix.populations.types.markers import (
    BIMODAL,
    LEAST_EVENTS,
    Bools,
    Marker,
    distinguished,
    each_cell,
    level_numbers,
    with_base,
)
from dpmix.populations.types.row_starts import own_starts, relative_height

SHARPEST = 0.08  # least scale of the logistic, relative to the distance of two levels
NEAR = 0.25  # standard deviation of a threshold around its start, relative to the distance of two levels
FLAT = 0.02  # added to the relative density of a valley: no valley counts more than 1 / FLAT
SURE = 10.0  # factor of the minimand in the density of a threshold
LEAK = 1e-3  # least weight of an event in a context
ROUNDS = 5
BINS = 128
LEAST_WEIGHT = 60.0  # effective number of events below which a row takes the threshold of the start
NORMAL_95 = 1.645  # 95% quantile of the standard normal distribution
APART = 3.0  # standard deviations of a component between two levels; slices of one level reach 2.5
BRIGHTER = 3.0  # standard deviations above the events that are on, where high begins without a high group


def fit_levels(
    values: Array, labels: Ints, levels: Bools, controls: Mapping[int, Control] | None = None
) -> tuple[Marker, ...]:
    """Return the levels of M markers.

    Parameters
    ----------
    values : float64 [N, M]
        Transformed scale.
    labels : int64 [N]
        Component of each event in one draw.
    levels : bool [R, M, 4]
        Cells of the table.
    controls : mapping of int to Control, optional
        Controls of some markers.
    """
    known = {
        m: one
        for m, one in (controls or {}).items()
        if np.diff(level_numbers(levels[:, m]))[0]  # a cell tells off from the next level
    }
    bright = [_has_bright(column) for column in levels.swapaxes(0, 1)]
    starts = [
        _with_control(
            _soft_if_one_level(start_of(values[:, m], labels, levels[:, m]), values[:, m]), known.get(m)
        )
        for m in range(values.shape[1])
    ]
    # A marker that says nothing has a separation below 1. A control is for all rows.
    movable = [
        0 if m in known or start.separation < 1.0 else len(start.gaps) - bright[m]
        for m, start in enumerate(starts)
    ]
    starts = own_starts(starts, values, labels, levels, movable)
    markers = list(starts)
    edges = [_edges(column, known.get(m)) for m, column in enumerate(values.T)]
    # The context of a threshold is made of the other thresholds of the row, so both are computed in turn.
    for _ in range(ROUNDS):
        passed = np.ones((values.shape[1], len(levels), len(values)))
        for m, marker in enumerate(markers):
            for r, own in each_cell(marker, values[:, m], ~marker.silent):
                # The context divides by what the marker itself contributes, which must not be 0.
                passed[m, r] = np.maximum(own, LEAK)
        whole = passed.prod(axis=0)
        for m in np.flatnonzero(bright).tolist():
            rows = ~markers[m].allowed[:, :-2].any(axis=1)  # on, high or both
            context = (whole[rows] / passed[m, rows]).max(axis=0)
            starts[m] = _with_bright(starts[m], values[:, m], labels, context)
        markers = [
            _in_context(start, values[:, m], whole / passed[m], edges[m], known.get(m))
            for m, start in enumerate(starts)
        ]
    return tuple(with_base(marker, values[:, m]) for m, marker in enumerate(markers))


def levels_of_draws(
    values: Array,
    labels: Sequence[Ints],
    levels: Bools,
    controls: Mapping[int, Control] | None = None,
) -> tuple[Marker, ...]:
    """Return the levels of M markers by several draws; thresholds and gaps shown are of the first.

    Parameters
    ----------
    values : float64 [N, M]
        Transformed scale.
    labels : sequence of int64 [N]
        Component of each event in each draw.
    levels : bool [R, M, 4]
        Cells of the table.
    controls : mapping of int to Control, optional
        Controls of some markers.
    """
    first, *others = (fit_levels(values, own, levels, controls) for own in labels)
    joined = [replace(own, others=tuple(one[m] for one in others)) for m, own in enumerate(first)]
    return tuple(with_base(marker, values[:, m]) for m, marker in enumerate(joined))


def _has_bright(levels: Bools) -> bool:
    """Return whether a column distinguishes high from on, and on from a lower level."""
    number = level_numbers(levels)
    return bool(number[3] > number[2] > number[0])


def _named(levels: Bools) -> Ints:
    """Return the distinguished level of off, low, on and high, without those that no cell names.

    A column of `-|lo` and `+` distinguishes two levels, but its cells have three.
    """
    spoken = levels[~levels.all(axis=1)]
    low, high = ((spoken[:, level] & ~spoken[:, 2]).any() for level in (1, 3))
    return level_numbers(levels)[[True, bool(low), True, bool(high)]]


def start_of(values: Array, labels: Ints, levels: Bools) -> Marker:
    """Return a marker with one threshold for all rows, from the components.

    A boundary below high is above all components, until `_with_bright` has found it.

    Parameters
    ----------
    values : float64 [N]
    labels : int64 [N]
    levels : bool [R, 4]
        Cells of the table.
    """
    allowed, bright, named = distinguished(levels), _has_bright(levels), _named(levels)
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    own = [part for part in np.split(values[order], cuts) if len(part) >= LEAST_EVENTS] or [values]
    medians = np.array([np.median(part) for part in own])
    sds = np.array([1.4826 * np.median(np.abs(part - np.median(part))) for part in own])
    tails = np.abs([np.quantile(part, (0.05, 0.95)) for part in own] - medians[:, None]) / NORMAL_95
    n_levels = allowed.shape[1]
    n_groups = len(named) - bright
    if n_levels == 1 or len(own) < n_groups:  # nothing to tell apart: half of the way, and as soft as can be
        n_bounds = max(n_levels - 1, 0)
        start, gaps, widths = (
            np.full(n_bounds, np.median(values)),
            np.ones(n_bounds),
            np.full(n_bounds, _softest(values)),
        )
    else:
        groups = _groups(medians, np.sqrt([len(part) for part in own]), n_groups)
        weights = np.sqrt([len(part) for part in own])
        centres = np.array(
            [np.average(medians[groups == c], weights=weights[groups == c]) for c in range(n_groups)]
        )
        spread = float(np.median(sds[groups == n_groups - 1]))
        below, above = np.array([np.median(tails[groups == c], axis=0) for c in range(n_groups)]).T
        start, gaps = (centres[1:] + centres[:-1]) / 2.0, np.maximum(np.diff(centres), 1e-9)
        widths = np.maximum(above[:-1] * below[1:] / gaps, SHARPEST * gaps)
        kept = np.diff(named[:n_groups]) > 0
        start, gaps, widths = start[kept], gaps[kept], widths[kept]
        if bright:
            beyond = BRIGHTER * spread
            start, gaps = np.append(start, centres[-1] + beyond), np.append(gaps, 2.0 * beyond)
            widths = np.append(widths, SHARPEST * gaps[-1])
    tiled = np.tile(start, (len(allowed), 1))
    return Marker(
        allowed,
        tiled,
        np.tile(NEAR / np.sqrt(SURE) * gaps, (len(allowed), 1)),
        widths,
        gaps,
        np.ones(len(allowed)),
    )


def _soft_if_one_level(start: Marker, values: Array) -> Marker:
    """Return the marker, or one that says nothing where its thresholds are likely to divide one level."""
    if start.separation >= APART or start.silent.any() or not start.alike:
        return start
    return replace(start, widths=np.full_like(start.widths, _softest(values)), gaps=np.ones_like(start.gaps))


def _softest(values: Array) -> float:
    """Return a scale of the logistic with which values [N] say nothing."""
    return float(np.ptp(values)) + 1.0


def _with_bright(start: Marker, values: Array, labels: Ints, context: Array) -> Marker:
    """Return the marker with the start of its last boundary among components above the boundary before it.

    The boundary is midway between two groups of components that are `BIMODAL` standard deviations apart.
    Without two such groups all are on, and high begins above them.

    Parameters
    ----------
    start : Marker
    values : float64 [N]
    labels : int64 [N]
    context : float64 [N]
        Probability that an event passes the other cells of a row that is on or high in this marker.
    """
    sizes = np.bincount(labels, context)
    found = []
    for h in np.flatnonzero(sizes >= LEAST_EVENTS).tolist():
        own = values[labels == h]
        place = float(np.median(own))
        found.append((place, 1.4826 * float(np.median(np.abs(own - place))), float(np.sqrt(sizes[h]))))
    if not (found := [one for one in found if one[0] > np.median(start.thresholds[:, -2])]):
        return start
    places, spreads, weights = np.array(found).T
    spread = float(np.sqrt(np.average(spreads**2, weights=weights)))
    middle, gap = float(np.average(places, weights=weights)) + BRIGHTER * spread, 2.0 * BRIGHTER * spread
    if len(places) > 1:
        groups = _groups(places, weights, 2)
        on, high = (float(np.average(places[groups == c], weights=weights[groups == c])) for c in range(2))
        if high - on >= BIMODAL * spread:
            middle, gap = (on + high) / 2.0, high - on
    width, error = max(spread**2 / gap, SHARPEST * gap), NEAR / np.sqrt(SURE) * gap
    return _with_boundary(start, -1, middle, error, gap, width)


def _with_control(start: Marker, control: Control | None) -> Marker:
    """Return the marker with the control's limit as the start of its first boundary."""
    if control is None:
        return start
    # Without positive cells the groups of components are both negative, and their distance says nothing of
    # the levels.
    gap = 2.0 * max(control.limit - control.median, control.near)
    error = float(np.hypot(control.near / np.sqrt(SURE), control.error))
    return _with_boundary(start, 0, control.limit, error, gap, SHARPEST * gap)


def _with_boundary(
    marker: Marker, which: int, threshold: float, error: float, gap: float, width: float
) -> Marker:
    """Return the marker with another boundary for all rows; boundaries above it do not lie below it."""
    thresholds, errors, gaps, widths = (
        one.copy() for one in (marker.thresholds, marker.errors, marker.gaps, marker.widths)
    )
    thresholds[:, which], errors[:, which], gaps[which], widths[which] = threshold, error, gap, width
    thresholds = np.maximum.accumulate(thresholds, axis=1)
    return replace(marker, thresholds=thresholds, errors=errors, gaps=gaps, widths=widths)


def _groups(places: Array, weights: Array, n_groups: int) -> Ints:
    """Return groups 0.. of places [H] in order, with the least weighted variance within them."""
    order = np.argsort(places, kind="stable")
    x, w = places[order], weights[order]
    sums = [np.append(0.0, np.cumsum(part)) for part in (w, w * x, w * x * x)]
    n = len(x)
    first, last = np.triu_indices(n + 1, 1)
    cost = np.full((n + 1, n + 1), np.inf)
    mass, total, square = (own[last] - own[first] for own in sums)
    cost[first, last] = square - total**2 / mass
    best, back = cost[0], []
    for _ in range(n_groups - 1):
        way = best[:, None] + cost
        back.append(way.argmin(axis=0))
        best = way.min(axis=0)
    ends = [n]
    for own in reversed(back):
        ends.append(int(own[ends[-1]]))
    found = np.empty(n, np.int64)
    found[order] = np.searchsorted(ends[:0:-1], np.arange(n), "right")
    return found


def _edges(values: Array, control: Control | None = None) -> Array:
    low, high = np.quantile(values, (0.0005, 0.9995))
    if control is not None:
        low, high = min(low, control.limit), max(high, control.limit)
    margin = 0.05 * (high - low) + 1e-9
    return np.linspace(low - margin, high + margin, BINS + 1)


def _in_context(
    start: Marker, values: Array, weights: Array, edges: Array, control: Control | None
) -> Marker:
    """Return the marker with the thresholds of each row among the events that pass its other cells."""
    thresholds, errors = start.thresholds.copy(), start.errors.copy()
    bins = np.searchsorted(edges, values, "right")  # 0 and BINS + 1 are outside
    for r in np.flatnonzero(~start.silent):
        for b, gap in enumerate(start.gaps):
            near, error = NEAR * gap, 0.0
            if b == 0 and control is not None:
                near, error = control.near, control.error
            found, spread = _threshold(values, bins, weights[r], edges, start.thresholds[r, b], near)
            thresholds[r, b], errors[r, b] = found, np.hypot(spread, error)
    return replace(start, thresholds=np.maximum.accumulate(thresholds, axis=1), errors=errors)


def _threshold(
    values: Array, bins: Ints, weights: Array, edges: Array, start: float, near: float
) -> tuple[float, float]:
    """Return the threshold among weighted events, and its standard deviation."""
    counts = np.bincount(bins, weights, BINS + 2)[1:-1]
    # Kish's effective number: many events that hardly pass the other cells are little evidence of a valley.
    effective = counts.sum() ** 2 / max(float(np.sum(weights**2)), 1e-300)
    if effective < LEAST_WEIGHT:
        return start, near / np.sqrt(SURE)
    centres = (edges[1:] + edges[:-1]) / 2.0
    mean = np.average(values, weights=weights)
    spread = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    bandwidth = 0.74 * min(2.0 * near, spread) * effective**-0.2
    density = gaussian_filter1d(counts, max(bandwidth / (centres[1] - centres[0]), 1.0), mode="constant")
    density += LEAK * density.max()  # events that fail another cell make no valley
    objective = np.log(relative_height(density) + FLAT) + ((centres - start) / near) ** 2 / 2.0
    chance = np.exp(SURE * (objective.min() - objective))
    chance /= chance.sum()
    middle = float(chance @ centres)
    return float(centres[objective.argmin()]), float(np.sqrt(chance @ (centres - middle) ** 2))
