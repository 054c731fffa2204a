"""Label swaps: Metropolis moves that exchange the places of two components in the stick order.

The prior expects large weights first, so the order of the components matters, and moving one event at a time
does not change it. Native code makes the moves; tests/model/native_reference.py has the same operations in
Python. All functions are pure. K components.
"""

from __future__ import annotations

from math import exp, lgamma
from typing import NamedTuple, TypeAlias

import numpy as np

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Ints, Sticks, log_weights
from dpmix.model.stick_breaking import draw_sticks
from dpmix.model.streams import FastGenerator

Random: TypeAlias = np.random.Generator | FastGenerator


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
    counts: Array, sticks: Sticks, alpha: float, rng: FastGenerator
) -> tuple[Ints, Sticks, Swaps]:
    """Make label swaps of three kinds, one kind after the other. Each leaves the posterior invariant.

    Parameters
    ----------
    counts : float64 [K]
        Events of each component.
    sticks : Sticks
    alpha : float
    rng : FastGenerator

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
    # The third move has the sticks integrated out, so they have to be drawn after it.
    return order, draw_sticks(counts[order], alpha, rng), Swaps(proposed, accepted)


def exchange_any(counts: Array, log_weights: Array, rng: Random) -> Exchange:
    """Try K times to exchange a random occupied component with any other; the sticks stay in their places.

    The first move of Papaspiliopoulos and Roberts (2008), Biometrika 95:169.

    Parameters
    ----------
    counts : float64 [K]
    log_weights : float64 [K]
        log pi_j.
    rng : numpy.random.Generator or FastGenerator
    """
    count, order = len(counts), np.arange(len(counts))
    n_held = int(np.count_nonzero(counts > 0))
    if n_held == 0:
        return Exchange(order, Swaps())
    firsts = rng.integers(n_held, size=count)
    others = rng.integers(count - 1, size=count)
    # All K variates are drawn, also for swaps that cannot be rejected: the stream does not depend on the
    # outcomes.
    levels = rng.standard_exponential(count)
    moves = _cpu.swap_any(counts.copy(), order, log_weights, firsts, others, levels)
    return Exchange(order, Swaps(*moves))


def exchange_with_sticks(counts: Array, log1m_sticks: Array, rng: Random) -> Exchange:
    """Try once, along the order, to exchange neighbours together with their sticks.

    The second move of Papaspiliopoulos and Roberts (2008). The last component has no stick and keeps its
    place.

    Parameters
    ----------
    counts : float64 [K]
    log1m_sticks : float64 [K - 1]
        log(1 - v_j).
    rng : numpy.random.Generator or FastGenerator
    """
    order = np.arange(len(counts))
    levels = rng.standard_exponential(len(counts) - 2)
    moves = _cpu.swap_with_sticks(counts.copy(), order, log1m_sticks.copy(), levels)
    return Exchange(order, Swaps(*moves))


def exchange_collapsed(counts: Array, alpha: float, rng: Random) -> Exchange:
    """Try once, along the order, to exchange neighbours, with all sticks integrated out.

    The sticks have to be drawn after it. It has the aim of the third move of Hastie, Liverani and Richardson
    (2015), Stat. Comput. 25:1023, which rescales the sticks to their expectations given the exchanged counts.
    With the sticks integrated out the ratio is exact and simple: (alpha + n_{j+1} + R) / (alpha + n_j + R),
    where R is the number of events after both.

    Parameters
    ----------
    counts : float64 [K]
    alpha : float
    rng : numpy.random.Generator or FastGenerator
    """
    n, order = counts.copy(), np.arange(len(counts))
    uniforms = rng.random(len(counts) - 1)
    after = sum(counts[2:].tolist())
    proposed, accepted = _cpu.swap_collapsed(n, order, alpha, after, uniforms)
    a, b = n[-2:].tolist()  # the last component has no stick of its own
    # With no stick of its own, the last component takes what the one before leaves: the ratio has two beta
    # functions, B(1 + b, alpha + a) / B(1 + a, alpha + b).
    log_ratio = lgamma(1 + b) + lgamma(alpha + a) - lgamma(1 + a) - lgamma(alpha + b)
    moved = log_ratio >= 0.0 or bool(uniforms[-1] < exp(log_ratio))
    if moved:
        order[-2:] = order[:-3:-1].copy()
    held = a + b > 0
    return Exchange(order, Swaps(proposed + held, accepted + (held and moved)))
