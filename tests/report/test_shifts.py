"""Gating with a hierarchical run: proportions, shifts, their table and figure."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmix.commands.gate import gate
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.populations.result import Gating
from dpmix.report.shifts import shift_warning, to_subtract, write_shifts
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run

SHIFTS = np.array([[-0.6, 0.3], [0.0, 0.0], [0.6, -0.3]])
SHARES = np.array([[0.5, 0.3, 0.2], [0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
CENTRES = np.array([[-4.0, 0.0], [0.0, 5.0], [5.0, -3.0]])


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("shifts"), np.random.default_rng(4)
    for s, (share, shift) in enumerate(zip(SHARES, SHIFTS, strict=True)):
        labels = rng.choice(3, 1200, p=share)
        values = CENTRES[labels] + shift + 0.6 * rng.standard_normal((1200, 2))
        np.savetxt(folder / f"s{s}.csv", values, delimiter=",", header="A,B", comments="")
    settings = {
        "data": {"files": [str(folder / "s*.csv")]},
        "model": {"components": 8, "samples": "hierarchical", "shifts": "sample"},
        "mcmc": {"chains": 1, "burn_in": 60, "draws": 20, "split_merge": 0, "until": None},
        "engine": {"backend": "cpu"},
        "output": {"path": str(folder / "run.h5")},
    }
    return run_mcmc(Config.model_validate(settings)).path


@pytest.fixture(scope="module")
def gating(run_file: Path, draw_figures: Callable[..., None]) -> Gating:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpmix.report.figures.write_figures", draw_figures)
        return gate(run_file, run_file.parent / "gated", n_populations=3)


def test_proportions_are_those_of_each_sample(gating: Gating) -> None:
    order = np.argsort(-SHARES.sum(axis=0))
    np.testing.assert_allclose(gating.proportions.mean(axis=0), SHARES[:, order], atol=0.04)


def test_shifts_are_written_and_drawn(gating: Gating, run_file: Path) -> None:
    with (run_file.parent / "gated" / "shifts.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    found = np.array([float(row["shift"]) for row in rows]).reshape(3, 2)
    np.testing.assert_allclose(found, SHIFTS, atol=0.1)
    assert all(float(row["low"]) <= float(row["shift"]) <= float(row["high"]) for row in rows)
    assert [row["sample"] for row in rows[::2]] == list(gating.samples)
    assert (run_file.parent / "gated" / "figures" / "shifts.png").exists()


def test_a_single_draw_has_no_interval(tmp_path: Path) -> None:
    write_shifts(tmp_path / "shifts.csv", SHIFTS[None], ["a", "b", "c"], ["A", "B"])
    with (tmp_path / "shifts.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert [float(row["shift"]) for row in rows] == SHIFTS.ravel().tolist()
    assert {(row["low"], row["high"]) for row in rows} == {("", "")}


def test_a_shift_as_large_as_a_distance_is_reported(gating: Gating, run_file: Path) -> None:
    run = open_run(run_file, transformed=True)
    assert shift_warning(gating, run) == ""
    close = replace(gating, means=gating.means * np.array([0.05, 0.0]))
    assert "is as large as the distance between populations" in shift_warning(close, run)


def test_calibrated_events_have_no_shifts(run_file: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="needs the extra anndata")
    folder = run_file.parent / "calibrated"
    gating = gate(run_file, folder, n_populations=3, formats=["h5ad"], calibrated=True)
    events = anndata.read_h5ad(folder / "events.h5ad")
    values, of_sample = np.asarray(events.X), events.obs["sample"].to_numpy().astype(str)
    population = events.obs["population"].to_numpy().astype(str)
    for p in np.unique(population):
        means = [values[(of_sample == s) & (population == p)].mean(axis=0) for s in gating.samples]
        np.testing.assert_allclose(means, np.tile(means[0], (3, 1)), atol=0.3)


def test_calibrated_fcs_files_have_added_channels(run_file: Path, tmp_path: Path) -> None:
    """Calibrated channels are the measured values without the shift, on the scale of the file."""
    rng = np.random.default_rng(6)
    for s, shift in enumerate((1.0, -1.0)):
        values = np.exp(rng.choice([2.0, 7.0], (600, 1)) + shift / 5.0 + 0.2 * rng.standard_normal((600, 2)))
        write_fcs(tmp_path / f"f{s}.fcs", values.astype(np.float32), ["FL1-A", "FL2-A"], ["CD3", "CD4"])
    settings = {
        "data": {
            "files": [str(tmp_path / "f*.fcs")],
            "transform": {"default": {"method": "arcsinh", "cofactor": 5.0}},
        },
        "model": {"components": 4, "samples": "hierarchical", "shifts": "sample"},
        "mcmc": {"chains": 1, "burn_in": 20, "draws": 10, "split_merge": 0, "until": None},
        "engine": {"backend": "cpu"},
        "output": {"path": str(tmp_path / "run.h5")},
    }
    path = run_mcmc(Config.model_validate(settings)).path
    gate(path, tmp_path / "out", formats=["fcs"], calibrated=True)
    run = open_run(path, transformed=True)
    shifts = run.cohort["shifts"].mean(axis=(0, 1))
    for s in range(2):
        source = open_source(tmp_path / "out" / f"f{s}.gated.fcs")
        names = [*source.channels]
        columns = [names.index(name) for name in ("FL1-A", "FL2-A")]
        columns += [names.index(f"dpmix_calibrated_{name}") for name in ("CD3", "CD4")]
        table = source.read(0, 600, columns).astype(float)
        expected = 5.0 * np.sinh(np.arcsinh(table[:, :2] / 5.0) - shifts[s])
        np.testing.assert_allclose(table[:, 2:], expected, rtol=1e-4)


def test_calibrated_files_that_cannot_hold_the_values(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="only h5ad and FCS files hold values of events"):
        gate(run_file, run_file.parent / "csv", formats=["csv"], calibrated=True)
    run, source = open_run(run_file), open_source(run_file.parent / "s0.csv")
    integers = replace(source, details=tuple(replace(c, integer=True) for c in source.details))
    with pytest.raises(ConfigError, match=r"s0\.csv stores integers .*--format h5ad"):
        to_subtract(run, ["fcs"], [integers])


def test_gate_of_other_files_is_for_predict(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="use dpmix predict, which finds them"):
        gate(run_file, run_file.parent / "other", data=[run_file.parent / "s0.csv"])


def test_medians_move_with_the_shifts(gating: Gating) -> None:
    assert gating.medians is not None
    order = np.argsort(-SHARES.sum(axis=0))
    found = gating.medians.mean(axis=0)  # [S, P, D]
    np.testing.assert_allclose(found, CENTRES[order] + SHIFTS[:, None], atol=0.15)
