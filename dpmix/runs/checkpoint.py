"""The checkpoint: the states that a stopped or killed run resumes from, replaced as a whole or not at all."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.model.mixture import Cohort, Factors, Hyperparameters, State
from dpmix.system.files import replacing
from dpmix.system.own_file import sync_folder

# The array of the file that holds each field. These names never change: files of every version must load.
OLDER_NAMES = {"log1m_sticks": "log_rests"}
STATE_ARRAYS = {
    field.name: f"state.{OLDER_NAMES.get(field.name, field.name)}"
    for field in fields(State)
    if field.name not in ("hyperparameters", "cohort")
}
COHORT_ARRAYS = {field.name: f"cohort.{field.name}" for field in fields(Cohort) if field.name != "factors"}
FACTOR_ARRAYS = {name: f"cohort.factors.{name}" for name in Factors._fields}
HYPER_ARRAYS = {field.name: f"given.{field.name}" for field in fields(Hyperparameters)}


class Checkpoint(NamedTuple):
    """The data that a run resumes from: its states, their iteration, and further arrays of the loop."""

    states: list[State]
    iteration: int
    extra: dict[str, npt.NDArray[Any]]


def checkpoint_path(path: Path) -> Path:
    """Return where the checkpoint of a run file lies."""
    return path.with_name(path.name + ".checkpoint")


def save(
    path: Path,
    run_id: str,
    states: Sequence[State],
    iteration: int,
    extra: Mapping[str, npt.ArrayLike],
) -> None:
    """Replace the checkpoint of a run; if interrupted, the old one stays.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    arrays: dict[str, Any] = {
        "run_id": np.array(run_id),
        "iteration": np.array(iteration),
        **{array: np.stack([getattr(s, name) for s in states]) for name, array in STATE_ARRAYS.items()},
        **{
            array: np.stack([getattr(s.hyperparameters, name) for s in states])
            for name, array in HYPER_ARRAYS.items()
        },
        **{f"extra.{name}": array for name, array in extra.items()},
    }
    if cohorts := [state.cohort for state in states if state.cohort is not None]:
        for name, array in COHORT_ARRAYS.items():
            arrays[array] = np.stack([getattr(cohort, name) for cohort in cohorts])
    if factors := [cohort.factors for cohort in cohorts if cohort.factors is not None]:
        for name, array in FACTOR_ARRAYS.items():
            arrays[array] = np.stack([getattr(one, name) for one in factors])
    with replacing(path) as temporary, temporary.open("wb") as file:  # savez would add a suffix to a name
        np.savez(file, **arrays)
    # A new name is safe from a power failure only once its folder is on the disk.
    sync_folder(path.parent)


def load(path: Path, run_id: str) -> Checkpoint | None:
    """Return the checkpoint of a run, or None if it has none.

    Raises
    ------
    DataError
        The checkpoint cannot be read, or belongs to another run.
    """
    if not path.exists():
        return None
    try:
        # A pickle could run code of whoever made the file.
        with np.load(path, allow_pickle=False) as file:
            if sum(member.file_size for member in file.zip.infolist()) > path.stat().st_size:
                raise ValueError("it is compressed; dpmix writes none so, and it could be of any size")
            arrays = dict(file)
        owner, iteration = str(arrays.pop("run_id")), int(arrays.pop("iteration"))
        columns = [arrays.pop(array) for array in STATE_ARRAYS.values()]
        values = [arrays.pop(array) for array in HYPER_ARRAYS.values()]
        hyper = [Hyperparameters(*map(_plain, row)) for row in zip(*values, strict=True)]
        cohorts: list[Cohort | None] = [None] * len(hyper)
        if COHORT_ARRAYS["kappa"] in arrays:
            own = [arrays.pop(array) for array in COHORT_ARRAYS.values()]
            factors: list[Factors | None] = [None] * len(hyper)
            if FACTOR_ARRAYS["sizes"] in arrays:
                columns_of = [arrays.pop(array) for array in FACTOR_ARRAYS.values()]
                factors = [Factors(*row) for row in zip(*columns_of, strict=True)]
            cohorts = [Cohort(*map(_plain, row)) for row in zip(*own, factors, strict=True)]
        states = [State(*map(_plain, row)) for row in zip(*columns, hyper, cohorts, strict=True)]
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        raise DataError(f"{path}: not a whole checkpoint; restart with --overwrite") from None
    if owner != run_id:
        raise DataError(f"{path}: checkpoint of another run; restart with --overwrite")
    return Checkpoint(states, iteration, {name.removeprefix("extra."): a for name, a in arrays.items()})


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, an array as it is."""
    return value.item() if isinstance(value, np.generic) else value
