"""The sticks v_j and the concentration alpha: draws from their conditional distributions.

K components.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Sticks, live_log1m_sticks
from dpmix.model.prior import Prior
from dpmix.model.streams import FastGenerator

LEAST_ALPHA = 1e-100  # keeps the logs of sticks, which are of the order of 1 / alpha, finite


def draw_sticks(counts: Array, alpha: float, rng: FastGenerator) -> Sticks:
    """Draw v_j ~ Beta(1 + n_j, alpha + sum_{r>j} n_r) for j < K, as logs (the paper, Appendix A.1)."""
    return Sticks(*rng.log_betas(1.0 + counts[:-1], alpha + counts_after(counts)[:-1]))


def log_gamma_variates(shapes: Array, rng: np.random.Generator) -> Array:
    """Draw logs of Gamma(shape, 1) variates; they are exact where the variate itself would round to 0.

    Gamma(a) is Gamma(a + 1) U^(1/a) in distribution (Marsaglia and Tsang 2000, ACM TOMS 26:363, section 6).
    """
    return np.log(rng.standard_gamma(shapes + 1.0)) - rng.standard_exponential(shapes.shape) / shapes


def draw_alpha(log1m_sticks: Array, prior: Prior, rng: np.random.Generator) -> float:
    """Draw alpha ~ Gamma(e + K - 1, f - sum_{j<K} log(1 - v_j)) (the paper, Appendix A.1)."""
    # A stick of exactly 1 ends the mixture: log(1 - v) of it and of those after it has no value.
    live = live_log1m_sticks(log1m_sticks)
    return gamma_variate(prior.alpha_shape + len(live), prior.alpha_rate - live.sum(), rng)


def gamma_variate(shape: float, rate: float, rng: np.random.Generator) -> float:
    """Draw a Gamma(shape, rate) variate, at least `LEAST_ALPHA`: with a small shape it may round to 0."""
    return max(float(rng.gamma(shape, 1.0 / rate)), LEAST_ALPHA)


def counts_after(counts: Array) -> Array:
    """Return sum_{r>j} n_r, the number of events after each component, float64 [K]."""
    after = np.zeros(len(counts))
    # From the end: differences of a cumulative sum from the start would leave rounding in the counts of light
    # components.
    counts[:0:-1].cumsum(out=after[-2::-1])
    return after


def mean_sticks(counts: Array, alpha: float) -> Sticks:
    """Return the means of the beta conditionals of the sticks, as logs; none is 0 or 1."""
    held, rest = 1.0 + counts[:-1], alpha + counts_after(counts)[:-1]
    log_total = np.log(held + rest)
    return Sticks(np.log(held) - log_total, np.log(rest) - log_total)


def modal_sticks(counts: Array, alpha: float, ended: npt.NDArray[np.bool_]) -> Sticks:
    """Return the modes of the beta conditionals of the sticks, as logs.

    v_j = min(1, max(0, n_j / (alpha - 1 + sum_{r>=j} n_r))).
    For alpha below 1 and no events after j, the density of v_j has no bound towards 1: the stick is then put
    at 1 if j holds any weight of events, and at 0 otherwise.

    Parameters
    ----------
    counts : float64 [K]
    alpha : float
    ended : bool [K - 1]
        Sticks that have ended the mixture; they stay at 1.
    """
    held, after = counts[:-1], np.maximum(0.0, alpha - 1.0 + counts_after(counts)[:-1])
    after = np.where(held + after > 0, after, 1.0)
    # A stick that has reached 1 stays there: the components after it are gone, and the log posterior is the
    # shorter mixture's.
    sticks = np.where(ended, 1.0, held / (held + after))
    remaining = np.where(ended, 0.0, after / (held + after))
    with np.errstate(divide="ignore"):
        return Sticks(np.log(sticks), np.log(remaining))
