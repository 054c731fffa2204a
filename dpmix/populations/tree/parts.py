"""Parts of modes: where the density has a shoulder and no mode of its own.

A population next to a larger one can be a plateau on its slope: the density never rises, and no component
climbs to a mode there. The same mixture with narrower components has a mode in the middle of such a plateau.
Its modes are candidates only: they divide the components of each mode into parts, and the events decide which
part is a population (`dpmix.populations.tree.valleys.Profile.has_shoulder`).

J components, L modes, P parts, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.tree.merging import Join, Merging
from dpmix.populations.tree.modes import Density, find_modes, joining_lines, nearest_components
from dpmix.populations.tree.valleys import Separation

NARROWED = 0.75
"""Standard deviation of the narrower components, times their own."""


@dataclass(frozen=True)
class Parts:
    """Parts of the modes of a density.

    Attributes
    ----------
    own : int64 [J]
        Part of each component, 0..P-1.
    modes : int64 [P]
        Mode that each part belongs to. Parts 0..L-1 contain the tops of the modes 0..L-1.
    peaks : int64 [P]
        Mode of the narrower density that each part belongs to.
    points : float64 [P, D]
        Positions of these modes.
    narrower : Density
    """

    own: Ints
    modes: Ints
    peaks: Ints
    points: Array
    narrower: Density

    def lines(self, some: Ints) -> Ints:
        """Return the lines that join some parts along the highest narrower density, int64 [n - 1, 2]."""
        return some[joining_lines(self.narrower, self.points[some])]


def find_parts(density: Density, modes: Ints, tops: Array) -> Parts:
    """Divide the components of each mode by the modes of the narrower density that they climb to.

    Parameters
    ----------
    density : Density
    modes : int64 [J]
        Mode of each component, 0..L-1.
    tops : float64 [L, D]
        Positions of the modes.
    """
    narrower = density.scaled(NARROWED)
    peaks, points, _ = find_modes(narrower)
    at_top = peaks[nearest_components(density.weights, density.means, density.covariances, tops)]
    pairs = [(mode, int(peak)) for mode, peak in enumerate(at_top)]
    found = sorted(set(zip(modes.tolist(), peaks.tolist(), strict=True)) - set(pairs))
    numbers = {pair: part for part, pair in enumerate(pairs + found)}
    own = np.array([numbers[pair] for pair in zip(modes.tolist(), peaks.tolist(), strict=True)])
    of_modes, of_peaks = np.array(pairs + found).T
    return Parts(own, of_modes, of_peaks, points[of_peaks], narrower)


def merge_parts(parts: Parts, some: Ints, separation: Separation) -> list[Join]:
    """Merge the parts of modes without a valley: at height 0, but for shoulders.

    A shoulder must be one next to all other parts together: next to some of them, a tail is one, too, because
    the events that connect it are missing. The nearest of the others merges first, with its neighbour along
    the highest density.

    Parameters
    ----------
    parts : Parts
    some : int64 [n]
        The parts.
    separation : Separation
    """
    merging = Merging(np.arange(len(parts.modes)))
    _, first, same = np.unique(parts.peaks[some], return_index=True, return_inverse=True)
    for part, alike in zip(some.tolist(), some[first][same].tolist(), strict=True):
        if part != alike:
            merging.join(part, alike, 0.0)  # two modes share a peak of the narrower density
    lines = parts.lines(some[first]).tolist() if len(first) > 1 else []
    everything = np.isin(np.arange(len(parts.modes)), some)
    tests: dict[int, tuple[bool, float]] = {}
    while lines:
        branches = np.unique(merging.population[some]).tolist()
        main = max(branches, key=lambda branch: separation.n_events(merging.members(branch)))
        others = [branch for branch in branches if branch != main]
        for branch in others:
            if branch not in tests:
                own = merging.members(branch)
                tests[branch] = separation.of_shoulder(own, everything & ~own)
        nearest = min(others, key=tests.__getitem__)  # no shoulder comes before a shoulder
        if tests[nearest][0]:
            for branch in sorted(others, key=tests.__getitem__):
                merging.join(branch, main, tests[branch][1])
            break
        own = merging.members(nearest)
        child, parent = lines.pop(next(n for n, (one, other) in enumerate(lines) if own[one] != own[other]))
        if own[parent]:
            child, parent = parent, child
        tests.pop(int(merging.population[parent]), None)
        merging.join(child, parent, 0.0)
    return merging.joins
