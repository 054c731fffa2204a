"""Where to cut a tree of populations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.errors import ConfigError
from dpmix.model.mixture import Ints
from dpmix.populations.tree.tree import LEVEL, Tree


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


def require_cut(n_draws: object, level: object, n_populations: object) -> None:
    """Raise `ConfigError` where the number of draws or the cut of a tree is not usable.

    The command line refuses such values itself; this is for callers in Python, before any work.

    Parameters
    ----------
    n_draws : int
    level : float or None
    n_populations : int or None
    """
    problems = []
    for name, value in (("n_draws", n_draws), ("n_populations", n_populations)):
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
        if not is_count and (value is not None or name == "n_draws"):
            problems.append(f"{name} is {value!r}; it must be a whole number of at least 1")
    is_height = isinstance(level, int | float | np.number) and 0.0 <= level < np.inf
    if not is_height and level is not None:
        problems.append(f"level is {level!r}; it must be a number of standard deviations, 0 or more")
    if level is not None and n_populations is not None:
        problems.append("level and n_populations both cut the tree; give one of them")
    if problems:
        raise ConfigError(problems)
