"""The settings of channels on the page, without a server or browser."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmix.app import channels
from dpmix.app.channels import PIXELS, histogram
from dpmix.app.jobs import Jobs
from dpmix.app.workspace import Workspace
from dpmix.config.load import load_config
from dpmix.errors import DpmixError
from dpmix.inputs.compensation import read_matrix
from dpmix.inputs.opening import open_source
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.suggest import suggest

FILES = ["blood.fcs"]


@pytest.fixture
def workspace(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A folder with blood.fcs, in which no command is run."""
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())

    class Started:
        def __init__(self, commands: tuple[list[str], ...]) -> None:
            self.commands = commands

        def state(self) -> dict[str, Any]:
            return {"commands": self.commands}

    monkeypatch.setattr(Jobs, "start", lambda self, *commands, queued=False: Started(commands))
    return Workspace(tmp_path)


def settings(workspace: Workspace) -> dict[str, Any]:
    """Return the suggested settings, as the page starts from."""
    shown = workspace.channels(FILES)
    return {
        "channels": [one["name"] for one in shown["channels"] if one["taken"]],
        "compensation": shown["compensation"],
        "transform": {one["name"]: one["transform"] for one in shown["channels"]},
    }


def test_the_suggestions_are_those_of_init(workspace: Workspace) -> None:
    given = suggest([open_source(workspace.folder / "blood.fcs")])
    shown = workspace.channels(FILES)
    assert [one["why"] for one in shown["channels"]] == [one.why for one in given.channels]
    assert shown["channels"][0]["why"] == "scatter"
    for row, one in zip(shown["channels"], given.channels, strict=True):
        if one.transform:
            assert row["transform"] == {"method": one.method, **one.transform.parameters()}
    assert len(shown["detectors"]) == len(shown["matrix"]) == 10


def test_histograms_before_and_after(workspace: Workspace) -> None:
    """The shape follows the transform of one channel, and of no other."""
    data = settings(workspace)
    first = workspace.look(FILES, data)
    rows = {one["name"]: one for one in first["channels"]}
    assert first["events"] == 2_500
    assert rows["FSC-A"]["before"] == rows["FSC-A"]["after"]  # linear
    assert rows["CD4"]["before"]["high"] > 1_000 > 1.0 > rows["CD4"]["after"]["high"]
    data["transform"]["CD4"] = {"method": "arcsinh"}
    shown = workspace.look(FILES, data)
    assert "CD4: {method: arcsinh, cofactor: 150.0}" in shown["yaml"]
    second = {one["name"]: one for one in shown["channels"]}
    assert second["CD4"]["transform"] == {"method": "arcsinh", "cofactor": 150.0}
    ends = (second["CD4"]["before"][end] for end in ("low", "high"))
    expected = [float(np.arcsinh(end / 150.0)) for end in ends]
    assert [second["CD4"]["after"][end] for end in ("low", "high")] == pytest.approx(expected, rel=0.01)
    assert {k: v for k, v in second.items() if k != "CD4"} == {k: v for k, v in rows.items() if k != "CD4"}


def test_a_scale_without_values_is_said(workspace: Workspace) -> None:
    data = settings(workspace)
    data["transform"]["CD4"] = {"method": "log"}
    rows = {one["name"]: one for one in workspace.look(FILES, data)["channels"]}
    assert "of 2,500 events have no value on this scale" in rows["CD4"]["problem"]
    assert rows["CD3"]["problem"] == ""


def test_a_histogram_is_relative_to_its_highest_bin() -> None:
    shown = histogram(np.array([0.0] * 20 + [1.0] * 10 + [np.nan, -np.inf]))
    assert (shown["heights"][0], shown["heights"][-1], sum(shown["heights"])) == (1.0, 0.5, 1.5)
    assert histogram(np.full(3, np.nan))["heights"] == []


def density(shown: dict[str, Any], name: str) -> Any:
    return image(shown[name], PIXELS)


def image(density: str, pixels: int) -> Any:
    return np.frombuffer(base64.b64decode(density), np.uint8).reshape(pixels, pixels)


def test_a_pair_before_and_after_compensation(workspace: Workspace) -> None:
    data, own = settings(workspace), workspace.channels(FILES)
    shown = workspace.pair(FILES, data, "CD45RA", "CD25")
    assert (density(shown, "before") != density(shown, "after")).any()
    none = workspace.pair(FILES, data | {"compensation": "none"}, "CD45RA", "CD25")
    np.testing.assert_array_equal(density(none, "before"), density(none, "after"))
    same = workspace.pair(FILES, data, "CD45RA", "CD25", own["matrix"])
    assert same == shown  # not edited
    at = [own["detectors"].index(name) for name in ("FITC-A", "PE-A")]
    own["matrix"][at[0]][at[1]] += 0.2
    edited = workspace.pair(FILES, data, "CD45RA", "CD25", own["matrix"])
    assert (density(edited, "before") != density(edited, "after")).any()
    assert edited["ranges"][1][0] < shown["ranges"][1][0]  # more is subtracted from PE
    rows = np.nonzero(density(shown, "after"))[0]
    assert 0 <= rows.min() < rows.max() < PIXELS


def test_pairs_of_the_first_channels_as_a_grid(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings(workspace)
    assert len(data["channels"]) > 6
    shown = workspace.grid(FILES, data)
    assert shown["channels"] == data["channels"][:6]
    assert shown["events"] == 2_500
    assert [len(row) for row in shown["densities"]] == [1, 2, 3, 4, 5]
    seen = {one["name"]: one["after"] for one in workspace.look(FILES, data)["channels"]}
    assert shown["histograms"] == [seen[name] for name in shown["channels"]]
    across, up = shown["channels"][1:3]
    large = density(workspace.pair(FILES, data | {"compensation": "none"}, across, up), "after")
    small = image(workspace.grid(FILES, data | {"compensation": "none"})["densities"][1][1], 64)
    places = [np.argwhere(one > 0).mean(axis=0) / len(one) for one in (small, large)]
    np.testing.assert_allclose(*places, atol=0.03)  # the same picture, with larger pixels

    data["channels"] = ["CD4", "CD3"]
    two = workspace.grid(FILES, data)
    assert (two["channels"], [len(row) for row in two["densities"]]) == (["CD4", "CD3"], [1])
    data["transform"]["CD4"] = {"method": "arcsinh"}
    assert workspace.grid(FILES, data)["densities"] != two["densities"]
    monkeypatch.setattr(channels, "GRID_EVENTS", 100)
    assert workspace.grid(FILES, data)["events"] == 100
    data["channels"] = ["CD4"]
    assert workspace.grid(FILES, data)["densities"] == []


def test_any_channels_as_a_grid(workspace: Workspace) -> None:
    """Also one that the run does not use, up to a number that can be drawn."""
    data, names = settings(workspace), [one["name"] for one in workspace.channels(FILES)["channels"]]
    shown = workspace.grid(FILES, data, shown=["CD19", names[0], "CD4"])
    assert shown["channels"] == ["CD19", names[0], "CD4"]
    seen = {one["name"]: one["after"] for one in workspace.look(FILES, data)["channels"]}
    assert shown["histograms"] == [seen[name] for name in shown["channels"]]
    assert [len(row) for row in shown["densities"]] == [1, 2]
    assert len(workspace.grid(FILES, data, shown=names[:12])["densities"]) == 11
    with pytest.raises(DpmixError, match="13 are chosen; need at most 12"):
        workspace.grid(FILES, data, shown=names[:13])
    with pytest.raises(DpmixError, match="channel CD999"):
        workspace.grid(FILES, data, shown=["CD999"])


def test_the_run_has_what_the_page_shows(workspace: Workspace) -> None:
    """Channels, transform and an edited matrix go into the config, and the events are the page's."""
    data, own = settings(workspace), workspace.channels(FILES)
    data["channels"].remove("CD14")
    data["transform"]["CD4"] = {"method": "arcsinh", "cofactor": 200.0}
    own["matrix"][0][1] = 0.123
    shown = workspace.look(FILES, data, own["matrix"], "new")
    started = workspace.fit(FILES, "new", quick=True, data=data, matrix=own["matrix"])
    assert started["commands"] == (["bem", "new.yaml", "--output", "new.h5"],)
    config = load_config(workspace.folder / "new.yaml")
    assert config.data.files == FILES
    assert config.data.channels == data["channels"]
    assert config.data.compensation == "new.spillover.csv"
    assert config.data.transform["CD4"].cofactor == 200.0
    assert "CD14" not in config.data.transform
    matrix = read_matrix(workspace.folder / "new.spillover.csv")
    assert list(matrix.detectors) == own["detectors"]
    np.testing.assert_array_equal(matrix.matrix, own["matrix"])

    keys = workspace.folder / "keys.yaml"
    keys.write_text(shown["yaml"].replace("data:\n", "data:\n  files: [blood.fcs]\n"), encoding="utf-8")
    assert load_config(keys).data == config.data
    events = prepare(config.data, workspace.folder, seed=1)
    after = {one["name"]: one["transform"] for one in shown["channels"]}
    for name, transform in zip(events.channels, events.scaling.transforms, strict=True):
        assert after[name] == {"method": transform.method, **transform.parameters()}


def test_without_settings_the_config_is_that_of_init(workspace: Workspace) -> None:
    started = workspace.fit(FILES, "new")
    assert started["commands"][0] == ["init", "blood.fcs", "--output", "new.yaml"]


def test_a_changed_file_is_read_again(workspace: Workspace) -> None:
    path = workspace.folder / "table.csv"
    path.write_text("a,b\n" + "1,2\n2,3\n3,5\n" * 9, encoding="utf-8")
    names = [one["name"] for one in workspace.channels(["table.csv"])["channels"]]
    assert names == ["a", "b"]
    path.write_text("a,c\n" + "1,2\n2,3\n3,5\n" * 10, encoding="utf-8")
    shown = workspace.channels(["table.csv"])
    assert [one["name"] for one in shown["channels"]] == ["a", "c"]
    assert shown["matrix"] == []  # no dyes


def look_with(**change: Any) -> Callable[[Workspace], Any]:
    return lambda w: w.look(FILES, settings(w) | change)


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (lambda w: w.channels([]), "files: tick at least one"),
        (lambda w: w.channels(["../blood.fcs"]), "lies outside"),
        (lambda w: w.channels(["none.fcs"]), "cannot be read: No such file"),
        (look_with(channels=[]), "channels"),
        (look_with(channels=["CD999"]), "channel CD999: is not in all ticked files"),
        (look_with(transform={"CD4": {"method": "sing"}}), "transform.CD4.method"),
        (look_with(transform={"CD4": {"method": "logicle", "w": 3.0}}), "w must be at most m / 2"),
        (look_with(transform={"CD4": {"method": "arcsinh", "cofactor": -1}}), "cofactor"),
        (look_with(compensation="../m.csv"), "../m.csv: lies outside"),
        (look_with(compensation="m.csv"), "m.csv cannot be read"),
        (look_with(max_events=5), "data.max_events: cannot be set on the page"),
        (lambda w: w.look(FILES, settings(w), [[1.0]]), "need 10 rows of 10 numbers"),
        (lambda w: w.look(FILES, settings(w), [[0.0] * 10] * 10), "matrix cannot be inverted"),
        (lambda w: w.pair(FILES, settings(w), "CD3", "CD999"), "channel CD999"),
        (lambda w: w.grid(FILES, settings(w) | {"channels": ["CD999"]}), "channel CD999"),
        (lambda w: w.fit(FILES, "new", data=settings(w) | {"channels": []}), "channels"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(workspace: Workspace, work: Any, problem: str) -> None:
    with pytest.raises(DpmixError) as caught:
        work(workspace)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in workspace.folder.iterdir()] == FILES
