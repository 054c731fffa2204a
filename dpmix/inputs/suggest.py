"""Suggest a config for data files: channels, compensation and transforms, from a bounded number of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmix.config.data import DataConfig, TransformConfig
from dpmix.errors import DataError
from dpmix.inputs import mass
from dpmix.inputs.channels import display_names, same_channels
from dpmix.inputs.compensation import own_matrix
from dpmix.inputs.default_channels import (
    Rows,
    describe_reasons,
    note_of_stains,
    reasons_to_leave_out,
    some_rows,
)
from dpmix.inputs.event_times import first_look
from dpmix.inputs.file_plans import FilePlan, plan_files
from dpmix.inputs.fitting import Seen, fitting_method, kind_of, make_transforms, transform_notes
from dpmix.inputs.limits import MOST_NOT_FINITE
from dpmix.inputs.marker_names import Spelling, absences, spellings
from dpmix.inputs.outliers import outliers, usual_highest
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform
from dpmix.kernels.layout import MAX_CHANNELS
from dpmix.model.mixture import Array


@dataclass(frozen=True)
class Suggestion:
    """Settings that fit one channel of a file.

    Attributes
    ----------
    detector, marker : str
    why : str
        Why the default config does not use the channel, "" where it does.
    transform : Transform or None
        Transform of a channel that is used.
    method : str
        Method of the transform; auto where it would be fitted to the events.
    """

    detector: str
    marker: str
    why: str
    transform: Transform | None
    method: str

    @property
    def taken(self) -> bool:
        """Return True if the default config uses the channel."""
        return not self.why


@dataclass(frozen=True)
class Settings:
    """Settings that fit data files.

    Attributes
    ----------
    channels : tuple of Suggestion
        For each channel of the first file.
    compensation : str
        As given; none where it is auto and no matrix of the files applies.
    notes : tuple of str
        What was found in the files: channels with other names, or not in all files; no compensation with the
        reason.
    spellings : tuple of Spelling
        Names that may mean one marker.
    """

    channels: tuple[Suggestion, ...]
    compensation: str
    notes: tuple[str, ...]
    spellings: tuple[Spelling, ...]


def suggest(
    sources: Sequence[Source], compensation: str = "auto", base: Path = Path(), *, over_time: bool = False
) -> Settings:
    """Suggest settings for data files, which `prepare` accepts.

    Parameters
    ----------
    sources : sequence of Source
    compensation : str
        As in data.compensation: auto, none, or a CSV file relative to `base`.
    base : Path
    over_time : bool
        Take a first look at what changes over time, for the notes.

    Raises
    ------
    ConfigError, DataError
        No channel can be used, there are fewer events than channels, or the files cannot be compensated.
    """
    first = sources[0]
    absent, notes = absences(sources)
    reasons = reasons_to_leave_out(sources, absent)
    taken = [k for k, why in enumerate(reasons) if not why]
    _require_use(sources, taken, reasons)
    notes += filter(None, [note_of_stains(first, taken)])
    chosen = [taken]
    for source in sources[1:]:
        numbers, differences = same_channels(first, taken, source)
        chosen.append(numbers)
        notes += differences
    if compensation == "auto":
        compensation, why = _own_compensation(sources)
        notes += why
    settings = DataConfig(files=["-"], compensation=compensation)
    plans, _ = plan_files(settings, base, sources, chosen)
    rows = some_rows(sources)
    parts = _read_raw(plans, rows)
    raw = np.concatenate(parts)
    raw = raw[np.isfinite(raw).all(1)]
    far = outliers(raw.astype(np.float32), raw.min(0), raw.max(0))
    highest = usual_highest(raw.max(0), far)
    transforms = make_transforms(
        [TransformConfig()] * len(taken), plans, Seen(raw, highest), settings.linearize
    )
    notes += _mass_notes(first, raw)
    notes += transform_notes(transforms, [TransformConfig()] * len(taken), plans, Seen(raw, highest))[0]
    notes += [
        f"{source.name}: {n} of {len(part)} events read have values that are not finite; "
        "a run leaves them out"
        for source, part in zip(sources, parts, strict=True)
        if (n := int((~np.isfinite(part)).any(1).sum()))
    ]
    notes += [f"{source.name}: has no event" for source in sources if not source.n_events]
    if over_time:
        shown = display_names(first.details)
        names = [shown[k] for k in taken]
        for source, own, part in zip(sources, rows, parts, strict=True):
            if not np.isfinite(part).all():  # the first look needs all events of its stretches
                continue
            values = np.column_stack([one.apply(part[:, j]) for j, one in enumerate(transforms)])
            notes += filter(None, [first_look(source, own, names, values)])
    return Settings(
        tuple(_suggestions(first, reasons, dict(zip(taken, transforms, strict=True)))),
        compensation,
        tuple(notes),
        tuple(spellings(sources)),
    )


def _read_raw(plans: Sequence[FilePlan], rows: Sequence[Sequence[Rows]]) -> list[Array]:
    """Read stretches of the chosen channels of each file, linearized and compensated, float64 [M, D] each."""
    parts = [
        np.concatenate([plan.read(*stretch, None)[1] for stretch in own] or [np.empty((0, len(plan.chosen)))])
        for plan, own in zip(plans, rows, strict=True)
    ]
    for plan, part in zip(plans, parts, strict=True):
        if (~np.isfinite(part)).any(1).sum() <= MOST_NOT_FINITE * len(part):
            continue
        if plan.compensation.channels:
            raise DataError(
                f"{plan.source.name}: values that are not finite after compensation, which needs a channel "
                "with such values; remove these events, or give --compensation none"
            )
        worst = plan.source.details[plan.chosen[int((~np.isfinite(part)).sum(0).argmax())]]
        raise DataError(
            f"{plan.source.name}: most values of {worst.detector} are not finite or too large, far above its "
            "range; the file is damaged or its range is wrong: export it again"
        )
    return parts


def describe_only(source: Source) -> tuple[list[Suggestion], str]:
    """Return the suggestions for one file, and why no config is suggested, "" if one is.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    try:
        return list(suggest([source]).channels), ""
    except DataError as error:
        return _suggestions(source, reasons_to_leave_out([source]), {}), str(error)


def _require_use(sources: Sequence[Source], taken: Sequence[int], reasons: Sequence[str]) -> None:
    """Raise `DataError` where no run is possible with the channels that are taken."""
    name, n_events = sources[0].name, sum(source.n_events for source in sources)
    if not taken:
        absent = any(why.startswith("not in ") for why in reasons)
        need = "give only files of one panel" if absent else "write the config by hand"
        raise DataError(
            f"{name}: no channel can be used: {describe_reasons(sources[0].channels, reasons)}; {need}"
        )
    if len(taken) > MAX_CHANNELS:
        raise DataError(
            f"{name}: found {len(taken)} channels, need {MAX_CHANNELS} at most; write the config by hand, "
            "with the channels to use in data.channels"
        )
    if n_events < len(taken):
        raise DataError(
            f"{name}: found {n_events} events in {len(taken)} channels, need at least as many events as "
            "channels; give files with more events"
        )


def _own_compensation(sources: Sequence[Source]) -> tuple[str, list[str]]:
    """Return data.compensation for files by their own matrices, with the reason where it is none."""
    has_matrix = [source for source in sources if source.spillover is not None]
    found = [(source, own_matrix(source, False)) for source in sources]
    if not has_matrix or any(own.spillover for _, own in found):
        return "auto", []
    return "none", [f"{source.name}: {own.note}" for source, own in found if own.note and not own.warning]


def _mass_notes(source: Source, raw: Array) -> list[str]:
    """Return notes on the events of a mass cytometer, float64 [M, D]."""
    if kind_of(source, raw) != "mass":
        return []
    notes = [] if source.kind == "mass" else [f"{source.name}: taken for mass cytometry by its many zeros"]
    if mass.are_randomised(raw):
        notes.append(f"{source.name}: counts are randomised (no ions: between -1 and 0); kept as they are")
    return notes


def _suggestions(
    source: Source, reasons: Sequence[str], transforms: dict[int, Transform]
) -> list[Suggestion]:
    """Return a suggestion for each channel of a file."""
    found = []
    for k, (channel, why) in enumerate(zip(source.details, reasons, strict=True)):
        transform = transforms.get(k)
        usual = fitting_method(channel, None if source.transformed else source.kind, linearize=True)
        method = transform.method if transform else "auto" if usual == "logicle" else usual
        found.append(Suggestion(channel.detector, channel.marker, why, transform, method))
    return found
