"""Convex polygons in two channels that separate one population from other events.

The events of the population and the other events are counted in bins of two channels, and both counts are
smoothed. The set of bins with the highest F measure consists of the bins in which the share of the population
exceeds a threshold (Ye et al. 2012, Optimizing F-measure: a tale of two approaches, ICML), so it is found by
sorting the bins. The gate is the convex hull of the connected part with most of the population. F with beta =
1 weighs purity and yield equally; beta = 2 gives larger gates with a higher yield, beta = 1/2 smaller, purer
ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flowutils.gating import points_in_polygon
from scipy.ndimage import label

from dpmix.model.mixture import Array, Ints

Flags = npt.NDArray[np.bool_]

BINS = 48  # per channel
ENDS = (0.001, 0.999)  # quantiles between which all bins have the same width
BETAS = (0.5, 1.0, 2.0)
SMOOTHING = 1.0  # standard deviation in bins
VERTICES = 12  # at most
PAD = 0.05  # of the range of a channel: distance of the outermost bins from the extreme events


@dataclass(frozen=True)
class PolygonGate:
    """A polygon in two channels.

    Attributes
    ----------
    channels : (int, int)
        Numbers of the channels, from 0.
    vertices : float64 [V, 2]
        Transformed scale; the last vertex is joined to the first.
    """

    channels: tuple[int, int]
    vertices: Array

    def contains(self, values: Array) -> Flags:
        """Return which events are inside, bool [M]; `values` are transformed, float64 [M, D]."""
        inside: Flags = np.zeros(len(values), bool)
        points = values[:, self.channels]
        # Most events lie outside the box of the polygon, which costs two comparisons a channel.
        near = ((points >= self.vertices.min(0)) & (points <= self.vertices.max(0))).all(1)
        inside[near] = points_in_polygon(self.vertices, np.ascontiguousarray(points[near]))
        return inside


@dataclass(frozen=True)
class Binned:
    """Events in the bins of each channel.

    Attributes
    ----------
    values : float64 [M, D]
        Transformed scale.
    codes : int64 [M, D]
        Bin of each event in each channel.
    edges : float64 [D, BINS + 1]
    weights : float64 [M]
        Number of events that each event stands for.
    """

    values: Array
    codes: Ints
    edges: Array
    weights: Array

    @classmethod
    def of(cls, values: Array, weights: Array, lowest: Array, highest: Array) -> Binned:
        """Bin events; `lowest` and `highest`, float64 [D], are the extremes of all events."""
        low, high = np.quantile(values, ENDS, axis=0)
        pad = PAD * np.maximum(highest - lowest, np.finfo(np.float32).tiny)
        inner = np.linspace(low, high, BINS - 1, axis=1)
        edges = np.column_stack((np.minimum(lowest, low) - pad, inner, np.maximum(highest, high) + pad))
        columns = [np.searchsorted(inner[d], values[:, d], "right") for d in range(values.shape[1])]
        return cls(values, np.stack(columns, axis=1), edges, weights)

    def counts(self, events: Ints, channels: tuple[int, int]) -> Array:
        """Return the weight of some events in the bins of two channels, float64 [BINS, BINS]."""
        i, j = channels
        places = self.codes[events, i] * BINS + self.codes[events, j]
        return self._weighed(places, events, BINS * BINS).reshape(BINS, BINS)

    def line_counts(self, events: Ints, channel: int) -> Array:
        """Return the weight of some events in the bins of one channel, float64 [BINS]."""
        return self._weighed(self.codes[events, channel], events, BINS)

    def _weighed(self, places: Ints, events: Ints, n_places: int) -> Array:
        counts = np.bincount(places, self.weights[events], n_places)
        return counts.astype(np.float64, copy=False)


def f_measure(true: npt.ArrayLike, selected: npt.ArrayLike, total: npt.ArrayLike, beta: float = 1.0) -> Array:
    """Return F: (1 + beta^2) true / (beta^2 total + selected).

    Parameters
    ----------
    true, selected : float
        Weight of the events of the population, and of all events, that are selected.
    total : float
        Weight of all events of the population, above 0.
    beta : float
    """
    chosen, whole = np.asarray(selected, np.float64), np.asarray(total, np.float64)
    return (1.0 + beta**2) * np.asarray(true, np.float64) / (beta**2 * whole + chosen)


def best_regions(target: Array, others: Array, total: float) -> tuple[float, list[Flags]]:
    """Find the sets of bins with the highest F measures.

    Parameters
    ----------
    target, others : float64 [BINS] or [BINS, BINS]
        Weight of the events of the population and of the other events in each bin.
    total : float
        Weight of all events of the population, also of those that earlier gates have lost.

    Returns
    -------
    f1 : float
        The highest F1.
    regions : list of bool [BINS] or [BINS, BINS]
        One for each of `BETAS`.
    """
    true, false = _smooth(target).ravel(), _smooth(others).ravel()
    # The small term puts bins with almost no event last, whose share is chance.
    order = np.argsort(-true / (true + false + 1e-9 * total), kind="stable")
    kept, selected = np.cumsum(true[order]), np.cumsum((true + false)[order])
    regions, best = [], 0.0
    for beta in BETAS:
        scores = f_measure(kept, selected, total, beta)
        most = int(scores.argmax())
        region = np.zeros(true.size, bool)
        region[order[: most + 1]] = True
        regions.append(region.reshape(target.shape))
        best = float(scores[most]) if beta == 1.0 else best
    return best, regions


def _smoother() -> Array:
    """Return the matrix that smooths counts, float64 [BINS, BINS]; its columns sum to 1."""
    places = np.arange(BINS)
    weights = np.exp(-0.5 * ((places[:, None] - places) / SMOOTHING) ** 2)
    matrix: Array = weights / weights.sum(axis=0)
    return matrix


_SMOOTHER = _smoother()


def _smooth(counts: Array) -> Array:
    """Smooth counts in one or two channels."""
    smooth: Array = _SMOOTHER @ counts
    return smooth if counts.ndim == 1 else smooth @ _SMOOTHER.T


def polygon(region: Flags, target: Array, binned: Binned, channels: tuple[int, int]) -> PolygonGate:
    """Return the convex hull of the connected part of a region that holds most of a population.

    The region is bool [BINS, BINS]. The hull has at most `VERTICES` vertices; those that add
    least area are dropped.
    """
    from scipy.spatial import ConvexHull

    parts, n_parts = label(region)
    held = np.bincount(parts.ravel(), target.ravel(), n_parts + 1)
    rows, columns = np.nonzero(parts == 1 + int(held[1:].argmax()))
    x, y = binned.edges[channels[0]], binned.edges[channels[1]]
    corners = np.array([(x[rows + a], y[columns + b]) for a in (0, 1) for b in (0, 1)])
    points = corners.transpose(0, 2, 1).reshape(-1, 2)
    # Areas of dropped corners count in units of the plot, or the channel with larger numbers would decide.
    scale = np.array([x[-2] - x[1], y[-2] - y[1]]) + np.finfo(np.float32).tiny
    scaled = points / scale
    vertices = scaled[ConvexHull(scaled).vertices]
    while len(vertices) > VERTICES:
        before, after = np.roll(vertices, 1, axis=0), np.roll(vertices, -1, axis=0)
        one, other = vertices - before, after - before
        areas = np.abs(one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0])
        vertices = np.delete(vertices, int(areas.argmin()), axis=0)
    return PolygonGate(channels, vertices * scale)
