"""Populations while they merge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Ints

Join = tuple[int, int, float]
"""Names of two populations, and the height at which the first merges into the second."""

Flags = npt.NDArray[np.bool_]


class Merging:
    """Populations of modes, or of parts of modes, while they merge.

    Parameters
    ----------
    population : int64 [P]
        Population of each part.

    Attributes
    ----------
    population : int64 [P]
        Population of each part now.
    joins : list of Join
        The merges so far; heights ascend.
    """

    def __init__(self, population: Ints) -> None:
        self.population = population.copy()
        self.joins: list[Join] = []

    def members(self, part: int) -> Flags:
        """Return the members of the population of a part, bool [P]."""
        members: Flags = self.population == self.population[part]
        return members

    def join(self, child: int, parent: int, level: float) -> None:
        """Merge the population of one part into the population of another, no lower than the latest merge."""
        # A merge moves the mean of a population, and can bring it nearer to a third one than the merge before
        # (an inversion, as in centroid linkage); the heights of a tree must not fall.
        level = max(level, self.joins[-1][2] if self.joins else 0.0)
        self.joins.append((int(self.population[child]), int(self.population[parent]), level))
        self.population[self.members(child)] = self.population[parent]

    def join_nearest(self, pairs: list[tuple[int, int]], between: Callable[[Flags, Flags], float]) -> None:
        """Merge the populations of all pairs of parts, the nearest first.

        `between` returns the distance between two populations, given their members.
        """
        pairs = list(pairs)
        distances = [np.nan] * len(pairs)  # NaN where the populations have changed
        while pairs:
            for n in np.flatnonzero(np.isnan(distances)):
                distances[n] = between(*map(self.members, pairs[n]))
            nearest = int(np.argmin(distances))
            (child, parent), distance = pairs.pop(nearest), distances.pop(nearest)
            self.join(child, parent, distance)
            merged = self.members(parent)
            # Only distances of the merged population change, and each costs a projection of its events.
            changed = [bool(merged[one] or merged[other]) for one, other in pairs]
            distances = [np.nan if new else old for new, old in zip(changed, distances, strict=True)]
