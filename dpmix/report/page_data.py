"""Data that the script of the report (page.js) needs to redraw figures."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.outlines import smoothers
from dpmix.populations.events.rasters import Rasters
from dpmix.populations.explored import extended
from dpmix.populations.result import TAIL, Gating, Map
from dpmix.report.biaxial import VISIBLE
from dpmix.report.decades import ticks_of
from dpmix.report.embedding import map_point, map_window
from dpmix.report.labels import fewest_events, first, label, share_limits, shares, shown
from dpmix.report.pairs import separating_pairs, separation
from dpmix.report.palette import colour_of, full_count, ink

MOST_POINTS = 1_000  # of the explored cells


def script_json(value: object) -> str:
    """Return JSON for a script element; nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def page_data(gating: Gating) -> dict[str, Any]:
    """Return the data of the figures with a choice: two markers, samples and map."""
    rasters, pairs = gating.rasters, gating.rasters.pairs
    chosen = separating_pairs(gating)
    explored, gating = _explored(gating), extended(gating)
    populations = _populations(gating)
    if explored is not None and explored["population"] < len(populations) and len(pairs):
        populations[explored["population"]]["best"] = _farthest(gating)
    counts = rasters.counts.reshape(len(pairs), (rasters.edges.shape[1] - 1) ** 2)
    full = np.log1p(counts.max(axis=1, initial=1))
    return {
        "channels": gating.short_channels[: len(gating.channels)],
        "bins": rasters.edges.shape[1] - 1,
        "ranges": rasters.edges[:, [0, -1]].tolist(),
        "rasters": pack_rasters(rasters, full),
        "full": full.tolist(),
        "scale": [
            float(255.0 * np.log1p(full_count(row)) / top) for row, top in zip(counts, full, strict=True)
        ],
        "outlines": [pack_outlines(rasters, pair) for pair in range(len(pairs))],
        "apart": VISIBLE,
        "histograms": [pack_lines(rows[: shown(gating)]) for rows in rasters.lines],
        "ticks": [vars(ticks_of(gating, d)) for d in range(len(rasters.edges))],
        "first": pairs[chosen[0]].tolist() if chosen else [0, 0],
        "names": [label(gating, p, 70) for p in range(gating.n_populations)],
        "populations": populations,
        "samples": _samples(gating) if len(gating.samples) > 1 else None,
        "explored": explored,
        "map": None if gating.map is None else _map(gating.map),
    }


def _map(events: Map) -> dict[str, Any] | None:
    """Return the window of the map, and the events' values of each channel; None without values.

    Values are bytes in base64, from the 1% quantile to the 99% quantile of these events.
    """
    if events.values is None:
        return None
    (left, bottom), side = map_window(events)
    low, high = np.quantile(events.values, (TAIL, 1.0 - TAIL), axis=0)
    scaled = (events.values - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    steps = np.rint(255.0 * scaled.clip(0.0, 1.0)).astype(np.uint8)
    columns = [base64.b64encode(column.tobytes()).decode() for column in steps.T]
    return {"window": [left, bottom, side], "point": map_point(events), "values": columns}


def _explored(gating: Gating) -> dict[str, Any] | None:
    """Return the explored cells as points, at most `MOST_POINTS`, channel by channel."""
    one = gating.exploration
    if one is None:
        return None
    some = one.values[:: -(-len(one.values) // MOST_POINTS) or 1]
    return {"population": gating.n_populations, "values": some.T.astype(float).round(4).tolist()}


def _farthest(gating: Gating) -> list[int]:
    """Return the two channels in which the explored cells differ most from all events, ascending.

    The distance in a channel is from the mean to the median of the cells, in standard deviations.
    """
    assert gating.exploration is not None
    mean = gating.weights @ gating.means
    within = gating.weights @ gating.covariances.diagonal(0, 1, 2)
    sd = np.sqrt(within + gating.weights @ (gating.means - mean) ** 2)
    distance = np.abs(np.nan_to_num(gating.exploration.medians[-1]) - mean) / sd
    return sorted(np.argsort(-distance, kind="stable")[:2].tolist())


def _populations(gating: Gating) -> list[dict[str, Any]]:
    """Return colour, medians and best pair of channels of each population shown."""
    best = best_pairs(gating)
    return [
        {
            "number": gating.number(p),
            "colour": colour_of(gating, p),
            "ink": ink(colour_of(gating, p)),
            "best": best[p],
            "medians": _finite(gating.quantiles[2, p]),
        }
        for p in range(shown(gating))
    ]


def _samples(gating: Gating) -> dict[str, Any]:
    """Return the proportions in each sample and the lower end of their axis."""
    estimates = first(gating.estimates, shown(gating))
    mean, low, high = map(_rounded, estimates)
    least = share_limits(estimates, fewest_events(gating))[0]
    return {"mean": mean, "low": low, "high": high, "least": least}


def best_pairs(gating: Gating) -> list[list[int]]:
    """Return the two channels that best separate each population shown from the others, by their shares."""
    pairs, drawn = gating.rasters.pairs, shown(gating)
    if not len(pairs) or drawn < 2:
        return [[0, min(1, len(gating.channels) - 1)]] * drawn
    apart, size = separation(gating, pairs), np.sqrt(shares(gating))
    a, b = np.triu_indices(drawn, 1)
    best = []
    for p in range(drawn):
        with_p = (a == p) | (b == p)
        others = np.where(a == p, b, a)[with_p]
        best.append(pairs[np.argmax(apart[:, with_p] @ size[others])].tolist())
    return best


def pack_rasters(rasters: Rasters, full: Array) -> list[str]:
    """Pack the bins of each pair of channels: deflated, then base64.

    There are three bytes for each bin, first channel first: all steps of the logarithm of the events, then
    all low bytes and all high bytes of the population plus 1.

    Parameters
    ----------
    rasters : Rasters
    full : float64 [pairs]
        log(1 + n) of the bin with most events: step 255.
    """
    packed = []
    for counts, populations, top in zip(rasters.counts, rasters.populations, full, strict=True):
        steps = np.rint(255.0 * np.log1p(counts) / top).astype(np.uint8)
        numbers = (populations.astype(np.int64) + 1).astype("<u2")
        planes = (steps, (numbers & 255).astype(np.uint8), (numbers >> 8).astype(np.uint8))
        joined = b"".join(plane.tobytes() for plane in planes)
        packed.append(base64.b64encode(zlib.compress(joined, 6)).decode())
    return packed


def pack_outlines(rasters: Rasters, pair: int) -> str:
    """Pack the outlines of a pair of channels as bytes in base64.

    For each population: the share of its events in bins of its own, in steps of 1/255; the number of
    rings; for each ring the number of its vertices, then x and y of each, in steps of 1/255 of the range
    of the raster.
    """
    low, high = rasters.edges[rasters.pairs[pair]][:, [0, -1]].T
    packed = bytearray()
    for rings, seen in zip(rasters.outlines[pair], rasters.visible[pair].tolist(), strict=False):
        packed.append(round(255 * seen))
        packed.append(min(len(rings), 255))
        for ring in rings[:255]:
            steps = np.rint(255.0 * (ring - low) / (high - low)).clip(0, 255).astype(np.uint8)
            packed.append(len(ring))
            packed += steps.tobytes()
    return base64.b64encode(packed).decode()


def pack_lines(rows: Ints) -> str:
    """Pack the smoothed histograms [P, B] of a channel in base64, in steps of 1/255 of their peaks."""
    smooth = np.einsum("pij,pj->pi", smoothers(np.maximum(rows, 1e-9), 1), rows)
    scaled = np.rint(255.0 * smooth / np.maximum(smooth.max(axis=1, keepdims=True), 1e-9)).astype(np.uint8)
    return base64.b64encode(scaled.tobytes()).decode()


def _finite(values: Array) -> Any:
    return None if np.isnan(values).any() else _rounded(values)


def _rounded(values: Array) -> Any:
    """Return nested lists of numbers with five digits, more than a picture shows; None for NaN."""
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [None if np.isnan(value) else float(f"{value:.5g}") for value in values]
