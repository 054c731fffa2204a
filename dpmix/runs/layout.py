"""Lay out a run file: all datasets at their final size, constants and attributes, nothing drawn."""

from __future__ import annotations

import json
import math
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import numpy.typing as npt

from dpmix.runs.profile import SPANS
from dpmix.system.version import VERSION

FORMAT_VERSION = 3  # since 1.0.0; 1 and 2 were never released, and are refused
COUNTERS = ("committed", "synced")
MCMC_COUNTS = (
    "splits_proposed",
    "splits_accepted",
    "merges_proposed",
    "merges_accepted",
    "swaps_proposed",
    "swaps_accepted",
)
COUNTS = {"mcmc": MCMC_COUNTS, "bem": ("emptied",)}
"""Counts of one sweep of MCMC and of one step of Bayesian EM (`dpmix.model.gibbs.SweepInfo`,
`dpmix.model.bem.StepInfo`)."""

COHORT = ("kappa", "base_weights", "sample_proportions", "shifts", "tau")
"""Draws of the hierarchical model (`dpmix.model.cohort`); shifts and tau only in a model with shifts."""

GROUPS = ("posterior", "sample_stats", "trace", "profile", "convergence", "populations")
DRAWN_GROUPS = ("posterior", "sample_stats")  # a row of a dataset for every draw
EVENT_SUBSET = "event_subset"  # the constant with some events, for `dpmix gate`
SUBSET_WEIGHTS = "event_subset_weights"  # what each of them counts, in a run whose events have weights
REFERENCES = "reference_events"  # the constant that a run has where mcmc.until is not null
WEIGHTS = "sample_weights"  # the constant of a run whose events have weights: the weights of each sample
MAX_POPULATIONS = 32  # interim populations whose proportions are monitored, the largest
MAX_CHARACTERS = 2048  # bytes of a text
# Sizes of what a run file keeps of its populations (`dpmix.populations.draws.kept`): draws that they come
# from, draws in their mean density, and points of it.
USED_DRAWS, POOLED_DRAWS, KEPT_POINTS = 100, 5, 5_000
REQUIRED_ATTRIBUTES = ("config", "seed", "engine", "scaling", "data_hash", "n_events")
AnyArray = npt.NDArray[Any]

_CONVERGENCE: dict[str, tuple[tuple[str, ...], npt.DTypeLike]] = {
    "convergence/log_density": (("chain", "sweep", "reference"), np.float64),
    "convergence/burn_in": ((), np.int64),
    "convergence/stopped": ((), np.int64),
    "convergence/lifted": ((), np.int64),
    "convergence/r_hat": (("quantity",), np.float64),
    "convergence/ess": (("quantity",), np.float64),
    "convergence/error": (("quantity",), np.float64),
}
_POPULATIONS: dict[str, tuple[tuple[str, ...], npt.DTypeLike]] = {
    "populations/sentence": (("character",), "S1"),
    "populations/fit": (("character",), "S1"),
    "populations/share": (("population",), np.float64),
    "populations/r_hat": (("population",), np.float64),
    "populations/ess": (("population",), np.float64),
    "populations/support": (("population",), np.float64),
    "populations/compared": ((), np.int64),
    "populations/draws": (("used", "pair"), np.int32),
    "populations/components": (("used", "component"), np.int32),
    "populations/order": (("used", "component"), np.int32),
    "populations/numbers": (("used",), np.int32),
    "populations/reference": ((), np.int64),
    "populations/agreement": (("chain", "chain_bis"), np.float64),
    "populations/pooled": (("pooled_draw",), np.int32),
    "populations/tree_modes": (("pooled_component",), np.int32),
    "populations/tree_points": (("mode", "channel"), np.float64),
    "populations/tree_heights": (("mode",), np.float64),
    "populations/tree_merges": (("mode", "pair"), np.int32),
    "populations/tree_levels": (("mode",), np.float64),
    "populations/modes": (("mode",), np.int32),
    "populations/level": ((), np.float64),
    "populations/why": (("character",), "S1"),
    "populations/least_density": ((), np.float64),
    "populations/points": (("point", "channel"), np.float32),
    "populations/of_points": (("point",), np.int32),
    "populations/rule": ((), np.int64),
    "populations/committed": ((), np.int64),
}
# Dimensions whose places mean nothing, and have no values in the file.
UNNUMBERED = ("character", "pair", "used", "pooled_draw", "pooled_component", "mode", "point", "population")


def subset_rows(n_events: int, n_kept: int) -> npt.NDArray[np.int64]:
    """Return the rows of the events that the run file keeps (`event_subset`): evenly spaced in the data."""
    return np.linspace(0, n_events - 1, n_kept).astype(np.int64)


@dataclass(frozen=True)
class Record:
    """Record of one sweep of one chain, or of one step of one start of Bayesian EM.

    Attributes
    ----------
    log_likelihood, log_posterior : float
        In nats, of the standardised events.
    occupied : int
        Components that hold an event.
    alpha : float
        Concentration of the Dirichlet process.
    seconds : float
        Wall time of the sweep.
    counts : tuple of int
        `COUNTS` of the sweep that led to the state; in the record of a draw, their sums over the sweeps since
        the previous draw.
    """

    log_likelihood: float
    log_posterior: float
    occupied: int
    alpha: float
    seconds: float
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class FileLayout:
    """Sizes and constant content of a run file.

    Attributes
    ----------
    kind : str
        ``mcmc`` or ``bem``.
    chains : int
        Chains, or starts of Bayesian EM.
    draws : int
        Draws of each chain; 1 for Bayesian EM, the best start.
    sweeps : int
        Rows of the trace: one for the initial state, and all sweeps of a chain (most steps of a start).
    n_components : int
        The truncation K.
    channels : sequence of str
        D names.
    constants : mapping of str to (dimension names, array)
        Content of the group ``constant_data``, text or numbers. ``channel_means`` and ``channel_sds``,
        float64 [D] over ``("channel",)``, convert standardised values to the transformed scale.
        ``event_subset``, float32 [E, D] over ``("subset", "channel")``: some events, on the standardised
        scale, and where events have weights ``event_subset_weights``, float64 [E].
        ``reference_events``, float64 [R, D] over ``("reference", "channel")``, where a run monitors the
        convergence of its chains. ``sample_weights``, float64 [S] over ``("sample",)``, where events have
        weights: what an event of each sample counts.
    attributes : mapping
        Attributes of the file, at least `REQUIRED_ATTRIBUTES`; values other than texts and numbers as JSON.
    learned : sequence of str
        The learned ones of `dpmix.model.mixture.HYPERPARAMETERS`.
    counts : sequence of str
        `COUNTS` of the kind.
    cohort : sequence of str
        The parts of `COHORT` that the model has; none for a pooled model.
    judged : bool
        The file has room for the populations and the verdict (`dpmix.populations.draws.kept`); files of
        earlier versions and of Bayesian EM have none.
    """

    kind: str
    chains: int
    draws: int
    sweeps: int
    n_components: int
    channels: Sequence[str]
    constants: Mapping[str, tuple[Sequence[str], npt.ArrayLike]]
    attributes: Mapping[str, object]
    learned: Sequence[str] = ()
    counts: Sequence[str] = ()
    cohort: Sequence[str] = ()
    judged: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("mcmc", "bem"):
            raise ValueError(f"kind must be mcmc or bem, not {self.kind}")
        if self.kind == "bem" and self.draws != 1:
            raise ValueError("Bayesian EM keeps one draw, the best start")
        if missing := [name for name in REQUIRED_ATTRIBUTES if name not in self.attributes]:
            raise ValueError(f"attributes missing: {', '.join(missing)}")
        if missing := [name for name in ("channel_means", "channel_sds") if name not in self.constants]:
            raise ValueError(f"constants missing: {', '.join(missing)}")

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each dimension that draws and sweeps fill."""
        return {
            "chain": self.chains if self.kind == "mcmc" else 1,
            "draw": self.draws,
            "sweep": self.sweeps,
            "start": self.chains,
            "step": self.sweeps,
            "component": self.n_components,
            "channel": len(self.channels),
            "channel_bis": len(self.channels),
            "sample": len(np.asarray(self.constants["sample"][1])) if "sample" in self.constants else 0,
            "span": len(SPANS),
            "reference": self.n_references,
            "quantity": 1 + self.n_references + MAX_POPULATIONS,
            **(self._sizes_of_populations if self.judged else {}),
        }

    @property
    def _sizes_of_populations(self) -> dict[str, int]:
        """The most that each dimension of the group ``populations`` can be."""
        most = POOLED_DRAWS * self.n_components
        return {
            "used": self.chains * min(max(USED_DRAWS // self.chains, 1), self.draws),
            "pair": 2,
            "chain_bis": self.chains,
            "pooled_draw": POOLED_DRAWS,
            **dict.fromkeys(("pooled_component", "mode", "population"), most),
            "point": KEPT_POINTS,
            "character": MAX_CHARACTERS,
        }

    @property
    def n_references(self) -> int:
        """Reference events; 0 where the run does not monitor the convergence of its chains."""
        return len(np.asarray(self.constants[REFERENCES][1])) if REFERENCES in self.constants else 0

    @property
    def variables(self) -> dict[str, tuple[tuple[str, ...], npt.DTypeLike]]:
        """Dimensions and type of each dataset that draws and sweeps fill, by its path in the file."""
        draw = ("chain", "draw")
        sweep = ("chain", "sweep") if self.kind == "mcmc" else ("start", "step")
        hyperparameters = {
            "m": (*draw, "channel"),
            "gamma": draw,
            "nu": draw,
            "phi": (*draw, "channel", "channel_bis"),
        }
        cohort = {
            "kappa": draw,
            "base_weights": (*draw, "component"),
            "sample_proportions": (*draw, "sample", "component"),
            "shifts": (*draw, "sample", "channel"),
            "tau": (*draw, "channel"),
        }
        return {
            "posterior/weights": ((*draw, "component"), np.float64),
            "posterior/means": ((*draw, "component", "channel"), np.float64),
            "posterior/covariances": ((*draw, "component", "channel", "channel_bis"), np.float64),
            "posterior/alpha": (draw, np.float64),
            **{f"posterior/{name}": (hyperparameters[name], np.float64) for name in self.learned},
            **{f"posterior/{name}": (cohort[name], np.float64) for name in self.cohort},
            "sample_stats/log_likelihood": (draw, np.float64),
            "sample_stats/log_posterior": (draw, np.float64),
            "sample_stats/occupied": (draw, np.int64),
            "sample_stats/seconds": (draw, np.float64),
            **{f"sample_stats/{name}": (draw, np.int64) for name in self.counts},
            "trace/log_likelihood": (sweep, np.float64),
            "trace/log_posterior": (sweep, np.float64),
            "trace/occupied": (sweep, np.int64),
            "trace/alpha": (sweep, np.float64),
            **{f"trace/{name}": (sweep, np.int64) for name in self.counts},
            "trace/seconds": (sweep, np.float64),
            "profile/seconds": (("span",), np.float64),
            **(_CONVERGENCE if self.n_references else {}),
            **(_POPULATIONS if self.judged else {}),
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of the file's data; its metadata take at most a few hundred kB."""
        drawn = sum(8 * math.prod(self.sizes[dim] for dim in dims) for dims, _ in self.variables.values())
        return drawn + sum(np.asarray(values).nbytes for _, values in self.constants.values())

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the checkpoint and of the next one; for a moment, both are on the disk."""
        states = self.chains if self.kind == "mcmc" else 3
        dim, n_samples = len(self.channels), self.sizes["sample"] if self.cohort else 0
        own = 8 * n_samples * (self.n_components + dim + 2)
        return 2 * states * (8 * self.n_components * (dim**2 + dim + 2) + 8 * dim**2 + own + 4096)


class _NewFile(h5py.File):  # type: ignore[misc]  # h5py has no types
    """A new file that opens each object once: h5netcdf looks them up by path, 2,400 times in a run file."""

    def __init__(self, path: Path) -> None:
        # An aligned word of 8 bytes is written at once; a word across two pages could be torn.
        super().__init__(
            path, "w", track_order=True, alignment_threshold=1, alignment_interval=8, locking=False
        )
        self._opened: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._opened or self._opened[name].name is None:  # None: another is at this path now
            self._opened[name] = super().__getitem__(name)
        return self._opened[name]


def lay_out(path: Path, layout: FileLayout) -> None:
    """Write a run file with all datasets at their final shape and nothing drawn."""
    with _NewFile(path) as opened, h5netcdf.File(opened, "w") as file:
        file.attrs.update(_attributes(layout))
        for name in COUNTERS:
            file.create_variable(name, (), np.int64, data=np.int64(0))
        for group_name in dict.fromkeys(name.split("/")[0] for name in layout.variables):
            _lay_out_group(file.create_group(group_name), layout)
        _write_constants(file.create_group("constant_data"), layout)


def coordinate(dim: str, size: int, channels: Sequence[str]) -> AnyArray:
    """Return the values along a dimension: names of channels, spans and quantities, else numbers."""
    if dim == "quantity":
        return np.array(quantities(size - 1 - MAX_POPULATIONS, MAX_POPULATIONS))
    if dim == "span":
        return np.array(list(SPANS))
    return np.array(channels) if dim in ("channel", "channel_bis") else np.arange(size)


REFERENCE, POPULATION = "reference event", "interim population"  # in the names of monitored quantities


def quantities(n_references: int, n_populations: int) -> list[str]:
    """Return the names of the monitored quantities, in the order of the dimension ``quantity``."""
    return [
        "log likelihood",
        *(f"log density at {REFERENCE} {r + 1}" for r in range(n_references)),
        *(f"proportion of {POPULATION} {p + 1}" for p in range(n_populations)),
    ]


def write_coordinates(group: h5netcdf.Group, coordinates: Mapping[str, AnyArray]) -> None:
    """Create the dimensions of a group, with the values along each but for those in `UNNUMBERED`.

    Only without values along their bytes, xarray and ArviZ read texts as one value.
    """
    for dim, values in coordinates.items():
        group.dimensions[dim] = len(values)
        if dim not in UNNUMBERED:
            _write(group, dim, (dim,), values)


def _attributes(layout: FileLayout) -> dict[str, Any]:
    """Return the attributes of the file: the layout's, and the ones that every file has."""
    given = {
        name: _storable(value) if isinstance(value, (str, int, float)) else json.dumps(value)
        for name, value in layout.attributes.items()
    }
    versions = {"dpmix": VERSION, "numpy": np.__version__, "python": platform.python_version()}
    return {
        "kind": layout.kind,
        "format_version": FORMAT_VERSION,
        "run_id": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": json.dumps(versions),
        **given,
    }


def _storable(value: str | int | float) -> Any:
    """Return a value for an attribute; a path that is not UTF-8 keeps its bytes, as h5py reads them again."""
    if not isinstance(value, str) or value.isascii():
        return value
    return np.array(value.encode("utf-8", "surrogateescape"), h5py.string_dtype())


def _lay_out_group(group: h5netcdf.Group, layout: FileLayout) -> None:
    """Create the coordinates of a group, and its datasets with nothing drawn."""
    prefix = f"{group.name.strip('/')}/"
    variables = {
        name.removeprefix(prefix): v for name, v in layout.variables.items() if name.startswith(prefix)
    }
    used = dict.fromkeys(dim for dims, _ in variables.values() for dim in dims)
    write_coordinates(group, {dim: coordinate(dim, layout.sizes[dim], layout.channels) for dim in used})
    for name, (dims, dtype) in variables.items():
        if dims:
            group.create_variable(name, dims, dtype, dcpl=_filled(dtype))
        else:  # h5netcdf ignores properties of a dataset of one number
            group.create_variable(name, dims, dtype, data=np.asarray(-1, dtype))


def _write_constants(group: h5netcdf.Group, layout: FileLayout) -> None:
    """Write the constants; one named like its only dimension holds the values along that dimension."""
    constants = {name: (tuple(dims), np.asarray(values)) for name, (dims, values) in layout.constants.items()}
    sizes = {
        dim: size for dims, array in constants.values() for dim, size in zip(dims, array.shape, strict=True)
    }
    numbered = {dim: coordinate(dim, size, layout.channels) for dim, size in sizes.items()}
    given = {name: array for name, (dims, array) in constants.items() if dims == (name,)}
    write_coordinates(group, numbered | given)
    for name, (dims, array) in constants.items():
        if name not in given:
            _write(group, name, dims, array)


def _write(group: h5netcdf.Group, name: str, dims: tuple[str, ...], array: AnyArray) -> None:
    if array.dtype.kind in "OU":
        group.create_variable(name, dims, h5py.string_dtype(), data=array.astype(object))
    else:
        group.create_variable(name, dims, array.dtype, data=array)


def unwritten(dtype: npt.DTypeLike) -> AnyArray:
    """Return the value of a number that was not written, an array []: NaN, or -1 in integers."""
    return np.array(np.nan if np.dtype(dtype).kind == "f" else -1, dtype)


def _filled(dtype: npt.DTypeLike) -> h5py.h5p.PropDCID:
    """Return properties of a dataset that is on the disk from the start, filled with NaN, -1 or no text."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_ALLOC)
    if dtype != "S1":  # h5py would fill a text with arbitrary bytes; the default is 0
        properties.set_fill_value(unwritten(dtype))
    return properties
