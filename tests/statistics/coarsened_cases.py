"""Cases in which the distribution of the coarsened sweep is known exactly, and wrong samplers for each.

**Given labels** the sweep has an exact joint distribution. A normal density to the power zeta is a density::

    N(x | mu, Sigma)^zeta = N(x | mu, Sigma / zeta) |Sigma|^((1 - zeta) / 2) times a constant

The product of the prior, pi_z^zeta for each label and N(x | mu_z, Sigma_z)^zeta for each event is therefore a
proper distribution of parameters, labels and events where nu + 2 > N (1 - zeta), and everything that a sweep
draws after the labels is a draw from its conditional. In it

- a component with n events has Sigma ~ IW(nu + D + 1 - n (1 - zeta), nu Phi), before its events are known,
  and mu | Sigma ~ N(m, gamma Sigma); its events are N(mu, Sigma / zeta); m and gamma keep their priors;
- counts and alpha are weighted by E|Sigma|^(n (1 - zeta) / 2) and by the sticks' Beta functions of zeta n.

Where events are clouds (`dpmix.model.resolution`), each has a further factor exp(-zeta tr(Sigma_z^-1 R) / 2).
Then Sigma ~ IW(nu + D + 1 - n (1 - zeta), nu Phi + zeta n R), and the moment has this factor, too.

The labels of a run are drawn otherwise, with the full likelihood. The two agree where labels carry no
uncertainty: with one component (`joint_distribution` then draws them with the engine), and with components
that do not overlap (`separated`).

**A round of split-merge moves** with a fixed launch walks between the joined events and their divisions z.
With the proposal's probability q(z), accepted by q^zeta, detailed balance gives the joined events p and each
division p(z) q(z)^(1 - zeta) / 2, where p is the power posterior of the labels (`Star`). The 1/2 comes from
merging into one of two components; here, only one of them is ever used.

N events, D channels, K components, T draws, Z = 2^N - 1 labellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from comparisons import same_distribution
from exact_cases import EVENTS, RESOLUTION, beyond_chance, log_label_prior
from exact_cases import PRIOR as SMALL_PRIOR
from quantities import INVARIANT, OF_EVENTS, OF_PLACES, quantities
from reference import ReferenceEngine
from scipy import stats as st
from scipy.special import betaln, gammaln, logsumexp, multigammaln
from whole_chain import (
    PHI,
    Array,
    Case,
    Ints,
    Sampler,
    Schedule,
    Trace,
    cpu_engine,
    gammas,
    posterior_draws,
    stack,
)

from dpmix.model import gibbs, split_merge
from dpmix.model.coarsening import coarsened
from dpmix.model.mixture import State, Stats, mixture_of, whiteners_of
from dpmix.model.prior import Prior
from dpmix.model.resolution import blurred, of_clouds, penalties
from dpmix.model.streams import Key, Stream

ZETA = 0.4

# ---- The joint distribution given labels

LEARNED = frozenset({"alpha", "m", "gamma"})
JOINT = Case(Prior(np.array([0.5, -0.5]), 2.0, 8.0, PHI[:2, :2], 2.0, 1.0, LEARNED), 3, 6)
ALPHAS = 2000  # equally probable values of alpha
Clouds = tuple[float, ...] | None


def spread_of(resolution: Clouds, dim: int = 2) -> Array:
    """Return R, float64 [D, D]; 0 where events are points."""
    return np.diag(np.square(np.zeros(dim) if resolution is None else np.array(resolution)))


def log_moment(counts: Ints, prior: Prior, resolution: Clouds = None) -> Array:
    """Return log E|Sigma|^(n (1 - zeta) / 2) exp(-zeta n tr(Sigma^-1 R) / 2) under the prior, of each n."""
    dim = len(prior.m)
    dof, power = prior.nu + dim + 1, counts * (1.0 - ZETA)
    scale, added = prior.nu * prior.phi, ZETA * counts[..., None, None] * spread_of(resolution, dim)
    gammas = [multigammaln(0.5 * (dof - p), dim) for p in power.ravel()] - multigammaln(0.5 * dof, dim)
    moments = np.asarray(gammas).reshape(power.shape) - 0.5 * power * dim * np.log(2.0)
    moments += 0.5 * dof * np.linalg.slogdet(scale)[1]
    return np.asarray(moments - 0.5 * (dof - power) * np.linalg.slogdet(scale + added)[1])


def independent(
    case: Case, count: int, rng: np.random.Generator, resolution: Clouds = None
) -> tuple[Trace, Array]:
    """Return independent draws of the joint distribution by SciPy, and their sticks [T, K - 1]."""
    prior, n, k, dim = case.prior, case.n_events, case.n_components, len(case.prior.m)
    of_counts = np.array([c for c in product(range(n + 1), repeat=k) if sum(c) == n])
    alphas = st.gamma(prior.alpha_shape, scale=1.0 / prior.alpha_rate).ppf((np.arange(ALPHAS) + 0.5) / ALPHAS)
    moments = log_moment(of_counts, prior, resolution).sum(axis=1)
    log_table = log_label_prior(ZETA * of_counts, alphas) + moments
    log_table += gammaln(n + 1.0) - gammaln(of_counts + 1.0).sum(axis=1)
    table = np.exp(log_table - logsumexp(log_table))
    g, row = np.unravel_index(rng.choice(table.size, size=count, p=table.ravel()), table.shape)
    alpha, counts = alphas[g], of_counts[row]
    labels = rng.permuted(np.array([np.repeat(np.arange(k), c) for c in counts]), axis=1)
    later = counts[:, ::-1].cumsum(axis=1)[:, ::-1] - counts
    sticks = rng.beta(1.0 + ZETA * counts[:, :-1], alpha[:, None] + ZETA * later[:, :-1])
    sticks = np.minimum(sticks, 1.0 - 2.0**-53)  # some round to 1
    gamma = gammas(prior, count, rng)
    m = st.multivariate_normal(prior.m, prior.gamma * prior.phi).rvs(count, random_state=rng)
    covariances = np.empty((count, k, dim, dim))
    for held in range(n + 1):
        scale = prior.nu * prior.phi + ZETA * held * spread_of(resolution, dim)
        law = st.invwishart(prior.nu + dim + 1 - held * (1.0 - ZETA), scale)
        chosen = counts == held
        covariances[chosen] = law.rvs(max(chosen.sum(), 2), random_state=rng)[: chosen.sum()]
    noise = np.linalg.cholesky(covariances) @ rng.standard_normal((count, k, dim, 1))
    means = m[:, None] + np.sqrt(gamma)[:, None, None] * noise[..., 0]
    log_weights = _log_weights(sticks)
    events = _events(labels, means, covariances, rng)
    nu, phi = np.full(count, prior.nu), np.tile(prior.phi, (count, 1, 1))
    return Trace(m, gamma, nu, phi, alpha, log_weights, means, covariances, labels, events), sticks


def _log_weights(sticks: Array) -> Array:
    ends = np.zeros((len(sticks), 1))
    before = np.hstack((ends, np.cumsum(np.log1p(-sticks), axis=1)))
    return np.hstack((np.log(sticks), ends)) + before


def _events(labels: Ints, means: Array, covariances: Array, rng: np.random.Generator) -> Array:
    rows = np.arange(len(labels))[:, None]
    roots = np.linalg.cholesky(covariances / ZETA)[rows, labels]
    noise = rng.standard_normal((*labels.shape, means.shape[2], 1))
    return means[rows, labels] + (roots @ noise)[..., 0]


def _state(trace: Trace, sticks: Array, t: int, case: Case) -> State:
    hyper = replace(case.prior.centre, m=trace.m[t], gamma=float(trace.gamma[t]))
    of_sticks = np.log(sticks[t]), np.log1p(-sticks[t])
    parameters = trace.means[t], trace.covariances[t], whiteners_of(trace.covariances[t])
    return State(0, float(trace.alpha[t]), *of_sticks, *parameters, hyper)


def _labelled(state: State, labels: Ints, events: Array, key: Key, resolution: Array | None) -> Stats:
    """Return the statistics of the labels; of one component, those that the engine draws."""
    k = state.n_components
    if k == 1:
        mixture = of_clouds(mixture_of(state), resolution)
        return cpu_engine(events.astype(np.float32)).draw_labels(mixture, key)
    drawn = (labels[:, None] == np.arange(k)).astype(float)
    away = events[:, None] - state.means
    sums = np.einsum("nk,nki->ki", drawn, away)
    scatters = np.einsum("nk,nki,nkj->kij", drawn, away, away)
    return Stats(drawn.sum(axis=0), sums, scatters, state.means, 0.0)


def joint_distribution(
    case: Case,
    chains: int,
    sweeps: int,
    *,
    label_swaps: bool = True,
    seed: int = 1,
    resolution: Clouds = None,
) -> dict[str, float]:
    """Return p-values of the joint-distribution test (Geweke 2004) of a sweep given labels.

    The chains start at independent draws, and alternate between labels and events given the parameters, by
    NumPy, and a sweep.
    """
    rng = np.random.default_rng([seed, 7])
    first, sticks = independent(case, chains, rng, resolution)
    compared, _ = independent(case, 20_000, rng, resolution)
    spread = None if resolution is None else np.array(resolution)
    before, after = [], []
    for chain in range(chains):
        following = _state(first, sticks, chain, case)
        for sweep in range(1, sweeps + 1):
            state, key = following, Key(seed, chain, sweep)
            logs = ZETA * state.log_weights + 0.5 * (1.0 - ZETA) * np.linalg.slogdet(state.covariances)[1]
            if spread is not None:
                logs -= ZETA * penalties(state.whiteners, spread)
            p = np.exp(logs - logsumexp(logs))
            labels = rng.choice(case.n_components, size=case.n_events, p=p)
            events = _events(labels[None], state.means[None], state.covariances[None], rng)[0]
            stats = _labelled(state, labels, events, key, spread)
            following, _ = gibbs.sweep(
                state,
                stats,
                case.prior,
                Stream(*key),
                label_swaps=label_swaps,
                zeta=ZETA,
                resolution=spread,
            )
            before.append((state, labels, events))
            after.append((following, labels, events))
    of_state = quantities(case, INVARIANT, OF_PLACES)
    if case.n_components == 1:
        of_state = {name: of_state[name] for name in of_state if name not in ("second weight", "correlation")}
    groups = (stack(before), OF_EVENTS), (stack(after), of_state)
    values = {
        name: (quantity(compared), quantity(trace).reshape(chains, sweeps))
        for trace, group in groups
        for name, quantity in group.items()
    }
    return {
        f"{name}, {score}": p_value
        for name, (theirs, ours) in values.items()
        if np.ptp(theirs) > 0  # one component holds all events and has weight 1
        for score, p_value in same_distribution(theirs, ours).items()
    }


# ---- A whole chain, with its engine, on components that do not overlap

APART = Case(Prior(np.zeros(2), 2000.0, 2.0, PHI[:2, :2], 1.0, 1.0, frozenset()), 2, 20)
ALPHA = 1.5


def two_groups() -> tuple[Array, Array]:
    """Return 12 and 8 events, 80 standard deviations apart."""
    rng = np.random.default_rng(3)
    events = rng.normal(size=(20, 2)).astype(np.float32).astype(float)
    return events[:12] + np.array([40.0, 0.0]), events[12:] - np.array([40.0, 0.0])


def power_conditional(
    events: Array, prior: Prior, zeta: float, resolution: Clouds = None
) -> tuple[Array, float, float, Array]:
    """Return mean, precision, degrees of freedom and scale of the power posterior of one component."""
    dim, n = len(prior.m), zeta * len(events)
    average = events.mean(axis=0)
    away, offset = events - average, average - prior.m
    kappa = 1.0 / prior.gamma + n
    scale = prior.nu * prior.phi + zeta * away.T @ away + n / (kappa * prior.gamma) * np.outer(offset, offset)
    scale += n * spread_of(resolution, dim)
    return (prior.m / prior.gamma + n * average) / kappa, kappa, prior.nu + dim + 1 + n, scale


def separated(sweeps: int, seed: int = 1, resolution: Clouds = None) -> dict[str, float]:
    """Return p-values of a chain on two groups: mean and variance of one, its weight, its place."""
    here, there = two_groups()
    events = np.concatenate((here, there)).astype(np.float32)
    sampler = Sampler(zeta=ZETA, resolution=resolution)
    trace = posterior_draws(APART, events, 0, Schedule(20, sweeps, 1), sampler, seed, alpha=ALPHA)
    rows, place = np.arange(sweeps), trace.means[:, :, 0].argmax(axis=1)
    mean, kappa, dof, scale = power_conditional(here, APART.prior, ZETA, resolution)
    free = dof - 1.0
    of_mean = st.t(free, mean[0], np.sqrt(scale[0, 0] / (kappa * free)))
    of_variance = st.invgamma(0.5 * free, scale=0.5 * scale[0, 0])
    a, b = ZETA * len(here), ZETA * len(there)
    log_odds = betaln(1.0 + a, ALPHA + b) - betaln(1.0 + b, ALPHA + a)  # of the group being the first
    first = 1.0 / (1.0 + np.exp(-log_odds))
    weight = np.exp(trace.log_weights[rows, place])
    of_weight = first * st.beta(1.0 + a, ALPHA + b).cdf(weight)
    of_weight += (1.0 - first) * st.beta(1.0 + b, ALPHA + a).sf(1.0 - weight)
    spread = np.stack((of_weight, np.square(of_weight - 0.5)), axis=1)
    return {
        "mean": float(st.kstest(of_mean.cdf(trace.means[rows, place, 0]), "uniform").pvalue),
        "variance": float(st.kstest(of_variance.cdf(trace.covariances[rows, place, 0, 0]), "uniform").pvalue),
        "weight": beyond_chance(spread, np.array([0.5, 1.0 / 12.0]), 40),
        "place": beyond_chance((place == 0).astype(float)[:, None], np.array([first]), 40),
    }


# ---- Split-merge moves with a fixed launch


def log_power_marginal(events: Array, prior: Prior, zeta: float, resolution: Clouds = None) -> float:
    """Return the log of the prior's mean of the likelihood of one component's events to the power zeta."""
    if len(events) == 0:
        return 0.0
    dim, n = len(prior.m), zeta * len(events)
    _, kappa, dof, scale = power_conditional(events, prior, zeta, resolution)
    before, dof_before = prior.nu * prior.phi, prior.nu + dim + 1
    return float(
        multigammaln(0.5 * dof, dim)
        - multigammaln(0.5 * dof_before, dim)
        + 0.5 * dof_before * np.linalg.slogdet(before)[1]
        - 0.5 * dof * np.linalg.slogdet(scale)[1]
        - 0.5 * dim * (np.log(prior.gamma * kappa) + n * np.log(np.pi))
    )


class Star(NamedTuple):
    """The exact walk between the joined events, row 0, and their divisions.

    Attributes
    ----------
    labels : int [Z, N]
    power : float64 [Z]
        The power posterior of the labels.
    q : float64 [Z]
        Probability that the proposal is this division; 1 for row 0, which is no proposal.
    """

    labels: Ints
    power: Array
    q: Array

    @property
    def stationary(self) -> Array:
        """p for the joined events, p q^(1 - zeta) / 2 for a division, normalised."""
        p = self.power * self.q ** (1.0 - ZETA) * np.where(np.arange(len(self.q)) == 0, 1.0, 0.5)
        return np.asarray(p / p.sum())

    @property
    def ratios(self) -> Array:
        """The ratio by which each division is accepted; row 0 has none."""
        return np.asarray(self.power / (2.0 * self.power[0] * self.q**ZETA))

    @property
    def transitions(self) -> Array:
        """Probabilities [Z, Z] of one round."""
        matrix = np.zeros((len(self.q), len(self.q)))
        matrix[0, 1:] = (self.q * np.minimum(1.0, self.ratios))[1:]
        matrix[1:, 0] = np.minimum(1.0, 1.0 / self.ratios)[1:]
        return matrix + np.diag(1.0 - matrix.sum(axis=1))


class _FixedLaunch:
    """Instead of a generator: the pair, and the first two normals of the launch, are always the same."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.standard_exponential = rng.standard_exponential

    @staticmethod
    def permutation(n: int) -> Ints:
        return np.arange(n)

    @staticmethod
    def standard_normal(shape: tuple[int, ...]) -> Array:
        return np.broadcast_to([0.9, 0.6], shape)


class Rounds:
    """Rounds of split-merge moves on a few events in two components, with the launch fixed."""

    def __init__(self, n_events: int = 5, seed: int = 1, resolution: Clouds = None) -> None:
        self.events, self.seed, self.resolution = EVENTS[:n_events], seed, resolution
        self.engine, self.mixtures = ReferenceEngine(self.events), []
        self.labels = np.array([z for z in product(range(2), repeat=n_events) if sum(z) < n_events])
        held = (self.labels[..., None] == np.arange(2)).astype(float)
        self.counts = held.sum(axis=1)
        x = self.events.astype(float)
        self.sums = np.einsum("znk,ni->zki", held, x)
        self.scatters = np.einsum("znk,ni,nj->zkij", held, x, x)

    def _divide(self, split: Any, mixture: Any, key: Key) -> Any:
        last = split.word == split_merge.LAUNCH_SCANS + 1
        if last:
            self.mixtures.append((split, mixture))
        return self.engine.divide(split, mixture, key if last else Key(self.seed, 0, 0))

    def go(self, z: int, iteration: int) -> int:
        """Return the row of the labels after one round from row z."""
        self.engine._labels[0] = self.labels[z].astype(np.int32)
        stats = Stats(self.counts[z], self.sums[z], self.scatters[z], np.zeros((2, 2)), 0.0)
        key = Key(self.seed, 0, iteration)

        class Fixed:
            def __init__(self, *of: int) -> None:
                self.rng = np.random.default_rng([*of, 8])

            def step(self, _: object) -> _FixedLaunch:
                return _FixedLaunch(self.rng)

        with mock.patch.object(split_merge, "Stream", Fixed):
            spread = None if self.resolution is None else np.array(self.resolution)
            regroup = split_merge.round_of(self._divide, key, ZETA, resolution=spread)
        after, _ = regroup(blurred(coarsened(stats, ZETA), spread), SMALL_PRIOR.centre, ALPHA)
        there = after.sums + after.counts[:, None] * after.centres
        gaps = np.abs(ZETA * self.sums - there).sum(axis=(1, 2))
        gaps += np.abs(ZETA * self.counts - after.counts).sum(axis=1)
        return int(gaps.argmin())

    def star(self) -> Star:
        """Return the exact walk, by enumeration."""
        self.go(0, 0)
        split, mixture = self.mixtures[0]
        self.engine._labels[0] = np.zeros(len(self.events), np.int32)
        sides, _ = self.engine.side_probabilities(split, mixture, 0)
        q = np.prod(sides[np.arange(len(self.events)), self.labels], axis=1)
        x = self.events.astype(float)
        logs = log_label_prior(ZETA * self.counts, np.array([ALPHA]))[0]
        logs += [
            sum(log_power_marginal(x[z == k], SMALL_PRIOR, ZETA, self.resolution) for k in range(2))
            for z in self.labels
        ]
        q[0] = 1.0
        return Star(self.labels, np.exp(logs - logsumexp(logs)), q)


def split_merge_rounds(count: int, seed: int = 1, resolution: Clouds = None) -> dict[str, float]:
    """Return p-values of the divisions reached from the joined events, and of the merges."""
    rounds = Rounds(seed=seed, resolution=resolution)
    star = rounds.star()
    exact = star.transitions
    reached = np.bincount([rounds.go(0, i) for i in range(count)], minlength=len(exact))
    expected = count * exact[0]
    usual = expected >= 5.0
    cells = [np.append(values[usual], values[~usual].sum()) for values in (reached, expected)]
    each = -(-count // (len(exact) - 1))
    merged = [rounds.go(z, i) == 0 for z in range(1, len(exact)) for i in range(each)]
    chances = np.repeat(exact[1:, 0], each)
    z_score = (np.sum(merged) - chances.sum()) / np.sqrt((chances * (1.0 - chances)).sum())
    launches = np.array([mixture.means for _, mixture in rounds.mixtures])
    assert np.ptp(launches, axis=0).max() < 1e-9
    return {
        "splits": float(st.chisquare(*cells).pvalue),
        "merges": float(2.0 * st.norm.sf(abs(z_score))),
    }


# ---- Wrong samplers: zeta is left out of one place

SHORT: dict[str, Callable[[], dict[str, float]]] = {
    "joint": lambda: joint_distribution(JOINT, 60, 12),
    "separated": lambda: separated(1500),
    "split-merge": lambda: split_merge_rounds(600),
    "joint, clouds": lambda: joint_distribution(JOINT, 60, 12, resolution=RESOLUTION),
    "separated, clouds": lambda: separated(1500, resolution=RESOLUTION),
    "split-merge, clouds": lambda: split_merge_rounds(600, resolution=RESOLUTION),
}
WRONG: dict[str, tuple[str, Callable[[], AbstractContextManager[object]]]] = {}


def slip(caught_by: str, owner: Any, name: str, what: str) -> Callable[[Callable[..., Any]], None]:
    """Register a wrong function, whose first argument is the right one, and the test that catches it."""

    def register(wrong: Callable[..., Any]) -> None:
        @contextmanager
        def patched() -> Iterator[None]:
            right = getattr(owner, name)
            with mock.patch.object(owner, name, lambda *given, **named: wrong(right, *given, **named)):
                yield

        WRONG[what] = caught_by, patched

    return register


slip("separated", gibbs, "coarsened", "sums count in full")(
    lambda right, stats, zeta: replace(right(stats, zeta), sums=stats.sums)
)
slip("joint", gibbs, "coarsened", "zeta twice")(lambda right, stats, zeta: right(stats, zeta * zeta))


@slip("split-merge", split_merge, "propose", "split-merge: q in full")
def _(right: Any, *given: Any) -> Any:
    return [found._replace(log_probability=found.log_probability / ZETA) for found in right(*given)]


# ---- Wrong samplers: events that are clouds


@slip("joint, clouds", gibbs, "blurred", "clouds: the resolution is not coarsened")
def _(right: Any, stats: Stats, resolution: Any) -> Any:
    full = replace(stats, counts=stats.counts / ZETA)
    return replace(stats, scatters=right(full, resolution).scatters)


@slip("separated, clouds", gibbs, "blurred", "clouds: the resolution is coarsened twice")
def _(right: Any, stats: Stats, resolution: Any) -> Any:
    fewer = replace(stats, counts=stats.counts * ZETA)
    return replace(stats, scatters=right(fewer, resolution).scatters)


@slip("split-merge, clouds", split_merge, "blurred", "clouds: split-merge without the resolution")
def _(right: Any, stats: Stats, resolution: Any) -> Any:
    return stats
