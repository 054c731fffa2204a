"""Apply decisions made by hand to the tree of a run: its populations, with names and colours.

J components of the mean density, L modes of its tree, P populations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from dpmix.errors import ConfigError
from dpmix.model.mixture import Ints
from dpmix.populations.draws.forest import Forest
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.decisions import (
    LONGEST_NAME,
    OPTION,
    Action,
    Colour,
    Cut,
    Decisions,
    Merge,
    Name,
    Split,
    TreeMark,
)
from dpmix.populations.tree.support import populations_of_modes
from dpmix.populations.tree.tree import Tree

Union = frozenset[int]
Value = TypeVar("Value", int, str)


@dataclass(frozen=True)
class Decided:
    """Populations that were decided by hand.

    Attributes
    ----------
    modes : int64 [L]
        Population of each mode, 0..P-1, in the order of `labels`.
    rule : CutRule
        Where the tree was cut before merges and splits.
    why : str
        The cut and the number of merges and splits, for a reader.
    names : tuple of str
        P names, "" for none.
    labels : tuple of int
        P numbers by which readers know the populations, ascending. A cut numbers them by size, from 1. A
        merged population has the number of its largest part, the larger side of a split the number of the
        whole, and the smaller side the first free one; all others keep theirs.
    colours : tuple of int
        P numbers of colours (`dpmix.report.palette`), from 0. A population without a decided colour has the
        colour of its number, or the next free one if that is taken.
    """

    modes: Ints
    rule: CutRule
    why: str
    names: tuple[str, ...]
    labels: tuple[int, ...]
    colours: tuple[int, ...]

    @property
    def unions(self) -> list[tuple[int, ...]]:
        """Modes of each population, ascending."""
        return [tuple(np.flatnonzero(self.modes == p).tolist()) for p in range(len(self.names))]


@dataclass(frozen=True)
class _State:
    """Populations while actions are applied, each a set of modes, in the order of their numbers.

    `numbers` has the number of each, from 0.
    """

    unions: tuple[Union, ...]
    rule: CutRule
    why: str
    n_merges: int = 0
    n_splits: int = 0
    names: dict[Union, str] = field(default_factory=dict)
    colours: dict[Union, int] = field(default_factory=dict)
    numbers: dict[Union, int] = field(default_factory=dict)

    def with_unions(self, unions: Iterable[Union], numbers: dict[Union, int]) -> _State:
        """Return the state with other populations and, of some, other numbers."""
        known = self.numbers | numbers
        return replace(self, unions=tuple(sorted(unions, key=known.__getitem__)), numbers=known)


def start(forest: Forest, n_draws: int) -> Decisions:
    """Return decisions without actions: the populations of the default cut."""
    return Decisions(draws=n_draws, tree=TreeMark.of(forest.tree))


def act(forest: Forest, decisions: Decisions, action: Action) -> Decisions:
    """Return the decisions with one more action.

    Raises
    ------
    ConfigError
        The action is not possible.
    """
    after = decisions.then(action)
    try:
        _replayed(forest, after)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    return after


def decided(forest: Forest, decisions: Decisions) -> Decided:
    """Return the populations after all actions.

    Raises
    ------
    ConfigError
        The decisions were made for another tree, or an action is not possible.
    """
    if not decisions.tree.matches(TreeMark.of(forest.tree)):
        raise ConfigError(
            [
                f"{OPTION}: the decisions were made for another tree of populations than in "
                f"{forest.run.path} (other draws, or a run that was continued); move the file of decisions "
                "away, and decide again with dpmix app"
            ]
        )
    try:
        state = _replayed(forest, decisions)
    except ValueError as error:
        raise ConfigError([f"{OPTION}: {error}"]) from None
    return _numbered(forest, state)


def _numbered(forest: Forest, state: _State) -> Decided:
    """Return the populations with their numbers, names and colours."""
    modes = np.empty(len(forest.tree.heights), np.int64)
    for number, union in enumerate(state.unions):
        modes[list(union)] = number
    counts = ((state.n_merges, "merge"), (state.n_splits, "split"))
    by_hand = [f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n]
    return Decided(
        modes=modes,
        rule=state.rule,
        why=f"{state.why}; then {' and '.join(by_hand)} by hand" if by_hand else state.why,
        names=tuple(state.names.get(union, "") for union in state.unions),
        labels=tuple(state.numbers[union] + 1 for union in state.unions),
        colours=_colours(
            [state.colours.get(union) for union in state.unions],
            [state.numbers[union] for union in state.unions],
        ),
    )


def _colours(chosen: Sequence[int | None], own: Sequence[int]) -> tuple[int, ...]:
    """Return the colour of each population: the chosen one, its own one, or the next free one."""
    taken = {colour for colour in chosen if colour is not None}
    spare = (n for n in itertools.count(len(chosen)) if n not in taken and n not in own)
    return tuple(
        colour if colour is not None else next(spare) if mine in taken else mine
        for colour, mine in zip(chosen, own, strict=True)
    )


# --------------------------------------------------------------------------- actions


def _replayed(forest: Forest, decisions: Decisions) -> _State:
    """Return the populations after all actions; `ValueError` if one is not possible."""
    state = _after_cut(forest, CutRule())
    for number, action in enumerate(decisions.actions, start=1):
        try:
            if isinstance(action, Cut):
                if action.level is not None and action.populations is not None:
                    raise ValueError("a cut has a level or a number of populations, not both")
                cut = _after_cut(forest, CutRule(action.level, action.populations))
                # Names and colours belong to sets of modes, so a population that the new cut leaves whole
                # keeps them.
                state = replace(cut, names=state.names, colours=state.colours)
            else:
                state = _applied(forest, state, action)
        except ValueError as error:
            raise ValueError(f"action {number} ({action.do}): {error}") from None
    return state


def _after_cut(forest: Forest, rule: CutRule) -> _State:
    """Return the populations of a cut."""
    own, _ = forest.cut(rule)
    modes = populations_of_modes(forest.tree, own)
    unions = tuple(frozenset(np.flatnonzero(modes == p).tolist()) for p in range(int(own.max()) + 1))
    numbers = {union: number for number, union in enumerate(unions)}
    return _State(unions, rule, forest.why(rule), numbers=numbers)


def _applied(forest: Forest, state: _State, action: Merge | Split | Name | Colour) -> _State:
    """Return the populations after one action that is not a cut."""
    if isinstance(action, Merge):
        parts = [_known(state, modes) for modes in action.populations]
        if len(set(parts)) < len(parts):
            raise ValueError("a population cannot be merged with itself")
        union = frozenset[int]().union(*parts)
        largest = max(parts, key=lambda part: forest.sizes[list(part)].sum())
        others = [one for one in state.unions if one not in parts]
        merged = state.with_unions([*others, union], {union: state.numbers[largest]})
        return replace(
            merged,
            n_merges=state.n_merges + 1,
            names=_with(state.names, union, _joined(state, parts)),
            colours=_with(
                state.colours, union, _only([state.colours[p] for p in parts if p in state.colours])
            ),
        )
    union = _known(state, action.population)
    if isinstance(action, Split):
        small, large = sorted(split(forest.tree, union), key=lambda side: forest.sizes[list(side)].sum())
        # The numbers and colours of all others stay: a reader has learned them from the figures.
        used = {state.numbers[one] for one in state.unions}
        free = next(n for n in itertools.count() if n not in used)
        others = [one for one in state.unions if one != union]
        apart = state.with_unions([*others, large, small], {large: state.numbers[union], small: free})
        return replace(apart, n_splits=state.n_splits + 1)
    if isinstance(action, Name):
        name = " ".join(action.name.split())
        if not name.isprintable():
            raise ValueError("a name needs printable characters only")
        if name and any(state.names.get(other) == name for other in state.unions if other != union):
            raise ValueError(f"{name} is the name of another population; give another name, or merge them")
        return replace(state, names=_with(state.names, union, name or None))
    return replace(state, colours=_with(state.colours, union, action.colour))


def split(tree: Tree, union: Union) -> tuple[Union, Union]:
    """Return the two sides of the highest merge of the tree inside a union of modes.

    Raises
    ------
    ValueError
        There is no valley inside it.
    """
    into = np.arange(len(tree.heights))
    inside = np.isin(into, list(union))
    last: tuple[float, Union] | None = None
    for (child, parent), level in zip(tree.merges, tree.levels.tolist(), strict=True):
        moved = into == into[child]
        if (moved & inside).any() and ((into == into[parent]) & inside).any():
            last = level, frozenset(np.flatnonzero(moved & inside).tolist())
        into[moved] = into[parent]
    # A merge at height 0 has no valley: its sides are ripples of one peak.
    if last is None or last[0] <= 0.0:
        raise ValueError("the population cannot be split: there is no valley inside it")
    return last[1], union - last[1]


def _known(state: _State, modes: Sequence[int]) -> Union:
    """Return the population with these modes; `ValueError` if it does not exist."""
    union = frozenset(modes)
    if union not in state.unions:
        listed = ", ".join(str(mode) for mode in sorted(union)[:8]) + (", ..." if len(union) > 8 else "")
        raise ValueError(f"no population has the modes {listed} at this step")
    return union


def _joined(state: _State, parts: Sequence[Union]) -> str | None:
    """Return the name of merged populations: the names of the parts, as in "A + B"; None without a name.

    It is shortened to the longest name, and dropped if another population has it.
    """
    own = [state.names[part] for part in parts if part in state.names]
    joined = " + ".join(dict.fromkeys(own))
    if len(joined) > LONGEST_NAME:
        joined = f"{joined[: LONGEST_NAME - 1]}…"
    others = {state.names.get(other) for other in state.unions if other not in parts}
    return None if not joined or joined in others else joined


def _only(values: Sequence[int]) -> int | None:
    """Return the only value; None for no value or several."""
    return values[0] if len(values) == 1 else None


def _with(given: dict[Union, Value], union: Union, value: Value | None) -> dict[Union, Value]:
    """Return a mapping with one value replaced, or removed."""
    others = {key: old for key, old in given.items() if key != union}
    return others if value is None else others | {union: value}
