"""Judgements of events: CSV files that a person fills in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmix.errors import ConfigError
from dpmix.explore.count import HALF, Bools
from dpmix.inputs.events import Events
from dpmix.inputs.samples import NAME, read_table
from dpmix.model.mixture import Array, Ints

EVENT, JUDGEMENT, CHECK, SCREEN = "event", "judgement", "check", "screen"
VALUES = {"wanted": 1.0, "part": 0.5, "unwanted": 0.0}
NEED = f"need a CSV file with the columns {EVENT} and {JUDGEMENT}"


@dataclass(frozen=True)
class Judgements:
    """Judged events, in the order of their screens, and of the events within a screen.

    Attributes
    ----------
    rows : int64 [n]
        Numbers among all events of the run.
    values : float64 [n]
        1 wanted, 0.5 in part, 0 unwanted.
    checks : bool [n]
        Events that were random ones of those found.
    screens : int64 [n]
        Number of the screen of each; 0 for events of none.
    """

    rows: Ints
    values: Array
    checks: Bools
    screens: Ints

    def number(self, word: str) -> int:
        """Return the number of judgements by their word, one of `VALUES`."""
        return int((self.values == VALUES[word]).sum())

    @property
    def any_wanted(self) -> bool:
        """True if an event is judged as wanted."""
        return bool((self.values > HALF).any())

    @property
    def last_screen(self) -> int:
        """Number of the last screen; 0 without one."""
        return int(self.screens.max(initial=0))


def read_judgements(files: Sequence[str | Path], events: Events) -> Judgements:
    """Read judgements of the events of a run.

    A row has an event by its row in its file, from 0, and its judgement: wanted, part or unwanted, or 1, 0.5
    or 0. The column `sample` names its sample, and is required where the run has several. The column `screen`
    has the number of the screen that showed it; without it, or where it is empty, the event counts as known
    before the first screen. Rows without a judgement are left out. An event may be in several files if its
    judgements agree; then it belongs to the first of its screens. The order of rows and files is irrelevant.

    Parameters
    ----------
    files : sequence of str or Path
        Names or globs.
    events : Events

    Raises
    ------
    ConfigError
        A file cannot be read, an event is not in the run, or judgements disagree; one line per problem.
    """
    problems: list[str] = []
    found: dict[int, tuple[int, float, bool]] = {}
    places = _Places(events)
    for path in _paths(files):
        head, lines = read_table("--judged", path, JUDGEMENT, NEED)
        if EVENT not in head:
            raise ConfigError([f"--judged: {path}: has no column {EVENT}; {NEED}"])
        for number, line in enumerate(lines, start=2):
            cells = dict(zip(head, line, strict=True))
            if not cells[JUDGEMENT]:
                continue
            try:
                row, value, check = places.row(cells), _value(cells[JUDGEMENT]), cells.get(CHECK, "") == "yes"
                screen = _screen(cells.get(SCREEN, ""))
                first, known, checked = found.get(row, (screen, value, check))
                if known != value:
                    raise ValueError(
                        f"event {cells[EVENT]} has another judgement elsewhere; keep one of them"
                    )
                found[row] = min(screen, first), value, check or checked
            except ValueError as error:
                problems.append(f"--judged: {path}: row {number}: {error}")
    if problems:
        raise ConfigError(
            problems[:10] + [f"--judged: {len(problems) - 10} more problems"][: len(problems) > 10]
        )
    # By screen, then by event: the bits of the posterior depend on the order, which must not follow the
    # files.
    rows = sorted(found, key=lambda row: (found[row][0], row))
    screens, values, checks = zip(*map(found.get, rows), strict=True) if rows else ((), (), ())
    return Judgements(
        np.array(rows, np.int64), np.array(values), np.array(checks, bool), np.array(screens, np.int64)
    )


class _Places:
    """Finds events by sample and row in the file."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def row(self, cells: dict[str, str]) -> int:
        """Return the number of an event; `ValueError` if it is not in the run."""
        samples = self._events.samples
        name = cells.get(NAME) or (samples[0] if len(samples) == 1 else "")
        if name not in samples:
            known = ", ".join(samples[:3]) + (", ..." if len(samples) > 3 else "")
            raise ValueError(
                f"need the name of a sample of the run in the column {NAME} ({known}), got {name!r}"
            )
        try:
            event = int(cells[EVENT])
        except ValueError:
            raise ValueError(f"need the number of an event, got {cells[EVENT]!r}") from None
        sample = samples.index(name)
        first, end = (int(start) for start in self._events.sample_starts[sample : sample + 2])
        if self._events.rows is None:
            place = event if 0 <= event < end - first else -1
        else:
            own = self._events.rows[first:end]
            place = int(np.searchsorted(own, event))
            place = place if place < len(own) and own[place] == event else -1
        if place < 0:
            raise ValueError(f"event {event} of {name} is not among the events of the run")
        return first + place


def _value(text: str) -> float:
    if text.lower() in VALUES:
        return VALUES[text.lower()]
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if value not in VALUES.values():
        raise ValueError(f"need {', '.join(VALUES)} (or 1, 0.5, 0) as judgement, got {text!r}")
    return value


def _screen(text: str) -> int:
    if not text.isdecimal() and text:
        raise ValueError(f"need the number of a screen, or nothing, in the column {SCREEN}, got {text!r}")
    return int(text or 0)


def _paths(files: Sequence[str | Path]) -> list[Path]:
    """Return the files of names and globs, each once."""
    paths: dict[Path, None] = {}
    for given in files:
        path = Path(given)
        matched = [path] if path.exists() else sorted(path.parent.glob(path.name))
        if not matched:
            raise ConfigError([f"--judged: {path}: no such file; {NEED}"])
        paths |= dict.fromkeys(matched)
    return list(paths)
