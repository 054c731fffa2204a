"""Weights and shift of a sample that is not in a hierarchical run, for each draw of the run.

A draw of the run gives mu, Sigma, beta, kappa and tau. Given these, a new sample is a priori::

    pi*      ~ Dirichlet(kappa beta)
    delta*_d ~ N(0, tau_d^2 (1 + 1 / G))

The shifts of the run are G independent N(0, tau^2) variables minus their mean, which the component means
hold; a further one minus that mean has this variance and is independent of them. The conditionals are as in
the sampler (`dpmix.model.cohort`): pi* ~ Dirichlet(kappa beta + n*), and delta* is normal with precision
sum_j n*_j Sigma_j^-1 + diag(prior precision). Components stay as they are: the file does not change the run.

For each draw, `SWEEPS` Gibbs sweeps over at most `MOST_EVENTS` events of the sample start at beta
(components have other numbers in the next chain) and at the shift of the draw before. These events count in
full, also where the run is coarsened.

T draws, K components, D channels.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np

from dpmix.engines.base import Engine
from dpmix.model.cohort import draw_weights
from dpmix.model.mixture import Array, Floats, Mixture, Stats
from dpmix.model.streams import Key, Step, Stream, number_of
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.tree.modes import MakeEngine
from dpmix.runs.reader import Run

MOST_EVENTS = 20_000
FIRST, SWEEPS = 30, 5  # Gibbs sweeps in the first draw and in each later one


def fit_sample(found: Populations, make_engine: MakeEngine, values: Floats, name: str, seed: int) -> OwnTerms:
    """Draw the weights and the shift of a new sample for each draw of a hierarchical run.

    A sample without events has the weights of all samples, and no shift (NaN).

    Parameters
    ----------
    found : Populations
    make_engine : callable
        Returns an engine for events.
    values : float32 [N, D]
        Events of the sample, standardised scale.
    name : str
        Name of the sample: its random numbers depend on it, and not on other samples.
    seed : int
    """
    rows = np.linspace(0, len(values) - 1, min(len(values), MOST_EVENTS)).astype(np.int64)
    rng = Stream(seed, 3, number_of(name)).step(Step.SAMPLE_WEIGHTS)
    run, n_draws = found.run, len(found.draws)
    own, spread = run.cohort, shift_spread(run)
    terms = OwnTerms(np.empty((n_draws, run.n_components)), np.zeros((n_draws, len(run.channels))))
    if not len(values):
        with np.errstate(divide="ignore"):
            base = np.log([own["base_weights"][chain, draw] for chain, draw in found.draws])
        return OwnTerms(base, np.full_like(terms.shifts, np.nan))
    # The shift is the only state that passes to the next draw: components have other numbers there.
    shift, sweep = np.zeros(len(run.channels)), 0
    with closing(make_engine(np.ascontiguousarray(values[rows]))) as engine:
        for t, (chain, draw) in enumerate(found.draws):
            mixture = found.mixture(chain, draw)
            with np.errstate(divide="ignore"):
                log_base = np.log(own["base_weights"][chain, draw])
            log_weights, kappa = log_base, float(own["kappa"][chain, draw])
            # Only the first draw starts at shift 0; later ones start at the shift of the draw before, and
            # need few sweeps.
            for _ in range(SWEEPS if t else FIRST):
                stats = _labelled(engine, mixture, log_weights, shift, Key(seed, 0, sweep))
                log_weights = draw_weights(stats.counts[None], log_base, kappa, rng)[0]
                if spread is not None:
                    shift = draw_shift(stats, mixture, spread[chain, draw], rng)
                sweep += 1
            terms.log_weights[t], terms.shifts[t] = log_weights, shift
    return terms


def shift_spread(run: Run) -> Array | None:
    """Return the prior standard deviation of a new shift in each draw, float64 [chain, draw, D].

    None for a run without shifts.
    """
    if "shifts" not in run.cohort:
        return None
    n_groups = len(np.unique(run.cohort["shifts"][0, -1], axis=0))
    spread: Array = run.cohort["tau"] * np.sqrt(1.0 + 1.0 / n_groups)
    return spread


def draw_shift(stats: Stats, mixture: Mixture, spread: Array, rng: np.random.Generator) -> Array:
    """Draw the shift of a sample, float64 [D], given its labels, the components and the prior spread [D].

    Parameters
    ----------
    stats : Stats
        Statistics of the events, with no shift subtracted.
    mixture : Mixture
        Mixture of the run, without a shift.
    spread : float64 [D]
        Prior standard deviations.
    rng : numpy Generator
    """
    inverses = mixture.whiteners.transpose(0, 2, 1) @ mixture.whiteners
    away = stats.sums + stats.counts[:, None] * (stats.centres - mixture.means)
    linear = np.einsum("kij,kj->i", inverses, away)
    precision = np.tensordot(stats.counts, inverses, 1) + np.diag(spread**-2.0)
    root = np.linalg.inv(np.linalg.cholesky(precision))  # precision^-1 = root' root
    shift: Array = root.T @ (root @ linear + rng.standard_normal(len(linear)))
    return shift


def _labelled(engine: Engine, mixture: Mixture, log_weights: Array, shift: Array, key: Key) -> Stats:
    """Draw the labels of the events by the mixture of the sample; return their statistics."""
    return engine.draw_labels(replace(mixture, log_weights=log_weights, means=mixture.means + shift), key)
