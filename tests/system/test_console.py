"""Terminals and files that lack characters, shells, and a terminal or window that is closed during a run."""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from platforms import USES_LINUX, not_on
from rich.console import Console
from whole_runs import a_config, assert_draws_of, assert_identical, dpmix, write_events

from dpmix.config.write import to_yaml
from dpmix.runs.display import ProgressDisplay
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run
from dpmix.system import console, window
from dpmix.system.stop import Stop

DRAWS = 800  # a second or more: the terminal must close before the last
RUN = {"model": {"components": 8}, "mcmc": {"burn_in": 10, "draws": DRAWS}}


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def output_of(code: str, encoding: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)


PRINT = "import sys; {}; print('\u03b2 \u00b5'); print('\u2265', file=sys.stderr)"
KEEP = "from dpmix.system.console import keep_unknown_characters; keep_unknown_characters()"


def test_characters_that_a_file_cannot_take_are_written_by_their_number() -> None:
    assert output_of(PRINT.format("pass"), "cp1252").returncode == 1
    done = output_of(PRINT.format(KEEP), "cp1252")
    assert (done.returncode, done.stdout.split(), done.stderr.split()) == (
        0,
        [b"\\u03b2", b"\xb5"],
        [b"\\u2265"],
    )
    done = output_of(PRINT.format(KEEP), "utf-8")
    assert done.stdout.decode().split() == ["\u03b2", "\u00b5"]


def test_init_writes_no_config_that_lacks_characters(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("CD3-\u03b2,b\n" + "1.5,2.5\n3.5,1.25\n" * 20, encoding="utf-8")
    init = f"from dpmix.cli import main; main(['init', {str(path)!r}])"
    done = output_of(init, "cp1252")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.splitlines() == [
        b"dpmix: this terminal, pipe or file cannot print \\u03b2; use --output run.yaml"
    ]
    assert "CD3-\u03b2" in output_of(init, "utf-8").stdout.decode()


def test_commands_to_copy_are_quoted_for_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "WINDOWS_SHELL", False)
    assert console.quoted(Path("my run.h5")) == "'my run.h5'"
    monkeypatch.setattr(console, "WINDOWS_SHELL", True)
    assert console.quoted(r"C:\my data\run.h5") == r'"C:\my data\run.h5"'
    assert console.quoted(r"C:\data\run.h5") == r"C:\data\run.h5"


def own_terminal() -> None:
    """Make stdin the terminal of this process, with SIGHUP as if the tests did not run under nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@not_on("windows", because="Windows has no SIGHUP")
@pytest.mark.slow
def test_closing_the_terminal_stops_a_run_after_its_sweep(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 2000)
    run_mcmc(a_config(tmp_path, "whole.h5", **RUN))
    path = tmp_path / "run.h5"
    (tmp_path / "run.yaml").write_text(to_yaml(a_config(tmp_path, str(path), **RUN)), encoding="utf-8")
    terminal, its_end = os.openpty()
    os.set_blocking(terminal, False)
    process = subprocess.Popen(
        dpmix("mcmc", tmp_path / "run.yaml"),
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(its_end)
    shown = b""
    bar = "\u2501".encode()
    while bar not in shown or not path.exists() or open_run(path).committed < 3:
        assert process.poll() is None, "it ended, or there was no progress bar"
        time.sleep(0.05)
        with suppress(BlockingIOError):
            shown += os.read(terminal, 65536)
    os.close(terminal)
    assert process.wait(timeout=60) == 128 + signal.SIGHUP
    assert 3 <= assert_draws_of(tmp_path / "whole.h5", path) < DRAWS
    run_mcmc(a_config(tmp_path, str(path), **RUN), resume=True)
    assert_identical(tmp_path / "whole.h5", path)


def test_writing_to_a_terminal_just_closed_is_no_error() -> None:
    class Closed(io.StringIO):
        number = errno.EIO

        def write(self, text: str) -> int:
            raise OSError(self.number, "of this test")

    record = logging.LogRecord("dpmix", logging.WARNING, "", 0, "text", None, None)
    display = ProgressDisplay(console=Console(file=Closed()))
    display.emit(record)
    Closed.number = errno.ENOSPC
    with pytest.raises(OSError, match="of this test"):
        display.emit(record)


@USES_LINUX
def test_a_full_disk_under_stdout_is_a_line(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 20)
    with open("/dev/full", "w") as full:
        command = dpmix("info", tmp_path / "events.npy")
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.stderr == (
        "dpmix: standard output cannot be written: No space left on device; free some space\n"
    )
    assert done.returncode == 1


@not_on("windows", because="Windows has no SIGHUP")
def test_nohup_keeps_a_run_when_the_terminal_closes() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_closing_the_window_stops_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Callable[[int], bool]] = []

    def add_handler(handle: Callable[[int], bool]) -> Callable[[], None]:
        handlers.append(handle)
        return lambda: handlers.remove(handle)

    monkeypatch.setattr(window, "HAS_WINDOW", True)
    monkeypatch.setattr(window, "PATIENCE", 0.01)
    monkeypatch.setattr(window, "_add_handler", add_handler)
    with Stop() as stop:
        ctrl_c = 0
        assert handlers[0](ctrl_c) is False
        assert not stop()
        assert handlers[0](window.CLOSE) is False
        assert stop()
    assert stop.exit_code == 128 + signal.SIGTERM
    assert handlers == []
    with Stop([signal.SIGINT]):
        assert handlers == []  # of functions, only the command ends the process
