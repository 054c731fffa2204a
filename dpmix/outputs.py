"""Where results are written: never half a file under its name, never over what is not to be lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dpmix.errors import ConfigError, DataError


def refuse(paths: Sequence[Path], overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise `ConfigError` where something is in the way of files to be written.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    overwrite : bool
        Files that exist may be replaced.
    inputs : sequence of Path
        What is read, the run file and the data: never replaced.
    """
    problems = []
    for folder in dict.fromkeys(nearest_there(path.parent) for path in paths):
        if not folder.is_dir():
            problems.append(f"{folder}: is a file, need a folder to write to; give another --output")
        elif not os.access(folder, os.W_OK | os.X_OK):
            problems.append(f"{folder}: no permission to write to this folder; give another --output")
    if problems:
        raise ConfigError(problems)
    read = {path.resolve() for path in inputs}
    there = []
    for path in paths:
        if path.resolve() in read:
            problems.append(f"{path}: would replace a file that is read; give another --output")
        elif path.is_dir():
            problems.append(f"{path}: is a folder, need its name for a file; give another --output")
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


def nearest_there(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    return next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))


@contextmanager
def writing(path: Path, failure: type[DataError] = DataError) -> Iterator[None]:
    """Say of an error of the operating system which file could not be written."""
    try:
        yield
    except OSError as error:
        raise failure(f"{path}: cannot be written: {error.strerror or error}") from None


def partial_path(path: Path) -> Path:
    """The name of a file until it is whole."""
    return path.with_name(path.name + ".partial")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    temporary = partial_path(path)
    try:
        with writing(path):
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
