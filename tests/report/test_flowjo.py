"""Workspaces of FlowJo: FlowKit and dpmix read them back, and find the counts that workspace.csv states."""

from __future__ import annotations

import csv
import logging
import os
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flowkit
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from platforms import USES_LINUX
from test_gatingml import METHODS, on_every_scale, population_of, prepared, write_cells, written_cells

from dpmix.cli import main
from dpmix.errors import DataError
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.opening import open_source
from dpmix.inputs.simulate import simulation
from dpmix.populations.gates.ellipses import VERTICES, EllipseGate, as_polygon
from dpmix.populations.gates.nested import Node, find_families, find_nested, with_polygons
from dpmix.populations.gates.strategy import find_strategies
from dpmix.report.flowjo import check_samples, gain_warning, groups_of, steps_of, write_table, write_workspace
from dpmix.report.gatingml import space_of

NAMES: dict[str, Any] = {
    "names": (),
    "phenotypes": ("A+/B-", "B+ <&>", "C-\x0b"),
    "n_populations": 3,
    "labels": (),
    "population_types": (),
    "number": lambda population: population + 1,
}


def written(folder: Path, events: Events, linearize: bool = True) -> list[dict[str, str]]:
    """Write the workspace of three populations, and return the rows of its table."""
    population = population_of(events)
    alone = find_strategies(events, population, 3, seed=1)
    nodes = with_polygons(find_nested(events, population, alone, [(0, 1)], 1), events, population, 3)
    gating: Any = SimpleNamespace(**NAMES)
    groups = groups_of(gating, nodes)
    write_workspace(folder / "workspace.wsp", events, space_of(events, linearize), groups)
    write_table(folder / "workspace.csv", events, groups)
    return rows_of(folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "workspace.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_counts_agree(folder: Path, files: list[Path]) -> None:
    """FlowKit, by itself and in dpmix, finds the events that the table states."""
    rows = rows_of(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [flowkit.Sample(file, sample_id=file.name, use_flowjo_labels=True) for file in files]
        workspace = flowkit.Workspace(folder / "workspace.wsp", samples)
        workspace.analyze_samples(use_mp=False)
    gates = ManualGates(folder / "workspace.wsp", "--compare")
    ours = [gates.members(open_source(file)) for file in files]
    n_gates = 0
    for row in rows:
        if not row["gated"]:
            continue
        path = row["gate"].split("/")
        theirs = [
            workspace.get_gate_membership(file.name, path[-1], ("root", *path[:-1])).sum() for file in files
        ]
        found = sum(own[row["gate"]].sum() for own in ours)
        assert int(row["count"]) == sum(theirs) == found, row
        n_gates += 1
    assert n_gates >= 3


@on_every_scale
def test_counts_agree_on_every_scale(
    tmp_path: Path, method: str, keywords: dict[str, str], linearize: bool
) -> None:
    fcs, events = written_cells(tmp_path, method, keywords, linearize)
    written(tmp_path, events, linearize)
    assert_counts_agree(tmp_path, [fcs])


def test_samples_keep_their_own_matrices_and_transforms(tmp_path: Path) -> None:
    matrices = ["3,A-A,B-A,C-A,1,0.2,0,0.1,1,0,0,0,1", "3,A-A,B-A,C-A,1,0,0,0.3,1,0,0,0,1"]
    files = [write_cells(tmp_path / f"{k}.fcs", **{"$SPILLOVER": text}) for k, text in enumerate(matrices)]
    events = prepared(files[0], files=[str(file) for file in files])
    written(tmp_path, events)
    assert_counts_agree(tmp_path, files)
    gates = ManualGates(tmp_path / "workspace.wsp", "data.gate")
    for file, own in zip(files, events.spillovers, strict=True):
        read, source = gates.spillover(open_source(file)), open_source(file)
        assert own is not None
        assert read is not None
        assert read.detectors == own.detectors
        np.testing.assert_allclose(read.matrix, own.matrix)
        found = gates.transforms(source)
        for detector, transform in zip(events.detectors, events.scaling.transforms, strict=True):
            assert found[detector].method == transform.method
            assert found[detector].t == pytest.approx(transform.t)
    root = ET.parse(tmp_path / "workspace.wsp").getroot()
    assert len(root.findall("Matrices/*")) == 2
    assert [len(sample.findall("*")) for sample in root.findall("SampleList/Sample")] == [5, 5]


def test_events_that_the_run_leaves_out_count_in_the_files(tmp_path: Path) -> None:
    fcs = write_cells(tmp_path / "a.fcs")
    rows = written(tmp_path, prepared(fcs, max_events=2_000))
    assert_counts_agree(tmp_path, [fcs])
    counts = [(int(row["gated"]), int(row["count"])) for row in rows if row["gated"]]
    assert all(2 * gated < count for gated, count in counts)


def test_samples_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    files = [write_cells(tmp_path / folder / "a.fcs") for folder in ("x", "y")]
    written(tmp_path, prepared(files[0], files=[str(file) for file in files]))
    gates = ManualGates(tmp_path / "workspace.wsp", "--compare")
    for file in files:
        assert gates.members(open_source(file))


@pytest.mark.skipif(not USES_LINUX, reason="other systems have no such names")
def test_a_file_whose_name_is_not_in_utf_8(tmp_path: Path) -> None:
    file = write_cells(tmp_path / os.fsdecode(b"caf\xe9.fcs"))
    written(tmp_path, prepared(file))
    assert ManualGates(tmp_path / "workspace.wsp", "--compare").members(open_source(file))


def test_names_that_flowjo_writes_differently(tmp_path: Path) -> None:
    """A slash in a channel is written _; in a population it would be a path."""
    random = np.random.default_rng(1)
    values = np.exp(random.normal(5, 1, (4_000, 4))).astype(np.float32)
    write_fcs(
        tmp_path / "a.fcs",
        values,
        ["A/B-A", "C-A", "D-A", "E-A"],
        None,
        {"$SPILLOVER": "2,A/B-A,C-A,1,.1,0,1"},
    )
    rows = written(tmp_path, prepared(tmp_path / "a.fcs"))
    assert_counts_agree(tmp_path, [tmp_path / "a.fcs"])
    assert any("1 A+_B-" in row["gate"] for row in rows)
    text = (tmp_path / "workspace.wsp").read_text("utf-8")
    assert 'name="Comp-A_B-A"' in text
    assert "2 B+ &lt;&amp;&gt;" in text


def test_old_instruments_with_logarithmic_amplifiers(shared_data: Path, tmp_path: Path) -> None:
    fcs = shared_data / "fcs" / "3FITC_4PE_004.fcs"
    for name, linearize in (("logicle", True), ("linear", False)):
        settings = {"channels": ["*-H"], "linearize": linearize, "transform": {"FL*": METHODS[name]}}
        events = prepared(fcs, **settings)
        population = (events.values[:, -1] > np.median(events.values[:, -1])).astype(np.int32)
        nodes = tuple(
            Node((p,), -1, len(own.gates), own)
            for p, own in enumerate(find_strategies(events, population, 2, seed=1))
        )
        gating: Any = SimpleNamespace(**NAMES)
        groups = groups_of(gating, with_polygons(nodes, events, population, 2))
        write_workspace(tmp_path / "workspace.wsp", events, space_of(events, linearize), groups)
        write_table(tmp_path / "workspace.csv", events, groups)
        steps = ManualGates(tmp_path / "workspace.wsp", "--compare").members(open_source(fcs))
        for row in rows_of(tmp_path):
            assert steps[row["gate"]].sum() == int(row["count"])


def test_polygons_for_ellipses_have_their_area_and_events() -> None:
    covariance = np.array([[2.0, 1.1], [1.1, 1.0]])
    gate = EllipseGate((1, 0), np.array([3.0, -1.0]), covariance, 4.0)
    polygon = as_polygon(gate)
    assert as_polygon(polygon) is polygon
    assert polygon.vertices.shape == (VERTICES, 2)
    x, y = polygon.vertices.T
    area = abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2
    assert area == pytest.approx(np.pi * 4.0 * np.sqrt(np.linalg.det(covariance)), rel=1e-12)
    events = np.random.default_rng(1).multivariate_normal(gate.centre, covariance, 200_000)[:, ::-1]
    differ = gate.contains(events) != polygon.contains(events)
    assert differ.mean() < 2e-4


def test_children_are_gated_inside_their_parents(tmp_path: Path) -> None:
    """Rows 0 (with 1 inside) and 2; row 3 has no events."""
    events = prepared(write_cells(tmp_path / "a.fcs"))
    group = population_of(events)
    nodes = find_families(events, group, [(0, 1), (1,), (2,), (3,)], 4, seed=1)
    assert [node.populations for node in nodes] == [(0, 1), (1,), (2,), (3,)]
    assert [node.parent for node in nodes] == [-1, 0, -1, -1]
    assert [node.strategy.size for node in nodes] == [np.isin(group, own).sum() for own in ((0, 1), 1, 2, 3)]
    assert nodes[1].strategy.gates[: len(nodes[0].strategy.gates)] == nodes[0].strategy.gates
    table: Any = SimpleNamespace(types=("T", "CD4 T", "B", "none"), parents=("", "T", "", ""))
    gating: Any = SimpleNamespace(**NAMES, types=SimpleNamespace(table=table))
    groups = groups_of(gating, [], types=with_polygons(nodes, events, group, 4))
    assert [group.name for group in groups] == ["type T", "type CD4 T", "type B", "type none"]
    steps = steps_of(groups)
    inner = next(step for step in steps if step.name.startswith("type CD4 T"))
    assert steps[inner.parent].name == "type T"
    assert all("type none" not in step.name for step in steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of simulated blood and a run by Bayesian EM, gated as a user does."""
    folder = tmp_path_factory.mktemp("blood")
    for name, n_events, seed in (("a", 9_000, 1), ("b", 6_000, 2)):
        simulation.cytometry_like(n_events, seed=seed).write(folder / f"{name}.fcs")
    assert dpmix("init", folder / "a.fcs", folder / "b.fcs", "--output", folder / "run.yaml") == 0
    small = (
        "--set",
        "model.components=32",
        "--set",
        "bem.starts=1",
        "--set",
        f"output.path={folder / 'run.h5'}",
    )
    assert dpmix("bem", folder / "run.yaml", "--quiet", *small) == 0
    options = ("--format", "wsp", "--types", "pbmc-t", "--quiet")
    assert dpmix("gate", folder / "run.h5", "--output", folder / "gated", *options) == 0
    return folder


def dpmix(*arguments: object) -> int:
    return CliRunner().invoke(main, [str(one) for one in arguments]).exit_code


@pytest.mark.slow
def test_populations_and_types_of_simulated_blood(folder: Path) -> None:
    gated = folder / "gated"
    assert not (gated / "events.parquet").exists()
    assert {"gates.xml", "strategy.csv", "workspace.wsp", "workspace.csv"} <= {
        p.name for p in gated.iterdir()
    }
    assert_counts_agree(gated, [folder / "a.fcs", folder / "b.fcs"])
    rows = rows_of(gated)
    with (gated / "populations.csv").open(newline="") as file:
        populations = {row["population"] for row in csv.DictReader(file)}
    last = [row for row in rows if row["kind"] == "population" and " step " not in row["gate"].split("/")[-1]]
    assert {row["populations"] for row in last} == populations
    large = [row for row in last if int(row["events"]) > 100]
    assert min(float(row["f1"]) for row in large) > 0.9
    types = {row["gate"].split("/")[-1] for row in rows if row["kind"] == "type"}
    assert {"type T cells", "type CD4 T cells"} <= types
    assert any("type T cells/" in row["gate"] for row in rows)


def test_a_run_inside_a_population_of_the_workspace(folder: Path) -> None:
    """dpmix takes the matrix, the transforms and the events of a gate from its own workspace."""
    place = f"data.gate={{workspace: {folder / 'gated' / 'workspace.wsp'}, population: type T cells}}"
    small = ("--set", "model.components=16", "--set", "bem.starts=1", "--set", "bem.max_steps=5")
    output = ("--set", f"output.path={folder / 'inside.h5'}", "--set", place)
    assert dpmix("bem", folder / "run.yaml", "--quiet", *small, *output) == 0
    (row,) = (row for row in rows_of(folder / "gated") if row["gate"] == "type T cells")
    with h5py.File(folder / "inside.h5") as file:
        assert file.attrs["n_events"] == int(row["count"])


def test_only_fcs_files_are_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 2)))
    with pytest.raises(DataError, match=r"a\.npy: is not an FCS file, which --format wsp requires"):
        check_samples([open_source(tmp_path / "a.npy")])
    fcs = write_cells(tmp_path / "a.fcs", **{"$P2G": "2"})
    events = prepared(fcs)
    check_samples(events.sources)
    assert str(gain_warning(events)).startswith("A-A: the gain ($PnG) is not 1; ")
    assert gain_warning(prepared(write_cells(tmp_path / "b.fcs"))) is None
    assert logging.getLogger("dpmix")
