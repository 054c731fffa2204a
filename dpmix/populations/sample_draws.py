"""Draws of what each sample contains: counts of events and medians of channels, by population.

T draws, U of them with medians, S samples, P populations, D channels. `dpmix gate` writes them to samples.nc,
and `dpmix associate` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5netcdf
import h5py
import numpy as np

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.samples import Columns
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.types.draws import TypeDraws
from dpmix.system.files import HDF5_BYTES, replacing, writing

FILE = "samples.nc"
DRAWS = "chain", "draw_of_chain"  # coordinates of the draws
OTHER = " (other)"  # after the name of a parent, for its events outside of all children
LEAST_EVENTS = 20  # in all samples together, for a type to be compared
COLUMN = "column "  # before the name of a column of the table of samples


@dataclass(frozen=True)
class SampleDraws:
    """Draws of counts and medians.

    Attributes
    ----------
    counts : int64 [T, S, P]
        Events by population, in each draw.
    medians : float32 [U, S, P, D]
        Medians of the events of a population, transformed scale; NaN where there are none. State channels
        are the last of the D channels.
    samples, phenotypes, names, population_types, channels : tuple of str
        `names` are those given by hand, "" for none; empty without decisions. `population_types` are cell
        types of populations, "" for none; empty without types.
    columns : mapping of str to S str
        Columns of the table of samples.
    explored : int64 [S], optional
        Events of the explored cells (`dpmix.populations.explored`), which `counts` has in their
        populations of the mixture.
    explored_medians : float32 [S, D], optional
        Their medians; NaN where there are none.
    draws : int64 [T, 2], optional
        Chain and number of each draw in the run file; None in files of older versions.
    verdict : str
        Whether the chains of the run agree about the populations (`dpmix.runs.verdict`); "" in files of older
        versions.
    errors : float32 [S, P, D], optional
        Standard errors of the medians, from the number of events; None in files of older versions.
    n_state : int
        Number of state channels.
    labels : tuple of int
        Numbers of the populations where they are not 1..P, which a merge by hand leaves.
    types : TypeDraws, optional
        The same by cell type; None in a gating without types.
    by_type : bool
        `counts`, `medians` and `phenotypes` are of cell types (`by_type`); `counts` are then expected counts,
        float64.
    """

    counts: Ints | Array
    medians: Floats
    samples: tuple[str, ...]
    phenotypes: tuple[str, ...]
    channels: tuple[str, ...]
    columns: Columns
    names: tuple[str, ...] = ()
    population_types: tuple[str, ...] = ()
    explored: Ints | None = None
    explored_medians: Floats | None = None
    draws: Ints | None = None
    verdict: str = ""
    errors: Floats | None = None
    n_state: int = 0
    types: TypeDraws | None = None
    by_type: bool = False
    labels: tuple[int, ...] = ()

    def number(self, population: int) -> int:
        """Return the number by which a reader knows a population, from 1."""
        return self.labels[population] if self.labels else population + 1

    @property
    def noun(self) -> str:
        """Word for what is counted."""
        return "type" if self.by_type else "population"

    def write(self, path: Path) -> None:
        """Write an HDF5 file in the layout of netCDF-4; an existing file is replaced.

        Raises
        ------
        DataError
            The file cannot be written.
        """
        n_bytes = self.counts.nbytes + self.medians.nbytes + HDF5_BYTES
        with writing(path), replacing(path, n_bytes) as temporary, h5netcdf.File(temporary, "w") as file:
            file.attrs["title"] = "draws of the events and medians of each sample, by dpmix gate"
            file.attrs["verdict"] = self.verdict
            sizes = dict(zip(("draw", "sample", "population"), self.counts.shape, strict=True))
            sizes |= {"median_draw": len(self.medians), "channel": len(self.channels)}
            file.dimensions = sizes
            packed = {"compression": "gzip", "compression_opts": 1}
            file.create_variable("counts", ("draw", "sample", "population"), data=self.counts, **packed)
            dims = ("median_draw", "sample", "population", "channel")
            file.create_variable("medians", dims, data=self.medians, **packed)
            if self.errors is not None:
                file.create_variable("median_errors", dims[1:], data=self.errors, **packed)
            if self.draws is not None:
                for name, numbers in zip(DRAWS, self.draws.T, strict=True):
                    file.create_variable(name, ("draw",), data=numbers)
            if self.labels:
                file.create_variable("number", ("population",), data=np.array(self.labels))
            if self.types is not None:
                file.dimensions["type_draw"], file.dimensions["type"] = self.types.counts.shape[::2]
                of_type = ("type_draw", "sample", "type"), ("sample", "type", "channel")
                file.create_variable("type_counts", of_type[0], data=self.types.counts, **packed)
                file.create_variable("type_medians", of_type[1], data=self.types.medians, **packed)
                file.create_variable("type_median_errors", of_type[1], data=self.types.errors, **packed)
            if self.explored is not None:
                file.create_variable("explored", ("sample",), data=self.explored)
                file.create_variable("explored_medians", ("sample", "channel"), data=self.explored_medians)
            texts: dict[str, Sequence[str]] = {
                "sample": self.samples,
                "phenotype": self.phenotypes,
                "channel": self.channels,
                "channel_class": ["type"] * (len(self.channels) - self.n_state) + ["state"] * self.n_state,
            }
            texts |= {"name": self.names} if self.names else {}
            texts |= {"population_type": self.population_types} if self.population_types else {}
            if self.types is not None:
                texts |= {"type": self.types.names, "type_parent": self.types.parents}
            texts |= {
                COLUMN + name.replace("/", "\N{DIVISION SLASH}"): cells
                for name, cells in self.columns.items()
            }
            for name, text in texts.items():
                dim = {
                    "phenotype": "population",
                    "name": "population",
                    "population_type": "population",
                    "channel": "channel",
                    "channel_class": "channel",
                    "type": "type",
                    "type_parent": "type",
                }.get(name, "sample")
                file.create_variable(name, (dim,), h5py.string_dtype())[:] = np.array(text, object)

    @classmethod
    def read(cls, folder: Path) -> SampleDraws:
        """Read the draws that `dpmix gate` wrote to a folder.

        Raises
        ------
        DataError
            There is no such file, or it cannot be read.
        """
        path = folder / FILE
        if not path.is_file():
            raise DataError(f"{path}: no such file; give the folder that dpmix gate has written")
        try:
            with h5py.File(path) as file:

                def text(name: str) -> tuple[str, ...]:
                    return tuple(file[name].asstr()[:].tolist())

                types = None
                if "type_counts" in file:
                    counts, medians = file["type_counts"][:], file["type_medians"][:]
                    errors = file["type_median_errors"][:]
                    types = TypeDraws(text("type"), text("type_parent"), counts, medians, errors)
                columns = {name.removeprefix(COLUMN): text(name) for name in file if name.startswith(COLUMN)}
                return cls(
                    counts=file["counts"][:],
                    medians=file["medians"][:],
                    samples=text("sample"),
                    phenotypes=text("phenotype"),
                    channels=text("channel"),
                    columns=columns,
                    errors=file["median_errors"][:] if "median_errors" in file else None,
                    n_state=text("channel_class").count("state") if "channel_class" in file else 0,
                    names=text("name") if "name" in file else (),
                    population_types=text("population_type") if "population_type" in file else (),
                    labels=tuple(file["number"][:].tolist()) if "number" in file else (),
                    draws=np.stack([file[name] for name in DRAWS], axis=1) if DRAWS[0] in file else None,
                    verdict=str(file.attrs.get("verdict", "")),
                    explored=file["explored"][:] if "explored" in file else None,
                    explored_medians=file["explored_medians"][:] if "explored" in file else None,
                    types=types,
                )
        except (OSError, KeyError) as error:
            raise DataError(f"{path}: cannot be read ({error}); write it again with dpmix gate") from None


def by_type(draws: SampleDraws) -> tuple[SampleDraws, tuple[str, ...]]:
    """Return the draws with cell types instead of populations, and the types that have too few events.

    The types do not overlap: a parent with children stands for its events outside of all children. Those with
    fewer than `LEAST_EVENTS` events count as unknown.

    Raises
    ------
    ConfigError
        The gating has no types.
    """
    own = draws.types
    if own is None:
        raise ConfigError(["--types: the gating has no cell types; gate again with dpmix gate --types"])
    enough = own.counts.mean(axis=0).sum(axis=0) >= LEAST_EVENTS
    enough[-1] = True
    counts = own.counts[..., enough].copy()
    # Their events stay in the total, or the proportions of the others would rise.
    counts[..., -1] += own.counts[..., ~enough].sum(axis=2)
    names = [name + OTHER * (name in own.parents) for name in own.names]
    kept = [name for name, there in zip(names, enough, strict=True) if there]
    left_out = tuple(name for name, there in zip(names, enough, strict=True) if not there)
    if len(kept) < 2:
        raise ConfigError([f"--types: no type of the table has {LEAST_EVENTS} events; use another table"])
    return (
        replace(
            draws,
            counts=counts,
            medians=own.medians[None][:, :, enough],
            errors=own.errors[:, enough],
            phenotypes=tuple(kept),
            labels=(),
            names=(),
            population_types=(),
            explored=None,
            explored_medians=None,
            by_type=True,
        ),
        left_out,
    )
