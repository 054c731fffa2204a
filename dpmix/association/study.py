"""Associate the populations of a gating with the columns of a table of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpmix.association import effects
from dpmix.association.design import Design
from dpmix.association.effects import Effects, OutlyingSample
from dpmix.association.regression import fit
from dpmix.errors import DataError
from dpmix.model.mixture import Array, Ints
from dpmix.populations.sample_draws import SampleDraws

LEAST_EVENTS = 20  # events of a population in a sample, for its medians to count
LEAST_VALUES = 2  # samples with medians in each group of a contrast
TYPICAL_VARIANCE = 0.1  # between samples, of the logarithm of a count: for the weights of populations


@dataclass(frozen=True)
class Study:
    """Results of `dpmix associate`.

    Attributes
    ----------
    draws : SampleDraws
    design : Design
    effects : tuple of Effects
    outliers : tuple of OutlyingSample
    left_out : tuple of str
        Populations and channels without enough medians.
    medians : float64 [S, Q] twice, optional
        Responses of expression, and their variances.
    """

    draws: SampleDraws
    design: Design
    effects: tuple[Effects, ...]
    outliers: tuple[OutlyingSample, ...]
    left_out: tuple[str, ...] = ()
    medians: tuple[Array, Array] | None = None

    @property
    def not_converged(self) -> int:
        """Number of effects whose integrals are not exact enough."""
        return sum(int((~one.converged).sum()) for one in self.effects)


def count_responses(counts: Ints | Array) -> tuple[Array, Array]:
    """Return logarithms of counts [S, P], relative to their mean in the sample, and their variances [S, P].

    The mean over the populations gives more weight to those whose logarithm is better known. The variance has
    two parts: the variance of a Poisson count, and the variance over the draws. What all samples of a draw
    have in common, for example a border between two populations that lies elsewhere, does not change
    differences between samples. It is removed before the variances are computed.

    Parameters
    ----------
    counts : int64 or float64 [T, S, P]
    """
    # One half more, so that a population without events in a sample has a logarithm.
    drawn = np.log(counts + 0.5)
    # Subtract what all samples of a draw share: a border that lies elsewhere in a draw moves all samples
    # alike and adds no noise between them.
    of_gating = (drawn - drawn.mean(axis=1, keepdims=True)).var(axis=0)
    y = counts.mean(axis=0) + 0.5
    variances = 1.0 / y + of_gating
    logs = np.log(y)
    return np.asarray(logs - (logs @ count_weights(variances))[:, None]), variances


def count_weights(variances: Array) -> Array:
    """Return weights of the populations, which add up to 1, by the variances [S, P] of their logarithms."""
    precisions = 1.0 / (TYPICAL_VARIANCE + variances.mean(axis=0))
    weights: Array = precisions / precisions.sum()
    return weights


def median_responses(
    draws: SampleDraws, design: Design, only_state: bool = True
) -> tuple[Array, Array, Ints, Ints]:
    """Return medians as responses, with the population and the channel of each.

    Parameters
    ----------
    draws : SampleDraws
    design : Design
    only_state : bool
        Leave out the channels of the model where there are state channels.

    Returns
    -------
    values, variances : float64 [S, Q]
        Variances over the draws, and of medians of a finite number of events (`sampling_variances`).
    populations, channels : int64 [Q]
    """
    if np.isnan(draws.medians).all():
        raise DataError("--expression: samples.nc has no medians; run dpmix gate again, or leave it out")
    enough = draws.counts.mean(axis=0) >= LEAST_EVENTS
    medians = np.where(enough[..., None], draws.medians.astype(np.float64), np.nan)  # [U, S, P, D]
    means, variances = medians.mean(axis=0), medians.var(axis=0)
    if draws.errors is not None:
        own = np.where(np.isnan(means), np.nan, draws.errors)
        variances = variances + sampling_variances(own, draws.counts.mean(axis=0))
    there = ~np.isnan(means)
    usable = there.sum(axis=0) >= design.predictors.fixed.shape[1] + 1 + LEAST_VALUES
    for contrast in design.contrasts:
        for group in contrast.groups or ():
            at = np.array([value == group for value in design.table[contrast.column]])
            usable &= there[at].sum(axis=0) >= LEAST_VALUES
    # A median that is the same in all samples (a clipped channel) has no variance to regress.
    usable &= np.nan_to_num(np.nanmax(means, axis=0, initial=-np.inf, where=there)) > np.nan_to_num(
        np.nanmin(means, axis=0, initial=np.inf, where=there)
    )
    if only_state and draws.n_state:
        usable[:, : len(draws.channels) - draws.n_state] = False
    design_columns = np.column_stack([np.ones(len(there)), design.predictors.fixed])
    for pattern in np.unique(there[:, usable], axis=1).T:  # every coefficient needs samples with medians
        if np.linalg.matrix_rank(design_columns[pattern]) < design_columns.shape[1]:
            usable &= ~(there == pattern[:, None, None]).all(axis=0)
    populations, channels = np.nonzero(usable)
    if not len(populations):
        raise DataError(
            f"--expression: no population has {LEAST_EVENTS} events in enough samples; leave --expression out"
        )
    return means[:, populations, channels], variances[:, populations, channels], populations, channels


def sampling_variances(errors: Array, counts: Array) -> Array:
    """Return variances of medians by their numbers of events, as if all samples had the same distribution.

    A median at zero, where events are dense, has a smaller error than others because of its value. Such
    errors as weights would favour the samples near zero: groups that chance makes differ there would count
    as certain (a bias of meta-analyses; Doncaster and Spake 2018, Methods Ecol. Evol. 9:634).

    Parameters
    ----------
    errors : float64 [S, P, D]
        Standard errors of medians, each from its sample; NaN where unknown.
    counts : float64 [S, P]

    Returns
    -------
    float64 [S, P, D]
        0 where unknown.
    """
    known = ~np.isnan(errors)
    each = np.where(known, counts[..., None] * np.nan_to_num(errors) ** 2, 0.0)
    of_one_event = each.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, of_one_event / np.maximum(counts, 1.0)[..., None], 0.0)


def run_study(
    draws: SampleDraws,
    design: Design,
    least_ratio: float,
    with_expression: bool = False,
    only_state: bool = True,
) -> Study:
    """Fit the regressions and compute all effects.

    Parameters
    ----------
    draws : SampleDraws
    design : Design
    least_ratio : float
        Smallest ratio of abundances, or of standard deviations between samples, that counts as an effect.
    with_expression : bool
        Regress the medians of the channels, too.
    only_state : bool
        Use the state channels alone where there are any.

    Raises
    ------
    DataError
        There are too few events for --expression, or a sample has none.
    """
    if empty := [s for s, n in zip(draws.samples, draws.counts[0].sum(axis=1), strict=True) if not n]:
        raise DataError(f"the sample {empty[0]} has no events; leave it out of the run")
    least = float(np.log(least_ratio))
    counted = fit(*count_responses(draws.counts), design.predictors)
    found = effects.adjust([effects.abundance(counted, c, least) for c in design.contrasts])
    if design.predictors.variability.shape[1]:
        varied = [c for c in design.contrasts if c.variability.any()]
        found += effects.adjust([effects.variability(counted, c, least) for c in varied])
    everyone = np.arange(draws.counts.shape[2])
    odd = effects.outliers(counted, draws.samples, everyone, np.full_like(everyone, -1))
    left_out: list[str] = []
    medians = None
    if with_expression:
        values, variances, populations, channels = median_responses(draws, design, only_state)
        own = fit(values, variances, replace(design.predictors, variability=np.zeros((len(values), 0))))
        measured = [effects.expression(own, c, populations, channels) for c in design.contrasts]
        found += effects.adjust(measured)
        odd += effects.outliers(own, draws.samples, populations, channels)
        left_out = [draws.phenotypes[p] for p in everyone if p not in populations]
        medians = values, variances
    return Study(draws, design, tuple(found), tuple(odd), tuple(left_out), medians)
