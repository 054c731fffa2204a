"""Proportions and verdict as `dpmix gate` computes them, after decisions: events are counted in each draw.

The view of the page takes the weights of the populations in the draws, which are there at once. These
proportions need a pass over all events in all draws: parts of a second for some ten thousand events, longer
for more. They have the same bits as the proportions by `dpmix gate`.

T draws, S samples, P populations.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING
from typing import Any

import numpy as np

from dpmix.app.live import Live, revision
from dpmix.populations.assign import assign_events
from dpmix.populations.draws import decide
from dpmix.populations.draws.cohort import prior_counts
from dpmix.populations.draws.convergence import population_mixing
from dpmix.populations.draws.find import decided_populations
from dpmix.populations.events.borders import estimate_proportions
from dpmix.populations.events.estimates import Estimates, over_samples
from dpmix.populations.tree.decisions import Decisions
from dpmix.runs.verdict import judge
from dpmix.system.console import percent

AT_ONCE = 5_000_000
"""Events times draws up to which the page counts after each decision: about a second of two cores."""


def is_quick(live: Live) -> bool:
    """Return whether counting takes about a second."""
    return len(live.task.events.values) * len(live.forest.draws) <= AT_ONCE


def counted(live: Live, decisions: Decisions, is_wanted: Callable[[], bool]) -> dict[str, Any] | None:
    """Return the proportions of all samples together with their intervals, as populations.csv has them.

    Parameters
    ----------
    live : Live
    decisions : Decisions
    is_wanted : callable
        Called after some events; if it returns False, counting ends.

    Returns
    -------
    dict or None
        ``revision``: of the decisions. ``populations``: proportion, percent, interval and ends of each, as in
        the view. None if counting was ended.
    """
    task, run = live.task, live.task.run
    found = decided_populations(live.forest, decide.decided(live.forest, decisions))
    events = task.events
    counts = np.zeros((len(found.draws), len(events.samples), found.n_populations), np.int64)
    populations = []
    for block, own in assign_events(task, found):
        counts[:, block.sample] += own
        populations.append(block.population.astype(np.int32))
        if not is_wanted():
            return None
    prior = prior_counts(run, found.draws, found.components, found.n_populations)
    drawn, mean, _ = estimate_proportions(
        counts, task.config.seed, prior, events.values, np.concatenate(populations)
    )
    weights = None if events.weights is None else events.weights.values
    both = mean, drawn
    estimates = Estimates.of(*(over_samples(each, np.diff(events.sample_starts), weights) for each in both))
    ends = zip(*(each.tolist() for each in estimates), strict=True)
    rows = [_row(mean, low, high, len(drawn) > 1) for mean, low, high in ends]
    return {"revision": revision(decisions), "populations": rows}


def verdict(live: Live, decisions: Decisions) -> dict[str, Any]:
    """Return the verdict of `dpmix gate` after decisions: its sentence, and whether chains differ."""
    found = decided_populations(live.forest, decide.decided(live.forest, decisions))
    own = judge(live.task.run, population_mixing(found, live.task.make_engine))
    return {"revision": revision(decisions), "text": str(own), "differs": own.level >= WARNING}


def _row(mean: float, low: float, high: float, several: bool) -> dict[str, Any]:
    """Return a proportion; `several`: there is more than one draw, so it has an interval."""
    shown = f"{percent(low)} to {percent(high)}" if several else ""
    ends = [low, high] if several else None
    return {"proportion": mean, "percent": percent(mean), "interval": shown, "ends": ends}
