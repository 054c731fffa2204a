"""`dpmix gate --types` from a run to its files, on simulated blood and on real cells."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import anndata
import flowio
import numpy as np
import pandas
import pytest
from click.testing import CliRunner
from sklearn.metrics import f1_score

import dpmix
from dpmix.cli import main
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.inputs.simulate import simulation
from dpmix.inputs.type_table import parse_types, read_types
from dpmix.populations.result import Gating
from dpmix.populations.sample_draws import SampleDraws
from dpmix.populations.types.types import main_types
from dpmix.report import figures, page, type_tables
from dpmix.report.labels import label
from dpmix.runs.mcmc import run_mcmc

N = 4_000
ROWS = """cell,parent,CD3,CD4,CD8,CD19,CD14
T,,+,,,-,-
CD4 T,T,,+,-,,
CD8 T,T,,-,+,,
B,,-,-,-,+,-
NK and debris,,-,-,,-,-
"""
OF = {"CD4": "CD4 T", "CD8": "CD8 T", "B": "B", "NK": "NK and debris", "debris": "NK and debris"}
ON_CPU = ("engine.backend=cpu", "engine.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an FCS file, `run.h5`, and the table `types.csv`, which has no row for monocytes."""
    folder = tmp_path_factory.mktemp("typed")
    simulation.cytometry_like(N, seed=3).write(folder / "a.fcs")
    (folder / "types.csv").write_text(ROWS)
    settings = {
        "data": {"files": [str(folder / "a.fcs")], "channels": ["CD3", "CD4", "CD8", "CD19", "CD14"]},
        "model": {"components": 24},
        "mcmc": {"chains": 2, "burn_in": 80, "draws": 10},
        "engine": {"backend": "cpu"},
        "output": {"path": str(folder / "run.h5")},
        "seed": 5,
    }
    assert run_mcmc(Config.model_validate(settings)).completed
    return folder


@pytest.fixture(scope="module")
def gated(folder: Path) -> Gating:
    """Gate into the folder `all`, in all formats."""
    formats = ("parquet", "csv", "h5ad", "fcs")
    return dpmix.gate(
        folder / "run.h5",
        folder / "all",
        formats=formats,
        types=folder / "types.csv",
        strategy=True,
        engine=ON_CPU,
    )


def truth() -> list[str]:
    """Return the type of each event; "" for monocytes, which have no row."""
    made = simulation.cytometry_like(N, seed=3)
    names = [made.populations[k] for k in made.labels]
    return [next((row for start, row in OF.items() if name.startswith(start)), "") for name in names]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_events_get_their_types_in_all_formats(folder: Path, gated: Gating) -> None:
    table = pandas.read_parquet(folder / "all" / "events.parquet").sort_values("event")
    expected = np.array(truth())
    known = ~np.isin(expected, ("",)) & ~np.char.startswith(expected, "NKT")
    names = table["type"].astype(str).to_numpy()
    assert (names[known] == expected[known]).mean() > 0.9
    monocytes = np.array([p == "monocytes" for p in _populations()])
    assert (names[monocytes] == "unknown").mean() > 0.75  # a row that is missing
    assert table["type_probability"].between(0.0, 1.0).all()

    text = pandas.read_csv(folder / "all" / "events.csv").sort_values("event")
    assert text["type"].tolist() == names.tolist()
    data = anndata.read_h5ad(folder / "all" / "events.h5ad")
    assert data.obs.sort_values("event")["cell_type"].astype(str).tolist() == names.tolist()
    assert "type" not in data.obs
    fcs = flowio.FlowData(str(folder / "all" / "a.gated.fcs"))
    at = fcs.pnn_labels.index("dpmix_type")
    codes = np.reshape(fcs.events, (-1, fcs.channel_count))[:, at].astype(int)
    listed = ("unknown", *gated.types.table.types)
    assert [listed[code] for code in codes] == names.tolist()
    assert fcs.text["dpmix_type_2"] == "CD4 T"


def _populations() -> list[str]:
    made = simulation.cytometry_like(N, seed=3)
    return [made.populations[k] for k in made.labels]


def test_the_type_of_a_population_is_the_deepest_of_most_events() -> None:
    head = ["cell", "parent", "CD3", "CD4"]
    table = parse_types("t", [head, ["T", "", "+", ""], ["CD4", "T", "", "+"], ["B", "", "-", ""]])
    of_rows = [30, 10, 0, 5], [30, 80, 0, 5], [0, 0, 50, 5], [40, 10, 50, 90]  # T, CD4, B, unknown
    together = np.array(of_rows)
    assert main_types(table, together) == ("T", "CD4", "", "unknown")
    most_frequent = together.argmax(axis=0)  # a wrong version: without children
    assert [("T", "CD4", "B", "unknown")[r] for r in most_frequent] == ["unknown", "CD4", "B", "unknown"]


def test_a_title_has_the_type_first() -> None:
    named = SimpleNamespace(
        names=("", "mine", "B"),
        phenotypes=("CD3+ CD4+ CD8-", "CD3-", "CD19+"),
        population_types=("CD4 T", "NK", "B"),
        number=lambda population: population + 1,
    )
    assert [label(named, p, 40) for p in range(3)] == ["1 CD4 T: CD3+ CD4+ CD8-", "2 NK: mine", "3 B"]
    assert label(named, 0, 18) == "1 CD4 T: CD3+ CD4+ …"
    assert label(named, 0, 12) == "1 CD4 T"
    plain = SimpleNamespace(**{**vars(named), "names": (), "phenotypes": ("CD3+",), "population_types": ()})
    assert label(plain, 0, 12) == "1 CD3+"


def test_what_concerns_all_types_is_one_line_each(gated: Gating) -> None:
    assert type_tables.warnings(gated) == []
    types = replace(gated.types, exchanged=((0, 1),), markers=gated.types.markers[:1])  # a panel of CD3 alone
    lines = type_tables.warnings(SimpleNamespace(types=types))
    assert lines[0].startswith("CD3 and CD4 look exchanged: ")
    groups = "T, CD4 T and CD8 T; B and NK and debris"
    assert lines[1:] == [f"this panel cannot tell apart {groups}: they share their events"]


def test_populations_have_their_types_in_all_files(folder: Path, gated: Gating) -> None:
    types = gated.population_types
    assert {"CD4 T", "B", "unknown"} <= set(types)
    for name in ("populations.csv", "proportions.csv", "types.populations.csv"):
        # Rows descend by printed proportion, in which two of nearly equal size may change places.
        found = sorted(rows_of(folder / "all" / name), key=lambda row: int(row["population"]))
        assert [row["type"] for row in found] == list(types)
    assert json.loads((folder / "all" / "tree.json").read_text())["types"] == list(types)
    assert SampleDraws.read(folder / "all").population_types == types
    assert gated.titles[0] == f"{types[0]}: {gated.phenotypes[0]}"
    fcs = flowio.FlowData(str(folder / "all" / "a.gated.fcs"), only_text=True)
    assert fcs.text["dpmix_population_1"] == f"1 {gated.titles[0]}"
    assert anndata.read_h5ad(folder / "all" / "events.h5ad").uns["dpmix"]["types"].tolist() == list(types)
    for name in ("gates.xml", "hierarchy.xml"):
        notes = ElementTree.parse(folder / "all" / name).iter("dpmix")
        known = {n.get("population"): n.get("type") for n in notes if n.get("population")}
        assert known
        assert all(types[int(p) - 1] == own for p, own in known.items())
    report = (folder / "all" / "report.html").read_text(encoding="utf-8")
    assert f">{types[0]}</b>: {gated.phenotypes[0]}</td>" in report.replace("<b>", ">")
    assert f"</span> {gated.titles[0]}</button>" in report
    rows = {row["population"]: row for row in rows_of(folder / "all" / "types.populations.csv")}
    assert all(float(row["share"]) > 0.5 for row in rows.values() if row["type"])


def test_proportions_of_parents_are_sums(folder: Path, gated: Gating) -> None:
    rows = {row["type"]: row for row in rows_of(folder / "all" / "types.csv")}
    assert list(rows) == ["T", "CD4 T", "CD8 T", "B", "NK and debris", "unknown"]
    share = {name: float(row["proportion"]) for name, row in rows.items()}
    assert share["T"] + share["B"] + share["NK and debris"] + share["unknown"] == pytest.approx(1.0, abs=1e-4)
    assert share["T"] > share["CD4 T"] + share["CD8 T"]
    assert rows["CD4 T"]["parent"] == "T"
    for row in rows.values():
        assert float(row["low"]) <= float(row["proportion"]) <= float(row["high"])
    assert int(rows["T"]["events"]) >= int(rows["CD4 T"]["events"]) + int(rows["CD8 T"]["events"])
    assert sum(int(rows[name]["events"]) for name in ("T", "B", "NK and debris", "unknown")) == N


def test_unknown_populations_are_suggested_as_rows(folder: Path, gated: Gating) -> None:
    table = read_types(folder / "all" / "types.suggested.csv")
    assert table.markers == ("CD3", "CD4", "CD8", "CD19", "CD14")
    assert len(table.types) >= 1
    cells = table.levels[:, 4]
    assert cells[0].tolist() == [False, True, True, True]  # CD14+
    assert table.levels[0, 3].tolist() == [True, False, False, False]  # CD19-, which children of T do not say
    most = {row["population"]: row["type"] for row in rows_of(folder / "all" / "types.populations.csv")}
    assert all(most[name.removeprefix("unknown ")] == "unknown" for name in table.types)


def test_a_wrong_sign_is_answered(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    (tmp_path / "wrong.csv").write_text(ROWS.replace("B,,-,-,-,+,-", "B,,-,+,-,+,-"))
    found = dpmix.gate(folder / "run.h5", tmp_path / "out", types=tmp_path / "wrong.csv", engine=ON_CPU)
    rows = [row for row in rows_of(tmp_path / "out" / "types.answer.csv") if row["finding"] == "contradicted"]
    assert [(row["type"], row["marker"], row["table"]) for row in rows] == [("B", "CD4", "+")]
    assert any("B" in one.text and "CD4" in one.text for one in type_tables.findings(found))


def test_the_report_has_a_section(folder: Path, gated: Gating) -> None:
    text = (folder / "all" / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="types">Cell types</h2>' in text
    assert "NK and debris" in text


def test_without_a_table_nothing_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    found = dpmix.gate(folder / "run.h5", tmp_path / "out", engine=ON_CPU)
    assert found.types is None
    assert not list((tmp_path / "out").glob("types*"))
    table = pandas.read_parquet(tmp_path / "out" / "events.parquet")
    assert "type" not in table


def test_a_table_without_markers_of_the_panel_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("cell,CD99x\nA,+\n")
    with pytest.raises(ConfigError, match="marker"):
        dpmix.gate(folder / "run.h5", tmp_path / "out", types=tmp_path / "other.csv", engine=ON_CPU)
    (tmp_path / "taken.csv").write_text("cell,CD3\nunknown,+\n")
    with pytest.raises(ConfigError, match="a row is named unknown"):
        dpmix.gate(folder / "run.h5", tmp_path / "out", types=tmp_path / "taken.csv", engine=ON_CPU)
    done = CliRunner().invoke(
        main, ["gate", str(folder / "run.h5"), "--output", str(tmp_path / "out"), "--type-certainty", "0"]
    )
    assert done.exit_code == 2


@pytest.mark.slow
def test_real_t_cells_get_their_names(shared_data: Path, tmp_path: Path) -> None:
    with np.load(shared_data / "labelled" / "hipc_stanford_1228.npz") as own:
        events, labels, channels = own["events"][::3], own["labels"][::3], [str(c) for c in own["channels"]]
    pandas.DataFrame(events, columns=channels).to_parquet(tmp_path / "hipc.parquet")
    config = {
        "data": {"files": [str(tmp_path / "hipc.parquet")]},
        "mcmc": {"chains": 1, "burn_in": 200, "draws": 20},
        "engine": {"backend": "cpu"},
        "output": {"path": str(tmp_path / "run.h5")},
    }
    assert run_mcmc(Config.model_validate(config)).completed
    table = read_types(shared_data / "tables" / "hipc.csv")
    found = dpmix.gate(tmp_path / "run.h5", tmp_path / "out", types=table, engine=ON_CPU)
    kinds = ("Naive", "Central Memory", "Effector Memory", "Effector", "Activated")
    numbers = [table.types.index(f"{t} {kind}") for t in ("CD4", "CD8") for kind in kinds]
    expected = np.array(numbers)[labels.astype(int) - 1]
    score = f1_score(expected, found.types.of_event, labels=range(10), average="macro", zero_division=0)
    assert score > 0.66  # .55 with the best label for each population


def test_new_files_get_types(folder: Path, tmp_path: Path) -> None:
    made = simulation.cytometry_like(2_000, seed=8)
    made.write(tmp_path / "new.fcs")
    words = ["predict", folder / "run.h5", tmp_path / "new.fcs", "--output", tmp_path / "out"]
    words += ["--types", folder / "types.csv", "--backend", "cpu", "--threads", 1, "--quiet"]
    done = CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    names = pandas.read_parquet(tmp_path / "out" / "events.parquet").sort_values("event")["type"].astype(str)
    labels = [made.populations[k] for k in made.labels]
    expected = np.array(
        [next((row for start, row in OF.items() if name.startswith(start)), "") for name in labels]
    )
    known = (expected != "") & ~np.char.startswith(np.array(labels), "NKT")
    assert (names.to_numpy()[known] == expected[known]).mean() > 0.9
    (share,) = [row for row in rows_of(tmp_path / "out" / "types.csv") if row["type"] == "B"]
    assert float(share["proportion"]) == pytest.approx((expected == "B").mean(), abs=0.02)
