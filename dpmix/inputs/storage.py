"""Hold the events of a run: in memory, or in a file if they are too large for the memory limit.

The file has no name, so it disappears however its process ends. Only the file that the workers of a cluster
read has a name. Disk space for the whole file is allocated before a byte is written: if a disk fills up under
a mapped file, the kernel kills the process without a message.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

import numpy as np

from dpmix.config.engine import EngineConfig
from dpmix.errors import ConfigError, DataError
from dpmix.model.mixture import Floats
from dpmix.system import memory
from dpmix.system.files import writing
from dpmix.system.own_file import OwnFile, allocate
from dpmix.system.pages import release

log = logging.getLogger("dpmix")

Overhead = Callable[[int, int], int]
Spool = tempfile.SpooledTemporaryFile[bytes]

SHARE = 0.8  # of the available memory: the default limit
TABLES = 1 / 8  # of the limit: for the numbers of text files while they are read
RELEASE_STEP = 64 << 20  # bytes of a mapped file between two releases
HEADER = 128  # bytes of an NPY file before its numbers
REMEDY = "give another folder in engine.scratch, or use fewer events (data.max_events)"


class Storage:
    """Hold the events of a run. A context manager, which removes a file with a name.

    Parameters
    ----------
    folder : Path, optional
        For files.
    limit : int, optional
        Bytes of memory for the events and the overhead. None: no limit, and no files.
    overhead : callable
        overhead(N, D) is the number of bytes that a run holds in addition to N events of D channels.
    path : Path, optional
        NPY file for events of any size, which other processes read.
    overwrite : bool
        Replace this file if it exists, for example after a process was killed.

    Raises
    ------
    ConfigError
        The file exists already.
    DataError
        The file cannot be created.
    """

    def __init__(
        self,
        folder: Path = Path(),
        limit: int | None = None,
        overhead: Overhead = lambda n, dim: 0,
        path: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        self._folder, self._limit, self._overhead, self._path = folder, limit, overhead, path
        self._own: OwnFile | None = None
        self._spool: Spool | None = None
        if path is not None:
            if path.exists() and not overwrite:
                raise ConfigError([f"{path}: exists already; --overwrite replaces it"])
            with writing(path):
                self._own = OwnFile(path, create=True)
                if self._own.size:
                    # Do not truncate this file: workers that still read it would be killed.
                    self._own.delete()
                    self._own = OwnFile(path, create=True)

    @classmethod
    def of(
        cls, engine: EngineConfig, backend: str, output: Path, overhead: Overhead, overwrite: bool = False
    ) -> Self:
        """Make the storage of a run or a gating by its config; the default folder is the output's.

        Raises
        ------
        ConfigError
            The folder does not exist, or the file for a cluster exists already.
        """
        folder = output.parent if engine.scratch is None else Path(engine.scratch)
        if engine.scratch is not None and not folder.is_dir():
            raise ConfigError([f"engine.scratch: no such folder: {folder}; create it, or set another"])
        limit = engine.memory_limit_bytes
        path = folder / f"{output.name}.events" if backend == "cluster" else None
        limit = int(SHARE * memory.available()) if limit is None else limit
        return cls(folder, limit, overhead, path, overwrite)

    @classmethod
    def temporary(cls) -> Self:
        """Make the storage to read files briefly: available memory, then the system's temporary folder."""
        return cls(Path(tempfile.gettempdir()), int(SHARE * memory.available()))

    def scratch(self, values: Floats) -> Path | None:
        """Return the folder for further large arrays: None, for memory, if the events are in memory."""
        return self._folder if is_in_file(values) else None

    def hold(self, n_events: int, n_channels: int, what: str) -> Floats:
        """Allocate an array for events, float32 [N, D]; an error message starts with `what` it is for.

        Raises
        ------
        DataError
            There is not enough memory or disk space.
        """
        size = 4 * n_events * n_channels
        what = f"{what}: to hold {n_events} events in {n_channels} channels"
        fewer = "use fewer channels (data.channels) or fewer events (data.max_events)"
        if self._path is None and self._fits(size, n_events, n_channels):
            memory.require(size, what, fewer)
            return np.empty((n_events, n_channels), np.float32)
        memory.require(0, what, fewer, mapped=size)
        try:
            with self._file() as file:
                allocate(file.fileno(), HEADER + size)
                held = np.memmap(file, np.float32, "r+", HEADER, (n_events, n_channels))
        except OSError as error:
            needs = f"{what} needs a file of {memory.shown(size)} in {self._folder}"
            raise DataError(f"{needs} ({error.strerror}); {REMEDY}") from None
        limit = "" if self._limit is None else f" (memory limit {memory.shown(self._limit)})"
        log.info("events: %s in a file in %s%s", memory.shown(size), self._folder, limit)
        return held

    def hold_more(self, n_events: int, n_channels: int, what: str) -> Floats:
        """Allocate a second array as `hold` does, which this process alone reads; it needs no name."""
        return Storage(self._folder, self._limit, self._overhead).hold(n_events, n_channels, what)

    def seal(self, values: Floats) -> Floats:
        """Finish the events: make them read-only, and readable by other processes if the file has a name."""
        if self._path is not None and isinstance(values, np.memmap):
            with writing(self._path):
                values.flush()
                with self._path.open("r+b") as file:
                    header = {"descr": "<f4", "fortran_order": False, "shape": values.shape}
                    # The header last: workers that find a header find all events.
                    np.lib.format.write_array_header_1_0(file, header)
        values.flags.writeable = False
        self._spool = None
        return values

    def table(self, n_columns: int) -> Table:
        """Make a table for rows whose number is not known yet.

        All tables of a run together use an eighth of the memory limit, and a file beyond it.
        """
        if self._spool is None:
            most = 0 if self._limit is None else max(int(TABLES * self._limit), 1)
            self._spool = tempfile.SpooledTemporaryFile(most, dir=str(self._folder))  # noqa: SIM115
        return Table(self._spool, n_columns, self._folder)

    def close(self) -> None:
        """Remove a file with a name."""
        if self._own is not None:
            try:
                self._own.delete()
            except OSError as error:
                log.warning("%s: cannot be deleted (%s); delete it yourself", self._path, error.strerror)
            self._own = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self) -> IO[bytes]:
        """Open the file for the events. numpy records its name, if any, in the memory map."""
        if self._path is None:
            return tempfile.TemporaryFile(dir=self._folder)
        file = self._path.open("r+b")
        file.truncate(0)
        return file

    def _fits(self, size: int, n_events: int, n_channels: int) -> bool:
        """Return True if events of a size in bytes and the overhead are within the limit."""
        if self._limit is None:
            return True
        overhead = max(self._overhead(n_events, n_channels), int(TABLES * self._limit))
        return size + overhead <= self._limit


class Table:
    """Rows of numbers that are appended. `Storage.table` makes one after the previous is complete."""

    def __init__(self, spool: Spool, n_columns: int, folder: Path) -> None:
        self._spool, self._n_columns, self._folder = spool, n_columns, folder
        spool.seek(0, os.SEEK_END)
        self._start = spool.tell()
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def append(self, rows: Floats) -> None:
        """Append rows, float32 [M, columns].

        Raises
        ------
        DataError
            The disk is full.
        """
        try:
            self._spool.write(rows.tobytes())
            self._spool.flush()
        except OSError as error:
            raise DataError(f"{self._folder}: cannot be written: {error.strerror}; {REMEDY}") from None
        self._n_rows += len(rows)

    def read(self, start: int, stop: int) -> Floats:
        """Return rows [start, stop), float32 [stop - start, columns]."""
        row = 4 * self._n_columns
        self._spool.seek(self._start + start * row)
        found = np.frombuffer(self._spool.read((stop - start) * row), np.float32)
        return found.reshape(-1, self._n_columns)


def is_in_file(values: Floats) -> bool:
    """Return True if events are held in a file."""
    return isinstance(values, np.memmap)


def release_pages(values: Floats, start: int, stop: int) -> None:
    """Release the pages of a mapped file after a pass over events [start, stop), once every 64 MB.

    Otherwise the pages would count as memory of this process until another process needs memory. Events in
    memory are not affected.
    """
    step = max(RELEASE_STEP // (values.itemsize * values.shape[1]), 1)
    if isinstance(values, np.memmap) and (start // step < stop // step or stop == len(values)):
        release(values)
