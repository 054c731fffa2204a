"""Order-free sums of float64: the bits do not depend on the order or grouping of the additions.

They are binned sums after Demmel and Nguyen (2015), Parallel reproducible summation, IEEE Trans. Comput.
64:2060; see kernels/cpu/exact.hpp for the method and its error. A state is float64 [4, n]: the planes c, a0,
a1, a2 of n sums. It is a function of the numbers added alone, so states of parts may be merged in any tree,
as long as no sum has more than `MAX_ADDITIONS` numbers.

A sum with an infinity or NaN is the IEEE sum of its numbers that are not finite. A number beyond 1.5 * 2^988
(3.9e297) counts as infinite.
"""

from __future__ import annotations

import numpy as np

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array

MAX_ADDITIONS = 1 << 22
"""Numbers of a sum, over all merged states, for which addition is guaranteed exact (the limit is 2^24)."""


def zeros(n: int) -> Array:
    """Return the state of n empty sums, float64 [4, n]."""
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
        The shapes do not match.
    """
    _check(state, numbers.shape)
    _cpu.add(state, numbers)


def merge(state: Array, other: Array) -> None:
    """Add other sums to these sums, in place, without the interpreter's lock.

    Parameters
    ----------
    state : float64 [4, n], C-contiguous
    other : float64 [4, n]

    Raises
    ------
    ValueError
        The shapes do not match.
    """
    _check(state, other.shape[1:])
    _check(other, state.shape[1:])
    _cpu.merge(state, other)


def values(state: Array) -> Array:
    """Return the sums, float64 [n], each rounded once.

    Parameters
    ----------
    state : float64 [4, n]

    Raises
    ------
    ValueError
        The shape is not [4, n].
    """
    _check(state, state.shape[1:])
    out = np.empty(state.shape[1])
    _cpu.values(state, out)
    return out


def _check(state: Array, n: tuple[int, ...]) -> None:
    if state.shape != (4, *n) or state.ndim != 2:
        raise ValueError(f"state: got {list(state.shape)}, need [4, n] for sums {list(n)}")
