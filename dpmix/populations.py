"""The populations of a mixture: its components, merged where they share a peak of the density."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.model import Array

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """Which modes of a mixture's density merge, and at which level: the populations at every level at once.

    Attributes
    ----------
    modes : int64 [K]
        The mode, 0..L-1, that each component climbs to.
    points : float64 [L, D]
        Where the modes are, standardised scale.
    heights : float64 [L]
        Log density there.
    merges : int64 [L - 1, 2]
        In each, the population of the first mode becomes part of that of the second, which lives on under
        its name; every mode but one is first once.
    levels : float64 [L - 1]
        At which this happens, ascending: the populations at a level are those of all merges below it.
    """

    modes: Ints
    points: Array
    heights: Array
    merges: Ints
    levels: Array

    def cut(self, level: float) -> Ints:
        """Populations of the components at a level, int64 [K]: 0..P-1, in the order of their modes."""
        return self._merged(int(np.searchsorted(self.levels, level)))

    def cut_to(self, n_populations: int) -> Ints:
        """So many populations, as far as there are modes, int64 [K]."""
        return self._merged(max(len(self.levels) - n_populations + 1, 0))

    def _merged(self, count: int) -> Ints:
        into = np.arange(len(self.heights))
        for child, parent in self.merges[:count]:
            into[into == into[child]] = into[parent]
        return np.unique(into[self.modes], return_inverse=True)[1]
