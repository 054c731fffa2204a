"""The time of a file, verdicts on recordings with known faults, and the command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from dpmix.cli import main
from dpmix.drift.covariance import CORRELATIONS, Correlation
from dpmix.drift.fit import SignalPrior, fit
from dpmix.drift.judge import judge
from dpmix.drift.points import make_points
from dpmix.errors import DataError
from dpmix.inputs.event_times import time_problem
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.gated_events import in_population, read_gated
from dpmix.inputs.opening import open_source
from dpmix.inputs.recording import Recording, study
from dpmix.inputs.sources import source_of_array
from dpmix.model.mixture import Array

N = 20_000


def recording(fault: str, threads: int | None = None, local: bool = False) -> Recording:
    """Study two channels of 20,000 events in 100 seconds, the first or the rate with a fault."""
    random = np.random.default_rng(5)
    times = np.sort(random.uniform(0.0, 100.0, N))
    if fault == "clog":
        times = np.where(times < 60.0, times, 60.0 + 4.0 * (times - 60.0))
    signal = {
        "drift": 0.8 * np.sin(times / 30.0),
        "step": 0.8 * (times > 55.0),
        "bubble": 3.0 * ((times > 40.0) & (times < 45.0)),
    }.get(fault, np.zeros(N))
    a, b = random.standard_normal((2, N))
    table = np.column_stack((times, 100.0 + 10.0 * (a + signal), 5.0 * b)).astype(np.float32)
    return study(source_of_array(Path("made.npy"), table, ["Time", "A", "B"]), threads=threads, local=local)


def test_a_fast_signal_is_not_taken_for_noise() -> None:
    """From the centre of the prior alone, some of these fits end with all variance in the nugget."""
    random, times, errors = np.random.default_rng(7), np.linspace(0.0, 100.0, 150), np.full(150, 0.1)
    for _ in range(8):
        wave = 0.3 * np.sin(2.0 * np.pi * (times / random.uniform(9.0, 13.0) + random.random()))
        points = make_points(times, wave + 0.1 * random.standard_normal(150), errors)
        covariance = fit(points, SignalPrior.weak(100.0, 0.1)).covariance
        assert covariance.variance > 5.0 * covariance.nugget


@pytest.mark.parametrize(
    ("fault", "verdicts"),
    [
        ("none", ("steady", "steady", "steady")),
        ("drift", ("drift", "steady", "steady")),
        ("step", ("steps", "steady", "steady")),
        ("bubble", ("steps", "steady", "steady")),
        ("clog", ("steady", "steady", "steps")),
    ],
)
def test_faults_are_found_where_they_are(fault: str, verdicts: tuple[str, ...]) -> None:
    found = recording(fault)
    assert tuple(one.verdict for one in found.channels) == verdicts
    if fault == "none":
        assert found.unsteady == 0.0
    if fault == "step":
        (change,) = found.channels[0].changes
        assert abs(found.channels[0].times[change] - 55.0) < 2.5
    if fault == "bubble":
        inside = (found.channels[0].times > 41.0) & (found.channels[0].times < 44.0)
        assert found.channels[0].unsteady[inside].all()
        assert found.shares[0] == pytest.approx(0.05, abs=0.02)
    if fault == "drift":
        drifted = found.channels[0]  # from 0.8 to -0.15 standard deviations; the spread is about 1.04
        assert drifted.low < 0.95 / 1.04 < drifted.high
        assert not drifted.changes


@pytest.mark.parametrize("size", [0.0, 0.6])
def test_the_interval_of_the_range_holds_the_true_one(size: float) -> None:
    """The largest minus the smallest value of draws would be too high in every steady recording."""
    random, times, held = np.random.default_rng(3), np.linspace(0.0, 100.0, 80), 0
    for _ in range(30):
        signal = size * np.sin(times / random.uniform(15.0, 30.0) + random.uniform(0.0, 6.0))
        found = judge("a", times, signal + 0.1 * random.standard_normal(80), np.full(80, 0.1))
        held += found.low <= np.ptp(signal) <= found.high
    assert held >= 21  # of 30, by intervals of 90%: fewer in less than one of 2,000 runs


def test_ends_of_a_rising_signal_are_not_drawn_towards_its_mean() -> None:
    """Without a trend in the signal, these 30 have a mean range of 0.45, and 20 intervals hold 0.5."""
    random, times, ranges, held = np.random.default_rng(5), np.linspace(0.0, 100.0, 80), [], 0
    for _ in range(30):
        found = judge("a", times, 0.005 * times + 0.1 * random.standard_normal(80), np.full(80, 0.1))
        ranges.append(found.range)
        held += found.low <= 0.5 <= found.high
    assert np.mean(ranges) == pytest.approx(0.5, abs=0.03)
    assert held >= 24


@pytest.mark.parametrize("kind", CORRELATIONS)
def test_a_wave_is_judged_by_each_covariance(kind: Correlation) -> None:
    times, random = np.linspace(0.0, 10.0, 150), np.random.default_rng(1)
    values = 0.5 * np.sin(times) + 0.05 * random.standard_normal(150)
    found = judge("CD3", times, values, np.full(150, 0.05), correlation=kind)
    assert found.verdict == "drift"
    assert np.abs(found.mean - 0.5 * np.sin(times)).max() < 0.1


def test_threads_do_not_change_a_bit_of_a_judgement() -> None:
    for one, many in zip(recording("step", 1).channels, recording("step", 3).channels, strict=True):
        np.testing.assert_array_equal(one.mean, many.mean)
        np.testing.assert_array_equal(one.sd, many.sd)
        assert (one.range, one.low, one.high, one.changes) == (many.range, many.low, many.high, many.changes)


def test_local_changes_the_signal_of_channels_and_rate_and_not_the_steps() -> None:
    plain, local = recording("step"), recording("step", local=True)
    for one, other in zip(plain.channels, local.channels, strict=True):
        assert one.changes == other.changes
        assert one.fit == other.fit
        assert not np.array_equal(one.mean, other.mean)
    assert tuple(one.verdict for one in local.channels) == ("steps", "steady", "steady")


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (np.arange(100.0), ""),
        (np.zeros(100), "is constant: 0"),
        (np.concatenate((np.arange(50.0), np.arange(50.0))), "wraps or starts again after event 50"),
        (np.arange(100.0) + np.where(np.arange(100) == 30, 5.0, 0.0), "is not sorted: it falls 1 times"),
        (np.repeat(np.arange(4.0), 25), "repeats: 4 different values"),
        (np.append(np.arange(99.0), np.nan), "has 1 values that are not finite"),
    ],
)
def test_unusable_time_is_named(times: Array, problem: str) -> None:
    found = time_problem(times)
    assert found.startswith(problem) if problem else not found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["drift", *arguments])


def test_command_writes_table_figures_and_page(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    times = np.sort(random.uniform(0.0, 50.0, 6_000))
    values = random.standard_normal(6_000)
    for name, column in (("steady", values), ("step", values + 2.0 * (times > 20.0))):
        np.savetxt(
            tmp_path / f"{name}.csv",
            np.column_stack((times, column)),
            "%.6f",
            ",",
            header="Time,A",
            comments="",
        )
    np.savetxt(
        tmp_path / "timeless.csv",
        np.column_stack((values, -(values**2))),
        "%.6f",
        ",",
        header="A,B",
        comments="",
    )
    files, output = (
        [str(tmp_path / f"{name}.csv") for name in ("steady", "step", "timeless")],
        tmp_path / "out",
    )
    done = run(*files, "--output", str(output))
    assert done.exit_code == 0, done.output
    assert "\ntimeless.csv: has no channel of time; --by event" in done.output
    with (output / "drift.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["file"], row["channel"], row["verdict"]) for row in rows] == [
        ("step.csv", "A", "steps"),
        ("step.csv", "event rate", "steady"),
        ("steady.csv", "A", "steady"),
        ("steady.csv", "event rate", "steady"),
        ("timeless.csv", "", "not judged"),
    ]
    assert float(rows[0]["change points"]) == pytest.approx(20.0, abs=3.0)
    page = (output / "report.html").read_text()
    assert page.count("data:image/png") == 2
    assert "http" not in page.replace("http-equiv", "")
    assert len(list((output / "figures").glob("*.png"))) == 2

    assert run(files[0], "--output", str(output)).exit_code == 2  # exists already
    again = [*files[:2], "--output", str(output), "--overwrite", "--quiet", "--fail-above"]
    failed = run(*again, "0.05")
    assert failed.exit_code == 1
    assert "--fail-above 0.05: step.csv" in failed.output
    assert run(*again, "0.9").exit_code == 0
    assert run(files[2], "--by", "event", "--output", str(tmp_path / "by")).exit_code == 0
    timed = [files[0], files[2], "--output", str(tmp_path / "timed"), "--fail-above", "0.9"]
    assert run(*timed).exit_code == 0  # a file without time is a line where others have it
    alone = run(files[2], "--output", str(tmp_path / "alone"))
    assert alone.exit_code == 1
    assert alone.output.count("warning: timeless.csv: has no channel of time") == 1
    assert run(files[1], "--local", "--output", str(tmp_path / "local")).exit_code == 0
    with (tmp_path / "local" / "drift.csv").open() as file:
        local = list(csv.DictReader(file))
    assert local[0]["change points"] == rows[0]["change points"]
    assert local[0]["high"] != rows[0]["high"]


def test_channels_that_a_run_leaves_out_are_named_and_do_not_count(tmp_path: Path) -> None:
    """SSC-W drifts for the whole recording; SSC-A and CD3 do not."""
    random = np.random.default_rng(4)
    times = np.sort(random.uniform(0.0, 50.0, 6_000))
    scatter = random.normal(50_000, 5_000, 6_000) + 30_000 * (times > 20.0)
    area = random.normal(50_000, 5_000, 6_000)
    values = np.column_stack((times, scatter, random.lognormal(6.0, 1.0, 6_000), area)).astype(np.float32)
    write_fcs(tmp_path / "a.fcs", values, ["Time", "SSC-W", "FITC-A", "SSC-A"], ["", "", "CD3", ""])
    found = study(open_source(tmp_path / "a.fcs"), threads=1)
    names = [one.name for one in found.channels]
    assert dict(zip(names, found.counted, strict=True)) == {
        **{"SSC-W": False, "CD3": True, "SSC-A": True},
        "event rate": True,
    }
    assert found.channels[names.index("SSC-W")].verdict == "steps"
    assert found.shares[names.index("SSC-W")] > 0.3
    assert found.unsteady == 0.0
    assert found.worst.name != "SSC-W"
    end = "steady; not counted: SSC-W (steps, "
    assert end in found.sentence
    assert run(str(tmp_path / "a.fcs"), "--output", str(tmp_path / "d"), "--fail-above", "0.1").exit_code == 0
    page = (tmp_path / "d" / "report.html").read_text()
    assert page.index("CD3</td>") < page.index("SSC-W (not counted)</td>")
    with (tmp_path / "d" / "drift.csv").open() as file:
        assert {row["channel"]: row["counted"] for row in csv.DictReader(file)}["SSC-W"] == "no"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file of three populations, and the table of their events.

    The first two, of half of the events each, drift in opposite directions. The third has 100 events.
    """
    folder = tmp_path_factory.mktemp("gated")
    random, n = np.random.default_rng(3), 200_000
    times = np.sort(random.uniform(0.0, 50.0, n))
    population = np.where(np.arange(n) % 2_000 == 7, 3, random.integers(1, 3, n))
    values = np.where(population == 1, -6.0, 6.0) + np.where(population == 1, 0.04, -0.04) * times
    table = np.column_stack((times, values + random.standard_normal(n)))
    np.savetxt(folder / "a.csv", table, "%.6f", ",", header="Time,A", comments="")
    events = {"event": np.arange(n), "sample": ["a.csv"] * n, "population": population}
    order = random.permutation(n)
    pyarrow.parquet.write_table(pyarrow.table(events).take(order), folder / "events.parquet")
    return folder


def test_the_events_of_a_population_are_judged(gated: Path, tmp_path: Path) -> None:
    """The median of all events does not move; the medians of the populations do."""
    found = {}
    for name, *chosen in (("all",), ("1", "--population", "1"), ("2", "--population", "2")):
        of_gating = ["--gated", str(gated)] if chosen else []
        done = run(str(gated / "a.csv"), "--output", str(tmp_path / name), *of_gating, *chosen)
        assert done.exit_code == 0, done.output
        with (tmp_path / name / "drift.csv").open() as file:
            found[name] = next(csv.DictReader(file))
    assert [row["file"] for row in found.values()] == ["a.csv", "a.csv, population 1", "a.csv, population 2"]
    assert found["all"]["verdict"] in ("steady", "unsure")
    for name in ("1", "2"):
        assert found[name]["verdict"] == "drift"
        assert float(found[name]["range"]) == pytest.approx(2.0 / 1.17, rel=0.1)  # in its own spreads


def test_the_rows_of_a_population_are_those_of_the_table(gated: Path) -> None:
    """Pieces of the file are read; both ends of a request lie anywhere."""
    source = source_of_array(Path("a.csv"), np.arange(200_000.0, dtype=np.float32)[:, None], ["A"])
    own = in_population(source, read_gated(gated), 3)
    rows = np.arange(7, 200_000, 2_000)
    assert own.n_events == len(rows)
    for start, stop in ((0, 100), (0, 0), (31, 33), (32, 99)):
        np.testing.assert_array_equal(own.read(start, stop)[:, 0], rows[start:stop])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--population", "1"), "--gated and --population need each other; give both, or none"),
        (("--gated", "FOLDER", "--population", "9"), "a.csv has no events of population 9; it has 1 to 3"),
        (("--gated", "FOLDER", "--population", "3"), "a.csv, population 3: 100 events; need at least 2000"),
        (("--gated", "missing", "--population", "1"), "cannot be read (missing/events.parquet); dpmix gate"),
    ],
)
def test_a_population_that_cannot_be_judged_is_one_line(
    gated: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = [str(gated) if word == "FOLDER" else word for word in arguments]
    done = run(str(gated / "a.csv"), "--output", str(tmp_path / "out"), *given)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_table_of_another_file_is_refused(gated: Path) -> None:
    for name, n_events, message in (
        ("b.csv", 200_000, "has no events of b.csv; give files that were gated"),
        ("a.csv", 50_000, r"has event 1999\d\d of a.csv, which has 50000 events"),
    ):
        source = source_of_array(Path(name), np.zeros((n_events, 1), np.float32), ["A"])
        with pytest.raises(DataError, match=message):
            in_population(source, read_gated(gated), 1)
