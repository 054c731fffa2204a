"""Outlines of populations in two channels: the smallest region that holds most of a population's events.

The events of a population are counted in bins of two channels and smoothed by a normal kernel, with the
bandwidth of Scott (1992, Multivariate Density Estimation, ch. 6) in each channel. The outline is the contour
of this density inside which `SHARE` of the events lie (a highest density region, Hyndman 1996, Am. Stat.
50:120). It may have several rings.

P populations, B bins of a channel.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array

SHARE = 0.8  # of the events of a population, inside its outline
LEAST_EVENTS = 5  # of a population, for an outline
LEAST_RING = 0.1  # of the largest ring's area: smaller rings are not drawn
MOST_BINS = 64  # bins of a channel for outlines
VERTICES = 48  # at most, of a ring
NARROWEST = 0.7  # bandwidth, in bins

Rings = tuple[npt.NDArray[np.float32], ...]
"""Rings of an outline, float32 [V, 2] each; the last vertex is joined to the first."""


def merged_bins(bins: int) -> int:
    """Return how many bins of a channel are counted as one for outlines."""
    return -(-bins // MOST_BINS)


def outlines(
    counts: Array,
    smooth: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
    start: Array,
    width: Array,
) -> list[Rings]:
    """Find the outline of each population in two channels.

    Parameters
    ----------
    counts : float64 [P, B, B]
        Events of each population; the first axis of bins is for the first channel.
    smooth : (float32 [P, B, B], float32 [P, B, B])
        Matrices that smooth each population along each of the channels (`smoothers`).
    start, width : float64 [2]
        First edge of each channel, and width of its bins.

    Returns
    -------
    list of tuple of float32 [V, 2]
        Rings of each population, the largest first; none for a population with few events.
    """
    found: list[Rings] = [()] * len(counts)
    densities = smooth[0] @ counts.astype(np.float32) @ smooth[1].transpose(0, 2, 1)
    for p in np.flatnonzero(counts.sum(axis=(1, 2)) >= LEAST_EVENTS).tolist():
        rings = _rings(densities[p], _level(densities[p], counts[p]))
        found[p] = tuple((start + ring * width).astype(np.float32) for ring in rings)
    return found


def smoothers(line: npt.NDArray[np.floating], n_channels: int) -> npt.NDArray[np.float32]:
    """Return the matrix that smooths each population along one channel, float32 [P, B, B].

    The spread is the lesser of standard deviation and quartile distance / 1.349, so that few events far away
    do not blur an outline.

    Parameters
    ----------
    line : float [P, B]
        Events of each population in each bin; some in every population.
    n_channels : int
        Number of channels that are smoothed, for the bandwidth.
    """
    places = np.arange(line.shape[1])
    total = line.sum(axis=1)
    mean = line @ places / total
    sd = np.sqrt((line * (places - mean[:, None]) ** 2).sum(axis=1) / total)
    reached = line.cumsum(axis=1) / total[:, None]
    quartiles = [(reached < q).sum(axis=1) for q in (0.25, 0.75)]
    # One more bin: quartiles in the same bin are not at distance 0.
    middle = (quartiles[1] - quartiles[0] + 1) / 1.349
    width = np.maximum(np.minimum(sd, middle) * total ** (-1 / (4 + n_channels)), NARROWEST)
    kernel = np.exp(-0.5 * ((places[:, None] - places) / width[:, None, None]) ** 2)
    scaled: npt.NDArray[np.float32] = (kernel / kernel.sum(axis=1, keepdims=True)).astype(np.float32)
    return scaled


def _level(density: npt.NDArray[np.float32], counts: Array) -> float:
    """Return the density at or above which `SHARE` of the events lie."""
    there = counts > 0.0
    found, events = density[there], counts[there]
    order = np.argsort(-found)
    held = np.cumsum(events[order])
    return float(found[order[np.searchsorted(held, SHARE * held[-1])]])


def _rings(density: npt.NDArray[np.float32], level: float) -> list[Array]:
    """Return the closed contours of a density [B, B] at a level, in bins from the first edge."""
    from contourpy import contour_generator

    ringed = np.pad(density, 1)  # a contour that leaves the grid is closed along it
    lines = contour_generator(z=ringed.T).lines(level)
    closed = [np.asarray(line)[:-1] for line in lines if len(line) > 3]
    areas = [_area(line) for line in closed]
    order = sorted(range(len(closed)), key=lambda k: -areas[k])
    kept = [closed[k] for k in order if areas[k] >= LEAST_RING * areas[order[0]]]
    return [np.clip(_resampled(line) - 0.5, 0.0, len(density)) for line in kept]


def _area(ring: Array) -> float:
    """Return the area of a polygon [V, 2] (shoelace formula)."""
    after = np.roll(ring, -1, axis=0)
    return float(abs((ring[:, 0] * after[:, 1] - ring[:, 1] * after[:, 0]).sum()) / 2.0)


def _resampled(ring: Array) -> Array:
    """Return at most `VERTICES` points of a polygon, equally far apart along it."""
    closed = np.concatenate([ring, ring[:1]])
    lengths = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1)))
    if len(ring) <= VERTICES:
        return ring
    at = np.linspace(0.0, lengths[-1], VERTICES, endpoint=False)
    return np.stack([np.interp(at, lengths, closed[:, k]) for k in range(2)], axis=1)
