"""Cell types of events: a table of cell types applied to the draws of a run.

In a draw, event x belongs to component h with probability P(h | x). With F_r(x) the evidence of x for row r
of the table (`dpmix.populations.types.markers`; 1 for the unknown type), and theta_hr the share of type r in
component h,

    P(r | x) = sum_h P(h | x) theta_hr F_r(x) / sum_s theta_hs F_s(x).

theta_hr is proportional to (1 + u)(1 + v), with u and v the shares, by EM, of row r in the events of
component h and of its population: the row of a whole component, or population, counts twice as much as a row
that it has not, so that a rare type is named where its cells fit. (With one tenth of the weight for the
shares and the rest spread evenly over the rows, this factor grew with the number of rows, and large tables
lost their rare types. Without v, neutrophils with much CD45 were eosinophils, although these are another
population.) A component on one side of all thresholds goes to one type as a whole, and a component that
straddles a threshold is divided by the values of its events, by the average over the places that the
threshold may have (`markers.Marker.softened`).
F is relative to events whose markers are independent and have their base rates; this is the unknown type,
which a row has to beat.

**A population on the wrong side.** The evidence of many cells that pass hides one that fails. So a row
explains an event only as far as the event, or its component, passes the cells one by one. With q the
probability that an event passes a cell and a its mean over the events of component h, the row explains the
event by

    k_r(x) = prod min(1, `TELLS` q),
    k_hr   = prod a^2 / (a^2 + (1 - a)^2),
    1 - (1 - k_r(x)) (1 - k_hr),

the products over the cells that divide types which are otherwise alike (`markers.telling`) or that are upheld
(`dpmix.populations.types.cells`, on cells that the data contradict), and over the other cells
(`cells.other_cells`) but the one with the least factor: a single cell can be wrong for a part of a type, or
its marker have a background there, while a population that fails two cells is of another type. (With all
other cells, naive CD4 T cells were unknown where the table says CD45RA - for CD4 T cells; with none, removed
rows of large tables went to others from which they differ in two cells.) What a row does not explain of its
part of P(r | x) goes to its parent, as far as the parent explains it, and otherwise to unknown.

**Proportions** are expected numbers of events in the draws, with

    theta_h ~ Dirichlet(`OWN_EVENTS` rho),

rho the proportions of the rows in all events; theta and rho are learned by the same EM. A component thus
mostly has the shares of its own events. (With even shares, the doubt of the cells alone gave one in ten of
the events of a rare type to frequent types that differ in one cell.) Events that two rows explain alike count
for the type of the other events of their component, then for the frequent one. Intervals are for the
population from which the N events are a random sample: they contain the uncertainty of the draws, of the
thresholds and of the sample.

**Populations that look like debris, doublets or dead cells** (`dpmix.populations.marks`) have no cell type:
theta is 0 in their components for rows of the kind cell, but for events of debris and dead cells that look
like cells. (Debris passes a row whose cells are mostly negative, and lymphocytes without a marker that is on
can share a population with it.) Thresholds are found with all these events, which may be the only ones
without a marker: without debris, neutrophils would be CD45-.

**Parents.** A child has the cells of its parent, too. The probability of a parent includes its children. An
event gets the most probable row without parent, then the child whose probability, given the row, is at least
the certainty asked for, and so on down.

N events, S samples, R rows, M markers, T draws, K components, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.engines.base import Engine
from dpmix.inputs.controls import by_number
from dpmix.inputs.type_table import KINDS, TypeTable, match_markers
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.predictive import classify
from dpmix.populations.draws.task import Task
from dpmix.populations.events.artefacts import Artefacts, Marks
from dpmix.populations.events.estimates import Estimates
from dpmix.populations.events.medians import evenly
from dpmix.populations.events.proportions import posterior
from dpmix.populations.types.cells import assess_cells, other_cells, suspect_cells
from dpmix.populations.types.draws import TypeDraws
from dpmix.populations.types.exchanged import exchanged
from dpmix.populations.types.levels import levels_of_draws
from dpmix.populations.types.markers import Marker, each_cell, log_factors, telling, with_base
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.system.progress import ProgressLog

UNKNOWN = "unknown"
TYPE_DRAWS = 40  # draws of the run, at most
LEVEL_DRAWS = 4  # of the run, whose thresholds are averaged
LEVEL_SETS = 4  # sets of moved thresholds, used in turn
FITTED = 30_000  # events from which shares are computed
LEVELS_FITTED = 15_000  # events from which levels are computed
OWN_EVENTS = 10.0  # prior of the shares of a component in proportions, as a number of events
INTERVAL_DRAWS = 400  # of proportions, at least: with 40, 90% intervals contain the truth in 86%
TELLS = 1.5  # an event passes a cell where q is 2 / 3
STEPS = 20  # of EM
BLOCK = 32_768
CERTAINTY = 0.7


@dataclass(frozen=True)
class Types:
    """Cell types of the events of a gating.

    Attributes
    ----------
    table : TypeTable
        As read.
    markers : tuple of Marker
        Markers of the table in the panel.
    columns : int64 [M]
        Their columns in the table.
    channels : tuple of str
        Their channels.
    notes : tuple of str
        On markers that the panel lacks.
    certainty : float
    of_event : int32 [N]
        Row of each event, -1 for unknown.
    probability : float32 [N]
        Posterior probability of this row, with its children.
    counts : float64 [T, S, R + 1]
        Expected events by row in each draw, without children; the last is unknown.
    proportions : float64 [V, S, R + 1]
        Draws of the proportions, with children; V is T or a multiple of T.
    mean_proportions : float64 [S, R + 1]
    r_hat : float64 [R + 1]
        R-hat of the proportions in all samples together; NaN where not known.
    agreement : float64 [R, M]
        Share of the events of each row that pass each cell; NaN for a silent cell.
    contradicted : bool [R, M]
        Cells that the events of their row contradict.
    suspect : bool [R, M]
        Cells that may be wrong because unknown events fit their row but for them (`cells.suspect_cells`), or
        because most events contradict them, although a component of the row passes.
    right : float64 [R, M]
        p of each cell that was used.
    exchanged : tuple of (int, int)
        Pairs of markers whose channels look exchanged.
    draws : TypeDraws, optional
        What `dpmix associate --types` compares; None before `dpmix gate` has added it.
    """

    table: TypeTable
    markers: tuple[Marker, ...]
    columns: Ints
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    certainty: float
    of_event: npt.NDArray[np.int32]
    probability: Floats
    counts: Array
    proportions: Array
    mean_proportions: Array
    r_hat: Array
    agreement: Array
    contradicted: npt.NDArray[np.bool_]
    suspect: npt.NDArray[np.bool_]
    right: Array
    exchanged: tuple[tuple[int, int], ...] = ()
    draws: TypeDraws | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """R + 1 names; the last is unknown."""
        return (*self.table.types, UNKNOWN)

    @property
    def includes(self) -> npt.NDArray[np.bool_]:
        """Types s that count as type r: itself, and those below it, bool [R + 1, R + 1]."""
        return included(self.table)

    @property
    def estimates(self) -> Estimates:
        """Mean and 90% interval of the proportions, each float64 [S, R + 1]."""
        return Estimates.of(self.mean_proportions, self.proportions)

    @property
    def rows(self) -> Ints:
        """Row of the table of each event, int64 [N]; the last is unknown."""
        return np.where(self.of_event < 0, len(self.table.types), self.of_event).astype(np.int64)

    def of_populations(self, together: Ints) -> tuple[str, ...]:
        """Return the type of each population; see `main_types`."""
        return main_types(self.table, together)


def descendants(parents: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether column s is row r or below it, bool [R, R]."""
    below = np.eye(len(names), dtype=np.bool_)
    for s in range(len(names)):
        above = parents[s]
        while above:
            r = names.index(above)
            below[r, s] = True
            above = parents[r]
    return below


def parent_rows(table: TypeTable) -> list[int]:
    """Return the row of the parent of each of R rows, -1 for none."""
    return [table.types.index(name) if name else -1 for name in table.parents]


def included(table: TypeTable) -> npt.NDArray[np.bool_]:
    """Return the result of `descendants` with a last row and column for the unknown type."""
    found: npt.NDArray[np.bool_] = np.pad(descendants(table.parents, table.types), [(0, 1), (0, 1)])
    found[-1, -1] = True
    return found


def decide(
    shares: Array, parents: Sequence[str], names: Sequence[str], certainty: float
) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return the row of each event, -1 for unknown, and its probability with children.

    Parameters
    ----------
    shares : float64 [N, R + 1]
        Probabilities without children; the last is unknown.
    parents, names : sequence of str
        Columns of the table.
    certainty : float
        Least probability of a child, given its parent.
    """
    # A parent competes with all that its children have: otherwise a type divided into many subtypes would
    # lose to one that is not.
    whole = np.hstack([shares[:, :-1] @ descendants(parents, names).T, shares[:, -1:]])
    n_rows = len(names)
    roots = np.array([r for r in range(n_rows) if not parents[r]] + [n_rows])
    rows = roots[whole[:, roots].argmax(axis=1)]
    children = {r: [s for s in range(n_rows) if parents[s] == names[r]] for r in range(n_rows)}
    active = np.arange(len(rows))
    while len(active):
        below = []
        for r in np.unique(rows[active]):
            own = active[rows[active] == r]
            if not (inside := children.get(int(r), [])):
                continue
            best = np.array(inside)[whole[np.ix_(own, inside)].argmax(axis=1)]
            # Given the parent: an uncertain parent must not keep its events from a child that is clear within
            # it.
            sure = whole[own, best] >= certainty * whole[own, r]
            rows[own[sure]] = best[sure]
            below.append(own[sure])
        active = np.concatenate(below) if below else np.empty(0, np.int64)
    probability = whole[np.arange(len(rows)), rows].astype(np.float32)
    return np.where(rows == n_rows, -1, rows).astype(np.int32), probability


def component_shares(
    evidence: Array,
    labels: Ints,
    n_components: int,
    learn: bool = False,
    barred: npt.NDArray[np.bool_] | None = None,
) -> Array:
    """Return the shares of the rows in each component, float64 [K, R + 1].

    Parameters
    ----------
    evidence : float64 [N, R + 1]
        F.
    labels : int [N]
        Component of each event in a draw.
    n_components : int
    learn : bool
        Return the shares for proportions.
    barred : bool [K, R + 1], optional
        Rows that a component cannot have (`barred_rows`).
    """
    n_rows = evidence.shape[1]
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    there = labels[order][starts]
    shares = np.full((n_components, n_rows), 1.0 / n_rows)
    _bar(shares, barred)
    sorted_evidence = evidence[order]
    for _ in range(STEPS):
        parts = sorted_evidence * shares[labels[order]]
        parts /= parts.sum(axis=1, keepdims=True)
        sums = np.add.reduceat(parts, starts, axis=0)
        sizes = sums.sum(axis=1, keepdims=True)
        if learn:
            rho = (sums.sum(axis=0) + 1.0) / (sums.sum() + n_rows)
            shares[:] = rho
            shares[there] = (sums + OWN_EVENTS * rho) / (sizes + OWN_EVENTS)
        else:
            shares[there] = (sums / sizes + 1.0) / (n_rows + 1.0)
        _bar(shares, barred)
    return shares


def name_shares(
    evidence: Array, labels: Ints, populations: Ints, barred: npt.NDArray[np.bool_] | None = None
) -> Array:
    """Return the shares of the rows in each component that give events their names, float64 [K, R + 1].

    `populations`, int64 [K], has the population of each component. Other parameters are as in
    `component_shares`.
    """
    shares = component_shares(evidence, labels, len(populations), barred=barred)
    shares *= component_shares(evidence, populations[labels], int(populations.max()) + 1)[populations]
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _bar(shares: Array, barred: npt.NDArray[np.bool_] | None) -> None:
    """Set shares [K, R + 1] to 0 where they are barred; the others of the component sum to 1 then."""
    if barred is not None:
        shares[barred] = 0.0
        shares /= shares.sum(axis=1, keepdims=True)


def barred_rows(kinds: Sequence[str], marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the rows that components cannot have, bool [..., R + 1].

    Parameters
    ----------
    kinds : sequence of str
        Kinds of R rows.
    marked : bool [...]
        Components that look like artefacts (`dpmix.populations.events.artefacts.Artefacts.marked`).
    """
    of_cells = np.array([*(kind == KINDS[0] for kind in kinds), False])
    found: npt.NDArray[np.bool_] = marked[..., None] & of_cells
    return found


def event_fits(
    markers: tuple[Marker, ...],
    values: Array,
    tells: npt.NDArray[np.bool_],
    others: npt.NDArray[np.bool_],
) -> Array:
    """Return k_r(x), how far events pass the cells that count, float64 [N, R].

    Parameters
    ----------
    markers : tuple of Marker
    values : float64 [N, M]
    tells : bool [R, M]
        Cells that divide similar types.
    others : bool [R, M]
        Other cells that count, but for one.
    """
    fits, least = np.ones((2, len(values), len(tells)))
    for m, marker in enumerate(markers):
        for r, passed in each_cell(marker, values[:, m], tells[:, m] | others[:, m]):
            factor = np.minimum(1.0, TELLS * passed)
            _multiply(fits[:, r], factor, None if tells[r, m] else least[:, r])
    return fits


def component_fits(
    markers: tuple[Marker, ...],
    values: Array,
    tells: npt.NDArray[np.bool_],
    others: npt.NDArray[np.bool_],
    labels: Sequence[Ints],
    n_components: int,
) -> Array:
    """Return k_hr, how far components pass the cells that count, float64 [T, K, R] for T draws of labels [N].

    A component without events has 1. For other parameters see `event_fits`.
    """
    sizes = [np.bincount(own, minlength=n_components) for own in labels]
    fits, least = np.ones((2, len(labels), n_components, len(tells)))
    for m, marker in enumerate(markers):
        for r, passed in each_cell(marker, values[:, m], tells[:, m] | others[:, m]):
            for k, own in enumerate(labels):
                mean = np.bincount(own, passed, n_components) / np.maximum(sizes[k], 1)
                factor = np.where(sizes[k] > 0, mean**2 / (mean**2 + (1.0 - mean) ** 2), 1.0)
                _multiply(fits[k, :, r], factor, None if tells[r, m] else least[k, :, r])
    return fits


def _multiply(product: Array, factor: Array, least: Array | None) -> None:
    """Multiply a product by a factor, both [X]; with `least`, by all such factors but the least."""
    if least is None:
        product *= factor
    else:
        product *= np.maximum(least, factor)
        np.minimum(least, factor, out=least)


def event_shares(
    memberships: Array | Floats,
    shares: Array,
    evidence: Array,
    fits: tuple[Array, Array] | None = None,
    parents: Sequence[int] = (),
) -> Array:
    """Return P(r | x) of one draw, float64 [N, R + 1].

    Parameters
    ----------
    memberships : float [N, K]
    shares : float64 [K, R + 1]
        theta.
    evidence : float64 [N, R + 1]
        F.
    fits : tuple of float64 [N, R] and float64 [K, R], optional
        k of the events and of the components; without them, every row explains its part.
    parents : sequence of int
        Row of the parent of each of R rows, -1 for none.
    """
    weights = memberships / (evidence @ shares.T)
    found: Array = evidence * (weights @ shares)
    if fits is not None:
        own, of_components = fits
        n_rows = own.shape[1]
        inside = evidence[:, :n_rows] * (weights @ (shares[:, :n_rows] * of_components))
        explained = own * found[:, :n_rows] + (1.0 - own) * inside
        left = found[:, :n_rows] - explained
        for r in _deepest_first(parents):
            p = parents[r]
            share = np.divide(explained[:, p], found[:, p], out=np.zeros(len(own)), where=found[:, p] > 0.0)
            found[:, p] += left[:, r]
            explained[:, p] += share * left[:, r]
            left[:, p] += (1.0 - share) * left[:, r]
            left[:, r] = 0.0
        found[:, :n_rows] = explained
        found[:, n_rows] += left.sum(axis=1)
    found /= found.sum(axis=1, keepdims=True)
    return found


def _deepest_first(parents: Sequence[int]) -> list[int]:
    """Return the rows that have a parent, children before their parents."""
    depth = []
    for r in range(len(parents)):
        above, steps = parents[r], 0
        while above >= 0:
            above, steps = parents[above], steps + 1
        depth.append(steps)
    return [r for r in sorted(range(len(parents)), key=lambda r: -depth[r]) if depth[r]]


def types_by_population(types: Types, population: npt.NDArray[np.int32], n_populations: int) -> Ints:
    """Return the events by row of the table, the last unknown, and population, int64 [R + 1, P]."""
    size = len(types.names), n_populations
    flat = np.bincount(types.rows * n_populations + population, minlength=size[0] * size[1])
    found: Ints = flat.reshape(size)
    return found


def main_types(table: TypeTable, together: Ints) -> tuple[str, ...]:
    """Return the type of each population, "" for none: P names.

    It is the deepest row that more than half of its events have, with the children of the row.

    Parameters
    ----------
    table : TypeTable
    together : int64 [R + 1, P]
        Events by row and population (`types_by_population`).
    """
    names, includes = (*table.types, UNKNOWN), included(table)
    most = 2 * (includes @ together) > together.sum(axis=0)
    depth = np.where(most, len(includes) + 1 - includes.sum(axis=1)[:, None], 0)
    return tuple(names[r] if depth[r, p] else "" for p, r in enumerate(depth.argmax(axis=0)))


def marked_types(types: Sequence[str], marks: Marks) -> tuple[str, ...]:
    """Return the types of populations with the mark of each that is unknown and has one."""
    if not marks:
        return tuple(types)
    return tuple(mark if mark and name == UNKNOWN else name for name, mark in zip(types, marks, strict=True))


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
    events, run = task.events, found.run
    names = events.all_channels
    numbers, notes = match_markers(table, names)
    columns = np.flatnonzero(numbers >= 0)
    at = numbers[columns]
    full = table.with_inherited()
    random = Stream(task.config.seed, 3, 0).step(Step.PROPORTIONS)
    n_events = len(events.values)
    some = np.sort(random.choice(n_events, min(n_events, FITTED), replace=False))
    values = events.all_values(some)[:, at]
    drawn = evenly(len(found.draws), TYPE_DRAWS)
    n_rows = len(table.types) + 1
    counts = np.zeros((len(drawn), len(events.samples), n_rows))
    with closing(task.make_engine(np.ascontiguousarray(events.values[some]))) as few:
        labels = {t: _labels(few, found, t) for t in {*drawn.tolist(), found.reference}}
    controls = by_number(run.controls, [names[d] for d in at.tolist()])
    fitting = evenly(len(values), LEVELS_FITTED)
    few_labels = [labels[t] for t in level_draws(found.reference, drawn)]
    own_levels = [own[fitting] for own in few_labels]
    markers = levels_of_draws(values[fitting], own_levels, full.levels[:, columns], controls)
    markers = tuple(with_base(marker, values[:, m]) for m, marker in enumerate(markers))
    soft = softened(markers, values)
    tells = telling(full.levels[:, columns])
    right, agreement, contradicted, upheld = assess_cells(
        markers, values, full.doubt[:, columns], tells, few_labels
    )
    tells = tells | upheld
    others = other_cells(markers, tells, full.doubt[:, columns], contradicted)
    parents = parent_rows(table)
    # Few sets of thresholds, used in turn, because each needs its own evidence of all events.
    deviates = random.standard_normal((LEVEL_SETS, len(markers)))
    sets = [tuple(one.moved(e) for one, e in zip(markers, deviate, strict=True)) for deviate in deviates]
    fitted = [evidence_of(own, values, right) for own in sets]
    artefacts = artefacts or Artefacts()
    soft_evidence = evidence_of(soft, values, right)
    # Of all events, and of those that look like cells.
    shares, naming = [], []
    for cells in (False, True) if artefacts.marks else (False,):
        barred = barred_rows(table.kinds, artefacts.marked(found.components, cells))
        shares.append(
            [
                component_shares(fitted[k % LEVEL_SETS], labels[t], run.n_components, True, barred[t])
                for k, t in enumerate(drawn.tolist())
            ]
        )
        naming.append(
            [name_shares(soft_evidence, labels[t], found.components[t], barred[t]) for t in drawn.tolist()]
        )
    every = [labels[t] for t in drawn.tolist()]
    naming_fits = component_fits(soft, values, tells, others, every, run.n_components)
    inside: dict[int, Array] = {}
    for k, own_set in enumerate(sets):
        used = range(k, len(drawn), LEVEL_SETS)
        own_labels = [labels[int(drawn[j])] for j in used]
        own_fits = component_fits(own_set, values, tells, others, own_labels, run.n_components)
        inside |= zip(used, own_fits, strict=True)
    of_event, probability = np.empty(n_events, np.int32), np.empty(n_events, np.float32)
    progress = ProgressLog("cell types", n_events)
    each = np.arange(run.n_components)
    with closing(task.make_engine(events.values)) as engine:
        for sample, first in enumerate(events.sample_starts[:-1]):
            end = int(events.sample_starts[sample + 1])
            own = task.own_terms(found, sample, own_terms)
            for start in range(int(first), end, BLOCK):
                stop = min(start + BLOCK, end)
                block = events.all_values(np.arange(start, stop))[:, at]
                evidence = [evidence_of(one, block, right) for one in sets]
                passed = [event_fits(one, block, tells, others) for one in sets]
                own_soft = evidence_of(soft, block, right)
                soft_passed = event_fits(soft, block, tells, others)
                total = np.zeros((stop - start, n_rows))
                like_cells = artefacts.of_events(slice(start, stop), n_events)
                for k, t in enumerate(drawn.tolist()):
                    memberships = engine.memberships(found.mixture_of(t, own), each, start, stop)[0]
                    j = k % LEVEL_SETS
                    for which, rows in enumerate((~like_cells, like_cells)):
                        if not rows.any():
                            continue
                        one, of_names = memberships[rows], (soft_passed[rows], naming_fits[k])
                        total[rows] += event_shares(one, naming[which][k], own_soft[rows], of_names, parents)
                        fits = passed[j][rows], inside[k]
                        part = event_shares(one, shares[which][k], evidence[j][rows], fits, parents)
                        counts[k, sample] += part.sum(axis=0)
                decided = decide(total / len(drawn), table.parents, table.types, certainty)
                of_event[start:stop], probability[start:stop] = decided
                progress.add(stop - start)
    proportions, mean = type_proportions(counts, included(table), task.config.seed)
    components = labels[found.reference]
    marked = np.where(
        artefacts.of_events(some, n_events),
        artefacts.marked(found.components[found.reference], True)[components],
        artefacts.marked(found.components[found.reference])[components],
    )
    return Types(
        table=table,
        markers=markers,
        columns=columns,
        channels=tuple(names[d] for d in at.tolist()),
        notes=notes,
        certainty=certainty,
        of_event=of_event,
        probability=probability,
        counts=counts,
        proportions=proportions,
        mean_proportions=mean,
        r_hat=_r_hat(counts.sum(axis=1) @ included(table).T, found.draws[drawn, 0]),
        agreement=agreement,
        contradicted=contradicted,
        suspect=upheld
        | suspect_cells(
            markers,
            values[~marked],
            components[~marked],
            of_event[some][~marked],
            right,
            descendants(table.parents, table.types),
        ),
        right=right,
        exchanged=exchanged(values, labels[found.reference], full.levels[:, columns]),
    )


def softened(markers: Sequence[Marker], values: Array) -> tuple[Marker, ...]:
    """Return markers that give events [N, M] their names: thresholds are averaged over where they may lie."""
    return tuple(with_base(marker.softened(), values[:, m]) for m, marker in enumerate(markers))


def level_draws(reference: int, drawn: Ints) -> list[int]:
    """Return the draws whose thresholds are averaged: the reference, and others far apart."""
    others = [t for t in drawn.tolist() if t != reference]
    return [reference, *(others[k] for k in evenly(len(others), LEVEL_DRAWS - 1).tolist())]


def type_proportions(counts: Array, below: npt.NDArray[np.bool_], seed: int) -> tuple[Array, Array]:
    """Return draws of the proportions of types, and their posterior means; NaN for empty samples.

    Parameters
    ----------
    counts : float64 [T, S, R + 1]
        Expected numbers of events. Draws are repeated, for at least `INTERVAL_DRAWS` of the proportions.
    below : bool [R + 1, R + 1]
        Rows whose events a row includes (`included`).
    seed : int

    Returns
    -------
    proportions : float64 [.., S, R + 1]
    mean : float64 [S, R + 1]
    """
    # Several Dirichlet draws for each draw of counts: the ends of an interval need more draws than the counts
    # have.
    repeated = np.repeat(counts, -(-INTERVAL_DRAWS // len(counts)) if len(counts) > 1 else 1, axis=0)
    proportions: Array = posterior(repeated, seed) @ below.T
    mean: Array = (counts / np.maximum(counts.sum(axis=2, keepdims=True), 1.0)).mean(axis=0) @ below.T
    empty = counts.sum(axis=(0, 2)) == 0.0
    proportions[:, empty], mean[empty] = np.nan, np.nan
    return proportions, mean


def _labels(engine: Engine, found: Populations, t: int) -> Ints:
    """Return the most probable component of each event in draw t, int64 [N]."""
    return classify(engine, found.mixture_of(t, None))[0].astype(np.int64)


def evidence_of(markers: tuple[Marker, ...], values: Array, right: Array) -> Array:
    """Return F, float64 [N, R + 1], up to a factor of each event."""
    logs = np.pad(log_factors(markers, values, right), [(0, 0), (0, 1)])
    found: Array = np.exp(np.maximum(logs - logs.max(axis=1, keepdims=True), -60.0))
    return found


def _r_hat(draws: Array, chains: Ints) -> Array:
    """Return R-hat of quantities in draws [T, R + 1] of some chains, NaN where there are too few draws."""
    each = np.bincount(chains)
    each = each[each > 0]
    if len(set(each.tolist())) != 1 or each[0] < MIN_DRAWS:
        return np.full(draws.shape[1], np.nan)
    found: Array = r_hat_and_ess(draws.reshape(len(each), each[0], -1))[0]
    return found
