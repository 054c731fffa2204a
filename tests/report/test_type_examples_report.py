"""`dpmix gate --types` and `predict --types` with examples: the labels of one file teach the others."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas
import pytest

import dpmix
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.inputs.simulate import simulation
from dpmix.inputs.type_table import read_types
from dpmix.report import figures, page
from dpmix.runs.mcmc import run_mcmc

N = 2_500
ON_CPU = ("engine.backend=cpu", "engine.threads=1")


def names_of(seed: int) -> np.ndarray:
    """Return the main type of each event of a file."""
    made = simulation.cytometry_like(N, seed=seed)
    return np.array([made.populations[k].split(" ")[0] for k in made.labels])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, `run.h5` of them, a third file, and labels of the first without monocytes."""
    folder = tmp_path_factory.mktemp("examples")
    for name, seed in (("a", 3), ("b", 4), ("c", 5)):
        simulation.cytometry_like(N, seed=seed).write(folder / f"{name}.fcs")
    names = names_of(3)
    rows = [("a.fcs", k, name) for k, name in enumerate(names) if name != "monocytes"]
    pandas.DataFrame(rows, columns=["sample", "event", "type"]).to_csv(folder / "labels.csv", index=False)
    settings = {
        "data": {
            "files": [str(folder / "a.fcs"), str(folder / "b.fcs")],
            "channels": ["CD3", "CD4", "CD8", "CD19", "CD14", "CD56"],
        },
        "model": {"components": 24},
        "mcmc": {"chains": 2, "burn_in": 80, "draws": 10},
        "engine": {"backend": "cpu"},
        "output": {"path": str(folder / "run.h5")},
        "seed": 5,
    }
    assert run_mcmc(Config.model_validate(settings)).completed
    return folder


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)


def check(table: pandas.DataFrame, seed: int) -> None:
    """Check the types of a file: those with labels, and monocytes, which have none."""
    truth, found = names_of(seed), table.sort_values("event")["type"].astype(str).to_numpy()
    frequent = np.isin(truth, ("CD4", "CD8", "B", "NK"))
    assert (found[frequent] == truth[frequent]).mean() > 0.93
    assert (found[truth == "monocytes"] == "unknown").mean() > 0.8


@pytest.mark.slow
def test_labels_of_one_file_teach_the_other(folder: Path) -> None:
    formats = ("parquet", "wsp")
    labels = folder / "labels.csv"
    gated = dpmix.gate(folder / "run.h5", folder / "out", types=labels, formats=formats, engine=ON_CPU)
    table = pandas.read_parquet(folder / "out" / "events.parquet")
    check(table[table["sample"] == "b.fcs"], 4)
    assert gated.types is not None
    assert any("predicted right without them" in note for note in gated.types.table.notes)
    with (folder / "out" / "types.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["sample"] == "b.fcs"]
    share = {row["type"]: float(row["proportion"]) for row in rows}
    assert sum(share.values()) == pytest.approx(1.0, abs=1e-4)
    assert share["CD4"] == pytest.approx((names_of(4) == "CD4").mean(), abs=0.03)
    suggested = read_types(folder / "out" / "types.suggested.csv")  # monocytes, by their phenotype
    assert all(name.startswith("unknown ") for name in suggested.types)
    assert '<h2 id="types">Cell types</h2>' in (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_labels_of_the_run_teach_new_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "write_report", lambda *given: None)
    found = dpmix.predict(
        folder / "run.h5", [folder / "c.fcs"], folder / "new", types=folder / "labels.csv", engine=ON_CPU
    )
    assert found.samples == ("c.fcs",)
    check(pandas.read_parquet(folder / "new" / "events.parquet"), 5)


def test_labels_of_no_file_of_the_run_are_refused_before_any_work(folder: Path) -> None:
    (folder / "other.csv").write_text("sample,event,type\nx.fcs,0,B\nx.fcs,1,T\n")
    with pytest.raises(ConfigError, match=r"no file x\.fcs in the run"):
        dpmix.gate(folder / "run.h5", folder / "refused", types=folder / "other.csv", engine=ON_CPU)
    assert not (folder / "refused").exists()
