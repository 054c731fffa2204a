"""Uncertainty of proportions from the shape of populations.

The events between two populations belong to either, by the shape that both are assumed to have there. The
draws of the mixture vary much less than reasonable shapes differ: the tails of a population come from few
components, which all draws share. So intervals from draws alone are too narrow, and the more so the more
events there are ([measured](../../docs/benchmarks/agreement.md#intervals-of-proportions)). Two terms widen
them. Both come from a second answer, in which each population has a single multivariate t distribution.

1. **The difference between the answers** is the standard deviation of an error that all populations share.
   With p the proportions of a draw, and r the ratio of a population's proportion by t distributions to that
   by the mixture, a draw becomes

       p r^e / sum(p r^e),   e ~ N(0, 1), one e for each draw,

   on the geometric path between the two answers and beyond both.
2. **Overlap.** Both answers miss a tail that only one population has on one side, as skewed ones do: its
   events there are taken for the neighbour's. With r_np the memberships of event n by t distributions, two
   populations p and q exchange u_pq = mean_n r_np r_nq of the events in either direction, and these cancel
   if the memberships are right. The standard deviation of what remains is taken to be u_pq itself:

       p_p + u_pq e_pq,   p_q - u_pq e_pq,   e_pq ~ N(0, 1), one e_pq for each pair and draw.

   Samples with other proportions have another overlap, by u_pq = b_pq sqrt(p_p p_q) with the same b_pq.

The posterior mean is the mixture's, unchanged. Such terms for the difference between a model and what it
describes are a discrepancy (Kennedy and O'Hagan 2001, J. R. Stat. Soc. B 63:425).

T draws, S samples, M events, D channels, P populations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations.events import proportions as mixture

FREEDOM = 4.0  # degrees of freedom of the t distributions; 3 to 10 differ little
STEPS, WEIGHT_STEPS = 8, 60  # iterations of the fit of a t distribution, and of the proportions
MOST = 2.0  # largest ratio, and inverse of the smallest one; also of a proportion to itself by overlap
TINY = float(np.finfo(np.float64).tiny)
RIDGE = 1e-6  # added to a variance, relative to the variance of all events


class Borders(NamedTuple):
    """Borders between populations, by t distributions.

    Attributes
    ----------
    ratios : float64 [P]
        Proportions by one t distribution for each population, relative to the mixture's.
    overlaps : float64 [P, P]
        b_pq: share of all events that are of one population and taken for the other, if memberships are
        right, divided by the geometric mean of their proportions. Symmetric, 0 on the diagonal.
    """

    ratios: Array
    overlaps: Array

    @classmethod
    def none(cls, n_populations: int) -> Borders:
        """Return the borders of populations that do not touch."""
        return cls(np.ones(n_populations), np.zeros((n_populations, n_populations)))

    def overlap(self, proportions: Array) -> Array:
        """Return the share of the events of each population that are taken for others, float64 [P]."""
        root = np.sqrt(np.maximum(proportions, TINY))
        share: Array = self.overlaps @ root / root
        return share


def estimate_proportions(
    counts: Ints, seed: int, prior: Array | None, values: Floats, populations: Ints | npt.NDArray[np.int32]
) -> tuple[Array, Array, Borders]:
    """Estimate each sample's proportions; the draws vary by memberships, counting and shapes.

    Parameters
    ----------
    counts, seed, prior
        As in `dpmix.populations.events.proportions.posterior`.
    values : float32 [N, D]
        All events, on any scale.
    populations : int [N]
        Most probable population of each, -1 for events that are left out.

    Returns
    -------
    draws : float64 [T, S, P]
        For the ends of intervals.
    mean : float64 [S, P]
        Posterior mean, by the mixture.
    borders : Borders
        Result of `compare_shapes`; `Borders.none` for a single draw, which has no interval.
    """
    counts = np.ascontiguousarray(counts)  # sums depend on the layout
    drawn = mixture.posterior(counts, seed, prior)
    mean = mixture.posterior_mean(counts, prior)
    # One draw (Bayesian EM) has no interval to widen.
    if len(counts) == 1:
        return drawn, mean, Borders.none(counts.shape[2])
    rows = np.flatnonzero(populations >= 0)
    some, each = mixture.representatives(populations[rows].astype(np.int64), counts.shape[2])
    rows = rows[some]
    by_mixture = counts.sum(axis=(0, 1)) / counts.sum()
    borders = compare_shapes(values[rows], populations[rows], each, by_mixture)
    return widen(drawn, borders, Stream(seed, 1, 1).step(Step.PROPORTIONS)), mean, borders


def compare_shapes(
    values: Floats, populations: npt.NDArray[np.integer], each: Array, proportions: Array
) -> Borders:
    """Compare proportions with those by one t distribution for each population.

    Location and scatter are maximum likelihood estimates from the population's own events (Liu and Rubin
    1995, Stat. Sinica 5:19), with D + 2 events of the mean scatter in addition. Proportions are then fitted
    by EM with these shapes.

    Parameters
    ----------
    values : float32 [M, D]
        Events that represent all (`dpmix.populations.events.proportions.representatives`), on any scale.
    populations : int [M]
        Population of each.
    each : float64 [M]
        Number of events that each represents.
    proportions : float64 [P]
        By the mixture. Populations without events have ratio 1 and no overlap.
    """
    x, counts = values.astype(np.float64), np.bincount(populations, each, len(proportions))
    there = counts > 0.0
    borders = Borders.none(len(proportions))
    if there.sum() < 2:
        return borders
    # The scatter of a population of few events is singular; D + 2 events of the mean scatter make it regular,
    # and the ridge does where a channel is constant within all populations.
    pooled = np.diag(RIDGE * x.var(axis=0) + TINY)
    for p in np.flatnonzero(there):
        own = x[populations == p]
        pooled += (own - own.mean(axis=0)).T @ (own - own.mean(axis=0)) / len(x)
    logs = np.array([_log_density(x, x[populations == p], pooled) for p in np.flatnonzero(there)])
    # Only ratios between populations count at an event, and far events would underflow.
    logs -= logs.max(axis=0)
    densities, weights = np.exp(logs), counts[there] / each.sum()
    for _ in range(WEIGHT_STEPS):
        terms = weights[:, None] * densities
        weights = terms @ (each / terms.sum(axis=0)) / each.sum()
    given = proportions[there] / proportions[there].sum()
    # A population that t distributions explain away altogether would have a ratio of 0, and its draws would
    # be 0 or all.
    ratios = weights / np.maximum(given, TINY)
    borders.ratios[there] = np.clip(ratios, 1.0 / MOST, MOST)
    memberships = terms / terms.sum(axis=0)
    exchanged, root = memberships * each @ memberships.T / each.sum(), np.sqrt(weights)
    np.fill_diagonal(exchanged, 0.0)
    borders.overlaps[np.ix_(there, there)] = exchanged / np.maximum(np.outer(root, root), TINY)
    return borders


def widen(proportions: Array, borders: Borders, random: np.random.Generator) -> Array:
    """Return draws of proportions that also vary by the shape of populations, float64 [T, S, P].

    Parameters
    ----------
    proportions : float64 [T, S, P]
    borders : Borders
    random : numpy Generator
    """
    moved = proportions * borders.ratios ** random.standard_normal(len(proportions))[:, None, None]
    root = np.sqrt(np.maximum(proportions.mean(axis=0), TINY))
    n_populations = proportions.shape[2]
    for t in range(len(moved)):
        # One error for each pair: what one of the two gains, the other loses.
        errors = np.triu(random.standard_normal((n_populations, n_populations)), 1)
        logs = root @ (borders.overlaps * (errors - errors.T)).T / root
        moved[t] *= np.exp(np.clip(logs, -np.log(MOST), np.log(MOST)))
    scaled: Array = moved / moved.sum(axis=-1, keepdims=True)
    return scaled


def _log_density(x: Array, own: Array, pooled: Array) -> Array:
    """Return the log density of events [M, D] by the t distribution of some, up to a constant."""
    n, dim = own.shape
    u = np.ones(n)
    for _ in range(STEPS):
        centre = u @ own / u.sum()
        scatter = ((own - centre) * u[:, None]).T @ (own - centre)
        root = np.linalg.cholesky((scatter + (dim + 2) * pooled) / (n + dim + 2))
        u = (FREEDOM + dim) / (FREEDOM + _squares(own - centre, root))
    squares = _squares(x - centre, root)
    log_density: Array = -np.log(np.diag(root)).sum() - (FREEDOM + dim) / 2 * np.log1p(squares / FREEDOM)
    return log_density


def _squares(differences: Array, root: Array) -> Array:
    """Return the squared Mahalanobis length of differences [M, D], float64 [M]."""
    squares: Array = (solve_triangular(root, differences.T, lower=True) ** 2).sum(axis=0)
    return squares
