"""Bayesian EM: one step, given the statistics of the events weighted by their responsibilities.

Suchard et al. (2010), Appendix A.2; what is learned of m, gamma, nu and Phi moves first. Pure functions; the
engine forms the statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import psi

from dpmix import hyperparameters
from dpmix.gibbs import Posterior, Sticks, later, posterior
from dpmix.hyperparameters import Components
from dpmix.model import HYPERPARAMETERS, Array, Hyperparameters, Prior, State, Stats, live_rests


class Info(NamedTuple):
    """What a step did, beside the new state."""

    emptied: int


def step(state: State, stats: Stats, prior: Prior) -> tuple[State, Info]:
    """One step of Bayesian EM.

    The hyperparameters that are learned go up, by a step of EM of their own, in log p(m, gamma, nu, Phi) plus
    the log density of the weighted events of each component, its (mu_j, Sigma_j) integrated out. Then
    (mu_j, Sigma_j) go to the posterior means of their normal inverse Wishart conditional, the sticks and
    alpha to the modes of theirs. Components may empty; that is the method cutting back K.

    Parameters
    ----------
    state : State
        The state that the responsibilities were taken at.
    stats : Stats
        Weighted statistics; their sum of counts is the number of events.
    prior : Prior
        Hyperparameters and alpha move where it says so, and are kept otherwise.

    Returns
    -------
    state : State
    info : Info

    Raises
    ------
    numpy.linalg.LinAlgError
        If a component's scatter is not positive definite to float64 (collinear channels).
    """
    given = state.hyperparameters
    if prior.learned.intersection(HYPERPARAMETERS):
        components = expected_components(posterior(stats, given), stats.counts > 0, given.m)
        given = hyperparameters.modes(components, given, prior)
    means, covariances, whiteners = expected_parameters(stats, given)
    sticks = modal_sticks(stats.counts, state.alpha)
    alpha = modal_alpha(sticks.log_rests, prior, state.alpha) if "alpha" in prior.learned else state.alpha
    return (
        State(
            iteration=state.iteration + 1,
            alpha=alpha,
            log_sticks=sticks.log_sticks,
            log_rests=sticks.log_rests,
            means=means,
            covariances=covariances,
            whiteners=whiteners,
            hyperparameters=given,
        ),
        Info(emptied=int((stats.counts == 0).sum())),
    )


def expected_parameters(stats: Stats, given: Hyperparameters) -> tuple[Array, Array, Array]:
    """Posterior means of (mu_j, Sigma_j), and the whiteners of the latter: [K, D], [K, D, D], [K, D, D]."""
    conditional = posterior(stats, given)
    covariances = conditional.scales / (conditional.dofs - len(given.m) - 1)[:, None, None]
    return conditional.means, covariances, whiteners_of(covariances)


def expected_components(conditional: Posterior, held: npt.NDArray[np.bool_], m: Array) -> Components:
    """Expectations of what the hyperparameters ask of the components that hold events, a mask [K]."""
    dim = len(m)
    dofs = conditional.dofs[held]
    whiteners = np.sqrt(dofs)[:, None, None] * whiteners_of(conditional.scales[held])  # of 1 / E[1 / Sigma_j]
    sums = hyperparameters.summarise(conditional.means[held], whiteners, m)
    digammas = psi(0.5 * (dofs[:, None] - np.arange(dim)))
    return sums._replace(
        spread=sums.spread + dim * float((1.0 / conditional.precisions[held]).sum()),
        log_det=sums.log_det + float(dim * np.log(0.5 * dofs).sum() - digammas.sum()),
    )


def modal_sticks(counts: Array, alpha: float) -> Sticks:
    """v_j = min(1, max(0, n_j / (alpha - 1 + sum_{r>=j} n_r))), the mode of its beta conditional, in logs.

    Where that beta density grows without bound towards 1 (alpha below 1 and nothing after j) the formula's
    quotient passes 1 or its denominator is not positive; an event's weight at j then puts the stick at 1.
    """
    held, total = counts[:-1], (alpha - 1.0) + counts[:-1] + later(counts)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(total > 0, held / total, np.where(held > 0, 1.0, 0.0))
        sticks = np.clip(quotient, 0.0, 1.0)
        return Sticks(np.log(sticks), np.log1p(-sticks))


def modal_alpha(log_rests: Array, prior: Prior, alpha: float) -> float:
    """The mode of Gamma(e + K - 1, f - sum_{j<K} log(1 - v_j)); kept where that has no mode above 0.

    A stick that reaches 1 ends the sum: K - 1 is then the number of sticks before it.
    """
    rests = live_rests(log_rests)
    shape = prior.alpha_shape + len(rests) - 1.0
    return float(shape / (prior.alpha_rate - rests.sum())) if shape > 0 else alpha


def whiteners_of(covariances: Array) -> Array:
    """Lower triangular inverses of the lower Cholesky factors, float64 [K, D, D]."""
    return np.tril(np.linalg.inv(np.linalg.cholesky(covariances)))
