"""Columns of a table of samples, as a formula uses them: numbers, or names of groups."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.errors import ConfigError
from dpmix.inputs.samples import FILE, NAME, read_table
from dpmix.system.console import first_few
from dpmix.system.paths import encoding_of

NEED = f"need a CSV file with a row per sample and a column {NAME}"
NOT_KNOWN = ("", "na", "n/a", "#n/a", "nan", "null", "<na>")
"""Cells that are missing, in small letters, as R, spreadsheets and databases write them."""
MISSING = (*NOT_KNOWN, "inf", "-inf", "infinity", "-", ".", "?")  # of a column of numbers
MOST_LEVELS = 6  # of a column of integers that is a factor unless asked
COLUMN = r"`[^`]+`|[^\W\d][\w.]*"  # a name in a formula; one with spaces is quoted as in R
NUMERIC = re.compile(rf"\bnumeric\(\s*({COLUMN})\s*\)")
CALL = re.compile(r"([^\W\d][\w.]*)\(([^()]*)\)")
WITH_COMMA = re.compile(r"[-+]?[0-9]+(,[0-9]+)?")

Table = Mapping[str, Sequence[Any]]


def read_design(path: Path, samples: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns of a table of samples, in the order of the samples.

    Parameters
    ----------
    path : Path
        A CSV file with a column `sample` (or `file`, which has the names of the samples after folders are
        removed).
    samples : S str
        Names of the samples of the gating.

    Raises
    ------
    ConfigError
        The table cannot be read, or its samples differ from the samples of the gating.
    """
    with_names = _has_column(path, NAME)
    head, rows = read_table("--design", path, NAME if with_names else FILE, NEED)
    key = head.index(NAME if with_names else FILE)
    names = [row[key] if with_names else Path(row[key]).name for row in rows]
    if with_names and FILE in head:  # samples of new files have the names of the files
        files = [Path(row[head.index(FILE)]).name for row in rows]
        names = files if not {*samples} & {*names} and {*samples} <= {*files} else names
    problems = [
        f"the sample {name} is named twice, need one row for each"
        for name, n in Counter(names).items()
        if n > 1
    ]
    missing = [name for name in samples if name not in names]
    odd = [name for name in names if name not in samples]
    problems += [f"the sample {name} of the gating has no row{nearest(name, odd)}" for name in missing]
    if not missing:
        problems += [f"the gating has no sample {name}; leave out this row" for name in odd]
    if problems:
        raise ConfigError([f"--design: {path}: {problem}" for problem in problems])
    at = [names.index(name) for name in samples]
    return {name: [rows[k][c] for k in at] for c, name in enumerate(head)}


def _has_column(path: Path, column: str) -> bool:
    """Return True if the first line of a table has a column; `read_table` reports what is wrong with it."""
    try:
        first = path.open(encoding=encoding_of(path)).readline()
    except (OSError, ValueError):
        return True
    return column in [
        cell.strip().strip('"') for cell in first.replace("\t", ",").replace(";", ",").split(",")
    ]


def nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"; a row is named {close[0]}" if close else ""


def read_numbers(cells: Sequence[str]) -> list[Any]:
    """Return the cells as numbers if all that are there are numbers, else texts; "" for missing ones."""
    numbers = ["" if cell.casefold() in MISSING else number_of(cell) for cell in cells]
    if None not in numbers:
        return numbers
    return ["" if cell.casefold() in NOT_KNOWN else cell for cell in cells]


def number_of(text: str) -> float | None:
    """Return a number, None for another text; 1_2 is the name of a plate, which Python reads as 12."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and "_" not in text else None


def text_of(value: Any) -> str:
    """Return a cell as text, with all digits of a number: batches may be dates such as 20240105."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def rounded(value: float) -> str:
    """Return a number as text, integers with all digits and others with six."""
    return text_of(value) if value == round(value) else f"{value:g}"


def slopes_of(formula: str, contrasts: Sequence[str]) -> set[str]:
    """Return the columns that a formula or a contrast uses as numbers."""
    # C() is formulae's word for a factor; a column inside any other function is used as a number.
    in_calls = [text for function, text in CALL.findall(formula) if function != "C"]
    words = {word.strip("`") for text in in_calls for word in re.findall(COLUMN, text)}
    return words | {name.partition(": ")[0].strip() for name in contrasts if " - " not in name}


def is_factor(name: str, cells: Sequence[Any], contrasts: Sequence[str], slopes: set[str]) -> bool:
    """Return True for a column of numbers that stand for groups: a contrast names two, or few integers."""
    known = {cell for cell in cells if cell != ""}
    if not known or any(isinstance(cell, str) for cell in known) or name in slopes:
        return False
    for contrast in contrasts:
        column, colon, rest = contrast.partition(": ")
        sides = {number_of(side) for side in (rest if colon else contrast).split(" - ")}
        if len(sides) == 2 and sides <= known and column in ((name,) if colon else (contrast,)):
            return True
    return len(known) <= MOST_LEVELS and all(value == round(value) for value in known)


def levels_of(written: Sequence[str], numbers: Sequence[Any]) -> list[str]:
    """Return the names of groups that are numbers: as they are written, if each is written in one way."""
    known = [(cell, number) for cell, number in zip(written, numbers, strict=True) if number != ""]
    same = len({cell for cell, _ in known}) == len({number for _, number in known})
    return [
        cell if same and number != "" else text_of(number)
        for cell, number in zip(written, numbers, strict=True)
    ]


def check_numbers(table: Table, samples: Sequence[str], names: Sequence[str], least: int) -> None:
    """Raise `ConfigError` for a column of `least` different numbers or more with a cell that is none."""
    problems = []
    for name in names:
        cells = table.get(name, ())
        odd = [k for k, cell in enumerate(cells) if cell != "" and number_of(text_of(cell)) is None]
        if odd and (least == 1 or len({number_of(text_of(cell)) for cell in cells}) > least):
            problems.append(
                f"--formula: column {name} has {cells[odd[0]]} for {samples[odd[0]]}, which is not a number; "
                f"correct it{'' if least > 1 else f', or write {name} without numeric()'}"
            )
    if problems:
        raise ConfigError(problems)


def decimal_comma(cells: Sequence[Any]) -> str:
    """Return a cell with a decimal comma if all cells are numbers, some of them with a comma, else ""."""
    texts = [str(cell) for cell in cells]
    if not all(WITH_COMMA.fullmatch(text) for text in texts):
        return ""
    return next((text for text in texts if "," in text), "")


def reading_of(name: str, cells: Sequence[Any], used: Sequence[Any]) -> str:
    """Return how a column was read, for the reader."""
    if not isinstance(used[0], str):
        return f"{name}: numbers, {rounded(min(used))} to {rounded(max(used))}"
    values = list(dict.fromkeys(used))
    written = name if re.fullmatch(COLUMN, name) else f"`{name}`"
    note = "" if isinstance(cells[0], str) else f"; numeric({written}) would be a slope"
    return f"{name}: groups {first_few(values, MOST_LEVELS)}{note}"


def value_named(side: str, cells: Sequence[Any]) -> Any:
    """Return the value of a column that a side of a contrast names, or None; "2" also names "02"."""
    values = list(dict.fromkeys(cells))
    same = [value for value in values if text_of(value) == side.strip()]
    if not same and (number := number_of(side)) is not None:
        same = [value for value in values if number_of(text_of(value)) == number]
    return same[0] if len(same) == 1 else None
