"""Rare cells by judging, without a server or browser."""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpmix.app import judging
from dpmix.app.jobs import Jobs
from dpmix.app.judging import Judging, Word, has_wanted, judged_path, open_judging
from dpmix.app.live import Live
from dpmix.app.workspace import StaleError, Workspace
from dpmix.commands.explore import explore
from dpmix.commands.gate import gate
from dpmix.engines.choose import make_engine
from dpmix.errors import ConfigError, DpmixError
from dpmix.explore.exploration import HeldDevices, exploration
from dpmix.explore.judgements import read_judgements
from dpmix.kernels import _cpu
from dpmix.populations.draws.task import prepare
from dpmix.populations.tree.decisions import decisions_path
from dpmix.report import figures, page

RUN = "run.h5"


@pytest.fixture(scope="module")
def workspace(study: Path) -> Workspace:
    return Workspace(study)


@pytest.fixture
def opened(workspace: Workspace) -> Iterator[dict[str, Any]]:
    """The run, without judgements and decisions before or after."""
    paths = (judged_path(workspace.folder / RUN), decisions_path(workspace.folder / RUN))
    for path in paths:
        path.unlink(missing_ok=True)
    yield workspace.open(RUN)
    for path in paths:
        path.unlink(missing_ok=True)


def cd19(workspace: Workspace, opened: dict[str, Any]) -> np.ndarray:
    """The values of CD19 of the events shown, which are all events of the run."""
    values = np.frombuffer(workspace.values(RUN), "<f4").reshape(len(opened["channels"]), -1)
    one: np.ndarray = values[opened["channels"].index("CD19")]
    return one


def words(shown: dict[str, Any], marker: int, limit: float) -> dict[int, Word]:
    """The judgements of a person who wants events with much of a marker."""
    return {
        event["row"]: "wanted" if event["values"][marker] > limit else "unwanted"
        for event in shown["screen"]["events"]
    }


def judge_screens(workspace: Workspace, opened: dict[str, Any], screens: int) -> dict[str, Any]:
    marker, values = opened["channels"].index("CD19"), cd19(workspace, opened)
    limit = float(np.quantile(values, 0.95))
    selected = np.flatnonzero(values > np.quantile(values, 0.9)).tolist()
    shown = workspace.candidates(RUN, selected=selected)
    assert {event["row"] for event in shown["screen"]["events"]} <= set(selected)
    for _ in range(screens):
        given = words(shown, marker, limit)
        shown = workspace.judge(RUN, shown["revision"], given, shown["screen"]["checks"])
    return shown


def test_a_screen_has_profiles_of_its_events(workspace: Workspace, opened: dict[str, Any]) -> None:
    shown = workspace.candidates(RUN)
    assert (shown["judged"], shown["commands"], workspace.judged(RUN)["found"]) == (0, [], 0)
    events, ranges = shown["screen"]["events"], shown["screen"]["ranges"]
    assert len(events) == 20
    values = np.frombuffer(workspace.values(RUN), "<f4").reshape(len(opened["channels"]), -1)
    population = np.frombuffer(base64.b64decode(opened["view"]["of_events"]), "<u2")
    for event in events:
        row, p = event["row"], event["population"]
        assert event["values"] == pytest.approx(values[:, row], abs=2e-5)
        assert (event["sample"], event["event"], p) == (opened["samples"][0], row, population[row])
        expected = np.quantile(values[:, population == p], (0.05, 0.5, 0.95), axis=1).T
        assert np.array(ranges[p]) == pytest.approx(expected, abs=2e-5)
    one = workspace.act(RUN, opened["view"]["revision"], {"do": "cut", "populations": 1})
    assert len(one["populations"]) == 1
    again = workspace.profiles(RUN, [event["row"] for event in events])
    assert {event["population"] for event in again["events"]} == set(again["ranges"]) == {0}


def test_the_commands_give_the_same(workspace: Workspace, opened: dict[str, Any], tmp_path: Path) -> None:
    """The next screen is the same as by `dpmix explore`, and the events found are as by `dpmix gate`."""
    shown = judge_screens(workspace, opened, 3)
    path = judged_path(workspace.folder / RUN)
    explore_command, gate_command = shown["commands"]
    assert explore_command == "dpmix explore run.h5 --output explored --judged run.judged.csv"
    assert gate_command == "dpmix gate run.h5 --output gated --judged run.judged.csv"
    step = explore(workspace.folder / RUN, tmp_path, judged=[path])
    with step.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["event"]) for row in rows] == [one["event"] for one in shown["screen"]["events"]]
    checks = [int(row["event"]) for row in rows if row["check"] == "yes"]
    assert checks == shown["screen"]["checks"] != []
    assert shown["judged"] == len(step.judgements.rows) == 60
    assert step.found is not None
    shown |= workspace.judged(RUN)
    assert shown["found"] == step.found.n_found
    assert f"such events: probably {step.found.number:,.0f} of 2,500" in shown["lines"][-1]

    task = prepare(workspace.folder / RUN)
    judgements = read_judgements([path], task.events)
    gated = exploration(task.events, judgements, task.config.seed, task.config.engine, task.backend)
    assert gated is not None
    is_found = np.frombuffer(base64.b64decode(shown["is_found"]), np.uint8)
    assert np.array_equal(is_found, gated.is_found)
    assert shown["found_shown"] == is_found.sum() == shown["found"]
    values = cd19(workspace, opened)
    assert np.median(values[is_found == 1]) > np.quantile(values, 0.95)


def test_judgements_are_in_their_file_only(workspace: Workspace, opened: dict[str, Any]) -> None:
    shown = judge_screens(workspace, opened, 2)
    again = Workspace(workspace.folder).candidates(RUN)
    assert again == shown
    farther = workspace.candidates(RUN, further=1.0)
    assert farther["screen"]["events"] != shown["screen"]["events"]
    assert farther["revision"] == shown["revision"]
    assert workspace.files() == [row for row in workspace.files() if "judged" not in row["name"]]


def test_a_screen_does_not_wait_for_learning_or_counting(
    workspace: Workspace, opened: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 100 judgements; and the commands still give the same."""
    shown = judge_screens(workspace, opened, 7)
    workspace.judged(RUN)  # the page asks while a person judges
    path, marker = judged_path(workspace.folder / RUN), opened["channels"].index("CD19")
    given = words(shown, marker, float(np.quantile(cd19(workspace, opened), 0.95)))
    with monkeypatch.context() as without:
        without.setattr("dpmix.explore.explorer.learn", None)
        without.setattr("dpmix.explore.explorer.find", None)
        shown = workspace.judge(RUN, shown["revision"], given, shown["screen"]["checks"])
    assert shown["judged"] == 160
    step = explore(workspace.folder / RUN, tmp_path, judged=[path])
    with step.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["event"]) for row in rows] == [one["event"] for one in shown["screen"]["events"]]
    assert {row["screen"] for row in rows} == {"9"}
    assert step.found is not None
    assert workspace.judged(RUN)["found"] == step.found.n_found


def test_a_file_that_changes_in_earlier_screens_is_computed_again(
    workspace: Workspace, opened: dict[str, Any]
) -> None:
    judge_screens(workspace, opened, 2)
    path = judged_path(workspace.folder / RUN)
    head, first, *rest = path.read_text().splitlines()
    sample, event, _, check, _ = first.split(",")
    for judgement, screen in (("part", "1"), ("part", "2"), ("wanted", "2")):
        path.write_text("\n".join([head, ",".join([sample, event, judgement, check, screen]), *rest]))
        assert workspace.candidates(RUN) == Workspace(workspace.folder).candidates(RUN)


def test_undo_gives_the_last_screen_back(workspace: Workspace, opened: dict[str, Any]) -> None:
    first = judge_screens(workspace, opened, 2)
    given: dict[int, Word] = {event["row"]: "part" for event in first["screen"]["events"][-6:]}
    second = workspace.judge(RUN, first["revision"], given, first["screen"]["checks"])
    assert (second["judged"], second["screens"]) == (46, 3)
    back = workspace.unjudge(RUN, second["revision"])
    assert back["judgements"] == given
    assert [event["row"] for event in back["screen"]["events"]] == list(given)
    assert back["screen"]["checks"] == first["screen"]["checks"]
    assert back["revision"] == first["revision"]
    for left in (1, 0):
        back = workspace.unjudge(RUN, back["revision"])
        assert back["screens"] == left
    assert not judged_path(workspace.folder / RUN).exists()
    with pytest.raises(ConfigError, match="no screen to undo"):
        workspace.unjudge(RUN, back["revision"])


def test_a_file_of_a_person_is_continued(workspace: Workspace, opened: dict[str, Any]) -> None:
    """Columns and rows that the page has not written stay; undo leaves them."""
    path = judged_path(workspace.folder / RUN)
    before = "event,judgement,why\n5,1,known\n801,0,\n"
    path.write_text(before)
    shown = workspace.candidates(RUN)
    assert (shown["judged"], shown["screens"]) == (2, 0)
    row = shown["screen"]["events"][0]["row"]
    shown = workspace.judge(RUN, shown["revision"], {row: "part"}, [])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [one["why"] for one in rows] == ["known", "", ""]
    assert rows[-1]["screen"] == "1"
    shown = workspace.unjudge(RUN, shown["revision"])
    assert (shown["judged"], shown["judgements"]) == (2, {row: "part"})


def test_mistakes_change_nothing(workspace: Workspace, opened: dict[str, Any]) -> None:
    shown = workspace.candidates(RUN)
    row = shown["screen"]["events"][0]["row"]
    path = judged_path(workspace.folder / RUN)
    for judgements, problem in (({}, "judge at least one"), ({2_500: "part"}, "from 0 to 2499")):
        with pytest.raises(ConfigError, match=problem):
            workspace.judge(RUN, shown["revision"], judgements, [])  # type: ignore[arg-type]
    for selected, problem in (([], "no event is selected"), ([-1], "from 0 to 2499")):
        with pytest.raises(ConfigError, match=problem):
            workspace.judge(RUN, shown["revision"], {row: "part"}, [], selected=selected)
        assert not path.exists()
    with pytest.raises(ConfigError, match="further"):
        workspace.judge(RUN, shown["revision"], {row: "part"}, [], further=2.0)
    assert not path.exists()
    after = workspace.judge(RUN, shown["revision"], {row: "wanted"}, [])
    with pytest.raises(StaleError, match="changed elsewhere"):
        workspace.judge(RUN, shown["revision"], {row: "wanted"}, [])
    with pytest.raises(ConfigError, match="judged already"):
        workspace.judge(RUN, after["revision"], {row: "wanted"}, [])
    path.write_text("event,judgement\n5,perhaps\n")
    with pytest.raises(DpmixError, match="row 2: need wanted, part, unwanted"):
        workspace.judged(RUN)


def test_the_cells_found_are_a_population(
    workspace: Workspace, opened: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number, share and interval that `dpmix gate --judged` writes; the export has them too."""
    assert opened["judged"] is False
    assert workspace.judged(RUN)["population"] is None
    judge_screens(workspace, opened, 3)
    shown = workspace.judged(RUN)
    row, many = shown["population"], len(opened["view"]["populations"])
    assert (row["number"], row["name"], row["events"]) == (many + 1, "explored cells", shown["found"])
    assert row["colour"] not in {own["colour"] for own in opened["view"]["populations"]}
    assert "CD19+" in row["phenotype"]
    assert row["ends"][0] <= row["proportion"] <= row["ends"][1]
    assert workspace.open(RUN)["judged"] is True

    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    gate(workspace.folder / RUN, tmp_path, judged=[judged_path(workspace.folder / RUN)])
    with (tmp_path / "populations.csv").open(newline="") as file:
        *_, last = csv.DictReader(file)
    assert (last["population"], last["name"]) == (f"{row['number']}", row["name"])
    assert (last["phenotype"], last["events"]) == (row["phenotype"], f"{row['events']}")
    of_table = [float(last[name]) for name in ("proportion", "low", "high")]
    assert of_table == pytest.approx([row["proportion"], *row["ends"]], rel=1e-5)

    one = workspace.act(RUN, opened["view"]["revision"], {"do": "cut", "populations": 1})
    assert len(one["populations"]) == 1
    assert workspace.judged(RUN)["population"]["number"] == 2

    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        type(workspace.jobs), "start", lambda self, *given, **_: started.extend(given) or Done()
    )
    workspace.export(RUN, "gated", ["csv"])
    assert " ".join(started[0]) == (
        "gate run.h5 --output gated --decisions run.decisions.json --judged run.judged.csv --format csv"
    )


class Done:
    """A command that is not started."""

    def state(self) -> dict[str, Any]:
        return {}


def test_without_a_wanted_event_gate_gets_no_judgements(workspace: Workspace, opened: dict[str, Any]) -> None:
    path = judged_path(workspace.folder / RUN)
    assert not has_wanted(path)
    path.write_text("event,judgement\n5,unwanted\n6,part\n7,\n")
    assert not has_wanted(path)
    assert [command.split()[1] for command in workspace.judged(RUN)["commands"]] == ["explore"]
    path.write_text("event;judgement\n5;1\n")
    assert has_wanted(path)
    assert [command.split()[1] for command in workspace.judged(RUN)["commands"]] == ["explore", "gate"]


def test_devices_stay_open_while_no_command_waits_or_runs(
    workspace: Workspace, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Device] = []

    class Device:
        """The processor in the place of devices."""

        def __init__(self, events: np.ndarray, _: object) -> None:
            self._events, self.is_open, self.passes = events, True, 0
            made.append(self)

        def update(self, *arguments: Any) -> None:
            assert self.is_open
            self.passes += 1
            _cpu.update_posterior(self._events, *arguments[:5], "", 1, *arguments[5:])

        def close(self) -> None:
            self.is_open = False

    module = SimpleNamespace(CudaGaussianProcess=Device)
    monkeypatch.setitem(sys.modules, "dpmix.engines.cuda.gaussian_process", module)
    on_cpu = partial(make_engine, "cpu")  # of profiles
    monkeypatch.setattr("dpmix.populations.draws.task.make_engine", lambda _, *others: on_cpu(*others))
    path = workspace.folder / RUN
    seen, live = workspace._lives[path]
    on_devices = replace(live, task=replace(live.task, backend="cuda"))
    monkeypatch.setitem(workspace._lives, path, (seen, on_devices))
    judge_screens(workspace, opened, 2)
    workspace.judged(RUN)
    assert [(device.is_open, device.passes >= 2) for device in made] == [(True, True)]
    job = workspace.jobs.start(["--version"])
    assert [device.is_open for device in made] == [False]
    job.stop()
    job.wait(60.0)
    monkeypatch.setattr(Jobs, "active", True)  # a run waits
    judge_screens(workspace, opened, 1)
    assert [device.is_open for device in made] == [False, False]


def test_decisions_do_not_wait_for_judgements(
    workspace: Workspace, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all events are computed, a decision is made."""
    computing, decided = Event(), Event()

    def slow(live: Live, path: Path, known: Judging | None, held: HeldDevices) -> Judging:
        computing.set()
        assert decided.wait(60.0)
        return open_judging(live, path, known, held)

    judged_path(workspace.folder / RUN).write_text("event,judgement\n5,1\n801,0\n")
    monkeypatch.setattr(judging, "open_judging", slow)
    thread = Thread(target=workspace.judged, args=[RUN])
    thread.start()
    assert computing.wait(60.0)
    view = workspace.act(RUN, opened["view"]["revision"], {"do": "cut", "populations": 2})
    assert len(view["populations"]) == 2
    decided.set()
    thread.join(60.0)
