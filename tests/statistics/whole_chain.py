"""Joint draws of parameters, labels and events, by SciPy and by the whole sampler.

A test compares `quantities` of a `Trace`. Prior draws are made here by SciPy, independently of the sampler.
The draws of a chain come from `one_sweep`, which calls the same functions as a run.

T draws, N events, D channels, K components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats as st

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import HYPERPARAMETERS, Array, Floats, Ints, State, mixture_of
from dpmix.model.prior import PHI_FLOOR, Prior
from dpmix.model.resolution import of_clouds
from dpmix.model.streams import Key, Stream

MakeEngine = Callable[[Floats], Engine]


@dataclass(frozen=True, eq=False)
class Case:
    """A model and the size of its data."""

    prior: Prior
    n_components: int
    n_events: int


PHI = np.array([[1.0, 0.4, 0.0], [0.4, 0.8, -0.1], [0.0, -0.1, 0.5]])
FIXED = Case(Prior(np.array([0.5, -0.5]), 2.0, 3.0, PHI[:2, :2], 2.0, 1.0), 4, 12)
"""Fixed hyperparameters, two channels."""


def learning(*names: str) -> Case:
    """Return a case with three channels, in which alpha and the named hyperparameters are learned."""
    prior = Prior(np.array([0.5, -0.5, 0.2]), 2.0, 3.0, PHI, 2.0, 1.0, frozenset({"alpha", *names}))
    return Case(prior, 5, 8)


LEARNED = learning(*HYPERPARAMETERS)


class Trace(NamedTuple):
    """Joint draws of all quantities: float64 except for the labels, with first axis T.

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
    """Return the trace of joint states, labels and events."""
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
    """Return independent draws of the model stated in `dpmix.model.mixture`, by SciPy alone."""
    prior, n_components, dim = case.prior, case.n_components, len(case.prior.m)
    learned = prior.learned
    m, gamma = np.tile(prior.m, (count, 1)), np.full(count, prior.gamma)
    nu, phi = np.full(count, prior.nu), np.tile(prior.phi, (count, 1, 1))
    if "gamma" in learned:
        gamma = gammas(prior, count, rng)
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
    for value in np.unique(nu):  # with the identity as scale matrix
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


def gammas(prior: Prior, count: int, rng: np.random.Generator) -> Array:
    """Return draws of gamma from its prior, by the inverse of its distribution function below the bound."""
    inverse, most = st.gamma(0.5, scale=2.0 / prior.gamma), 2.0 / prior.gamma
    return np.asarray(1.0 / inverse.ppf(inverse.cdf(most) * rng.random(count)))


def simulate(
    log_weights: Array, means: Array, covariances: Array, n_events: int, rng: np.random.Generator
) -> tuple[Ints, Array]:
    """Return labels [T, N] and events [T, N, D] of T mixtures."""
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
    """The moves that a run may leave out, its engine, what an event counts, and its error in each channel."""

    label_swaps: bool = True
    split_merge: bool = True
    make_engine: MakeEngine = cpu_engine
    zeta: float = 1.0
    resolution: tuple[float, ...] | None = None


WHOLE = Sampler()


def one_sweep(
    state: State, engine: Engine, prior: Prior, seed: int, chain: int, sampler: Sampler
) -> tuple[State, npt.NDArray[np.int32]]:
    """Return the next state and the labels drawn for it, as `dpmix.runs.mcmc` makes them.

    With split-merge moves in every sweep, where a run has them in some.
    """
    iteration = state.iteration + 1
    key = Key(seed, chain, iteration)
    resolution = None if sampler.resolution is None else np.array(sampler.resolution)
    stats = engine.draw_labels(of_clouds(mixture_of(state), resolution), key)
    regroup = split_merge.round_of(engine.divide, key, sampler.zeta, resolution=resolution)
    labels = engine.labels(chain)
    following, _ = gibbs.sweep(
        state,
        stats,
        prior,
        Stream(*key),
        label_swaps=sampler.label_swaps,
        regroup=regroup if sampler.split_merge else None,
        zeta=sampler.zeta,
        resolution=resolution,
    )
    return following, labels


def successive_conditionals(
    case: Case,
    chains: int,
    sweeps: int,
    sampler: Sampler = WHOLE,
    seed: int = 1,
) -> tuple[Trace, Trace]:
    """Return chains that alternate between drawing events given the state and a sweep given the events.

    After Geweke (2004), JASA 99:799, section 3. Each chain starts at a draw of the prior, T = chains x
    sweeps. The state at the start of a sweep has no labels, so the events are drawn given the parameters.

    Returns
    -------
    before : Trace
        Before the sweeps: the state, events drawn from it, and the labels that the engine drew for them.
    after : Trace
        After the sweeps: the next state, and the events of the sweep. Parameters and labels may number the
        components differently.
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
    """Sweeps before the first draw, number of draws kept, sweeps from one draw to the next."""

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
    """Return draws of a chain on fixed events, started at a draw of the prior; alpha None draws alpha."""
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
