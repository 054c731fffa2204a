"""The prior of the model: its parameters, and its log density.

The docstring of `dpmix.model.mixture` has the equations. D channels, K components.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammainc, gammaln, multigammaln

from dpmix.model.mixture import HYPERPARAMETERS, LOG_2PI, Array, Hyperparameters, State, live_log1m_sticks

GAMMA_SHAPE = 0.5
GAMMA_FLOOR = 0.5  # of its configured value
NU_STEPS = 2.0 ** (np.arange(-48, 49) / 8.0)
PHI_EXTRA_DOF = 2
PHI_FLOOR = 1e-4
SHIFT_DOF = 3


@dataclass(frozen=True)
class Prior(Hyperparameters):
    """The prior of the mixture.

    Its attributes m, gamma, nu and phi are the values of the hyperparameters that are not learned, and m0,
    gamma0, nu0 and Phi0 of those that are.

    Attributes
    ----------
    alpha_shape, alpha_rate : float
        Gamma prior of the concentration alpha.
    learned : frozenset of str
        Which of alpha, m, gamma, nu and phi are learned.
    kappa_shape, kappa_rate : float
        Gamma prior of the concentration kappa of the samples (`dpmix.model.cohort`).
    shift_scale : float
        Scale of the half-t prior, with `SHIFT_DOF` degrees of freedom, of the spread of shifts.
    """

    alpha_shape: float
    alpha_rate: float
    learned: frozenset[str] = frozenset({"alpha"})
    kappa_shape: float = 1.0
    kappa_rate: float = 0.01
    shift_scale: float = 0.2

    @property
    def centre(self) -> Hyperparameters:
        """The configured values, at which a chain starts."""
        return Hyperparameters(self.m, self.gamma, self.nu, self.phi)

    @property
    def learns_hyperparameters(self) -> bool:
        """True if m, gamma, nu or phi is learned."""
        return not self.learned.isdisjoint(HYPERPARAMETERS)

    @property
    def gamma_least(self) -> float:
        """The lower bound of a learned gamma."""
        return GAMMA_FLOOR * self.gamma

    @property
    def nu_grid(self) -> Array:
        """The values that a learned nu may take, float64 [97]."""
        return self.nu * NU_STEPS

    @property
    def phi_dof(self) -> int:
        """Degrees of freedom of the Wishart prior of Phi."""
        return len(self.m) + PHI_EXTRA_DOF

    @cached_property
    def phi_inverse(self) -> Array:
        """The inverse of Phi, float64 [D, D]."""
        inverse: Array = np.asarray(np.linalg.inv(self.phi), dtype=np.float64)
        return inverse

    @cached_property
    def phi_root(self) -> Array:
        """The lower Cholesky factor of Phi, float64 [D, D]."""
        root: Array = np.linalg.cholesky(self.phi).astype(np.float64)
        return root

    @property
    def phi_least(self) -> Array:
        """The lower bound of a learned Phi, float64 [D, D]: Phi minus this is positive definite."""
        return PHI_FLOOR * self.phi


def log_prior(state: State, prior: Prior) -> float:
    """Return the log prior density of (mu, Sigma, v, alpha) and of the learned hyperparameters, in nats.

    All normalising constants are included, except for the restriction of Phi. A stick at exactly 1 (Bayesian
    EM only) ends the sums over sticks: the sticks after it have no mass and no effect.
    """
    hyper, live = state.hyperparameters, live_log1m_sticks(state.log1m_sticks)
    sticks = len(live) * np.log(state.alpha) + (state.alpha - 1.0) * live.sum()
    shape, rate = prior.alpha_shape, prior.alpha_rate
    alpha = shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(state.alpha) - rate * state.alpha
    return float(_log_components(state) + sticks + alpha) + log_hyperprior(hyper, prior)


@lru_cache(1024)  # of the values of nu, at every sweep
def _log_multigamma(value: float, dim: int) -> float:
    """Return the log of the multivariate gamma function."""
    return float(multigammaln(value, dim))


def _log_components(state: State) -> float:
    """Return the log prior density of (mu, Sigma) given the hyperparameters of the state."""
    n_components, dim = state.means.shape
    hyper = state.hyperparameters
    dof = hyper.nu + dim + 1
    log_det = -2.0 * np.log(np.einsum("kii->ki", state.whiteners)).sum()
    scale = np.linalg.cholesky(hyper.nu * hyper.phi)
    traces = np.square(state.whiteners @ scale).sum()
    shifts = np.einsum("kij,kj->ki", state.whiteners, state.means - hyper.m)
    norm = 0.5 * dof * dim * np.log(2.0)
    covariances = (
        n_components * (dof * np.log(np.diag(scale)).sum() - norm - _log_multigamma(0.5 * dof, dim))
        - 0.5 * (dof + dim + 1) * log_det
        - 0.5 * traces
    )
    means = (
        -0.5 * n_components * dim * (LOG_2PI + np.log(hyper.gamma))
        - 0.5 * log_det
        - 0.5 * np.square(shifts).sum() / hyper.gamma
    )
    return float(covariances + means)


def log_hyperprior(hyper: Hyperparameters, prior: Prior) -> float:
    """Return the log prior density of the hyperparameters that are learned, in nats; 0.0 if none is.

    All normalising constants are included, except for the restriction of Phi. nu contributes the log of its
    probability.
    """
    dim = len(prior.m)
    root = prior.phi_root
    log_det = 2.0 * np.log(np.diag(root)).sum()
    density = 0.0
    if "m" in prior.learned:
        away = np.square(np.linalg.solve(root, hyper.m - prior.m)).sum()
        density -= 0.5 * (dim * (LOG_2PI + np.log(prior.gamma)) + log_det + away / prior.gamma)
    if "gamma" in prior.learned:  # inverse gamma, above its lower bound
        scale = GAMMA_SHAPE * prior.gamma
        density += GAMMA_SHAPE * np.log(scale) - gammaln(GAMMA_SHAPE)
        density -= (GAMMA_SHAPE + 1.0) * np.log(hyper.gamma) + scale / hyper.gamma
        density -= np.log(gammainc(GAMMA_SHAPE, scale / prior.gamma_least))
    if "nu" in prior.learned:
        density -= np.log(len(prior.nu_grid))
    if "phi" in prior.learned:
        dof = prior.phi_dof
        trace = dof * np.trace(np.linalg.solve(prior.phi, hyper.phi))
        density += 0.5 * (dof - dim - 1) * np.linalg.slogdet(hyper.phi)[1] - 0.5 * trace
        density -= 0.5 * dof * (dim * np.log(2.0 / dof) + log_det) + _log_multigamma(0.5 * dof, dim)
    return float(density)
