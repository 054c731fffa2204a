"""Controls of channels: files in which a channel has no positive cells (FMO, unstained).

A threshold between - and + is expected at the 99% quantile of the control. It is found at the start of a run,
on the transformed scale of the run, and recorded in the run file. The files are compensated like the files of
the run. All of their events are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpmix.config.data import DEFAULT, DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.blocks import blocks
from dpmix.inputs.channels import Panel, match_all, run_panel, same_channels
from dpmix.inputs.file_plans import plan_files
from dpmix.inputs.marker_names import rename_markers
from dpmix.inputs.opening import open_sources
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array

UPPER, LOWER = 0.99, 0.95  # quantiles of a control: the limit, and what its scale is measured from
FEWEST = 100  # events of a control
LEAST_NEAR = 0.01  # of the standard deviation of the channel: a control may have one value


@dataclass(frozen=True)
class Control:
    """Control of a channel, on the transformed scale.

    Attributes
    ----------
    file : str
    n_events : int
    median, limit : float
        Quantiles 50% and 99%.
    near : float
        Standard deviation of a threshold around the limit: the distance from the 95% quantile to the limit.
    error : float
        Standard error of the limit by the number of events.
    """

    file: str
    n_events: int
    median: float
    limit: float
    near: float
    error: float

    @classmethod
    def of(cls, file: str, values: Array, sd: float) -> Self:
        """Return the control of values [n], for a channel with a standard deviation."""
        # The share of the events below a quantile is binomial, which gives its standard error.
        share = np.sqrt(UPPER * (1.0 - UPPER) / len(values))
        ends = UPPER - share, min(UPPER + share, 1.0)
        median, lower, limit, below, above = np.quantile(values, (0.5, LOWER, UPPER, *ends)).tolist()
        near = max(limit - lower, LEAST_NEAR * sd)
        return cls(file, len(values), median, limit, near, (above - below) / 2.0)


Controls = Mapping[str, Control]
"""Controls by the name of the channel that is shown."""


def controls_as_attributes(controls: Controls) -> dict[str, Any]:
    """Return controls as plain texts and numbers, for JSON."""
    return {name: asdict(one) for name, one in controls.items()}


def controls_from_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, Control]:
    """Make controls from the result of `controls_as_attributes`."""
    return {name: Control(**one) for name, one in attributes.items()}


def control_files(asked: Mapping[str, str], first: Source, chosen: Sequence[int]) -> dict[int, str]:
    """Return the control of each channel by its place among the D channels of the run.

    A full name has precedence over a glob, an earlier glob over a later one, and all over "default".

    Parameters
    ----------
    asked : mapping of str to str
        `data.controls`.
    first : Source
        First file of the run.
    chosen : sequence of int
        Numbers of its D channels.

    Raises
    ------
    ConfigError
        A name matches no channel, or none of the model.
    """
    names = [name for name in asked if name != DEFAULT]
    meant = match_all("data.controls", names, first)
    if outside := [name for name in names if not set(meant[name]) & set(chosen)]:
        raise ConfigError(
            [
                f"data.controls: {name} is not a channel of the model; remove it, or add it to data.channels"
                for name in outside
            ]
        )
    found: dict[int, str] = {}
    for name in sorted(names, key=lambda name: any(c in name for c in "*?[")):  # full names first
        for k in meant[name]:
            if k in chosen:
                found.setdefault(list(chosen).index(k), asked[name])
    if DEFAULT in asked:
        found = {j: found.get(j, asked[DEFAULT]) for j in range(len(chosen))}
    return dict(sorted(found.items()))


def read_controls(
    settings: DataConfig, base: Path, files: Mapping[int, str], detectors: Sequence[str], scaling: Scaling
) -> dict[str, Control]:
    """Return the controls of a run by channel.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that the names of the files are relative to.
    files : mapping of int to str
        Result of `control_files`.
    detectors : sequence of str
        D names in the first file of the run.
    scaling : Scaling
        Scaling of the run.

    Raises
    ------
    ConfigError, DataError
        A file is missing, cannot be read, lacks its channel, or has too few events.
    """
    panel = run_panel(detectors, scaling.channels)
    found: dict[int, Control] = {}
    for file in dict.fromkeys(files.values()):
        own = [j for j, name in files.items() if name == file]
        values = _values(settings, base, file, panel, own)
        for j, column in zip(own, values.T, strict=True):
            transformed = scaling.transforms[j].apply(column)
            found[j] = Control.of(file, transformed, float(scaling.sds[j]))
    return {scaling.channels[j]: found[j] for j in files}


def _values(settings: DataConfig, base: Path, file: str, panel: Panel, own: Sequence[int]) -> Array:
    """Return the compensated events of some channels of a control, float64 [n, channels]."""
    try:
        sources = open_sources([file], base)
    except ConfigError as error:
        raise ConfigError(
            [text.replace("data.files", "data.controls", 1) for text in error.problems]
        ) from None
    if len(sources) > 1:
        raise ConfigError([f"data.controls: {file} stands for {len(sources)} files; name one of them"])
    (source,) = rename_markers(settings.rename, sources, all_occur=False)
    if source.n_events < FEWEST:
        raise DataError(
            f"data.controls: {file} has {source.n_events} events; a control needs at least {FEWEST}"
        )
    try:
        numbers = same_channels(panel, own, source)[0]
    except DataError as error:
        raise DataError(
            f"data.controls: {str(error).partition('; ')[0]}; give the control of this channel"
        ) from None
    plan = plan_files(settings, base, [source], [numbers])[0][0]
    values = np.concatenate([plan.read(start, stop, None)[1] for start, stop in blocks(source.n_events)])
    if not np.isfinite(values).all():
        raise DataError(f"data.controls: {file} has values that are not finite; remove these events")
    return values


def by_number(
    controls: Controls, channels: Sequence[str], deviates: Array | None = None
) -> dict[int, Control]:
    """Return the controls by the number of the channel.

    Parameters
    ----------
    controls : mapping of str to Control
    channels : sequence of str
        D names.
    deviates : float64 [D], optional
        Standard errors by which to move the limits.
    """
    found = {d: controls[name] for d, name in enumerate(channels) if name in controls}
    if deviates is not None:
        found = {d: replace(one, limit=one.limit + deviates[d] * one.error) for d, one in found.items()}
    return found
