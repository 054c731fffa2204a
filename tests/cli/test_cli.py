"""Test the commands: the arguments they pass on, their output, and their exit codes."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from platforms import SIGTERM_KILLS, USES_LINUX
from whole_runs import assert_identical

from dpmix.cli import main
from dpmix.cli.values import GivenPath
from dpmix.commands import whole_run
from dpmix.config.load import load_config, parse_config
from dpmix.config.schema import Config
from dpmix.engines.cuda import engine as cuda
from dpmix.engines.cuda.devices import DeviceInfo
from dpmix.errors import DataError, DpmixError, EngineError
from dpmix.inputs import channels
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_sources
from dpmix.runs import bem, describe, loop, mcmc, reader
from dpmix.runs.loop import SweepReport
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import open_run
from dpmix.system.console import quoted
from dpmix.system.promises import promises, system_name

COMMANDS = ("init", "mcmc", "bem", "gate", "predict", "info", "simulate", "devices")
CONFIG = """\
data: {files: [events.csv]}
model: {components: 6}
mcmc: {burn_in: 5, draws: 10}
bem: {starts: 2}
engine: {backend: cpu}
"""
ON_CPU = ["--set", "engine.backend=cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a config and its events in the folder `in`."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    events = np.concatenate([rng.normal(size=(300, 3)), 4 + rng.normal(size=(200, 3))])
    np.savetxt(tmp_path / "in" / "events.csv", events, delimiter=",", header="a,b,c", comments="")
    (tmp_path / "in" / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    no_search(monkeypatch)
    return tmp_path


def no_search(patch: pytest.MonkeyPatch) -> None:
    """Have runs end without finding their populations, as other tests do: it is a third of their time."""
    patch.setattr(whole_run, "keep_populations", lambda run, engine: run)


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


LOOPS = {"mcmc": mcmc, "bem": bem}


def progress(iteration: int = 1, total: int = 100, kind: str = "mcmc", chain: int = 0) -> SweepReport:
    return SweepReport(kind, "burn-in", iteration, total, chain, -1234567.0, -1234600.0, 7, 1.5, 0.25, 0)


class FakeRun:
    """Replace the sampler: record the arguments, and call a function of the test."""

    def __init__(self, body: Callable[[dict[str, Any]], bool] = lambda given: True) -> None:
        self.body = body
        self.given: dict[str, Any] = {}

    def __call__(self, config: Config, **given: Any) -> loop.Result:
        self.given = {"config": config, **given}
        return loop.Result(Path(config.output.path), self.body(self.given))


@pytest.fixture
def without_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of `FakeRun` end as if they had written a run file."""
    monkeypatch.setattr(whole_run, "open_run", lambda path: path)
    no_search(monkeypatch)
    monkeypatch.setattr(reader, "open_run", lambda path: path)
    monkeypatch.setattr(describe, "describe_run", lambda run: ["a summary"])


# Help


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys, dpmix.cli; print([m for m in ('numpy', 'pydantic', 'rich', 'h5py') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_gate_imports_libraries_only_when_needed() -> None:
    heavy = "{'matplotlib', 'bokeh', 'pyarrow', 'scipy.stats', 'scipy.optimize', 'dpmix.explore.explorer',"
    heavy += "'scipy.cluster', 'scipy.sparse'}"
    check = f"import sys, dpmix.commands.gate; print({heavy} & {{*sys.modules}} or 'none')"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "none"


def test_a_run_imports_libraries_of_recordings_only_when_needed() -> None:
    heavy = "{'scipy.linalg', 'scipy.ndimage'}"
    check = f"import sys, dpmix.runs.mcmc; print({heavy} & {{*sys.modules}} or 'none')"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "none"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name: str) -> None:
    text = dpmix(name, "--help").stdout
    assert "Example" in text
    assert f"dpmix {name}" in text.split("Example")[1]
    assert name in dpmix("--help").stdout


def test_version() -> None:
    assert dpmix("--version").stdout.startswith("dpmix, version ")


# Sampling: arguments


@pytest.mark.parametrize("kind", ["mcmc", "bem"])
@pytest.mark.usefixtures("without_file")
def test_options_reach_the_run(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun()
    monkeypatch.setattr(LOOPS[kind], f"run_{kind}", fake)
    arguments = [kind, "in/run.yaml", "--output", "x: 1.h5", "--seed", "7", "--threads", "2", "--overwrite"]
    result = dpmix(*arguments, "--set", "model.components=9", "--set", "mcmc.thin=3")
    config = fake.given["config"]
    assert (config.output.path, config.seed, config.engine.threads) == ("x: 1.h5", 7, 2)
    assert (config.model.components, config.mcmc.thin, config.mcmc.draws) == (9, 3, 10)
    assert (fake.given["base"], fake.given["resume"], fake.given["overwrite"]) == (Path("in"), False, True)
    assert result.stdout == "a summary\n"


def test_problems_are_lines_without_a_traceback(folder: Path) -> None:
    result = dpmix("mcmc", "in/run.yaml", "--set", "model.components=0", "--set", "mcmc.thn=1", code=2)
    assert result.stderr.splitlines() == [
        "dpmix: --set model.components=0: model.components is 0; it must be an integer from 1 to 4096",
        "dpmix: --set mcmc.thn=1: mcmc.thn is not a key of the config; did you mean mcmc.thin?",
    ]


def test_a_failed_run_exits_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: dict[str, Any]) -> bool:
        raise DataError("events.csv: channel a is constant")

    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(fail))
    assert dpmix("mcmc", "in/run.yaml", code=1).stderr == "dpmix: events.csv: channel a is constant\n"


def test_a_bug_keeps_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: dict[str, Any]) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(fail))
    with pytest.raises(ZeroDivisionError):
        dpmix("mcmc", "in/run.yaml")


def test_a_failed_engine_names_the_command_to_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: dict[str, Any]) -> bool:
        raise EngineError("every device has failed")

    monkeypatch.setattr(bem, "run_bem", FakeRun(fail))
    assert dpmix("bem", "in/run.yaml", "--output", "my run.h5", code=1).stderr.splitlines() == [
        "dpmix: every device has failed",
        f"dpmix: stopped; resume with: dpmix bem {quoted('my run.h5')} --resume",
    ]


def test_too_little_memory_is_a_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(given: dict[str, Any]) -> bool:
        raise MemoryError("Unable to allocate 1.2 TiB")

    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(fail))
    said = dpmix("mcmc", "in/run.yaml", code=1).stderr
    assert said.startswith("dpmix: not enough memory: Unable to allocate 1.2 TiB; use fewer events")


def test_a_binding_truncation_is_reported_even_quietly(folder: Path) -> None:
    result = dpmix("mcmc", "in/run.yaml", "--quiet", "--set", "model.components=2")
    assert result.stdout == ""
    assert result.stderr.startswith("warning: the truncation binds")
    assert len(result.stderr.splitlines()) == 1


def test_data_are_not_overwritten_by_a_run(folder: Path) -> None:
    before = Path("in/events.csv").read_bytes()
    for output in ("in/events.csv", "in/run.yaml"):
        said = dpmix("mcmc", "in/run.yaml", "--output", output, "--overwrite", code=2).stderr
        assert "is not a run file" in said
    assert "is a folder" in dpmix("mcmc", "in/run.yaml", "--output", ".", "--overwrite", code=2).stderr
    assert Path("in/events.csv").read_bytes() == before


def test_a_complete_run_extends_to_more_draws_and_never_to_fewer(folder: Path) -> None:
    dpmix("mcmc", "in/run.yaml")
    began = open_run("run.h5").draws
    assert "already complete" in dpmix("mcmc", "run.h5", "--resume").stderr
    dpmix("mcmc", "run.h5", "--resume", "--set", f"mcmc.draws={began + 3}", "--quiet")
    grown = open_run("run.h5")
    assert (grown.draws, grown.complete) == (began + 3, True)
    fewer = dpmix("mcmc", "run.h5", "--resume", "--set", f"mcmc.draws={began}", code=2)
    assert fewer.stderr.startswith("dpmix: run.h5: mcmc.draws: not what run.h5 was started with")


def test_a_run_without_its_checkpoint_warns_that_it_restarts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(2, monkeypatch)
    dpmix("mcmc", "in/run.yaml", code=130)
    Path("run.h5.checkpoint").unlink()
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert "no checkpoint next to run.h5" in dpmix("mcmc", "run.h5", "--resume", "--quiet").stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.yaml"], "dpmix: none.yaml: cannot be read: No such file or directory"),
        (["in/run.yaml", "--seed", "-1"], "Invalid value for '--seed'"),
        (["in/run.yaml", "--threads", "0"], "Invalid value for '--threads'"),
        (["in/run.yaml", "--resume", "--overwrite"], "give one of them"),
        (
            ["in/run.yaml", "--resume"],
            "dpmix: run.h5: no such run file to resume; leave --resume out to start it",
        ),
        (["in/run.yaml", "--resum"], "Did you mean"),
    ],
)
def test_wrong_usage_exits_with_2(folder: Path, arguments: list[str], expected: str) -> None:
    assert expected in dpmix("mcmc", *arguments, code=2).stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("drift", "in/events.csv"), "--limit"),
        (("drift", "in/events.csv"), "--fail-above"),
        (("simulate", "x.fcs", "--drift", "slow"), "--drift-size"),
        (("explore", "run.h5"), "--further"),
        (("associate", "gated", "--formula", "~ a", "--contrast", "a"), "--least-ratio"),
        (("associate", "gated", "--formula", "~ a", "--contrast", "a"), "--false-share"),
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_of_options_are_finite(
    folder: Path, command: tuple[str, ...], option: str, number: str
) -> None:
    assert f"Invalid value for '{option}': {number} is not" in dpmix(*command, option, number, code=2).stderr


def test_a_path_may_not_be_empty(folder: Path) -> None:
    """An unset variable of a shell must not stand for the current folder."""
    paths = [
        param.type
        for command in main.commands.values()
        for param in command.params
        if isinstance(param.type, click.Path)
    ]
    assert len(paths) > 10
    assert all(isinstance(one, GivenPath) for one in paths)
    message = "Invalid value for '--output': it is empty; give a file or folder."
    assert message in dpmix("gate", "run.h5", "--output", "", code=2).stderr


# Sampling: output


@pytest.mark.usefixtures("without_file")
def test_quiet_shows_warnings_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(given: dict[str, Any]) -> bool:
        logging.getLogger("dpmix").info("the engine is cpu")
        logging.getLogger("dpmix").warning("the truncation binds")
        given["on_sweep"](progress())
        return True

    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(talk))
    loud, quiet = dpmix("mcmc", "in/run.yaml"), dpmix("mcmc", "in/run.yaml", "--quiet")
    assert loud.stderr.splitlines() == [
        "the engine is cpu",
        "warning: the truncation binds",
        "burn-in: sweep 1 of 100, log likelihood -1.23457e+06, 7 components occupied",
    ]
    assert (quiet.stdout, quiet.stderr) == ("", "warning: the truncation binds\n")
    assert logging.getLogger("dpmix").handlers == []


# Sampling: signals


@pytest.mark.usefixtures("without_file")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=SIGTERM_KILLS)]
)
def test_a_signal_stops_the_run_after_its_sweep(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    asked = []

    def stop(given: dict[str, Any]) -> bool:
        asked.append(given["should_stop"]())
        os.kill(os.getpid(), number)
        asked.append(given["should_stop"]())
        return False

    before = signal.getsignal(number)
    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(stop))
    result = dpmix("mcmc", "in/run.yaml", "--output", "my run.h5", code=code)
    assert asked == [False, True]
    assert f"dpmix: stopped; resume with: dpmix mcmc {quoted('my run.h5')} --resume" in result.stderr
    assert signal.getsignal(number) is before


def test_a_second_interrupt_stops_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(given: dict[str, Any]) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    monkeypatch.setattr(mcmc, "run_mcmc", FakeRun(stop))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # may have been ignored
    try:
        dpmix("mcmc", "in/run.yaml", code=130)
    finally:
        signal.signal(signal.SIGINT, before)


# Sampling: whole runs


def stop_after(sweeps: int, monkeypatch: pytest.MonkeyPatch, kind: str = "mcmc") -> None:
    """Interrupt the next run after some sweeps."""
    original = getattr(LOOPS[kind], f"run_{kind}")

    def stopped(config: Config, **given: Any) -> loop.Result:
        def on_sweep(progress: SweepReport) -> None:
            given["on_sweep"](progress)
            if (progress.iteration, progress.chain) == (sweeps, 0):
                os.kill(os.getpid(), signal.SIGINT)

        return original(config, **{**given, "on_sweep": on_sweep})

    monkeypatch.setattr(LOOPS[kind], f"run_{kind}", stopped)


@pytest.mark.parametrize("kind", ["mcmc", "bem"])
def test_a_run_from_its_config(folder: Path, kind: str) -> None:
    result = dpmix(kind, "in/run.yaml")
    found = open_run("run.h5")
    assert (found.kind, found.complete) == (kind, True)
    assert result.stdout.startswith("run.h5:")
    again = dpmix(kind, "in/run.yaml", code=2)
    assert again.stderr.startswith("dpmix: run.h5: exists already; --resume continues it, --overwrite")
    dpmix(kind, "in/run.yaml", "--overwrite")
    assert "already complete" in dpmix(kind, "in/run.yaml", "--resume").stderr


def test_a_stopped_run_resumes_to_the_same_draws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dpmix("mcmc", "in/run.yaml", "--output", "whole.h5")
    with monkeypatch.context() as patch:
        stop_after(9, patch)
        dpmix("mcmc", "in/run.yaml", code=130)
    assert 0 < open_run("run.h5").committed < 10
    monkeypatch.chdir(folder)
    dpmix("mcmc", "run.h5", "--resume", "--threads", "1")
    whole, resumed = open_run("whole.h5"), open_run("run.h5")
    assert resumed.complete
    np.testing.assert_array_equal(whole.means, resumed.means)


def test_the_profile_is_printed_on_request_and_by_info(folder: Path) -> None:
    kind = "bem"
    asked = dpmix(kind, "in/run.yaml", "--profile", "--quiet").stdout.splitlines()
    assert asked[0].startswith("time: ")
    assert [line.split("  ")[1] for line in asked[1:]] == list(SPANS.values())
    assert "\n".join(asked) in dpmix("info", "run.h5").stdout
    assert dpmix(kind, "run.h5", "--resume", "--profile", "--quiet").stdout.splitlines() == asked
    assert "kernels" not in dpmix(kind, "in/run.yaml", "--overwrite").stdout


def test_a_run_resumes_with_another_backend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cuda = SimpleNamespace(available=lambda: (False, "no driver"))
    monkeypatch.setattr("dpmix.engines.choose.cuda", no_cuda)
    dpmix("mcmc", "in/run.yaml", "--output", "whole.h5")
    with monkeypatch.context() as patch:
        stop_after(9, patch)
        dpmix("mcmc", "in/run.yaml", "--set", "engine.backend=auto", code=130)
    refused = dpmix("mcmc", "run.h5", "--resume", "--set", "engine.backend=cuda", code=2)
    assert refused.stderr == (
        "dpmix: engine.backend: cuda is not available here: no driver; or use --set engine.backend=cpu\n"
    )
    dpmix("mcmc", "run.h5", "--resume", "--set", "engine.backend=cpu")
    whole, resumed = open_run("whole.h5"), open_run("run.h5")
    np.testing.assert_array_equal(whole.means, resumed.means)


def test_a_run_resumes_only_with_the_same_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(2, monkeypatch)
    dpmix("mcmc", "in/run.yaml", code=130)
    for path in ("in/run.yaml", "run.h5"):
        result = dpmix("mcmc", path, "--resume", "--seed", "9", "--set", "model.components=7", code=2)
        assert result.stderr.splitlines() == [
            f"dpmix: {path}: {key}: not what run.h5 was started with; continue it unchanged with "
            "dpmix mcmc run.h5 --resume, or restart with --overwrite"
            for key in ("model.components", "seed")
        ]
    for arguments, expected in (
        (("bem", "run.h5", "--resume"), "made by dpmix mcmc; continue with dpmix mcmc --resume"),
        (("mcmc", "run.h5"), "run.h5: exists already; --resume continues it, --overwrite replaces it"),
        (("mcmc", "run.h5", "--resume", "--output", "x.h5"), "run.h5 is continued in place; leave it out"),
    ):
        assert expected in dpmix(*arguments, code=2).stderr


def test_a_run_file_is_the_config_of_another_run(folder: Path) -> None:
    """Also from another folder than the data's."""
    dpmix("mcmc", "in/run.yaml", "--set", "mcmc.until=null", "--quiet")
    dpmix("mcmc", "run.h5", "--output", "same.h5", "--quiet")
    assert_identical(Path("run.h5"), Path("same.h5"))
    dpmix("bem", "run.h5", "--output", "modes.h5", "--quiet")
    assert open_run("modes.h5").kind == "bem"


# Init


def test_init_writes_a_config_that_runs(folder: Path) -> None:
    """With the keys that differ from file to file, and with all."""
    dpmix("init", "in/events.csv", "--output", "in/new.yaml")
    short = load_config("in/new.yaml")
    assert short.data.files == ["events.csv"]
    assert short.data.channels == ["a", "b", "c"]
    assert len([line for line in Path("in/new.yaml").read_text().splitlines() if line[:1] != "#"]) <= 12
    settings = ["--set", "mcmc.burn_in=1", "--set", "mcmc.draws=2", "--set", "model.components=4"]
    dpmix("mcmc", "in/new.yaml", *settings, *ON_CPU)
    dpmix("init", "in/events.csv", "--output", "in/all.yaml", "--all")
    dpmix("mcmc", "in/all.yaml", *settings, "--output", "all.h5", *ON_CPU)
    config = load_config("in/all.yaml")
    assert config.model_copy(update={"data": short.data}) == short
    assert {name: t.method for name, t in config.data.transform.items()} == {
        "default": "auto",
        "a": "linear",
        "b": "linear",
        "c": "linear",
    }
    assert open_run("run.h5").complete
    np.testing.assert_array_equal(open_run("run.h5").means, open_run("all.h5").means)


def test_init_of_a_folder(folder: Path) -> None:
    (folder / "week").mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / "week" / name).write_text("x,y\n1,2\n3,5\n")
        text = dpmix("init", "week").stdout
        assert "files:\n    - week\n" in text
        assert f"{name}: 2 events" in text


def test_init_of_odd_names(folder: Path) -> None:
    """A channel named like the default transform, and a file name with a line break."""
    rows = ["default,CD[3]*,no,12:30", "1,2,3,4", "3,1,5,2", "5,6,3,1", "6,5,4,3", "1,5,2,9"]
    Path("two\nlines.csv").write_text("\n".join(rows))
    dpmix("init", "two\nlines.csv", "--output", "run.yaml")
    config = load_config("run.yaml")
    assert config.data.files == ["two\nlines.csv"]
    assert config.data.channels == ["default", "CD[3]*", "no", "12:30"]
    dpmix("mcmc", "run.yaml", "--quiet", "--set", "mcmc.draws=2", "--set", "mcmc.burn_in=0", *ON_CPU)


def test_init_prints_without_output_and_never_overwrites_unasked(folder: Path) -> None:
    printed = dpmix("init", "in/events.csv").stdout
    assert "files:\n    - in/events.csv\n" in printed
    refused = dpmix("init", "in/events.csv", "--output", "in/run.yaml", code=2)
    assert refused.stderr == "dpmix: in/run.yaml: exists already; --overwrite replaces it\n"
    assert (folder / "in/run.yaml").read_text() == CONFIG
    misplaced = dpmix("init", "in/events.csv", "--output", "in", "--overwrite", code=2)
    assert misplaced.stderr.startswith("dpmix: in: is a folder; give the name of the config to write")
    dpmix("init", "in/events.csv", "--output", "in/run.yaml", "--overwrite")
    assert load_config("in/run.yaml").data.channels == ["a", "b", "c"]


@USES_LINUX
def test_init_writes_no_name_that_is_not_in_utf_8(folder: Path) -> None:
    name = os.fsdecode(b"a\xfc.npy")
    np.save(name, np.arange(60.0).reshape(20, 3))
    refused = dpmix("init", name, "--output", "run.yaml", code=2).stderr
    assert refused.startswith(
        "dpmix: a .npy: its name is not in UTF-8, which a config cannot hold; rename it"
    )
    assert not Path("run.yaml").exists()
    dpmix("init", "a*.npy", "--output", "run.yaml")


@USES_LINUX
def test_a_folder_whose_name_is_not_in_utf_8(folder: Path) -> None:
    """A run there, its gating, and the copies of its files."""
    there = folder / os.fsdecode(b"gr\xfcn")
    there.mkdir()
    events = np.random.default_rng(1).normal(300, 60, (300, 2)) * [1, 2]
    write_fcs(there / "a.fcs", events.astype(np.float32), ["CD3", "CD4"])
    (there / "run.yaml").write_text(CONFIG.replace("events.csv", "a.fcs"))
    run = there / "run.h5"
    os.chdir(there)
    dpmix("mcmc", "run.yaml", "--set", "output.path=run.h5")
    os.chdir(folder)
    assert open_run(run).base == there
    dpmix("gate", run, "--output", "gated", "--strategy", "--format", "fcs", "--format", "h5ad")
    assert "gr\N{REPLACEMENT CHARACTER}n" in (folder / "gated" / "report.html").read_text("utf-8")


@pytest.mark.parametrize("output", ["in/events.csv", "in/notes.txt", "other.fcs", "binary", "other.csv"])
def test_init_replaces_nothing_but_a_config(folder: Path, output: str) -> None:
    shutil.copy("in/events.csv", "in/notes.txt")
    Path("other.fcs").write_text("FCS3.1")
    Path("binary").write_bytes(b"\xff\0\x01")
    Path("other.csv").write_text("a,b\n1,2\n")
    before = Path(output).read_bytes()
    data = "in/notes.txt" if output == "in/notes.txt" else "in/events.csv"
    refused = dpmix("init", data, "--output", output, "--overwrite", code=2).stderr
    assert refused.startswith(f"dpmix: {output}: ")
    assert refused.endswith("; give another --output\n")
    assert Path(output).read_bytes() == before


def test_init_of_a_missing_file(folder: Path) -> None:
    assert "none.fcs" in dpmix("init", "none.fcs", code=2).stderr
    assert "cannot be written" in dpmix("init", "in/events.csv", "--output", "no/run.yaml", code=2).stderr


@pytest.mark.parametrize(
    ("files", "n_taken", "method"),
    [
        (["fcs/100715.fcs"], 12, "logicle"),
        (["fcs/3FITC_4PE_004.fcs"], 2, "logicle"),
        (["fcs/G69019FF_CMVpp65_CD4.fcs", "fcs/G69019FF_SEB_CD4.fcs"], 11, "logicle"),
        (["labelled/flowsom_68983.fcs"], 10, "logicle"),
        (["fcs_odd/coulter.lmd::2"], None, None),
    ],
)
def test_init_of_real_files(
    shared_data: Path, tmp_path: Path, files: list[str], n_taken: int | None, method: str | None
) -> None:
    output = tmp_path / "run.yaml"
    dpmix("init", *(shared_data / file for file in files), "--output", output, "--all")
    config = load_config(output)
    short = dpmix("init", *(shared_data / file for file in files)).stdout
    assert parse_config(short, "short").data.channels == config.data.channels
    (first, *_) = open_sources(config.data.files, tmp_path)
    taken = config.data.channels
    assert taken is not None
    if n_taken is not None:
        assert len(taken) == n_taken
        assert {config.data.transform[name].method for name in taken} == {method}
    assert all(len(channels.match(name, first.details)) == 1 for name in taken), "a name means one channel"
    text = output.read_text()
    for channel in first.details:
        assert channel.detector in text
        assert channel.marker in text
    assert (first.spillover is not None) == ("it has a spillover matrix" in text)


# Info and devices


def test_info_of_data_and_of_a_run(folder: Path) -> None:
    data = dpmix("info", "in/events.csv").stdout
    assert data.startswith("events.csv: 500 events, 3 channels")
    assert "3  c" in data
    dpmix("bem", "in/run.yaml", "--quiet")
    about = dpmix("info", "run.h5").stdout
    assert about.startswith("run.h5:")
    assert "    components: 6\n" in about
    assert "nowhere.fcs" in dpmix("info", "nowhere.fcs", code=1).stderr


def test_info_of_one_data_set_of_several(shared_data: Path) -> None:
    path = shared_data / "fcs_odd" / "coulter.lmd"
    for part, version in ((1, "FCS2.0"), (2, "FCS3.0")):
        said = dpmix("info", f"{path}::{part}").stdout
        assert version in said
        assert f", data set {part} of 2\n" in said


def test_info_of_a_broken_run_file(folder: Path) -> None:
    dpmix("bem", "in/run.yaml", "--quiet")
    whole = Path("run.h5").read_bytes()
    Path("cut.h5").write_bytes(whole[: len(whole) // 2])
    dpmix("info", "cut.h5", code=1)


def test_devices_are_listed_with_why_any_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found() -> list[DeviceInfo]:
        raise DpmixError("no driver: install one")

    found = [DeviceInfo(0, "NVIDIA A", 80 << 30, "9.0"), DeviceInfo(1, "NVIDIA B", 3 << 29, "12.0")]
    listed = [
        "  0  NVIDIA A, 80.0 GiB, compute capability 9.0",
        "  1  NVIDIA B, 1.5 GiB, compute capability 12.0",
    ]
    for available, devices, expected in (
        ((False, "no driver: install one"), none_found, ["cuda  not available: no driver: install one"]),
        ((False, "no nvcc"), lambda: found, ["cuda  not available: no nvcc", *listed]),
        ((True, "two"), lambda: found, ["cuda  available", *listed]),
    ):
        monkeypatch.setattr(cuda, "available", lambda: available)  # noqa: B023
        monkeypatch.setattr(cuda, "devices", devices)
        backends, _, kept = dpmix("devices").stdout.partition(f"{system_name()}:\n")
        cpu, *lines = backends.splitlines()
        assert cpu.startswith("cpu   available: ")
        assert lines == expected
        assert [re.split(" {2,}", line.strip()) for line in kept.splitlines()] == [
            [what, how] for what, how in promises().items()
        ]


# Simulate


@pytest.mark.parametrize("name", ["sample.fcs", "sample.csv", "sample.npy"])
def test_simulate_writes_events_and_the_truth_beside_them(folder: Path, name: str) -> None:
    said = dpmix("simulate", name, "--events", "300", "--seed", "3").stdout
    assert said.startswith(f"{name}: 300 events, 14 channels; ")
    (source,) = open_sources([name])
    assert (source.n_events, len(source.channels)) == (300, 14)
    with np.load("sample.truth.npz") as truth:
        assert truth["labels"].shape == (300,)
    first = Path(name).read_bytes()
    refused = dpmix("simulate", name, "--events", "300", code=2)
    assert refused.stderr == f"dpmix: {name}: exists already; --overwrite replaces it\n"
    dpmix("simulate", name, "--events", "300", "--seed", "3", "--overwrite")
    assert Path(name).read_bytes() == first, "the same seed gives the same data"


def test_simulate_from_the_model(folder: Path) -> None:
    options = ["--kind", "model", "--events", "200", "--channels", "3", "--components", "5"]
    dpmix("simulate", "small.csv", *options)
    (source,) = open_sources(["small.csv"])
    assert (source.n_events, len(source.channels)) == (200, 3)
    with np.load("small.truth.npz") as truth:
        assert truth["means"].shape == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["x.xls"], 2, "it must be one of .fcs, .csv, .npy"),
        (["."], 2, "dpmix: .: is a folder; give the name of a file to write"),
        (["/"], 2, "dpmix: /: is a folder; give the name of a file to write"),
        ([f"{'x' * 300}.fcs"], 1, f"dpmix: {'x' * 300}.fcs: the name is too long; give a shorter one"),
        (["no/x.fcs"], 1, "dpmix: no/x.fcs: cannot be written: No such file or directory"),
        (["x.csv", "--channels", "3"], 2, "--channels and --components are for --kind model only"),
        (["x.csv", "--kind", "model", "--no-spill"], 2, "--no-spill is for --kind cytometry only"),
        (["x.csv", "--events", "0"], 2, "Invalid value for '--events'"),
        (["a.fcs", "--kind", "model", "--drift", "slow"], 2, "--drift is for --kind cytometry only"),
        (
            ["a.fcs", "--drift", "clog", "--drift-size", "1"],
            2,
            "--drift-size is for --drift slow, step and bubble",
        ),
    ],
)
def test_simulate_refuses(folder: Path, arguments: list[str], code: int, expected: str) -> None:
    assert expected in dpmix("simulate", *arguments, code=code).stderr


# The configs in configs/

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL = ["model.components=12", "mcmc.burn_in=3", "mcmc.draws=4", "bem.max_steps=5", "engine.backend=cpu"]


def test_no_config_is_left_out() -> None:
    assert {path.stem for path in CONFIGS.glob("*")} == {"demo", "table", "modes", "samples"}


@pytest.mark.parametrize("name", ["demo", "table", "modes", "samples"])
def test_a_config_runs_as_it_says(folder: Path, name: str) -> None:
    """Run the commands in the comment at its top, with fewer events and sweeps."""
    shutil.copytree(CONFIGS, folder / "configs")
    (folder / "demo").mkdir()
    text = (CONFIGS / f"{name}.yaml").read_text()
    commands = [line.split()[2:] for line in text.splitlines() if line.startswith("#   dpmix ")]
    small = [word for setting in SMALL for word in ("--set", setting)]
    options = {"simulate": ["--events", "2000"], "mcmc": small, "bem": small, "gate": ["--format", "csv"]}
    assert {"simulate"} < {command[0] for command in commands} <= set(options)
    for command in commands:
        dpmix(*command, *options[command[0]])
    assert open_run(load_config(f"configs/{name}.yaml").output.path).complete
