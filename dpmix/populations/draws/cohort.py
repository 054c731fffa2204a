"""Samples in the draws of a hierarchical run: their weights, shifts and mixtures, prior of proportions.

T draws, K components, D channels, P populations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.runs.reader import Run


class OwnTerms(NamedTuple):
    """The weights and the shift of one sample in each draw of a hierarchical run.

    Attributes
    ----------
    log_weights : float64 [T, K]
    shifts : float64 [T, D]
        Standardised scale; 0 in a run without shifts.
    """

    log_weights: Array
    shifts: Array

    def mixture(self, of_run: Mixture, t: int) -> Mixture:
        """Return the mixture of the sample in draw t, from the run's (standardised scale)."""
        return replace(of_run, log_weights=self.log_weights[t], means=of_run.means + self.shifts[t])


def terms_of_run(run: Run, draws: Ints, sample: int) -> OwnTerms:
    """Return the terms of a sample of the run.

    Parameters
    ----------
    run : Run
        Hierarchical, on the standardised scale.
    draws : int64 [T, 2]
        Chain and draw.
    sample : int
    """
    chains, numbers = draws.T
    own = run.cohort
    with np.errstate(divide="ignore"):
        log_weights = np.log(own["sample_proportions"][chains, numbers, sample])
    if "shifts" not in own:
        return OwnTerms(log_weights, np.zeros((len(draws), len(run.channels))))
    return OwnTerms(log_weights, own["shifts"][chains, numbers, sample])


def prior_counts(run: Run, draws: Ints, components: Ints, n_populations: int) -> Array | None:
    """Return the prior counts of the populations in a sample, in events, float64 [T, P].

    These are kappa beta, summed over the components of a population. None for a pooled run.

    Parameters
    ----------
    run : Run
    draws : int64 [T, 2]
        Chain and draw.
    components : int64 [T, K]
        Population of every component in every draw.
    n_populations : int
    """
    if not (own := run.cohort):
        return None
    return np.array(
        [
            own["kappa"][chain, draw] * np.bincount(of_draw, own["base_weights"][chain, draw], n_populations)
            for (chain, draw), of_draw in zip(draws, components, strict=True)
        ]
    )
