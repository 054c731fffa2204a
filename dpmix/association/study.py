"""Associate the populations of a gating with the columns of a table of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmix.association import effects
from dpmix.association.design import Design
from dpmix.association.effects import Effects, Outlier
from dpmix.association.model import TYPICAL_SD, Posterior, Predictors, Responses
from dpmix.association.sampling import Fit
from dpmix.errors import DataError
from dpmix.model.mixture import Array, Ints
from dpmix.populations.sample_draws import SampleDraws

LEAST_EVENTS = 20  # events of a population in a sample, for its medians to count
LEAST_VALUES = 2  # samples with medians in each group of a contrast
Fitter = Callable[[Responses, Predictors], Fit]


@dataclass(frozen=True)
class Study:
    """Results of `dpmix associate`.

    Attributes
    ----------
    draws : SampleDraws
    design : Design
    effects : tuple of Effects
    outliers : tuple of Outlier
    fits : mapping of str to Fit
        By measure.
    left_out : tuple of str
        Populations and channels without enough medians.
    """

    draws: SampleDraws
    design: Design
    effects: tuple[Effects, ...]
    outliers: tuple[Outlier, ...]
    fits: dict[str, Fit]
    left_out: tuple[str, ...] = ()


def count_responses(counts: Ints) -> Responses:
    """Return mean counts and the variances of their logarithms, from draws of counts.

    What all samples of a draw have in common, for example a border between two populations that lies
    elsewhere, does not change differences between samples. It is removed before the variances are computed.

    Parameters
    ----------
    counts : int64 [T, S, P]
    """
    logs = np.log(counts + 0.5)
    own = logs - logs.mean(axis=1, keepdims=True)
    return Responses(counts.mean(axis=0), own.var(axis=0), counted=True)


def median_responses(draws: SampleDraws, design: Design) -> tuple[Responses, Ints, Ints, Array]:
    """Return medians as responses, with the population, the channel and the unit of each.

    The unit of a channel is the median, over the populations, of the standard deviation between samples,
    divided by the standard deviation that the priors expect.

    Returns
    -------
    responses : Responses
    populations, channels : int64 [Q]
    units : float64 [Q]
    """
    if np.isnan(draws.medians).all():
        raise DataError("--expression: samples.nc has no medians; run dpmix gate again, or leave it out")
    enough = draws.counts.mean(axis=0) >= LEAST_EVENTS
    medians = np.where(enough[..., None], draws.medians.astype(np.float64), np.nan)  # [U, S, P, D]
    means, variances = medians.mean(axis=0), medians.var(axis=0)
    there = ~np.isnan(means)
    usable = there.sum(axis=0) >= design.predictors.fixed.shape[1] + 1 + LEAST_VALUES
    for contrast in design.contrasts:
        for group in contrast.groups or ():
            at = np.array([value == group for value in design.table[contrast.column]])
            usable &= there[at].sum(axis=0) >= LEAST_VALUES
    populations, channels = np.nonzero(usable)
    if not len(populations):
        raise DataError(
            f"--expression: no population has {LEAST_EVENTS} events in enough samples; leave --expression out"
        )
    values, errors = means[:, populations, channels], variances[:, populations, channels]
    sds = np.nanstd(values, axis=0, ddof=1)
    units = np.empty(len(channels))
    for channel in np.unique(channels):
        own = channels == channel
        units[own] = max(float(np.median(sds[own])), 1e-9) / TYPICAL_SD
    responses = Responses(values / units, errors / units**2, counted=False)
    return responses, populations, channels, units


def run_study(
    draws: SampleDraws, design: Design, fit: Fitter, least_ratio: float, with_expression: bool = False
) -> Study:
    """Fit the regressions and compute all effects.

    Parameters
    ----------
    draws : SampleDraws
    design : Design
    fit : callable
        Returns draws of the posterior of a regression: the sampler or the Gaussian approximation.
    least_ratio : float
        Smallest ratio that counts as an effect.
    with_expression : bool
        Regress the medians of the channels, too.

    Raises
    ------
    DataError
        There are too few events for --expression, or a sample has none.
    """
    responses = count_responses(draws.counts)
    if empty := [s for s, n in zip(draws.samples, responses.values.sum(axis=1), strict=True) if not n]:
        raise DataError(f"the sample {empty[0]} has no events; leave it out of the run")
    least = float(np.log(least_ratio))
    fits = {effects.ABUNDANCE: fit(responses, design.predictors)}
    counted = fits[effects.ABUNDANCE]
    found = [effects.abundance(counted, contrast, least) for contrast in design.contrasts]
    if design.predictors.variability.shape[1]:
        found += [effects.variability(counted, contrast, least) for contrast in design.contrasts]
    everyone = np.arange(draws.counts.shape[2])
    odd = effects.outliers(counted, draws.samples, everyone, np.full_like(everyone, -1))
    left_out: list[str] = []
    if with_expression:
        responses, populations, channels, units = median_responses(draws, design)
        fits[effects.EXPRESSION] = own = fit(responses, design.predictors)
        known = populations, channels, units
        found += [effects.expression(own, contrast, least, *known) for contrast in design.contrasts]
        odd += effects.outliers(own, draws.samples, populations, channels)
        left_out = [draws.phenotypes[p] for p in everyone if p not in populations]
    return Study(draws, design, tuple(found), tuple(odd), fits, tuple(left_out))


def sampler(seed: int, device: object) -> Fitter:
    """Return a fitter that draws from the posterior on a JAX device."""
    from dpmix.association.sampling import draw

    return lambda responses, predictors: draw(Posterior(responses, predictors), seed, device)


def approximation(seed: int) -> Fitter:
    """Return a fitter that uses the Gaussian approximation."""
    from dpmix.association.gaussian import approximate

    return lambda responses, predictors: approximate(responses, predictors, seed)
