"""Bayesian EM of the hierarchical model (`dpmix.model.cohort`): weights and shifts of samples are latent.

Their joint mode with the other unknowns does not exist: the density has no bound where tau or kappa goes to 0
and the shifts or weights with it. So the step is a variational one (Beal 2003, Variational algorithms for
approximate Bayesian inference, section 2.2). With phi all other unknowns, it raises

    F = E[log p(x, z, pi, delta | phi)] + log p(phi) + H(q),    q(z) q(pi) q(delta),

which is at most log p(x, phi), the log posterior with labels, weights and shifts integrated out. Each factor
is the best one given the others:

- q(z): responsibilities under the weights exp(E[log pi_sj] - tr(Sigma_j^-1 V_s) / 2) and the shifts d_s;
- q(pi_s) = Dirichlet(kappa beta + n_s);
- q(delta): normal with means d_s, conditioned on their sum as the sampler's draw; V_s are its covariances.

The scatter of a component gains sum_s n_sj V_s. tau_d goes to its mode given E[delta^2]. Sticks and kappa go
towards the maximum of a concave function that touches F, with q(pi) at its best, and has the same gradient:
the function of expected table counts (Minka 2012, Estimating a Dirichlet distribution, section 1; Teh et al.
2008, Adv. Neural Inf. Process. Syst. 20:1481). Counts below 1 may break its bound, so the step is halved
until F does not fall.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import gammaln, psi

from dpmix.model.cohort import LEAST_SHAPE, log_prior_of_scales, shapes_of, shift_terms
from dpmix.model.mixture import (
    LOG_2PI,
    Array,
    Cohort,
    Factors,
    Parameters,
    State,
    Stats,
    Sticks,
    live_log1m_sticks,
    log_weights,
)
from dpmix.model.prior import SHIFT_DOF, Prior
from dpmix.model.stick_breaking import modal_sticks

HALVINGS = 30  # of a step that would lower the bound; then it is not made


def start(state: State, sizes: Array) -> State:
    """Return a state with factors as if the events of every sample had the weights beta, and shifts 0.

    Parameters
    ----------
    state : State
        With the initial values of `dpmix.model.cohort.start`.
    sizes : float64 [S]
        What the events of each sample count as.
    """
    own = state.cohort
    assert own is not None
    inverses = state.whiteners.transpose(0, 2, 1) @ state.whiteners
    average = np.einsum("k,kij->ij", np.exp(state.log_base_weights), inverses)
    held = np.array([sizes[own.groups == group].sum() for group in range(len(own.shifts))])
    precisions = held[:, None, None] * average + np.diag(own.taus**-2.0) if len(held) else _no_shifts(own)
    covariances = np.linalg.inv(precisions)
    shapes = np.exp(own.log_weights) * (own.kappa + sizes)[:, None]
    return replace(state, cohort=_with_factors(own, shapes, covariances, state.whiteners))


def with_spread(stats: Stats, own: Cohort) -> Stats:
    """Return the statistics with the expected spread of the shifts in the scatters."""
    assert stats.by_sample is not None
    if not len(own.shifts):
        return stats
    assert own.factors is not None
    covariances = given_their_sum(own.factors.covariances)
    spread = np.einsum("sk,sij->kij", stats.by_sample.counts, covariances[own.groups])
    return replace(stats, scatters=stats.scatters + spread)


def move(state: State, stats: Stats, parameters: Parameters, prior: Prior) -> tuple[Sticks, Cohort]:
    """Move the factors, tau, kappa and the sticks, given responsibilities and components.

    Parameters
    ----------
    state : State
        The state at which the responsibilities were computed.
    stats : Stats
        Weighted statistics, coarsened if the posterior is.
    parameters : Parameters
        Components after this step.
    prior : Prior
    """
    own, by_sample = state.cohort, stats.by_sample
    assert own is not None
    assert by_sample is not None
    covariances, shifts, taus = _no_shifts(own), own.shifts, own.taus
    if len(own.shifts):
        linear, precisions = shift_terms(own, by_sample, stats.centres, parameters)
        covariances, shifts = expected_shifts(linear, precisions + np.diag(taus**-2.0))
        spread = np.einsum("gii->gi", given_their_sum(covariances))
        taus = modal_taus((np.square(shifts) + spread).sum(axis=0), len(shifts), prior)
    sticks, kappa = move_weights(state, by_sample.counts, prior)
    log_base = log_weights(*sticks)
    shapes = np.where(np.isneginf(log_base), 0.0, shapes_of(log_base, kappa) + by_sample.counts)
    own = replace(own, kappa=kappa, shifts=shifts, taus=taus)
    return sticks, _with_factors(own, shapes, covariances, parameters.whiteners)


def expected_shifts(linear: Array, precisions: Array) -> tuple[Array, Array]:
    """Return the covariances [G, D, D] of the shifts without their condition, and their means [G, D] with it.

    Parameters
    ----------
    linear, precisions : float64 [G, D], [G, D, D]
        Log density linear' delta - delta' precision delta / 2 of each shift; they sum to 0.
    """
    covariances = np.asarray(np.linalg.inv(precisions), np.float64)
    free = np.einsum("gij,gj->gi", covariances, linear)
    excess = np.linalg.solve(covariances.sum(axis=0), free.sum(axis=0))
    means: Array = free - np.einsum("gij,j->gi", covariances, excess)
    return covariances, means


def given_their_sum(covariances: Array) -> Array:
    """Return the covariances of independent shifts given that they sum to 0, float64 [G, D, D]."""
    if not len(covariances):
        return covariances
    given: Array = covariances - covariances @ np.linalg.solve(covariances.sum(axis=0), covariances)
    return given


def pass_weights(shapes: Array, spread: Array, whiteners: Array) -> Array:
    """Return E[log pi_sj] - tr(Sigma_j^-1 V_s) / 2, float64 [S, K].

    Parameters
    ----------
    shapes : float64 [S, K]
        Parameters of the Dirichlet distributions of pi_s.
    spread : float64 [S, D, D] or [0, D, D]
        V_s; none without shifts.
    whiteners : float64 [K, D, D]
    """
    expected: Array = psi(np.maximum(shapes, LEAST_SHAPE)) - psi(shapes.sum(axis=1, keepdims=True))
    if len(spread):
        inverses = whiteners.transpose(0, 2, 1) @ whiteners
        expected -= 0.5 * np.einsum("kij,sij->sk", inverses, spread)
    return expected


def modal_taus(squares: Array, n_groups: int, prior: Prior) -> Array:
    """Return the mode of tau_d, float64 [D], given the expected sums of squares of the shifts, float64 [D].

    The derivative by tau^2 is 0 where a quadratic function is; it has one root above 0.
    """
    wide = SHIFT_DOF * prior.shift_scale**2
    second, first = n_groups + SHIFT_DOF, (n_groups - 1) * wide - squares
    roots = np.sqrt(np.square(first) + 4.0 * second * wide * squares)
    modes: Array = np.sqrt((roots - first) / (2.0 * second))
    return modes


def move_weights(state: State, counts: Array, prior: Prior) -> tuple[Sticks, float]:
    """Move the sticks and kappa, given the expected counts of the samples, float64 [S, K]."""
    own = state.cohort
    assert own is not None
    old, kappa, held = Sticks(state.log_sticks, state.log1m_sticks), own.kappa, counts.sum(axis=1)
    shapes = shapes_of(state.log_base_weights, kappa)
    tables = (shapes * (psi(shapes + counts) - psi(shapes))).sum(axis=0)
    new = modal_sticks(tables, state.alpha, np.isneginf(old.log1m_sticks))
    rate = prior.kappa_rate + (psi(kappa + held) - psi(kappa)).sum()
    shape = prior.kappa_shape - 1.0 + tables.sum()
    # A gamma density of shape below 1 has no mode above 0.
    goal = float(shape / rate) if shape > 0 else kappa
    if not np.array_equal(np.isneginf(new.log1m_sticks), np.isneginf(old.log1m_sticks)):
        return new, goal  # a stick that ends the mixture: from here on, the bound is for a shorter one
    least, share = weights_bound(old, kappa, counts, state.alpha, prior), 1.0
    for _ in range(HALVINGS):
        sticks, between = _between(old, new, share), kappa + share * (goal - kappa)
        if weights_bound(sticks, between, counts, state.alpha, prior) >= least:
            return sticks, between
        share /= 2.0
    return old, kappa


def weights_bound(sticks: Sticks, kappa: float, counts: Array, alpha: float, prior: Prior) -> float:
    """Return the part of F that sticks and kappa change, with the weights of the samples integrated out."""
    shapes = shapes_of(log_weights(*sticks), kappa)
    density = len(counts) * gammaln(kappa) - gammaln(kappa + counts.sum(axis=1)).sum()
    density += (gammaln(shapes + counts) - gammaln(shapes)).sum()
    density += (alpha - 1.0) * live_log1m_sticks(sticks.log1m_sticks).sum()
    return float(density + (prior.kappa_shape - 1.0) * np.log(kappa) - prior.kappa_rate * kappa)


def bound(own: Cohort, log_base: Array, prior: Prior) -> float:
    """Return the part of F that the samples add to log likelihood and log prior of a state, in nats."""
    assert own.factors is not None
    sizes, covariances, _ = own.factors
    shapes, kappa = shapes_of(log_base, own.kappa), own.kappa
    drawn = np.maximum(np.exp(own.log_weights) * sizes[:, None], LEAST_SHAPE)
    density = log_prior_of_scales(own, prior)
    density += len(sizes) * gammaln(kappa) - gammaln(sizes).sum() + (gammaln(drawn) - gammaln(shapes)).sum()
    density += ((shapes - drawn) * (psi(drawn) - psi(sizes)[:, None])).sum()
    if n_groups := len(own.shifts):
        dim = own.shifts.shape[1]
        squares = np.square(own.shifts) + np.einsum("gii->gi", given_their_sum(covariances))
        density -= 0.5 * (squares / own.taus**2).sum() + (n_groups - 1) * np.log(own.taus).sum()
        density -= 0.5 * (n_groups - 1) * dim * LOG_2PI - 0.5 * dim * np.log(n_groups)
        density += 0.5 * (n_groups - 1) * dim * (LOG_2PI + 1.0)
        dets = np.linalg.slogdet(np.concatenate((covariances, covariances.sum(axis=0)[None])))[1]
        density += 0.5 * (dets[:-1].sum() - dets[-1])
    return float(density)


def _with_factors(own: Cohort, shapes: Array, covariances: Array, whiteners: Array) -> Cohort:
    """Return the samples with these factors; `shapes` [S, K] is 0 for components without weight."""
    sizes = shapes.sum(axis=1)
    with np.errstate(divide="ignore"):
        weights = np.log(shapes / sizes[:, None])
    spread = given_their_sum(covariances)[own.groups] if len(covariances) else covariances
    factors = Factors(sizes, covariances, pass_weights(shapes, spread, whiteners))
    return replace(own, log_weights=weights, factors=factors)


def _between(old: Sticks, new: Sticks, share: float) -> Sticks:
    """Return sticks that lie a share of the way from old to new ones."""
    if share == 1.0:
        return new
    with np.errstate(divide="ignore"):  # sticks at 0 and 1
        sticks, remaining = (
            np.log((1.0 - share) * np.exp(a) + share * np.exp(b)) for a, b in zip(old, new, strict=True)
        )
    return Sticks(sticks, remaining)


def _no_shifts(own: Cohort) -> Array:
    """Return the covariances of no shifts, float64 [0, D, D]."""
    dim = own.shifts.shape[1]
    return np.empty((0, dim, dim))
