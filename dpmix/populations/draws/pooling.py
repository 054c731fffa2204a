"""The draws that populations come from, and their mean density.

T draws, some of which are pooled; J pooled components, K components, M points, D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array, Floats, Ints, Mixture, mixture_from
from dpmix.model.streams import Step, Stream
from dpmix.populations.tree.tree import LEAST_EVENTS
from dpmix.runs.layout import POOLED_DRAWS  # in a mean density; see docs/explanation/populations.md
from dpmix.runs.reader import Run

FIRST_GROUPS = 4  # whose mean densities are compared first; they are spread over all draws
MOST_GROUPS = 15  # compared where these disagree
POOLED_COMPONENTS = 520  # at most, unless one draw has more: the tree's cost grows with their cube
POINTS = 50_000  # drawn from the posterior mean density
HELD_BYTES = 2**28  # of mixtures kept in memory; others are computed when needed


def spread(run: Run, n_draws: int) -> Ints:
    """Return chain and draw of evenly spaced draws, int64 [T, 2]: the same of each chain, the last included.

    There are at most `n_draws`, but at least one of each chain.
    """
    chains = run.alpha.shape[0] if run.kind == "mcmc" else 1
    numbers = _evenly(run.committed, n_draws // chains)
    return np.array([(chain, number) for chain in range(chains) for number in numbers])


def some_of_each_chain(draws: Ints, count: int) -> Ints:
    """Return the places of evenly spaced ones of some draws, int64 [T, 2], the same of each chain, int64 [U].

    There are at most `count`, but at least one of each chain; every chain has equally many of `draws`.
    """
    of_chains = np.arange(len(draws)).reshape(len(np.unique(draws[:, 0])), -1)
    places: Ints = of_chains[:, _evenly(of_chains.shape[1], count // len(of_chains))].ravel()
    return places


def _evenly(n: int, count: int) -> Ints:
    """Return at most `count` evenly spaced numbers below n, at least one, the last included, ascending."""
    return np.linspace(n - 1, 0, min(max(count, 1), n)).round().astype(np.int64)[::-1]


def pooled_draws(run: Run, draws: Ints) -> Ints:
    """Return groups of draws, each with a mean density, int64 [groups, pooled draws].

    Every group has equally many draws of each chain if there are enough, and other draws than the other
    groups. Together they have all draws, except for a remainder. The first `FIRST_GROUPS` groups are spread
    over the run, the latest draws first.
    """
    events = np.asarray(run.weights[tuple(draws[-1])]) * int(run.attributes["n_events"])
    heavy = int((events >= LEAST_EVENTS).sum())
    chains = len(np.unique(draws[:, 0]))
    count = min(POOLED_DRAWS, max(POOLED_COMPONENTS // max(heavy, 1), 1), len(draws))
    # Equally many draws of each chain, or the chain with one more would weigh more where chains differ.
    if chains < count:
        count -= count % chains
    n_groups = len(draws) // count
    starts = (np.arange(n_groups)[::-1] + 0.5) / n_groups
    groups: Ints = ((np.arange(count) + starts[:, None]) * (len(draws) / count)).astype(np.int64)
    # Groups next to each other in a run are alike: the first few must be far apart to show a disagreement.
    gap = max(n_groups // FIRST_GROUPS, 1)
    return np.concatenate([groups[start::gap] for start in range(gap)])


def mean_density(run: Run, draws: Ints) -> tuple[Array, Array, Array]:
    """Return weights [J], means [J, D] and covariances [J, D, D] of the mean density of some draws."""
    chosen = [tuple(draw) for draw in draws]
    weights = np.concatenate([run.weights[one] for one in chosen]) / len(chosen)
    means = np.concatenate([run.means[one] for one in chosen])
    return weights, means, np.concatenate([run.covariances[one] for one in chosen])


def mixture_of_draw(run: Run, chain: int, draw: int) -> Mixture:
    """Return the mixture of one draw, on the scale of the run."""
    with np.errstate(divide="ignore"):  # Bayesian EM may empty a component
        log_weights = np.log(run.weights[chain, draw])
    return mixture_from(log_weights, np.asarray(run.means[chain, draw]), run.covariances[chain, draw])


def held_mixtures(run: Run) -> Callable[[int, int], Mixture]:
    """Return a function that returns the mixture of a draw; those used last are kept in memory."""
    most = HELD_BYTES // run.covariances[0, 0].nbytes
    held: Callable[[int, int], Mixture] = lru_cache(most)(partial(mixture_of_draw, run))
    return held


def transformed_draw(run: Run, scaling: Scaling, chain: int, draw: int) -> tuple[Array, Array, Array]:
    """Return weights, means and covariances of one draw on the transformed scale."""
    return (
        np.array(run.weights[chain, draw]),
        scaling.to_transformed(run.means[chain, draw]),
        scaling.covariance_to_transformed(run.covariances[chain, draw]),
    )


def draw_points(weights: Array, means: Array, covariances: Array, seed: int) -> Floats:
    """Draw points from a mixture, float32 [M, D]."""
    random = Stream(seed, 0, 0).step(Step.POINTS)
    counts = random.multinomial(POINTS, weights / weights.sum())
    roots = np.linalg.cholesky(covariances)
    parts = [
        means[j] + random.standard_normal((counts[j], means.shape[1])) @ roots[j].T
        for j in np.flatnonzero(counts)
    ]
    return np.concatenate(parts).astype(np.float32)
