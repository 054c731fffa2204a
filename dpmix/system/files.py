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


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The name of a file to write: whole, it takes the place of `path`; it is gone where anything fails.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    temporary = partial_path(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)  # it takes room on a disk that may be full
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names of files, given, changed and taken away, have reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    with writing(path), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
