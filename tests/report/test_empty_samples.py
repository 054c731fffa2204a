"""A file of which no event is used does not stop the results of the others."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from dpmix.cli import main
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source

SHORT = """\
mcmc: {burn_in: 3, draws: 20, chains: 1, until: null, split_merge: 0}
engine: {backend: cpu, threads: 1}
"""
FILES = ["a.fcs", "b.fcs", "empty.fcs", "c.fcs", "d.fcs"]
WARNING = "warning: empty.fcs: has no event; it has no proportions"


def dpmix(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files with two populations and one without events, and a run of all kinds of models."""
    folder, rng = tmp_path_factory.mktemp("cells"), np.random.default_rng(1)
    for name in FILES:
        n = 0 if name == "empty.fcs" else 150
        values = 100 * (rng.normal(0, 1, (n, 2)) + 8 * rng.integers(0, 2, (n, 1)))
        write_fcs(folder / name, values.astype(np.float32), ["CD3", "CD4"])
    (folder / "samples.csv").write_text(
        "file,group\n" + "".join(f"{name},{'xy'[k % 2]}\n" for k, name in enumerate(FILES))
    )
    data = "data: {samples: samples.csv, transform: {default: {method: linear}}}\nmodel: {components: 4"
    (folder / "mcmc.yaml").write_text(f"{data}}}\n{SHORT}")
    (folder / "cohort.yaml").write_text(f"{data}, samples: hierarchical}}\n{SHORT}")
    (folder / "bem.yaml").write_text(f"{data}}}\nbem: {{starts: 1}}\n{SHORT}")
    for kind in ("mcmc", "cohort", "bem"):
        command = "bem" if kind == "bem" else "mcmc"
        output = f"output.path={folder / kind}.h5"
        assert WARNING in dpmix(command, folder / f"{kind}.yaml", "--quiet", "--set", output).output
    return folder


def proportions(folder: Path) -> dict[str, list[str]]:
    with (folder / "proportions.csv").open() as file:
        found: dict[str, list[str]] = {}
        for row in csv.DictReader(file):
            found.setdefault(row["sample"], []).append(row["proportion"])
        return found


@pytest.mark.usefixtures("made_figures")
@pytest.mark.parametrize("kind", ["mcmc", "cohort", "bem"])
def test_a_run_with_an_empty_file_is_gated(folder: Path, tmp_path: Path, kind: str) -> None:
    output = dpmix("gate", folder / f"{kind}.h5", "--output", tmp_path / "g", "--quiet").output
    assert WARNING in output
    found = proportions(tmp_path / "g")
    assert [*found] == FILES
    assert set(found["empty.fcs"]) == {""}
    assert all(0 < float(share) < 1 for name in FILES if name != "empty.fcs" for share in found[name])
    assert "empty.fcs: has no event" in (tmp_path / "g" / "report.html").read_text()


@pytest.mark.parametrize(("kind", "command"), [("mcmc", "predict"), ("cohort", "gate")])
def test_new_files_of_which_one_is_empty(folder: Path, tmp_path: Path, kind: str, command: str) -> None:
    run, files = folder / f"{kind}.h5", (folder / "empty.fcs", folder / "a.fcs")
    given = [run, *files] if command == "predict" else [run, *(x for file in files for x in ("--data", file))]
    assert WARNING in dpmix(command, *given, "--output", tmp_path / "g", "--quiet").output
    if command == "gate":
        found = proportions(tmp_path / "g")
        assert set(found["empty.fcs"]) == {""}
        assert "" not in found["a.fcs"]


@pytest.mark.parametrize("kind", ["fcs", "h5ad"])
def test_events_of_all_formats_and_gates(folder: Path, tmp_path: Path, kind: str) -> None:
    dpmix("gate", folder / "mcmc.h5", "--output", tmp_path / "g", "--quiet", "--format", kind, "--strategy")
    assert (tmp_path / "g" / "gates.xml").exists()


def test_all_events_of_a_file_may_be_margin_events(folder: Path, tmp_path: Path) -> None:
    flat = np.full((30, 2), 262_143, np.float32)
    flat[:, 1] += np.arange(30)
    write_fcs(tmp_path / "flat.fcs", flat, ["CD3", "CD4"])
    files = f"[{folder / 'a.fcs'}, {tmp_path / 'flat.fcs'}]"
    (tmp_path / "run.yaml").write_text(
        f"data: {{files: {files}, margin_events: drop, transform: {{default: {{method: linear}}}}}}\n"
        f"model: {{components: 4}}\n{SHORT}output: {{path: {tmp_path / 'run.h5'}}}\n"
    )
    warning = "warning: flat.fcs: no event remains; it has no proportions"
    assert warning in dpmix("mcmc", tmp_path / "run.yaml", "--quiet").output
    assert warning in dpmix("gate", tmp_path / "run.h5", "--output", tmp_path / "g", "--quiet").output
    assert set(proportions(tmp_path / "g")["flat.fcs"]) == {""}


def test_an_event_that_is_left_out_has_no_population(folder: Path, tmp_path: Path) -> None:
    """A value that is not finite in one event: the others keep their rows, and its copy its value."""
    path = tmp_path / "nan.fcs"
    values = np.random.default_rng(2).normal(300, 90, (200, 2)).astype(np.float32)
    values[17, 1] = np.nan
    write_fcs(path, values, ["CD3", "CD4"])
    data = (
        f"data: {{files: [{path}], transform: {{default: {{method: linear}}}}}}\nmodel: {{components: 4}}\n"
    )
    (tmp_path / "run.yaml").write_text(f"{data}{SHORT}output: {{path: {tmp_path / 'run.h5'}}}\n")
    warning = "warning: nan.fcs: 1 of 200 events are left out: values that are not finite in CD4 (1 NaN, "
    assert warning in dpmix("mcmc", tmp_path / "run.yaml", "--quiet").output
    formats = ("--format", "fcs", "--format", "parquet")
    assert (
        warning in dpmix("gate", tmp_path / "run.h5", "--output", tmp_path / "g", "--quiet", *formats).output
    )
    rows = pyarrow.parquet.read_table(tmp_path / "g" / "events.parquet")["event"].to_numpy()
    np.testing.assert_array_equal(rows, np.delete(np.arange(200), 17))
    copy = open_source(tmp_path / "g" / "nan.gated.fcs")
    np.testing.assert_array_equal(copy.read(0, 200, [0, 1]), values)
    assert copy.read(0, 200, [2])[17, 0] == 0


def test_a_comparison_of_groups_says_to_leave_it_out(folder: Path, tmp_path: Path) -> None:
    dpmix("gate", folder / "mcmc.h5", "--output", tmp_path / "g", "--quiet")
    compare = ("--formula", "~ group", "--contrast", "y - x", "--expression")
    refused = CliRunner().invoke(main, ["associate", str(tmp_path / "g"), *compare])
    assert refused.output == "dpmix: the sample empty.fcs has no events; leave it out of the run\n"
