"""Write files completely or not at all, and never over inputs or, unasked, over existing files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dpmix.errors import ConfigError, DataError
from dpmix.system.own_file import OPEN_FILES_KEEP_THEIR_NAMES, allocate, sync
from dpmix.system.paths import as_text, file_id

HDF5_BYTES = 2**20
"""At most what an HDF5 file of a few arrays has besides their values."""


def check_outputs(paths: Sequence[Path], overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Check that files can be written.

    Parameters
    ----------
    paths : sequence of Path
        The files to write.
    overwrite : bool
        Allow existing files to be replaced.
    inputs : sequence of Path
        Files that are read (the run file and the data), which are never replaced.

    Raises
    ------
    ConfigError
        A file cannot or must not be written; one line per problem.
    """
    problems = []
    nearest = [nearest_existing(path.parent) for path in paths]  # of a missing folder an absolute path
    for folder in {folder.absolute(): folder for folder in reversed(nearest)}.values():
        if not folder.is_dir():
            problems.append(f"{folder}: is a file, not a folder; give another --output")
        elif not os.access(folder, os.W_OK | os.X_OK):
            problems.append(f"{folder}: no permission to write to this folder; give another --output")
    if problems:
        raise ConfigError(problems)
    read = {file_id(path) for path in inputs}
    there = []
    for path in paths:
        if file_id(path) in read:
            problems.append(f"{path}: would replace an input file; give another --output")
        elif path.is_dir():
            problems.append(f"{path}: is a folder, not a file; give another --output")
        elif path.exists() and not overwrite:
            there.append(path)
    if len(there) == 1:
        problems.append(f"{there[0]}: exists already; give another --output, or --overwrite to replace it")
    elif there:
        others = "another file" if len(there) == 2 else f"{len(there) - 1} other files"
        problems.append(
            f"{there[0]} and {others}: exist already; give another --output, or --overwrite to replace them"
        )
    if problems:
        raise ConfigError(problems)


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))


@contextmanager
def writing(path: Path, failure: type[DataError] = DataError) -> Iterator[None]:
    """Turn an `OSError` into an error that names the file which cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if OPEN_FILES_KEEP_THEIR_NAMES and isinstance(error, PermissionError):
            reason = f"{reason}; if it is open in another program, close it there"
        raise failure(f"{path}: cannot be written: {reason}") from None


def partial_path(path: Path) -> Path:
    """Return the temporary name of a file that is being written."""
    return path.with_name(path.name + ".partial")


@contextmanager
def replacing(path: Path, n_bytes: int = 0) -> Iterator[Path]:
    """Give a temporary file to write, and move it to `path` at the end; delete it if anything fails.

    Parameters
    ----------
    path : Path
    n_bytes : int
        Space that the disk must have at the start. HDF5 needs it: where a disk fills up while a file is
        written, HDF5 cannot close the file, and the process crashes at its end.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    temporary = partial_path(path)
    try:
        if n_bytes:
            _require_space(temporary, n_bytes)
        yield temporary
        with temporary.open("r+b") as file:  # Windows does not sync a file that is open for reading
            sync(file.fileno())
        # After the sync: a name that reaches the disk before its content would be an empty file after a power
        # failure.
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # the disk may be full
        raise


def _require_space(path: Path, n_bytes: int) -> None:
    """Raise `OSError` if a new file cannot have this many bytes."""
    with path.open("wb") as file:
        allocate(file.fileno(), n_bytes)
        file.truncate(0)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the text of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, completely or not at all; a path in it may have bytes that are not UTF-8.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    with writing(path), replacing(path) as temporary:
        temporary.write_text(as_text(text), encoding="utf-8", newline="")
