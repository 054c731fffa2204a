"""The model, a truncated Dirichlet process mixture of multivariate normals, and the types of its values.

The model is::

    x_i | z_i = j   ~ N(mu_j, Sigma_j)
    P(z_i = j)      = pi_j,  pi_1 = v_1,  pi_j = v_j prod_{r<j} (1 - v_r),  v_K = 1
    v_j             ~ Beta(1, alpha),  j < K
    alpha           ~ Gamma(e, f)                            shape e, rate f
    mu_j | Sigma_j  ~ N(m, gamma Sigma_j)
    Sigma_j         ~ inverse Wishart(nu + D + 1, nu Phi)    degrees of freedom, scale; E[Sigma_j] = Phi

This is the model of Suchard, Wang, Chan, Frelinger, Cron and West (2010), J. Comput. Graph. Stat. 19:419,
section 2. That paper, below "the paper", writes the last line as IW(nu + 2, nu Phi), in Dawid's notation.

Each of m, gamma, nu and Phi that is learned varies about its configured value, m0, gamma0, nu0 or Phi0::

    m       ~ N(m0, gamma0 Phi0)                like the mean of one component
    1/gamma ~ Gamma(1/2, gamma0 / 2)            mean 1 / gamma0; the weight of one channel of one mean
    nu      = nu0 2^(k/8), k = -48..48          equally likely: flat in log nu, in steps too fine to matter
    Phi     ~ Wishart(D + 2, Phi0 / (D + 2))    mean Phi0; D + 2 is the smallest whole number of degrees of
                                                freedom at which the inverse has a mean, too

gamma is restricted to values of at least gamma0 / 2. The reason is a prior that collapses: components that
are all copies of one large population are evidence for a gamma near 0, which then keeps every component near
m, also where 100 events lie six standard deviations away.

Phi is restricted to matrices for which Phi - Phi0 / 10,000 is positive definite; that is, to standard
deviations above 1/100 of the standard deviations of Phi0. The reason is events piled at one value of a
channel: they make the posterior of an unrestricted Phi unbounded, and would draw its variance in that channel
to 0 under any Wishart prior. The restriction leaves out less than 0.1% of the prior mass for D up to 14, and
5% for D up to 64. The normalising constant of the density ignores this.

N events, D channels, K components. All arrays here are float64, and the size of none depends on N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.kernels import _cpu

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

LOG_2PI = float(np.log(2.0 * np.pi))
HYPERPARAMETERS = ("m", "gamma", "nu", "phi")


@dataclass(frozen=True)
class Hyperparameters:
    """Parameters of the prior of the components.

    Attributes
    ----------
    m : float64 [D]
        Prior mean of the component means.
    gamma : float
        Prior variance of a component's mean, in units of its covariance.
    nu : float
        Strength of the prior of the covariances, in events.
    phi : float64 [D, D]
        Prior mean of the covariances.
    """

    m: Array
    gamma: float
    nu: float
    phi: Array


class SampleTerms(NamedTuple):
    """Weights and shifts of the samples in a mixture.

    Attributes
    ----------
    log_weights : float64 [S, K]
        log pi_sj.
    shifts : float64 [S, D]
        Shift of all component means.
    """

    log_weights: Array
    shifts: Array


@dataclass(frozen=True)
class Mixture:
    """The values of a mixture that an engine requires.

    log pi_j N(x | mu_j, Sigma_j) is log_weights[j] + log_norms[j] - y'y / 2, where
    y = whiteners[j] (x - means[j]).

    Attributes
    ----------
    log_weights : float64 [K]
        log pi_j; -inf for a component that Bayesian EM has emptied.
    means : float64 [K, D]
    whiteners : float64 [K, D, D]
        Lower triangular inverse of the lower Cholesky factor of Sigma_j.
    log_norms : float64 [K]
        Log of the normal density at its mean.
    order : int64 [K], optional
        order[j] is the number that component j had when the labels of the chain were last drawn; None if the
        components have kept their numbers. The CPU engine uses the last labels for pruning; its results do
        not depend on them.
    samples : SampleTerms, optional
        Weights and shift of each sample in the hierarchical model (`dpmix.model.cohort`); log_weights are
        then the weights in all events together. None: all samples have the same.
    """

    log_weights: Array
    means: Array
    whiteners: Array
    log_norms: Array
    order: Ints | None = None
    samples: SampleTerms | None = None


class SampleStats(NamedTuple):
    """Statistics of labelled events by sample, in the hierarchical model.

    Attributes
    ----------
    counts : float64 [S, K]
        Events of each component in each sample.
    sums : float64 [S, K, D]
        Sums of x - shift - centre.
    """

    counts: Array
    sums: Array

    def reordered(self, order: Ints | None) -> SampleStats:
        """Return the statistics with component order[j] in place j; None leaves them as they are."""
        return self if order is None else SampleStats(self.counts[:, order], self.sums[:, order])


@dataclass(frozen=True)
class Stats:
    """Additive sufficient statistics of labelled events, or of events weighted by responsibilities.

    Attributes
    ----------
    counts : float64 [K]
        Events of each component (sums of weights for Bayesian EM).
    sums : float64 [K, D]
        Sums of x - centre.
    scatters : float64 [K, D, D]
        Sums of (x - centre)(x - centre)', symmetric.
    centres : float64 [K, D]
        The points about which sums and scatters are taken: the mixture's means as the engine rounded them.
    log_likelihood : float
        sum_i log sum_j pi_j N(x_i | mu_j, Sigma_j) of the mixture that the labels were drawn from, in nats.
    by_sample : SampleStats, optional
        Statistics by sample, for a mixture with weights and shifts of samples; the shifts are subtracted from
        the events in all statistics.
    """

    counts: Array
    sums: Array
    scatters: Array
    centres: Array
    log_likelihood: float
    by_sample: SampleStats | None = None

    def __add__(self, other: Stats) -> Stats:
        """Return the statistics of both sets of events, about the same centres, as an engine adds chunks."""
        if not np.array_equal(self.centres, other.centres):
            raise ValueError("statistics about different centres cannot be added")
        by_sample = None
        if self.by_sample is not None and other.by_sample is not None:
            pairs = zip(self.by_sample, other.by_sample, strict=True)
            by_sample = SampleStats(*(own + theirs for own, theirs in pairs))
        return Stats(
            self.counts + other.counts,
            self.sums + other.sums,
            self.scatters + other.scatters,
            self.centres,
            self.log_likelihood + other.log_likelihood,
            by_sample,
        )


class Sticks(NamedTuple):
    """The stick proportions and their complements, as logs.

    Attributes
    ----------
    log_sticks : float64 [K - 1]
        log v_j.
    log1m_sticks : float64 [K - 1]
        log(1 - v_j).
    """

    log_sticks: Array
    log1m_sticks: Array


class Parameters(NamedTuple):
    """The parameters of all components.

    Attributes
    ----------
    means : float64 [K, D]
    covariances : float64 [K, D, D]
    whiteners : float64 [K, D, D]
        Lower triangular inverses, with positive diagonals, of the lower Cholesky factors of the covariances.
    """

    means: Array
    covariances: Array
    whiteners: Array


class Factors(NamedTuple):
    """Distributions of the weights and shifts of samples in Bayesian EM (`dpmix.model.cohort_bem`).

    Attributes
    ----------
    sizes : float64 [S]
        Sum of the parameters of the Dirichlet distribution of pi_s.
    covariances : float64 [G, D, D]
        Covariances of the normal distributions of the shifts, before the condition that they sum to 0.
    pass_weights : float64 [S, K]
    """

    sizes: Array
    covariances: Array
    pass_weights: Array


@dataclass(frozen=True, eq=False)
class Cohort:
    """The part of a state that differs between samples, in the hierarchical model (`dpmix.model.cohort`).

    Attributes
    ----------
    kappa : float
        Concentration of the weights of the samples about beta.
    log_weights : float64 [S, K]
        log pi_sj.
    shifts : float64 [G, D]
        Different shifts; they sum to 0. G is 0 in a model without shifts.
    taus : float64 [D] or [0]
        Standard deviation of the shifts in each channel.
    groups : int64 [S]
        The shift of each sample, 0 to G - 1; -1 without shifts.
    shares : float64 [S]
        Share of each sample in all events; they sum to 1.
    factors : Factors, optional
        In Bayesian EM: pi_sj and shifts are then the means of these distributions.
    """

    kappa: float
    log_weights: Array
    shifts: Array
    taus: Array
    groups: Ints
    shares: Array
    factors: Factors | None = None

    @property
    def pass_weights(self) -> Array:
        """Log weights of the components in a pass over the events, float64 [S, K]."""
        return self.log_weights if self.factors is None else self.factors.pass_weights

    @property
    def sample_shifts(self) -> Array:
        """The shift of each sample, float64 [S, D]; 0 without shifts."""
        if not len(self.shifts):
            return np.zeros((len(self.groups), self.shifts.shape[1]))
        return self.shifts[self.groups]

    @property
    def mean_log_weights(self) -> Array:
        """Log weights of the components in all events together, float64 [K]."""
        with np.errstate(divide="ignore"):  # a sample without events
            terms = np.log(self.shares)[:, None] + self.log_weights
        means: Array = np.logaddexp.reduce(terms, axis=0)
        return means


@dataclass(frozen=True)
class State:
    """One state of the chain, or one iterate of Bayesian EM.

    Attributes
    ----------
    iteration : int
        Sweeps or EM steps made to reach this state.
    alpha : float
        Concentration of the Dirichlet process.
    log_sticks, log1m_sticks : float64 [K - 1]
        log v_j and log(1 - v_j), both stored because v_j may round to 1; -inf where Bayesian EM puts a stick
        at exactly 0 or 1.
    means : float64 [K, D]
    covariances : float64 [K, D, D]
    whiteners : float64 [K, D, D]
        Lower triangular inverses of the lower Cholesky factors of the covariances, stored because the sampler
        draws them and because a resumed chain must continue from the same bits.
    hyperparameters : Hyperparameters
        The values under which the components were drawn: the prior's, except where they are learned.
    cohort : Cohort, optional
        In the hierarchical model; the sticks are then the sticks of beta.
    """

    iteration: int
    alpha: float
    log_sticks: Array
    log1m_sticks: Array
    means: Array
    covariances: Array
    whiteners: Array
    hyperparameters: Hyperparameters
    cohort: Cohort | None = None

    @property
    def n_components(self) -> int:
        """The truncation K."""
        return len(self.means)

    @property
    def sticks(self) -> Array:
        """Stick proportions v_j, float64 [K - 1]."""
        return np.exp(self.log_sticks)

    @property
    def log_base_weights(self) -> Array:
        """Log weights that the sticks give, float64 [K]: log pi_j, log beta_j in the hierarchical model."""
        return log_weights(self.log_sticks, self.log1m_sticks)

    @property
    def log_weights(self) -> Array:
        """log pi_j, float64 [K]; in the hierarchical model for all events together."""
        return self.log_base_weights if self.cohort is None else self.cohort.mean_log_weights

    @property
    def weights(self) -> Array:
        """pi_j, float64 [K]."""
        return np.exp(self.log_weights)


def log_weights(log_sticks: Array, log1m_sticks: Array) -> Array:
    """Return log pi_j of the stick proportions (the paper, section 2), float64 [K]."""
    weights = np.zeros(len(log_sticks) + 1)
    log1m_sticks.cumsum(out=weights[1:])
    weights[:-1] += log_sticks
    return weights


def live_log1m_sticks(log1m_sticks: Array) -> Array:
    """Return log(1 - v_j) of the sticks before the first that is exactly 1, float64 [at most K - 1]."""
    ends = np.flatnonzero(np.isneginf(log1m_sticks))
    return log1m_sticks[: ends[0]] if len(ends) else log1m_sticks


def mixture_of(state: State, order: Ints | None = None) -> Mixture:
    """Return the mixture of a state, as an engine evaluates it; `order` as in `Mixture`."""
    own = state.cohort
    samples = None if own is None else SampleTerms(own.pass_weights, own.sample_shifts)
    return Mixture(
        state.log_weights, state.means, state.whiteners, log_norms(state.whiteners), order, samples
    )


def mixture_from(log_weights: Array, means: Array, covariances: Array) -> Mixture:
    """Return the mixture, as an engine evaluates it, of parameters without whiteners.

    Parameters
    ----------
    log_weights : float64 [K]
    means : float64 [K, D]
    covariances : float64 [K, D, D]

    Raises
    ------
    numpy.linalg.LinAlgError
        A covariance is not positive definite.
    """
    whiteners = whiteners_of(covariances)
    return Mixture(log_weights, means, whiteners, log_norms(whiteners))


def whiteners_of(covariances: Array) -> Array:
    """Return the lower triangular inverses of the lower Cholesky factors, float64 [K, D, D].

    Raises
    ------
    numpy.linalg.LinAlgError
        A covariance is not positive definite to float64.
    """
    whiteners = np.empty(covariances.shape)
    failed = _cpu.whiteners(covariances, whiteners)
    if failed >= 0:
        raise np.linalg.LinAlgError(f"the covariance of component {failed} is not positive definite")
    return whiteners


def log_norms(whiteners: Array) -> Array:
    """Return the logs of normal densities at their means, float64 [K], from whiteners [K, D, D]."""
    diagonals = np.einsum("kii->ki", whiteners)
    norms: Array = np.log(diagonals).sum(axis=1) - 0.5 * whiteners.shape[1] * LOG_2PI
    return norms


def no_events(n_components: int, dim: int) -> Stats:
    """Return the statistics of zero events, in new arrays."""
    return Stats(
        counts=np.zeros(n_components),
        sums=np.zeros((n_components, dim)),
        scatters=np.zeros((n_components, dim, dim)),
        centres=np.zeros((n_components, dim)),
        log_likelihood=0.0,
    )


def occupied(counts: Array) -> int:
    """Return the number of components that hold an event (at least half an event's weight in Bayesian EM)."""
    return int((counts >= 0.5).sum())
