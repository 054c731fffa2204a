"""What a run shows while it goes on: a bar on a terminal, a line now and then elsewhere, and its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

if TYPE_CHECKING:
    from dpmix.runs.run import Progress

INTERVAL = 10.0
FIRST_INTERVAL = 1.0


class Display(Protocol):
    """Shows the latest sweep."""

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


class Reporter:
    """Shows progress and the log of the library on stderr while it is open (a context manager).

    Parameters
    ----------
    quiet : bool
        Show nothing but warnings.
    """

    def __init__(self, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._bar = WorkBar(self._console) if self._console.is_terminal and not quiet else None
        self._handler = LogLines(self._console, self._bar)
        self._handler.setLevel(
            logging.WARNING if quiet else logging.INFO if self._bar is None else logging.DEBUG
        )
        self._display: Display | None = None
        if not quiet:
            self._display = (
                BarDisplay(self._console) if self._console.is_terminal else LineDisplay(self._console.print)
            )

    def on_sweep(self, progress: Progress) -> None:
        """Show a sweep; of chains in lockstep, the first."""
        if self._display is not None and (progress.kind == "bem" or progress.chain == 0):
            self._end_work()
            self._display.show(progress)

    def __enter__(self) -> Self:
        logger = logging.getLogger("dpmix")
        logger.addHandler(self._handler)
        logger.setLevel(logging.INFO if self._bar is None else logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_work()
        if self._display is not None:
            self._display.close()
        logging.getLogger("dpmix").removeHandler(self._handler)

    def _end_work(self) -> None:
        if self._bar is not None:
            self._bar.close()


class LogLines(logging.Handler):
    """Prints log messages above the bar, one line each; how far a piece of work is goes to its own bar."""

    def __init__(self, console: Console, bar: WorkBar | None = None) -> None:
        super().__init__()
        self._console = console
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        if self._bar is not None:
            if hasattr(record, "share"):
                self._bar.show(getattr(record, "work", ""), record.share)
                return
            self._bar.close()
        warns = record.levelno >= logging.WARNING
        text = f"{'warning: ' if warns else ''}{record.getMessage()}"
        self._console.print(Text(text, style="yellow" if warns else ""))


class WorkBar:
    """A bar for long work before the first sweep (`dpmix.system.progress`); it is removed at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None

    def show(self, work: str, share: float) -> None:
        if self._bars is not None and self._bars.tasks[0].description != work:
            self.close()
        if self._bars is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=10),
                TextColumn("{task.percentage:.0f}%"),
            )
            self._bars = Bars(
                *columns, TimeRemainingColumn(compact=True), console=self._console, transient=True
            )
            self._bars.start()
            self._bars.add_task(work, total=1.0)
        self._bars.update(self._bars.task_ids[0], completed=share)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class LineDisplay:
    """A line for the first sweep, one soon after it, then one every ten seconds, and one for the last.

    Parameters
    ----------
    write : callable
        Takes a line.
    clock : callable
        Seconds, from any moment.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._interval = 0.0
        self._shown: tuple[Progress, float] | None = None
        self._latest: tuple[Progress, float] | None = None

    def show(self, progress: Progress) -> None:
        self._latest = latest = progress, self._clock()
        if self._shown is None or latest[1] - self._shown[1] >= self._interval:
            self._line(*latest)
            self._interval = FIRST_INTERVAL if self._interval == 0.0 else INTERVAL

    def close(self) -> None:
        if self._latest is not None and self._latest is not self._shown:
            self._line(*self._latest)

    def _line(self, progress: Progress, when: float) -> None:
        self._write(describe(progress, self._rate(progress, when)))
        self._shown = self._latest

    def _rate(self, progress: Progress, when: float) -> float | None:
        """Sweeps per second since the last line, of the same start of Bayesian EM."""
        if self._shown is None or when <= self._shown[1]:
            return None
        sweeps = progress.iteration - self._shown[0].iteration
        return sweeps / (when - self._shown[1]) if sweeps > 0 else None


def describe(progress: Progress, rate: float | None) -> str:
    """One line about a sweep."""
    unit = "step" if progress.kind == "bem" else "sweep"
    parts = [f"{progress.phase}: {unit} {progress.iteration} of {progress.total}"]
    if rate is not None:
        left = "at most " if progress.kind == "bem" else ""
        seconds = (progress.total - progress.iteration) / rate
        parts += [f"{rate:.3g} {unit}s/s", f"{left}{duration(seconds)} left"]
    return ", ".join([*parts, _state(progress)])


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _state(progress: Progress) -> str:
    return f"log likelihood {progress.log_likelihood:.6g}, {progress.occupied} occupied"


class BarDisplay:
    """A bar that moves with every sweep."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),  # all of it fits 80 columns
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._task: TaskID | None = None
        self._iteration = 0

    def show(self, progress: Progress) -> None:
        if self._task is None:
            self._bars.start()
            self._task = self._bars.add_task(
                progress.phase,
                total=progress.total,
                completed=progress.iteration,
                state=_state(progress),
            )
        elif progress.iteration < self._iteration:  # the next start of Bayesian EM
            self._bars.reset(self._task, completed=progress.iteration)
        self._bars.update(
            self._task, description=progress.phase, completed=progress.iteration, state=_state(progress)
        )
        self._iteration = progress.iteration

    def close(self) -> None:
        self._bars.stop()


class Rate(ProgressColumn):
    """Sweeps or steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.3g}/s", no_wrap=True)
