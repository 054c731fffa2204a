"""The populations of a run next to the gates that a person has drawn in a FlowJo workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmix.app.live import Live, population_of_events
from dpmix.inputs.manual_gates import ManualGates
from dpmix.populations.draws import decide
from dpmix.populations.gates.comparison import GatedSample, compare, gated_samples, unread_gates
from dpmix.populations.tree.decisions import Decisions


class Gated(NamedTuple):
    """The shown events of each sample inside gates, and a warning for each sample with gates left out."""

    samples: tuple[GatedSample, ...]
    unread: list[str]


def gated(live: Live, workspace: Path) -> Gated:
    """Return the shown events of a run inside the gates of a workspace; FlowKit takes seconds to apply them.

    Raises
    ------
    ConfigError, DataError
        FlowKit is missing, or the workspace cannot be read, has no gates for a sample, or one that FlowKit
        cannot apply.
    """
    gates = ManualGates(workspace, "comparison")
    events = live.task.events
    return Gated(tuple(gated_samples(events, gates, live.rows)), unread_gates(events, gates))


def table(live: Live, decisions: Decisions, gated: Gated) -> dict[str, Any]:
    """Return a row for each gate, the mean F1 of those with events and without gates inside, and warnings.

    Each row has the events inside the gate, the number of the matched population from 0, -1 for none, with
    F1, precision and recall, and the union of populations that is most similar to the gate
    (`dpmix.populations.gates.comparison`).
    """
    chosen = decide.decided(live.forest, decisions)
    found = compare("", gated.samples, population_of_events(live, chosen), len(chosen.names))
    matches, (unions, union_f1) = found.matches(), found.unions()
    scores = [found.f1, found.precision, found.recall]
    rows = []
    for g, (gate, p) in enumerate(zip(found.gates, matches.tolist(), strict=True)):
        f1, precision, recall = (float(score[g, p]) if p >= 0 else 0.0 for score in scores)
        row = {"gate": gate, "events": int(found.sizes[g]), "population": p, "f1": f1}
        row |= {"precision": precision, "recall": recall, "leaf": bool(found.leaves[g])}
        rows.append(row | {"union": unions[g].tolist(), "union_f1": float(union_f1[g])})
    leaves = [row["f1"] for row in rows if row["leaf"] and row["events"]]
    mean = float(np.mean(leaves)) if leaves else None
    return {"gates": rows, "mean": mean, "events": len(live.values), "unread": gated.unread}
