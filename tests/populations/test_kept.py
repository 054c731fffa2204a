"""The populations that a run file keeps, and the verdict on them: the same everywhere."""

from __future__ import annotations

import html
import shutil
from dataclasses import fields
from logging import WARNING
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
from click.testing import CliRunner
from test_find import cpu, normals, switched, write_run
from whole_runs import a_config, assert_identical, write_events

import dpmix
from dpmix.cli import main
from dpmix.commands.gate import gate, predict
from dpmix.config.write import to_yaml
from dpmix.populations.draws import find, kept
from dpmix.populations.draws.convergence import chain_weights
from dpmix.populations.draws.find import Populations, find_populations
from dpmix.populations.draws.kept import RULE, keep_populations, kept_populations, populations_of_run
from dpmix.populations.draws.local_engine import engine_maker
from dpmix.populations.sample_draws import SampleDraws
from dpmix.runs.describe import describe_run
from dpmix.runs.reader import Run, open_run
from dpmix.runs.verdict import mixing_of

LENGTHS = {"chains": 2, "burn_in": 20, "draws": 14}
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TABLES = ("populations.csv", "proportions.csv", "tree.json", "samples.nc", "events.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two data files, a config and its complete run, `run.h5`."""
    folder = tmp_path_factory.mktemp("kept")
    for name, seed in (("events", 0), ("more", 1)):
        write_events(folder / f"{name}.npy", 2_000, seed=seed)
    files = {"files": [str(folder / f"{name}.npy") for name in ("events", "more")]}
    config = a_config(folder, "run.h5", mcmc=LENGTHS, data=files)
    (folder / "run.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert dpmix.run_mcmc(config).complete
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    """A copy of the run, to change."""
    shutil.copy(folder / "run.h5.checkpoint", tmp_path)
    return open_run(shutil.copy(folder / "run.h5", tmp_path))


def without(run: Run) -> Run:
    """Remove the populations from the file, as if their search had been interrupted."""
    with h5py.File(run.path, "r+") as file:
        file["populations/committed"][()] = -1
    return open_run(run.path)


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def assert_equal(one: Populations, other: Populations) -> None:
    """Compare bit by bit."""
    parts = [(one, other), (one.tree, other.tree)]
    for ours, theirs in parts:
        for field in fields(ours):
            if field.name not in ("run", "mixture", "tree", "mixing"):
                mine, its = getattr(ours, field.name), getattr(theirs, field.name)
                np.testing.assert_array_equal(mine, its, err_msg=field.name)
                if isinstance(mine, np.ndarray):
                    assert mine.dtype == its.dtype, field.name


def test_what_is_kept_is_what_is_found(run: Run) -> None:
    found = find_populations(run, engine_maker(run))
    own = kept_populations(run)
    assert own is not None
    assert own.n_populations > 2
    assert_equal(own, found)
    assert own.mixing is not None
    for mine, its in zip(own.mixing, mixing_of(chain_weights(found, engine_maker(run))), strict=True):
        np.testing.assert_array_equal(mine, its)
    mixture, same = own.mixture(1, 3), found.mixture(1, 3)
    np.testing.assert_array_equal(mixture.means, same.means)


def test_benchmarks_gate_as_the_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else runs the scripts that use it, which a new argument of `gating` has broken once."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from in_process import gate_run

    own, gated = gate_run(run.path), gate(run, tmp_path / "gated")
    for mine, its in zip((own.mean, own.low, own.high), gated.overall, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert str(own.verdict) == str(gated.verdict)


def test_one_sentence_everywhere(folder: Path, tmp_path: Path) -> None:
    run = open_run(folder / "run.h5")
    sentence = str(run.verdict)
    assert sentence.startswith("Chains agree on ")
    assert "interim" not in sentence
    assert any(line.endswith(sentence) for line in describe_run(run))
    assert sentence in command("info", run.path)
    gated = gate(run, tmp_path / "gated")
    assert str(gated.verdict) == sentence
    assert sentence in html.unescape((tmp_path / "gated" / "report.html").read_text(encoding="utf-8"))
    assert SampleDraws.read(tmp_path / "gated").verdict == sentence
    assert str(predict(run, [folder / "more.npy"], tmp_path / "predicted").verdict) == sentence
    with xarray.open_datatree(run.path, engine="h5netcdf") as tree:
        assert tree["populations"]["sentence"].item().decode() == sentence
    assert run.arviz()["populations"]["sentence"].item() == sentence


def test_the_command_does_the_same(folder: Path, tmp_path: Path) -> None:
    said = command("mcmc", folder / "run.yaml", "--output", tmp_path / "run.h5")
    assert "finding the populations" in said
    assert said.strip().endswith(str(open_run(folder / "run.h5").verdict))
    assert_identical(folder / "run.h5", tmp_path / "run.h5")


def test_gate_reads_what_is_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are the same, bit by bit, as if it found the populations."""
    with monkeypatch.context() as patch:
        patch.setattr(find, "find_populations", lambda *given, **options: pytest.fail("found again"))
        gate(run, tmp_path / "read")
    gate(without(run), tmp_path / "found")
    for name in TABLES:
        assert (tmp_path / "read" / name).read_bytes() == (tmp_path / "found" / name).read_bytes(), name


@pytest.mark.parametrize(
    "other",
    [{"level": 2.5}, {"n_populations": 3}, {"n_draws": 4}, {"weight_floor": 20.0}],
    ids=lambda given: next(iter(given)),
)
def test_other_settings_find_anew(run: Run, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Run] = []
    monkeypatch.setattr(find, "find_populations", lambda run, *given, **options: asked.append(run))
    populations_of_run(run, cpu)
    populations_of_run(run, cpu, n_draws=2_000)  # the run has fewer than the default: the same ones
    assert asked == []
    populations_of_run(run, cpu, **other)
    assert asked == [run]


def test_another_rule_finds_anew(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "RULE", RULE + 1)
    assert kept_populations(run) is None


def test_the_version_of_the_rule(tmp_path: Path) -> None:
    """Where a change of the rule makes this fail, raise `RULE`, and give it the new numbers."""
    parts = [(0.4, (0, 0), 1.0), (0.2, (3, 0), 1.0), (0.2, (0, 8), 1.0), (0.1, (1.5, 8), 1.0)]
    mixture = normals(*parts, (0.1, (8, 8), 0.5))
    chains = [switched(mixture, 6, seed) for seed in (1, 2)]
    found = find_populations(write_run(tmp_path / "run.h5", chains, n_events=10_000), cpu)
    assert RULE == 7
    np.testing.assert_allclose(found.weights[0], [0.4, 0.3, 0.2, 0.1], atol=0.001)
    np.testing.assert_allclose(found.tree.levels, [2.56, 8.01, 8.01], atol=0.02)
    np.testing.assert_array_equal(found.support, 1.0)
    assert (found.level, found.numbers.max()) == (2.5, 4)
    assert found.least_density == pytest.approx(-9.6, abs=0.1)


@pytest.mark.slow
def test_a_longer_run_is_judged_again(run: Run) -> None:
    before = str(run.verdict)
    longer = dpmix.run_mcmc(run.path, settings={"mcmc.draws": 24}, resume=True)
    own = kept_populations(longer)
    assert own is not None
    assert longer.verdict.n_draws == 24
    assert_equal(own, find_populations(longer, engine_maker(longer)))
    assert str(run.verdict) == before  # of the draws that this object has


def test_an_interrupted_search_is_made_up_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = without(run)

    def interrupted(*given: object) -> Populations:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(find, "find_populations", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpmix.run_mcmc(run.path, resume=True)
    assert open_run(run.path).complete
    assert "interim" in str(open_run(run.path).verdict)
    again = dpmix.run_mcmc(run.path, resume=True)
    assert "interim" not in str(again.verdict)
    assert kept_populations(again) is not None


def test_a_search_that_fails_leaves_the_draws(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object) -> Populations:
        raise MemoryError("Unable to allocate 9 GB")

    monkeypatch.setattr(find, "find_populations", fail)
    assert dpmix.run_mcmc(without(run).path, resume=True).complete
    assert "complete, but its populations were not found: Unable to allocate 9 GB" in caplog.text


def test_a_damaged_place_is_not_read(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(run.path, "r+") as file:
        file["populations/components"][0, 0] = 77
    with caplog.at_level(WARNING, "dpmix"):
        assert kept_populations(open_run(run.path)) is None
    assert "the populations in the file are damaged" in caplog.text
    assert kept_populations(keep_populations(open_run(run.path))) is not None


def test_runs_that_keep_none(folder: Path, tmp_path: Path) -> None:
    """Bayesian EM and few draws compare no chains."""
    files = {"files": [str(folder / "events.npy")]}
    few = dpmix.run_mcmc(a_config(tmp_path, "few.h5", mcmc={**LENGTHS, "draws": 7}, data=files))
    assert few.kept is None
    assert str(few.verdict).startswith("Chains were not compared: ")
    bem = dpmix.run_bem(a_config(tmp_path, "bem.h5", bem={"starts": 2, "max_steps": 20}, data=files))
    assert not bem.has_place_for_populations
    assert str(bem.verdict) == str(gate(bem, tmp_path / "gated").verdict)


def test_a_run_of_a_cluster_is_judged_on_this_machine(run: Run) -> None:
    text = run.config_text.replace("backend: cpu", "backend: cluster")
    run.attributes["config"] = text
    assert run.parsed_config().engine.backend == "cluster"
    engine = engine_maker(run)(np.zeros((9, 3), np.float32))
    assert engine.info["backend"] in ("cpu", "cuda")
    engine.close()
