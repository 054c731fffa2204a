"""Work in a forked process."""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
from platforms import FORKS

from dpmix.system.background import importing, in_background

pytestmark = FORKS


def add_line(path: Path, text: str = "") -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def processes(path: Path) -> list[int]:
    """Return the processes that added lines."""
    return [int(line.split()[0]) for line in path.read_text().splitlines()]


def test_a_call_is_made_once_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with in_background(lambda: add_line(path)):
        pass
    (process,) = processes(path)
    assert process != os.getpid()


def test_a_call_that_may_not_fork_is_made_after_the_body(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with in_background(lambda: add_line(path), allowed=False):
        assert not path.exists()
    assert processes(path) == [os.getpid()]


def test_an_error_is_raised_in_this_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def fail() -> None:
        add_line(path)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), in_background(fail):
        pass
    assert len(set(processes(path))) == 2


def test_a_warning_is_shown_in_this_process(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def warn() -> None:
        warnings.warn("a glyph is missing", UserWarning, stacklevel=1)
        add_line(path)

    with pytest.warns(UserWarning, match="a glyph is missing"), in_background(warn):
        pass
    assert processes(path) == [os.getpid()]


def test_a_killed_call_is_made_again(tmp_path: Path) -> None:
    path, own = tmp_path / "lines", os.getpid()
    with in_background(
        lambda: add_line(path) if os.getpid() == own else os.kill(os.getpid(), signal.SIGKILL)
    ):
        pass
    assert processes(path) == [own]


def test_an_error_of_the_body_ends_the_call(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def late() -> None:
        time.sleep(60.0)
        add_line(path)

    began = time.monotonic()
    with pytest.raises(KeyError), in_background(late):
        raise KeyError
    assert time.monotonic() - began < 30.0
    assert not path.exists()


def test_modules_are_imported_during_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_ahead.py").write_text(
        "import threading\nthread = threading.current_thread().name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with importing(["imported_ahead"], allowed=False):
        pass
    assert "imported_ahead" not in sys.modules
    with importing(["no_such_module", "imported_ahead"]):
        pass
    assert sys.modules.pop("imported_ahead").thread == "imports"
