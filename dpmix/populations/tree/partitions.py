"""Similarity of partitions of the same events in many draws.

All quantities come from contingency tables of two draws, so memory does not grow with M x M, and the
numbering of components does not matter. T draws, M events, C chains.

Adjusted Rand index: Hubert and Arabie (1985), J. Classification 2:193, equation 5.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints

SIMILAR = 0.5
"""Jaccard similarity above which two populations match; at most one of a partition can."""


def rand_index(first: npt.ArrayLike, second: npt.ArrayLike, events: npt.ArrayLike | None = None) -> float:
    """Return the adjusted Rand index of two partitions: 1 if equal, 0 on average by chance.

    Parameters
    ----------
    first, second : int [M]
        Population of each event; any numbers from 0.
    events : int [M], optional
        Number of equal events that each stands for; default: 1.
    """
    counts = contingency(first, second, events=events)
    one, other = _pairs(counts.sum(axis=1)), _pairs(counts.sum(axis=0))
    by_chance = one * other / max(_pairs(counts.sum()), 1.0)
    most = (one + other) / 2
    # Two partitions into one population, or into single events, are equal.
    return (_pairs(counts) - by_chance) / (most - by_chance) if most > by_chance else 1.0


def agreement(partitions: npt.ArrayLike, chains: npt.ArrayLike) -> Array:
    """Return the mean adjusted Rand index within chains (diagonal) and between chains, float64 [C, C].

    If chains have found the same populations, agreement between them is as high as within each.

    Parameters
    ----------
    partitions : int [T, M]
        Population of each event in each draw, small numbers from 0.
    chains : int [T]
        Chain of each draw, 0..C-1. A draw is not compared with itself, so the diagonal is NaN for a chain of
        one draw.
    """
    # Many events have the same populations in all draws: they are counted together.
    by_event = np.ascontiguousarray(np.asarray(partitions, np.int32).T)
    rows = by_event.view(np.dtype((np.void, by_event[0].nbytes)))[:, 0]
    _, kept, events = np.unique(rows, return_index=True, return_counts=True)
    found = np.ascontiguousarray(by_event[kept].T)
    indices = np.zeros((len(found), len(found)))
    for s, t in combinations(range(len(found)), 2):
        indices[s, t] = indices[t, s] = rand_index(found[s], found[t], events)
    of_chain = np.eye(int(np.max(chains)) + 1)[np.asarray(chains)]
    sizes = of_chain.sum(axis=0)
    # Without the comparisons of a draw with itself, which would make a chain of few draws agree with itself
    # best.
    compared = np.outer(sizes, sizes) - np.diag(sizes)
    total: Array = of_chain.T @ indices @ of_chain
    mean: Array = np.divide(total, compared, out=np.full_like(total, np.nan), where=compared > 0)
    return mean


def contingency(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    n_first: int = 0,
    n_second: int = 0,
    events: npt.ArrayLike | None = None,
) -> Ints:
    """Count events by their number in two partitions, int64 [A, B].

    Parameters
    ----------
    first, second : int [M]
        Numbers from 0.
    n_first, n_second : int
        Least A and B.
    events : int [M], optional
        Number of events that each stands for; default: 1.
    """
    a, b = np.asarray(first, np.int64), np.asarray(second, np.int64)
    rows, columns = max(n_first, a.max(initial=-1) + 1), max(n_second, b.max(initial=-1) + 1)
    counts = np.bincount(a * columns + b, events, rows * columns)
    return counts.astype(np.int64).reshape(rows, columns)


def _pairs(counts: npt.ArrayLike) -> float:
    """Return the number of pairs of events in the same cell."""
    n = np.asarray(counts, np.int64)
    return float((n * (n - 1)).sum()) / 2
