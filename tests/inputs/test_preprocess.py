"""Events from files: channels, compensation, transforms, margin events, subsets, and errors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import flowio
import numpy as np
import numpy.typing as npt
import pytest
from flowutils.compensate import get_spill
from flowutils.transforms import logicle
from scipy import stats
from test_fcs import channel_keywords, make_fcs

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import blocks, gather
from dpmix.inputs.atoms import Atom
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import why_left_out
from dpmix.inputs.channels import match
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.simulate.simulation import cytometry_like
from dpmix.inputs.suggest import suggest
from dpmix.inputs.transforms import Scaling, Transform

LINEAR = {"default": {"method": "linear"}}


def events_of(base: Path, *files: str, seed: int = 1, **settings: Any) -> Events:
    return prepare(DataConfig.model_validate({"files": list(files), **settings}), base, seed)


def save(base: Path, name: str, values: npt.ArrayLike, channels: list[str]) -> None:
    np.savez(base / name, events=np.asarray(values), channels=channels)


def normal(n: int = 300, dim: int = 3, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(50, 10, (n, dim)).astype(np.float32)


# ------------------------------------------------------------------------------------ channels


def test_channels_by_marker_detector_and_glob(tmp_path: Path) -> None:
    detectors = ["FSC-A", "PE-A", "<APC-A>", "FITC-A", "PE-Cy7-A", "Time"]
    write_fcs(tmp_path / "a.fcs", normal(dim=6), detectors, ["", "CD4", "CD8", "CD8b", "", ""])
    taken = events_of(tmp_path, "a.fcs", channels=["CD8*", "<APC-A>", "PE-Cy7-A", "fsc-*"], transform=LINEAR)
    assert taken.channels == ("CD8", "CD8b", "PE-Cy7-A", "FSC-A")
    assert taken.detectors == ("<APC-A>", "FITC-A", "PE-Cy7-A", "FSC-A")
    assert events_of(tmp_path, "a.fcs", transform=LINEAR).channels == ("CD4", "CD8", "CD8b", "PE-Cy7-A")
    assert any(
        "FSC-A (scatter); Time (time)" in note
        for note in events_of(tmp_path, "a.fcs", transform=LINEAR).report.notes
    )


def test_an_exact_name_has_precedence_over_globs_and_case() -> None:
    details = [Channel("cd4"), Channel("CD4"), Channel("CD[4]"), Channel("X", marker="CD45")]
    assert match("CD4", details) == [1]
    assert match("CD[4]", details) == [2]
    assert match("Cd4", details) == [0, 1]
    assert match("CD4*", details) == [1, 3]
    assert match("CD9", details) == []


def test_a_marker_of_several_channels_is_not_a_name(tmp_path: Path) -> None:
    write_fcs(tmp_path / "a.fcs", normal(), ["PE-A", "PE-H", "APC-A"], ["CD4", "CD4", "CD8"])
    taken = events_of(tmp_path, "a.fcs", channels=["*"], transform=LINEAR)
    assert taken.channels == ("PE-A", "PE-H", "CD8")


def test_names_without_a_match_are_reported_with_the_nearest(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", normal(), ["CD3", "CD4", "CD45RA"])
    with pytest.raises(ConfigError) as caught:
        events_of(tmp_path, "a.npz", channels=["CD33", "CD4", "CD45"])
    assert len(caught.value.problems) == 2
    assert "CD33 matches no channel of a.npz, nearest: CD3" in caught.value.problems[0]
    assert "nearest: CD45RA" in caught.value.problems[1]
    with pytest.raises(ConfigError, match=r"data.transform: CD9\* matches no channel"):
        events_of(tmp_path, "a.npz", transform={"CD9*": {"method": "linear"}})


def test_names_that_are_listed_twice_are_refused(tmp_path: Path) -> None:
    write_fcs(tmp_path / "a.fcs", normal(), ["PE-A", "PE-H", "APC-A"], ["CD4", "CD4", "CD8"])
    with pytest.raises(ConfigError) as caught:
        events_of(tmp_path, "a.fcs", channels=["PE-A", "CD8", "PE-A", "APC-A"])
    assert caught.value.problems == [
        "data.channels: PE-A is listed 2 times, need each name once",
        "data.channels: CD8 and APC-A are names of one channel, APC-A of a.fcs; need one of them",
    ]
    overlapping = events_of(tmp_path, "a.fcs", channels=["PE-A", "CD4", "P*"], transform=LINEAR)
    assert overlapping.detectors == ("PE-A", "PE-H")


def test_only_scatter(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", normal(), ["FSC-A", "SSC.H", "Time"])
    assert events_of(tmp_path, "a.npz").detectors == ("FSC-A", "SSC.H")
    save(tmp_path, "a.npz", normal()[:, :2], ["Event #", "Time"])
    with pytest.raises(
        DataError, match=r"no channel is used by default: Event # \(event .*\); Time \(time\)"
    ):
        events_of(tmp_path, "a.npz")


NOT_MARKERS = """FSC-A|fsc-h|SSC-W|FSCW|FSC.H|SSC-B-A|V-SSC-A|405nm 405SSC (405/10) LogH|FS Lin|SS|FS00-A
Time|TIME|Time (102.40 sec.)|Event_length|Cell_length|Width|Offset|Residual|Center|beadDist|HDR-CE|Event #
Event|Event Count|Computed Time|EV|Unused1|Centre|DNA1|DNA_2|EQ4_beads|Norm Beads|Barcode 1|BC-3|Viability
Live/Dead|L/D|7-AAD|Zombie Aqua|Cisplatin|DAPI-A|LIVE_DEAD|Hoechst
File Number|column 1|Unnamed: 0|label|population_id|Sample|cluster no
dpmix_population|dpmix_entropy""".replace("\n", "|").split("|")


@pytest.mark.parametrize("name", NOT_MARKERS)
def test_names_that_are_not_markers(tmp_path: Path, name: str) -> None:
    save(tmp_path, "a.npz", normal(), [name, "PE-A", "CD4"])
    found = suggest([open_source(tmp_path / "a.npz")]).channels
    assert [s.taken for s in found] == [False, True, True]


MARKERS = "FL1-H|SSEA4|CD11c|DNAM1|Tim3|Labeled|PE-Cy5-A|TFSCx|BCL2|PI3K|HLA-A|Nd142Di|EQUL|Sepal Width"


@pytest.mark.parametrize("name", MARKERS.split("|"))
def test_names_that_are_markers(name: str) -> None:
    assert why_left_out([Channel(name)], None) == [""]


# ------------------------------------------------------------------------- several files in one run


def test_files_are_pooled_by_name_not_by_place(tmp_path: Path) -> None:
    one, two = normal(100, seed=1), normal(150, seed=2)
    save(tmp_path, "a.npz", one, ["CD3", "CD4", "CD8"])
    save(tmp_path, "b.npz", two[:, [2, 0, 1]], ["CD8", "CD3", "CD4"])
    pooled = events_of(tmp_path, "a.npz", "b.npz", standardize=False, transform=LINEAR)
    np.testing.assert_array_equal(pooled.values, np.vstack((one, two)))
    np.testing.assert_array_equal(pooled.sample_starts, [0, 100, 250])
    assert pooled.samples == ("a.npz", "b.npz")
    assert pooled.rows is None


def test_the_same_marker_on_another_detector(tmp_path: Path) -> None:
    one, two = normal(100, 2, seed=1), normal(150, 2, seed=2)
    write_fcs(tmp_path / "a.fcs", one, ["PE-A", "APC-A"], ["CD4", "CD8"])
    write_fcs(tmp_path / "b.fcs", two[:, ::-1], ["PE-A", "APC-A"], ["CD8", "CD4"])
    pooled = events_of(tmp_path, "a.fcs", "b.fcs", standardize=False, transform=LINEAR)
    np.testing.assert_array_equal(pooled.values, np.vstack((one, two)))
    assert any("APC-A (CD4) used as PE-A (CD4) of a.fcs" in note for note in pooled.report.notes)


def test_a_file_without_a_channel_is_named(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", normal(), ["CD3", "CD4", "CD8"])
    save(tmp_path, "b.npz", normal(), ["CD3", "CD4", "CD19"])
    with pytest.raises(DataError, match=r"b.npz: has no channel CD8, which a.npz has"):
        events_of(tmp_path, "a.npz", "b.npz")
    assert events_of(tmp_path, "a.npz", "b.npz", channels=["CD3", "CD4"]).values.shape == (600, 2)


# ------------------------------------------------------------------------------------ compensation

MATRIX = np.array([[1.0, 0.2, 0.05], [0.1, 1.0, 0.3], [0.0, 0.02, 1.0]])
SPILL = "3,A,B,C," + ",".join(str(x) for x in MATRIX.ravel())


@pytest.fixture
def true_values() -> npt.NDArray[np.float64]:
    return np.random.default_rng(4).gamma(2.0, 500.0, (400, 3))


def write_spilled(
    path: Path, true_values: npt.NDArray[np.float64], names: list[str], spill: str = SPILL
) -> None:
    stored = np.column_stack((true_values @ MATRIX, np.arange(len(true_values))))
    write_fcs(path, stored.astype(np.float32), [*names, "Time"], keywords={"$SPILLOVER": spill})


def test_compensation_by_the_file_needs_channels_that_are_not_taken(
    tmp_path: Path, true_values: npt.NDArray[np.float64]
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"])
    plain = {"standardize": False, "transform": LINEAR}
    for names in (["A", "B", "C"], ["B"], ["C", "A"]):
        events = events_of(tmp_path, "a.fcs", channels=names, **plain)
        want = true_values[:, ["ABC".index(n) for n in names]]
        np.testing.assert_allclose(events.values, want, rtol=1e-4, atol=1e-2)
        assert any(
            "compensated with the file's own spillover matrix (3 channels)" in n for n in events.report.notes
        )
    raw = events_of(tmp_path, "a.fcs", compensation="none", **plain)
    np.testing.assert_allclose(raw.values, true_values @ MATRIX, rtol=1e-6)


@pytest.mark.parametrize("rows_named", [False, True])
@pytest.mark.parametrize("comma", [False, True])
def test_compensation_from_csv(
    tmp_path: Path, true_values: npt.NDArray[np.float64], rows_named: bool, comma: bool
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"], spill="1,A,1")
    order = [2, 0, 1]  # another order than in the file
    lines = [",".join((["x"] if rows_named else []) + ["ABC"[k] for k in order])]
    lines = [lines[0][1:] if rows_named else lines[0]]  # the corner is blank
    for i in order:
        lines.append(",".join((["ABC"[i]] if rows_named else []) + [str(MATRIX[i, k]) for k in order]))
    text = "\n".join(lines) + "\n"
    if comma:  # as Excel writes it where commas are decimal
        text = text.replace(",", ";").replace(".", ",")
    (tmp_path / "matrix.csv").write_text(text)
    events = events_of(tmp_path, "a.fcs", compensation="matrix.csv", standardize=False, transform=LINEAR)
    np.testing.assert_allclose(events.values, true_values, rtol=1e-4, atol=1e-2)


def test_rows_of_a_matrix_file_go_by_their_names(
    tmp_path: Path, true_values: npt.NDArray[np.float64]
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"])
    lines = [",A,B,C", *(",".join(["ABC"[i], *map(str, MATRIX[i])]) for i in (1, 2, 0))]
    (tmp_path / "matrix.csv").write_text("\n".join(lines))
    events = events_of(tmp_path, "a.fcs", compensation="matrix.csv", standardize=False, transform=LINEAR)
    np.testing.assert_allclose(events.values, true_values, rtol=1e-4, atol=1e-2)


def test_a_missing_matrix_is_reported_if_another_file_has_one(
    tmp_path: Path, true_values: npt.NDArray[np.float64]
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"])
    save(tmp_path, "b.npz", true_values, ["A", "B", "C"])
    notes = events_of(tmp_path, "a.fcs", "b.npz", transform=LINEAR).report.notes
    assert "b.npz: not compensated: the file holds no spillover matrix" in notes
    assert not events_of(tmp_path, "b.npz", transform=LINEAR).report.notes


@pytest.mark.parametrize("form", ["<{}>", "Comp-{}"])
def test_compensated_values_are_not_compensated_again(
    tmp_path: Path, true_values: npt.NDArray[np.float64], form: str
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, [form.format(n) for n in "ABC"])
    events = events_of(tmp_path, "a.fcs", standardize=False, transform=LINEAR)
    np.testing.assert_allclose(events.values, true_values @ MATRIX, rtol=1e-6)
    assert any("not compensated again" in note for note in events.report.notes)


@pytest.mark.parametrize(
    ("spill", "message"),
    [
        ("2,A,Z,1,0.1,0,1", "names Z, which is not a channel of the file; set data.compensation to none"),
        ("2,A,B,1,1,1,1", "cannot be inverted"),
        ("2,A,B,1,0", "is not a square matrix"),
    ],
)
def test_a_matrix_that_cannot_be_used(
    tmp_path: Path, true_values: npt.NDArray[np.float64], spill: str, message: str
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"], spill)
    with pytest.raises(DataError, match=message):
        events_of(tmp_path, "a.fcs")
    assert len(events_of(tmp_path, "a.fcs", compensation="none").values) == 400


@pytest.mark.parametrize(
    "text", [None, "A,B\n1,0\n", "A,B\n1,x\n0,1\n", "", "A,A\n1,0\n0,1\n", "A,B\n1,0,0\n0,1,0,0\n"]
)
def test_a_file_that_is_not_a_matrix(
    tmp_path: Path, true_values: npt.NDArray[np.float64], text: str | None
) -> None:
    write_spilled(tmp_path / "a.fcs", true_values, ["A", "B", "C"])
    if text is not None:
        (tmp_path / "m.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"data.compensation: .*m.csv .*need auto, none, or a CSV file"):
        events_of(tmp_path, "a.fcs", compensation="m.csv")


# ------------------------------------------------------------------- amplification and transforms


def write_log_integers(path: Path) -> npt.NDArray[np.int64]:
    """Write ten-bit integers of a linear and a logarithmic channel (4 decades); FlowIO writes only floats."""
    stored = np.random.default_rng(5).integers(0, 1024, (500, 2))
    keywords = channel_keywords([16, 16], ["1024", "1024"], n_events=500) | {"$P2E": "4,0"}
    make_fcs(path, stored.astype("<u2").tobytes(), keywords)
    return stored


def test_logarithmic_amplification_is_undone(tmp_path: Path) -> None:
    stored = write_log_integers(tmp_path / "a.fcs")
    events = events_of(tmp_path, "a.fcs", standardize=False, transform=LINEAR)
    np.testing.assert_array_equal(events.values[:, 0], stored[:, 0])
    np.testing.assert_allclose(events.values[:, 1], 10.0 ** (4.0 * stored[:, 1] / 1024), rtol=1e-6)
    assert any("$PnE) undone in FL2" in note for note in events.report.notes)
    auto = events_of(tmp_path, "a.fcs")
    assert [t.method for t in auto.scaling.transforms] == ["linear", "logicle"]
    assert auto.scaling.transforms[1].t == 10_000
    kept = events_of(tmp_path, "a.fcs", standardize=False, linearize=False)
    np.testing.assert_array_equal(kept.values, stored)
    assert not any("undone" in note for note in kept.report.notes)


def test_compensation_of_a_logarithmic_scale_is_refused(tmp_path: Path) -> None:
    write_log_integers(tmp_path / "a.fcs")
    (tmp_path / "m.csv").write_text("FL1,FL2\n1,0\n0.1,1\n")
    with pytest.raises(ConfigError, match=r"data.linearize: false leaves FL2"):
        events_of(tmp_path, "a.fcs", linearize=False, compensation="m.csv")
    assert len(events_of(tmp_path, "a.fcs", compensation="m.csv").values) == 500


def test_each_method_has_its_formula(tmp_path: Path) -> None:
    raw = np.random.default_rng(6).gamma(1.0, 3000.0, (800, 5)).astype(np.float32)
    save(tmp_path, "a.npz", raw, ["a", "b", "c1", "c2", "d"])
    transform = {
        "a": {"method": "logicle", "w": 0.7, "t": 200_000.0},
        "b": {"method": "arcsinh", "cofactor": 20.0},
        "c*": {"method": "log"},
        "c2": {"method": "arcsinh"},  # a full name has precedence over a glob in any order
        "d": {"method": "linear"},
    }
    events = events_of(tmp_path, "a.npz", standardize=False, transform=transform)
    x = raw.astype(np.float64)
    want = [
        logicle(x[:, 0], None, t=200_000.0, w=0.7, m=4.5, a=0),
        np.arcsinh(x[:, 1] / 20.0),
        np.log10(x[:, 2]),
        np.arcsinh(x[:, 3] / 150.0),
        x[:, 4],
    ]
    np.testing.assert_allclose(events.values, np.column_stack(want), rtol=2e-6, atol=1e-6)
    top = events_of(tmp_path, "a.npz", transform={"default": {"method": "logicle"}}).scaling.transforms[0].t
    assert top == raw[:, 0].max()


def test_what_fits_the_instrument(tmp_path: Path) -> None:
    write_fcs(
        tmp_path / "flow.fcs", normal(), ["FSC-A", "PE-A", "PE-H"], ["", "CD4", "CD4"], {"$P2R": "5000"}
    )
    write_fcs(tmp_path / "mass.fcs", normal(), ["Time", "(Ir191)Di", "Nd142Di"], keywords={"$CYT": "CyTOF"})
    save(tmp_path, "table.npz", normal(), ["a", "b", "c"])
    scatter, area, height = suggest([open_source(tmp_path / "flow.fcs")]).channels
    assert (scatter.why, area.why) == ("scatter", "")
    assert height.why == "pulse height of the same detector as PE-A"
    assert (scatter.method, area.method, height.method) == ("linear", "logicle", "auto")
    assert str(area.transform) == "logicle t=5000 w=0 m=4.5 a=0"  # nothing is near zero
    _, dna, marker = suggest([open_source(tmp_path / "mass.fcs")]).channels
    assert (dna.why, marker.why, str(marker.transform)) == ("DNA", "", "arcsinh cofactor=5")
    assert [s.method for s in suggest([open_source(tmp_path / "table.npz")]).channels] == ["linear"] * 3
    everything = events_of(tmp_path, "flow.fcs", channels=["*"])
    assert [str(t) for t in everything.scaling.transforms][:2] == ["linear", "logicle t=5000 w=0 m=4.5 a=0"]
    by_hand = events_of(tmp_path, "flow.fcs", transform={"default": {"method": "logicle"}})
    assert [str(t) for t in by_hand.scaling.transforms] == ["logicle t=5000 w=0.5 m=4.5 a=0"]
    assert [t.cofactor for t in events_of(tmp_path, "mass.fcs").scaling.transforms] == [5.0]


def test_every_scale_can_be_inverted(tmp_path: Path) -> None:
    simulation = cytometry_like(3000, seed=3)
    simulation.write(tmp_path / "a.fcs")
    transform = {"CD3": {"method": "arcsinh"}, "FSC-A": {"method": "log"}, "default": {"method": "logicle"}}
    events = events_of(tmp_path, "a.fcs", channels=["CD3", "CD4", "FSC-A", "SSC-A"], transform=transform)
    raw = events.scaling.to_raw(events.values)
    assert simulation.spillover is not None
    light = simulation.events[:, 3:13].astype(np.float64)
    compensated = np.linalg.solve(simulation.spillover.matrix.T, light.T).T
    dyes = list(simulation.spillover.detectors)
    want = compensated[:, [dyes.index("Pacific Blue-A"), dyes.index("PerCP-Cy5-5-A")]]
    np.testing.assert_allclose(raw[:, :2], want, rtol=1e-4, atol=0.05)
    np.testing.assert_allclose(raw[:, 2:], simulation.events[:, [0, 2]], rtol=1e-4, atol=0.05)
    transformed = events.scaling.to_transformed(events.values)
    np.testing.assert_allclose(transformed.mean(0), events.scaling.means, atol=1e-6)
    np.testing.assert_allclose(
        events.scaling.covariance_to_transformed(np.cov(events.values.T)), np.cov(transformed.T), rtol=1e-6
    )


def test_scaling_through_json() -> None:
    transforms = (Transform("logicle", t=1000.0, w=0.3), Transform("arcsinh", cofactor=5.0), Transform("log"))
    scaling = Scaling(("a", "b", "c"), transforms, np.array([0.1, 2.0, 1 / 3]), np.array([1.0, 0.7, 1e-3]))
    back = Scaling.from_attributes(json.loads(json.dumps(scaling.as_attributes())))
    assert (back.channels, back.transforms) == (scaling.channels, scaling.transforms)
    np.testing.assert_array_equal(back.means, scaling.means)
    np.testing.assert_array_equal(back.sds, scaling.sds)


@pytest.mark.parametrize("bad", [{"t": 0.0}, {"w": 3.0}, {"m": 0.0}, {"a": -1.0}, {"w": -0.1}])
def test_logicle_parameters_that_flowutils_would_ignore(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="logicle"):
        Transform("logicle", **({"t": 1000.0} | bad))


# ---------------------------------------------------------------------------------- standardisation


def test_standardised_events_have_mean_0_and_sd_1_far_from_0(tmp_path: Path) -> None:
    values = np.random.default_rng(7).normal(1e6, 10.0, (70_000, 2))
    save(tmp_path, "a.npz", values.astype(np.float32), ["a", "b"])
    events = events_of(tmp_path, "a.npz")
    assert events.values.dtype == np.float32
    assert events.values.flags.c_contiguous
    exact = values.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(events.scaling.means, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(events.scaling.sds, exact.std(0), rtol=1e-9)
    np.testing.assert_allclose(events.values.mean(0, dtype=np.float64), 0, atol=1e-7)
    np.testing.assert_allclose(events.values.std(0, dtype=np.float64), 1, atol=1e-6)


def test_the_hash_is_of_the_values_and_names(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", normal(), ["a", "b", "c"])
    save(tmp_path, "b.npz", normal(), ["a", "b", "d"])
    save(tmp_path, "c.npz", normal(seed=2), ["a", "b", "c"])
    hashes = [events_of(tmp_path, f"{name}.npz").data_hash for name in "aabc"]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


# -------------------------------------------------------------------------------- margins and atoms


def saturated(tmp_path: Path) -> npt.NDArray[np.float32]:
    values = np.random.default_rng(8).normal(100_000, 5000, (2000, 2)).astype(np.float32)
    values[:40, 0] = 262_143
    values[:7, 1] = 262_143
    values[100:130, 1] = -111.0
    write_fcs(tmp_path / "a.fcs", values, ["PE-A", "APC-A"])
    return values


@pytest.mark.parametrize("chunk", [64, 65_536])
def test_margin_events_are_always_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(blocks, "READ_BLOCK", chunk)
    values = saturated(tmp_path)
    events = events_of(tmp_path, "a.fcs", standardize=False, transform=LINEAR, atoms="report")
    np.testing.assert_array_equal(events.values, values)
    one, two = events.report.channels
    assert (one.low, one.high, two.low, two.high) == (0, 40, 30, 7)
    assert (one.share, two.share) == (40 / 2000, 37 / 2000)
    assert one.atoms == (Atom(262_143, 40, "kept", 0.0),)
    assert two.atoms == (Atom(-111, 30, "kept", 0.0),)
    assert (two.minimum, two.maximum, two.negative) == (-111, 262_143, 30)
    assert events.report.n_dropped == 0
    assert any(
        "margin events (kept)" in line and "APC-A 30 low, 7 high (1.85%)" in line
        for line in events.report.lines()
    )
    assert any(
        "atoms" in line and "unchanged" in line and "PE-A 40 at 262143 (2.00%)" in line
        for line in events.report.lines()
    )
    json.dumps(asdict(events.report))


def test_margin_events_are_dropped_when_asked(tmp_path: Path) -> None:
    values = saturated(tmp_path)
    events = events_of(tmp_path, "a.fcs", standardize=False, transform=LINEAR, margin_events="drop")
    kept = np.r_[40:100, 130:2000]
    np.testing.assert_array_equal(events.values, values[kept])
    assert events.rows is not None
    np.testing.assert_array_equal(events.rows, kept)
    np.testing.assert_array_equal(events.sample_starts, [0, len(kept)])
    assert (events.report.n_read, events.report.n_dropped) == (2000, 70)
    assert (events.report.channels[0].high, events.report.channels[1].low) == (40, 30)


def test_a_range_that_values_exceed_is_no_margin(tmp_path: Path) -> None:
    """Some programs write one $PnR for all channels, here far below the values of two of them."""
    values = np.random.default_rng(9).gamma(0.5, 4000, (2000, 3)).astype(np.float32)
    values[:, 2] = np.minimum(values[:, 2] / 8, 1000)
    write_fcs(tmp_path / "a.fcs", values, ["A", "B", "C"], keywords={f"$P{k}R": "1024" for k in (1, 2, 3)})
    events = events_of(tmp_path, "a.fcs", margin_events="drop", transform=LINEAR)
    n_clipped = int((values[:, 2] == 1000).sum())
    assert n_clipped > 10
    assert [channel.high for channel in events.report.channels] == [0, 0, n_clipped]
    assert events.report.n_dropped == n_clipped


def test_saturated_events_a_little_above_the_range_are_margin_events(tmp_path: Path) -> None:
    values = np.random.default_rng(9).integers(0, 4_000, (2000, 2)).astype("<u4")
    values[:90, 1] = 2**24 + 400_000 + np.arange(90)
    keywords = channel_keywords([32, 32], [str(2**24)] * 2, n_events=2000)
    make_fcs(tmp_path / "a.fcs", values.tobytes(), keywords)
    report = events_of(tmp_path, "a.fcs", transform=LINEAR).report
    assert report.channels[1].high == 90
    assert report.channels[1].maximum == np.float32(2**24 + 400_089)
    assert "FL2: 90 of 2000 values read are above $P2R (16777216)" in report.warnings[0]


TRANSFORMED = "2,A,B,1,0.35,0.12,1"


@pytest.mark.parametrize("noted", [False, True])
def test_values_that_are_transformed_already_stay_as_they_are(tmp_path: Path, noted: bool) -> None:
    """A file that R wrote after compensate() and transform(), with the matrix and $PnR of the instrument."""
    values = np.random.default_rng(9).normal([0.4, 2.9, 3.1], 0.3, (900, 3)).astype(np.float32)
    keywords = {"$SPILLOVER": TRANSFORMED, "$CYT": "LSRII"}
    keywords |= {"transformation": "custom", "flowCore_$P1Rmax": "4.5"} if noted else {}
    values *= 900 if noted else 1  # biexponential of flowCore: 0 to 4,096
    write_fcs(tmp_path / "a.fcs", values, ["A", "B", "FSC-A"], keywords=keywords)
    events = events_of(tmp_path, "a.fcs", standardize=False)
    np.testing.assert_array_equal(events.values, values[:, :2])
    assert {transform.method for transform in events.scaling.transforms} == {"linear"}
    (warning,) = events.report.warnings
    assert warning.startswith("a.fcs: values are transformed already (")
    assert suggest([open_source(tmp_path / "a.fcs")]).compensation == "none"


def test_one_wild_value_hides_no_transform(tmp_path: Path) -> None:
    values = np.random.default_rng(9).normal([0.4, 2.9, 3.1], 0.3, (900, 3)).astype(np.float32)
    values[7, 1] = 1e6
    write_fcs(tmp_path / "a.fcs", values, ["A", "B", "FSC-A"], keywords={"$SPILLOVER": TRANSFORMED})
    assert open_source(tmp_path / "a.fcs").transformed.startswith("no value is above 3.")


@pytest.mark.parametrize("found", [True, False])
def test_channels_of_two_scales_are_a_warning(tmp_path: Path, found: bool) -> None:
    """One of two channels is transformed; or has whole numbers, as counts do."""
    values = np.random.default_rng(9).normal([0.4, 2900, 3000], [0.3, 900, 100], (900, 3)).astype(np.float32)
    values[:, 0] = values[:, 0] if found else np.rint(4 * values[:, 0])
    write_fcs(tmp_path / "a.fcs", values, ["A", "B", "FSC-A"], keywords={"$SPILLOVER": TRANSFORMED})
    warnings = open_source(tmp_path / "a.fcs").warnings
    assert [text.partition(" is above ")[0] for text in warnings] == (["no value of A"] if found else [])


@pytest.mark.parametrize(
    ("scale", "keywords"),
    [
        (
            300.0,
            {"transformation": "applied", "flowCore_$P1Rmax": "262143"},
        ),  # read.FCS notes this of raw values
        (300.0, {"transformation": "custom", "flowCore_$P1Rmax": "200000"}),
        (0.3, {"$P1R": "1000", "$P2R": "1000"}),  # dim events of a range of 1,000
        (300.0, {}),
    ],
)
def test_values_that_are_not_transformed_are_compensated(
    tmp_path: Path, scale: float, keywords: dict[str, str]
) -> None:
    values = np.random.default_rng(9).gamma(0.7, 60 * scale, (900, 3)).astype(np.float32)
    write_fcs(tmp_path / "a.fcs", values, ["A", "B", "C"], keywords={"$SPILLOVER": TRANSFORMED} | keywords)
    events = events_of(tmp_path, "a.fcs")
    assert events.spillovers[0] is not None
    assert events.report.warnings == ()


@pytest.mark.parametrize("method", ["logicle", "linear"])
@pytest.mark.parametrize("factor", [1e6, -1e6])
def test_one_value_far_from_all_others_is_named(tmp_path: Path, method: str, factor: float) -> None:
    values = np.random.default_rng(9).normal(300, 60, (2000, 2)).astype(np.float32)
    scale = {} if method == "logicle" else {"transform": LINEAR}
    write_fcs(tmp_path / "a.fcs", values, ["A", "B"])
    usual = events_of(tmp_path, "a.fcs", **scale)
    assert usual.report.warnings == ()
    values[7, 1] *= factor
    write_fcs(tmp_path / "a.fcs", values, ["A", "B"])
    if method == "linear":  # all others would be one value in units of the standard deviation
        with pytest.raises(DataError, match=r"a few events lie so far away .*: B \(99\.8% from "):
            events_of(tmp_path, "a.fcs", **scale)
        return
    events = events_of(tmp_path, "a.fcs", **scale)
    (warning,) = events.report.warnings
    assert warning.startswith(f"B: 1 value is {float(values[7, 1]):.6g}, and all others are ")
    assert warning.endswith("; correct or remove these events in the file")
    if factor > 0:
        assert events.scaling.transforms == usual.scaling.transforms, "one value sets no scale"


def test_rare_bright_cells_are_no_outliers(tmp_path: Path) -> None:
    values = np.random.default_rng(9).normal(0, 40, (20_000, 2)).astype(np.float32)
    values[:5, 1] = [2e4, 5e4, 9e4, 1e5, 2e5]
    write_fcs(tmp_path / "a.fcs", values, ["A", "B"])
    assert events_of(tmp_path, "a.fcs").report.warnings == ()


def test_zero_is_not_a_margin_of_a_mass_cytometer(tmp_path: Path) -> None:
    values = np.maximum(np.random.default_rng(9).normal(0, 20, (1000, 1)), 0).astype(np.float32)
    for name, instrument, low in (("a.fcs", "CyTOF", 0), ("b.fcs", "LSRII", int((values == 0).sum()))):
        write_fcs(tmp_path / name, values, ["Nd142"], keywords={"$CYT": instrument})
        report = events_of(tmp_path, name, atoms="report").report.channels[0]
        assert report.low == low
        assert report.atoms == (Atom(0.0, int((values == 0).sum()), "kept", 0.0),)


def test_values_beyond_the_top_of_a_logicle_scale_are_counted(tmp_path: Path) -> None:
    write_fcs(
        tmp_path / "a.fcs", np.arange(100, dtype=np.float32)[:, None], ["PE-A"], keywords={"$P1R": "90"}
    )
    report = events_of(tmp_path, "a.fcs", transform={"default": {"method": "logicle"}}).report
    assert report.channels[0].beyond_top == 9
    assert any(
        "above the top (t) of the logicle scale" in line and "PE-A 9" in line for line in report.lines()
    )


# ----------------------------------------------------------------------------------------- subsample


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "READ_BLOCK", 64)


@pytest.mark.usefixtures("small_blocks")
def test_a_subset_is_drawn_from_all_files_by_the_seed(tmp_path: Path) -> None:
    one, two = np.arange(1000.0), np.arange(1000.0, 4000.0)
    save(tmp_path, "a.npz", one[:, None], ["x"])
    save(tmp_path, "b.npz", two[:, None], ["x"])
    settings = {"standardize": False, "max_events": 800}
    events = events_of(tmp_path, "a.npz", "b.npz", **settings)
    values = events.values[:, 0]
    assert len(values) == 800
    assert (np.diff(values) > 0).all()
    assert events.rows is not None
    start = events.sample_starts[1]
    np.testing.assert_array_equal(events.rows, np.concatenate((values[:start], values[start:] - 1000)))
    assert (values[:start] < 1000).all()
    assert (values[start:] >= 1000).all()
    assert any("800 of 4000 events" in note for note in events.report.notes)
    np.testing.assert_array_equal(events_of(tmp_path, "a.npz", "b.npz", **settings).values, events.values)
    assert not np.array_equal(events_of(tmp_path, "a.npz", "b.npz", seed=2, **settings).values, events.values)
    all_of_them = events_of(tmp_path, "a.npz", "b.npz", standardize=False, max_events=4000)
    assert all_of_them.rows is None
    settings |= {"max_events": 4000, "margin_events": "drop"}
    dropped = events_of(tmp_path, "a.npz", "b.npz", **settings)
    assert not any("at random" in note for note in dropped.report.notes)


@pytest.mark.usefixtures("small_blocks")
def test_every_event_has_the_same_probability_in_a_subset() -> None:
    sizes, taken = [100, 37, 203], np.zeros(340)
    for seed in range(400):
        selection = gather.select_rows(sizes, 85, seed)
        offset = 0
        for size in sizes:
            for start, _ in blocks.blocks(size):
                picked = next(selection)
                assert picked is not None
                taken[offset + start + picked] += 1
            offset += size
    assert taken.sum() == 400 * 85
    # 340 events, each taken with probability 1/4 in 400 samples; the sum is fixed
    chi2 = ((taken - 100) ** 2 / (400 * 0.25 * 0.75)).sum()
    assert 1e-4 < stats.chi2.sf(chi2, 339) < 1 - 1e-4


@pytest.mark.usefixtures("small_blocks")
def test_the_size_of_a_block_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cytometry_like(1000, seed=4).write(tmp_path / "a.fcs")
    small = events_of(tmp_path, "a.fcs")
    monkeypatch.setattr(blocks, "READ_BLOCK", 65_536)
    large = events_of(tmp_path, "a.fcs")
    np.testing.assert_allclose(small.values, large.values, atol=1e-5)
    assert [c.atoms for c in small.report.channels] == [c.atoms for c in large.report.channels]
    assert [(c.low, c.high) for c in small.report.channels] == [
        (c.low, c.high) for c in large.report.channels
    ]


# -------------------------------------------------------------------------------------------- errors


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    values = normal()
    values[17, 1] = np.nan
    values[20:24, 1] = np.inf
    values[5, 2] = -np.inf
    save(tmp_path, "a.npz", values, ["CD3", "CD4", "CD8"])
    with pytest.raises(DataError) as caught:
        events_of(tmp_path, "a.npz")
    message = str(caught.value)
    assert "a.npz" in message
    assert "CD4 (1 NaN, 4 infinite, first in event 17), CD8 (0 NaN, 1 infinite, first in event 5)" in message
    assert "data.channels" in message
    assert events_of(tmp_path, "a.npz", channels=["CD3"]).values.shape == (300, 1)


def test_a_constant_channel(tmp_path: Path) -> None:
    values = normal()
    values[:, 1] = 7.7
    save(tmp_path, "a.npz", values, ["CD3", "CD4", "CD8"])
    default = events_of(tmp_path, "a.npz")
    assert default.channels == ("CD3", "CD8")
    assert any("CD4 (constant: 7.7 in all 300 events read)" in note for note in default.report.notes)
    with pytest.raises(DataError, match="constant in all 300 events: CD4; exclude constant channels"):
        events_of(tmp_path, "a.npz", channels=["CD*"])


def test_values_near_each_other_and_far_from_0_are_a_warning(tmp_path: Path) -> None:
    """float32 numbers near 10,000 are 0.001 apart, near 100 a hundredth of that."""
    values = 1e-3 * normal().astype(np.float64)
    for offset, steps in ((0.0, None), (100.0, None), (-1e4, "0.00098"), (2.0**24, "2")):
        np.save(tmp_path / "a.npy", values * (1e3 if offset > 1e6 else 1.0) + offset)
        warnings = events_of(tmp_path, "a.npy", transform={"default": {"method": "linear"}}).report.warnings
        found = [warning for warning in warnings if f"are rounded to steps of {steps} (float32)" in warning]
        assert len(found) == len(warnings) == (0 if steps is None else 3)


def test_fewer_events_than_channels(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", normal(2), ["CD3", "CD4", "CD8"])
    with pytest.raises(DataError, match="found 2 events in 3 channels"):
        events_of(tmp_path, "a.npz")
    save(tmp_path, "b.npz", normal(), ["CD3", "CD4", "CD8"])
    with pytest.raises(DataError, match="found 1 events in 3 channels"):
        events_of(tmp_path, "b.npz", max_events=1)


def test_the_logarithm_requires_positive_values(tmp_path: Path) -> None:
    values = normal()
    values[:4, 0] = [0, -1, 0, 5]
    save(tmp_path, "a.npz", values, ["CD3", "CD4", "CD8"])
    with pytest.raises(DataError, match=r"transform log: values at or below 0 in CD3 \(3 events\)"):
        events_of(tmp_path, "a.npz", transform={"default": {"method": "log"}})


def test_a_logicle_scale_without_a_top(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", -normal(), ["CD3", "CD4", "CD8"])
    with pytest.raises(ConfigError, match="need t > 0"):
        events_of(tmp_path, "a.npz", transform={"default": {"method": "logicle"}})


# ---------------------------------------------------------------------------------------- real files


def test_real_samples_become_events(shared_data: Path) -> None:
    panel = events_of(shared_data, "fcs/100715.fcs")
    assert panel.values.shape == (65_016, 12)  # without VIVID / CD14
    assert panel.channels[:3] == ("KI67", "CD3", "CD28")
    assert {t.method for t in panel.scaling.transforms} == {"logicle"}
    samples = events_of(shared_data, "fcs/G69*.fcs")
    np.testing.assert_array_equal(samples.sample_starts, [0, 25_884, 52_160, 86_456])
    assert sum("not compensated again" in note for note in samples.report.notes) == 3
    old = events_of(shared_data, "fcs/3FITC_4PE_004.fcs")
    assert [c.low for c in old.report.channels] == [283, 199]


def test_compensation_of_the_mouse_sample_is_that_of_its_gating(shared_data: Path) -> None:
    path = "labelled/flowsom_68983.fcs"
    mine = events_of(shared_data, path, channels=["CD4", "TCRb"], standardize=False, transform=LINEAR).values
    flow = flowio.FlowData(shared_data / path)
    matrix, names = get_spill(flow.text["spill"])
    columns = [flow.pnn_labels.index(n) for n in names]
    theirs = flow.as_array(preprocess=False)[:, columns] @ np.linalg.inv(matrix)
    want = theirs[:, [names.index("PE-Texas Red-A"), names.index("APC-Cy7-A")]]
    np.testing.assert_allclose(mine, want, rtol=1e-5, atol=0.01)


@pytest.mark.parametrize("far", [1e30, 1e6])
def test_a_few_events_that_hide_all_others_are_refused(tmp_path: Path, far: float) -> None:
    values = np.concatenate([normal(5_000), [[far, 50.0, 50.0]]])
    np.save(tmp_path / "far.npy", values.astype(np.float32))
    with pytest.raises(
        DataError, match=r"cannot be distinguished: ch0 \(99\.8% from .*; remove these events"
    ):
        events_of(tmp_path, "far.npy")
    assert len(events_of(tmp_path, "far.npy", channels=["ch1", "ch2"]).values) == 5_001


def test_distant_events_that_hide_nothing_and_channels_of_zeros_are_accepted(tmp_path: Path) -> None:
    values = np.concatenate([normal(5_000), [[1e4, 50.0, 50.0]]])
    values[:, 2] = 0.0
    values[::2_000, 2] = 1e6  # 3 events
    np.save(tmp_path / "far.npy", values.astype(np.float32))
    assert len(events_of(tmp_path, "far.npy", atoms="report").values) == 5_001
