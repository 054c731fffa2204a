"""Show the log and the progress of a run: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from dpmix.system.console import ignoring_closed_terminal

if TYPE_CHECKING:
    from dpmix.runs.loop import SweepReport

FIRST_INTERVAL, INTERVAL = 1.0, 10.0  # seconds from the first line to the second, and between later ones
TIME_REMAINING = TimeRemainingColumn(compact=True)


class ProgressDisplay(logging.Handler):
    """Show the log of dpmix and the progress of its work on stderr, or in the cell of a notebook.

    A context manager. A bar needs a terminal, or a notebook with ipywidgets; elsewhere progress is shown in
    lines: for the first sweep, one second later, every ten seconds, and for the last.

    Parameters
    ----------
    quiet : bool
        Show warnings only.
    console : rich.console.Console, optional
        Where to show; default: stderr or the cell of a notebook.
    clock : callable
        Returns seconds since any fixed time.

    Examples
    --------
    >>> with ProgressDisplay() as display:  # doctest: +SKIP
    ...     run_mcmc(config, on_sweep=display.on_sweep)
    """

    def __init__(
        self,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        notebook = self._console.is_jupyter and find_spec("ipywidgets") is not None
        self._quiet, self._clock = quiet, clock
        self._has_bar = not quiet and (self._console.is_interactive or notebook)
        super().__init__(logging.WARNING if quiet else logging.DEBUG if self._has_bar else logging.INFO)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),  # all columns together fit 80 characters
            TextColumn("{task.fields[count]}", markup=False),
            TIME_REMAINING,
            TextColumn("{task.fields[state]}", markup=False),
            console=self._console,
            get_time=clock,
            speed_estimate_period=math.inf,  # a sweep of many events may take minutes
            disable=not self._has_bar,
        )
        self._key: tuple[str, ...] = ()
        self._next_line: float | None = None
        self._unprinted = ""

    @ignoring_closed_terminal()
    def on_sweep(self, progress: SweepReport) -> None:
        """Show a sweep, or a step of Bayesian EM; of chains run in lockstep, the first."""
        if self._quiet or (progress.kind == "mcmc" and progress.chain > 0):
            return
        bem = progress.kind == "bem"
        key = ("start", str(progress.chain), progress.phase) if bem else ("sweeps",)
        task = self._update(key, progress.phase, progress.iteration, progress.total)
        speed = None if task.speed is None else f"{task.speed:.3g}"
        state = f"log likelihood {progress.log_likelihood:.6g}, {progress.occupied} components occupied"
        most = "at most " if progress.at_most else ""
        task.fields.update(
            count=f"{progress.iteration}/{most}{progress.total}" + (f" {speed}/s" if speed else ""),
            state=state,
        )
        if not self._has_bar:
            unit, limit = ("step", "at most ") if bem else ("sweep", most)
            parts = [f"{progress.phase}: {unit} {progress.iteration} of {most}{progress.total}"]
            if speed:
                parts += [f"{speed} {unit}s/s", f"{limit}{TIME_REMAINING.render(task)} remaining"]
            self._line(", ".join([*parts, state]))

    @ignoring_closed_terminal()
    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of the log: the progress of other work as a bar, anything else as a line."""
        share, work = getattr(record, "share", None), getattr(record, "work", "")
        if self._has_bar and share is not None:
            count = " ".join([f"{share:.0%}", *filter(None, [getattr(record, "place", "")])])
            self._update(("work", work), work, share, 1.0).fields.update(count=count)
            return
        self._end_work()
        self._print_last()
        warns = record.levelno >= logging.WARNING
        text = f"{'warning: ' if warns else ''}{record.getMessage()}"
        self._console.print(Text(text, style="yellow" if warns else ""))

    def __enter__(self) -> Self:
        logger = logging.getLogger("dpmix")
        self._level_before = logger.level
        logger.addHandler(self)
        logger.setLevel(self.level)
        return self

    @ignoring_closed_terminal()
    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("dpmix")
        logger.removeHandler(self)
        logger.setLevel(self._level_before)
        self._end_work()
        if self._has_bar:
            self._bars.refresh()  # in a notebook, stop() leaves the last refresh out
            self._bars.stop()
        self._print_last()

    def _update(self, key: tuple[str, ...], description: str, completed: float, total: float) -> Task:
        """Update the bar of some work, and return it; other work replaces the bar."""
        if key != self._key:
            self._end_work(always=True)
            self._key = key
            self._bars.start()
            self._bars.add_task(description, total=total, count="", state="")
            # Below the first value: the update to that one then marks the time that the speed counts from.
            self._bars.tasks[0].completed = completed - 1
        (task,) = self._bars.tasks
        self._bars.update(task.id, description=description, completed=completed, total=total)
        return task

    def _end_work(self, always: bool = False) -> None:
        """Remove the bar of work; the bar of sweeps stays, unless `always`."""
        if self._key and (always or self._key[0] == "work"):
            self._bars.remove_task(self._bars.task_ids[0])
            self._bars.refresh()
            self._key = ()

    def _print_last(self) -> None:
        """Print the last line of progress, if it was kept: what follows it comes after it."""
        if self._unprinted:
            self._console.print(self._unprinted)
            self._unprinted = ""

    def _line(self, text: str) -> None:
        """Print a line of progress if it is time to, or keep it: the last one comes before other lines."""
        now = self._clock()
        if self._next_line is None or now >= self._next_line:
            self._console.print(text)
            self._next_line = now + (FIRST_INTERVAL if self._next_line is None else INTERVAL)
            text = ""
        self._unprinted = text
