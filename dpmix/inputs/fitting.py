"""The transform of each channel: as the config says, or the one that fits the instrument and the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpmix.config.data import DEFAULT, TransformConfig
from dpmix.errors import ConfigError
from dpmix.inputs import mass
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import (
    is_coarse,
    names_a_cluster_of_differentiation,
    why_not_measured,
)
from dpmix.inputs.channels import match_all
from dpmix.inputs.file_plans import FilePlan
from dpmix.inputs.logicle import fit_logicle, reference
from dpmix.inputs.sources import Kind, Source
from dpmix.inputs.transformed import (
    LOBES,
    are_light,
    long_tailed,
    widening_cofactor,
    widening_cofactors,
)
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array, Floats

FLUORESCENCE_COFACTOR = 150.0
MASS_COFACTOR = 5.0


@dataclass(frozen=True)
class Seen:
    """Raw values of the channels of a run, which transforms are fitted to.

    Attributes
    ----------
    raw : float32 or float64 [M, D]
        Some of the events.
    highest : float64 [D]
        Largest raw value of all events that are used.
    """

    raw: Array | Floats
    highest: Array


def kind_of(source: Source, raw: Array | Floats) -> Kind:
    """Return the kind of the instrument: by the file, or by events [M, D] where the file does not show it.

    None for values that are transformed already, which need no other scale.
    """
    if source.transformed:
        return None
    unknown = source.kind is None or (source.header is not None and not source.header.instrument)
    if unknown and mass.are_counts(raw):
        return "mass"
    return "fluorescence" if source.kind is None and are_light(raw) else source.kind


def fitting_method(channel: Channel, kind: Kind, linearize: bool) -> str:
    """Return the method of the transform that fits a channel of a kind of instrument (None: unknown).

    Mass cytometry: arcsinh. Fluorescence: logicle. Linear: scatter and similar channels, values that stay on
    a logarithmic scale, integers with too few levels for logicle, and unknown instruments (but see
    `_widening_cofactors`).
    """
    if kind is None or why_not_measured(channel):
        return "linear"
    if kind == "mass":
        return "arcsinh"
    return "linear" if is_coarse(channel) or (channel.log and not linearize) else "logicle"


def transform_settings(
    transform: Mapping[str, TransformConfig], source: Source, chosen: Sequence[int]
) -> list[TransformConfig]:
    """Return the transform settings of each chosen channel.

    A full name has precedence over a glob, an earlier glob over a later one, and "default" comes last.

    Raises
    ------
    ConfigError
        A key matches no channel of the file.
    """
    keys = [key for key in transform if key != DEFAULT]
    meant = match_all("data.transform", keys, source)
    keys.sort(key=lambda key: any(c in key for c in "*?["))  # stable: full names first
    owners = [next((key for key in keys if k in meant[key]), DEFAULT) for k in chosen]
    return [transform[owner] for owner in owners]


def make_transforms(
    settings: Sequence[TransformConfig], plans: Sequence[FilePlan], seen: Seen, linearize: bool
) -> tuple[Transform, ...]:
    """Make the transforms of the D channels of a run with all their parameters.

    Parameters
    ----------
    settings : sequence of TransformConfig
        For each channel; method auto stands for the fitting one, with parameters fitted to the events.
    plans : sequence of FilePlan
    seen : Seen
    linearize : bool
        Logarithmic amplification is undone.

    Raises
    ------
    ConfigError
        The parameters do not fit the method.
    """
    first = plans[0]
    kind = kind_of(first.source, seen.raw)
    channels = [first.source.details[k] for k in first.chosen]
    methods = [
        asked.method if asked.method != "auto" else fitting_method(channel, kind, linearize)
        for asked, channel in zip(settings, channels, strict=True)
    ]
    wider = _widening_cofactors(first, kind, seen)
    highest = [float(value) for value in seen.highest]
    # Over all channels: a dim channel alone does not show that its range is false.
    reach = max((x for x, method in zip(highest, methods, strict=True) if method == "logicle"), default=0.0)
    made = []
    for j, (asked, method) in enumerate(zip(settings, methods, strict=True)):
        if asked.method == "auto" and j in wider:
            made.append(Transform("widen", cofactor=wider[j]))
            continue
        tops = [top for plan in plans if (top := plan.top_of_scale(plan.chosen[j])) is not None]
        top = max(tops) if tops else None
        if asked.method == "auto" and method == "logicle":
            raw, exact = seen.raw[:, j].astype(float), channels[j].integer
            made.append(fit_logicle(raw, top, highest[j], reach, exact))
        elif method == "widen":
            cofactor = asked.cofactor or widening_cofactor(seen.raw[:, j])
            made.append(Transform("widen", cofactor=cofactor))
        else:
            name = channels[j].detector
            made.append(make_transform(asked, method, name, kind, highest[j] if top is None else top))
    return tuple(made)


def _widening_cofactors(first: FilePlan, kind: Kind, seen: Seen) -> dict[int, float]:
    """Return the cofactors for channels whose arcsinh scale divides the noise about zero, by their place.

    By their values alone, two lobes of noise are as good as two populations: the channels must be of cells.
    """
    channels = [first.source.details[k] for k in first.chosen]
    of_cells = first.source.header is not None or names_a_cluster_of_differentiation(channels)
    measured = [j for j, channel in enumerate(channels) if not why_not_measured(channel)]
    if kind is not None or not of_cells or not measured:
        return {}
    found = widening_cofactors(seen.raw[:, measured]).tolist()
    return {j: cofactor for j, cofactor in zip(measured, found, strict=True) if cofactor > 1.0}


def transform_notes(
    transforms: Sequence[Transform], asked: Sequence[TransformConfig], plans: Sequence[FilePlan], seen: Seen
) -> tuple[list[str], list[str]]:
    """Return notes on what the values showed, and warnings of transforms that do not fit them.

    Parameters
    ----------
    transforms : sequence of Transform
        Transforms of the D channels.
    asked : sequence of TransformConfig
        As the config has them.
    plans : sequence of FilePlan
    seen : Seen
    """
    first = plans[0]
    names = [first.source.channels[k] for k in first.chosen]
    measure = [not why_not_measured(first.source.details[k]) for k in first.chosen]
    notes, warnings = [], []
    by_values = first.source.kind is None and any(one.method == "auto" for one in asked)
    if by_values and kind_of(first.source, seen.raw) == "fluorescence":
        found = "values look like raw fluorescence, so method auto is logicle, fitted to them"
        notes.append(f"{first.source.name}: {found}")
    wider = [
        f"{name} (cofactor {one.cofactor:g})"
        for name, one, wanted in zip(names, transforms, asked, strict=False)
        if one.method == "widen" and wanted.method == "auto"
    ]
    if wider:
        found = "values look like an arcsinh scale that divides the noise about zero into two lobes"
        does = f"method auto is widen for {', '.join(wider)}; linear keeps their scale"
        notes.append(f"{first.source.name}: {found}; {does} (data.transform)")
    if len(seen.raw) and np.isfinite(seen.raw).all() and are_light(seen.raw):
        tails = long_tailed(seen.raw)
        odd = [
            name
            for name, one, is_long, ok in zip(names, transforms, tails, measure, strict=True)
            if one.method == "linear" and is_long and ok
        ]
        if odd:
            text = f"the scale linear hides the dim events of {', '.join(odd)}, whose values look like raw"
            warnings.append(f"{text} fluorescence; set data.transform to logicle or auto for them")
    for j, one in enumerate(transforms):
        noise = reference(seen.raw[:, j].astype(float)) if one.method == "arcsinh" and measure[j] else 0.0
        if noise > LOBES * one.cofactor and (seen.raw[:, j] < 0).any():
            text = f"{names[j]}: arcsinh with cofactor {one.cofactor:g} splits the noise about zero, which"
            warnings.append(
                f"{text} reaches to {-noise:.3g}, into two lobes; use logicle, or a cofactor near {noise:.2g}"
            )
    return notes, warnings


def make_transform(asked: TransformConfig, method: str, name: str, kind: Kind, top: float) -> Transform:
    """Make the transform of one channel, with the usual parameters where the config has none.

    Parameters
    ----------
    asked : TransformConfig
    method : str
        The method, resolved where the config has auto.
    name : str
        Name of the channel, for messages.
    kind : "fluorescence", "mass" or None
    top : float
        Default of the top of a logicle scale.

    Raises
    ------
    ConfigError
        The parameters do not fit the method.
    """
    if method == "arcsinh":
        usual = MASS_COFACTOR if kind == "mass" else FLUORESCENCE_COFACTOR
        return Transform("arcsinh", cofactor=usual if asked.cofactor is None else asked.cofactor)
    if method != "logicle":
        return Transform("log" if method == "log" else "linear")
    given = {"t": asked.t, "w": asked.w, "m": asked.m, "a": asked.a}
    parameters = {"t": top} | {key: x for key, x in given.items() if x is not None}
    try:
        return Transform("logicle", **parameters)
    except ValueError as error:
        raise ConfigError([f"data.transform: {name}: {error}"]) from error
