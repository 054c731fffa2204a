"""Bayesian EM: one step, given the statistics of the events weighted by their responsibilities.

Suchard et al. (2010), Appendix A.2; what is learned of m, gamma, nu and Phi moves first. Pure functions; the
engine forms the statistics.

The paper takes (mu_j, Sigma_j) to posterior means, with which the log posterior may fall. With posterior
modes every part of the step maximises, given the others, what EM bounds the log posterior from below by (ECM:
Meng and Rubin 1993, Biometrika 80:267), so that it never falls. A stick that reaches 1 ends the mixture there
for good: the log posterior is from then on that of the shorter one, with which the theorem begins anew.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import psi

from dpmix.model import hyperparameters
from dpmix.model.gibbs import Posterior, Sticks, later, mean_covariances, posterior
from dpmix.model.hyperparameters import Components
from dpmix.model.mixture import (
    HYPERPARAMETERS,
    Array,
    Hyperparameters,
    Prior,
    State,
    Stats,
    live_log1m_sticks,
    whiteners_of,
)

Update = Literal["mean", "mode"]


class Info(NamedTuple):
    """What a step did, beside the new state.

    Attributes
    ----------
    emptied : int
        Components without any weight of events.
    """

    emptied: int


def step(state: State, stats: Stats, prior: Prior, update: Update = "mean") -> tuple[State, Info]:
    """One step of Bayesian EM.

    Components may empty; that is the method cutting back K.

    mean: the hyperparameters that are learned go up, by a step of EM of their own, in log p(m, gamma, nu,
    Phi) plus the log density of the weighted events of each component, its (mu_j, Sigma_j) integrated out.
    Then (mu_j, Sigma_j) go to the posterior means of their normal inverse Wishart conditional, the sticks and
    alpha to the modes of theirs.

    mode: everything goes to the mode of its conditional: the hyperparameters given the components as they
    are, empty ones too, then (mu_j, Sigma_j) jointly, the sticks, alpha.

    Parameters
    ----------
    state : State
        The state that the responsibilities were taken at.
    stats : Stats
        Weighted statistics; their sum of counts is the number of events.
    prior : Prior
        Hyperparameters and alpha move where it says so, and are kept otherwise.
    update : str
        "mean" or "mode".

    Returns
    -------
    state : State
    info : Info

    Raises
    ------
    numpy.linalg.LinAlgError
        If a component's scatter is not positive definite to float64 (collinear channels).
    """
    hyper = state.hyperparameters
    if prior.learned.intersection(HYPERPARAMETERS):
        if update == "mean":
            components = expected_components(posterior(stats, hyper), stats.counts > 0, hyper.m)
        else:
            components = hyperparameters.summarise(state.means, state.whiteners, hyper.m)
        hyper = hyperparameters.modes(components, hyper, prior)
    to_parameters = expected_parameters if update == "mean" else modal_parameters
    means, covariances, whiteners = to_parameters(stats, hyper)
    sticks = modal_sticks(stats.counts, state.alpha, np.isneginf(state.log1m_sticks))
    alpha = modal_alpha(sticks.log1m_sticks, prior, state.alpha) if "alpha" in prior.learned else state.alpha
    return (
        State(
            iteration=state.iteration + 1,
            alpha=alpha,
            log_sticks=sticks.log_sticks,
            log1m_sticks=sticks.log1m_sticks,
            means=means,
            covariances=covariances,
            whiteners=whiteners,
            hyperparameters=hyper,
        ),
        Info(emptied=int((stats.counts == 0).sum())),
    )


def expected_parameters(stats: Stats, hyper: Hyperparameters) -> tuple[Array, Array, Array]:
    """Posterior means of (mu_j, Sigma_j), and the whiteners of the latter: [K, D], [K, D, D], [K, D, D]."""
    conditional = posterior(stats, hyper)
    covariances = mean_covariances(conditional)
    return conditional.means, covariances, whiteners_of(covariances)


def modal_parameters(stats: Stats, hyper: Hyperparameters) -> tuple[Array, Array, Array]:
    """The joint mode of (mu_j, Sigma_j), and the whiteners of the latter: [K, D], [K, D, D], [K, D, D]."""
    conditional = posterior(stats, hyper)
    covariances = conditional.scales / (conditional.dofs + len(hyper.m) + 2)[:, None, None]
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


def modal_sticks(counts: Array, alpha: float, ended: npt.NDArray[np.bool_]) -> Sticks:
    """v_j = min(1, max(0, n_j / (alpha - 1 + sum_{r>=j} n_r))), the mode of its beta conditional, in logs.

    Where that beta density grows without bound towards 1 (alpha below 1 and nothing after j) any weight of
    events at j puts the stick at 1; without one it is put at 0. Where a stick has `ended` the mixture, a
    mask [K - 1], it stays at 1.
    """
    held, after = counts[:-1], np.maximum(0.0, alpha - 1.0 + later(counts)[:-1])
    after = np.where(held + after > 0, after, 1.0)
    sticks = np.where(ended, 1.0, held / (held + after))
    remaining = np.where(ended, 0.0, after / (held + after))
    with np.errstate(divide="ignore"):
        return Sticks(np.log(sticks), np.log(remaining))


def modal_alpha(log1m_sticks: Array, prior: Prior, alpha: float) -> float:
    """The mode of Gamma(e + K - 1, f - sum_{j<K} log(1 - v_j)); kept where that has no mode above 0.

    A stick that reaches 1 ends the sum: K - 1 is then the number of sticks before it.
    """
    live = live_log1m_sticks(log1m_sticks)
    shape = prior.alpha_shape + len(live) - 1.0
    return float(shape / (prior.alpha_rate - live.sum())) if shape > 0 else alpha
