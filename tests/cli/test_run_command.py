"""`dpmix run`: from files to a report in one command, which continues where it was stopped."""

from __future__ import annotations

import contextlib
import csv
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpmix.cli import main
from dpmix.report import embedding
from dpmix.runs.reader import open_run
from dpmix.system.stop import Stop


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def draws(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        return file["posterior/means"][:]


CHANNELS = ("--channel", "CD3", "--channel", "CD4", "--channel", "CD8", "--channel", "CD19")
OPTIONS = ("--seed", "5", "--threads", "1", *CHANNELS)  # of `whole`


@pytest.fixture(scope="module", autouse=True)
def small_maps() -> Iterator[None]:
    """Draw maps of few events: these tests are not about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "MOST_EVENTS", 300)
        yield


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "sample.fcs"
    dpmix("simulate", path, "--events", "2000")
    return path


@pytest.fixture
def folder(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(sample, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(sample: Path) -> tuple[Path, list[str]]:
    """A folder with the sample and its run, and what the command printed."""
    with contextlib.chdir(sample.parent):
        return sample.parent, dpmix("run", "sample.fcs", *OPTIONS).stdout.splitlines()


def test_from_a_file_to_a_report(folder: Path, whole: tuple[Path, list[str]]) -> None:
    shutil.copytree(whole[0] / "dpmix-run", "dpmix-run")
    said = whole[1]
    assert "by time" in said[0]  # of drift
    assert said[1].startswith("2,000 events, ")
    page, commands = Path("dpmix-run", "gated", "report.html"), Path("dpmix-run", "commands.txt")
    assert said[-1] == f"open {page} in a browser; the commands of each step are in {commands}"
    assert len(said) <= 10
    made = Path("dpmix-run")
    assert {path.name for path in made.iterdir()} >= {"run.yaml", "run.h5", "gated", "drift", "commands.txt"}
    assert (made / "gated" / "report.html").exists()
    assert (made / "drift" / "report.html").exists()
    run = open_run(made / "run.h5")
    assert (run.kind, run.attributes["seed"], run.parsed_config().engine.threads) == ("mcmc", 5, 1)

    # The commands in the folder do the same, with the same draws.
    steps = (made / "commands.txt").read_text().splitlines()
    before, written = draws(made / "run.h5"), (made / "run.yaml").read_text()
    populations = (made / "gated" / "populations.csv").read_text()
    for command in steps:
        name, *words = shlex.split(command)
        assert name == "dpmix"
        dpmix(*words, "--overwrite")
    assert (made / "run.yaml").read_text() == written
    np.testing.assert_array_equal(draws(made / "run.h5"), before)
    assert (made / "gated" / "populations.csv").read_text() == populations


def test_options_of_a_first_user_and_bayesian_em(folder: Path) -> None:
    options = ["--channel", "CD3", "--channel", "CD1*", "--transform", "arcsinh", "--quick", "--output", "em"]
    Path("types.csv").write_text("type,CD3,CD19\nT cells,+,-\nB cells,-,+\n")
    said = dpmix("run", "sample.fcs", *options, "--types", "types.csv").stdout
    assert "T cells" in said
    assert "--types types.csv" in Path("em/commands.txt").read_text()
    assert Path("em/gated/types.csv").exists()
    run = open_run("em/run.h5")
    assert run.kind == "bem"
    assert run.channels[0] == "CD3"
    assert all(name == "CD3" or name.startswith("CD1") for name in run.channels)
    assert {one.method for one in run.parsed_config().data.transform.values()} == {"arcsinh"}
    with open("em/gated/populations.csv", newline="") as file:
        assert sum(int(row["events"]) for row in csv.DictReader(file)) == 2000


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_same_draws(
    folder: Path, whole: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter([False] * 120 + [True] * 10_000)
    with monkeypatch.context() as stopping:
        stopping.setattr(Stop, "__call__", lambda stop: next(asked))
        said = dpmix("run", "sample.fcs", "--output", "parts", *OPTIONS, "--quiet", code=130)
    assert said.stderr.endswith("dpmix: stopped; resume with: the same dpmix run command\n")
    assert not open_run("parts/run.h5").complete
    dpmix("run", "sample.fcs", "--output", "parts", *OPTIONS, "--quiet")
    np.testing.assert_array_equal(draws(Path("parts/run.h5")), draws(whole[0] / "dpmix-run" / "run.h5"))


@pytest.mark.slow
def test_an_earlier_run_of_other_files_or_options_is_kept(folder: Path) -> None:
    quick = ("--quick", *CHANNELS)
    dpmix("run", "sample.fcs", *quick, "--quiet")
    before = draws(Path("dpmix-run/run.h5"))
    dpmix("simulate", "other.fcs", "--events", "500", "--seed", "2")
    refused = dpmix("run", "other.fcs", *quick, code=2).stderr
    assert "is not the config for these files" in refused
    assert refused.count("\n") == 1
    refused = dpmix("run", "sample.fcs", *quick, "--seed", "9", code=2).stderr
    assert "seed: not what" in refused
    assert "dpmix bem" in dpmix("run", "sample.fcs", *CHANNELS, code=2).stderr  # the run is Bayesian EM's
    np.testing.assert_array_equal(draws(Path("dpmix-run/run.h5")), before)
    dpmix("run", "other.fcs", *quick, "--quiet", "--overwrite")
    assert open_run("dpmix-run/run.h5").attributes["n_events"] == 500


def test_files_without_a_channel_of_time(folder: Path) -> None:
    np.save("events.npy", np.random.default_rng(1).normal(size=(500, 3)))
    said = dpmix("run", "events.npy", "--quick")
    assert "time" not in said.output
    assert not Path("dpmix-run/drift").exists()
    assert "dpmix drift" not in Path("dpmix-run/commands.txt").read_text()


def test_a_file_in_place_of_the_folder(folder: Path) -> None:
    assert "is a file" in dpmix("run", "sample.fcs", "--output", "sample.fcs", code=2).stderr
