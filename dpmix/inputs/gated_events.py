"""The events of a file that belong to one population of a gating (`dpmix gate`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Ints

EVENTS = "events.parquet"
SPAN = 65_536
"""Rows of the file that are read at a time."""


@dataclass(frozen=True)
class GatedEvents:
    """The table of events of a gating. Read it by `read_gated`.

    Attributes
    ----------
    path : Path
    samples : list of str
        Names of the files.
    sample, event, population : int [N]
        For each event: number of its file in `samples`, its number in the file, and the number of its
        population.
    """

    path: Path
    samples: list[str]
    sample: npt.NDArray[Any]
    event: npt.NDArray[Any]
    population: npt.NDArray[Any]


def read_gated(folder: Path) -> GatedEvents:
    """Read the table of events in the folder of `dpmix gate`, once for all files.

    Raises
    ------
    DataError
        The folder has no table of events.
    """
    import pyarrow
    import pyarrow.parquet

    path = folder / EVENTS
    try:
        table = pyarrow.parquet.read_table(path, columns=["event", "sample", "population"])
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); dpmix gate writes it") from error
    names = table["sample"].cast(pyarrow.string()).dictionary_encode().combine_chunks()
    event, population = (table[name].to_numpy() for name in ("event", "population"))
    return GatedEvents(path, names.dictionary.to_pylist(), names.indices.to_numpy(), event, population)


def in_population(source: Source, gated: GatedEvents, population: int) -> Source:
    """Return a source with the events of one population only, in the order of the file.

    Parameters
    ----------
    source : Source
        A file that was gated.
    gated : GatedEvents
    population : int
        Its number, from 1.

    Raises
    ------
    DataError
        The table has no events of this file, or the population has no events there.
    """
    path = gated.path
    if source.name not in gated.samples:
        raise DataError(f"{path}: has no events of {source.name}; give files that were gated")
    own = np.flatnonzero(gated.sample == gated.samples.index(source.name))
    populations = gated.population[own]
    rows = np.sort(gated.event[own][populations == population].astype(np.int64))
    if not len(rows):
        found = f"{populations.min()} to {populations.max()}"
        raise DataError(f"{path}: {source.name} has no events of population {population}; it has {found}")
    if rows[-1] >= source.n_events:
        raise DataError(f"{path}: has event {rows[-1]} of {source.name}, which has {source.n_events} events")
    name = f"{source.name}, population {population}"
    return replace(source, name=name, n_events=len(rows), fetch=partial(_fetch, source, rows))


def _fetch(source: Source, rows: Ints, start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
    """Return some columns of the rows start..stop-1 of the chosen rows, int64 [M], of a file."""
    own = rows[start:stop]
    spans = np.split(own, np.flatnonzero(np.diff(own // SPAN)) + 1)
    parts = [source.fetch(int(one[0]), int(one[-1]) + 1, columns)[one - one[0]] for one in spans if len(one)]
    return np.concatenate(parts or [source.fetch(0, 0, columns)])
