"""The verdict on a run, in one sentence."""

from __future__ import annotations

from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from whole_runs import a_config, write_events

from dpmix import open_run
from dpmix.runs.describe import describe_run
from dpmix.runs.effective_size import r_hat_and_ess
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.verdict import BAD_R_HAT, Verdict, r_hat_limit, stragglers
from dpmix.runs.writer import RunWriter


def verdict(r_hat: list[float], **changes: Any) -> Verdict:
    """Return the verdict on populations of 60%, 30% and so on of the events."""
    shares = np.array([0.6, 0.3, 0.08, 0.016, 0.004])[: len(r_hat)]
    given: dict[str, Any] = {"kind": "mcmc", "noun": "population", "n_chains": 4, "n_draws": 100, "fit": ""}
    return Verdict(**given | changes, shares=shares, r_hat=np.array(r_hat))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (verdict([1.0, 1.04, np.nan]), "Chains agree on all 3 populations."),
        (verdict([np.nan]), "Chains agree on the population."),
        (
            verdict([1.0, 1.04, 1.1, np.inf, 1.0]),
            "Chains agree on 3 of 5 populations. They differ about 3 and 4 (9.6% of the events): read these "
            "with care; more draws are unlikely to help",
        ),
        (
            verdict([1.2, 1.3], noun="interim population"),
            "Chains agree on none of 2 interim populations. They differ about 1 and 2 (90.0% of the events)",
        ),
        (
            verdict([1.0, 1.0], fit="R-hat of the log likelihood 1.55"),
            "Chains agree on all 2 populations. They differ in their fit (R-hat of the log likelihood 1.55).",
        ),
        (
            verdict([1.0, 1.0], n_chains=1),
            "The halves of the chain agree on all 2 populations. One chain cannot show whether another start "
            "gives others; mcmc.chains: 4 can.",
        ),
        (
            verdict([np.nan], n_draws=7),
            "Chains were not compared: 8 draws of each are needed, and there are 7.",
        ),
        (
            verdict([np.nan], kind="bem", n_draws=1),
            "Bayesian EM gives one estimate: no chains were compared.",
        ),
    ],
)
def test_sentences(found: Verdict, text: str) -> None:
    assert str(found).startswith(text)
    differs = "differ" in text
    assert found.agrees == (not differs and found.is_known)
    assert found.level == (WARNING if differs else INFO)


def test_interim_populations_promise_nothing_about_those_of_gate() -> None:
    text = str(verdict([1.0, 1.0], noun="interim population"))
    assert text == (
        "Chains agree on all 2 interim populations. dpmix gate judges the populations that it finds."
    )


def test_both_differences_are_said() -> None:
    both = str(verdict([1.0, 1.3], fit="R-hat of the log likelihood 1.55"))
    assert "They differ about 2 (30.0% of the events)" in both
    assert both.endswith("They also differ in their fit (R-hat of the log likelihood 1.55).")


def test_more_draws_are_hopeless_only_where_there_are_many() -> None:
    few = "They differ about 2 (30.0% of the events): read these with care."
    assert str(verdict([1.0, 1.3], draws=100)).endswith(few)
    assert str(verdict([1.0, 1.3], is_complete=False)).startswith(
        "Preliminary: so far, chains agree on 1 of 2 populations."
    )
    assert str(verdict([1.0, 1.3], is_complete=False)).endswith(few)


def test_with_few_draws_chance_alone_is_no_difference() -> None:
    """R-hat 1.07 of 25 draws of each chain is chance, of 100 it is not."""
    r_hat = [1.07, 1.0, 1.0, 1.0, 1.0]
    assert verdict(r_hat, n_draws=25).agrees
    assert not verdict(r_hat).agrees


def test_many_populations_are_not_all_named() -> None:
    many = Verdict("mcmc", "population", 4, 100, np.full(20, 0.05), np.full(20, 1.5), "")
    assert "They differ about 1, 2, 3, 4, 5, 6, 7 and 13 more (100.0% of the events)" in str(many)


@pytest.mark.parametrize(
    ("means", "sd", "text"),
    [
        ([0.0, -50.0, -90.0], 5.0, ""),
        ([0.0, -300.0, -20.0], 5.0, "; chain 2 lies 300 nats below chain 1"),
        ([-700.0, -300.0, 0.0, -450.0], 5.0, "; chains 1, 2 and 4 lie 300 to 700 nats below chain 3"),
        ([0.0, -300.0], 200.0, ""),
        ([0.0], 5.0, ""),
    ],
)
def test_chains_far_below_the_others_are_named(means: list[float], sd: float, text: str) -> None:
    values = np.array(means)[:, None] + sd * np.tile([-1.0, 1.0], 50)
    assert stragglers(values) == stragglers(4.0 * values, 0.25) == text


@pytest.mark.parametrize(("n_chains", "n_draws"), [(4, 25), (1, 100)])
def test_independent_draws_seldom_exceed_the_limit(n_chains: int, n_draws: int) -> None:
    """The largest R-hat of 14 populations; a limit of 1.05 would often be exceeded."""
    rng, n_populations, repeats = np.random.default_rng(5), 14, 60
    limit = r_hat_limit(n_chains, n_draws, n_populations)
    draws = rng.normal(size=(n_chains, n_draws, repeats * n_populations))
    most = r_hat_and_ess(draws)[0].reshape(repeats, n_populations).max(axis=1)
    assert (most > limit).mean() < 0.2  # 5% of one value; rank-normalised, 5% to 11%
    assert (most > BAD_R_HAT).mean() > 0.25


def test_the_limit_is_a_constant_where_draws_are_many() -> None:
    assert r_hat_limit(4, 100, 40) == r_hat_limit(1, 400, 40) == BAD_R_HAT
    assert r_hat_limit(4, 25, 1) < r_hat_limit(4, 25, 14) < 1.2
    assert r_hat_limit(4, 25, 14) == pytest.approx(1.104, abs=0.001)
    assert np.isfinite(r_hat_limit(1, 8, 1))


# ------------------------------------------------------------------------------------- the run file


def a_run(folder: Path, draws: int, **options: Any) -> Path:
    if not (folder / "events.npy").exists():
        write_events(folder / "events.npy", 2_000)
    config = a_config(folder, "run.h5", mcmc={"chains": 2, "burn_in": 20, "draws": draws})
    return run_mcmc(config, **options).path


def test_a_run_that_goes_on_has_a_preliminary_verdict(tmp_path: Path) -> None:
    made: list[object] = []
    run = open_run(a_run(tmp_path, 20, on_sweep=made.append, should_stop=lambda: len(made) > 60))
    assert run.kept is None
    assert str(run.verdict).startswith("Preliminary: so far, ")
    assert "interim population" in str(run.verdict)
    assert any(str(run.verdict) in line for line in describe_run(run))


def test_a_file_without_its_populations_is_judged_by_interim_ones(tmp_path: Path) -> None:
    """Files of earlier versions have no place for them."""
    path = a_run(tmp_path, 20)
    text = str(open_run(path).verdict)
    assert "interim population" in text
    assert not text.startswith("Preliminary")
    with h5py.File(path, "r+") as file:
        del file["populations"]
    assert not open_run(path).has_place_for_populations
    assert open_run(path).kept is None
    assert str(open_run(path).verdict) == text


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    path = a_run(tmp_path, 20)
    with RunWriter.reopen(path) as writer:
        writer.write_populations({"share": [0.5], "fit": "", "sentence": "é" * 3_000})
    found = open_run(path).kept
    assert found is not None
    assert found["sentence"] == "é" * 1_024
    assert (~np.isnan(found["share"])).sum() == 1
