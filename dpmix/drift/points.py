"""Points of a Gaussian process of time, and the neighbours of each in an ordering from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Ints

NEIGHBOURS = 30
"""Neighbours of a point; the number of GpGp, the package of Guinness."""

MAX_NEIGHBOURS: int = _cpu.MAX_NEIGHBOURS


@dataclass(frozen=True)
class Points:
    """Values over time, with their errors and neighbours. Make them by `make_points`.

    Attributes
    ----------
    times : float64 [n]
        Ascending.
    values, errors : float64 [n]
        Values and their known standard errors.
    neighbours : int32 [n, m]
        For each point its neighbours, ascending, -1 after the last one.
    """

    times: Array
    values: Array
    errors: Array
    neighbours: npt.NDArray[np.int32]


def coarse_to_fine(n: int) -> Ints:
    """Return the numbers 0 to n - 1, int64 [n], ordered by their reversed bits."""
    numbers = np.arange(n, dtype=np.int64)
    reversed_bits = np.zeros(n, np.int64)
    for bit in range(max(n - 1, 1).bit_length()):
        # Sorted by their reversed bits, the numbers are halves, quarters, eighths and so on, from coarse to
        # fine.
        reversed_bits = 2 * reversed_bits + (numbers >> bit & 1)
    return np.argsort(reversed_bits, kind="stable")


def make_points(
    times: Array, values: Array, errors: Array, n_neighbours: int = NEIGHBOURS, order: Ints | None = None
) -> Points:
    """Find the neighbours of points.

    Parameters
    ----------
    times, values, errors : float64 [n]
        Times ascend; errors are known standard errors of the values, 0 for none.
    n_neighbours : int
        m, from 0 to `MAX_NEIGHBOURS`. 0 is enough for a posterior.
    order : int64 [n], optional
        A permutation. Default: `coarse_to_fine`.

    Raises
    ------
    ValueError
        Times do not ascend, the lengths differ, a number is not finite, an error is negative, or m is out of
        its limits.
    """
    arrays = [np.ascontiguousarray(array, dtype=np.float64) for array in (times, values, errors)]
    n = len(arrays[0])
    if n == 0 or any(array.shape != (n,) for array in arrays):
        raise ValueError(f"got shapes {[array.shape for array in arrays]}, need [n] with n at least 1")
    if not all(np.isfinite(array).all() for array in arrays) or (arrays[2] < 0).any():
        raise ValueError("need finite times, values and errors, and errors of 0 or more")
    if (np.diff(arrays[0]) < 0).any():
        raise ValueError("times must ascend")
    if not 0 <= n_neighbours <= MAX_NEIGHBOURS:
        raise ValueError(f"got {n_neighbours} neighbours, need 0 to {MAX_NEIGHBOURS}")
    order = coarse_to_fine(n) if order is None else np.ascontiguousarray(order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise ValueError(f"order must be a permutation of 0 to {n - 1}")
    neighbours = np.empty((n, n_neighbours), np.int32)
    _cpu.nearest_predecessors(arrays[0], order, neighbours)
    return Points(arrays[0], arrays[1], arrays[2], neighbours)
