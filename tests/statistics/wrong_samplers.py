"""Deliberately wrong samplers, which the statistical tests must detect.

Each has one error in one function of the sampler or the engine. `with WRONG[name]():` installs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import whole_chain
from scipy.special import multigammaln

from dpmix.engines.cpu import CpuEngine
from dpmix.model import (
    cohort,
    gibbs,
    hyperparameters,
    label_swaps,
    normal_wishart,
    split_merge,
    stick_breaking,
)

Function = Callable[..., Any]
WRONG: dict[str, Callable[[], AbstractContextManager[object]]] = {}


def instead_of(owner: Any, name: str, slip: str) -> Callable[[Function], Function]:
    """Register a wrong function, whose first argument is the right one."""

    def register(wrong: Function) -> Function:
        @contextmanager
        def patched() -> Iterator[None]:
            right = getattr(owner, name)

            def method(*arguments: Any, **options: Any) -> Any:
                return wrong(right, *arguments, **options)

            with mock.patch.object(owner, name, method):
                yield

        WRONG[slip] = patched
        return wrong

    return register


# Labels


@instead_of(CpuEngine, "draw_labels", "every sweep draws labels with the same uniforms")
def _(right, self, mixture, key):
    return right(self, mixture, key._replace(iteration=1))


@instead_of(CpuEngine, "draw_labels", "labels without the weights")
def _(right, self, mixture, key):
    return right(self, replace(mixture, log_weights=np.zeros(len(mixture.means))), key)


@instead_of(CpuEngine, "draw_labels", "labels without the determinants")
def _(right, self, mixture, key):
    return right(self, replace(mixture, log_norms=np.zeros(len(mixture.means))), key)


@instead_of(CpuEngine, "__init__", "weights below a third of the largest are set to 0")
def _(right, self, events, **options):
    right(self, events, **options | {"weight_floor": 1.0})


# Parameters


@instead_of(normal_wishart, "posterior", "nu + 2 for nu + D + 1 degrees of freedom")
def _(right, stats, hyper):
    conditional = right(stats, hyper)
    return conditional._replace(dofs=conditional.dofs - len(hyper.m) + 1)


@instead_of(normal_wishart, "posterior", "gamma for 1 / gamma")
def _(right, stats, hyper):
    return right(stats, replace(hyper, gamma=1.0 / hyper.gamma))


@instead_of(normal_wishart, "posterior", "scatter about the old means for scatter about the average")
def _(right, stats, hyper):
    conditional = right(stats, hyper)
    counts = np.maximum(stats.counts, 1.0)[:, None, None]
    extra = stats.sums[:, :, None] * stats.sums[:, None, :] / counts
    return conditional._replace(scales=conditional.scales + extra)


@instead_of(normal_wishart, "posterior", "no pull of the scale towards m")
def _(right, stats, hyper):
    conditional = right(stats, hyper)
    away = conditional.means - hyper.m
    counts = np.where(stats.counts > 0, stats.counts, np.inf)
    pull = conditional.precisions / (hyper.gamma * counts)
    extra = pull[:, None, None] * away[:, :, None] * away[:, None, :]
    return conditional._replace(scales=conditional.scales - extra)


@instead_of(normal_wishart, "draw_parameters", "Bartlett's degrees of freedom in the wrong order")
def _(right, conditional, rng, threads=1, order=None):
    class Reversed:
        standard_normal = rng.standard_normal

        @staticmethod
        def standard_gamma(shapes):
            return rng.standard_gamma(shapes[:, ::-1])

    return right(conditional, Reversed, threads, order)


@contextmanager
def _stale() -> Iterator[None]:
    right, latest = gibbs.sweep, {}

    def sweep(state, stats, prior, stream, **options):
        used, latest[stream.chain] = latest.get(stream.chain, stats), stats
        return right(state, used, prior, stream, **options)

    with mock.patch.object(gibbs, "sweep", sweep):
        yield


WRONG["statistics of the labels before"] = _stale


@contextmanager
def _kept() -> Iterator[None]:
    """Keep the parameters of empty components.

    This is correct for fixed hyperparameters. Learned ones are drawn with empty components integrated out.
    """
    right_sweep, right_draw, now = gibbs.sweep, normal_wishart.draw_parameters, {}

    def sweep(state, stats, prior, stream, **options):
        now["state"], now["empty"] = state, stats.counts == 0
        following = right_sweep(state, stats, prior, stream, **options)
        now.clear()
        return following

    def draw_parameters(conditional, rng, threads=1, order=None):
        drawn = right_draw(conditional, rng, threads, order)
        if now:
            places = slice(None) if order is None else order
            empty = now["empty"][places]
            for values, name in zip(drawn, ("means", "covariances", "whiteners"), strict=True):
                values[empty] = getattr(now["state"], name)[places][empty]
        return drawn

    with (
        mock.patch.object(gibbs, "sweep", sweep),
        mock.patch.object(normal_wishart, "draw_parameters", draw_parameters),
    ):
        yield


WRONG["an empty component keeps its parameters"] = _kept


# Sticks and alpha


@instead_of(stick_breaking, "counts_after", "sticks off by one: sum over r >= j for r > j")
def _(right, counts):
    return right(counts) + counts


@instead_of(stick_breaking, "draw_alpha", "a rate for a scale in alpha")
def _(right, log1m_sticks, prior, rng):
    return float(rng.gamma(prior.alpha_shape + len(log1m_sticks), prior.alpha_rate - log1m_sticks.sum()))


@instead_of(stick_breaking, "draw_alpha", "K for K - 1 sticks in alpha")
def _(right, log1m_sticks, prior, rng):
    return right(log1m_sticks, replace(prior, alpha_shape=prior.alpha_shape + 1.0), rng)


# Label swaps


@instead_of(label_swaps, "exchange_any", "first swap: the ratio inverted")
def _(right, counts, log_weights, rng):
    return right(counts, -log_weights, rng)


@instead_of(label_swaps, "exchange_with_sticks", "second swap: always accepted")
def _(right, counts, log1m_sticks, rng):
    return right(counts, np.zeros_like(log1m_sticks), rng)


@instead_of(label_swaps, "exchange_collapsed", "third swap: alpha forgotten")
def _(right, counts, alpha, rng):
    return right(counts, 1e-3, rng)


@instead_of(gibbs, "swap_labels", "swaps leave the components behind")
def _(right, counts, sticks, alpha, rng):
    order, sticks, swaps = right(counts, sticks, alpha, rng)
    return np.arange(len(order)), sticks, swaps


# Split-merge moves


@instead_of(split_merge, "propose", "split-merge: the probability of the proposal forgotten")
def _(right, *arguments):
    return [proposal._replace(log_probability=0.0) for proposal in right(*arguments)]


@instead_of(split_merge, "log_labels", "split-merge: the prior of the labels forgotten")
def _(right, *arguments):
    return 0.0


@instead_of(split_merge, "SplitAssignment", "split-merge: a proposal drawn with the launch's uniforms")
def _(right, pairs, sides, word):
    return right(pairs, sides, 1)


@contextmanager
def _halved() -> Iterator[None]:
    with mock.patch.object(split_merge, "LOG_2", 0.0):
        yield


WRONG["split-merge: the two ways to merge taken for one"] = _halved


# Events that are clouds (dpmix.model.resolution)


@instead_of(gibbs, "blurred", "clouds: the resolution missing in the scatters")
def _(right, stats, resolution):
    return stats


@instead_of(gibbs, "blurred", "clouds: a standard deviation for a variance")
def _(right, stats, resolution):
    return right(stats, None if resolution is None else np.sqrt(resolution))


@instead_of(gibbs, "blurred", "clouds: the resolution added once, not for each event")
def _(right, stats, resolution):
    if resolution is None:
        return stats
    held = replace(stats, counts=np.minimum(stats.counts, 1.0))
    return replace(stats, scatters=right(held, resolution).scatters)


@instead_of(whole_chain, "of_clouds", "clouds: labels as if the events were points")
def _(right, mixture, resolution):
    return mixture


@instead_of(split_merge, "blurred", "clouds: split-merge proposes points")
def _(right, stats, resolution):
    return stats


# Hyperparameters


@instead_of(hyperparameters, "m_conditional", "m: gamma forgotten")
def _(right, components, m, gamma, prior):
    return right(components, m, 1.0, prior)


@instead_of(hyperparameters, "gamma_conditional", "gamma: a rate for a scale")
def _(right, components, prior):
    shape, scale = right(components, prior)
    return shape, 1.0 / scale


@instead_of(hyperparameters, "gamma_below", "gamma: its lower bound forgotten")
def _(right, most, shape, rng):
    return right(np.inf, shape, rng)


@instead_of(hyperparameters, "gamma_below", "gamma: draws below the bound are put at it")
def _(right, most, shape, rng):
    return min(right(np.inf, shape, rng), most)


@instead_of(hyperparameters, "nu_conditional", "nu: nu + 2 for nu + D + 1")
def _(right, components, phi, prior):
    dim, nu = len(phi), prior.nu_grid
    dof = nu + 2.0
    each = 0.5 * dof * (dim * np.log(0.5 * nu) + np.linalg.slogdet(phi)[1]) - multigammaln(0.5 * dof, dim)
    trace = np.sum(components.precision * phi)
    return components.n_components * each - 0.5 * (dof * components.log_det + nu * trace)


@instead_of(hyperparameters, "phi_conditional", "Phi: nu + 2 for nu + D + 1")
def _(right, components, nu, prior):
    wishart = right(components, nu, prior)
    return wishart._replace(dof=wishart.dof - components.n_components * (len(prior.m) - 1))


@instead_of(hyperparameters, "summarise", "sums over components about 0 instead of m")
def _(right, means, whiteners, m, held=None):
    return right(means, whiteners, np.zeros_like(m), held)


# Samples (dpmix.model.cohort)


@instead_of(cohort, "draw_weights", "samples: weights without their events")
def _(right, counts, log_base, kappa, rng):
    return right(np.zeros_like(counts), log_base, kappa, rng)


@instead_of(cohort, "shapes_of", "samples: kappa forgotten in the weights and the tables")
def _(right, log_base, kappa):
    return right(log_base, 1.0)


@instead_of(cohort, "draw_tables", "samples: a table for every event in beta")
def _(right, counts, shapes, rng):
    return right(counts, shapes, rng)._replace(by_component=counts.sum(axis=0))


@instead_of(cohort, "draw_tables", "tables: shape + i for shape + i - 1")
def _(right, counts, shapes, rng):
    fewer = right(counts + (counts > 0), shapes, rng).by_component - (counts > 0).sum(axis=0)
    return cohort.TableCounts(fewer, counts.sum(axis=1))


@instead_of(cohort, "draw_kappa", "kappa: the events of the samples forgotten")
def _(right, kappa, tables, prior, rng):
    return right(kappa, tables._replace(sizes=np.zeros_like(tables.sizes)), prior, rng)


@instead_of(cohort, "draw_shifts", "shifts: the sum is not 0")
def _(right, linear, precisions, rng):
    roots = np.linalg.cholesky(precisions)
    noise = np.linalg.solve(roots.transpose(0, 2, 1), rng.standard_normal(linear.shape)[..., None])[..., 0]
    return np.linalg.solve(precisions, linear[..., None])[..., 0] + noise


@instead_of(cohort, "shift_terms", "shifts: the present shift is not added back")
def _(right, own, stats, centres, parameters):
    linear, precisions = right(own, stats, centres, parameters)
    return linear - np.einsum("gij,gj->gi", precisions, own.shifts), precisions


@instead_of(cohort, "draw_taus", "tau: all shifts taken for free")
def _(right, shifts, taus, prior, rng):
    return right(np.vstack((shifts, np.zeros((1, shifts.shape[1])))), taus, prior, rng)


@instead_of(cohort, "draw_taus", "tau: a standard deviation for a variance")
def _(right, shifts, taus, prior, rng):
    return right(shifts, taus, prior, rng) ** 2
