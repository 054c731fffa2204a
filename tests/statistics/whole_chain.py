"""The whole sampler as statistical tests see it: joint draws of parameters, labels and events.

What a test compares are quantities of a `Trace`. Prior draws are made here by SciPy, with nothing of the
sampler in them; a chain's come from `one_sweep`, which calls what a run calls.

T draws, N events, D channels, K components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats as st
from scipy.special import logsumexp

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import HYPERPARAMETERS, LOG_2PI, Array, Floats, Ints, State, mixture_of
from dpmix.model.prior import PHI_FLOOR, Prior
from dpmix.model.streams import Key, Stream

MakeEngine = Callable[[Floats], Engine]

FAMILY = 1e-3
"""A right sampler fails a test (all its comparisons together) for one choice of the seed in a thousand."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model and the size of its data."""

    prior: Prior
    n_components: int
    n_events: int


PHI = np.array([[1.0, 0.4, 0.0], [0.4, 0.8, -0.1], [0.0, -0.1, 0.5]])
FIXED = Case(Prior(np.array([0.5, -0.5]), 2.0, 3.0, PHI[:2, :2], 2.0, 1.0), 4, 12)
"""Hyperparameters given, two channels."""


def learning(*names: str) -> Case:
    """Three channels, and what is named learned beside alpha."""
    prior = Prior(np.array([0.5, -0.5, 0.2]), 2.0, 3.0, PHI, 2.0, 1.0, frozenset({"alpha", *names}))
    return Case(prior, 5, 8)


LEARNED = learning(*HYPERPARAMETERS)


class Trace(NamedTuple):
    """Joint draws of everything: float64 but for the labels, the first axis T.

    m [T, D], gamma [T], nu [T], phi [T, D, D], alpha [T], log_weights [T, K], means [T, K, D],
    covariances [T, K, D, D], labels int [T, N], events [T, N, D].
    """

    m: Array
    gamma: Array
    nu: Array
    phi: Array
    alpha: Array
    log_weights: Array
    means: Array
    covariances: Array
    labels: Ints
    events: Array


def stack(rows: Iterable[tuple[State, npt.NDArray[np.integer], Floats]]) -> Trace:
    """Of states, labels and events that belong together."""
    columns = zip(
        *(
            (
                *(getattr(state.hyperparameters, name) for name in HYPERPARAMETERS),
                state.alpha,
                state.log_weights,
                state.means,
                state.covariances,
                labels,
                events,
            )
            for state, labels, events in rows
        ),
        strict=True,
    )
    return Trace(*map(np.array, columns))


# Draws


def from_prior(case: Case, count: int, rng: np.random.Generator) -> Trace:
    """Independent draws of the model as `dpmix.model.mixture` states it, by SciPy alone."""
    prior, n_components, dim = case.prior, case.n_components, len(case.prior.m)
    learned = prior.learned
    m, gamma = np.tile(prior.m, (count, 1)), np.full(count, prior.gamma)
    nu, phi = np.full(count, prior.nu), np.tile(prior.phi, (count, 1, 1))
    if "gamma" in learned:
        gamma = 1.0 / st.gamma(0.5, scale=2.0 / prior.gamma).rvs(count, random_state=rng)
    if "m" in learned:
        m = st.multivariate_normal(prior.m, prior.gamma * prior.phi).rvs(count, random_state=rng)
    if "nu" in learned:
        nu = prior.nu * 2.0 ** (rng.integers(-48, 49, size=count) / 8.0)
    if "phi" in learned:
        whole = st.wishart(dim + 2, prior.phi / (dim + 2)).rvs(2 * count, random_state=rng)
        phi = whole[np.linalg.eigvalsh(whole - PHI_FLOOR * prior.phi)[:, 0] > 0.0][:count]
        assert len(phi) == count
    alpha = st.gamma(prior.alpha_shape, scale=1.0 / prior.alpha_rate).rvs(count, random_state=rng)
    # Beta(1, alpha): 1 - v is U^(1/alpha)
    log1m_sticks = np.log(rng.random((count, n_components - 1))) / alpha[:, None]
    ends = np.zeros((count, 1))
    log_weights = np.hstack((np.log(-np.expm1(log1m_sticks)), ends)) + np.hstack(
        (ends, np.cumsum(log1m_sticks, axis=1))
    )
    standard = np.empty((count, n_components, dim, dim))
    for value in np.unique(nu):  # of scale matrix 1
        rows = nu == value
        drawn = st.invwishart(value + dim + 1, np.eye(dim)).rvs(rows.sum() * n_components, random_state=rng)
        standard[rows] = drawn.reshape(-1, n_components, dim, dim)
    roots = np.linalg.cholesky(nu[:, None, None] * phi)[:, None]
    covariances = roots @ standard @ roots.transpose(0, 1, 3, 2)
    noise = rng.standard_normal((count, n_components, dim, 1))
    shifts = (np.linalg.cholesky(covariances) @ noise)[..., 0]
    means = m[:, None] + np.sqrt(gamma)[:, None, None] * shifts
    labels, events = simulate(log_weights, means, covariances, case.n_events, rng)
    return Trace(m, gamma, nu, phi, alpha, log_weights, means, covariances, labels, events)


def simulate(
    log_weights: Array, means: Array, covariances: Array, n_events: int, rng: np.random.Generator
) -> tuple[Ints, Array]:
    """Labels [T, N] and events [T, N, D] of T mixtures."""
    count, _, dim = means.shape
    steps = np.cumsum(np.exp(log_weights), axis=1)
    uniforms = rng.random((count, n_events, 1)) * steps[:, None, -1:]
    labels = (steps[:, None, :-1] <= uniforms).sum(axis=2)
    rows = np.arange(count)[:, None]
    noise = rng.standard_normal((count, n_events, dim, 1))
    return labels, means[rows, labels] + (np.linalg.cholesky(covariances)[rows, labels] @ noise)[..., 0]


def cpu_engine(events: Floats) -> Engine:
    return CpuEngine(events, threads=1)


class Sampler(NamedTuple):
    """What a run may leave out, and the engine that it has."""

    label_swaps: bool = True
    split_merge: bool = True
    make_engine: MakeEngine = cpu_engine


WHOLE = Sampler()


def one_sweep(
    state: State, engine: Engine, prior: Prior, seed: int, chain: int, sampler: Sampler
) -> tuple[State, npt.NDArray[np.int32]]:
    """The state that follows, and the labels drawn on the way there, as `dpmix.runs.mcmc` makes them.

    With split-merge moves in every sweep, where a run has them in some.
    """
    iteration = state.iteration + 1
    key = Key(seed, chain, iteration)
    stats = engine.draw_labels(mixture_of(state), key)
    labels = engine.labels(chain)
    following, _ = gibbs.sweep(
        state,
        stats,
        prior,
        Stream(*key),
        label_swaps=sampler.label_swaps,
        regroup=split_merge.round_of(engine.divide, key) if sampler.split_merge else None,
    )
    return following, labels


def successive_conditionals(
    case: Case,
    chains: int,
    sweeps: int,
    sampler: Sampler = WHOLE,
    seed: int = 1,
) -> tuple[Trace, Trace]:
    """Chains in which, by turns, events are drawn given the state and the state by a sweep given the events.

    Geweke (2004), JASA 99:799, section 3. Each chain begins at a draw of the prior, T = chains x sweeps.
    Labels are no part of the state that a sweep begins with, so the events are drawn given the parameters.

    Returns
    -------
    before : Trace
        Before the sweeps: the state, events drawn from it, and the labels that the engine drew for them.
    after : Trace
        After the sweeps: the state that follows, and the events that the sweep was given. Its parameters may
        be numbered otherwise than its labels are.
    """
    rng = np.random.default_rng([seed, 1])
    before, after = [], []
    for chain in range(chains):
        following = gibbs.draw_prior(case.prior, case.n_components, None, Stream(seed, chain, 0))
        for _ in range(sweeps):
            state = following
            mixture = state.log_weights[None], state.means[None], state.covariances[None]
            events = simulate(*mixture, case.n_events, rng)[1][0].astype(np.float32)
            engine = sampler.make_engine(events)
            following, labels = one_sweep(state, engine, case.prior, seed, chain, sampler)
            engine.close()
            before.append((state, labels, events))
            after.append((following, labels, events))
    return stack(before), stack(after)


class Schedule(NamedTuple):
    """Sweeps before the first draw, draws kept, sweeps from one to the next."""

    burn_in: int
    draws: int
    thin: int


def posterior_draws(
    case: Case,
    events: Floats,
    chain: int,
    schedule: Schedule,
    sampler: Sampler = WHOLE,
    seed: int = 1,
    *,
    alpha: float | None = None,
) -> Trace:
    """A chain on events that stay, begun at a draw of the prior; alpha is drawn too, unless it is given."""
    engine = sampler.make_engine(events)
    following = gibbs.draw_prior(case.prior, case.n_components, alpha, Stream(seed, chain, 0))
    rows = []
    for sweep in range(schedule.burn_in + schedule.draws * schedule.thin):
        state = following
        following, labels = one_sweep(state, engine, case.prior, seed, chain, sampler)
        if sweep >= schedule.burn_in and (sweep - schedule.burn_in) % schedule.thin == 0:
            rows.append((state, labels, events))
    engine.close()
    return stack(rows)


# Quantities


def log_det(matrices: Array) -> Array:
    return np.asarray(np.linalg.slogdet(matrices)[1])


def squared_distances(trace: Trace, points: Array) -> Array:
    """|L_j (x - mu_j)|^2, [T, M, K], of points [T, M, D]."""
    away = points[:, :, None] - trace.means[:, None]
    solved = np.linalg.solve(trace.covariances[:, None], away[..., None])[..., 0]
    return np.asarray((away * solved).sum(axis=-1))


def log_densities(trace: Trace, points: Array) -> Array:
    """Of the mixture, [T, M], at points [T, M, D]."""
    each = -0.5 * (squared_distances(trace, points) + log_det(trace.covariances)[:, None])
    each += trace.log_weights[:, None] - 0.5 * points.shape[-1] * LOG_2PI
    return np.asarray(logsumexp(each, axis=2))


def of_label(trace: Trace, values: Array) -> Array:
    """Of values [T, N, K], those of the labels, [T, N]."""
    return np.take_along_axis(values, trace.labels[..., None], axis=2)[..., 0]


def held(trace: Trace) -> Array:
    """Events of each component, [T, K]."""
    return np.asarray((trace.labels[..., None] == np.arange(trace.means.shape[1])).sum(axis=1))


def at_largest(trace: Trace, values: Array) -> Array:
    return np.asarray(values[np.arange(len(values)), trace.log_weights.argmax(axis=1)])


Quantities = Mapping[str, Callable[[Trace], Array]]

INVARIANT: Quantities = {
    "alpha": lambda t: t.alpha,
    "largest weight": lambda t: t.log_weights.max(axis=1),
    "second weight": lambda t: np.sort(t.log_weights, axis=1)[:, -2],
    "occupied": lambda t: (held(t) > 0).sum(axis=1),
    "log likelihood": lambda t: log_densities(t, t.events).sum(axis=1),
    "log det of the pooled covariance": lambda t: log_det(
        np.einsum("tk,tkij->tij", np.exp(t.log_weights), t.covariances)
    ),
    "log density at a point": lambda t: log_densities(t, np.ones_like(t.events[:, :1]))[:, 0],
    "mean of the mixture": lambda t: np.einsum("tk,tk->t", np.exp(t.log_weights), t.means[..., 0]),
}
"""That no numbering of the components changes."""

OF_PLACES: Quantities = {
    "first weight": lambda t: t.log_weights[:, 0],
    "last weight": lambda t: t.log_weights[:, -1],
    "first mean": lambda t: t.means[:, 0, 0],
    "last mean": lambda t: t.means[:, -1, 1],
    "mean of the largest": lambda t: at_largest(t, t.means[..., 1]),
    "log det of the first": lambda t: log_det(t.covariances[:, 0]),
    "log det of the last": lambda t: log_det(t.covariances[:, -1]),
    "log det of the largest": lambda t: log_det(at_largest(t, t.covariances)),
    "correlation": lambda t: (
        t.covariances[:, 1, 0, 1] / np.sqrt(t.covariances[:, 1, 0, 0] * t.covariances[:, 1, 1, 1])
    ),
    "first mean from m": lambda t: squared_distances(t, t.m[:, None])[:, 0, 0] / t.gamma,
    "last mean from m": lambda t: squared_distances(t, t.m[:, None])[:, 0, -1] / t.gamma,
    "first covariance over phi": lambda t: t.covariances[:, 0, 0, 0] / t.phi[:, 0, 0],
    "last covariance over phi": lambda t: t.covariances[:, -1, 1, 1] / t.phi[:, 1, 1],
}

OF_EVENTS: Quantities = {
    "events of the first": lambda t: held(t)[:, 0],
    "events of the last": lambda t: held(t)[:, -1],
    "events of the fullest": lambda t: held(t).max(axis=1),
    "events from their means": lambda t: of_label(t, squared_distances(t, t.events)).sum(axis=1),
    "mean of the events": lambda t: t.events[..., 0].mean(axis=1),
    "variance of the events": lambda t: t.events[..., 1].var(axis=1),
    "covariance of the events": lambda t: (
        (t.events[..., 0] * t.events[..., 1]).mean(axis=1)
        - t.events[..., 0].mean(axis=1) * t.events[..., 1].mean(axis=1)
    ),
}

OF_HYPERPARAMETERS: Mapping[str, Quantities] = {
    "m": {"m": lambda t: t.m[:, 0], "other m": lambda t: t.m[:, 1]},
    "gamma": {"gamma": lambda t: t.gamma},
    "nu": {"nu": lambda t: t.nu},
    "phi": {
        "phi": lambda t: t.phi[:, 0, 0],
        "covariance phi": lambda t: t.phi[:, 0, 1],
        "log det of phi": lambda t: log_det(t.phi),
    },
}


def quantities(case: Case, *groups: Quantities) -> dict[str, Callable[[Trace], Array]]:
    """All of the groups, and of the hyperparameters that the case learns."""
    chosen = [*groups, *(own for name, own in OF_HYPERPARAMETERS.items() if name in case.prior.learned)]
    return {name: value for group in chosen for name, value in group.items()}


@cache
def independent_values(case: Case) -> dict[str, Array]:
    """All quantities of 20,000 draws of the prior."""
    draws = from_prior(case, 20_000, np.random.default_rng(20))
    return {
        name: quantity(draws) for name, quantity in quantities(case, INVARIANT, OF_PLACES, OF_EVENTS).items()
    }


# Tests


def family_wise(p_values: Mapping[str, float]) -> float:
    """The p-value of all together (Bonferroni), 0 where one is no number."""
    least = min(p_values.values())
    return min(1.0, least * len(p_values)) if np.isfinite(list(p_values.values())).all() else 0.0


def worst(p_values: Mapping[str, float]) -> str:
    """For a message."""
    first = sorted(p_values, key=p_values.__getitem__)[:4]
    return ", ".join(f"{name}: {p_values[name]:.1e}" for name in first)


def scores(uniforms: Array) -> dict[str, Array]:
    """Shift and spread of numbers in (0, 1): Legendre's first and second, of variance 1 if uniform."""
    away = uniforms - 0.5
    return {"shift": np.sqrt(12.0) * away, "spread": np.sqrt(180.0) * (np.square(away) - 1.0 / 12.0)}


def same_distribution(independent: Array, chains: Array) -> dict[str, float]:
    """P-values of independent draws [M] against those of independent chains [chains, sweeps].

    All are taken to their ranks among the independent draws, ties to the middle of theirs: bounded, so that
    means are normal whatever tails the quantity has. The mean of a chain counts as one number, whatever the
    autocorrelation within it.
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
    """P-values of the joint-distribution test (Geweke 2004, JASA 99:799), of every quantity."""
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
    """Ranks of true values among posterior draws, int [replicates] in 0, ..., draws; ties broken at random.

    Simulation-based calibration: Talts et al. (2018), arXiv:1804.06788. Truths are drawn from the prior by
    SciPy, events from the truths, and each chain begins at a draw of the prior of its own.
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
    """P-values of the uniformity of ranks in 0, ..., draws: of a histogram (chi-square), shift and spread."""
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
    """P-values of the uniformity of the ranks of true values, of every quantity."""
    return {
        f"{name}, {score}": p_value
        for name, ranks in ranks_of_truths(case, replicates, schedule, sampler, seed).items()
        for score, p_value in rank_p_values(ranks, schedule.draws).items()
    }


def prior_draws(case: Case, count: int, seed: int = 1) -> dict[str, float]:
    """P-values of `gibbs.draw_prior` against SciPy."""
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
