"""The scale of the events of a run: fitted to the events, or recorded by an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from dpmix.config.data import DataConfig
from dpmix.errors import DataError
from dpmix.inputs import atoms
from dpmix.inputs.atoms import Atom
from dpmix.inputs.channels import display_names
from dpmix.inputs.file_plans import FilePlan, file_names
from dpmix.inputs.fitting import Seen, make_transforms, transform_notes, transform_settings
from dpmix.inputs.gather import Gathered
from dpmix.inputs.outliers import usual_highest
from dpmix.inputs.resolution import resolution_of
from dpmix.inputs.transforming import (
    TransformSummary,
    require_finite,
    require_positive,
    standard_deviations,
)
from dpmix.inputs.transforms import Scaling, Transform
from dpmix.kernels.layout import MAX_CHANNELS
from dpmix.model.mixture import Array, Floats
from dpmix.system.progress import ProgressLog

CENTRAL = 0.001, 0.999  # quantiles between which nearly all events lie
FAR, RESOLVABLE = 20.0, 0.01  # standard deviations of a channel
"""Extremes this far apart show distant events; nearly all others within so little cannot be distinguished: a
learned phi keeps components wider than 0.0055 (`dpmix.model.prior`)."""

Atoms = tuple[tuple[Atom, ...], ...]


class Scale(Protocol):
    """Where transforms, atoms, means and standard deviations come from.

    `FittedScale` and `RecordedScale` are the two kinds.
    """

    @property
    def passes(self) -> int:
        """Return the number of passes over the gathered events, for the progress."""

    @property
    def notes(self) -> Sequence[str]:
        """Return notes on the transforms, once they are made."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return warnings of transforms that do not fit the values, once they are made."""

    def before_transform(self, plans: Sequence[FilePlan], gathered: Gathered) -> tuple[Scaling, Atoms]:
        """Return the scaling with its transforms and atoms, and the atoms of these events for the report.

        Raises
        ------
        ConfigError, DataError
            There are too few events, or a transform does not fit them.
        """

    def after_transform(
        self, scaling: Scaling, values: Floats, summary: TransformSummary, progress: ProgressLog
    ) -> Scaling:
        """Return the scaling with its means and standard deviations.

        Raises
        ------
        DataError
            The transformed events cannot be used.
        """


class FittedScale:
    """A scale fitted to the events: transforms of the config, atoms, mean 0 and standard deviation 1.

    Parameters
    ----------
    settings : DataConfig
    plans : sequence of FilePlan
    earlier : Scaling or None
        Scaling of an earlier run with the same events, for transforms and the noise of atoms; None for a new
        run.

    Raises
    ------
    ConfigError
        A key of data.transform matches no channel.
    DataError
        There are too many channels.
    """

    passes = 3

    def __init__(self, settings: DataConfig, plans: Sequence[FilePlan], earlier: Scaling | None) -> None:
        first = plans[0]
        self._settings, self._earlier = settings, earlier
        self.notes: Sequence[str] = ()
        self.warnings: Sequence[str] = ()
        self._names = display_names([first.source.details[k] for k in first.chosen])
        if len(self._names) > MAX_CHANNELS:
            raise DataError(
                f"{first.source.name}: found {len(self._names)} channels, need {MAX_CHANNELS} at most; list "
                "the channels to use in data.channels"
            )
        self._transforms = transform_settings(settings.transform, first.source, first.chosen)

    def before_transform(self, plans: Sequence[FilePlan], gathered: Gathered) -> tuple[Scaling, Atoms]:
        """Make the transforms and find the atoms."""
        names, values = self._names, gathered.values
        if len(values) < len(names):
            drops = self._settings.margin_events == "drop"
            raise DataError(
                f"found {len(values)} events in {len(names)} channels, need at least as many events as "
                "channels; use fewer channels (data.channels) or more events (data.files, data.max_events"
                f"{', data.margin_events: report' if drops else ''})"
            )
        earlier = self._earlier
        if earlier is None:
            # One wrong value must not set the top of the scale of its channel.
            highest = usual_highest(gathered.counts.highest, gathered.outliers)
            seen = Seen(atoms.evenly_spaced(values), highest)
            transforms = make_transforms(self._transforms, plans, seen, self._settings.linearize)
            require_positive(transforms, gathered.counts.not_positive, names)
            resolution, recognised = resolution_of(self._settings.resolution, plans, transforms, seen.raw)
            self.notes, self.warnings = transform_notes(transforms, self._transforms, plans, seen)
            self.notes += recognised
        else:
            transforms, resolution = earlier.transforms, earlier.resolution
            self.warnings = _misfits(transforms, plans, values)
            require_positive(transforms, gathered.counts.not_positive, names)
        apply = [transform.apply for transform in transforms]
        found = atoms.find(values, self._settings.atoms, apply)
        zeros, ones = np.zeros(len(names)), np.ones(len(names))
        return Scaling(names, transforms, zeros, ones, found, resolution), found

    def after_transform(
        self, scaling: Scaling, values: Floats, summary: TransformSummary, progress: ProgressLog
    ) -> Scaling:
        """Check the transformed events; compute means and standard deviations if the config says so."""
        _require_variation(summary, scaling.channels, len(values))
        require_finite(summary.finite, scaling.channels)
        if not self._settings.standardize:
            return scaling
        means = summary.totals / len(values)
        sds = standard_deviations(values, means, progress)
        _require_resolvable(atoms.evenly_spaced(values), sds, summary, scaling.channels)
        # A resolution above the spread of a channel would leave nothing to model there.
        resolution = tuple(np.minimum(scaling.resolution, sds).tolist()) if scaling.resolution else ()
        return replace(scaling, means=means, sds=sds, resolution=resolution)


class RecordedScale:
    """The scale of an earlier run. Its atoms are used, and no others are searched.

    Parameters
    ----------
    scaling : Scaling
    """

    passes = 2

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self.notes: Sequence[str] = ()
        self.warnings: Sequence[str] = ()

    def before_transform(self, plans: Sequence[FilePlan], gathered: Gathered) -> tuple[Scaling, Atoms]:
        """Count these events at the atoms of the run."""
        if len(gathered.values) == 0:
            raise DataError(f"{file_names(plans)}: found no events, need at least one")
        scaling = self._scaling
        self.warnings = _misfits(scaling.transforms, plans, gathered.values)
        require_positive(scaling.transforms, gathered.counts.not_positive, scaling.channels)
        recorded = scaling.atoms or ((),) * len(scaling.channels)
        counted = atoms.count(recorded, gathered.values)
        return scaling, tuple(tuple(atom for atom in own if atom.events) for own in counted)

    def after_transform(
        self, scaling: Scaling, values: Floats, summary: TransformSummary, progress: ProgressLog
    ) -> Scaling:
        """Return the scaling of the run unchanged."""
        return scaling


def _require_resolvable(some: Floats, sds: Array, summary: TransformSummary, names: Sequence[str]) -> None:
    """Raise `DataError` where a few distant events make the standard deviation of a channel.

    In its units all other events would then be the same. The run would end in an error about covariances, or
    its figures would have no width.

    Parameters
    ----------
    some : float32 [M, D]
        Some of the transformed events.
    sds : float64 [D]
        Standard deviations of all events.
    summary : TransformSummary
    names : sequence of str
        D channels.
    """
    bad = []
    for j in np.flatnonzero(summary.highest - summary.lowest > FAR * sds).tolist():
        low, high = np.quantile(some[:, j].astype(np.float64), CENTRAL)
        if 0.0 < high - low < RESOLVABLE * sds[j]:
            bad.append(
                f"{names[j]} (99.8% from {low:.3g} to {high:.3g}, all from {summary.lowest[j]:.3g} to "
                f"{summary.highest[j]:.3g})"
            )
    if bad:
        raise DataError(
            f"a few events lie so far away that the others cannot be distinguished: {', '.join(bad)}; remove "
            "these events from the file, use another data.transform, or exclude the channel (list the "
            "others in data.channels)"
        )


def _misfits(transforms: Sequence[Transform], plans: Sequence[FilePlan], raw: Floats) -> Sequence[str]:
    """Return warnings of recorded transforms that do not fit raw values, float32 [N, D]."""
    seen = Seen(atoms.evenly_spaced(raw), np.zeros(len(transforms)))
    return transform_notes(transforms, [], plans, seen)[1]


def _require_variation(summary: TransformSummary, names: Sequence[str], n_events: int) -> None:
    """Raise `DataError` where the covariance matrix of transformed events has no inverse."""
    flat = summary.lowest == summary.highest
    constant = [name for name, same in zip(names, flat, strict=True) if same]
    if constant:
        raise DataError(
            f"constant in all {n_events} events: {', '.join(constant)}; exclude constant channels (list the "
            "others in data.channels)"
        )
    if summary.identical:
        pairs = ", ".join(f"{names[j]} and {names[k]}" for j, k in summary.identical)
        raise DataError(
            f"identical in all {n_events} events: {pairs}; exclude one (list the others in data.channels)"
        )
