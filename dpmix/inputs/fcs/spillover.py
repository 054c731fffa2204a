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
from dpmix.inputs.channel_names import uncompensated_name, why_not_measured
from dpmix.inputs.fcs.text import quoted
from dpmix.inputs.text_format import is_number

KEYWORDS = {
    "spillover": "$SPILLOVER",
    "spill": "SPILL",
    "comp": "$COMP",
}  # in the order in which they are used
WHOLE, FRACTION = re.compile(r"[+-]?[0-9]+"), re.compile(r"[0-9]+([eE][+-]?[0-9]+)?")
OTHER_MARK = re.compile(r"\s*[0-9]+\s*([;\t])")
NO_CHANNELS = re.compile(r"[\s0,;]*")  # placeholders such as "0"
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
        if not NO_CHANNELS.fullmatch(keywords.get(key, "")):
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
    bare = {uncompensated_name(channel.detector) for channel in channels}
    return all(name in bare or numbers_named(name, channels) for name in spillover.detectors)


def numbers_named(name: str, channels: Sequence[Channel]) -> list[int]:
    """Return the numbers of the channels that a matrix means by a name.

    It is the name of a detector, or else of a marker, or else of a detector in another case, or with _ for /,
    as FlowJo writes it.
    """
    for names in ([c.detector for c in channels], [c.marker for c in channels]):
        if found := [k for k, own in enumerate(names) if own == name]:
            return found
    plain = [c.detector.casefold().replace("/", "_") for c in channels]
    return [k for k, own in enumerate(plain) if own == name.casefold().replace("/", "_")]


def as_shares(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a matrix as shares; one that has percentages has 100 on its diagonal."""
    return matrix / 100.0 if len(matrix) and (np.diag(matrix) == 100.0).all() else matrix


def _read(value: str, shown: str, channels: Sequence[Channel]) -> tuple[Spillover, list[str]]:
    """Read the value of a keyword, and return notes on how; `ValueError` says what is wrong."""
    notes = []
    if mark := OTHER_MARK.match(value):
        # Between semicolons or tabs, a comma is a decimal sign.
        value = value.replace(",", ".").replace(mark[1], ",")
    cells = [cell.strip() for cell in value.strip().rstrip(",").split(",")]
    if not WHOLE.fullmatch(cells[0]):
        raise ValueError(f"found {quoted(cells[0])} at its start, need the number of channels")
    n = int(cells[0])
    if cells[1:] and all(is_number(cell) for cell in cells[1:]) and len(cells) == n * n + 1:
        raise ValueError("it has no names of channels, as in FCS 3.0")
    names, numbers = cells[1 : n + 1], cells[n + 1 :]
    if not 1 <= n == len(names):
        raise ValueError(f"found {len(names)} names, need {n}")
    if len(numbers) == 2 * n * n and _are_decimal_commas(numbers):
        numbers = [f"{whole}.{rest}" for whole, rest in zip(numbers[::2], numbers[1::2], strict=True)]
        notes.append(f"{shown} has decimal commas, read as decimal points")
    if len(numbers) != n * n:
        raise ValueError(f"found {len(numbers)} numbers after {n} names, need {n * n}")
    matrix, _ = get_spill(",".join([cells[0], *names, *numbers]))
    if len({*names}) < len(names) or not np.isfinite(matrix).all():
        raise ValueError("names or values are not usable")
    if _are_numbers_of_light(names, channels):
        notes.append(f"{shown} names channels by their numbers: {', '.join(names)}")
        names = [channels[int(name) - 1].detector for name in names]
    if (shares := as_shares(matrix)) is not matrix:
        notes.append(f"{shown} has percentages, read as shares")
    return Spillover(tuple(names), shares), notes


def _are_decimal_commas(numbers: Sequence[str]) -> bool:
    """Return True if cells between commas are the wholes and fractions of numbers with decimal commas."""
    return all(map(WHOLE.fullmatch, numbers[::2])) and all(map(FRACTION.fullmatch, numbers[1::2]))


def _are_numbers_of_light(names: Sequence[str], channels: Sequence[Channel]) -> bool:
    """Return True if names are the numbers of channels, from 1, none of which is scatter or time."""
    known = {name for channel in channels for name in (channel.detector, channel.marker)}
    return not known & {*names} and all(
        name.isdecimal() and 1 <= int(name) <= len(channels) and not why_not_measured(channels[int(name) - 1])
        for name in names
    )


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
