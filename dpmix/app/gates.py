"""The populations of a run next to the gates that a person has drawn in a FlowJo workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmix.app.live import Live, population_of_events
from dpmix.inputs.manual_gates import ManualGates
from dpmix.populations import decide
from dpmix.populations.comparison import GatedSample, compare, gated_samples
from dpmix.populations.decisions import Decisions

Gated = tuple[GatedSample, ...]


def gated(live: Live, workspace: Path) -> Gated:
    """Return the shown events of a run inside the gates of a workspace; FlowKit takes seconds to apply them.

    Raises
    ------
    ConfigError, DataError
        FlowKit is missing, or the workspace cannot be read, has no gates for a sample, or one that FlowKit
        cannot apply.
    """
    gates = ManualGates(workspace, "comparison")
    return tuple(gated_samples(live.task.events, gates, live.rows))


def table(live: Live, decisions: Decisions, samples: Gated) -> dict[str, Any]:
    """Return a row for each gate, and the mean F1 of the gates with events and without gates inside.

    Each row has the events inside the gate, the number of the matched population from 0, -1 for none, with
    F1, precision and recall, and the union of populations that is most similar to the gate
    (`dpmix.populations.comparison`).
    """
    chosen = decide.decided(live.forest, decisions)
    found = compare("", samples, population_of_events(live, chosen), len(chosen.names))
    matches, (unions, union_f1) = found.matches(), found.unions()
    scores = [found.f1, found.precision, found.recall]
    rows = []
    for g, (gate, p) in enumerate(zip(found.gates, matches.tolist(), strict=True)):
        f1, precision, recall = (float(score[g, p]) if p >= 0 else 0.0 for score in scores)
        row = {"gate": gate, "events": int(found.sizes[g]), "population": p, "f1": f1}
        row |= {"precision": precision, "recall": recall, "leaf": bool(found.leaves[g])}
        rows.append(row | {"union": unions[g].tolist(), "union_f1": float(union_f1[g])})
    leaves = [row["f1"] for row in rows if row["leaf"] and row["events"]]
    return {"gates": rows, "mean": float(np.mean(leaves)) if leaves else None, "events": len(live.values)}
