"""Names of markers that differ between files, channels that some files lack, and files that are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.config.data import DataConfig
from dpmix.config.load import load_config, parse_config
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.marker_names import plain_name, short_names
from dpmix.inputs.preprocess import prepare, prepare_like


def write_csv(path: Path, *names: str, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).normal(size=(50, len(names)))
    np.savetxt(path, values, delimiter=",", header=",".join(names), comments="")
    return path


@pytest.mark.parametrize(
    "names",
    [
        ("CD45RA", "CD45-RA", "45RA PE", "CD45RA PE-Cy7", "cd45 ra", "CD45RA-BV421-A", "147Sm_CD45RA"),
        ("HLA-DR", "HLADR", "HLA DR PerCP-Cy5.5", "HLA-DR Pacific Blue"),
        ("TCR\u03b3\u03b4", "TCR gd", "TCRgd AF647"),
    ],
)
def test_spellings_of_one_marker_have_one_plain_name(names: tuple[str, ...]) -> None:
    assert len({plain_name(Channel("FL1-A", name)) for name in names}) == 1


def test_different_markers_have_different_plain_names() -> None:
    names = (
        "CD45RA",
        "CD45RO",
        "CD4",
        "CD45",
        "CD3",
        "CD3/CD19",
        "CD319",
        "CD8",
        "CD8a",
        "PE",
        "APC",
        "IgD",
        "IgG",
    )
    assert len({plain_name(Channel("FL1-A", name)) for name in names}) == len(names)
    detectors = [Channel(name) for name in ("PE-A", "APC-A", "FITC-A", "BV421-A", "45")]
    assert len({plain_name(channel) for channel in detectors}) == len(detectors)


def test_init_suggests_names_and_merges_nothing(tmp_path: Path) -> None:
    files = [
        write_csv(tmp_path / "a.csv", "CD3", "CD45RA", "CD8"),
        write_csv(tmp_path / "b.csv", "CD3", "CD45-RA", "CD19", seed=1),
        write_csv(tmp_path / "c.csv", "CD3", "cd45 ra", "CD8", seed=2),
    ]
    config = tmp_path / "run.yaml"
    result = CliRunner().invoke(main, ["init", *map(str, files), "--output", str(config), "--all"])
    assert result.exit_code == 0, result.output
    text = config.read_text()
    short = CliRunner().invoke(main, ["init", *map(str, files)]).stdout
    assert "\n    # CD45-RA: CD45RA  # b.csv\n" in short
    assert parse_config(short, "short").data.rename == {}
    assert "# CD8: not in 1 of 3 files: b.csv" in text
    assert "# CD19: only in 1 of 3 files: b.csv; left out" in text
    assert "# - CD45RA  # no marker; left out: not in b.csv, c.csv" in text
    assert "    # CD45-RA: CD45RA  # b.csv" in text
    assert "    # cd45 ra: CD45RA  # c.csv" in text
    settings = load_config(config).data
    assert settings.rename == {}
    assert settings.channels == ["CD3"]
    asked = text.replace("    {}\n", "").replace("# CD45-RA:", "CD45-RA:").replace("# cd45 ra:", "cd45 ra:")
    config.write_text(asked.replace("# - CD45RA ", "- CD45RA "))
    settings = load_config(config).data
    assert settings.rename == {"CD45-RA": "CD45RA", "cd45 ra": "CD45RA"}
    events = prepare(settings, tmp_path, 1)
    assert events.channels == ("CD3", "CD45RA")
    own = prepare(DataConfig(files=["b.csv"], channels=["CD3", "CD45-RA"]), tmp_path, 1)
    wanted = own.values * own.scaling.sds + own.scaling.means
    found = events.values[50:100] * events.scaling.sds + events.scaling.means
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_spelling_at_another_detector_is_a_missing_channel(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for name, markers in (("a.fcs", ("CD3", "CD45RA")), ("b.fcs", ("CD45-RA", "CD3"))):
        values = rng.normal(size=(50, 2)).astype("<f4")
        keywords = channel_keywords([32, 32], ["262144"] * 2, "F", n_events=50)
        keywords |= {f"$P{k}S": marker for k, marker in enumerate(markers, 1)}
        make_fcs(tmp_path / name, values.tobytes(), keywords)
    result = CliRunner().invoke(main, ["init", str(tmp_path / "a.fcs"), str(tmp_path / "b.fcs"), "--all"])
    assert "# - CD45RA  # detector FL2; left out: not in b.fcs" in result.stdout
    assert "# CD45-RA: CD45RA  # b.fcs" in result.stdout


def test_another_panel_at_the_same_detectors_is_a_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    panels = {"a.fcs": ("CD3", "CD27 APC"), "b.fcs": ("CD-3", "IgD"), "c.fcs": ("CD3", "")}
    for name, markers in panels.items():
        values = rng.normal(size=(50, 2)).astype("<f4")
        keywords = channel_keywords([32, 32], ["262144"] * 2, "F", n_events=50)
        keywords |= {f"$P{k}S": marker for k, marker in enumerate(markers, 1) if marker}
        make_fcs(tmp_path / name, values.tobytes(), keywords)
    settings = DataConfig(files=["a.fcs", "b.fcs", "c.fcs"])
    events = prepare(settings, tmp_path, 1)
    (warning,) = [text for text in events.report.warnings if "other markers" in text]
    found = "b.fcs: other markers than a.fcs at 1 of 2 detectors: IgD instead of CD27 APC"
    assert warning.startswith(f"{found}; give files of one panel")
    again = prepare_like(settings, tmp_path, ["b.fcs"], events.scaling, events.detectors)
    assert any(text.startswith("b.fcs: other markers than the run") for text in again.report.warnings)
    same = settings.model_copy(update={"rename": {"IgD": "CD27 APC"}})
    assert not any("other markers" in text for text in prepare(same, tmp_path, 1).report.warnings)


def test_names_that_cannot_be_renamed(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "CD3", "CD45RA")
    write_csv(tmp_path / "b.csv", "CD3", "CD45RA", "CD45-RA")
    files = ["a.csv", "b.csv"]
    with pytest.raises(ConfigError, match=r"data.rename: b.csv has both CD45-RA and CD45RA"):
        prepare(DataConfig(files=files, rename={"CD45-RA": "CD45RA"}), tmp_path, 1)
    with pytest.raises(ConfigError, match=r"data.rename: CD-3 is in no file, nearest: CD3"):
        prepare(DataConfig(files=files, rename={"CD-3": "CD3e"}), tmp_path, 1)


def test_a_file_that_fails_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "CD3", "CD8")
    write_csv(tmp_path / "c.csv", "CD3", "CD8", seed=1)
    (tmp_path / "b.fcs").write_bytes(b"FCS3.1 broken")
    with pytest.raises(DataError, match=r"b\.fcs: .*; or leave the file out by data\.leave_out: \[b\.fcs\]"):
        prepare(DataConfig(files=["a.csv", "b.fcs", "c.csv"]), tmp_path, 1)
    write_csv(tmp_path / "d.csv", "CD3", "CD4")
    files = ["a.csv", "b.fcs", "c.csv", "d.csv"]
    with pytest.raises(DataError, match=r"d\.csv: has no channel CD8.*leave_out: \[d\.csv\]"):
        prepare(DataConfig(files=files, leave_out=["b.fcs"]), tmp_path, 1)
    events = prepare(DataConfig(files=files, leave_out=["b.fcs", "d.*"]), tmp_path, 1)
    assert events.samples == ("a.csv", "c.csv")
    assert "left out (data.leave_out): b.fcs, d.*" in events.report.notes
    (tmp_path / "samples.csv").write_text("file,sample,arm\na.csv,A,x\nb.fcs,B,y\nc.csv,C,z\n")
    events = prepare(DataConfig(samples="samples.csv", leave_out=["B"]), tmp_path, 1)
    assert events.samples == ("A", "C")
    assert events.sample_columns == {"arm": ["x", "z"]}


def test_values_that_fail_while_the_events_are_read(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "CD3", "CD8")
    (tmp_path / "b.csv").write_text("CD3,CD8\n" + "1,2\n" * 50 + "inf,3\n")
    with pytest.raises(DataError, match=r"^b\.csv: .*leave_out: \[b\.csv\]"):
        prepare(DataConfig(files=["a.csv", "b.csv"]), tmp_path, 1)


@pytest.mark.parametrize(
    ("names", "message"), [(["x.csv"], "x.csv matches no file"), (["*"], "all files are")]
)
def test_names_to_leave_out_that_do_not_fit(tmp_path: Path, names: list[str], message: str) -> None:
    write_csv(tmp_path / "a.csv", "CD3", "CD8")
    with pytest.raises(ConfigError, match=message):
        prepare(DataConfig(files=["a.csv"], leave_out=names), tmp_path, 1)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("CD4 PerCP-Cy5-5-A", "CD4"),
        ("CD4 Percp Cy 5 5", "CD4"),
        ("TNFa Alexa700", "TNFa"),
        ("CD3 KrO", "CD3"),
        ("CD8 APC Cy7", "CD8"),
        ("PE CD4", "CD4"),
        ("CD19/TCRgd:PE Cy7-A LOGICAL", "CD19/TCRgd"),
        ("CD45:PO-A LOGICAL", "CD45"),
        ("CD3", "CD3"),
        ("PE-Cy7-A", "PE-Cy7-A"),
        ("Comp-PE-A", "Comp-PE-A"),
        ("Qdot 605-A", "Qdot 605-A"),
        ("FL1-H", "FL1-H"),
    ],
)
def test_names_for_labels_have_no_dye(name: str, short: str) -> None:
    assert short_names([name]) == (short,)


def test_names_that_would_be_the_same_keep_their_dyes() -> None:
    assert short_names(["CD4 PE", "CD4 APC", "CD8 FITC"]) == ("CD4 PE", "CD4 APC", "CD8")
