"""Write a run file: lay it out, write each sweep and draw to its place, save checkpoints."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError, OutputError
from dpmix.model.mixture import HYPERPARAMETERS, State
from dpmix.runs import checkpoint
from dpmix.runs.checkpoint import Checkpoint, checkpoint_path
from dpmix.runs.layout import MAX_CHARACTERS, AnyArray, FileLayout, Record, lay_out, unwritten
from dpmix.runs.profile import SPANS
from dpmix.runs.run_file import committed_draws, copy_drawn, counts_of, layout_found, read_contents
from dpmix.system.files import partial_path, writing
from dpmix.system.memory import shown
from dpmix.system.own_file import OwnFile, sync_folder
from dpmix.system.run_marker import is_run_file

log = logging.getLogger("dpmix")

LONGEST_NAME = 255 - len(".checkpoint.partial")  # bytes; most file systems allow 255


class RunWriter:
    """Writes a run file that `create` has laid out or `reopen` has opened; a context manager.

    Methods that write raise `OutputError` where the disk refuses. While a writer is open, no other process
    can open a writer of the same file.
    """

    def __init__(self, path: Path, file: OwnFile) -> None:
        """Take over the run file."""
        self.path = path
        self._file = file
        self._contents = read_contents(path)
        self._committed = committed_draws(path, self._contents)
        self._counts = counts_of(self._contents)
        self._learned = [name for name in HYPERPARAMETERS if f"posterior/{name}" in self._contents.slots]

    @staticmethod
    def refuse_place(path: str | Path, overwrite: bool) -> None:
        """Raise `ConfigError` where the run file cannot be written, or another file is in its place.

        Only a run file is ever overwritten: a mistyped --output must not destroy other data.
        """
        path = Path(path)
        if len(os.fsencode(path.name)) > LONGEST_NAME:
            raise ConfigError([f"{path}: the name is too long; give one of at most {LONGEST_NAME} bytes"])
        if path.is_dir():
            raise ConfigError([f"{path}: is a folder; give the name of a file to write, such as run.h5"])
        if not path.parent.is_dir():
            raise ConfigError([f"{path}: no such folder: {path.parent}; make it, or give another --output"])
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError([f"{path}: {path.parent} cannot be written to; give another --output"])
        if path.exists() and not is_run_file(path):
            raise ConfigError([f"{path}: exists already and is not a run file; give another --output"])
        if path.exists() and not overwrite:
            raise ConfigError(
                [
                    f"{path}: exists already; --resume continues it, --overwrite replaces it, --output names "
                    "another"
                ]
            )
        if path.exists():
            with writing(path):
                OwnFile(path).close()

    @classmethod
    def create(cls, path: str | Path, layout: FileLayout, overwrite: bool = False) -> Self:
        """Lay out a new run file and open it.

        Raises
        ------
        ConfigError
            The file exists and is not to be overwritten, another run writes to it, its folder is missing, or
            the disk has no room.
        DataError
            The file cannot be written.
        """
        path = Path(path)
        cls.refuse_place(path, overwrite)
        with _laid_out_beside(path, layout) as file:
            cls.refuse_place(path, overwrite)  # another run may have made the file meanwhile
            with OwnFile(path) if path.exists() else nullcontext() as old:
                file.sync()
                checkpoint_path(path).unlink(missing_ok=True)
                sync_folder(path.parent)  # a new run with an old checkpoint could not be resumed
                file.move(path, over=old)
            sync_folder(path.parent)
            return cls(path, file)

    @classmethod
    def reopen(cls, path: str | Path) -> Self:
        """Open the file of a stopped or killed run, to resume it.

        Raises
        ------
        ConfigError
            Another run is writing to it.
        DataError
            The file is missing, not a run file, truncated, of a newer format, or cannot be written.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"{path}: no such run file")
        with writing(path):
            file = OwnFile(path)
        try:
            return cls(path, file)
        except BaseException:
            file.close()
            raise

    def grown(self, draws: int, sweeps: int, config: str) -> Self:
        """Return a writer of the same run with room for more draws, in a new file that replaces this one.

        Parameters
        ----------
        draws, sweeps : int
            As in `FileLayout`.
        config : str
            The config that asks for the draws, YAML.

        Raises
        ------
        ConfigError
            The disk has no room.
        DataError
            The new file cannot be written; this file is left as it is.
        """
        found = layout_found(self._contents)
        attributes = {**found.attributes, "config": config}
        judged = found.kind == "mcmc"
        layout = replace(found, draws=draws, sweeps=sweeps, attributes=attributes, judged=judged)
        with _laid_out_beside(self.path, layout) as file:
            copy_drawn(self._contents, self.path, file.path)
            file.sync()
            file.move(self.path, over=self._file)
            sync_folder(self.path.parent)
            return type(self)(self.path, file)

    @property
    def committed(self) -> int:
        """Number of draws that are complete in every chain."""
        return self._committed

    def read(self, name: str) -> AnyArray:
        """Return a dataset, read-only, with all that has been written to it so far.

        A `Run` that was opened earlier has this too, but not on Windows, where it reads and does not map.
        """
        return self._contents.slots[name].map(self.path)

    def write_profile(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds of each span in `dpmix.runs.profile.SPANS`."""
        self._write("profile/seconds", (), [seconds[name] for name in SPANS])

    def write_sweep(self, chain: int, sweep: int, record: Record) -> None:
        """Write one row of the trace; seconds last, to mark the row as complete."""
        place = (chain, sweep)
        for name in ("log_likelihood", "log_posterior", "occupied", "alpha"):
            self._write(f"trace/{name}", place, getattr(record, name))
        self._write_counts("trace", place, record)
        self._write("trace/seconds", place, record.seconds)

    def write_convergence(self, name: str, value: npt.ArrayLike, row: tuple[int, ...] = ()) -> None:
        """Write a dataset of the group ``convergence``, or the row of it with these leading indices."""
        self._write(f"convergence/{name}", row, value)

    def write_populations(self, values: Mapping[str, npt.ArrayLike | str]) -> None:
        """Write the group ``populations``, of all committed draws; their number last, to mark it as complete.

        Parameters
        ----------
        values : mapping of str to array or str
            All its datasets but ``committed``. An array may be smaller than its place; of a text at most
            `MAX_CHARACTERS` bytes are kept.
        """
        # No reader may take old populations for the populations of more draws while new ones are being
        # written.
        self._write("populations/committed", (), -1)
        for name, value in values.items():
            slot = self._contents.slots[f"populations/{name}"]
            if isinstance(value, str):
                place = np.frombuffer(value.encode()[:MAX_CHARACTERS].ljust(MAX_CHARACTERS, b"\0"), "S1")
            else:
                array = np.asarray(value)
                place = np.full(slot.shape, unwritten(slot.dtype), slot.dtype)
                place[tuple(slice(size) for size in array.shape)] = array
            self._write(f"populations/{name}", (), place)
        self.sync()
        self._write("populations/committed", (), self._committed)

    def write_draw(self, draw: int, states: Sequence[State], records: Sequence[Record]) -> None:
        """Write one draw, numbered from 0, of each chain (Bayesian EM: of the best start), then commit it.

        A resumed run may write committed draws again, with the same values.
        """
        chains = self._contents.slots["posterior/alpha"].shape[0]
        if not len(states) == len(records) == chains:
            raise ValueError(f"{len(states)} states and {len(records)} records for {chains} chains")
        if draw > self._committed:
            raise ValueError(f"draw {draw} would leave a gap after {self._committed} committed draws")
        for chain, (state, record) in enumerate(zip(states, records, strict=True)):
            for name in ("weights", "means", "covariances", "alpha"):
                self._write(f"posterior/{name}", (chain, draw), getattr(state, name))
            for name in self._learned:
                self._write(f"posterior/{name}", (chain, draw), getattr(state.hyperparameters, name))
            self._write_cohort((chain, draw), state)
            for name in ("log_likelihood", "log_posterior", "occupied", "seconds"):
                self._write(f"sample_stats/{name}", (chain, draw), getattr(record, name))
            self._write_counts("sample_stats", (chain, draw), record)
        self._committed = max(self._committed, draw + 1)
        # After the draw itself: a reader, or a process killed in between, never counts half a draw.
        self._write("committed", (), self._committed)

    def save_checkpoint(
        self, states: Sequence[State], iteration: int, extra: Mapping[str, npt.ArrayLike]
    ) -> None:
        """Replace the checkpoint, after everything written so far has reached the disk.

        Raises
        ------
        DataError
            The run file at the path is another one, which the checkpoint would not fit.
        OutputError
            The run file or the checkpoint cannot be written; the old checkpoint stays.
        """
        if not self._file.is_in_place:
            raise DataError(f"{self.path}: moved, deleted or replaced while a run was writing to it")
        self.sync()
        with writing(checkpoint_path(self.path), OutputError):
            checkpoint.save(checkpoint_path(self.path), self._run_id, states, iteration, extra)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the latest checkpoint; None where the run ended before its first.

        Raises
        ------
        DataError
            The checkpoint cannot be read, or belongs to another run.
        """
        path, slots = checkpoint_path(self.path), self._contents.slots
        found = checkpoint.load(path, self._run_id)
        if found is None:
            return None
        k, dim = slots["posterior/means"].shape[2:]
        shapes = {"means": (k, dim), "covariances": (k, dim, dim), "whiteners": (k, dim, dim)}
        shapes |= {"log_sticks": (k - 1,), "log1m_sticks": (k - 1,)}
        fit = all(getattr(state, name).shape == shapes[name] for state in found.states for name in shapes)
        if not fit or not 0 <= found.iteration < max(slots["trace/alpha"].shape):
            raise DataError(f"{path}: does not fit the run; restart with --overwrite")
        return found

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint of a complete run."""
        self.sync()
        with writing(self.path, OutputError):
            checkpoint_path(self.path).unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until everything written is on the disk, then record so in the file."""
        with writing(self.path, OutputError):
            self._file.sync()
        self._write("synced", (), self._committed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _run_id(self) -> str:
        return str(self._contents.attributes["run_id"])

    def _write_cohort(self, place: tuple[int, int], state: State) -> None:
        """Write what the hierarchical model adds to a draw."""
        own = state.cohort
        if own is None:
            return
        self._write("posterior/kappa", place, own.kappa)
        self._write("posterior/base_weights", place, np.exp(state.log_base_weights))
        self._write("posterior/sample_proportions", place, np.exp(own.log_weights))
        if len(own.shifts):
            self._write("posterior/shifts", place, own.sample_shifts)
            self._write("posterior/tau", place, own.taus)

    def _write_counts(self, group: str, place: tuple[int, int], record: Record) -> None:
        """Write the counts of a record, if the file was laid out with them."""
        if self._counts:
            for name, count in zip(self._counts, record.counts, strict=True):
                self._write(f"{group}/{name}", place, count)

    def _write(self, name: str, row: tuple[int, ...], value: npt.ArrayLike) -> None:
        """Write one row of a dataset, named by its leading indices, to its place in the file."""
        slot = self._contents.slots[name]
        data = np.asarray(value, slot.dtype)
        with writing(self.path, OutputError):
            self._file.write_at(np.ascontiguousarray(data).data.cast("B"), slot.row(row, data.shape))


@contextmanager
def _laid_out_beside(path: Path, layout: FileLayout) -> Iterator[OwnFile]:
    """Lay out a new run file under a temporary name; yield it; delete it on an error.

    Its space is allocated first, because HDF5 does not do this: a refused write within HDF5 can end the
    process.
    """
    _require_room(path, layout.n_bytes + layout.checkpoint_bytes)
    temporary = partial_path(path)
    with writing(path):
        file = OwnFile(temporary, create=True)
        try:
            file.reserve(layout.n_bytes)
            lay_out(temporary, layout)
            yield file
        except BaseException:
            with suppress(OSError):
                if file.path == temporary:
                    file.delete()
            file.close()
            raise


def _require_room(path: Path, n_bytes: int) -> None:
    """Raise `ConfigError` where the disk has too little free space for the file."""
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise ConfigError(
            [
                f"{path}: needs {shown(n_bytes)}, {shown(free)} are free on its disk; lower "
                "mcmc.draws (raise mcmc.thin) or model.components, or choose another disk with --output"
            ]
        )
    log.info("%s: reserving %s on disk", path, shown(n_bytes))
