"""The power posterior of a mixture of normals, for many parameters at once, and its coordinates.

N events, D channels, K components, R chains, P coordinates. The events enter by their features, 1, x and
x x', in which the log density of a normal is linear: one matrix product serves all chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np

from dpmix.model.mixture import LOG_2PI, Array, Hyperparameters

ALPHA = 1.0  # concentration, fixed


class Theta(NamedTuple):
    """Parameters of R chains: log weights [R, K], means [R, K, D], Cholesky factors [R, K, D, D]."""

    log_weights: Array
    means: Array
    roots: Array

    def take(self, other: Theta, which: Array) -> Theta:
        """Return these parameters, with those of another in some chains, bool [R]."""

        def pick(own: Array, new: Array) -> Array:
            return np.where(which.reshape(-1, *[1] * (own.ndim - 1)), new, own)

        return Theta(*(pick(own, new) for own, new in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Target:
    """The power posterior of some events.

    Attributes
    ----------
    features : float64 [N, 1 + D + D D]
        1, x and x x' of each event; the log density of a normal is linear in them.
    points : float64 [5, 1 + D + D D]
        Features of some events.
    hyper : Hyperparameters
    zeta : float
    """

    features: Array
    points: Array
    hyper: Hyperparameters
    zeta: float

    @property
    def dim(self) -> int:
        return len(self.hyper.m)

    def terms(self, theta: Theta, features: Array) -> Array:
        """Return log pi_j N(x | mu_j, Sigma_j), float64 [N, R, K]."""
        whiteners = np.linalg.inv(theta.roots)
        precisions = whiteners.swapaxes(-1, -2) @ whiteners
        linear = np.einsum("rkij,rkj->rki", precisions, theta.means)
        log_dets = np.log(np.einsum("rkii->rki", theta.roots)).sum(axis=2)
        constant = theta.log_weights - 0.5 * np.einsum("rki,rki->rk", linear, theta.means)
        constant -= log_dets + 0.5 * self.dim * LOG_2PI
        n_chains, n_components = constant.shape
        quadratic = -0.5 * precisions.reshape(n_chains, n_components, -1)
        coefficients = np.concatenate((constant[..., None], linear, quadratic), axis=2)
        return (features @ coefficients.reshape(n_chains * n_components, -1).T).reshape(
            -1, n_chains, n_components
        )

    def log_densities(self, theta: Theta, features: Array) -> Array:
        """Return log sum_j pi_j N(x | mu_j, Sigma_j), float64 [N, R]."""
        terms = self.terms(theta, features)
        most = terms.max(axis=2)
        return most + np.log(np.exp(terms - most[..., None]).sum(axis=2))

    def log_posterior(self, theta: Theta, log_likelihood: Array) -> Array:
        """Return the log density of `coordinates`, summed over the orders of the components, float64 [R]."""
        hyper, dim = self.hyper, self.dim
        dof = hyper.nu + dim + 1
        diagonals = np.log(np.einsum("rkii->rki", theta.roots))
        whiteners = np.linalg.inv(theta.roots)
        traces = np.square(whiteners @ np.linalg.cholesky(hyper.nu * hyper.phi)).sum(axis=(2, 3))
        shifts = np.einsum("rkij,rkj->rki", whiteners, theta.means - hyper.m)
        components = -(dof + dim + 2) * diagonals.sum(axis=2) - 0.5 * traces
        components -= 0.5 * np.square(shifts).sum(axis=2) / hyper.gamma
        components += diagonals @ (dim + 1.0 - np.arange(dim))  # from covariances to log diagonal and rest
        weights = log_any_order(theta.log_weights) + theta.log_weights.sum(axis=1)
        return components.sum(axis=1) + weights + self.zeta * log_likelihood

    def quantities(self, theta: Theta) -> Array:
        """Return label-invariant quantities, float64 [R, 5 + 1 + K]."""
        at_points = self.log_densities(theta, self.points).T
        mean = self.log_densities(theta, self.features).mean(axis=0)
        weights = np.sort(np.exp(theta.log_weights), axis=1)
        return np.concatenate((at_points, mean[:, None], weights), axis=1)


def log_weight_prior(log_weights: Array) -> Array:
    """Return the log prior density of weights on the simplex, from sticks Beta(1, alpha), float64 [R]."""
    tails = np.cumsum(np.exp(log_weights)[:, ::-1], axis=1)[:, ::-1]  # 1 - pi_1 - ... - pi_(j-1)
    logs = np.log(tails)
    return ((ALPHA - 1.0) * (logs[:, 1:] - logs[:, :-1]) - logs[:, :-1]).sum(axis=1)


def log_any_order(log_weights: Array) -> Array:
    """Return the log of the sum of `log_weight_prior` over all orders of the components, float64 [R]."""
    orders = permutations(range(log_weights.shape[1]))
    return np.logaddexp.reduce([log_weight_prior(log_weights[:, order]) for order in orders])


def swapped(theta: Theta, rng: np.random.Generator) -> Theta:
    """Exchange two components at random in each chain, by Metropolis: the likelihood does not change."""
    n_chains, n_components = theta.log_weights.shape
    order = np.tile(np.arange(n_components), (n_chains, 1))
    chains = np.arange(n_chains)
    one = rng.integers(n_components, size=n_chains)
    other = (one + rng.integers(1, n_components, size=n_chains)) % n_components
    order[chains, one], order[chains, other] = other, one
    new = Theta(*(part[chains[:, None], order] for part in theta))
    ratio = log_weight_prior(new.log_weights) - log_weight_prior(theta.log_weights)
    return theta.take(new, np.log(rng.uniform(size=n_chains)) < ratio)


def coordinates(theta: Theta) -> Array:
    """Return unrestricted coordinates, float64 [R, P]: log ratios of weights, means, Cholesky factors."""
    n_chains, _, dim = theta.means.shape
    rows, columns = np.tril_indices(dim)
    factors = theta.roots[:, :, rows, columns].copy()
    factors[:, :, rows == columns] = np.log(factors[:, :, rows == columns])
    ratios = theta.log_weights[:, :-1] - theta.log_weights[:, -1:]
    return np.concatenate((ratios, theta.means.reshape(n_chains, -1), factors.reshape(n_chains, -1)), axis=1)


def theta_of(at: Array, n_components: int, dim: int) -> Theta:
    """Return the parameters at some coordinates."""
    logits = np.pad(at[:, : n_components - 1], ((0, 0), (0, 1)))
    most = logits.max(axis=1, keepdims=True)
    log_weights = logits - most - np.log(np.exp(logits - most).sum(axis=1, keepdims=True))
    means = at[:, n_components - 1 :][:, : n_components * dim].reshape(-1, n_components, dim)
    rows, columns = np.tril_indices(dim)
    factors = at[:, n_components - 1 + n_components * dim :].reshape(len(at), n_components, -1).copy()
    factors[:, :, rows == columns] = np.exp(factors[:, :, rows == columns])
    roots = np.zeros((len(at), n_components, dim, dim))
    roots[:, :, rows, columns] = factors
    return Theta(log_weights, means, roots)


def in_order(theta: Theta) -> Theta:
    """Return the same mixtures with components in ascending order of their means in the first channel."""
    order = np.argsort(theta.means[:, :, 0], axis=1)
    return Theta(*(part[np.arange(len(order))[:, None], order] for part in theta))
