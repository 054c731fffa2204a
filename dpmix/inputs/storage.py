"""Where the events of a run are held: in memory, or in a file where that would be too much.

Such a file has no name, so that nothing is left of it however its process ends; only that which the workers
of a cluster read has one. Room for all of it is taken before a byte is written: where a disk fills up under a
file that is mapped, the process ends without a word.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import numpy as np

from dpmix.config.engine import EngineConfig
from dpmix.errors import ConfigError, DataError
from dpmix.model.mixture import Floats
from dpmix.system import memory
from dpmix.system.files import writing
from dpmix.system.locks import open_alone

log = logging.getLogger("dpmix")

Beside = Callable[[int, int], int]
Spool = tempfile.SpooledTemporaryFile[bytes]

SHARE = 0.8  # of the free memory: the limit where none is given
TABLES = 1 / 8  # of the limit: numbers of text files, while they are read
PASSED = 64 << 20  # bytes of a file that stay mapped behind a pass over it
HEADER = 128  # bytes of an NPY file before its numbers
ANOTHER = "give another folder in engine.scratch, or take fewer events (data.max_events)"


class Storage:
    """Holds the events of a run (a context manager, which removes the file that has a name).

    Parameters
    ----------
    folder : Path, optional
        For files.
    limit : int, optional
        Bytes of memory that the events, and what is held beside them, may take; None for no limit: nothing is
        put into files.
    beside : callable
        beside(N, D) bytes are held beside N events of D channels.
    path : Path, optional
        An NPY file that the events are put into, whatever their size, for other processes.
    overwrite : bool
        It may be there already, left by a process that was killed.

    Raises
    ------
    ConfigError
        Something is in the place of the file.
    DataError
        The file cannot be made.
    """

    def __init__(
        self,
        folder: Path = Path(),
        limit: int | None = None,
        beside: Beside = lambda n, dim: 0,
        path: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        self._folder, self._limit, self._beside, self._path = folder, limit, beside, path
        self._lock: int | None = None
        self._spool: Spool | None = None
        if path is not None:
            if path.exists() and not overwrite:
                raise ConfigError([f"{path}: exists already; --overwrite replaces it"])
            with writing(path):
                self._lock = open_alone(path, create=True)
                if os.fstat(self._lock).st_size:
                    # Not that file itself: workers may be at it still, and would end where it is cut short.
                    path.unlink()
                    os.close(self._lock)
                    self._lock = open_alone(path, create=True)

    @classmethod
    def of(
        cls, engine: EngineConfig, backend: str, output: Path, beside: Beside, overwrite: bool = False
    ) -> Self:
        """As the config says, for a run (or a gating) with an output; in its folder, where no other is given.

        Raises
        ------
        ConfigError
            There is no such folder, or something is in the place of the file for a cluster.
        """
        folder = output.parent if engine.scratch is None else Path(engine.scratch)
        if engine.scratch is not None and not folder.is_dir():
            raise ConfigError([f"engine.scratch: no such folder: {folder}; make it, or give another"])
        limit = engine.memory_limit_bytes
        path = folder / f"{output.name}.events" if backend == "cluster" else None
        return cls(
            folder, int(SHARE * memory.available()) if limit is None else limit, beside, path, overwrite
        )

    @classmethod
    def temporary(cls) -> Self:
        """For a look at files: within the memory that is free, then in the system's folder for such."""
        return cls(Path(tempfile.gettempdir()), int(SHARE * memory.available()))

    def scratch(self, values: Floats) -> Path | None:
        """The folder for what is kept beside events, None where that is to be in memory, as they are."""
        return self._folder if is_in_file(values) else None

    def hold(self, n_events: int, n_channels: int, what: str) -> Floats:
        """Room for events, float32 [N, D]; what it is for begins the message that it cannot be had.

        Raises
        ------
        DataError
            There is no such room.
        """
        size = 4 * n_events * n_channels
        what = f"{what}: to hold {n_events} events in {n_channels} channels"
        fewer = "take fewer channels (data.channels) or fewer events (data.max_events)"
        if self._path is None and self._fits(size, n_events, n_channels):
            memory.require(size, what, fewer)
            return np.empty((n_events, n_channels), np.float32)
        memory.require(0, what, fewer, mapped=size)
        try:
            with self._file() as file:
                os.posix_fallocate(file.fileno(), 0, HEADER + size)
                held = np.memmap(file, np.float32, "r+", HEADER, (n_events, n_channels))
        except OSError as error:
            needs = f"{what} needs a file of {memory.shown(size)} in {self._folder}"
            raise DataError(f"{needs} ({error.strerror}); {ANOTHER}") from None
        limit = "" if self._limit is None else f" (memory limit {memory.shown(self._limit)})"
        log.info("events: %s in a file in %s%s", memory.shown(size), self._folder, limit)
        return held

    def seal(self, values: Floats) -> Floats:
        """The events that were put into the room held, as they stay: read-only, for other processes too."""
        if self._path is not None and isinstance(values, np.memmap):
            with writing(self._path):
                values.flush()
                with self._path.open("r+b") as file:
                    header = {"descr": "<f4", "fortran_order": False, "shape": values.shape}
                    np.lib.format.write_array_header_1_0(file, header)
        values.flags.writeable = False
        self._spool = None
        return values

    def table(self, n_columns: int) -> Table:
        """Room for as many rows as come, where nobody knows before how many that will be.

        All tables of a run together take an eighth of the memory limit, then go on in a file.
        """
        if self._spool is None:
            most = 0 if self._limit is None else max(int(TABLES * self._limit), 1)
            self._spool = tempfile.SpooledTemporaryFile(most, dir=str(self._folder))  # noqa: SIM115
        return Table(self._spool, n_columns, self._folder)

    def close(self) -> None:
        """Remove the file that has a name."""
        if self._path is not None and self._lock is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self) -> IO[bytes]:
        """Where events are put; the name of the one that has one goes with the map of it."""
        if self._path is None:
            return tempfile.TemporaryFile(dir=self._folder)
        file = self._path.open("r+b")
        file.truncate(0)
        return file

    def _fits(self, size: int, n_events: int, n_channels: int) -> bool:
        if self._limit is None:
            return True
        beside = max(self._beside(n_events, n_channels), int(TABLES * self._limit))
        return size + beside <= self._limit


class Table:
    """Rows of numbers as they come; `Storage.table` makes one, and one after another is filled."""

    def __init__(self, spool: Spool, n_columns: int, folder: Path) -> None:
        self._spool, self._n_columns, self._folder = spool, n_columns, folder
        spool.seek(0, os.SEEK_END)
        self._start = spool.tell()
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def append(self, rows: Floats) -> None:
        """Put rows below those that are there, float32 [M, columns].

        Raises
        ------
        DataError
            The disk is full.
        """
        try:
            self._spool.write(rows.tobytes())
            self._spool.flush()
        except OSError as error:
            raise DataError(f"{self._folder}: cannot be written: {error.strerror}; {ANOTHER}") from None
        self._n_rows += len(rows)

    def read(self, start: int, stop: int) -> Floats:
        """Some of the rows, float32 [stop - start, columns]."""
        row = 4 * self._n_columns
        self._spool.seek(self._start + start * row)
        found = np.frombuffer(self._spool.read((stop - start) * row), np.float32)
        return found.reshape(-1, self._n_columns)


def is_in_file(values: Floats) -> bool:
    """Whether events are held in a file."""
    return isinstance(values, np.memmap)


def release_pages(values: Floats, start: int, stop: int) -> None:
    """Tell the system that a pass over events is through with some, now and then, where they are in a file.

    It would keep all pages of the file for this process until others want them, and count them as its memory.
    """
    step = max(PASSED // (values.itemsize * values.shape[1]), 1)
    if isinstance(values, np.memmap) and (start // step < stop // step or stop == len(values)):
        values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
