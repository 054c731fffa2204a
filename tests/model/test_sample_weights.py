"""Weights of samples: one event that counts as several, from the statistics to whole runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from reference import ReferenceEngine
from scipy import stats as st
from test_bem import PRIOR, three_groups
from whole_runs import StopAfter, a_config, assert_draws_of, assert_identical

import dpmix
from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import DataError
from dpmix.model import bem, gibbs, split_merge
from dpmix.model.mixture import Array, Stats, mixture_from, mixture_of
from dpmix.model.prior import log_prior
from dpmix.model.sample_weights import SampleWeights, sample_weights
from dpmix.model.streams import Key, Stream
from dpmix.runs import initialise
from dpmix.runs.bem import run_bem
from dpmix.runs.describe import describe_run
from dpmix.runs.mcmc import run_mcmc

# ---- Weights


def test_equal_weights_give_every_sample_the_same_total_and_have_mean_1() -> None:
    starts = np.array([0, 900, 900, 960, 1000])
    weights = sample_weights(starts, None)
    assert weights is not None
    totals = weights.values * np.diff(starts)
    np.testing.assert_allclose(totals[[0, 2, 3]], 1000 / 3, rtol=1e-6)
    assert weights.each().mean(dtype=float) == pytest.approx(1.0, rel=1e-6)
    assert weights.smallest == weights.values[0]
    assert weights.values[1] == 1.0  # of no event
    np.testing.assert_array_equal(weights.of_events(np.arange(1000)), weights.each())
    np.testing.assert_array_equal(weights.part(890, 970).each(), weights.each()[890:970])


def test_only_ratios_of_weights_matter_and_equal_ones_are_none() -> None:
    starts = np.array([0, 100, 400])
    one, other = (sample_weights(starts, factor * np.array([2.0, 6.0])) for factor in (1.0, 7.0))
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.values, other.values, rtol=1e-6)
    np.testing.assert_allclose(one.values, [0.4, 1.2], rtol=1e-6)
    assert sample_weights(starts, np.array([3.0, 3.0])) is None
    assert sample_weights(np.array([0, 50, 100]), None) is None


@pytest.mark.parametrize(
    ("starts", "values"),
    [
        ([0, 10], [0.0]),
        ([0, 10], [np.inf]),
        ([1, 10], [1.0]),
        ([0, 10, 5], [1.0, 1.0]),
        ([0, 10], [1.0, 2.0]),
    ],
)
def test_what_is_wrong_with_weights_is_said(starts: list[int], values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^weights: "):
        SampleWeights(np.array(starts), np.array(values, np.float32))


# ---- The sweep has the weighted posterior where labels are certain, and a wrong one is found


def two_apart() -> tuple[np.ndarray, SampleWeights]:
    """Two groups so far apart that every label is certain, each with events of both of two samples."""
    rng = np.random.default_rng(2)
    groups = np.repeat([0, 1, 0, 1], [40, 10, 15, 35])
    spread = np.repeat([1.0, 2.0], 50)  # the second sample is wider
    events = spread[:, None] * rng.normal(size=(100, 2)) + 60.0 * groups[:, None]
    return events.astype(np.float32), SampleWeights(
        np.array([0, 50, 100]), np.array([0.25, 1.75], np.float32)
    )


def sweeps(change: Callable[[Stats, Stats], Stats], n: int = 1500) -> tuple[Array, Array, Array]:
    """Return draws of the first stick, the means and the variances; `change` may replace statistics."""
    events, weights = two_apart()
    prior = replace(PRIOR, learned=frozenset())
    state = initialise.from_kmeans(events, 100, 2, prior, Stream(1, 0, 0), weights.each())
    engine, plain = CpuEngine(events, threads=1, weights=weights), CpuEngine(events, threads=1)
    sticks, means, variances = np.empty(n), np.empty((n, 2, 2)), np.empty((n, 2, 2))
    for i in range(n):
        key = Key(3, 0, i + 1)
        stats = engine.draw_labels(mixture_of(state), key)
        stats = change(stats, plain.draw_labels(mixture_of(state), key))
        state, _ = gibbs.sweep(state, stats, prior, Stream(*key), label_swaps=False)
        sticks[i], means[i] = np.exp(state.log_sticks[0]), state.means
        variances[i] = np.einsum("kdd->kd", state.covariances)
    return sticks, means, variances


def largest_z(sticks: Array, means: Array, variances: Array) -> float:
    """Return the largest z-score of the draws against the weighted posterior in closed form.

    The stick is beta, each mean is multivariate t and each variance inverse gamma (Murphy 2007, section 8),
    with weighted sums.
    """
    events, weights = two_apart()
    each, wide = weights.each().astype(float), events.astype(float)
    alpha = PRIOR.alpha_shape / PRIOR.alpha_rate
    first = int(means[:, 1].mean() < means[:, 0].mean())  # the group of component 0
    of_component = [(wide[:, 0] > 30.0) == bool(first ^ j) for j in (0, 1)]
    counts = [each[own].sum() for own in of_component]
    uniforms = [st.beta(1.0 + counts[0], alpha + counts[1]).cdf(sticks)]
    for j, own in enumerate(of_component):
        w, x = each[own], wide[own]
        mean = w @ x / w.sum()
        kappa, away = 1.0 / PRIOR.gamma + w.sum(), mean - PRIOR.m
        scatter = (w[:, None] * (x - mean)).T @ (x - mean)
        scale = PRIOR.nu * PRIOR.phi + scatter
        scale = scale + w.sum() / (1.0 + PRIOR.gamma * w.sum()) * np.outer(away, away)
        freedom = PRIOR.nu + 2 + w.sum()
        for d in (0, 1):
            centre = PRIOR.m[d] + w.sum() / kappa * away[d]
            t = st.t(freedom, centre, np.sqrt(scale[d, d] / (kappa * freedom)))
            variance = st.invgamma(0.5 * freedom, scale=0.5 * scale[d, d])
            uniforms += [t.cdf(means[:, j, d]), variance.cdf(variances[:, j, d])]
    u = np.stack(uniforms, axis=1)
    centres = (u.mean(axis=0) - 0.5) / np.sqrt(1.0 / 12.0 / len(u))
    spreads = (np.square(u - 0.5).mean(axis=0) - 1.0 / 12.0) / np.sqrt(1.0 / 180.0 / len(u))
    return float(np.abs(np.concatenate((centres, spreads))).max())


def test_sweeps_draw_from_the_weighted_posterior() -> None:
    assert largest_z(*sweeps(lambda weighted, plain: weighted)) < 4.5


@pytest.mark.parametrize("statistic", ["counts", "sums", "scatters"])
def test_a_sampler_without_weights_in_one_statistic_fails(statistic: str) -> None:
    def wrong(weighted: Stats, plain: Stats) -> Stats:
        return replace(weighted, **{statistic: getattr(plain, statistic)})

    try:
        z = largest_z(*sweeps(wrong, 1000))
    except np.linalg.LinAlgError:  # statistics that no events have
        z = np.inf
    assert z > 8.0


# ---- Bayesian EM: exact for any weights


def test_em_of_events_of_weight_2_is_em_of_events_given_twice() -> None:
    events = three_groups(300)
    weights = SampleWeights(np.array([0, 120, 300]), np.array([2.0, 1.0], np.float32))
    repeated = np.concatenate([events[:120], events[:120], events[120:]])
    start = initialise.from_kmeans(events, len(repeated), 5, PRIOR, Stream(1, 0, 0), weights.each())
    ends = []
    for engine in (CpuEngine(events, weights=weights), CpuEngine(repeated)):
        state = start
        for _ in range(15):
            state, _ = bem.step(state, engine.expect_labels(mixture_of(state)), PRIOR)
        ends.append(state)
    np.testing.assert_allclose(ends[0].means, ends[1].means, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ends[0].covariances, ends[1].covariances, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ends[0].log_weights, ends[1].log_weights, rtol=1e-3, atol=1e-4)


def test_em_never_lowers_the_weighted_log_posterior() -> None:
    events = three_groups()
    weights = SampleWeights(np.array([0, 500, 600]), np.array([0.4, 4.0], np.float32))
    engine, plain = ReferenceEngine(events, weights=weights), ReferenceEngine(events)
    ends = []
    for used in (engine, plain):
        state, values = initialise.from_kmeans(events, 600, 3, PRIOR, Stream(1, 0, 0)), []
        for _ in range(60):
            stats = used.expect_labels(mixture_of(state))
            values.append(engine.expect_labels(mixture_of(state)).log_likelihood + log_prior(state, PRIOR))
            state, _ = bem.step(state, stats, PRIOR, "mode")
        ends.append(values[-1])
        if used is engine:
            assert np.diff(values).min() > -1e-9 * np.abs(values).max()
    assert ends[0] > ends[1] + 0.1  # without weights EM ends elsewhere, and lower


# ---- Starts and moves


def test_a_start_from_weighted_events_is_that_of_repeated_events() -> None:
    events = three_groups(200)
    weights = np.repeat(np.array([3.0, 1.0], np.float32), 100)
    repeated = np.repeat(events, weights.astype(int), axis=0)
    one = initialise.from_kmeans(events, 400, 1, PRIOR, Stream(1, 0, 0), weights)
    other = initialise.from_kmeans(repeated, 400, 1, PRIOR, Stream(1, 0, 0))
    np.testing.assert_allclose(one.means, other.means, rtol=1e-10)
    np.testing.assert_allclose(one.covariances, other.covariances, rtol=1e-10)
    heavy = np.where(events[:, 0] > 2.0, 1e6, 1e-6).astype(np.float32)
    drawn = initialise.from_random_events(events, 200, 8, PRIOR, Stream(1, 0, 0), heavy)
    assert (drawn.means[:, 0] > 2.0).all()


def test_two_events_of_small_weight_may_be_split_and_one_may_not() -> None:
    pairs = split_merge.pair_components(
        Stats(np.array([0.4, 0.0]), np.zeros((2, 2)), np.zeros((2, 2, 2)), np.zeros((2, 2)), 0.0),
        PRIOR.centre,
        np.random.default_rng(0),
    )
    counts = np.array([0.4, 0.0])
    assert split_merge.may_accept(pairs, counts, 1.0, least=0.2).all()
    assert not split_merge.may_accept(pairs, counts, 1.0, least=0.4).any()


# ---- Whole runs


def two_samples(folder: Path, **sections: Any) -> Config:
    """Write a large sample of group A and a small one of group B; return a config of both."""
    rng = np.random.default_rng(0)
    for name, n, centre in (("large", 1800, 0.0), ("small", 60, 8.0)):
        np.save(folder / f"{name}.npy", (centre + rng.normal(size=(n, 3))).astype(np.float32))
    (folder / "weights.csv").write_text("sample,weight\nsmall.npy,30\nlarge.npy,1\nother.npy,5\n")
    data = {"files": [str(folder / "large.npy"), str(folder / "small.npy")]} | sections.pop("data", {})
    config = a_config(
        folder,
        sections.pop("output", "run.h5"),
        data=data,
        model={"components": 6, "coarseness": None},
        mcmc={"chains": 1, "burn_in": 8, "draws": 10, "split_merge": 3},
        bem={"starts": 1, "max_steps": 25},
        **sections,
    )
    return config.model_copy(update={"data": type(config.data).model_validate(data)})


@pytest.mark.parametrize("run", [run_mcmc, run_bem])
def test_samples_of_unequal_size_count_equally(tmp_path: Path, run: Any) -> None:
    """A sample of 60 events has half of the mixture; without weights it has 3%, its share of the events."""
    shares = {}
    for name, weights in {
        "proportional": "proportional",
        "equal": "equal",
        "file": {"file": str(tmp_path / "weights.csv"), "column": "weight"},
    }.items():
        run(two_samples(tmp_path, output=f"{name}.h5", data={"weights": weights}))
        opened = open_run(tmp_path / f"{name}.h5")
        far = np.asarray(opened.means)[..., 0] > 1.5
        shares[name] = float(np.where(far, np.asarray(opened.weights), 0.0).sum(axis=-1).mean())
        assert ("an event counts" in "\n".join(describe_run(opened))) == (name != "proportional")
    assert shares["proportional"] == pytest.approx(60 / 1860, abs=0.02)
    assert shares["equal"] == pytest.approx(0.5, abs=0.05)
    assert shares["file"] == pytest.approx(0.5, abs=0.05)  # 30 x 60 events and 1 x 1,800


@pytest.mark.parametrize("threads", [1, 3])
def test_a_weighted_run_stopped_and_resumed_is_one_run(tmp_path: Path, threads: int) -> None:
    def config(output: str, **engine: object) -> Config:
        return two_samples(tmp_path, output=output, data={"weights": "equal"}, engine=engine)

    run_mcmc(config("whole.h5"))
    run_mcmc(config("parts.h5", threads=threads), should_stop=StopAfter(9))
    run_mcmc(config("parts.h5", threads=threads), resume=True)
    assert_identical(tmp_path / "whole.h5", tmp_path / "parts.h5")


def test_a_run_is_not_resumed_with_other_weights(tmp_path: Path) -> None:
    weights = {"file": str(tmp_path / "weights.csv"), "column": "weight"}
    config = two_samples(tmp_path, data={"weights": weights})
    run_mcmc(config, should_stop=StopAfter(9))
    (tmp_path / "weights.csv").write_text("sample,weight\nsmall.npy,31\nlarge.npy,1\n")
    with pytest.raises(DataError, match=r"other weights of samples \(data.weights\); restore the files"):
        run_mcmc(config, resume=True)


def test_a_run_from_before_weights_is_resumed_without(tmp_path: Path) -> None:
    run_mcmc(two_samples(tmp_path, output="whole.h5"))
    run_mcmc(two_samples(tmp_path), should_stop=StopAfter(9))
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        config = str(file.attrs["config"])
        assert "  weights: proportional\n" in config
        assert "sample_weights" not in file["constant_data"]
        file.attrs["config"] = config.replace("  weights: proportional\n", "")
    assert dpmix.run_mcmc(tmp_path / "run.h5", resume=True).complete
    assert_draws_of(tmp_path / "whole.h5", tmp_path / "run.h5")


# ---- Overlapping components: the spread that docs/explanation/weights.md states


@pytest.mark.slow
def test_a_proportion_of_overlapping_components_spreads_as_the_page_says() -> None:
    """Two known components and an unknown proportion p: the weighted posterior of p is known on a grid."""
    rng = np.random.default_rng(5)
    events = rng.normal(size=(2000, 1)) + 1.5 * (rng.random((2000, 1)) < 0.5)
    weights = sample_weights(np.array([0, 1800, 2000]), None)
    assert weights is not None
    each, densities = weights.each().astype(float), st.norm.pdf(events, [0.0, 1.5])
    grid = np.linspace(0.001, 0.999, 999)
    logs = sum(w * np.log(grid * d[1] + (1 - grid) * d[0]) for w, d in zip(each, densities, strict=True))
    shares = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    mean = float(shares @ grid)
    variance = float(shares @ np.square(grid - mean))
    engine = CpuEngine(events.astype(np.float32), threads=1, weights=weights)
    p, draws = mean, np.empty(6000)
    for i in range(len(draws)):
        with np.errstate(divide="ignore"):
            mixture = mixture_from(np.log([1 - p, p]), np.array([[0.0], [1.5]]), np.ones((2, 1, 1)))
        counts = engine.draw_labels(mixture, Key(1, 0, i)).counts
        p = draws[i] = rng.beta(1.0 + counts[1], 1.0 + counts[0])
    missing = 1.0 - mean * (1.0 - mean) / (variance * each.sum())
    heaviness = np.square(each).sum() / each.sum()
    expected = (1.0 + heaviness * missing) / (1.0 + missing)
    assert expected > 1.4
    assert draws.var() / variance == pytest.approx(expected, rel=0.15)
    assert abs(draws.mean() - mean) < 0.2 * np.sqrt(variance)
