"""One writer for a file: a lock that ends with its process, however that ends, and that no reader meets."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from pathlib import Path

from dpmix.errors import ConfigError

log = logging.getLogger("dpmix")

# Of the whole file and of this descriptor (fcntl(2), open file description locks): not of the process, which
# would lose it by closing the file after reading, and not flock(2), which HDF5 asks for where it reads.
_WHOLE_FILE = struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def open_alone(path: Path, *, create: bool = False) -> int:
    """Open a file to write to it, alone: a descriptor that holds its lock until it is closed.

    The lock goes with the file when that is renamed.

    Raises
    ------
    ConfigError
        Another run holds the file.
    OSError
        It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        file = os.open(path, flags, 0o666)
        try:
            _lock(path, file)
            if _is_at(path, file):  # not renamed or deleted between the two calls
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
        log.warning("%s: cannot be locked (%s): let no other run write to it", path, error.strerror)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
