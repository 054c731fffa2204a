"""The transformed values of the events of a run with all digits of their files.

The events of a run are rounded to float32. Of some 100,000 events, one or two lie so near the side of a gate
that the rounding moves them across it, and programs that apply the gate to the file count others. So counts
of gates that such programs read come from the files again, in float64, as these programs compute:
amplification undone, compensated, transformed. Neither noise at atoms nor a correction over time is in them.

Only FCS files are read again. Values of other files come from the run: no other program applies gates to
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import read_events
from dpmix.model.mixture import Array, Ints

BLOCK = 131_072  # rows of a file that are read at a time


def exact_blocks(
    events: Events, channels: Sequence[int], all_rows: bool = False
) -> Iterator[tuple[int, Array]]:
    """Yield consecutive events, sample by sample.

    Parameters
    ----------
    events : Events
        Without noise at atoms.
    channels : sequence of int
        Numbers of the channels that are needed; all others are 0.
    all_rows : bool
        All events of the files, in use or not.

    Yields
    ------
    start : int
        Number of the first event among those in use; without meaning for `all_rows`.
    values : float64 [M, D]
        Transformed scale. NaN where a transform is not defined, which happens only in events that are not in
        use.

    Raises
    ------
    DataError
        A file cannot be read, or has changed.
    """
    for sample, (first, last) in enumerate(pairwise(events.sample_starts.tolist())):
        source = events.sources[sample]
        if source.header is None:
            for start in range(first, last, BLOCK):
                held = events.values[start : min(start + BLOCK, last)]
                yield start, events.scaling.to_transformed(held)
            continue
        source.require_unchanged()
        done = first
        for low in range(0, source.header.n_events, BLOCK):
            rows = np.arange(low, min(low + BLOCK, source.header.n_events))
            if events.rows is not None and not all_rows:
                begin, end = np.searchsorted(events.rows[first:last], (low, low + BLOCK))
                rows = events.rows[first + begin : first + end]
            if len(rows):
                yield done, _read(events, sample, rows, channels)
            done += len(rows)


def _read(events: Events, sample: int, rows: Ints, channels: Sequence[int]) -> Array:
    """Return events of an FCS file, given their ascending rows, int64 [M], as `exact_blocks` does."""
    plan, header = events.plans[sample], events.sources[sample].header
    assert header is not None
    low, high = int(rows[0]), int(rows[-1]) + 1
    stored = read_events(header, low, high, plan.columns, exact=True)
    with np.errstate(all="ignore"):
        raw = plan.to_raw(stored[rows - low])
        values = np.zeros(raw.shape)
        for d in channels:
            values[:, d] = events.scaling.transforms[d].apply(raw[:, d])
    return values
