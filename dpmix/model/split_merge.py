"""Split-merge moves: Metropolis moves that give a component's events to two, or those of two to one.

Block Gibbs moves one event at a time: a component that should be two, or two that should be one, may stay as
they are for thousands of sweeps. Here, once in some sweeps, the components are paired at random. Of a pair
with one empty component, the other is to be **split** into both; a pair without one is to be **merged**. The
pairing does not look at the data, so a split and the merge that undoes it are equally often tried, whatever
the truncation and the order of the sticks.

How a component is split (after Jain and Neal 2004, J. Comput. Graph. Stat. 13:158, and 2007, Bayesian Anal.
2:445, with all events of a scan at once): two normals are laid at random into the normal of the events of
both components, every event draws one of them, and the two are refitted, some times: the launch. Last, every
event draws its side given the launch, and that draw is the proposal, of a probability q that is known. A
merge needs the q of the split that undoes it: the launch is made in the same way, from the events of both,
and q is the probability of the sides that they are on. With labels z, p(z) their probability given alpha and
m(.) the marginal likelihood of a component's events, parameters and sticks being integrated out, a split is
accepted with probability min(1, p(z') m(one) m(other) / (2 p(z) m(both) q)), and a merge with that of the
inverse. The 2: a merge gives all events to either of the two components, a split always comes from the one
that has them.

As q is at most 1, a merge that would be refused even then needs no pass over the events; most pairs lie so
far apart. Moves of a round are made one after the other, but as their events are different ones, the
proposals of all come from the same passes.

K components, M pairs, D channels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpmix.model import gibbs
from dpmix.model.mixture import Array, Hyperparameters, Ints, Mixture, Stats, mixture_from
from dpmix.model.streams import Key, Step, Stream


class SplitAssignment(NamedTuple):
    """Which labelled events `Engine.divide` deals out, and how.

    Attributes
    ----------
    pairs : int32 [K]
        The pair, 0 to P - 1, to which the events of each component belong; -1 for those that are left alone.
    sides : int8 [K]
        The side of the pair, 0 or 1, that all events of a component are given; -1 where each draws its own.
    word : int
        Which of the words 1, 2 and 3 behind an event's uniform its side is drawn by.
    """

    pairs: npt.NDArray[np.int32]
    sides: npt.NDArray[np.int8]
    word: int


Divide = Callable[[SplitAssignment, Mixture], tuple[Stats, Array]]
"""`dpmix.engines.base.Engine.divide`, for the chain and the sweep in question."""

LOG_2 = float(np.log(2.0))
LAUNCH_SCANS = 2  # with 1, separated groups took more sweeps to find; with 3, as many
SPREAD = 0.7  # of the two normals that are laid in, about the mean: standard deviations


class Moves(NamedTuple):
    """Numbers of the moves that were accepted."""

    splits: int
    merges: int


@dataclass(frozen=True)
class _Pairs:
    """Components that are tried together: the first holds events, the second does unless it is a split."""

    first: Ints
    second: Ints
    is_split: npt.NDArray[np.bool_]
    both: Stats  # of the events of the two

    def some(self, chosen: list[int]) -> _Pairs:
        parts = (self.first[chosen], self.second[chosen], self.is_split[chosen])
        return _Pairs(*parts, _rows(self.both, chosen))


class _Proposal(NamedTuple):
    """Sides of a pair's events: statistics [2], log marginal likelihood, log probability of drawing them."""

    sides: Stats
    log_marginal: float
    log_probability: float


def round_of(
    divide: Callable[[SplitAssignment, Mixture, Key], tuple[Stats, Array]], key: Key
) -> gibbs.Regroup:
    """A round for one sweep of one chain, with the random numbers of that sweep.

    Parameters
    ----------
    divide : callable
        `dpmix.engines.base.Engine.divide` of the engine that drew the labels.
    key : Key
        That they were drawn with.

    Returns
    -------
    callable
        For `dpmix.model.gibbs.sweep`.
    """
    rng = Stream(*key).step(Step.SPLIT_MERGE)

    def of_sweep(stats: Stats, hyper: Hyperparameters, alpha: float) -> Stats:
        return regroup(stats, hyper, alpha, lambda split, mixture: divide(split, mixture, key), rng)[0]

    return of_sweep


def regroup(
    stats: Stats, hyper: Hyperparameters, alpha: float, divide: Divide, rng: np.random.Generator
) -> tuple[Stats, Moves]:
    """One round of split-merge moves over all components, which leaves the posterior of the labels as it is.

    Parameters
    ----------
    stats : Stats
        Statistics of the labelled events.
    hyper : Hyperparameters
    alpha : float
    divide : callable
        Deals out the events that these are the statistics of.
    rng : numpy.random.Generator

    Returns
    -------
    stats : Stats
        Statistics by the labels that the moves leave.
    moves : Moves

    Raises
    ------
    numpy.linalg.LinAlgError
        If a component's scatter is not positive definite to float64 (collinear channels).
    """
    n_components = len(stats.counts)
    pairs = _pairs(stats, rng)
    levels = -rng.standard_exponential(len(pairs.first))  # a move is accepted if its log ratio is above
    of_both = gibbs.log_marginals(pairs.both, hyper)
    apart = gibbs.log_marginals(stats, hyper)
    of_parts = apart[pairs.first] + apart[pairs.second]
    of_labels = log_labels(stats.counts, alpha)
    each, sizes = np.arange(len(levels)), pairs.both.counts

    def promises() -> npt.NDArray[np.bool_]:
        """Whether each move may be accepted, for all that is known without a pass; [M]."""
        merged = np.tile(stats.counts, (len(each), 1))
        merged[each, pairs.first], merged[each, pairs.second] = sizes, 0.0
        gains = log_labels(merged, alpha) - of_labels
        return np.where(pairs.is_split, sizes > 1, of_both - of_parts + LOG_2 + gains > levels)

    may = promises()
    promising = np.flatnonzero(may).tolist()
    proposals = dict(
        zip(promising, _propose(pairs.some(promising), n_components, hyper, divide, rng), strict=True)
    )
    splits = merges = 0
    for m, level in enumerate(levels):
        if not may[m]:
            continue
        if m not in proposals:  # a move made before it has changed that
            (proposals[m],) = _propose(pairs.some([m]), n_components, hyper, divide, rng)
        sides, of_sides, log_q = proposals[m]
        if pairs.is_split[m]:
            after = sides
            ratio = of_sides - of_both[m] - LOG_2 - log_q
        else:
            after = _beside_nothing(_rows(pairs.both, [m]))
            ratio = of_both[m] - of_parts[m] + LOG_2 + log_q
        of_new_labels = log_labels(_changed(stats.counts, pairs, m, after.counts), alpha)
        ratio += of_new_labels - of_labels
        if ratio > level and not (pairs.is_split[m] and after.counts.min() == 0.0):
            stats = _replaced(stats, [pairs.first[m], pairs.second[m]], after)
            of_labels = of_new_labels
            may = promises()
            splits += bool(pairs.is_split[m])
            merges += not pairs.is_split[m]
    return stats, Moves(splits, merges)


def log_labels(counts: Array, alpha: float) -> Array:
    """Log probability of labels with these counts, float64 [..., K], given alpha, the sticks integrated out.

    The product of B(1 + n_j, alpha + sum_{r>j} n_r) / B(1, alpha) over j < K, in which most gamma functions
    cancel.
    """
    left = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]  # n_j and all after it
    gammas = gammaln(1.0 + counts[..., :-1]).sum(axis=-1) + gammaln(alpha + left[..., -1])
    sticks = np.log(alpha / (alpha + left[..., :-1])).sum(axis=-1)
    logs: Array = gammas - gammaln(alpha + left[..., 0]) + sticks
    return logs


def _changed(counts: Array, pairs: _Pairs, m: int, after: Array) -> Array:
    """Counts where the components of a pair have others."""
    changed = counts.copy()
    changed[[pairs.first[m], pairs.second[m]]] = after
    return changed


def _pairs(stats: Stats, rng: np.random.Generator) -> _Pairs:
    """All components in pairs at random; those without events are left out, and one where K is odd."""
    n_components = len(stats.counts)
    pairs = rng.permutation(n_components)[: n_components // 2 * 2].reshape(-1, 2)
    held = stats.counts[pairs] > 0
    pairs = np.where(held[:, :1], pairs, pairs[:, ::-1])[held.any(axis=1)]
    first, second = pairs.T
    both = merge_components(_rows(stats, first), _rows(stats, second))
    return _Pairs(first, second, stats.counts[second] == 0.0, both)


def _propose(
    pairs: _Pairs, n_components: int, hyper: Hyperparameters, divide: Divide, rng: np.random.Generator
) -> list[_Proposal]:
    """Sides for the events of each pair: drawn for a split, those they are on for a merge."""
    n_pairs = len(pairs.first)
    if n_pairs == 0:
        return []
    of_component = np.full(n_components, -1, np.int32)
    of_component[pairs.first] = of_component[pairs.second] = np.arange(n_pairs)
    sides = np.full(n_components, -1, np.int8)
    mixture = init_split(pairs.both, hyper, rng)
    for word in range(1, LAUNCH_SCANS + 1):
        mixture = _refitted(divide(SplitAssignment(of_component, sides, word), mixture)[0], hyper)
    sides[pairs.first[~pairs.is_split]] = 0
    sides[pairs.second[~pairs.is_split]] = 1
    stats, log_probabilities = divide(SplitAssignment(of_component, sides, LAUNCH_SCANS + 1), mixture)
    marginals = gibbs.log_marginals(stats, hyper).reshape(-1, 2).sum(axis=1)
    numbers = zip(marginals.tolist(), log_probabilities.tolist(), strict=True)
    return [_Proposal(_rows(stats, slice(2 * m, 2 * m + 2)), *found) for m, found in enumerate(numbers)]


def init_split(both: Stats, hyper: Hyperparameters, rng: np.random.Generator) -> Mixture:
    """Two normals of the prior's mean covariance, on either side of each mean, [2M]."""
    posterior = gibbs.posterior(both, hyper)
    roots = np.linalg.cholesky(gibbs.mean_covariances(posterior))
    away = SPREAD * np.einsum("mij,mj->mi", roots, rng.standard_normal(posterior.means.shape))
    means = np.stack((posterior.means - away, posterior.means + away), axis=1).reshape(-1, away.shape[1])
    covariances = np.broadcast_to(hyper.phi, (len(means), *hyper.phi.shape))
    return mixture_from(np.zeros(len(means)), means, covariances)


def _refitted(sides: Stats, hyper: Hyperparameters) -> Mixture:
    """The normals of the posterior means of all sides, [2M], weighted by their events within a pair."""
    posterior = gibbs.posterior(sides, hyper)
    return mixture_from(np.log1p(sides.counts), posterior.means, gibbs.mean_covariances(posterior))


def _rows(stats: Stats, rows: Ints | list[int] | slice) -> Stats:
    """Some components' statistics."""
    parts = (stats.counts[rows], stats.sums[rows], stats.scatters[rows], stats.centres[rows])
    return Stats(*parts, log_likelihood=0.0)


def merge_components(one: Stats, other: Stats) -> Stats:
    """Statistics of the events of two, component by component, about the centres of the first."""
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


def _beside_nothing(one: Stats) -> Stats:
    """The statistics of one component, and of one without events after it."""
    empty = gibbs.no_events(1, one.sums.shape[1])
    return Stats(
        np.concatenate((one.counts, empty.counts)),
        np.concatenate((one.sums, empty.sums)),
        np.concatenate((one.scatters, empty.scatters)),
        np.concatenate((one.centres, empty.centres)),
        log_likelihood=0.0,
    )


def _replaced(stats: Stats, components: list[int], by: Stats) -> Stats:
    """Statistics with those of some components replaced."""
    replaced = copy.deepcopy(stats)
    for name in ("counts", "sums", "scatters", "centres"):
        getattr(replaced, name)[components] = getattr(by, name)
    return replaced
