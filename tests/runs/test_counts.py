"""Counts of moves and of emptied components in the run file, and files of format 1, which have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_runs import StopAfter, a_config, write_events

from dpmix import open_run
from dpmix.model import gibbs
from dpmix.model.gibbs import SweepInfo
from dpmix.model.mixture import State
from dpmix.runs.bem import run_bem
from dpmix.runs.describe import describe_run
from dpmix.runs.layout import MCMC_COUNTS
from dpmix.runs.mcmc import run_mcmc

MCMC: dict[str, object] = {"chains": 2, "burn_in": 3, "draws": 4, "thin": 3, "split_merge": 2}
BEM: dict[str, object] = {"starts": 2, "max_steps": 12}
SAMPLERS = {"mcmc": run_mcmc, "bem": run_bem}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_events(tmp_path / "events.npy", 3000)
    return tmp_path


def test_the_trace_has_the_counts_of_each_sweep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infos: dict[tuple[int, int], SweepInfo] = {}
    sweep = gibbs.sweep

    def spy(*given: Any, **named: Any) -> tuple[State, SweepInfo]:
        state, info = sweep(*given, **named)
        infos[given[3].chain, state.iteration] = info
        return state, info

    monkeypatch.setattr(gibbs, "sweep", spy)
    trace = open_run(run_mcmc(a_config(folder, "run.h5", mcmc=MCMC)).path).trace
    assert len(infos) == 2 * 15
    for name in MCMC_COUNTS:
        assert (trace[name][:, 0] == 0).all()
        for (chain, iteration), info in infos.items():
            assert trace[name][chain, iteration] == getattr(info, name), (name, chain, iteration)
    assert (trace["merges_proposed"][:, 2::2].sum(axis=1) > 0).all()
    assert (trace["merges_proposed"][:, 1::2] == 0).all()  # a round of split-merge moves every second sweep


@pytest.mark.parametrize("draws", [4, 6])
def test_a_draw_has_the_sums_since_the_previous_draw(folder: Path, draws: int) -> None:
    """Also if the run was stopped, resumed and continued to more draws."""
    config = a_config(folder, "run.h5", mcmc=MCMC)
    run_mcmc(config, should_stop=StopAfter(8))
    run_mcmc(config, resume=True)
    if draws > 4:
        run_mcmc(a_config(folder, "run.h5", mcmc=MCMC | {"draws": draws}), resume=True)
    run = open_run(folder / "run.h5")
    for name in MCMC_COUNTS:
        sums = run.trace[name][:, 4:].reshape(2, draws, 3).sum(axis=2)
        np.testing.assert_array_equal(run.sample_stats[name], sums)
        move, what = name.split("_")
        assert run.moves[move][what == "proposed"] == sums.sum()
    assert run.emptied is None
    splits, merges, swaps = (run.moves[move] for move in ("splits", "merges", "swaps"))
    assert 0 < swaps[0] <= swaps[1]
    line = f"{splits[0]} of {splits[1]} splits", f"{merges[0]} of {merges[1]} merges"
    (found,) = [text for text in describe_run(run) if text.startswith("moves accepted after burn-in: ")]
    assert all(part in found for part in line)
    assert f"{swaps[0]:,} of {swaps[1]:,} label swaps ({swaps[0] / swaps[1]:.1%})" in found


def test_moves_that_are_off_are_counted_as_none(folder: Path) -> None:
    none = "0 of 0 splits, 0 of 0 merges, 0 of 0 label swaps"
    off = MCMC | {"split_merge": 0, "label_swaps": False}
    run = open_run(run_mcmc(a_config(folder, "run.h5", mcmc=off)).path)
    assert run.moves == {"splits": (0, 0), "merges": (0, 0), "swaps": (0, 0)}
    assert f"moves accepted after burn-in: {none}" in describe_run(run)


@pytest.mark.parametrize("stop", [None, 5, 14])
def test_bayesian_em_has_the_components_that_it_emptied(folder: Path, stop: int | None) -> None:
    model = {"components": 64, "prior": {"alpha_shape": 1.0, "alpha_rate": 4.0}, "learn": []}
    config = a_config(folder, "run.h5", bem=BEM, model=model)
    if stop is not None:
        run_bem(config, should_stop=StopAfter(stop))
    run = open_run(run_bem(config, resume=stop is not None).path)
    ends = run.trace["log_posterior"][np.arange(2), run.sweeps_made]
    path = run.trace["emptied"][np.argmax(ends)]
    emptied = path[path >= 0].sum()
    assert run.emptied == run.sample_stats["emptied"][0, 0] == emptied > 0
    assert (run.weights[0, 0] == 0).sum() == emptied  # a start begins without empty components
    assert run.moves == {}
    assert f"components emptied: {emptied} of 64 in the kept start" in describe_run(run)
