"""The next screen of an exploration, with the profile of each event, and the numbers to stop by."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmix.errors import ConfigError, DataError
from dpmix.explore.count import Bools, Found
from dpmix.explore.exploration import explorer_of
from dpmix.explore.explorer import Explorer
from dpmix.explore.judgements import (
    CHECK,
    EVENT,
    JUDGEMENT,
    SCREEN,
    VALUES,
    Judgements,
    read_judgements,
)
from dpmix.explore.screen import FURTHER, SIZE
from dpmix.inputs.controls import by_number
from dpmix.inputs.events import Events
from dpmix.inputs.samples import NAME
from dpmix.model.mixture import Array, Ints
from dpmix.populations.draws import find
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.pooling import transformed_draw
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.events.names import names_of_events
from dpmix.populations.events.phenotypes import levels
from dpmix.populations.tree.decisions import read_decisions
from dpmix.system.files import csv_text, write_text, writing

log = logging.getLogger("dpmix")

PROGRESS = "progress.csv"
COLUMNS = (
    *("screen", "judged", *VALUES, "noise", "threshold", "found", "number", "low", "high"),
    *("precision", "recall", "checks", "checks wanted"),
)
SAMPLE = 20_000
"""Events that percentiles are computed from."""

LEAST = 20
"""Events of a population from which on a percentile in it is shown."""

CONDITION = re.compile(r"(?P<channel>.+?)\s*(?P<sign>[<>])\s*(?P<value>[^<>\s]+)")


@dataclass(frozen=True)
class ExplorationStep:
    """A step of an exploration.

    Attributes
    ----------
    path : Path
        The screen that was written.
    judgements : Judgements
    found : Found or None
        None if no judged event is wanted.
    noise : float
        Standard deviation of a judgement.
    n_events : int
    """

    path: Path
    judgements: Judgements
    found: Found | None
    noise: float
    n_events: int


def explore(
    run_file: str | Path,
    output: str | Path,
    *,
    judged: Sequence[str | Path] = (),
    within: Sequence[str] = (),
    further: float = FURTHER,
    size: int = SIZE,
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: str | Path | None = None,
    engine: Sequence[str] = (),
) -> ExplorationStep:
    """Write the next screen and the numbers to stop by.

    Parameters
    ----------
    run_file, output : str or Path
        Run file, and the folder to write to: the next screen-01.csv, screen-02.csv, ..., and a further row of
        progress.csv.
    judged : sequence of str or Path
        Files of judgements (`dpmix.explore.judgements`).
    within : sequence of str
        Conditions such as ``CD34 > 2.5`` on the transformed scale: events to choose among satisfy all.
    further : float
        From 0, more of the same, to 1, look further.
    size : int
        Events of the screen.
    n_draws, level, n_populations, decisions, engine
        As in `dpmix.commands.gate.gate`.

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    folder = Path(output)
    by_hand = None if decisions is None else read_decisions(decisions)
    task = prepare(run_file, (), engine, folder)
    judgements = read_judgements(judged, task.events)
    among = _among(within, task.events)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = _next_screen_path(folder)
    explorer = explorer_of(task.events, judgements, task.config.seed, task.config.engine, task.backend)
    rows, checks = explorer.screen(size, further, among)
    if not len(rows):
        raise DataError("no event is left to judge: all are judged, or outside --within")
    populations = task.find_populations(n_draws, level, n_populations, by_hand)
    found = explorer.found()
    noise = float(np.sqrt(explorer.posterior.judged.covariance.noise))
    step = ExplorationStep(path, judgements, found, noise, len(task.events.values))
    progress = _progress(folder / PROGRESS, step)
    number = judgements.last_screen + 1
    write_text(path, csv_text(_screen_rows(task, populations, explorer, rows, checks, number)))
    write_text(folder / PROGRESS, progress)
    return step


def _next_screen_path(folder: Path) -> Path:
    """Return the first of screen-01.csv, screen-02.csv, ... after those that are there."""
    numbers = [re.fullmatch(r"screen-(\d+)\.csv", path.name) for path in folder.glob("screen-*.csv")]
    last = max((int(match[1]) for match in numbers if match), default=0)
    return folder / f"screen-{last + 1:02d}.csv"


def _among(within: Sequence[str], events: Events) -> Ints | None:
    """Return the events that satisfy conditions; None without conditions."""
    if not within:
        return None
    inside = np.ones(len(events.values), bool)
    for text in within:
        parsed = CONDITION.fullmatch(text.strip())
        try:
            limit = float(parsed["value"]) if parsed else np.nan
        except ValueError:
            limit = np.nan
        if parsed is None or not np.isfinite(limit):
            raise ConfigError([f"--within {text}: need CHANNEL > NUMBER or CHANNEL < NUMBER"])
        if parsed["channel"] not in events.channels:
            raise ConfigError(
                [f"--within {text}: no channel {parsed['channel']}; use one of {', '.join(events.channels)}"]
            )
        column = events.channels.index(parsed["channel"])
        values = events.scaling.means[column] + events.scaling.sds[column] * events.values[:, column]
        inside &= (values > limit) if parsed["sign"] == ">" else (values < limit)
    if not inside.any():
        raise ConfigError([f"--within {' and '.join(within)}: no event satisfies this"])
    return np.flatnonzero(inside)


def _screen_rows(
    task: Task, populations: Populations, explorer: Explorer, rows: Ints, checks: Bools, number: int
) -> Iterator[Sequence[object]]:
    """Yield the rows of a screen: the event, room for a judgement, and its profile."""
    events, posterior = task.events, explorer.posterior
    names, own, everywhere, inside = _profiles(task, populations, rows)
    percentiles = (f"{channel}{of}" for channel in events.channels for of in (" %", " % in population"))
    yield [NAME, EVENT, JUDGEMENT, CHECK, SCREEN, "mean", "sd", "population", "phenotype", *percentiles]
    for k, row in enumerate(rows.tolist()):
        yield [
            *(*events.place_of(row), ""),
            *("yes" if checks[k] else "", number),
            *(f"{posterior.mean[row]:.3f}", f"{posterior.sd[row]:.3f}", own[k] + 1, names[own[k]]),
            *(
                "" if np.isnan(value) else f"{value:.1f}"
                for pair in zip(everywhere[k], inside[k], strict=True)
                for value in pair
            ),
        ]


def _profiles(task: Task, populations: Populations, rows: Ints) -> tuple[tuple[str, ...], Ints, Array, Array]:
    """Return the phenotypes of populations, and population and percentiles of events.

    Returns
    -------
    phenotypes : tuple of P str
    population : int64 [M]
        Most probable one in the reference draw.
    everywhere, inside : float64 [M, D]
        Percentile of each channel among all events, and among the events of its population; NaN for a
        population with fewer than `LEAST` events in the sample.
    """
    values, random = task.events.values, np.random.default_rng(task.config.seed)
    some = np.sort(random.choice(len(values), min(len(values), SAMPLE), replace=False))
    taken = np.ascontiguousarray(np.concatenate([values[rows], values[some]]))
    with closing(task.make_engine(taken)) as engine:
        shares, _ = populations.memberships_in(populations.reference, engine, 0, len(taken))
    population, sample = shares.argmax(axis=1)[: len(rows)], taken[len(rows) :]
    of_sample = shares.argmax(axis=1)[len(rows) :]
    inside = np.full((len(rows), values.shape[1]), np.nan)
    for k, own in enumerate(population):
        members = sample[of_sample == own]
        if len(members) >= LEAST:
            inside[k] = _percentiles(taken[k], members)
    everywhere = np.array([_percentiles(event, sample) for event in taken[: len(rows)]])
    return _phenotypes(task, populations, sample, of_sample), population, everywhere, inside


def _percentiles(event: Array, others: Array) -> Array:
    """Return the percentile of each channel, float64 [D]; equal values count half."""
    percentiles: Array = 50.0 * ((others < event).mean(axis=0) + (others <= event).mean(axis=0))
    return percentiles


def _phenotypes(task: Task, populations: Populations, sample: Array, of_sample: Ints) -> tuple[str, ...]:
    """Return the phenotypes of populations, from a sample of events."""
    scaling, reference = task.events.scaling, populations.reference
    drawn = transformed_draw(populations.run, scaling, *populations.draws[reference])
    controls = by_number(populations.run.controls, task.events.channels)
    ends = levels(*drawn, populations.components[reference], controls)
    shown = scaling.to_transformed(sample)
    return names_of_events(shown, of_sample, ends, task.events.channels, populations.n_populations)


def _progress(path: Path, step: ExplorationStep) -> str:
    """Return progress.csv with a further row."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else csv_text([COLUMNS])
    except (OSError, ValueError):
        before = ""
    if before.partition("\n")[0] != ",".join(COLUMNS):
        raise DataError(f"{path}: is not a table of dpmix explore; give another --output")
    numbers = [step.judgements.number(word) for word in VALUES]
    row: list[object] = [step.path.stem.removeprefix("screen-"), sum(numbers), *numbers, f"{step.noise:.3f}"]
    found = step.found
    if found is None:
        row += [""] * (len(COLUMNS) - len(row))
    else:
        row += [f"{found.threshold:.4g}", found.n_found]
        row += [f"{value:.0f}" for value in (found.number, found.low, found.high)]
        row += [f"{value:.3f}" for value in (found.precision, found.recall)]
        row += [found.checks, found.hits]
    return before + csv_text([row])


def summary(step: ExplorationStep) -> list[str]:
    """Return the numbers to stop by, and what to do next, in lines."""
    words = ", ".join(VALUES)
    return [
        *numbers(step.judgements, step.found, step.noise, step.n_events),
        f"written: {step.path}; fill in the column judgement ({words}), then run this again",
    ]


def numbers(judgements: Judgements, found: Found | None, noise: float, n_events: int) -> list[str]:
    """Return the numbers to stop by, in lines; see `Step`."""
    counts = [f"{judgements.number(word)} {word}" for word in VALUES]
    lines = [f"{len(judgements.rows)} events judged: {', '.join(counts)}"]
    if found is not None:
        lines += [
            f"found: {found.n_found:,} events with a mean of at least {found.threshold:.3g}; "
            f"checks: {found.hits} of {found.checks} wanted",
            f"judged events, each by the others: precision {_percent(found.precision)}, "
            f"recall {_percent(found.recall)}; noise of a judgement {noise:.2f}",
            f"such events: probably {found.number:,.0f} of {n_events:,}, at least {found.low:,.0f}, "
            f"at most {found.high:,.0f} with those that may be missed",
        ]
    elif len(judgements.rows):
        lines.append("no judged event is wanted yet")
    return lines


def _percent(share: float) -> str:
    return "unknown" if np.isnan(share) else f"{share:.0%}"
