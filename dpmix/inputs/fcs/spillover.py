"""The spillover matrix of an FCS file, by its keywords."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flowutils.compensate import get_spill

from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import uncompensated_name

KEYWORDS = {
    "spillover": "$SPILLOVER",
    "spill": "SPILL",
    "comp": "$COMP",
}  # in the order in which they are used
DIGITS = re.compile(r"[+-]?[0-9]+")
DECIDE = "if that is wrong, set data.compensation to none, or to a CSV file with the matrix"


@dataclass(frozen=True)
class Spillover:
    """Spillover between C detectors: stored = true @ matrix, with matrix float64 [C, C], row i for dye i."""

    detectors: tuple[str, ...]
    matrix: npt.NDArray[np.float64]


class FoundMatrix(NamedTuple):
    """The spillover matrix of a file.

    Attributes
    ----------
    spillover : Spillover or None
    problem : str
        Why the keyword of the file cannot be read, "" where there is no problem.
    notes, warnings : tuple of str
        How the matrix was read, and what may make it the wrong one.
    """

    spillover: Spillover | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def find_matrix(keywords: Mapping[str, str], channels: Sequence[Channel]) -> FoundMatrix:
    """Return the spillover matrix of a file.

    Files may have several: Cytobank writes the identity matrix as $SPILLOVER and keeps the one of the
    instrument as SPILL. The first is used that is not the identity matrix and names channels of the file, or
    else the first that can be read.

    Parameters
    ----------
    keywords : mapping
        Keywords of TEXT, in lower case and without $.
    channels : sequence of Channel
    """
    found, problems, notes = {}, [], {}
    for key, shown in KEYWORDS.items():
        if keywords.get(key, "").strip():
            try:
                found[shown], notes[shown] = _read(keywords[key], shown, channels)
            except ValueError as error:
                problems.append(f"{shown} is not a square matrix with channel names ({error})")
    if not found:
        return FoundMatrix(problem=problems[0] if problems else "")
    real = [name for name, one in found.items() if not is_identity(one) and names_channels(one, channels)]
    used = [*real, *found][0]
    own_notes = [*notes[used], *(f"{problem}; {used} is used" for problem in problems)]
    warnings = [
        f"{_difference(other, one, used)}; {used} is used; {DECIDE}"
        for other, one in found.items()
        if not _same(one, found[used])
        and (other in real or (is_identity(one) and names_channels(one, channels)))
    ]
    return FoundMatrix(found[used], "", tuple(own_notes), tuple(warnings))


def is_identity(spillover: Spillover) -> bool:
    """Return True for the identity matrix, which compensates nothing."""
    return bool(np.array_equal(spillover.matrix, np.eye(len(spillover.detectors))))


def names_channels(spillover: Spillover, channels: Sequence[Channel]) -> bool:
    """Return True if each name of a matrix is the name of a channel, which may be named as compensated."""
    names = {name for channel in channels for name in (channel.detector, channel.marker)}
    return {*spillover.detectors} <= names | {uncompensated_name(channel.detector) for channel in channels}


def _read(value: str, shown: str, channels: Sequence[Channel]) -> tuple[Spillover, list[str]]:
    """Read the value of a keyword, and return notes on how; `ValueError` says what is wrong."""
    notes = []
    cells = [cell.strip() for cell in value.strip().rstrip(",").split(",")]
    n = int(cells[0])
    names, numbers = cells[1 : n + 1], cells[n + 1 :]
    if not 1 <= n == len(names):
        raise ValueError(f"found {len(names)} names, need {n}")
    if len(numbers) == 2 * n * n and all(map(DIGITS.fullmatch, numbers)):
        numbers = [f"{whole}.{rest}" for whole, rest in zip(numbers[::2], numbers[1::2], strict=True)]
        notes.append(f"{shown} has decimal commas, read as decimal points")
    if len(numbers) != n * n:
        raise ValueError(f"found {len(numbers)} numbers after {n} names, need {n * n}")
    matrix, _ = get_spill(",".join([cells[0], *names, *numbers]))
    if len({*names}) < len(names) or not np.isfinite(matrix).all():
        raise ValueError("names or values are not usable")
    known = {name for channel in channels for name in (channel.detector, channel.marker)}
    if not known & {*names} and all(name.isdecimal() and 1 <= int(name) <= len(channels) for name in names):
        notes.append(f"{shown} names channels by their numbers: {', '.join(names)}")
        names = [channels[int(name) - 1].detector for name in names]
    return Spillover(tuple(names), matrix), notes


def _same(one: Spillover, other: Spillover) -> bool:
    """Return True for equal matrices, whatever the order of their names."""
    if {*one.detectors} != {*other.detectors}:
        return is_identity(one) and is_identity(other)
    order = [other.detectors.index(name) for name in one.detectors]
    return bool(np.allclose(one.matrix, other.matrix[np.ix_(order, order)]))


def _difference(other: str, one: Spillover, used: str) -> str:
    """Return how a matrix differs from the one in use."""
    return (
        f"{other} is the identity matrix, and {used} is not"
        if is_identity(one)
        else f"{other} and {used} differ"
    )
