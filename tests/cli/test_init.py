"""`dpmix init`: a config that `dpmix mcmc` accepts, or one clear line, for files of many instruments."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from instrument_files import WRITTEN, write

from dpmix.cli import main
from dpmix.cli.init import write_config
from dpmix.config.load import load_config, parse_config
from dpmix.inputs.channels import match_all
from dpmix.inputs.opening import open_source, open_sources
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.singlets import singlet_gate
from dpmix.inputs.storage import Storage
from dpmix.runs.reader import open_run

SHORT = ["mcmc.burn_in=1", "mcmc.draws=2", "mcmc.chains=1", "model.components=8", "engine.threads=1"]
QUICK = [word for setting in [*SHORT, "mcmc.init=prior", "mcmc.until=null"] for word in ("--set", setting)]


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def taken(path: Path, config: Path) -> list[str]:
    """Return the detectors that a config takes of a file."""
    source = open_source(path)
    wanted = load_config(config).data.channels
    assert wanted is not None
    return [source.channels[k] for (k,) in match_all("data.channels", wanted, source).values()]


@pytest.mark.parametrize("name", WRITTEN)
def test_init_of_files_of_many_instruments(tmp_path: Path, name: str) -> None:
    path, (_, expected) = write(tmp_path, name), WRITTEN[name]
    assert dpmix("info", path).stdout
    if isinstance(expected, str):
        refused = dpmix("init", path, code=1).stderr
        assert expected in refused
        assert refused.count("\n") == 1
        return
    dpmix("init", path, "--output", tmp_path / "run.yaml")
    assert taken(path, tmp_path / "run.yaml") == expected
    unused = name in ("accuri", "influx", "macsquant")
    assert f"\n  compensation: {'none' if unused else 'auto'}\n" in (tmp_path / "run.yaml").read_text()


ACCEPTED = [name for name, (_, expected) in WRITTEN.items() if not isinstance(expected, str)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ACCEPTED])
def test_mcmc_accepts_what_init_writes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, name)
    dpmix("init", path, "--output", "run.yaml")
    dpmix("mcmc", "run.yaml", "--quiet", *QUICK)
    run = open_run("run.h5")
    config = parse_config(f"data: {{files: [{path.name}]}}", "plain.yaml")
    plain = prepare(config.data, Path(), config.seed)
    assert list(plain.detectors) == run.detectors, "a run without data.channels has the same rules"
    assert json.loads(json.dumps(plain.scaling.as_attributes()["transforms"])) == run.scaling["transforms"]


def test_left_out_channels_are_comments_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "facsdiva")
    assert "L/D Aqua, BV510-H, BV510-W (viability stain)" in dpmix("init", path).stdout
    text = dpmix("init", path, "--all").stdout
    assert "# - L/D Aqua  # detector BV510-A; left out: viability stain" in text
    assert "left out: pulse height of the same detector as PE-A" in text
    assert "left out: constant: 0 in all 2000 events read" in text
    identity = dpmix("init", write(tmp_path, "accuri")).stdout
    assert (
        "# accuri.fcs: not compensated: the spillover matrix of the file is the identity matrix" in identity
    )
    assert "counts are randomised" in dpmix("init", write(tmp_path, "helios")).stdout


def test_signalling_markers_are_state_channels(tmp_path: Path) -> None:
    """Phosphorylated proteins, by default; cytokines and Ki67 are suggested."""
    names = ["CD3", "CD4", "pS6", "CD8", "pp38", "Ki67", "pDC"]
    rows = np.random.default_rng(1).normal(size=(300, len(names)))
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", header=",".join(names), comments="")
    config = parse_config(dpmix("init", tmp_path / "a.csv").stdout, "run.yaml", [])
    assert config.data.channels == ["CD3", "CD4", "CD8", "Ki67", "pDC"]
    assert config.data.state_channels == ["pS6", "pp38"]
    assert "    # - Ki67\n" in dpmix("init", tmp_path / "a.csv").stdout


def test_a_file_with_a_wrong_matrix_gets_a_config_without_it(tmp_path: Path) -> None:
    path = write(tmp_path, "partial_matrix")
    assert "no config is suggested: partial_matrix.fcs: the spillover matrix" in dpmix("info", path).stdout
    assert "\n  compensation: none\n" in dpmix("init", path, "--compensation", "none").stdout
    (tmp_path / "m.csv").write_text("PE-A,APC-A\n1,0.1\n0,1\n")
    dpmix("init", path, "--compensation", tmp_path / "m.csv", "--output", tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml").data.compensation == str(tmp_path / "m.csv")
    assert "--compensation is nine; need auto" in dpmix("init", path, "--compensation", "nine", code=2).stderr


def test_linear_and_logarithmic_measurements_have_one_scale(tmp_path: Path) -> None:
    path = write(tmp_path, "moflo")
    text = dpmix("init", path, "--all").stdout
    assert "FL1_Lin_Height: {method: logicle, t: 10000, w:" in text  # 65,536 / $PnG


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a study, `study` in the current folder: two FCS files and a table of samples."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    for name in ("a", "b"):
        write(folder, "facsdiva").rename(folder / f"{name}.fcs")
    (folder / "samples.csv").write_text("file;sample;group;age\na.fcs;A;x;31\nb.fcs;B;y;42\n")
    return folder


def test_a_folder_may_hold_its_table_of_samples(study: Path) -> None:
    for name in ("run.judged.csv", "run.spillover.csv", "run.types.csv"):
        (study / name).write_text("event,judgement\n1,1\n")
    assert "# samples.csv" not in dpmix("init", "study").stdout
    dpmix("init", "study", "--output", "run.yaml")
    dpmix("mcmc", "run.yaml", "--quiet", *QUICK)
    assert "data: 4,000 events of study" in dpmix("info", "run.h5").stdout


def test_another_table_in_a_folder_is_an_error_that_says_what_to_do(study: Path) -> None:
    (study / "notes.csv").write_text("sample;remark\na;clot\n")
    assert "give the data files instead of their folder" in dpmix("init", "study", code=1).stderr
    (study / "notes.csv").write_text("sample,dose\na,1\n")
    refused = dpmix("init", "study", code=1).stderr
    assert "FITC-A, PE-A, APC-A, BUV395-A (not in notes.csv)" in refused
    assert refused.endswith("; give only files of one panel\n")


def test_init_of_a_table_of_samples(study: Path) -> None:
    dpmix("init", "study/samples.csv", "--output", "run.yaml")
    config = load_config(Path("run.yaml")).data
    assert (config.files, config.samples) == ([], "study/samples.csv")
    assert config.channels is not None
    dpmix("mcmc", "run.yaml", "--quiet", *QUICK)
    assert "data: 4,000 events of study/samples.csv" in dpmix("info", "run.h5").stdout
    error = "dpmix: study/samples.csv: is a table of samples; give it alone, or only data files\n"
    assert dpmix("init", "study/a.fcs", "study/samples.csv", code=2).stderr == error


def test_init_points_to_notes_on_the_files(study: Path) -> None:
    said = dpmix("init", "study", "--output", "run.yaml").stderr
    assert said == "run.yaml: written; check it, then run: dpmix mcmc run.yaml\n"
    other = study / "b.fcs"
    other.write_bytes(other.read_bytes().replace(b"CD4", b"CD5").replace(b"CD8", b"CD9"))
    said = dpmix("init", "study", "--output", "run.yaml", "--overwrite").stderr
    assert said == "run.yaml: written; read the 2 notes at its top, check it, then run: dpmix mcmc run.yaml\n"


def test_init_proposes_a_gate_for_single_cells(tmp_path: Path) -> None:
    """Area is 1.2 times height (sd 5%); a tenth are doublets of twice the area."""
    random = np.random.default_rng(1)
    height = random.uniform(50_000, 90_000, 4000)
    area = 1.2 * height * random.lognormal(0.0, 0.05, 4000)
    area[:400] *= 2.0
    values = np.column_stack([area, height, random.lognormal(6.0, 1.0, (4000, 2))])
    head = "FSC-A,FSC-H,CD3,CD4"
    np.savetxt(tmp_path / "a.csv", values, delimiter=",", header=head, comments="", fmt="%.3f")
    gate = singlet_gate(open_sources([str(tmp_path / "a.csv")], Path(), Storage()))
    assert gate is not None
    assert (gate.area, gate.height) == ("FSC-A", "FSC-H")
    assert gate.low == pytest.approx(1.2 * np.exp(-0.15), rel=0.05)
    assert 1.2 * np.exp(0.15) < gate.high < 1.6  # doublets widen it a little, and are outside
    assert gate.share == pytest.approx(0.9, abs=0.01)
    (x, y), *_, (_, top) = gate.vertices
    assert x / y == pytest.approx(gate.low)
    assert 49_000 < y < 51_000 < 89_000 < top < 91_000
    text, _ = write_config([str(tmp_path / "a.csv")], Path(), "auto", every_key=True)
    assert f"# Single cells, proposed: FSC-A is {gate.low:.2f} to {gate.high:.2f} times FSC-H," in text
    assert parse_config(text, "run.yaml").data.gate is None
    (tmp_path / "b.csv").write_text("FSC-A,CD3,CD4\n" + "1,2,3\n4,5,7\n" * 100)
    text, _ = write_config([str(tmp_path / "b.csv")], Path(), "auto", every_key=True)  # without height
    assert "Single cells" not in text
