"""Step changes of a signal: change points, kept if a smooth signal does not explain them.

The first are found by dynamic programming over blocks. A stretch between two change points is a straight
line, so that slow drift makes no steps. The sum of the costs of all stretches is minimised exactly
(kernels/cpu/partition.hpp: the recursion of Jackson et al. 2005, IEEE Signal Process. Lett. 12:105, with the
bound of PELT, Killick, Fearnhead and Eckley 2012, J. Am. Stat. Assoc. 107:1590, for groups of starts). Curved
drift also breaks lines, so each change point is then compared with a Gaussian process that explains the same
values without it.

B blocks, C change points, G points of the grid of parameters.
"""

from __future__ import annotations

import itertools

import numpy as np

from dpmix.drift.averages import average, group_sizes, group_starts
from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.exact import whiten
from dpmix.drift.fit import SignalPrior
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Ints

SHORTEST, MOST_SHORTEST, SHARE = 3, 30, 3.0 / 1024.0
"""Blocks of a stretch: at least three, because a line fits two blocks without error, and at least this share
of all blocks, up to 30. Of very many medians between two populations, some that are far off lie side by side.
"""

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

MOST_BLOCKS = 4_096
"""More blocks are averaged in groups for the evidence; next to a change point, the groups are smaller."""

WITHIN = 16
"""Blocks on each side of a change point that show its jump."""

MOST_CHANGES = 64
"""More change points are not compared: those with the smallest jumps are left out first. The work of the
evidence grows with the cube of their number."""

VARIANCES, NUGGETS = (-1.5, -0.7, 0.1, 0.9, 1.7, 2.5), (0.0, 1.5)
RANGES = (-4.5, -3.0, -1.5, -0.5, 0.5)
"""Grid over the logs of the parameters, in standard deviations of their priors from the centres. Down to a
five-hundredth of the recording in the range, so that bends of a fast signal do not count as steps."""


def noise_sd(values: Array, errors: Array) -> float:
    """Return the standard deviation of single values about a smooth signal.

    This is the larger one of the median of the known errors, and the root mean square of second
    differences. These are cut at ten robust standard deviations, so that steps and bubbles hardly change it.
    """
    if len(values) < 3:
        return float(np.median(errors))
    # Second differences do not see a straight drift; their variance is 1 + 4 + 1 times the variance of a
    # value.
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


def change_points(values: Array, sd: float) -> list[int]:
    """Return the first block of each stretch but the first, in ascending order.

    A line is one over the numbers of the blocks.

    Parameters
    ----------
    values : float64 [B]
        In order of time.
    sd : float
        Standard deviation of a value.
    """
    n = len(values)
    shortest = int(np.clip(SHARE * n, SHORTEST, MOST_SHORTEST))
    last = np.empty(n + 1, np.int64)
    _cpu.best_lines(np.ascontiguousarray(values / sd), PENALTY * float(np.log(max(n, 2))), shortest, last)
    found, stop = [], int(last[n])
    while stop > 0:
        found.append(stop)
        stop = int(last[stop])
    return found[::-1]


def keep_steps(
    times: Array, values: Array, errors: Array, changes: list[int], correlation: Correlation = "matern32"
) -> list[int]:
    """Return the change points at which the signal jumps; bends, of a curved drift, are left out.

    The values are a constant, a Gaussian process and a jump at each change point. The evidence is the density
    of the values with all of these integrated out, and summed over a grid of the parameters of the covariance
    with their prior (`SignalPrior.weak`). The change point that raises the evidence least is removed first,
    until each raises it by more than `EVIDENCE`.

    Parameters
    ----------
    times, values, errors : float64 [B]
        Times ascend; values and their standard errors in units of the channel's spread.
    changes : list of int
        First block of each stretch but the first, ascending.
    correlation
        As in `dpmix.drift.covariance`.
    """
    changes = _largest_jumps(values, changes)
    if not changes:
        return []
    log_weights, products = _products(times, values, errors, changes, correlation)
    kept = list(range(len(changes)))
    now = _log_evidence(log_weights, products, kept)
    while kept:
        without = [_log_evidence(log_weights, products, [k for k in kept if k != one]) for one in kept]
        # One at a time and the weakest first: of two change points on one bend, either alone may be needed.
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
    prior = SignalPrior.weak(float(times[-1] - times[0]), float(np.median(errors)))
    steps = np.arange(len(values))[:, None] >= np.array(changes)
    # One whitening serves all sets of steps: their evidence needs only products of these columns.
    columns = np.column_stack([values - values.mean(), np.ones(len(values)), steps])
    groups = _groups(len(values), changes)
    sizes = group_sizes(len(values), groups)
    times, known, columns = (average(part, groups) for part in (times, errors**2, columns))
    log_weights, products = [], []
    for z in map(np.array, itertools.product(VARIANCES, RANGES, NUGGETS)):
        own = Covariance(correlation, *np.exp(prior.centres + z * prior.sds).tolist())
        log_det, white = whiten(times, (own.nugget + known) / sizes, own, columns)
        log_weights.append(-0.5 * (z @ z) - 0.5 * log_det)
        products.append(white.T @ white)
    return np.array(log_weights), np.array(products)


def _groups(n: int, changes: list[int]) -> Ints:
    """Return the starts of groups of blocks, small ones next to change points, int64."""
    starts = group_starts(n, MOST_BLOCKS)
    if len(starts) == n:
        return starts
    away = 2 ** np.arange(int(starts[1]).bit_length())
    # An average over a change point would blur the jump that is being tested.
    near = np.add.outer(changes, np.concatenate([-away, [0], away])).ravel()
    return np.union1d(starts, near[(near > 0) & (near < n)])


def _largest_jumps(values: Array, changes: list[int]) -> list[int]:
    """Return the `MOST_CHANGES` change points with the largest jumps, in units of their standard errors.

    A jump is the difference of the means of up to `WITHIN` blocks before and after.
    """
    if len(changes) <= MOST_CHANGES:
        return changes
    jumps = []
    for first, change, stop in zip([0, *changes], changes, [*changes[1:], len(values)], strict=False):
        before, after = (
            values[max(first, change - WITHIN) : change],
            values[change : min(stop, change + WITHIN)],
        )
        error = (1.0 / len(before) + 1.0 / len(after)) ** 0.5
        jumps.append(abs(after.mean() - before.mean()) / error)
    return [changes[k] for k in np.sort(np.argsort(jumps)[-MOST_CHANGES:])]


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
