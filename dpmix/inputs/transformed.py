"""Recognise raw light, and values that another program has compensated and transformed already.

**Tables and AnnData** do not say what they hold. Raw light has a narrow bulk of dim events near zero, and
bright events hundreds of times as far; on any scale made for looking at it, dim and bright events are equally
wide. So light has channels in which the distance from the lower quartile to the brightest events is many
times the distance to the dimmest, and values beyond 12 bits, in which scales are often stored.

**FCS files** hold light unless something shows the contrary. R and other programs write transformed values
with the spillover matrix and the range of the instrument still in their keywords. Two things show it:

- flowCore notes its `transform()`: keyword `transformation` is custom, and `flowCore_$PnRmax` is far below
  $PnR;
- all values are small, but for a few wild ones: an arcsinh or logicle scale ends between 1 and 15, and light
  or its noise reaches further on every instrument.

**An arcsinh scale can be too narrow.** Where its linear part is narrower than the noise about zero, as often
with the usual cofactor of 150, the negative cells of a marker fall into two lobes, which look like two
populations. Such values are about as frequent just below zero as just above it, and channels are not centred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpmix.inputs.channel import Channel
from dpmix.inputs.logicle import reference
from dpmix.inputs.mass import cofactor_of_counts
from dpmix.inputs.text_format import is_number
from dpmix.model.mixture import Array, Floats

MOST = 15.0  # an arcsinh with a cofactor of 1 has 13.2 at 262,144
FAR = 100.0  # the range of an instrument, relative to transformed values, at least
FEWEST = 20  # events; fewer show nothing
WILD, FEW_WILD = 1000.0, 3  # a few values of a channel, this many times as far as all others, say nothing
TOP = 5000.0  # scales are stored up to 4,095
LONG, SHARE = (
    15.0,
    0.25,
)  # upper part of a channel of light, in lower parts, and share of channels that have it
LOBES = 2.0  # cofactors: noise that reaches further below zero (a normal: sd above a cofactor) has two lobes
FEWEST_WIDENED = 1_000  # events; in fewer, chance makes such channels
EVEN = 0.5  # as many values just above zero as just below it, at least: noise about zero has about as many
CENTRED = 0.03  # standard deviations: means or medians so close to 0 show that channels were centred
ENOUGH = 100  # events whose quantiles show light
EVENTS = 20_000  # that show the shape of a channel as well as all do


def thinned(raw: Array | Floats) -> Array | Floats:
    """Return at most `EVENTS` evenly spaced events."""
    return raw[:: max(1, -(-len(raw) // EVENTS))]


def are_light(raw: Array | Floats) -> bool:
    """Return True if events look like raw light.

    Parameters
    ----------
    raw : float32 or float64 [M, D]
        Some of the events, of channels that may measure light.
    """
    raw = thinned(raw)
    if len(raw) < ENOUGH or not raw.shape[1] or not np.isfinite(raw).all():
        return False
    found = long_tailed(raw)
    return bool(np.quantile(raw, 0.999, axis=0).max() >= TOP and found.sum() >= max(1.0, SHARE * len(found)))


def long_tailed(raw: Array | Floats) -> npt.NDArray[np.bool_]:
    """Return the channels in which bright events lie far beyond the bulk of dim ones, bool [D]."""
    # Quantiles, not extremes: single events are far away on every scale.
    low, quarter, high = np.quantile(thinned(raw), [0.01, 0.25, 0.999], axis=0).astype(float)
    found: npt.NDArray[np.bool_] = (high - quarter > LONG * (quarter - low)) & (high >= TOP)
    return found


def widening_cofactors(values: Array | Floats) -> Array:
    """Return how many times as wide the linear part of each channel must be to keep its noise in one lobe.

    Parameters
    ----------
    values : float32 or float64 [M, D]
        Some of the events, of channels that measure light, as another program has transformed them.

    Returns
    -------
    float64 [D]
        1 where the scale fits, and in all channels where the values are not on an arcsinh scale.
    """
    found = np.ones(values.shape[1])
    some = thinned(values).astype(np.float64)
    if len(some) < FEWEST_WIDENED or not np.isfinite(some).all() or _usual_highest(np.abs(some)).max() > MOST:
        return found
    centred = np.abs([some.mean(0), np.median(some, axis=0)]) < CENTRED * some.std(0)
    if centred.mean(axis=1).max() > 0.5 or cofactor_of_counts(some) is not None:
        return found
    for j, column in enumerate(some.T):
        negative = column[column < 0.0]
        if len(negative) and _spans_zero(column, -float(np.median(negative))):
            found[j] = widening_cofactor(column)
    return found


def widening_cofactor(values: Array | Floats) -> float:
    """Return how many times as wide the linear part of an arcsinh scale must be for its noise, at least 1.

    Parameters
    ----------
    values : float32 or float64 [M]
        Values of one channel on this scale.
    """
    if not (values < 0).any():
        return 1.0  # `reference` would take the lowest value for a limit of the detector
    # In units of the cofactor. Three digits, so that reports and configs have short numbers.
    noise = reference(np.sinh(np.clip(values.astype(np.float64), -MOST, MOST)))
    return float(f"{noise:.3g}") if noise > LOBES else 1.0


def _spans_zero(column: Array, near: float) -> bool:
    """Return True if values [M] up to `near` above zero are about as many as those below."""
    below, above = ((column > -near) & (column < 0.0)).sum(), ((column >= 0.0) & (column < near)).sum()
    return bool(above >= EVEN * below)


def why_transformed(
    keywords: Mapping[str, str], channels: Sequence[Channel], chosen: Sequence[int], values: Array | Floats
) -> str:
    """Return what shows that the values of a file are transformed, "" where nothing does.

    Parameters
    ----------
    keywords : mapping
        Keywords of TEXT, in lower case and without $.
    channels : sequence of Channel
        Channels of the file.
    chosen : sequence of int
        Numbers of the D channels that measure light, from 0.
    values : float32 or float64 [M, D]
        Some of the events, as stored.
    """
    # A transform has no integer results.
    if not chosen or any(channels[k].integer for k in chosen):
        return ""
    if keywords.get("transformation", "").strip().casefold() == "custom":
        for k in chosen:
            found, limit = keywords.get(f"flowcore_$p{k + 1}rmax", "").strip(), channels[k].range
            if limit and is_number(found) and 0 < float(found) * FAR <= limit:
                shown = f"flowCore_$P{k + 1}Rmax is {found} for a range of {limit:g}"
                return f"transformation is custom, and {shown}"
    finite = np.abs(values[np.isfinite(values).all(1)])
    if len(finite) < FEWEST:
        return ""
    highest = _usual_highest(finite)
    small = [
        # Dim light is small too, but within the range of its detector: only a range far beyond the values, or
        # one of the scale itself, speaks for a transform.
        top <= MOST and (limit is None or limit <= 3 * MOST or limit >= FAR * top)
        for top, limit in zip(highest.tolist(), (channels[k].range for k in chosen), strict=True)
    ]
    return f"no value is above {highest.max():.3g}" if all(small) and highest.max() > 0 else ""


def partly_transformed(
    channels: Sequence[Channel], chosen: Sequence[int], values: Array | Floats
) -> list[str]:
    """Return a warning where some channels of light look transformed, and others do not.

    Parameters are as in `why_transformed`. Whole numbers are no results of a transform, but of a count.
    """
    finite = values[np.isfinite(values).all(1)]
    if len(finite) < ENOUGH:
        return []
    highest = _usual_highest(np.abs(finite))
    found = [
        (channels[k].detector, top)
        for k, top, column in zip(chosen, highest.tolist(), finite.T, strict=True)
        if 0 < top <= MOST and (channels[k].range or 0.0) >= FAR * top and (column != np.rint(column)).any()
    ]
    if not found or len(found) == len(chosen):
        return []
    names = ", ".join(name for name, _ in found[:3]) + (", ..." if len(found) > 3 else "")
    seen = f"no value of {names} is above {max(top for _, top in found):.3g}"
    return [
        f"{seen}, and others reach {highest.max():.3g}: these channels may be transformed already; if so, "
        "set data.compensation to none and their data.transform to linear"
    ]


def _usual_highest(values: Array | Floats) -> Array:
    """Return the highest of values [M, D] without a few wild ones, float64 [D]."""
    top = np.sort(values, axis=0)[-1 - FEW_WILD :].astype(np.float64)
    usual: Array = np.where(top[-1] > WILD * top[0], top[0], top[-1])
    return usual
