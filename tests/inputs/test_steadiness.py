"""data.time: recordings with known faults are reported, their events dropped, or their signal corrected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from dpmix.cli import main
from dpmix.config.data import DataConfig
from dpmix.drift.summaries import block_starts, summarise
from dpmix.errors import DataError
from dpmix.inputs.events import Events
from dpmix.inputs.preprocess import prepare, prepare_like
from dpmix.inputs.simulate.faults import Fault
from dpmix.inputs.simulate.simulation import Simulation, cytometry_like
from dpmix.model.mixture import Array
from dpmix.runs.reader import open_run

N = 12_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for name in ("steady", "slow", "bubble"):
        made(name).write(folder / f"{name}.fcs")
    return folder


def made(name: str) -> Simulation:
    faults: tuple[Fault, ...] = () if name == "steady" else (name,)  # type: ignore[assignment]
    return cytometry_like(N, seed=4, spill=False, faults=faults, fault_size=1.0)


def prepared(files: Path, names: list[str], **settings: object) -> Events:
    config = DataConfig(files=[f"{name}.fcs" for name in names], atoms="report", **settings)  # type: ignore[arg-type]
    return prepare(config, files, seed=1)


def test_reports_change_nothing_but_the_warnings(files: Path) -> None:
    plain = prepared(files, ["steady", "bubble"])
    told = prepared(files, ["steady", "bubble"], time="report")
    assert plain.report.warnings == ()
    steady, bubble = told.report.warnings
    assert steady == "steady.fcs: over time: 12,000 events by time, steady"
    assert bubble.startswith("bubble.fcs: over time: 12,000 events by time, ")
    assert " in unsteady stretches: FSC-A (steps, " in bubble
    assert plain.data_hash == told.data_hash
    np.testing.assert_array_equal(plain.values, told.values)


def test_init_says_what_changes_over_time(files: Path) -> None:
    """A first look without SciPy, which would take longer to load than the look itself."""
    heads = {name: first_lines(files / f"{name}.fcs") for name in ("steady", "slow")}
    assert "over time" not in heads["steady"]
    (line,) = [line for line in heads["slow"].splitlines() if "over time" in line]
    assert line.startswith("# slow.fcs: CD3 (0.3) may change over time (a first look, in units of ")
    assert line.endswith("; dpmix drift judges it: choose data.time: drop or correct, if it finds drift")
    slow = "{'scipy.linalg', 'dpmix.drift.judge'}"
    check = f"import sys, dpmix.inputs.suggest; print(sorted({slow} & {{*sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_init_says_why_time_is_of_no_use(tmp_path: Path) -> None:
    sample = made("steady")
    sample.events[:, -1] = sample.events[::-1, -1]
    sample.write(tmp_path / "back.fcs")
    assert "# back.fcs: Time is not sorted: it falls " in first_lines(tmp_path / "back.fcs")


def first_lines(path: Path) -> str:
    """Return what `dpmix init` says about a file, above the keys."""
    return CliRunner().invoke(main, ["init", str(path)], catch_exceptions=False).stdout.split("\n\n")[0]


def test_unsteady_events_are_dropped_and_counted(files: Path) -> None:
    plain, dropped = prepared(files, ["steady", "bubble"]), prepared(files, ["steady", "bubble"], time="drop")
    faulty, rows = made("bubble").faulty, dropped.rows
    assert faulty is not None
    assert rows is not None
    starts = dropped.sample_starts
    assert starts[1] == N, "the steady file keeps its events"
    kept = np.isin(np.arange(N), rows[starts[1] :])
    assert kept[faulty].mean() < 0.4
    assert kept[~faulty].mean() > 0.95
    steady, bubble = dropped.report.warnings
    assert steady.endswith("steady; 0 of 12,000 events dropped (data.time: drop)")
    assert bubble.endswith(f"; {int((~kept).sum()):,} of 12,000 events dropped (data.time: drop)")
    back = [events.scaling.to_transformed(events.values) for events in (plain, dropped)]
    np.testing.assert_allclose(
        back[1], back[0][np.concatenate((np.arange(N), N + np.flatnonzero(kept)))], atol=1e-5
    )
    like = DataConfig(files=["-"], atoms="report", time="drop")
    again = prepare_like(like, files, ["steady.fcs", "bubble.fcs"], dropped.scaling, dropped.detectors)
    assert again.data_hash == dropped.data_hash
    np.testing.assert_array_equal(again.rows, rows)


def ranges(events: Events) -> Array:
    """Return the range of the block medians of each channel, transformed scale."""
    values = events.scaling.to_transformed(events.values)
    return np.ptp(summarise(values, np.arange(float(N)), block_starts(N)).medians, axis=0)


def test_the_signal_is_subtracted_where_it_drifts_and_nowhere_else(files: Path) -> None:
    plain, corrected = prepared(files, ["slow"]), prepared(files, ["slow"], time="correct")
    (said,) = corrected.report.warnings
    assert said.endswith(" (data.time: correct)")
    named = np.array([f" {name} (" in said for name in corrected.channels])
    assert 1 <= named.sum() < len(named)
    before, after = ranges(plain), ranges(corrected)
    drifting = named & (before > 0.1)
    assert drifting.any()
    assert (after[drifting] < 0.6 * before[drifting]).all()
    np.testing.assert_array_equal(plain.values[:, ~named], corrected.values[:, ~named])
    means, sds = corrected.values.mean(axis=0), corrected.values.std(axis=0)
    np.testing.assert_allclose(means, 0.0, atol=1e-4)
    np.testing.assert_allclose(sds, 1.0, atol=1e-4)
    again = prepared(files, ["slow"], time="correct")
    assert again.data_hash == corrected.data_hash


def test_a_steady_file_is_not_corrected(files: Path) -> None:
    events = prepared(files, ["steady"], time="correct")
    assert events.report.warnings == ("steady.fcs: over time: no drift found, nothing corrected",)
    np.testing.assert_array_equal(events.values, prepared(files, ["steady"]).values)


def test_correction_of_a_random_subset(files: Path) -> None:
    settings = {"max_events": 6_000, "time": "correct"}
    one, other = (prepared(files, ["slow"], **settings) for _ in range(2))
    assert "signal subtracted" in one.report.warnings[0]
    assert one.data_hash == other.data_hash


@pytest.mark.parametrize("time", ["drop", "correct"])
def test_a_file_without_time_is_named_with_the_remedy(tmp_path: Path, time: str) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(1).normal(size=(3_000, 3)).astype(np.float32))
    config = DataConfig(files=["a.npy"], time=time)  # type: ignore[arg-type]
    with pytest.raises(DataError) as error:
        prepare(config, tmp_path, seed=1)
    remedy = "leave out this file, or use data.time: report"
    assert str(error.value).startswith(f"a.npy: has no channel of time; {remedy}")
    told = prepare(config.model_copy(update={"time": "report"}), tmp_path, seed=1)
    assert told.report.warnings == ("a.npy: not judged over time: has no channel of time",)


def test_too_few_events_to_correct(files: Path) -> None:
    with pytest.raises(DataError, match=r"1500 events, but data\.time: correct needs 2000; leave out this"):
        prepared(files, ["slow"], max_events=1_500, time="correct")


@pytest.mark.slow
def test_the_run_file_and_the_gating_say_what_was_dropped(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        f"data: {{files: ['{(files / 'bubble.fcs').as_posix()}'], time: drop}}\nmodel: {{components: 8}}\n"
        "mcmc: {burn_in: 3, draws: 3}\nengine: {backend: cpu, threads: 1}\n"
    )

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "events dropped (data.time: drop)" in run("mcmc", "run.yaml", "--quiet")
    (stored,) = open_run("run.h5").data_warnings
    assert stored in run("info", "run.h5")
    assert stored in run("gate", "run.h5", "--output", "gated", "--quiet")
    table = pyarrow.parquet.read_table("gated/events.parquet")
    assert table.num_rows == open_run("run.h5").attributes["n_events"] < N
    assert "events dropped (data.time: drop)" in (tmp_path / "gated/report.html").read_text(encoding="utf-8")
