"""Start from a gated parent population: the events of each file inside a gate of a workspace (data.gate)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.config.data import DataConfig, TransformConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fitting import transform_settings
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.sources import Fetch, Source
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Ints

PIECE = 65_536  # rows of a file that are read together


@dataclass(frozen=True)
class ParentGate:
    """The files of a run, gated where data.gate says so.

    Attributes
    ----------
    sources : list of Source
        Each with the events inside the gate only, and with the matrix of the workspace if it has one.
    rows : list of int64 [events inside]
        Row of each of these events in its file; empty without a gate.
    settings : DataConfig
        With the transforms of the workspace for channels whose method is auto.
    notes : list of str
    """

    sources: Sequence[Source]
    rows: list[Ints]
    settings: DataConfig
    notes: list[str]

    def file_rows(self, rows: Ints | None, sample_starts: Ints) -> Ints | None:
        """Return the row in its file of each event in use; None for all rows of all files.

        Parameters
        ----------
        rows : int64 [N] or None
            Number of each event among those inside the gate in its file; None for all of them.
        sample_starts : int64 [S + 1]
        """
        if not self.rows:
            return rows
        if rows is None:
            return np.concatenate(self.rows)
        both = zip(self.rows, np.split(rows, sample_starts[1:-1]), strict=True)
        return np.concatenate([own[part] for own, part in both])


def gate_sources(settings: DataConfig, base: Path, sources: Sequence[Source]) -> ParentGate:
    """Apply data.gate to the files of a run.

    Raises
    ------
    ConfigError
        FlowKit is missing, or the gate cannot be found.
    DataError
        A file is not in the workspace, or has no events inside the gate.
    """
    if settings.gate is None:
        return ParentGate(sources, [], settings, [])
    if not settings.linearize:
        raise ConfigError(
            ["data.linearize: false, but the gates of data.gate are on the linear scale; need true"]
        )
    path = base / settings.gate.workspace
    manual = ManualGates(path, "data.gate")
    gated, rows, notes = [], [], []
    for source in sources:
        name, inside = manual.population(source, settings.gate.population)
        own = np.flatnonzero(inside)
        if not len(own):
            raise DataError(f"{source.name}: has no events inside {name} of {path}; leave out this file")
        notes.append(f"{source.name}: {len(own)} of {source.n_events} events inside {name} of {path.name}")
        rows.append(own)
        found = with_rows(source, own)
        # The gates were drawn with the matrix of the workspace, which may be edited; with another, they would
        # hold other events.
        if settings.compensation == "auto" and (spillover := manual.spillover(source)):
            found = replace(found, spillover=spillover, spillover_problem="", spillover_from=path.name)
        gated.append(found)
    transforms = manual.transforms(sources[0])
    return ParentGate(gated, rows, _with_transforms(settings, sources[0], transforms), notes)


def with_rows(source: Source, own: Ints) -> Source:
    """Return a source with some of its rows only, `own` int64 [M], ascending."""
    return replace(source, n_events=len(own), fetch=_of_rows(source.fetch, own))


def _of_rows(fetch: Fetch, own: Ints) -> Fetch:
    """Return a reader of some rows of a file."""

    def read(start: int, stop: int, columns: Sequence[int]) -> npt.NDArray[Any]:
        wanted = own[start:stop]
        first = int(wanted[0]) if len(wanted) else 0
        parts = [fetch(first, first, columns)]
        while len(wanted):
            first = int(wanted[0])
            # Rows near each other are read in one piece, because reading one by one costs far more.
            n_near = int(np.searchsorted(wanted, first + PIECE))
            near, wanted = wanted[:n_near], wanted[n_near:]
            parts.append(fetch(first, int(near[-1]) + 1, columns)[near - first])
        return np.concatenate(parts)

    return read


def _with_transforms(settings: DataConfig, source: Source, transforms: Mapping[str, Transform]) -> DataConfig:
    """Return the settings with transforms for the channels whose method is auto."""
    asked = transform_settings(settings.transform, source, range(len(source.channels)))
    added = {}
    for detector, wanted in zip(source.channels, asked, strict=True):
        if wanted.method == "auto" and detector in transforms:
            found = transforms[detector]
            try:
                added[detector] = TransformConfig.model_validate(
                    {"method": found.method, **found.parameters()}
                )
            except ValueError as error:
                raise ConfigError([f"data.gate: {detector}: {found}: {error}"]) from None
    others = {name: value for name, value in settings.transform.items() if name not in added}
    return settings.model_copy(update={"transform": {**added, **others}})
