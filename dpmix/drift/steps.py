"""Step changes of a signal: change points, kept if a smooth signal does not explain them.

The first are found by dynamic programming over blocks. A stretch between two change points is a straight
line, so that slow drift makes no steps. The sum of the costs of all stretches is minimised exactly by optimal
partitioning (Jackson et al. 2005, IEEE Signal Process. Lett. 12:105), the recursion that PELT prunes
(Killick, Fearnhead and Eckley 2012, J. Am. Stat. Assoc. 107:1590). For at most some thousand blocks, it needs
no pruning. Curved drift also breaks lines, so each change point is then compared with a Gaussian process that
explains the same values without it.

B blocks, C change points, G points of the grid of parameters.
"""

from __future__ import annotations

import itertools

import numpy as np

from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.fit import Prior
from dpmix.model.mixture import Array

SHORTEST = 3
"""Blocks of a stretch: a line fits two blocks without error."""

PENALTY = 5.0
"""Cost of a stretch, in units of log B, for B blocks.

A stretch has three parameters (place, level, slope), for which BIC takes 3 log B. Medians have heavier tails
than the normal distribution of the cost, and the place is chosen among B, which 5 log B allows for.
"""


OUTLIER = 3.0
"""Standard deviations between a value and the median of three: the most that counts."""

EVIDENCE = 3.0
"""Nats by which a change point has to raise the log evidence: a Bayes factor of 20."""

JUMP_SD, MEAN_SD = 1.0, 10.0
"""Standard deviations of the normal priors of a jump and of the mean, in units of the channel's spread."""

MOST_BLOCKS = 512
"""More blocks are averaged in groups for the evidence, whose work grows with the cube of their number."""

VARIANCES, RANGES, NUGGETS = (-1.5, -0.7, 0.1, 0.9, 1.7, 2.5), (-1.5, -0.5, 0.5), (0.0, 1.5)
"""Grid over the logs of the parameters, in standard deviations of their priors from the centres."""


def noise_sd(values: Array, errors: Array) -> float:
    """Return the standard deviation of single values about a smooth signal.

    This is the larger one of the median of the known errors, and the root mean square of second
    differences. These are cut at ten robust standard deviations, so that steps and bubbles hardly change it.
    """
    if len(values) < 3:
        return float(np.median(errors))
    second = np.abs(np.diff(values, 2)) / np.sqrt(6.0)
    cut = 10.0 * max(1.4826 * np.median(second), np.median(errors))
    return float(max(np.median(errors), np.sqrt((np.minimum(second, cut) ** 2).mean())))


def without_outliers(values: Array, sd: float) -> Array:
    """Return the values, those far from the median of three moved towards it, float64 [B].

    The median of a block between two populations can lie in either. A single such block is no step; of a
    bubble, at least two blocks differ.
    """
    from scipy.ndimage import median_filter

    middle = median_filter(values, 3, mode="nearest")
    return np.clip(values, middle - OUTLIER * sd, middle + OUTLIER * sd)


def change_points(times: Array, values: Array, sd: float) -> list[int]:
    """Return the first block of each stretch but the first, in ascending order.

    Parameters
    ----------
    times, values : float64 [B]
        Times ascend.
    sd : float
        Standard deviation of a value.
    """
    n = len(values)
    penalty = PENALTY * np.log(max(n, 2))
    x = (times - times[0]) / max(times[-1] - times[0], 1e-300)
    y = (values - values.mean()) / sd
    sums = [np.concatenate(([0.0], np.cumsum(column))) for column in (np.ones(n), x, x * x, y, x * y, y * y)]
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    best[0] = -penalty
    for stop in range(SHORTEST, n + 1):
        starts = np.arange(stop - SHORTEST + 1)
        totals = best[starts] + _cost(*(total[stop] - total[starts] for total in sums)) + penalty
        last[stop] = np.argmin(totals)
        best[stop] = totals[last[stop]]
    found, stop = [], n
    while stop > 0 and last[stop] > 0:
        found.append(int(last[stop]))
        stop = int(last[stop])
    return found[::-1]


def _cost(n: Array, x: Array, xx: Array, y: Array, xy: Array, yy: Array) -> Array:
    """Return the sums of squares about the lines fitted to stretches, from sums over them."""
    sxx, sxy, syy = xx - x * x / n, xy - x * y / n, yy - y * y / n
    slope = np.where(sxx > 1e-12 * np.maximum(xx, 1e-12), sxy**2 / np.maximum(sxx, 1e-300), 0.0)
    return np.maximum(syy - slope, 0.0)


def keep_steps(
    times: Array, values: Array, errors: Array, changes: list[int], correlation: Correlation = "matern32"
) -> list[int]:
    """Return the change points at which the signal jumps; bends, of a curved drift, are left out.

    The values are a constant, a Gaussian process and a jump at each change point. The evidence is the density
    of the values with all of these integrated out, and summed over a grid of the parameters of the covariance
    with their prior (`Prior.weak`). The change point that raises the evidence least is removed first, until
    each raises it by more than `EVIDENCE`.

    Parameters
    ----------
    times, values, errors : float64 [B]
        Times ascend; values and their standard errors in units of the channel's spread.
    changes : list of int
        First block of each stretch but the first, ascending.
    correlation
        As of `dpmix.drift.covariance`.
    """
    if not changes:
        return []
    log_weights, products = _products(times, values, errors, changes, correlation)
    kept = list(range(len(changes)))
    now = _log_evidence(log_weights, products, kept)
    while kept:
        without = [_log_evidence(log_weights, products, [k for k in kept if k != one]) for one in kept]
        if now - max(without) > EVIDENCE:
            break
        now = max(without)
        del kept[without.index(now)]
    return [changes[k] for k in kept]


def _products(
    times: Array, values: Array, errors: Array, changes: list[int], correlation: Correlation
) -> tuple[Array, Array]:
    """Return what the evidence of any change points depends on, for each point of the grid.

    Returns
    -------
    log_weights : float64 [G]
        Log prior, and log density of whitened values at 0.
    products : float64 [G, C + 2, C + 2]
        Inner products of the whitened values, the constant and the steps.
    """
    from scipy.linalg import solve_triangular

    prior = Prior.weak(float(times[-1] - times[0]), float(np.median(errors)))
    steps = np.arange(len(values))[:, None] >= np.array(changes)
    columns = np.column_stack([values - values.mean(), np.ones(len(values)), steps])
    first = np.arange(0, len(values), -(-len(values) // MOST_BLOCKS))
    sizes = np.diff(first, append=len(values))
    columns = np.add.reduceat(columns, first) / sizes[:, None]
    times, known = (np.add.reduceat(part, first) / sizes for part in (times, errors**2))
    log_weights, products = [], []
    for z_range in RANGES:
        duration = float(np.exp(prior.centres[1] + z_range * prior.sds[1]))
        smooth = Covariance(correlation, 1.0, duration, 0.0).between(times, times)
        for z_variance, z_nugget in itertools.product(VARIANCES, NUGGETS):
            z = np.array([z_variance, z_range, z_nugget])
            variance, _, nugget = np.exp(prior.centres + z * prior.sds)
            covariance = variance * smooth
            covariance[np.diag_indices_from(covariance)] += (nugget + known) / sizes
            root = np.linalg.cholesky(covariance)
            white = solve_triangular(root, columns, lower=True, check_finite=False)
            log_weights.append(-0.5 * (z @ z) - np.log(np.diag(root)).sum())
            products.append(white.T @ white)
    return np.array(log_weights), np.array(products)


def _log_evidence(log_weights: Array, products: Array, steps: list[int]) -> float:
    """Return the log evidence of some of the steps, up to a constant."""
    from scipy.special import logsumexp

    effects = [1, *(2 + step for step in steps)]
    precisions = np.array([MEAN_SD**-2.0, *(JUMP_SD**-2.0 for _ in steps)])
    posterior = products[:, effects][:, :, effects] + np.diag(precisions)
    linear = products[:, effects, 0]
    explained = (linear * np.linalg.solve(posterior, linear[..., None])[..., 0]).sum(axis=1)
    log_dets = np.linalg.slogdet(posterior)[1] - np.log(precisions).sum()
    return float(logsumexp(log_weights - 0.5 * (products[:, 0, 0] - explained + log_dets)))
