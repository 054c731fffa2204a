"""Fit the logicle scale of a channel to its events.

A logicle scale has a linear region about zero and is logarithmic far from it. Where the linear region is
narrower than the noise about zero, the transformed noise falls into two lobes, which look like two
populations. Where it is much wider, dim populations merge.

t, the top
    The end of the range that the file declares. Software that exports floating point values may compute a
    range from events: one that the events exceed or just reach, or one just below a power of 2. Then t is the
    next power of 2. A range a thousand times beyond all events is not a range of the detector; then t is the
    next power of 2 above the events. t is at least 100 r.
w, the linear decades
    w = (m - log10(t / r)) / 2 with the reference r below (Parks, Roederer and Moore 2006, Cytometry A
    69A:541), as flowCore's estimateLogicle computes it: -r is the 5% quantile of the negative values.
m, all decades
    4.5, or log10(t / r) where w would be negative: the noise is narrower than the scale resolves.

Instruments without negative values clip noise at their lowest value. There r is 1.96 standard deviations of
the half-normal whose density continues the density of the values next to the limit. Without negative values
and without such a pile, nothing lies about zero, and w is 0.
"""

from __future__ import annotations

import math

import numpy as np

from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array

DECADES = 4.5  # m
LOW = 0.05  # quantile of the negative values
FEW, SHARE = 5, 0.001  # fewer negative values, or a smaller share of all, are not noise about zero
BEYOND = 1.959964  # the quantile of LOW of the negative half of a normal distribution, in standard deviations
COARSE = 3.0  # steps between values: in a shorter stretch, its halves cannot be compared
FALLING = 0.6  # of a half-normal below its limit, the nearer half of the events next to it takes this share
NEARLY = 0.99  # of a power of 2: a range as computed by software that exported the file
CLOSE = 1e-4  # of a range, or 1: how far the largest event may be from a range that is computed from it
FAR = 1000.0  # a range this many times beyond all events is not a range of the detector
LEAST = 100.0  # t / r: with fewer decades, w is close to m / 2, where the scale bends too sharply at its ends


def fit_logicle(
    raw: Array, declared: float | None, highest: float, reach: float, exact: bool = False
) -> Transform:
    """Return the logicle scale that fits a channel.

    Parameters
    ----------
    raw : float64 [M]
        Some of the raw values of the channel.
    declared : float or None
        End of the range by the file, on the raw scale.
    highest : float
        Largest raw value of all events.
    reach : float
        Largest raw value of the channels of the same kind.
    exact : bool
        The range belongs to the detector, as for stored integers. Software that exports other numbers may
        compute a range from the events.
    """
    t, r = top(declared, highest, reach, exact), reference(raw)
    if r == 0:
        return Transform("logicle", t=t, w=0.0, m=DECADES)
    t = t if t >= LEAST * r else power_of_two(LEAST * r)
    decades = math.log10(t / r)
    m = max(DECADES, _up(decades))
    return Transform("logicle", t=t, w=_up((m - decades) / 2), m=m)


def top(declared: float | None, highest: float, reach: float, exact: bool = False) -> float:
    """Return the top of the scale, see `fit_logicle` for the parameters."""
    if declared is None or declared > FAR * reach > 0:
        return power_of_two(max(reach, highest, 1.0))
    above = power_of_two(declared)
    is_maximum = abs(declared - highest) <= max(1.0, CLOSE * declared)
    end = above if not exact and (is_maximum or declared > NEARLY * above) else declared
    # Values above the top of a scale have a transform, but lie beyond what plots show.
    return end if highest <= end else power_of_two(highest)


def power_of_two(value: float) -> float:
    """Return the smallest power of 2 that is at least a positive value."""
    return 2.0 ** math.ceil(math.log2(value))


def reference(raw: Array) -> float:
    """Return how far the noise about zero reaches below it, 0 where there is no such noise.

    Parameters
    ----------
    raw : float64 [M]
    """
    enough = max(FEW, SHARE * len(raw))
    negative = raw[raw < 0]
    if len(negative) >= enough:
        return float(-np.quantile(negative, LOW))
    lowest = raw.min(initial=math.inf)
    above = np.sort(raw[raw > lowest]) - lowest
    at_limit = len(raw) - len(above)
    near = min(at_limit // 2, len(above)) - 1  # of the half-normal: its median
    if at_limit < enough or near < 1:
        return 0.0
    distance = above[near]
    step = np.diff(np.unique(above[: near + 1])).min(initial=distance)
    if above[near // 2] > FALLING * distance and distance > COARSE * step:
        return 0.0  # the density does not fall from the limit on
    # A half-normal with as many events as the pile has the density events / sd sqrt(2 / pi) at the limit; it
    # is set equal to the density of the events next to it.
    sd = math.sqrt(2 / math.pi) * at_limit * distance / (near + 1)
    return float(BEYOND * sd)


def _up(value: float) -> float:
    """Round up to two decimals, so that a config has short numbers and no narrower linear region."""
    return math.ceil(value * 100) / 100
