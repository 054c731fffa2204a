"""State channels are read for the same events as the channels of the model, which does not see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError
from dpmix.inputs.events import Events
from dpmix.inputs.preprocess import Recorded, prepare, prepare_like

MODEL, STATE = ["CD3", "CD4"], ["pS6", "Ki67"]
HEAD = ",".join([*MODEL, *STATE])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write two files; pS6 is CD3 plus 100."""
    random = np.random.default_rng(1)
    for name in ("a.csv", "b.csv"):
        values = random.lognormal(2.0, 1.0, (400, 4)).round(3)
        values[:, 2] = values[:, 0] + 100.0
        np.savetxt(tmp_path / name, values, delimiter=",", header=HEAD, comments="", fmt="%.3f")
    return tmp_path


def read(folder: Path, earlier: Recorded | None = None, **keys: Any) -> Events:
    given: dict[str, Any] = {"files": ["a.csv", "b.csv"], "state_channels": STATE} | keys
    return prepare(DataConfig.model_validate(given), folder, 1, earlier=earlier)


def test_the_model_has_the_other_channels(files: Path) -> None:
    events = read(files)
    without = read(files, channels=MODEL, state_channels=None)
    assert (events.channels, events.data_hash) == (tuple(MODEL), without.data_hash)
    assert events.measured_channels == (*MODEL, *STATE)
    assert any("state channels, not in the model: pS6, Ki67" in note for note in events.report.notes)


@pytest.mark.parametrize("most", [None, 300])
def test_values_are_those_of_the_same_events(files: Path, most: int | None) -> None:
    events = read(files, max_events=most)
    measured = events.measured(np.arange(len(events.values)))
    np.testing.assert_allclose(measured[:, 2], measured[:, 0] + 100.0, atol=2e-4)
    assert len(measured) == (most or 800)


def test_transforms_are_those_of_the_run_in_new_files(files: Path) -> None:
    transform = {"default": {"method": "linear"}, "pS6": {"method": "arcsinh", "cofactor": 5}}
    events = read(files, transform=transform)
    state = events.state
    assert state is not None
    whole = DataConfig.model_validate({"files": ["b.csv"], "state_channels": STATE})
    new = prepare_like(
        whole, files, ["b.csv"], events.scaling, events.detectors, state=state.without_values()
    )
    assert new.state is not None
    np.testing.assert_array_equal(new.state.values, state.values[400:])
    raw = np.loadtxt(files / "b.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(new.state.values[:, 0], np.arcsinh(raw[:, 2] / 5.0), rtol=1e-5)
    again = read(files, Recorded(events.detectors, events.scaling, state.without_values()))
    assert again.state is not None
    np.testing.assert_array_equal(again.state.values, state.values)


@pytest.mark.parametrize("head", ["channel,marker,class", "fcs_colname,antigen,marker_class"])
def test_a_panel(files: Path, head: str) -> None:
    (files / "panel.csv").write_text(
        f"{head}\nCD3,T cells,type\nCD4,CD4,type\npS6,phospho S6,state\nKi67,,none\n"
    )
    events = read(files, state_channels=None, panel="panel.csv")
    assert events.channels == ("T cells", "CD4")
    assert events.state is not None
    assert events.state.channels == ("phospho S6",)


def test_a_panel_of_a_spreadsheet(files: Path) -> None:
    head = "fcs_colname\tantigen\tmarker_class"
    (files / "panel.csv").write_text(f"{head}\nCD3\tCD3\ttype\npS6\tpS6\tstate\n", encoding="utf-16")
    events = read(files, state_channels=None, panel="panel.csv")
    assert events.channels == ("CD3",)
    assert events.state is not None
    assert events.state.channels == ("pS6",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("channel,marker\nCD3,CD3\n", "found no column class or marker_class"),
        ("channel,marker,class\nCD9,CD9,type\n", "CD9 matches no channel of a.csv"),
        ("channel,marker,class\nCD3,CD3,lineage\n", "CD3 has the class lineage, need type, state, none"),
        ("channel,marker,class\nCD3,CD3,state\n", "found no channel of class type"),
    ],
)
def test_a_panel_that_cannot_be_used(files: Path, text: str, message: str) -> None:
    (files / "panel.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(files, state_channels=None, panel="panel.csv")


def test_a_channel_of_both_kinds_is_an_error(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.state_channels: CD4 is also in data\.channels"):
        read(files, channels=MODEL, state_channels=["CD4"])
    with pytest.raises(ConfigError, match=r"data\.state_channels: pErk matches no channel"):
        read(files, state_channels=["pErk"])
