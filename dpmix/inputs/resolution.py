"""The resolution of each channel: the standard deviation of one measurement, on the transformed scale.

The sampler takes every event for a small cloud of this width (`dpmix.model.resolution`). `auto` takes it from
what is known of the instrument:

- **Mass cytometry** counts ions. A count c has the variance of a Poisson variable, c, plus the variance of
  the background and of the randomisation of counts: the error is sqrt(c + 1.5^2). Carried through arcsinh(x /
  5) this is 0.29 at 0 ions, 0.38 at 3, 0.33 at 10, 0.19 at 30 and 0.10 at 100. A channel has one number: half
  the distance of -1.5 and 1.5 counts after the transform, 0.30. It fits 0 to some 15 ions, where counts are
  coarse; among brighter events, valleys between populations are wider than it. Values of a table that look
  like counts after arcsinh(x / c) (`dpmix.inputs.mass.cofactor_of_counts`) have the error of counts on that
  scale.
- **Coarse values** (integers of few levels, rounded decimals): the standard deviation of a uniform variable
  over the usual step, step / sqrt(12). Only where most events share their value with another and the step is
  above 5% of the standard deviation of the channel: finer steps are narrower than any component.
- **All others**: 0. Nothing is known of the error of a fluorescence channel, and in trials an assumed one of
  3% to 10% of a channel's standard deviation moved the scores of gated sets up as often as down.

D channels, M events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpmix.inputs.channel_names import why_not_measured
from dpmix.inputs.channels import match_all
from dpmix.inputs.file_plans import FilePlan
from dpmix.inputs.fitting import kind_of
from dpmix.inputs.mass import cofactor_of_counts
from dpmix.inputs.sources import Kind
from dpmix.inputs.transformed import thinned
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array, Floats

ERROR_AT_ZERO = 1.5  # counts: standard deviation of a count of 0 ions
LEAST_STEP = 0.05  # of the standard deviation of a channel: finer steps do not matter
SHARED = 0.5  # of the events share their value with another where values are coarse


def resolution_of(
    asked: str | float | Mapping[str, float],
    plans: Sequence[FilePlan],
    transforms: Sequence[Transform],
    raw: Array | Floats,
) -> tuple[tuple[float, ...], list[str]]:
    """Return the resolution of each channel of a run; see the module.

    Parameters
    ----------
    asked : "auto", float, or mapping of channel names or globs to float
        `data.resolution`. A full name has precedence over a glob, and an earlier glob over a later one.
    plans : sequence of FilePlan
    transforms : sequence of Transform
        One for each channel.
    raw : float32 or float64 [M, D]
        Some of the events.

    Returns
    -------
    resolution : tuple of float
        D standard deviations.
    notes : list of str
        What `auto` found that a table does not say itself: that its values are transformed counts.

    Raises
    ------
    ConfigError
        A key of the mapping matches no channel.
    """
    first = plans[0]
    if isinstance(asked, (int, float)):
        return (float(asked),) * len(transforms), []
    kind = kind_of(first.source, raw)
    of_channel = dict[int, float]()
    if isinstance(asked, Mapping):
        meant = match_all("data.resolution", list(asked), first.source)
        for name in sorted(asked, key=lambda name: any(c in name for c in "*?[")):  # full names first
            for k in meant[name]:
                of_channel.setdefault(k, float(asked[name]))
    found, some = [], np.asarray(thinned(raw), np.float64)
    cofactor = _transformed_counts(first, transforms, some, kind)
    for j, k in enumerate(first.chosen):
        counted = not why_not_measured(first.source.details[k])
        if k in of_channel:
            found.append(of_channel[k])
        elif kind == "mass" and counted:
            found.append(of_counts(transforms[j]))
        elif cofactor is not None and counted:
            found.append(float(np.arcsinh(ERROR_AT_ZERO / cofactor)))
        else:
            found.append(of_steps(transforms[j].apply(some[:, j])))
    notes = []
    if cofactor is not None and asked == "auto":
        like = f"values look like counts of mass cytometry after arcsinh(x / {cofactor:.3g})"
        error = f"the resolution is set to the error of counts, {np.arcsinh(ERROR_AT_ZERO / cofactor):.2g}"
        notes.append(f"{first.source.name}: {like}; {error} (data.resolution)")
    return tuple(found), notes


def _transformed_counts(
    first: FilePlan, transforms: Sequence[Transform], some: Array, kind: Kind
) -> float | None:
    """Return the cofactor where the values [M, D] are counts that another program has transformed."""
    measured = [not why_not_measured(first.source.details[k]) for k in first.chosen]
    linear = all(one.method == "linear" for one, ok in zip(transforms, measured, strict=True) if ok)
    usable = kind is None and linear and any(measured)
    return cofactor_of_counts(some[:, measured]) if usable else None


def of_counts(transform: Transform) -> float:
    """Return the standard deviation of a count of 0 ions on the transformed scale.

    A logarithm is not defined there: its smallest count is 1, whose error is sqrt(1 + 1.5^2) and reaches
    beyond 0; the channel has the error of its first order, 1.8 / ln 10.
    """
    if transform.method == "log":
        return float(np.sqrt(1.0 + ERROR_AT_ZERO**2) / np.log(10.0))
    low, high = transform.apply(np.array([-ERROR_AT_ZERO, ERROR_AT_ZERO]))
    return float(high - low) / 2.0


def of_steps(transformed: Array) -> float:
    """Return the standard deviation that rounding to coarse steps leaves unknown; 0 for finer values.

    Parameters
    ----------
    transformed : float64 [M]
        Values of one channel.
    """
    values, counts = np.unique(transformed, return_counts=True)
    if len(values) < 2 or counts[counts > 1].sum() < SHARED * len(transformed):
        return 0.0
    gaps = np.diff(values)
    # The step at half of the events, not of the values: the many values of a sparse tail are far apart.
    around = 0.5 * (np.append(gaps, gaps[-1]) + np.insert(gaps, 0, gaps[0]))
    order = np.argsort(around)
    at_half = int(np.searchsorted(np.cumsum(counts[order]), 0.5 * len(transformed)))
    step = float(around[order[at_half]])
    return float(step / np.sqrt(12.0)) if step > LEAST_STEP * transformed.std() else 0.0
