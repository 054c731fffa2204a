"""The hyperparameters m, gamma, nu and Phi, given the components: draws from their conditionals, and modes.

The docstring of `dpmix.model.mixture` has the hyperpriors. Each conditional, given the other hyperparameters,
is exact. It depends on the components only through the sums in `Components`: sums over drawn components, or
their expectations in Bayesian EM.

Native code computes what a draw needs of a matrix, in less time than LAPACK and with the same bits on every
processor; tests/model/native_reference.py has the same operations in NumPy.

D channels, J components. All functions are pure.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import multigammaln

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Hyperparameters
from dpmix.model.prior import GAMMA_SHAPE, NU_STEPS, Prior


class Components(NamedTuple):
    """Sums over J components, about the m of their hyperparameters.

    Attributes
    ----------
    n_components : int
        J.
    precision : float64 [D, D]
        sum_j Sigma_j^-1.
    shift : float64 [D]
        sum_j Sigma_j^-1 (mu_j - m).
    spread : float
        sum_j (mu_j - m)' Sigma_j^-1 (mu_j - m).
    log_det : float
        sum_j log det Sigma_j.
    """

    n_components: int
    precision: Array
    shift: Array
    spread: float
    log_det: float


class Wishart(NamedTuple):
    """A Wishart distribution restricted to matrices above `least`.

    A matrix is above another if their difference is positive definite.

    Attributes
    ----------
    dof : float
        Degrees of freedom.
    inverse : float64 [D, D]
        Inverse of the scale matrix.
    least : float64 [D, D]
    """

    dof: float
    inverse: Array
    least: Array


def summarise(
    means: Array, whiteners: Array, m: Array, held: npt.NDArray[np.bool_] | None = None
) -> Components:
    """Return the sums over components about m.

    Parameters
    ----------
    means, whiteners : float64 [K, D], [K, D, D]
    m : float64 [D]
    held : bool [K] or None
        The components to sum over; None means all.
    """
    count, dim = means.shape
    chosen = np.arange(count) if held is None else np.flatnonzero(held)
    precision, shift = np.empty((dim, dim)), np.empty(dim)
    spread = _cpu.sum_components(chosen, means, whiteners, m, precision, shift)
    scales = whiteners.reshape(count, -1)[chosen, :: dim + 1]
    return Components(len(chosen), precision, shift, spread, float(-2.0 * np.log(scales).sum()))


def draw(
    components: Components, hyper: Hyperparameters, prior: Prior, rng: np.random.Generator
) -> Hyperparameters:
    """Draw the learned hyperparameters, each from its conditional given the components and the others.

    Parameters
    ----------
    components : Components
        Sums about hyper.m.
    hyper : Hyperparameters
        The present values.
    prior : Prior
    rng : numpy.random.Generator

    Returns
    -------
    Hyperparameters
    """
    m, gamma, nu, phi = hyper.m, hyper.gamma, hyper.nu, hyper.phi
    if "gamma" in prior.learned:
        shape, scale = gamma_conditional(components, prior)
        # gamma is at least `gamma_least` where 1 / gamma is at most its inverse.
        gamma = scale / gamma_below(scale / prior.gamma_least, shape, rng)
    if "m" in prior.learned:
        m = m + draw_normal(*m_conditional(components, m, gamma, prior), rng)
    if "nu" in prior.learned:
        log_density = nu_conditional(components, phi, prior)
        # The largest of log probabilities plus independent Gumbel noise is a draw from them, without a sum of
        # exponentials that could overflow.
        nu = float(prior.nu_grid[np.argmax(log_density + rng.gumbel(size=len(log_density)))])
    if "phi" in prior.learned:
        phi = draw_wishart(phi_conditional(components, nu, prior), phi, rng)
    return Hyperparameters(m, gamma, nu, phi)


def draw_prior(prior: Prior, rng: np.random.Generator) -> Hyperparameters:
    """Draw the hyperparameters that are learned from their prior, that is, given no components."""
    dim = len(prior.m)
    nothing = Components(0, np.zeros((dim, dim)), np.zeros(dim), 0.0, 0.0)
    return draw(nothing, prior.centre, prior, rng)


def modes(components: Components, hyper: Hyperparameters, prior: Prior) -> Hyperparameters:
    """Return the hyperparameters, the learned ones at the modes of their conditionals.

    Each is moved in turn, given the components and the others; no move lowers the joint density. The
    parameters are as in `draw`.
    """
    m, gamma, nu, phi = hyper.m, hyper.gamma, hyper.nu, hyper.phi
    if "gamma" in prior.learned:
        shape, scale = gamma_conditional(components, prior)
        gamma = max(scale / (shape + 1.0), prior.gamma_least)
    if "m" in prior.learned:
        linear, precision = m_conditional(components, m, gamma, prior)
        m = m + np.linalg.solve(precision, linear)
    if "nu" in prior.learned:
        nu = float(prior.nu_grid[np.argmax(nu_conditional(components, phi, prior))])
    if "phi" in prior.learned:
        phi = wishart_mode(phi_conditional(components, nu, prior))
    return Hyperparameters(m, gamma, nu, phi)


def gamma_conditional(components: Components, prior: Prior) -> tuple[float, float]:
    """Return shape and scale of the inverse gamma conditional: 1 / gamma ~ Gamma(shape, rate=scale).

    It is restricted to gamma of at least `Prior.gamma_least`.
    """
    n_numbers = components.n_components * len(prior.m)
    return GAMMA_SHAPE + 0.5 * n_numbers, GAMMA_SHAPE * prior.gamma + 0.5 * components.spread


def m_conditional(components: Components, m: Array, gamma: float, prior: Prior) -> tuple[Array, Array]:
    """Return the normal conditional of the difference between the new m and `m`, about which the sums are.

    Returns
    -------
    linear : float64 [D]
        The precision times the mean.
    precision : float64 [D, D]
    """
    weak = prior.phi_inverse / prior.gamma
    return weak @ (prior.m - m) + components.shift / gamma, weak + components.precision / gamma


def nu_conditional(components: Components, phi: Array, prior: Prior) -> Array:
    """Return the log probabilities of the values in `Prior.nu_grid`, up to a constant, float64 [97]."""
    count, constants, halves = components.n_components, *nu_terms(prior.nu, len(phi))
    log_det = count * _cpu.log_det(phi) - components.log_det
    trace = (components.precision * phi).sum()
    density: Array = count * constants + (halves + 0.5 * (len(phi) + 1)) * log_det - halves * trace
    return density


@cache
def nu_terms(nu: float, dim: int) -> tuple[Array, Array]:
    """Return what is the same in `nu_conditional` in every sweep, each float64 [97].

    Returns
    -------
    constants : float64 [97]
        Log densities of one component, without the terms in which Phi or the component occurs.
    halves : float64 [97]
        Half of each value of nu.
    """
    halves = 0.5 * nu * NU_STEPS
    half_dofs = halves + 0.5 * (dim + 1)
    constants = half_dofs * dim * np.log(halves) - multigammaln(half_dofs, dim)
    for values in (constants, halves):
        values.flags.writeable = False
    return constants, halves


def phi_conditional(components: Components, nu: float, prior: Prior) -> Wishart:
    """Return the restricted Wishart conditional of Phi."""
    return Wishart(
        dof=prior.phi_dof + components.n_components * (nu + len(prior.m) + 1),
        inverse=prior.phi_dof * prior.phi_inverse + nu * components.precision,
        least=prior.phi_least,
    )


def draw_normal(linear: Array, precision: Array, rng: np.random.Generator) -> Array:
    """Draw from the normal distribution with this precision and the mean precision^-1 linear, float64 [D].

    Raises
    ------
    numpy.linalg.LinAlgError
        The precision is not positive definite to float64.
    """
    drawn = np.empty_like(linear)
    if not _cpu.draw_normal(precision, linear, rng.standard_normal(len(linear)), drawn):
        raise np.linalg.LinAlgError("the precision of m is not positive definite")
    return drawn


def draw_wishart(wishart: Wishart, current: Array, rng: np.random.Generator) -> Array:
    """Draw from the restricted distribution, float64 [D, D].

    If few unrestricted draws would be above `least`, the draw is a Markov move from `current`.
    """
    mean = np.asarray(wishart.dof * np.linalg.inv(wishart.inverse), dtype=np.float64)
    # Rejection would take forever where few draws are above the bound, as with events piled at one value of a
    # channel.
    if not _cpu.is_above(mean, 2.0 * wishart.least):
        # A mode, at which Bayesian EM ends, may lie on the boundary.
        inside = current if _cpu.is_above(current, wishart.least) else 2.0 * wishart.least
        return redraw_channels(wishart, inside, rng)
    while not _cpu.is_above(phi := draw_unrestricted(wishart, rng), wishart.least):
        pass
    return phi


def draw_unrestricted(wishart: Wishart, rng: np.random.Generator) -> Array:
    """Draw without the restriction, float64 [D, D], by Bartlett's decomposition.

    Raises
    ------
    numpy.linalg.LinAlgError
        The inverse of the scale matrix is not positive definite to float64.
    """
    dim = len(wishart.inverse)
    normals, drawn = rng.standard_normal((dim, dim)), np.empty((dim, dim))
    gammas = rng.standard_gamma(0.5 * (wishart.dof - np.arange(dim)[::-1]))
    if not _cpu.draw_wishart(wishart.inverse, normals, gammas, drawn):
        raise np.linalg.LinAlgError("the scale matrix of phi is not positive definite")
    return drawn


def redraw_channels(wishart: Wishart, current: Array, rng: np.random.Generator) -> Array:
    """Make a Markov move, channel by channel, that leaves the restricted distribution invariant.

    For each channel, Phi - least is written in terms of the channel's regression on the others: the
    coefficients and the residual variance. Given all else, the density of the coefficients is a normal
    density times a power of det Phi, and elliptical slice sampling draws them (Murray, Adams and MacKay 2010,
    AISTATS 9:541). det Phi is linear in the residual variance, which therefore is a gamma variate above a
    bound, minus that bound.
    """
    dim, extra = len(current), current - wishart.least
    power = 0.5 * (wishart.dof - dim - 1)
    for i in range(dim):
        others, rate = np.arange(dim) != i, 0.5 * wishart.inverse[i, i]
        rest = extra[others][:, others]
        mean = -0.5 * wishart.inverse[i, others] / rate
        away = np.linalg.solve(rest, extra[i, others]) - mean
        residual = extra[i, i] - extra[i, others] @ (mean + away)
        root = np.sqrt(2.0 * rate) * np.linalg.cholesky(rest)
        noise = np.linalg.solve(root.T, rng.standard_normal(dim - 1))
        level = _cpu.log_det(wishart.least + extra) - rng.standard_exponential() / power
        high = angle = rng.uniform(0.0, 2.0 * np.pi)
        low = high - 2.0 * np.pi
        while True:
            extra = with_row(extra, others, mean + np.cos(angle) * away + np.sin(angle) * noise, residual)
            if _cpu.log_det(wishart.least + extra) > level or angle == 0.0:
                break
            low, high = (angle, high) if angle < 0.0 else (low, angle)
            angle = rng.uniform(low, high)
        bound = 1.0 / np.linalg.inv(wishart.least + extra)[i, i] - residual
        extra[i, i] += gamma_above(rate * bound, power + 1.0, rng) / rate - bound - residual
    return wishart.least + extra


def with_row(matrix: Array, others: npt.NDArray[np.bool_], coefficients: Array, residual: float) -> Array:
    """Return the matrix in which the channel not in `others` has these regression coefficients on the others.

    Parameters
    ----------
    matrix : float64 [D, D]
    others : bool [D]
        All channels except one.
    coefficients : float64 [D - 1]
    residual : float
        The variance of the channel that the others do not explain.
    """
    changed = matrix.copy()
    rest = matrix[others][:, others]
    row = rest @ coefficients
    changed[~others, others] = changed[others, ~others] = row
    changed[~others, ~others] = residual + row @ coefficients
    return changed


def wishart_mode(wishart: Wishart) -> Array:
    """Return the mode, float64 [D, D], of a restricted Wishart with more than D + 1 degrees of freedom."""
    root = np.linalg.cholesky(wishart.least)
    values, vectors = np.linalg.eigh(root.T @ wishart.inverse @ root)
    axes = root @ vectors  # in which `least` is the identity and the scale matrix diagonal
    mode: Array = (axes * np.maximum(1.0, (wishart.dof - len(root) - 1.0) / values)) @ axes.T
    return mode


def gamma_below(most: float, shape: float, rng: np.random.Generator) -> float:
    """Draw a Gamma(shape, 1) variate that is at most `most`, by rejection.

    Well below the mean, with x = most (1 - y), the log density in y lies below its tangent at 0: the proposal
    of y is exponential.
    """
    if most > shape - np.sqrt(shape):
        while (value := float(rng.standard_gamma(shape))) > most:
            pass
        return value
    rate = shape - 1.0 - most
    while True:
        share = float(rng.standard_exponential()) / rate
        # The log of the ratio of tangent to density.
        if share < 1.0 and rng.standard_exponential() >= -(shape - 1.0) * (np.log1p(-share) + share):
            return most * (1.0 - share)


def gamma_above(least: float, shape: float, rng: np.random.Generator) -> float:
    """Draw a Gamma(shape, 1) variate that is at least `least`, by rejection; shape is at least 1.

    Well above the mean, the log density lies below its tangent at `least`: the proposal is a shifted
    exponential.
    """
    if least < shape + np.sqrt(shape):
        while (value := float(rng.standard_gamma(shape))) < least:
            pass
        return value
    rate = 1.0 - (shape - 1.0) / least
    while True:
        beyond = float(rng.standard_exponential()) / rate
        # The log of the ratio of tangent to density.
        if rng.standard_exponential() >= (shape - 1.0) * (beyond / least - np.log1p(beyond / least)):
            return least + beyond
