"""Rules by which other tools find bad stretches of a recording, written plainly, as peers of `dpmix drift`.

They follow the papers and the documented defaults, not the programs:

- flowAI (Monaco et al. 2016, Bioinformatics 32:2473). Signal: medians of bins of 500 events, in each channel
  at most three change points in mean and variance by binary segmentation, with a penalty of 500 for each;
  the longest stretch that is stable in all fluorescence channels is kept. Flow rate: counts in bins of time
  that the generalised ESD test (Rosner 1983, Technometrics 25:165) calls outliers at the level 0.01. Here a
  bin of time has 50 events on average, where flowAI takes a tenth of a second. The third rule, of values at
  the limits of a detector, is about single events and left out.
- PeacoQC (Emmaneel et al. 2022, Cytometry A 101:325). Bins of 500 events; a bin is bad if it is more than 6
  median absolute deviations from the median of the bins in any channel. PeacoQC follows the peaks of the
  density and smooths them slightly; here it is the median of the bin. The isolation tree is left out.

All take events on a transformed scale, float64 [N, D], in order of time.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

Array = np.ndarray

BIN = 500
PENALTY, MOST_CHANGES = 500.0, 3
ESD_LEVEL, ESD_MOST = 0.01, 0.1
RATE_EVENTS = 50
MADS = 6.0


def bin_medians(events: Array) -> tuple[Array, Array]:
    """Return medians [B, D] of bins of events, and the bin of each event [N]."""
    count = max(len(events) // BIN, 1)
    starts = np.linspace(0, len(events), count + 1).astype(np.int64)
    medians = np.array([np.median(events[one:other], axis=0) for one, other in itertools.pairwise(starts)])
    return medians, np.repeat(np.arange(count), np.diff(starts))


# ------------------------------------------------------------------------------------------- flowAI


def change_points(values: Array, penalty: float) -> list[int]:
    """Return at most three change points in mean and variance, by binary segmentation."""

    def cost(part: Array) -> float:
        return len(part) * float(np.log(max(part.var(), 1e-12)))

    def best(start: int, stop: int) -> tuple[float, int]:
        gains = [
            (cost(values[start:stop]) - cost(values[start:at]) - cost(values[at:stop]), at)
            for at in range(start + 2, stop - 1)
        ]
        return max(gains, default=(-np.inf, start))

    found: list[int] = []
    while len(found) < MOST_CHANGES:
        gain, at = max(best(*ends) for ends in itertools.pairwise([0, *sorted(found), len(values)]))
        if gain <= penalty:
            break
        found.append(at)
    return sorted(found)


def bic(n_events: int) -> float:
    """Return a penalty like BIC's, for the place, mean and variance of a stretch."""
    return 3.0 * float(np.log(n_events / BIN))


def flowai_signal(events: Array, penalty: float = PENALTY) -> Array:
    """Return which events are outside the longest stretch that is stable in all channels, bool [N]."""
    medians, of_events = bin_medians(events)
    edges = {0, len(medians)}.union(*(change_points(column, penalty) for column in medians.T))
    start, stop = max(itertools.pairwise(sorted(edges)), key=lambda ends: ends[1] - ends[0])
    return (of_events < start) | (of_events >= stop)


def flowai_rate(times: Array, level: float = ESD_LEVEL) -> Array:
    """Return which events are in bins of time with an outlying number of events, bool [N]."""
    edges = np.linspace(times[0], times[-1], max(len(times) // RATE_EVENTS, 10) + 1)
    counts = np.histogram(times, edges)[0].astype(float)
    left, order, exceeds = counts.copy(), [], []
    for i in range(int(ESD_MOST * len(counts))):
        n = len(counts) - i
        ratios = np.abs(left - np.nanmean(left)) / np.nanstd(left, ddof=1)
        worst = int(np.nanargmax(ratios))
        t = stats.t.ppf(1.0 - level / (2.0 * n), n - 2)
        exceeds.append(ratios[worst] > (n - 1) * t / np.sqrt((n - 2 + t * t) * n))
        order.append(worst)
        left[worst] = np.nan
    n_out = 1 + max(np.flatnonzero(exceeds), default=-1)
    return np.isin(np.searchsorted(edges, times, "right").clip(1, len(counts)) - 1, order[:n_out])


# ------------------------------------------------------------------------------------------ PeacoQC


def peacoqc_scores(events: Array) -> Array:
    """Return how far the bin of each event is from the others, in median absolute deviations, float64 [N]."""
    medians, of_events = bin_medians(events)
    away = np.abs(medians - np.median(medians, axis=0))
    spread = 1.4826 * np.median(away, axis=0)
    scores: Array = (away / np.maximum(spread, 1e-12)).max(axis=1)[of_events]
    return scores
