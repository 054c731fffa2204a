"""The coarsened posterior: the likelihood to a power zeta below 1, so that many events count as fewer.

Cells are not Gaussian. The exact posterior of a mixture of normals therefore uses more and more components to
describe the shapes of populations as the number N of events grows. The coarsened posterior conditions on the
data being close to the model, not equal to it (Miller and Dunson 2019, J. Am. Stat. Assoc. 114:1113). With
relative entropy as the distance it is, to a good approximation, the power posterior::

    p(theta) prod_i f(x_i | theta)^zeta,    zeta = n_c / (n_c + N)

Few events count in full, and many events count together as at most n_c events. n_c is `model.coarseness`.

A sweep of the sampler draws the labels as usual, and everything else given their statistics times zeta. But
the first events of a component may count in full for its mean and covariance (`with_full_events`): among very
many events, a small population otherwise counts as one or two, too few for a place and a shape. A step of
Bayesian EM multiplies all statistics of its responsibilities, and is then EM for the mode of the power
posterior. docs/explanation/coarsening.md states which distribution the sampler has.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpmix.model.mixture import Array, SampleStats, Stats


def zeta_of(coarseness: float | None, n_events: int) -> float:
    """Return the power of the likelihood, n_c / (n_c + N); 1.0 for the exact posterior (None).

    Parameters
    ----------
    coarseness : float or None
        n_c, in events.
    n_events : int
        N.
    """
    return 1.0 if coarseness is None else coarseness / (coarseness + n_events)


def coarsened(stats: Stats, zeta: float) -> Stats:
    """Return the statistics in which each event counts `zeta` of an event.

    The log likelihood remains the log likelihood of all events.
    """
    # The exact posterior keeps its bits, and no array is copied.
    if zeta == 1.0:
        return stats
    own = stats.by_sample
    return Stats(
        zeta * stats.counts,
        zeta * stats.sums,
        zeta * stats.scatters,
        stats.centres,
        stats.log_likelihood,
        None if own is None else SampleStats(zeta * own.counts, zeta * own.sums),
    )


def with_full_events(stats: Stats, zeta: float, full_events: float) -> Stats:
    """Return the statistics for means and covariances, in which the first events of a component count fully.

    The n events of a component count as the larger of zeta n and min(n, `full_events`).

    Parameters
    ----------
    stats : Stats
        `coarsened` by `zeta`.
    zeta : float
    full_events : float
        0 returns the statistics as they are.
    """
    if zeta == 1.0 or full_events == 0.0:
        return stats
    return times(stats, full_factors(stats.counts, zeta, full_events))


def full_factors(counts: Array, zeta: float, full_events: float) -> Array:
    """Return the factors by which counts, `coarsened` by `zeta`, become those with full events.

    Parameters
    ----------
    counts : float64 of any shape
    zeta, full_events : float
    """
    with np.errstate(divide="ignore"):  # a component without events has only zeros
        factors: Array = np.minimum(np.maximum(full_events / counts, 1.0), 1.0 / zeta)
    return factors


def times(stats: Stats, factors: Array) -> Stats:
    """Return the statistics of each component times a factor of its own, float64 [K]."""
    return replace(
        stats,
        counts=factors * stats.counts,
        sums=factors[:, None] * stats.sums,
        scatters=factors[:, None, None] * stats.scatters,
    )
