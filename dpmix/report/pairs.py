"""Populations in pairs of channels: moments, the pairs that separate the populations, and neighbours.

D channels, K components, P populations, Q populations shown, numbered from 0 by size.
"""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.result import Gating
from dpmix.report.labels import shares, shown

SEEN = 0.75  # probability that a reader sees two separated populations apart in one panel
MOST_PAIRS = 6  # pairs of channels in the figure
ROW = 3  # pairs next to each other: a row that is begun is filled
LEAST_GAIN = 0.02  # by which a further pair must improve the separation
NEIGHBOURS = 3  # named on a card
DENSITY_POINTS = 400  # points of a density curve


def moments(gating: Gating) -> tuple[Array, Array]:
    """Return means [P, D] and covariances [P, D, D] of the populations, transformed scale.

    They come from the mixture of the reference draw, and are NaN for a population without components there.
    """
    held = np.zeros((gating.n_populations, len(gating.weights)))
    held[gating.components, np.arange(len(gating.weights))] = gating.weights
    total = held.sum(axis=1, keepdims=True)
    held = np.divide(held, total, out=np.full_like(held, np.nan), where=total > 0.0)
    means = held @ gating.means
    off = gating.means - means[gating.components]
    within = gating.covariances + off[:, :, None] * off[:, None, :]
    return means, np.einsum("pk,kij->pij", held, within)


def separation(gating: Gating, pairs: Ints) -> Array:
    """Return the separation of each two populations shown in each pair of channels, from 0 (none) to 1.

    It is 1 minus the Bhattacharyya coefficient of the two normals with the populations' moments
    (Bhattacharyya 1943, Bull. Calcutta Math. Soc. 35:99; for normals: Kailath 1967, IEEE Trans. Commun.
    15:52).

    Returns
    -------
    float64 [pairs, Q (Q - 1) / 2]
        Pairs of populations are in the order of `numpy.triu_indices`. 0 where the moments of one are
        unknown.
    """
    means, covariances = moments(gating)
    drawn = shown(gating)
    return separation_of(means[:drawn], covariances[:drawn], pairs)


def separation_of(means: Array, covariances: Array, pairs: Ints) -> Array:
    """Return the separation of normals with means [Q, D] and covariances [Q, D, D]; see `separation`."""
    a, b = np.triu_indices(len(means), 1)
    apart = np.empty((len(pairs), len(a)))
    for row, pair in enumerate(pairs):
        mean, own = means[:, pair], covariances[np.ix_(np.arange(len(means)), pair, pair)]
        both = (own[a] + own[b]) / 2.0
        gap = mean[a] - mean[b]
        determinants = _determinant(own)
        adjugate = (
            both[:, 1, 1] * gap[:, 0] ** 2
            - 2.0 * both[:, 0, 1] * gap[:, 0] * gap[:, 1]
            + both[:, 0, 0] * gap[:, 1] ** 2
        )
        determinant = _determinant(both)
        ratio = np.sqrt(np.sqrt(determinants[a] * determinants[b]) / determinant)
        apart[row] = np.nan_to_num(1.0 - ratio * np.exp(-adjugate / determinant / 8.0))
    return apart


def _determinant(matrices: Array) -> Array:
    """Return the determinants of 2 x 2 covariances, float64 [...], bounded away from 0."""
    a, b, c = matrices[..., 0, 0], matrices[..., 0, 1], matrices[..., 1, 1]
    return np.maximum(a * c - b * b, 1e-12 * a * c + np.finfo(float).tiny)


def separating_pairs(gating: Gating) -> list[int]:
    """Choose pairs of channels (rows of `Rasters.pairs`) that together separate the populations.

    A reader sees two populations apart in one panel with probability `SEEN` times their separation there.
    Each step adds the pair of channels that most increases the probability of seeing them apart in any panel,
    averaged over all pairs of populations with the geometric mean of their shares as weight. The choice ends
    when the gain is below 2% and a row of the figure is full.
    """
    pairs = gating.rasters.pairs
    if not len(pairs):
        return []
    if shown(gating) < 2:
        spread = gating.covariances.diagonal(0, 1, 2).mean(axis=0)
        return [int(np.argmax(spread[pairs].sum(axis=1)))]
    return choose_pairs(separation(gating, pairs), shares(gating), MOST_PAIRS)


def choose_pairs(separations: Array, size: Array, most: int, row: int = ROW) -> list[int]:
    """Choose up to `most` pairs of channels as `separating_pairs` does.

    Parameters
    ----------
    separations : float64 [pairs, Q (Q - 1) / 2]
        Result of `separation`.
    size : float64 [at least Q]
        Shares of the populations.
    most, row : int
        A row of `row` pairs that is begun is filled.
    """
    many = round((1.0 + np.sqrt(1.0 + 8.0 * separations.shape[1])) / 2.0)
    a, b = np.triu_indices(many, 1)
    # Neither by size, which would show the largest two only, nor evenly, which would show the rarest.
    weights = np.sqrt(size[a] * size[b])
    apart, missed = SEEN * separations, np.ones(len(a))
    chosen: list[int] = []
    while len(chosen) < min(most, len(separations)):
        gains = apart @ (missed * weights)
        gains[chosen] = 0.0
        pair = int(np.argmax(gains))
        full = len(chosen) == 1 or len(chosen) % row == 0
        if chosen and ((full and gains[pair] < LEAST_GAIN * weights.sum()) or pair in chosen):
            break
        chosen.append(pair)
        # A pair of populations that a reader has probably seen apart counts less for the next panel.
        missed *= 1.0 - apart[pair]
    return chosen


def neighbours(gating: Gating) -> list[list[tuple[int, int, bool]]]:
    """Return the nearest other populations of each population shown, with how they differ most.

    The distance of two populations is the distance of their middles in the channel in which they differ most,
    in units of the sum of their quartile ranges.

    Returns
    -------
    list of lists of (int, int, bool)
        Population, channel, and whether it is higher there; the nearest first. None for a population without
        events.
    """
    lower, upper = gating.quantiles[[1, 3], : shown(gating)]
    middle, width = (lower + upper) / 2.0, np.maximum(upper - lower, np.finfo(float).tiny)
    found = []
    for p in range(len(middle)):
        gaps = (middle - middle[p]) / (width + width[p])
        distance = np.abs(gaps).max(axis=1)
        distance[p] = np.nan
        near = [q for q in np.argsort(distance, kind="stable").tolist() if np.isfinite(distance[q])]
        most = np.abs(gaps).argmax(axis=1)
        found.append([(q, int(most[q]), bool(gaps[q, most[q]] > 0)) for q in near[:NEIGHBOURS]])
    return found


def densities(gating: Gating) -> list[tuple[Array, Array]]:
    """Return x and y, float64 [n], of the weighted density of each population in a single channel."""
    places = np.linspace(gating.rasters.edges[0, 0], gating.rasters.edges[0, -1], DENSITY_POINTS)
    sds = np.sqrt(gating.covariances[:, 0, 0])
    units = (places[:, None] - gating.means[:, 0]) / sds
    each = gating.weights * np.exp(-0.5 * units**2) / (sds * np.sqrt(2.0 * np.pi))
    return [(places, each[:, gating.components == p].sum(axis=1)) for p in range(shown(gating))]
