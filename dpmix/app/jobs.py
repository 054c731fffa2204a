"""Commands of dpmix that the page starts: each is a process of its own, with the lines that it printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

from dpmix.errors import ConfigError
from dpmix.system.console import quoted

LINES, BYTES = 40, 16_384  # at most, of the end of the output
PROGRAM = "from dpmix.cli import main; main()"
PATIENCE = 20.0  # seconds for each command to stop

Arguments = Sequence[str]
"""Arguments of one command, after `dpmix`."""


def command(arguments: Arguments) -> str:
    """Return a command of dpmix as the user's shell reads it."""
    return " ".join(map(quoted, ["dpmix", *arguments]))


class Job:
    """Commands of dpmix that run in a folder, one after another, until one fails.

    Parameters
    ----------
    number : int
    commands : sequence of Arguments
    folder : Path
    log : Path
        File for what the commands print. A pipe would end them if the server is killed.
    turn : Lock, optional
        Held while the commands run: jobs with the same lock wait for each other.
    """

    def __init__(
        self, number: int, commands: Sequence[Arguments], folder: Path, log: Path, turn: Lock | None
    ) -> None:
        self.number = number
        self.command = " && ".join(command(arguments) for arguments in commands)
        self.state_now = "waiting"
        self._commands, self._folder, self._turn = commands, folder, turn
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped, self._problem = False, ""
        self._lock = Lock()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._turn or nullcontext():
            for arguments in self._commands:
                with self._lock:
                    if self._stopped:
                        break
                    try:
                        self._process = process = self._started(arguments)
                    except OSError as error:
                        self._problem = f"dpmix: cannot start: {error.strerror or error}"
                        break
                    self.state_now = "running"
                if process.wait() != 0:
                    break
        ended = not self._problem and self._process is not None and self._process.returncode == 0
        self.state_now = "stopped" if self._stopped else "done" if ended else "failed"

    def _started(self, arguments: Arguments) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own: Ctrl-C in the server's terminal does not interrupt it."""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                cwd=self._folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def state(self) -> dict[str, Any]:
        """Return number, command, state (waiting, running, done, failed or stopped) and the last lines."""
        return {
            "number": self.number,
            "command": self.command,
            "state": self.state_now,
            "lines": self._lines(),
        }

    def _lines(self) -> list[str]:
        """Return the last lines that the commands printed, and why one could not start."""
        problem = [self._problem] if self._problem else []
        if not self._log.exists():
            return problem
        with self._log.open("rb") as file:
            # Only the end is shown, and a long run prints megabytes.
            file.seek(max(self._log.stat().st_size - BYTES, 0))
            text = file.read().decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines()[-LINES:]] + problem

    def stop(self) -> None:
        """Ask the commands to stop; a run keeps its committed draws and can be resumed."""
        with self._lock:
            self._stopped = self._stopped or self._thread.is_alive()
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until the commands have ended, at most some seconds."""
        self._thread.join(seconds)


class Jobs:
    """The commands started from the page, in their order. Runs wait for each other.

    Attributes
    ----------
    on_start : callable
        Called when a command was given; `active` is then true.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs = TemporaryDirectory(prefix="dpmix-app-", ignore_cleanup_errors=True)
        self._jobs: list[Job] = []
        self._lock, self._turn = Lock(), Lock()
        self._ended = False
        self.on_start: Callable[[], None] = lambda: None

    def start(self, *commands: Arguments, queued: bool = False) -> Job:
        """Start commands, one after another; queued: when the queued ones before have ended."""
        with self._lock:
            number = len(self._jobs) + 1
            log = Path(self._logs.name) / f"{number}.txt"
            if self._ended:
                raise ConfigError(["the server ends; no command starts any more"])
            job = Job(number, commands, self._folder, log, self._turn if queued else None)
            self._jobs.append(job)
        self.on_start()
        return job

    def states(self) -> list[dict[str, Any]]:
        """Return the states of all commands."""
        return [job.state() for job in self._jobs]

    @property
    def running(self) -> bool:
        """True while a command runs."""
        return any(job.state_now == "running" for job in self._jobs)

    @property
    def active(self) -> bool:
        """True while a command waits or runs."""
        return any(job.state_now in ("waiting", "running") for job in self._jobs)

    def find(self, number: int) -> Job | None:
        """Return a command by its number; None if it does not exist."""
        return self._jobs[number - 1] if 1 <= number <= len(self._jobs) else None

    def stop_all(self) -> None:
        """Ask all commands to stop, those that have not started first, and wait for each."""
        with self._lock:
            self._ended = True
        # From the last: if a running one ended first, one that waits for it would start.
        for job in reversed(self._jobs):
            job.stop()
        for job in self._jobs:
            job.wait(PATIENCE)
