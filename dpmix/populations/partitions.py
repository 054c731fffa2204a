"""Partitions of the same events in many draws: how alike they are, and what they share.

Everything is of tables of how many events two draws put where, one pair of draws at a time, so that nothing
is of size M x M; which component has which number does not matter. T draws, M events, C chains.

Adjusted Rand index: Hubert and Arabie (1985), J. Classification 2:193, equation 5.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints

SIMILAR = 0.5
"""Jaccard similarity above which two populations are the same: at most one of a partition can be."""


def rand_index(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Adjusted Rand index of two partitions: 1 of equal ones, 0 on average by chance.

    Parameters
    ----------
    first, second : int [M]
        Population of each event; any numbers from 0.
    """
    counts = contingency(first, second)
    one, other = _pairs(counts.sum(axis=1)), _pairs(counts.sum(axis=0))
    by_chance = one * other / max(_pairs(counts.sum()), 1.0)
    most = (one + other) / 2
    # Nothing is left to agree on where both are of one population, or both of single events: they are equal.
    return (_pairs(counts) - by_chance) / (most - by_chance) if most > by_chance else 1.0


def agreement(partitions: npt.ArrayLike, chains: npt.ArrayLike) -> Array:
    """Mean adjusted Rand index of the draws within each chain (diagonal) and between chains, float64 [C, C].

    Chains that have found the same populations agree with one another as well as each with itself.

    Parameters
    ----------
    partitions : int [T, M]
        Population of each event in each draw, small numbers from 0.
    chains : int [T]
        Chain of each draw, 0..C-1. A draw is not compared with itself: of a chain of one draw the diagonal
        is NaN.
    """
    found = np.asarray(partitions)
    indices = np.zeros((len(found), len(found)))
    for s, t in combinations(range(len(found)), 2):
        indices[s, t] = indices[t, s] = rand_index(found[s], found[t])
    of_chain = np.eye(int(np.max(chains)) + 1)[np.asarray(chains)]
    sizes = of_chain.sum(axis=0)
    compared = np.outer(sizes, sizes) - np.diag(sizes)
    total: Array = of_chain.T @ indices @ of_chain
    mean: Array = np.divide(total, compared, out=np.full_like(total, np.nan), where=compared > 0)
    return mean


def support(partitions: npt.ArrayLike, asked: npt.ArrayLike, n_populations: int) -> Array:
    """Share of the draws that have each of some populations again, float64 [P].

    Again: a population of the draw has more than half of the events of the two in common (Jaccard similarity
    above 1/2).

    Parameters
    ----------
    partitions : int [T, M]
        Population of each event in each draw; any numbers from 0.
    asked : int [M]
        The populations asked about, 0..P-1.
    n_populations : int
        P. A population that none of the M events are of has NaN.
    """
    sizes = np.bincount(np.asarray(asked), minlength=n_populations)
    if len(sizes) > n_populations:
        raise ValueError(f"population {len(sizes) - 1} of {n_populations}")
    there = np.zeros(n_populations)
    for one in np.asarray(partitions):
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


def _pairs(counts: npt.ArrayLike) -> float:
    """Pairs of events that are together."""
    n = np.asarray(counts, np.int64)
    return float((n * (n - 1)).sum()) / 2
