"""Label swaps: Metropolis moves that exchange the places of two components in the stick order.

The prior expects large weights first, so the order of the components matters, and moving one event at a time
does not change it. All functions are pure. K components.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.model.mixture import Array, Ints, Sticks, log_weights
from dpmix.model.stick_breaking import draw_sticks


class Swaps(NamedTuple):
    """Numbers of moves in which at least one of the two components holds events.

    Attributes
    ----------
    proposed, accepted : int
    """

    proposed: int = 0
    accepted: int = 0


class Exchange(NamedTuple):
    """The result of some moves.

    Attributes
    ----------
    order : int64 [K]
        order[j] is the former place of the component that now has place j.
    swaps : Swaps
    """

    order: Ints
    swaps: Swaps


def swap_labels(
    counts: Array, sticks: Sticks, alpha: float, rng: np.random.Generator
) -> tuple[Ints, Sticks, Swaps]:
    """Make label swaps of three kinds, one kind after the other. Each leaves the posterior invariant.

    Parameters
    ----------
    counts : float64 [K]
        Events of each component.
    sticks : Sticks
    alpha : float
    rng : numpy.random.Generator

    Returns
    -------
    order : int64 [K]
        order[j] is the component that now has place j.
    sticks : Sticks
        Drawn given the new order of the counts.
    swaps : Swaps
        Numbers of moves of all three kinds.
    """
    if len(counts) == 1:
        return np.array([0]), sticks, Swaps()
    first = exchange_any(counts, log_weights(*sticks), rng)
    order = first.order
    second = exchange_with_sticks(counts[order], sticks.log1m_sticks, rng)
    order = order[second.order]
    third = exchange_collapsed(counts[order], alpha, rng)
    order = order[third.order]
    proposed, accepted = (
        sum(numbers) for numbers in zip(first.swaps, second.swaps, third.swaps, strict=True)
    )
    return order, draw_sticks(counts[order], alpha, rng), Swaps(proposed, accepted)


def exchange_any(counts: Array, log_weights: Array, rng: np.random.Generator) -> Exchange:
    """Try K times to exchange a random occupied component with any other; the sticks stay in their places.

    The first move of Papaspiliopoulos and Roberts (2008), Biometrika 95:169.

    Parameters
    ----------
    counts : float64 [K]
    log_weights : float64 [K]
        log pi_j.
    rng : numpy.random.Generator
    """
    n, weights = counts.tolist(), log_weights.tolist()
    order = list(range(len(n)))
    held = [j for j in order if n[j] > 0]
    if not held:
        return Exchange(np.array(order), Swaps())
    firsts = rng.integers(len(held), size=len(n)).tolist()
    others = rng.integers(len(n) - 1, size=len(n)).tolist()
    levels = rng.standard_exponential(len(n)).tolist()
    accepted = 0
    for first, other, level in zip(firsts, others, levels, strict=True):
        j = held[first]
        r = other + (other >= j)
        if (weights[j] - weights[r]) * (n[r] - n[j]) >= -level:
            if n[r] == 0:
                held[first] = r
            n[j], n[r] = n[r], n[j]
            order[j], order[r] = order[r], order[j]
            accepted += 1
    return Exchange(np.array(order), Swaps(len(n), accepted))


def exchange_with_sticks(counts: Array, log1m_sticks: Array, rng: np.random.Generator) -> Exchange:
    """Try once, along the order, to exchange neighbours together with their sticks.

    The second move of Papaspiliopoulos and Roberts (2008). The last component has no stick and keeps its
    place.

    Parameters
    ----------
    counts : float64 [K]
    log1m_sticks : float64 [K - 1]
        log(1 - v_j).
    rng : numpy.random.Generator
    """
    n, log1m = counts.tolist(), log1m_sticks.tolist()
    order = list(range(len(n)))
    proposed = accepted = 0
    for j, level in enumerate(rng.standard_exponential(len(n) - 2).tolist()):
        holds = n[j] + n[j + 1] > 0
        proposed += holds
        if n[j] * log1m[j + 1] - n[j + 1] * log1m[j] >= -level:
            accepted += holds
            for values in (order, n, log1m):
                values[j], values[j + 1] = values[j + 1], values[j]
    return Exchange(np.array(order), Swaps(proposed, accepted))


def exchange_collapsed(counts: Array, alpha: float, rng: np.random.Generator) -> Exchange:
    """Try once, along the order, to exchange neighbours, with all sticks integrated out.

    The sticks have to be drawn after it. The aim is that of the third move of Hastie, Liverani and Richardson
    (2015), Stat. Comput. 25:1023, which rescales the sticks to their expectations given the exchanged counts.
    With the sticks integrated out the ratio is exact and simple: (alpha + n_{j+1} + R) / (alpha + n_j + R),
    where R is the number of events after both.

    Parameters
    ----------
    counts : float64 [K]
    alpha : float
    rng : numpy.random.Generator
    """
    n = counts.tolist()
    order = list(range(len(n)))
    proposed = accepted = 0
    after = sum(n[2:])
    for j, uniform in enumerate(rng.random(len(n) - 1).tolist()):
        a, b = n[j], n[j + 1]
        if j < len(n) - 2:
            ratio = (alpha + b + after) / (alpha + a + after)
            after -= n[j + 2]
        else:  # the last component has no stick of its own
            ratio = np.exp(gammaln(1 + b) + gammaln(alpha + a) - gammaln(1 + a) - gammaln(alpha + b))
        proposed += a + b > 0
        if uniform < ratio:
            accepted += a + b > 0
            n[j], n[j + 1] = b, a
            order[j], order[j + 1] = order[j + 1], order[j]
    return Exchange(np.array(order), Swaps(proposed, accepted))
