"""Sums of float64 whose every bit is the same in whatever order and grouping they are added.

Binned sums after Demmel and Nguyen (2015), Parallel reproducible summation, IEEE Trans. Comput. 64:2060; how,
and their error, is told in kernels/cpu/exact.hpp. A state is float64 [4, n], planes c, a0, a1, a2 of n sums.
It is a function of the numbers added alone, so that states of parts may be merged in any tree, so long as no
sum has more than `MAX_ADDITIONS` numbers.

An infinity or NaN makes a sum what IEEE arithmetic makes of all its numbers that are not finite; a number
beyond 1.5 * 2^988 (3.9e297) counts as infinite.
"""

from __future__ import annotations

import numpy as np

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array

MAX_ADDITIONS = 1 << 22
"""Numbers of a sum, all merged ones together, that are surely added without rounding (it is 2^24)."""


def zeros(n: int) -> Array:
    """The state of n sums of nothing, float64 [4, n]."""
    return np.zeros((4, n))


def add(state: Array, numbers: Array) -> None:
    """Add a number to each sum, in place, without the interpreter's lock.

    Parameters
    ----------
    state : float64 [4, n], C-contiguous
    numbers : float64 [n]

    Raises
    ------
    ValueError
        The shapes do not fit.
    """
    _check(state, numbers.shape)
    _cpu.add(state, numbers)


def merge(state: Array, other: Array) -> None:
    """Add other sums to these, in place, without the interpreter's lock.

    Parameters
    ----------
    state : float64 [4, n], C-contiguous
    other : float64 [4, n]

    Raises
    ------
    ValueError
        The shapes do not fit.
    """
    _check(state, other.shape[1:])
    _check(other, state.shape[1:])
    _cpu.merge(state, other)


def values(state: Array) -> Array:
    """The sums, float64 [n], each rounded once.

    Parameters
    ----------
    state : float64 [4, n]

    Raises
    ------
    ValueError
        It is not of such a shape.
    """
    _check(state, state.shape[1:])
    out = np.empty(state.shape[1])
    _cpu.values(state, out)
    return out


def _check(state: Array, n: tuple[int, ...]) -> None:
    if state.shape != (4, *n) or state.ndim != 2:
        raise ValueError(f"state: got {list(state.shape)}, need [4, n] for sums {list(n)}")
