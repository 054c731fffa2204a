"""Cell types of events: a table of cell types applied to the draws of a run.

The shares of the types in components, and what gives an event its probabilities, are in
`dpmix.populations.types.shares`; the levels of the markers in `dpmix.populations.types.table_fit`. Names are
by thresholds averaged over the places they may have, proportions by `LEVEL_SETS` sets of places in turn, so
that these intervals contain the uncertainty of the thresholds.

**Populations that look like debris, doublets or dead cells** (`dpmix.populations.marks`) have no cell type:
theta is 0 in their components for rows of the kind cell, but for events of debris and dead cells that look
like cells. (Debris passes a row whose cells are mostly negative, and lymphocytes without a marker that is on
can share a population with it.) Thresholds are found with all these events, which may be the only ones
without a marker: without debris, neutrophils would be CD45-.

N events, S samples, R rows, M markers of the table that are in the panel, T draws, K components.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dpmix.inputs.controls import by_number
from dpmix.inputs.type_table import TypeTable, match_markers
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.predictive import classify
from dpmix.populations.draws.task import Task
from dpmix.populations.events.artefacts import Artefacts
from dpmix.populations.events.medians import evenly
from dpmix.populations.types.cells import suspect_cells
from dpmix.populations.types.exchanged import exchanged
from dpmix.populations.types.markers import Bools, Marker
from dpmix.populations.types.shares import Fits, barred_rows, component_shares, event_shares, name_shares
from dpmix.populations.types.table_fit import TableFit, fit_table
from dpmix.populations.types.types import (
    CERTAINTY,
    Types,
    decide,
    descendants,
    included,
    parent_rows,
    type_proportions,
)
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.system.progress import ProgressLog

TYPE_DRAWS = 40  # draws of the run, at most
LEVEL_DRAWS = 4  # of the run, whose thresholds are averaged
LEVEL_SETS = 4  # sets of moved thresholds, used in turn
FITTED = 30_000  # events from which levels and shares are computed
BLOCK = 32_768


@dataclass(frozen=True)
class _Fitted:
    """Events from which levels and shares are computed.

    Attributes
    ----------
    events : int64 [F]
        Their numbers.
    values : float64 [F, M]
    draws : int64 [T]
        Draws of the run that give events their types.
    labels : mapping of int to int64 [F]
        Components of the events in these draws, and in the reference.
    """

    events: Ints
    values: Array
    draws: Ints
    labels: dict[int, Ints]


@dataclass(frozen=True)
class _Rule:
    """Shares of the types in the components of a draw, and the thresholds that go with them.

    Attributes
    ----------
    markers : int
        Number of the set of markers.
    shares : tuple of float64 [K, R + 1]
        theta; where populations are marked, then theta of events that look like cells.
    fits : float64 [K, R]
        k of the components.
    """

    markers: int
    shares: tuple[Array, ...]
    fits: Array


@dataclass(frozen=True)
class _Model:
    """The fitted table, and the rules of all draws: they give events their types.

    Attributes
    ----------
    fit : TableFit
    sets : list of tuple of Marker
        The markers for names; then those for proportions, with moved thresholds.
    naming, counting : list of _Rule
        One of each for each of T draws.
    parents : list of int
        Row of the parent of each of R rows, -1 for none.
    """

    fit: TableFit
    sets: list[tuple[Marker, ...]]
    naming: list[_Rule]
    counting: list[_Rule]
    parents: list[int]

    def types_of(
        self, values: Array, memberships: Iterable[Floats], like_cells: Bools
    ) -> tuple[Array, Array]:
        """Return mean probabilities of the types of events, and expected numbers of events in each draw.

        Parameters
        ----------
        values : float64 [N, M]
        memberships : iterable of float32 [N, K]
            One for each draw.
        like_cells : bool [N]
            Events that look like cells (`dpmix.populations.events.artefacts.Artefacts.of_events`).

        Returns
        -------
        names : float64 [N, R + 1]
        counts : float64 [T, R + 1]
        """
        sides = [(self.fit.evidence(one, values), *self.fit.event_fits(one, values)) for one in self.sets]
        names = np.zeros_like(sides[0][0])
        counts = np.zeros((len(self.naming), names.shape[1]))
        parts = [
            (which, rows, [(evidence[rows], fits[rows], passed[rows]) for evidence, fits, passed in sides])
            for which, rows in enumerate((~like_cells, like_cells))
            if rows.any()
        ]
        rules = zip(self.naming, self.counting, memberships, strict=True)
        for k, (naming, counting, whole) in enumerate(rules):
            for which, rows, own in parts:
                names[rows] += self._shares(naming, which, whole[rows], own)
                counts[k] += self._shares(counting, which, whole[rows], own).sum(axis=0)
        return names / len(self.naming), counts

    def _shares(
        self, rule: _Rule, which: int, memberships: Floats, sides: list[tuple[Array, Array, Array]]
    ) -> Array:
        """Return the probabilities of the types by a rule, float64 [N, R + 1]."""
        evidence, fits, passed = sides[rule.markers]
        given = Fits(fits, rule.fits, passed)
        return event_shares(memberships, rule.shares[which], evidence, given, self.parents)


def assign_types(
    task: Task,
    found: Populations,
    table: TypeTable,
    own_terms: Sequence[OwnTerms] | None = None,
    certainty: float = CERTAINTY,
    artefacts: Artefacts | None = None,
) -> Types:
    """Return the cell types of all events.

    Parameters
    ----------
    task : Task
    found : Populations
    table : TypeTable
    own_terms : sequence of OwnTerms, optional
        Weights and shifts of samples that are not in the run.
    certainty : float
        Least probability of a child, given its parent.
    artefacts : Artefacts, optional
        What populations look like (`dpmix.populations.marks`).

    Raises
    ------
    ConfigError
        No marker of the table is in the panel.
    """
    events = task.events
    numbers, notes = match_markers(table, events.all_channels)
    columns = np.flatnonzero(numbers >= 0)
    at = numbers[columns]
    channels = tuple(events.all_channels[d] for d in at.tolist())
    artefacts = artefacts or Artefacts()
    full = table.with_inherited()
    random = Stream(task.config.seed, 3, 0).step(Step.PROPORTIONS)
    some = _fitted_events(task, found, at, random)
    few = [some.labels[t] for t in level_draws(found.reference, some.draws)]
    controls = by_number(found.run.controls, channels)
    fit = fit_table(some.values, few, full.levels[:, columns], full.doubt[:, columns], controls)
    model = _model(found, table, artefacts, some, fit, random)
    of_event, probability = np.empty(len(events.values), np.int32), np.empty(len(events.values), np.float32)
    counts = np.zeros((len(some.draws), len(events.samples), len(table.types) + 1))
    progress = ProgressLog("cell types", len(events.values))
    each = np.arange(found.run.n_components)
    with closing(task.make_engine(events.values)) as engine:
        for sample, (first, end) in enumerate(pairwise(events.sample_starts.tolist())):
            own = task.own_terms(found, sample, own_terms)
            for start in range(first, end, BLOCK):
                stop = min(start + BLOCK, end)
                mixtures = (found.mixture_of(t, own) for t in some.draws.tolist())
                memberships = (engine.memberships(mixture, each, start, stop)[0] for mixture in mixtures)
                values = events.all_values(np.arange(start, stop))[:, at]
                like_cells = artefacts.of_events(slice(start, stop), len(events.values))
                names, sums = model.types_of(values, memberships, like_cells)
                counts[:, sample] += sums
                decided = decide(names, table.parents, table.types, certainty)
                of_event[start:stop], probability[start:stop] = decided
                progress.add(stop - start)
    proportions, mean = type_proportions(counts, included(table), task.config.seed)
    return Types(
        table=table,
        markers=fit.markers,
        columns=columns,
        channels=channels,
        notes=notes,
        certainty=certainty,
        of_event=of_event,
        probability=probability,
        counts=counts,
        proportions=proportions,
        mean_proportions=mean,
        r_hat=_r_hat(counts.sum(axis=1) @ included(table).T, found.draws[some.draws, 0]),
        agreement=fit.agreement,
        contradicted=fit.contradicted,
        suspect=_suspect(found, table, artefacts, some, fit, of_event),
        right=fit.right,
        exchanged=exchanged(some.values, some.labels[found.reference], full.levels[:, columns]),
    )


def level_draws(reference: int, drawn: Ints) -> list[int]:
    """Return the draws whose thresholds are averaged: the reference, and others far apart."""
    others = [t for t in drawn.tolist() if t != reference]
    return [reference, *(others[k] for k in evenly(len(others), LEVEL_DRAWS - 1).tolist())]


def _fitted_events(task: Task, found: Populations, at: Ints, random: np.random.Generator) -> _Fitted:
    """Return the events from which levels and shares are computed, with the channels `at`."""
    events = task.events
    n_events = len(events.values)
    some = np.sort(random.choice(n_events, min(n_events, FITTED), replace=False))
    drawn = evenly(len(found.draws), TYPE_DRAWS)
    with closing(task.make_engine(np.ascontiguousarray(events.values[some]))) as engine:
        labels = {
            t: classify(engine, found.mixture_of(t, None))[0].astype(np.int64)
            for t in {*drawn.tolist(), found.reference}
        }
    return _Fitted(some, events.all_values(some)[:, at], drawn, labels)


def _model(
    found: Populations,
    table: TypeTable,
    artefacts: Artefacts,
    some: _Fitted,
    fit: TableFit,
    random: np.random.Generator,
) -> _Model:
    """Return the shares of the types in the components of all draws, with the markers that they are for."""
    # Few sets of thresholds, used in turn, because each needs its own evidence of all events.
    deviates = random.standard_normal((LEVEL_SETS, len(fit.markers)))
    moved = [tuple(one.moved(e) for one, e in zip(fit.markers, row, strict=True)) for row in deviates]
    sets = [fit.soft, *moved]
    evidence = [fit.evidence(one, some.values) for one in sets]
    labels, n_components = [some.labels[t] for t in some.draws.tolist()], found.run.n_components
    naming_fits = fit.component_fits(fit.soft, some.values, labels, n_components)
    counting_fits = np.empty_like(naming_fits)
    for k, one in enumerate(moved):
        used = slice(k, None, LEVEL_SETS)
        counting_fits[used] = fit.component_fits(one, some.values, labels[used], n_components)
    # Of all events, and of those that look like cells.
    barred = [
        barred_rows(table.kinds, artefacts.marked(found.components, cells))
        for cells in ((False, True) if artefacts.marks else (False,))
    ]
    naming, counting = [], []
    for k, (t, own) in enumerate(zip(some.draws.tolist(), labels, strict=True)):
        names = tuple(name_shares(evidence[0], own, found.components[t], one[t]) for one in barred)
        naming.append(_Rule(0, names, naming_fits[k]))
        which = 1 + k % LEVEL_SETS
        learnt = tuple(component_shares(evidence[which], own, n_components, True, one[t]) for one in barred)
        counting.append(_Rule(which, learnt, counting_fits[k]))
    return _Model(fit, sets, naming, counting, parent_rows(table))


def _suspect(
    found: Populations,
    table: TypeTable,
    artefacts: Artefacts,
    some: _Fitted,
    fit: TableFit,
    of_event: npt.NDArray[np.int32],
) -> Bools:
    """Return the cells that may be wrong, bool [R, M] (`Types.suspect`)."""
    labels, components = some.labels[found.reference], found.components[found.reference]
    like_cells = artefacts.of_events(some.events, len(of_event))
    marked = np.where(
        like_cells, artefacts.marked(components, True)[labels], artefacts.marked(components)[labels]
    )
    below = descendants(table.parents, table.types)
    values, rows = some.values[~marked], of_event[some.events][~marked]
    suspect: Bools = suspect_cells(fit.markers, values, labels[~marked], rows, fit.right, below)
    return fit.upheld | suspect


def _r_hat(draws: Array, chains: Ints) -> Array:
    """Return R-hat of quantities in draws [T, R + 1] of some chains, NaN where there are too few draws."""
    each = np.bincount(chains)
    each = each[each > 0]
    if len(set(each.tolist())) != 1 or each[0] < MIN_DRAWS:
        return np.full(draws.shape[1], np.nan)
    found: Array = r_hat_and_ess(draws.reshape(len(each), each[0], -1))[0]
    return found
