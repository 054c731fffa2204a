"""Draws of what each sample contains, by cell type: for `dpmix associate --types`.

T draws, S samples, R rows of the table and the unknown type, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmix.inputs.events import Events
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.events.medians import Medians, evenly

MEDIAN_EVENTS = 200_000  # of a sample, evenly spaced, for its medians


@dataclass(frozen=True)
class TypeDraws:
    """Draws of counts and medians of the cell types; a parent counts without its children.

    Attributes
    ----------
    names : R str
        The last is unknown.
    parents : R str
        "" for none.
    counts : float64 [T, S, R]
        Expected events of each type, in each draw.
    medians, errors : float32 [S, R, D]
        Medians of events that have the type, transformed scale, and standard errors; NaN where there are
        none.
    """

    names: tuple[str, ...]
    parents: tuple[str, ...]
    counts: Array
    medians: Floats
    errors: Floats


def type_draws(
    events: Events, names: tuple[str, ...], parents: tuple[str, ...], rows: Ints, counts: Array
) -> TypeDraws:
    """Return the draws of the types of all events.

    Parameters
    ----------
    events : Events
    names, parents : R str
    rows : int64 [N]
        Type of each event.
    counts : float64 [T, S, R]
        Expected events of each type, in each draw.
    """
    found = Medians(1, len(events.samples), len(names), len(events.measured_channels))
    for sample, (first, end) in enumerate(pairwise(events.sample_starts.tolist())):
        some = first + evenly(end - first, MEDIAN_EVENTS)
        found.add(sample, events.measured(some), np.ones(len(some)), [rows[some]])
    return TypeDraws(names, parents, counts, found.values[0], found.errors)
