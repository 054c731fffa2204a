"""data.gate: start from the events inside a gate of a FlowJo workspace or a GatingML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workspaces import write_workspace

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import parent_gate
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.opening import open_source
from dpmix.inputs.preprocess import prepare, prepare_like

Array = np.ndarray
NAMES = ["FSC-A", "A-A", "B-A", "C-A"]
THEIRS = "3,A-A,B-A,C-A,1,0.3,0,0.1,1,0,0,0,1"  # in the workspace
GATES = {"Live": {"A-A": (0.4, None)}, "Live/high": {"B-A": (0.5, None)}, "none": {"A-A": (2.0, None)}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files a.fcs and b.fcs of 2,000 and 1,500 events without a matrix, and a workspace with one."""
    for name, n, seed in (("a.fcs", 2_000, 1), ("b.fcs", 1_500, 2)):
        values = np.random.default_rng(seed).lognormal(7, 1.5, (n, 4)).astype(np.float32)
        keywords = {"$SPILLOVER": THEIRS}
        write_fcs(tmp_path / name, values, NAMES, keywords=keywords)
    files = [tmp_path / "a.fcs", tmp_path / "b.fcs"]
    write_workspace(tmp_path / "w.wsp", files, GATES)
    for file in files:  # the matrix is in the workspace only
        source = open_source(file)
        write_fcs(file, source.read(0, source.n_events), NAMES, keywords={"$CYT": "test"})
    return tmp_path


def settings(population: str = "Live/high", **others: Any) -> DataConfig:
    gate = {"workspace": "w.wsp", "population": population}
    return DataConfig.model_validate(
        {"files": ["a.fcs", "b.fcs"], "channels": ["A-A", "B-A"], "gate": gate, **others}
    )


def inside(folder: Path) -> list[Array]:
    manual = ManualGates(folder / "w.wsp", "data.gate")
    return [np.flatnonzero(manual.members(open_source(folder / f"{k}.fcs"))["Live/high"]) for k in "ab"]


def test_only_events_inside_the_gate_are_used(folder: Path) -> None:
    events = prepare(settings(), folder, 1)
    rows = inside(folder)
    assert events.sample_starts.tolist() == [0, len(rows[0]), len(rows[0]) + len(rows[1])]
    assert 100 < len(rows[0]) < 1_900
    np.testing.assert_array_equal(events.rows, np.concatenate(rows))
    note = f"a.fcs: {len(rows[0])} of 2000 events inside Live/high of w.wsp"
    assert note in events.report.notes


def test_compensation_and_transforms_are_those_of_the_workspace(folder: Path) -> None:
    events = prepare(settings(atoms="report"), folder, 1)
    matrix = np.array([[1, 0.3], [0.1, 1]])
    stored = open_source(folder / "a.fcs").read(0, 2_000, [1, 2])[inside(folder)[0]]
    raw = events.scaling.to_raw(events.values[: len(stored)])
    np.testing.assert_allclose(raw, stored @ np.linalg.inv(matrix), rtol=2e-3, atol=1.0)
    assert {str(t) for t in events.scaling.transforms} == {"logicle t=262144 w=0.5 m=4.41854 a=0"}
    assert any("compensated with the matrix of w.wsp" in note for note in events.report.notes)


def test_explicit_settings_have_precedence(folder: Path) -> None:
    transform = {"A*": {"method": "arcsinh", "cofactor": 100}}
    events = prepare(settings(compensation="none", transform=transform), folder, 1)
    assert [t.method for t in events.scaling.transforms] == ["arcsinh", "logicle"]
    assert events.spillovers == (None, None)


def test_a_random_subset_is_of_the_gated_events(folder: Path) -> None:
    events = prepare(settings(max_events=300), folder, 1)
    assert len(events.values) == 300
    first, second = np.split(events.rows, events.sample_starts[1:-1])
    assert set(first) <= set(inside(folder)[0])
    assert set(second) <= set(inside(folder)[1])


def test_rows_are_read_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prepare(settings(), folder, 1)
    monkeypatch.setattr(parent_gate, "PIECE", 7)
    np.testing.assert_array_equal(prepare(settings(), folder, 1).values, whole.values)


def test_the_files_of_a_run_give_its_events_again(folder: Path) -> None:
    events = prepare(settings(), folder, 1)
    again = prepare_like(settings(), folder, ["a.fcs", "b.fcs"], events.scaling, events.detectors)
    np.testing.assert_array_equal(again.values, events.values)
    np.testing.assert_array_equal(again.rows, events.rows)


def test_errors_name_the_key_or_the_file(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.gate: CD3: no gate has this name in a\.fcs; .* Live, Live/high"
    ):
        prepare(settings("CD3"), folder, 1)
    with pytest.raises(
        DataError, match=r"a\.fcs: has no events inside none of .*w\.wsp; leave out this file"
    ):
        prepare(settings("none"), folder, 1)
    with pytest.raises(ConfigError, match=r"data\.linearize: false, but the gates of data\.gate"):
        prepare(settings(linearize=False), folder, 1)
    (folder / "a.fcs").rename(folder / "c.fcs")
    with pytest.raises(
        DataError, match=r"c\.fcs: .*w\.wsp has no sample of this name; it has a\.fcs, b\.fcs"
    ):
        prepare(settings(files=["c.fcs"]), folder, 1)
