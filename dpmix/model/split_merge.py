"""Split-merge moves: Metropolis moves that split one component into two, or merge two into one.

Block Gibbs moves one event at a time. A component that should be two, or two that should be one, may stay as
they are for thousands of sweeps. Here, in some of the sweeps, the components are paired at random. A pair
with one empty component proposes a **split**: the events of the other component are divided between both. A
pair without an empty component proposes a **merge**. The pairing does not look at the data, so a split and
the merge that reverses it are proposed equally often, whatever the truncation and the order of the sticks.

The proposal of a split follows Jain and Neal (2004), J. Comput. Graph. Stat. 13:158, and (2007), Bayesian
Anal. 2:445, with all events of a scan at once. The **launch** starts from two normals, placed at random
within the normal of the events of both components. Each event draws one of the two normals, and the normals
are refitted; this is repeated a few times. Finally each event draws its side given the launch. That draw is
the proposal, and its probability q is known. A merge requires the q of the split that reverses it: the launch
is made in the same way, from the events of both components, and q is the probability of the sides on which
they are.

Let z be the labels, p(z) their probability given alpha, and m(.) the marginal likelihood of the events of a
component; parameters and sticks are integrated out. A split is accepted with probability::

    min(1, p(z') m(one) m(other) / (2 p(z) m(both) q))

and a merge with the same of the inverse ratio. The reason for the 2: a merge gives all events to either of
the two components, but a split always starts from the one that has them.

With a coarsened posterior (`dpmix.model.coarsening`) the statistics count zeta of an event each, and so does
q: it is taken to the power zeta, as if zeta N events had the labels. Events with weights
(`dpmix.model.sample_weights`) count their weight, in the statistics and as the power of their part of q.

With full events (`dpmix.model.coarsening.with_full_events`) a move is judged with the evidence that the
smaller of its two sides has: the statistics of both sides and of both together, and the exponent of q, are
multiplied by the factor that gives this side its full events. It is the same factor for a split and the merge
that reverses it. Without it, a merge of 100 events among 50,000 with a large component far away would be
judged by four events, and accepted.

As q is at most 1, a merge that would be rejected even at q = 1 requires no pass over the events. Most pairs
are so far apart that this holds. The moves of a round are made one after the other, but their events are
distinct, so the proposals of all moves are drawn in the same passes.

K components, M pairs, D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpmix.model import normal_wishart
from dpmix.model.coarsening import coarsened, full_factors, times
from dpmix.model.mixture import Array, Hyperparameters, Ints, Mixture, Stats, mixture_from, no_events
from dpmix.model.resolution import blurred
from dpmix.model.streams import Key, Step, Stream

LOG_2 = float(np.log(2.0))
LAUNCH_SCANS = 2  # with 1, separated groups took more sweeps to find; with 3, as many as with 2
SPREAD = 0.7  # distance of the first two normals from their middle, in standard deviations


class SplitAssignment(NamedTuple):
    """The events that `Engine.divide` divides between the sides of pairs, and how.

    Attributes
    ----------
    pairs : int32 [K]
        The pair, 0 to M - 1, to which the events of each component belong; -1 for a component in no pair.
    sides : int8 [K]
        The side of the pair, 0 or 1, that all events of a component take; -1 if each event draws its own.
    word : int
        The word, 1, 2 or 3, of an event's random number that draws its side (`dpmix.model.streams.Key`).
    """

    pairs: npt.NDArray[np.int32]
    sides: npt.NDArray[np.int8]
    word: int


Divide = Callable[[SplitAssignment, Mixture], tuple[Stats, Array]]
"""`dpmix.engines.base.Engine.divide`, for one chain and sweep."""


class Moves(NamedTuple):
    """Numbers of moves in a round.

    Attributes
    ----------
    splits_proposed, splits_accepted, merges_proposed, merges_accepted : int
        The proposed moves include those that are rejected without a pass over the events.
    """

    splits_proposed: int = 0
    splits_accepted: int = 0
    merges_proposed: int = 0
    merges_accepted: int = 0


Factors = Callable[[Array, Array], Array]
"""Factors of the evidence of moves, given the counts of their two sides, all float64 [M]."""

Regroup = Callable[[Stats, Hyperparameters, float], tuple[Stats, Moves]]
"""A round of moves on the labels, given their statistics, the hyperparameters and alpha."""


@dataclass(frozen=True)
class Pairs:
    """Components that are paired in a round.

    Attributes
    ----------
    first : int64 [M]
        Components that hold events.
    second : int64 [M]
        Their partners, which are empty for a split and hold events for a merge.
    is_split : bool [M]
    joined : Stats
        Statistics of the events of both, M rows.
    log_joined : float64 [M]
        Log marginal likelihood of the events of both, in one component.
    log_apart : float64 [M]
        Log marginal likelihood of the events of both, in their present components.
    levels : float64 [M]
        A move is accepted if the log of its ratio is above this.
    factors : float64 [M]
        Factors of the evidence in the two marginal likelihoods; 1 for a split, whose sides are not known yet.
    """

    first: Ints
    second: Ints
    is_split: npt.NDArray[np.bool_]
    joined: Stats
    log_joined: Array
    log_apart: Array
    levels: Array
    factors: Array

    def __len__(self) -> int:
        return len(self.first)


class Proposal(NamedTuple):
    """Proposed sides of the events of a pair: statistics [2], log marginal likelihood, log q."""

    sides: Stats
    log_marginal: float
    log_probability: float


def round_of(
    divide: Callable[[SplitAssignment, Mixture, Key], tuple[Stats, Array]],
    key: Key,
    zeta: float = 1.0,
    least: float | None = None,
    resolution: Array | None = None,
    full_events: float = 0.0,
) -> Regroup:
    """Return a round for one sweep of one chain, with the random numbers of that sweep.

    Parameters
    ----------
    divide : callable
        `dpmix.engines.base.Engine.divide` of the engine that drew the labels.
    key : Key
        The key with which the labels were drawn.
    zeta : float
        What an event of weight 1 counts, as in `dpmix.model.gibbs.sweep`.
    least : float, optional
        What the event with the smallest weight counts; default: `zeta`.
    resolution, full_events
        As in `dpmix.model.gibbs.sweep`.

    Returns
    -------
    callable
        The parameter `regroup` of `dpmix.model.gibbs.sweep`.
    """
    rng = Stream(*key).step(Step.SPLIT_MERGE)

    def divide_for_key(split: SplitAssignment, mixture: Mixture) -> tuple[Stats, Array]:
        stats, log_probabilities = divide(split, mixture, key)
        # q to the power zeta as well: the labels then have the certainty of all events, as after the label
        # step (docs/explanation/coarsening.md); with q in full the two would aim at different distributions.
        return blurred(coarsened(stats, zeta), resolution), zeta * log_probabilities

    def factors(one: Array, other: Array) -> Array:
        return full_factors(np.minimum(one, other), zeta, full_events)

    smallest = zeta if least is None else least
    judged = factors if full_events > 0.0 else no_factors
    return lambda stats, hyper, alpha: regroup(stats, hyper, alpha, divide_for_key, rng, smallest, judged)


def no_factors(one: Array, other: Array) -> Array:
    """Return the factors without full events: 1."""
    return np.ones(np.broadcast_shapes(one.shape, other.shape))


def regroup(
    stats: Stats,
    hyper: Hyperparameters,
    alpha: float,
    divide: Divide,
    rng: np.random.Generator,
    least: float = 1.0,
    factors: Factors = no_factors,
) -> tuple[Stats, Moves]:
    """Make one round of split-merge moves; it leaves the posterior invariant if every event counts 1.

    Parameters
    ----------
    stats, hyper, alpha : Stats, Hyperparameters, float
        Statistics of the labelled events, and what they are given.
    divide : callable
        Divides the labelled events.
    rng : numpy.random.Generator
    least : float
        The least that an event counts in all statistics.
    factors : callable

    Returns
    -------
    stats : Stats
        Statistics of the labels after the moves.
    moves : Moves

    Raises
    ------
    numpy.linalg.LinAlgError
        The scatter of a component is not positive definite to float64 (collinear channels).
    """
    n_components = len(stats.counts)
    pairs = pair_components(stats, hyper, rng, factors)
    possible = may_accept(pairs, stats.counts, alpha, least)
    chosen = np.flatnonzero(possible).tolist()
    proposals = dict(zip(chosen, propose(pairs, chosen, n_components, hyper, divide, rng), strict=True))
    splits = merges = 0
    for m, level in enumerate(pairs.levels):
        if not possible[m]:
            continue
        if m not in proposals:  # an earlier move of this round made it possible
            (proposals[m],) = propose(pairs, [m], n_components, hyper, divide, rng)
        after, log_ratio = evaluate(pairs, m, proposals[m], stats.counts, alpha, hyper, factors)
        # A split into all and none is the state that it started from, and no merge would reverse it.
        if log_ratio > level and not (pairs.is_split[m] and after.counts.min() == 0.0):
            stats = with_rows(stats, [pairs.first[m], pairs.second[m]], after)
            # The probability of the labels depends on the counts of all components, some of which this move
            # has changed.
            possible = may_accept(pairs, stats.counts, alpha, least)
            splits += bool(pairs.is_split[m])
            merges += not pairs.is_split[m]
    n_splits = int(pairs.is_split.sum())
    return stats, Moves(n_splits, splits, len(pairs) - n_splits, merges)


def pair_components(
    stats: Stats, hyper: Hyperparameters, rng: np.random.Generator, factors: Factors = no_factors
) -> Pairs:
    """Pair all components at random; pairs without events are left out, and one component if K is odd."""
    n_components = len(stats.counts)
    pairs = rng.permutation(n_components)[: n_components // 2 * 2].reshape(-1, 2)
    held = stats.counts[pairs] > 0
    pairs = np.where(held[:, :1], pairs, pairs[:, ::-1])[held.any(axis=1)]
    first, second = pairs.T
    joined = merge_components(rows_of(stats, first), rows_of(stats, second))
    # Minus an exponential variate is the log of a uniform one, and never minus infinity.
    levels = -rng.standard_exponential(len(first))
    is_split = stats.counts[second] == 0.0
    own = np.where(is_split, 1.0, factors(stats.counts[first], stats.counts[second]))
    log_joined = normal_wishart.log_marginals(times(joined, own), hyper)
    one, other = (
        normal_wishart.log_marginals(times(rows_of(stats, side), own), hyper) for side in (first, second)
    )
    return Pairs(first, second, is_split, joined, log_joined, one + other, levels, own)


def may_accept(pairs: Pairs, counts: Array, alpha: float, least: float) -> npt.NDArray[np.bool_]:
    """Return the moves that may be accepted, by what is known without a pass over the events, bool [M].

    A split requires more than one event, so more than the least that one counts. For a merge, q is replaced
    by its bound 1.
    """
    each, sizes = np.arange(len(pairs)), pairs.joined.counts
    merged = np.tile(counts, (len(pairs), 1))
    # The first of a pair gets all events, as in `evaluate`; the pairing is random, so either is the first as
    # often.
    merged[each, pairs.first], merged[each, pairs.second] = sizes, 0.0
    gains = log_labels(merged, alpha) - log_labels(counts, alpha)
    bounds = pairs.log_joined - pairs.log_apart + LOG_2 + gains
    return np.where(pairs.is_split, sizes > least, bounds > pairs.levels)


def evaluate(
    pairs: Pairs,
    m: int,
    proposal: Proposal,
    counts: Array,
    alpha: float,
    hyper: Hyperparameters,
    factors: Factors,
) -> tuple[Stats, float]:
    """Return the statistics of pair m after its move, and the log of the acceptance ratio."""
    joined = rows_of(pairs.joined, [m])
    if pairs.is_split[m]:
        after = proposal.sides
        log_joined, log_apart = float(pairs.log_joined[m]), proposal.log_marginal
        (factor,) = factors(after.counts[:1], after.counts[1:])
        if factor != 1.0:  # pairs and proposals have the marginal likelihoods of coarsened statistics
            log_joined = float(normal_wishart.log_marginals(times(joined, np.array([factor])), hyper)[0])
            log_apart = float(normal_wishart.log_marginals(times(after, np.full(2, factor)), hyper).sum())
        ratio = log_apart - log_joined - LOG_2 - factor * proposal.log_probability
    else:
        after = concatenate(joined, no_events(1, joined.sums.shape[1]))
        log_q = pairs.factors[m] * proposal.log_probability
        ratio = pairs.log_joined[m] - pairs.log_apart[m] + LOG_2 + log_q
    changed = counts.copy()
    changed[[pairs.first[m], pairs.second[m]]] = after.counts
    return after, ratio + (log_labels(changed, alpha) - log_labels(counts, alpha))


def log_labels(counts: Array, alpha: float) -> Array:
    """Return the log probability of labels with these counts given alpha, sticks integrated out.

    This is the product of B(1 + n_j, alpha + sum_{r>j} n_r) / B(1, alpha) over j < K, in which most gamma
    functions cancel. Counts are float64 [..., K], the result is float64 [...].
    """
    left = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]  # n_j and all after it
    gammas = gammaln(1.0 + counts[..., :-1]).sum(axis=-1) + gammaln(alpha + left[..., -1])
    sticks = np.log(alpha / (alpha + left[..., :-1])).sum(axis=-1)
    logs: Array = gammas - gammaln(alpha + left[..., 0]) + sticks
    return logs


def propose(
    pairs: Pairs,
    chosen: list[int],
    n_components: int,
    hyper: Hyperparameters,
    divide: Divide,
    rng: np.random.Generator,
) -> list[Proposal]:
    """Return sides for the events of the chosen pairs: drawn for a split, the present ones for a merge."""
    n_pairs = len(chosen)
    if n_pairs == 0:
        return []
    first, second, is_merge = pairs.first[chosen], pairs.second[chosen], ~pairs.is_split[chosen]
    of_component = np.full(n_components, -1, np.int32)
    of_component[first] = of_component[second] = np.arange(n_pairs)
    sides = np.full(n_components, -1, np.int8)
    mixture = init_split(rows_of(pairs.joined, chosen), hyper, rng)
    for word in range(1, LAUNCH_SCANS + 1):
        mixture = refit(divide(SplitAssignment(of_component, sides, word), mixture)[0], hyper)
    sides[first[is_merge]] = 0
    sides[second[is_merge]] = 1
    stats, log_probabilities = divide(SplitAssignment(of_component, sides, LAUNCH_SCANS + 1), mixture)
    marginals = normal_wishart.log_marginals(stats, hyper).reshape(-1, 2).sum(axis=1)
    numbers = zip(marginals.tolist(), log_probabilities.tolist(), strict=True)
    return [Proposal(rows_of(stats, slice(2 * m, 2 * m + 2)), *found) for m, found in enumerate(numbers)]


def init_split(joined: Stats, hyper: Hyperparameters, rng: np.random.Generator) -> Mixture:
    """Place two normals with the prior's mean covariance on opposite sides of each mean, 2M components."""
    posterior = normal_wishart.posterior(joined, hyper)
    roots = np.linalg.cholesky(normal_wishart.mean_covariances(posterior))
    away = SPREAD * np.einsum("mij,mj->mi", roots, rng.standard_normal(posterior.means.shape))
    # On a random line, for a merge too: the launch of a split and the launch of the merge that reverses it
    # must have the same distribution.
    means = np.stack((posterior.means - away, posterior.means + away), axis=1).reshape(-1, away.shape[1])
    covariances = np.broadcast_to(hyper.phi, (len(means), *hyper.phi.shape))
    return mixture_from(np.zeros(len(means)), means, covariances)


def refit(sides: Stats, hyper: Hyperparameters) -> Mixture:
    """Return the normals at the posterior means of all sides, weighted by their events, 2M components."""
    posterior = normal_wishart.posterior(sides, hyper)
    covariances = normal_wishart.mean_covariances(posterior)
    # One event more, so that a side without events keeps a weight and can get some in the next scan.
    return mixture_from(np.log1p(sides.counts), posterior.means, covariances)


def merge_components(one: Stats, other: Stats) -> Stats:
    """Return the statistics of the joined events of paired rows, about the centres of the first."""
    # Sums and scatters about another centre, from differences of the centres alone: about 0, the digits of a
    # narrow component would be lost.
    gaps = other.centres - one.centres
    counts = other.counts[:, None]
    cross = other.sums[:, :, None] * gaps[:, None, :]
    moved = cross + cross.transpose(0, 2, 1) + counts[:, :, None] * gaps[:, :, None] * gaps[:, None, :]
    return Stats(
        one.counts + other.counts,
        one.sums + other.sums + counts * gaps,
        one.scatters + other.scatters + moved,
        one.centres,
        log_likelihood=0.0,
    )


def rows_of(stats: Stats, rows: Ints | list[int] | slice) -> Stats:
    """Return the statistics of some components."""
    parts = (stats.counts[rows], stats.sums[rows], stats.scatters[rows], stats.centres[rows])
    return Stats(*parts, log_likelihood=0.0)


def concatenate(one: Stats, other: Stats) -> Stats:
    """Return the statistics of the components of both, in this order."""
    return Stats(
        np.concatenate((one.counts, other.counts)),
        np.concatenate((one.sums, other.sums)),
        np.concatenate((one.scatters, other.scatters)),
        np.concatenate((one.centres, other.centres)),
        log_likelihood=0.0,
    )


def with_rows(stats: Stats, rows: list[int], new: Stats) -> Stats:
    """Return the statistics, some components replaced by new ones."""
    counts, sums = stats.counts.copy(), stats.sums.copy()
    scatters, centres = stats.scatters.copy(), stats.centres.copy()
    counts[rows], sums[rows], scatters[rows], centres[rows] = new.counts, new.sums, new.scatters, new.centres
    return Stats(counts, sums, scatters, centres, stats.log_likelihood)
