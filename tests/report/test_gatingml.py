"""Gates as GatingML 2.0: FlowKit applies them to the files and finds the counts that dpmix states."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flowkit
import numpy as np
import pytest

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError
from dpmix.inputs import preprocess
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.simulate import simulation
from dpmix.populations.gates.ellipses import EllipseGate
from dpmix.populations.gates.nested import Node
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.populations.gates.strategy import Strategy, blocks_of, find_strategies, measure
from dpmix.report.gatingml import DATA, GATING, gate_name, nested, shortest, space_of, write_gates

SPILL = "2,B-A,A-A,1,0.2,0.1,1"  # another order than in the file
METHODS = {
    "logicle": {"method": "logicle", "t": 10_000, "w": 0.7, "a": 0.2},
    "arcsinh": {"method": "arcsinh", "cofactor": 30},
    "log": {"method": "log"},
    "linear": {"method": "linear"},
}

NOTHING_MORE: dict[str, Any] = {
    "exploration": None,
    "explored_strategy": None,
    "population_types": (),
    "all_numbers": tuple(range(1, 20)),
    "number": lambda population: population + 1,
}


def write_cells(path: Path, **keywords: str) -> Path:
    """Write 6,000 positive events of three populations in four channels, 300 of them at one value."""
    random = np.random.default_rng(2)
    centres = np.array([[200.0, 900, 50, 400], [900, 200, 50, 400], [900, 900, 600, 40]])
    values = centres[random.integers(0, 3, 6_000)] * np.exp(random.normal(0, 0.25, (6_000, 4)))
    values[:300, 2] = 4_000.0
    write_fcs(path, values.astype(np.float32), ["FSC-A", "A-A", "B-A", "C-A"], ["", "CD1", "", ""], keywords)
    return path


def prepared(path: Path, **settings: Any) -> Events:
    """Prepare the events without noise at atoms, as for the search of gates."""
    data = {"files": [str(path)], "channels": ["*-A"], "atoms": "report", **settings}
    return preprocess.prepare(DataConfig.model_validate(data), Path(), 1)


def population_of(events: Events) -> np.ndarray:
    """Return the nearest of three places in ranks, int32 [N]."""
    ranks = events.values.argsort(0).argsort(0) / len(events.values)
    places = np.array([[0.2, 0.7, 0.4, 0.6], [0.7, 0.2, 0.4, 0.6], [0.7, 0.7, 0.9, 0.2]])
    found: np.ndarray = ((ranks[:, None] - places) ** 2).sum(-1).argmin(1).astype(np.int32)
    return found


def on_every_scale(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with all methods, with and without gain, compensation and linearization."""
    files = [
        ({}, True),
        ({"$SPILLOVER": SPILL, "$P1G": "4", "$P2G": "2", "$P3G": "0.5"}, True),
        ({"$SPILLOVER": SPILL, "$P1G": "4", "$P2G": "2", "$P3G": "0.5"}, False),
    ]
    with_files = pytest.mark.parametrize(("keywords", "linearize"), files)
    return pytest.mark.parametrize("method", METHODS)(with_files(test))  # type: ignore[no-any-return]


def written_cells(
    folder: Path, method: str, keywords: dict[str, str], linearize: bool
) -> tuple[Path, Events]:
    """Write cells to a file, and prepare them with a method."""
    fcs = write_cells(folder / "a.fcs", **keywords)
    compensation = "none" if method == "log" else "auto"  # compensated values may be negative
    transform = {"default": METHODS[method]}
    return fcs, prepared(fcs, compensation=compensation, transform=transform, linearize=linearize)


def strategies(events: Events) -> tuple[Strategy, ...]:
    """Find gates of three populations."""
    return find_strategies(events, population_of(events), 3, seed=1)


def written(path: Path, events: Events, linearize: bool = True) -> tuple[Strategy, ...]:
    """Write the gates of the events, and return their strategies."""
    found = strategies(events)
    gating: Any = SimpleNamespace(
        run="run.h5", strategies=found, phenotypes=("A+", "B+ <&>", "C-"), **NOTHING_MORE
    )
    write_gates(path, gating, shortest(gating), space_of(events, linearize))
    return found


def assert_flowkit_agrees(gates: Path, fcs: Path, found: tuple[Strategy, ...]) -> None:
    result = flowkit.parse_gating_xml(gates).gate_sample(flowkit.Sample(fcs))
    n_gates = 0
    for p, own in enumerate(found):
        for k, selected in enumerate(own.selected):
            inside = int(result.get_gate_membership(gate_name(p + 1, k, len(own.gates))).sum())
            assert inside == selected, (p, k)
            n_gates += 1
    assert n_gates >= 3


@on_every_scale
def test_flowkit_recovers_the_counts(
    tmp_path: Path, method: str, keywords: dict[str, str], linearize: bool
) -> None:
    fcs, events = written_cells(tmp_path, method, keywords, linearize)
    found = written(tmp_path / "gates.xml", events, linearize)
    assert_flowkit_agrees(tmp_path / "gates.xml", fcs, found)


def test_old_instruments_with_logarithmic_amplifiers(shared_data: Path, tmp_path: Path) -> None:
    fcs = shared_data / "fcs" / "3FITC_4PE_004.fcs"
    events = prepared(fcs, channels=["*-H"], linearize=False, transform={"FL*": METHODS["linear"]})
    assert any(channel.log for channel in events.sources[0].details)
    found = written(tmp_path / "gates.xml", events, False)
    assert_flowkit_agrees(tmp_path / "gates.xml", fcs, found)
    odd = prepared(fcs, channels=["*-H"], linearize=False, transform={"FL*": METHODS["arcsinh"]})
    with pytest.raises(ConfigError, match=r"data\.linearize: false with arcsinh for FL1-H"):
        space_of(odd, False)


def test_a_scale_that_gatingml_does_not_have_is_named(tmp_path: Path) -> None:
    file = write_cells(tmp_path / "a.fcs")
    odd = prepared(file, transform={"default": {"method": "widen", "cofactor": 2.0}}, compensation="none")
    with pytest.raises(ConfigError, match="--strategy: method widen of FSC-A cannot be written as GatingML"):
        space_of(odd, False)


def test_samples_with_different_matrices_refer_to_their_own(tmp_path: Path) -> None:
    matrices = ["3,A-A,B-A,C-A,1,0.2,0,0.1,1,0,0,0,1", "3,A-A,B-A,C-A,1,0,0,0.3,1,0,0,0,1"]
    files = [write_cells(tmp_path / f"{k}.fcs", **{"$SPILLOVER": text}) for k, text in enumerate(matrices)]
    events = prepared(files[0], files=[str(file) for file in files])
    space = space_of(events, True)
    assert space.matrix is None
    assert [axis.compensation for axis in space.axes] == ["uncompensated", "FCS", "FCS", "FCS"]
    found = written(tmp_path / "gates.xml", events)
    strategy = flowkit.parse_gating_xml(tmp_path / "gates.xml")
    results = [strategy.gate_sample(flowkit.Sample(file)) for file in files]
    for p, own in enumerate(found):
        name = gate_name(p + 1, len(own.gates) - 1, len(own.gates))
        assert sum(r.get_gate_membership(name).sum() for r in results) == pytest.approx(
            own.selected[-1], abs=1
        )


def test_scales_that_gatingml_cannot_describe_are_refused(tmp_path: Path) -> None:
    files = [write_cells(tmp_path / f"{k}.fcs", **{"$P2G": f"{k + 1}"}) for k in range(2)]
    with pytest.raises(ConfigError, match=r"--strategy: the gain of a channel \(\$PnG\) differs"):
        space_of(prepared(files[0], files=[str(file) for file in files], linearize=False), False)


def test_a_time_step_with_a_decimal_comma(tmp_path: Path) -> None:
    values = np.column_stack((np.arange(400), np.random.default_rng(1).normal(300, 60, 400)))
    axes = {}
    for step in ("0,01", "0.01", "1", "fast"):
        keywords = {"$TIMESTEP": step}
        write_fcs(tmp_path / "a.fcs", values.astype(np.float32), ["Time", "A-A"], None, keywords)
        settings = {"channels": ["Time", "A-A"], "transform": {"default": METHODS["linear"]}}
        axes[step] = space_of(prepared(tmp_path / "a.fcs", **settings), True).axes
    assert axes["0,01"] == axes["0.01"] != axes["1"] == axes["fast"]


def test_each_gate_states_its_population_purity_yield_and_f1(tmp_path: Path) -> None:
    events = prepared(write_cells(tmp_path / "a.fcs"))
    found = written(tmp_path / "gates.xml", events)
    root = ET.parse(tmp_path / "gates.xml").getroot()
    gates = {gate.get(f"{{{GATING}}}id"): gate for gate in root if gate.get(f"{{{GATING}}}id")}
    for p, own in enumerate(found):
        for k in range(len(own.gates)):
            gate = gates[gate_name(p + 1, k, len(own.gates))]
            assert gate.get(f"{{{GATING}}}parent_id") == (
                gate_name(p + 1, k - 1, len(own.gates)) if k else None
            )
            note = gate.find(f"{{{DATA}}}custom_info/dpmix")
            assert note is not None
            assert note.get("phenotype") == ("A+", "B+ <&>", "C-")[p]
            assert float(note.get("f1", "")) == pytest.approx(own.f1[k], abs=1e-4)
            last = k == len(own.gates) - 1
            assert ("warning" in note.attrib) == (last and min(own.purity[k], own.recovered[k]) < 0.9)


def test_flowkit_finds_the_counts_of_a_hierarchy_with_ellipses(tmp_path: Path) -> None:
    fcs = write_cells(tmp_path / "a.fcs", **{"$SPILLOVER": SPILL, "$P2G": "2"})
    events = prepared(fcs)
    transformed = events.scaling.to_transformed(events.values)
    centre, covariance = transformed.mean(0), np.cov(transformed.T)
    branch = EllipseGate((1, 3), centre[[1, 3]], covariance[np.ix_([1, 3], [1, 3])], 3.0)
    inner = EllipseGate((2, 0), centre[[2, 0]], covariance[np.ix_([2, 0], [2, 0])], 2.0)
    square = np.array([[-2.0, -2], [2, -2], [2, 2], [-2, 2]])
    corners = centre[:2] + square * transformed[:, :2].std(0)
    paths = [(branch,), (branch, inner), (branch, PolygonGate((0, 1), corners), inner)]
    targets = np.array([[True, True, False], [True, False, False], [False, True, False]])
    population = (np.arange(len(transformed)) % 3).astype(np.int32)
    counted = measure(paths, blocks_of(events, population, paths), targets)
    hierarchy = [
        Node((0, 1), -1, 1, counted[0]),
        Node((0,), 0, 1, counted[1]),
        Node((1,), 0, 2, counted[2]),
    ]
    gating: Any = SimpleNamespace(run="run.h5", phenotypes=("A+", "B+", "C-"), **NOTHING_MORE)
    write_gates(tmp_path / "gates.xml", gating, nested(gating, hierarchy), space_of(events, True))
    strategy = flowkit.parse_gating_xml(tmp_path / "gates.xml")
    found = strategy.gate_sample(flowkit.Sample(fcs))
    assert strategy.get_parent_gate_id("population_2_step_1")[0] == "branch_1"
    assert strategy.get_parent_gate_id("population_2")[0] == "population_2_step_1"
    for name, own in zip(("branch_1", "population_1", "population_2"), counted, strict=True):
        assert 100 < own.selected[-1] < 5_900
        assert int(found.get_gate_membership(name).sum()) == own.selected[-1]


@pytest.mark.slow
def test_simulated_blood(tmp_path: Path) -> None:
    """More channels and events, and clipped values."""
    simulated = simulation.cytometry_like(30_000, seed=1)
    simulated.write(tmp_path / "a.fcs")
    data = DataConfig.model_validate({"files": [str(tmp_path / "a.fcs")], "atoms": "report"})
    events = preprocess.prepare(data, Path(), 1)
    found = find_strategies(events, simulated.labels, len(simulated.populations), 1)
    gating: Any = SimpleNamespace(
        run="run.h5", strategies=found, phenotypes=simulated.populations, **NOTHING_MORE
    )
    write_gates(tmp_path / "gates.xml", gating, shortest(gating), space_of(events, True))
    assert_flowkit_agrees(tmp_path / "gates.xml", tmp_path / "a.fcs", found)
    assert np.mean([own.good for own in found]) > 0.9
