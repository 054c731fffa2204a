"""Rare cells by judging: screens of events of a run, and the events found so far.

The judgements are in their file only, next to the run, in the form that `dpmix explore --judged` and
`dpmix gate --judged` read: both give the same without the page.

C events of a screen, M events that the pictures show, D channels, L modes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpmix.app.files import JUDGED
from dpmix.app.jobs import command
from dpmix.app.live import Live, inside, levels_of, most_probable, population_of_events
from dpmix.commands.explore import numbers
from dpmix.errors import ConfigError, DataError
from dpmix.explore.count import Bools, Found
from dpmix.explore.exploration import HeldDevices, explorer_of
from dpmix.explore.explorer import Explorer
from dpmix.explore.judgements import (
    CHECK,
    EVENT,
    JUDGEMENT,
    NEED,
    SCREEN,
    VALUES,
    Judgements,
    read_judgements,
)
from dpmix.explore.screen import SIZE
from dpmix.inputs.samples import NAME, read_table
from dpmix.model.mixture import Ints
from dpmix.populations import explored
from dpmix.populations.draws import decide
from dpmix.populations.events.phenotypes import quartiles_of
from dpmix.populations.tree.decisions import Decisions
from dpmix.report.palette import colour, ink
from dpmix.system.console import percent
from dpmix.system.files import csv_text, write_text, writing
from dpmix.system.threads import one_thread

Word = Literal["wanted", "part", "unwanted"]

COLUMNS = (NAME, EVENT, JUDGEMENT, CHECK, SCREEN)
"""Columns of the file of judgements."""
COMMANDS = (("explore", "explored"), ("gate", "gated"))
"""Commands that read the file, and their default folders."""
QUANTILES = (0.05, 0.5, 0.95)
"""Quantiles of a population's events in each channel."""


@dataclass(frozen=True)
class Judging:
    """The judgements about a run, and what follows from them.

    Attributes
    ----------
    revision : str
        Revision of the file, see `revision`.
    judgements : Judgements
    explorer : Explorer
    """

    revision: str
    judgements: Judgements
    explorer: Explorer

    @cached_property
    def found(self) -> Found | None:
        """The events found and their number, counted at the first call; None if no judged event is wanted."""
        return self.explorer.found()


def judged_path(run: Path) -> Path:
    """Return the file of the judgements about a run file: run.judged.csv next to run.h5."""
    return run.with_name(run.stem + JUDGED)


def revision(path: Path) -> str:
    """Return a text that differs between any two versions of a file; without a file, it is empty.

    Raises
    ------
    ConfigError
        The file cannot be read.
    """
    try:
        return sha256(path.read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError([f"{path.name}: cannot be read: {error.strerror}"]) from None


def open_judging(live: Live, path: Path, known: Judging | None, held: HeldDevices | None) -> Judging:
    """Return the judgements of a file, and the posterior at all events of the run.

    Parameters
    ----------
    live : Live
    path : Path
    known : Judging, optional
        Judgements of the run before. If the file has only further screens, only these are computed. `known`
        cannot be used any more.
    held : HeldDevices, optional
        Devices of the run's events. Default: devices that are free again when this returns.

    Raises
    ------
    ConfigError
        The file is not one of judgements of the run's events.
    """
    task, own = live.task, revision(path)
    judgements = read_judgements([path] if own else [], task.events)
    explorer = explorer_of(
        task.events,
        judgements,
        task.config.seed,
        task.config.engine,
        task.backend,
        known.explorer if known else None,
        held,
    )
    return Judging(own, judgements, explorer)


def store(
    live: Live, path: Path, judgements: Mapping[int, Word], checks: Sequence[int], known: Judgements
) -> None:
    """Add the judgements of a screen to their file.

    Parameters
    ----------
    live : Live
    path : Path
    judgements : mapping
        From events, numbered among all of the run, to words.
    checks : sequence of int
        Events of the screen that were random ones of those found.
    known : Judgements
        What the file has.

    Raises
    ------
    ConfigError
        There is no judgement, or one of an event that is not in the run or is judged already.
    """
    events = live.task.events
    if not judgements:
        raise ConfigError(["judge at least one event of the screen"])
    if not 0 <= min(judgements) <= max(judgements) < len(events.values):
        raise ConfigError([f"events are numbered from 0 to {len(events.values) - 1}"])
    if not set(judgements).isdisjoint(known.rows.tolist()):
        raise ConfigError(["an event of the screen is judged already; ask for another screen"])
    lines = _lines(path)
    screen = str(known.last_screen + 1)
    for row, word in judgements.items():
        check = "yes" if row in checks else ""
        sample, event = live.task.events.place_of(row)
        cells = [sample, str(event), word, check, screen]
        lines.append(dict(zip(COLUMNS, cells, strict=True)))
    _write(path, lines)


def remove_last(live: Live, path: Path, known: Judgements) -> tuple[dict[int, str], list[int]]:
    """Remove the judgements of the last screen from their file; return words by event, and its checks.

    Raises
    ------
    ConfigError
        Nothing was judged on the page.
    """
    lines, last = _lines(path), known.last_screen
    if not last:
        raise ConfigError(["no screen to undo"])
    of_event = {live.task.events.place_of(row): row for row in known.rows.tolist()}
    removed = [line for line in lines if line[JUDGEMENT] and int(line.get(SCREEN) or 0) == last]
    samples = live.task.events.samples
    rows = [of_event[line.get(NAME) or samples[0], int(line[EVENT])] for line in removed]
    words = {value: word for word, value in VALUES.items()}
    values = dict(zip(known.rows.tolist(), known.values.tolist(), strict=True))
    judgements = {row: words[values[row]] for row in rows}
    checks = [row for row, line in zip(rows, removed, strict=True) if line.get(CHECK) == "yes"]
    _write(path, [line for line in lines if line not in removed])
    return judgements, checks


def among(live: Live, further: float, selected: Sequence[int] | None) -> Ints | None:
    """Return the events to choose a screen among, numbered among all of the run; None for all.

    Parameters
    ----------
    live : Live
    further : float
        From 0, more of the same, to 1, look further.
    selected : sequence of int, optional
        Events to choose among, numbered among those that the pictures show.

    Raises
    ------
    ConfigError
        The arguments are not as described.
    """
    if not 0.0 <= further <= 1.0:
        raise ConfigError([f"further: {further} is not between 0, more of the same, and 1, look further"])
    if selected is None:
        return None
    if not selected:
        raise ConfigError(["no event is selected; draw a box or a lasso in a plot"])
    if not 0 <= min(selected) <= max(selected) < len(live.rows):
        raise ConfigError([f"selected: events are numbered from 0 to {len(live.rows) - 1}"])
    return live.rows[np.unique(selected)]


def screen(judging: Judging, further: float, candidates: Ints | None) -> tuple[Ints, Bools]:
    """Return the events to judge next, int64 [C], and which are checks, bool [C]; see `among`.

    Raises
    ------
    DataError
        No event is left.
    """
    rows, checks = judging.explorer.screen(SIZE, further, candidates)
    if not len(rows):
        raise DataError("no event is left to judge: all are judged, or outside the selection")
    return rows, checks


def has_wanted(path: Path) -> bool:
    """Return whether a file has a judgement "wanted": `dpmix gate --judged` needs one."""
    return any(line[JUDGEMENT].lower() in ("wanted", "1", "1.0") for line in _lines(path))


def population(live: Live, decisions: Decisions, judging: Judging) -> dict[str, Any] | None:
    """Return the row of the cells found in the table of populations; None if no judged event is wanted.

    Number (after the mixture's), share of the events and interval are as in `dpmix gate --judged`
    (`dpmix.populations.explored`).
    """
    found, events = judging.found, live.task.events
    if found is None:
        return None
    chosen = decide.decided(live.forest, decisions)
    rows = np.flatnonzero(judging.explorer.posterior.mean >= np.float32(found.threshold))
    values = events.scaling.to_transformed(events.values[rows]).astype(np.float32)
    of_shown, n_populations = population_of_events(live, chosen), len(chosen.names)
    phenotype = explored.phenotype(
        explored.quantiles_of(values),
        len(values),
        quartiles_of(live.values, of_shown, n_populations),
        levels_of(live, decisions),
        np.bincount(of_shown, minlength=n_populations),
        events.channels,
    )
    ends = explored.proportions(found, len(events.values))
    own = colour(explored.free_colour(chosen.colours, len(chosen.names)))
    return {
        "number": max(chosen.labels) + 1,
        "name": explored.NAME,
        "phenotype": phenotype,
        "colour": own,
        "ink": ink(own),
        "events": found.n_found,
        "proportion": ends["proportion"],
        "percent": percent(ends["proportion"]),
        "interval": f"{percent(ends['low'])} to {percent(ends['high'])}",
        "ends": [ends["low"], ends["high"]],
    }


def stored(live: Live, run: Path, judging: Judging) -> dict[str, Any]:
    """Return the numbers of judgements, and the commands that give the same: all that a screen waits for."""
    judgements, name = judging.judgements, inside(live, judged_path(run))
    decided = ["--decisions", inside(live, live.path)] if live.path.exists() else []
    possible = (
        COMMANDS if judgements.any_wanted else COMMANDS[:1]
    )  # `dpmix gate` needs an event that is wanted
    given = ["--judged", name, *decided]
    commands = [command([do, inside(live, run), "--output", out, *given]) for do, out in possible]
    return {
        "revision": judging.revision,
        "judged": len(judgements.rows),
        "screens": judgements.last_screen,
        "commands": commands if judging.revision else [],
    }


def state(live: Live, run: Path, judging: Judging, decisions: Decisions, held: HeldDevices) -> dict[str, Any]:
    """Return the same as `stored`, the numbers to stop by, and the events found that the pictures show.

    The number of wanted events is counted, and what the next screen needs is learned.
    """
    task, posterior, found = live.task, judging.explorer.posterior, judging.found
    noise = float(np.sqrt(posterior.judged.covariance.noise))
    is_found = found_among(judging, live.rows)
    # While the person looks at the numbers: the next screen then waits for less.
    if judging.explorer.is_to_learn():
        with held.used() as device:
            judging.explorer.learn_ahead(device)
    return stored(live, run, judging) | {
        "lines": numbers(judging.judgements, found, noise, len(task.events.values)),
        "found": 0 if found is None else found.n_found,
        "found_shown": int(is_found.sum()),
        "is_found": b64encode(is_found.tobytes()).decode(),
        "population": population(live, decisions, judging),
    }


def found_among(judging: Judging, rows: Ints) -> Bools:
    """Return whether events are found, bool [M]; `rows` are their numbers among all of the run."""
    if judging.found is None:
        return np.zeros(len(rows), bool)
    is_found: Bools = judging.explorer.posterior.mean[rows] >= np.float32(judging.found.threshold)
    return is_found


def profiles(live: Live, decisions: Decisions, rows: Sequence[int]) -> dict[str, Any]:
    """Return the profiles of events, and the ranges of their populations after decisions.

    Returns
    -------
    dict
        `events`: of each the row among all of the run, sample, row in the file, population from 0, and its
        values on the transformed scale. `ranges`: `QUANTILES` of each channel, by population, from the events
        of the pictures; none for a population without such events.
    """
    events = live.task.events
    if not all(0 <= row < len(events.values) for row in rows):
        raise ConfigError([f"events are numbered from 0 to {len(events.values) - 1}"])
    if not rows:
        return {"events": [], "ranges": {}}
    chosen = decide.decided(live.forest, decisions)
    taken = np.ascontiguousarray(events.values[np.asarray(rows, np.int64)])
    with one_thread(), closing(live.task.make_engine(taken)) as engine:
        shares = live.forest.memberships_in_modes(engine).astype(np.float32)
    population = most_probable(shares, chosen).tolist()
    values = events.scaling.to_transformed(taken).astype(float).round(5).tolist()
    described = []
    for row, p, own in zip(rows, population, values, strict=True):
        sample, event = events.place_of(row)
        described.append({"row": row, "sample": sample, "event": event, "population": p, "values": own})
    of_shown = population_of_events(live, chosen)
    ranges = {}
    for p in set(population):
        members = live.values[of_shown == p]
        if len(members):
            ranges[p] = np.quantile(members, QUANTILES, axis=0).T.astype(float).round(5).tolist()
    return {"events": described, "ranges": ranges}


def _lines(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of judgements; none without a file."""
    if not path.exists():
        return []
    head, rows = read_table("judgements", path, JUDGEMENT, NEED)
    return [dict(zip(head, row, strict=True)) for row in rows]


def _write(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Write a file of judgements, with all columns that its rows have; remove it without rows."""
    if not lines:
        with writing(path):
            path.unlink(missing_ok=True)
        return
    head = list(dict.fromkeys([*COLUMNS, *(name for line in lines for name in line)]))
    write_text(path, csv_text([head, *([line.get(name, "") for name in head] for line in lines)]))
