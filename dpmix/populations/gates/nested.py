"""Gates along the tree: branches of populations first, each population inside its branch.

A branch is the union of all populations below a merge of the tree (`dpmix.populations.tree.tree`). It has
gates of its own if they isolate it with an F1 of at least `BRANCH`, searched like the gates of a population
(`dpmix.populations.gates.strategy`) among the events inside the gates of the branch around it. A population
is gated inside the smallest branch that costs less than `GAIN` of the F1 of its shortest sequence, else by
this sequence. Branches that contain fewer than two others or populations are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmix.inputs.events import Events
from dpmix.populations.gates.ellipses import EllipseGate, as_polygon
from dpmix.populations.gates.strategy import (
    GAIN,
    Gates,
    Search,
    Strategy,
    Totals,
    blocks_of,
    measure,
    sample_of,
)
from dpmix.populations.tree.tree import Tree
from dpmix.system.threads import one_thread

BRANCH = 0.95  # least F1 of the gates of a branch

Union = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """A branch or a population, with its gates.

    Attributes
    ----------
    populations : tuple of int
        Numbers of its populations, from 0; one for a population.
    parent : int
        Number of the branch whose gates are around it, in the order of the hierarchy; -1 for none.
    n_own : int
        Number of gates inside the parent's gates, which come first.
    strategy : Strategy
        All gates from the first to the last, measured against the union of the populations.
    """

    populations: Union
    parent: int
    n_own: int
    strategy: Strategy

    @property
    def is_branch(self) -> bool:
        return len(self.populations) > 1


@dataclass(frozen=True)
class _Plan:
    """A node before its gates are measured."""

    populations: Union
    parent: int
    gates: Gates


def unions_of(tree: Tree, modes: npt.NDArray[np.integer]) -> list[Union]:
    """Return the unions of populations below the merges of a tree, largest first.

    Parameters
    ----------
    tree : Tree
    modes : int [L]
        Population of each mode.

    Returns
    -------
    list of tuple of int
        Each has at least two populations, and not all. Merges inside a population, and those that join only
        parts of populations, give none.
    """
    sizes = np.bincount(modes)
    into, found = np.arange(len(modes)), set()
    for child, parent in tree.merges:
        into[into == into[child]] = into[parent]
        joined = np.bincount(modes[into == into[parent]], minlength=len(sizes))
        whole = np.flatnonzero((joined == sizes) & (sizes > 0))
        # Merged populations need not be branches; only unions of whole populations, and not of all, can be
        # gated.
        if joined[whole].sum() == joined.sum() and 2 <= len(whole) < np.count_nonzero(sizes):
            found.add(tuple(whole.tolist()))
    return sorted(found, key=lambda union: (-len(union), union))


def find_nested(
    events: Events,
    population: npt.NDArray[np.int32],
    strategies: Sequence[Strategy],
    unions: Sequence[Union],
    seed: int,
) -> tuple[Node, ...]:
    """Find the gates of branches and populations.

    Parameters
    ----------
    events : Events
        Without noise at atoms.
    population : int32 [N]
        Population of each event.
    strategies : sequence of Strategy
        Shortest sequences of the populations.
    unions : sequence of tuple of int
        Largest first; any two are disjoint, or one contains the other.
    seed : int
        Seed of the sample in which the gates are searched.

    Returns
    -------
    tuple of Node
        Branches, each after the one around it, then the populations.
    """
    binned, own = sample_of(events, population, len(strategies), seed)
    totals = Totals(binned)
    with one_thread():
        branches: list[_Plan] = []
        for union in unions:
            search = Search(binned, np.isin(own, union), totals)
            parent = next(iter(_around(branches, union)), -1)
            gates = search.best(branches[parent].gates if parent >= 0 else ())
            if search.f1_of(gates) >= BRANCH:
                branches.append(_Plan(union, parent, gates))
        populations = [
            _inside(Search(binned, own == p, totals), (p,), alone.gates, branches)
            for p, alone in enumerate(strategies)
        ]
    return _measured(_useful(branches, populations), events, population, len(strategies))


def find_families(
    events: Events, group: npt.NDArray[np.int32], families: Sequence[Union], n_groups: int, seed: int
) -> tuple[Node, ...]:
    """Find the gates of unions of groups, for example of cell types with their children.

    Parameters
    ----------
    events : Events
        Without noise at atoms.
    group : int32 [N]
        Group of each event, from 0.
    families : sequence of tuple of int
        Any two are disjoint, or one contains the other.
    n_groups : int
    seed : int

    Returns
    -------
    tuple of Node
        Largest families first. Each is gated inside the smallest family around it that costs little F1, or
        alone.
    """
    binned, own = sample_of(events, group, n_groups, seed)
    totals = Totals(binned)
    plans: list[_Plan] = []
    with one_thread():
        for family in sorted(families, key=lambda family: (-len(family), family)):
            search = Search(binned, np.isin(own, family), totals)
            plans.append(_inside(search, family, search.best(), plans))
    return _measured(plans, events, group, n_groups)


def with_polygons(
    nodes: Sequence[Node], events: Events, population: npt.NDArray[np.int32], n_populations: int
) -> tuple[Node, ...]:
    """Return nodes with polygons for ellipses, measured again; parameters are as in `find_nested`."""
    if not any(isinstance(gate, EllipseGate) for node in nodes for gate in node.strategy.gates):
        return tuple(nodes)
    plans = [
        _Plan(node.populations, node.parent, tuple(map(as_polygon, node.strategy.gates))) for node in nodes
    ]
    return _measured(plans, events, population, n_populations)


def _measured(
    plans: Sequence[_Plan], events: Events, population: npt.NDArray[np.int32], n_populations: int
) -> tuple[Node, ...]:
    """Return the nodes of plans, with the events that their gates keep."""
    targets = np.array([np.isin(np.arange(n_populations), plan.populations) for plan in plans])
    gates = [plan.gates for plan in plans]
    measured = measure(gates, blocks_of(events, population, gates), targets)
    return tuple(
        Node(plan.populations, plan.parent, len(plan.gates) - _shared(plans, plan), strategy)
        for plan, strategy in zip(plans, measured, strict=True)
    )


def _around(branches: Sequence[_Plan], union: Union) -> list[int]:
    """Return the numbers of the branches that contain a union, smallest first."""
    return [k for k in reversed(range(len(branches))) if set(union) < set(branches[k].populations)]


def _inside(search: Search, union: Union, alone: Gates, branches: Sequence[_Plan]) -> _Plan:
    """Return the gates of a population or union inside the smallest branch that costs little F1."""
    least = search.f1_of(alone) - GAIN
    for number in _around(branches, union):
        gates = search.best(branches[number].gates)
        if alone and search.f1_of(gates) >= least:
            return _Plan(union, number, gates)
    return _Plan(union, -1, alone)


def _useful(branches: Sequence[_Plan], populations: Sequence[_Plan]) -> list[_Plan]:
    """Return all nodes without the branches that have fewer than two others in them."""
    plans = [*branches, *populations]
    while True:
        inside = Counter(plan.parent for plan in plans)
        idle = [k for k, plan in enumerate(plans) if len(plan.populations) > 1 and inside[k] < 2]
        if not idle:
            return plans
        # One at a time: what was in it moves to the branch around it, which may be useful then.
        gone = idle[0]
        above = plans[gone].parent
        parents = [above if plan.parent == gone else plan.parent for plan in plans]
        plans = [
            replace(plan, parent=parent - (parent > gone))
            for k, (plan, parent) in enumerate(zip(plans, parents, strict=True))
            if k != gone
        ]


def _shared(plans: Sequence[_Plan], plan: _Plan) -> int:
    """Return the number of gates that a node has from its parent."""
    return len(plans[plan.parent].gates) if plan.parent >= 0 else 0
