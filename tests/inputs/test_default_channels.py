"""The channels, compensation and transforms that files get by default, in a run and by `dpmix init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flowio
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.config.data import DataConfig
from dpmix.errors import DataError
from dpmix.inputs import default_channels, mass
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import measurement, why_left_out
from dpmix.inputs.default_channels import MOST_EVENTS, choose_channels, some_rows
from dpmix.inputs.event_times import time_channel
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.file_plans import has_gain
from dpmix.inputs.opening import open_source
from dpmix.inputs.preprocess import Recorded, prepare
from dpmix.inputs.sources import Source
from dpmix.inputs.suggest import Settings, suggest
from dpmix.inputs.transformed import are_light
from dpmix.inputs.transforms import Transform

RNG = np.random.default_rng(1)
LINEAR = {"default": {"method": "linear"}}


def settings_of(path: Path) -> Settings:
    return suggest([open_source(path)])


def reasons(path: Path) -> dict[str, str]:
    return {s.detector: s.why for s in settings_of(path).channels}


def events_of(path: Path, **settings: Any) -> Events:
    return prepare(DataConfig.model_validate({"files": [path.name], **settings}), path.parent, 1)


def flow(n: int = 400, dim: int = 3) -> npt.NDArray[np.float32]:
    return RNG.normal(100, 60, (n, dim)).astype(np.float32)


# ------------------------------------------------------------------------------- repeated measurements


@pytest.mark.parametrize(
    ("spelled", "quantity", "scale"),
    [
        ("FL1-A", "area", ""),
        ("FL1-Height", "height", ""),
        ("FL1_Log_Area", "area", "log"),
        ("FL1 LogH", "height", "log"),
        ("FL1 LinA", "area", "lin"),
        ("FL1-HLog", "height", "log"),
        ("FL1 INT LIN", "area", "lin"),
        ("FL1 INT LOG", "area", "log"),
        ("FL1 PEAK", "peak", ""),
        ("FL1 TOF", "width", ""),
        ("FL1 Lin", "", "lin"),
        ("FL1-Area-Log", "area", "log"),
        ("FL1.width", "width", ""),
        ("FL1 Linear", "", "lin"),
        ("FL1W", "width", ""),
        ("FL1Log", "", "log"),
    ],
)
def test_a_measurement_in_every_spelling(spelled: str, quantity: str, scale: str) -> None:
    assert measurement(spelled, [spelled, "FL1"]) == ("fl1", quantity, scale, False)


@pytest.mark.parametrize("name", ["-A", "_lin", " - Height", "-A-A", "A"])
@pytest.mark.parametrize("of_instrument", [False, True])
def test_a_name_that_is_only_a_measurement_ends(name: str, of_instrument: bool) -> None:
    assert measurement(name, [name, "B"], of_instrument).stem


@pytest.mark.parametrize(
    ("detectors", "used"),
    [
        (["FL1-A", "FL1-H", "FL1-W", "FL2-A"], ["FL1-A", "FL2-A"]),
        (["FL1-H", "FL2-H"], ["FL1-H", "FL2-H"]),
        (["450-50", "450-50W", "450-50H"], ["450-50"]),
        (["450-50A", "450-50W"], ["450-50A"]),
        (["450-50W", "530-30"], ["450-50W", "530-30"]),  # a name that only looks like a width
        (["FL1 INT LIN", "FL1 INT LOG", "FL1 PEAK LIN", "FL1 TOF"], ["FL1 INT LIN"]),
        (["488 513/26-Height", "488 513/26-Area", "488 513/26-Area-Log"], ["488 513/26-Area"]),
        (["PE Log_Height", "PE Log_Area", "PE Lin_Area"], ["PE Lin_Area"]),
        (["<PE-A>", "PE-A", "PE-H"], ["<PE-A>"]),
        (["Comp-PE-A", "PE-A"], ["Comp-PE-A"]),
        (["PerCP-Cy5-5-A", "PerCP-A"], ["PerCP-Cy5-5-A", "PerCP-A"]),
        (["FL1-W", "FL2-A"], ["FL2-A"]),  # a width alone is not a marker
    ],
)
def test_one_measurement_of_each_detector(detectors: list[str], used: list[str]) -> None:
    found = why_left_out([Channel(name, range=262_144.0) for name in detectors], "fluorescence")
    assert [name for name, why in zip(detectors, found, strict=True) if not why] == used


def test_the_measurement_with_the_resolution_is_used() -> None:
    """FACSCalibur: the area of FL2 is linear in 1,024 steps, its height logarithmic."""
    area = Channel("FL2-A", range=1024.0, integer=True)
    height = Channel("FL2-H", range=1024.0, integer=True, log=(4.0, 1.0))
    assert why_left_out([height, area], "fluorescence") == ["", "pulse area of the same detector as FL2-H"]
    fine = Channel("FL2-A", range=262_144.0, integer=True)
    assert why_left_out([height, fine], "fluorescence") == ["pulse height of the same detector as FL2-A", ""]


@pytest.mark.parametrize(
    "name",
    [
        "Original_ID",
        "orig_id",
        "Index",
        "id",
        "subject_id",
        "Run_ID",
        "goodAndMonotonic",
        "is_doublet",
        "Singlets",
        "bh.SNE.1",
        "X_umap_1",
        "UMAP_Y_1",
        "DiffMap_1",
        "SOM_node",
        "cluster20",
        "consensus_cluster",
        "seurat_clusters",
        "hdbscan",
        "k.means",
        "FLOCK",
        "gated",
        "Annotation",
        "Sort_Gate",
        "sort.decision",
        "Index_X",
        "dist",
        "mahalanobis",
        "remove_from_all",
        "remove_from_FR",
        "QCvector",
        "QC_flag",
        "GoodVsBad",
        "Fluidic_Outlier",
        "tSNE1",
        "t-SNE_2",
        "bh-SNE1",
        "viSNE_X",
        "UMAP_1",
        "UMAP2",
        "UMAP-X",
        "PHATE1",
        "FlowSOM",
        "FlowSOM_metacluster",
        "FlowSOM.clusters",
        "Phenograph",
        "Rphenograph",
        "Phenograph_clusters",
        "metaclustering",
        "Metacluster_ID",
        "meta_cluster",
        "SOMcluster",
        "X-shift",
        "leiden",
        "louvain_0.5",
        "Gate_source",
        "gate",
        "SORT",
        "EventNum",
        "absoluteEventNumber",
        "event_number",
        "cell_id",
        "FileNo",
        "file_id",
        "sample_id",
        "Donor",
        "cell_type",
        "PeacoQC",
        "Sort Classifier",
        "Sort Result Bits",
        "ROI Bits 1-16",
        "Drop Phase",
    ],
)
def test_columns_that_other_programs_add_are_no_markers(name: str) -> None:
    named = [Channel("PE-A", "CD3"), Channel("APC-A", "CD4"), Channel(name, range=262_144.0)]
    assert [bool(why) for why in why_left_out(named, "fluorescence")] == [False, False, True]
    if name[:4].casefold() not in ("sort", "roi ", "drop", "dist", "maha") and name != "Index_X":
        assert why_left_out([Channel("P12", name)], None)[0], "by its marker, too"


@pytest.mark.parametrize(
    "name",
    [
        "CD3",
        "SORT1",
        "Sortilin",
        "SOM230",
        "IDO1",
        "Runx3",
        "Indo-1",
        "PopG",
        "Doublecortin",
        "Siglec8",
        "Well-done",
        "PCA-1",
        "PC5",
        "PC7",
        "QC1",
        "TIM3",
        "Timer-Blue-A",
        "Timer-Red",
        "TIMD4",
        "Gata3",
        "GATA-3",
        "FLOT1",
        "Label-free",
        "CellTrace",
        "CellMask",
        "Phospho-S6",
        "Mapk",
        "Clusterin",
        "Sample-Tag",
        "BATF",
        "IndividualDye",
        "DC-SIGN",
        "KLRG1",
        "Event-Dye",
        "SNEP",
        "UMAPK",
    ],
)
def test_markers_whose_names_are_similar_stay(name: str) -> None:
    assert why_left_out([Channel(name, range=262_144.0)], "fluorescence") == [""]
    assert why_left_out([Channel("PE-A", name)], "fluorescence") == [""]


def test_a_timer_is_no_clock(tmp_path: Path) -> None:
    values = np.column_stack((flow(400, 2), np.arange(400)))
    write_fcs(tmp_path / "a.fcs", values, ["Timer-Blue-A", "Timer-Red-A", "Time"], keywords={"$P1G": "2.0"})
    source = open_source(tmp_path / "a.fcs")
    assert source.warnings == (), "a reporter that does not ascend shows no reordered events"
    assert time_channel(source) == 2
    assert events_of(tmp_path / "a.fcs").detectors == ("Timer-Blue-A", "Timer-Red-A")
    assert has_gain(source.details[0])
    write_fcs(tmp_path / "b.fcs", values[:, :2], ["Timer-Blue-A", "Timer-Red-A"])
    assert time_channel(open_source(tmp_path / "b.fcs")) is None


DUAL = ["Time", "Ir(190.960)-Dual", "Cd(109.903)-Dual", "Cd(110.904)-Dual", "Nd(141.907)-Dual", "Cd(110,111)"]
STAINS = ["", "191-DNA", "110-CD3", "111-CD3", "142-CD19", "110_111-CD3"]


def test_the_first_mass_cytometers(tmp_path: Path) -> None:
    """Detectors are named by their mass, without $CYT; a sum of isotopes stands next to them."""
    counts = np.random.default_rng(3).poisson(30, (400, 6)).astype(np.float32)
    write_fcs(tmp_path / "a.fcs", counts, DUAL, STAINS)
    source = open_source(tmp_path / "a.fcs")
    assert source.kind == "mass"
    assert reasons(tmp_path / "a.fcs") == dict.fromkeys(DUAL, "") | {
        "Time": "time",
        "Ir(190.960)-Dual": "DNA",
        "Cd(109.903)-Dual": "part of the sum Cd(110,111)",
        "Cd(110.904)-Dual": "part of the sum Cd(110,111)",
    }
    assert {str(one) for one in events_of(tmp_path / "a.fcs").scaling.transforms} == {"arcsinh cofactor=5"}
    assert [mass.target(channel) for channel in source.details[1:]] == ["DNA", "CD3", "CD3", "CD19", "CD3"]
    assert mass.isotopes("Cd(110,111)") == ["Cd110", "Cd111"]
    assert mass.isotope("Nd(141.907)-Dual") == "Nd142"


def test_words_in_a_table_are_variables() -> None:
    names = ["cell area", "cell width", "CD3", "PE-A", "PE-H"]
    assert [bool(why) for why in why_left_out([Channel(name) for name in names], None)] == [False] * 4 + [
        True
    ]


# --------------------------------------------------------------------------------- what the events show


def test_constant_empty_and_duplicate_channels(tmp_path: Path) -> None:
    values = flow(dim=5)
    values[:, 1], values[:, 2], values[:, 4] = 3.0, values[:, 0], np.nan
    path = tmp_path / "a.fcs"
    write_fcs(path, values, ["A", "B", "C", "D", "E"])
    assert reasons(path) == {
        "A": "",
        "B": "constant: 3 in all 400 events read",
        "C": "copy of A in all 400 events read",
        "D": "",
        "E": "empty: no number in all 400 events read",
    }
    assert events_of(path).detectors == ("A", "D"), "a run and init have the same rules"
    values[7, 3] = np.nan
    write_fcs(path, values, ["A", "B", "C", "D", "E"])
    assert reasons(path)["D"] == "", "one event does not decide about a marker"
    events = events_of(path)
    assert events.detectors == ("A", "D")
    assert events.rows is not None
    np.testing.assert_array_equal(events.rows, np.delete(np.arange(400), 7))
    (warning,) = events.report.warnings
    where = "values that are not finite in D (1 NaN, 0 infinite, first in event 7), counting events from 0"
    assert warning == f"a.fcs: 1 of 400 events are left out: {where}"
    assert (events.report.n_read, events.report.n_dropped) == (399, 0)
    values[:9, 3] = np.inf
    write_fcs(path, values, ["A", "B", "C", "D", "E"])
    assert reasons(path)["D"] == "not finite: 9 of 400 values read"
    with pytest.raises(DataError, match=r"not finite in D \(0 NaN, 9 inf"):  # nor are many events left out
        events_of(path)


def test_where_no_channel_measures_a_marker_what_there_is_is_used(tmp_path: Path) -> None:
    values = np.column_stack((flow(400, 3), np.arange(400)))
    for names, used in (
        (["SSC-A", "PI-A", "PI-W", "Time"], "PI-A"),
        (["SSC-A", "FL2-A", "FL2-H", "Time"], "FL2-A"),
        (["FSC-A", "SSC-A", "SSC-W", "Time"], "FSC-A, SSC-A"),
    ):
        stained = ["", "DNA PI" if names[1] == "FL2-A" else "", "", ""]
        write_fcs(tmp_path / "a.fcs", values, names, stained)
        events = events_of(tmp_path / "a.fcs")
        assert ", ".join(events.detectors) == used
        note = f"a.fcs: no channel measures a marker by its name; used are {used}"
        assert note in events.report.notes
        assert note in settings_of(tmp_path / "a.fcs").notes


def test_a_raw_spectral_file_says_so(tmp_path: Path) -> None:
    values = np.abs(flow(400, 31)) + 30
    names = [f"V{k}-A" for k in range(1, 32)]
    write_fcs(tmp_path / "a.fcs", values, names)
    (warning,) = open_source(tmp_path / "a.fcs").warnings
    assert warning.startswith("31 detectors without a marker or matrix look like a spectral cytometer's")
    for found in (
        {"channels": names, "markers": ["CD3", *[""] * 30]},
        {"channels": names, "keywords": {"$SPILLOVER": "2,V1-A,V2-A,1,0.1,0,1"}},
        {"channels": [f"{name[:-2]}-{pulse}" for name in names[:10] for pulse in "AHW"] + ["X"]},
    ):
        write_fcs(tmp_path / "a.fcs", values, **found)
        assert open_source(tmp_path / "a.fcs").warnings == ()
    write_fcs(tmp_path / "a.fcs", values, names, keywords={"$SPILLOVER": "2,V1-A,V2-A,1,0,0,1"})
    assert open_source(tmp_path / "a.fcs").warnings == (warning,), "the identity matrix unmixes nothing"
    np.savez(tmp_path / "a.npz", events=values, channels=names)
    (of_table,) = open_source(tmp_path / "a.npz").warnings
    assert of_table.startswith("31 columns are named like a spectral cytometer's")


def test_a_bounded_number_of_events_is_read() -> None:
    def source(n_events: int) -> Source:
        return Source(
            "s", (Channel("A"),), n_events, lambda start, stop, columns: np.empty((stop - start, 1))
        )

    for sizes in ([10], [0, 70_000], [10**9], [10**7] * 5_000, [1] * 10_000, [10**6, 3]):
        rows = some_rows([source(size) for size in sizes])
        assert len(rows) == len(sizes)
        read = sum(stop - start for stretches in rows for start, stop in stretches)
        assert read <= 1.1 * MOST_EVENTS
        assert read >= min(sum(sizes), MOST_EVENTS) * 0.9 or len(sizes) > default_channels.MOST_FILES
        for stretches, size in zip(rows, sizes, strict=True):
            assert all(0 <= start < stop <= size for start, stop in stretches)


def test_a_channel_is_constant_only_if_all_files_say_so(tmp_path: Path) -> None:
    one, two = flow(dim=2), flow(dim=2)
    one[:, 1] = 5.0
    write_fcs(tmp_path / "a.fcs", one, ["A", "B"])
    write_fcs(tmp_path / "b.fcs", two, ["A", "B"])
    sources = [open_source(tmp_path / name) for name in ("a.fcs", "b.fcs")]
    assert choose_channels(None, sources)[0] == [[0, 1], [0, 1]]
    assert all(s.taken for s in suggest(sources).channels)


def test_more_channels_than_dpmix_takes(tmp_path: Path) -> None:
    names = [f"D{k}" for k in range(70)]
    write_fcs(tmp_path / "a.fcs", flow(dim=70), names, ["CD3", "CD4"] + [""] * 68)
    assert [s.taken for s in settings_of(tmp_path / "a.fcs").channels] == [True, True] + [False] * 68
    write_fcs(tmp_path / "b.fcs", flow(dim=70), names)
    with pytest.raises(DataError, match="found 70 channels, need 64 at most"):
        settings_of(tmp_path / "b.fcs")


def test_too_few_events(tmp_path: Path) -> None:
    write_fcs(tmp_path / "a.fcs", flow(2), ["A", "B", "C"])
    with pytest.raises(DataError, match="found 2 events in 3 channels, need at least as many"):
        settings_of(tmp_path / "a.fcs")


# -------------------------------------------------------------------------------------------- spillover


@pytest.mark.parametrize(
    ("spillover", "why"),
    [
        ("2,PE-A,APC-A,1,0,0,1", "is the identity matrix"),
        ("2,FL1,FL2,1,0,0,1", "is the identity matrix"),
    ],
)
def test_a_matrix_that_does_nothing(tmp_path: Path, spillover: str, why: str) -> None:
    path = tmp_path / "a.fcs"
    write_fcs(path, flow(dim=2), ["PE-A", "APC-A"], keywords={"$SPILLOVER": spillover})
    settings = settings_of(path)
    assert settings.compensation == "none"
    assert any(why in note for note in settings.notes)
    assert any(why in note for note in events_of(path).report.notes)


def test_a_matrix_that_is_not_applied_is_a_warning(tmp_path: Path) -> None:
    """In a run too, whose config says none because init found that the matrix names no channel."""
    path = tmp_path / "a.fcs"
    write_fcs(path, flow(dim=2), ["PE-A", "APC-A"], keywords={"$SPILLOVER": "2,FL1,FL2,1,0.1,0,1"})
    assert settings_of(path).compensation == "none"
    why = "the spillover matrix names no channel of the file (FL1, FL2); give its names to data.compensation"
    for compensation in ("auto", "none"):
        (warning,) = events_of(path, compensation=compensation).report.warnings
        assert warning.startswith(f"a.fcs: not compensated: {why}")
    (tmp_path / "m.csv").write_text("PE-A,APC-A\n1,0.1\n0,1\n")
    assert events_of(path, compensation="m.csv").report.warnings == ()
    assert f"warning: not compensated: {why}" in CliRunner().invoke(main, ["info", str(path)]).output


def test_a_matrix_with_some_unknown_names(tmp_path: Path) -> None:
    path = tmp_path / "a.fcs"
    write_fcs(path, flow(dim=2), ["PE-A", "APC-A"], keywords={"$SPILLOVER": "3,PE-A,X,Y,1,0.1,0,0,1,0,0,0,1"})
    with pytest.raises(DataError, match="the spillover matrix names X, Y, which is not a channel"):
        settings_of(path)
    assert suggest([open_source(path)], "none").compensation == "none"
    (tmp_path / "m.csv").write_text("PE-A,APC-A\n1,0.1\n0,1\n")
    assert suggest([open_source(path)], "m.csv", tmp_path).compensation == "m.csv"


# ------------------------------------------------------------------------------------------------- gain


def gained(path: Path) -> Path:
    """Write FL1 by a linear and a logarithmic amplifier, as S1400EXi and Coulter instruments do."""
    light = 10 ** RNG.uniform(0.5, 3.9, 200)  # full scale is 10,000
    linear = np.minimum(np.rint(light * 6.5536), 65_535)
    logarithmic = np.rint(np.log10(light) / 4 * 65_536)
    data = np.column_stack((linear, logarithmic, np.arange(200))).astype("<u2").tobytes()
    keywords = channel_keywords([16, 16, 16], ["65536"] * 3, n_events=200)
    keywords |= {"$P1N": "FL1 LinA", "$P2N": "FL1 LogA", "$P3N": "Time"}
    keywords |= {"$P1E": "0,0", "$P2E": "4,1", "$P3E": "0,0", "$P1G": "6.5536", "$P3G": "0.01"}
    return make_fcs(path, data, keywords)


def test_linear_and_logarithmic_amplifiers_agree(tmp_path: Path) -> None:
    """FCS 3.1: the value is the stored one divided by $PnG, as FlowIO has it; time has no gain."""
    path = gained(tmp_path / "a.fcs")
    found = events_of(path, channels=["FL1*", "Time"], transform=LINEAR, standardize=False)
    np.testing.assert_allclose(found.values[:, 0], found.values[:, 1], rtol=0.05)
    theirs = flowio.FlowData(path).as_array(preprocess=True)
    np.testing.assert_allclose(found.values, theirs, rtol=1e-6)
    assert any("divided by the amplifier's gain ($PnG): FL1 LinA by 6.5536" in x for x in found.report.notes)
    stored = events_of(path, channels=["FL1 LinA"], transform=LINEAR, standardize=False, linearize=False)
    np.testing.assert_allclose(stored.values[:, 0] / 6.5536, found.values[:, 0], rtol=1e-6)
    scale = events_of(path, channels=["FL1 LinA"], transform={"default": {"method": "logicle"}})
    assert scale.scaling.transforms[0].t == pytest.approx(10_000)


def test_a_run_keeps_its_channels(tmp_path: Path) -> None:
    path = gained(tmp_path / "a.fcs")
    settings = DataConfig.model_validate({"files": ["a.fcs"]})
    assert prepare(settings, tmp_path, 1).detectors == ("FL1 LinA",)
    both = events_of(path, channels=["FL1*"], transform=LINEAR)
    again = prepare(settings, tmp_path, 1, earlier=Recorded(both.detectors, both.scaling))
    assert again.detectors == ("FL1 LinA", "FL1 LogA")
    np.testing.assert_array_equal(again.values, both.values)


# --------------------------------------------------------------------------------------- mass cytometry

CYTOF = [
    ("Time", ""),
    ("Event_length", ""),
    ("Y89Di", "89Y_CD45"),
    ("Pd102Di", "102Pd_BC1"),
    ("Rh103Di", "103Rh_Viability"),
    ("Pd110Di", "110Pd"),
    ("Ce140Di", "140Ce_EQ4_beads"),
    ("Nd142Di", "142Nd_CD19"),
    ("Er170Di", "170Er_CD3"),
    ("Xe131Di", "131Xe"),
    ("Ir191Di", "191Ir_DNA1"),
    ("Ir193Di", "193Ir"),
    ("Pt195Di", "195Pt_Cisplatin"),
    ("BCKG190Di", "BCKG190Os"),
    ("Center", ""),
    ("Offset", ""),
    ("Width", ""),
    ("Residual", ""),
]


def cytof_events(n: int = 600, randomised: bool = False) -> npt.NDArray[np.float32]:
    counts = RNG.poisson(RNG.gamma(0.25, 60, (n, len(CYTOF)))).astype(np.float32)
    return counts - RNG.random(counts.shape, np.float32) if randomised else counts


@pytest.mark.parametrize("randomised", [False, True])
def test_a_file_after_cytof_conventions(tmp_path: Path, randomised: bool) -> None:
    path = tmp_path / "a.fcs"
    values = cytof_events(randomised=randomised)
    write_fcs(path, values, *map(list, zip(*CYTOF, strict=True)), {"$CYT": "DVSSCIENCES-CYTOF-6.7"})
    settings = settings_of(path)
    found = {s.detector: s.why for s in settings.channels}
    assert [name for name, why in found.items() if not why] == ["Y89Di", "Nd142Di", "Er170Di"]
    assert found["Pd102Di"] == found["Pd110Di"] == "barcode"
    assert found["Rh103Di"] == found["Pt195Di"] == "viability stain"
    assert found["Ce140Di"] == "beads"
    assert found["Ir191Di"] == found["Ir193Di"] == "DNA"
    assert found["Xe131Di"] == "isotope without an antibody"
    assert {str(s.transform) for s in settings.channels if s.taken} == {"arcsinh cofactor=5"}
    assert any("randomised" in note for note in settings.notes) == randomised
    events = events_of(path, atoms="report", standardize=False)
    want = np.arcsinh(values[:, [2, 7, 8]].astype(float) / 5)  # as the file has them
    np.testing.assert_allclose(events.values, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "isotope", "target"),
    [
        ("Ce140Di", "Ce140", ""),
        ("(Ir191)Di", "Ir191", ""),
        ("CD3(Er170)Dd", "Er170", "CD3"),
        ("170Er_CD3", "Er170", "CD3"),
        ("Y89Di", "Y89", ""),
        ("I127", "I127", ""),
        ("Hg202Di", "Hg202", ""),
        ("Se78_CD4", "Se78", "CD4"),
        ("Cd110_111_112_114", "Cd110,111,112,114", ""),
        ("Cd(110.903+111.902)", "Cd111,112", ""),
        ("V450-A", "", "V450-A"),
        ("CD45", "", "CD45"),
        ("PI3K", "", "PI3K"),
        ("HLA-DR", "", "HLA-DR"),
        ("Pb450", "", "Pb450"),
    ],
)
def test_isotopes_in_names(name: str, isotope: str, target: str) -> None:
    assert mass.isotope(name) == isotope
    if isotope:
        assert mass.target(Channel(name)) == target


def test_a_table_with_isotopes_is_mass_cytometry(tmp_path: Path) -> None:
    names = ["142Nd_CD19", "170Er_CD3", "147Sm_CD20", "191Ir_DNA1"]
    np.savez(tmp_path / "a.npz", events=cytof_events()[:, :4], channels=names)
    assert open_source(tmp_path / "a.npz").kind == "mass"
    assert [s.why for s in settings_of(tmp_path / "a.npz").channels] == ["", "", "", "DNA"]


@pytest.mark.parametrize(
    ("file", "is_mass"),
    [
        ("multicenter_cytof_01-08.npz", True),
        ("pbmc_cytomem.npz", True),
        ("gvhd_flowcap1.npz", False),
        ("barcode_flowpeaks.npz", False),
        ("euroflow_optimal.npz", False),
        ("hipc_stanford_1228.npz", False),
    ],
)
def test_mass_cytometry_is_recognised_by_its_zeros(shared_data: Path, file: str, is_mass: bool) -> None:
    settings = settings_of(shared_data / "labelled" / file)
    used = {str(s.transform) for s in settings.channels if s.taken}
    assert used == ({"arcsinh cofactor=5"} if is_mass else {"linear"})
    assert any("taken for mass cytometry" in note for note in settings.notes) == is_mass
    assert any("randomised" in note for note in settings.notes) == (file == "pbmc_cytomem.npz")


def light_events(n: int = 1_000, dim: int = 4) -> npt.NDArray[np.float32]:
    """Return raw light of two populations, each bright in half of the channels."""
    rng = np.random.default_rng(8)
    bright = (np.arange(dim)[None, :] % 2) == rng.integers(0, 2, n)[:, None]
    signal = np.where(bright, 4_000 * np.exp(rng.normal(0, 0.5, (n, dim))), 0)
    return (signal + rng.normal(0, 60, (n, dim))).astype(np.float32)


MARKERS = ["CD3", "CD4", "CD8", "CD19"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad", "npz"])
def test_raw_light_in_a_table_is_scaled_as_in_an_fcs_file(tmp_path: Path, kind: str) -> None:
    values, path = light_events(), tmp_path / f"a.{kind}"
    if kind == "csv":
        np.savetxt(path, values, fmt="%.9g", delimiter=",", header=",".join(MARKERS), comments="")
    elif kind == "parquet":
        columns = {name: values[:, k] for k, name in enumerate(MARKERS)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif kind == "npz":
        np.savez(path, events=values, channels=MARKERS)
    else:
        anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
        anndata.AnnData(values, var=pandas.DataFrame(index=MARKERS)).write_h5ad(path)
    events = events_of(path)
    write_fcs(tmp_path / "b.fcs", values, MARKERS)
    of_fcs = events_of(tmp_path / "b.fcs").scaling.transforms
    assert [one.method for one in events.scaling.transforms] == [one.method for one in of_fcs]
    note = f"a.{kind}: values look like raw fluorescence, so method auto is logicle, fitted to them"
    assert note in events.report.notes
    assert note in settings_of(path).notes
    assert {s.method for s in settings_of(path).channels} == {"logicle"}


def test_scales_for_looking_at_are_not_taken_for_light() -> None:
    light = light_events().astype(float)
    logicle = Transform("logicle", t=262144.0, w=0.6).apply(light)
    for scaled in (
        np.arcsinh(light / 150),
        logicle,
        4095 * logicle,
        100_000 * logicle,
        np.log10(light - light.min() + 1),
    ):
        assert not are_light(scaled)
    assert not are_light(RNG.normal(50_000, 20_000, (500, 3)))
    assert not are_light(light[:50])
    assert are_light(light)


def test_a_transform_that_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    write_fcs(tmp_path / "a.fcs", light_events(), MARKERS)
    path = tmp_path / "a.fcs"
    (linear,) = events_of(path, transform=LINEAR).report.warnings
    assert linear.startswith(
        "the scale linear hides the dim events of CD3, CD4, CD8, CD19, whose values look "
    )
    narrow = events_of(path, transform={"default": {"method": "arcsinh", "cofactor": 5}}).report.warnings
    assert [line.partition(":")[0] for line in narrow] == MARKERS
    assert "arcsinh with cofactor 5 splits the noise about zero" in narrow[0]
    for method in ({"method": "arcsinh", "cofactor": 150}, {"method": "logicle"}, {"method": "auto"}):
        assert events_of(path, transform={"default": method}).report.warnings == ()
    counts = cytof_events()
    write_fcs(path, counts, [f"M{k}" for k in range(counts.shape[1])])
    assert events_of(path).report.warnings == ()


def test_values_on_a_transformed_scale_are_not_transformed_again() -> None:
    assert not mass.are_counts(np.arcsinh(cytof_events().astype(float) / 5))
    assert not mass.are_counts(np.maximum(RNG.normal(0, 100, (500, 4)), 0))  # clipped fluorescence
    assert mass.are_counts(cytof_events().astype(float))


def test_a_channel_that_compensation_needs_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.fcs"
    values = flow(dim=3)
    values[5:15, 2] = np.nan
    matrix = {"$SPILLOVER": "3,PE-A,APC-A,FITC-A,1,0.1,0.1,0,1,0,0.1,0,1"}
    write_fcs(path, values, ["PE-A", "APC-A", "FITC-A"], keywords=matrix)
    with pytest.raises(DataError, match="not finite after compensation"):
        settings_of(path)
    assert suggest([open_source(path)], "none").channels[2].why.startswith("not finite")
    values[6:15, 2] = 100
    write_fcs(path, values, ["PE-A", "APC-A", "FITC-A"], keywords=matrix)
    settings = settings_of(path)
    assert [channel.why for channel in settings.channels] == [""] * 3
    assert "1 of 400 events read have values that are not finite; a run leaves them out" in settings.notes[-1]
    assert len(events_of(path, channels=["PE-A"]).values) == 399, "compensation needs the others"


# --------------------------------------------------------------------------------------------- signalling


@pytest.mark.parametrize(("others", "used"), [(["CD3", "CD4", "CD8"], 3), (["CD3", "CD4"], 4)])
def test_phosphorylated_proteins_are_left_out_where_enough_others_remain(
    tmp_path: Path, others: list[str], used: int
) -> None:
    names = [*others, "pS6", "pStat3"]
    np.savetxt(tmp_path / "a.csv", flow(dim=len(names)), delimiter=",", header=",".join(names), comments="")
    events = events_of(tmp_path / "a.csv")
    assert len(events.scaling.channels) == used
    listed = events_of(tmp_path / "a.csv", channels=names)
    assert list(listed.scaling.channels) == names
