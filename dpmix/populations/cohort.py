"""Samples in the draws of a hierarchical run: their mixtures, and the prior of their proportions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.runs.reader import Run


def of_sample(mixture: Mixture, run: Run, chain: int, draw: int, sample: int) -> Mixture:
    """Return the mixture of a draw for one sample of the run: its weights, and the means with its shift.

    Parameters
    ----------
    mixture : Mixture
        Of this draw, on the standardised scale.
    run : Run
        Hierarchical, on the standardised scale.
    chain, draw, sample : int
    """
    own = run.cohort
    with np.errstate(divide="ignore"):
        log_weights = np.log(own["sample_proportions"][chain, draw, sample])
    shift = own["shifts"][chain, draw, sample] if "shifts" in own else 0.0
    return replace(mixture, log_weights=log_weights, means=mixture.means + shift)


def prior_counts(run: Run, draws: Ints, components: Ints) -> Array | None:
    """Return the prior counts of the populations in a sample, in events, float64 [T, P].

    These are kappa beta, summed over the components of a population. None for a pooled run.

    Parameters
    ----------
    run : Run
    draws : int64 [T, 2]
        Chain and draw.
    components : int64 [T, K]
        Population of every component in every draw.
    """
    if not (own := run.cohort):
        return None
    n_populations = int(components.max()) + 1
    return np.array(
        [
            own["kappa"][chain, draw] * np.bincount(of_draw, own["base_weights"][chain, draw], n_populations)
            for (chain, draw), of_draw in zip(draws, components, strict=True)
        ]
    )
