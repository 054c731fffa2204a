"""The chunks of events in samples: every sample has its own grid of chunks, from its first event."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Ints


def chunk_edges(starts: Ints) -> Ints:
    """Return the first event of each chunk of each sample, and the number of events, int64 [chunks + 1]."""
    return np.concatenate([*(np.arange(*sample, CHUNK) for sample in pairwise(starts)), starts[-1:]])


def starts_of_part(starts: Ints, first_event: int, n_events: int) -> Ints:
    """Return the starts of samples within a part of a run, int64 [S + 1] from 0 to the part's events.

    Raises
    ------
    ValueError
        The starts of the run, int64 [S + 1], do not ascend from 0 to the end of the part, or beyond it.
    """
    end = first_event + n_events
    if starts[0] != 0 or starts[-1] < end or (np.diff(starts) < 0).any():
        raise ValueError(f"starts: need numbers ascending from 0 to {end}")
    return np.clip(starts, first_event, end) - first_event


def cut_samples(starts: Ints, own_starts: Ints) -> set[int]:
    """Return the samples of a run with events outside a part, given both starts."""
    return {*np.flatnonzero(np.diff(own_starts) < np.diff(starts)).tolist()}


class ChunkGrid:
    """The chunks of the events of an engine, numbered in the order of the events.

    Parameters
    ----------
    starts : int64 [S + 1]
        Ascending, from 0 to the number of events: events starts[s] to starts[s + 1] belong to sample s. A
        pooled model has one sample.

    Attributes
    ----------
    starts : int64 [S + 1]
    sizes : int64 [chunks]
        Number of events of each chunk.
    samples : int64 [chunks]
        Sample of each chunk.
    places : int64 [chunks]
        Number of each chunk within its sample.
    per_sample : int64 [S]
        Number of chunks of each sample.
    """

    def __init__(self, starts: Ints) -> None:
        self.starts = starts
        self._edges = chunk_edges(starts)
        self.sizes: Ints = np.diff(self._edges)
        self.per_sample: Ints = -(-np.diff(starts) // CHUNK)
        self.samples: Ints = np.repeat(np.arange(len(self.per_sample)), self.per_sample)
        firsts = np.cumsum(self.per_sample) - self.per_sample
        self.places: Ints = np.arange(len(self.sizes)) - firsts[self.samples]

    def __len__(self) -> int:
        return len(self.sizes)

    def events(self, chunk: int) -> tuple[int, int]:
        """Return the events of a chunk: the first, and one after the last."""
        return int(self._edges[chunk]), int(self._edges[chunk + 1])

    def sample(self, sample: int) -> tuple[int, int]:
        """Return the events of a sample: the first, and one after the last."""
        return int(self.starts[sample]), int(self.starts[sample + 1])

    def covering(self, start: int, stop: int) -> range:
        """Return the chunks that hold the events start, ..., stop - 1."""
        first, last = np.searchsorted(self._edges, [start, stop - 1], "right") - 1
        return range(int(first), int(last) + 1)
