"""Levels of the channels of a run: thresholds, percent positive, and a figure for each channel.

| file | content |
| --- | --- |
| levels.csv | one row per channel and boundary of two levels: median and 90% interval on the transformed \
scale, and the share of the draws that have it |
| positive.csv | one row per sample, population and channel with a threshold: share of positive cells with \
90% interval; sample or population "all": of all |
| figures/level-1-CHANNEL.png, .pdf, ... | events of a channel with its thresholds, and positive shares |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmix.model.mixture import Array
from dpmix.populations.draws import find
from dpmix.populations.draws.task import prepare
from dpmix.populations.events.names import names_of_events
from dpmix.populations.positive import Positive, positive_events
from dpmix.populations.tree.cut import require_cut
from dpmix.populations.tree.decisions import read_decisions
from dpmix.report.drawing import styled
from dpmix.report.levels_figure import BOUNDARIES, channel_figure
from dpmix.system.console import percent
from dpmix.system.files import check_outputs, csv_text, write_text, writing

TABLES = "levels.csv", "positive.csv"
ALL = "all"
DRAWN_EVENTS = 100_000  # of a histogram, at most


@dataclass(frozen=True)
class ChannelLevels:
    """Result of `levels`.

    Attributes
    ----------
    measured : Positive
    phenotypes : dict of int to str
        Name of each population, by its number.
    """

    measured: Positive
    phenotypes: dict[int, str]


def levels(
    run_file: str | Path,
    output: str | Path,
    *,
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: str | Path | None = None,
    engine: Sequence[str] = (),
    overwrite: bool = False,
) -> ChannelLevels:
    """Write the thresholds of all channels and the positive shares of all populations into a folder.

    Parameters
    ----------
    run_file, output : str or Path
        Run file, and the folder to write to, created if missing.
    n_draws, level, n_populations, decisions, engine, overwrite
        As in `dpmix.commands.gate.gate`.

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    require_cut(n_draws, level, n_populations)
    folder = Path(output)
    by_hand = None if decisions is None else read_decisions(decisions)
    task = prepare(run_file, (), engine, folder)
    events = task.events
    figures = figure_paths(folder, events.channels)
    check_outputs([*(folder / name for name in TABLES), *figures], overwrite, [task.run.path])
    found = task.find_populations(n_draws, level, n_populations, by_hand)
    measured = positive_events(task, found)
    some = np.arange(0, len(events.values), max(len(events.values) // DRAWN_EVENTS, 1))
    values = events.measured(some)[:, : len(events.channels)]
    own = measured.population[some].astype(np.int64)
    ends = np.full((3, len(events.channels)), np.nan)
    for d in range(len(events.channels)):
        for k in range(3):
            if (known := measured.thresholds(k, d)) is not None:
                ends[k, d] = known[0]
    names = names_of_events(values, own, ends, events.channels, found.n_populations)
    numbers = found.labels or range(1, found.n_populations + 1)
    made = ChannelLevels(measured, dict(zip(numbers, names, strict=True)))
    with writing(folder):
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    write_text(folder / TABLES[0], csv_text(_threshold_rows(measured)))
    write_text(folder / TABLES[1], csv_text(_positive_rows(made)))
    _write_figures(figures, made, values)
    return made


def figure_paths(folder: Path, channels: Sequence[str]) -> list[Path]:
    """Return the figures of all channels, PNG and PDF in turn."""
    stems = [f"level-{d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:60]}" for d, name in enumerate(channels, 1)]
    return [folder / "figures" / f"{stem}{suffix}" for stem in stems for suffix in (".png", ".pdf")]


def summary(made: ChannelLevels) -> list[str]:
    """Return a line for each channel: its threshold, and the positive share of all events."""
    lines = []
    for d, name in enumerate(made.measured.channels):
        at, shares = made.measured.thresholds(1, d), made.measured.shares(d)
        if at is None or shares is None:
            lines.append(f"{name}: no threshold ({made.measured.support[1, d]:.0%} of the draws have one)")
            continue
        mean, low, high = (float(each[-1, -1]) for each in shares)
        lines.append(
            f"{name}: threshold {at[0]:.3g} ({at[1]:.3g} to {at[2]:.3g}), "
            f"{percent(mean)} positive ({percent(low)} to {percent(high)})"
        )
    return lines


def _threshold_rows(measured: Positive) -> Iterator[Sequence[object]]:
    yield "channel", "between", "threshold", "low", "high", "draws"
    for d, name in enumerate(measured.channels):
        for k, between in enumerate(BOUNDARIES):
            known = measured.thresholds(k, d)
            if known is not None or k == 1:
                numbers = ("", "", "") if known is None else tuple(f"{x:.6g}" for x in known)
                yield name, between, *numbers, f"{measured.support[k, d]:.3f}"


def _positive_rows(made: ChannelLevels) -> Iterator[Sequence[object]]:
    yield "sample", "population", "phenotype", "channel", "share", "low", "high"
    measured = made.measured
    samples = (*measured.samples, ALL) if len(measured.samples) > 1 else measured.samples
    for d, channel in enumerate(measured.channels):
        if (found := measured.shares(d)) is None:
            continue
        for s, sample in enumerate(samples):
            populations = *made.phenotypes.items(), (ALL, "")
            for p, (name, phenotype) in enumerate(populations):
                yield sample, name, phenotype, channel, *(f"{each[s, p]:.6g}" for each in found)


def _write_figures(paths: Sequence[Path], made: ChannelLevels, values: Array) -> None:
    with styled():
        for d, both in enumerate(zip(paths[::2], paths[1::2], strict=True)):
            figure = channel_figure(made.measured, made.phenotypes, d, values[:, d])
            for path in both:
                with writing(path):
                    figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
