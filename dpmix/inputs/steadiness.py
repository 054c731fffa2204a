"""Treat recordings that are not steady as data.time says: report it, drop events, or correct the signal.

Each file is judged by itself (`dpmix.inputs.recording`). What was done to a file is a warning of it, which
the run file and the report keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpmix.config.data import DataConfig
from dpmix.drift.judge import judge
from dpmix.drift.summaries import BLOCK, block_starts, spread_of, summarise
from dpmix.errors import DataError
from dpmix.inputs.blocks import blocks
from dpmix.inputs.event_times import times_of
from dpmix.inputs.gather import Gathered
from dpmix.inputs.parent_gate import ParentGate, with_rows
from dpmix.inputs.recording import study
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array, Floats

CORRECTED = ("drift", "steps")  # verdicts of the channels that are corrected


def judge_files(gate: ParentGate, settings: DataConfig, opened: Sequence[Source]) -> ParentGate:
    """Judge each file, and for data.time: drop leave out its events in unsteady stretches.

    Parameters
    ----------
    gate : ParentGate
        The events in use.
    settings : DataConfig
    opened : sequence of Source
        The same files with all of their events.

    Raises
    ------
    DataError
        A file cannot be judged, or has no steady events; not with data.time: report.
    """
    if settings.time not in ("report", "drop"):
        return gate
    sources, rows = [], []
    for k, (source, full) in enumerate(zip(gate.sources, opened, strict=True)):
        own = gate.rows[k] if gate.rows else np.arange(source.n_events)
        try:
            found = study(full)
        except DataError as error:
            if settings.time == "drop":
                raise _unusable(error) from None
            said = f"not judged over time: {str(error).removeprefix(f'{source.name}: ')}"
        else:
            said = f"over time: {found.sentence}"
        if settings.time == "drop":
            steady = ~found.is_unsteady[own]
            if not steady.any():
                raise DataError(f"{source.name}: no event in use is steady; leave out this file")
            said += f"; {len(own) - int(steady.sum()):,} of {len(own):,} events dropped (data.time: drop)"
            source = with_rows(source, np.flatnonzero(steady))
            own = own[steady]
        sources.append(_warned(source, said))
        rows.append(own)
    return replace(gate, sources=sources, rows=rows if settings.time == "drop" else gate.rows)


def correct_files(
    gathered: Gathered, sources: Sequence[Source], scaling: Scaling
) -> tuple[list[Source], Array]:
    """Subtract the signal over time of each file from its events, in place, on the transformed scale.

    Only channels with the verdict drift or steps change: less the signal's mean, plus its median over the
    recording. Files with another median stay apart: only what changes within a file is removed.

    Parameters
    ----------
    gathered : Gathered
        With transformed values.
    sources : sequence of Source
        The files, in the order of the events.
    scaling : Scaling

    Returns
    -------
    sources
        With a warning that says which channels were corrected.
    totals : float64 [D]
        Sums of the values.

    Raises
    ------
    DataError
        A file has no usable time, or too few events.
    """
    corrected = []
    for source, start, stop in zip(sources, gathered.sample_starts, gathered.sample_starts[1:], strict=False):
        try:
            times = times_of(source)
        except DataError as error:
            raise _unusable(error) from None
        if stop - start < 10 * BLOCK:
            raise DataError(
                f"{source.name}: {stop - start} events, but data.time: correct needs "
                f"{10 * BLOCK}; leave out this file, or use data.time: report"
            )
        if gathered.rows is not None:
            times = times[gathered.rows[start:stop]]
        corrected.append(_warned(source, correct(gathered.values[start:stop], times, scaling.channels)))
    totals = np.zeros(gathered.values.shape[1])
    for start, stop in blocks(len(gathered.values)):
        totals += gathered.values[start:stop].sum(0, dtype=np.float64)
    return corrected, totals


def correct(values: Floats, times: Array, channels: Sequence[str]) -> str:
    """Correct the events of one file in place, float32 [M, D], and return what was done, for a reader."""
    found = summarise(values, times, block_starts(len(values)))
    done = []
    for j, name in enumerate(channels):
        spread = float(spread_of(values[:, j : j + 1])[0])
        if not spread > 0:
            continue
        centre = np.median(found.medians[:, j])
        own = judge(name, found.times, (found.medians[:, j] - centre) / spread, found.errors[:, j] / spread)
        if own.verdict in CORRECTED:
            signal = np.interp(times, own.times, own.mean) - np.median(own.mean)
            values[:, j] -= (spread * signal).astype(np.float32)
            done.append(f"{name} ({own.verdict}, {own.range:.2f})")
    if not done:
        return "over time: no drift found, nothing corrected"
    return f"over time: signal subtracted from all events in {', '.join(done)} (data.time: correct)"


def _unusable(error: DataError) -> DataError:
    """Return the error of a file that must be judged, with the remedy."""
    return DataError(f"{error}; leave out this file, or use data.time: report")


def _warned(source: Source, warning: str) -> Source:
    return replace(source, warnings=(*source.warnings, warning))
