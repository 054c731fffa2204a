"""Averages of neighbouring blocks, where a signal needs less resolution than the blocks have."""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Array, Ints


def group_starts(n: int, most: int) -> Ints:
    """Return the first of each of at most `most` groups of equal size, the last one smaller, int64 [G]."""
    return np.arange(0, n, max(-(-n // most), 1))


def average(columns: Array, starts: Ints) -> Array:
    """Return the means of groups of rows, float64 [G] or [G, C].

    Parameters
    ----------
    columns : float64 [n] or [n, C]
    starts : int64 [G]
        The first row of each group, ascending from 0.
    """
    sums = np.add.reduceat(columns, starts, axis=0)
    return np.asarray((sums.T / group_sizes(len(columns), starts)).T)


def group_sizes(n: int, starts: Ints) -> Ints:
    """Return the number of rows of each group of n rows, int64 [G]."""
    return np.diff(starts, append=n)
