"""Read the files of a run into one array of raw values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.blocks import blocks
from dpmix.inputs.file_plans import FilePlan, file_names
from dpmix.inputs.limits import scan_file
from dpmix.inputs.outliers import Outlier, outliers
from dpmix.inputs.storage import Storage, release_pages
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.system.progress import ProgressLog

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Subset:
    """Which events of the files are used.

    Attributes
    ----------
    n_events : int
        Size of a simple random sample of all events; their number for all of them.
    drop_margins : bool
        Drop the margin events of that sample.
    seed : int
        Seed of the random sample.
    """

    n_events: int
    drop_margins: bool = False
    seed: int = 0


class ChannelCounts:
    """Counts and extremes of each channel over the events read so far.

    Attributes
    ----------
    low, high : int64 [D]
        Margin events at the lower and at the upper limit, before margin events are dropped.
    negative, not_positive : int64 [D]
        Raw values below 0, and at or below 0, of the events that are used.
    lowest, highest : float64 [D]
        Extreme raw values of the events that are used.
    """

    def __init__(self, n_channels: int) -> None:
        self.low, self.high, self.negative, self.not_positive = np.zeros((4, n_channels), np.int64)
        self.lowest, self.highest = np.full(n_channels, np.inf), np.full(n_channels, -np.inf)

    def add_margins(self, at_low: Flags, at_high: Flags) -> None:
        """Count margin events, bool [M, D] each."""
        self.low += at_low.sum(0)
        self.high += at_high.sum(0)

    def add_values(self, raw: Array) -> None:
        """Count raw values of events that are used, float64 [M, D]."""
        self.negative += (raw < 0).sum(0)
        self.not_positive += (raw <= 0).sum(0)
        self.lowest = np.minimum(self.lowest, raw.min(0, initial=np.inf))
        self.highest = np.maximum(self.highest, raw.max(0, initial=-np.inf))


@dataclass(frozen=True)
class Gathered:
    """Raw values of the events that are used.

    Attributes
    ----------
    values : float32 [N, D]
        Transformed and standardised in place later.
    rows : int64 [N] or None
        Row of each event in its file; None where all rows are used.
    sample_starts : int64 [S + 1]
        Events sample_starts[s] to sample_starts[s + 1] belong to file s.
    n_read : int
        Events drawn from the files, margin events included, those that are left out not.
    counts : ChannelCounts
    digests : tuple of tuples of bytes
        For each file, D digests of its channels.
    left_out : tuple of (int, str)
        For each file, the events that are left out because a value is not finite, and where such values are.
    outliers : tuple of Outlier
        Values so far from all others of a channel that they hide them.
    """

    values: Floats
    rows: Ints | None
    sample_starts: Ints
    n_read: int
    counts: ChannelCounts
    digests: tuple[tuple[bytes, ...], ...]
    left_out: tuple[tuple[int, str], ...]
    outliers: tuple[Outlier, ...]


def _named(plans: Sequence[FilePlan], progress: ProgressLog) -> Iterator[FilePlan]:
    """Yield the plans; where there are several, the progress names the file at hand."""
    for plan in plans:
        progress.place = plan.source.name if len(plans) > 1 else ""
        yield plan
    progress.place = ""


def gather(plans: Sequence[FilePlan], subset: Subset, storage: Storage, progress: ProgressLog) -> Gathered:
    """Read each file twice: for the limits and the digests of its channels, then for the events.

    Raises
    ------
    DataError
        A file cannot be read, changes while it is read, or has many values that are not finite.
    """
    sizes, n_channels = [plan.source.n_events for plan in plans], len(plans[0].chosen)
    # Before any file is read: a lack of memory or disk is an error at once, not after minutes.
    values = storage.hold(subset.n_events, n_channels, file_names(plans))
    scans = [scan_file(plan, progress) for plan in _named(plans, progress)]
    all_finite = not any(scan.not_finite for scan in scans)
    all_rows = subset.n_events == sum(sizes) and not subset.drop_margins and all_finite
    rows = None if all_rows else np.empty(subset.n_events, np.int64)
    counts = ChannelCounts(n_channels)
    starts, filled, left_out = [0], 0, []
    selection = select_rows(sizes, subset.n_events, subset.seed)
    for plan, own in zip(_named(plans, progress), scans, strict=True):
        n_left_out = 0
        for start, stop in blocks(plan.source.n_events, progress):
            picked = next(selection)
            if picked is not None and len(picked) == 0:
                continue
            stored, raw = plan.read(start, stop, picked)
            numbers = np.arange(start, stop) if picked is None else start + picked
            at_low, at_high = stored <= own.low, stored >= own.high
            counts.add_margins(at_low, at_high)
            inside = np.ones(len(raw), bool)
            if own.not_finite:
                inside &= np.isfinite(raw).all(1)
                n_left_out += len(raw) - int(inside.sum())
            if subset.drop_margins:
                inside &= ~(at_low | at_high).any(1)
            if not inside.all():
                raw, numbers = raw[inside], numbers[inside]
            counts.add_values(raw)
            end = filled + len(raw)
            values[filled:end] = raw
            if rows is not None:
                rows[filled:end] = numbers
            release_pages(values, filled, end)
            filled = end
        starts.append(filled)
        left_out.append((n_left_out, own.not_finite))
        # A file that grew or shrank between the two readings has limits of other events.
        plan.source.require_unchanged()
    rows = None if rows is None else rows[:filled].copy()
    digests = tuple(scan.digests for scan in scans)
    n_read = subset.n_events - sum(n for n, _ in left_out)
    values, far = values[:filled], tuple(outliers(values[:filled], counts.lowest, counts.highest))
    return Gathered(values, rows, np.array(starts), n_read, counts, digests, tuple(left_out), far)


def select_rows(sizes: Sequence[int], n_events: int, seed: int) -> Iterator[Ints | None]:
    """Yield for each block of each file the rows within it that are used, in order; None for all of them.

    The rows are a simple random sample of the events of all files. It is drawn block by block: first the
    number of events of the block by the hypergeometric distribution, then which ones.
    """
    random = np.random.default_rng(seed)
    remaining, needed = sum(sizes), n_events
    for size in sizes:
        for start, stop in blocks(size):
            n = stop - start
            if needed == remaining:
                picked, taken = None, n
            else:
                # By block, so that no permutation of all events is held; the result is the same simple random
                # sample.
                taken = int(random.hypergeometric(n, remaining - n, needed)) if needed else 0
                picked = np.sort(random.choice(n, taken, replace=False))
            remaining, needed = remaining - n, needed - taken
            yield picked
