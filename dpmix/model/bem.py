"""Bayesian EM: one step, given the statistics of the events weighted by their responsibilities.

After Suchard et al. (2010), Appendix A.2. All functions are pure; the engine computes the statistics. The
hyperparameters that are learned move first.

The paper moves (mu_j, Sigma_j) to their posterior means, which may lower the log posterior. With posterior
modes, each part of the step maximises the lower bound of the log posterior that EM uses, given the other
parts (ECM: Meng and Rubin 1993, Biometrika 80:267), so the log posterior never falls. A stick that reaches 1
ends the mixture there for good: from then on, the log posterior is the shorter mixture's, to which the
theorem applies in turn.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import psi

from dpmix.model import cohort_bem, hyperparameters
from dpmix.model.coarsening import coarsened
from dpmix.model.hyperparameters import Components
from dpmix.model.mixture import (
    Array,
    Hyperparameters,
    Parameters,
    State,
    Stats,
    live_log1m_sticks,
    whiteners_of,
)
from dpmix.model.normal_wishart import Posterior, mean_covariances, posterior
from dpmix.model.prior import Prior
from dpmix.model.resolution import blurred
from dpmix.model.stick_breaking import modal_sticks

Update = Literal["mean", "mode"]


class StepInfo(NamedTuple):
    """Counts of components, which a step returns with the new state.

    Attributes
    ----------
    empty : int
        Components to which no event gives any weight: n_j is exactly 0 in the statistics of this step.
    emptied : int
        Components whose weight pi_j is above 0 in the old state and exactly 0 in the new one: their stick is
        put at 0, or an earlier stick is put at 1. A weight of 0 stays 0, so the sum over the steps of a start
        is the number of components that the start has emptied.
    """

    empty: int
    emptied: int


def step(
    state: State,
    stats: Stats,
    prior: Prior,
    update: Update = "mean",
    *,
    zeta: float = 1.0,
    resolution: Array | None = None,
) -> tuple[State, StepInfo]:
    """Make one step of Bayesian EM. Components may become empty; this is how the method reduces K.

    mean: the hyperparameters that are learned make an EM step of their own, which increases log p(m, gamma,
    nu, Phi) plus the log density of the weighted events of each component, with (mu_j, Sigma_j) integrated
    out. Then (mu_j, Sigma_j) move to the posterior means of their normal inverse Wishart conditional, and the
    sticks and alpha to the modes of theirs.

    In the hierarchical model, tables take the place of counts for the sticks; see `dpmix.model.cohort_bem`.

    mode: everything moves to the mode of its conditional. The hyperparameters move first, given the present
    components (empty ones, too), then (mu_j, Sigma_j) jointly, the sticks, and alpha.

    Parameters
    ----------
    state : State
        The state at which the responsibilities were computed.
    stats : Stats
        Weighted statistics; the sum of their counts is the number of events.
    prior : Prior
        Its `learned` says which hyperparameters move and whether alpha does.
    update : str
        "mean" or "mode".
    zeta : float
        What an event counts, above 0 and at most 1; see `dpmix.model.coarsening`.
    resolution : float64 [D], optional
        Standard deviation of one measurement; see `dpmix.model.resolution`. The responsibilities must come
        from the mixture by `dpmix.model.resolution.of_clouds`.

    Returns
    -------
    state : State
    info : Info

    Raises
    ------
    numpy.linalg.LinAlgError
        The scatter of a component is not positive definite to float64 (collinear channels).
    """
    stats, own = blurred(coarsened(stats, zeta), resolution), state.cohort
    if own is not None:
        stats = cohort_bem.with_spread(stats, own)
    hyper = _move_hyperparameters(state, stats, prior, update)
    parameters = (expected_parameters if update == "mean" else modal_parameters)(stats, hyper)
    if own is None:
        sticks = modal_sticks(stats.counts, state.alpha, np.isneginf(state.log1m_sticks))
    else:
        sticks, own = cohort_bem.move(state, stats, parameters, prior)
    alpha = modal_alpha(sticks.log1m_sticks, prior, state.alpha) if "alpha" in prior.learned else state.alpha
    following = State(state.iteration + 1, alpha, *sticks, *parameters, hyper, own)
    emptied = np.isneginf(following.log_weights) & ~np.isneginf(state.log_weights)
    return following, StepInfo(empty=int((stats.counts == 0).sum()), emptied=int(emptied.sum()))


def _move_hyperparameters(state: State, stats: Stats, prior: Prior, update: Update) -> Hyperparameters:
    """Return the hyperparameters after a step; see `step`."""
    hyper = state.hyperparameters
    if not prior.learns_hyperparameters:
        return hyper
    if update == "mean":
        components = expected_components(posterior(stats, hyper), stats.counts > 0, hyper.m)
    else:
        components = hyperparameters.summarise(state.means, state.whiteners, hyper.m)
    return hyperparameters.modes(components, hyper, prior)


def expected_parameters(stats: Stats, hyper: Hyperparameters) -> Parameters:
    """Return the posterior means of mu_j and Sigma_j."""
    conditional = posterior(stats, hyper)
    covariances = mean_covariances(conditional)
    return Parameters(conditional.means, covariances, whiteners_of(covariances))


def modal_parameters(stats: Stats, hyper: Hyperparameters) -> Parameters:
    """Return the joint posterior mode of (mu_j, Sigma_j)."""
    conditional = posterior(stats, hyper)
    # dof + D + 1 is the denominator for the mode of Sigma alone; the density of mu given Sigma adds a factor
    # |Sigma|^(-1/2).
    covariances = conditional.scales / (conditional.dofs + len(hyper.m) + 2)[:, None, None]
    return Parameters(conditional.means, covariances, whiteners_of(covariances))


def expected_components(conditional: Posterior, held: npt.NDArray[np.bool_], m: Array) -> Components:
    """Return the expected sums of the components that hold events.

    Parameters
    ----------
    conditional : Posterior
    held : bool [K]
        The components that hold events.
    m : float64 [D]
        The point about which the sums are taken.
    """
    dim = len(m)
    dofs = conditional.dofs[held]
    whiteners = np.sqrt(dofs)[:, None, None] * whiteners_of(conditional.scales[held])  # of 1 / E[1 / Sigma_j]
    sums = hyperparameters.summarise(conditional.means[held], whiteners, m)
    digammas = psi(0.5 * (dofs[:, None] - np.arange(dim)))
    return sums._replace(
        # Expectations of the sums, not sums at the expectations: what the uncertainty of mu and Sigma adds.
        spread=sums.spread + dim * float((1.0 / conditional.precisions[held]).sum()),
        log_det=sums.log_det + float(dim * np.log(0.5 * dofs).sum() - digammas.sum()),
    )


def modal_alpha(log1m_sticks: Array, prior: Prior, alpha: float) -> float:
    """Return the mode of Gamma(e + K - 1, f - sum_{j<K} log(1 - v_j)), or `alpha` if none is above 0.

    A stick that reaches 1 ends the sum; K - 1 is then the number of sticks before it.
    """
    live = live_log1m_sticks(log1m_sticks)
    shape = prior.alpha_shape + len(live) - 1.0
    return float(shape / (prior.alpha_rate - live.sum())) if shape > 0 else alpha


def has_settled(before: float, after: float, tolerance: float, events: float) -> bool:
    """Return whether a step changed the log posterior by little, relative to its size, or to the events.

    The log posterior of a density may pass through 0, where nothing is little relative to its size.

    Parameters
    ----------
    before, after : float
        Log posterior, in nats.
    tolerance : float
    events : float
        Number of events that the events count as.
    """
    return abs(after - before) <= tolerance * max(abs(after), events)
