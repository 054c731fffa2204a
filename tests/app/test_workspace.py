"""The actions of the page, without a server or browser."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmix.app.workspace import StaleError, Workspace
from dpmix.errors import ConfigError, DpmixError
from dpmix.populations.decisions import decisions_path, read_decisions
from dpmix.populations.result import Gating
from dpmix.report import figures, page
from dpmix.report.gate import gate

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
    view, mean = opened["view"], gated.overall.mean(axis=0)
    shown = view["populations"]
    assert len(shown) == gated.n_populations
    sd = gated.overall.std(axis=0)
    for p, one in enumerate(shown):
        assert abs(one["proportion"] - mean[p]) < 4.0 * sd[p]
        assert one["ends"][0] < one["proportion"] < one["ends"][1]
        assert one["support"] == f"{gated.support[p]:.0%}"
    assert sum(one["phenotype"] == gated.phenotypes[p] for p, one in enumerate(shown)) >= len(shown) - 1
    assert view["why"] == gated.why
    sizes = np.bincount(populations(view), minlength=len(shown))
    np.testing.assert_allclose(sizes, gated.sizes.sum(axis=0), atol=40)
    assert view["command"] == "dpmix gate run.h5 --output gated --decisions run.decisions.json"


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
    path = decisions_path(workspace.folder / "run.h5")
    assert [action.do for action in read_decisions(path).actions] == ["cut", "merge", "name"]
    assert Workspace(workspace.folder).view("run.h5") == view  # another server, and the same file

    given = gate(workspace.folder / "run.h5", tmp_path, decisions=path)
    assert given.names == ("large", "", "", "")
    shown = [one["proportion"] for one in view["populations"]]
    np.testing.assert_allclose(shown, given.overall.mean(axis=0), atol=0.02)
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
        (lambda w: w.stop(9), "there is no command 9"),
    ],
)
def test_mistakes_are_one_line(workspace: Workspace, opened: dict[str, Any], work: Any, problem: str) -> None:
    with pytest.raises(DpmixError) as caught:
        work(workspace)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


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
