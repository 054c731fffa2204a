"""The verdict of `dpmix drift` on each data file: from the tables that are there, for a look at a glance.

The page writes the results about FILE to drift/FILE. A table in drift, where `dpmix drift` writes by default,
is read as well.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmix.commands.drift import COLUMNS, PAGE, TABLE
from dpmix.errors import ConfigError
from dpmix.system.console import first_few

FOLDER = "drift"
MOST_BYTES = 20_000_000  # of a page
READ = {*COLUMNS} - {"counted"}  # columns that tables of all versions have
ORDER = ("steady", "unsure", "drift", "steps")
"""Verdicts on a channel, the worst last (`dpmix.drift.judge`)."""

Rows = Sequence[dict[str, str]]


def folder_of(file: str) -> str:
    """Return the folder of the results about a data file, both by their names in the folder of the page."""
    return f"{FOLDER}/{file.replace('::', '_')}"


def verdict(folder: Path, file: str) -> dict[str, Any] | None:
    """Return the verdict on a data file; None if it was not judged since it was written.

    Returns
    -------
    dict
        ``verdict``: the worst of its channels, or "not judged". ``text``: one line. ``report``: whether there
        is a page.
    """
    found = _found(folder, folder / file)
    if found is None:
        return None
    table, rows = found
    report = table.with_name(PAGE).is_file()
    if problem := next((row["problem"] for row in rows if row["problem"]), ""):
        return {"verdict": "not judged", "text": problem, "report": report}
    rows = [row for row in rows if row.get("counted") != "no"] or rows
    worst = max((row["verdict"] for row in rows), key=ORDER.index)
    bad = [f"{row['channel']} ({row['verdict']})" for row in rows if row["verdict"] == worst]
    text = first_few(bad) if worst != ORDER[0] else ""
    return {"verdict": worst, "text": text, "report": report}


def report(folder: Path, path: Path) -> str:
    """Return the page about a data file.

    Raises
    ------
    ConfigError
        It is missing, or cannot be read.
    """
    found = _found(folder, path)
    page = None if found is None else found[0].with_name(PAGE)
    try:
        if page is None or not _is_inside(page, folder) or page.stat().st_size > MOST_BYTES:
            raise FileNotFoundError
        return page.read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise ConfigError([f"{path.name}: has no report of its recording; judge it first"]) from None


def _found(folder: Path, path: Path) -> tuple[Path, Rows] | None:
    """Return the table with a data file, and its rows there; None without one that is newer than the file."""
    own = folder / folder_of(str(path.relative_to(folder))) / TABLE
    for table in (own, folder / FOLDER / TABLE):
        try:
            if not _is_inside(table, folder) or table.stat().st_mtime < path.stat().st_mtime:
                continue
            with table.open(newline="", encoding="utf-8") as file:
                lines = list(csv.DictReader(file))
        except (OSError, ValueError, csv.Error):
            continue
        rows = [row for row in lines if {*row} >= READ and Path(row["file"]).name == path.name]
        if rows and all(row["problem"] or row["verdict"] in ORDER for row in rows):
            return table, rows
    return None


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder)
