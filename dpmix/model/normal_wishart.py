"""The normal inverse Wishart distribution of the components: conditionals, marginal likelihoods and draws.

Native code computes conditionals and draws; tests/model/native_reference.py has the same operations in NumPy.

K components, D channels. All functions are pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Hyperparameters, Ints, Parameters, Stats, no_events
from dpmix.model.streams import FastGenerator

ARITHMETIC = "ordered"
"""Name of the order of operations in draws; runs before it drew parameters by LAPACK, and recorded none."""


class Posterior(NamedTuple):
    """Normal inverse Wishart conditional of each component, given the events with its label.

    mu_j | Sigma_j ~ N(means[j], Sigma_j / precisions[j]) and Sigma_j ~ inverse Wishart(dofs[j], scales[j]).
    The degrees of freedom are in the usual notation: E[Sigma_j] = scales[j] / (dofs[j] - D - 1).

    Attributes
    ----------
    means : float64 [K, D]
    precisions : float64 [K]
        1 / gamma + n_j.
    dofs : float64 [K]
    scales : float64 [K, D, D]
    """

    means: Array
    precisions: Array
    dofs: Array
    scales: Array


def posterior(stats: Stats, hyper: Hyperparameters) -> Posterior:
    """Return the conditionals of all components (the paper, Appendix A.1).

    The conditional of a component without events is the prior.
    """
    n_components, dim = stats.sums.shape
    means, precisions = np.empty((n_components, dim)), np.empty(n_components)
    scales = np.empty((n_components, dim, dim))
    hyper_scale = hyper.nu * hyper.phi
    _cpu.posterior(*_arrays(stats), hyper.m, hyper.gamma, hyper_scale, means, precisions, scales)
    return Posterior(means, precisions, hyper.nu + dim + 1 + stats.counts, scales)


def _arrays(stats: Stats) -> tuple[Array, Array, Array, Array]:
    """Return counts, sums, scatters and centres."""
    return stats.counts, stats.sums, stats.scatters, stats.centres


def mean_covariances(conditional: Posterior) -> Array:
    """Return E[Sigma_j] of each component, float64 [K, D, D]."""
    dim = conditional.means.shape[1]
    means: Array = conditional.scales / (conditional.dofs - dim - 1)[:, None, None]
    return means


def log_marginals(stats: Stats, hyper: Hyperparameters) -> Array:
    """Return the log marginal likelihood of the events of each component, float64 [K]; 0 without events.

    The parameters are integrated out under the normal inverse Wishart prior (Murphy 2007, "Conjugate Bayesian
    analysis of the Gaussian distribution", eq. 266).
    """
    dim = len(hyper.m)

    def log_constants(precisions: Array, dofs: Array, scales: Array) -> Array:
        log_dets = 2.0 * np.log(np.einsum("kii->ki", np.linalg.cholesky(scales))).sum(axis=1)
        log_gammas = gammaln(0.5 * (dofs[:, None] - np.arange(dim))).sum(axis=1)  # a constant cancels
        constants: Array = log_gammas - 0.5 * dofs * log_dets - 0.5 * dim * np.log(precisions)
        return constants

    _, *of_posterior = posterior(stats, hyper)
    _, *of_prior = posterior(no_events(1, dim), hyper)
    ratios = log_constants(*of_posterior) - log_constants(*of_prior)
    marginals: Array = ratios - 0.5 * dim * np.log(np.pi) * stats.counts
    return marginals


def draw_parameters(
    conditional: Posterior,
    rng: np.random.Generator | FastGenerator,
    threads: int = 1,
    order: Ints | None = None,
) -> Parameters:
    """Draw (mu_j, Sigma_j) of all components jointly (the paper, Appendix A.1).

    Let C be the lower Cholesky factor of the scale matrix, and T a lower triangular matrix such that T'T is a
    standard Wishart matrix (Bartlett's decomposition, from the last row upwards). Then L = T C^-1 is lower
    triangular and is the whitener of Sigma = (L'L)^-1, and R = C T^-1 is a root of Sigma: no second
    factorisation is needed.

    Parameters
    ----------
    conditional : Posterior
    rng : numpy.random.Generator or FastGenerator
    threads : int
        Threads that share the components; the draws do not depend on it.
    order : int64 [K] or None
        The component that has each place in the result; None keeps their places.

    Returns
    -------
    Parameters

    Raises
    ------
    numpy.linalg.LinAlgError
        A scale matrix is not positive definite to float64.
    """
    count, dim = conditional.means.shape
    # All variates first and in one order, so that the number of threads changes no draw.
    normals = rng.standard_normal((count, dim, dim))
    gammas = rng.standard_gamma(0.5 * (conditional.dofs[:, None] - np.arange(dim)[::-1]))
    noise = rng.standard_normal((count, dim))
    drawn = Parameters(np.empty((count, dim)), np.empty((count, dim, dim)), np.empty((count, dim, dim)))
    given = conditional.means, conditional.precisions, conditional.scales
    places = np.arange(count) if order is None else order
    failed = _cpu.draw_parameters(*given, normals, gammas, noise, places, threads, *drawn)
    if failed >= 0:
        raise np.linalg.LinAlgError(f"the scale matrix of component {failed} is not positive definite")
    return drawn
