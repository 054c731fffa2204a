"""Step changes of a signal: exact change points by dynamic programming over blocks.

A stretch between two change points is a straight line, so that slow drift makes no steps. The sum of the
costs of all stretches is minimised exactly by optimal partitioning (Jackson et al. 2005, IEEE Signal Process.
Lett. 12:105), the recursion that PELT prunes (Killick, Fearnhead and Eckley 2012, J. Am. Stat. Assoc.
107:1590). For at most some thousand blocks, it needs no pruning.
"""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Array

SHORTEST = 3
"""Blocks of a stretch: a line fits two blocks without error."""

PENALTY = 5.0
"""Cost of a stretch, in units of log B, for B blocks.

A stretch has three parameters (place, level, slope), for which BIC takes 3 log B. Medians have heavier tails
than the normal distribution of the cost, and the place is chosen among B, which 5 log B allows for.
"""


SIDE = 10
LEAST_JUMP = 4.0
"""Blocks on each side of a change point, and standard errors between the lines through them, for a jump."""


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


def jumps(times: Array, values: Array, changes: list[int], sd: float) -> list[int]:
    """Return the change points at which the signal jumps; bends, of a curved drift, are left out.

    The lines through the `SIDE` blocks before and after it differ there by more than `LEAST_JUMP` standard
    errors. The change point with the smallest ratio goes first, since its stretches then become one.
    """
    kept = list(changes)
    while kept:
        ends = [0, *kept, len(values)]
        ratios = []
        for k, change in enumerate(kept, 1):
            place = 0.5 * (times[change - 1] + times[change])
            left = slice(max(ends[k - 1], change - SIDE), change)
            right = slice(change, min(ends[k + 1], change + SIDE))
            (a, u), (b, v) = (_line_at(times[part] - place, values[part]) for part in (left, right))
            ratios.append(abs(a - b) / (sd * np.sqrt(u + v)))
        least = int(np.argmin(ratios))
        if ratios[least] > LEAST_JUMP:
            break
        del kept[least]
    return kept


def _line_at(x: Array, y: Array) -> tuple[float, float]:
    """Return a fitted line at 0, and the variance of this for values of variance 1."""
    sxx = float(((x - x.mean()) ** 2).sum())
    slope = float((x - x.mean()) @ y) / sxx if sxx > 0 else 0.0
    return float(y.mean() - slope * x.mean()), 1.0 / len(x) + (float(x.mean()) ** 2 / sxx if sxx > 0 else 0.0)
