"""Statistical tests of the whole sampler: joint distribution, calibration, draws of the prior."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from quantities import INVARIANT, OF_EVENTS, OF_PLACES, quantities
from scipy import stats as st
from whole_chain import (
    WHOLE,
    Case,
    Sampler,
    Schedule,
    Trace,
    from_prior,
    posterior_draws,
    simulate,
    stack,
    successive_conditionals,
)

from dpmix.model import gibbs
from dpmix.model.mixture import Array, Ints
from dpmix.model.streams import Stream

FAMILY = 1e-3
"""A correct sampler fails a test (all its comparisons together) for one choice of the seed in a thousand."""


@cache
def independent_values(case: Case) -> dict[str, Array]:
    """Return all quantities of 20,000 draws of the prior."""
    draws = from_prior(case, 20_000, np.random.default_rng(20))
    return {
        name: quantity(draws) for name, quantity in quantities(case, INVARIANT, OF_PLACES, OF_EVENTS).items()
    }


def family_wise(p_values: Mapping[str, float]) -> float:
    """Return the p-value of all comparisons together (Bonferroni), or 0 if one of them is not finite."""
    least = min(p_values.values())
    return min(1.0, least * len(p_values)) if np.isfinite(list(p_values.values())).all() else 0.0


def worst(p_values: Mapping[str, float]) -> str:
    """Return the four smallest p-values, for a message."""
    first = sorted(p_values, key=p_values.__getitem__)[:4]
    return ", ".join(f"{name}: {p_values[name]:.1e}" for name in first)


def scores(uniforms: Array) -> dict[str, Array]:
    """Return shift and spread of numbers in (0, 1): two Legendre polynomials, of variance 1 if uniform."""
    away = uniforms - 0.5
    return {"shift": np.sqrt(12.0) * away, "spread": np.sqrt(180.0) * (np.square(away) - 1.0 / 12.0)}


def same_distribution(independent: Array, chains: Array) -> dict[str, float]:
    """Return p-values of the equality of independent draws [M] and independent chains [chains, sweeps].

    All values are replaced by their ranks among the independent draws, with midranks for ties. Ranks are
    bounded, so their means are normal for any tails of the quantity. The mean of a chain counts as one
    number, because of the autocorrelation within the chain.
    """
    ordered = np.sort(independent)

    def ranks(values: Array) -> Array:
        ends = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
        return np.asarray(sum(ends) / (2.0 * len(ordered)))

    theirs, ours = scores(ranks(independent)), scores(ranks(chains))
    p_values = {}
    for name, values in theirs.items():
        means = ours[name].mean(axis=1)
        error = np.sqrt(values.var() / len(values) + means.var(ddof=1) / len(means))
        p_values[name] = float(2.0 * st.t.sf(abs(means.mean() - values.mean()) / error, len(means) - 1))
    return p_values


def joint_distribution(
    case: Case,
    chains: int,
    sweeps: int,
    sampler: Sampler = WHOLE,
    seed: int = 1,
) -> dict[str, float]:
    """Return p-values of the joint-distribution test (Geweke 2004, JASA 99:799) for each quantity."""
    independent = independent_values(case)
    before, after = successive_conditionals(case, chains, sweeps, sampler, seed)
    compared = [(before, OF_EVENTS), (after, quantities(case, INVARIANT, OF_PLACES))]
    return {
        f"{name}, {score}": p_value
        for trace, group in compared
        for name, quantity in group.items()
        for score, p_value in same_distribution(
            independent[name], quantity(trace).reshape(chains, sweeps)
        ).items()
    }


def ranks_of_truths(
    case: Case,
    replicates: int,
    schedule: Schedule,
    sampler: Sampler,
    seed: int,
) -> dict[str, Ints]:
    """Return ranks of true values among posterior draws, int [replicates] in 0, ..., draws, ties at random.

    Simulation-based calibration: Talts et al. (2018), arXiv:1804.06788. SciPy draws the true values
    from the prior, and events given these. Each chain starts at its own draw of the prior.
    """
    rng = np.random.default_rng([seed, 3])
    truths = from_prior(case, replicates, rng)
    chains = [
        posterior_draws(case, events.astype(np.float32), chain, schedule, sampler, seed)
        for chain, events in enumerate(truths.events)
    ]
    draws = Trace(*(np.concatenate(columns) for columns in zip(*chains, strict=True)))
    ranks = {}
    for name, quantity in quantities(case, INVARIANT).items():
        true, drawn = quantity(truths)[:, None], quantity(draws).reshape(replicates, schedule.draws)
        ranks[name] = (drawn < true).sum(axis=1) + rng.integers((drawn == true).sum(axis=1) + 1)
    return ranks


def rank_p_values(ranks: Ints, draws: int) -> dict[str, float]:
    """Return p-values of the uniformity of ranks in 0, ..., draws: histogram, shift and spread."""
    places = draws + 1
    p_values = {"histogram": float(st.chisquare(np.bincount(ranks, minlength=places)).pvalue)}
    exact = scores((np.arange(places) + 0.5) / places)
    for name, values in scores((ranks + 0.5) / places).items():
        z = (values.mean() - exact[name].mean()) / (exact[name].std() / np.sqrt(len(ranks)))
        p_values[name] = float(2.0 * st.norm.sf(abs(z)))
    return p_values


def calibration(
    case: Case,
    replicates: int,
    schedule: Schedule,
    sampler: Sampler = WHOLE,
    seed: int = 1,
) -> dict[str, float]:
    """Return p-values of the uniformity of the ranks of true values, for each quantity."""
    return {
        f"{name}, {score}": p_value
        for name, ranks in ranks_of_truths(case, replicates, schedule, sampler, seed).items()
        for score, p_value in rank_p_values(ranks, schedule.draws).items()
    }


def prior_draws(case: Case, count: int, seed: int = 1) -> dict[str, float]:
    """Return p-values of the equality of draws by `gibbs.draw_prior` and by SciPy."""
    rng = np.random.default_rng([seed, 4])
    rows = []
    for chain in range(count):
        state = gibbs.draw_prior(case.prior, case.n_components, None, Stream(seed, chain, 0))
        mixture = state.log_weights[None], state.means[None], state.covariances[None]
        labels, events = simulate(*mixture, case.n_events, rng)
        rows.append((state, labels[0], events[0]))
    drawn, independent = stack(rows), independent_values(case)
    return {
        f"{name}, {score}": p_value
        for name, quantity in quantities(case, INVARIANT, OF_PLACES).items()
        for score, p_value in same_distribution(independent[name], quantity(drawn)[:, None]).items()
    }
