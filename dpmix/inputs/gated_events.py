"""The events of a file that belong to one population of a gating (`dpmix gate`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


def in_population(source: Source, folder: Path, population: int) -> Source:
    """Return a source with the events of one population only, in the order of the file.

    Parameters
    ----------
    source : Source
        A file that was gated.
    folder : Path
        Output of `dpmix gate`, with `EVENTS`.
    population : int
        Its number, from 1.

    Raises
    ------
    DataError
        The folder has no table of events or none of this file, or the population has no events there.
    """
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    path = folder / EVENTS
    try:
        table = pyarrow.parquet.read_table(path, columns=["event", "sample", "population"])
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); dpmix gate writes it") from error
    samples = table["sample"].unique().to_pylist()
    if source.name not in samples:
        raise DataError(f"{path}: has no events of {source.name}; give files that were gated")
    own = table.filter(pyarrow.compute.equal(table["sample"].cast(pyarrow.string()), source.name))
    populations = own["population"].to_numpy()
    rows = np.sort(own["event"].to_numpy()[populations == population].astype(np.int64))
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
