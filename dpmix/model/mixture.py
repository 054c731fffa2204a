"""The model: a truncated Dirichlet process mixture of multivariate normals, and the values that describe it::

    x_i | z_i = j   ~ N(mu_j, Sigma_j)
    P(z_i = j)      = pi_j,  pi_1 = v_1,  pi_j = v_j prod_{r<j} (1 - v_r),  v_K = 1
    v_j             ~ Beta(1, alpha),  j < K
    alpha           ~ Gamma(e, f)                            shape e, rate f
    mu_j | Sigma_j  ~ N(m, gamma Sigma_j)
    Sigma_j         ~ inverse Wishart(nu + D + 1, nu Phi)    degrees of freedom, scale; E[Sigma_j] = Phi

after Suchard, Wang, Chan, Frelinger, Cron and West (2010), J. Comput. Graph. Stat. 19:419, section 2; the
paper writes the last line IW(nu + 2, nu Phi) in Dawid's notation.

What of m, gamma, nu and Phi is learned varies about the value given for it, m0, gamma0, nu0 or Phi0::

    m       ~ N(m0, gamma0 Phi0)                as the mean of one component is
    1/gamma ~ Gamma(1/2, gamma0 / 2)            mean 1 / gamma0; the weight of one channel of one mean
    nu      = nu0 2^(k/8), k = -48..48          each as likely: flat in log nu, in steps too fine to matter
    Phi     ~ Wishart(D + 2, Phi0 / (D + 2))    mean Phi0; the fewest whole degrees of freedom at which the
                                                inverse has a mean, too

Phi is restricted to where Phi - Phi0 / 10,000 is positive definite (standard deviations above 1/100 of
Phi0's): events piled at one value of a channel would draw an unrestricted Phi down to 0 there, whatever its
Wishart prior, the posterior being without bound. The mass so left out, less than 0.1% up to D = 14 and 5% up
to 64, is not counted in the constant of the density.

N events, D channels, K components. All arrays here are float64 and none depends on N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, multigammaln

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

LOG_2PI = float(np.log(2.0 * np.pi))

# The hyperpriors, see the module's docstring.
HYPERPARAMETERS = ("m", "gamma", "nu", "phi")
GAMMA_SHAPE = 0.5
NU_STEPS = 2.0 ** (np.arange(-48, 49) / 8.0)
PHI_EXTRA_DOF = 2
PHI_FLOOR = 1e-4


@dataclass(frozen=True)
class Hyperparameters:
    """What the prior of the components depends on.

    Attributes
    ----------
    m : float64 [D]
        Prior mean of the component means.
    gamma : float
        Prior variance of a component's mean, in units of its covariance.
    nu : float
        Strength of the prior on the covariances, in events.
    phi : float64 [D, D]
        Prior mean of the covariances.
    """

    m: Array
    gamma: float
    nu: float
    phi: Array


@dataclass(frozen=True)
class Prior(Hyperparameters):
    """Prior of the mixture, in the words of the module's docstring.

    Its own m, gamma, nu and phi are the values of those that are not learned, and m0, gamma0, nu0 and Phi0 of
    those that are.

    Attributes
    ----------
    alpha_shape, alpha_rate : float
        Gamma prior of the concentration alpha.
    learned : frozenset of str
        Which of alpha, m, gamma, nu and phi are learned.
    """

    alpha_shape: float
    alpha_rate: float
    learned: frozenset[str] = frozenset({"alpha"})

    @property
    def centre(self) -> Hyperparameters:
        """The values given, where a chain starts."""
        return Hyperparameters(self.m, self.gamma, self.nu, self.phi)

    @property
    def nu_grid(self) -> Array:
        """The values that nu may take where it is learned, float64 [97]."""
        return self.nu * NU_STEPS

    @property
    def phi_dof(self) -> int:
        """Degrees of freedom of the Wishart prior of Phi."""
        return len(self.m) + PHI_EXTRA_DOF

    @property
    def phi_least(self) -> Array:
        """What a learned Phi exceeds by a positive definite matrix, float64 [D, D]."""
        return PHI_FLOOR * self.phi


@dataclass(frozen=True)
class Mixture:
    """What an engine needs to know of a mixture.

    log pi_j N(x | mu_j, Sigma_j) is log_weights[j] + log_norms[j] - y'y / 2; y = whiteners[j] (x - means[j]).

    Attributes
    ----------
    log_weights : float64 [K]
        log pi_j; -inf for a component that Bayesian EM has emptied.
    means : float64 [K, D]
    whiteners : float64 [K, D, D]
        Lower triangular inverse of the lower Cholesky factor of Sigma_j.
    log_norms : float64 [K]
        log of the normal density at its mean.
    order : int64 [K], optional
        order[j] is the number that component j had when the chain's labels were last drawn, where components
        were renumbered since. The CPU engine prunes by the last labels; its results do not depend on that.
    """

    log_weights: Array
    means: Array
    whiteners: Array
    log_norms: Array
    order: Ints | None = None


@dataclass(frozen=True)
class Stats:
    """Additive sufficient statistics of labelled (or softly labelled) events.

    Attributes
    ----------
    counts : float64 [K]
        Events per component (weighted for Bayesian EM).
    sums : float64 [K, D]
        Sum of x - centre.
    scatters : float64 [K, D, D]
        Sum of (x - centre)(x - centre)', symmetric.
    centres : float64 [K, D]
        What sums and scatters are taken about: the means of the mixture as the engine rounded them.
    log_likelihood : float
        sum_i log sum_j pi_j N(x_i | mu_j, Sigma_j) of the mixture that the labels were drawn from.
    """

    counts: Array
    sums: Array
    scatters: Array
    centres: Array
    log_likelihood: float

    def __add__(self, other: Stats) -> Stats:
        if not np.array_equal(self.centres, other.centres):
            raise ValueError("statistics about different centres cannot be added")
        return Stats(
            self.counts + other.counts,
            self.sums + other.sums,
            self.scatters + other.scatters,
            self.centres,
            self.log_likelihood + other.log_likelihood,
        )


@dataclass(frozen=True)
class State:
    """One state of the chain (or one iterate of Bayesian EM).

    Attributes
    ----------
    iteration : int
        Sweeps (or EM steps) made to reach this state.
    alpha : float
        Concentration of the Dirichlet process.
    log_sticks, log1m_sticks : float64 [K - 1]
        log v_j and log(1 - v_j), kept apart because v_j may round to 1; -inf where Bayesian EM puts a
        stick at exactly 0 or 1.
    means : float64 [K, D]
    covariances : float64 [K, D, D]
    whiteners : float64 [K, D, D]
        Lower triangular inverses of the lower Cholesky factors of the covariances, carried along because
        the sampler draws them and because a resumed chain must go on from the same bits.
    hyperparameters : Hyperparameters
        What the components were drawn given: the prior's own values, but for those that are learned.
    """

    iteration: int
    alpha: float
    log_sticks: Array
    log1m_sticks: Array
    means: Array
    covariances: Array
    whiteners: Array
    hyperparameters: Hyperparameters

    @property
    def n_components(self) -> int:
        return len(self.means)

    @property
    def sticks(self) -> Array:
        """Stick proportions v_j, float64 [K - 1]."""
        return np.exp(self.log_sticks)

    @property
    def log_weights(self) -> Array:
        """log pi_j, float64 [K]."""
        return log_weights(self.log_sticks, self.log1m_sticks)

    @property
    def weights(self) -> Array:
        """pi_j, float64 [K]."""
        return np.exp(self.log_weights)


def log_weights(log_sticks: Array, log1m_sticks: Array) -> Array:
    """log pi_j from the stick proportions (the paper, section 2), float64 [K]."""
    before = np.concatenate(([0.0], np.cumsum(log1m_sticks)))
    return np.concatenate((log_sticks, [0.0])) + before


def mixture_of(state: State, order: Ints | None = None) -> Mixture:
    """The mixture that an engine evaluates, of a `State`; `order` as in `Mixture`."""
    return Mixture(state.log_weights, state.means, state.whiteners, log_norms(state.whiteners), order)


def mixture_from(log_weights: Array, means: Array, covariances: Array) -> Mixture:
    """The mixture that an engine evaluates, of parameters without whiteners.

    Parameters
    ----------
    log_weights : float64 [K]
    means : float64 [K, D]
    covariances : float64 [K, D, D]

    Returns
    -------
    Mixture

    Raises
    ------
    numpy.linalg.LinAlgError
        A covariance is not positive definite.
    """
    whiteners = whiteners_of(covariances)
    return Mixture(log_weights, means, whiteners, log_norms(whiteners))


def whiteners_of(covariances: Array) -> Array:
    """Lower triangular inverses of the lower Cholesky factors, float64 [K, D, D]."""
    return np.tril(np.linalg.inv(np.linalg.cholesky(covariances)))


def log_norms(whiteners: Array) -> Array:
    """Log of normal densities at their means, float64 [K], of whiteners [K, D, D]."""
    diagonals = np.einsum("kii->ki", whiteners)
    norms: Array = np.log(diagonals).sum(axis=1) - 0.5 * whiteners.shape[1] * LOG_2PI
    return norms


def log_prior(state: State, prior: Prior) -> float:
    """Log prior density of (mu, Sigma, v, alpha), and of m, gamma, nu and Phi where they are learned, with
    every normalising constant (but for the restriction of Phi).

    A stick at exactly 1 (Bayesian EM only) ends the sums over sticks: the sticks after it hold no mass and
    say nothing.

    Returns
    -------
    float
        In nats.
    """
    n_components, dim = state.means.shape
    hyper = state.hyperparameters
    dof = hyper.nu + dim + 1
    log_det = -2.0 * np.log(np.einsum("kii->ki", state.whiteners)).sum()
    scale = np.linalg.cholesky(hyper.nu * hyper.phi)
    traces = np.square(state.whiteners @ scale).sum()
    shifts = np.einsum("kij,kj->ki", state.whiteners, state.means - hyper.m)
    covariances = (
        n_components
        * (dof * np.log(np.diag(scale)).sum() - 0.5 * dof * dim * np.log(2.0) - multigammaln(0.5 * dof, dim))
        - 0.5 * (dof + dim + 1) * log_det
        - 0.5 * traces
    )
    means = (
        -0.5 * n_components * dim * (LOG_2PI + np.log(hyper.gamma))
        - 0.5 * log_det
        - 0.5 * np.square(shifts).sum() / hyper.gamma
    )
    live = live_log1m_sticks(state.log1m_sticks)
    sticks = len(live) * np.log(state.alpha) + (state.alpha - 1.0) * live.sum()
    shape, rate = prior.alpha_shape, prior.alpha_rate
    alpha = shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(state.alpha) - rate * state.alpha
    return float(covariances + means + sticks + alpha) + log_hyperprior(hyper, prior)


def log_hyperprior(hyper: Hyperparameters, prior: Prior) -> float:
    """Log prior density of the hyperparameters that are learned (of nu, its probability), with every
    normalising constant; 0.0 where none is.
    """
    dim = len(prior.m)
    root = np.linalg.cholesky(prior.phi)
    log_det = 2.0 * np.log(np.diag(root)).sum()
    density = 0.0
    if "m" in prior.learned:
        away = np.square(np.linalg.solve(root, hyper.m - prior.m)).sum()
        density -= 0.5 * (dim * (LOG_2PI + np.log(prior.gamma)) + log_det + away / prior.gamma)
    if "gamma" in prior.learned:  # inverse gamma
        scale = GAMMA_SHAPE * prior.gamma
        density += GAMMA_SHAPE * np.log(scale) - gammaln(GAMMA_SHAPE)
        density -= (GAMMA_SHAPE + 1.0) * np.log(hyper.gamma) + scale / hyper.gamma
    if "nu" in prior.learned:
        density -= np.log(len(prior.nu_grid))
    if "phi" in prior.learned:
        dof = prior.phi_dof
        trace = dof * np.trace(np.linalg.solve(prior.phi, hyper.phi))
        density += 0.5 * (dof - dim - 1) * np.linalg.slogdet(hyper.phi)[1] - 0.5 * trace
        density -= 0.5 * dof * (dim * np.log(2.0 / dof) + log_det) + multigammaln(0.5 * dof, dim)
    return float(density)


def live_log1m_sticks(log1m_sticks: Array) -> Array:
    """log(1 - v_j) of the sticks before the first that is exactly 1, float64 [at most K - 1]."""
    ends = np.flatnonzero(np.isneginf(log1m_sticks))
    return log1m_sticks[: ends[0]] if len(ends) else log1m_sticks


def occupied(counts: Array) -> int:
    """Number of components that hold an event (at least half an event's weight, for Bayesian EM)."""
    return int((counts >= 0.5).sum())
