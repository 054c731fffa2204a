"""Gates of FlowJo workspaces and of GatingML files, against gates computed from the raw values."""

from __future__ import annotations

import sys
from pathlib import Path

import flowkit
import numpy as np
import odd_files
import pytest
from workspaces import write_workspace

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs_data import write_fcs
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.opening import open_source
from dpmix.inputs.transforms import Transform

Array = np.ndarray
MATRIX = np.array([[1.0, 0.2], [0.1, 1.0]])
BIEX = Transform("logicle", t=262144.000029, w=0.5, m=4.41854)
GATES = {"A high": {"A-A": (0.6, None)}, "A high/B low": {"B-A": (None, 0.5)}, "B high": {"B-A": (0.6, None)}}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    """A file of 3,000 events with spillover, and their true values in A-A and B-A."""
    random = np.random.default_rng(7)
    true = np.exp(random.normal(7, 2, (3_000, 2))) - 100
    path = tmp_path_factory.mktemp("cells") / "a.fcs"
    values = np.column_stack((random.normal(1_000, 100, 3_000), true @ MATRIX)).astype(np.float32)
    keywords = {"$SPILLOVER": "2,A-A,B-A,1,0.2,0.1,1", "$FIL": "a tube.fcs"}
    write_fcs(path, values, ["FSC-A", "A-A", "B-A"], ["", "CD1", ""], keywords)
    return path, true


def gates_of(path: Path, gates: dict = GATES, **options: object) -> ManualGates:
    file = path.with_name("workspace.wsp")
    write_workspace(file, [path], gates, **options)  # type: ignore[arg-type]
    return ManualGates(file, "--compare")


def test_events_inside_the_gates_of_a_workspace(cells: tuple[Path, Array]) -> None:
    path, true = cells
    members = gates_of(path).members(open_source(path))
    a, b = BIEX.apply(true[:, 0]), BIEX.apply(true[:, 1])
    expected = {"A high": a >= 0.6, "A high/B low": (a >= 0.6) & (b < 0.5), "B high": b >= 0.6}
    assert members.keys() == expected.keys()
    for name, inside in expected.items():
        assert (members[name] != inside).mean() < 0.003, name  # the table of biex is close to logicle


@pytest.mark.parametrize("wrong", ["header", "text"])
def test_gates_are_applied_to_the_events_that_dpmix_reads(tmp_path: Path, wrong: str) -> None:
    """FlowKit must take the same place of the events where HEADER and TEXT disagree."""
    events = np.random.default_rng(2).normal([100, 500, 900], 50, (400, 3)).astype("<f4")
    events[:, 2] = np.arange(400)
    keywords, path = odd_files.keywords_of(events, ["A-A", "B-A", "Time"]), tmp_path / "a.fcs"
    path.write_bytes(odd_files.fcs_bytes(keywords, events.tobytes()))
    linear = flowkit.transforms.LinearTransform(1_024, 0.0)
    gates = gates_of(path, {"B high": {"B-A": (500 / 1_024, None)}}, transform=linear)
    places = {wrong: odd_files.moved(4)}
    path.write_bytes(odd_files.fcs_bytes(keywords, events.tobytes(), tail=bytes(4), **places))
    inside = gates.members(open_source(path))["B high"]
    np.testing.assert_array_equal(inside, events[:, 1] >= 500)
    old = odd_files.fcs_bytes(keywords, events.tobytes(), tail=bytes(4), version="FCS2.0", **places)
    path.write_bytes(old)
    if wrong == "header":
        with pytest.raises(DataError, match="the place of its events by HEADER is wrong, and FlowKit takes"):
            gates.members(open_source(path))
    else:
        np.testing.assert_array_equal(gates.members(open_source(path))["B high"], inside)


def test_compensation_and_transforms_of_a_workspace(cells: tuple[Path, Array]) -> None:
    source = open_source(cells[0])
    gates = gates_of(cells[0])
    spillover = gates.spillover(source)
    assert spillover is not None
    assert spillover.detectors == ("A-A", "B-A")
    np.testing.assert_allclose(spillover.matrix, MATRIX)
    found = gates.transforms(source)
    assert set(found) == {"A-A", "B-A"}
    assert str(found["A-A"]) == str(BIEX)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            flowkit.transforms.LogicleTransform(10_000, 0.7, 4.2, 0.1),
            Transform("logicle", t=1e4, w=0.7, m=4.2, a=0.1),
        ),
        (flowkit.transforms.LinearTransform(10_000, 0.0), Transform("linear")),
    ],
)
def test_transforms_of_flowjo(cells: tuple[Path, Array], theirs: object, ours: Transform) -> None:
    found = gates_of(cells[0], transform=theirs).transforms(open_source(cells[0]))["A-A"]
    assert found.method == ours.method
    for name, value in ours.parameters().items():
        assert found.parameters()[name] == pytest.approx(value)


@pytest.mark.parametrize(("negative", "width", "positive"), [(0, -10, 4.42), (0, -1000, 4.5), (1, -100, 4.2)])
def test_biex_is_close_to_a_logicle_scale(negative: float, width: float, positive: float) -> None:
    biex = flowkit.transforms.WSPBiexTransform(negative, width, positive, 262144.0)
    raw = np.concatenate((-np.logspace(5, -2, 500), np.logspace(-2, 5.4, 900)))
    theirs = biex.apply(raw) / 4096
    ours = Transform("logicle", t=262144.0, w=np.log10(-width) / 2, m=positive, a=negative).apply(raw)
    within = (theirs > 0) & (theirs < 1)
    assert within.sum() > 800
    assert np.abs(theirs - ours)[within].max() < 0.005


def test_a_population_is_found_by_its_path_or_the_end_of_it(cells: tuple[Path, Array]) -> None:
    path, _ = cells
    gates = gates_of(path, GATES | {"B high/B low": {"B-A": (None, 0.9)}})
    source = open_source(path)
    members = gates.members(source)
    name, inside = gates.population(source, "A high/B low")
    assert name == "A high/B low"
    np.testing.assert_array_equal(inside, members[name])
    assert gates.population(source, "B high")[0] == "B high"
    with pytest.raises(
        ConfigError, match=r"B low: several gates have this name: A high/B low, B high/B low in a"
    ):
        gates.population(source, "B low")
    with pytest.raises(
        ConfigError, match=r"CD3: no gate has this name in a\.fcs; .* has A high, A high/B low, B"
    ):
        gates.population(source, "CD3")


def test_samples_are_found_by_file_name_or_fil(cells: tuple[Path, Array]) -> None:
    source = open_source(cells[0])
    gates_of(cells[0], names=["a tube.fcs"]).require(source)
    with pytest.raises(DataError, match=r"a\.fcs: .* has no sample of this name; it has other\.fcs"):
        gates_of(cells[0], names=["other.fcs"]).require(source)


def test_gatingml(cells: tuple[Path, Array], tmp_path: Path) -> None:
    path, true = cells
    strategy = flowkit.GatingStrategy()
    strategy.add_comp_matrix("m", flowkit.Matrix(MATRIX[::-1, ::-1].copy(), ["B-A", "A-A"], ["B-A", "A-A"]))
    strategy.add_transform("asinh", flowkit.transforms.AsinhTransform(10_000, 4.0, 0.0))
    dividers = [flowkit.QuadrantDivider(name, f"{name}-A", "m", [0.6], "asinh") for name in "AB"]
    sides = {"low": (None, 0.6), "high": (0.6, None)}
    quadrants = [
        flowkit.gates.Quadrant(f"A_{a}_B_{b}", ["A", "B"], [sides[a], sides[b]]) for a in sides for b in sides
    ]
    strategy.add_gate(flowkit.gates.QuadrantGate("quad", dividers, quadrants), ("root",))
    dimension = flowkit.Dimension("A-A", "m", "asinh", 0.6, None)
    strategy.add_gate(flowkit.gates.RectangleGate("A_high", [dimension]), ("root",))
    with (tmp_path / "gates.xml").open("wb") as file:
        flowkit.export_gatingml(strategy, file)
    gates, source = ManualGates(tmp_path / "gates.xml", "--compare"), open_source(path)
    members = gates.members(source)
    high = np.arcsinh(true[:, 0] * np.sinh(4 * np.log(10)) / 1e4) / (4 * np.log(10)) >= 0.6
    assert len(members) == 5
    assert (members["A_high"] != high).sum() <= 1
    upper = gates.population(source, "A_high_B_high")[1] | gates.population(source, "A_high_B_low")[1]
    np.testing.assert_array_equal(upper, members["A_high"])
    assert gates.transforms(source)["A-A"].method == "arcsinh"
    spillover = gates.spillover(source)
    assert spillover is not None
    np.testing.assert_allclose(spillover.matrix[::-1, ::-1], MATRIX)


def test_errors_are_one_line(
    cells: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.wsp").write_text("no workspace")
    with pytest.raises(ConfigError, match=r"no\.wsp: .*; need a FlowJo workspace") as refused:
        ManualGates(tmp_path / "no.wsp", "--compare")
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(ConfigError, match=r"--compare: .*missing\.wsp: cannot be read"):
        ManualGates(tmp_path / "missing.wsp", "--compare")
    np.save(tmp_path / "a.npy", np.ones((5, 2)))
    gates = gates_of(cells[0], names=["a.npy"])
    with pytest.raises(DataError, match=r"a\.npy: is not an FCS file, which --compare requires"):
        gates.members(open_source(tmp_path / "a.npy"))
    write_fcs(tmp_path / "a.fcs", np.ones((5, 1), np.float32), ["C-A"])
    with pytest.raises(DataError, match=r"a\.fcs: FlowKit cannot apply the gates of .*workspace\.wsp \("):
        gates_of(cells[0]).members(open_source(tmp_path / "a.fcs"))
    monkeypatch.setitem(sys.modules, "flowkit", None)
    with pytest.raises(ConfigError, match=r"--compare needs flowkit \(.*pip install 'dpmix\[flowjo\]'"):
        ManualGates(tmp_path / "no.wsp", "--compare")
