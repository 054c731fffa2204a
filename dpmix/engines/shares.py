"""Shares of the chunks: which device or worker does which chunks, in proportion to measured speeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from threading import Lock
from typing import TypeVar

import numpy as np

from dpmix.model.mixture import Ints

Owner = TypeVar("Owner", int, str)


def interleaved_shares(n_chunks: int, speeds: Mapping[int, float]) -> dict[int, list[int]]:
    """Assign each chunk, in grid order, to the device that would finish it first.

    Parameters
    ----------
    n_chunks : int
    speeds : mapping
        Chunks per second of each device.

    Returns
    -------
    dict
        Chunks of each device, in grid order.
    """
    shares: dict[int, list[int]] = {number: [] for number in speeds}
    for chunk in range(n_chunks) if shares else ():
        first = min(shares, key=lambda number: (len(shares[number]) + 1) / speeds[number])
        shares[first].append(chunk)
    return shares


def contiguous_shares(n_chunks: int, speeds: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return a range of chunks (first, end) for each worker, in proportion to its speed.

    Workers that get no chunk are left out.
    """
    # Rounded ends of the cumulative shares, not rounded shares: these might not add up to all chunks.
    ends = np.rint(np.cumsum([*speeds.values()]) / sum(speeds.values()) * n_chunks).astype(int).tolist()
    ranges = zip(speeds, [0, *ends[:-1]], ends, strict=True)
    return {worker: (start, end) for worker, start, end in ranges if start < end}


def pass_seconds(n_chunks: Mapping[Owner, int], speeds: Mapping[Owner, float]) -> float:
    """Return the seconds until the slowest owner has done its chunks."""
    return max(count / speeds[owner] for owner, count in n_chunks.items())


def counts(shares: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return the number of chunks of each device."""
    return {number: len(share) for number, share in shares.items()}


class ChunkQueue:
    """The chunks of one pass that are still to do: each device's own, and the chunks of failed devices.

    Parameters
    ----------
    shares : mapping
        The chunks of each device.
    samples : int [chunks], optional
        The sample of each chunk of the grid. Default: all chunks belong to one sample.
    """

    def __init__(self, shares: Mapping[int, Sequence[int]], samples: Ints | None = None) -> None:
        self._lock = Lock()
        self._samples = samples
        self._queues = {number: deque(share) for number, share in shares.items()}
        self._unfinished = {number: set(share) for number, share in shares.items()}
        self._orphans: deque[int] = deque()  # of failed devices, in grid order
        self.stopped = False

    def take(self, number: int, most: int, most_orphans: int) -> list[int]:
        """Return chunks of one sample for a device to do, orphans or else its own; none if all are taken."""
        with self._lock:
            queue = self._orphans or self._queues[number]
            most = most_orphans if self._orphans else most
            chunks = [queue.popleft() for _ in range(min(most, self._n_alike(queue, most)))]
            # Orphans become unfinished chunks of their new owner, so that they are orphans again if it fails,
            # too.
            self._unfinished[number].update(chunks)
        return chunks

    def _n_alike(self, queue: deque[int], most: int) -> int:
        """Return the number of chunks at the start of a queue that belong to one sample, at most `most`."""
        samples = self._samples
        if samples is None or not queue:
            return len(queue)
        first = samples[queue[0]]
        return sum(1 for _ in takewhile(lambda chunk: samples[chunk] == first, islice(queue, most)))

    def has_for(self, number: int) -> bool:
        """Return True if there are chunks for a device to take."""
        with self._lock:
            return bool(self._orphans or self._queues[number])

    def finish(self, number: int) -> None:
        """Record that a device has delivered all chunks that it has taken."""
        with self._lock:
            # Chunks that are still in its queue have not been taken, and stay unfinished.
            self._unfinished[number].intersection_update(self._queues[number])

    def abandon(self, number: int) -> None:
        """Give all unfinished chunks of a failed device to the others."""
        with self._lock:
            # All that it has taken in this pass, delivered or not: the sum on the device is lost with it.
            self._orphans = deque(sorted([*self._orphans, *self._unfinished[number]]))
            self._unfinished[number].clear()
            self._queues[number].clear()

    def stop(self) -> None:
        """Hand out no more chunks, and drop all that are not delivered."""
        with self._lock:
            self.stopped = True
            for queue in (self._orphans, *self._queues.values()):
                queue.clear()
            for taken in self._unfinished.values():
                taken.clear()

    def unfinished(self) -> bool:
        """Return True if chunks are neither delivered nor dropped."""
        with self._lock:
            return bool(self._orphans) or any(self._unfinished.values())
