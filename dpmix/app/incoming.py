"""Files that are dropped on the page: they arrive complete or not at all, and replace no file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from tempfile import mkstemp

from dpmix.app.files import WORKSPACE
from dpmix.errors import ConfigError
from dpmix.inputs.opening import FOLDER_SUFFIXES
from dpmix.system.files import writing
from dpmix.system.own_file import OwnFile, sync
from dpmix.system.paths import file_name

SUFFIXES = (*FOLDER_SUFFIXES, WORKSPACE)
MOST_BYTES = 4_000_000_000  # of a file
MOST_OF_NAME = 200  # bytes
PREFIX, SUFFIX = ".dpmix-", ".partial"  # of a file that arrives


class Incoming:
    """A file that arrives in pieces. It has a hidden temporary name until `commit`.

    Parameters
    ----------
    folder : Path
    name : str
        Its name in the folder.

    Raises
    ------
    ConfigError
        dpmix reads no file with such a name, or the name exists already.
    DataError
        The folder cannot be written to.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / checked_name(name)
        if os.path.lexists(self._path):
            raise self._exists()
        self._n_bytes = 0
        with writing(self._path):
            descriptor, temporary = mkstemp(SUFFIX, PREFIX, folder)
        self._file, self._temporary = os.fdopen(descriptor, "wb"), Path(temporary)
        self._own = OwnFile(self._temporary)  # tells `remove_left` that the file still arrives

    def write(self, data: bytes) -> None:
        """Add a piece.

        Raises
        ------
        ConfigError
            The file is larger than `MOST_BYTES`.
        DataError
            The disk refuses.
        """
        self._n_bytes += len(data)
        if self._n_bytes > MOST_BYTES:
            most = f"more than {MOST_BYTES / 1e9:g} GB; copy it into the folder yourself"
            raise ConfigError([f"{self._path.name}: {most}"])
        with writing(self._path):
            self._file.write(data)

    def commit(self) -> str:
        """Give the complete file its name, and return it.

        Raises
        ------
        ConfigError
            The name exists by now.
        DataError
            The disk refuses.
        """
        with writing(self._path):
            self._file.flush()
            sync(self._file.fileno())
            self._file.close()
            self._own.close()
            try:
                self._path.touch(exist_ok=False)  # takes the name, or fails
            except OSError:
                if not os.path.lexists(self._path):
                    raise
                raise self._exists() from None  # Windows refuses the name of a folder with another error
            try:
                self._temporary.chmod(S_IMODE(self._path.stat().st_mode))  # a temporary file is private
                os.replace(self._temporary, self._path)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise
        return self._path.name

    def discard(self) -> None:
        """Delete what has arrived; nothing after `commit`."""
        with suppress(OSError):
            self._file.close()
            self._own.close()
            self._temporary.unlink(missing_ok=True)

    def _exists(self) -> ConfigError:
        return ConfigError([f"{self._path.name}: exists already in the folder; nothing is replaced"])


def remove_left(folder: Path) -> None:
    """Delete files that a server was receiving when it was killed; not those that still arrive."""
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(ConfigError, OSError):  # it still arrives, or this folder cannot be changed
            if path.is_file() and not path.is_symlink():
                OwnFile(path).delete()


def checked_name(name: str) -> str:
    """Return the name of a file that dpmix reads.

    Raises
    ------
    ConfigError
        It has a folder, a character that some system forbids, or another suffix.
    """
    if not name or name != file_name(name) or name[0] in ".-" or len(name.encode()) > MOST_OF_NAME:
        problem = 'need the name of a file, without folders and the characters < > : " / \\ | ? *'
        raise ConfigError([f"{name[:MOST_OF_NAME]!r}: {problem}, that does not begin with . or -"])
    if Path(name).suffix.lower() not in SUFFIXES:
        raise ConfigError([f"{name}: dpmix does not read such files; need {', '.join(SUFFIXES)}"])
    return name
