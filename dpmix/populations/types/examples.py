"""Cell types of events, from labelled events of the run instead of a table.

**A type that was not seen.** Component h of a draw has n_h labelled events and would have e_h if the
labelled events were a random part of all. If its cells are of a type with labels, n_h is negative binomial
with mean e_h and dispersion phi, because files differ; if they are of a type without labels, n_h is Poisson
with mean `LEAK` e_h. With the prior probability `UNSEEN` of the second, u_h is its posterior. phi is from how
the counts of components vary among the files: the median over components of E^2 / ((n - E)^2 - E), each sum
over files.

**Division.** In the whitened coordinates of component h, labelled events of type r with weights P(h | x) zeta
(as the coarsened posterior counts them) have the posterior mean of a normal inverse Wishart prior at N(0, I),
worth `PRIOR_EVENTS` events for the mean and `PRIOR_SPREAD` for the covariance. With this density f_hr,

    m(r | x) = sum_h P(h | x) theta_hr f_hr(x) / sum_s theta_hs f_hs(x).

theta_h is from the counts of component h, with `SHARE` events by the proportions in its population, and these
with as many by the proportions in all.

**Pool.** The edges of gates are straight in the channels, whatever the clouds. So m is combined with a linear
discriminant and a random forest of scikit-learn, trained with the labels: P(r | x, seen) is proportional to
the product of the three to powers w. w maximises the likelihood of the labels, each predicted without it: the
forest by trees that did not have the event, the others in five parts.

    P(r | x) = (1 - u(x)) P(r | x, seen),    P(unknown | x) = u(x) + (1 - u(x)) P(no type | x, seen),

with u(x) = sum_h P(h | x) u_h, in each draw. *No type* is the class of events that are labelled as such, for
example by a workspace whose gates they are not in.

n labelled events, N events, S samples, R types, C = R + 1 classes, T draws, K components, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.inputs.type_examples import Examples
from dpmix.inputs.type_table import TypeTable
from dpmix.model.coarsening import zeta_of
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.model.streams import Step, Stream
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.task import Task
from dpmix.populations.events.medians import evenly
from dpmix.populations.types.assign import BLOCK
from dpmix.populations.types.types import Types, decide, included, type_proportions
from dpmix.runs.coarseness import choice_of
from dpmix.system.cores import usable_cores
from dpmix.system.extras import require_extra
from dpmix.system.progress import ProgressLog

DRAWS = 10  # of the run, at most
MOST = 20_000  # labelled events that are used, drawn at random
FEWEST = 100  # of a type that are always used, if there are as many
FITTED = 30_000  # events from which the sizes of components are computed
LEAK, UNSEEN = 0.02, 0.2
DISPERSION = 0.3, 100.0  # range of phi; the upper end where there is one file
LARGE = 20.0  # events of a component that counts for phi
PRIOR_EVENTS, PRIOR_SPREAD = 1.0, 10.0
SHARE = 2.0
LEAST_COUNT = 0.05  # labelled events of a type in a component, below which it has no density there
LEAST_MEMBER = 0.005  # membership below which a component does not count for an event
FOLDS, TREES = 5, 300
FLOOR = 2e-3  # spread over the classes of an expert's probabilities before their logarithm
PENALTY = 1e-3  # of the sum of the powers
NEVER = -1e3


def require_classifiers() -> None:
    """Raise `ConfigError` if scikit-learn is missing."""
    require_extra("sklearn", "sklearn", "--types with examples")


def dispersion(counts: Array) -> float:
    """Return phi of the counts of components in files, float64 [S, K]; `DISPERSION[1]` for one file."""
    total = counts.sum(axis=0)
    large = total >= LARGE
    if len(counts) < 2 or not large.any():
        return DISPERSION[1]
    counts, total = counts[:, large], total[large]
    expected = counts.sum(axis=1, keepdims=True) / counts.sum() * total
    # Moments: a negative binomial variable of mean E has variance E + E^2 / phi, so what exceeds the Poisson
    # variance estimates E^2 / phi.
    excess = ((counts - expected) ** 2 - expected).sum(axis=0)
    own = (expected**2).sum(axis=0) / np.maximum(excess, 1e-9)
    # The median over components: one type that only some donors have must not make every component look
    # strange.
    return float(np.clip(np.median(own), *DISPERSION))


def unseen(found: Array, expected: Array, phi: float) -> Array:
    """Return u, the probability that the cells of each component are of a type without labels.

    Parameters
    ----------
    found, expected : float64 [K]
        Labelled events, as the coarsened posterior counts them.
    phi : float
    """
    mean = np.maximum(expected, 1e-6)
    seen = gammaln(found + phi) - gammaln(phi) + phi * np.log(phi / (phi + mean))
    seen += found * np.log(mean / (phi + mean))
    not_seen = found * np.log(LEAK * mean) - LEAK * mean  # log n! is in both
    odds: Array = np.clip(not_seen - seen + np.log(UNSEEN / (1.0 - UNSEEN)), -50.0, 50.0)
    return 1.0 / (1.0 + np.exp(-odds))


class _Divided(NamedTuple):
    """Densities of the classes in one component, in its whitened coordinates."""

    classes: Ints
    log_shares: Array
    centres: Array
    whiteners: Array


@dataclass(frozen=True)
class DividedMixture:
    """m of one draw: its mixture, and how each component is divided among C classes.

    Attributes
    ----------
    mixture : Mixture
    shares : float64 [K, C]
        theta.
    parts : dict of int to _Divided
        Parts of components with labelled events of two or more classes.
    """

    mixture: Mixture
    shares: Array
    parts: dict[int, _Divided]

    def probabilities(self, memberships: Floats, values: Floats) -> Array:
        """Return m, float64 [M, C], of events with memberships [M, K] and standardised values [M, D]."""
        found = np.zeros((len(values), self.shares.shape[1]))
        whole = np.ones(memberships.shape[1], np.bool_)
        for h, part in self.parts.items():
            rows = np.flatnonzero(memberships[:, h] > LEAST_MEMBER)
            if not len(rows):
                continue
            whole[h] = False
            # In whitened coordinates the component is N(0, I), which is the prior of each of its classes.
            z = (values[rows] - self.mixture.means[h]) @ self.mixture.whiteners[h].T
            logs = np.empty((len(rows), len(part.classes)))
            for k, (centre, whitener) in enumerate(zip(part.centres, part.whiteners, strict=True)):
                logs[:, k] = -0.5 * (((z - centre) @ whitener.T) ** 2).sum(axis=1)
                logs[:, k] += np.log(np.diag(whitener)).sum() + part.log_shares[k]
            logs = np.exp(logs - logs.max(axis=1, keepdims=True))
            logs /= logs.sum(axis=1, keepdims=True)
            # Components without two classes are added at the end, all in one product, because their shares do
            # not depend on the values.
            found[np.ix_(rows, part.classes)] += memberships[rows, h][:, None] * logs
        found += memberships[:, whole] @ self.shares[whole]
        found /= np.maximum(found.sum(axis=1, keepdims=True), 1e-300)
        return found


def divide(
    mixture: Mixture,
    memberships: Floats,
    values: Floats,
    labels: Ints,
    populations: Ints,
    zeta: float,
    n_classes: int,
) -> DividedMixture:
    """Return the division of the components of a draw by labelled events.

    Parameters
    ----------
    mixture : Mixture
        Mixture of the draw.
    memberships, values : float32 [n, K], [n, D]
        P(h | x) and standardised values of the labelled events.
    labels : int64 [n]
        Their classes.
    populations : int64 [K]
        Population of each component.
    zeta : float
        What an event counts.
    n_classes : int
        C.
    """
    one_hot = np.eye(n_classes)[labels]
    counts = zeta * (memberships.T.astype(np.float64) @ one_hot)
    in_all = counts.sum(axis=0) / max(counts.sum(), 1e-300)
    of_population = np.zeros((populations.max() + 1, n_classes))
    np.add.at(of_population, populations, counts)
    of_population = (of_population + SHARE * in_all) / (of_population.sum(axis=1, keepdims=True) + SHARE)
    shares = (counts + SHARE * of_population[populations]) / (counts.sum(axis=1, keepdims=True) + SHARE)
    parts = {}
    for h in np.flatnonzero((counts > LEAST_COUNT).sum(axis=1) > 1).tolist():
        classes = np.flatnonzero(counts[h] > LEAST_COUNT)
        z = (values - mixture.means[h]) @ mixture.whiteners[h].T
        fitted = [_density(z, zeta * memberships[:, h] * (labels == r)) for r in classes.tolist()]
        centres, whiteners = (np.stack(each) for each in zip(*fitted, strict=True))
        parts[h] = _Divided(classes, np.log(shares[h, classes]), centres, whiteners)
    return DividedMixture(mixture, shares, parts)


def _density(z: Array, weights: Array) -> tuple[Array, Array]:
    """Return the posterior mean and the whitener of the covariance, [D] and [D, D], of weighted events."""
    used = weights > 0.0
    z, weights = z[used], weights[used].astype(np.float64)
    n, dim = weights.sum(), z.shape[1]
    centre = weights @ z / n
    apart = (z - centre) * np.sqrt(weights)[:, None]
    scatter = apart.T @ apart + PRIOR_SPREAD * np.eye(dim)
    scatter += PRIOR_EVENTS * n / (PRIOR_EVENTS + n) * np.outer(centre, centre)
    lower = np.linalg.cholesky(scatter / (PRIOR_SPREAD + n))
    return centre * n / (PRIOR_EVENTS + n), np.linalg.inv(lower)


def log_experts(probabilities: Array, classes: Ints) -> Array:
    """Return the logarithm of probabilities [..., C] with `FLOOR` spread over classes; others are `NEVER`."""
    found = np.full(probabilities.shape, NEVER)
    own = probabilities[..., classes] + FLOOR / len(classes)
    found[..., classes] = np.log(own / own.sum(axis=-1, keepdims=True))
    return found


def pool(logs: Sequence[Array], powers: Array) -> Array:
    """Return the product of experts to their powers, normalised, float64 [..., C]."""
    total = sum(power * one for power, one in zip(powers, logs, strict=True))
    found = np.exp(total - np.max(total, axis=-1, keepdims=True))
    normalised: Array = found / found.sum(axis=-1, keepdims=True)
    return normalised


def fit_powers(logs: Sequence[Array], labels: Ints) -> Array:
    """Return the powers that maximise the likelihood of labels [n], given logs [..., n, C] of each expert."""
    from scipy.optimize import minimize  # imported here because gating without examples does not need it

    n = np.arange(len(labels))

    def loss(powers: Array) -> float:
        own = pool(logs, powers)[..., n, labels]
        return float(-np.log(own + 1e-12).mean() + PENALTY * powers.sum())

    start = np.full(len(logs), 1.0 / len(logs))
    found: Array = minimize(loss, start, bounds=[(0.0, 5.0)] * len(logs), method="L-BFGS-B").x
    return found


def choose_labelled(labels: Ints, n_types: int, random: np.random.Generator) -> Ints:
    """Return the labelled events to use, ascending: all, or `MOST` at random with `FEWEST` of each type."""
    labelled = np.flatnonzero(labels >= 0)
    if len(labelled) <= MOST:
        return labelled
    chosen = [random.choice(labelled, MOST, replace=False)]
    for r in range(n_types + 1):
        own = labelled[labels[labelled] == r]
        chosen.append(random.choice(own, min(len(own), FEWEST), replace=False))
    return np.unique(np.concatenate(chosen))


class _Learned(NamedTuple):
    """Models fitted to the labelled events.

    `classifiers` are the linear discriminant and the forest, `classes` those with labels, `held_out` the
    share of labels that are predicted right without the event.
    """

    divisions: list[DividedMixture]
    unseen: list[Array]
    classifiers: list[Any]
    classes: Ints
    powers: Array
    held_out: float


class _Memberships:
    """P(h | x) of events in draws, with the weights and shifts of their samples."""

    def __init__(self, task: Task, found: Populations, own_terms: Sequence[OwnTerms] | None) -> None:
        self._task, self._found, self._own = task, found, own_terms
        self._each = np.arange(found.run.n_components)

    def terms(self, sample: int) -> OwnTerms | None:
        """Return the terms of a sample."""
        return self._task.own_terms(self._found, sample, self._own)

    def shifts(self, sample: int, draws: Sequence[int]) -> Floats:
        """Return the shift of a sample in each draw, then its mean over them, float32 [T + 1, D]."""
        own = self.terms(sample)
        if own is None:
            return np.zeros((len(draws) + 1, len(self._found.run.channels)), np.float32)
        found = own.shifts[list(draws)]
        return np.vstack([found, found.mean(axis=0)]).astype(np.float32)

    def of(self, chosen: Ints, draws: Sequence[int]) -> Iterator[list[Floats]]:
        """Yield P(h | x), float32 [n, K], of each sample's part of events with ascending numbers, by draw."""
        events = self._task.events
        ends = np.searchsorted(chosen, events.sample_starts)
        with closing(self._task.make_engine(np.ascontiguousarray(events.values[chosen]))) as engine:
            for t in draws:
                yield [
                    engine.memberships(self._found.mixture_of(t, self.terms(s)), self._each, a, b)[0]
                    for s, (a, b) in enumerate(pairwise(ends.tolist()))
                    if b > a
                ]


def _learn(
    task: Task, found: Populations, examples: Examples, draws: Sequence[int], threads: int
) -> _Learned:
    """Learn from the labelled events of a task with the events of the run."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import RandomForestClassifier

    events, random = task.events, Stream(task.config.seed, 3, 0).step(Step.PROPORTIONS)
    n_classes = len(examples.types) + 1
    chosen = choose_labelled(examples.labels.astype(np.int64), n_classes - 1, random)
    labels, values = examples.labels[chosen].astype(np.int64), np.asarray(events.values[chosen])
    some = np.sort(random.choice(len(events.values), min(len(events.values), FITTED), replace=False))
    of = _Memberships(task, found, None)
    zeta = zeta_of(choice_of(found.run).coarseness, len(events.values))
    parts = random.permutation(len(labels)) % FOLDS
    held = [parts == k for k in range(FOLDS)]
    divisions, not_seen, mixed = [], [], np.zeros((len(draws), len(labels), n_classes))
    *moved, values = _without_shifts(of, values, np.searchsorted(chosen, events.sample_starts), draws)
    pairs = zip(of.of(chosen, draws), of.of(some, draws), strict=True)
    for k, (t, (in_samples, sizes)) in enumerate(zip(draws, pairs, strict=True)):
        own = np.concatenate(in_samples)
        rule = partial(
            divide, found.mixture_of(t, None), populations=found.components[t], zeta=zeta, n_classes=n_classes
        )
        for test in held:
            part = rule(own[~test], moved[k][~test], labels[~test])
            mixed[k, test] = part.probabilities(own[test], moved[k][test])
        divisions.append(rule(own, moved[k], labels))
        of_files = np.array([one.sum(axis=0, dtype=np.float64) for one in sizes])
        expected = zeta * len(labels) / len(some) * of_files.sum(axis=0)
        not_seen.append(unseen(zeta * own.sum(axis=0, dtype=np.float64), expected, dispersion(of_files)))
    linear = np.zeros((len(labels), n_classes))
    for test in held:
        # A discriminant needs two classes.
        if len(there := np.unique(labels[~test])) < 2:
            linear[np.ix_(test, there)] = 1.0
            continue
        one = LinearDiscriminantAnalysis().fit(values[~test], labels[~test])
        linear[np.ix_(test, one.classes_)] = one.predict_proba(values[test])
    forest = RandomForestClassifier(
        TREES, random_state=task.config.seed % 2**32, oob_score=True, n_jobs=threads
    )
    forest.fit(values, labels)
    out_of_bag = np.zeros((len(labels), n_classes))
    # An event that every tree was trained with has no prediction without it (NaN): the forest then says
    # nothing of it.
    out_of_bag[:, forest.classes_] = np.nan_to_num(forest.oob_decision_function_)
    classes = np.unique(labels)
    logs = [log_experts(one, classes) for one in (mixed, linear[None], out_of_bag[None])]
    powers = fit_powers(logs, labels)
    right = pool(logs, powers).mean(axis=0).argmax(axis=1) == labels
    whole = LinearDiscriminantAnalysis().fit(values, labels)
    return _Learned(divisions, not_seen, [whole, forest], classes, powers, float(right.mean()))


def _without_shifts(of: _Memberships, values: Floats, ends: Ints, draws: Sequence[int]) -> list[Floats]:
    """Return values [n, D] less the shifts of their samples in each draw, then less the mean shifts.

    Sample s has the values ends[s] to ends[s + 1].
    """
    shifts = np.stack([of.shifts(s, draws) for s in range(len(ends) - 1)])
    of_event = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    return [values - shifts[of_event, k] for k in range(len(draws) + 1)]


def assign_by_examples(
    task: Task,
    found: Populations,
    examples: Examples,
    labelled: Task,
    own_terms: Sequence[OwnTerms] | None = None,
    certainty: float = 0.7,
) -> Types:
    """Return the cell types of all events, learned from labelled ones.

    Parameters
    ----------
    task : Task
    found : Populations
    examples : Examples
        Examples of the run.
    labelled : Task
        With the events of the run; `task` itself unless this has other files.
    own_terms : sequence of OwnTerms, optional
        Weights and shifts of samples that are not in the run.
    certainty : float
        Least probability of a child, given its parent.

    Raises
    ------
    ConfigError
        scikit-learn is missing.
    """
    require_classifiers()
    events, run = task.events, found.run
    draws = evenly(len(found.draws), DRAWS).tolist()
    threads = task.config.engine.threads or usable_cores()
    learned = _learn(labelled, found, examples, draws, threads)
    n_classes, n_events = len(examples.types) + 1, len(events.values)
    counts = np.zeros((len(draws), len(events.samples), n_classes))
    of_event, probability = np.empty(n_events, np.int32), np.empty(n_events, np.float32)
    progress, each = ProgressLog("cell types", n_events), np.arange(run.n_components)
    of = _Memberships(task, found, own_terms)
    with closing(task.make_engine(events.values)) as engine:
        for sample, (first, end) in enumerate(pairwise(events.sample_starts.tolist())):
            own = of.terms(sample) if end > first else None
            shifts = of.shifts(sample, draws) if end > first else np.zeros(0, np.float32)
            for start in range(first, end, BLOCK):
                stop = min(start + BLOCK, end)
                values = np.asarray(events.values[start:stop])
                trained = _trained(learned, values - shifts[-1], n_classes)
                total = np.zeros((stop - start, n_classes))
                for k, t in enumerate(draws):
                    members = engine.memberships(found.mixture_of(t, own), each, start, stop)[0]
                    mixed = learned.divisions[k].probabilities(members, values - shifts[k])
                    part = pool([log_experts(mixed, learned.classes), *trained], learned.powers)
                    strange = np.clip(members @ learned.unseen[k], 0.0, 1.0)
                    part *= (1.0 - strange)[:, None]
                    part[:, -1] += strange
                    total += part
                    counts[k, sample] += part.sum(axis=0)
                decided = decide(total / len(draws), examples.parents, examples.types, certainty)
                of_event[start:stop], probability[start:stop] = decided
                progress.add(stop - start)
    table = _table(examples, learned)
    proportions, mean = type_proportions(counts, included(table), task.config.seed)
    nothing = np.zeros((len(examples.types), 0))
    return Types(
        table=table,
        markers=(),
        columns=np.zeros(0, np.int64),
        channels=(),
        notes=(),
        certainty=certainty,
        of_event=of_event,
        probability=probability,
        counts=counts,
        proportions=proportions,
        mean_proportions=mean,
        r_hat=np.full(n_classes, np.nan),
        agreement=nothing,
        contradicted=np.zeros(nothing.shape, np.bool_),
        suspect=np.zeros(nothing.shape, np.bool_),
        right=nothing,
    )


def _trained(learned: _Learned, values: Floats, n_classes: int) -> list[Array]:
    """Return the logs of the linear discriminant and the forest; with power 0 they are not computed."""
    found = []
    for model, power in zip(learned.classifiers, learned.powers[1:], strict=True):
        own = np.zeros((len(values), n_classes))
        if power > 0.0:
            own[:, model.classes_] = model.predict_proba(values)
        found.append(log_experts(own, learned.classes))
    return found


def _table(examples: Examples, learned: _Learned) -> TypeTable:
    """Return the types as a table without markers."""
    n_types = len(examples.types)
    powers = ", ".join(
        f"{name} {power:.2f}"
        for name, power in zip(("mixture", "linear discriminant", "forest"), learned.powers, strict=True)
    )
    note = f"{examples.source}: {learned.held_out:.1%} of the labels predicted right without them; {powers}"
    return TypeTable(
        source=examples.source,
        types=examples.types,
        markers=(),
        levels=np.ones((n_types, 0, 4), np.bool_),
        doubt=np.zeros((n_types, 0)),
        parents=examples.parents,
        kinds=("cell",) * n_types,
        ontology=("",) * n_types,
        notes=(*examples.notes, note),
    )
