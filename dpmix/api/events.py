"""Events in memory as data files: a run reads them as it reads any other file."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import h5py
import numpy as np

from dpmix.errors import ConfigError, DataError, printable
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Floats
from dpmix.system.files import writing


class RunFolder:
    """A folder for the files of runs: a given one, or a temporary one that is removed with this object.

    Parameters
    ----------
    path : str or Path, optional
        It is made where it is missing. Default: a temporary folder.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix="dpmix-"))
            weakref.finalize(self, _remove, self.path, os.getpid())
        else:
            self.path = Path(path).absolute()
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)

    def require_absent(self, names: Iterable[str], remedy: str) -> None:
        """Raise `ConfigError` if the folder has a file of such a name, which a run would replace."""
        for name in names:
            if (self.path / name).exists():
                raise ConfigError([f"folder: {self.path / name} exists already{remedy}"])


def _remove(path: Path, process: int) -> None:
    """Remove a temporary folder, in the process that made it and not in its forks."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def require_unmasked(table: object) -> None:
    """Raise `ValueError` for a masked array with masked values: NumPy would use what lies under the mask."""
    if np.ma.is_masked(table):
        raise ValueError("X has masked values; remove these events, or fill the values in (X.filled)")


def events_file(channels: Sequence[str] | None, stem: str = "events") -> str:
    """Return the name of the file that `write_events` writes."""
    return f"{stem}{'.npy' if channels is None else '.h5'}"


def write_events(
    folder: Path, values: Floats, channels: Sequence[str] | None = None, stem: str = "events"
) -> str:
    """Write events to a file and return its name: NPY, or HDF5 where channels have names.

    Parameters
    ----------
    folder : Path
    values : float32 [N, D]
    channels : sequence of str, optional
        D names.
    stem : str
        Name of the file without its suffix.

    Raises
    ------
    DataError
        A value is not finite, or the file cannot be written.
    """
    path = folder / events_file(channels, stem)
    finite = np.isfinite(values)
    if not finite.all():  # a run would leave these events out, and the results here are for all rows
        column = int(np.argmin(finite.all(axis=0)))
        name, row = channels[column] if channels else f"ch{column}", int(np.argmin(finite[:, column]))
        count = int((~finite[:, column]).sum())
        found = f"{count} values that are not finite in {name}, the first in row {row}"
        raise DataError(f"{found}; remove these rows, or fill the values in")
    with writing(path):
        path.unlink(missing_ok=True)  # another run may still have the old file open
        if channels is None:
            np.save(path, values)
        else:
            with h5py.File(path, "w") as file:
                file["events"] = values
                file["channels"] = np.array([*channels], dtype=h5py.string_dtype())
    return path.name


def standardised(scaling: Scaling, detectors: Sequence[str], values: Floats, names: Sequence[str]) -> Floats:
    """Return events on the scale of a run, as the run would see them but for noise at atoms, float32 [N, D].

    Parameters
    ----------
    scaling : Scaling
        Scale of the run.
    detectors : sequence of str
        The D columns that the run uses.
    values : float32 [N, columns]
    names : sequence of str
        Names of the columns.

    Raises
    ------
    DataError
        A value is not finite after its transform.
    """
    places = {printable(name): column for column, name in enumerate(names)}
    taken = np.empty((len(values), len(detectors)), np.float32)
    with np.errstate(all="ignore"):  # values that are not finite are an error below
        for j, transform in enumerate(scaling.transforms):
            column = values[:, places[detectors[j]]]
            taken[:, j] = column if transform.method == "linear" else transform.apply(column.astype(float))
        taken[:] = (taken - scaling.means) / scaling.sds
    if not np.isfinite(taken).all():
        bad = [scaling.channels[j] for j in np.flatnonzero(~np.isfinite(taken).all(axis=0))]
        raise DataError(f"{', '.join(bad)}: not finite after the transform, as the run has it")
    return taken
