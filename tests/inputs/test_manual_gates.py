"""Gates of FlowJo workspaces and of GatingML files, against gates computed from the raw values."""

from __future__ import annotations

import sys
from pathlib import Path

import flowkit
import numpy as np
import odd_files
import pytest
from lxml import etree
from workspaces import write_workspace

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.opening import open_source, open_sources
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
    np.testing.assert_array_equal(gates.members(open_source(path))["B high"], inside)


@pytest.mark.parametrize(
    "changes",
    [
        {"TIMESTEP": "0,01", "P1G": "NA", "P2R": "NA", "P2E": "0,0,0,0"},
        {"TOT": None},
        {"P2G": "2,0"},
        {"P1R": 1024, "P2R": 1024},  # false: integers above it
    ],
)
@pytest.mark.parametrize("kind", ["f", "u"])
def test_gates_are_applied_to_files_that_deviate_from_the_standard(
    tmp_path: Path, changes: dict[str, object], kind: str
) -> None:
    """FlowKit refuses most of these files, and masks the integers."""
    if kind == "u" and changes.get("P2R") == "NA":
        return  # integers need their range
    events = np.random.default_rng(2).integers(0, 9_000, (400, 3)).astype(f"<{kind}4")
    events[:, 2] = np.arange(400)
    path, names = tmp_path / "a.fcs", ["A-A", "B-A", "Time"]
    ranges = {f"P{n}R": 2**14 for n in (1, 2, 3)}
    path.write_bytes(odd_files.fcs_bytes(odd_files.keywords_of(events, names, **ranges), events.tobytes()))
    linear = flowkit.transforms.LinearTransform(1_024, 0.0)
    gates = gates_of(path, {"B high": {"B-A": (4_500 / 1_024, None)}}, transform=linear)
    keywords = odd_files.keywords_of(events, names, **(ranges | changes))
    ends = (lambda a, b: (a, a)) if "TOT" not in changes else odd_files.right
    path.write_bytes(odd_files.fcs_bytes(keywords, events.tobytes(), header=ends, text=ends))
    inside = events[:, 1] / (2 if "P2G" in changes else 1) >= 4_500
    np.testing.assert_array_equal(gates.members(open_source(path))["B high"], inside)


def test_two_gates_of_one_name_are_left_out(cells: tuple[Path, Array]) -> None:
    """FlowKit takes the last one for both."""
    path, source = cells[0], open_source(cells[0])
    gates_of(path)
    gates = changed(path, ('name="B low"', 'name="C"'), ('name="B high"', 'name="A high"'))
    assert gates.unread(source) == "A high (2 gates have this name)"
    with pytest.raises(DataError, match=r"no gate of .* can be read: A high \(2 gates have this name\)"):
        gates.members(source)


def test_a_transform_that_is_not_valid_blocks_no_limits(cells: tuple[Path, Array]) -> None:
    path, source = cells[0], open_source(cells[0])
    expected = gates_of(path).members(source)
    for old, new in (
        ('width="-10"', 'width=""'),
        ('width="-10"', 'width="10"'),
        ("Transformations", "Other"),
    ):
        found = changed(path, (old, new)).members(source)
        for name, inside in found.items():
            np.testing.assert_array_equal(inside, expected[name])


@pytest.mark.parametrize(
    ("name", "uri"),
    [("Tube 1", "file:/C:/My%20data/a.fcs"), ("Tube 1", r"D:\data\A.FCS"), ("A.FCS", ""), ("a tube.fcs", "")],
)
def test_a_sample_that_was_renamed_is_found_by_its_file(
    cells: tuple[Path, Array], name: str, uri: str
) -> None:
    path, source = cells[0], open_source(cells[0])
    expected = gates_of(path).members(source)
    gates = changed(path, ('uri="a.fcs"', f'uri="{uri}"'), ('name="a.fcs"', f'name="{name}"'))
    np.testing.assert_array_equal(gates.members(source)["B high"], expected["B high"])


def test_a_workspace_of_flowjo_9_says_so(tmp_path: Path) -> None:
    (tmp_path / "old.xml").write_text('<Workspace version="1.61"><SampleList/></Workspace>')
    with pytest.raises(
        ConfigError, match=r"old\.xml: is a workspace of FlowJo 9 or older; save it in FlowJo 10"
    ):
        ManualGates(tmp_path / "old.xml", "--compare")


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


def test_a_transform_that_no_scale_has_is_refused(cells: tuple[Path, Array]) -> None:
    biex = flowkit.transforms.WSPBiexTransform(5, -10, 4.4, 262144.0)
    gates = gates_of(cells[0], transform=biex)
    with pytest.raises(
        ConfigError, match=r"transform of A-A is not valid \(logicle: .*; give a transform in"
    ):
        gates.transforms(open_source(cells[0]))


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


# ------------------------------------------------------------------------- what FlowKit would refuse


def changed(path: Path, *changes: tuple[str, str]) -> ManualGates:
    """Return the gates of a workspace after changes of its text."""
    gates_of(
        path, {"A high": GATES["A high"], "A high/B low": GATES["A high/B low"], "B high": GATES["B high"]}
    )
    file = path.with_name("workspace.wsp")
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return ManualGates(file, "--compare")


def element(gate: str, text: str) -> str:
    """Return the gate of a population in the text of a workspace."""
    return text[text.index(f'name="{gate}"') :].partition("</Gate>")[0]


@pytest.mark.parametrize("kind", ["CurlyQuad", "QuadrantGate", "SpiderGate"])
def test_a_gate_of_an_unknown_kind_blocks_no_other(cells: tuple[Path, Array], kind: str) -> None:
    path, source = cells[0], open_source(cells[0])
    expected = gates_of(path).members(source)
    own = element("A high", path.with_name("workspace.wsp").read_text())
    gates = changed(path, (own, own.replace("RectangleGate", kind)))
    found = gates.members(source)
    assert found.keys() == {"B high"}, "gates inside the unknown one cannot be read either"
    np.testing.assert_array_equal(found["B high"], expected["B high"])
    assert gates.unread(source) == f"A high ({kind})"
    for name in ("A high", "A high/B low"):
        with pytest.raises(ConfigError, match=f"{name}: cannot be read in a.fcs: A high is {kind}; choose"):
            gates.population(source, name)


def test_a_gate_of_a_derived_parameter_blocks_no_other(cells: tuple[Path, Array]) -> None:
    path, source = cells[0], open_source(cells[0])
    gates_of(path)
    own = element("B low", path.with_name("workspace.wsp").read_text())
    gates = changed(path, (own, own.replace("B-A", "Ratio")))
    assert gates.members(source).keys() == {"A high", "B high"}
    assert "A high/B low (of Ratio, which the file lacks)" in gates.unread(source)


def test_limits_need_no_transform_and_biex_of_any_length(cells: tuple[Path, Array]) -> None:
    """In a workspace, limits of rectangles are on the linear scale."""
    path, source = cells[0], open_source(cells[0])
    expected = gates_of(path).members(source)
    for change in (('length="256"', 'length="4096"'), ("transforms:biex", "transforms:hyperlog")):
        found = changed(path, change).members(source)
        assert found.keys() == expected.keys()
        for name, inside in found.items():
            assert (inside != expected[name]).mean() < 0.003
    narrow = changed(path, ('width="-10"', 'width="0"'))
    assert (narrow.members(source)["A high"] != expected["A high"]).mean() < 0.003
    assert narrow.transforms(source)["A-A"].w == 0


# ------------------------------------------------------------------------- several samples of one name


@pytest.fixture
def plates(cells: tuple[Path, Array], tmp_path: Path) -> tuple[Path, list[Path]]:
    """Two files of one name in two folders, and a workspace with other gates for each."""
    files, samples = [], []
    for plate, limit in (("one", 0.6), ("two", 0.8)):
        folder = tmp_path / plate
        folder.mkdir()
        (folder / "A1.fcs").write_bytes(cells[0].read_bytes())
        write_workspace(folder / "w.wsp", [folder / "A1.fcs"], {"A high": {"A-A": (limit, None)}})
        tree = etree.parse(str(folder / "w.wsp"))
        sample = tree.find(".//SampleList/Sample")
        sample.find("DataSet").set("uri", f"file:/D:/other/{plate.upper()}/A1.fcs")
        samples.append(sample)
        files.append(folder / "A1.fcs")
    tree.find(".//SampleList").insert(0, samples[0])
    tree.write(str(tmp_path / "both.wsp"))
    return tmp_path / "both.wsp", files


def test_samples_of_one_name_are_told_apart_by_their_folders(plates: tuple[Path, list[Path]]) -> None:
    gates = ManualGates(plates[0], "--compare")
    sizes = [int(gates.members(source)["A high"].sum()) for source in open_sources(plates[1])]
    alone = [
        int(ManualGates(file.with_name("w.wsp"), "x").members(open_source(file))["A high"].sum())
        for file in plates[1]
    ]
    assert sizes == alone
    assert sizes[0] > sizes[1]


def test_a_name_that_nothing_tells_apart_is_refused(plates: tuple[Path, list[Path]], tmp_path: Path) -> None:
    elsewhere = tmp_path / "A1.fcs"
    elsewhere.write_bytes(plates[1][0].read_bytes())
    with pytest.raises(DataError, match=r"A1\.fcs: .*both\.wsp has 2 samples named A1\.fcs, and neither"):
        ManualGates(plates[0], "--compare").members(open_source(elsewhere))
    gates = ManualGates(plates[1][0].with_name("w.wsp"), "--compare")
    gates.members(open_source(plates[1][0]))
    with pytest.raises(DataError, match=r"has one sample named A1\.fcs, for .*one/A1.fcs and .*two/A1\.fcs"):
        gates.members(open_source(plates[1][1]))


def test_gatingml_with_the_matrix_of_a_file_that_names_some_channels(tmp_path: Path) -> None:
    """FlowKit alone refuses a matrix that lacks a channel of fluorescence."""
    true = np.random.default_rng(4).gamma(2.0, 500.0, (400, 3)).astype(np.float32)
    stored = true.copy()
    stored[:, :2] = true[:, :2] @ MATRIX
    write_fcs(tmp_path / "a.fcs", stored, ["A", "B", "C"], keywords={"$SPILLOVER": "2,A,B,1,0.2,0.1,1"})
    strategy = flowkit.GatingStrategy()
    strategy.add_gate(
        flowkit.gates.RectangleGate("high", [flowkit.Dimension("B", "FCS", None, 1_000, None)]), ("root",)
    )
    with (tmp_path / "gates.xml").open("wb") as file:
        flowkit.export_gatingml(strategy, file)
    found = ManualGates(tmp_path / "gates.xml", "--compare").members(open_source(tmp_path / "a.fcs"))
    assert (found["high"] != (true[:, 1] >= 1_000)).sum() <= 1


def test_gatingml_without_a_gate_that_is_not_of_the_standard(
    cells: tuple[Path, Array], tmp_path: Path
) -> None:
    strategy = flowkit.GatingStrategy()
    strategy.add_transform("asinh", flowkit.transforms.AsinhTransform(10_000, 4.0, 0.0))
    for name, parent in (("high", ("root",)), ("odd", ("root",)), ("inner", ("root", "odd"))):
        dimension = flowkit.Dimension("A-A", None, "asinh", 0.6, None)
        strategy.add_gate(flowkit.gates.RectangleGate(name, [dimension]), parent)
    with (tmp_path / "gates.xml").open("wb") as file:
        flowkit.export_gatingml(strategy, file)
    tree = etree.parse(str(tmp_path / "gates.xml"))
    source = open_source(cells[0])
    expected = ManualGates(tmp_path / "gates.xml", "--compare").members(source)
    odd = next(gate for gate in tree.getroot() if "odd" in gate.attrib.values() and gate.tag.endswith("Gate"))
    etree.SubElement(odd, odd.tag.replace("RectangleGate", "colour"))
    tree.write(str(tmp_path / "gates.xml"))
    gates = ManualGates(tmp_path / "gates.xml", "--compare")
    assert gates.members(source).keys() == {"high"}
    np.testing.assert_array_equal(gates.members(source)["high"], expected["high"])
    assert gates.unread(source).startswith("odd (RectangleGate: ")
    tree.getroot().append(etree.fromstring("<x/>"))
    tree.write(str(tmp_path / "gates.xml"))
    with pytest.raises(ConfigError, match=r"gates\.xml: line \d+ is not GatingML 2\.0 \(.*x.*\); need"):
        ManualGates(tmp_path / "gates.xml", "--compare")


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
    lacking = (
        r"a\.fcs: no gate of .*workspace\.wsp can be read: A high \(of A-A, which the file lacks\), B high"
    )
    with pytest.raises(DataError, match=lacking):
        gates_of(cells[0]).members(open_source(tmp_path / "a.fcs"))
    monkeypatch.setitem(sys.modules, "flowkit", None)
    with pytest.raises(
        ConfigError, match=r"--compare needs flowkit \(.*pip install 'dpmix-cytometry\[flowjo\]'"
    ):
        ManualGates(tmp_path / "no.wsp", "--compare")
