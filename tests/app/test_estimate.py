"""The time of a run before its start, without a server or browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpmix.app import channels, estimate
from dpmix.app.estimate import RunPart, Timed, parts, seconds_per_sweep, sizes
from dpmix.app.jobs import Jobs
from dpmix.app.workspace import Workspace
from dpmix.errors import ConfigError

FILES = ["blood.fcs"]


@pytest.fixture
def workspace(study: Path, tmp_path: Path) -> Workspace:
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    return Workspace(tmp_path)


def test_sizes_of_short_runs_keep_all_threads_busy() -> None:
    assert sizes(50_000, 2) == [50_000]
    assert sizes(262_144, 2) == [262_144]
    assert sizes(262_145, 2) == [131_072, 262_144]
    assert sizes(9_000_000, 64) == [500_000, 1_000_000]


def test_seconds_of_a_sweep_grow_by_the_slope_between_two_runs() -> None:
    small, large = Timed(1_000, 0.3, 0.0, "cpu"), Timed(2_000, 0.5, 0.0, "cpu")
    assert seconds_per_sweep([small, large], 10_000) == pytest.approx(0.1 + 0.2e-3 * 10_000)
    assert seconds_per_sweep([large], 2_000) == 0.5
    assert seconds_per_sweep([large, Timed(4_000, 0.4, 0.0, "cpu")], 10_000) == 0.4  # noise, not a slope


def test_sweeps_are_those_that_mcmc_until_allows() -> None:
    assert parts(50_000, quick=False) == [RunPart(50_000, 100 + 50, 500 + 250)]
    assert parts(5_000, quick=True) == [RunPart(5_000, 1, 10 * 40 + 500 - 40)]
    assert parts(50_000, quick=True) == [RunPart(20_000, 1, 10 * 40), RunPart(50_000, 1, 500 - 40)]


def test_an_estimate_of_one_short_run(workspace: Workspace) -> None:
    shown = workspace.estimate(FILES, False)
    least, most = shown["seconds"]
    assert 0.0 < least < most
    assert "2,500 events in 10 channels; reading the files is not included." in shown["text"]
    assert re.search(r"by a short run on 2,500 events with the (cpu|cuda) engine\.$", shown["text"])
    assert "150 to 750 sweeps" in shown["text"]
    assert [path.name for path in workspace.folder.iterdir()] == FILES


def test_an_estimate_of_two_short_runs_with_chosen_channels(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are repeated where the short runs need more than are read; a run that takes long ends early."""
    monkeypatch.setattr(channels, "some_rows", lambda sources: [[(0, 500)]])
    monkeypatch.setattr(estimate, "sizes", lambda n_events, threads: [1_000, 2_000])
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    data = {"channels": ["CD3", "CD4"], "compensation": "auto", "transform": {"CD4": {"method": "arcsinh"}}}
    shown = workspace.estimate(FILES, data=data)
    assert "in 2 channels" in shown["text"]
    assert "by 2 short runs on 1,000 and 2,000 events" in shown["text"]
    assert workspace.estimate(FILES, quick=True, data=data)["seconds"][1] > 0.0


def test_mistakes_are_one_line(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="files: tick at least one"):
        workspace.estimate([])
    with pytest.raises(ConfigError, match="channel CD999: is not in all ticked files"):
        workspace.estimate(FILES, data={"channels": ["CD999"]})
    with pytest.raises(ConfigError, match="lies outside"):
        workspace.estimate(FILES, data={"compensation": "../m.csv"})
    monkeypatch.setattr(Jobs, "running", True)
    with pytest.raises(ConfigError, match="a command is running"):
        workspace.estimate(FILES)
