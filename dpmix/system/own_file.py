"""A file of which this process is the only writer. Its lock ends with the process and keeps no reader away.

Each system has a lock that belongs to one descriptor and follows the file when it is renamed. Linux: open
file description locks (fcntl(2)). macOS: flock(2), which HDF5 also requests for reading unless it is opened
with ``locking=False``. Windows: a lock of one byte far beyond the end, because a lock there keeps readers
away. (The libraries filelock and portalocker use flock(2), and on Windows lock bytes that readers need.)
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Self

from dpmix.errors import ConfigError
from dpmix.system.optional import module

log = logging.getLogger("dpmix")

OPEN_FILES_KEEP_THEIR_NAMES = os.name == "nt"  # an open file cannot be renamed, replaced or deleted
ZEROS = 1 << 20  # bytes written at a time where the system has no call that allocates space
BEYOND = 1 << 40  # place of the byte that is locked on Windows
LOCK_VIOLATION = 33  # number of a Windows error
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class OwnFile:
    """A file that is open for writing by this process alone; a context manager that closes it.

    Parameters
    ----------
    path : Path
    create : bool
        Create the file if it does not exist.

    Raises
    ------
    ConfigError
        Another run holds the lock.
    OSError
        The file cannot be opened.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._descriptor: int | None = _open_alone(path, create)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self._open).st_size

    @property
    def is_in_place(self) -> bool:
        """True if the path still names this file."""
        return _is_at(self.path, self._open)

    def reserve(self, n_bytes: int) -> None:
        """Make this a file of this many bytes, with their space allocated on the disk.

        Raises
        ------
        OSError
            The system refuses a file of this size: the disk is full, or a quota or limit is reached.
        """
        os.ftruncate(self._open, 0)
        allocate(self._open, n_bytes)

    def write_at(self, data: memoryview, offset: int) -> None:
        """Write bytes at an offset.

        Raises
        ------
        OSError
            The disk refuses.
        """
        while data:  # more than 2 GB take several calls
            written = _write_some(self._open, data, offset)
            data, offset = data[written:], offset + written

    def sync(self) -> None:
        """Wait until everything written has reached the disk; raise `OSError` where it does not."""
        sync(self._open)

    def move(self, path: Path, over: OwnFile | None = None) -> None:
        """Rename the file, instead of another file of that name if there is one.

        Parameters
        ----------
        path : Path
        over : OwnFile, optional
            The file that is replaced, if this process holds it. On Windows it is closed first, and for a
            moment both files are unlocked.

        Raises
        ------
        OSError
            The file cannot be renamed.
        """
        if OPEN_FILES_KEEP_THEIR_NAMES:
            self.close()
            if over is not None:
                over.close()
            try:
                os.replace(self.path, path)
            except PermissionError as error:
                raise OSError(error.errno, "open in this or another program; close it there first") from None
            self._descriptor = _open_alone(path, create=False)
        else:
            os.replace(self.path, path)
        self.path = path

    def delete(self) -> None:
        """Delete the file and close it."""
        if OPEN_FILES_KEEP_THEIR_NAMES:
            self.close()
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, which ends the lock; again does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path}: closed")
        return self._descriptor


def allocate(descriptor: int, n_bytes: int) -> None:
    """Allocate the space of an empty file; raise `OSError` where the system refuses."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, n_bytes)
        return
    zeros = memoryview(bytes(ZEROS))
    at = 0
    while at < n_bytes:
        at += _write_some(descriptor, zeros[: n_bytes - at], at)


def sync(descriptor: int) -> None:
    """Wait until everything written to a file has reached the disk; raise `OSError` where it does not.

    On macOS, fsync(2) leaves data in the memory of the drive, and fcntl(2) has a request that does not.
    """
    fcntl = module("fcntl")
    if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):
        with suppress(OSError):  # file systems of a network do not know it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until new, changed and deleted names of files in a folder have reached the disk.

    Windows has no such request: a folder cannot be opened there.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        if OPEN_FILES_KEEP_THEIR_NAMES:
            return
        raise
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def kind_of_lock() -> str:
    """Return the name of the lock that this system has."""
    fcntl = module("fcntl")
    if fcntl is None:
        return "a lock of one byte"
    return "an open file description lock" if hasattr(fcntl, "F_OFD_SETLK") else "flock"


def _open_alone(path: Path, create: bool) -> int:
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
    # Between opening and locking, another process may replace the file: then the lock is on one without a
    # name.
    while True:
        descriptor = os.open(path, flags, 0o666)
        try:
            _lock(path, descriptor)
            if _is_at(path, descriptor):  # not renamed or deleted before it was locked
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            output = str(path).removesuffix(".partial")
            raise ConfigError(
                [f"{output}: another run is writing to it; wait until it ends, or give another --output"]
            ) from None
        except BaseException:
            os.close(descriptor)
            raise


def _lock(path: Path, descriptor: int) -> None:
    fcntl = module("fcntl")
    try:
        if fcntl is None:
            _lock_byte(descriptor)
        elif hasattr(fcntl, "F_OFD_SETLK"):
            whole = struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        log.warning(
            "%s: cannot be locked (%s); make sure that no other run writes to it", path, error.strerror
        )


def _lock_byte(descriptor: int) -> None:
    """Lock the byte at `BEYOND` by LockFileEx of Windows; `msvcrt.locking` reaches only the first 2 GB."""
    import ctypes
    import msvcrt
    from ctypes import wintypes

    class Overlapped(ctypes.Structure):
        _fields_ = [
            ("internal", ctypes.c_size_t),
            ("internal_high", ctypes.c_size_t),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        ]

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))  # type: ignore[attr-defined]
    place = Overlapped(offset=BEYOND & 0xFFFFFFFF, offset_high=BEYOND >> 32)
    exclusive_at_once = 3
    if not kernel.LockFileEx(handle, exclusive_at_once, 0, 1, 0, ctypes.byref(place)):
        code = ctypes.get_last_error()  # type: ignore[attr-defined]
        if code == LOCK_VIOLATION:
            raise BlockingIOError(errno.EACCES, "locked by another process")
        raise OSError(errno.ENOLCK, f"Windows error {code}")


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _write_some(descriptor: int, data: memoryview, offset: int) -> int:
    """Write bytes at an offset, and return their number.

    Without `os.pwrite` the place of the descriptor moves; nobody else uses the descriptor of an `OwnFile`.
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)
