"""How each file of a run is read: its columns, and the steps from stored to raw values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flowutils.compensate import compensate

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import uncompensated_name, why_not_measured
from dpmix.inputs.compensation import Compensation, match_matrix, not_applied, own_matrix, read_matrix
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Array, Floats, Ints


@dataclass(frozen=True)
class FilePlan:
    """How one file is read.

    Attributes
    ----------
    source : Source
    chosen : tuple of int
        Numbers in the file of the D channels of the run, in the order of the run.
    columns : tuple of int
        Numbers of the channels that are read: the chosen ones and those that compensation needs.
    linearized : tuple of int
        Numbers of the channels whose logarithmic amplification ($PnE) is undone.
    divided : tuple of int
        Numbers of the channels that are divided by their gain ($PnG).
    compensation : Compensation
    """

    source: Source
    chosen: tuple[int, ...]
    columns: tuple[int, ...]
    linearized: tuple[int, ...]
    divided: tuple[int, ...]
    compensation: Compensation

    @property
    def spillover(self) -> Spillover | None:
        """Return the matrix of the compensation with the names of its detectors; None for none."""
        if not self.compensation.channels:
            return None
        names = tuple(self.source.details[k].detector for k in self.compensation.channels)
        return Spillover(names, self.compensation.matrix)

    def places(self, numbers: Sequence[int]) -> list[int]:
        """Return the places of channels of the file among the columns that are read."""
        return [self.columns.index(k) for k in numbers]

    def read_stored(self, start: int, stop: int) -> Floats:
        """Return all columns of the block [start, stop) as the file has them, float32 [M, columns].

        A logarithm far above its range is infinite: its antilogarithm, which damaged data can have, does not
        fit float32.
        """
        stored = self.source.read(start, stop, self.columns)
        for k in self.linearized:
            channel, values = self.source.details[k], stored[:, self.columns.index(k)]
            if channel.log and channel.range:
                decades, offset = channel.log
                most = math.log10(np.finfo(np.float32).max) - math.log10(offset)
                values[values > most / decades * channel.range] = np.inf
        return stored

    def read(self, start: int, stop: int, rows: Ints | None) -> tuple[Floats, Array]:
        """Read events of the chosen channels.

        Parameters
        ----------
        start, stop : int
            The block [start, stop) of the file.
        rows : int64 [M] or None
            Rows within the block; None for all.

        Returns
        -------
        stored : float32 [M, D]
            Values as the file has them.
        raw : float64 [M, D]
            The same values linearized and compensated.
        """
        stored = self.read_stored(start, stop)
        stored = stored if rows is None else stored[rows]
        return stored[:, self.places(self.chosen)], self.to_raw(stored)

    def to_raw(self, stored: npt.NDArray[Any]) -> Array:
        """Linearize and compensate stored values of all columns; return chosen channels, float64 [M, D]."""
        with np.errstate(invalid="ignore"):  # signalling NaN
            raw = stored.astype(np.float64)
        for k in self.linearized:
            place = self.columns.index(k)
            raw[:, place] = self.source.details[k].linearized(raw[:, place])
        for k in self.divided:
            raw[:, self.columns.index(k)] /= self.source.details[k].gain
        if self.compensation.channels:
            raw = compensate(raw, self.compensation.matrix, self.places(self.compensation.channels))
        return raw[:, self.places(self.chosen)]

    def top_of_scale(self, k: int) -> float | None:
        """Return the end of the range of a channel on the raw scale, None where the file has no range."""
        channel = self.source.details[k]
        if channel.log and k in self.linearized:
            decades, offset = channel.log
            return float(offset * 10.0**decades)
        return channel.range / channel.gain if channel.range and k in self.divided else channel.range


def has_gain(channel: Channel) -> bool:
    """Return True if the values of a channel are to be divided by a gain.

    By FCS 3.1 and 3.2, a value stored by a linear amplifier is the measured one times $PnG. $PnG does not
    apply to a logarithmic amplifier, nor to time, which has $TIMESTEP. FlowIO divides, too; flowCore does if
    asked for linearize-with-PnG-scaling.
    """
    is_time = why_not_measured(channel) == "time"
    return channel.log is None and not is_time and 0 < channel.gain < math.inf and channel.gain != 1


def plan_files(
    settings: DataConfig,
    base: Path,
    sources: Sequence[Source],
    chosen: Sequence[Sequence[int]],
) -> tuple[list[FilePlan], list[str]]:
    """Plan how each file is read.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that the name of a compensation matrix is relative to.
    sources : sequence of Source
    chosen : sequence of sequence of int
        For each file the numbers of the channels of the run.

    Returns
    -------
    plans, notes
        Plan of each file; notes for the report.

    Raises
    ------
    ConfigError
        The CSV file of the matrix cannot be read, or a channel on a logarithmic scale is to be compensated.
    DataError
        A matrix cannot be used.
    """
    in_csv = settings.compensation not in ("auto", "none")
    from_csv = read_matrix(base / settings.compensation) if in_csv else None
    any_has_matrix = any(source.spillover for source in sources)
    plans, notes = [], []
    for source, numbers in zip(sources, chosen, strict=True):
        spillover, note = from_csv, ""
        if settings.compensation == "auto":
            spillover, note, is_warning = own_matrix(source, any_has_matrix)
            note = "" if is_warning else note
        if not in_csv and (warning := not_applied(source)):
            source = replace(source, warnings=(*source.warnings, *warning))
        plan = _plan(source, numbers, spillover, settings.linearize)
        notes += [f"{source.name}: {text}" for text in (note, *_amplifier_notes(plan)) if text]
        plans.append(plan)
    return [_with_warning(plans[0], plan) for plan in plans], notes


def _with_warning(first: FilePlan, plan: FilePlan) -> FilePlan:
    """Return a plan with a warning where a channel is compensated in one of the first file and this one only.

    The names show it: a channel named as compensated needs no matrix.
    """
    odd = []
    for k, j in zip(first.chosen, plan.chosen, strict=True):
        here, there = first.source.channels[k], plan.source.channels[j]
        marked = uncompensated_name(here) != here, uncompensated_name(there) != there
        raw = (marked == (True, False) and j not in plan.compensation.channels) or (
            marked == (False, True) and k not in first.compensation.channels
        )
        odd += [f"{there} here and {here} in {first.source.name}"] if raw else []
    if not odd:
        return plan
    others = f" (and so for {len(odd) - 1} other channels)" if len(odd) > 1 else ""
    text = f"only one of {odd[0]} is compensated{others}; check data.compensation"
    return replace(plan, source=replace(plan.source, warnings=(*plan.source.warnings, text)))


def _amplifier_notes(plan: FilePlan) -> list[str]:
    """Return notes on the amplification that is undone."""
    source, notes = plan.source, []
    if plan.linearized:
        names = ", ".join(source.channels[k] for k in plan.linearized)
        notes.append(f"logarithmic amplification ($PnE) undone in {names}")
    if plan.divided:
        gains = ", ".join(f"{source.channels[k]} by {source.details[k].gain:g}" for k in plan.divided)
        notes.append(f"divided by the amplifier's gain ($PnG): {gains}")
    return notes


def _plan(source: Source, chosen: Sequence[int], spillover: Spillover | None, linearize: bool) -> FilePlan:
    """Plan how one file is read, or raise `ConfigError` where compensation is not defined."""
    compensation = match_matrix(spillover, source) if spillover else Compensation()
    columns = tuple(sorted({*chosen, *compensation.channels}))
    logarithmic = tuple(k for k in columns if source.details[k].log)
    clash = [source.details[k].detector for k in logarithmic if k in compensation.channels]
    if clash and not linearize:
        raise ConfigError(
            [
                f"data.linearize: false leaves {', '.join(clash)} of {source.name} on a logarithmic scale, "
                "where compensation is not defined; need true, or data.compensation: none"
            ]
        )
    linearized = logarithmic if linearize else ()
    divided = tuple(k for k in columns if linearize and has_gain(source.details[k]))
    return FilePlan(source, tuple(chosen), columns, linearized, divided, compensation)


def file_names(plans: Sequence[FilePlan]) -> str:
    """Return the names of the files for the start of a message, at most four of them."""
    names = [plan.source.name for plan in plans]
    return ", ".join(names if len(names) < 5 else [*names[:3], f"and {len(names) - 3} others"])
