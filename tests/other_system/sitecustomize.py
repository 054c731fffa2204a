"""Make Python on Linux behave as on macOS or Windows, where dpmix could notice.

``make test PLATFORM=macos`` or ``windows`` sets DPMIX_TEST_PLATFORM. Python imports this module at its start
from the folder that is then in PYTHONPATH, so that processes which tests start behave alike. What is missing
on the other system is missing here, and calls that fail there fail here:

- macOS: open file description locks, `os.posix_fallocate`, `os.sched_getaffinity`, safe forks.
- Windows: also `fcntl`, `resource`, `os.pwrite`, `os.fork`, `mmap.MADV_DONTNEED`, folders that can be opened,
  and open files that can be renamed, replaced or deleted.

It shows that dpmix needs none of these. It cannot show what the other system itself does.
"""

from __future__ import annotations

import errno
import importlib
import importlib.abc
import importlib.machinery
import mmap
import os
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
    """Lock a byte, in place of LockFileEx of Windows."""
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
    while frame.f_back is not None and frame.f_globals.get("__name__") == "pathlib":
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


def take_away() -> None:
    for name in ABSENT[PLATFORM]:
        delattr(os, name)
    sys.meta_path.insert(0, Changes())
    CHANGES["dpmix.system.background"] = {"FORKS_SAFELY": False}
    if PLATFORM == "macos":
        fcntl = import_here("fcntl")
        for name in ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"):
            delattr(fcntl, name)
        return
    CHANGES["dpmix.system.own_file"] = {"OPEN_FILES_KEEP_THEIR_NAMES": True, "_lock_byte": lock_byte}
    importlib.import_module = import_on_windows
    del mmap.MADV_DONTNEED
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, refused_if_open(getattr(os, name)))
    os.open = without_folders(os.open)


import_here = importlib.import_module
if PLATFORM:
    take_away()
