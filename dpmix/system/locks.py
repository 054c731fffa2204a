"""Lock a file for one writer. The lock ends with its process and does not affect readers.

filelock uses flock(2), which HDF5 requests for reading, too; a POSIX lock is lost when the process closes
another descriptor of the file. Hence open file description locks (fcntl(2)), which belong to one descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from pathlib import Path

from dpmix.errors import ConfigError

log = logging.getLogger("dpmix")

_WHOLE_FILE = struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def open_alone(path: Path, *, create: bool = False) -> int:
    """Open a file as its only writer.

    Parameters
    ----------
    path : Path
    create : bool
        Create the file if it does not exist.

    Returns
    -------
    int
        A file descriptor, which holds the lock until it is closed, also if the file is renamed.

    Raises
    ------
    ConfigError
        Another run holds the lock.
    OSError
        The file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        file = os.open(path, flags, 0o666)
        try:
            _lock(path, file)
            if _is_at(path, file):  # not renamed or deleted before it was locked
                return file
            os.close(file)
        except BlockingIOError:
            os.close(file)
            output = str(path).removesuffix(".partial")
            raise ConfigError(
                [f"{output}: another run is writing to it; wait until it ends, or give another --output"]
            ) from None
        except BaseException:
            os.close(file)
            raise


def _lock(path: Path, file: int) -> None:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        log.warning(
            "%s: cannot be locked (%s); make sure that no other run writes to it", path, error.strerror
        )


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
