"""The trees of a run: the tree of the posterior mean density, and trees of single draws.

They do not depend on where they are cut, so all cuts of a run share them (`dpmix.populations.draws.find`).

T draws (U have a tree of their own); J components of the pooled draws, K components of a draw, L modes, M
points, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.populations.draws.pooling import (
    FIRST_GROUPS,
    MOST_GROUPS,
    draw_points,
    held_mixtures,
    mean_density,
    pooled_draws,
    some_of_each_chain,
)
from dpmix.populations.draws.predictive import classify_draws
from dpmix.populations.tree import partitions
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.modes import MakeEngine, nearest_in
from dpmix.populations.tree.support import merge_unsupported, populations_of_modes, support
from dpmix.populations.tree.tree import Tree, find_peaks
from dpmix.populations.tree.valleys import Separation
from dpmix.runs.layout import EVENT_SUBSET, SUBSET_WEIGHTS
from dpmix.runs.reader import Run

Subset = tuple[Floats, Array | None]
"""Events and what each counts."""

AGREED = 0.95  # adjusted Rand index from which on two mean densities have the same populations
MOST_TREES = 50  # of single draws; twice as many hardly change populations, and take most of the time
WORKERS = 2  # threads that build trees; more were slower, since half of the work holds the interpreter's lock


@dataclass(frozen=True)
class Forest:
    """The trees of a run, and points that all draws share; result of `grow`.

    Attributes
    ----------
    run : Run
        Standardised scale.
    make_engine : callable
        Returns an engine for events float32 [M, D].
    draws : int64 [T, 2]
        Chain and draw of each draw used.
    mixture : callable
        Returns the mixture of a draw of the run, given its chain and draw.
    pooled : int64 [pooled draws]
        Draws in the mean density. Component j of it is component j mod K of the (j div K)th of them.
    density : tuple of float64 [J], [J, D], [J, D, D]
        Weights, means and covariances of the mean density.
    tree : Tree
        Tree of the mean density.
    sizes : float64 [L]
        Events that the run file keeps (at most 20,000), by mode of this tree.
    with_tree : int64 [U]
        Draws that have a tree of their own, evenly spaced in each chain: places in `draws`.
    trees : list of Tree
        Tree of each of them.
    points : float32 [M, D]
        Points drawn from the mean density.
    shares : float64 [M, L]
        Memberships of the points in the modes of the tree.
    labels : int32 [T, M]
        Most probable component of each point in each draw.
    log_density : float64 [M]
        Log predictive density of the points.
    """

    run: Run
    make_engine: MakeEngine
    draws: Ints
    mixture: Callable[[int, int], Mixture]
    pooled: Ints
    density: tuple[Array, Array, Array]
    tree: Tree
    sizes: Array
    with_tree: Ints
    trees: list[Tree]
    points: Floats
    shares: Array
    labels: Ints
    log_density: Array
    _cuts: dict[CutRule, tuple[Ints, Array]] = field(default_factory=dict)

    def cut(self, rule: CutRule) -> tuple[Ints, Array]:
        """Cut the tree of the mean density; populations of a cut height that lack support are merged.

        Returns
        -------
        own : int64 [J]
            Population of each component of the mean density, `numbered`.
        shares : float64 [M, P]
            Memberships of the points.
        """
        if rule not in self._cuts:
            own, shares = self.shared_by(rule.cut(self.tree))
            # A number of populations that the user asks for stays; the report names those with low support
            # instead.
            if rule.n_populations is None and len(self.draws) > 1:
                own, shares = merge_unsupported(
                    self.tree,
                    own,
                    shares,
                    self.trees,
                    self.labels[self.with_tree],
                    self.partitions(rule),
                    self.density[0],
                    self.run.attributes["n_events"],
                )
            self._cuts[rule] = self.numbered(own, shares)
        return self._cuts[rule]

    def cut_draws(self, rule: CutRule) -> list[Ints]:
        """Return the population of each component of each draw with a tree, int64 [U] of [K]."""
        return [rule.cut(tree) for tree in self.trees]

    def partitions(self, rule: CutRule) -> Ints:
        """Return the population of each point in each draw with a tree, int64 [U, M]."""
        cuts = zip(self.cut_draws(rule), self.labels[self.with_tree], strict=True)
        return np.array([own[found] for own, found in cuts])

    def support(self, populations: Ints, n_populations: int) -> Array:
        """Return the share of the draws with a tree that contain each population of points, float64 [P]."""
        return support(self.trees, self.labels[self.with_tree], populations, n_populations)

    def typical_draw(self, populations: Ints, partition: Ints) -> int:
        """Return the draw whose own populations are most similar to populations of the points, int64 [M].

        One draw has to stand for all where a number of a component is needed: the most typical one, not the
        last. `partition` is the result of `partitions`.
        """
        agreement = [partitions.rand_index(populations, own) for own in partition]
        return int(self.with_tree[np.argmax(agreement)])

    def why(self, rule: CutRule) -> str:
        """Return the reason for the cut height, for a reader."""
        n_found, n_cut = (int(own.max()) + 1 for own in (self.cut(rule)[0], rule.cut(self.tree)))
        return rule.why(self.tree, n_found, n_cut - n_found)

    def shared_by(self, populations: Ints) -> tuple[Ints, Array]:
        """Return populations of the components, int64 [J] from 0, and the memberships of the points in them.

        Components of a mode have the same population.
        """
        modes = populations_of_modes(self.tree, populations)
        return populations, self.shares @ np.eye(int(populations.max()) + 1)[modes]

    def numbered(self, own: Ints, shares: Array) -> tuple[Ints, Array]:
        """Number populations by their mean weight in the draws, the largest first.

        This is the order of the proportions that `dpmix gate` reports of the events of the run. Nearly equal
        ones may differ: the run file does not have all events.

        Parameters
        ----------
        own, shares : int64 [J], float64 [M, P]
            Population of each component of the mean density, and memberships of the points.
        """
        components = components_of(self, own, cast_votes(self, shares))
        mean = weights_of(self.run, self.draws, components, shares.shape[1]).mean(axis=0)
        order = np.argsort(-mean, kind="stable")
        return np.argsort(order, kind="stable")[own], shares[:, order]

    @cached_property
    def nearest(self) -> list[Ints]:
        """Component of the mean density nearest to each component of each draw, int64 [T] of [K].

        -1 for a component that is the most probable one of a point.
        """
        # Bayesian EM leaves components of weight 0, which no mean can be nearest to.
        heavy = np.flatnonzero(self.density[0])
        nearest_heavy = nearest_in(*(part[heavy] for part in self.density))
        found = []
        for labels, (chain, draw) in zip(self.labels, self.draws, strict=True):
            means = np.asarray(self.run.means[chain, draw])
            nearest = np.full(len(means), -1)
            without = np.bincount(labels, minlength=len(means)) == 0
            nearest[without] = heavy[nearest_heavy(means[without])]
            found.append(nearest)
        return found

    def memberships_in_modes(self, engine: Engine) -> Array:
        """Return memberships of an engine's events [M, D] in the modes of the tree, float64 [M, L]."""
        return _mean_memberships(engine, [self.mixture(*self.draws[t]) for t in self.pooled], self.tree.modes)


def grow(run: Run, make_engine: MakeEngine, draws: Ints, rule: CutRule) -> Forest:
    """Return the trees of some draws of a run, int64 [T, 2].

    Several draws have a mean density; the one is used whose populations, cut by `rule`, agree best.
    """
    mixture = held_mixtures(run)
    mixtures = [partial(mixture, *draw) for draw in draws]
    groups = pooled_draws(run, draws)
    subset = run.constants[EVENT_SUBSET], run.constants.get(SUBSET_WEIGHTS)
    build = partial(mean_tree, run, draws, mixtures, subset, make_engine)
    workers = _workers(make_engine, subset[0])
    pool = ThreadPoolExecutor(workers)
    try:
        chosen = typical(groups, partial(pool.map, build), rule)
        with_tree = some_of_each_chain(draws, MOST_TREES)
        growing: Iterable[MeanTree] = pool.map(build, with_tree[:, None])
        if workers == 1:
            growing = list(growing)  # a device serves one engine at a time, and a single thread one task
        # Where there are several workers, they build the trees of single draws meanwhile.
        points = draw_points(*chosen.density, seed=int(run.attributes["seed"]))
        with closing(make_engine(points)) as engine:
            shares = _mean_memberships(engine, [mixtures[t]() for t in chosen.pooled], chosen.tree.modes)
            labels, log_density = classify_draws(engine, mixtures)
        trees = [one.tree for one in growing]
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted command does not wait for trees not begun
    return Forest(
        run=run,
        make_engine=make_engine,
        draws=draws,
        mixture=mixture,
        pooled=chosen.pooled,
        density=chosen.density,
        tree=chosen.tree,
        sizes=chosen.sizes,
        with_tree=with_tree,
        trees=trees,
        points=points,
        shares=shares,
        labels=labels,
        log_density=log_density,
    )


def _workers(make_engine: MakeEngine, events: Floats) -> int:
    """Return the number of trees to build at a time."""
    with closing(make_engine(events)) as engine:
        return min(WORKERS, int(engine.info["threads"])) if engine.info["backend"] == "cpu" else 1


# --------------------------------------------------------------------------- the mean density


@dataclass(frozen=True)
class MeanTree:
    """The tree of the mean density of some draws, and the events that the run file keeps in its modes.

    `of_events`, int64 [events], has the mode of each; `sizes`, float64 [L], the sum of their memberships in
    each mode.
    """

    pooled: Ints
    density: tuple[Array, Array, Array]
    tree: Tree
    of_events: Ints
    sizes: Array


def typical(groups: Ints, build: Callable[[Ints], Iterable[MeanTree]], rule: CutRule) -> MeanTree:
    """Return the tree whose populations agree best with the populations of other draws: the medoid.

    A valley that is only just there can depend on the draws that are pooled, and so on the seed. If the
    first groups disagree, the medoid is found among more groups. The measure is the adjusted Rand index of
    the events, summed over all trees.

    Parameters
    ----------
    groups : int64 [groups, pooled draws]
    build : callable
        Returns the trees of the mean densities of some groups.
    rule : CutRule
        Gives the populations that are compared.
    """
    trees = list(build(groups[:FIRST_GROUPS]))
    agreement = agreement_of(trees, rule)
    if agreement.min() < AGREED:
        trees.extend(build(groups[FIRST_GROUPS:MOST_GROUPS]))
        agreement = agreement_of(trees, rule)
    return trees[int(agreement.sum(axis=1).argmax())]


def agreement_of(trees: Sequence[MeanTree], rule: CutRule) -> Array:
    """Return the adjusted Rand index of the events' populations for each pair of trees, float64 [G, G]."""
    found = [populations_of_modes(one.tree, rule.cut(one.tree))[one.of_events] for one in trees]
    return np.array([[partitions.rand_index(one, other) for other in found] for one in found])


def mean_tree(
    run: Run,
    draws: Ints,
    mixtures: Sequence[Callable[[], Mixture]],
    subset: Subset,
    make_engine: MakeEngine,
    pooled: Ints,
) -> MeanTree:
    """Return the tree of the mean density of some draws, with distances by the valleys in the events."""
    density = mean_density(run, draws[pooled])
    peaks = find_peaks(*density, int(run.attributes["n_events"]), make_engine, len(pooled))
    events, weights = subset
    with closing(make_engine(events)) as engine:
        shares = _mean_memberships(engine, [mixtures[t]() for t in pooled], peaks.modes)
    own = peaks.most_probable(shares)
    tree, of_parts = peaks.tree(Separation(peaks.moments, events, own, weights))
    of_part = shares.sum(axis=0) if weights is None else weights @ shares
    sizes: Array = np.bincount(of_parts, of_part).astype(np.float64)
    return MeanTree(pooled, density, tree, of_parts[own], sizes)


# --------------------------------------------------------------------------- classifying points


def memberships_by(
    engine: Engine, mixture: Mixture, populations: Ints, n_populations: int, start: int, stop: int
) -> tuple[Floats, Array]:
    """Return an engine's memberships, with a column for every population, even one absent from the draw."""
    shares, log_density = engine.memberships(mixture, populations, start, stop)
    missing = n_populations - shares.shape[1]
    return (np.pad(shares, ((0, 0), (0, missing))) if missing else shares), log_density


def _mean_memberships(engine: Engine, mixtures: Sequence[Mixture], modes: Ints) -> Array:
    """Return memberships of all events in the modes of the mean density of some draws, float64 [M, L].

    `modes`, int64 [J], has the mode of each component of the mean density.
    """
    n_modes = int(modes.max()) + 1
    populations = modes.reshape(len(mixtures), -1)
    shares, highest = memberships_by(engine, mixtures[0], populations[0], n_modes, 0, engine.n_events)
    total = shares.astype(np.float64)
    for mixture, own in zip(mixtures[1:], populations[1:], strict=True):
        shares, log_density = memberships_by(engine, mixture, own, n_modes, 0, engine.n_events)
        higher = np.maximum(highest, log_density)
        # A draw counts at an event by its density there, as in the mean density; a plain mean of memberships
        # would let draws speak that hardly reach the event.
        total *= np.exp(highest - higher)[:, None]
        total += shares * np.exp(log_density - higher)[:, None]
        highest = higher
    total /= total.sum(axis=1, keepdims=True)
    return total


# --------------------------------------------------------------------------- components of draws


def cast_votes(forest: Forest, shares: Array) -> Iterator[tuple[Array, Ints]]:
    """Yield the votes of the points of each component, draw by draw.

    Parameters
    ----------
    forest : Forest
    shares : float64 [M, C]
        Memberships of the points in populations or modes.

    Yields
    ------
    votes : float64 [K, C]
        Sum of the memberships of the points whose most probable component it is.
    nearest : int64 [K]
        Component of the mean density that is nearest to a component without points, -1 for one with points.
    """
    from scipy.sparse import csr_array

    for labels, nearest in zip(forest.labels, forest.nearest, strict=True):
        shape = len(nearest), len(labels)
        points = csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=shape)
        yield points @ shares, nearest


def components_of(forest: Forest, own: Ints, votes: Iterable[tuple[Array, Ints]]) -> Ints:
    """Return the population of each component of each draw, int64 [T, K].

    A component belongs to the population of most of its points. One without points holds no events; it gets
    the population at its mean.

    Parameters
    ----------
    forest : Forest
    own : int64 [J]
        Population of each component of the mean density.
    votes : iterable of float64 [K, P] and int64 [K]
        As in `cast_votes`, one for each draw.
    """
    found = [np.where(nearest < 0, cast.argmax(axis=1), own[nearest]) for cast, nearest in votes]
    components = np.array(found, np.int64)
    # Components of pooled draws are components of the mean density: the tree has placed them by their modes,
    # and a vote of sampled points could only contradict it.
    components[forest.pooled] = own.reshape(len(forest.pooled), -1)
    return components


def weights_of(run: Run, draws: Ints, components: Ints, n_populations: int) -> Array:
    """Return the weights of populations in some draws, float64 [T, P], from components' weights [T, K]."""
    return np.array(
        [
            np.bincount(own, run.weights[chain, draw], n_populations)
            for (chain, draw), own in zip(draws, components, strict=True)
        ]
    )
