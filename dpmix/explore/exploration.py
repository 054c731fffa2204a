"""The exploration of a run's events: judgements, and the events that are found."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmix.explore.count import Bools, Found
from dpmix.explore.explorer import Explorer
from dpmix.explore.judgements import Judgements
from dpmix.inputs.events import Events
from dpmix.model.mixture import Floats, Ints


@dataclass(frozen=True)
class Exploration:
    """The events of a run that are like those judged as wanted.

    Attributes
    ----------
    judgements : Judgements
    found : Found
    is_found : bool [N]
    sizes : int64 [S]
        Events found in each sample.
    medians : float32 [S + 1, D]
        Of the events found in each sample and in all, transformed scale; NaN without events.
    """

    judgements: Judgements
    found: Found
    is_found: Bools
    sizes: Ints
    medians: Floats


def explorer_of(events: Events, judgements: Judgements, seed: int, threads: int | None) -> Explorer:
    """Return the explorer of a run's events, given all judgements at once."""
    explorer = Explorer(events.values, seed, threads)
    explorer.judge(judgements.rows, judgements.values, judgements.checks)
    return explorer


def exploration(
    events: Events, judgements: Judgements, seed: int, threads: int | None = None
) -> Exploration | None:
    """Return the events found by judgements; None if none is wanted."""
    explorer = explorer_of(events, judgements, seed, threads)
    found = explorer.found()
    if found is None:
        return None
    is_found = explorer.posterior.mean >= np.float32(found.threshold)
    starts = events.sample_starts
    rows = np.flatnonzero(is_found)
    values = events.scaling.to_transformed(events.values[rows]).astype(np.float32)
    ends = np.searchsorted(rows, starts)
    parts = [*(slice(*pair) for pair in pairwise(ends)), slice(None)]
    medians = np.full((len(parts), values.shape[1]), np.nan, np.float32)
    for number, part in enumerate(parts):
        if len(values[part]):
            medians[number] = np.median(values[part], axis=0)
    return Exploration(judgements, found, is_found, np.diff(ends), medians)
