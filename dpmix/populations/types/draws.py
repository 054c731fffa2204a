"""Draws of what each sample contains, by cell type: for `dpmix associate --types`.

T draws, S samples, R rows of the table and the unknown type, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpmix.errors import ConfigError
from dpmix.model.mixture import Array, Floats

if TYPE_CHECKING:
    from dpmix.inputs.events import Events
    from dpmix.populations.sample_draws import SampleDraws
    from dpmix.populations.types.types import Types

OTHER = " (other)"  # after the name of a parent, for its events outside of all children
MEDIAN_EVENTS = 200_000  # of a sample, evenly spaced, for its medians
LEAST_EVENTS = 20  # in all samples together, for a type to be compared


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
        Of events that have the type, transformed scale, and their standard errors; NaN where there are
        none.
    """

    names: tuple[str, ...]
    parents: tuple[str, ...]
    counts: Array
    medians: Floats
    errors: Floats


def type_draws(events: Events, types: Types) -> TypeDraws:
    """Return the draws of the types of all events."""
    from dpmix.populations.sample_draws import Medians, evenly

    size = len(types.names)
    found = Medians(1, len(events.samples), size, len(events.measured_channels))
    rows = types.rows
    for sample, (first, end) in enumerate(pairwise(events.sample_starts.tolist())):
        some = first + evenly(end - first, MEDIAN_EVENTS)
        found.add(sample, events.measured(some), np.ones(len(some)), [rows[some]])
    parents = (*types.table.parents, "")
    return TypeDraws(types.names, parents, types.counts, found.values[0], found.errors)


def by_type(draws: SampleDraws) -> tuple[SampleDraws, tuple[str, ...]]:
    """Return the draws with cell types instead of populations, and the types that have too few events.

    The types do not overlap: a parent with children stands for its events outside of all children. Those with
    fewer than `LEAST_EVENTS` events count as unknown.

    Raises
    ------
    ConfigError
        The gating has no types.
    """
    own = draws.types
    if own is None:
        raise ConfigError(["--types: the gating has no cell types; gate again with dpmix gate --types"])
    enough = own.counts.mean(axis=0).sum(axis=0) >= LEAST_EVENTS
    enough[-1] = True
    counts = own.counts[..., enough].copy()
    counts[..., -1] += own.counts[..., ~enough].sum(axis=2)
    names = [name + OTHER * (name in own.parents) for name in own.names]
    kept = [name for name, there in zip(names, enough, strict=True) if there]
    left_out = tuple(name for name, there in zip(names, enough, strict=True) if not there)
    if len(kept) < 2:
        raise ConfigError([f"--types: no type of the table has {LEAST_EVENTS} events; use another table"])
    return (
        replace(
            draws,
            counts=counts,
            medians=own.medians[None][:, :, enough],
            errors=own.errors[:, enough],
            phenotypes=tuple(kept),
            names=(),
            explored=None,
            explored_medians=None,
            by_type=True,
        ),
        left_out,
    )
