"""Divide events into blocks of a fixed size, so that memory use does not grow with the number of events."""

from __future__ import annotations

from collections.abc import Iterator

from dpmix.inputs.storage import release_pages
from dpmix.model.mixture import Floats
from dpmix.system.progress import ProgressLog

READ_BLOCK = 65_536
"""Events that are read and processed together.

Subsamples are drawn, and means and standard deviations are summed, block by block. Another number would
change the events of every run, so it stays as it is. It is independent of the chunks of the engines.
"""


def blocks(n_events: int, progress: ProgressLog | None = None) -> Iterator[tuple[int, int]]:
    """Yield the first and one past the last event of each block, and log the progress after each."""
    for start in range(0, n_events, READ_BLOCK):
        stop = min(start + READ_BLOCK, n_events)
        yield start, stop
        if progress is not None:
            progress.add(stop - start)


def held_blocks(values: Floats, progress: ProgressLog) -> Iterator[tuple[int, int]]:
    """Yield the blocks of events that are held, and release the memory of each block of a mapped file."""
    for start, stop in blocks(len(values), progress):
        yield start, stop
        release_pages(values, start, stop)
