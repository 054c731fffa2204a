"""Gate a run within this process, without tables, figures and report."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from clusterings import Ints

from dpmix.model.mixture import Array
from dpmix.populations.assign import assign_events
from dpmix.populations.draws.find import DRAWS
from dpmix.populations.draws.task import prepare
from dpmix.populations.events.proportions import posterior
from dpmix.populations.marks import find_artefacts
from dpmix.populations.summary import Summary
from dpmix.runs.verdict import Verdict


class Found(NamedTuple):
    """Proportions of populations with intervals, R-hat and ESS [P], population of each event [N], verdict.

    `draws_alone` [T, S, P]: draws of proportions without the uncertainty of shapes.
    """

    mean: Array
    low: Array
    high: Array
    r_hat: Array
    ess: Array
    population: Ints
    verdict: Verdict
    draws_alone: Array


def gate_run(run: Path) -> Found:
    """Gate the events of a run as `dpmix gate` does by default."""
    task = prepare(run, output=run.parent / "gated")
    found = task.find_populations(DRAWS, None, None)
    summary = Summary.empty(task.events, found)
    for block, counts in assign_events(task, found):
        summary.add(block, counts)
    gating = summary.gating(task, found, find_artefacts(task, found).marks)
    population = summary.population.astype(np.int64)
    alone = posterior(summary.counts, task.config.seed)
    return Found(*gating.overall, gating.r_hat, gating.ess, population, gating.verdict, alone)
