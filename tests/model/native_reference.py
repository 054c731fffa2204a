"""Draws, sums over components, whiteners and label swaps in NumPy: what native code computes, bit for bit.

A sweep runs the native form of these functions (conjugate.cpp, dense.cpp, sticks.cpp and swaps.cpp in
kernels/cpu), because a GPU waits for this part. tests/model/test_native_draws.py compares the two forms.

The order of the operations is part of each definition: sums over k are taken in ascending order, and nothing
is fused. Batched routines of LAPACK are not used, because their last bits depend on the processor.

K components, D channels. All functions are pure.
"""

from __future__ import annotations

from math import exp, log, log1p, nan
from typing import TYPE_CHECKING

import numpy as np

from dpmix.model.mixture import Array, Hyperparameters, Ints, Parameters, Stats

if TYPE_CHECKING:
    from dpmix.model.normal_wishart import Posterior

GROUP = 8
"""Components that native code computes side by side."""


def posterior(stats: Stats, hyper: Hyperparameters) -> tuple[Array, Array, Array]:
    """Return means, precisions and scales of `dpmix.model.normal_wishart.posterior`."""
    counts = stats.counts
    weight = np.where(counts > 0, counts, 1.0)
    shift = stats.sums / weight[:, None]
    scatter = stats.scatters - counts[:, None, None] * shift[:, :, None] * shift[:, None, :]
    average = np.where(counts[:, None] > 0, stats.centres + shift, hyper.m)
    precisions = 1.0 / hyper.gamma + counts
    away = average - hyper.m
    pull = counts / (1.0 + hyper.gamma * counts)
    means = hyper.m + (counts / precisions)[:, None] * away
    scales = hyper.nu * hyper.phi + scatter + pull[:, None, None] * away[:, :, None] * away[:, None, :]
    return means, precisions, scales


def whiteners(covariances: Array) -> Array:
    """Return what `dpmix.model.mixture.whiteners_of` returns."""
    unit = np.broadcast_to(np.eye(covariances.shape[1]), covariances.shape)
    return divide_lower(unit, cholesky(covariances))


def draw_parameters(conditional: Posterior, normals: Array, gammas: Array, noise: Array) -> Parameters:
    """Return the draw of `dpmix.model.normal_wishart.draw_parameters`, given its random numbers.

    Parameters
    ----------
    conditional : Posterior
    normals : float64 [K, D, D]
        Normal variates; those strictly below the diagonal are used.
    gammas : float64 [K, D]
        Gamma variates: half the squares of the diagonals of T.
    noise : float64 [K, D]
        Normal variates.

    Raises
    ------
    numpy.linalg.LinAlgError
        A scale matrix is not positive definite to float64.
    """
    dim = normals.shape[1]
    factors = cholesky(conditional.scales)
    bartlett = np.tril(normals, -1)
    bartlett[:, np.arange(dim), np.arange(dim)] = np.sqrt(2.0 * gammas)
    whiteners = divide_lower(bartlett, factors)
    roots = divide_lower(factors, bartlett)
    covariances, away = np.zeros_like(roots), np.zeros_like(noise)
    for k in range(dim):
        column = roots[:, k:, k]
        covariances[:, k:, k:] += column[:, :, None] * column[:, None, :]
        away[:, k:] += column * noise[:, k, None]
    means = conditional.means + away / np.sqrt(conditional.precisions)[:, None]
    return Parameters(means, covariances, whiteners)


def sum_components(
    held: Ints, means: Array, whiteners: Array, m: Array, precision: Array, shift: Array
) -> float:
    """Write the sums over components of `dpmix.model.hyperparameters.summarise`; return their spread.

    Every `GROUP`-th component is summed first, then these sums.

    Parameters
    ----------
    held : int64 [J]
        Numbers of the components.
    means, whiteners, m : float64 [K, D], [K, D, D], [D]
    precision, shift : float64 [D, D], [D], changed
    """
    dim = len(m)
    groups = -(-len(held) // GROUP)
    rows, away = np.zeros((groups * GROUP, dim, dim)), np.zeros((groups * GROUP, dim))
    rows[: len(held)], away[: len(held)] = whiteners[held], means[held] - m
    whitened = np.zeros_like(away)
    for k in range(dim):
        whitened[:, k:] += rows[:, k:, k] * away[:, k, None]
    matrices, vectors, spreads = np.zeros((GROUP, dim, dim)), np.zeros((GROUP, dim)), np.zeros(GROUP)
    for group in range(groups):
        lanes = slice(group * GROUP, (group + 1) * GROUP)
        for i in range(dim):
            row, value = rows[lanes, i], whitened[lanes, i]
            matrices += row[:, :, None] * row[:, None, :]
            vectors += row * value[:, None]
            spreads += value * value
    precision[:], shift[:], spread = 0.0, 0.0, 0.0
    for lane in range(GROUP):
        precision += matrices[lane]
        shift += vectors[lane]
        spread += float(spreads[lane])
    return spread


def log_det(matrix: Array) -> float:
    """Return the log determinant of a symmetric matrix [D, D]; NaN if it is not positive definite."""
    try:
        factor = cholesky(matrix[None])[0]
    except np.linalg.LinAlgError:
        return nan
    total = 0.0
    for scale in np.diag(factor).tolist():
        total += log(scale)
    return 2.0 * total


def is_above(one: Array, other: Array) -> bool:
    """Return True if the difference of two symmetric matrices, float64 [D, D], is positive definite."""
    return not np.isnan(log_det(one - other))


def draw_normal(precision: Array, linear: Array, noise: Array, out: Array) -> bool:
    """Write the draw of `dpmix.model.hyperparameters.draw_normal`, given its random numbers.

    Parameters
    ----------
    precision, linear, noise : float64 [D, D], [D], [D]
    out : float64 [D], changed

    Returns
    -------
    bool
        True: a precision that is not positive definite raises LinAlgError here.
    """
    factor = cholesky(precision[None])[0]
    out[:] = linear
    for i in range(len(out)):
        out[i] /= factor[i, i]
        out[i + 1 :] -= factor[i + 1 :, i] * out[i]
    out += noise
    for i in reversed(range(len(out))):
        for k in range(i + 1, len(out)):
            out[i] -= factor[k, i] * out[k]
        out[i] /= factor[i, i]
    return True


def draw_wishart(inverse: Array, normals: Array, gammas: Array, out: Array) -> bool:
    """Write the draw of `dpmix.model.hyperparameters.draw_unrestricted`, given its random numbers.

    Parameters
    ----------
    inverse : float64 [D, D]
        The inverse of the scale matrix.
    normals : float64 [D, D]
        Normal variates; those strictly below the diagonal are used.
    gammas : float64 [D]
        Gamma variates: half the squares of the diagonal of Bartlett's matrix.
    out : float64 [D, D], changed

    Returns
    -------
    bool
        True: an inverse that is not positive definite raises LinAlgError here.
    """
    bartlett = np.tril(normals, -1)
    np.fill_diagonal(bartlett, np.sqrt(2.0 * gammas))
    whitener = divide_lower(bartlett[None], cholesky(inverse[None]))[0]
    out[:] = 0.0
    for row in whitener:
        out += row[:, None] * row
    return True


def log_betas(first: Array, second: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return log v and log(1 - v) of Beta(first, second) variates v, as in `FastGenerator.log_betas`.

    The logs are taken one by one, because the logs of NumPy's arrays depend on the processor.
    """

    def log_gammas(shapes: Array) -> list[float]:
        above, levels = rng.standard_gamma(shapes + 1.0), rng.standard_exponential(shapes.shape)
        return [log(value) - drop for value, drop in zip(above, levels / shapes, strict=True)]

    def log_sum(a: float, b: float) -> float:
        if a == b:
            return a + log(2.0)
        return a + log1p(exp(b - a)) if a > b else b + log1p(exp(a - b))

    one, other = log_gammas(first), log_gammas(second)
    both = [log_sum(a, b) for a, b in zip(one, other, strict=True)]
    return np.array(one) - both, np.array(other) - both


def cholesky(matrices: Array) -> Array:
    """Return the lower Cholesky factors of matrices, float64 [K, D, D].

    Raises
    ------
    numpy.linalg.LinAlgError
        A matrix is not positive definite to float64.
    """
    factors = np.zeros_like(matrices)
    for j in range(matrices.shape[1]):
        column = matrices[:, j:, j].copy()
        for k in range(j):
            column -= factors[:, j:, k] * factors[:, j, k, None]
        if not (column[:, 0] > 0.0).all():
            raise np.linalg.LinAlgError("Matrix is not positive definite")
        factors[:, j, j] = np.sqrt(column[:, 0])
        factors[:, j + 1 :, j] = column[:, 1:] / factors[:, j, j, None]
    return factors


def divide_lower(left: Array, right: Array) -> Array:
    """Return X with X right = left; all are lower triangular matrices, float64 [K, D, D]."""
    quotient = np.zeros_like(left)
    dim = left.shape[1]
    for j in reversed(range(dim)):
        column = left[:, j:, j].copy()
        for k in range(j + 1, dim):
            column[:, k - j :] -= quotient[:, k:, k] * right[:, k, j, None]
        quotient[:, j:, j] = column / right[:, j, j, None]
    return quotient


def swap_any(
    counts: Array, order: Ints, log_weights: Array, firsts: Ints, others: Ints, levels: Array
) -> tuple[int, int]:
    """Make the moves of `dpmix.model.label_swaps.exchange_any`, in place, given their random numbers.

    Parameters
    ----------
    counts : float64 [K], changed
        Events of each component, at least one of which is occupied.
    order : int64 [K], changed
        The place of each component before the moves.
    log_weights : float64 [K]
    firsts, others : int64 [K]
        For each move, an index into the occupied components, and one into all others.
    levels : float64 [K]
        Exponential variates.

    Returns
    -------
    proposed, accepted : int
    """
    held = np.flatnonzero(counts > 0)
    accepted = 0
    for first, other, level in zip(firsts, others, levels, strict=True):
        j = held[first]
        r = other + (other >= j)
        if (log_weights[j] - log_weights[r]) * (counts[r] - counts[j]) >= -level:
            if counts[r] == 0:
                held[first] = r
            counts[[j, r]] = counts[[r, j]]
            order[[j, r]] = order[[r, j]]
            accepted += 1
    return len(counts), accepted


def swap_with_sticks(counts: Array, order: Ints, log1m_sticks: Array, levels: Array) -> tuple[int, int]:
    """Make the moves of `dpmix.model.label_swaps.exchange_with_sticks`, in place.

    Parameters
    ----------
    counts, order
        As in `swap_any`.
    log1m_sticks : float64 [K - 1], changed
    levels : float64 [K - 2]
        Exponential variates.

    Returns
    -------
    proposed, accepted : int
    """
    proposed = accepted = 0
    for j, level in enumerate(levels):
        holds = counts[j] + counts[j + 1] > 0
        proposed += holds
        if counts[j] * log1m_sticks[j + 1] - counts[j + 1] * log1m_sticks[j] >= -level:
            accepted += holds
            for values in (order, counts, log1m_sticks):
                values[[j, j + 1]] = values[[j + 1, j]]
    return int(proposed), int(accepted)


def swap_collapsed(
    counts: Array, order: Ints, alpha: float, after: float, uniforms: Array
) -> tuple[int, int]:
    """Make the moves of `dpmix.model.label_swaps.exchange_collapsed`, in place, except the last.

    Parameters
    ----------
    counts, order
        As in `swap_any`.
    alpha : float
    after : float
        The number of events after the first two components.
    uniforms : float64 [K - 1]
        The last is for the last move.

    Returns
    -------
    proposed, accepted : int
    """
    proposed = accepted = 0
    for j, uniform in enumerate(uniforms[:-1]):
        a, b = counts[j], counts[j + 1]
        ratio = (alpha + b + after) / (alpha + a + after)
        after -= counts[j + 2]
        proposed += a + b > 0
        if uniform < ratio:
            accepted += a + b > 0
            for values in (order, counts):
                values[[j, j + 1]] = values[[j + 1, j]]
    return int(proposed), int(accepted)
