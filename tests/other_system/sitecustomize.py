"""Make Python on Linux behave as on macOS or Windows, where dpmix could notice.

``make test PLATFORM=macos`` or ``windows`` sets DPMIX_TEST_PLATFORM. Python imports this module at its start
from the folder that is then in PYTHONPATH, so that processes which tests start behave alike. What is missing
on the other system is missing here, and calls that fail there fail here:

- macOS: open file description locks, `os.posix_fallocate`, `os.sched_getaffinity`, `/proc`, safe forks, and
  names of files that differ in case only. Processes are spawned.
- Windows: also `fcntl`, `resource`, `os.pwrite`, `os.fork`, `mmap.MADV_DONTNEED`, SIGHUP, handling SIGTERM,
  folders that can be opened, and open files that can be renamed, replaced or deleted. Text files have lines
  with CRLF and the encoding cp1252 unless dpmix says otherwise, as have stdout and stderr of processes that
  tests start.

It shows that dpmix needs none of these. It cannot show what the other system itself does. Separators and
drives of paths are as on Linux; tests/system/test_paths.py tests them by themselves.
"""

from __future__ import annotations

import builtins
import errno
import functools
import importlib
import importlib.abc
import importlib.machinery
import io
import mmap
import multiprocessing
import os
import pathlib
import re
import signal
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

PLATFORM = os.environ.get("DPMIX_TEST_PLATFORM", "")
ABSENT = {
    "macos": ["posix_fallocate", "sched_getaffinity"],
    "windows": ["posix_fallocate", "sched_getaffinity", "pwrite", "fork", "O_CLOEXEC"],
}
OPEN_FILES = "/proc/self/fd"
THROUGH = ("pathlib", "genericpath", "posixpath", "os", "io", __name__)  # modules by which dpmix opens files
CHANGES: dict[str, dict[str, Any]] = {}  # names of modules of dpmix, which are changed after their import


class Changes(importlib.abc.MetaPathFinder):
    """Finds the modules in `CHANGES`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                vars(module).update(CHANGES[name])

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def lock_byte(descriptor: int) -> None:
    """Lock a byte, instead of LockFileEx of Windows."""
    fcntl = import_here("fcntl")
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 40, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)


def import_on_windows(name: str, package: str | None = None) -> ModuleType:
    """Import a module by name as on Windows, for dpmix only: other libraries have been built for Linux."""
    asked_by = sys._getframe(1).f_globals.get("__name__")
    if asked_by == "dpmix.system.optional" and name in ("fcntl", "resource"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_here(name, package)


def is_open(path: Any) -> bool:
    """Return True if this process has the file of a path open."""
    try:
        wanted = os.stat(path)
    except OSError:
        return False
    for name in os.listdir(OPEN_FILES):
        try:
            found = os.stat(f"{OPEN_FILES}/{name}")
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, wanted):
            return True
    return False


def is_from_dpmix() -> bool:
    """Return True if dpmix makes the present call, itself or by pathlib (tempfile knows the true system)."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in THROUGH:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("dpmix.")


def refused_if_open(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that fails if this process has one of its files open."""

    def checked(*paths: Any, **options: Any) -> Any:
        for path in paths if is_from_dpmix() else ():
            if isinstance(path, str | os.PathLike) and is_open(path):
                raise PermissionError(errno.EACCES, "open in this process", os.fspath(path))
        return call(*paths, **options)

    return checked


def without_folders(call: Callable[..., int]) -> Callable[..., int]:
    """Return `os.open` that opens no folder."""

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if is_from_dpmix() and isinstance(path, str | os.PathLike) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return call(path, flags, *more, **options)

    return opened


def there(path: Any) -> Any:
    """Return the path of the file that a name means where case does not matter."""
    if not isinstance(path, str | os.PathLike) or stats(path):
        return path
    whole = pathlib.PurePath(path)
    found = pathlib.PurePath(whole.anchor)
    for part in whole.parts[bool(whole.anchor) :]:
        names = [] if stats(found / part) else entries(found)
        found /= next((name for name in names if name.casefold() == part.casefold()), part)
    return str(found)


def stats(path: Any) -> bool:
    """Return True if there is a file of exactly this name."""
    try:
        return lstat_here(path) is not None
    except (OSError, ValueError):
        return False


def entries(folder: pathlib.PurePath) -> list[str]:
    try:
        return listdir_here(str(folder))
    except OSError:
        return []


def in_any_case(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that finds the file of its first path in any case."""

    @functools.wraps(call)
    def found(*paths: Any, **options: Any) -> Any:
        if paths and is_from_dpmix():
            paths = (there(paths[0]), *paths[1:])
        return call(*paths, **options)

    return found


def with_windows_text(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `open` with the line ends and the encoding of Windows, where dpmix gives none."""

    @functools.wraps(call)
    def opened(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, *more: Any, **options: Any,
    ) -> Any:  # fmt: skip
        if "b" not in mode and is_from_dpmix():
            encoding = "cp1252" if encoding in (None, "locale") else encoding
            newline = "\r\n" if newline is None and not mode.startswith("r") else newline
        return call(file, mode, buffering, encoding, errors, newline, *more, **options)

    return opened


def take_away() -> None:
    for name in ABSENT[PLATFORM]:
        delattr(os, name)
    multiprocessing.set_start_method("spawn")
    for name in ("stat", "lstat", "open", "access", "unlink", "remove", "rename", "replace"):
        setattr(os, name, in_any_case(getattr(os, name)))
    io.open = builtins.open = in_any_case(io.open)  # type: ignore[assignment]
    sys.meta_path.insert(0, Changes())
    CHANGES["dpmix.system.memory"] = {"OWN_GROUPS": pathlib.Path("/proc of Linux")}
    if PLATFORM == "macos":
        fcntl = import_here("fcntl")
        for name in ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"):
            delattr(fcntl, name)
        return
    CHANGES["dpmix.system.console"] = {"WINDOWS_SHELL": True}
    CHANGES["dpmix.system.stop"] = {"SIGNALS": (signal.SIGINT,), "HANGUP": None}
    CHANGES["dpmix.system.own_file"] = {"OPEN_FILES_KEEP_THEIR_NAMES": True, "_lock_byte": lock_byte}
    importlib.import_module = import_on_windows
    del mmap.MADV_DONTNEED
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, refused_if_open(getattr(os, name)))
    os.open = without_folders(os.open)
    io.open = builtins.open = with_windows_text(io.open)  # type: ignore[assignment]
    if not {"pytest", "execnet"} & {word for one in sys.orig_argv for word in re.findall(r"\w+", one)}:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
                stream.reconfigure(encoding="cp1252", newline="\r\n")


import_here = importlib.import_module
lstat_here, listdir_here = os.lstat, os.listdir
if PLATFORM:
    take_away()
