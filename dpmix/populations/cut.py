"""Where to cut a tree of populations."""

from __future__ import annotations

from dataclasses import dataclass

from dpmix.model.mixture import Ints
from dpmix.populations.tree import LEVEL, Tree


@dataclass(frozen=True)
class CutRule:
    """Where to cut a tree: at a height, or so that a number of populations results; by default at `LEVEL`."""

    level: float | None = None
    n_populations: int | None = None

    def cut(self, tree: Tree) -> Ints:
        """Return the population of each component, int64 [K]."""
        if self.n_populations is not None:
            return tree.cut_to(self.n_populations)
        return tree.cut(LEVEL if self.level is None else self.level)

    def level_in(self, tree: Tree) -> float:
        """Return the cut height in a tree."""
        if self.n_populations is not None:
            return tree.level_of(self.n_populations)
        return LEVEL if self.level is None else self.level

    def why(self, tree: Tree, n_found: int, n_merged: int) -> str:
        """Return the reason for the cut height, and how many populations had no support, for a reader."""
        if self.n_populations is None:
            reason = "the default" if self.level is None else "requested"
            return f"{reason}; {n_merged} with low support merged" if n_merged else reason
        if n_found < self.n_populations:
            return f"{self.n_populations} populations requested, but the density has {n_found} modes"
        tied = int(tree.cut(tree.level_of(self.n_populations)).max()) + 1 != n_found
        some = ", with only some of the merges at this height" if tied else ""
        return f"{self.n_populations} populations requested{some}"
