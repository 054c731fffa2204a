"""The table of cell types on the page, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from dpmix.app import cell_types
from dpmix.app.workspace import StaleError, Workspace
from dpmix.commands.gate import gate
from dpmix.errors import ConfigError
from dpmix.inputs.opening import may_have_events
from dpmix.inputs.type_table import read_types
from dpmix.populations.tree.decisions import decisions_path
from dpmix.populations.types import table_fit
from dpmix.populations.types.cells import Assessed
from dpmix.report import figures, page

TABLE = """# from a textbook
cell,parent,CD3,CD4,CD8,CD19
T,,+,,,-
CD4 T,T,,+,-,
CD8 T,T,,-,+,
B,,-,,,+
"""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def workspace(study: Path) -> Workspace:
    (study / "mine.csv").write_text(TABLE)
    return Workspace(study)


@pytest.fixture
def loaded(workspace: Workspace) -> Iterator[Row]:
    """The state after loading the table, which has no row for monocytes; CD14 is added."""
    path = cell_types.types_path(workspace.folder / "run.h5")
    path.unlink(missing_ok=True)
    decisions_path(workspace.folder / "run.h5").unlink(missing_ok=True)
    shown = workspace.load_types("run.h5", "", "mine.csv")
    lines = [[*line, cell] for line, cell in zip(shown["lines"], ("CD14", "-", "", "", "-"), strict=True)]
    yield workspace.edit_types("run.h5", shown["revision"], lines)
    path.unlink(missing_ok=True)


def names(shown: Row) -> list[str]:
    return [line[0] for line in shown["lines"][1:]]


def test_without_a_table_the_page_offers_some(workspace: Workspace) -> None:
    shown = workspace.types("run.h5")
    assert (shown["revision"], shown["lines"], shown["option"]) == ("", [], "")
    assert shown["empty"][0][:2] == ["population", "parent"]
    assert {"CD3", "CD4", "CD8", "CD19", "CD14"} <= set(shown["empty"][0])
    assert {"pbmc-t", "mine.csv"} <= set(shown["sources"])
    assert "blood.fcs" not in shown["sources"]


def test_types_follow_the_table(workspace: Workspace, loaded: Row) -> None:
    assert names(loaded) == ["T", "CD4 T", "CD8 T", "B"]
    assert loaded["remarks"] == ["from a textbook"]
    shares = dict(zip([*names(loaded), "unknown"], loaded["rows"], strict=True))
    assert all(float(shares[name]["share"].rstrip("%")) > 4.0 for name in names(loaded))
    assert "CD4 T" in loaded["types"]
    assert len(loaded["shares"]) == len(loaded["types"])
    assert loaded["problem"] == ""
    lines = [line if line[0] != "CD8 T" else ["CD8 T", "T", "", "+", "-", "", ""] for line in loaded["lines"]]
    wrong = workspace.edit_types("run.h5", loaded["revision"], lines)
    assert float(wrong["rows"][2]["share"].rstrip("%")) < float(loaded["rows"][2]["share"].rstrip("%")) + 30.0
    assert wrong["rows"] != loaded["rows"]


def test_cells_that_the_data_contradict_are_marked_as_gate_finds_them(
    workspace: Workspace, loaded: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loaded["contradicted"] == []
    assess = table_fit.assess_cells

    def other(*given: Any) -> Assessed:
        """Contradict a cell whatever its agreement, as the rule may spare one that few events pass."""
        found = assess(*given)
        found.contradicted[1, 1] = True
        return found

    monkeypatch.setattr(table_fit, "assess_cells", other)
    lines = [[*line] for line in loaded["lines"]]
    lines[1][-1] = ""
    assert workspace.edit_types("run.h5", loaded["revision"], lines)["contradicted"] == ["1 CD4"]


def test_gate_reads_the_table_and_names_events_alike(
    workspace: Workspace, loaded: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    path = workspace.folder / "run.types.csv"
    assert loaded["option"] == "--types run.types.csv"
    assert not may_have_events(path)
    found = gate(workspace.folder / "run.h5", tmp_path, types=path)
    events = pandas.read_parquet(tmp_path / "events.parquet").sort_values("event")
    of_event = workspace._opened_types("run.h5").of_event  # type: ignore[union-attr]
    listed = np.array([*names(loaded), "unknown"])
    assert (listed[of_event] == events["type"].astype(str)).mean() > 0.97
    same = np.array(found.population_types) == np.array(loaded["types"])
    assert same.mean() > 0.8


def test_an_unknown_population_becomes_a_row(workspace: Workspace, loaded: Row) -> None:
    unknown = {one["population"]: one["cells"] for one in loaded["unknown"]}
    monocytes = next(p for p, cells in unknown.items() if "CD14+" in cells.split())
    assert {"CD3-", "CD19-"} <= set(unknown[monocytes].split())
    assert loaded["types"][monocytes] == "unknown"
    shown = workspace.add_type("run.h5", loaded["revision"], monocytes)
    assert names(shown)[-1] == f"unknown {monocytes + 1}"
    assert shown["types"][monocytes] == f"unknown {monocytes + 1}"
    assert monocytes not in {one["population"] for one in shown["unknown"]}
    again = workspace.add_type("run.h5", shown["revision"], monocytes)
    assert names(again)[-1] == f"unknown {monocytes + 1} 2"
    assert read_types(workspace.folder / "run.types.csv").types == tuple(names(again))
    assert (workspace.folder / "run.types.csv").read_text().startswith("# from a textbook\n")


def test_a_row_takes_in_a_population(workspace: Workspace, loaded: Row) -> None:
    b = names(loaded).index("B")
    of_b = loaded["types"].index("B")
    monocytes = next(one["population"] for one in loaded["unknown"] if "CD14+" in one["cells"].split())
    shown = workspace.add_type("run.h5", loaded["revision"], monocytes, b)
    row = dict(zip(shown["lines"][0], shown["lines"][b + 1], strict=True))
    assert row["CD3"] == "-"
    assert row["CD14"] == ""  # either level
    assert shown["types"][monocytes] == shown["types"][of_b] == "B"
    before = (workspace.folder / "run.types.csv").read_text()
    with pytest.raises(ConfigError, match="row: need a number from 0 to 3"):
        workspace.add_type("run.h5", shown["revision"], monocytes, 4)
    with pytest.raises(ConfigError, match="population: need a number"):
        workspace.add_type("run.h5", shown["revision"], 99)
    assert (workspace.folder / "run.types.csv").read_text() == before


def test_decisions_change_the_populations_only(workspace: Workspace, loaded: Row) -> None:
    view = workspace.view("run.h5")
    view = workspace.act("run.h5", view["revision"], {"do": "cut", "populations": 2})
    shown = workspace.types("run.h5")
    assert (len(shown["types"]), shown["decided"]) == (2, view["revision"])
    assert shown["rows"] == loaded["rows"]


def test_what_cannot_be_stored_is_said_and_nothing_is_stored(workspace: Workspace, loaded: Row) -> None:
    path = workspace.folder / "run.types.csv"
    before, lines = path.read_text(), loaded["lines"]
    for wrong, message in (
        ([*lines[:-1], ["B", "", "", "x", "", "", ""]], "column CD4: got x; need"),
        ([*lines[:-1], ["#B", "", "+", "", "", "", ""]], "starts with # is a remark"),
        ([*lines[:-1], ["B", "none", "+", "", "", "", ""]], "no row is named none"),
    ):
        with pytest.raises(ConfigError, match=message):
            workspace.edit_types("run.h5", loaded["revision"], wrong)
    with pytest.raises(StaleError, match="changed elsewhere"):
        workspace.edit_types("run.h5", "", lines)
    with pytest.raises(ConfigError, match="cannot be read"):
        workspace.load_types("run.h5", loaded["revision"], "absent.csv")
    with pytest.raises(ConfigError, match="lies outside"):
        workspace.load_types("run.h5", loaded["revision"], "../mine.csv")
    assert path.read_text() == before
    path.write_text("cell,CD99x\nA,+\n")
    shown = workspace.types("run.h5")
    assert "none of its markers is in the panel" in shown["problem"]
    assert "rows" not in shown
    path.write_text("cell,CD3\nA,x\n")
    shown = workspace.types("run.h5")
    assert "got x" in shown["problem"]
    assert workspace.load_types("run.h5", shown["revision"], "no table")["lines"] == []
    assert not path.exists()


def test_a_table_of_phenotypes_gets_a_column_for_each_marker(workspace: Workspace, loaded: Row) -> None:
    (workspace.folder / "narrow.csv").write_text("cell,phenotype\nT,CD3+ CD19-\nB,CD3- CD19+\n")
    shown = workspace.load_types("run.h5", loaded["revision"], "narrow.csv")
    assert shown["lines"] == [
        ["population", "parent", "CD3", "CD19"],
        ["T", "", "+", "-"],
        ["B", "", "-", "+"],
    ]
    (workspace.folder / "narrow.csv").unlink()


def test_export_has_the_table(workspace: Workspace, loaded: Row) -> None:
    getLogger("dpmix").setLevel(WARNING)
    job = workspace.export("run.h5", "typed", ["csv"])
    workspace.jobs.stop_all()
    assert job["command"] == "dpmix gate run.h5 --output typed --types run.types.csv --format csv"
