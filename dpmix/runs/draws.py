"""Draws: how they are written while a run goes on, and how they are read back.

`RunWriter` puts every draw in its place in the run file (format: `dpmix.runs.run_file`) and writes the
count of committed draws last; `open_run` gives the committed draws as arrays and as an ArviZ object.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import parse_config
from dpmix.errors import ConfigError, DataError, OutputError
from dpmix.model.mixture import HYPERPARAMETERS, Array, State
from dpmix.runs import checkpoint
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.profile import SPANS
from dpmix.runs.run_file import (
    COUNTERS,
    DRAWN_GROUPS,
    AnyArray,
    Contents,
    Layout,
    Record,
    Slot,
    coordinate,
    copy_drawn,
    is_drawn,
    lay_out,
    layout_found,
    read_contents,
)
from dpmix.system.files import partial_path, sync_folder, writing
from dpmix.system.locks import open_alone
from dpmix.system.memory import shown
from dpmix.system.run_marker import is_run_file

if TYPE_CHECKING:
    import arviz

__all__ = ["Checkpoint", "Layout", "Record", "Run", "RunWriter", "open_run"]

log = logging.getLogger("dpmix")


class RunWriter:
    """Writes a run file that `create` has laid out or that `reopen` has found; a context manager.

    Every method that writes raises `OutputError` where the disk refuses. While it is open no other process
    can open another one for the same file.
    """

    def __init__(self, path: Path, file: int) -> None:
        """Take over a descriptor of the run file at a path, as `dpmix.system.locks.open_alone` gives it."""
        self.path = path
        self._file = file
        self._contents = read_contents(path)
        self._committed = _read_committed(path, self._contents)
        self._learned = [name for name in HYPERPARAMETERS if f"posterior/{name}" in self._contents.slots]

    @staticmethod
    def refuse_place(path: str | Path, overwrite: bool) -> None:
        """Raise `ConfigError` where nothing can be written, or something is in the way.

        Only a run file is ever overwritten: a mistyped --output must not cost anybody their data.
        """
        path = Path(path)
        if path.is_dir():
            raise ConfigError([f"{path}: is a folder, need the name of a file to write, as run.h5"])
        if not path.parent.is_dir():
            raise ConfigError([f"{path}: no such folder: {path.parent}; make it, or give another --output"])
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError([f"{path}: {path.parent} cannot be written to; give another --output"])
        if path.exists() and not is_run_file(path):
            raise ConfigError([f"{path}: exists already and is no run file; give another --output"])
        if path.exists() and not overwrite:
            raise ConfigError([f"{path}: exists already; --resume goes on with it, --overwrite replaces it"])
        if path.exists():
            with writing(path):
                os.close(open_alone(path))

    @classmethod
    def create(cls, path: str | Path, layout: Layout, overwrite: bool = False) -> Self:
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
        with ExitStack() as stack, _laid_out_beside(path, layout) as (temporary, file):
            cls.refuse_place(path, overwrite)  # another run may have made it meanwhile
            if path.exists():
                stack.callback(os.close, open_alone(path))
            os.fsync(file)
            checkpoint_path(path).unlink(missing_ok=True)
            sync_folder(path.parent)  # a new run beside an old checkpoint could not go on
            os.replace(temporary, path)
            sync_folder(path.parent)
            return cls(path, file)

    @classmethod
    def reopen(cls, path: str | Path) -> Self:
        """Open the file of a run that was stopped or killed, to go on with it.

        Raises
        ------
        ConfigError
            Another run is writing to it.
        DataError
            The file is missing, is no run file, is cut short, is of a newer format, or cannot be written.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"{path}: no such run file")
        with writing(path):
            file = open_alone(path)
        try:
            return cls(path, file)
        except BaseException:
            os.close(file)
            raise

    def grown(self, draws: int, sweeps: int, config: str) -> Self:
        """The same run with room for more draws: another writer, of a file in place of this one.

        Parameters
        ----------
        draws, sweeps : int
            As in `Layout`.
        config : str
            The config that asks for them, YAML.

        Raises
        ------
        ConfigError
            The disk has no room.
        DataError
            The file cannot be written; this one stays as it is.
        """
        found = layout_found(self._contents)
        attributes = {**found.attributes, "config": config}
        layout = replace(found, draws=draws, sweeps=sweeps, attributes=attributes)
        with _laid_out_beside(self.path, layout) as (temporary, file):
            copy_drawn(self._contents, self.path, temporary)
            os.fsync(file)
            os.replace(temporary, self.path)
            sync_folder(self.path.parent)
            return type(self)(self.path, file)

    @property
    def committed(self) -> int:
        """Number of draws that are whole, in every chain."""
        return self._committed

    def write_profile(self, seconds: Mapping[str, float]) -> None:
        """Replace the seconds of every span in `dpmix.runs.profile.SPANS`."""
        self._write("profile/seconds", (), [seconds[name] for name in SPANS])

    def write_sweep(self, chain: int, sweep: int, record: Record) -> None:
        """Write one row of the trace; its seconds last, as the mark that the row is whole."""
        for name in ("log_likelihood", "log_posterior", "occupied", "alpha", "seconds"):
            self._write(f"trace/{name}", (chain, sweep), getattr(record, name))

    def write_draw(self, draw: int, states: Sequence[State], records: Sequence[Record]) -> None:
        """Write one draw, counted from 0, of every chain (of Bayesian EM: of the best start), then commit it.

        A resumed run may write draws again that are committed already, to the same values.
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
            for name in ("log_likelihood", "log_posterior", "occupied", "seconds"):
                self._write(f"sample_stats/{name}", (chain, draw), getattr(record, name))
        self._committed = max(self._committed, draw + 1)
        self._write("committed", (), self._committed)

    def save_checkpoint(
        self, states: Sequence[State], iteration: int, extra: Mapping[str, npt.ArrayLike]
    ) -> None:
        """Replace the checkpoint, after everything written so far has reached the disk.

        Raises
        ------
        DataError
            The run file is no longer the one at its path, so that a checkpoint beside it would mislead.
        OutputError
            The run file or the checkpoint cannot be written; the old checkpoint is left.
        """
        if not (self.path.exists() and os.path.samestat(os.stat(self.path), os.fstat(self._file))):
            raise DataError(f"{self.path}: moved, deleted or replaced while a run was writing to it")
        self.sync()
        with writing(checkpoint_path(self.path), OutputError):
            checkpoint.save(checkpoint_path(self.path), self._run_id, states, iteration, extra)

    def load_checkpoint(self) -> Checkpoint | None:
        """The latest checkpoint, or None where the run was ended before its first.

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
            raise DataError(f"{path}: does not fit the run; --overwrite begins the run anew")
        return found

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint of a run that has come to its end."""
        self.sync()
        with writing(self.path, OutputError):
            checkpoint_path(self.path).unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until everything written has reached the disk, then note so."""
        with writing(self.path, OutputError):
            os.fsync(self._file)
        self._write("synced", (), self._committed)

    def close(self) -> None:
        """Close the file; what is written stays."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _run_id(self) -> str:
        return str(self._contents.attributes["run_id"])

    def _write(self, name: str, row: tuple[int, ...], value: npt.ArrayLike) -> None:
        """Write the row of a dataset that its leading indices name to its place in the file."""
        slot = self._contents.slots[name]
        data = np.asarray(value, slot.dtype)
        offset, buffer = slot.row(row, data.shape), np.ascontiguousarray(data).data.cast("B")
        with writing(self.path, OutputError):
            while buffer:  # more than 2 GB take several calls
                written = os.pwrite(self._file, buffer, offset)
                buffer, offset = buffer[written:], offset + written


def open_run(path: str | Path, *, transformed: bool = False) -> Run:
    """Open a run file, of a run that is finished, stopped, killed or still going on.

    Parameters
    ----------
    path : str or Path
        What ``dpmix mcmc`` or ``dpmix bem`` wrote.
    transformed : bool
        Give means and covariances, and m and phi, on the transformed scale (logicle, arcsinh, ...) instead of
        the standardised one, which the chain lives on. Log likelihoods stay those of the standardised events.

    Returns
    -------
    Run

    Raises
    ------
    DataError
        The file is missing, is no run file, is cut short, or is of a newer format.
    """
    return Run(Path(path), transformed)


class Run:
    """A run file, as `open_run` gives it: the draws that were committed at that moment.

    Arrays are read-only views of the file, so that nothing is read before it is used; only rescaled ones are
    held in memory.

    Attributes
    ----------
    path : Path
    transformed : bool
        Whether means and covariances, m and phi are on the transformed scale.
    attributes : dict
        Attributes of the file, as they are stored.
    channels : tuple of str
        D names.
    committed : int
        Draws that are whole, in every chain.
    constants : dict of str to array
        What does not change in a run: samples, scaling of the channels, ...
    """

    def __init__(self, path: Path, transformed: bool) -> None:
        self.path = path
        self.transformed = transformed
        self._contents = read_contents(path)
        self.attributes = self._contents.attributes
        self.channels = self._contents.channels
        self.constants = {name: array for name, (_, array) in self._contents.constants.items()}
        self.committed = _read_committed(path, self._contents)
        self._arrays = {name: slot.map(path) for name, slot in self._datasets.items()}

    @property
    def kind(self) -> str:
        """``mcmc`` or ``bem``."""
        return str(self.attributes["kind"])

    @property
    def config_text(self) -> str:
        """The whole config, YAML."""
        return str(self.attributes["config"])

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole config, plain values; `ConfigError` where it is none."""
        return parse_config(self.config_text, str(self.path)).model_dump()

    @property
    def base(self) -> Path:
        """Folder that the files of the config are relative to."""
        base = self.attributes.get("base")
        if not isinstance(base, str):
            raise self._wrong("base")
        return Path(base)

    @property
    def detectors(self) -> list[str]:
        """Names of the channels in the first data file, D of them."""
        names = self._json("detectors")
        if not isinstance(names, list) or len(names) != len(self.channels) or not _are_texts(names):
            raise self._wrong("detectors")
        return names

    @property
    def engine(self) -> dict[str, Any]:
        """What held and labelled the events; at least the name of its backend."""
        engine = self._mapping("engine")
        if not isinstance(engine.get("backend"), str):
            raise self._wrong("engine")
        return engine

    @property
    def scaling(self) -> dict[str, Any]:
        """Transform and standardisation of the channels."""
        return self._mapping("scaling")

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the programs that wrote the file."""
        return self._mapping("versions")

    @property
    def n_components(self) -> int:
        """The truncation K."""
        return self._contents.slots["posterior/weights"].shape[2]

    @property
    def draws(self) -> int:
        """Draws that the finished run keeps, of each chain."""
        return self._contents.slots["posterior/alpha"].shape[1]

    @property
    def complete(self) -> bool:
        """Whether every draw is committed."""
        return self.committed == self.draws

    @property
    def weights(self) -> Array:
        """Component weights, float64 [chain, draw, K]."""
        return self._drawn("posterior/weights")

    @cached_property
    def means(self) -> Array:
        """Component means, float64 [chain, draw, K, D]."""
        means: Array = self._drawn("posterior/means")
        if not self.transformed:
            return means
        sds: Array = self.constants["channel_sds"]
        return means * sds + self.constants["channel_means"]

    @cached_property
    def covariances(self) -> Array:
        """Component covariances, float64 [chain, draw, K, D, D]."""
        covariances: Array = self._drawn("posterior/covariances")
        if not self.transformed:
            return covariances
        sds: Array = self.constants["channel_sds"]
        return covariances * (sds[:, None] * sds)

    @property
    def alpha(self) -> Array:
        """Concentration of the Dirichlet process, float64 [chain, draw]."""
        return self._drawn("posterior/alpha")

    @cached_property
    def hyperparameters(self) -> dict[str, Array]:
        """Those that were learned of m, float64 [chain, draw, D], gamma and nu, [chain, draw], and phi,
        [chain, draw, D, D].
        """
        drawn: dict[str, Array] = {
            name: self._drawn(f"posterior/{name}")
            for name in HYPERPARAMETERS
            if f"posterior/{name}" in self._arrays
        }
        if self.transformed:
            sds: Array = self.constants["channel_sds"]
            if "m" in drawn:
                drawn["m"] = drawn["m"] * sds + self.constants["channel_means"]
            if "phi" in drawn:
                drawn["phi"] = drawn["phi"] * (sds[:, None] * sds)
        return drawn

    @property
    def sample_stats(self) -> dict[str, AnyArray]:
        """log_likelihood, log_posterior, occupied and seconds of the draws, each [chain, draw]."""
        return {name: self._drawn(f"sample_stats/{name}") for name in self._names("sample_stats")}

    @property
    def trace(self) -> dict[str, AnyArray]:
        """log_likelihood, log_posterior, occupied, alpha and seconds of every state from the initial one on,
        burn-in too: each [chain, sweep], or [start, step] of Bayesian EM.

        Sweeps not made, or not made yet, read NaN, and -1 in ``occupied``.
        """
        return {name: self._arrays[f"trace/{name}"] for name in self._names("trace")}

    @property
    def sweeps_made(self) -> npt.NDArray[np.int64]:
        """Sweeps that each chain (steps that each start) has made, int64 [chain]; -1 before its initial state
        is recorded."""
        made: npt.NDArray[np.int64] = np.isfinite(self.trace["seconds"]).sum(axis=1) - 1
        return made

    @property
    def profile(self) -> dict[str, float]:
        """Wall seconds of the run by what they were spent on, a span each of `dpmix.runs.profile.SPANS`.

        They are written with every checkpoint and at the end; empty before.
        """
        seconds = self._arrays["profile/seconds"]
        return {} if np.isnan(seconds).any() else dict(zip(SPANS, seconds.tolist(), strict=True))

    def arviz(self) -> arviz.InferenceData:
        """The committed draws as an ArviZ object, with the groups of the file."""
        import xarray

        learned = self.hyperparameters
        drawn: dict[str, AnyArray] = {
            **{f"posterior/{name}": values for name, values in learned.items()},
            **{f"posterior/{n}": getattr(self, n) for n in self._names("posterior") if n not in learned},
            **{f"sample_stats/{name}": array for name, array in self.sample_stats.items()},
        }
        groups: dict[str, dict[str, tuple[Sequence[str], AnyArray]]] = {
            "constant_data": dict(self._contents.constants)
        }
        for name, slot in self._datasets.items():
            group, variable = name.split("/")
            groups.setdefault(group, {})[variable] = (slot.dims, drawn.get(name, self._arrays[name]))
        datasets = {}
        for group, variables in groups.items():
            dataset = xarray.Dataset(variables)
            missing = [str(dim) for dim in dataset.dims if dim not in dataset.coords]
            datasets[group] = dataset.assign_coords(
                {dim: coordinate(dim, dataset.sizes[dim], self.channels) for dim in missing}
            )
        data: arviz.InferenceData = import_arviz().InferenceData(attrs=self.attributes, **datasets)
        return data

    @property
    def _datasets(self) -> dict[str, Slot]:
        return {name: slot for name, slot in self._contents.slots.items() if name not in COUNTERS}

    def _names(self, group: str) -> list[str]:
        return [name.split("/")[1] for name in self._datasets if name.split("/")[0] == group]

    def _drawn(self, name: str) -> AnyArray:
        return self._arrays[name][:, : self.committed]

    def _mapping(self, name: str) -> dict[str, Any]:
        value = self._json(name)
        if not isinstance(value, dict):
            raise self._wrong(name)
        return value

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.attributes[name])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise self._wrong(name) from None

    def _wrong(self, name: str) -> DataError:
        return DataError(f"{self.path}: the attribute {name} is not what dpmix writes")


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def checkpoint_path(path: Path) -> Path:
    """Where the checkpoint of a run file lies."""
    return path.with_name(path.name + ".checkpoint")


def import_arviz() -> ModuleType:
    """ArviZ, imported only where it is needed: it takes a second, and announces its next version daily."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


@contextmanager
def _laid_out_beside(path: Path, layout: Layout) -> Iterator[tuple[Path, int]]:
    """A new run file, still under another name, and a descriptor that holds it; gone where anything fails."""
    _require_room(path, layout.n_bytes + layout.checkpoint_bytes)
    temporary = partial_path(path)
    with writing(path):
        file = open_alone(temporary, create=True)
        try:
            _reserve(temporary, layout.n_bytes)
            lay_out(temporary, layout)
            yield temporary, file
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            os.close(file)
            raise


def _read_committed(path: Path, contents: Contents) -> int:
    """Number of draws that are whole.

    The machine may have lost power when the count had reached the disk and a draw had not, or parts of it: of
    draws that are counted but not known to be on the disk, those from the first with a gap on do not count.
    """
    slots = contents.slots
    counted, most = int(slots["committed"].map(path)), slots["posterior/alpha"].shape[1]
    if not 0 <= counted <= most:
        raise DataError(f"{path}: says that {counted} of {most} draws are committed; it is damaged")
    drawn = [slot.map(path) for name, slot in slots.items() if name.split("/")[0] in DRAWN_GROUPS]
    for draw in range(max(int(slots["synced"].map(path)), 0), counted):
        if not all(is_drawn(array[:, draw]) for array in drawn):
            return draw
    return counted


def _require_room(path: Path, n_bytes: int) -> None:
    """Raise `ConfigError` where the disk has no room for the file."""
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise ConfigError(
            [
                f"{path}: needs {shown(n_bytes)}, {shown(free)} are free on its disk; lower "
                "mcmc.draws (raise mcmc.thin) or model.components, or choose another disk with --output"
            ]
        )
    log.info("%s: laying out %s", path, shown(n_bytes))


def _reserve(path: Path, n_bytes: int) -> None:
    """Raise `OSError` where the system refuses a file of this size (a quota, a limit, no permission).

    HDF5 is not asked first because a write refused in its midst can end the process.
    """
    with open(path, "wb") as file:
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, n_bytes)
