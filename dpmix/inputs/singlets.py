"""Propose a gate for single cells, for `dpmix init`: the area of forward scatter against its height.

The area of the pulse of one cell is nearly proportional to its height. Two cells that pass one after the
other have the area of both and the height of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpmix.inputs.channels import same_channels
from dpmix.inputs.default_channels import read_some
from dpmix.inputs.quality_channels import HEIGHT, SIZE, quality_roles
from dpmix.inputs.sources import Source

WIDTH = 3.0  # robust standard deviations on either side of the median ratio
TO_SD = 1.4826  # median absolute deviation to standard deviation
ENDS = (0.001, 0.999)  # quantiles of the height at the ends of the gate
FEWEST = 100  # events


class SingletGate(NamedTuple):
    """A gate between two lines through the origin.

    Attributes
    ----------
    area, height : str
        Detectors.
    low, high : float
        Least and largest ratio of area to height.
    vertices : tuple of (float, float)
        Corners: area and height.
    share : float
        Share of the events inside, by their ratio.
    """

    area: str
    height: str
    low: float
    high: float
    vertices: tuple[tuple[float, float], ...]
    share: float


def singlet_gate(sources: Sequence[Source]) -> SingletGate | None:
    """Return a gate for single cells from a bounded number of events; None without area and height."""
    first, found = sources[0], quality_roles(sources[0])
    if HEIGHT not in found:
        return None
    own = [found[SIZE], found[HEIGHT]]
    others = [same_channels(first, own, source)[0] for source in sources[1:]]
    events = read_some(sources, [own, *others]).astype(np.float64)
    area, height = events[np.isfinite(events).all(axis=1) & (events > 0.0).all(axis=1)].T
    if len(area) < FEWEST:
        return None
    # As a logarithm, because the ratio is skewed towards doublets.
    logs = np.log(area / height)
    middle = np.median(logs)
    reach = WIDTH * TO_SD * np.median(np.abs(logs - middle))
    low, high = np.exp([middle - reach, middle + reach])
    bottom, top = np.quantile(height, ENDS)
    corners = ((low * bottom, bottom), (high * bottom, bottom), (high * top, top), (low * top, top))
    share = float((np.abs(logs - middle) <= reach).mean())
    return SingletGate(
        first.details[own[0]].detector,
        first.details[own[1]].detector,
        float(low),
        float(high),
        tuple((float(x), float(y)) for x, y in corners),
        share,
    )
