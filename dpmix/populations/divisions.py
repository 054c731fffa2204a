"""Components that lie in several populations.

Chains arrange their components differently. If a component lies in two populations and counts for one, the
proportions of both depend on the arrangement, although the density hardly does: chains seem to disagree. So
such a component is divided by another draw: its events have their memberships in that draw. This is one of
the draws of the mean density, whose components define the populations. They are of different chains, and each
draw gets one of them at random. The border between two populations is then uncertain in every chain, and
alike in all.

T draws, G draws of the mean density, K components, M points, P populations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.model.streams import Step, Stream
from dpmix.populations.forest import memberships_by

WHOLE = 0.98
"""A component belongs to one population if this has at least this share of the component's points."""

LEAST_SHARE = 1e-5  # a population without a point may still have events


class Division(NamedTuple):
    """The components of a draw that are divided.

    Attributes
    ----------
    components : int64 [d]
        Ascending.
    shares : float64 [P]
        Share of the events of these components in each population; their sum is 1.
    guide : int
        The draw of the mean density by which they are divided, 0..G-1.
    """

    components: Ints
    shares: Array
    guide: int

    def sums(self, values: Array, populations: Ints) -> Array:
        """Return the sums over the components of each population, float64 [P].

        Parameters
        ----------
        values : float64 [K]
            Of the components, for example their weights.
        populations : int64 [K]
            Population of each component; ignored for those that are divided.
        """
        whole = np.array(values, np.float64)
        whole[self.components] = 0.0
        divided = float(np.asarray(values)[self.components].sum())
        return np.bincount(populations, whole, len(self.shares)) + divided * self.shares


def whole_of(division: Division) -> Division:
    """Return the division in which every component is whole."""
    return division._replace(components=np.zeros(0, np.int64))


def in_several(counts: Ints) -> Ints:
    """Return the components that lie in several populations, ascending.

    Parameters
    ----------
    counts : int64 [K, P]
        Points whose most probable component and population these are.
    """
    return np.flatnonzero(counts.max(axis=1) < WHOLE * counts.sum(axis=1))


def divide(
    engine: Engine,
    mixtures: Sequence[Callable[[], Mixture]],
    divided: Sequence[Ints],
    guides: Sequence[Mixture],
    populations: Ints,
    n_populations: int,
) -> tuple[Division, ...]:
    """Return the divisions of some draws.

    Parameters
    ----------
    engine : Engine
        Holds points drawn from the mean density, which show what part of the components is where.
    mixtures : sequence of callable
        Return the mixtures of T draws.
    divided : sequence of int64 [d]
        Components of each draw that lie in several populations.
    guides : sequence of Mixture
        Draws of the mean density.
    populations : int64 [G, K]
        Population of each component of each guide.
    n_populations : int
        P.
    """
    chosen = Stream(0, 0, 0).step(Step.POINTS).integers(len(guides), size=len(divided)).tolist()
    none = np.zeros(n_populations)
    if not any(map(len, divided)):
        return tuple(
            Division(components, none, guide) for components, guide in zip(divided, chosen, strict=True)
        )
    by_guide = [
        memberships_by(engine, *one, n_populations, 0, engine.n_events)[0]
        for one in zip(guides, populations, strict=True)
    ]
    divisions = []
    for mixture, components, guide in zip(mixtures, divided, chosen, strict=True):
        shares = _shares(engine, mixture(), components, by_guide[guide]) if len(components) else none
        divisions.append(Division(components, shares, guide))
    return tuple(divisions)


def _shares(engine: Engine, mixture: Mixture, components: Ints, memberships: Floats) -> Array:
    """Return the share of some components in each population, float64 [P], by the memberships of points."""
    numbers = np.zeros(len(mixture.means), np.int64)
    numbers[components] = 1
    inside = memberships_by(engine, mixture, numbers, 2, 0, engine.n_events)[0][:, 1]
    sums = inside.astype(np.float64) @ memberships
    least = np.maximum(sums / sums.sum(), LEAST_SHARE)
    shares: Array = least / least.sum()
    return shares
