"""Diagnostics of a run, and their description."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpmix.model.mixture import HYPERPARAMETERS, Hyperparameters, State
from dpmix.runs.describe import describe_profile, describe_run
from dpmix.runs.diagnostics import (
    ROUGH_DRAWS,
    convergence,
    floor_warning,
    truncation_warning,
)
from dpmix.runs.layout import FileLayout, Record
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import Run, open_run
from dpmix.runs.writer import RunWriter

K, D = 8, 2
CONFIG = """
data: {files: [a.fcs, b.fcs]}
model: {prior: {phi: 0.3}, coarseness: null}
mcmc: {burn_in: 10, until: null}
bem: {tolerance: 1.0e-6, short_steps: null, short_events: null}
seed: 5
"""


def layout(
    kind: str, chains: int, draws: int, sweeps: int, learned: tuple[str, ...] = (), n_events: int = 1_000_000
) -> FileLayout:
    return FileLayout(
        kind=kind,
        chains=chains,
        draws=draws,
        sweeps=sweeps,
        n_components=K,
        channels=("CD3", "CD4"),
        constants={
            "channel_means": (("channel",), np.zeros(D)),
            "channel_sds": (("channel",), np.ones(D)),
        },
        attributes={
            "config": CONFIG,
            "seed": 5,
            "engine": {"backend": "cpu", "threads": 2, "chosen": "auto: no CUDA"},
            "scaling": {},
            "data_hash": "ab12",
            "n_events": n_events,
        },
        learned=learned,
    )


def state(alpha: float = 1.0, stick: float = 0.5) -> State:
    sticks = np.full(K - 1, stick)
    eyes = np.tile(np.eye(D), (K, 1, 1))
    given = Hyperparameters(np.array([alpha, 5.0]), 3.0 * alpha, 4.0 * alpha, np.diag([0.25, alpha]))
    return State(0, alpha, np.log(sticks), np.log1p(-sticks), np.zeros((K, D)), eyes, eyes, given)


def mcmc_run(
    path: Path,
    log_posterior: npt.NDArray[np.float64],
    *,
    committed: int,
    occupied: int = 3,
    stick: float = 0.7,
    learned: tuple[str, ...] = (),
    n_events: int = 10,
) -> Run:
    """A run after a burn-in of 10 sweeps, of a given log posterior, [chain, draw]; its events are so few that
    no error of the log likelihood is negligible."""
    chains, draws = log_posterior.shape
    with RunWriter.create(path, layout("mcmc", chains, draws, 11 + draws, learned, n_events)) as writer:
        for sweep in range(11 + committed):
            for chain in range(chains):
                value = log_posterior[chain, max(sweep - 11, 0)]
                writer.write_sweep(chain, sweep, Record(value - 1.0, value, occupied, 2.0, 0.02))
        for draw in range(committed):
            values = log_posterior[:, draw]
            states = [state(alpha=2.0 + 0.1 * np.sin(value), stick=stick) for value in values]
            writer.write_draw(draw, states, [Record(v - 1.0, v, occupied, 2.0, 0.02) for v in values])
    return open_run(path)


def bem_run(path: Path, ends: list[float], complete: bool, learned: tuple[str, ...] = ()) -> Run:
    """Starts that make one step more each, up to the given log posteriors."""
    with RunWriter.create(path, layout("bem", 3, 1, 21, learned)) as writer:
        for start, end in enumerate(ends):
            for step in range(start + 2):
                value = end - 10.0 * (start + 1 - step)
                writer.write_sweep(start, step, Record(value, value, 4 + start, 1.5, 0.01))
        if complete:
            writer.write_draw(0, [state()], [Record(0.0, max(ends), 4, 1.5, 0.01)])
    return open_run(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


@pytest.mark.parametrize("chains", [1, 4])
def test_independent_draws_mix(path: Path, chains: int) -> None:
    draws = np.random.default_rng(1).normal(size=(chains, 2000 // chains))
    rows = {row.quantity: row for row in convergence(mcmc_run(path, draws, committed=2000 // chains))}
    row = rows["log posterior"]
    assert 1600 < row.ess_bulk < 2400
    assert 1400 < row.ess_tail < 2400
    assert 0.998 < row.r_hat < 1.01
    assert row.mean == pytest.approx(draws.mean())
    assert row.sd == pytest.approx(draws.std())


def test_a_random_walk_does_not(path: Path) -> None:
    walk = np.cumsum(np.random.default_rng(2).normal(size=(1, 1000)), axis=1)
    row = convergence(mcmc_run(path, walk, committed=1000))[0]
    assert row.ess_bulk < 50
    assert row.r_hat > 1.1


def test_chains_in_different_places_do_not(path: Path) -> None:
    draws = np.random.default_rng(3).normal(size=(2, 500)) + np.array([[0.0], [5.0]])
    row = convergence(mcmc_run(path, draws, committed=500))[0]
    assert row.r_hat > 1.5


def test_an_autoregression_has_its_known_size(path: Path) -> None:
    """AR(1) with coefficient a has n (1 - a) / (1 + a) effective draws."""
    rng, coefficient, draws = np.random.default_rng(4), 0.8, 4000
    chain = np.zeros((2, draws))
    for t in range(1, draws):
        chain[:, t] = coefficient * chain[:, t - 1] + rng.normal(size=2)
    row = convergence(mcmc_run(path, chain, committed=draws))[0]
    assert row.ess_bulk == pytest.approx(2 * draws * 0.2 / 1.8, rel=0.25)


def test_what_never_moves_is_named_so(path: Path) -> None:
    draws = np.random.default_rng(5).normal(size=(2, 100))
    run = mcmc_run(path, draws, committed=100)
    rows = {row.quantity: row for row in convergence(run)}
    constant = rows["occupied components"]
    assert (constant.mean, constant.sd) == (3.0, 0.0)
    assert np.isnan(constant.r_hat)
    assert rows["weight of component 1 by size"].mean == pytest.approx(0.7)
    assert any(
        "occupied components" in line and "the same in every draw" in line for line in describe_run(run)
    )


def test_too_few_draws_tell_nothing(path: Path) -> None:
    run = mcmc_run(path, np.random.default_rng(6).normal(size=(2, 20)), committed=7)
    assert convergence(run) == []
    assert "mixing: not assessed with fewer than 8 draws" in describe_run(run)


@pytest.mark.parametrize(
    ("last_weight", "occupied", "parts"),
    [
        ([1e-6, 1e-5], [30, 31], []),
        ([2e-3, 1e-2], [30, 31], ["the last component holds 0.60% of the mass", "above 64"]),
        ([1e-6, 1e-5], [64, 63], ["all 64 components are occupied in 50% of the draws"]),
        ([5e-3, 5e-3], [64, 64], ["0.50% of the mass", "in 100% of the draws", "raise model.components"]),
        ([1e-6] * 100, [64] + [50] * 99, []),
        ([5e-3], [64], ["component holds 0.50% of the mass and all 64 components are occupied; raise"]),
    ],
)
def test_truncation_warning(last_weight: list[float], occupied: list[int], parts: list[str]) -> None:
    text = truncation_warning(last_weight, occupied, 64)
    assert (text is None) == (parts == [])
    for part in parts:
        assert text is not None
        assert part in text
    assert "\n" not in (text or "")


def test_a_finished_run_in_lines(path: Path) -> None:
    draws = np.random.default_rng(7).normal(-5000.0, 1.0, size=(2, 500))
    text = "\n".join(describe_run(mcmc_run(path, draws, committed=500, n_events=1_000_000)))
    for part in (
        "run.h5: MCMC, started 20",
        "data: 1,000,000 events of a.fcs, b.fcs",
        "channels (2): CD3, CD4",
        "model: at most 8 components; exact posterior; seed 5",
        "engine: cpu (auto: no CUDA), threads 2\n",
        "progress: complete; 500 of 500 draws of each of 2 chains, sweep 510 of 510 (burn-in 10)",
        "speed: 0.02 s per sweep, 400 million events x components per second",
        "occupied components: mean 3.0, 3 to 3",
        "alpha: mean ",
        "log posterior: mean -5,000.",
        "R-hat",
    ):
        assert part in text
    assert "warning" not in text
    assert "raise mcmc.draws" not in text


def test_learned_hyperparameters_in_lines(path: Path) -> None:
    draws = np.random.default_rng(7).normal(-5000.0, 1.0, size=(2, 500))
    run = mcmc_run(path, draws, committed=500, learned=HYPERPARAMETERS)
    text = "\n".join(describe_run(run))
    mean, sd = run.alpha.mean(), run.alpha.std()
    for part in (
        f"gamma: mean {3 * mean:.3g}, sd {3 * sd:.2g}\n",
        f"nu: mean {4 * mean:.3g}, sd {4 * sd:.2g}\n",
        f"m: mean {mean:.3g} of CD3, 5 of CD4\n",
        f"variance phi: mean 0.25 of CD3, {mean:.3g} of CD4\n",
        "\n  variance phi of CD4, the slowest ",
    ):
        assert part in text
    rows = {row.quantity: row for row in convergence(run)}
    moving = rows["m of CD3, the slowest"]
    assert moving.ess_bulk == rows["nu"].ess_bulk == rows["variance phi of CD4, the slowest"].ess_bulk > 400


def test_a_phi_at_its_least_is_told(path: Path) -> None:
    variances = np.array([[[0.2, 1.1e-4, 0.4], [0.3, 0.9e-4, 0.4]]])
    text = floor_warning(variances, [3e-5, 3e-5, 3e-5], ("CD3", "CD4", "CD8"))
    assert text is not None
    assert "allows in CD4: very many" in text
    assert floor_warning(variances, 3e-6, ("CD3", "CD4", "CD8")) is None
    by_modes = floor_warning(variances, [3e-5, 3e-5, 3e-5], ("CD3", "CD4", "CD8"), by_modes=True)
    assert by_modes is not None
    assert "set bem.update: mean, or remove phi" in by_modes
    given = Hyperparameters(np.zeros(D), 1.0, 1.0, np.diag([0.3, 5e-5]))
    with RunWriter.create(path, layout("bem", 1, 1, 2, ("phi",))) as writer:
        writer.write_sweep(0, 0, Record(0.0, 0.0, 4, 1.5, 0.01))
        writer.write_draw(0, [replace(state(), hyperparameters=given)], [Record(0.0, 0.0, 4, 1.5, 0.01)])
    assert "warning: phi is down" in "\n".join(describe_run(open_run(path)))
    assert "warning: phi is down" in "\n".join(describe_run(open_run(path, transformed=True)))


def test_hyperparameters_that_are_not_learned_are_not_told(path: Path) -> None:
    draws = np.random.default_rng(7).normal(-5000.0, 1.0, size=(2, 20))
    quantities = {row.quantity for row in convergence(mcmc_run(path, draws, committed=20))}
    assert not {"gamma", "nu"} & quantities


def test_hyperparameters_that_bayesian_em_found_in_lines(path: Path) -> None:
    text = "\n".join(describe_run(bem_run(path, [-1200.0], complete=True, learned=("gamma", "m"))))
    assert "gamma: 3\n" in text
    assert "\nm: 1 of CD3, 5 of CD4" in text
    assert "nu:" not in text


def test_a_run_that_goes_on_in_lines(path: Path) -> None:
    draws = np.full((1, 40), -123.0)
    text = "\n".join(describe_run(mcmc_run(path, draws, committed=0)))
    assert "progress: not complete; 0 of 40 draws, sweep 10 of 50 (burn-in 10)" in text
    assert "log posterior at sweep 10: -123.0" in text


def test_a_run_that_has_only_begun_in_lines(path: Path) -> None:
    RunWriter.create(path, layout("mcmc", 2, 5, 16)).close()
    text = "\n".join(describe_run(open_run(path)))
    assert "progress: not complete; 0 of 5 draws of each of 2 chains, sweep 0 of 15 (burn-in 10)" in text
    assert "speed" not in text


def test_where_the_time_went_in_lines(path: Path) -> None:
    with RunWriter.create(path, layout("mcmc", 2, 5, 16)) as writer:
        assert describe_profile(open_run(path)) == []
        writer.write_profile({**dict.fromkeys(SPANS, 0.0), "kernels": 75.0, "writing": 25.0})
    first, kernels, *others = (" ".join(line.split()) for line in describe_profile(open_run(path)))
    assert first == "time: 100.00 s"
    assert kernels == "the engine's kernels 75.00 s 75.0%"
    assert "writing the run file and checkpoints 25.00 s 25.0%" in others


def lines_of(
    path: Path, draws: npt.NDArray[np.float64], committed: int | None = None, **how: Any
) -> list[str]:
    committed = draws.shape[1] if committed is None else committed
    return describe_run(mcmc_run(path, draws, committed=committed, **how))


def told(lines: list[str], begin: str) -> str:
    """The one line that begins so."""
    (line,) = (line for line in lines if line.startswith(begin))
    return line


def test_poor_mixing_and_a_binding_truncation_are_said(path: Path) -> None:
    walk = np.cumsum(np.random.default_rng(8).normal(size=(1, 100)), axis=1)
    lines = lines_of(path, walk, occupied=K, stick=0.2)
    assert told(lines, "warning: the truncation binds: the last component holds 20.97% of the mass")
    assert told(
        lines, "warning: The halves of the chain agree on the interim population. They differ in their fit"
    )


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_chains_that_mix_have_no_warning_and_chains_that_disagree_have_one(path: Path, chains: int) -> None:
    """Also with the fewest draws that give a warning; one chain, or half of a single one, is elsewhere."""
    rng = np.random.default_rng(9)
    for draws in (ROUGH_DRAWS // chains, 400):
        mixed = rng.normal(size=(chains, draws))
        path.unlink(missing_ok=True)
        assert not [line for line in lines_of(path, mixed) if line.startswith("warning")]
        apart = mixed.copy()
        apart[-1, 0 if chains > 1 else draws // 2 :] += 4.0
        path.unlink()
        who = "Chains agree" if chains > 1 else "The halves of the chain agree"
        assert told(lines_of(path, apart), "warning: ").startswith(
            f"warning: {who} on the interim population. They differ in their fit (R-hat of the log likelihood"
        )


def test_disagreement_is_not_told_from_few_draws(path: Path) -> None:
    """Independent draws, too few, have an R-hat that would look bad."""
    draws = np.random.default_rng(12).normal(size=(1, 20))
    lines = lines_of(path, draws)
    assert np.nanmax([row.r_hat for row in convergence(open_run(path))]) > 1.1
    assert not [line for line in lines if line.startswith("warning")]
    assert told(lines, "  20 draws in all: R-hat and ESS are rough with fewer than 100.")


def test_a_chain_far_below_is_told_and_the_number_of_components_is_not(path: Path) -> None:
    """The log likelihood decides; occupied components that differ between chains give no warning."""
    draws = np.random.default_rng(14).normal(size=(3, 100))
    draws[1] -= 400.0
    lines = lines_of(path, draws)
    assert "chain 2 lies 400 nats below chain " in told(lines, "warning: ")
    path.unlink()
    with RunWriter.create(path, layout("mcmc", 2, 100, 111, n_events=10)) as writer:
        for draw in range(100):
            value = float(draws[0, draw])
            records = [Record(value, value, occupied, 2.0, 0.02) for occupied in (3 + draw % 2, 6 + draw % 2)]
            writer.write_draw(draw, [state(stick=0.7)] * 2, records)
    lines = describe_run(open_run(path))
    assert float(told(lines, "  occupied components").split()[2]) > 1.5
    assert not [line for line in lines if line.startswith("warning")]


def test_chains_that_never_move_disagree_without_end(path: Path) -> None:
    stuck = np.repeat([[1.0], [2.0]], 100, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = lines_of(path, stuck)
    assert told(lines, "  log posterior").split() == ["log", "posterior", "inf", "2", "2"]
    assert "(R-hat of the log likelihood inf)" in told(lines, "warning: Chains")
    assert not any("nan" in line for line in lines)


def test_the_quantities_do_not_depend_on_the_numbers_of_the_components(path: Path) -> None:
    """All but the log posterior, which is written as it is: components in another order in every draw."""
    rng, chains, draws = np.random.default_rng(13), 2, 60
    weights = rng.dirichlet(np.ones(K), size=(chains, draws))
    orders = rng.permuted(np.tile(np.arange(K), (chains, draws, 1)), axis=-1)
    found = []
    for own in (weights, np.take_along_axis(weights, orders, axis=-1)):
        path.unlink(missing_ok=True)
        with RunWriter.create(path, layout("mcmc", chains, draws, 11 + draws)) as writer:
            for d in range(draws):
                left = 1.0 - np.cumsum(own[:, d], axis=-1) + own[:, d]
                sticks = np.minimum(own[:, d] / left, 1.0)[:, :-1]
                states = [replace(state(), log_sticks=np.log(v), log1m_sticks=np.log1p(-v)) for v in sticks]
                writer.write_draw(d, states, [Record(0.0, 0.0, 3, 1.0, 0.1)] * chains)
        found.append({row.quantity: row for row in convergence(open_run(path))})
    one, other = found
    for name in ("entropy of the weights", *(f"weight of component {r} by size" for r in (1, 2, 3))):
        assert one[name].sd > 0
        for value in ("mean", "sd", "ess_bulk", "ess_tail", "r_hat"):
            assert getattr(one[name], value) == pytest.approx(getattr(other[name], value), rel=1e-3)
    entropies = -(weights * np.log(weights)).sum(axis=-1)
    assert one["entropy of the weights"].mean == pytest.approx(entropies.mean())


def test_starts_that_ran_out_of_steps_are_told(path: Path) -> None:
    with RunWriter.create(path, layout("bem", 3, 1, 5)) as writer:
        for start, way in enumerate(
            ([-900.0, -500.0, -400.0, -300.0, -200.0], [-900.0, -250.0, -250.0], [-900.0, *[-300.0] * 4])
        ):
            for step, value in enumerate(way):
                writer.write_sweep(start, step, Record(value, value, 4, 1.5, 0.01))
        writer.write_draw(0, [state()], [Record(-200.0, -200.0, 4, 1.5, 0.01)])
    lines = describe_run(open_run(path))
    assert told(lines, "  start 1: ").endswith("4 occupied components, not converged (kept)")
    assert told(lines, "  start 2: ").endswith("4 occupied components")
    assert told(lines, "  start 3: ").endswith("4 occupied components")
    assert told(lines, "warning: 1 of 3 starts had not converged by bem.max_steps; raise it")


def test_bayesian_em_in_lines(path: Path) -> None:
    text = "\n".join(describe_run(bem_run(path, [-1200.0, -1100.0, -1150.0], complete=True)))
    for part in (
        "Bayesian EM by posterior means, started 20",
        "progress: complete; 3 of 3 starts run\n",
        "speed: 0.01 s per step",
        "start 1: 1 steps, log posterior -1,200.0, 4 occupied components\n",
        "start 2: 2 steps, log posterior -1,100.0, 5 occupied components (kept)\n",
        "start 3: 3 steps, log posterior -1,150.0, 6 occupied components\n",
        "alpha: 1",
        "warning: the truncation binds: the lightest component holds 0.78% of the mass; raise",
    ):
        assert part in text
    assert "R-hat" not in text


def test_bayesian_em_that_goes_on_keeps_nothing_yet(path: Path) -> None:
    run = bem_run(path, [-1200.0, -1100.0], complete=False)
    assert convergence(run) == []
    text = "\n".join(describe_run(run))
    assert "progress: not complete; 2 of 3 starts run" in text
    assert "(kept)" not in text
