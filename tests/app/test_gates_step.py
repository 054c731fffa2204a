"""Populations next to the gates of a FlowJo workspace, without a server or browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workspaces import write_workspace

from dpmix.app import gates
from dpmix.app.workspace import Workspace
from dpmix.commands.gate import gate
from dpmix.errors import DpmixError
from dpmix.populations.tree.decisions import decisions_path
from dpmix.report import figures, page

GATES = {
    "T": {"APC-Cy7-A": (0.62, None)},
    "T/CD4": {"BV605-A": (0.6, None)},
    "T/not CD4": {"BV605-A": (None, 0.6)},
    "B": {"APC-Cy7-A": (None, 0.62)},
    "empty": {"APC-Cy7-A": (None, -9.0)},
}


@pytest.fixture(scope="module")
def workspace(study: Path) -> Workspace:
    from dpmix.inputs.opening import open_source

    names = {one.marker: one.detector for one in open_source(study / "blood.fcs").details}
    markers = {"APC-Cy7-A": names["CD3"], "BV605-A": names["CD4"]}
    own = {gate: {markers[name]: ends for name, ends in limits.items()} for gate, limits in GATES.items()}
    write_workspace(study / "manual.wsp", [study / "blood.fcs"], own)
    return Workspace(study)


@pytest.fixture
def opened(workspace: Workspace) -> Iterator[dict[str, Any]]:
    path = decisions_path(workspace.folder / "run.h5")
    path.unlink(missing_ok=True)
    yield workspace.open("run.h5")
    path.unlink(missing_ok=True)


def test_workspaces_of_the_folder(workspace: Workspace, tmp_path: Path) -> None:
    assert workspace.workspaces() == ["manual.wsp"]
    (tmp_path / "away.wsp").symlink_to(workspace.folder / "manual.wsp")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "LARGE.WSP").write_text("<Workspace/>")
    (tmp_path / "gated").mkdir()
    (tmp_path / "gated" / "tree.json").touch()
    (tmp_path / "gated" / "result.wsp").touch()
    assert Workspace(tmp_path).workspaces() == ["inner/LARGE.WSP"]


def test_the_comparison_is_that_of_gate(
    workspace: Workspace, opened: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page takes the mean density, gate the draws: a few events may be of another population."""
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    shown = workspace.compare("run.h5", "manual.wsp")
    gate(workspace.folder / "run.h5", tmp_path, compare=workspace.folder / "manual.wsp")
    rows = list(csv.DictReader((tmp_path / "compare.csv").open(encoding="utf-8")))
    assert [row["gate"] for row in shown["gates"]] == [row["gate"] for row in rows] == list(GATES)
    assert shown["events"] == 2_500
    for own, row in zip(shown["gates"], rows, strict=True):
        assert own["events"] == int(row["events"])
        assert own["population"] == int(row["population"] or 0) - 1
        assert own["f1"] == pytest.approx(float(row["f1"] or 0.0), abs=0.02)
        assert own["union_f1"] == pytest.approx(float(row["union f1"]), abs=0.02)
        if own["population"] >= 0:
            harmonic = 2 / (1 / own["precision"] + 1 / own["recall"])
            assert own["f1"] == pytest.approx(harmonic)
    of_leaves = [row["f1"] for row in shown["gates"] if row["gate"] in ("T/CD4", "T/not CD4", "B")]
    assert shown["mean"] == pytest.approx(sum(of_leaves) / 3)
    assert shown["gates"][-1]["population"] == -1


def test_the_comparison_follows_decisions_and_gates_are_applied_once(
    workspace: Workspace, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workspace.compare("run.h5", "manual.wsp")
    monkeypatch.setattr(gates, "gated_samples", None)
    workspace.act("run.h5", opened["view"]["revision"], {"do": "cut", "populations": 1})
    after = workspace.compare("run.h5", "manual.wsp")
    one = after["gates"][0]
    assert (one["population"], one["recall"]) == (0, 1.0)
    assert one["precision"] == pytest.approx(one["events"] / 2_500)
    assert after["mean"] < before["mean"]


def test_mistakes_are_one_line(workspace: Workspace, opened: dict[str, Any], tmp_path: Path) -> None:
    (workspace.folder / "other.wsp").write_text("no workspace")
    for name, problem in (
        ("none.wsp", "none.wsp: cannot be read: No such file"),
        ("../manual.wsp", "lies outside"),
        ("other.wsp", "need a FlowJo workspace"),
    ):
        with pytest.raises(DpmixError) as caught:
            workspace.compare("run.h5", name)
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
    (workspace.folder / "other.wsp").unlink()


def test_gates_that_cannot_be_read_are_named(workspace: Workspace, opened: dict[str, Any]) -> None:
    text = (workspace.folder / "manual.wsp").read_text()
    gate = re.search(r"<(\w+:)?RectangleGate", text)
    assert gate is not None
    odd = text.replace(gate[0], gate[0].replace("RectangleGate", "OddGate"), 1)
    odd = odd.replace(f"</{gate[1] or ''}RectangleGate>", f"</{gate[1] or ''}OddGate>", 1)
    (workspace.folder / "odd.wsp").write_text(odd)
    shown = workspace.compare("run.h5", "odd.wsp")
    (workspace.folder / "odd.wsp").unlink()
    assert [row["gate"] for row in shown["gates"]] == ["B", "empty"]
    (warning,) = shown["unread"]
    assert "gates of" in warning
    assert "that cannot be read are left out: T" in warning
    assert workspace.compare("run.h5", "manual.wsp")["unread"] == []
