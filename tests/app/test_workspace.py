"""The actions of the page, without a server or browser."""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from dpmix.app import counting, live
from dpmix.app.jobs import Jobs, command
from dpmix.app.workspace import StaleError, Workspace
from dpmix.commands.drift import COLUMNS
from dpmix.commands.gate import gate
from dpmix.errors import ConfigError, DpmixError
from dpmix.inputs.simulate import simulation
from dpmix.populations.events.estimates import over_samples
from dpmix.populations.result import Gating
from dpmix.populations.tree.decisions import decisions_path, read_decisions
from dpmix.report import figures, page
from dpmix.system.console import quoted

Array = np.ndarray


@pytest.fixture(scope="module")
def workspace(study: Path) -> Workspace:
    return Workspace(study)


@pytest.fixture
def opened(workspace: Workspace) -> Iterator[dict[str, Any]]:
    """The run, without decisions before or after."""
    path = decisions_path(workspace.folder / "run.h5")
    path.unlink(missing_ok=True)
    yield workspace.open("run.h5")
    path.unlink(missing_ok=True)


@pytest.fixture(autouse=True, scope="module")
def no_pictures() -> Iterator[None]:
    """Skip figures and report, which take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write_figures", lambda *given: None)
        patch.setattr(page, "write_report", lambda *given: None)
        yield


@pytest.fixture(scope="module")
def gated(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Gating:
    return gate(study / "run.h5", tmp_path_factory.mktemp("gated"))


def populations(view: dict[str, Any]) -> Array:
    return np.frombuffer(base64.b64decode(view["of_events"]), "<u2")


def test_the_runs_of_a_folder(workspace: Workspace, tmp_path: Path) -> None:
    (one,) = workspace.runs()
    assert one["name"] == "run.h5"
    assert (one["kind"], one["events"], one["chains"], one["draws"], one["channels"]) == (
        "mcmc",
        2_500,
        2,
        8,
        5,
    )
    (tmp_path / "away.h5").symlink_to(workspace.folder / "run.h5")
    assert Workspace(tmp_path).runs() == []
    with pytest.raises(ConfigError, match="none: is not a folder"):
        Workspace(tmp_path / "none")


def test_the_page_opens_with_the_populations_of_gate(opened: dict[str, Any], gated: Gating) -> None:
    """Proportions are weights in the draws: within Monte Carlo error those that gate counts."""
    view, mean = opened["view"], gated.overall.mean
    shown = view["populations"]
    assert len(shown) == gated.n_populations
    drawn = over_samples(gated.proportions, gated.n_events, gated.sample_weights)
    sd = drawn.std(axis=0)
    for p, one in enumerate(shown):
        assert abs(one["proportion"] - mean[p]) < 4.0 * sd[p]
        assert one["ends"][0] < one["proportion"] < one["ends"][1]
        assert one["support"] == f"{gated.support[p]:.0%}"
    assert sum(one["phenotype"] == gated.phenotypes[p] for p, one in enumerate(shown)) >= len(shown) - 1
    assert view["why"] == gated.why
    sizes = np.bincount(populations(view), minlength=len(shown))
    np.testing.assert_allclose(sizes, gated.sizes.sum(axis=0), atol=40)
    assert view["command"] == "dpmix gate run.h5 --output gated"  # nothing is decided


def test_the_events_are_those_of_the_run(workspace: Workspace, opened: dict[str, Any]) -> None:
    values = np.frombuffer(workspace.values("run.h5"), "<f4").reshape(len(opened["channels"]), -1)
    assert values.shape == (5, opened["events"]) == (5, 2_500)
    low, high = np.array(opened["ranges"]).T
    inside = (values >= low[:, None] - 1e-4) & (values <= high[:, None] + 1e-4)
    assert 0.995 < inside.mean() < 1.0


def test_decisions_are_stored_and_gate_gives_the_same(
    workspace: Workspace, opened: dict[str, Any], tmp_path: Path
) -> None:
    view = opened["view"]
    view = workspace.act("run.h5", view["revision"], {"do": "cut", "populations": 5})
    first, second = (one["modes"] for one in view["populations"][:2])
    view = workspace.act("run.h5", view["revision"], {"do": "merge", "populations": [first, second]})
    merged = view["populations"][0]["modes"]
    view = workspace.act("run.h5", view["revision"], {"do": "name", "population": merged, "name": "large"})
    assert [one["name"] for one in view["populations"]] == ["large", "", "", ""]
    assert view["command"] == "dpmix gate run.h5 --output gated --decisions run.decisions.json"
    path = decisions_path(workspace.folder / "run.h5")
    assert [action.do for action in read_decisions(path).actions] == ["cut", "merge", "name"]
    assert Workspace(workspace.folder).view("run.h5") == view  # another server, and the same file

    given = gate(workspace.folder / "run.h5", tmp_path, decisions=path)
    assert given.names == ("large", "", "", "")
    shown = [one["proportion"] for one in view["populations"]]
    np.testing.assert_allclose(shown, given.overall.mean, atol=0.02)
    rows = list(csv.DictReader((tmp_path / "populations.csv").open(encoding="utf-8")))
    assert rows[0]["name"] == "large"


def test_a_moved_cut_is_one_action_and_undo_restores(workspace: Workspace, opened: dict[str, Any]) -> None:
    begun = opened["view"]
    view = begun
    for number in (2, 3, 4):
        view = workspace.act("run.h5", view["revision"], {"do": "cut", "populations": number})
    assert (len(view["populations"]), view["actions"]) == (4, 1)
    back = workspace.undo("run.h5", view["revision"])
    assert back["undone"] == {"do": "cut", "level": None, "populations": 4}
    assert back["populations"] == begun["populations"]
    with pytest.raises(ConfigError, match="nothing to undo"):
        workspace.undo("run.h5", back["revision"])


def test_a_preview_is_not_stored(workspace: Workspace, opened: dict[str, Any]) -> None:
    assert len(workspace.preview("run.h5", {"do": "cut", "populations": 2})["populations"]) == 2
    assert not decisions_path(workspace.folder / "run.h5").exists()


def test_a_second_tab_cannot_overwrite_what_it_has_not_seen(
    workspace: Workspace, opened: dict[str, Any]
) -> None:
    old = opened["view"]["revision"]
    new = workspace.act("run.h5", old, {"do": "cut", "populations": 3})
    with pytest.raises(StaleError, match="changed elsewhere"):
        workspace.act("run.h5", old, {"do": "cut", "populations": 2})
    with pytest.raises(StaleError, match="changed elsewhere"):
        workspace.undo("run.h5", old)
    assert workspace.view("run.h5") == new


def test_nothing_outside_the_folder_is_read_or_written(
    workspace: Workspace, opened: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("../run.h5", "/etc/passwd", "a/../../b", "a\0b"):
        for work in (
            workspace.open,
            workspace.view,
            workspace.values,
            lambda n: workspace.export("run.h5", n, ["csv"]),
        ):
            with pytest.raises(ConfigError, match="lies outside"):
                work(name)
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "run.h5").write_bytes((workspace.folder / "run.h5").read_bytes())
    with pytest.raises(ConfigError, match=r"blood\.fcs: lies outside"):  # the data of the run do
        Workspace(inner).open("run.h5")


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (lambda w: w.open("none.h5"), "none.h5: cannot be read: No such file"),
        (lambda w: w.open("blood.fcs"), "blood.fcs"),
        (lambda w: w.preview("run.h5", {"do": "sing"}), "sing"),
        (lambda w: w.preview("run.h5", {"do": "cut", "level": "high"}), "level"),
        (lambda w: w.export("run.h5", " ", ["csv"]), "need the name of a folder"),
        (lambda w: w.export("run.h5", "out", ["xls"]), "need some of parquet"),
        (lambda w: w.export("run.h5", "-out", ["csv"]), "begins with"),
        (lambda w: w.fit([], "new"), "files: tick at least one"),
        (lambda w: w.fit(["blood.fcs"], "a/b"), "name: 'a/b': need letters"),
        (lambda w: w.fit(["blood.fcs"], "run"), "run.h5: exists already"),
        (lambda w: w.fit(["../x.fcs"], "new"), "lies outside"),
        (lambda w: w.resume("none.h5"), "none.h5"),
        (lambda w: w.stop(9), "there is no command 9"),
    ],
)
def test_mistakes_are_one_line(workspace: Workspace, opened: dict[str, Any], work: Any, problem: str) -> None:
    with pytest.raises(DpmixError) as caught:
        work(workspace)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_files_of_a_folder(workspace: Workspace, tmp_path: Path) -> None:
    (one,) = workspace.files()  # neither the run nor the truth of the simulation
    assert (one["name"], one["events"], one["channels"], one["remarks"]) == ("blood.fcs", 2_500, 14, [])
    assert len(one["rate"]) == 60
    assert np.mean(one["rate"]) == pytest.approx(1.0, abs=1e-3)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "table.csv").write_text("time,CD4\n1,2\n1,3\n")
    (tmp_path / "samples.csv").write_text("file,age\nblood.fcs,30\n")
    (tmp_path / "broken.fcs").write_text("FCS3.0 nonsense")
    (tmp_path / "away.fcs").symlink_to(workspace.folder / "blood.fcs")
    (tmp_path / "gated").mkdir()
    (tmp_path / "gated" / "tree.json").touch()
    (tmp_path / "gated" / "events.csv").write_text("a,b\n1,2\n")
    broken, table = Workspace(tmp_path).files()
    assert broken["name"] == "broken.fcs"
    assert broken["problem"].startswith("HEADER")
    assert (table["name"], table["events"], table["channels"]) == ("inner/table.csv", 2, 2)
    assert table["remarks"] == ["time is constant: 1"]


def test_counted_proportions_are_those_of_gate(
    workspace: Workspace, opened: dict[str, Any], gated: Gating, tmp_path: Path
) -> None:
    """To the last bit, before and after decisions; nothing is returned about earlier decisions."""
    assert opened["counts"] is True
    found = workspace.count("run.h5", opened["view"]["revision"])
    assert found is not None
    same_numbers(found, gated)
    unions = [one["modes"] for one in opened["view"]["populations"]]
    merge = {"do": "merge", "populations": [unions[0], unions[3]]}
    view = workspace.act("run.h5", opened["view"]["revision"], merge)
    assert workspace.count("run.h5", opened["view"]["revision"]) is None
    found = workspace.count("run.h5", view["revision"])
    assert found is not None
    assert found["revision"] == view["revision"]
    path = decisions_path(workspace.folder / "run.h5")
    same_numbers(found, gate(workspace.folder / "run.h5", tmp_path, decisions=path))


def test_the_verdict_is_that_of_gate(workspace: Workspace, opened: dict[str, Any], gated: Gating) -> None:
    """The same words and numbers; nothing about earlier decisions."""
    found = workspace.verdict("run.h5", opened["view"]["revision"])
    assert found is not None
    assert (found["text"], found["differs"]) == (str(gated.verdict), gated.verdict.level >= WARNING)
    assert workspace.verdict("run.h5", "0") is None


def same_numbers(found: dict[str, Any], gated: Gating) -> None:
    mean, low, high = gated.overall
    assert [one["proportion"] for one in found["populations"]] == mean.tolist()
    assert [one["ends"] for one in found["populations"]] == np.column_stack([low, high]).tolist()


def test_counting_ends_where_decisions_change(
    workspace: Workspace, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = workspace._live("run.h5")
    decisions = live.decisions_of(one)
    assert counting.counted(one, decisions, lambda: False) is None
    monkeypatch.setattr(counting, "AT_ONCE", 10)
    assert not counting.is_quick(one)


def test_the_verdict_on_a_recording(study: Path, tmp_path: Path) -> None:
    """From the command that the page starts, and from `dpmix drift` by hand; not an old one."""
    for name in ("blood.fcs", "inner/blood.fcs"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((study / "blood.fcs").read_bytes())
    own = Workspace(tmp_path)
    assert [row["verdict"] for row in own.files()] == [None, None]
    with pytest.raises(ConfigError, match="has no report of its recording"):
        own.report("blood.fcs")
    job = own.judge_recording("inner/blood.fcs")
    assert job["command"] == "dpmix drift inner/blood.fcs --output drift/inner/blood.fcs --overwrite"
    own.jobs._jobs[0].wait(120.0)
    assert own.commands()[0]["state"] == "done"
    outer, inner = own.files()  # results of drift are no data files
    assert (outer["verdict"], inner["verdict"]["verdict"]) == (None, "steady")
    assert inner["verdict"]["report"]
    assert "<h1>" in own.report("inner/blood.fcs")
    write_verdict(tmp_path / "drift", "blood.fcs", {"CD3": "steady", "CD4": "steps", "CD8": "drift"})
    verdict = {"verdict": "steps", "text": "CD4 (steps)", "report": False}
    assert own.files()[0]["verdict"] == verdict
    later = (tmp_path / "drift" / "drift.csv").stat().st_mtime + 10.0
    os.utime(tmp_path / "blood.fcs", (later, later))
    assert own.files()[0]["verdict"] is None
    for name in ("../a.fcs", "none.fcs", "-o.fcs"):
        with pytest.raises(DpmixError):
            own.judge_recording(name)


def write_verdict(folder: Path, file: str, verdicts: dict[str, str]) -> None:
    """Write a table of `dpmix drift`."""
    with (folder / "drift.csv").open("w", newline="") as table:
        lines = csv.DictWriter(table, COLUMNS)
        lines.writeheader()
        lines.writerows({"file": file, "channel": name, "verdict": own} for name, own in verdicts.items())


def test_a_file_that_cannot_be_judged(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("CD3,CD4\n1,2\n2,3\n")
    (tmp_path / "drift").mkdir()
    with (tmp_path / "drift" / "drift.csv").open("w", newline="") as table:
        lines = csv.DictWriter(table, COLUMNS)
        lines.writeheader()
        lines.writerow({"file": "a.csv", "verdict": "not judged", "problem": "has no channel of time"})
    (row,) = Workspace(tmp_path).files()
    assert row["verdict"] == {"verdict": "not judged", "text": "has no channel of time", "report": False}


def test_what_waits_does_not_start_when_the_server_ends(tmp_path: Path) -> None:
    """The first command runs until it is stopped; the one that waits for it never starts."""
    own = Workspace(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    first = own.jobs.start(["app", ".", "--no-browser"], queued=True)
    second = own.jobs.start(["init", "a.csv", "--output", "a.yaml"], queued=True)
    wait_until(lambda: first.state()["lines"], "a line of the first command")
    own.jobs.stop_all()
    assert [job["state"] for job in own.commands()] == ["stopped", "stopped"]
    assert second.state()["lines"] == []
    assert not (tmp_path / "a.yaml").exists()
    with pytest.raises(ConfigError, match="the server ends"):
        own.jobs.start(["init", "a.csv"])


def test_the_progress_of_a_run(workspace: Workspace) -> None:
    shown = workspace.progress("run.h5")
    assert (shown["complete"], shown["draws"]) == (True, 8)
    assert any(line.startswith("progress: complete; 8 of ") for line in shown["lines"])


@pytest.mark.slow
def test_from_a_file_to_a_run_in_a_queue(tmp_path: Path) -> None:
    simulation.cytometry_like(600, seed=1).write(tmp_path / "blood.fcs")
    own = Workspace(tmp_path)
    first = own.fit(["blood.fcs"], "quick", quick=True)
    commands = "dpmix init blood.fcs --output quick.yaml", "dpmix bem quick.yaml --output quick.h5"
    assert first["command"] == " && ".join(commands)
    second = own.fit(["blood.fcs"], "long")
    assert second["state"] == "waiting"
    third = own.fit(["blood.fcs"], "never")
    own.stop(third["number"])
    jobs = [own.jobs.find(job["number"]) for job in (first, second, third)]
    assert jobs[0] is not None
    assert jobs[1] is not None
    assert jobs[2] is not None
    jobs[0].wait(120.0)
    assert jobs[0].state()["state"] == "done", jobs[0].state()["lines"]

    def drawn_or_ended() -> bool:
        ended = jobs[1].state()["state"] not in ("waiting", "running")
        return ended or any(run["name"] == "long.h5" and run["draws"] for run in own.runs())

    wait_until(drawn_or_ended, "draws of long.h5")
    assert jobs[1].state()["state"] == "running", jobs[1].state()["lines"]
    own.stop(second["number"])
    for job in jobs:
        job.wait(60.0)
    assert [job["state"] for job in own.commands()] == ["done", "stopped", "stopped"]
    assert any("--resume" in line for line in own.commands()[1]["lines"])
    assert own.progress("long.h5")["complete"] is False
    assert own.resume("long.h5")["command"] == "dpmix mcmc long.h5 --resume"
    own.jobs.stop_all()
    assert {run["name"]: run["kind"] for run in own.runs()} == {"quick.h5": "bem", "long.h5": "mcmc"}


@pytest.mark.slow
def test_export_runs_the_command_of_the_page(workspace: Workspace, opened: dict[str, Any]) -> None:
    workspace.act("run.h5", opened["view"]["revision"], {"do": "cut", "populations": 3})
    job = workspace.export("run.h5", "out", ["csv"])
    assert job["command"] == "dpmix gate run.h5 --output out --decisions run.decisions.json --format csv"
    one = workspace.jobs.find(job["number"])
    assert one is not None
    one.wait(120.0)
    (state,) = workspace.commands()
    assert state["state"] == "done", state["lines"]
    rows = list(csv.DictReader((workspace.folder / "out" / "populations.csv").open(encoding="utf-8")))
    assert len(rows) == 3
    again = workspace.export("run.h5", "out", ["csv"])  # nothing is replaced
    found = workspace.jobs.find(again["number"])
    assert found is not None
    found.wait(120.0)
    assert found.state()["state"] == "failed"
    assert any("exist already" in line for line in found.state()["lines"])


def test_a_command_that_cannot_start_ends_with_its_reason(tmp_path: Path) -> None:
    """And the next one that waits for it has its turn."""
    (tmp_path / "here").mkdir()
    jobs = Jobs(tmp_path / "here")
    (tmp_path / "here").rmdir()
    failed, other = (jobs.start(["--version"], queued=True) for _ in range(2))
    for job in (failed, other):
        job.wait(20.0)
        state = job.state()
        assert state["state"] == "failed"
        assert [line.startswith("dpmix: cannot start: ") for line in state["lines"]] == [True]
    assert failed.state()["command"] == "dpmix --version"


def test_shown_commands_can_be_copied() -> None:
    assert command(["gate", "my runs/a b.h5", "-o", "out"]) == f"dpmix gate {quoted('my runs/a b.h5')} -o out"
