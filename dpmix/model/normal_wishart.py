"""The normal inverse Wishart distribution of the components: conditionals, marginal likelihoods and draws.

K components, D channels. All functions are pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.model.mixture import Array, Hyperparameters, Parameters, Stats, no_events


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
    dim = len(hyper.m)
    counts = stats.counts
    weight = np.where(counts > 0, counts, 1.0)
    shift = stats.sums / weight[:, None]
    scatter = stats.scatters - counts[:, None, None] * shift[:, :, None] * shift[:, None, :]
    average = np.where(counts[:, None] > 0, stats.centres + shift, hyper.m)
    precisions = 1.0 / hyper.gamma + counts
    away = average - hyper.m
    pull = counts / (1.0 + hyper.gamma * counts)
    return Posterior(
        means=hyper.m + (counts / precisions)[:, None] * away,
        precisions=precisions,
        dofs=hyper.nu + dim + 1 + counts,
        scales=hyper.nu * hyper.phi + scatter + pull[:, None, None] * away[:, :, None] * away[:, None, :],
    )


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


def draw_parameters(conditional: Posterior, rng: np.random.Generator) -> Parameters:
    """Draw (mu_j, Sigma_j) of all components jointly (the paper, Appendix A.1).

    Let C be the lower Cholesky factor of the scale matrix, and T a lower triangular matrix such that T'T is a
    standard Wishart matrix (Bartlett's decomposition, from the last row upwards). Then L = T C^-1 is lower
    triangular and is the whitener of Sigma = (L'L)^-1: no second factorisation is needed.

    Raises
    ------
    numpy.linalg.LinAlgError
        A scale matrix is not positive definite to float64.
    """
    count, dim = conditional.means.shape
    factors = np.linalg.cholesky(conditional.scales)
    bartlett = np.tril(rng.standard_normal((count, dim, dim)), -1)
    halves = 0.5 * (conditional.dofs[:, None] - np.arange(dim)[::-1])
    diagonal = np.arange(dim)
    bartlett[:, diagonal, diagonal] = np.sqrt(2.0 * rng.standard_gamma(halves))
    whiteners = bartlett @ np.tril(np.linalg.inv(factors))
    roots = factors @ np.tril(np.linalg.inv(bartlett))
    noise = np.einsum("kij,kj->ki", roots, rng.standard_normal((count, dim)))
    means = conditional.means + noise / np.sqrt(conditional.precisions)[:, None]
    return Parameters(means, roots @ roots.transpose(0, 2, 1), whiteners)
