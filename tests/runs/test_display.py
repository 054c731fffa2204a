"""The display of progress: a bar on a terminal, lines elsewhere, and the log next to either."""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import time

import pytest
from rich.console import Console

from dpmix.runs import display
from dpmix.runs.display import ProgressDisplay
from dpmix.runs.loop import SweepReport

log = logging.getLogger("dpmix")


def sweep(iteration: int = 1, total: int = 100, kind: str = "mcmc", chain: int = 0) -> SweepReport:
    return SweepReport(kind, "burn-in", iteration, total, chain, -1234567.0, -1234600.0, 7, 1.5, 0.25, 0)


def terminal(file: io.StringIO) -> Console:
    return Console(file=file, force_terminal=True, width=80, _environ={"TERM": "xterm"})


def lines_of(sweeps: list[tuple[float, SweepReport]], end: float = 0.0) -> list[str]:
    """The lines that a display prints of sweeps at given times (seconds)."""
    file, now = io.StringIO(), [0.0]
    with ProgressDisplay(console=Console(file=file, width=200), clock=lambda: now[-1]) as shown:
        for seconds, progress in sweeps:
            now.append(seconds)
            shown.on_sweep(progress)
        now.append(now[-1] + end)
    return file.getvalue().splitlines()


def test_lines_come_at_a_sensible_interval() -> None:
    lines = lines_of([(0.25 * i, sweep(i)) for i in range(101)], end=60.0)
    assert [line.split(",")[0] for line in lines] == [
        f"burn-in: sweep {i} of 100" for i in (0, 4, 44, 84, 100)
    ]
    assert lines[2].split(", ")[1:3] == ["4 sweeps/s", "00:14 remaining"]
    assert lines[-1].split(", ")[1:3] == ["4 sweeps/s", "00:00 remaining"]
    assert lines[0] == "burn-in: sweep 0 of 100, log likelihood -1.23457e+06, 7 components occupied"


def test_the_last_sweep_comes_before_what_follows_it() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, width=200), clock=lambda: 0.0) as shown:
        for i in range(101):
            shown.on_sweep(sweep(i))
        log.info("finding the populations of the run")
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == [
        "burn-in: sweep 0 of 100",
        "burn-in: sweep 100 of 100",
        "finding the populations of the run",
    ]


def test_one_sweep_is_one_line() -> None:
    assert lines_of([(0.0, sweep(100))]) == [
        "burn-in: sweep 100 of 100, log likelihood -1.23457e+06, 7 components occupied"
    ]


def test_the_rate_of_a_new_start_is_not_that_of_the_last() -> None:
    sweeps = [(50, 0), (1, 1), (41, 1)]
    lines = lines_of([(20.0 * k, sweep(i, kind="bem", chain=c)) for k, (i, c) in enumerate(sweeps)])
    assert ["steps/s" in line for line in lines] == [False, False, True]
    assert "2 steps/s, at most 00:30 remaining" in lines[-1]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.4, "00:01"), (61, "01:01"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_the_time_remaining(seconds: float, expected: str) -> None:
    lines = lines_of([(20.0, sweep(1, 3)), (20.0 + seconds, sweep(2, 3))])
    assert f", {expected} remaining, log" in lines[-1]


def test_chains_in_lockstep_are_shown_by_the_first() -> None:
    assert len(lines_of([(20.0 * i, sweep(i, chain=c)) for i in (1, 2) for c in range(4)])) == 2


def wait_for(text: str, file: io.StringIO) -> None:
    """Wait until a text is drawn, which happens ten times a second."""
    until = time.monotonic() + 60.0
    while text not in file.getvalue():
        assert time.monotonic() < until, f"{text} is not drawn"
        time.sleep(0.01)


def test_a_terminal_shows_rate_likelihood_and_occupied_components() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=terminal(file)) as shown:
        for iteration in (1, 2, 30):
            shown.on_sweep(sweep(iteration, kind="bem"))
        wait_for("30/100", file)
        shown.on_sweep(sweep(1, kind="bem", chain=1))
    text = file.getvalue()
    assert re.search(r"30/100 \S+/s", text)
    assert re.search(r"\b1/100", text.split("30/100")[-1])
    assert "log likelihood -1.23457e+06, 7 components occupied" in text


def test_a_terminal_shows_a_bar_that_goes_away() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=terminal(file)):
        log.debug("", extra={"work": "reading [a].csv", "share": 0.25})
        wait_for("25%", file)
        log.debug("", extra={"work": "preparing the events", "share": 0.5})
        wait_for("50%", file)
        log.info("margin events: none")
    said = file.getvalue()
    assert re.search(r"reading \[a\]\.csv .*25%", said)
    assert re.search(r"preparing the events .*50%", said)
    assert "preparing" not in said.split("margin events: none")[-1]
    assert "\x1b[2K" in said  # erased


def test_quiet_shows_warnings_only() -> None:
    file = io.StringIO()
    with ProgressDisplay(quiet=True, console=terminal(file)) as shown:
        log.info("the engine is cpu")
        log.debug("", extra={"work": "reading", "share": 0.4})
        shown.on_sweep(sweep())
        log.warning("the truncation binds")
    assert re.sub(r"\x1b\[\d+m", "", file.getvalue()) == "warning: the truncation binds\n"


def test_the_log_is_as_before_afterwards() -> None:
    before = log.level, log.handlers[:]
    with ProgressDisplay(console=terminal(io.StringIO())):
        assert log.level == logging.DEBUG
    assert (log.level, log.handlers) == before


def test_without_a_terminal_the_log_is_plain_lines() -> None:
    file = io.StringIO()
    with ProgressDisplay(console=Console(file=file, width=200)):
        log.info("reading: 40%%", extra={"work": "reading", "share": 0.4})
        log.debug("reading: 41%%", extra={"work": "reading", "share": 0.41})
    assert file.getvalue() == "reading: 40%%\n"


@pytest.mark.parametrize("widgets", [False, True])
def test_a_notebook_shows_a_bar_if_it_has_widgets(monkeypatch: pytest.MonkeyPatch, widgets: bool) -> None:
    spec = importlib.util.find_spec("json") if widgets else None
    monkeypatch.setattr(display, "find_spec", lambda name: {"ipywidgets": spec}[name])
    shown = ProgressDisplay(console=Console(force_jupyter=True))
    assert shown._has_bar == widgets
