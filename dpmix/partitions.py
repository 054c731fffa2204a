"""Partitions of the same events in many draws: how far apart, which is in the middle, what they share.

Everything is of tables of how many events two draws put where, one pair of draws at a time, so that nothing
is of size M x M; which component has which number does not matter. T draws, M events, C chains.

Variation of information: Meila (2007), J. Multivar. Anal. 98:873. The draw nearest to all others by it:
Wade and Ghahramani (2018), Bayesian Analysis 13:559, section 3, with the draws as the candidates. Adjusted
Rand index: Hubert and Arabie (1985), J. Classification 2:193, equation 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmix.model import Array

Ints = npt.NDArray[np.int64]

SIMILAR = 0.5
"""Jaccard similarity above which two populations are the same: at most one of a partition can be."""


def information_distances(partitions: npt.ArrayLike) -> Array:
    """Variation of information between every two partitions, float64 [T, T], in nats.

    Parameters
    ----------
    partitions : int [T, M]
        Population of each event in each draw; any numbers from 0.
    """
    found = _numbered(partitions)
    n_events = found.shape[1]
    n = np.arange(n_events + 1, dtype=np.float64)
    n_log_n = n * np.log(np.maximum(n, 1))
    alone = np.array([n_log_n[np.bincount(one)].sum() for one in found])
    together = _of_pairs(found, lambda counts: float(n_log_n[counts].sum()))
    # 2 H(a, b) - H(a) - H(b), each entropy log M - sum n log n / M; rounding may leave less than nothing.
    distances: Array = np.maximum((alone[:, None] + alone - 2 * together) / n_events, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def nearest(partitions: npt.ArrayLike) -> int:
    """The draw with the least mean variation of information to all draws, the first of several.

    Parameters
    ----------
    partitions : int [T, M]
        As for `information_distances`.
    """
    return int(information_distances(partitions).mean(axis=1).argmin())


def rand_indices(partitions: npt.ArrayLike) -> Array:
    """Adjusted Rand index of every two partitions, float64 [T, T]: 1 of equal ones, 0 on average by chance.

    Parameters
    ----------
    partitions : int [T, M]
        As for `information_distances`.
    """
    found = _numbered(partitions)
    n_events = found.shape[1]

    def pairs(counts: Ints) -> float:
        return float((counts * (counts - 1)).sum()) / 2  # of events that are together

    alone = np.array([pairs(np.bincount(one)) for one in found])
    together = _of_pairs(found, pairs)
    by_chance = np.outer(alone, alone) / max(n_events * (n_events - 1) / 2, 1)
    most = (alone[:, None] + alone) / 2
    # Nothing is left to agree on where both are of one population, or both of single events: they are equal.
    there = most > by_chance
    indices: Array = np.divide(together - by_chance, most - by_chance, out=np.ones_like(most), where=there)
    return indices


def agreement(partitions: npt.ArrayLike, chains: npt.ArrayLike) -> Array:
    """Mean adjusted Rand index of the draws within each chain (diagonal) and between chains, float64 [C, C].

    Chains that have found the same populations agree with one another as well as each with itself.

    Parameters
    ----------
    partitions : int [T, M]
        As for `information_distances`.
    chains : int [T]
        Chain of each draw, 0..C-1. A draw is not compared with itself: of a chain of one draw the diagonal
        is NaN.
    """
    indices = rand_indices(partitions)
    np.fill_diagonal(indices, 0.0)
    of_chain = np.eye(int(np.max(chains)) + 1)[np.asarray(chains)]
    sizes = of_chain.sum(axis=0)
    compared = np.outer(sizes, sizes) - np.diag(sizes)
    total: Array = of_chain.T @ indices @ of_chain
    mean: Array = np.divide(total, compared, out=np.full_like(total, np.nan), where=compared > 0)
    return mean


def support(partitions: npt.ArrayLike, reference: int, n_populations: int) -> Array:
    """Share of the draws that have each population of the reference again, float64 [P].

    Again: a population of the draw has more than half of the events of the two in common (Jaccard similarity
    above 1/2). The reference is one of the draws, so that nothing is below 1 / T.

    Parameters
    ----------
    partitions : int [T, M]
        As for `information_distances`, but those of the reference are 0..P-1.
    reference : int
        Number of its draw.
    n_populations : int
        P. A population that none of the M events are of has NaN.
    """
    asked = np.asarray(partitions)[reference]
    sizes = np.bincount(asked, minlength=n_populations)
    if len(sizes) > n_populations:
        raise ValueError(f"population {len(sizes) - 1} of {n_populations}")
    there = np.zeros(n_populations)
    for one in _numbered(partitions):
        counts = contingency(asked, one, n_populations)
        either = sizes[:, None] + counts.sum(axis=0) - counts
        there += (counts > SIMILAR * either).any(axis=1)
    return np.where(sizes > 0, there / len(np.asarray(partitions)), np.nan)


def contingency(first: npt.ArrayLike, second: npt.ArrayLike, n_first: int = 0, n_second: int = 0) -> Ints:
    """Events by their number in two partitions, int64 [A, B]; A and B are at least those given.

    Parameters
    ----------
    first, second : int [M]
        Numbers from 0.
    n_first, n_second : int
    """
    a, b = np.asarray(first, np.int64), np.asarray(second, np.int64)
    rows, columns = max(n_first, a.max(initial=-1) + 1), max(n_second, b.max(initial=-1) + 1)
    return np.bincount(a * columns + b, minlength=rows * columns).reshape(rows, columns)


def _numbered(partitions: npt.ArrayLike) -> Ints:
    """The same, the numbers that occur in each draw being 0, 1, ...: tables are no larger than needed."""
    given = np.asarray(partitions)
    if given.ndim != 2 or given.size == 0 or given.dtype.kind not in "iu":
        raise ValueError(
            f"partitions of shape {given.shape} and type {given.dtype}, need int [draws, events]"
        )
    return np.array([np.unique(one, return_inverse=True)[1] for one in given], np.int64)


def _of_pairs(partitions: Ints, statistic: Callable[[Ints], float]) -> Array:
    """A statistic of the events' counts in the table of every two draws, float64 [T, T], symmetric."""
    n_draws = len(partitions)
    found = np.empty((n_draws, n_draws))
    for s in range(n_draws):
        for t in range(s, n_draws):
            found[s, t] = found[t, s] = statistic(contingency(partitions[s], partitions[t]).ravel())
    return found
