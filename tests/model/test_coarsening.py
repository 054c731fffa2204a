"""The coarsened posterior: in sweeps, steps and split-merge moves, an event counts zeta of an event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from reference import ReferenceEngine
from scipy import stats as st
from test_bem import PRIOR, three_groups
from whole_runs import StopAfter, a_config, assert_identical, write_events

from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.model import bem, gibbs, normal_wishart, split_merge
from dpmix.model.coarsening import coarsened, full_factors, with_full_events, zeta_of
from dpmix.model.mixture import Array, State, Stats, mixture_from, mixture_of
from dpmix.model.prior import log_prior
from dpmix.model.streams import Key, Stream
from dpmix.runs import initialise
from dpmix.runs.bem import run_bem
from dpmix.runs.describe import describe_run
from dpmix.runs.mcmc import run_mcmc


def test_zeta() -> None:
    assert zeta_of(None, 10_000) == 1.0
    assert zeta_of(2_000, 6_000) == 0.25
    assert zeta_of(2_000, 2) == pytest.approx(0.999, rel=1e-3)


def test_statistics_are_scaled_and_the_log_likelihood_is_not() -> None:
    events = three_groups(50)
    state = initialise.from_kmeans(events, 50, 3, PRIOR, Stream(1, 0, 0))
    stats = ReferenceEngine(events).expect_labels(mixture_of(state))
    fewer = coarsened(stats, 0.25)
    for name in ("counts", "sums", "scatters"):
        np.testing.assert_array_equal(getattr(fewer, name), 0.25 * getattr(stats, name))
    np.testing.assert_array_equal(fewer.centres, stats.centres)
    assert fewer.log_likelihood == stats.log_likelihood
    assert coarsened(stats, 1.0) is stats


def test_the_first_events_of_a_component_count_in_full() -> None:
    counts = np.array([0.0, 5.0, 20.0, 100.0, 1e5])
    stats = Stats(
        counts, counts[:, None] * [1.0, 2.0], counts[:, None, None] * np.eye(2), np.zeros((5, 2)), 0.0
    )
    fewer = coarsened(stats, 0.1)
    found = with_full_events(fewer, 0.1, 20.0)
    as_many = np.array([0.0, 5.0, 20.0, 20.0, 1e4])
    np.testing.assert_allclose(found.counts, as_many)
    np.testing.assert_allclose(found.sums, as_many[:, None] * [1.0, 2.0])
    np.testing.assert_allclose(found.scatters, as_many[:, None, None] * np.eye(2))
    assert with_full_events(fewer, 0.1, 0.0) is fewer
    assert with_full_events(stats, 1.0, 20.0) is stats


# ---- One component: the scaled statistics give exactly the power posterior


def power_posterior_z(draws: Array, events: Array, zeta: float) -> float:
    """Return the largest z-score of the draws of mu against their power posterior in closed form.

    Each event counts zeta: the marginal of mu is multivariate t (Murphy 2007, section 8).
    """
    n, dim = zeta * len(events), events.shape[1]
    mean = events.mean(axis=0)
    kappa = 1.0 / PRIOR.gamma + n
    dof = PRIOR.nu + dim + 1 + n
    away = mean - PRIOR.m
    scatter = zeta * (events - mean).T @ (events - mean)
    scale = PRIOR.nu * PRIOR.phi + scatter + n / (1.0 + PRIOR.gamma * n) * np.outer(away, away)
    freedom = dof - dim + 1
    centre = PRIOR.m + n / kappa * away
    marginals = [st.t(freedom, centre[d], np.sqrt(scale[d, d] / (kappa * freedom))) for d in range(dim)]
    uniforms = np.stack([m.cdf(draws[:, d]) for d, m in enumerate(marginals)], axis=1)
    means = (uniforms.mean(axis=0) - 0.5) / np.sqrt(1.0 / 12.0 / len(draws))
    spreads = (np.square(uniforms - 0.5).mean(axis=0) - 1.0 / 12.0) / np.sqrt(1.0 / 180.0 / len(draws))
    return float(np.abs(np.concatenate((means, spreads))).max())


def one_component_draws(events: Array, zeta: float, full_events: float = 0.0) -> Array:
    values = events.astype(np.float32)
    start = initialise.from_kmeans(values, len(values), 1, PRIOR, Stream(1, 0, 0))
    stats = ReferenceEngine(values).expect_labels(mixture_of(start))

    def swept(i: int) -> State:
        return gibbs.sweep(start, stats, PRIOR, Stream(5, 0, i), zeta=zeta, full_events=full_events)[0]

    return np.array([swept(i).means[0] for i in range(1, 2001)])


def test_one_component_has_the_power_posterior() -> None:
    events = three_groups(80)
    assert power_posterior_z(one_component_draws(events, 0.1), events, 0.1) < 4.0


@pytest.mark.parametrize("zeta", [1.0, 0.2])
def test_a_wrong_power_fails(zeta: float) -> None:
    events = three_groups(80)
    assert power_posterior_z(one_component_draws(events, zeta), events, 0.1) > 8.0


def test_a_small_component_has_the_power_posterior_of_its_full_events() -> None:
    events = three_groups(80)
    power = 20.0 / len(events)
    assert power_posterior_z(one_component_draws(events, 0.02, 20.0), events, power) < 4.0


@pytest.mark.parametrize(("zeta", "full_events"), [(0.02, 0.0), (0.02, 1e6), (0.9, 20.0)])
def test_other_full_events_fail(zeta: float, full_events: float) -> None:
    """None, all, and fewer than the power gives anyway."""
    events = three_groups(80)
    draws = one_component_draws(events, zeta, full_events)
    assert power_posterior_z(draws, events, 20.0 / len(events)) > 8.0


# ---- Bayesian EM climbs the power posterior


def log_power_posteriors(events: np.ndarray, zeta_of_steps: float, zeta: float, steps: int) -> Array:
    engine = ReferenceEngine(events)
    state, values = initialise.from_kmeans(events, len(events), 3, PRIOR, Stream(1, 0, 0)), []
    for _ in range(steps):
        stats = engine.expect_labels(mixture_of(state))
        values.append(zeta * stats.log_likelihood + log_prior(state, PRIOR))
        state, _ = bem.step(state, stats, PRIOR, "mode", zeta=zeta_of_steps)
    return np.array(values)


def test_bayesian_em_never_lowers_the_log_posterior_of_its_own_power() -> None:
    events = three_groups()
    values = log_power_posteriors(events, 0.05, 0.05, 60)
    assert np.diff(values).min() > -1e-9 * np.abs(values).max()
    exact = log_power_posteriors(events, 1.0, 0.05, 60)  # another power ends elsewhere, and lower
    assert values[-1] > exact[-1] + 0.1


# ---- Split-merge moves


def partition_stats(events: np.ndarray, labels: Array, n_components: int) -> Stats:
    counts = np.bincount(labels, minlength=n_components).astype(float)
    sums = np.stack([events[labels == j].sum(axis=0) for j in range(n_components)]).astype(float)
    scatters = np.stack(
        [events[labels == j].T.astype(float) @ events[labels == j] for j in range(n_components)]
    )
    return Stats(counts, sums, scatters, np.zeros((n_components, 2)), 0.0)


def test_a_round_of_moves_sees_events_that_count_zeta() -> None:
    """A merge of groups that the exact posterior keeps apart is accepted where the events count little."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1], 200)
    events = (rng.normal(size=(400, 2)) + 1.2 * labels[:, None]).astype(np.float32)
    stats = partition_stats(events, labels, 2)
    hyper, gains = PRIOR.centre, []
    for zeta in (1.0, 0.02):
        scaled = coarsened(stats, zeta)
        pairs = split_merge.pair_components(scaled, hyper, np.random.default_rng(0))
        gains.append(float(pairs.log_joined[0] - pairs.log_apart[0]))
        apart = normal_wishart.log_marginals(scaled, hyper).sum()
        assert pairs.log_apart[0] == pytest.approx(apart)
    assert gains[0] < -10 < 0 < gains[1]


def a_large_and_a_small_group() -> tuple[Stats, Stats]:
    """Return statistics of 10,000 events and of 40 others, in two components, and all in the first."""
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], [10_000, 40])
    events = rng.normal(size=(10_040, 2)) * np.where(labels, 0.5, 1.0)[:, None] + 3.0 * labels[:, None]
    apart, joined = (partition_stats(events.astype(np.float32), own, 2) for own in (labels, 0 * labels))
    return coarsened(apart, 0.02), coarsened(joined, 0.02)


@pytest.mark.parametrize(("full_events", "merges"), [(0.0, True), (20.0, False)])
def test_a_merge_is_judged_by_the_full_events_of_its_smaller_side(full_events: float, merges: bool) -> None:
    """40 events that count as less than one would be merged with a component 4 standard deviations away."""
    apart, joined = a_large_and_a_small_group()
    hyper = PRIOR.centre

    def factors(one: Array, other: Array) -> Array:
        return full_factors(np.minimum(one, other), 0.02, full_events)

    pairs = split_merge.pair_components(apart, hyper, np.random.default_rng(0), factors)
    assert pairs.factors[0] == pytest.approx(25.0 if full_events else 1.0)
    assert bool(split_merge.may_accept(pairs, apart.counts, 1.0, 0.02)[0]) == merges
    # The split that a merge reverses has the inverse ratio: both have the factor of the same two sides.
    marginal = float(normal_wishart.log_marginals(apart, hyper).sum())
    sides = split_merge.Proposal(apart, marginal, -3.0)
    one = split_merge.evaluate(pairs, 0, sides, apart.counts, 1.0, hyper, factors)[1]
    back = split_merge.pair_components(joined, hyper, np.random.default_rng(0))
    after, other = split_merge.evaluate(back, 0, sides, joined.counts, 1.0, hyper, factors)
    assert after.counts.tolist() == apart.counts.tolist()
    assert other == pytest.approx(-one, rel=1e-6)


def test_the_proposal_of_a_round_counts_zeta_too() -> None:
    events = three_groups(300)
    engine = CpuEngine(events)
    state = initialise.from_kmeans(events, 300, 4, PRIOR, Stream(1, 0, 0))
    key = Key(1, 0, 1)
    stats = engine.draw_labels(mixture_of(state), key)
    seen = []

    def divide(*given: object) -> tuple[Stats, Array]:
        divided = engine.divide(*given)  # type: ignore[arg-type]
        seen.append(divided)
        return divided

    def chosen(zeta: float) -> list[split_merge.Proposal]:
        rounds = []
        real = split_merge.evaluate

        def spy(pairs: object, m: int, proposal: split_merge.Proposal, *rest: object) -> tuple[Stats, float]:
            rounds.append(proposal)
            return real(pairs, m, proposal, *rest)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(split_merge, "evaluate", spy)
            split_merge.round_of(divide, key, zeta)(coarsened(stats, zeta), PRIOR.centre, 1.0)
        return rounds

    for zeta in (1.0, 0.5):
        seen.clear()
        proposals = chosen(zeta)
        assert proposals
        divided, log_probabilities = seen[split_merge.LAUNCH_SCANS]
        assert proposals[0].log_probability == pytest.approx(zeta * log_probabilities[0])
        assert proposals[0].sides.counts.sum() == pytest.approx(zeta * divided.counts[:2].sum())


# ---- Whole runs


def coarse_config(folder: Path, output: str, coarseness: float | None, threads: int = 1) -> Config:
    return a_config(
        folder,
        output,
        model={"components": 12, "coarseness": coarseness},
        mcmc={"chains": 2, "burn_in": 6, "draws": 8, "split_merge": 3},
        bem={"starts": 2, "max_steps": 30},
        engine={"threads": threads},
    )


def test_a_coarsened_run_stopped_and_resumed_is_one_run(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 1_000)
    run_mcmc(coarse_config(tmp_path, "whole.h5", 400.0))
    parts = coarse_config(tmp_path, "parts.h5", 400.0, 3)
    run_mcmc(parts, should_stop=StopAfter(9))
    run_mcmc(parts, resume=True)
    assert_identical(tmp_path / "whole.h5", tmp_path / "parts.h5")
    run_mcmc(coarse_config(tmp_path, "exact.h5", None))
    assert (open_run(tmp_path / "exact.h5").means[:] != open_run(tmp_path / "whole.h5").means[:]).any()


def test_full_events_reach_the_sweeps_of_a_run(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 1_000)
    config = coarse_config(tmp_path, "full.h5", 50.0)
    run_mcmc(config)
    model = config.model.model_copy(update={"full_events": 0.0})
    output = config.output.model_copy(update={"path": str(tmp_path / "plain.h5")})
    run_mcmc(config.model_copy(update={"model": model, "output": output}))
    plain, full = (open_run(tmp_path / f"{name}.h5") for name in ("plain", "full"))
    assert full.parsed_config().model.full_events == 20.0
    assert (plain.means[:] != full.means[:]).any()


def test_a_run_of_a_version_without_full_events_has_none(tmp_path: Path) -> None:
    """Its config does not name them, and it is resumed as it was begun."""
    write_events(tmp_path / "events.npy", 1_000)
    config = coarse_config(tmp_path, "run.h5", 50.0)
    run_mcmc(config)
    assert open_run(tmp_path / "run.h5").config["model"]["full_events"] == 20.0
    with h5py.File(tmp_path / "run.h5", "a") as file:
        lines = str(file.attrs["config"]).splitlines()
        file.attrs["config"] = "\n".join(line for line in lines if "full_events" not in line)
    old = open_run(tmp_path / "run.h5")
    assert old.config["model"]["full_events"] == 0.0
    assert old.parsed_config(["model.full_events=5"]).model.full_events == 5.0


@pytest.mark.parametrize(
    ("run", "coarseness", "expected"),
    [
        (run_mcmc, 400.0, ""),
        (run_mcmc, None, "model.full_events has no effect on the exact posterior (model.coarseness: null)"),
        (run_bem, 400.0, "model.full_events has no effect on Bayesian EM"),
    ],
)
def test_full_events_without_effect_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, run: Any, coarseness: float | None, expected: str
) -> None:
    write_events(tmp_path / "events.npy", 1_000)
    config = coarse_config(tmp_path, "run.h5", coarseness)
    run(config.model_copy(update={"model": config.model.model_copy(update={"full_events": 10.0})}))
    assert [line for line in caplog.messages if "full_events" in line] == ([expected] if expected else [])


@pytest.mark.parametrize("run", [run_mcmc, run_bem])
def test_the_log_posterior_of_a_run_is_the_coarsened_one(tmp_path: Path, run: Any) -> None:
    write_events(tmp_path / "events.npy", 1_000)
    run(coarse_config(tmp_path, "run.h5", 400.0))
    opened = open_run(tmp_path / "run.h5")
    full = ", the first 20 of a component in full for its mean and covariance" if run is run_mcmc else ""
    assert f"coarsened posterior, in which the events count as 286{full};" in "\n".join(describe_run(opened))
    last = float(opened.sample_stats["log_posterior"][0, -1])
    log_likelihood = float(opened.sample_stats["log_likelihood"][0, -1])
    with np.errstate(divide="ignore"):
        log_weights = np.log(opened.weights[0, -1])
    events = CpuEngine(standardised(np.load(tmp_path / "events.npy")))
    mixture = mixture_from(log_weights, np.asarray(opened.means[0, -1]), opened.covariances[0, -1])
    assert log_likelihood == pytest.approx(events.expect_labels(mixture).log_likelihood, rel=1e-6)
    # The prior's part, about -100 nats, is the same for any power: the rest is 2/7 of the log likelihood.
    assert abs(last - 2.0 / 7.0 * log_likelihood) < 400.0 < abs(last - log_likelihood)


def standardised(events: np.ndarray) -> np.ndarray:
    values = events.astype(np.float64)
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)
