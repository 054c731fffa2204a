"""Recordings of very many blocks: judgement, figure, memory, correction, table of a gating, local fits."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from dpmix.cli import main
from dpmix.drift.covariance import Covariance
from dpmix.drift.fit import SignalFit
from dpmix.drift.judge import judge
from dpmix.drift.local import local_blocks
from dpmix.drift.points import make_points
from dpmix.drift.posterior import posterior
from dpmix.inputs.gated_events import read_gated
from dpmix.inputs.recording import Recording, study
from dpmix.inputs.sources import source_of_array
from dpmix.inputs.steadiness import correct
from dpmix.model.mixture import Array
from dpmix.report import drift_figure

N = 1_000_000


def events(signal: Array) -> Array:
    """Return time and two channels of a million events, the first with a signal."""
    random = np.random.default_rng(5)
    first = np.where(random.random(N) < 0.3, 3.0, 0.0) + 0.5 * random.standard_normal(N) + signal
    return np.column_stack((np.linspace(0.0, 100.0, N), first, random.standard_normal(N))).astype(np.float32)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Study a recording with a step, and a bubble of 0.6% of the recording."""
    at = np.linspace(0.0, 100.0, N)
    signal = 0.5 * (at > 40.0) + 2.0 * ((at > 70.0) & (at < 70.6))
    return study(source_of_array(Path("made.npy"), events(signal), ["Time", "A", "B"]), threads=1)


@pytest.mark.slow
def test_ten_thousand_blocks_show_short_faults(recording: Recording) -> None:
    """The bubble has six of 1,024 blocks, and two of them are mixed."""
    first, second, rate = recording.channels
    assert [one.verdict for one in recording.channels] == ["steps", "steady", "steady"]
    assert len(first.times) == len(second.times) == 10_000
    assert first.change_times == pytest.approx((40.0, 70.0, 70.6), abs=0.03)
    bubble = (first.times > 70.03) & (first.times < 70.57)
    assert first.unsteady[bubble].all()
    assert recording.is_unsteady.shape == (N,)
    assert recording.unsteady == pytest.approx(recording.is_unsteady.mean())
    assert recording.shares[0] == pytest.approx(np.repeat(first.unsteady, 100).mean())
    assert recording.shares[2] == 0.0
    assert len(rate.times) == 500


@pytest.mark.slow
def test_figures_of_many_blocks_have_few_points(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    drawn: list[int] = []
    plot = Axes.plot

    def counted(self: Axes, x: Array, *rest: object, **options: object) -> object:
        drawn.append(len(x))
        return plot(self, x, *rest, **options)

    monkeypatch.setattr(Axes, "plot", counted)
    assert drift_figure.png(recording)[1:4] == b"PNG"
    assert max(drawn) <= drift_figure.POINTS
    monkeypatch.setattr(drift_figure, "POINTS", N)
    drift_figure.png(recording)
    assert max(drawn) > 2_000


@pytest.mark.slow
def test_what_is_kept_of_a_file_is_small(recording: Recording) -> None:
    kept = recording.without_arrays()
    assert (kept.sentence, kept.worst.name, kept.unsteady) == (recording.sentence, "A", recording.unsteady)
    arrays = [getattr(one, f.name) for one in (kept, *kept.channels) for f in dataclasses.fields(one)]
    assert sum(one.nbytes for one in arrays if isinstance(one, np.ndarray)) == 0
    assert kept.channels[0].change_times == recording.channels[0].change_times


def test_the_memory_of_a_judgement_is_a_few_times_that_of_its_blocks() -> None:
    """A dense posterior of 20,000 blocks would take 3 GB; 30 neighbours take 120 bytes of each block."""
    random, n = np.random.default_rng(1), 20_000
    times = np.linspace(0.0, 100.0, n)
    values = 0.2 * np.sin(times / 10.0) + 0.1 * random.standard_normal(n)
    tracemalloc.start()
    found = judge("a", times, values, np.full(n, 0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.verdict == "drift"
    assert peak < 1_000 * n
    assert np.abs(found.mean - 0.2 * np.sin(times / 10.0)).max() < 6.0 * found.sd.max() < 0.05


def test_a_signal_is_subtracted_from_many_events() -> None:
    signal = 0.6 * np.sin(np.linspace(0.0, 12.0, N))
    table, signal = events(signal)[::5], signal[::5]
    plain, values = table[:, 1] - signal, table[:, 1:].copy()
    assert correct(values, table[:, 0].astype(float), ["A", "B"]).startswith("over time: signal subtracted")
    left = (values[:, 0] - plain).reshape(100, -1).mean(axis=1)
    assert np.ptp(left) < 0.15
    np.testing.assert_array_equal(values[:, 1], table[:, 2])


@pytest.mark.slow
def test_local_fits_of_many_blocks_are_those_of_averages() -> None:
    """Their designs of 50 of the 256 nearest blocks would leave most of the noise."""
    random, n = np.random.default_rng(2), 10_000
    times, signal = np.linspace(0.0, 100.0, n), 0.1 * np.sin(np.linspace(0.0, 9.0, n))
    points = make_points(times, signal + 0.125 * random.standard_normal(n), np.full(n, 0.125), 0)
    fit = SignalFit(Covariance("matern32", 0.01, 20.0, 1e-5), 0.0, 0.0, 0.0, 1, True)
    mean, sd, covariance = local_blocks(points, fit, 0.001)
    exact = posterior(points, fit, times, 0.001)
    assert len(mean) == n
    assert ((mean - signal) ** 2).mean() < 2.0 * ((exact.mean - signal) ** 2).mean()
    assert np.median(sd) < 1.6 * np.median(exact.sd)
    assert covariance(100, 100) == pytest.approx(sd[100] ** 2, rel=0.1)
    assert abs(covariance(0, n - 1)) < sd[0] ** 2


def test_the_table_of_a_gating_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, n = np.random.default_rng(3), 6_000
    for name in "ab":
        table = np.column_stack((np.linspace(0.0, 9.0, n), random.standard_normal(n)))
        np.savetxt(tmp_path / f"{name}.csv", table, "%.6f", ",", header="Time,A", comments="")
    rows = {"event": [*range(n)] * 2, "sample": ["a.csv"] * n + ["b.csv"] * n, "population": [1] * 2 * n}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "events.parquet")
    reads = []
    monkeypatch.setattr(
        "dpmix.commands.drift.read_gated", lambda folder: reads.append(folder) or read_gated(folder)
    )
    given = ["drift", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*given, "--gated", str(tmp_path), "--population", "1", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert "b.csv, population 1: 6,000 events by time, steady" in done.output
    assert len(reads) == 1
