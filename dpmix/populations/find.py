"""Populations from the draws of a run, and the membership of any events in them.

The populations are those of the **posterior mean density**: the tree (`dpmix.populations.tree`) of a mixture
of several draws spread over the run, cut at one height. A ripple that appears in one draw and not in the next
is not a population. If two such mixtures disagree, the one of five that agrees best with the others is used.
Each other draw assigns its components to populations by the events they share, so memberships, proportions
and their uncertainty come from all draws.

The shared events are points drawn from the posterior mean density, not the events of the run. So the run file
is all that is needed, and the result does not depend on which events are gated. The same points give the log
density below which an event is implausible.

T draws, some of which are pooled; J pooled components, K components, P populations, M points, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from dpmix.engines.base import Engine
from dpmix.errors import DataError
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.populations import alignment, partitions
from dpmix.populations.cohort import OwnTerms
from dpmix.populations.modes import MakeEngine, nearest_components
from dpmix.populations.pooling import POINTS, draw_points, mean_density, mixture_of_draw, pooled_draws, spread
from dpmix.populations.predictive import log_predictive
from dpmix.populations.support import merge_unsupported, populations_of_modes, support
from dpmix.populations.tree import LEVEL, Peaks, Tree, find_peaks
from dpmix.populations.valleys import Separation
from dpmix.runs.layout import EVENT_SUBSET, SUBSET_WEIGHTS
from dpmix.runs.reader import Run

DRAWS = 100
"""Default number of draws to use; more hardly change a probability."""

Subset = tuple[Floats, Array | None]
"""Events and what each counts."""

AGREED = 0.95  # adjusted Rand index from which on two mean densities have the same populations
KEPT_POINTS = 5_000  # of these, for `dpmix.populations.convergence`
IMPLAUSIBLE = 0.001  # share of the model's own events that would be flagged as implausible
HELD_BYTES = 2**28  # of mixtures kept in memory; others are computed when needed


@dataclass(frozen=True)
class Populations:
    """The populations of a run, their support and their uncertainty; result of `find_populations`.

    Attributes
    ----------
    run : Run
        Standardised scale.
    draws : int64 [T, 2]
        Chain and draw of each draw used.
    pooled : int64 [pooled draws]
        Draws in the mean density. Component j of it is component j mod K of the (j div K)th of them.
    tree : Tree
        Tree of the mean density.
    modes : int64 [L]
        Population of each mode of the tree.
    level : float
        Cut height.
    why : str
        Reason for the cut height, for a reader.
    components : int64 [T, K]
        Population of every component of every draw: 0..P-1, by weight, the heaviest first.
    mixture : callable
        Returns the mixture of a draw of the run, given its chain and draw.
    n_populations : int
    reference : int
        The draw whose own populations are most similar to these.
    order : int64 [T, K]
        Components of every draw in the places of the reference's (`dpmix.populations.alignment`).
    numbers : int64 [T]
        Number of populations in each draw's own density, cut by the same rule.
    support : float64 [P]
        Share of the draws whose own density has this population.
    agreement : float64 [C, C]
        Mean adjusted Rand index of the draws' own populations within and between chains.
    least_density : float64
        Log predictive density (standardised scale) below which an event is implausible.
    points : float32 [M, D]
        Some points drawn from the mean density, standardised scale.
    of_points : int64 [M]
        Most probable population of each.
    """

    run: Run
    draws: Ints
    pooled: Ints
    tree: Tree
    modes: Ints
    level: float
    why: str
    components: Ints
    mixture: Callable[[int, int], Mixture]
    n_populations: int
    reference: int
    order: Ints
    numbers: Ints
    support: Array
    agreement: Array
    least_density: float
    points: Floats
    of_points: Ints

    @property
    def weights(self) -> Array:
        """Weights of the populations in every draw, float64 [T, P]."""
        return np.array(
            [
                np.bincount(own, self.run.weights[chain, draw], self.n_populations)
                for (chain, draw), own in zip(self.draws, self.components, strict=True)
            ]
        )

    def memberships(
        self, engine: Engine, start: int, stop: int, own: OwnTerms | None = None
    ) -> Iterator[tuple[Floats, Array]]:
        """Yield memberships and log densities of events start..stop-1 of an engine, draw by draw.

        Memberships, float32 [M, P], use the weights of the run, or a sample's own weights and shift. Log
        densities are float64 [M], on the standardised scale. The engine computes those of the next draw
        while the caller uses these.
        """
        with ThreadPoolExecutor(1) as ahead:
            following = ahead.submit(self.memberships_in, 0, engine, start, stop, own)
            for t in range(1, len(self.draws)):
                found = following.result()
                following = ahead.submit(self.memberships_in, t, engine, start, stop, own)
                yield found
            yield following.result()

    def memberships_in(
        self, t: int, engine: Engine, start: int, stop: int, own: OwnTerms | None = None
    ) -> tuple[Floats, Array]:
        """Return memberships and log densities in draw t."""
        chain, draw = self.draws[t]
        mixture = self.mixture(chain, draw)
        if own is not None:
            mixture = own.mixture(mixture, t)
        return _memberships(engine, mixture, self.components[t], self.n_populations, start, stop)


@dataclass(frozen=True)
class _CutRule:
    """Where to cut a tree: at a height, or so that a number of populations results; by default at `LEVEL`."""

    level: float | None
    n_populations: int | None

    def cut(self, tree: Tree) -> Ints:
        """Return the population of each component, int64 [K]."""
        if self.n_populations is not None:
            return tree.cut_to(self.n_populations)
        return tree.cut(LEVEL if self.level is None else self.level)

    def level_in(self, tree: Tree) -> float:
        if self.n_populations is not None:
            return tree.level_of(self.n_populations)
        return LEVEL if self.level is None else self.level

    def why(self, tree: Tree, n_found: int, n_merged: int) -> str:
        """Return the reason for the cut height, and how many populations had no support, for a reader."""
        if self.n_populations is None:
            reason = "the default" if self.level is None else "requested"
            return f"{reason}; {n_merged} with low support merged" if n_merged else reason
        if n_found < self.n_populations:
            return f"{self.n_populations} populations requested, but the density has {n_found} modes"
        tied = int(tree.cut(tree.level_of(self.n_populations)).max()) + 1 != n_found
        some = ", with only some of the merges at this height" if tied else ""
        return f"{self.n_populations} populations requested{some}"


def find_populations(
    run: Run,
    make_engine: MakeEngine,
    *,
    n_draws: int = DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
) -> Populations:
    """Find the populations of a run.

    Parameters
    ----------
    run : Run
        Standardised scale, with at least one committed draw.
    make_engine : callable
        Returns an engine for events float32 [M, D]. All densities come from such engines. The result is
        bit-identical for any number of threads. CPU and CUDA engines may differ in the last bits, so two
        merges of the tree at nearly the same height, or a point between two components, may differ.
    n_draws : int
        Draws to use, evenly spaced in each chain; all draws if there are fewer.
    level, n_populations : float, int, optional
        Cut height of the tree, or the number of populations to cut it into. Not both.

    Raises
    ------
    DataError
        The run has no draw yet.
    """
    if run.committed == 0:
        raise DataError(
            f"{run.path}: the run has no draws yet; wait for the first draw, or continue with --resume"
        )
    draws = spread(run, n_draws)
    with threadpool_limits(1, "blas"):  # the same bits for any number of cores
        return _find(run, make_engine, draws, _CutRule(level, n_populations))


def _find(run: Run, make_engine: MakeEngine, draws: Ints, rule: _CutRule) -> Populations:
    mixture = lru_cache(HELD_BYTES // run.covariances[0, 0].nbytes)(partial(mixture_of_draw, run))
    mixtures = [partial(mixture, *draw) for draw in draws]
    groups = pooled_draws(run, draws)
    subset = _subset(run, draws[groups[0]])
    mean_tree = partial(_mean_tree, run, draws, mixtures, subset, make_engine)
    typical = _typical(groups, mean_tree, rule)
    pooled, density, tree = typical.pooled, typical.density, typical.tree
    points = draw_points(*density, seed=int(run.attributes["seed"]))
    with closing(make_engine(points)) as engine:
        shares = _mean_memberships(engine, [mixtures[t]() for t in pooled], tree)
        labels = np.array([_classified(engine, one()) for one in mixtures])
        log_density = log_predictive(engine, (one() for one in mixtures), len(draws))
        workers = None if engine.info["backend"] == "cpu" else 1  # a device serves one engine at a time
    own = _by_weight(rule.cut(tree), density[0])
    shares = shares @ np.eye(int(own.max()) + 1)[populations_of_modes(tree, own)]
    with ThreadPoolExecutor(workers) as pool:
        trees = [one.tree for one in pool.map(mean_tree, np.arange(len(draws))[:, None])]
    cuts = [rule.cut(one) for one in trees]
    partition = np.array([cut[found] for cut, found in zip(cuts, labels, strict=True)])
    n_cut = int(own.max()) + 1
    if rule.n_populations is None and len(draws) > 1:
        own, shares = merge_unsupported(tree, own, shares, trees, labels, density[0])
    n_found = int(own.max()) + 1
    components = _components(run, draws, shares, labels, own, density)
    components[pooled] = own.reshape(len(pooled), -1)
    estimate = shares.argmax(axis=1)
    reference = int(np.argmax([partitions.rand_index(estimate, one) for one in partition]))
    kept = slice(None, None, max(POINTS // KEPT_POINTS, 1))  # of all components: points are in their order
    return Populations(
        run=run,
        draws=draws,
        pooled=pooled,
        tree=tree,
        modes=populations_of_modes(tree, own),
        level=rule.level_in(tree),
        why=rule.why(tree, n_found, n_cut - n_found),
        components=components,
        mixture=mixture,
        n_populations=n_found,
        reference=reference,
        order=alignment.align(labels, np.array([run.weights[tuple(draw)] for draw in draws]), reference),
        numbers=np.array([one.max() + 1 for one in cuts]),
        support=support(trees, labels, estimate, n_found),
        agreement=partitions.agreement(partition, draws[:, 0]),
        least_density=float(np.quantile(log_density, IMPLAUSIBLE)),
        points=np.ascontiguousarray(points[kept]),
        of_points=estimate[kept],
    )


def _subset(run: Run, draws: Ints) -> Subset:
    """Return the events that the run file keeps and their weights.

    Run files of earlier versions keep none: points of the mean density of some draws serve in their place.
    """
    if EVENT_SUBSET not in run.constants:
        return draw_points(*mean_density(run, draws), seed=int(run.attributes["seed"])), None
    return run.constants[EVENT_SUBSET], run.constants.get(SUBSET_WEIGHTS)


def _by_weight(populations: Ints, weights: Array) -> Ints:
    """Renumber populations by weight, the heaviest first."""
    order = np.argsort(-np.bincount(populations, weights), kind="stable")
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[populations]


# --------------------------------------------------------------------------- the mean density


@dataclass(frozen=True)
class _MeanTree:
    """The tree of the mean density of some draws, and the mode of each event that the run file keeps."""

    pooled: Ints
    density: tuple[Array, Array, Array]
    tree: Tree
    of_events: Ints


def _typical(groups: Ints, mean_tree: Callable[[Ints], _MeanTree], rule: _CutRule) -> _MeanTree:
    """Return the tree whose populations agree best with those of other draws: the medoid.

    A valley that is only just there can depend on the draws that are pooled, and so on the seed. The measure
    is the adjusted Rand index of the events, summed over all trees. Where two trees agree, the others are
    not needed: with many components, a tree takes seconds.
    """
    trees: list[_MeanTree] = []
    found: list[Ints] = []
    for pooled in groups:
        trees.append(mean_tree(pooled))
        found.append(populations_of_modes(trees[-1].tree, rule.cut(trees[-1].tree))[trees[-1].of_events])
        if len(found) == 2 and partitions.rand_index(*found) >= AGREED:
            break
    agreement = [sum(partitions.rand_index(one, other) for other in found) for one in found]
    return trees[int(np.argmax(agreement))]


def _mean_tree(
    run: Run,
    draws: Ints,
    mixtures: Sequence[Callable[[], Mixture]],
    subset: Subset,
    make_engine: MakeEngine,
    pooled: Ints,
) -> _MeanTree:
    """Return the tree of the mean density of some draws, with distances by the valleys in the events."""
    density = mean_density(run, draws[pooled])
    peaks = find_peaks(*density, int(run.attributes["n_events"]), make_engine, len(pooled))
    events, weights = subset
    with closing(make_engine(events)) as engine:
        shares = _mean_memberships(engine, [mixtures[t]() for t in pooled], peaks)
    own = shares.argmax(axis=1)
    return _MeanTree(pooled, density, peaks.tree(Separation(peaks.moments, events, own, weights)), own)


# --------------------------------------------------------------------------- classifying points


def _memberships(
    engine: Engine, mixture: Mixture, populations: Ints, n_populations: int, start: int, stop: int
) -> tuple[Floats, Array]:
    """Return an engine's memberships, with a column for every population, even one absent from the draw."""
    shares, log_density = engine.memberships(mixture, populations, start, stop)
    missing = n_populations - shares.shape[1]
    return (np.pad(shares, ((0, 0), (0, missing))) if missing else shares), log_density


def _mean_memberships(engine: Engine, mixtures: Sequence[Mixture], density: Peaks | Tree) -> Array:
    """Return memberships of all events in the modes of the mean density of some draws, float64 [M, L]."""
    n_modes = len(density.heights)
    total, highest = np.zeros((engine.n_events, n_modes)), np.full(engine.n_events, -np.inf)
    for mixture, own in zip(mixtures, density.modes.reshape(len(mixtures), -1), strict=True):
        shares, log_density = _memberships(engine, mixture, own, n_modes, 0, engine.n_events)
        higher = np.maximum(highest, log_density)
        total *= np.exp(highest - higher)[:, None]
        total += shares * np.exp(log_density - higher)[:, None]
        highest = higher
    total /= total.sum(axis=1, keepdims=True)
    return total


def _classified(engine: Engine, mixture: Mixture) -> npt.NDArray[np.int32]:
    """Return the most probable component of each point, int32 [M]."""
    engine.expect_labels(mixture)
    return engine.labels()


def _components(
    run: Run, draws: Ints, shares: Array, labels: Ints, own: Ints, density: tuple[Array, Array, Array]
) -> Ints:
    """Return the population of each component of each draw, int64 [T, K]."""
    means = (np.asarray(run.means[chain, draw]) for chain, draw in draws)
    return np.array(
        [_populations_of(shares, found, own, density, at) for found, at in zip(labels, means, strict=True)]
    )


def _populations_of(
    shares: Array, labels: npt.NDArray[np.int32], own: Ints, density: tuple[Array, Array, Array], means: Array
) -> Ints:
    """Return the population of each component of a draw, int64 [K]: that of most of its points.

    A component without points holds no events; it gets the population at its mean.
    """
    n_points, n_components = len(labels), len(means)
    points = csr_array((np.ones(n_points), (labels, np.arange(n_points))), shape=(n_components, n_points))
    heavy = np.flatnonzero(density[0])
    weights, centres, covariances = (part[heavy] for part in density)
    return partitions.by_votes(
        points @ shares,
        lambda without: own[heavy][nearest_components(weights, centres, covariances, means[without])],
    )
