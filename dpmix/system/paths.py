"""Paths and file names that mean the same on every system, and the encoding of text files."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# What Windows allows in no file name, and the names of devices there, with any suffix.
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]|[. ]$')
DEVICE = re.compile(r"(?i)^(con|prn|aux|nul|(com|lpt)\d)(?=\.|$)")


def file_name(text: str) -> str:
    """Return a text as a file name, with `_` for what some system forbids in one."""
    return DEVICE.sub(r"\1_", FORBIDDEN.sub("_", text))


def with_slashes(path: str | Path) -> str:
    """Return a path as text with `/` between folders, as every system reads it."""
    return str(path).replace(os.sep, "/")


def as_text(path: str | Path) -> str:
    """Return a path, or a text with paths, with a mark for each byte that is not UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def from_home(name: str | Path) -> Path:
    """Return a path in which ~ at the start is the home folder; unchanged if no user has that name."""
    return Path(os.path.expanduser(name))


def relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder, with `/`; the absolute path if they are on different drives."""
    try:
        return with_slashes(os.path.relpath(path, folder))
    except ValueError:
        return with_slashes(path.absolute())


def below_common_folder(paths: Sequence[Path]) -> list[str]:
    """Return paths relative to their common folder, with `/`; absolute paths if drives differ."""
    whole = [path.resolve() for path in paths]
    try:
        folder = os.path.commonpath([path.parent for path in whole])
    except ValueError:
        return [with_slashes(path) for path in whole]
    return [with_slashes(path.relative_to(folder)) for path in whole]


def in_order(paths: Iterable[str]) -> list[str]:
    """Sort paths by their characters, with `/` between folders: as on Linux, where case matters."""
    return sorted(paths, key=with_slashes)


def file_id(path: Path) -> object:
    """Return what is equal for two names of one file, for example in other case on macOS and Windows."""
    try:
        status = path.stat()
    except OSError:
        return path.resolve()
    return status.st_dev, status.st_ino


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file: UTF-8, unless its first bytes say UTF-16.

    Windows writes UTF-16 for ``dpmix init sample.fcs > run.yaml`` in PowerShell 5, and for Excel's Unicode
    text.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(2)
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
