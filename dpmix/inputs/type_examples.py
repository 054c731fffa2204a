"""Examples of cell types: events of a run that carry the name of their type.

| examples | label of an event |
| --- | --- |
| FlowJo workspace, GatingML file | its innermost gate; outside of all gates it is an example of unknown |
| CSV with the columns `event` and `type`, `cell_type` or `label` | row `event`, from 0, of the file in the \
column `sample`, by name; without this column the run has one file |
| CSV `FILE::COLUMN`, AnnData `FILE::COLUMN` of obs (`cell_type`), NPZ `FILE::ARRAY` (`labels`) | line by \
line, for the file of the run with the same name but for the suffix; a run of one file may have another \
name |

A gate inside another is its child. An event in several gates that are not inside each other has no label. In
a column, blank, NA, NaN, None and Unlabeled say nothing of the event; `unknown` and `ungated` are examples of
events of no type. Integers have their names in the array `label_names` of an NPZ file; without it they are
their own names, and 0 and below say nothing.

N events, R cell types.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError
from dpmix.inputs.events import Events
from dpmix.inputs.gate_files import NoSample
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.sources import Source
from dpmix.inputs.text_format import read_cells
from dpmix.system.extras import require_extra
from dpmix.system.paths import from_home

GATES, ANNDATA, NPZ = (".wsp", ".xml", ".gatingml"), (".h5ad",), (".npz",)
LABELS = ("type", "cell_type", "label")
EVENT, SAMPLE = "event", "sample"
SILENT = ("", "na", "nan", "none", "<na>", "unlabeled", "unlabelled")
NO_TYPE = ("unknown", "ungated")
FEW = 20
OPTION = "--types"

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Examples:
    """Labels of the events of a run.

    Attributes
    ----------
    source : str
        As given.
    types : tuple of str
        R names.
    parents : tuple of str
        R names of parents, "" for none.
    labels : int32 [N]
        Type of each event of the run; R: of no type; -1: not known.
    notes : tuple of str
        For a reader of the report.
    """

    source: str
    types: tuple[str, ...]
    parents: tuple[str, ...]
    labels: Labels
    notes: tuple[str, ...]


def are_examples(given: str | Path) -> bool:
    """Return True for a file of examples, False for a table of cell types.

    Raises
    ------
    ConfigError
        A file of examples does not exist.
    """
    path, column = _parted(given)
    known = path.suffix.casefold() in (*GATES, *ANNDATA, *NPZ)
    if (known or column) and not path.is_file():
        raise ConfigError([f"{OPTION}: no such file: {path}; give a file of examples or a table of types"])
    if known or column:
        return True
    if not path.is_file():
        return False
    try:
        head = read_cells(path)[:1]
    except (OSError, ValueError, csv.Error):
        return False  # reading it as a table gives the error
    names = {cell.casefold() for line in head for cell in line}
    return EVENT in names and bool(names.intersection(LABELS))


def read_examples(given: str | Path, events: Events) -> Examples:
    """Read examples of cell types.

    Parameters
    ----------
    given : str or Path
        File, with ::COLUMN for a column of labels.
    events : Events
        Events of the run.

    Raises
    ------
    ConfigError
        The file cannot be read, belongs to no file of the run, or has no label of a type.
    DataError
        A gate cannot be applied.
    """
    path, column = _parted(given)
    if path.suffix.casefold() in GATES:
        words, parents, notes = _of_gates(path, events)
    else:
        words, parents, notes = _of_columns(path, column, events), {}, []
    plain = [word.strip() for own in words for word in own.tolist()]
    names = tuple(sorted({w for w in plain if w.casefold() not in (*SILENT, *NO_TYPE)}))
    if len(names) < 2:
        found = f"only {names[0]}" if names else "none"
        raise ConfigError([f"{OPTION}: {given}: need labels of at least 2 cell types, found {found}"])
    above = tuple(dict.fromkeys(p for r in names for p in _above(r, parents) if p not in names))
    names = (*names, *above)
    codes = {name: r for r, name in enumerate(names)}
    numbers = {w: -1 if w.casefold() in SILENT else codes.get(w, len(names)) for w in set(plain)}
    labels = np.array([numbers[w] for w in plain], np.int32)
    return Examples(
        str(given),
        names,
        tuple(parents.get(name, "") for name in names),
        labels,
        (*notes, *_notes(given, names[: len(names) - len(above)], labels, events)),
    )


def _parted(given: str | Path) -> tuple[Path, str]:
    """Return the file and the column of `FILE::COLUMN`."""
    name, _, column = str(given).partition("::")
    return Path(from_home(name)), column


def _above(name: str, parents: dict[str, str]) -> list[str]:
    found = []
    while name := parents.get(name, ""):
        found.append(name)
    return found


def _notes(given: str | Path, names: Sequence[str], labels: Labels, events: Events) -> list[str]:
    """Return how many events of each file have labels, and the types with few."""
    lines = []
    for sample, start, stop in zip(
        events.samples, events.sample_starts[:-1], events.sample_starts[1:], strict=True
    ):
        own = int((labels[start:stop] >= 0).sum())
        if own:
            lines.append(f"{given}: {own:,} of {stop - start:,} events of {sample} have labels")
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    few = [f"{name} ({n})" for name, n in zip(names, counts, strict=False) if n < FEW]
    return lines + ([f"{given}: types with less than {FEW} examples: {', '.join(few)}"] if few else [])


def _of_gates(path: Path, events: Events) -> tuple[list[npt.NDArray[np.str_]], dict[str, str], list[str]]:
    """Return the innermost gate of each event by file, the parents of gates, and notes."""
    if not path.is_file():
        raise ConfigError([f"{OPTION}: no such file: {path}; give a file of examples or a table of types"])
    gates = ManualGates(path, OPTION)
    members: dict[int, dict[str, npt.NDArray[np.bool_]]] = {}
    missing: list[str] = []
    for s, source in enumerate(events.sources):
        try:
            members[s] = gates.members(source)
        except NoSample as error:
            missing.append(str(error))
    if not members:
        raise ConfigError([f"{OPTION}: {path}: has gates of no file of the run; {missing[0]}"])
    paths = tuple(dict.fromkeys(gate for own in members.values() for gate in own))
    last = [gate.rpartition("/")[2] for gate in paths]
    names = {
        gate: end if last.count(end) == 1 and end.casefold() not in (*SILENT, *NO_TYPE) else gate
        for gate, end in zip(paths, last, strict=True)
    }
    parents = {
        names[gate]: names[above]
        for gate in paths
        if (above := next((a for a in _folders(gate) if a in names), ""))
    }
    words, unclear = [], 0
    for s in range(len(events.sources)):
        start, stop = (int(at) for at in events.sample_starts[s : s + 2])
        if s not in members:
            words.append(np.full(stop - start, "", dtype="<U1"))
            continue
        rows = events.rows_in_file(s, start, stop)
        own, several = _innermost({gate: flags[rows] for gate, flags in members[s].items()}, names)
        words.append(own)
        unclear += several
    note = f"{path}: {unclear:,} events lie in several gates that are not inside each other: without label"
    return words, parents, [note] if unclear else []


def _folders(gate: str) -> list[str]:
    """Return the paths of the gates around a gate, the nearest first."""
    parts = gate.split("/")
    return ["/".join(parts[:k]) for k in range(len(parts) - 1, 0, -1)]


def _innermost(
    members: dict[str, npt.NDArray[np.bool_]], names: dict[str, str]
) -> tuple[npt.NDArray[np.str_], int]:
    """Return the name of the innermost gate of each event, unknown outside of all, and the unclear ones.

    An event in several innermost gates has the blank name.
    """
    n_events = len(next(iter(members.values()), ()))
    found = np.full(n_events, NO_TYPE[0], dtype=object)
    times = np.zeros(n_events, np.int64)
    for gate, inside in members.items():
        deeper = [flags for other, flags in members.items() if other.startswith(f"{gate}/")]
        own = inside & ~np.any(deeper, axis=0) if deeper else inside
        found[own] = names[gate]
        times += own
    found[times > 1] = ""
    return found.astype(np.str_), int((times > 1).sum())


def _of_columns(path: Path, column: str, events: Events) -> list[npt.NDArray[np.str_]]:
    """Return the label of each event by file of the run."""
    kind = path.suffix.casefold()
    if kind in NPZ:
        return _of_rows(path, _npz_labels(path, column), events)
    if kind in ANNDATA:
        return _of_rows(path, _obs_labels(path, column or LABELS[1]), events)
    try:
        head, *lines = read_cells(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "need a CSV file with names of columns"
        raise ConfigError([f"{OPTION}: {path}: cannot be read ({reason})"]) from None
    if column:
        if column not in head:
            raise ConfigError([f"{OPTION}: {path}: has no column {column}; it has {', '.join(head)}"])
        at = head.index(column)
        return _of_rows(path, np.array([line[at] if at < len(line) else "" for line in lines]), events)
    return _of_list(path, head, lines, events)


def _npz_labels(path: Path, name: str) -> npt.NDArray[np.str_]:
    """Return the labels of an NPZ file as text."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            chosen = name or "labels"
            if chosen not in arrays.files:
                found = ", ".join(arrays.files)
                raise ConfigError([f"{OPTION}: {path}: has no array {chosen}; it has {found}"])
            labels = arrays[chosen]
            names = arrays["label_names"] if "label_names" in arrays.files else None
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise ConfigError([f"{OPTION}: {path}: cannot be read ({error}); need an NPZ file"]) from None
    if labels.ndim != 1:
        raise ConfigError([f"{OPTION}: {path}: {chosen} has {labels.ndim} dimensions, need one per event"])
    if labels.dtype.kind not in "iu":
        return np.asarray(labels, np.str_)
    if names is None:
        return np.where(labels > 0, labels.astype(np.str_), "")
    if labels.max(initial=-1) >= len(names):
        raise ConfigError(
            [f"{OPTION}: {path}: label {labels.max()} has no name; label_names has {len(names)}"]
        )
    return np.where(labels >= 0, names.astype(np.str_)[np.maximum(labels, 0)], "")


def _obs_labels(path: Path, column: str) -> npt.NDArray[np.str_]:
    """Return a column of obs of an AnnData file as text."""
    require_extra("anndata", "anndata", f"{path}: a file of AnnData")
    import h5py
    from anndata.io import read_elem  # imported here because it takes a second

    try:
        with h5py.File(path, "r") as file:
            obs: Any = read_elem(file["obs"])
    except (OSError, KeyError) as error:
        raise ConfigError([f"{OPTION}: {path}: cannot be read ({error}); need an AnnData file"]) from None
    if column not in obs:
        found = ", ".join(map(str, obs.columns)) or "none"
        raise ConfigError([f"{OPTION}: {path}: obs has no column {column}; it has {found}"])
    values = obs[column].astype(object)
    return np.array(["" if missing else str(v) for v, missing in zip(values, values.isna(), strict=True)])


def _of_rows(path: Path, labels: npt.NDArray[np.str_], events: Events) -> list[npt.NDArray[np.str_]]:
    """Return labels of one file of the run, given one for each of its rows."""
    same = [s for s, source in enumerate(events.sources) if _stem(source) == path.stem]
    if not same and len(events.sources) == 1:
        same = [0]
    if len(same) != 1:
        found = f"{len(same)} files of the run have" if same else "no file of the run has"
        names = ", ".join(source.name for source in events.sources[:8])
        raise ConfigError(
            [f"{OPTION}: {path}: {found} this name but for the suffix ({names}); rename the file of labels"]
        )
    source = events.sources[same[0]]
    if len(labels) != source.n_events:
        raise ConfigError(
            [f"{OPTION}: {path}: has {len(labels):,} labels, {source.name} has {source.n_events:,} events"]
        )
    words = []
    for s in range(len(events.sources)):
        start, stop = (int(at) for at in events.sample_starts[s : s + 2])
        own = labels[events.rows_in_file(s, start, stop)] if s == same[0] else np.full(stop - start, "")
        words.append(own)
    return words


def _stem(source: Source) -> str:
    return source.path.stem


def _of_list(
    path: Path, head: Sequence[str], lines: Sequence[Sequence[str]], events: Events
) -> list[npt.NDArray[np.str_]]:
    """Return the labels of a list of events, with their files and rows."""
    plain = [name.casefold() for name in head]
    label = next((plain.index(name) for name in LABELS if name in plain), -1)
    event, sample = (plain.index(name) if name in plain else -1 for name in (EVENT, SAMPLE))
    files = [{source.name, source.path.name, _stem(source)} for source in events.sources]
    problem = ""
    if event < 0 or label < 0:
        problem = f"found the columns {', '.join(head)}, need event and type, or FILE::COLUMN"
    elif sample < 0 and len(files) > 1:
        problem = f"has no column {SAMPLE}, which a run of {len(files)} files needs"
    elif odd := next((k for k, line in enumerate(lines, 1) if len(line) != len(head)), 0):
        problem = f"row {odd} has {len(lines[odd - 1])} cells, need {len(head)} as in the first line"
    elif odd := next((k for k, line in enumerate(lines, 1) if not line[event].isdecimal()), 0):
        problem = f"row {odd}: event is {lines[odd - 1][event]}, need the number of a row, from 0"
    if problem:
        raise ConfigError([f"{OPTION}: {path}: {problem}"])
    full = [np.full(source.n_events, "", dtype=object) for source in events.sources]
    for k, line in enumerate(lines, 1):
        at = [s for s, names in enumerate(files) if line[sample] in names] if sample >= 0 else [0]
        if len(at) != 1:
            known = ", ".join(source.name for source in events.sources[:8])
            raise ConfigError(
                [f"{OPTION}: {path}: row {k}: no file {line[sample]} in the run; it has {known}"]
            )
        row = int(line[event])
        if row >= len(full[at[0]]):
            n_events = events.sources[at[0]].n_events
            raise ConfigError([f"{OPTION}: {path}: row {k}: event {row} of a file of {n_events:,} events"])
        full[at[0]][row] = line[label]
    starts = [int(at) for at in events.sample_starts]
    return [
        own[events.rows_in_file(s, starts[s], starts[s + 1])].astype(np.str_) for s, own in enumerate(full)
    ]
