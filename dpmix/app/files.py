"""The data files of a folder: what each holds, warnings of the reader, and the event rate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.errors import DpmixError
from dpmix.inputs.compensation import not_applied
from dpmix.inputs.event_times import read_times, time_channel, time_problem
from dpmix.inputs.opening import FOLDER_SUFFIXES, may_have_events, open_source
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage
from dpmix.inputs.type_table import read_types

MOST_FILES = 200
MOST_BYTES = 50_000_000  # of a file other than FCS: it would be read as a whole
BINS = 60  # of the event rate
WORKSPACE = ".wsp"
JUDGED = ".judged.csv"
"""End of the name of the judgements about a run: run.judged.csv next to run.h5."""
TYPES = ".types.csv"
"""End of the name of the table of cell types of a run: run.types.csv next to run.h5."""
MOST_TABLE_BYTES = 100_000  # of a table of cell types
OWN_FILES = ("tree.json", "screen-01.csv", "fit.csv", "drift.csv")
"""A folder with one of them holds results of dpmix."""


def data_files(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each data file of a folder and the folders inside; results of dpmix are left out."""
    return [_row(folder, path) for path in _paths(folder)]


def workspaces(folder: Path) -> list[str]:
    """Return the FlowJo workspaces of a folder and the folders inside, at most `MOST_FILES`."""
    found = [path for inner in _folders(folder) for path in sorted(inner.iterdir()) if path.is_file()]
    inside = [path for path in found if path.suffix.lower() == WORKSPACE and _is_inside(path, folder)]
    return [str(path.relative_to(folder)) for path in inside[:MOST_FILES]]


def tables_of_types(folder: Path) -> list[str]:
    """Return the tables of cell types of a folder and the folders inside, at most `MOST_FILES`."""
    found = [path for inner in _folders(folder) for path in sorted(inner.glob("*.csv")) if path.is_file()]
    small = [path for path in found if path.stat().st_size <= MOST_TABLE_BYTES and _is_inside(path, folder)]
    return [str(path.relative_to(folder)) for path in small[:MOST_FILES] if _is_table_of_types(path)]


def _is_table_of_types(path: Path) -> bool:
    try:
        read_types(path, "blank")
    except DpmixError:
        return False
    return True


def _paths(folder: Path) -> list[Path]:
    """Return the data files, at most `MOST_FILES`."""
    found: list[Path] = []
    for inner in _folders(folder):
        files = sorted(path for path in inner.iterdir() if path.suffix.lower() in FOLDER_SUFFIXES)
        found += [path for path in files if path.is_file() and may_have_events(path)]
    return [path for path in found if _is_inside(path, folder)][:MOST_FILES]


def _is_inside(path: Path, folder: Path) -> bool:
    """Return whether a file lies in a folder, also where it is a link."""
    return path.resolve().is_relative_to(folder)


def _folders(folder: Path) -> Iterator[Path]:
    """Yield a folder and those inside, without hidden ones and those with results."""
    if any((folder / name).exists() for name in OWN_FILES):
        return
    yield folder
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
            yield from _folders(inner)


def _row(folder: Path, path: Path) -> dict[str, Any]:
    """Return what a file holds, or why it cannot be read."""
    row: dict[str, Any] = {"name": str(path.relative_to(folder)), "remarks": [], "rate": [], "problem": ""}
    is_fcs = path.suffix.lower() in (".fcs", ".lmd")
    if not is_fcs and path.stat().st_size > MOST_BYTES:
        return row | {"events": None, "channels": None, "remarks": ["large table, not opened here"]}
    try:
        source = open_source(str(path), "", Storage.temporary())
        remarks = [*source.warnings, *not_applied(source), *source.notes]
        if source.spillover_problem:
            remarks.append(f"its spillover matrix cannot be read: {source.spillover_problem}")
        rate, problem = event_rate(source)
        return row | {
            "events": source.n_events,
            "channels": len(source.details),
            "remarks": [*remarks, problem] if problem else remarks,
            "rate": rate,
        }
    except DpmixError as error:
        return row | {"events": None, "channels": None, "problem": str(error).removeprefix(f"{path}: ")}


def event_rate(source: Source) -> tuple[list[float], str]:
    """Return the events in bins of equal time relative to their mean, and why there are none, else ""."""
    channel = time_channel(source)
    if channel is None or not source.n_events:
        return [], ""
    times = read_times(source, channel)
    if problem := time_problem(times):
        return [], f"{source.channels[channel]} {problem}"
    counts = np.histogram(times, BINS)[0]
    rate: list[float] = (counts / counts.mean()).round(3).tolist()
    return rate, ""
