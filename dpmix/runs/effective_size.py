"""Rank-normalised split R-hat and effective sample sizes of draws of one quantity.

Definitions of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16:667, with the sum
over autocorrelations of Geyer (1992), Stat. Sci. 7:473, as in Stan and ArviZ.

Draws are float64 [chain, draw], at least four of each chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpmix.model.mixture import Array

TAILS = (0.05, 0.95)  # quantiles of the effective sample size of the tails
CONSTANT = 1e-15  # range below which draws count as constant
# R-hat of one chain compares its quarters, each of at least two draws.
MIN_DRAWS = 8
NO_MOVE_R_HAT = 1e6  # an R-hat above it means a variance of 0 within chains, apart from rounding


class PopulationMixing(NamedTuple):
    """How the weights of populations mix.

    Attributes
    ----------
    n_draws : int
        Draws of each chain that were compared.
    shares : float64 [P]
        Mean weights.
    r_hat, ess : float64 [P]
        Rank-normalised split R-hat and bulk effective sample size; NaN for a weight that is the same in every
        draw, and with fewer than 8 draws of each chain.
    """

    n_draws: int
    shares: Array
    r_hat: Array
    ess: Array


def r_hat_and_ess(draws: Array) -> tuple[Array, Array]:
    """Return R-hat and the bulk effective sample size of several quantities, each float64 [quantity].

    The halves of a single chain stand for two chains in R-hat. Both are NaN for a quantity that is the same
    in every draw. R-hat is infinite for one that is constant in each chain (or half of a chain) and differs
    between them.

    Parameters
    ----------
    draws : float64 [chain, draw, quantity]
        At least eight draws of a single chain, four of each of several.
    """
    chains, n_draws, count = draws.shape
    r_hats, sizes = np.full(count, np.nan), np.full(count, np.nan)
    for q in np.flatnonzero(np.ptp(draws, axis=(0, 1)) > 0.0):
        own = np.ascontiguousarray(draws[..., q])
        with np.errstate(divide="ignore", invalid="ignore"):  # the variance within a half may be 0
            found = r_hat(own if chains > 1 else own[0, : n_draws // 2 * 2].reshape(2, -1))
        r_hats[q], sizes[q] = found if found < NO_MOVE_R_HAT else np.inf, ess_bulk(own)
    return r_hats, sizes


def r_hat(draws: Array) -> float:
    """Return R-hat of the halves of all chains: the larger one of their locations and of their scales.

    It is infinite or NaN where the draws of each half are constant.
    """
    halves = _halves(draws)
    # Chains with the same location may differ in scale, which only the folded draws show (Vehtari et al.
    # 2021).
    folded = np.abs(halves - np.median(halves))
    return max(_plain_r_hat(_normal_scores(halves)), _plain_r_hat(_normal_scores(folded)))


def ess_bulk(draws: Array) -> float:
    """Return the effective sample size for the centre of the distribution."""
    return _effective_size(_normal_scores(_halves(draws)))


def ess_tail(draws: Array) -> float:
    """Return the effective sample size for the 5% and the 95% quantile, the smaller one."""
    return min(_effective_size(_halves(draws <= np.quantile(draws, tail))) for tail in TAILS)


def _halves(draws: npt.NDArray[np.generic]) -> Array:
    """Return the halves of all chains as chains, without the middle draw of an odd number."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _normal_scores(draws: Array) -> Array:
    """Replace draws by the normal quantiles of their ranks (Blom 1958); ties share their mean rank."""
    # Ranks, because a quantity without a variance (heavy tails) has no R-hat of its values.
    _, place, counts = np.unique(draws, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place].reshape(draws.shape)
    scores: Array = ndtri((ranks - 0.375) / (draws.size + 0.25))
    return scores


def _plain_r_hat(chains: Array) -> float:
    """Return R-hat of chains, without splits and ranks."""
    n_draws = chains.shape[1]
    between = n_draws * chains.mean(axis=1).var(ddof=1)
    within = chains.var(axis=1, ddof=1).mean()
    return float(np.sqrt((between / within + n_draws - 1) / n_draws))


def _effective_size(chains: Array) -> float:
    """Return the effective sample size for the mean; the number of draws if they are constant."""
    n_chains, n_draws = chains.shape
    if np.ptp(chains) < CONSTANT:
        return float(chains.size)
    means = chains.mean(axis=1, keepdims=True)
    # Twice the length, so that the end of a chain is not correlated with its start.
    spectrum = np.fft.rfft(chains - means, 2 * n_draws)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n_draws)[:, :n_draws].mean(axis=0) / n_draws
    # The variance between chains is part of the total: chains in different places have few effective draws.
    total = covariances[0] + (means.var(ddof=1) if n_chains > 1 else 0.0)
    correlations = 1.0 - (covariances[0] * n_draws / (n_draws - 1.0) - covariances) / total
    correlations[0] = 1.0
    # Sums of pairs are positive and decrease (Geyer): noise starts where they do not.
    last = max((n_draws - 1) // 2 - 1, 0)
    pairs = correlations[: 2 * last + 2].reshape(-1, 2).sum(axis=1)
    noise = np.flatnonzero(pairs <= 0.0)
    end, least = (noise[0], 0.0) if len(noise) else (last, -np.inf)
    sums = np.minimum.accumulate(pairs[:end]).sum()
    time = 2.0 * sums - 1.0 + max(correlations[2 * end], least)
    # Antithetic draws may have an effective size above their number; Stan and ArviZ cap it at n log10(n).
    return float(chains.size / max(time, 1.0 / np.log10(chains.size)))
