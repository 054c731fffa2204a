"""Cells of tables of cell types: what `+`, `lo|mid`, `-0.5` and "CD3+ CD4-" say about the levels of a marker.

A marker has four levels: off, low, on, high. A cell names those that a cell type may have.

| cell | levels |
| --- | --- |
| `-` | off |
| `lo`, `dim` | low |
| `mid` | on |
| `++`, `hi` | high |
| `+` | on, and low and high unless a cell of the column names them by `lo`, `dim`, `++` or `hi` |
| `lo|mid` | either |
| blank, `NA`, `*`, `+/-` | all: the table is silent |
| -1 to 1 | as Scyan writes them: 1 is `+`, -1 is `-`, and what is nearer to the middle is `lo` |

`p=0.9` after it is the probability that the cell is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEVELS = ("off", "low", "on", "high")
OFF, LOW, ON, HIGH = range(4)
PLUS = -1  # what + means depends on the other cells of the column
SIGNS: dict[str, frozenset[int]] = {
    **dict.fromkeys(("-", "neg", "negative"), frozenset({OFF})),
    **dict.fromkeys(("lo", "low", "dim"), frozenset({LOW})),
    **dict.fromkeys(("mid", "int"), frozenset({ON})),
    **dict.fromkeys(("++", "hi", "high", "bright"), frozenset({HIGH})),
    **dict.fromkeys(("+", "pos", "positive"), frozenset({PLUS})),
    **dict.fromkeys(("", "na", "nan", "n/a", "*", "+/-", "-/+"), frozenset({OFF, LOW, ON, HIGH})),
}
WRITTEN = ("-", "lo", "mid", "hi")
ALLOWED = "+, -, ++, lo, dim, mid, hi, two of them with | between, a number from -1 to 1, or nothing"
MINUS = str.maketrans("\u2212\u2013\u2014\u207b\u207a", "----+")  # other signs that look like minus or plus
DOUBT = re.compile(r"[\s,;]*\(?\bp\s*=\s*(?P<p>[^\s()]+)\s*\)?$", re.IGNORECASE)
ZERO = "0 is half way for Scyan, and not known for others; write lo, or leave the cell blank"
SIGN = r"\+/-|-/\+|\+\+|\+|-|\*|bright|high|hi|mid|int|dim|low|lo|pos|neg"
WORD = re.compile(rf"(?P<marker>.*?\S)\s?(?P<sign>(?:{SIGN})(?:\|(?:{SIGN}))*)", re.IGNORECASE)
# Without blanks: a sign ends a marker before the next one, but HLA-DR and PD-1 contain a sign.
ATTACHED = re.compile(r"(?<=\+)(?=[A-Za-z])|(?<=-)(?=CD\d|C?CX?CR\d|HLA|Ig|TCR)")


class Cell(NamedTuple):
    """Meaning of a cell.

    Attributes
    ----------
    atoms : frozenset of int
        Levels, and `PLUS` where + is among them.
    doubt : float
        Probability that the cell is wrong, NaN where it does not say.
    """

    atoms: frozenset[int]
    doubt: float


def parse_cell(text: str, zero: str = "") -> Cell:
    """Return what a cell of a wide table says.

    Parameters
    ----------
    text : str
    zero : "lo", "blank" or ""
        What the number 0 means; "": it is an error.

    Raises
    ------
    ValueError
        The cell cannot be read; the message says what is allowed.
    """
    plain = text.translate(MINUS).strip().lstrip("'")
    doubt = math.nan
    if found := DOUBT.search(plain):
        plain = plain[: found.start()]
        doubt = 1.0 - _probability(found["p"])
    atoms = frozenset[int]().union(*(_atoms(one.strip(), zero) for one in plain.split("|")))
    return Cell(atoms, doubt)


def _probability(text: str) -> float:
    try:
        p = float(text.replace(",", "."))
    except ValueError:
        p = math.nan
    if not 0.0 < p <= 1.0:
        raise ValueError(f"need p above 0 and at most 1, as in + p=0.9, got p={text}")
    return p


def _atoms(sign: str, zero: str) -> frozenset[int]:
    """Return the levels of one sign or number."""
    known = SIGNS.get(sign.casefold())
    if known is not None:
        return known
    try:
        number = float(sign.replace(",", "."))
    except ValueError:
        number = math.nan
    if not -1.0 <= number <= 1.0:
        raise ValueError(f"need {ALLOWED}")
    if number == 0.0:
        if not zero:
            raise ValueError(ZERO)
        return SIGNS["lo" if zero == "lo" else ""]
    return SIGNS["lo"] if abs(number) <= 0.5 else SIGNS["+" if number > 0 else "-"]


def parse_phenotype(text: str) -> dict[str, Cell]:
    """Return the cell of each marker in a text such as "CD3+ CD4+ CD8-" or "CD45RAdim, HLA-DR+".

    Blanks or commas separate the markers; without them a marker ends at its sign. A remark in parentheses and
    a number at the end, as dpmix adds them to phenotypes, are ignored.

    Raises
    ------
    ValueError
        A word has no sign, or a marker occurs twice.
    """
    plain = re.sub(r"\([^()]*\)", " ", text.translate(MINUS))
    plain = re.sub(r"\s\d+\s*$", "", plain).strip()
    if re.search(r"[,;]", plain):
        words = re.split(r"\s*[,;]\s*", plain)
    elif re.search(r"\s", plain):
        words = plain.split()
    else:
        words = ATTACHED.split(plain)
    found: dict[str, Cell] = {}
    for word in filter(None, words):
        match = WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{word} has no sign; write each marker with one, for example CD3+ CD4+ CD8-")
        marker = match["marker"].strip()
        if marker in found:
            raise ValueError(f"{marker} occurs twice; name it once")
        found[marker] = parse_cell(match["sign"])
    return found


def levels_of_column(cells: Sequence[Cell]) -> npt.NDArray[np.bool_]:
    """Return the levels that the cells of one column allow, bool [R, 4]."""
    named = frozenset[int]().union(*(cell.atoms for cell in cells if len(cell.atoms) < len(LEVELS)))
    plus = frozenset({LOW, ON, HIGH}) - (named & {LOW, HIGH})
    levels = np.zeros((len(cells), len(LEVELS)), np.bool_)
    for row, cell in zip(levels, cells, strict=True):
        row[sorted((cell.atoms - {PLUS}) | (plus if PLUS in cell.atoms else frozenset()))] = True
    return levels


def cells_of_column(levels: npt.NDArray[np.bool_], doubt: npt.NDArray[np.float64]) -> list[str]:
    """Return the texts of one column that `levels_of_column` reads as these levels and doubts.

    Parameters
    ----------
    levels : bool [R, 4]
    doubt : float64 [R]
    """
    for plus in ((LOW, ON, HIGH), (ON, HIGH), (LOW, ON), (ON,)):
        texts = [_text(row, plus) for row in levels]
        if np.array_equal(levels_of_column([parse_cell(text) for text in texts]), levels):
            break
    return [
        text if math.isnan(d) or not text else f"{text} p={round(1.0 - d, 6):g}"
        for text, d in zip(texts, doubt.tolist(), strict=True)
    ]


def _text(row: npt.NDArray[np.bool_], plus: tuple[int, ...]) -> str:
    """Return the text of one cell, where + means some levels."""
    own = set(np.flatnonzero(row).tolist())
    if len(own) == len(LEVELS):
        return ""
    with_plus = own.issuperset(plus) and plus != (ON,)
    rest = sorted(own - set(plus) if with_plus else own)
    return "|".join([WRITTEN[level] for level in rest] + (["+"] if with_plus else []))
