"""The next screen: events with the highest upper confidence bound, none of them repeating another.

GP-UCB (Srinivas, Krause, Kakade and Seeger 2010, ICML, theorem 1), with a batch by hallucinated updates
(GP-BUCB, Desautels, Krause and Burdick 2014, J. Mach. Learn. Res. 15:3873): an event that is chosen counts as
judged at its mean, so the variance near it falls before the next one is chosen.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpmix.explore.posterior import EventPosterior
from dpmix.model.mixture import Array, Floats, Ints

SIZE = 20
"""Events of a screen."""

FURTHER = 0.1
"""Where the slider is by default, from 0, more of the same, to 1, look further."""

DELTA = 0.1
"""The regret bound of GP-UCB with the slider at 1 fails with at most this probability."""

POOL = 1_024
"""Events with the highest bounds; a screen is chosen from them. Bounds only fall while others are chosen."""


def confidence(n_events: int, screen: int) -> float:
    """Return sqrt(beta_t) of a screen, numbered from 1, for a finite set of events."""
    return math.sqrt(2.0 * math.log(n_events * screen**2 * math.pi**2 / (6.0 * DELTA)))


def next_screen(
    posterior: EventPosterior,
    events: Floats,
    closed: npt.NDArray[np.bool_],
    *,
    screen: int,
    further: float = FURTHER,
    size: int = SIZE,
    seed: int = 0,
) -> Ints:
    """Return the events to judge next, int64 [size], the best first.

    Parameters
    ----------
    posterior : EventPosterior
    events : float32 [N, D]
    closed : bool [N]
        Events that are not chosen, for example because they are judged already.
    screen : int
        Number of the screen, from 1.
    further : float
        The slider: what sqrt(beta_t) is multiplied by.
    size : int
    seed : int
        Decides between events with the same bound, as before any judgement.
    """
    weight = np.float32(further * confidence(len(events), screen))
    bounds = posterior.mean + weight * posterior.sd
    bounds[closed] = -np.inf
    pool = _highest(bounds, POOL, np.random.default_rng([seed, screen]))
    chosen = _batch(
        posterior, np.asarray(events[pool], np.float64), posterior.mean[pool], float(weight), size
    )
    return pool[chosen]


def _highest(bounds: Floats, count: int, random: np.random.Generator) -> Ints:
    """Return the events with the highest bounds, at most `count`; random ones among the lowest of these."""
    possible = int(np.isfinite(bounds).sum())
    if possible <= count:
        return np.flatnonzero(np.isfinite(bounds))
    least = np.partition(bounds, len(bounds) - count)[len(bounds) - count]
    above, tied = np.flatnonzero(bounds > least), np.flatnonzero(bounds == least)
    # Before the first judgement all bounds are equal: the first events of a file must not be preferred.
    return np.concatenate([above, random.choice(tied, count - len(above), replace=False)])


def _batch(posterior: EventPosterior, events: Array, means: Floats, weight: float, size: int) -> Ints:
    """Choose events of a pool one by one, with the variances that hallucinated judgements leave."""
    judged, covariance = posterior.judged, posterior.judged.covariance
    size = min(size, len(events))
    whitened = np.empty((len(judged.values) + size, len(events)))
    whitened[: len(judged.values)] = judged.whitened(events)
    variances = covariance.variance - (whitened[: len(judged.values)] ** 2).sum(axis=0)
    chosen: list[int] = []
    for row in range(len(judged.values), len(whitened)):
        bounds = means + weight * np.sqrt(np.maximum(variances, 0.0))
        bounds[chosen] = -np.inf
        best = int(bounds.argmax())
        chosen.append(best)
        left = covariance.between(events[best : best + 1], events)[0] - whitened[:row, best] @ whitened[:row]
        whitened[row] = left / np.sqrt(max(variances[best], 0.0) + covariance.noise)
        variances -= whitened[row] ** 2
    return np.array(chosen, np.int64)
