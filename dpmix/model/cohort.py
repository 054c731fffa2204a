"""The hierarchical model of several samples: each has its own weights of the shared components, and a shift.

With S samples, and beta_j the weights that the sticks give (pi_j in `dpmix.model.mixture`)::

    x_i | z_i = j, sample s   ~ N(mu_j + delta_s, Sigma_j)
    P(z_i = j | sample s)     = pi_sj
    pi_s | beta, kappa        ~ Dirichlet(kappa beta)
    kappa                     ~ Gamma(a, b)                    shape a, rate b
    delta_g,d                 ~ N(0, tau_d^2), sum_g delta_g,d = 0
    tau_d                     ~ half-t with 3 degrees of freedom and scale A

This is the hierarchical Dirichlet process of Teh, Jordan, Beal and Blei (2006), J. Am. Stat. Assoc. 101:1566,
truncated at K components as in Cron et al. (2013), PLoS Comput. Biol. 9:e1003130. Samples with the same value
of a column of the sample table (a batch) may share a shift; G is the number of different shifts. They sum to
0, because a shift of all samples is one of the component means.

A sweep draws, given the labels:

- the table counts m_sj (Teh et al., eq. 40) given n_sj, kappa and beta, with the weights pi_s integrated out;
- the sticks given M_j = sum_s m_sj in the place of the counts of the pooled model: given the tables, beta has
  density prod_j beta_j^M_j under the stick prior;
- kappa given the tables: with w_s ~ Beta(kappa, n_s), kappa ~ Gamma(a + sum_j M_j, b - sum_s log w_s), as
  Gamma(kappa) / Gamma(kappa + n) is the integral of w^(kappa - 1) (1 - w)^(n - 1), up to a constant in kappa;
- pi_s ~ Dirichlet(kappa beta + n_s);
- the shifts given the components, jointly: normal, conditioned on their sum by kriging (Rue and Held 2005,
  Gaussian Markov Random Fields, section 2.3.3);
- tau_d, by a scale mixture of the half-t (Wand et al. 2011, Bayesian Anal. 6:847, result 5).

All functions are pure. K components, D channels; the size of no array depends on the number of events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from dpmix.kernels import _cpu
from dpmix.model.mixture import LOG_2PI, Array, Cohort, Ints, Parameters, SampleStats
from dpmix.model.prior import SHIFT_DOF, Prior
from dpmix.model.stick_breaking import gamma_variate, log_gamma_variates
from dpmix.model.streams import FastGenerator, Step, Stream

LEAST_SHAPE = 1e-100  # keeps the logs of weights, which are of the order of 1 / shape, finite
BLOCK = 1 << 15  # events whose tables are drawn at a time: their uniform numbers stay in the cache


class TableCounts(NamedTuple):
    """Table counts.

    Attributes
    ----------
    by_component : float64 [K]
        M_j, the tables of a component in all samples.
    sizes : float64 [S]
        Events of each sample that sit at the tables.
    """

    by_component: Array
    sizes: Array


def start(log_base: Array, shares: Array, groups: Ints, prior: Prior) -> Cohort:
    """Return the initial values: kappa at its prior mean, all samples alike, no shift.

    Parameters
    ----------
    log_base : float64 [K]
        log beta.
    shares, groups, prior : float64 [S], int64 [S], Prior
        As in `Cohort`.
    """
    n_groups, dim = int(groups.max()) + 1, len(prior.m)
    return Cohort(
        kappa=prior.kappa_shape / prior.kappa_rate,
        log_weights=np.tile(log_base, (len(shares), 1)),
        shifts=np.zeros((n_groups, dim)),
        taus=np.full(dim if n_groups else 0, prior.shift_scale),
        groups=groups,
        shares=shares,
    )


def draw_prior(log_base: Array, shares: Array, groups: Ints, prior: Prior, stream: Stream) -> Cohort:
    """Draw all values from the prior, given log beta [K]; parameters as in `start`."""
    empty = start(log_base, shares, groups, prior)
    kappa = gamma_variate(prior.kappa_shape, prior.kappa_rate, stream.step(Step.CONCENTRATION))
    rng = stream.step(Step.SAMPLE_WEIGHTS)
    weights = draw_weights(np.zeros(empty.log_weights.shape), log_base, kappa, rng)
    shifts, taus = empty.shifts, empty.taus
    if len(shifts):
        rng = stream.step(Step.SHIFTS)
        normals = rng.standard_normal(len(taus)), rng.chisquare(SHIFT_DOF, len(taus))
        taus = np.abs(prior.shift_scale * normals[0] / np.sqrt(normals[1] / SHIFT_DOF))
        shifts = taus * rng.standard_normal(shifts.shape)
        # Independent normal variables of equal variance, given that their sum is 0, are such variables minus
        # their mean.
        shifts -= shifts.mean(axis=0)
    return replace(empty, kappa=kappa, log_weights=weights, shifts=shifts, taus=taus)


def draw(
    cohort: Cohort,
    stats: SampleStats,
    centres: Array,
    parameters: Parameters,
    log_base: Array,
    tables: TableCounts,
    prior: Prior,
    stream: Stream,
) -> Cohort:
    """Draw kappa, the weights, the shifts and their spread, given labels, tables, components and log beta.

    Parameters
    ----------
    cohort : Cohort
        The values that the labels were drawn from.
    stats : SampleStats
        Statistics of the labels, about `centres` [K, D]; the shifts of `cohort` are subtracted from the
        events.
    parameters : Parameters
        Components after this sweep, numbered as in `stats`.
    log_base : float64 [K]
        log beta after this sweep.
    tables : TableCounts
    prior, stream : Prior, Stream
    """
    kappa = draw_kappa(cohort.kappa, tables, prior, stream.step(Step.CONCENTRATION))
    weights = draw_weights(stats.counts, log_base, kappa, stream.step(Step.SAMPLE_WEIGHTS))
    shifts, taus = cohort.shifts, cohort.taus
    if len(shifts):
        rng = stream.step(Step.SHIFTS)
        linear, precisions = shift_terms(cohort, stats, centres, parameters)
        shifts = draw_shifts(linear, precisions + np.diag(taus**-2.0), rng)
        taus = draw_taus(shifts, taus, prior, rng)
    return replace(cohort, kappa=kappa, log_weights=weights, shifts=shifts, taus=taus)


def draw_tables(counts: Array, shapes: Array, rng: np.random.Generator | FastGenerator) -> TableCounts:
    """Draw the table counts: event i of n_sj opens a table with probability shape / (shape + i - 1).

    Counts that are not whole (coarsened or weighted events) are first rounded, up with the probability of
    their fraction.

    Parameters
    ----------
    counts : float64 [S, K]
    shapes : float64 [K]
        kappa beta.
    rng : numpy.random.Generator, or dpmix.model.streams.FastGenerator
        Every event takes a uniform, sample by sample, then component by component; native code compares them
        (kernels/cpu/tables.cpp).
    """
    whole = np.floor(counts)
    if (whole != counts).any():
        # Rounding to the nearest would never open a table for the many components with less than half an
        # event.
        whole += rng.random(counts.shape) < counts - whole
    sizes, cells = whole.sum(axis=1), np.flatnonzero(whole)
    held, components = whole.ravel()[cells].astype(np.int64), cells % counts.shape[1]
    by_component, ends = np.zeros(len(shapes)), np.cumsum(held)
    for at in range(0, int(held.sum()), BLOCK):
        cell = int(np.searchsorted(ends, at, side="right"))
        first = at - int(ends[cell] - held[cell])
        uniforms = rng.random(min(BLOCK, int(ends[-1]) - at))
        _cpu.open_tables(held[cell:], components[cell:], first, shapes, uniforms, by_component)
    return TableCounts(by_component, sizes)


def draw_kappa(kappa: float, tables: TableCounts, prior: Prior, rng: np.random.Generator) -> float:
    """Draw kappa given the tables, by an auxiliary Beta(kappa, n_s) variable for each sample with events."""
    sizes = tables.sizes[tables.sizes > 0]
    first = log_gamma_variates(np.full(len(sizes), kappa), rng)
    # As logs, because a Beta(kappa, n_s) variate with a small kappa and many events rounds to 0.
    log_beta = first - np.logaddexp(first, log_gamma_variates(sizes, rng))
    shape = prior.kappa_shape + tables.by_component.sum()
    return gamma_variate(shape, prior.kappa_rate - log_beta.sum(), rng)


def shapes_of(log_base: Array, kappa: float) -> Array:
    """Return kappa beta, float64 [K], at least `LEAST_SHAPE`."""
    return np.maximum(kappa * np.exp(log_base), LEAST_SHAPE)


def draw_weights(counts: Array, log_base: Array, kappa: float, rng: np.random.Generator) -> Array:
    """Draw log pi_s ~ Dirichlet(kappa beta + n_s) of each sample, float64 [S, K], from counts [S, K]."""
    logs = log_gamma_variates(shapes_of(log_base, kappa) + counts, rng)
    weights: Array = logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)
    return weights


def shift_terms(
    cohort: Cohort, stats: SampleStats, centres: Array, parameters: Parameters
) -> tuple[Array, Array]:
    """Return what the events say of the shifts: log density linear' delta - delta' precision delta / 2.

    Returns
    -------
    linear : float64 [G, D]
    precisions : float64 [G, D, D]
        Sums of n_sj Sigma_j^-1, over the samples of a group and the components.
    """
    n_components = stats.counts.shape[1]
    dim, n_groups = centres.shape[1], len(cohort.shifts)
    inverses = parameters.whiteners.transpose(0, 2, 1) @ parameters.whiteners
    held, away = np.zeros((n_groups, n_components)), np.zeros((n_groups, n_components, dim))
    for sample, group in enumerate(cohort.groups):
        held[group] += stats.counts[sample]
        away[group] += stats.sums[sample]
    # The sums are about the centres of the pass; a shift is seen from the new means.
    gaps = centres - parameters.means
    for group in range(n_groups):  # an array of all groups at once would not stay in the cache
        away[group] += held[group, :, None] * gaps
    precisions = (held @ inverses.reshape(n_components, -1)).reshape(n_groups, dim, dim)
    linear = away.reshape(n_groups, -1) @ inverses.reshape(-1, dim)
    # The statistics have the old shift subtracted from the events, which the linear term gets back.
    return linear + np.einsum("gij,gj->gi", precisions, cohort.shifts), precisions


def draw_shifts(linear: Array, precisions: Array, rng: np.random.Generator) -> Array:
    """Draw normal vectors with these precisions [G, D, D] and linear terms [G, D], given that they sum to 0.

    A draw without the condition is moved by cov_g (sum_h cov_h)^-1 (sum_h draw_h).
    """
    roots = np.linalg.inv(np.linalg.cholesky(precisions))  # precision^-1 = root' root
    covariances = roots.transpose(0, 2, 1) @ roots
    normals = np.einsum("gij,gj->gi", roots, linear) + rng.standard_normal(linear.shape)
    free = np.einsum("gji,gj->gi", roots, normals)
    excess = np.linalg.solve(covariances.sum(axis=0), free.sum(axis=0))
    shifts: Array = free - np.einsum("gij,j->gi", covariances, excess)
    return shifts


def draw_taus(shifts: Array, taus: Array, prior: Prior, rng: np.random.Generator) -> Array:
    """Draw tau_d, float64 [D], by its auxiliary variable, given the shifts [G, D]; G - 1 of them are free."""
    shape = 0.5 * (SHIFT_DOF + 1.0)
    rate = SHIFT_DOF / taus**2 + prior.shift_scale**-2.0
    mixing = rate / rng.standard_gamma(shape, len(taus))  # inverse gamma
    rate = SHIFT_DOF / mixing + 0.5 * np.square(shifts).sum(axis=0)
    # G - 1, because the shifts sum to 0: the last one is not free.
    drawn: Array = np.sqrt(rate / rng.standard_gamma(0.5 * (SHIFT_DOF + len(shifts) - 1), len(taus)))
    return drawn


def log_prior(cohort: Cohort, log_base: Array, prior: Prior) -> float:
    """Return the log prior density, given beta, of kappa, log pi_s, the shifts and tau, in nats.

    The density of the weights is the density of their logs: the density of pi_s itself has no bound where
    kappa beta_j is below 1.
    """
    shapes = shapes_of(log_base, cohort.kappa)
    density = log_prior_of_scales(cohort, prior)
    density += len(cohort.shares) * (gammaln(shapes.sum()) - gammaln(shapes).sum())
    density += (shapes * cohort.log_weights).sum()
    if n_groups := len(cohort.shifts):
        free, dim = n_groups - 1, len(cohort.taus)
        density -= 0.5 * np.square(cohort.shifts / cohort.taus).sum()
        density -= free * (0.5 * LOG_2PI * dim + np.log(cohort.taus).sum())
        density += 0.5 * dim * np.log(n_groups)  # of the first G - 1 shifts, given the sum 0
    return float(density)


def log_prior_of_scales(cohort: Cohort, prior: Prior) -> float:
    """Return the log prior density of kappa and tau, in nats."""
    shape, rate = prior.kappa_shape, prior.kappa_rate
    density = shape * np.log(rate) - gammaln(shape) + (shape - 1.0) * np.log(cohort.kappa)
    density -= rate * cohort.kappa
    if len(cohort.shifts):
        dof, ratios = SHIFT_DOF, cohort.taus / prior.shift_scale
        half_t = gammaln(0.5 * (dof + 1)) - gammaln(0.5 * dof) - 0.5 * np.log(dof * np.pi) + np.log(2.0)
        density += len(ratios) * (half_t - np.log(prior.shift_scale))
        density -= 0.5 * (dof + 1) * np.log1p(ratios**2 / dof).sum()
    return float(density)
