"""A command of dpmix as a user gives it, with the moments noted at which its stages begin.

    python benchmarks/stages.py MARKS.json mcmc run.yaml --quiet

MARKS.json: the stages in order, each with the moment that it began (`time.monotonic`) and the processor
seconds until then of the process and of its children that have ended. A stage begins where the function that
does it is called; nothing else is changed.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

START = "start of the command"
PREPARE, KMEANS, BURN_IN, DRAWS = "read and prepare", "start by k-means", "burn-in", "draws"

# By command: a module and the name in it that is called, the stage that then begins, the one that follows.
BEGIN: dict[str, list[tuple[str, str, str, str | None]]] = {
    "mcmc": [
        ("dpmix.inputs.preprocess", "prepare", PREPARE, "engine and run file"),
        ("dpmix.runs.initialise", "from_kmeans", KMEANS, BURN_IN),
        ("dpmix.runs.writer", "RunWriter.write_draw", DRAWS, None),
        ("dpmix.commands.whole_run", "keep_populations", "populations", None),
        ("dpmix.runs.describe", "describe_run", "summary", None),
    ],
    "bem": [
        ("dpmix.inputs.preprocess", "prepare", PREPARE, "engine and run file"),
        ("dpmix.runs.initialise", "from_kmeans", KMEANS, "steps of Bayesian EM"),
        ("dpmix.runs.describe", "describe_run", "summary", None),
    ],
    "gate": [
        ("dpmix.inputs.preprocess", "prepare", PREPARE, None),
        ("dpmix.populations.draws.task", "populations_of_run", "populations", "memberships of all events"),
        ("dpmix.report.tables", "write_tables", "tables", "aligned draws, mixing"),
        ("dpmix.report.figures", "write_figures", "figures", None),
        ("dpmix.report.page", "write_report", "report", None),
    ],
}
marks: list[tuple[str, float, float]] = [(START, time.monotonic(), 0.0)]


def begin(stage: str) -> None:
    """From now on it is this stage, where the main thread begins it."""
    if marks[-1][0] != stage and current_thread() is main_thread():
        marks.append((stage, time.monotonic(), time.process_time() + sum(os.times()[2:4])))


def marked(function: Callable[..., Any], stage: str, after: str | None) -> Callable[..., Any]:
    """The function, that says when its stage begins and what follows."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        begin(stage)
        try:
            return function(*args, **named)
        finally:
            if after is not None:
                begin(after)

    return call


def main() -> None:
    path, *arguments = sys.argv[1:]

    def write() -> None:
        begin("end")
        Path(path).write_text(json.dumps(marks))

    atexit.register(write)
    for module, name, stage, after in BEGIN.get(arguments[0], []):
        *owners, last = name.split(".")
        owner = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, last, marked(getattr(owner, last), stage, after))
    from dpmix.cli import main as dpmix

    sys.argv = ["dpmix", *arguments]
    dpmix()


if __name__ == "__main__":
    main()
