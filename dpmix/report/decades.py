"""Ticks of the axes of channels, in the units of the data files: decades where the scale is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmix.inputs.transforms import Transform
from dpmix.populations.result import Gating

APART = 0.1  # least distance of labels, as a share of the axis
POWERS = range(-3, 10)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Ticks:
    """Ticks of an axis.

    Attributes
    ----------
    places : tuple of float
        On the transformed scale, ascending.
    texts : tuple of str
        Their labels: raw values.
    minor : tuple of float
        Places of ticks without labels.
    """

    places: tuple[float, ...]
    texts: tuple[str, ...]
    minor: tuple[float, ...] = ()


def ticks_of(gating: Gating, channel: int) -> Ticks:
    """Return the ticks of a channel of the model over the range of its raster."""
    low, high = gating.rasters.edges[channel, [0, -1]].tolist()
    transform = gating.transforms[channel] if gating.transforms else Transform()
    return axis_ticks(transform, low, high)


def axis_ticks(transform: Transform, low: float, high: float) -> Ticks:
    """Return the ticks between two places: 0 and decades, or round numbers on a linear scale.

    Parameters
    ----------
    transform : Transform
        Transform of the channel.
    low, high : float
        Ends of the axis, transformed scale, low below high.
    """
    if transform.method == "linear":
        return _round_numbers(low, high)
    if transform.method == "widen":  # the values of the table, which are on a scale themselves
        numbers = _round_numbers(*transform.invert(np.array([low, high])).tolist())
        return Ticks(tuple(_places(transform, list(numbers.places))), numbers.texts)
    signs = (1.0,) if transform.method == "log" else (1.0, -1.0)
    decades = [sign * 10.0**power for power in reversed(POWERS) for sign in signs]
    wanted = decades if transform.method == "log" else [0.0, *decades]
    labelled = _apart(transform, wanted, low, high)
    if len(labelled) < 2:  # less than a decade
        steps = [
            sign * step * power
            for step in (1.0, 5.0, 2.0)
            for power in decades[:: len(signs)]
            for sign in signs
        ]
        wanted = steps if transform.method == "log" else [0.0, *steps]
        return Ticks(*_sorted(_apart(transform, wanted, low, high), lambda value: f"{value:g}"))
    least = min((abs(value) for _, value in labelled if value), default=1.0)
    between = [
        sign * digit * 10.0**power
        for power in POWERS
        for digit in range(2, 10)
        for sign in signs
        if 10.0**power >= 0.099 * least
    ]
    minor = tuple(place for place in _places(transform, between) if low <= place <= high)
    return Ticks(*_sorted(labelled, power_text), minor)


def _apart(transform: Transform, wanted: list[float], low: float, high: float) -> list[tuple[float, float]]:
    """Return places and values on the axis, the first wanted ones first, whose labels do not overlap."""
    found: list[tuple[float, float]] = []
    for value, place in zip(wanted, _places(transform, wanted), strict=True):
        near = any(abs(place - other) < APART * (high - low) for other, _ in found)
        if low <= place <= high and not near:
            found.append((place, value))
    return found


def _places(transform: Transform, values: list[float]) -> list[float]:
    """Return values on the transformed scale; infinity where there is no place."""
    places: list[float] = np.nan_to_num(transform.apply(np.array(values)), nan=math.inf).tolist()
    return places


def _sorted(
    labelled: list[tuple[float, float]], text: Callable[[float], str]
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the places, ascending, and the texts of their values."""
    ordered = sorted(labelled)
    return tuple(place for place, _ in ordered), tuple(text(value) for _, value in ordered)


def power_text(value: float) -> str:
    """Return 0 or a power of ten as text, for example 10³."""
    if value == 0.0:
        return "0"
    power = str(round(math.log10(abs(value)))).translate(SUPERSCRIPTS)
    return f"{'-' if value < 0 else ''}10{power}"


def _round_numbers(low: float, high: float) -> Ticks:
    """Return about five round numbers between two values."""
    size = (high - low) / 5.0
    unit = 10.0 ** math.floor(math.log10(size))
    # A little less than the size, which may be a round number but for rounding.
    step = unit * next(one for one in STEPS if one * unit >= 0.999 * size)
    places = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step + 0.0
    thousands = max(abs(low), abs(high)) >= 10_000.0
    texts = [f"{place / 1000.0:.6g}k" if thousands and place else f"{place:.6g}" for place in places]
    return Ticks(tuple(places.tolist()), tuple(texts))
