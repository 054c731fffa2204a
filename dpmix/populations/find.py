"""Populations from the draws of a run, and the membership of any events in them.

The populations are those of the **posterior mean density**: draws spread over the run are taken together as
one mixture, whose tree (`dpmix.populations.tree`) is cut. A ripple that one draw shows and the next
does not is not a population. Every other draw assigns its components to
populations by the events they share, so memberships, proportions and their uncertainty come from all draws.

Which events? Not the run's: points drawn from the posterior mean density itself, as many as are needed. So a
run file is all it takes, what is found does not depend on which events are gated with it, and the same points
say below which density the model finds an event implausible.

T draws, of which some are pooled; J pooled components, K components, P populations, M points, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dpmix.model.mixture import Array, Floats, Ints, Mixture, mixture_from
from dpmix.model.streams import Step, Stream
from dpmix.populations import alignment, partitions
from dpmix.populations.tree import LEAST_EVENTS, LEVEL, Tree, nearest_components, tree_of
from dpmix.runs.reader import Run

MakeEngine = Callable[[Floats], Engine]

DRAWS = 100
"""Draws of a run that are used unless a user asks for another number: more hardly change a probability."""

POOLED_DRAWS = 5  # whose densities are averaged; docs/explanation/populations.md
POOLED_COMPONENTS = 520  # at most, where one draw has fewer: the tree's work grows with their cube
POINTS = 50_000  # drawn from the posterior mean density
IMPLAUSIBLE = 0.001  # of the model's own events are as implausible as those that are flagged
HELD_BYTES = 2**28  # of mixtures that are held; those beyond are made anew whenever they are needed


@dataclass(frozen=True)
class Populations:
    """The populations of a run and what is known of them, as `find_populations` gives it.

    Attributes
    ----------
    run : Run
        Standardised scale.
    draws : int64 [T, 2]
        Chain and draw of each draw used.
    pooled : int64 [pooled draws]
        Which of them gave the density; component j of it is component j mod K of the (j div K)th.
    tree : Tree
        Of that density.
    modes : int64 [L]
        Population of each of its modes.
    level : float
        Where it is cut.
    why : str
        What chose the level, for a reader.
    components : int64 [T, K]
        Population of every component of every draw: 0..P-1, by weight, the heaviest first.
    mixture : callable
        The mixture of a draw of the run, by its chain and draw.
    n_populations : int
    reference : int
        The draw whose own populations are most like these.
    order : int64 [T, K]
        Components of every draw in the places of the reference's (`dpmix.populations.alignment`).
    numbers : int64 [T]
        Populations of each draw's own density, cut in the same way.
    support : float64 [P]
        Share of the draws whose own density has this population again.
    agreement : float64 [C, C]
        Mean adjusted Rand index of the draws' own populations within and between chains.
    least_density : float64
        Log predictive density (standardised scale) below which an event is implausible.
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

    @property
    def weights(self) -> Array:
        """Weights of the populations in every draw, float64 [T, P]."""
        return np.array(
            [
                np.bincount(own, self.run.weights[chain, draw], self.n_populations)
                for (chain, draw), own in zip(self.draws, self.components, strict=True)
            ]
        )

    def memberships(self, engine: Engine, start: int, stop: int) -> Iterator[tuple[Floats, Array]]:
        """Of events start..stop-1 of an engine, draw by draw: memberships [M, P] and log densities [M].

        Memberships are float32 and by the run's weights, log densities float64; standardised scale.
        """
        for t in range(len(self.draws)):
            yield self.memberships_in(t, engine, start, stop)

    def memberships_in(self, t: int, engine: Engine, start: int, stop: int) -> tuple[Floats, Array]:
        """The same in one draw."""
        mixture = self.mixture(*self.draws[t])
        return _memberships(engine, mixture, self.components[t], self.n_populations, start, stop)


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
        An engine for events float32 [M, D].
    n_draws : int
        Draws to use, spread evenly over each chain; all where there are fewer.
    level, n_populations : float, int, optional
        Another level, or the level at which there are so many populations. Not both.

    Raises
    ------
    DataError
        The run has no draw yet.
    """
    if run.committed == 0:
        raise DataError(f"{run.path}: no draw is committed yet; wait for the run, or go on with --resume")
    draws = _spread(run, n_draws)
    with threadpool_limits(1, "blas"):  # the same bits whatever the number of cores
        return _find(run, make_engine, draws, level, n_populations)


def _find(
    run: Run, make_engine: MakeEngine, draws: Ints, level: float | None, n_populations: int | None
) -> Populations:
    n_events = int(run.attributes["n_events"])
    pooled = _pooled(run, draws, n_events)
    density = _density(run, draws[pooled])
    tree = tree_of(*density, n_events, len(pooled))

    def cut(one: Tree) -> Ints:
        if n_populations is not None:
            return one.cut_to(n_populations)
        return one.cut(LEVEL if level is None else level)

    own = _by_weight(cut(tree), density[0])
    n_found = int(own.max()) + 1
    points = _draw_points(*density, seed=int(run.attributes["seed"]))
    mixture = lru_cache(HELD_BYTES // run.covariances[0, 0].nbytes)(partial(mixture_of_draw, run))
    with closing(make_engine(points)) as engine:
        parts = own.reshape(len(pooled), -1)
        shares = _mean_memberships(engine, [mixture(*draw) for draw in draws[pooled]], parts, n_found)
        labels = np.array([_classified(engine, mixture(*draw)) for draw in draws])
        components = np.array(
            [
                _populations_of(shares, labels[t], own, density, np.asarray(run.means[chain, draw]))
                for t, (chain, draw) in enumerate(draws)
            ]
        )
        components[pooled] = parts
        log_density = _log_predictive(engine, (mixture(*draw) for draw in draws), len(draws))
    with ThreadPoolExecutor() as pool:
        trees = list(pool.map(lambda draw: tree_of(*_density(run, draw[None]), n_events), draws))
    cuts = [cut(one) for one in trees]
    own_partitions = np.array([one[found] for one, found in zip(cuts, labels, strict=True)])
    estimate = shares.argmax(axis=1)
    likeness = [partitions.rand_index(estimate, one) for one in own_partitions]
    reference = int(np.argmax(likeness))
    weights = np.array([run.weights[chain, draw] for chain, draw in draws])
    return Populations(
        run=run,
        draws=draws,
        pooled=pooled,
        tree=tree,
        modes=_of_modes(tree, own),
        level=_level(tree, level, n_populations),
        why=_why(tree, level, n_populations, n_found),
        components=components,
        mixture=mixture,
        n_populations=n_found,
        reference=reference,
        order=alignment.align(labels, weights, reference),
        numbers=np.array([one.max() + 1 for one in cuts]),
        support=partitions.support(own_partitions, estimate, n_found),
        agreement=partitions.agreement(own_partitions, draws[:, 0]),
        least_density=float(np.quantile(log_density, IMPLAUSIBLE)),
    )


def mixture_of_draw(run: Run, chain: int, draw: int) -> Mixture:
    """The mixture of one draw, on the scale of the run."""
    with np.errstate(divide="ignore"):  # a component that Bayesian EM has emptied
        log_weights = np.log(run.weights[chain, draw])
    return mixture_from(log_weights, np.asarray(run.means[chain, draw]), run.covariances[chain, draw])


# --------------------------------------------------------------------------- draws, and their mean density


def _spread(run: Run, n_draws: int) -> Ints:
    """Chain and draw of the draws to use, int64 [T, 2]: the same of each chain, the last among them."""
    chains = run.alpha.shape[0] if run.kind == "mcmc" else 1
    each = min(max(n_draws // chains, 1), run.committed)
    numbers = np.linspace(run.committed - 1, 0, each).round().astype(np.int64)[::-1]
    return np.array([(chain, number) for chain in range(chains) for number in numbers])


def _pooled(run: Run, draws: Ints, n_events: int) -> Ints:
    """Which of the draws are pooled: as many of each chain, where there are enough."""
    heavy = int((np.asarray(run.weights[tuple(draws[-1])]) * n_events >= LEAST_EVENTS).sum())
    chains = len(np.unique(draws[:, 0]))
    count = min(POOLED_DRAWS, max(POOLED_COMPONENTS // max(heavy, 1), 1), len(draws))
    if chains < count:
        count -= count % chains
    return np.linspace(len(draws) - 1, 0, count).round().astype(np.int64)[::-1]


def _density(run: Run, draws: Ints) -> tuple[Array, Array, Array]:
    """Weights [J], means [J, D] and covariances [J, D, D] of the mean density of some draws."""
    chosen = [tuple(draw) for draw in draws]
    weights = np.concatenate([run.weights[one] for one in chosen]) / len(chosen)
    means = np.concatenate([run.means[one] for one in chosen])
    return weights, means, np.concatenate([run.covariances[one] for one in chosen])


def _by_weight(populations: Ints, weights: Array) -> Ints:
    """The same populations, numbered by their weight."""
    order = np.argsort(-np.bincount(populations, weights), kind="stable")
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[populations]


def _of_modes(tree: Tree, populations: Ints) -> Ints:
    """The population of each mode, int64 [L], of the populations of the components."""
    modes = np.empty(len(tree.heights), np.int64)
    modes[tree.modes] = populations
    return modes


def _draw_points(weights: Array, means: Array, covariances: Array, seed: int) -> Floats:
    """Points from a mixture, float32 [M, D]."""
    random = Stream(seed, 0, 0).step(Step.POINTS)
    counts = random.multinomial(POINTS, weights / weights.sum())
    roots = np.linalg.cholesky(covariances)
    parts = [
        means[j] + random.standard_normal((counts[j], means.shape[1])) @ roots[j].T
        for j in np.flatnonzero(counts)
    ]
    return np.concatenate(parts).astype(np.float32)


# --------------------------------------------------------------------------- what the draws say of points


def _memberships(
    engine: Engine, mixture: Mixture, populations: Ints, n_populations: int, start: int, stop: int
) -> tuple[Floats, Array]:
    """An engine's memberships, with a column for every population whether the draw has it or not."""
    shares, log_density = engine.memberships(mixture, populations, start, stop)
    missing = n_populations - shares.shape[1]
    return (np.pad(shares, ((0, 0), (0, missing))) if missing else shares), log_density


def _mean_memberships(
    engine: Engine, mixtures: Sequence[Mixture], populations: Ints, n_populations: int
) -> Array:
    """Memberships of all points in the mean density of some draws, float64 [M, P]."""
    given = [
        _memberships(engine, mixture, own, n_populations, 0, engine.n_events)
        for mixture, own in zip(mixtures, populations, strict=True)
    ]
    weights = np.array([log_density for _, log_density in given])
    weights = np.exp(weights - weights.max(axis=0))
    shares = np.array([one for one, _ in given], np.float64)
    mean: Array = np.einsum("tn,tnp->np", weights / weights.sum(axis=0), shares)
    return mean


def _classified(engine: Engine, mixture: Mixture) -> npt.NDArray[np.int32]:
    """The most probable component of all points, int32 [M]."""
    engine.expect_labels(mixture)
    return engine.labels()


def _populations_of(
    shares: Array, labels: npt.NDArray[np.int32], own: Ints, density: tuple[Array, Array, Array], means: Array
) -> Ints:
    """The population of each component of a draw, int64 [K]: the one that most of its points are of.

    A component without points, one that holds no events, belongs where its mean lies.
    """
    n_points, n_components = len(labels), len(means)
    points = csr_array((np.ones(n_points), (labels, np.arange(n_points))), shape=(n_components, n_points))
    votes = points @ shares
    populations: Ints = votes.argmax(axis=1)
    without = np.flatnonzero(votes.sum(axis=1) == 0.0)
    heavy = np.flatnonzero(density[0])
    weights, centres, covariances = (part[heavy] for part in density)
    populations[without] = own[heavy][nearest_components(weights, centres, covariances, means[without])]
    return populations


def _log_predictive(engine: Engine, mixtures: Iterable[Mixture], n_draws: int) -> Array:
    """Log of the mean density over the draws at all points, float64 [M]."""
    total = np.full(engine.n_events, -np.inf)
    for mixture in mixtures:
        nowhere = np.zeros(len(mixture.means), np.int64)
        _, log_density = engine.memberships(mixture, nowhere, 0, engine.n_events)
        total = np.logaddexp(total, log_density)
    mean: Array = total - np.log(n_draws)
    return mean


# --------------------------------------------------------------------------- in words


def _level(tree: Tree, level: float | None, n_populations: int | None) -> float:
    """Where a tree is cut."""
    if n_populations is not None:
        return tree.level_of(n_populations)
    return LEVEL if level is None else level


def _why(tree: Tree, level: float | None, n_populations: int | None, n_found: int) -> str:
    if n_populations is not None:
        if n_found < n_populations:
            return f"{n_populations} populations asked for, and the density has {n_found} modes"
        tied = int(tree.cut(tree.level_of(n_populations)).max()) + 1 != n_found
        return f"{n_populations} populations asked for{', not all merges at this level made' if tied else ''}"
    return "the default" if level is None else "as asked for"
