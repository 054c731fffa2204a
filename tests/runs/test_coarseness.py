"""model.coarseness: auto: the rule, what it compares, and one choice for all threads and resumes."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from whole_runs import StopAfter, a_config, assert_draws_of, assert_identical, write_events

from dpmix import open_run
from dpmix.config.schema import Config, ModelConfig
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import DataError
from dpmix.model import bem
from dpmix.model.mixture import State, mixture_of
from dpmix.model.sample_weights import SampleWeights
from dpmix.runs import coarseness
from dpmix.runs.bem import run_bem
from dpmix.runs.coarseness import (
    FEW_EVENTS_DEFAULT,
    GRID,
    CoarsenessChoice,
    Curve,
    choice_of,
    choose,
    measure,
)
from dpmix.runs.describe import describe_run
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.session import make_prior


def a_curve(held_out: list[float], components: list[int]) -> Curve:
    count = len(held_out)
    return Curve(np.array(GRID[:count]), np.array(held_out), np.zeros(count), np.array(components))


@pytest.mark.parametrize(
    ("held_out", "components", "chosen"),
    [
        ([-9.0, -6.0, -5.2, -5.1, -5.0], [10, 15, 20, 60, 110], 2),  # fit levels off, complexity does not
        ([-9.0, -6.0, -5.2, -5.1, -5.0], [20, 20, 20, 20, 20], 4),  # no cost: the best fit
        ([-5.0, -5.0, -5.0], [10, 20, 30], 0),  # no gain: the least complex
        ([-5.0, -5.0, -5.0], [7, 7, 7], 0),
        ([-5.0, -4.0, -4.5], [10, 12, 30], 1),  # more events per shape describe others worse
        ([-6.0, -5.0, -4.0], [10, 20, 30], 0),  # a straight line has no elbow
    ],
)
def test_the_elbow(held_out: list[float], components: list[int], chosen: int) -> None:
    assert a_curve(held_out, components).chosen == chosen


def auto_config(
    folder: Path, output: str, *, given: Any = "auto", threads: int = 1, components: int = 12
) -> Config:
    return a_config(
        folder,
        output,
        model={"components": components, "coarseness": given},
        mcmc={"chains": 2, "burn_in": 4, "draws": 6, "split_merge": 3},
        bem={"starts": 1, "max_steps": 10},
        engine={"threads": threads},
    )


def skewed(n_events: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(2)
    events = rng.gamma(2.0, size=(n_events, 3)) + 6.0 * rng.integers(2, size=(n_events, 1))
    return ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32)


def test_an_event_of_the_half_counts_what_the_precision_of_all_events_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """1,500 of 3,000 events are fitted, each as one of n_c N / (n_c + N) events, and no n_c above N."""
    real, seen = bem.step, set()

    def step(*arguments: Any, zeta: float, resolution: None) -> Any:
        seen.add((round(zeta * 1_500, 6), round(arguments[1].counts.sum(), 3)))
        return real(*arguments, zeta=zeta)

    monkeypatch.setattr(bem, "step", step)
    config, events = auto_config(tmp_path, "run.h5"), skewed(3_000)
    curve = measure(config, events, None, make_prior(config.model, ["a", "b", "c"]))
    assert curve.grid.tolist() == [500.0, 1_000.0, 2_000.0, 3_000.0]
    precise = [round(n_c * 3_000 / (n_c + 3_000), 6) for n_c in curve.grid]
    assert sorted(counted for counted, _ in seen) == pytest.approx(precise)
    assert {n for _, n in seen} == {1_500.0}


def test_fits_are_judged_by_the_other_half(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends: list[State] = []
    real = coarseness._climb

    def climb(*arguments: Any) -> Any:
        ends.append((end := real(*arguments))[0])
        return end

    monkeypatch.setattr(coarseness, "_climb", climb)
    config, events = auto_config(tmp_path, "run.h5", components=24), skewed(3_000)
    curve = measure(config, events, None, make_prior(config.model, ["a", "b", "c"]))
    fitted, held = (half.events for half in coarseness._halves(events, None, config.seed))
    together = np.concatenate((fitted, held))
    np.testing.assert_array_equal(np.unique(together, axis=0), np.unique(events, axis=0))
    each = np.array([densities_of(state, held) for state in ends])
    np.testing.assert_allclose(curve.held_out, each.mean(axis=1), atol=1e-6)
    below = each[curve.best] - each
    np.testing.assert_allclose(curve.errors, below.std(axis=1) / np.sqrt(1_500), atol=1e-6)
    own = np.array([densities_of(state, fitted).mean() for state in ends])
    assert (own > curve.held_out).any()
    assert np.diff(own).min() > 0.0  # more precision, closer to the events of the fit
    assert curve.components[-1] > curve.components[0]


def test_events_count_as_their_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fit and in its judgement; weights of 1 change nothing."""
    real, seen = bem.step, []

    def step(*arguments: Any, zeta: float, resolution: None) -> Any:
        seen.append(arguments[1].counts.sum())
        return real(*arguments, zeta=zeta)

    monkeypatch.setattr(bem, "step", step)
    config, events = auto_config(tmp_path, "run.h5"), skewed(3_000)
    events[1_000:] += np.float32(0.5)
    prior, starts = make_prior(config.model, ["a", "b", "c"]), np.array([0, 1_000, 3_000])
    weights = SampleWeights(starts, np.array([2.0, 0.5], np.float32))
    _, held = coarseness._halves(events, weights, config.seed)
    each = held.of_each_event
    assert each is not None
    assert sorted(set(each.tolist()))[1] / min(each.tolist()) == pytest.approx(4.0, rel=1e-6)
    assert each.mean() == pytest.approx(1.0, rel=1e-6)
    of_first = {row.tobytes() for row in events[:1_000]}
    assert [row.tobytes() in of_first for row in held.events] == (each > 1.0).tolist()
    curve = measure(config, events, weights, prior)
    np.testing.assert_allclose(seen, 1_500.0, rtol=1e-5)
    plain = measure(config, events, None, prior)
    assert (np.abs(curve.held_out - plain.held_out) > 1e-3).all()
    ones = measure(config, events, SampleWeights(starts, np.ones(2, np.float32)), prior)
    np.testing.assert_array_equal(ones.held_out, plain.held_out)


def densities_of(state: State, events: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    engine = CpuEngine(events, threads=1)
    log_densities = engine.memberships(
        mixture_of(state), np.zeros(state.n_components, np.int64), 0, len(events)
    )[1]
    return np.asarray(log_densities)


def test_the_choice_is_made_once_and_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Same for all threads, kinds of run, stops and larger files; draws have the number chosen."""
    caplog.set_level(logging.INFO, "dpmix")
    write_events(tmp_path / "events.npy", 2_400)
    run_mcmc(auto_config(tmp_path, "whole.h5"))
    assert sum("coarseness: " in line and "auto" in line for line in caplog.messages) == 1
    parts = auto_config(tmp_path, "parts.h5", threads=3)
    run_mcmc(parts, should_stop=StopAfter(7))
    caplog.clear()
    run_mcmc(parts, resume=True)
    assert not any("chosen" in line for line in caplog.messages)
    assert_identical(tmp_path / "whole.h5", tmp_path / "parts.h5")
    choice = choice_of(open_run(tmp_path / "whole.h5"))
    run_bem(auto_config(tmp_path, "bem.h5"))
    ours, theirs = choice.curve, choice_of(open_run(tmp_path / "bem.h5")).curve
    assert ours is not None
    assert theirs is not None
    for name in ("grid", "held_out", "errors", "components"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.grid[ours.chosen] == choice.coarseness
    run_mcmc(auto_config(tmp_path, "number.h5", given=choice.coarseness))
    assert_draws_of(tmp_path / "number.h5", tmp_path / "whole.h5")
    longer = parts.model_copy(update={"mcmc": parts.mcmc.model_copy(update={"draws": 8})})
    run_mcmc(longer, resume=True)
    grown = choice_of(open_run(tmp_path / "parts.h5"))
    assert grown.coarseness == choice.coarseness
    assert grown.curve is not None
    assert coarseness.describe(grown) == coarseness.describe(choice)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_events(folder / "events.npy", 2_000)
    return run_bem(auto_config(folder, "run.h5")).path


def test_info_and_arviz_show_the_choice(small: Path) -> None:
    run = open_run(small)
    n_c = choice_of(run).coarseness
    lines = [line for line in describe_run(run) if "coarse" in line]
    assert n_c is not None
    counted = n_c / (n_c + 2_000) * 2_000
    assert f"coarsened posterior, in which the events count as {counted:,.0f};" in lines[0]
    assert lines[1].startswith(
        f"coarseness: {n_c:,.0f} events, chosen by model.coarseness: auto from 500 to 2,000"
    )
    constants = run.arviz().constant_data
    assert constants["held_out_log_density"].dims == ("coarseness",)
    assert constants["coarseness"].values.tolist() == [500.0, 1_000.0, 2_000.0]


def test_few_events_are_not_compared(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 1_999)
    run_mcmc(auto_config(tmp_path, "auto.h5"))
    run_mcmc(auto_config(tmp_path, "number.h5", given=FEW_EVENTS_DEFAULT))
    assert ModelConfig().coarseness == FEW_EVENTS_DEFAULT
    run = open_run(tmp_path / "auto.h5")
    assert choice_of(run) == CoarsenessChoice(FEW_EVENTS_DEFAULT, True)
    assert "fewer than 2,000 events do not allow one" in "\n".join(describe_run(run))
    assert_draws_of(tmp_path / "number.h5", tmp_path / "auto.h5")


def test_the_choice_depends_on_neither_backend_nor_storage(tmp_path: Path) -> None:
    events = skewed(2_400)
    np.save(tmp_path / "mapped.npy", events)
    config = auto_config(tmp_path, "run.h5")
    cuda = Config.model_validate(config.model_dump() | {"engine": {"backend": "cuda"}})
    prior = make_prior(config.model, ["a", "b", "c"])
    mapped = np.load(tmp_path / "mapped.npy", mmap_mode="r")
    one, other = choose(config, events, None, prior).curve, choose(cuda, mapped, None, prior).curve
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.held_out, other.held_out)
    another = choose(config.model_copy(update={"seed": 6}), events, None, prior).curve
    assert another is not None
    assert (one.held_out != another.held_out).all()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.attrs.__delitem__("coarseness"), "the attribute coarseness is not as"),
        (lambda file: file.attrs.__setitem__("coarseness", "much"), "the attribute coarseness is not as"),
        (
            lambda file: file["constant_data"].__delitem__("held_out_error"),
            "the curve of the coarseness is not",
        ),
    ],
)
def test_a_damaged_choice_is_one_line(small: Path, tmp_path: Path, damage: Any, message: str) -> None:
    shutil.copy(small, tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        damage(file)
    with pytest.raises(DataError, match=message) as found:
        describe_run(open_run(tmp_path / "run.h5"))
    assert "\n" not in str(found.value)
