"""Files of a gating with one row per event, in several formats.

| file | content |
| --- | --- |
| events.parquet, events.csv | event (row in its file, from 0), sample, population (from 1), probability, \
entropy (nats), log_density, implausible; with judgements also explored; with a table of cell types \
also type and type_probability; with memberships also p1, p2, ...; \
on request also the transformed values of the state channels, by their names |
| events.h5ad | AnnData: transformed values in `X`, the same columns in `obs` (type is \
named cell_type), memberships in `obsm`; with state channels, these follow the others in `X`, and \
`var["class"]` is type or state |
| SAMPLE.gated.fcs | each sample's file with added channels: dpmix_population (0 for an event that was not \
gated), dpmix_probability, dpmix_entropy, dpmix_implausible, with judgements dpmix_explored \
(`dpmix.report.fcs_export`); with a table of cell types dpmix_type (number of the row, 0 for unknown) and \
dpmix_type_probability, and keywords DPMIX_TYPE_1, ... with the names; keywords \
DPMIX_POPULATION_1, ... with the phenotypes, and with judgements the last one for the explored cells, whose \
events are those with dpmix_explored 1; calibrated: also dpmix_calibrated_CD3, ..., compensated \
values without the shift of the sample |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs.header import Header
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Array, Floats
from dpmix.populations.explored import NAME, explored_of
from dpmix.populations.result import Block, Gating, with_type
from dpmix.report import fcs_export
from dpmix.report.arrow import arrow_numbers, arrow_texts
from dpmix.report.fcs_export import Copy, Place, fill, population_keywords
from dpmix.system.extras import require_extra
from dpmix.system.files import partial_path, writing
from dpmix.system.own_file import sync
from dpmix.system.paths import file_name

FORMATS = ("parquet", "csv", "h5ad", "fcs")
ROW_GROUP = 131_072  # minimum events in a row group of Parquet

Columns = dict[str, npt.NDArray[Any]]
ToRaw = Callable[[npt.ArrayLike], Array]


def event_paths(
    directory: Path, formats: Sequence[str], samples: Sequence[str], sources: Sequence[Source]
) -> list[Path]:
    """Return the files that `open_writers` writes, in the order of the formats, without touching any.

    Raises
    ------
    ConfigError
        A format is unknown, AnnData is not installed, or an FCS file has channels of an earlier gating.
    DataError
        The format is FCS, and a sample is not an FCS file or its values may be shifted.
    """
    unknown = sorted(set(formats) - set(FORMATS))
    if unknown:
        raise ConfigError([f"--format {name}: need one of {', '.join(FORMATS)}" for name in unknown])
    if "h5ad" in formats:
        require_extra("anndata", "anndata", "--format h5ad")
    paths = [directory / f"events.{name}" for name in dict.fromkeys(formats) if name != "fcs"]
    if "fcs" in formats:
        _headers(samples, sources)
        paths += [directory / f"{stem}.gated.fcs" for stem in _stems(samples)]
    return paths


def _headers(samples: Sequence[str], sources: Sequence[Source]) -> list[Header]:
    """Return the headers of the samples' files, which must be FCS files without channels of a gating."""
    headers = []
    for name, source in zip(samples, sources, strict=True):
        header = source.header
        if header is None:
            others = ", ".join(FORMATS[:-1])
            raise DataError(f"{name}: is not an FCS file, which --format fcs requires; use {others}")
        if header.place_is_chosen:
            found = "nothing in the file shows where its events are, and a copy would hide that"
            raise DataError(f"{name}: {found}; use --format {', '.join(FORMATS[:-1])}")
        gated = [c.detector for c in header.channels if c.detector.startswith("dpmix_")]
        if gated:
            found = f"has the channel {gated[0]} of an earlier gating"
            raise ConfigError([f"{name}: {found}; --format fcs requires the original file"])
        headers.append(header)
    return headers


def _stems(samples: Sequence[str]) -> list[str]:
    """Return file names of samples: without suffix if unique, else with suffix, else numbered."""
    parts = [name.partition("::") for name in samples]
    flat = [file_name(name.replace("::", "_")) for name in samples]
    short = [file_name(f"{Path(file).with_suffix('')}{'_' if part else ''}{part}") for file, _, part in parts]
    for names in (short, flat):
        if len({name.lower() for name in names}) == len(names):
            return names
    return [f"{k}_{name}" for k, name in enumerate(flat, start=1)]


class _Writer(Protocol):
    """Writer of one format. `columns` is `_columns(block)`; `abandon` may be called at any time."""

    def write(self, block: Block, columns: Columns) -> None: ...
    def finish(self, gating: Gating) -> None: ...
    def abandon(self) -> None: ...


class EventFiles:
    """Write blocks of events to files in all formats; see `open_writers`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._writers: list[tuple[Path, _Writer]] = []

    def open(self, path: Path, make: Callable[[], _Writer]) -> None:
        """Open the writer of a format; `path` is its first file."""
        with writing(path):
            self._writers.append((path, make()))

    def write(self, block: Block) -> None:
        """Write events; blocks must come sample by sample, with ascending rows.

        Raises
        ------
        DataError
            A file cannot be written, or an FCS file cannot be read.
        """
        columns = _columns(block)
        for path, writer in self._writers:
            with writing(path):
                writer.write(block, columns)

    def finish(self, gating: Gating) -> None:
        """Complete all files, then rename them to their final names."""
        for path, writer in self._writers:
            with writing(path):
                writer.finish(gating)
        for path in self._paths:
            with writing(path):
                # All files are complete first: a gating that fails leaves none of them, not some.
                os.replace(partial_path(path), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _, writer in self._writers:
            with suppress(Exception):  # the file is discarded
                writer.abandon()
        for path in self._paths:
            with suppress(OSError):
                partial_path(path).unlink(missing_ok=True)


def open_writers(
    directory: str | Path,
    formats: Sequence[str],
    *,
    channels: Sequence[str],
    samples: Sequence[str],
    sources: Sequence[Source],
    labels: Sequence[int],
    memberships: bool = False,
    explored: bool = False,
    to_raw: ToRaw | None = None,
    state: Sequence[str] = (),
    with_state: bool = False,
    types: Sequence[str] = (),
) -> EventFiles:
    """Open files for the events of a gating: a context manager, which deletes its files without `finish`.

    Only h5ad needs memory that grows with N (0.55 kB per event measured for D = 14 and P = 25). FCS files
    keep events that were not gated (`data.max_events`, margins), with 0 in all added channels.

    Parameters
    ----------
    directory : str or Path
        Folder of the files; created if missing.
    formats, channels, samples : sequence of str
        Some of `FORMATS`; D and S names.
    sources : sequence of Source
        Files of the samples.
    labels : sequence of int
        P numbers of the populations, ascending.
    memberships : bool
        Also write the probability of every population to Parquet and CSV.
    explored : bool
        The blocks say which events are explored.
    to_raw : callable, optional
        Returns raw values of transformed ones, [M, D]: FCS files then also have the values of the blocks.
    state : sequence of str
        E names of state channels.
    with_state : bool
        Also write their values to Parquet and CSV.
    types : sequence of str
        R + 1 names of cell types, the last for unknown; empty without a table.

    Raises
    ------
    ConfigError, DataError
        As in `event_paths`, or a file cannot be written.
    """
    folder = Path(directory)
    paths = event_paths(folder, formats, samples, sources)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = EventFiles(paths)
    try:
        for path in paths:
            if path.name in ("events.parquet", "events.csv"):
                listed = labels if memberships else ()
                own_state = state if with_state else ()
                files.open(path, partial(_Table, path, samples, listed, explored, own_state, types))
            elif path.name == "events.h5ad":
                files.open(path, partial(_H5ad, path, channels, samples, state, types))
        if "fcs" in formats:
            own = paths[-len(samples) :]
            headers = _headers(samples, sources)
            files.open(own[0], partial(_Fcs, own, headers, channels, labels, explored, to_raw, types))
    except BaseException:
        files.__exit__()
        raise
    return files


def _columns(block: Block) -> Columns:
    """Return the columns of a block that all formats write; copied, because the block may be reused."""
    columns: Columns = {
        "event": block.rows.copy(),
        "population": block.number.astype(np.int32),
        "probability": block.probability,
        "entropy": block.entropy,
        "log_density": block.log_density.copy(),
        "implausible": block.implausible.copy(),
    }
    if block.explored is not None:
        columns["explored"] = block.explored.copy()
    if block.cell_type is not None and block.type_probability is not None:
        columns["type"], columns["type_probability"] = block.cell_type.copy(), block.type_probability.copy()
    return columns


class _Table:
    """Writes Parquet or CSV, by the name of the file."""

    def __init__(
        self,
        path: Path,
        samples: Sequence[str],
        listed: Sequence[int],
        explored: bool,
        state: Sequence[str],
        types: Sequence[str] = (),
    ) -> None:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        self._samples = arrow_texts(samples)
        self._listed, self._state = listed, state
        self._types = arrow_texts(types) if types else None
        names = ("event", "sample", "population", "probability", "entropy", "log_density", "implausible")
        text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types_text = text if path.suffix == ".parquet" else pyarrow.string()
        kinds = [
            pyarrow.int64(),
            types_text,
            pyarrow.int32(),
            pyarrow.float32(),
            pyarrow.float32(),
            pyarrow.float64(),
            pyarrow.bool_(),
        ]
        more = [("explored", pyarrow.bool_())] if explored else []
        if self._types is not None:
            more += [("type", types_text), ("type_probability", pyarrow.float32())]
        more += [(f"p{number}", pyarrow.float32()) for number in listed]
        more += [(name, pyarrow.float32()) for name in state]
        if taken := sorted({*names, *(name for name, _ in more[: len(more) - len(state)])} & {*state}):
            raise ConfigError(
                [f"--state-values: {taken[0]} is a column of {path.name}; rename the marker (data.rename)"]
            )
        self._schema = pyarrow.schema([*zip(names, kinds, strict=True), *more])
        self._held: list[Any] = []
        self._file = partial_path(path).open("wb")
        if path.suffix == ".parquet":
            self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema)
        else:
            self._writer = pyarrow.csv.CSVWriter(self._file, self._schema)

    def write(self, block: Block, columns: Columns) -> None:
        import pyarrow

        number = arrow_numbers(np.full(len(block.rows), block.sample, np.int32))
        arrays = {name: arrow_numbers(column) for name, column in columns.items()}
        arrays["sample"] = pyarrow.DictionaryArray.from_arrays(number, self._samples)
        if self._types is not None:
            codes = np.where(columns["type"] < 0, len(self._types) - 1, columns["type"]).astype(np.int32)
            arrays["type"] = pyarrow.DictionaryArray.from_arrays(arrow_numbers(codes), self._types)
        for k, number in enumerate(self._listed):
            arrays[f"p{number}"] = arrow_numbers(block.memberships[:, k].copy())
        if self._state and block.state is not None:
            for name, column in zip(self._state, block.state.T, strict=True):
                arrays[name] = arrow_numbers(column.copy())
        listed = [arrays[field.name].cast(field.type) for field in self._schema]
        self._held.append(pyarrow.RecordBatch.from_arrays(listed, schema=self._schema))
        if sum(batch.num_rows for batch in self._held) >= ROW_GROUP:
            self._flush()

    def finish(self, gating: Gating) -> None:
        self._flush()
        self._writer.close()
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        """Write several blocks as one row group: a small one costs a reader as much as a large one."""
        import pyarrow

        if self._held:
            self._writer.write_table(pyarrow.Table.from_batches(self._held).combine_chunks())
            self._held.clear()


class _H5ad:
    """Writes AnnData, at the end."""

    def __init__(
        self,
        path: Path,
        channels: Sequence[str],
        samples: Sequence[str],
        state: Sequence[str],
        types: Sequence[str] = (),
    ) -> None:
        self._path = partial_path(path)
        self._channels = [*channels, *state]
        self._classes = ["type"] * len(channels) + ["state"] * len(state)
        self._samples, self._types = list(samples), list(types)
        self._blocks: list[tuple[int, Columns, Floats, Floats]] = []
        self._path.touch()  # fails early if the folder is not writable

    def write(self, block: Block, columns: Columns) -> None:
        values = block.values.copy() if block.state is None else np.hstack([block.values, block.state])
        self._blocks.append((block.sample, columns, values, block.memberships.copy()))

    def finish(self, gating: Gating) -> None:
        import anndata
        import pandas

        blocks, self._blocks = self._blocks, []
        sample = np.repeat([block[0] for block in blocks], [len(block[2]) for block in blocks])
        columns = {name: np.concatenate([block[1][name] for block in blocks]) for name in blocks[0][1]}
        numbers = pandas.Index(columns["event"]).astype(str)
        many = len(self._samples) > 1
        index = [f"{self._samples[s]}-{n}" for s, n in zip(sample, numbers, strict=True)] if many else numbers
        numbers = gating.all_numbers
        obs = pandas.DataFrame(columns, index=index)
        obs.insert(1, "sample", pandas.Categorical.from_codes(sample, self._samples))
        if self._types:
            codes = columns["type"]
            named_types = pandas.Categorical.from_codes(
                np.where(codes < 0, len(self._types) - 1, codes), self._types
            )
            obs = obs.assign(type=named_types).rename(columns={"type": "cell_type"})
        obs["population"] = pandas.Categorical.from_codes(
            np.searchsorted(numbers, columns["population"]), [str(number) for number in numbers]
        )
        named = {"phenotypes": gating.phenotypes} | ({"names": gating.names} if gating.names else {})
        named |= {"types": gating.population_types} if self._types else {}
        explored = explored_of(gating)
        about = {"run": gating.run} | ({} if explored is None else {"explored": explored.title})
        table = anndata.AnnData(
            X=np.concatenate([block[2] for block in blocks]),
            obs=obs,
            var=pandas.DataFrame(
                {"class": self._classes} if "state" in self._classes else {},
                index=pandas.Index(self._channels, dtype=str),
            ),
            obsm={"memberships": np.concatenate([block[3] for block in blocks])},
            uns={"dpmix": about | {key: np.array(text, object) for key, text in named.items()}},
        )
        table.write_h5ad(self._path)

    def abandon(self) -> None:
        self._blocks.clear()


class _Fcs:
    """Copies the samples' files with added channels, one open at a time."""

    def __init__(
        self,
        paths: list[Path],
        headers: Sequence[Header],
        channels: Sequence[str],
        labels: Sequence[int],
        explored: bool,
        to_raw: ToRaw | None,
        types: Sequence[str] = (),
    ) -> None:
        self._paths = paths
        self._headers = headers
        self._to_raw = to_raw
        self._added = fcs_export.gating_channels(max(labels), explored, max(len(types) - 1, 0))
        self._type_keywords = {f"DPMIX_TYPE_{r}": name for r, name in enumerate(types[:-1], start=1)}
        self._n_columns = len(self._added)
        if to_raw is not None:
            self._added += fcs_export.calibrated_channels(headers, channels)
        longest = max(types, key=lambda name: len(name.encode()), default="")
        reserved = dict.fromkeys(labels, with_type(", ".join(f"{c}+/-" for c in channels), longest))
        reserved |= {max(labels) + 1: NAME} if explored else {}
        self._reserved = {**population_keywords(reserved), **self._type_keywords}
        self._sample, self._places = 0, list[Place]()
        self._copy = self._opened()

    def write(self, block: Block, columns: Columns) -> None:
        self._go_to(block.sample)
        if "type" in columns:  # from 1, as the keywords; 0 for unknown, as for events that were not gated
            columns = {**columns, "type": columns["type"] + 1}
        values = [columns[channel.label] for channel in self._added[: self._n_columns]]
        if self._to_raw is not None:
            values += list(self._to_raw(block.values).T)
        with writing(self._paths[self._sample]):
            self._copy.write(block.rows, values)

    def finish(self, gating: Gating) -> None:
        self._go_to(len(self._paths) - 1)
        with writing(self._paths[self._sample]):
            self._copy.close()
        for path, place in zip(self._paths, self._places, strict=True):
            with writing(path):
                names = dict(zip(gating.all_numbers, gating.titles, strict=True))
                names |= {} if gating.exploration is None else {max(names) + 1: NAME}
                named = population_keywords(names)
                fill(partial_path(path), place, {**named, **self._type_keywords})

    def abandon(self) -> None:
        self._copy.abandon()

    def _go_to(self, sample: int) -> None:
        if sample < self._sample:
            raise ValueError(f"sample {sample} comes after sample {self._sample}")
        while self._sample < sample:
            with writing(self._paths[self._sample]):
                self._copy.close()
            self._sample += 1
            self._copy = self._opened()

    def _opened(self) -> Copy:
        path = self._paths[self._sample]
        with writing(path):
            copy = Copy(self._headers[self._sample], partial_path(path), self._added, self._reserved)
        self._places.append(copy.place)
        return copy
