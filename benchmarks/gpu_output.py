"""The record of a GPU run, and the options, the time and the results of a stage of gpu.py.

The record is one JSON file, which the runner and its stages write in turn. This module needs no package.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Thing = TypeVar("Thing")
Record = dict[str, Any]


def read(path: Path) -> Record:
    record: Record = json.loads(path.read_text())
    return record


def write(path: Path, record: Record) -> None:
    """Replace the file; a process killed at any moment leaves the old one or the new one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


class Output:
    """The results of a stage, written to the record of the run after every addition, and its time.

    Parameters
    ----------
    asked : argparse.Namespace
        Result of `parser`: the file of the record, the name of the stage, its seconds and its runner.
    """

    def __init__(self, asked: argparse.Namespace) -> None:
        self._path, self._name, self._end = asked.output, asked.name, time.monotonic() + asked.seconds
        self.results: dict[str, Any] = {}
        threading.Thread(target=_end_with, args=(asked.runner,), daemon=True).start()

    def add(self, key: str, value: object) -> None:
        """Set results[key]."""
        self.results[key] = value
        record = read(self._path)
        record["stages"].setdefault(self._name, {})["results"] = self.results
        write(self._path, record)

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Append a row to results[key], and print it."""
        self.add(key, [*self.results.get(key, []), row])
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ", flush=True)

    def left(self) -> float:
        """Return the seconds that are left to the stage."""
        return max(0.0, self._end - time.monotonic())

    def while_time_is_left(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """Yield things until the stage's time is over; the record counts those left out."""
        remaining = list(things)
        while remaining and self.left() > 0.0:
            yield remaining.pop(0)
        if remaining:
            self.add("left_out", self.results.get("left_out", 0) + len(remaining))


def _end_with(runner: int) -> None:
    """End the stage, with all that it started, when the process that started it has ended, or had before."""
    while os.getppid() == runner:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all stages have."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--output", type=Path, required=True, help="record of the run, which exists")
    made.add_argument("--name", required=True, help="name of the stage in the record")
    made.add_argument("--seconds", type=float, required=True, help="start no further row after this time")
    made.add_argument(
        "--runner", type=int, default=os.getppid(), help="process with which the stage ends (default: parent)"
    )
    made.add_argument("--rehearsal", action="store_true", help="tiny sizes; the times mean nothing then")
    return made
