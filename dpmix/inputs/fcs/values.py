"""Stored values of a channel of an FCS file: their type, and bytes to numbers."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Order = Literal["<", ">"]
TYPES = {("F", 32): "f4", ("D", 64): "f8"} | {("I", 8 * size): f"u{size}" for size in (1, 2, 4, 8)}


def stored_type(letter: str, bits: int, order: Order) -> np.dtype[Any] | None:
    """Return the type of values by $DATATYPE, $PnB and byte order, None where dpmix does not read it.

    Integers of 24 bits are three bytes.
    """
    if (letter, bits) == ("I", 24):
        return np.dtype(("u1", (3,)))
    return np.dtype(order + TYPES[letter, bits]) if (letter, bits) in TYPES else None


def range_mask(limit: float | None) -> int | None:
    """Return the bits that integers below $PnR use (rounded up to a power of 2), None without a limit."""
    return None if limit is None else (1 << (math.ceil(limit) - 1).bit_length()) - 1


def unpacked(stored: npt.NDArray[Any], order: Order, mask: int | None) -> npt.NDArray[Any]:
    """Return stored values as numbers, and integers masked where a mask is given.

    Parameters
    ----------
    stored : [N] of `stored_type`
        [N, 3] of bytes for 24-bit integers.
    order : "<" or ">"
    mask : int or None
        `range_mask` of an integer channel.
    """
    if stored.ndim == 2:
        # NumPy has no integers of three bytes.
        bytes_ = stored.astype(np.uint32)
        low, high = (0, 2) if order == "<" else (2, 0)
        stored = bytes_[:, low] | bytes_[:, 1] << 8 | bytes_[:, high] << 16
    if mask is not None and mask < np.iinfo(stored.dtype).max:
        stored = stored & stored.dtype.type(mask)
    return stored
