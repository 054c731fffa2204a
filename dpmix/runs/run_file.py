"""The format of the run file: read and check its contents and the places of its datasets.

The file is HDF5 in the netCDF-4 layout; ``arviz.from_netcdf`` and ``xarray.open_datatree`` open it as it is::

    posterior       weights [chain, draw, component], means [chain, draw, component, channel], covariances
                    [chain, draw, component, channel, channel_bis], alpha [chain, draw]; where learned,
                    m [chain, draw, channel], gamma, nu [chain, draw], phi [chain, draw, channel, channel_bis]
                    in the hierarchical model `COHORT` (`Run.cohort`); weights are then for all events
    sample_stats    log_likelihood, log_posterior, occupied, seconds [chain, draw]; counts of moves (Bayesian
                    EM: of emptied components), summed over the sweeps since the previous draw
    trace           the same and alpha, of each sweep: [chain, sweep], or [start, step] for Bayesian EM;
                    sweep 0 is the initial state
    profile         seconds [span]: wall time of the run so far by activity, see dpmix.runs.profile
    convergence     where mcmc.until is not null: log_density [chain, sweep, reference]; burn_in, the sweep
                    after which the first draw follows; stopped, the number of draws after which the rule
                    held; lifted, 1 once a resume has gone beyond it; r_hat, ess and error [quantity], of the
                    last check
    populations     of MCMC, written at the end: the populations of `dpmix gate` by its defaults and the
                    verdict on the run (`dpmix.populations.draws.kept`); committed, the number of draws that
                    they are of, -1 before the end
    constant_data   samples, scaling of the channels, ...: the constants of the layout
    committed       number of draws that are complete in every chain
    synced          number of draws known to be on the disk
    attributes      kind, config, seed, versions, engine, scaling, data_hash, n_events, created, run_id,
                    format_version

A run may be killed at any time and may be read while it runs, so the file must be valid at every moment. It
is laid out at its final size, NaN (or -1) where nothing is drawn yet; draws are then written to their places
without the HDF5 library. The metadata never change, and the only lock keeps other writers out
(`dpmix.system.own_file`). After a power failure, any part of the writes since the last sync may be lost. Each
place is only ever written with one value, so a lost value still reads NaN (or -1): this is how a reader
detects it. Only the populations of a run that continues are written again; in between, their committed is -1.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dpmix.errors import DataError
from dpmix.model.mixture import HYPERPARAMETERS
from dpmix.runs.layout import (
    COHORT,
    COUNTERS,
    COUNTS,
    DRAWN_GROUPS,
    FORMAT_VERSION,
    GROUPS,
    AnyArray,
    FileLayout,
)
from dpmix.system.hdf5_links import lies_elsewhere
from dpmix.system.own_file import OPEN_FILES_KEEP_THEIR_NAMES

ATTRIBUTE_TYPES = {
    **dict.fromkeys(
        ("kind", "run_id", "created", "versions", "config", "engine", "scaling", "data_hash"), str
    ),
    **dict.fromkeys(("format_version", "seed", "n_events"), int),
}


Address = tuple[int, int]


@dataclass(frozen=True)
class DatasetPlace:
    """Place of a dataset in the file.

    Attributes
    ----------
    offset : int
        Its first byte.
    shape : tuple of int
    dtype : dtype
    dims : tuple of str
        Names of its dimensions.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...]

    def row(self, index: tuple[int, ...], shape: tuple[int, ...]) -> int:
        """Return the first byte of the row with these leading indices; `shape` is the shape to be written."""
        rows, row = self.shape[: len(index)], self.shape[len(index) :]
        if shape != row:
            raise ValueError(f"shape {shape} for a row of shape {row}")
        if not all(0 <= i < n for i, n in zip(index, rows, strict=True)):
            raise IndexError(f"row {index} of {rows}")
        before = sum(i * math.prod(self.shape[axis + 1 :]) for axis, i in enumerate(index))
        return self.offset + before * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The byte after its last one."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def map(self, path: Path) -> AnyArray:
        """Return the dataset as a read-only array: mapped from the file, or read where maps keep names."""
        if OPEN_FILES_KEEP_THEIR_NAMES:
            read = np.fromfile(path, self.dtype, math.prod(self.shape), offset=self.offset)
            read.flags.writeable = False
            return read.reshape(self.shape)
        return np.asarray(np.memmap(path, self.dtype, "r", self.offset, self.shape))


@dataclass(frozen=True)
class Contents:
    """Attributes and constants of a run file, and the places of its datasets.

    Attributes
    ----------
    attributes : dict
        Attributes of the file.
    channels : tuple of str
        D names.
    slots : dict of str to DatasetPlace
        The datasets of `FileLayout.variables` and the counters.
    constants : dict of str to (dimension names, array)
    """

    attributes: dict[str, Any]
    channels: tuple[str, ...]
    slots: dict[str, DatasetPlace]
    constants: dict[str, tuple[tuple[str, ...], AnyArray]]

    @property
    def variables(self) -> dict[str, DatasetPlace]:
        """The datasets but for the counters."""
        return {name: slot for name, slot in self.slots.items() if name not in COUNTERS}


def is_drawn(values: AnyArray) -> bool:
    """Return whether all values have been written since the file was laid out."""
    return not bool((np.isnan(values) if values.dtype.kind == "f" else values == -1).any())


def read_contents(path: Path) -> Contents:
    """Return the contents of a run file.

    Raises
    ------
    DataError
        The file is missing, not a run file, truncated, or of another format.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such run file")
    if not h5py.is_hdf5(path):
        raise DataError(f"{path}: not a run file of dpmix; give the file that output.path of a config names")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = _read_attributes(file)
            found = attributes.get("format_version", 0)
            if found > FORMAT_VERSION:
                raise DataError(
                    f"{path}: run file of format {found}, this dpmix reads up to {FORMAT_VERSION}: upgrade it"
                )
            _require_own(file)
            if 0 < found < FORMAT_VERSION:
                raise DataError(
                    f"{path}: run file of format {found}, of a version before 1.0.0; this dpmix reads format "
                    f"{FORMAT_VERSION}: make the run again"
                )
            contents = Contents(
                attributes,
                tuple(_texts(file["posterior/channel"])),
                {name: _slot(h5py.h5d.open(file.id, name.encode()), {}, path) for name in COUNTERS}
                | {
                    f"{group}/{name}": slot
                    for group in GROUPS
                    if group in file
                    for name, slot in _slots(file[group], path).items()
                },
                _constants(file["constant_data"]),
            )
            _check(contents, path.stat().st_size)
            return contents
    except OSError as error:
        raise DataError(f"{path}: not a run file of dpmix mcmc or dpmix bem, or truncated: {error}") from None
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = f" ({str(error).splitlines()[0]})" if isinstance(error, Wrong) else ""
        raise DataError(f"{path}: HDF5, but not a run file of dpmix{reason}") from None


def layout_found(contents: Contents) -> FileLayout:
    """Return the layout that a run file was made with."""
    slots = contents.slots
    starts, sweeps = slots["trace/alpha"].shape
    _, draws, n_components = slots["posterior/weights"].shape
    return FileLayout(
        kind=contents.attributes["kind"],
        chains=starts,
        draws=draws,
        sweeps=sweeps,
        n_components=n_components,
        channels=contents.channels,
        constants=contents.constants,
        attributes=contents.attributes,
        learned=[name for name in HYPERPARAMETERS if f"posterior/{name}" in slots],
        counts=counts_of(contents),
        cohort=[name for name in COHORT if f"posterior/{name}" in slots],
        judged="populations/committed" in slots,
    )


def counts_of(contents: Contents) -> tuple[str, ...]:
    """Return the names of the counts in a run file: `COUNTS` of its kind, if it was laid out with them."""
    names = COUNTS[contents.attributes["kind"]]
    return names if any(f"trace/{name}" in contents.slots for name in names) else ()


def copy_drawn(contents: Contents, path: Path, larger: Path) -> None:
    """Copy all draws and sweeps to a file laid out with room for more; populations were of fewer draws."""
    slots = read_contents(larger).slots
    for name, slot in contents.slots.items():
        if name.startswith("populations/"):
            continue
        new = slots[name]
        place = np.memmap(larger, new.dtype, "r+", new.offset, new.shape)
        place[tuple(slice(size) for size in slot.shape)] = slot.map(path)
        place.flush()


def committed_draws(path: Path, contents: Contents) -> int:
    """Return the number of complete draws.

    After a power failure the count may be on the disk and a draw, or part of it, may not. Draws that are
    counted but not known to be on the disk are checked; from the first one with a gap, they do not count.
    """
    slots = contents.slots
    counted, most = int(slots["committed"].map(path)), slots["posterior/alpha"].shape[1]
    if not 0 <= counted <= most:
        raise DataError(f"{path}: has a count of {counted} committed draws of {most}; it is damaged")
    drawn = [slot.map(path) for name, slot in slots.items() if name.split("/")[0] in DRAWN_GROUPS]
    # Draws before the last sync are on the disk; checking all would read the whole file at every opening.
    for draw in range(max(int(slots["synced"].map(path)), 0), counted):
        if not all(is_drawn(array[:, draw]) for array in drawn):
            return draw
    return counted


class Wrong(ValueError):
    """The content of a file is not a run file's."""


def _check(contents: Contents, n_bytes: int) -> None:
    """Raise `Wrong` where a file made by another program could mislead its reader.

    Shapes and types must be as in a `FileLayout` with the sizes found, and all data must lie in the file.
    """
    attributes, slots = contents.attributes, contents.slots
    missing = [name for name, kind in ATTRIBUTE_TYPES.items() if not isinstance(attributes.get(name), kind)]
    if missing:
        raise Wrong(f"no attribute {', '.join(missing)} of the right type")
    if attributes["n_events"] < 1:
        raise Wrong(f"n_events is {attributes['n_events']}")
    rows = "posterior/weights"
    if len(slots[rows].shape) != 3 or len(slots["trace/alpha"].shape) != 2:
        raise Wrong(f"{rows} or trace/alpha has another number of dimensions")
    chains, draws, components = slots[rows].shape
    sweeps = slots["trace/alpha"].shape[1]
    layout = layout_found(contents)
    sizes = layout.sizes
    wanted = {**layout.variables, **dict.fromkeys(COUNTERS, ((), np.int64))}
    for name, (dims, dtype) in wanted.items():
        slot, shape = slots[name], tuple(sizes[dim] for dim in dims)
        if (slot.shape, slot.dtype) != (shape, np.dtype(dtype)):
            raise Wrong(f"{name} is {slot.dtype} {list(slot.shape)}, need {np.dtype(dtype)} {list(shape)}")
        if slot.end > n_bytes:
            raise Wrong(f"{name} lies beyond the end of the file")
    if min(chains, draws, sweeps, components, len(contents.channels)) < 1:
        raise Wrong("it has no chain, draw, sweep, component or channel")
    if unknown := sorted({*slots} - {*wanted}):
        raise Wrong(f"{unknown[0]} is not one of its datasets")
    for name in ("channel_means", "channel_sds"):
        values = contents.constants[name][1]
        if values.dtype != np.float64 or values.shape != (len(contents.channels),):
            raise Wrong(f"{name} is not a number per channel")


def _read_attributes(file: h5py.File) -> dict[str, Any]:
    """Return the attributes that are one text or number, as all attributes of dpmix are."""
    found = {}
    for name in file.attrs:
        shape = file.attrs.get_id(name).shape
        if name[0] != "_" and shape is not None and math.prod(shape) == 1:
            found[name] = _plain(file.attrs[name])
    return found


def _require_own(file: h5py.File) -> None:
    """Raise `Wrong` for a link to another file, before it is followed."""
    for name in (*COUNTERS, *GROUPS, "constant_data"):
        if lies_elsewhere(file, name):
            raise Wrong(f"{name} lies in another file")
        group = file.get(name)
        for inside in group if isinstance(group, h5py.Group) else ():
            if lies_elsewhere(group, inside):
                raise Wrong(f"{name}/{inside} lies in another file")


def _slots(group: h5py.Group, path: Path) -> dict[str, DatasetPlace]:
    """Return the places of the datasets of a group but for the values along its dimensions."""
    datasets, names = _datasets(group)
    return {name: _slot(one, names, path) for name, one in datasets.items() if not h5py.h5ds.is_scale(one)}


def _constants(group: h5py.Group) -> dict[str, tuple[tuple[str, ...], AnyArray]]:
    datasets, names = _datasets(group)
    return {name: (_dims(one, names), _values(h5py.Dataset(one))) for name, one in datasets.items()}


def _datasets(group: h5py.Group) -> tuple[dict[str, h5py.h5d.DatasetID], dict[Address, str]]:
    """Return the datasets of a group, and the names by their places in the file.

    HDF5 would search the whole file for the name of a dimension. Identifiers take a fraction of the time of
    h5py's datasets.
    """
    found = {name: h5py.h5d.open(group.id, name.encode()) for name in group}
    return found, {_address(one): name for name, one in found.items()}


def _slot(dataset: h5py.h5d.DatasetID, names: dict[Address, str], path: Path) -> DatasetPlace:
    offset = dataset.get_offset()
    if offset is None:
        raise DataError(
            f"{path}: repacked by another program, which ArviZ and xarray can read; dpmix "
            "needs the file as it wrote it"
        )
    return DatasetPlace(offset, dataset.shape, dataset.dtype, _dims(dataset, names))


def _dims(dataset: h5py.h5d.DatasetID, names: dict[Address, str]) -> tuple[str, ...]:
    """Return the names of the dimensions of a dataset."""
    if h5py.h5ds.is_scale(dataset):
        return (names[_address(dataset)],)
    axes = range(len(dataset.shape))
    scales = (h5py.h5ds.iterate(dataset, axis, lambda scale: scale, 0) for axis in axes)  # the first of each
    return tuple(names[_address(scale)] for scale in scales)


def _address(dataset: h5py.h5d.DatasetID) -> Address:
    """Return the number of an open file, and the place of a dataset in it."""
    place = h5py.h5o.get_info(dataset)
    return place.fileno, place.addr


def _values(dataset: h5py.Dataset) -> AnyArray:
    """Return all values; raise `Wrong` where they are compressed or elsewhere, and could be of any size."""
    if dataset.size and dataset.id.get_offset() is None:
        raise Wrong(f"{dataset.name} is compressed, or not in the file")
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.array(_texts(dataset), object).reshape(dataset.shape)
    if dataset.dtype.kind not in "fiu":
        raise Wrong(f"{dataset.name} holds no numbers or texts")
    return np.asarray(dataset[()])


def _texts(dataset: h5py.Dataset) -> list[str]:
    """Return the texts, read one by one: many of them may share one long text in the file."""
    left = os.path.getsize(dataset.file.filename)
    too_long = Wrong(f"the texts of {dataset.name} are longer than the file")
    if dataset.size > left:
        raise too_long
    found: list[str] = []
    for place in np.ndindex(dataset.shape):
        found.append(dataset.asstr()[place])
        left -= len(found[-1])
        if left < 0:
            raise too_long
    return found


def _plain(value: Any) -> Any:
    """Return an attribute as a Python value; netCDF stores a number as an array of one."""
    return value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
