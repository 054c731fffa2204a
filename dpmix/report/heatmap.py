"""Heatmap of the medians of populations: order of rows and columns, and colour levels.

D channels, Q populations shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.rasters import Rasters
from dpmix.populations.result import TAIL, Gating
from dpmix.report.labels import shown


@dataclass(frozen=True)
class Heat:
    """Medians of the populations' events; similar populations and similar channels are neighbours.

    Attributes
    ----------
    populations : int64 [Q]
        Populations of the rows, from top to bottom; those without events come last.
    channels : int64 [D + E]
        Channels of the columns: the model's, then the state channels.
    medians : float64 [Q, D + E]
        Transformed scale; NaN for a population without events.
    levels : float64 [Q, D + E]
        Medians scaled from 0, the 1% quantile of all events in the channel, to 1, the 99% quantile.
    row_tree, column_tree : (float64 [n, 4], float64 [n, 4])
        Brackets of the trees of rows and columns: places along the rows or columns, and heights from 0 to 1.
    """

    populations: Ints
    channels: Ints
    medians: Array
    levels: Array
    row_tree: tuple[Array, Array]
    column_tree: tuple[Array, Array]


def heat(gating: Gating) -> Heat:
    """Order the rows and columns of the heatmap by average linkage.

    The leaf order maximises the similarity of neighbours (Bar-Joseph, Gifford and Jaakkola 2001,
    Bioinformatics 17:S22).
    """
    medians = gating.measured_quantiles[2, : shown(gating)]
    lows, highs = channel_ranges(gating.rasters)
    if gating.state is not None:
        lows, highs = (np.append(end, own) for end, own in zip((lows, highs), gating.state.ends, strict=True))
    model = len(gating.channels)
    levels = np.clip((medians - lows) / np.maximum(highs - lows, np.finfo(float).tiny), 0.0, 1.0)
    there = np.flatnonzero(~np.isnan(levels[:, :model]).any(axis=1))
    found = levels[there, :model]
    row_order, row_tree = _similar(found)
    column_order, column_tree = _similar(found.T)
    # Populations without events cannot be ordered, and come last.
    rows = np.append(there[row_order], np.setdiff1d(np.arange(len(levels)), there))
    columns = np.append(column_order, np.arange(model, levels.shape[1]))
    chosen = np.ix_(rows, columns)
    return Heat(rows, columns, medians[chosen], levels[chosen], row_tree, column_tree)


def _similar(rows: Array) -> tuple[Ints, tuple[Array, Array]]:
    """Return an order of rows with similar neighbours, and its tree.

    The order has two directions; this one is the more ascending.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage

    if len(rows) < 3 or not rows.shape[1]:
        return np.arange(len(rows)), (np.zeros((0, 4)), np.zeros((0, 4)))
    drawn = dendrogram(linkage(rows, "average", optimal_ordering=True), no_plot=True)
    order = np.array(drawn["leaves"], np.int64)
    places = (np.array(drawn["icoord"]) - 5.0) / 10.0  # SciPy draws leaves at 5, 15, 25, ...
    heights = np.array(drawn["dcoord"])
    heights = heights / (heights.max() or 1.0)
    # Either direction is as good; this one does not turn around from gating to gating.
    if order[0] > order[-1]:
        order, places = order[::-1], len(rows) - 1.0 - places
    return order, (places, heights)


def channel_ranges(rasters: Rasters) -> tuple[Array, Array]:
    """Return the 1% and 99% quantiles of each channel's events, float64 [D] each.

    They are interpolated in the bins of the rasters. A single channel has no raster and gets its whole grid.
    """
    lows, highs = rasters.edges[:, 0].copy(), rasters.edges[:, -1].copy()
    for channel, edges in enumerate(rasters.edges):
        with_it = np.argwhere(rasters.pairs == channel)
        if not len(with_it) or not rasters.counts[with_it[0, 0]].any():
            continue
        pair, place = with_it[0]
        events = rasters.counts[pair].sum(axis=1 - place)
        reached = np.append(0.0, np.cumsum(events)) / events.sum()
        lows[channel], highs[channel] = np.interp([TAIL, 1.0 - TAIL], reached, edges)
    return lows, highs
