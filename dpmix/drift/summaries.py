"""Robust summaries of the events in order of time: medians of blocks, with their standard errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints

BLOCK = 200
"""Events. In smaller blocks the median jumps between two populations of nearly half of the events each."""

SMALL_BLOCK, MANY_EVENTS = 100, 1_000_000
"""Events of a block in recordings of this many events, where the resolution in time is worth the noise
of the medians, and 10^6 to 10^8 events become 10^4 to 10^6 blocks."""

BATCH = 65_536
"""Events that are sorted at a time, at least a block."""

LIMIT = 0.2
"""Spreads: a smaller change of a channel is called steady. Populations are several spreads wide or apart."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of consecutive events.

    Attributes
    ----------
    starts : int64 [B + 1]
        Block b has the events starts[b] to starts[b + 1].
    times : float64 [B]
        Median time of the events of each block.
    medians, errors : float64 [B, D]
        Median of each channel, and its standard error.
    """

    starts: Ints
    times: Array
    medians: Array
    errors: Array


def block_starts(n_events: int) -> Ints:
    """Return the starts of blocks of equal size (to one event), int64 [B + 1].

    Raises
    ------
    ValueError
        There are fewer than 2 blocks.
    """
    count = n_events // (BLOCK if n_events < MANY_EVENTS else SMALL_BLOCK)
    if count < 2:
        raise ValueError(f"got {n_events} events, need {2 * BLOCK} at least")
    return np.linspace(0, n_events, count + 1).astype(np.int64)


def summarise(values: Floats | Array, times: Array, starts: Ints) -> Blocks:
    """Return the medians of blocks and their standard errors.

    The standard error of the median of n events is half the distance between its order statistics n / 2 -
    sqrt(n) / 2 and n / 2 + sqrt(n) / 2, which needs no distribution (David and Nagaraja 2003, Order
    Statistics, 7.1). All blocks of a channel share the mean of their errors: the error of one block is known
    to a third only.

    Parameters
    ----------
    values : float32 or float64 [N, D]
        Events in order of time.
    times : float64 [N]
        Ascending.
    starts : int64 [B + 1]
        Starts of the blocks; every block has events.
    """
    count, dim = len(starts) - 1, values.shape[1]
    medians, widths, middle = np.empty((count, dim)), np.empty((count, dim)), np.empty(count)
    sizes = np.diff(starts)
    for n in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == n)
        for own in np.array_split(alike, -(-len(alike) * n // BATCH)):
            rows = starts[own, None] + np.arange(n)
            ordered = np.sort(values[rows].transpose(0, 2, 1), axis=-1).astype(np.float64)
            low = max(int(np.floor(0.5 * (n - np.sqrt(n)))), 0)
            width = ordered[..., n - 1 - low] - ordered[..., low]
            widths[own] = 0.5 * width * np.sqrt(n) / (n - 1 - 2 * low)  # whole ranks
            medians[own] = 0.5 * (ordered[..., (n - 1) // 2] + ordered[..., n // 2])
            # The time of the middle event, not the middle of the times: a pause would move it away from the
            # events.
            middle[own] = 0.5 * (times[rows[:, (n - 1) // 2]] + times[rows[:, n // 2]])
    errors = np.broadcast_to(widths.mean(axis=0), medians.shape)
    return Blocks(starts, middle, medians, errors)


def spread_of(values: Array | Floats) -> Array:
    """Return half the distance from the 16% to the 84% quantile of each channel, float64 [D]."""
    low, high = np.quantile(values, [0.16, 0.84], axis=0)
    return np.asarray(0.5 * (high - low))
