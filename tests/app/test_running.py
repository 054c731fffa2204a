"""A run in progress: traces, agreement of chains, and the time left, without a server or browser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpmix.app import running
from dpmix.app.running import Known, Left, Pace, agreement, duration, iterations, time_left, trace
from dpmix.app.workspace import Workspace
from dpmix.config.schema import Config
from dpmix.runs.bem import run_bem
from dpmix.runs.diagnostics import convergence
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import Run, open_run


@pytest.fixture(scope="module")
def stopped(study: Path) -> Run:
    """A run that was stopped after 40 of at most 40 + 20 sweeps: 18 draws of its two chains."""
    return _made(study, "stopped.h5", stop_at=42)


def _made(study: Path, name: str, stop_at: int) -> Run:
    sweeps: list[int] = []
    settings = {
        "data": {"files": [str(study / "blood.fcs")], "channels": ["CD3", "CD4", "CD8"]},
        "model": {"components": 12},
        "mcmc": {"chains": 2, "burn_in": 24, "draws": 36},
        "bem": {"starts": 3, "short_steps": 4, "short_events": 1_000, "max_steps": 30},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(study / name)},
    }
    run_mcmc(
        Config.model_validate(settings),
        on_sweep=lambda report: sweeps.append(report.iteration),
        should_stop=lambda: bool(sweeps) and sweeps[-1] >= stop_at - 1,
    )
    return open_run(study / name)


def test_the_trace_has_every_sweep_so_far(stopped: Run) -> None:
    shown = trace(stopped)
    assert not stopped.complete
    assert shown["made"] == 42
    assert shown["burn_in"] == 24
    assert shown["sweeps"] == [list(range(43))] * 2
    np.testing.assert_array_equal(shown["values"], stopped.trace["log_posterior"][:, :43])
    low, high = shown["window"]
    later = np.array(shown["values"])[:, 4:]
    assert low < later.min() < later.max() < high


def test_a_long_trace_is_thinned(stopped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "POINTS", 10)
    shown = trace(stopped)
    assert all(len(own) <= 12 and own[0] == 0 and own[-1] == 42 for own in shown["sweeps"])


def test_agreement_is_that_of_the_monitored_proportions(stopped: Run) -> None:
    known: Known = {}
    shown = agreement(stopped, known)
    assert shown is not None
    assert shown["draws"] == [8, 16]
    assert (shown["limit"], shown["ess_limit"]) == (1.05, 200)
    assert all(len(row) == 2 for row in shown["r_hat"])
    before = dict(known)
    assert agreement(stopped, known) == shown
    assert known == before
    json.dumps(shown, allow_nan=False)


def test_agreement_after_all_draws_equals_that_of_info(study: Path) -> None:
    run = open_run(study / "run.h5")
    shown = agreement(run, {})
    assert shown is not None
    assert shown["draws"] == [8]
    rows = [row for row in convergence(run) if "interim population" in row.quantity]
    expected = [1.0 if np.isnan(row.r_hat) else min(row.r_hat, 3.0) for row in rows]
    assert [row[-1] for row in shown["r_hat"]] == pytest.approx(expected, abs=1e-4)
    assert shown["ess"] == pytest.approx(np.nanmin([row.ess_bulk for row in rows]))


def test_too_few_draws_have_no_agreement(study: Path) -> None:
    early = _made(study, "early.h5", stop_at=26)
    assert early.committed == 2
    assert agreement(early, {}) is None


def test_the_time_left_of_mcmc(stopped: Run, study: Path) -> None:
    assert iterations(stopped) == (42, [Left(18, 2_500)])
    expected = "Time left: at most 9 s (18 sweeps at 2 per second; the run ends when its chains agree)"
    assert time_left(stopped, 2.0) == expected
    assert time_left(stopped, None) == ""
    whole = open_run(study / "run.h5")
    assert iterations(whole)[1] == [Left(0, 2_500)]
    assert time_left(whole, 2.0) == ""


def test_the_time_left_of_bayesian_em(stopped: Run, study: Path) -> None:
    made: list[tuple[int, int]] = []
    config = stopped.parsed_config([f"output.path={json.dumps(str(study / 'em.h5'))}"])

    def at(chain: int, step: int) -> Run:
        made.clear()
        run_bem(
            config,
            overwrite=True,
            on_sweep=lambda report: made.append((report.chain, report.iteration)),
            should_stop=lambda: made[-1] >= (chain, step),
        )
        return open_run(study / "em.h5")

    assert iterations(at(0, 1)) == (1, [Left(3 + 2 * 4, 1_000), Left(26, 2_500)])
    assert iterations(at(1, 2)) == (6, [Left(2 + 4, 1_000), Left(26, 2_500)])
    assert trace(open_run(study / "em.h5"))["burn_in"] is None
    assert agreement(open_run(study / "em.h5"), {}) is None
    continues = at(3, 0)
    assert continues.complete
    assert iterations(continues)[1] == [Left(0, 2_500)]
    # 6 steps on 1,000 events and 26 on 2,500, which take as long as 65 on 1,000
    expected = "Time left: at most 18 s (32 steps at 4 per second now, with fewer events; starts"
    assert time_left(at(1, 2), 4.0).startswith(expected)


def test_pace_is_the_speed_of_the_last_minute() -> None:
    now = 0.0
    path, pace = Path("run.h5"), Pace(lambda: now)
    assert pace.per_second(path, 0) is None
    for now in (10.0, 20.0, 30.0):
        rate = pace.per_second(path, int(now))
    assert rate == pytest.approx(1.0)
    for now in np.arange(40.0, 200.0, 10.0):
        rate = pace.per_second(path, 30 + 4 * int(now - 30.0))
    assert rate == pytest.approx(4.0)
    now += 9.0
    assert pace.per_second(path, 30 + 4 * 160) == pytest.approx(4.0)
    now += 30.0
    assert pace.per_second(path, 30 + 4 * 160) is None  # it has stopped
    pace.forget(path)
    assert pace.per_second(path, 700) is None
    now += 1.0
    assert pace.per_second(path, 705) == pytest.approx(5.0)
    assert pace.per_second(path, 3) is None  # replaced by another run


def test_times_in_words() -> None:
    shown = [duration(seconds) for seconds in (0.2, 59.0, 59.5, 101.0, 590.0, 591.0, 3_601.0, 7_500.0)]
    assert shown == ["1 s", "59 s", "1 min", "1 min 50 s", "9 min 50 s", "10 min", "1 h 1 min", "2 h 5 min"]


def test_progress_on_the_page(study: Path, stopped: Run) -> None:
    own = Workspace(study)
    shown = own.progress("stopped.h5")
    assert (shown["kind"], shown["complete"], shown["draws"], shown["left"]) == ("mcmc", False, 18, "")
    assert shown["trace"]["made"] == 42
    assert shown["agreement"]["draws"] == [8, 16]
    json.dumps(own.progress("run.h5"), allow_nan=False)
