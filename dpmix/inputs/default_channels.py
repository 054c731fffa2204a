"""Choose the channels of a run: those that the config lists, or by default those that measure markers.

The default is the same for a run and for the config that `dpmix init` writes. It leaves out channels by their
names (`dpmix.inputs.channel_names`) and by a bounded number of events: constant channels, channels without
numbers, and copies of other channels. Phosphorylated proteins show what a cell does, not what it is: where
other markers remain, `dpmix init` makes them state channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from dpmix.errors import DataError
from dpmix.inputs.channel_names import is_marker, is_phosphoprotein, why_left_out
from dpmix.inputs.channels import match_all, refuse_twice, same_channels
from dpmix.inputs.limits import MOST_NOT_FINITE
from dpmix.inputs.sources import Source
from dpmix.kernels.layout import MAX_CHANNELS
from dpmix.model.mixture import Floats

MOST_EVENTS = 65_536  # that are read to choose channels and to fit transforms, of all files together
MOST_FILES = 64  # whose events are read
STRETCH = 1024  # consecutive events read together
SIGNALLING = "signalling"  # reason for phosphorylated proteins
LEAST_OTHERS = 3  # channels without which phosphorylated proteins are default channels, too
NOT_FINITE = "not finite"  # start of a reason; a run stops at such values, and does not leave out the channel

Rows = tuple[int, int]


def choose_channels(
    patterns: Sequence[str] | None,
    sources: Sequence[Source],
    recorded: Sequence[str] | None = None,
    state: Sequence[int] = (),
) -> tuple[list[Sequence[int]], list[str]]:
    """Select the channels of a run in each of its files.

    Parameters
    ----------
    patterns : sequence of str or None
        Names or globs; None for the default channels.
    sources : sequence of Source
    recorded : sequence of str, optional
        Detectors in the first file of an earlier run with these files. Only they are used.
    state : sequence of int
        State channels in the first file; they are not default channels.

    Returns
    -------
    chosen : list of sequence of int
        For each file the numbers of the D channels of the run.
    notes : list of str
        For the report.

    Raises
    ------
    ConfigError
        A name matches no channel of the first file, or is listed twice.
    DataError
        No channel is selected, or a file lacks one.
    """
    first = sources[0]
    notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
    if recorded is not None:
        own = _recorded(first, recorded)
    elif patterns is not None:
        found = match_all("data.channels", patterns, first)
        refuse_twice("data.channels", patterns, found, first)
        own = list(dict.fromkeys(k for numbers in found.values() for k in numbers))
    else:
        own, left_out = _default(sources, state)
        notes += filter(None, [note_of_stains(first, own)])
        if left_out:
            notes.append(f"{first.name}: not used unless listed in data.channels: {left_out}")
    chosen: list[Sequence[int]] = [own]
    for source in sources[1:]:
        numbers, differences = same_channels(first, own, source)
        chosen.append(numbers)
        notes += differences
    return chosen, notes


def _recorded(source: Source, detectors: Sequence[str]) -> list[int]:
    """Return the numbers of the channels of an earlier run in its first file."""
    missing = [name for name in detectors if name not in source.channels]
    if missing:
        raise DataError(f"{source.name}: has no channel {', '.join(missing)}, which the run used")
    return [source.channels.index(name) for name in detectors]


def _default(sources: Sequence[Source], state: Sequence[int]) -> tuple[list[int], str]:
    """Return the default channels of the first file, and the others with the reasons."""
    first = sources[0]
    # A run must not silently lose a channel for bad values: it stops, and says which events.
    reasons = ["" if why.startswith(NOT_FINITE) else why for why in reasons_to_leave_out(sources)]
    for k in state:
        reasons[k] = "state channel"
    chosen, left_out = (
        [k for k, why in enumerate(reasons) if not why],
        describe_reasons(first.channels, reasons),
    )
    if not chosen:
        raise DataError(
            f"{first.name}: no channel is used by default: {left_out}; list the channels to use in "
            "data.channels"
        )
    return chosen, left_out


def describe_reasons(names: Sequence[str], reasons: Sequence[str]) -> str:
    """Return the channels that are left out, by reason, in one line; a reason is "" for a channel in use."""
    by_reason: dict[str, list[str]] = {}
    for name, why in zip(names, reasons, strict=True):
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(same)} ({why})" for why, same in by_reason.items() if why)


def reasons_to_leave_out(sources: Sequence[Source], absent: Mapping[int, str] | None = None) -> list[str]:
    """Return for each channel of the first file why it is not a default channel, "" if it is one.

    Parameters
    ----------
    sources : sequence of Source
    absent : mapping of int to str, optional
        Channels that other files lack, with the reason to leave them out; default: none may be absent.

    Raises
    ------
    DataError
        A file lacks a channel of the first one, or cannot be read.
    """
    first = sources[0]
    reasons = why_left_out(first.details, first.kind)
    for k, why in (absent or {}).items():
        reasons[k] = reasons[k] or why
    for k, channel in enumerate(first.details):
        if not reasons[k] and not channel.numeric:
            reasons[k] = "not numbers"
    chosen = [k for k, why in enumerate(reasons) if not why]
    if not chosen or sum(source.n_events for source in sources) < len(chosen):
        return reasons  # too few events to judge a channel by them; a run says so
    columns = [chosen, *(same_channels(first, chosen, source)[0] for source in sources[1:])]
    for k, why in _judged(first, chosen, read_some(sources, columns)).items():
        reasons[k] = why
    return _at_most(first, _without_signalling(first, reasons))


def _without_signalling(source: Source, reasons: Sequence[str]) -> list[str]:
    """Return the reasons, with one for phosphorylated proteins if enough other channels remain.

    Clusters of 16 samples of blood, half of them stimulated, were cells with and without signals instead of
    cell types while such markers were in the model (docs/benchmarks/agreement.md).
    """
    remaining = [k for k, why in enumerate(reasons) if not why]
    details = source.details
    signals = {k for k in remaining if is_phosphoprotein(details[k].marker or details[k].detector)}
    if len(remaining) - len(signals) < LEAST_OTHERS:
        return list(reasons)
    return [SIGNALLING if k in signals else why for k, why in enumerate(reasons)]


def read_some(sources: Sequence[Source], columns: Sequence[Sequence[int]]) -> Floats:
    """Read a bounded number of events from files.

    Parameters
    ----------
    sources : sequence of Source
    columns : sequence of sequence of int
        For each file the numbers of its D columns.

    Returns
    -------
    float32 [M, D]
        As stored.
    """
    parts = [
        source.read(start, stop, wanted)
        for source, wanted, stretches in zip(sources, columns, some_rows(sources), strict=True)
        for start, stop in stretches
    ]
    return np.concatenate(parts) if parts else np.empty((0, len(columns[0])), np.float32)


def some_rows(sources: Sequence[Source]) -> list[list[Rows]]:
    """Return evenly spaced stretches [start, stop) of the rows of each file, `MOST_EVENTS` in all."""
    # Files all over the list, not the first ones, which may be of one group.
    step = -(-len(sources) // MOST_FILES)
    read = sources[::step]
    total = sum(source.n_events for source in read)
    rows: list[list[Rows]] = [[] for _ in sources]
    for number, source in zip(range(0, len(sources), step), read, strict=True):
        share = source.n_events if total <= MOST_EVENTS else MOST_EVENTS * source.n_events // total
        if share == source.n_events:
            rows[number] = [(0, share)] if share else []
            continue
        count = max(share // STRETCH, 1)
        length = min(max(share, 1) // count + 1, source.n_events)
        starts = np.linspace(0, source.n_events - length, count).astype(int)
        rows[number] = [(int(start), int(start) + length) for start in starts]
    return rows


def note_of_stains(source: Source, chosen: Sequence[int]) -> str:
    """Return the note that only channels without a marker are used, "" where others are."""
    if not chosen or any(is_marker(source.details[k], source.kind) for k in chosen):
        return ""
    names = ", ".join(source.channels[k] for k in chosen)
    return f"{source.name}: no channel measures a marker by its name; used are {names}"


def _judged(source: Source, chosen: Sequence[int], events: Floats) -> dict[int, str]:
    """Return the channels to leave out by their values, each with the reason.

    Parameters
    ----------
    source : Source
    chosen : sequence of int
        Numbers of D channels.
    events : float32 [M, D]
        As stored, with M > 0.
    """
    reasons, seen = {}, f"in all {len(events)} events read"
    kept: dict[bytes, int] = {}
    for j, k in enumerate(chosen):
        column = events[:, j]
        bad = int((~np.isfinite(column)).sum())
        if np.isnan(column).all():
            reasons[k] = f"empty: no number {seen}"
        elif bad > MOST_NOT_FINITE * len(events):
            reasons[k] = f"{NOT_FINITE}: {bad} of {len(events)} values read"
        elif np.nanmin(column) == np.nanmax(column):
            reasons[k] = f"constant: {np.nanmin(column):g} {seen}"
        # A copy makes the covariance of every component singular.
        elif (original := kept.setdefault(_digest(column), k)) != k:
            reasons[k] = f"copy of {source.channels[original]} {seen}"
    return reasons


def _digest(column: Floats) -> bytes:
    """Return a digest of values, float32 [M]; 0 and -0 count as the same value."""
    return hashlib.blake2b((column + np.float32(0)).tobytes(), digest_size=16).digest()


def _at_most(source: Source, reasons: Sequence[str]) -> list[str]:
    """Return the reasons, with one for channels without a marker if an instrument has too many channels."""
    remaining = [k for k, why in enumerate(reasons) if not why]
    unnamed = {k for k in remaining if not source.details[k].marker}
    if source.kind is None or len(remaining) <= MAX_CHANNELS or len(unnamed) == len(remaining):
        return list(reasons)
    why = f"no marker, and {len(remaining)} channels are more than {MAX_CHANNELS}"
    return [why if k in unnamed else reason for k, reason in enumerate(reasons)]
