"""How a text file separates cells and writes numbers: its delimiter, decimal sign, header and row names.

Programs of a country with decimal commas write `CD3;CD4` and `2717,22;-92,46`, often without a header. R's
`write.table` separates by blanks, and its first line lacks the name of the column of row names. Excel starts
a file with `sep=;`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpmix.errors import DataError
from dpmix.system.paths import encoding_of

LONGEST_LINE = 2**20  # characters of a line of a text file
FIRST_LINES = 200  # lines that show the format
SEPARATOR = re.compile(r'"?sep=(?P<mark>[,;\t| ])"?\s*', re.IGNORECASE)
WITH_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?([eE][+-]?[0-9]+)?")
LEAST_NUMBERS = 0.5  # of the cells, where another delimiter than the most frequent one is right
MISSING = ("", "na", "nan", "null", "n/a")  # cells that show nothing
# Missing values as Excel, R, Windows and people write them. Arrow knows others.
NO_VALUES = (
    *("n.a.", "N.A.", "na", "Na", "NAN", "Nan", "None", "none", "-", ".", "missing"),
    *("#DIV/0!", "#NUM!", "#VALUE!", "#REF!", "#NAME?", "#NV"),
    *("-nan(ind)", "nan(ind)", "1.#QNAN0", "-1.#IND00"),
)
ROW_NAMES = "row names"


class TextFormat(NamedTuple):
    """The format of a text file.

    Attributes
    ----------
    delimiter : str
    decimal : "." or ","
    head : list of str
        Cells of the first line that is not `sep=`, with a name for the column of row names.
    has_header : bool
        They are names of columns, not numbers.
    n_skipped : int
        Lines before the first row of numbers.
    start : list of list of str
        Cells of the first rows of numbers.
    """

    delimiter: str
    decimal: str
    head: list[str]
    has_header: bool
    n_skipped: int
    start: list[list[str]]


def text_format(path: Path) -> TextFormat:
    """Return the format of a text file, by its first lines.

    The delimiter is the most frequent of comma, tab and semicolon in the first line, unless another one makes
    more of the cells numbers.

    Raises
    ------
    DataError
        The first line is empty, or a line is too long.
    """
    lines = _first_lines(path)
    if not "".join(lines[:2] if SEPARATOR.fullmatch(lines[0]) else lines[:1]).strip():
        raise DataError(f"{path}: found an empty first line, need a header or numbers")
    return _format_of(lines)


def _format_of(lines: Sequence[str]) -> TextFormat:
    """Return the format of a text file that starts with some lines."""
    marked = SEPARATOR.fullmatch(lines[0])
    body = [*lines[1:], ""] if marked else lines
    usual = max(",\t;", key=body[0].count)
    candidates = [marked["mark"]] if marked else [usual, *(mark for mark in ",\t;| " if mark != usual)]
    if not marked and _are_one_column(body):
        candidates = [";"]
    first, *others = [_read(body, mark, int(bool(marked))) for mark in candidates]
    least = max(_share_of_numbers(first), LEAST_NUMBERS)
    return max([first, *(one for one in others if _share_of_numbers(one) > least)], key=_share_of_numbers)


def _are_one_column(lines: Sequence[str]) -> bool:
    """Return True for one name above numbers with decimal commas: as cells, they are more than the names."""
    numbers = [line.strip() for line in lines[1:] if line.strip()]
    return (
        not set(",;\t") & {*lines[0]}
        and any("," in number for number in numbers)
        and all(is_number(number, ",") for number in numbers)
    )


def read_cells(path: Path, numbers: bool = False) -> list[list[str]]:
    """Return the cells of all lines of a small text file, without a line `sep=`.

    Parameters
    ----------
    path : Path
    numbers : bool
        Write numbers with decimal points, if the file has decimal commas.

    Raises
    ------
    OSError, ValueError, csv.Error
        The file cannot be read.
    """
    with path.open(encoding=encoding_of(path), newline="") as file:
        lines = [line for line in file if line.strip()]
    if not lines:
        return []
    marked = SEPARATOR.fullmatch(lines[0].rstrip("\r\n"))
    text = _format_of([line.rstrip("\r\n") for line in lines[:FIRST_LINES]])
    rows = csv.reader(lines[1:] if marked else lines, delimiter=text.delimiter)
    cells = [[cell.strip() for cell in row] for row in rows]
    if not numbers or text.decimal == ".":
        return cells
    return [[cell.replace(",", ".") if is_number(cell, ",") else cell for cell in row] for row in cells]


def is_number(cell: str, decimal: str = ".") -> bool:
    """Return True for the text of a number."""
    if decimal == ",":
        return WITH_COMMA.fullmatch(cell) is not None
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _first_lines(path: Path) -> list[str]:
    """Return the first lines of a text file without their ends; at least one, which may be empty."""
    lines = []
    with path.open(encoding=encoding_of(path), newline="") as file:
        for _ in range(FIRST_LINES):
            line = file.readline(LONGEST_LINE)
            if len(line) == LONGEST_LINE:
                raise DataError(
                    f"{path}: a line has at least {LONGEST_LINE} characters, need a row per event"
                )
            if not line:
                break
            lines.append(line.rstrip("\r\n"))
    return lines or [""]


def _read(lines: Sequence[str], delimiter: str, n_skipped: int) -> TextFormat:
    """Return the format of lines for a delimiter."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    head, start = rows[0] if rows else [], [row for row in rows[1:] if row]
    cells = [cell for row in [head, *start] for cell in row]
    with_comma = delimiter != "," and any("," in cell and is_number(cell, ",") for cell in cells)
    decimal = "," if with_comma and not any("." in cell and is_number(cell) for cell in cells) else "."
    # As write.table of R writes it: row names, and no name above them.
    if start and all(len(row) == len(head) + 1 for row in start):
        head = [ROW_NAMES, *head]
    has_header = not all(is_number(cell, decimal) for cell in head)
    return TextFormat(
        delimiter, decimal, head, has_header, n_skipped + has_header, start if has_header else [head, *start]
    )


def _share_of_numbers(found: TextFormat) -> float:
    """Return the share of cells that are numbers; 0 where rows have another number of cells than the head."""
    cells = [cell for row in found.start for cell in row if cell.casefold() not in MISSING]
    if len(found.head) < 2 or any(len(row) != len(found.head) for row in found.start):
        return 0.0
    return sum(is_number(cell, found.decimal) for cell in cells) / max(len(cells), 1)
