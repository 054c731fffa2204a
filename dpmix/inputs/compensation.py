"""Spillover matrices of data files and of CSV files, and the channels that they compensate."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.channel_names import uncompensated_name
from dpmix.inputs.fcs.spillover import Spillover, as_shares, is_identity, numbers_named
from dpmix.inputs.sources import Source
from dpmix.inputs.text_format import read_cells
from dpmix.model.mixture import Array
from dpmix.system.console import first_few

WORST_CONDITION = 1e8  # largest condition number of a spillover matrix
AGAIN = "not compensated again: channel names show compensated values (as {})"
REMEDY = "set data.compensation to none, or to a CSV file with another matrix (dpmix init: --compensation)"


@dataclass(frozen=True)
class Compensation:
    """A spillover matrix and the channels of one file that it compensates; by default none.

    Attributes
    ----------
    channels : tuple of int
        C numbers of channels in the file, in the order of the matrix.
    matrix : float64 [C, C]
        Row i: the share of dye i that each detector receives.
    """

    channels: tuple[int, ...] = ()
    matrix: Array = field(default_factory=lambda: np.eye(0))


class OwnMatrix(NamedTuple):
    """The spillover matrix that a file holds.

    Attributes
    ----------
    spillover : Spillover or None
        None where the file holds no matrix, or one that does not apply: its channels are compensated
        already, it names no channel of the file, or it is the identity matrix.
    note : str
        For the report, "" where there is nothing to note.
    warning : bool
        The note is a warning: the file holds a matrix, and nothing shows that its values need none.
    """

    spillover: Spillover | None
    note: str = ""
    warning: bool = False


def own_matrix(source: Source, expected: bool) -> OwnMatrix:
    """Return the spillover matrix that a file holds.

    Channels may be compensated already. Their names show it: FACSDiva writes <PE-A>, FlowJo Comp-PE-A.

    Parameters
    ----------
    source : Source
    expected : bool
        Another file of the run holds a matrix, so the report notes a missing one.

    Raises
    ------
    DataError
        The file's matrix cannot be read.
    """
    if source.transformed:  # a warning of the file says so
        return OwnMatrix(None, "not compensated: its values are transformed already")
    if source.spillover_problem:
        raise DataError(f"{source.name}: {source.spillover_problem}; {REMEDY}")
    named = [name for name in source.channels if uncompensated_name(name) != name]
    if source.spillover is None and named:
        return OwnMatrix(None, AGAIN.format(named[0]))
    if source.spillover is None:
        expected = expected or source.kind == "fluorescence"
        return OwnMatrix(None, "not compensated: the file holds no spillover matrix" if expected else "")
    detectors, names = source.spillover.detectors, source.channels
    # A compensated copy next to the raw channel is no sign; one in its place is.
    applied = [shown for shown in named if uncompensated_name(shown) in {*detectors} - {*names}]
    if applied:
        return OwnMatrix(None, AGAIN.format(applied[0]))
    if is_identity(source.spillover):
        return OwnMatrix(None, "not compensated: the spillover matrix of the file is the identity matrix")
    if not any(numbers_named(name, source.details) for name in detectors):
        note = f"not compensated: the spillover matrix names no channel of the file ({first_few(detectors)})"
        return OwnMatrix(None, note, warning=True)
    whose = (
        f"the matrix of {source.spillover_from}"
        if source.spillover_from
        else "the file's own spillover matrix"
    )
    return OwnMatrix(source.spillover, f"compensated with {whose} ({len(detectors)} channels)")


def not_applied(source: Source) -> list[str]:
    """Return the warning that the matrix of a file is not applied, [] where it is, or is not needed."""
    if source.spillover_problem:
        return []
    own = own_matrix(source, False)
    return [f"{own.note}; give its names to data.compensation in a CSV file"] if own.warning else []


def read_matrix(path: Path) -> Spillover:
    """Read a spillover matrix from a CSV file.

    The first line has the detector names. Each further line is the row of one dye, with or without its name
    in front. Rows with the names of the columns may come in any order; other rows follow the order of the
    columns. A matrix with 100 on its diagonal has percentages.

    Raises
    ------
    ConfigError
        The file cannot be read, or is not such a matrix.
    """
    try:
        head, *rows = [line for line in read_cells(path, numbers=True) if any(line)] or [[]]
        names = [name for name in head if name]
        matrix = np.array([[float(cell) for cell in row[len(row) - len(names) :]] for row in rows])
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, csv.Error) as error:
        problem = f"is not a matrix ({error})"
    else:
        sizes_fit = all(len(row) in (len(names), len(names) + 1) for row in rows)
        if sizes_fit and matrix.shape == (len(names), len(names)) and len({*names}) == len(names):
            row_names = [row[0] for row in rows]
            if {*row_names} == {*names}:
                matrix = matrix[[row_names.index(name) for name in names]]
            return Spillover(tuple(names), as_shares(matrix))
        problem = f"has {len(names)} names and {len(rows)} rows of {sorted({len(row) for row in rows})} cells"
    need = "need auto, none, or a CSV file with a square matrix under detector names"
    raise ConfigError([f"data.compensation: {path} {problem}, {need}"])


def match_matrix(spillover: Spillover, source: Source) -> Compensation:
    """Find the channels of a file that a spillover matrix names.

    Raises
    ------
    DataError
        A name matches no channel or several, or the matrix cannot be inverted.
    """
    found = [numbers_named(name, source.details) for name in spillover.detectors]
    missing = [name for name, numbers in zip(spillover.detectors, found, strict=True) if len(numbers) != 1]
    channels = tuple(numbers[0] for numbers in found if numbers)
    if missing:
        names = ", ".join(missing)
        raise DataError(
            f"{source.name}: the spillover matrix names {names}, which is not a channel of the file; {REMEDY}"
        )
    if len({*channels}) < len(channels):
        raise DataError(f"{source.name}: the spillover matrix names one channel twice; {REMEDY}")
    if not np.isfinite(spillover.matrix).all() or np.linalg.cond(spillover.matrix) > WORST_CONDITION:
        raise DataError(f"{source.name}: the spillover matrix cannot be inverted; {REMEDY}")
    return Compensation(channels, spillover.matrix)
