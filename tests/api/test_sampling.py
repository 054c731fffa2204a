"""Runs from Python: what they take, what they return, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from platforms import not_on
from whole_runs import assert_identical, wait_for_draws, write_events

import dpmix
from dpmix.cli import main
from dpmix.config.write import to_yaml
from dpmix.runs.loop import SweepReport

SAMPLERS = {"mcmc": dpmix.run_mcmc, "bem": dpmix.run_bem}
SECTIONS: dict[str, Any] = {
    "data": {"files": ["events.npy"]},
    "model": {"components": 12},
    "mcmc": {"chains": 2, "burn_in": 2, "draws": 6},
    "bem": {"starts": 2, "max_steps": 12},
    "engine": {"backend": "cpu"},
    "seed": 5,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_events(tmp_path / "events.npy", 3000)
    monkeypatch.chdir(tmp_path)
    # Other tests find populations, which is a third of the time of such a run.
    monkeypatch.setattr("dpmix.commands.whole_run.keep_populations", lambda run, engine: run)
    return tmp_path


@pytest.fixture
def plain(folder: Path) -> Path:
    """A run by the command line."""
    (folder / "run.yaml").write_text(to_yaml(dpmix.Config.model_validate(SECTIONS)))
    main(["mcmc", "run.yaml", "--output", "plain.h5", "--quiet"], standalone_mode=False)
    return folder / "plain.h5"


def test_a_config_is_a_file_a_mapping_or_a_config(plain: Path) -> None:
    for source in (
        "run.yaml",
        dpmix.load_config(Path("run.yaml").absolute()),
        SECTIONS | {"data": {"files": (Path("events.npy"),)}, "seed": np.int64(5)},
    ):
        run = dpmix.run_mcmc(source, overwrite=True)
        assert run.complete
        assert run.weights.shape == (2, 6, 12)
        assert_identical(plain, run.path)


def test_settings_change_keys(folder: Path) -> None:
    config = dpmix.Config.model_validate(SECTIONS)
    (folder / "run.yaml").write_text(to_yaml(config))
    phi = {"model.prior.phi": np.array([0.3, 0.2, 0.1])}
    for source, settings in (
        ("run.yaml", ["model.components=5", "seed=7"]),
        (SECTIONS, {"model.components": 5, "seed": 7, "output.path": Path("other.h5")}),
        (config, {"model.components": np.int64(5), "seed": 7, **phi}),
    ):
        run = dpmix.run_mcmc(source, settings=settings, overwrite=True)
        assert run.n_components == 5
        assert run.attributes["seed"] == 7


def test_bayesian_em_gives_one_draw(folder: Path) -> None:
    run = dpmix.run_bem(SECTIONS)
    assert (run.kind, run.weights.shape) == ("bem", (1, 1, 12))


def test_base_is_the_folder_of_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with pytest.raises(dpmix.ConfigError, match=r"events\.npy matches no file"):
        dpmix.run_mcmc(SECTIONS)
    assert dpmix.run_mcmc(SECTIONS, base="..").complete


def test_problems_have_the_words_of_the_command_line(folder: Path) -> None:
    wrong = {"data": {"files": ["events.npy"]}, "model": {"component": 3}, "mcmc": {"draws": 0}}
    with pytest.raises(dpmix.ConfigError) as error:
        dpmix.run_mcmc(wrong)
    assert error.value.problems == [
        "config: model.component is not a key of the config; did you mean model.components?",
        "config: mcmc.draws is 0; it must be an integer from 1 to 2147483648",
    ]
    with pytest.raises(dpmix.ConfigError, match=r'settings is "seed=7"; it must be a mapping or a list'):
        dpmix.run_mcmc(SECTIONS, settings="seed=7")
    with pytest.raises(ValueError, match="use one of them"):
        dpmix.run_mcmc(SECTIONS, resume=True, overwrite=True)
    dpmix.run_mcmc(SECTIONS)
    with pytest.raises(dpmix.ConfigError, match="exists already"):
        dpmix.run_mcmc(SECTIONS)
    with pytest.raises(dpmix.ConfigError, match=r"config: model\.components: not what run\.h5"):
        dpmix.run_mcmc(SECTIONS, settings={"model.components": 9}, resume=True)


@not_on("windows", because="a file that is open in Python cannot be replaced")
def test_a_finished_run_is_returned_and_may_get_more_draws(plain: Path) -> None:
    few = dpmix.run_mcmc("run.yaml", settings={"mcmc.draws": 4})
    assert dpmix.run_mcmc("run.yaml", settings={"mcmc.draws": 4}, resume=True).path == few.path
    assert_identical(plain, dpmix.run_mcmc("run.h5", settings={"mcmc.draws": 6}, resume=True).path)


def test_a_stopped_run_is_returned(plain: Path) -> None:
    seen: list[SweepReport] = []
    run = dpmix.run_mcmc("run.yaml", on_sweep=seen.append, should_stop=lambda: len(seen) >= 8)
    assert (run.complete, run.committed) == (False, 2)
    assert_identical(plain, dpmix.run_mcmc("run.yaml", resume=True).path)


def test_a_run_stands_for_its_file(plain: Path, tmp_path: Path) -> None:
    run = dpmix.open_run(plain)
    assert repr(run) == f"<Run {plain}: mcmc, 6 of 6 draws, 12 components, 3 channels>"
    assert dpmix.open_run(run, transformed=True).transformed
    assert dpmix.predict(run, ["events.npy"], tmp_path / "out", n_draws=2).n_events.tolist() == [3000]


# Ctrl-C


@pytest.mark.parametrize(
    ("kind", "sweeps", "error"),
    [("mcmc", 1, KeyboardInterrupt), ("mcmc", 12, ZeroDivisionError), ("bem", 9, KeyboardInterrupt)],
)
def test_an_error_in_a_callback_keeps_the_draws(
    folder: Path, kind: str, sweeps: int, error: type[BaseException]
) -> None:
    whole = SAMPLERS[kind](SECTIONS, settings={"output.path": "whole.h5"})
    seen: list[SweepReport] = []

    def interrupt(progress: SweepReport) -> None:
        seen.append(progress)
        if len(seen) == sweeps:
            raise error

    with pytest.raises(error):
        SAMPLERS[kind](SECTIONS, on_sweep=interrupt)
    assert dpmix.open_run("run.h5").committed == seen[-1].draws
    assert Path("run.h5.checkpoint").exists() == (sweeps > 1)
    assert_identical(whole.path, SAMPLERS[kind](SECTIONS, resume=True).path)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_ctrl_c_keeps_the_draws(folder: Path, kind: str) -> None:
    """The first Ctrl-C, sent from inside: the sweep ends, then Python's own handler is back."""
    whole = SAMPLERS[kind](SECTIONS, settings={"output.path": "whole.h5"})
    before = signal.getsignal(signal.SIGINT)
    seen: list[SweepReport] = []

    def interrupt(progress: SweepReport) -> None:
        seen.append(progress)
        if len(seen) == 9:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="resume=True continues"):
        SAMPLERS[kind](SECTIONS, on_sweep=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert 9 <= len(seen) <= 12
    assert_identical(whole.path, SAMPLERS[kind](SECTIONS, resume=True).path)


@pytest.mark.slow
def test_ctrl_c_in_another_process_keeps_the_draws(plain: Path) -> None:
    """Twice, the second at any moment: the run resumes to the draws of an uninterrupted run."""
    long = {"mcmc.draws": 2000}
    script = f"import dpmix\ndpmix.run_mcmc('run.yaml', settings={long})\nprint('not here')\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for_draws(Path("run.h5"), 5, process)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), err
    assert out == ""
    assert "KeyboardInterrupt" in err
    assert "stopping after this sweep" in err
    stopped = dpmix.open_run("run.h5")
    assert 5 <= stopped.committed < 2000
    assert Path("run.h5.checkpoint").exists()
    more = {"mcmc.draws": stopped.committed + 3, "output.path": "whole.h5"}
    whole = dpmix.run_mcmc("run.yaml", settings=more)
    resumed = dpmix.run_mcmc(
        "run.yaml",
        settings=long,
        resume=True,
        should_stop=lambda: dpmix.open_run("run.h5").committed >= whole.draws,
    )
    for name in ("weights", "means", "covariances", "alpha"):
        ours, theirs = getattr(resumed, name), getattr(whole, name)
        np.testing.assert_array_equal(ours[:, : whole.draws], theirs)
