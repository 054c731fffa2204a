"""Runs of the hierarchical model: draws, resume, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from whole_runs import StopAfter, a_config, assert_identical

from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.runs.bem import run_bem
from dpmix.runs.mcmc import run_mcmc

BEM = {"starts": 2, "short_steps": 6, "max_steps": 200, "update": "mode"}
MCMC = {"chains": 2, "burn_in": 4, "draws": 4}
SHIFTS = np.array([[-0.6, 0.3], [0.0, 0.0], [0.6, -0.3]])
SHARES = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
CENTRES = np.array([[-4.0, 0.0], [0.0, 5.0], [5.0, -3.0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three samples of three populations, shifted against each other."""
    found, rng = tmp_path_factory.mktemp("cohort"), np.random.default_rng(4)
    rows = ["file,batch,same"]
    for s, (share, shift) in enumerate(zip(SHARES, SHIFTS, strict=True)):
        labels = rng.choice(3, 1500, p=share)
        values = CENTRES[labels] + shift + 0.6 * rng.standard_normal((1500, 2))
        np.savetxt(found / f"s{s}.csv", values, delimiter=",", header="A,B", comments="")
        rows.append(f"s{s}.csv,{'one' if s < 2 else 'two'},x")
    (found / "samples.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return found


def a_run(folder: Path, output: str, shifts: str = "sample", **sections: dict[str, object]) -> Config:
    given = {"data": {"samples": str(folder / "samples.csv")}}
    model = {"components": 8, "samples": "hierarchical", "shifts": shifts, "coarseness": None}
    sections = {"model": model, "mcmc": MCMC, **given, **sections}
    return a_config(folder, output, **sections)


def test_proportions_and_shifts_are_found(folder: Path) -> None:
    mcmc = MCMC | {"burn_in": 60, "draws": 40}
    run = open_run(run_mcmc(a_run(folder, "found.h5", mcmc=mcmc)).path, transformed=True)
    own, means = run.cohort, run.means
    assert own["sample_proportions"].shape == (2, 40, 3, 8)
    np.testing.assert_allclose(own["sample_proportions"].sum(axis=-1), 1.0)
    np.testing.assert_allclose(own["base_weights"].sum(axis=-1), 1.0)
    np.testing.assert_allclose(own["shifts"].mean(axis=(0, 1)), SHIFTS, atol=0.08)
    np.testing.assert_allclose(own["shifts"].sum(axis=2), 0.0, atol=1e-9)
    nearest = np.square(means[..., None, :] - CENTRES).sum(axis=-1).argmin(axis=-1)
    for p in range(3):
        share = (own["sample_proportions"] * (nearest == p)[:, :, None]).sum(axis=-1).mean(axis=(0, 1))
        np.testing.assert_allclose(share, SHARES[:, p], atol=0.05)
    weights = (own["sample_proportions"] / 3.0).sum(axis=2)  # the samples have equally many events
    np.testing.assert_allclose(run.weights, weights, rtol=1e-9)


def test_a_resumed_run_and_other_threads_give_the_same_draws(folder: Path) -> None:
    whole = run_mcmc(a_run(folder, "whole.h5", engine={"threads": 1})).path
    config = a_run(folder, "stopped.h5", engine={"threads": 2})
    assert not run_mcmc(config, should_stop=StopAfter(6)).completed
    assert run_mcmc(config, resume=True).completed
    assert_identical(whole, folder / "stopped.h5")


@pytest.mark.slow
def test_a_cluster_gives_the_draws_and_the_climb_of_one_process(folder: Path) -> None:
    from cluster_cases import threads  # Dask is slow to import

    bem = BEM | {"short_events": 1_000}
    one, climbed = run_mcmc(a_run(folder, "one.h5")).path, run_bem(a_run(folder, "climbed.h5", bem=bem)).path
    with threads(1, 1) as local:
        engine = {"backend": "cluster", "scheduler": local.scheduler_address}
        assert_identical(one, run_mcmc(a_run(folder, "many.h5", engine=engine)).path)
        assert_identical(climbed, run_bem(a_run(folder, "parts.h5", bem=bem, engine=engine)).path)


def test_without_shifts_and_with_coarseness_and_weights(folder: Path) -> None:
    data = {"samples": str(folder / "samples.csv"), "weights": "equal"}
    model = {"components": 8, "samples": "hierarchical", "coarseness": 200.0}
    run = open_run(run_mcmc(a_run(folder, "plain.h5", model=model, data=data)).path)
    assert sorted(run.cohort) == ["base_weights", "kappa", "sample_proportions"]
    assert run.arviz().posterior["sample_proportions"].dims == ("chain", "draw", "sample", "component")


def test_samples_of_a_batch_share_their_shift(folder: Path) -> None:
    shifts = open_run(run_mcmc(a_run(folder, "batch.h5", "batch")).path).cohort["shifts"]
    assert np.array_equal(shifts[:, :, 0], shifts[:, :, 1])
    np.testing.assert_allclose(shifts[:, :, 0], -shifts[:, :, 2], atol=1e-12)


@pytest.mark.parametrize(
    ("shifts", "sections", "message"),
    [
        (
            "day",
            {},
            "model.shifts: day is not none, sample or a column of data.samples \\(found: batch, same",
        ),
        ("same", {}, "model.shifts: all samples have the same same"),
        ("none", {"mcmc": MCMC | {"split_merge": 5}}, "mcmc.split_merge: the hierarchical model has no"),
        (
            "none",
            {"mcmc": MCMC | {"init": "bem"}},
            "mcmc.init: the hierarchical model has no start by bem; use",
        ),
    ],
)
def test_what_the_model_lacks_is_refused(
    folder: Path, shifts: str, sections: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_mcmc(a_run(folder, "refused.h5", shifts, **sections))
    assert not (folder / "refused.h5").exists()


def test_one_sample_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs at least two samples"):
        run_mcmc(a_run(folder, "refused.h5", "none", data={"files": [str(folder / "s0.csv")]}))


@pytest.mark.parametrize("short_events", [1_000])
def test_bayesian_em_finds_proportions_and_shifts(folder: Path, short_events: int | None) -> None:
    bem = BEM | {"short_events": short_events}
    run = open_run(run_bem(a_run(folder, f"bem_{short_events}.h5", bem=bem)).path, transformed=True)
    own = run.cohort
    np.testing.assert_allclose(own["shifts"][0, 0], SHIFTS, atol=0.12)
    np.testing.assert_allclose(own["shifts"].sum(axis=2), 0.0, atol=1e-9)
    nearest = np.square(run.means[..., None, :] - CENTRES).sum(axis=-1).argmin(axis=-1)
    for p in range(3):
        share = (own["sample_proportions"] * (nearest == p)[:, :, None]).sum(axis=-1)[0, 0]
        np.testing.assert_allclose(share, SHARES[:, p], atol=0.05)


@pytest.mark.parametrize("short_events", [1_000])
def test_a_resumed_run_of_bayesian_em_and_other_threads_take_the_same_path(
    folder: Path, short_events: int | None, tmp_path: Path
) -> None:
    bem = BEM | {"short_events": short_events}
    whole = run_bem(a_run(folder, str(tmp_path / "whole.h5"), bem=bem, engine={"threads": 1})).path
    config = a_run(folder, str(tmp_path / "stopped.h5"), bem=bem, engine={"threads": 2})
    assert not run_bem(config, should_stop=StopAfter(9)).completed
    assert run_bem(config, resume=True).completed
    assert_identical(whole, tmp_path / "stopped.h5")


RUNS = {"mcmc": run_mcmc, "bem": run_bem}
SHORT = BEM | {"short_steps": 2, "short_events": 1_000, "max_steps": 5, "tolerance": 1e-13}


def on_cuda(folder: Path, output: str, *devices: int) -> Config:
    engine = {"backend": "cuda", "devices": list(devices)}
    return a_run(folder, output, engine=engine, mcmc=MCMC | {"burn_in": 1, "draws": 2}, bem=SHORT)


@pytest.mark.parametrize("kind", ["mcmc"])
@pytest.mark.slow
def test_one_cuda_device_or_two_give_the_same_draws_and_those_of_the_cpu(
    folder: Path, kind: str, cuda_devices: Callable[[int], None]
) -> None:
    """Also stopped, and resumed on the other device; draws of the CPU are equal up to rounding."""
    cuda_devices(2)
    one = RUNS[kind](on_cuda(folder, f"{kind}_one.h5", 0)).path
    assert_identical(one, RUNS[kind](on_cuda(folder, f"{kind}_two.h5", 0, 1)).path)
    stopped = f"{kind}_stopped_cuda.h5"
    assert not RUNS[kind](on_cuda(folder, stopped, 0, 1), should_stop=StopAfter(2)).completed
    assert RUNS[kind](on_cuda(folder, stopped, 1), resume=True).completed
    assert_identical(one, folder / stopped)
    found = open_run(one)
    assert found.engine["backend"] == "cuda"
    assert found.engine["samples"] == 3
    given = a_run(folder, f"{kind}_cpu.h5", mcmc=MCMC | {"burn_in": 1, "draws": 2}, bem=SHORT)
    expected = open_run(RUNS[kind](given).path)
    np.testing.assert_allclose(found.trace["log_posterior"], expected.trace["log_posterior"], rtol=1e-5)
    for name in ("sample_proportions", "shifts"):
        np.testing.assert_allclose(found.cohort[name], expected.cohort[name], atol=5e-3)


def test_shifts_of_a_pooled_model_are_refused() -> None:
    with pytest.raises(ValueError, match="shifts is sample; this needs samples: hierarchical"):
        Config.model_validate({"data": {"files": ["a.csv"]}, "model": {"shifts": "sample"}})
