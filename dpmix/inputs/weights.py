"""Weights of samples (`data.weights`): from the config, a table and the sizes of the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError
from dpmix.inputs.samples import NAME, Columns, read_table
from dpmix.model.mixture import Array
from dpmix.model.sample_weights import SampleWeights
from dpmix.system.paths import from_home


def read_weights(settings: DataConfig, base: Path, samples: Sequence[str], columns: Columns) -> Array | None:
    """Return the weight of an event of each sample that a table gives, float64 [S]; None without a table.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that the table's name is relative to.
    samples : sequence of str
        S names.
    columns : mapping of str to S str
        Columns of the table of samples.

    Raises
    ------
    ConfigError
        The table cannot be read, it lacks the column or a sample, or a cell is not a number above 0.
    """
    wanted = settings.weights
    if isinstance(wanted, str):
        return None
    if wanted.file is not None:
        path = base / from_home(wanted.file)
        cells = _cells(path, wanted.column, samples)
    elif wanted.column in columns:
        path = base / from_home(settings.samples or "")
        cells = dict(zip(samples, columns[wanted.column], strict=True))
    else:
        raise ConfigError(
            [
                f"data.weights.column: got {wanted.column}, need a column of data.samples: "
                f"{', '.join(columns) or 'it has none but file and sample'}"
            ]
        )
    weights = {sample: _number(cells[sample]) for sample in samples}
    if wrong := [sample for sample, weight in weights.items() if weight is None]:
        raise ConfigError(
            [
                f'data.weights: {path}: the {wanted.column} of {sample} is "{cells[sample]}", need a number '
                "above 0"
                for sample in wrong
            ]
        )
    return np.array([*weights.values()], np.float64)


def describe_weights(settings: DataConfig, samples: Sequence[str], weights: SampleWeights | None) -> str:
    """Return a note on the weights of a run; "" where the config asks for none."""
    if settings.weights == "proportional":
        return ""
    if weights is None:
        return "weights (data.weights): every event counts 1, because samples have equal weights"
    order = np.argsort(weights.values, kind="stable")
    low, high = (f"{weights.values[s]:.3g} in {samples[s]}" for s in (order[0], order[-1]))
    what = "equal" if settings.weights == "equal" else settings.weights.column
    return f"weights (data.weights: {what}): an event counts {low} to {high}"


def _cells(path: Path, column: str, samples: Sequence[str]) -> Mapping[str, str]:
    """Return the cell of a column in the row of each sample."""
    need = f"need a CSV file with a row per sample and the columns {NAME} and {column}"
    head, rows = read_table("data.weights", path, column, need)
    if NAME not in head:
        raise ConfigError([f"data.weights: {path}: found the columns {', '.join(head)}, {need}"])
    names = [row[head.index(NAME)] for row in rows]
    problems = [
        f"the sample {name} is named twice, need one row for each"
        for name, count in Counter(names).items()
        if count > 1 and name in samples
    ]
    problems += [
        f"found no row for the sample {sample}, need one" for sample in samples if sample not in names
    ]
    if problems:
        raise ConfigError([f"data.weights: {path}: {problem}" for problem in problems])
    return dict(zip(names, (row[head.index(column)] for row in rows), strict=True))


def _number(cell: str) -> float | None:
    """Return a finite number above 0, or None."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if 0.0 < number < np.inf else None
