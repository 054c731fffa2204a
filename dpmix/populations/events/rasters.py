"""Counts of events on a grid for every pair of channels, block by block; pictures of any N use them.

N events, D channels, B bins of a channel, P populations.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.outlines import Rings, merged_bins, outlines, smoothers

ALL_BINS = 2_000_000  # of all pairs together: with two bytes each, 4 MB in a report for any N and D
FEWEST_BINS, MOST_BINS = 24, 128
MARGIN = 0.05  # of the grid beyond the range of the events, relative to that range
BUFFER = 1 << 19  # events held as bins before they are counted: one pass over many is faster
MOST_OUTLINES, LEAST_OUTLINED = 8_000, 12  # of all pairs together; populations that have them in any case
DENSE = 1 << 21  # number of codes up to which counting all is faster than sorting a full buffer


@dataclass(frozen=True)
class Rasters:
    """Counts of events on a grid for each pair of channels; their size does not grow with N.

    Attributes
    ----------
    edges : float64 [D, B + 1]
        Edges of the B bins of each channel, transformed scale. Events beyond the ends are in the first or
        last bin.
    pairs : int64 [D (D - 1) / 2, 2]
        Channels of each pair: (0, 1), (0, 2), ..., (D - 2, D - 1).
    counts : int64 [pairs, B, B]
        Number of events; the first index is the bin of the first channel.
    populations : int16 [pairs, B, B]
        Most frequent population of each bin, -1 for an empty bin.
    visible : float32 [pairs, P]
        Share of the events of each population in bins where it is the most frequent one: how much of it a
        picture of the pair shows in its colour. 0 for a population without events.
    lines : int64 [D, P, B]
        Number of events of each population in the bins of one channel; empty for a single channel.
    outlines : tuple of lists of Rings
        For each pair, the outlines of the first populations (`dpmix.populations.events.outlines`).
    """

    edges: Array
    pairs: Ints
    counts: Ints
    populations: npt.NDArray[np.int16]
    visible: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    lines: Ints = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    outlines: tuple[list[Rings], ...] = ()

    @property
    def n_outlined(self) -> int:
        """Number of populations with outlines, the first ones."""
        return len(self.outlines[0]) if self.outlines else 0


def bins_for(n_channels: int) -> int:
    """Return the number of bins of each channel, B: fewer for many pairs."""
    pairs = max(1, n_channels * (n_channels - 1) // 2)
    return int(np.clip(np.sqrt(ALL_BINS / pairs), FEWEST_BINS, MOST_BINS))


def grid(lows: npt.ArrayLike, highs: npt.ArrayLike) -> Array:
    """Return the edges of the bins, equally wide in a channel, float64 [D, B + 1].

    Parameters
    ----------
    lows, highs : float [D]
        Range of nearly all events, for example the 0.1% and 99.9% quantiles, transformed scale. The grid adds
        a margin. A channel with equal ends gets a grid of width 1.

    Raises
    ------
    ValueError
        The ends are not finite or differ in length, or a low end is above its high end.
    """
    low, high = np.asarray(lows, float), np.asarray(highs, float)
    if low.ndim != 1 or low.shape != high.shape or not np.all(np.isfinite(low) & np.isfinite(high)):
        raise ValueError("the ends of each channel must be finite")
    if np.any(low > high):
        raise ValueError("the low end of a channel is above its high end")
    margin = np.where(high > low, MARGIN * (high - low), 0.5)
    return np.linspace(low - margin, high + margin, bins_for(len(low)) + 1, axis=1)


class Counter:
    """Counts events; blocks of any size in any order give the same `Rasters`.

    It needs 12 bytes for each bin of a pair and population that holds an event, and a buffer.

    Parameters
    ----------
    edges : float64 [D, B + 1]
        Result of `grid`: equally wide, B up to 256.
    n_populations : int
        P.
    """

    def __init__(self, edges: Array, n_populations: int) -> None:
        n_channels, bins = len(edges), edges.shape[1] - 1
        if not 1 <= bins <= 256:
            raise ValueError(f"{bins} bins, need 1 to 256")
        if not 1 <= n_populations <= np.iinfo(np.int16).max:
            raise ValueError(f"{n_populations} populations, need 1 to {np.iinfo(np.int16).max}")
        self._edges = edges
        self._n_populations = n_populations
        self._pairs = list(itertools.combinations(range(n_channels), 2))
        self._bins = np.empty((n_channels, BUFFER), np.uint8)
        self._populations = np.empty(BUFFER, np.uint32)
        self._buffered = 0
        nothing = np.empty(0, np.uint32), np.empty(0, np.int64)
        self._counted = [nothing] * len(self._pairs)

    def add(self, values: npt.NDArray[np.floating], populations: npt.NDArray[np.integer]) -> None:
        """Count events.

        Parameters
        ----------
        values : float [M, D]
            Transformed scale; values beyond the grid count in the first or last bin.
        populations : int [M]
            0..P-1.

        Raises
        ------
        ValueError
            The shapes differ, a value is not finite, or a population is out of range.
        """
        if values.shape != (len(populations), len(self._edges)):
            raise ValueError(
                f"values {values.shape} for {len(populations)} events, {len(self._edges)} channels"
            )
        if len(populations) and not 0 <= populations.min() <= populations.max() < self._n_populations:
            raise ValueError(f"populations are 0 to {self._n_populations - 1}")
        first = 0
        while first < len(values):
            last = first + min(BUFFER - self._buffered, len(values) - first)
            place = slice(self._buffered, self._buffered + last - first)
            self._bins[:, place] = self._bins_of(values[first:last])
            self._populations[place] = populations[first:last]
            self._buffered = place.stop
            if self._buffered == BUFFER:
                self._count()
            first = last

    def rasters(self) -> Rasters:
        """Return the counts so far."""
        self._count()
        bins, many = self._edges.shape[1] - 1, self._n_populations
        n_pairs = len(self._pairs)
        counts = np.zeros((n_pairs, bins * bins), np.int64)
        populations = np.full(counts.shape, -1, np.int16)
        visible = np.zeros((n_pairs, many), np.float32)
        lines = np.zeros((len(self._edges) if n_pairs else 0, many, bins), np.int64)
        for pair, (codes, events) in enumerate(self._counted):
            places, of = (part.astype(np.int64) for part in np.divmod(codes, np.uint32(many)))
            np.add.at(counts[pair], places, events)
            # The last write wins: the population with most events, the lower number for ties.
            order = np.lexsort((-of, events))
            populations[pair, places[order]] = of[order]
            sizes = np.bincount(of, events, many)
            shown = np.bincount(of, events * (populations[pair, places] == of), many)
            visible[pair] = shown / np.maximum(sizes, 1.0)
            # The histogram of a channel is the sum of any of its pairs: no events are counted again.
            for channel, at in zip(self._pairs[pair], np.divmod(places, bins), strict=True):
                if not lines[channel].any():
                    np.add.at(lines[channel], (of, at), events)
        found = self._outlines(lines)
        shape = (n_pairs, bins, bins)
        pairs = np.array(self._pairs, np.int64).reshape(-1, 2)
        return Rasters(
            self._edges,
            pairs,
            counts.reshape(shape),
            populations.reshape(shape),
            visible,
            lines,
            tuple(found),
        )

    def _outlines(self, lines: Ints) -> list[list[Rings]]:
        """Return the outlines of the first populations in each pair; `lines` are as in `Rasters`."""
        bins, many = self._edges.shape[1] - 1, self._n_populations
        drawn = min(many, max(LEAST_OUTLINED, MOST_OUTLINES // max(len(self._pairs), 1)))
        step = merged_bins(bins)
        size = -(-bins // step)
        padded = np.pad(lines[:, :drawn], [(0, 0), (0, 0), (0, size * step - bins)])
        merged = padded.reshape(len(lines), drawn, size, step).sum(axis=3)
        starts, widths = self._edges[:, 0], step * (self._edges[:, -1] - self._edges[:, 0]) / bins
        smooth = [smoothers(np.maximum(rows, 1e-9), 2) for rows in merged]
        found = []
        for (x, y), (codes, events) in zip(self._pairs, self._counted, strict=True):
            places, of = (part.astype(np.int64) for part in np.divmod(codes, np.uint32(many)))
            first = of < drawn
            rows, columns = np.divmod(places[first], bins)
            own = (of[first] * size + rows // step) * size + columns // step
            flat = np.bincount(own, events[first], drawn * size * size)
            counts = flat.astype(np.float64, copy=False).reshape(drawn, size, size)
            found.append(outlines(counts, (smooth[x], smooth[y]), starts[[x, y]], widths[[x, y]]))
        return found

    def _bins_of(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
        """Return the bin of each value, uint8 [D, M]."""
        bins = self._edges.shape[1] - 1
        lows, highs = self._edges[:, :1], self._edges[:, -1:]
        places = (values.T - lows) * (bins / (highs - lows))
        if not np.isfinite(places).all():
            raise ValueError("a value is not finite")
        # An event on the upper edge belongs to the last bin; others beyond the grid cannot be, but for
        # rounding.
        clipped: npt.NDArray[np.uint8] = np.clip(places, 0, bins - 1).astype(np.uint8)
        return clipped

    def _count(self) -> None:
        """Empty the buffer: count the codes of (bin, bin, population) of every pair."""
        held = slice(0, self._buffered)
        size, bins = np.uint32(self._n_populations), np.uint32(self._edges.shape[1] - 1)
        rows = [channel[held] * (bins * size) for channel in self._bins]
        columns = [channel[held] * size + self._populations[held] for channel in self._bins]
        # One number for two bins and a population, so that counting is one sort or one table.
        codes = int(bins) ** 2 * self._n_populations
        for pair, (x, y) in enumerate(self._pairs):
            self._counted[pair] = _counted(rows[x] + columns[y], codes, *self._counted[pair])
        self._buffered = 0


def _counted(
    seen: npt.NDArray[np.uint32], n_codes: int, codes: npt.NDArray[np.uint32], events: Ints
) -> tuple[npt.NDArray[np.uint32], Ints]:
    """Add the codes seen now to codes, ascending, and their numbers of events; codes are below n_codes."""
    if n_codes <= DENSE:
        counts = np.bincount(seen, minlength=n_codes)
        counts[codes] += events
        found = np.flatnonzero(counts)
        return found.astype(np.uint32), counts[found]
    new_codes, new_events = np.unique_counts(seen)
    found_codes, place = np.unique_inverse(np.append(codes, new_codes))
    summed = np.zeros(len(found_codes), np.int64)
    np.add.at(summed, place, np.append(events, new_events))
    return found_codes, summed
