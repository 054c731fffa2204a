"""The events that the page draws as points, without a browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_server import start

from dpmix.app import live, points
from dpmix.app.points import PlottedEvents
from dpmix.app.workspace import StaleError, Workspace
from dpmix.errors import ConfigError
from dpmix.populations.draws.decide import Decided
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.decisions import decisions_path


@pytest.fixture
def workspace(study: Path) -> Iterator[Workspace]:
    path = decisions_path(study / "run.h5")
    path.unlink(missing_ok=True)
    yield Workspace(study)
    path.unlink(missing_ok=True)


def of_events(view: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(view["of_events"]), "<u2")


def decided(modes: list[int]) -> Decided:
    n_populations = max(modes) + 1
    numbers = tuple(range(n_populations))
    return Decided(
        np.array(modes), CutRule(), "", ("",) * n_populations, tuple(k + 1 for k in numbers), numbers
    )


def test_points_have_the_populations_of_the_densities_after_any_decision(workspace: Workspace) -> None:
    """The run has few enough events that both are all of them."""
    opened = workspace.open("run.h5")
    view, names = opened["view"], set()
    assert opened["points"] == opened["all_events"] == 2_500
    for number in range(1, opened["most"] + 1):
        cut = {"do": "cut", "populations": number}
        shown = workspace.point_populations("run.h5", view["revision"], cut)  # not stored
        expected = of_events(workspace.preview("run.h5", cut))
        np.testing.assert_array_equal(np.frombuffer(shown, np.uint8), expected)
        names.add(len(set(expected.tolist())))
    assert len(names) > 3
    modes = [one["modes"] for one in view["populations"]]
    view = workspace.act("run.h5", view["revision"], {"do": "merge", "populations": [modes[0], modes[-1]]})
    shown = workspace.point_populations("run.h5", view["revision"])
    np.testing.assert_array_equal(np.frombuffer(shown, np.uint8), of_events(view))
    with pytest.raises(StaleError, match="changed elsewhere"):
        workspace.point_populations("run.h5", opened["view"]["revision"])


def test_several_modes_together_may_have_an_event(workspace: Workspace) -> None:
    """The mode with the largest share is not enough: 0.4 is less than 0.3 and 0.3."""
    shares = np.array([[0.4, 0.3, 0.3]], np.float32)
    own = PlottedEvents(np.arange(3), np.array([0, 1, 0], np.uint16), np.array([2]), shares)
    assert list(points.packed_populations(own, decided([0, 1, 2]))) == [0, 1, 0]
    assert list(points.packed_populations(own, decided([0, 1, 1]))) == [0, 1, 1]
    one = workspace._live("run.h5")
    n_open = len(points.open_points(one).open)
    assert 0 < n_open < 100  # of 2,500: the memory of their shares is small
    np.testing.assert_array_equal(one.shares.max(axis=1) <= points.DECIDED, _is_open(one))


def _is_open(one: live.Live) -> Any:
    found = np.zeros(len(one.rows), bool)
    found[points.open_points(one).open] = True
    return found


def test_more_than_256_populations_need_two_bytes() -> None:
    none = np.zeros((0, 300), np.float32)
    own = PlottedEvents(np.arange(2), np.array([0, 299], np.uint16), np.zeros(0, int), none)
    few, many = decided([min(k, 255) for k in range(300)]), decided([*range(300)])
    assert points.packed_populations(own, few) == bytes([0, 255])
    assert np.frombuffer(points.packed_populations(own, many), "<u2").tolist() == [0, 299]


def test_more_events_than_points(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "EVENTS", 1_000)
    monkeypatch.setattr(points, "BLOCK", 300)  # the last one is not full
    opened = workspace.open("run.h5")
    assert opened["points"] == 1_000
    rows = np.linspace(0, 2_499, 1_000).astype(int)
    every = np.frombuffer(workspace.values("run.h5"), "<f4").reshape(5, 2_500)
    values = np.frombuffer(workspace.point_values("run.h5", [4, 0]), "<f4").reshape(2, 1_000)
    np.testing.assert_array_equal(values, every[[4, 0]][:, rows])
    shown = np.frombuffer(workspace.point_populations("run.h5", opened["view"]["revision"]), np.uint8)
    np.testing.assert_array_equal(shown, of_events(opened["view"])[rows])
    for wrong in ([], [5], [-1], [0, 9]):
        with pytest.raises(ConfigError, match="channels: need numbers from 0 to 4"):
            workspace.point_values("run.h5", wrong)


def test_points_found_by_judging(workspace: Workspace) -> None:
    shown = workspace.candidates("run.h5")
    assert not any(workspace.point_found("run.h5"))
    rows = [event["row"] for event in shown["screen"]["events"]]
    words = {row: "wanted" if k < 5 else "unwanted" for k, row in enumerate(rows)}
    try:
        workspace.judge("run.h5", shown["revision"], words, [])  # type: ignore[arg-type]
        state = workspace.judged("run.h5")
        assert state["found_shown"] > 0
        assert workspace.point_found("run.h5") == base64.b64decode(state["is_found"])
    finally:
        (workspace.folder / "run.judged.csv").unlink(missing_ok=True)


def test_points_are_of_the_run_that_is_open(workspace: Workspace) -> None:
    """A run that is opened again after a change of its file has other points."""
    revision = workspace.open("run.h5")["view"]["revision"]
    workspace.point_populations("run.h5", revision)
    first = workspace._points
    workspace.point_values("run.h5", [0])
    assert workspace._points is first
    mark, one = workspace._lives[workspace.inside("run.h5")]
    workspace._lives[workspace.inside("run.h5")] = mark, replace(one)
    workspace.point_values("run.h5", [0])
    assert workspace._points is not first


def test_the_server_sends_points_as_bytes_and_problems_as_text(workspace: Workspace) -> None:
    server = start(workspace.folder)
    try:
        status, text, headers = server.ask("POST", "do/point_found", {"run": "run.h5"})
        assert (status, headers["Content-Type"], text) == (200, "application/octet-stream", "\0" * 2_500)
        for body, problem in (
            ({"run": "run.h5", "channels": [9]}, "channels: need numbers from 0 to 4"),
            ({"run": "../run.h5", "channels": [0]}, "../run.h5: lies outside"),
            ({"run": "run.h5", "channels": "0"}, "channels: input should be a valid list"),
        ):
            status, text, headers = server.ask("POST", "do/point_values", body)
            assert (status, headers["Content-Type"][:9]) == (400, "text/html")
            assert problem in json.loads(text)["result"]["error"]
        status, text, _ = server.ask("POST", "do/point_populations", {"run": "run.h5", "revision": "old"})
        assert status == 409
        assert server.ask("POST", "do/point_found", {"run": "run.h5"}, "wrong")[0] == 403
        assert server.ask("POST", "do/point_found", {"run": "run.h5"}, Origin="http://evil.example")[0] == 403
    finally:
        server.process.terminate()
        server.process.wait(30)
