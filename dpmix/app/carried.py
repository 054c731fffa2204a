"""Decisions about an earlier state of a run, which had fewer draws and so another tree.

Their file is set aside. Names and colours are carried over by the events that populations share, if the
earlier state is still open; populations without a successor are listed.

M events, P populations.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from dpmix.app.live import Live, population_of_events
from dpmix.model.mixture import Ints
from dpmix.populations.draws import decide
from dpmix.populations.tree.decisions import (
    Action,
    Colour,
    Decisions,
    Name,
    TreeMark,
    read_decisions,
    write_decisions,
)
from dpmix.populations.tree.partitions import SIMILAR, contingency
from dpmix.system.files import writing


def carry_over(live: Live, before: Live | None) -> tuple[str, ...]:
    """Set decisions about another tree aside, carry their names and colours over, and say what was done.

    Parameters
    ----------
    live : Live
        Just opened.
    before : Live, optional
        What was open under the same name.

    Raises
    ------
    ConfigError
        An action of the file is not possible.
    """
    if before is not None and _id(before) != _id(live):
        before = None
    if not live.path.exists():
        if before is None or _mark(before) == _mark(live):
            return ()
        return tuple(_carried_over(live, before, decide.start(before.forest, before.n_draws)))
    earlier = read_decisions(live.path)
    if earlier.tree.matches(_mark(live)):
        decide.decided(live.forest, earlier)
        return ()
    aside = _set_aside(live.path)
    if before is None or not earlier.tree.matches(_mark(before)):
        named = dict.fromkeys(action.name for action in earlier.actions if isinstance(action, Name))
        lost = ", ".join(filter(None, named))
        return (aside, *([f"Names to give again: {lost}."] if lost else []))
    kept = (
        "Names and colours are kept by the populations with the same events; cuts, merges and splits are not."
    )
    return (aside, kept, *_carried_over(live, before, earlier))


def _mark(live: Live) -> TreeMark:
    return TreeMark.of(live.forest.tree)


def _id(live: Live) -> object:
    return live.task.run.attributes["run_id"]


def _set_aside(path: Path) -> str:
    """Rename a file of decisions about another tree to a name that is free, and say so."""
    names = (path.with_name(f"{path.name.removesuffix('.json')}.{n}.json") for n in itertools.count(1))
    kept = next(name for name in names if not name.exists())
    with writing(path):
        path.rename(kept)
    return (
        f"The decisions in {path.name} are about an earlier state of this run; they are kept as {kept.name}."
    )


def _carried_over(live: Live, before: Live, earlier: Decisions) -> list[str]:
    """Write decisions with the names and colours of earlier populations; say which have changed.

    An earlier population corresponds to the one with which it shares most events, if these are more than half
    of the events of both together.
    """
    old = decide.decided(before.forest, earlier)
    decisions = decide.start(live.forest, live.n_draws)
    new = decide.decided(live.forest, decisions)
    partner = matched(population_of_events(before, old), population_of_events(live, new), len(old.names))
    for p in np.flatnonzero(partner >= 0).tolist():
        modes, name, colour = new.unions[partner[p]], old.names[p], old.colours[p]
        given: list[Action] = [Name(population=modes, name=name)] if name else []
        given += [Colour(population=modes, colour=colour)] if colour != old.labels[p] - 1 else []
        for action in given:
            decisions = decide.act(live.forest, decisions, action)
    if decisions.actions:
        write_decisions(live.path, decisions)
    moved = [
        f"{old.labels[p]} is now {new.labels[q]}"
        for p, q in enumerate(partner.tolist())
        if q >= 0 and new.labels[q] != old.labels[p]
    ]
    lost = [f"{old.labels[p]} {old.names[p]}".strip() for p in np.flatnonzero(partner < 0)]
    return [
        *([f"Populations have other numbers than before: {', '.join(moved)}."] if moved else []),
        *([f"Populations that are not found any more: {', '.join(lost)}."] if lost else []),
    ]


def matched(before: Ints, after: Ints, n_before: int) -> Ints:
    """Return the population of `after` that each of `before` corresponds to, int64 [P]; -1 for none.

    Parameters
    ----------
    before, after : int64 [M]
        Populations of the same events.
    n_before : int
    """
    table = contingency(before, after, n_before, int(after.max()) + 1)
    union = table.sum(axis=1)[:, None] + table.sum(axis=0) - table
    similarity = table / np.maximum(union, 1)
    best: Ints = similarity.argmax(axis=1)
    return np.where(similarity.max(axis=1) > SIMILAR, best, -1)
