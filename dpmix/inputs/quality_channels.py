"""Channels that show debris, doublets and dead cells: scatter and viability stains.

`dpmix gate` reads them for the same events, whether the run uses them or not. The model does not see them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpmix.inputs.channel_names import VIABILITY, measurement, why_no_marker, why_not_measured
from dpmix.inputs.channels import same_channels
from dpmix.inputs.sources import Source
from dpmix.inputs.state_channels import StateChannels

SIZE, HEIGHT, SIDE, DEAD = "size", "height", "side", "dead"
FORWARD_SCATTER = re.compile(r"(?<![A-Za-z])FSC|^FS|forward", re.IGNORECASE)
SIZES = ("area", "", "height")  # quantities that measure the size of a cell, the best first


@dataclass(frozen=True)
class QualityChannels:
    """Scatter and viability of the events.

    Attributes
    ----------
    measured : StateChannels
        Q channels.
    roles : tuple of str
        Q times "size" (forward scatter, its area where there is one), "height" (of the same pulse), "side"
        or "dead" (a stain of dead cells).
    """

    measured: StateChannels
    roles: tuple[str, ...]


def quality_roles(source: Source) -> dict[str, int]:
    """Return the number of the channel in each role; roles without a channel are left out."""
    names = [channel.detector for channel in source.details]
    found: dict[str, int] = {}
    own = {
        k: measurement(name, names, source.kind is not None)
        for k, name in enumerate(names)
        if source.details[k].numeric and why_not_measured(source.details[k]) == "scatter"
    }
    forward = [k for k in own if FORWARD_SCATTER.search(names[k])]
    for role, numbers in ((SIZE, forward), (SIDE, [k for k in own if k not in forward])):
        usable = [k for k in numbers if own[k].quantity in SIZES and own[k].stem == own[numbers[0]].stem]
        if usable:
            found[role] = min(usable, key=lambda k: SIZES.index(own[k].quantity))
    if SIZE in found and own[found[SIZE]].quantity == "area":
        stem = own[found[SIZE]].stem
        heights = [k for k in forward if own[k].stem == stem and own[k].quantity == "height"]
        found |= {HEIGHT: heights[0]} if heights else {}
    stains = [
        k
        for k, channel in enumerate(source.details)
        if channel.numeric and why_no_marker(channel, source.kind) == VIABILITY
    ]
    area = [k for k in stains if measurement(names[k], names, source.kind is not None).quantity in SIZES[:2]]
    if stains:
        found[DEAD] = [*area, *stains][0]
    return found


def choose_quality(sources: Sequence[Source]) -> tuple[tuple[str, ...], list[Sequence[int]]]:
    """Return the roles, and the numbers of their channels in each file.

    Raises
    ------
    DataError
        A file lacks a channel that the first one has.
    """
    found = quality_roles(sources[0])
    own = list(found.values())
    if not own:
        return (), []
    return tuple(found), [own, *(same_channels(sources[0], own, source)[0] for source in sources[1:])]
