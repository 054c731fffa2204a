"""The events that the page draws as points: up to a million, computed when a person first asks for points.

M events, L modes, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.app.live import Live, evenly_spaced, most_probable
from dpmix.errors import ConfigError
from dpmix.model.mixture import Floats, Ints
from dpmix.populations.draws.decide import Decided
from dpmix.system.threads import one_thread

EVENTS = 1_000_000
"""Most events that are drawn as points, evenly spaced over all events."""
BLOCK = 131_072  # events whose memberships in all modes are held at a time
DECIDED = 0.51  # a mode with a larger share has an event's most probable population, however modes are joined


@dataclass(frozen=True)
class PlottedEvents:
    """Events and what their populations follow from after any decision.

    Attributes
    ----------
    rows : int64 [M]
        Numbers of the events among the events of the run.
    modes : uint16 [M]
        Mode of the mean density with the largest membership.
    open : int64 [O]
        Events, of these M, without a mode whose share is above `DECIDED`: memberships of several modes
        together may decide.
    shares : float32 [O, L]
        Their memberships.
    """

    rows: Ints
    modes: npt.NDArray[np.uint16]
    open: Ints
    shares: Floats


def number(live: Live) -> int:
    """Return M without computing anything."""
    return min(len(live.task.events.values), EVENTS)


def open_points(live: Live) -> PlottedEvents:
    """Compute memberships block by block; for a million events this takes seconds."""
    events = live.task.events.values
    rows = evenly_spaced(len(events), EVENTS)
    # Most events have one mode with more than half, which decides them under any union of modes; memberships
    # are kept for the others alone.
    modes, undecided, shares = np.zeros(len(rows), np.uint16), [], []
    for start in range(0, len(rows), BLOCK):
        values = np.ascontiguousarray(events[rows[start : start + BLOCK]])
        with one_thread(), closing(live.task.make_engine(values)) as engine:
            own = live.forest.memberships_in_modes(engine).astype(np.float32)
        modes[start : start + BLOCK] = own.argmax(axis=1)
        is_open = own.max(axis=1) <= DECIDED
        undecided.append(start + np.flatnonzero(is_open))
        shares.append(own[is_open])
    return PlottedEvents(rows, modes, np.concatenate(undecided), np.concatenate(shares))


def packed_values(live: Live, points: PlottedEvents, channels: Sequence[int]) -> bytes:
    """Return some channels of the events one after another, transformed scale, float32 [C, M], little endian.

    Raises
    ------
    ConfigError
        A channel is not one of the run.
    """
    events = live.task.events
    n_channels = events.values.shape[1]
    if not channels or not all(0 <= c < n_channels for c in channels):
        raise ConfigError([f"channels: need numbers from 0 to {n_channels - 1}"])
    packed = np.empty((len(channels), len(points.rows)), "<f4")
    for start in range(0, len(points.rows), BLOCK):
        block = events.scaling.to_transformed(events.values[points.rows[start : start + BLOCK]])
        packed[:, start : start + BLOCK] = block[:, list(channels)].T
    return packed.tobytes()


def packed_populations(points: PlottedEvents, chosen: Decided) -> bytes:
    """Return the most probable population of each event [M]: uint8 for up to 256 populations, else uint16."""
    kind = "u1" if len(chosen.names) <= 256 else "<u2"
    population = chosen.modes.astype(kind)[points.modes]
    population[points.open] = most_probable(points.shares, chosen)
    return population.tobytes()
