"""From data files to the events that the sampler sees, chunk by chunk, with a report of all that was done.

In this order: rows (all, or a subsample) -> logarithmic amplification undone ($PnE) -> compensated -> margin
events counted, or dropped where asked -> transformed -> atoms spread where asked -> standardised. One array
of N x D numbers is held, in memory or in a file
(`dpmix.inputs.storage`), and passed over as seldom as its steps
allow; beside it, where not every row is taken, the number of each. `prepare` makes the events of a run;
`prepare_like` those of other files in the same way, on the scale that the run has recorded.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flowutils.compensate import compensate
from threadpoolctl import threadpool_limits

from dpmix.config.schema import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import atoms
from dpmix.inputs.channels import (
    Panel,
    choose,
    display_names,
    same_channels,
    settings_of,
    transform_of,
)
from dpmix.inputs.events import ChannelReport, Events, Report
from dpmix.inputs.fcs import Channel, Spillover
from dpmix.inputs.opening import open_sources
from dpmix.inputs.samples import open_samples
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage, release_pages
from dpmix.inputs.transforms import Scaling, Transform
from dpmix.kernels.layout import MAX_CHANNELS
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.system.progress import ProgressLog

CHUNK = 65_536  # events read and worked on at a time
FLOAT_LIMIT = 1.0 - 2.0**-18  # of $PnR: 262143 of 262144, where instruments with float values saturate
PILE_SHARE, PILE_EVENTS = 0.001, 10  # events at one extreme value that make it a limit of the channel
WORST_CONDITION = 1e8  # of a spillover matrix
NO_COMPENSATION = "data.compensation: none takes the values as they are, or give a CSV file"


def prepare(settings: DataConfig, base: Path, seed: int, storage: Storage | None = None) -> Events:
    """Read the files of a run and make its events.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that file names are relative to.
    seed : int
        For the subsample (max_events), and the noise that atoms are spread by.
    storage : Storage, optional
        What holds the events; default: memory.

    Raises
    ------
    ConfigError
        A file or channel is not there, or a transform's parameters do not fit.
    DataError
        A file cannot be read, or its events cannot be used: values that are not finite, a constant channel,
        fewer events than channels, values that a logarithm does not take.
    """
    with threadpool_limits(1, "blas"):  # the same bits whatever the number of threads
        return _prepare(settings, base, seed, storage or Storage())


def prepare_like(
    settings: DataConfig,
    base: Path,
    files: Sequence[str | Path],
    scaling: Scaling,
    detectors: Sequence[str],
    storage: Storage | None = None,
) -> Events:
    """Read files as the sampler of a run would have seen them; of the run's own files, bit for bit as it did.

    Channels are found by marker or detector, amplification is undone and compensation done as the run's
    config says (auto: by each file's own matrix). Transforms, standardisation and the atoms, with what is
    done to events there, are the run's: what piles up elsewhere stays there. All events are taken, whatever
    data.max_events and data.margin_events say. The noise at atoms goes by the samples' names, which are those
    of the run as long as no two of the files have one name and no table gave them others.

    Parameters
    ----------
    settings : DataConfig
        Of the run's config; its compensation and linearize are used.
    base : Path
        Folder that the names of files and of a compensation matrix are relative to.
    files : sequence of str or Path
        Names or globs.
    scaling : Scaling
        Of the run.
    detectors : sequence of str
        D names in the run's first file (`Events.detectors`; attribute "detectors" of the run file).
    storage : Storage, optional
        What holds the events; default: memory.

    Raises
    ------
    ConfigError
        A file is not there.
    DataError
        A file cannot be read or lacks a channel of the run, or its events cannot be used: values that are not
        finite, values that a logarithm does not take, no events.
    """
    storage = storage or Storage()
    sources = open_sources(files, base, storage)
    both = zip(detectors, scaling.channels, strict=True)
    run = Panel("the run", tuple(Channel(name, shown if shown != name else "") for name, shown in both))
    found = [same_channels(run, range(len(detectors)), source) for source in sources]
    notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
    notes += [note for _, differences in found for note in differences]
    plans = _plan(settings, sources, [chosen for chosen, _ in found], base, notes)
    total = sum(source.n_events for source in sources)
    progress = ProgressLog("preparing the events", 4 * total)
    with threadpool_limits(1, "blas"):
        gathered = _gather(plans, total, False, 0, storage, progress)
    if len(gathered.values) == 0:
        raise DataError(f"{_names(plans)}: found no events, need at least one")
    recorded = scaling.atoms or ((),) * len(scaling.channels)
    here = tuple(
        tuple(atom for atom in own if atom.events) for own in atoms.counted(recorded, gathered.values)
    )
    _check_logarithms(scaling.transforms, gathered.not_positive, scaling.channels)
    seen = _transform(gathered, scaling, [source.name for source in sources], progress)
    data_hash = _standardise(gathered.values, scaling, progress)
    events = _events(plans, gathered, replace(scaling, atoms=here), seen.beyond, notes, data_hash, storage)
    return replace(events, scaling=scaling)


def _prepare(settings: DataConfig, base: Path, seed: int, storage: Storage) -> Events:
    sources, columns = open_samples(settings.files, settings.samples, base, storage)
    chosen, notes = _choose(settings.channels, sources)
    plans = _plan(settings, sources, chosen, base, notes)
    used = [sources[0].details[k] for k in chosen[0]]
    names = display_names(used)
    if len(names) > MAX_CHANNELS:
        raise DataError(
            f"{sources[0].name}: found {len(names)} channels, need {MAX_CHANNELS} at most: name those to "
            "take in data.channels"
        )
    transforms_asked = settings_of(settings.transform, sources[0], chosen[0])

    total = sum(source.n_events for source in sources)
    n_take = min(total, settings.max_events or total)
    progress = ProgressLog("preparing the events", 2 * total + 3 * n_take)
    gathered = _gather(plans, n_take, settings.margin_events == "drop", seed, storage, progress)
    values = gathered.values
    if len(values) < len(names):
        raise DataError(
            f"found {len(values)} events in {len(names)} channels, need at least as many events as channels: "
            "take fewer channels (data.channels) or more events (data.files, data.max_events"
            f"{', data.margin_events: report' if settings.margin_events == 'drop' else ''})"
        )
    transforms = tuple(
        transform_of(
            asked,
            [plan.source.details[plan.chosen[j]] for plan in plans],
            sources[0].kind,
            settings.linearize,
            float(gathered.highest[j]),
        )
        for j, asked in enumerate(transforms_asked)
    )
    _check_logarithms(transforms, gathered.not_positive, names)
    no_limits = (0.0,) if sources[0].kind == "mass" else ()
    found = atoms.find(values, settings.atoms, [transform.apply for transform in transforms], no_limits)
    scaling = Scaling(names, transforms, np.zeros(len(names)), np.ones(len(names)), found, seed)
    seen = _transform(gathered, scaling, [source.name for source in sources], progress)
    _check(seen, names, len(values))
    if settings.standardize:
        means = seen.totals / len(values)
        scaling = replace(scaling, means=means, sds=_deviations(values, means, progress))
    data_hash = _standardise(values, scaling, progress)
    if n_take < total:
        notes.append(f"{n_take} of {total} events drawn at random (data.max_events)")
    events = _events(plans, gathered, scaling, seen.beyond, notes, data_hash, storage)
    return replace(events, sample_columns=columns)


def _events(
    plans: Sequence[_Plan],
    gathered: _Gathered,
    scaling: Scaling,
    beyond: Ints,
    notes: Sequence[str],
    data_hash: str,
    storage: Storage,
) -> Events:
    """What was gathered and made of it, with the report; the atoms told are those of the scaling."""
    used = [plans[0].source.details[k] for k in plans[0].chosen]
    reports = tuple(
        ChannelReport(
            channel=name,
            detector=used[j].detector,
            transform=str(scaling.transforms[j]),
            low=int(gathered.low[j]),
            high=int(gathered.high[j]),
            share=float(gathered.low[j] + gathered.high[j]) / gathered.n_read,
            atoms=scaling.atoms[j],
            minimum=float(gathered.lowest[j]),
            maximum=float(gathered.highest[j]),
            negative=int(gathered.negative[j]),
            beyond_top=int(beyond[j]),
        )
        for j, name in enumerate(scaling.channels)
    )
    n_dropped = gathered.n_read - len(gathered.values)
    return Events(
        values=storage.seal(gathered.values),
        channels=scaling.channels,
        detectors=tuple(channel.detector for channel in used),
        samples=tuple(plan.source.name for plan in plans),
        sample_columns={},
        sources=tuple(replace(plan.source, fetch=_read_already) for plan in plans),
        sample_starts=gathered.sample_starts,
        rows=gathered.rows,
        scaling=scaling,
        report=Report(gathered.n_read, n_dropped, reports, tuple(notes)),
        data_hash=data_hash,
    )


def _read_already(start: int, stop: int, columns: Sequence[int]) -> Any:
    """In place of what reads a file: the numbers of a text file are held no longer."""
    raise ValueError("its events were read already")


@dataclass(frozen=True)
class _Plan:
    """What to read of one file and what to do to it.

    columns are read; chosen are the D columns of the run; spill are those the matrix is about, in its order.
    """

    source: Source
    chosen: tuple[int, ...]
    columns: tuple[int, ...]
    linear: tuple[int, ...]
    spill: tuple[int, ...]
    matrix: Array

    def places(self, numbers: Sequence[int]) -> list[int]:
        """Where channels of the file are among the columns read."""
        return [self.columns.index(k) for k in numbers]


def _choose(
    patterns: Sequence[str] | None, sources: Sequence[Source]
) -> tuple[list[Sequence[int]], list[str]]:
    """Numbers of the channels of a run in each of its files, and notes."""
    first = sources[0]
    chosen: list[Sequence[int]] = [choose(patterns, first)]
    notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
    if patterns is None:
        left = [c.detector for k, c in enumerate(first.details) if k not in chosen[0]]
        notes += [f"{first.name}: not taken unless named: {', '.join(left)}"] if left else []
    for source in sources[1:]:
        mine, differences = same_channels(first, chosen[0], source)
        chosen.append(mine)
        notes += differences
    return chosen, notes


def _plan(
    settings: DataConfig,
    sources: Sequence[Source],
    chosen: Sequence[Sequence[int]],
    base: Path,
    notes: list[str],
) -> list[_Plan]:
    """How each file is read, given the numbers of the channels in each; adds to the notes."""
    given = None if settings.compensation in ("auto", "none") else _matrix_file(base / settings.compensation)
    plans = []
    for source, mine in zip(sources, chosen, strict=True):
        spillover = given
        if settings.compensation == "auto":
            spillover, note = _own_spillover(source, any(other.spillover for other in sources))
            notes += [f"{source.name}: {note}"] if note else []
        spill, matrix = _resolve(spillover, source) if spillover else ((), np.eye(0))
        columns = tuple(sorted({*mine, *spill}))
        logs = [k for k in columns if source.details[k].log]
        if not settings.linearize and set(logs) & set(spill):
            names = ", ".join(source.details[k].detector for k in logs if k in spill)
            raise ConfigError(
                [
                    f"data.linearize: false leaves {names} of {source.name} on a logarithmic scale, where "
                    "compensation is not defined; need true, or data.compensation: none"
                ]
            )
        if logs and settings.linearize:
            names = ", ".join(source.details[k].detector for k in logs)
            notes.append(f"{source.name}: logarithmic amplification ($PnE) undone in {names}")
        linear = tuple(logs) if settings.linearize else ()
        plans.append(_Plan(source, tuple(mine), columns, linear, spill, matrix))
    return plans


def _own_spillover(source: Source, expected: bool) -> tuple[Spillover | None, str]:
    """The matrix in a file, None where it has none or was applied already, and a note about it.

    `expected` says that another file of the run has one, so that its absence is worth a note.
    FACSDiva writes compensated channels in brackets, <PE-A>; FlowJo calls them Comp-PE-A.
    """
    if source.spillover_problem:
        raise DataError(f"{source.name}: {source.spillover_problem}; {NO_COMPENSATION}")
    if source.spillover is None:
        expected = expected or source.kind == "fluorescence"
        return None, "not compensated: the file holds no spillover matrix" if expected else ""
    names = source.channels
    applied = [d for d in source.spillover.detectors if d not in names and {f"<{d}>", f"Comp-{d}"} & {*names}]
    if applied:
        return None, f"not compensated: compensated before, by the names of its channels (as <{applied[0]}>)"
    return (
        source.spillover,
        f"compensated by its own spillover matrix ({len(source.spillover.detectors)} channels)",
    )


def _matrix_file(path: Path) -> Spillover:
    """A spillover matrix from CSV: detector names as header, a row per dye, its name in front or not.

    Rows that are named as the columns are may come in any order; others are in the order of the columns.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [
                [cell.strip() for cell in line] for line in csv.reader(file) if any(map(str.strip, line))
            ]
        names = [name for name in lines[0] if name]
        matrix = np.array([[float(cell) for cell in line[len(line) - len(names) :]] for line in lines[1:]])
        sizes_fit = all(len(line) in (len(names), len(names) + 1) for line in lines[1:])
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, IndexError, csv.Error) as error:
        problem = f"is not a matrix ({error})"
    else:
        if sizes_fit and matrix.shape == (len(names), len(names)) and len({*names}) == len(names):
            rows = [line[0] for line in lines[1:]]
            if {*rows} == {*names}:
                matrix = matrix[[rows.index(name) for name in names]]
            return Spillover(tuple(names), matrix)
        problem = (
            f"has {len(names)} names and {len(lines) - 1} rows of {sorted({len(x) for x in lines[1:]})} cells"
        )
    need = "need auto, none, or a CSV file with a square matrix under detector names"
    raise ConfigError([f"data.compensation: {path} {problem}, {need}"])


def _resolve(spillover: Spillover, source: Source) -> tuple[tuple[int, ...], Array]:
    """The channels of a file that a matrix is about."""
    found = [_numbers(name, source) for name in spillover.detectors]
    missing = [name for name, numbers in zip(spillover.detectors, found, strict=True) if len(numbers) != 1]
    spill = tuple(numbers[0] for numbers in found if numbers)
    if missing or len({*spill}) < len(found):
        odd = f"{', '.join(missing)}, not a channel of the file" if missing else "a channel twice"
        raise DataError(f"{source.name}: the spillover matrix names {odd}; {NO_COMPENSATION}")
    if not np.isfinite(spillover.matrix).all() or np.linalg.cond(spillover.matrix) > WORST_CONDITION:
        raise DataError(f"{source.name}: the spillover matrix cannot be inverted; {NO_COMPENSATION}")
    return spill, spillover.matrix


def _numbers(name: str, source: Source) -> list[int]:
    """Channels of a detector name, else of a marker."""
    detectors = [k for k, channel in enumerate(source.details) if channel.detector == name]
    return detectors or [k for k, channel in enumerate(source.details) if channel.marker == name]


@dataclass(frozen=True)
class _Scan:
    """Limits of the chosen channels of one file: margin events lie at or beyond them (inf: no limit)."""

    low: Array
    high: Array


def _chunks(n_events: int, progress: ProgressLog | None = None) -> Iterator[tuple[int, int]]:
    for start in range(0, n_events, CHUNK):
        stop = min(start + CHUNK, n_events)
        yield start, stop
        if progress is not None:
            progress.add(stop - start)


def _chunks_of(values: Floats, progress: ProgressLog) -> Iterator[tuple[int, int]]:
    """Chunks of the events that are held."""
    for start, stop in _chunks(len(values), progress):
        yield start, stop
        release_pages(values, start, stop)


def _scan(plan: _Plan, progress: ProgressLog) -> _Scan:
    """Read a file once: refuse values that are not finite, and find the limits of its channels."""
    n = len(plan.columns)
    lowest, highest = np.full(n, np.inf), np.full(n, -np.inf)
    at_lowest, at_highest = np.zeros(n, np.int64), np.zeros(n, np.int64)
    not_numbers, infinite, first = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1)
    for start, stop in _chunks(plan.source.n_events, progress):
        block = plan.source.read(start, stop, plan.columns)
        finite = np.isfinite(block)
        not_numbers += np.isnan(block).sum(0)
        infinite += np.isinf(block).sum(0)
        first = np.where((first < 0) & ~finite.all(0), start + finite.argmin(0), first)
        lowest, at_lowest = _extreme(np.where(finite, block, np.inf), lowest, at_lowest, np.minimum)
        highest, at_highest = _extreme(np.where(finite, block, -np.inf), highest, at_highest, np.maximum)
    bad = [
        f"{plan.source.channels[k]} ({not_numbers[c]} NaN, {infinite[c]} infinite, first in row {first[c]})"
        for c, k in enumerate(plan.columns)
        if first[c] >= 0
    ]
    if bad:
        raise DataError(
            f"{plan.source.name}: values that are not finite in {', '.join(bad)}: take those events out of "
            "the file, or leave the channel out (name the others in data.channels)"
        )
    limits = [
        _limits(plan.source, k, lowest[c], int(at_lowest[c]), highest[c], int(at_highest[c]))
        for k, c in zip(plan.chosen, plan.places(plan.chosen), strict=True)
    ]
    return _Scan(np.array([low for low, _ in limits]), np.array([high for _, high in limits]))


def _extreme(block: Any, extreme: Array, count: Ints, pick: np.ufunc) -> tuple[Array, Ints]:
    """The extreme of each column so far, and how many values are there."""
    here = pick.reduce(block, axis=0).astype(np.float64)
    n_here = (block == here).sum(0)
    both = pick(here, extreme)
    return both, np.where(here == both, n_here, 0) + np.where(extreme == both, count, 0)


def _limits(
    source: Source, k: int, lowest: float, at_lowest: int, highest: float, at_highest: int
) -> tuple[float, float]:
    """Bottom and top of a channel's range as stored; -inf and inf where there is no sign of one.

    The top is what the file declares ($PnR), where values reach it; the bottom is 0 of stored integers. Else
    a limit is an extreme value at which events pile up. Zero is no limit of a mass cytometer, but no ions.
    """
    channel = source.details[k]
    pile = max(PILE_EVENTS, PILE_SHARE * source.n_events)
    if source.kind == "mass":
        low = -np.inf
    elif channel.integer and lowest <= 0:
        low = 0.0
    else:
        low = lowest if at_lowest >= pile else -np.inf
    declared = np.inf
    if channel.range is not None:
        declared = channel.range - 1 if channel.integer else channel.range * FLOAT_LIMIT
    if highest >= declared:
        return low, declared
    return low, highest if at_highest >= pile and highest > lowest else np.inf


@dataclass(frozen=True)
class _Gathered:
    """Raw values of the events that are used, and what was counted per channel on the way."""

    values: Floats
    rows: Ints | None
    sample_starts: Ints
    n_read: int
    low: Ints
    high: Ints
    negative: Ints
    not_positive: Ints
    lowest: Array
    highest: Array


def _names(plans: Sequence[_Plan]) -> str:
    """The files, for the beginning of a message."""
    names = [plan.source.name for plan in plans]
    return ", ".join(names if len(names) < 5 else [*names[:3], f"and {len(names) - 3} others"])


def _gather(
    plans: Sequence[_Plan], n_read: int, drop: bool, seed: int, storage: Storage, progress: ProgressLog
) -> _Gathered:
    """Read files twice: for what cannot be used and for limits, then `n_read` events into one array."""
    sizes = [plan.source.n_events for plan in plans]
    dim = len(plans[0].chosen)
    values = storage.hold(n_read, dim, _names(plans))
    scans = [_scan(plan, progress) for plan in plans]
    rows = np.empty(n_read, np.int64) if drop or n_read < sum(sizes) else None
    low, high, negative, not_positive = np.zeros((4, dim), np.int64)
    lowest, highest = np.full(dim, np.inf), np.full(dim, -np.inf)
    starts, filled = [0], 0
    selection = _select(sizes, n_read, seed)
    for plan, scan in zip(plans, scans, strict=True):
        for start, stop in _chunks(plan.source.n_events, progress):
            picked = next(selection)
            if picked is not None and len(picked) == 0:
                continue
            block = plan.source.read(start, stop, plan.columns)
            block = block if picked is None else block[picked]
            stored, raw = _raw(plan, block)
            at_low, at_high = stored <= scan.low, stored >= scan.high
            low += at_low.sum(0)
            high += at_high.sum(0)
            numbers = np.arange(start, stop) if picked is None else start + picked
            if drop:
                inside = ~(at_low | at_high).any(1)
                raw, numbers = raw[inside], numbers[inside]
            negative += (raw < 0).sum(0)
            not_positive += (raw <= 0).sum(0)
            lowest = np.minimum(lowest, raw.min(0, initial=np.inf))
            highest = np.maximum(highest, raw.max(0, initial=-np.inf))
            values[filled : filled + len(raw)] = raw
            if rows is not None:
                rows[filled : filled + len(raw)] = numbers
            release_pages(values, filled, filled + len(raw))
            filled += len(raw)
        starts.append(filled)
        plan.source.require_unchanged()
    rows = None if rows is None else rows[:filled].copy()
    return _Gathered(
        values[:filled], rows, np.array(starts), n_read, low, high, negative, not_positive, lowest, highest
    )


def _select(sizes: Sequence[int], n_take: int, seed: int) -> Iterator[Ints | None]:
    """For each chunk the rows of it that are taken, in order; None for all of them.

    A simple random sample of the pooled events, drawn chunk by chunk: how many of the chunk by the
    hypergeometric distribution, then which.
    """
    random = np.random.default_rng(seed)
    left, needed = sum(sizes), n_take
    for size in sizes:
        for start, stop in _chunks(size):
            n = stop - start
            if needed == left:
                picked, taken = None, n
            else:
                taken = int(random.hypergeometric(n, left - n, needed)) if needed else 0
                picked = np.sort(random.choice(n, taken, replace=False))
            left, needed = left - n, needed - taken
            yield picked


def _raw(plan: _Plan, block: Floats) -> tuple[Floats, Array]:
    """Stored values of the chosen channels, and the same linearised and compensated, float64."""
    raw = block.astype(np.float64)
    for k in plan.linear:
        channel, place = plan.source.details[k], plan.columns.index(k)
        if channel.log and channel.range:
            decades, offset = channel.log
            raw[:, place] = offset * 10.0 ** (decades * raw[:, place] / channel.range)
    if plan.spill:
        raw = compensate(raw, plan.matrix, plan.places(plan.spill))
    chosen = plan.places(plan.chosen)
    return block[:, chosen], raw[:, chosen]


def _check_logarithms(transforms: Sequence[Transform], not_positive: Ints, names: Sequence[str]) -> None:
    bad = [
        f"{name} ({count} events)"
        for name, transform, count in zip(names, transforms, not_positive, strict=True)
        if transform.method == "log" and count
    ]
    if bad:
        raise DataError(
            f"transform log: values at or below 0 in {', '.join(bad)}, need values above 0: take arcsinh or "
            "logicle for them in data.transform"
        )


@dataclass(frozen=True)
class _Seen:
    """What was seen of the events as they were transformed.

    beyond counts those above the top of a logicle scale; finite tells the channels all of whose values are,
    and totals are their sums, after atoms were spread; the extremes and the channels that are alike, before.
    """

    beyond: Ints
    lowest: Array
    highest: Array
    alike: list[tuple[int, int]]
    finite: npt.NDArray[np.bool_]
    totals: Array


def _transform(gathered: _Gathered, scaling: Scaling, samples: Sequence[str], progress: ProgressLog) -> _Seen:
    """Transform events and spread their atoms, in place."""
    values, dim = gathered.values, len(scaling.channels)
    beyond, totals = np.zeros(dim, np.int64), np.zeros(dim)
    lowest, highest = np.full(dim, np.inf), np.full(dim, -np.inf)
    alike, finite = list(itertools.combinations(range(dim), 2)), np.ones(dim, bool)
    for start, stop in _chunks_of(values, progress):
        block = values[start:stop]
        for j, transform in enumerate(scaling.transforms):
            raw = block[:, j].astype(np.float64)
            if transform.method == "logicle":
                beyond[j] += (raw > transform.t).sum()
            if transform.method != "linear":
                block[:, j] = transform.apply(raw)
        lowest, highest = np.minimum(lowest, block.min(0)), np.maximum(highest, block.max(0))
        alike = [(j, k) for j, k in alike if np.array_equal(block[:, j], block[:, k])]
        _spread_atoms(gathered, scaling, samples, start, stop)
        finite &= np.isfinite(block).all(0)
        with np.errstate(invalid="ignore", over="ignore"):  # of values that are not finite, which are refused
            totals += block.sum(0, dtype=np.float64)
    return _Seen(beyond, lowest, highest, alike, finite, totals)


def _spread_atoms(
    gathered: _Gathered, scaling: Scaling, samples: Sequence[str], start: int, stop: int
) -> None:
    """Spread the atoms of a chunk in place, sample by sample."""
    if all(atom.treatment == "kept" for channel in scaling.atoms for atom in channel):
        return
    edges = gathered.sample_starts
    for sample in range(int(np.searchsorted(edges, start, "right")) - 1, len(samples)):
        first, last = max(int(edges[sample]), start), min(int(edges[sample + 1]), stop)
        if first >= stop:
            break
        if first == last:
            continue
        numbers = np.arange(first, last) - edges[sample]
        rows = numbers if gathered.rows is None else gathered.rows[first:last]
        scaling.spread_atoms(gathered.values[first:last], samples[sample], rows)


def _check(seen: _Seen, names: Sequence[str], n_events: int) -> None:
    """Raise `DataError` where a covariance of transformed events would have no inverse, or no numbers."""
    constant = [name for name, same in zip(names, seen.lowest == seen.highest, strict=True) if same]
    if constant:
        raise DataError(
            f"constant in all {n_events} events: {', '.join(constant)}; leave them out (name the other "
            "channels in data.channels)"
        )
    if seen.alike:
        pairs = ", ".join(f"{names[j]} and {names[k]}" for j, k in seen.alike)
        raise DataError(
            f"the same in all {n_events} events: {pairs}; leave one out (name the others in data.channels)"
        )
    _check_finite(seen.finite, names)


def _check_finite(finite: npt.NDArray[np.bool_], names: Sequence[str]) -> None:
    if not finite.all():
        bad = [name for name, fine in zip(names, finite, strict=True) if not fine]
        raise DataError(
            f"{', '.join(bad)}: not finite after the transform, need another one (data.transform)"
        )


def _deviations(values: Floats, means: Array, progress: ProgressLog) -> Array:
    """Standard deviations, float64 [D], added chunk by chunk in order."""
    squares = np.zeros(len(means))
    for start, stop in _chunks_of(values, progress):
        squares += np.square(values[start:stop] - means).sum(0)
    return np.sqrt(squares / len(values))


def _standardise(values: Floats, scaling: Scaling, progress: ProgressLog) -> str:
    """Standardise in place; SHA-256 of the names of the channels and the events as they then are."""
    digest = hashlib.sha256("\0".join(scaling.channels).encode())
    finite = np.ones(len(scaling.channels), bool)
    for start, stop in _chunks_of(values, progress):
        with np.errstate(over="ignore"):  # told below, by the channel
            values[start:stop] = (values[start:stop] - scaling.means) / scaling.sds
        finite &= np.isfinite(values[start:stop]).all(0)
        digest.update(values[start:stop].data)
    _check_finite(finite, scaling.channels)
    return digest.hexdigest()
