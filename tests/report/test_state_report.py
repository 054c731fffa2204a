"""A gating measures state channels in its populations, for the run's files and for new ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from dpmix.cli import main
from dpmix.populations.sample_draws import SampleDraws

HEAD = "CD3,CD4,pS6"


def dpmix(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of eight samples with two populations; in treated ones, pS6 of the second rises by 2."""
    home, random = tmp_path_factory.mktemp("state"), np.random.default_rng(1)
    rows = ["file,sample,group"]
    for k in range(8):
        second = random.random(300) < 0.4
        values = random.standard_normal((300, 3)) + 6.0 * second[:, None] * (1.0, 1.0, 0.0)
        values[:, 2] += 2.0 * second * (k % 2) + 0.1 * random.standard_normal()
        np.savetxt(home / f"s{k}.csv", values, delimiter=",", header=HEAD, comments="")
        rows.append(f"s{k}.csv,sample{k},{'treated' if k % 2 else 'control'}")
    (home / "samples.csv").write_text("\n".join(rows) + "\n")
    (home / "run.yaml").write_text(
        "data: {samples: samples.csv, state_channels: [pS6]}\nmodel: {components: 8}\n"
        "mcmc: {chains: 1, burn_in: 30, draws: 8, until: null}\noutput: {path: run.h5}\n"
    )
    dpmix("mcmc", home / "run.yaml", "--output", home / "run.h5", "--quiet")
    return home


@pytest.mark.usefixtures("made_figures")
def test_a_run_and_new_files(folder: Path) -> None:
    dpmix("gate", folder / "run.h5", "--output", folder / "gated", "--state-values", "--quiet")
    files = [folder / f"s{k}.csv" for k in range(8)]
    dpmix("predict", folder / "run.h5", *files, "--output", folder / "new", "--quiet")
    for made in ("gated", "new"):
        read = SampleDraws.read(folder / made)
        assert (read.channels, read.n_state) == (("CD3", "CD4", "pS6"), 1)
        with (folder / made / "populations.csv").open() as file:
            rows = {row["population"]: row for row in csv.DictReader(file)}
        assert len(rows) == 2
        assert 0.4 < float(rows["2"]["pS6 median"]) < 1.6
        options = ["--formula", "~ group", "--contrast", "treated - control", "--expression", "--quiet"]
        dpmix("associate", folder / made, "--design", folder / "samples.csv", *options)
        with (folder / made / "associate" / "associations.csv").open() as file:
            found = [row for row in csv.DictReader(file) if row["measure"] == "expression"]
        assert {row["channel"] for row in found} == {"pS6"}
        (own,) = (row for row in found if row["found"] == "yes")
        assert own["population"] == "2"
        assert abs(float(own["effect"]) - 2.0) < 0.4
    events = pyarrow.parquet.read_table(folder / "gated" / "events.parquet")
    raw = np.concatenate([np.loadtxt(path, delimiter=",", skiprows=1)[:, 2] for path in files])
    np.testing.assert_allclose(events["pS6"].to_numpy(), raw, rtol=1e-5)


def test_anndata_has_state_channels_after_those_of_the_model(folder: Path) -> None:
    anndata = pytest.importorskip("anndata")
    dpmix("gate", folder / "run.h5", "--output", folder / "h5ad", "--format", "h5ad", "--quiet")
    table = anndata.read_h5ad(folder / "h5ad" / "events.h5ad")
    assert list(table.var_names) == ["CD3", "CD4", "pS6"]
    assert list(table.var["class"]) == ["type", "type", "state"]
    raw = np.concatenate([np.loadtxt(folder / f"s{k}.csv", delimiter=",", skiprows=1) for k in range(8)])
    np.testing.assert_allclose(table[:, "pS6"].X[:, 0], raw[:, 2], rtol=1e-5)
    assert table.shape == (2400, 3)


def test_values_of_state_channels_need_some(folder: Path) -> None:
    text = (folder / "run.yaml").read_text().replace(", state_channels: [pS6]", "")
    (folder / "plain.yaml").write_text(text)
    dpmix("mcmc", folder / "plain.yaml", "--output", folder / "plain.h5", "--quiet")
    words = ["gate", folder / "plain.h5", "--output", folder / "plain", "--state-values"]
    refused = CliRunner().invoke(main, [str(word) for word in words])
    assert refused.exit_code == 2
    assert "--state-values" in refused.output
