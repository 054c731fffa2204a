"""The files of a gating that have a row per event, in the formats asked for.

| file | what |
| --- | --- |
| events.parquet, events.csv | event (row in its file, from 0), sample, population (from 1), probability, \
entropy (nats), log_density, implausible; where memberships are asked for also p1, p2, ... |
| events.h5ad | AnnData: X the transformed values, the same columns in `obs`, memberships in `obsm` |
| SAMPLE.gated.fcs | each sample's own file with channels added: dpmix_population (0 where an event was not \
gated), dpmix_probability, dpmix_entropy, dpmix_implausible (`dpmix.report.fcs_export`) |
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs import Header
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Floats
from dpmix.populations.result import Block, Gating
from dpmix.report.fcs_export import Added, Copy
from dpmix.system.extras import require_extra
from dpmix.system.files import partial_path, writing

FORMATS = ("parquet", "csv", "h5ad", "fcs")
ROW_GROUP = 131_072  # events of a row group of Parquet, at least

Columns = dict[str, npt.NDArray[Any]]


# ------------------------------------------------------------------------------------------- places


def event_paths(
    directory: Path, formats: Sequence[str], samples: Sequence[str], sources: Sequence[Source]
) -> list[Path]:
    """The files that `open_writers` will write, in the order of the formats; nothing is touched.

    Raises
    ------
    ConfigError
        A format is unknown, h5ad is asked for without AnnData, or an FCS file was gated before.
    DataError
        FCS is asked for a sample that is no FCS file.
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
    """Of the samples' FCS files, where all are and none has been gated."""
    headers = []
    for name, source in zip(samples, sources, strict=True):
        header = source.header
        if header is None:
            others = ", ".join(FORMATS[:-1])
            raise DataError(f"{name}: is no FCS file, need one for --format fcs; others are {others}")
        gated = [c.detector for c in header.channels if c.detector.startswith("dpmix_")]
        if gated:
            found = f"has the channel {gated[0]} of an earlier gating"
            raise ConfigError([f"{name}: {found}; --format fcs needs the file as it was before"])
        headers.append(header)
    return headers


def _stems(samples: Sequence[str]) -> list[str]:
    """File names of samples: without suffix where they still differ, numbered where nothing else helps."""
    parts = [name.partition("::") for name in samples]
    flat = [name.replace("/", "_").replace("::", "_") for name in samples]
    short = [
        f"{Path(file).with_suffix('')}{'_' if part else ''}{part}".replace("/", "_")
        for file, _, part in parts
    ]
    for names in (short, flat):
        if len({name.lower() for name in names}) == len(names):
            return names
    return [f"{k}_{name}" for k, name in enumerate(flat, start=1)]


# ------------------------------------------------------------------------------------------- events


class _Writer(Protocol):
    """One format. `columns` are `_columns` of the block; `abandon` may follow anything."""

    def write(self, block: Block, columns: Columns) -> None: ...
    def finish(self, gating: Gating) -> None: ...
    def abandon(self) -> None: ...


class EventFiles:
    """Writes blocks to all files; see `open_writers`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._writers: list[tuple[Path, _Writer]] = []

    def open(self, path: Path, make: Callable[[], _Writer]) -> None:
        """Open a format, of which this is the first file."""
        with writing(path):
            self._writers.append((path, make()))

    def write(self, block: Block) -> None:
        """Write events; blocks come sample by sample, rows ascending.

        Raises
        ------
        DataError
            A file cannot be written, or an FCS file that is copied not be read.
        """
        columns = _columns(block)
        for path, writer in self._writers:
            with writing(path):
                writer.write(block, columns)

    def finish(self, gating: Gating) -> None:
        """Complete the files, then give them their names."""
        for path, writer in self._writers:
            with writing(path):
                writer.finish(gating)
        for path in self._paths:
            with writing(path):
                os.replace(partial_path(path), path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _, writer in self._writers:
            with suppress(Exception):  # nothing that happens to a file thrown away is of interest
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
    n_populations: int,
    memberships: bool = False,
) -> EventFiles:
    """Open files for the events of a gating.

    Memory does not grow with the events, but for h5ad: that one holds the values and memberships of all
    events, 4 N (D + P) bytes, and while it is written twice that and the names of the events (measured: 0.55
    kB per event with D = 14 and P = 25).

    In an FCS file events that were not gated (beyond `data.max_events`, or left out at the margins) are kept,
    with 0 in all added channels.

    Parameters
    ----------
    directory : str or Path
        Folder of the files; made where it is not there.
    formats : sequence of str
        Of `FORMATS`.
    channels : sequence of str
        D names.
    samples : sequence of str
        S names.
    sources : sequence of Source
        Their files.
    n_populations : int
    memberships : bool
        Write the probability of every population to Parquet and CSV as well.

    Returns
    -------
    EventFiles
        A context manager; without a `finish` before its end nothing is left behind.

    Raises
    ------
    ConfigError, DataError
        As `event_paths`; or a file cannot be written.
    """
    directory = Path(directory)
    paths = event_paths(directory, formats, samples, sources)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    listed = n_populations if memberships else 0
    files = EventFiles(paths)
    try:
        for path in paths:
            if path in (directory / "events.parquet", directory / "events.csv"):
                files.open(path, partial(_Table, path, samples, listed))
            elif path == directory / "events.h5ad":
                files.open(path, partial(_H5ad, path, channels, samples))
        if "fcs" in formats:
            own = paths[-len(samples) :]
            files.open(own[0], partial(_Fcs, own, _headers(samples, sources), n_populations))
    except BaseException:
        files.__exit__()
        raise
    return files


def _columns(block: Block) -> Columns:
    """What every format writes of a block, by name; copied, because a block may be used again."""
    return {
        "event": block.rows.copy(),
        "population": (block.population + 1).astype(np.int32),
        "probability": block.probability,
        "entropy": block.entropy,
        "log_density": block.log_density.copy(),
        "implausible": block.implausible.copy(),
    }


class _Table:
    """Parquet or CSV, by the name of the file."""

    def __init__(self, path: Path, samples: Sequence[str], n_listed: int) -> None:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        self._samples = pyarrow.array(samples, pyarrow.string())
        self._listed = n_listed
        names = ("event", "sample", "population", "probability", "entropy", "log_density", "implausible")
        text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        types = [
            pyarrow.int64(),
            text if path.suffix == ".parquet" else pyarrow.string(),
            pyarrow.int32(),
            pyarrow.float32(),
            pyarrow.float32(),
            pyarrow.float64(),
            pyarrow.bool_(),
        ]
        more = [(f"p{k}", pyarrow.float32()) for k in range(1, n_listed + 1)]
        self._schema = pyarrow.schema([*zip(names, types, strict=True), *more])
        self._held: list[Any] = []
        self._file = partial_path(path).open("wb")
        if path.suffix == ".parquet":
            self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema)
        else:
            self._writer = pyarrow.csv.CSVWriter(self._file, self._schema)

    def write(self, block: Block, columns: Columns) -> None:
        import pyarrow

        number = pyarrow.array(np.full(len(block.rows), block.sample, np.int32))
        arrays = {name: pyarrow.array(column) for name, column in columns.items()}
        arrays["sample"] = pyarrow.DictionaryArray.from_arrays(number, self._samples)
        for k in range(self._listed):
            arrays[f"p{k + 1}"] = pyarrow.array(block.memberships[:, k].copy())
        listed = [arrays[field.name].cast(field.type) for field in self._schema]
        self._held.append(pyarrow.RecordBatch.from_arrays(listed, schema=self._schema))
        if sum(batch.num_rows for batch in self._held) >= ROW_GROUP:
            self._flush()

    def finish(self, gating: Gating) -> None:
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        """Blocks together, because a small row group costs a reader as much as a large one."""
        import pyarrow

        if self._held:
            self._writer.write_table(pyarrow.Table.from_batches(self._held).combine_chunks())
            self._held.clear()


class _H5ad:
    """AnnData, written at the end."""

    def __init__(self, path: Path, channels: Sequence[str], samples: Sequence[str]) -> None:
        self._path = partial_path(path)
        self._channels = list(channels)
        self._samples = list(samples)
        self._blocks: list[tuple[int, Columns, Floats, Floats]] = []
        self._path.touch()  # a folder that cannot be written to is told before the work

    def write(self, block: Block, columns: Columns) -> None:
        self._blocks.append((block.sample, columns, block.values.copy(), block.memberships.copy()))

    def finish(self, gating: Gating) -> None:
        import anndata
        import pandas

        blocks, self._blocks = self._blocks, []
        sample = np.repeat([block[0] for block in blocks], [len(block[2]) for block in blocks])
        columns = {name: np.concatenate([block[1][name] for block in blocks]) for name in blocks[0][1]}
        numbers = pandas.Index(columns["event"]).astype(str)
        many = len(self._samples) > 1
        index = [f"{self._samples[s]}-{n}" for s, n in zip(sample, numbers, strict=True)] if many else numbers
        populations = [f"{k}" for k in range(1, gating.n_populations + 1)]
        obs = pandas.DataFrame(columns, index=index)
        obs.insert(1, "sample", pandas.Categorical.from_codes(sample, self._samples))
        obs["population"] = pandas.Categorical.from_codes(columns["population"] - 1, populations)
        table = anndata.AnnData(
            X=np.concatenate([block[2] for block in blocks]),
            obs=obs,
            var=pandas.DataFrame(index=pandas.Index(self._channels, dtype=str)),
            obsm={"memberships": np.concatenate([block[3] for block in blocks])},
            uns={"dpmix": {"run": gating.run, "phenotypes": np.array(gating.phenotypes, object)}},
        )
        table.write_h5ad(self._path)

    def abandon(self) -> None:
        self._blocks.clear()


class _Fcs:
    """The samples' own files with channels added, one open at a time."""

    def __init__(self, paths: list[Path], headers: Sequence[Header], n_populations: int) -> None:
        self._paths = paths
        self._headers = headers
        self._added = [
            Added("dpmix_population", "population", n_populations),
            Added("dpmix_probability", "probability", 1, scale=10_000),
            Added("dpmix_entropy", "entropy", math.log(n_populations), scale=1_000),
            Added("dpmix_implausible", "implausible", 1),
        ]
        self._sample = 0
        self._copy = self._opened()

    def write(self, block: Block, columns: Columns) -> None:
        self._go_to(block.sample)
        values = [columns[channel.label] for channel in self._added]
        with writing(self._paths[self._sample]):
            self._copy.write(block.rows, values)

    def finish(self, gating: Gating) -> None:
        self._go_to(len(self._paths) - 1)
        with writing(self._paths[self._sample]):
            self._copy.close()

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
            return Copy(self._headers[self._sample], partial_path(path), self._added)
