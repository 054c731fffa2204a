"""The step from files to settings of the channels: what `dpmix init` suggests, and what a change does.

All functions read the same bounded number of events as `dpmix init`, and take settings as the config has them
(section `data`), so that the page shows what a run with this config does.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import ValidationError

from dpmix.config.data import DEFAULT, DataConfig, TransformConfig
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError
from dpmix.inputs.channels import display_names, same_channels
from dpmix.inputs.compensation import own_matrix
from dpmix.inputs.default_channels import Rows, some_rows
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.file_plans import FilePlan, plan_files
from dpmix.inputs.fitting import Seen, make_transforms
from dpmix.inputs.marker_names import absences
from dpmix.inputs.opening import open_sources
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage
from dpmix.inputs.suggest import Settings, suggest
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array
from dpmix.populations.tree.decisions import problems_of

BINS = 60  # of a histogram
PIXELS = 96  # of a density, in each direction
GRID_CHANNELS, GRID_EVENTS, GRID_PIXELS = 6, 20_000, 64  # of the grid of pairs, unless channels are chosen
GRID_MOST = 12  # channels of the grid, at most
OUTER = 0.001  # share of the events beyond each end of a plot

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Choice:
    """Files whose channels are chosen.

    Attributes
    ----------
    sources : tuple of Source
    base : Path
        Folder that names are relative to.
    rows : tuple of tuple of Rows
        For each file the stretches of events that are read.
    present : tuple of int
        Channels of the first file that all files have.
    names : tuple of str
        Display names of all channels of the first file.
    settings : Settings
        What `dpmix init` suggests.
    spillover : Spillover or None
        Matrix that can be edited: the matrix of the first file, else the identity of its channels that are
        used. None for data that are not fluorescence.
    """

    sources: tuple[Source, ...]
    base: Path
    rows: tuple[tuple[Rows, ...], ...]
    present: tuple[int, ...]
    names: tuple[str, ...]
    settings: Settings
    spillover: Spillover | None

    def place(self, name: str) -> int:
        """Return the place of a channel among those that all files have.

        Raises
        ------
        ConfigError
            There is no such channel.
        """
        shown = [self.names[k] for k in self.present]
        if name not in shown:
            raise ConfigError([f"channel {name}: is not in all ticked files; choose one of the table"])
        return shown.index(name)


def open_choice(files: Sequence[str], base: Path) -> Choice:
    """Open files and suggest settings.

    Parameters
    ----------
    files : sequence of str
        Names relative to `base`.
    base : Path

    Raises
    ------
    ConfigError, DataError
        A file cannot be read, or no config can be suggested.
    """
    sources = open_sources(files, base, Storage.temporary())
    absent, _ = absences(sources)
    settings = suggest(sources, base=base)
    present = tuple(k for k in range(len(sources[0].details)) if k not in absent)
    rows = tuple(tuple(own) for own in some_rows(sources))
    names = display_names(sources[0].details)
    return Choice(tuple(sources), base, rows, present, names, settings, _editable(sources[0], settings))


def _editable(source: Source, settings: Settings) -> Spillover | None:
    """Return the matrix that can be edited."""
    own = own_matrix(source, False).spillover
    if own is not None or source.kind != "fluorescence":
        return own
    taken = tuple(channel.detector for channel in settings.channels if channel.taken)
    return Spillover(taken, np.eye(len(taken)))


def described(choice: Choice) -> dict[str, Any]:
    """Return what `dpmix init` suggests for each channel and why, with the settings to start from."""
    raw = raw_values(choice, {"compensation": choice.settings.compensation}, None)
    fitted = transforms_of(choice, raw, {})
    rows = []
    for k, (name, one) in enumerate(zip(choice.names, choice.settings.channels, strict=True)):
        found = one.transform or (fitted[choice.present.index(k)] if k in choice.present else None)
        rows.append(
            {
                "name": name,
                "detector": one.detector,
                "marker": one.marker,
                "taken": one.taken,
                "why": one.why,
                "present": k in choice.present,
                "transform": {"method": found.method, **found.parameters()} if found else None,
            }
        )
    own = choice.spillover
    return {
        "channels": rows,
        "notes": list(choice.settings.notes),
        "compensation": choice.settings.compensation,
        "detectors": list(own.detectors) if own else [],
        "matrix": own.matrix.tolist() if own else [],
    }


def checked(files: Sequence[str], data: Mapping[str, Any]) -> DataConfig:
    """Return the section `data` of a config from plain values: channels, transform and compensation.

    Raises
    ------
    ConfigError
        A key or value is not accepted; one line for each.
    """
    extra = [key for key in data if key not in ("channels", "transform", "compensation")]
    if extra:
        raise ConfigError([f"data.{key}: cannot be set on the page; edit the config" for key in extra])
    try:
        return DataConfig(files=list(files) or ["-"], **data)
    except ValidationError as error:
        raise ConfigError(problems_of(error, "need settings as in the section data of a config")) from None


def of_taken(data: DataConfig) -> DataConfig:
    """Return settings without the transforms of channels that are left out."""
    kept = {DEFAULT, *(data.channels or [])}
    transform = {DEFAULT: data.transform[DEFAULT], **data.transform}
    return data.model_copy(update={"transform": {key: one for key, one in transform.items() if key in kept}})


def raw_values(choice: Choice, data: Mapping[str, Any], matrix: Matrix | None) -> Array:
    """Return the raw values of the channels that all files have, float64 [M, D].

    Parameters
    ----------
    choice : Choice
    data : mapping
        As in `checked`. Its compensation is used.
    matrix : sequence of sequence of float, optional
        Replaces the compensation of `data`; it has the rows and columns of `choice.spillover`.
    """
    with TemporaryDirectory() as folder:
        compensation = data.get("compensation", "auto")
        if matrix is not None:
            path = Path(folder) / "spillover.csv"
            path.write_text(matrix_text(choice, matrix), encoding="utf-8")
            compensation = str(path)
        plans = _plans(choice, compensation)
    parts = [plan.read(*rows, None)[1] for plan, own in zip(plans, choice.rows, strict=True) for rows in own]
    return np.concatenate(parts)


def _plans(choice: Choice, compensation: str) -> list[FilePlan]:
    """Return how each file is read: the channels that all have, and its compensation."""
    first, *others = choice.sources
    chosen = [choice.present, *(same_channels(first, choice.present, other)[0] for other in others)]
    settings = checked([], {"compensation": compensation})
    return plan_files(settings, choice.base, choice.sources, chosen)[0]


def transforms_of(choice: Choice, raw: Array, given: Mapping[str, TransformConfig]) -> tuple[Transform, ...]:
    """Return the transforms of the channels that all files have, by their settings."""
    plans = _plans(choice, "none")
    asked = [given.get(choice.names[k], TransformConfig()) for k in choice.present]
    return make_transforms(asked, plans, Seen(raw, _highest(raw)), True)


def _highest(raw: Array) -> Array:
    """Return the largest finite value of each column, 0 where no value is finite."""
    found: Array = np.where(np.isfinite(raw), raw, -np.inf).max(axis=0)
    return np.where(np.isfinite(found), found, 0.0)


def look(choice: Choice, data: Mapping[str, Any], matrix: Matrix | None, name: str) -> dict[str, Any]:
    """Return each channel as a histogram before and after its transform, and the keys of the config.

    Parameters
    ----------
    choice, data, matrix
        As in `raw_values`.
    name : str
        Name of the run, for the file of an edited matrix.
    """
    given = checked([], data)
    for channel in [*(given.channels or []), *(key for key in given.transform if key != DEFAULT)]:
        choice.place(channel)
    raw = raw_values(choice, data, matrix)
    transforms = transforms_of(choice, raw, given.transform)
    rows = []
    for j, (k, transform) in enumerate(zip(choice.present, transforms, strict=True)):
        after = applied(transform, raw[:, j])
        lost = int((~np.isfinite(after)).sum())
        why = f"{lost:,} of {len(after):,} events have no value on this scale" if lost else ""
        rows.append(
            {
                "name": choice.names[k],
                "transform": {"method": transform.method, **transform.parameters()},
                "before": histogram(raw[:, j]),
                "after": histogram(after),
                "problem": why,
            }
        )
    explicit = {
        choice.names[k]: TransformConfig.model_validate({"method": one.method, **one.parameters()})
        for k, one in zip(choice.present, transforms, strict=True)
        if choice.names[k] in given.transform
    }
    written = given.model_copy(update={"transform": given.transform | explicit})
    return {"channels": rows, "events": len(raw), "yaml": yaml_of(written, matrix, name)}


def pair(
    choice: Choice, data: Mapping[str, Any], matrix: Matrix | None, across: str, up: str
) -> dict[str, Any]:
    """Return two channels as densities on their transformed scales: not compensated, and as set."""
    given = checked([], data)
    places = choice.place(across), choice.place(up)
    values = raw_values(choice, data, matrix)
    transforms = transforms_of(choice, values, given.transform)
    both = [
        np.column_stack([applied(transforms[j], raw[:, j]) for j in places])
        for raw in (raw_values(choice, {"compensation": "none"}, None), values)
    ]
    ranges = [_ends(np.concatenate([one[:, axis] for one in both])) for axis in (0, 1)]
    return {
        "ranges": [list(ends) for ends in ranges],
        "before": _density(both[0], ranges, PIXELS),
        "after": _density(both[1], ranges, PIXELS),
        "pixels": PIXELS,
    }


def grid(
    choice: Choice, data: Mapping[str, Any], matrix: Matrix | None, shown: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return some channels on their transformed scales: histograms, and densities of all pairs.

    Parameters
    ----------
    choice, data, matrix
        As in `raw_values`.
    shown : sequence of str, optional
        Channels to show, at most `GRID_MOST`. Default: the first `GRID_CHANNELS` of the channels of `data`.

    Returns
    -------
    dict
        ``channels``: names. ``histograms``: of each channel. ``densities``: for each channel but the first,
        its densities with those before it, which are across. ``events``: how many are counted.

    Raises
    ------
    ConfigError
        A channel is not there, or there are too many.
    """
    given = checked([], data)
    names = (given.channels or [])[:GRID_CHANNELS] if shown is None else list(dict.fromkeys(shown))
    if len(names) > GRID_MOST:
        raise ConfigError([f"pairs of channels: {len(names)} are chosen; need at most {GRID_MOST}"])
    places = [choice.place(name) for name in names]
    raw = raw_values(choice, data, matrix)
    transforms = transforms_of(choice, raw, given.transform)
    rows = np.linspace(0, len(raw) - 1, min(len(raw), GRID_EVENTS)).astype(np.int64)
    values = [applied(transforms[j], raw[rows, j]) for j in places]
    ranges = [_ends(column) for column in values]
    densities = [
        [
            _density(np.column_stack([values[a], values[u]]), [ranges[a], ranges[u]], GRID_PIXELS)
            for a in range(u)
        ]
        for u in range(len(names))
    ]
    pictures = {"histograms": [histogram(column) for column in values], "densities": densities[1:]}
    return {"channels": names, "events": len(rows), "pixels": GRID_PIXELS} | pictures


def applied(transform: Transform, raw: Array) -> Array:
    """Return transformed values, float64 [M]; not finite where the transform is not defined."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return transform.apply(raw)


def histogram(values: Array) -> dict[str, Any]:
    """Return the ends of a histogram and its heights relative to the highest; none without finite values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {"heights": [], "low": 0.0, "high": 0.0}
    low, high = _ends(finite)
    counts = np.histogram(finite, BINS, (low, high))[0]
    return {"heights": (counts / max(1, counts.max())).round(3).tolist(), "low": low, "high": high}


def _ends(values: Array) -> tuple[float, float]:
    """Return the ends of a plot, which leave `OUTER` of the finite values out on each side."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = (float(q) for q in np.quantile(finite, [OUTER, 1 - OUTER]))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _density(values: Array, ranges: Sequence[tuple[float, float]], pixels: int) -> str:
    """Return the log density of two columns in base64, uint8 [pixels, pixels] with the top row first."""
    finite = values[np.isfinite(values).all(axis=1)]
    counts = np.histogram2d(finite[:, 1], finite[:, 0], pixels, (ranges[1], ranges[0]))[0]
    depth = np.log1p(counts) / np.log1p(max(1.0, counts.max()))
    return base64.b64encode(np.rint(255 * depth[::-1]).astype(np.uint8).tobytes()).decode()


def matrix_text(choice: Choice, matrix: Matrix) -> str:
    """Return a spillover matrix as the text of a CSV file.

    Raises
    ------
    ConfigError
        The files have no compensation, or the matrix has another shape.
    """
    own = choice.spillover
    if own is None:
        raise ConfigError(["compensation: these files are not fluorescence; use none"])
    n = len(own.detectors)
    if len(matrix) != n or any(len(row) != n for row in matrix):
        raise ConfigError([f"compensation: need {n} rows of {n} numbers, one for each detector"])
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["", *own.detectors])
    lines.writerows([name, *row] for name, row in zip(own.detectors, matrix, strict=True))
    return text.getvalue()


def matrix_file(name: str) -> str:
    """Return the name of the file with the edited matrix of a run."""
    return f"{name}.spillover.csv"


def yaml_of(data: DataConfig, matrix: Matrix | None, name: str) -> str:
    """Return the keys of a config that do the same as the page."""
    compensation = data.compensation if matrix is None else matrix_file(name)
    lines = ["data:", "  channels:", *(f"  - {flow(channel)}" for channel in data.channels or [])]
    lines += [f"  compensation: {flow(compensation)}", "  transform:"]
    shown = of_taken(data).transform
    lines += [f"    {flow(key)}: {flow(one.model_dump(mode='json'))}" for key, one in shown.items()]
    return "\n".join(lines) + "\n"
