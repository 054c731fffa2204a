"""The hierarchical model by SciPy, and the sampler on it: joint distribution and exact posterior.

T draws, S samples, N events (N / S of each sample), D channels, K components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from comparisons import same_distribution
from exact_cases import EVENTS, LEAST_CELL, PRIOR, beyond_chance, log_marginal, occupation
from scipy import stats as st
from scipy.linalg import block_diag
from scipy.special import gammaln, logsumexp

from dpmix.engines.cohort import CohortEngine
from dpmix.model import cohort, gibbs
from dpmix.model.mixture import Array, Ints, Mixture, SampleStats, State, Stats, mixture_of
from dpmix.model.prior import SHIFT_DOF, Prior
from dpmix.model.streams import Key, Stream


@dataclass(frozen=True, eq=False)
class CohortCase:
    """A hierarchical model and the size of its data."""

    prior: Prior
    n_components: int
    groups: Ints
    each: int  # events of a sample

    @property
    def starts(self) -> Ints:
        return self.each * np.arange(len(self.groups) + 1)

    @property
    def shares(self) -> Array:
        return np.full(len(self.groups), 1.0 / len(self.groups))


OWN = replace(
    Prior(np.array([0.5, -0.5]), 2.0, 3.0, np.array([[1.0, 0.4], [0.4, 0.8]]), 2.0, 1.0),
    kappa_shape=3.0,
    kappa_rate=0.5,
    shift_scale=0.7,
)
SHIFTED = CohortCase(OWN, 4, np.array([0, 1, 2, 1]), 5)
"""Four samples; the second and the last share a shift."""


MakeEngine = Callable[[Array, Ints], "CohortEngine | SmallEngine"]


class CohortTrace(NamedTuple):
    """Joint draws with first axis T.

    kappa [T], log_base [T, K], log_weights [T, S, K], shifts [T, S, D], taus [T, D], alpha [T],
    means [T, K, D], covariances [T, K, D, D], labels [T, N], events [T, N, D].
    """

    kappa: Array
    log_base: Array
    log_weights: Array
    shifts: Array
    taus: Array
    alpha: Array
    means: Array
    covariances: Array
    labels: Ints
    events: Array


def from_prior(case: CohortCase, count: int, rng: np.random.Generator) -> CohortTrace:
    """Return independent draws of the model stated in `dpmix.model.cohort`, by SciPy alone."""
    prior, n_samples, dim = case.prior, len(case.groups), len(case.prior.m)
    n_groups = case.groups.max() + 1
    wishart = st.invwishart(prior.nu + dim + 1, prior.nu * prior.phi)
    all_covariances = wishart.rvs(count * case.n_components, random_state=rng)
    rows = []
    for covariances in all_covariances.reshape(count, -1, dim, dim):
        kappa = rng.gamma(prior.kappa_shape, 1.0 / prior.kappa_rate)
        alpha = rng.gamma(prior.alpha_shape, 1.0 / prior.alpha_rate)
        sticks = rng.beta(1.0, alpha, case.n_components - 1)
        base = np.append(sticks, 1.0) * np.append(1.0, np.cumprod(1.0 - sticks))
        log_weights = np.array([log_dirichlet(kappa * base, rng) for _ in range(n_samples)])
        taus = np.abs(prior.shift_scale * rng.standard_t(SHIFT_DOF, dim))
        # N(0, tau^2) given that the sum is 0, by its covariance
        root = np.linalg.cholesky(np.eye(n_groups - 1) - 1.0 / n_groups)
        free = taus * (root @ rng.standard_normal((n_groups - 1, dim)))
        shifts = np.vstack((free, -free.sum(axis=0)))[case.groups]
        roots = np.linalg.cholesky(prior.gamma * covariances)
        means = prior.m + (roots @ rng.standard_normal((len(roots), dim, 1)))[..., 0]
        labels, events = simulate(log_weights, shifts, means, covariances, case.each, rng)
        drawn = kappa, np.log(np.maximum(base, 1e-300)), log_weights, shifts, taus, alpha
        rows.append((*drawn, means, covariances, labels, events))
    return CohortTrace(*map(np.array, zip(*rows, strict=True)))


def log_dirichlet(shapes: Array, rng: np.random.Generator) -> Array:
    """Draw the log of a Dirichlet vector, also where a shape is so small that the vector has a 0."""
    logs = np.log(rng.gamma(shapes + 1.0)) + np.log(rng.random(len(shapes))) / np.maximum(shapes, 1e-100)
    return np.asarray(logs - logsumexp(logs))


def simulate(
    log_weights: Array, shifts: Array, means: Array, covariances: Array, each: int, rng: np.random.Generator
) -> tuple[Ints, Array]:
    """Return labels [N] and events [N, D] of one draw of the parameters."""
    labels = np.concatenate([rng.choice(len(means), each, p=np.exp(own)) for own in log_weights])
    noise = rng.standard_normal((len(labels), means.shape[1], 1))
    events = means[labels] + (np.linalg.cholesky(covariances)[labels] @ noise)[..., 0]
    return labels, events + np.repeat(shifts, each, axis=0)


def prior_state(case: CohortCase, seed: int, chain: int) -> State:
    """Draw a state from the prior, by the sampler's own functions."""
    stream = Stream(seed, chain, 0)
    state = gibbs.draw_prior(case.prior, case.n_components, None, stream)
    own = cohort.draw_prior(state.log_base_weights, case.shares, case.groups, case.prior, stream)
    return replace(state, cohort=own)


class SmallEngine:
    """An engine for a few events in NumPy, in float64: the native one takes longer to set up than to use."""

    def __init__(self, events: Array, starts: Ints) -> None:
        self._events, self._sizes = events, np.diff(starts)
        self._labels = np.zeros(len(events), np.int64)

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        assert mixture.samples is not None
        sample = np.repeat(np.arange(len(self._sizes)), self._sizes)
        x = self._events - mixture.samples.shifts[sample]
        away = x[:, None] - mixture.means
        logs = mixture.samples.log_weights[sample] + mixture.log_norms
        logs -= 0.5 * np.square(np.einsum("kij,nkj->nki", mixture.whiteners, away)).sum(axis=2)
        rng = np.random.default_rng([*key])
        self._labels = (logs + rng.gumbel(size=logs.shape)).argmax(axis=1)
        held = (self._labels[:, None] == np.arange(len(mixture.means))).astype(float)
        of_sample = (sample[:, None] == np.arange(len(self._sizes))).astype(float)
        own = SampleStats(of_sample.T @ held, np.einsum("ns,nk,nkd->skd", of_sample, held, away))
        scatters = np.einsum("nk,nkd,nke->kde", held, away, away)
        sums = np.einsum("nk,nkd->kd", held, away)
        return Stats(held.sum(axis=0), sums, scatters, mixture.means, 0.0, own)

    def labels(self, chain: int) -> Ints:
        return self._labels

    def close(self) -> None:
        pass


def one_sweep(state: State, engine: CohortEngine | SmallEngine, prior: Prior, key: Key) -> tuple[State, Ints]:
    """Return the next state and the labels drawn for it, as `dpmix.runs.mcmc` makes them."""
    stats = engine.draw_labels(mixture_of(state), key)
    labels = engine.labels(key.chain).astype(np.int64)
    return gibbs.sweep(state, stats, prior, Stream(*key))[0], labels


def row(state: State, labels: Ints, events: Array) -> tuple[object, ...]:
    own = state.cohort
    assert own is not None
    drawn = (
        own.kappa,
        np.maximum(state.log_base_weights, -690.0),
        own.log_weights,
        own.sample_shifts,
        own.taus,
    )
    return (*drawn, state.alpha, state.means, state.covariances, labels, events)


def native(events: Array, starts: Ints) -> CohortEngine:
    """Return the engine of runs."""
    return CohortEngine(events.astype(np.float32), starts, threads=1)


def successive_conditionals(
    case: CohortCase, chains: int, sweeps: int, make: MakeEngine = SmallEngine, seed: int = 1
) -> CohortTrace:
    """Return chains that alternate between events given the state and a sweep (Geweke 2004), T draws.

    The state is that after the sweep, the labels and events those that it was drawn from.
    """
    rng = np.random.default_rng([seed, 1])
    rows = []
    for chain in range(chains):
        state = prior_state(case, seed, chain)
        for _ in range(sweeps):
            assert state.cohort is not None
            given = state.cohort.log_weights, state.cohort.sample_shifts, state.means, state.covariances
            events = simulate(*given, case.each, rng)[1]
            engine = make(events, case.starts)
            state, labels = one_sweep(state, engine, case.prior, Key(seed, chain, state.iteration + 1))
            engine.close()
            rows.append(row(state, labels, events))
    return CohortTrace(*map(np.array, zip(*rows, strict=True)))


def log_weight(trace: CohortTrace, sample: int, component: int) -> Array:
    """Return log pi_sj, float64 [T]; very small ones alike, because they depend on rounding."""
    return np.asarray(np.maximum(trace.log_weights[:, sample, component], -50.0))


QUANTITIES: dict[str, Callable[[CohortTrace], Array]] = {
    "kappa": lambda t: t.kappa,
    "alpha": lambda t: t.alpha,
    "first base weight": lambda t: t.log_base[:, 0],
    "last base weight": lambda t: t.log_base[:, -1],
    "largest base weight": lambda t: t.log_base.max(axis=1),
    "first weight of a sample": lambda t: log_weight(t, 1, 0),
    "last weight of a sample": lambda t: log_weight(t, 2, -1),
    "spread of a weight": lambda t: np.exp(t.log_weights[:, :, 0]).var(axis=1),
    "agreement of weights and base": lambda t: (np.exp(t.log_weights[:, 0]) * np.exp(t.log_base)).sum(axis=1),
    "a shift": lambda t: t.shifts[:, 0, 0],
    "shared shift": lambda t: t.shifts[:, 1, 1],
    "spread of shifts": lambda t: t.shifts[..., 0].var(axis=1),
    "shift over tau": lambda t: t.shifts[:, 2, 1] / t.taus[:, 1],
    "tau": lambda t: t.taus[:, 0],
    "other tau": lambda t: t.taus[:, 1],
    "first mean": lambda t: t.means[:, 0, 0],
    "last mean": lambda t: t.means[:, -1, 1],
    "log det of the first": lambda t: np.linalg.slogdet(t.covariances[:, 0])[1],
    "event and shift": lambda t: (t.events[:, 0, 0] - t.means[:, 0, 0]) * t.shifts[:, 0, 0],
    "mean of a sample and shift": lambda t: (
        t.events[:, :5, 1].mean(axis=1) - t.events[..., 1].mean(axis=1) - t.shifts[:, 0, 1]
    ),
    "mean of the events": lambda t: t.events[..., 0].mean(axis=1),
}


@cache
def independent(case: CohortCase) -> dict[str, Array]:
    """Return all quantities of 2,500 draws of the prior."""
    draws = from_prior(case, 2_500, np.random.default_rng(20))
    return {name: quantity(draws) for name, quantity in QUANTITIES.items()}


def joint_distribution(
    chains: int, sweeps: int, make: MakeEngine = SmallEngine, case: CohortCase = SHIFTED, seed: int = 1
) -> dict[str, float]:
    """Return p-values of the joint-distribution test for each quantity."""
    trace, expected = successive_conditionals(case, chains, sweeps, make, seed), independent(case)
    found = {name: quantity(trace).reshape(chains, sweeps) for name, quantity in QUANTITIES.items()}
    return {
        f"{name}, {score}": p_value
        for name, values in found.items()
        for score, p_value in same_distribution(expected[name], values).items()
    }


# The exact posterior of six events in two samples, two components

EXACT = replace(PRIOR, learned=frozenset(), kappa_shape=2.0, kappa_rate=0.7)
SPLIT = np.array([0, 2, 6])  # starts of the samples in EVENTS
GRID = (np.arange(200) + 0.5) / 200


@cache
def exact_labels(alpha: float = 1.0) -> tuple[Ints, Array, Array]:
    """Return all labels [Z, N], their probabilities [Z], and the probabilities of the grid of kappa [200].

    The base weights and kappa are integrated out on grids of equally probable values.
    """
    labels = np.array(list(product(range(2), repeat=len(EVENTS))))
    held = labels[..., None] == np.arange(2)
    counts = np.stack([held[:, a:b].sum(axis=1) for a, b in pairwise(SPLIT)], axis=1)
    first = st.beta(1.0, alpha).ppf(GRID)
    kappas = st.gamma(EXACT.kappa_shape, scale=1.0 / EXACT.kappa_rate).ppf(GRID)
    shapes = kappas[:, None, None] * np.stack((first, 1.0 - first), axis=1)  # [kappa, v, K]
    joint = np.empty((len(labels), len(kappas)))
    x = EVENTS.astype(float)
    for z, own in enumerate(counts):
        logs = np.zeros(shapes.shape[:2])
        for n in own:
            logs += (gammaln(shapes + n) - gammaln(shapes)).sum(axis=2)
            logs += (gammaln(kappas) - gammaln(kappas + n.sum()))[:, None]
        marginal = sum(log_marginal(x[held[z, :, j]], EXACT) for j in range(2))
        joint[z] = logsumexp(logs, axis=1) + marginal
    joint = np.exp(joint - logsumexp(joint))
    return labels, joint.sum(axis=1), joint.sum(axis=0)


def exact_posterior(
    sweeps: int, make: MakeEngine = SmallEngine, seed: int = 1, batches: int = 40
) -> dict[str, float]:
    """Return p-values of a chain's labels and kappa under the exact posterior."""
    labels, probabilities, of_kappa = exact_labels()
    case = CohortCase(EXACT, 2, np.full(2, -1), 3)
    state = replace(prior_state(case, seed, 0), alpha=1.0)
    engine = make(EVENTS.astype(float), SPLIT)
    drawn, kappas = [], []
    for sweep in range(50 + sweeps):
        state, own = one_sweep(state, engine, EXACT, Key(seed, 0, sweep + 1))
        assert state.cohort is not None
        if sweep >= 50:
            drawn.append(own)
            kappas.append(state.cohort.kappa)
    engine.close()
    trace = np.array(drawn)
    cdf = st.gamma(EXACT.kappa_shape, scale=1.0 / EXACT.kappa_rate).cdf(np.array(kappas))
    parts = np.minimum((8 * cdf).astype(np.int64), 7)
    return {
        "occupation": frequencies(occupations(trace), occupations(labels), probabilities, batches),
        "first and last together": frequencies(
            1 * (trace[:, 0] == trace[:, -1]), 1 * (labels[:, 0] == labels[:, -1]), probabilities, batches
        ),
        "kappa": frequencies(parts, np.repeat(np.arange(8), 25), of_kappa, batches),
    }


def occupations(labels: Ints) -> Ints:
    """Return one number for each set of counts n_sj, [T]."""
    first, second = (occupation(labels[:, a:b]) for a, b in pairwise(SPLIT))
    return 1000 * first + second


def frequencies(cells: Ints, exact_cells: Ints, probabilities: Array, batches: int) -> float:
    """Return the p-value of the chain's frequency in each cell that is not rare, except for one cell."""
    kinds, place = np.unique(exact_cells, return_inverse=True)
    expected = np.bincount(place, probabilities)
    usual = np.flatnonzero(expected >= LEAST_CELL)[1:]
    return beyond_chance((cells[:, None] == kinds[usual]).astype(float), expected[usual], batches)


def table_counts(count: int, seed: int = 1) -> dict[str, float]:
    """Return p-values of table counts against their exact distribution (Antoniak 1974), by chi-square."""
    rng = np.random.default_rng([seed, 6])
    shapes, counts = np.array([0.4, 2.5]), np.array([[5.0, 0.0], [3.0, 7.0]])
    drawn = np.array([cohort.draw_tables(counts, shapes, rng).by_component for _ in range(count)])
    p_values = {}
    for j, shape in enumerate(shapes):
        exact = np.ones(1)
        for n in counts[:, j]:
            for i in range(int(n)):
                opened = shape / (shape + i)
                exact = np.append(exact * (1.0 - opened), 0.0) + np.append(0.0, exact * opened)
        there = exact * count >= 5.0
        observed = np.bincount(drawn[:, j].astype(int), minlength=len(exact))[there]
        expected = exact[there] / exact[there].sum() * observed.sum()
        p_values[f"tables of component {j}"] = float(st.chisquare(observed, expected).pvalue)
    return p_values


def shift_and_tau_draws(count: int, seed: int = 1) -> dict[str, float]:
    """Return p-values of draws of shifts and of tau against their exact conditionals (Kolmogorov-Smirnov).

    Given that they sum to 0, the shifts are a basis times a normal vector without a condition.
    """
    rng = np.random.default_rng([seed, 7])
    factors = rng.standard_normal((3, 2, 4))
    precisions, linear = factors @ factors.transpose(0, 2, 1), 2.0 * rng.standard_normal((3, 2))
    drawn = np.array([cohort.draw_shifts(linear, precisions, rng) for _ in range(count)])
    if np.abs(drawn.sum(axis=1)).max() > 1e-8:
        return {"sum of shifts": 0.0}
    basis = np.kron(np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.eye(2))
    precision = basis.T @ block_diag(*precisions) @ basis
    away = drawn[:, :2].reshape(count, 4) - np.linalg.solve(precision, basis.T @ linear.ravel())
    standard = away @ np.linalg.cholesky(precision)
    p_values = {f"shift {i}": float(st.kstest(standard[:, i], "norm").pvalue) for i in range(4)}

    # As many channels as draws, with the same shifts: one chain of tau for each.
    shifts, taus = np.array([0.3, 0.2, -0.5]), np.full(count, 1.0)
    for _ in range(40):
        taus = cohort.draw_taus(np.tile(shifts[:, None], count), taus, OWN, rng)
    grid = np.exp(np.linspace(-5.0, 5.0, 4001))
    logs = st.t(SHIFT_DOF, scale=OWN.shift_scale).logpdf(grid) - np.square(shifts).sum() / (2.0 * grid**2)
    density = np.exp(logs - 2.0 * np.log(grid)) * grid  # two free shifts; of log tau
    cdf = np.cumsum(density) / density.sum()
    return p_values | {"tau": float(st.kstest(np.interp(taus, grid, cdf), "uniform").pvalue)}
