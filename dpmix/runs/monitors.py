"""Quantities by which a run judges whether its chains agree. No quantity follows a component by its number.

- the log likelihood of the events. The log posterior says no more of the density, and mixes as slowly as the
  number of occupied components: it has the prior density of all components, empty ones too;
- the log density of the mixture at some *reference events*, chosen from the data before the first sweep;
- the proportions of *interim populations*: groups of the components of one draw, made from the first draws of
  the run. They are at least as fine as the populations of `dpmix gate`, and cost next to nothing.

R reference events, K components, D channels, G groups made from the P components of one draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints, Mixture, mixture_from
from dpmix.runs.layout import MAX_POPULATIONS, REFERENCES, quantities
from dpmix.runs.reader import Run, open_run

N_REFERENCES = 24
SUBSAMPLE = 2_048  # events, evenly spaced in the data, that the reference events are chosen from
LEAST_PROPORTION = 0.002  # of a group that is monitored
LEAST_WEIGHT = 1e-4  # lighter components do not count in groups
NEIGHBOURS = 8  # nearest components of higher density that a component may join
PATH = np.arange(1, 8) / 8.0  # points between two means at which the density is evaluated
VALLEY = -np.log(1.0 - 0.29)  # depth, in nats, of a valley that divides: where `dpmix gate` cuts by default
BLOCK = 2_000_000  # numbers held at a time


def reference_events(values: Floats) -> Array:
    """Choose events that are spread over the data, the same for the same data.

    Of 2,048 events, evenly spaced in the data, the set with the largest sum of squares is divided at the mean
    of its most variable channel, again and again. Each set then gives the event nearest to its mean.

    Parameters
    ----------
    values : float32 [N, D]
        Standardised events.

    Returns
    -------
    float64 [R, D]
        At most 24; fewer if the data have fewer different events.
    """
    # Without random numbers: chains, resumes and seeds then compare the same places of the data.
    rows = np.linspace(0, len(values) - 1, min(len(values), SUBSAMPLE)).astype(np.int64)
    points = np.asarray(values[rows], np.float64)
    sets = [points]
    while len(sets) < N_REFERENCES:
        spread = [len(part) * part.var(axis=0) for part in sets]
        # By the sum of squares, not the number of events: rare events far from all others get a reference of
        # their own.
        largest = int(np.argmax([squares.sum() for squares in spread]))
        channel = int(np.argmax(spread[largest]))
        column = sets[largest][:, channel]
        below = column <= column.mean()
        if below.all():  # every event of every set is the same, but for rounding
            break
        part = sets.pop(largest)
        sets += [part[below], part[~below]]
    nearest = [np.square(part - part.mean(axis=0)).sum(axis=1).argmin() for part in sets]
    return np.stack([part[n] for part, n in zip(sets, nearest, strict=True)])


def log_density(mixture: Mixture, points: Array) -> Array:
    """Return the log density of a mixture at points [M, D], float64 [M], in nats."""
    return _log_sums(log_terms(mixture, points))


def log_terms(mixture: Mixture, points: Array) -> Array:
    """Return the log of the weighted density of each component at points [M, D], float64 [M, K]."""
    count, dim = mixture.means.shape
    offsets = np.einsum("kij,kj->ki", mixture.whiteners, mixture.means)
    stacked = mixture.whiteners.reshape(-1, dim).T
    found = np.empty((len(points), count))
    step = max(BLOCK // (count * dim), 1)
    for at in range(0, len(points), step):
        whitened = (points[at : at + step] @ stacked).reshape(-1, count, dim) - offsets
        found[at : at + step] = -0.5 * np.einsum("nkd,nkd->nk", whitened, whitened)
    found += mixture.log_weights + mixture.log_norms
    return found


@dataclass(frozen=True)
class InterimPopulations:
    """Groups of the components of one draw, to which components of other draws are assigned.

    Attributes
    ----------
    mixture : Mixture
        The P components with a weight of at least 1e-4.
    groups : int64 [P]
        Group of each, 0 to G - 1, the largest first.
    n_groups : int
        G, the groups whose proportion is at least 0.2%, at most 32; components of other groups have numbers
        from G on.
    """

    mixture: Mixture
    groups: Ints
    n_groups: int

    def proportions(self, weights: Array, means: Array) -> Array:
        """Return the proportions of the groups in a draw, float64 [G].

        A component belongs to the group of that component of `mixture` whose weighted density is highest at
        its mean.

        Parameters
        ----------
        weights : float64 [K]
        means : float64 [K, D]
        """
        # Lighter components are mostly empty draws from the prior, whose places are chance.
        held = weights >= min(LEAST_WEIGHT, weights.max())
        groups = self.groups[log_terms(self.mixture, means[held]).argmax(axis=1)]
        shares = np.bincount(groups, weights[held] / weights[held].sum(), minlength=self.n_groups)
        # A sum of 1 that differs by rounding would have an R-hat.
        return shares[: self.n_groups].astype(np.float64).round(12)


def interim_populations(weights: Array, means: Array, covariances: Array) -> InterimPopulations:
    """Group the components of one draw.

    A component joins the nearest component at whose mean the density is higher, unless there is a valley
    between the two means; then the next nearest, up to the eighth. Components that have joined are one group.
    A valley is a density more than 29% below the straight line between its values at the two means, on the
    log scale: the depth from which `dpmix gate` separates populations (`dpmix.populations.tree.valleys`),
    whatever their sizes. So what it will report is monitored.

    Parameters
    ----------
    weights, means, covariances : float64 [K], [K, D], [K, D, D]

    Returns
    -------
    InterimPopulations
    """
    held = np.flatnonzero(weights >= min(LEAST_WEIGHT, weights.max()))
    weights, means = weights[held], means[held]
    mixture = mixture_from(np.log(weights), means, covariances[held])
    groups = _numbered(_joined(mixture))
    sizes = np.bincount(groups, weights)
    place = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")
    n_groups = min(int((sizes >= LEAST_PROPORTION).sum()), MAX_POPULATIONS)
    return InterimPopulations(mixture, place[groups], n_groups)


def populations_of(run: Run) -> InterimPopulations:
    """Return the groups of the components of a run's first draw, of the chain with the highest log posterior.

    Parameters
    ----------
    run : Run
        With at least one draw, on the standardised scale.
    """
    best = int(np.argmax(run.sample_stats["log_posterior"][:, 0]))
    return interim_populations(run.weights[best, 0], run.means[best, 0], run.covariances[best, 0])


def monitored(run: Run) -> dict[str, Array]:
    """Return the monitored quantities of the draws of a run, by name, float64 [chain, draw] each.

    Runs without mcmc.until have no log density at reference events.

    Parameters
    ----------
    run : Run
        A run of MCMC with at least one draw.
    """
    if run.transformed:
        # Reference events are on the standardised scale, so the draws must be, too.
        run = open_run(run.path)
    values = [run.sample_stats["log_likelihood"][..., None]]
    if run.is_monitored:
        values.append(run.log_density[:, run.draw_sweeps])
    n_references = len(run.constants[REFERENCES]) if run.is_monitored else 0
    populations = populations_of(run)
    pairs = zip(
        run.weights.reshape(-1, run.n_components), run.means.reshape(-1, *run.means.shape[2:]), strict=True
    )
    proportions = np.stack([populations.proportions(weights, means) for weights, means in pairs])
    values.append(proportions.reshape(*run.alpha.shape, populations.n_groups))
    names = quantities(n_references, populations.n_groups)
    return dict(zip(names, np.moveaxis(np.concatenate(values, axis=2), 2, 0), strict=True))


def _joined(mixture: Mixture) -> Ints:
    """Return the component that each component joins, itself where it joins none, int64 [P]."""
    terms = log_terms(mixture, mixture.means)
    heights = _log_sums(terms)
    # Distances between means in the metric of either component, the larger of the two.
    squares = mixture.log_weights + mixture.log_norms - terms
    # By the larger one, because a broad component is near to everything in its own metric.
    distances = np.maximum(squares, squares.T)
    parents = np.arange(len(heights))
    order = np.argsort(-heights, kind="stable")
    for rank, component in enumerate(order):
        higher = order[:rank]
        nearest = higher[np.argsort(distances[component, higher], kind="stable")[:NEIGHBOURS]]
        if not len(nearest):
            continue
        start = mixture.means[component]
        path = start + PATH[:, None] * (mixture.means[nearest] - start)[:, None]
        along = log_density(mixture, path.reshape(-1, path.shape[2])).reshape(-1, len(PATH))
        # The straight line on the log scale, as in `dpmix.populations.tree.valleys`: the depth does not
        # depend on sizes.
        chords = heights[component] + PATH * (heights[nearest, None] - heights[component])
        passable = np.flatnonzero((chords - along).max(axis=1) <= VALLEY)
        if len(passable):
            parents[component] = nearest[passable[0]]
    return parents


def _log_sums(terms: Array) -> Array:
    """Return the log of the sum of exponentials of each row; SciPy takes ten times as long."""
    largest = terms.max(axis=1)
    sums: Array = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
    return sums


def _numbered(parents: Ints) -> Ints:
    """Return the group of each component, from 0, given the component that each joins."""
    while not np.array_equal(parents, parents[parents]):
        parents = parents[parents]
    groups: Ints = np.unique(parents, return_inverse=True)[1]
    return groups
