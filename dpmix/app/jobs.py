"""Commands of dpmix that the page starts: each is a process of its own, with the lines that it printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

LINES = 40  # of the output that are kept
PROGRAM = "from dpmix.cli import main; main()"


class Job:
    """A command of dpmix that runs in a folder.

    Parameters
    ----------
    number : int
    arguments : sequence of str
        After `dpmix`.
    folder : Path
    """

    def __init__(self, number: int, arguments: Sequence[str], folder: Path) -> None:
        self.number = number
        self.command = shlex.join(["dpmix", *arguments])
        self._lines: deque[str] = deque(maxlen=LINES)
        # A session of its own: Ctrl-C in the terminal of the server does not interrupt it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._reader.is_alive()

    def state(self) -> dict[str, Any]:
        """Return the state for the page: number, command, running, done or failed, and the last lines."""
        running = self.running
        result = "running" if running else "done" if self._process.returncode == 0 else "failed"
        return {"number": self.number, "command": self.command, "state": result, "lines": list(self._lines)}

    def stop(self) -> None:
        """Ask the command to stop; a run keeps its committed draws and can be resumed."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until the command has ended and its output is read, at most some seconds."""
        self._reader.join(seconds)


class Jobs:
    """The commands started from the page, in their order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[Job] = []
        self._lock = Lock()

    def start(self, arguments: Sequence[str]) -> Job:
        """Start a command."""
        with self._lock:
            self._jobs.append(Job(len(self._jobs) + 1, arguments, self._folder))
            return self._jobs[-1]

    def states(self) -> list[dict[str, Any]]:
        """Return the states of all commands."""
        return [job.state() for job in self._jobs]

    def find(self, number: int) -> Job | None:
        """Return a command by its number; None if it does not exist."""
        return self._jobs[number - 1] if 1 <= number <= len(self._jobs) else None

    def stop_all(self, seconds: float = 20.0) -> None:
        """Ask all commands to stop, and wait for each."""
        for job in self._jobs:
            job.stop()
        for job in self._jobs:
            job.wait(seconds)
