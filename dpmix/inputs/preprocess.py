"""Prepare the events of data files for the sampler, and report each step.

The steps, in this order:

1. read all rows (data.gate: those inside the gate; data.time: steady ones), or a random subset;
2. undo logarithmic amplification ($PnE);
3. compensate;
4. count margin events, or drop them if the config says so;
5. transform;
6. spread atoms if the config says so;
7. correct the signal over time if the config says so;
8. standardise.

One array of N x D numbers is held, in memory or in a file (`dpmix.inputs.storage`). `prepare` prepares the
events of a run, `prepare_like` other events on the scale that the run has recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmix.config.data import DataConfig
from dpmix.errors import DpmixError
from dpmix.inputs.channels import run_panel, same_channels
from dpmix.inputs.controls import control_files, read_controls
from dpmix.inputs.default_channels import choose_channels
from dpmix.inputs.events import ChannelReport, Events, Report
from dpmix.inputs.file_plans import FilePlan, plan_files
from dpmix.inputs.gather import Gathered, Subset, gather
from dpmix.inputs.marker_names import rename_markers, warn_of_other_markers
from dpmix.inputs.opening import open_sources
from dpmix.inputs.outliers import Outlier
from dpmix.inputs.panel_file import with_panel
from dpmix.inputs.parent_gate import ParentGate, gate_sources
from dpmix.inputs.quality_channels import QualityChannels, choose_quality
from dpmix.inputs.samples import advise_leaving_out, open_samples
from dpmix.inputs.scales import Atoms, FittedScale, RecordedScale, Scale
from dpmix.inputs.sources import Source
from dpmix.inputs.state_channels import (
    StateChannels,
    StatePlan,
    choose_state,
    plan_like,
    plan_state,
    require_separate,
)
from dpmix.inputs.steadiness import correct_files, judge_files
from dpmix.inputs.storage import Storage
from dpmix.inputs.transforming import standardise_events, transform_events
from dpmix.inputs.transforms import Scaling
from dpmix.inputs.weights import describe_weights, read_weights
from dpmix.model.mixture import Ints
from dpmix.model.sample_weights import sample_weights
from dpmix.system.console import first_few
from dpmix.system.progress import ProgressLog
from dpmix.system.threads import one_thread

MOST_NAMED = 3
"""Files that a warning names one by one; more share a line."""

FEW_STEPS = 256
"""Steps of float32 in the range of a channel: with fewer, rounding shows in the densities."""


class Recorded(NamedTuple):
    """The channels and the scale that a run has recorded.

    Attributes
    ----------
    detectors : sequence of str
        D names in the run's first file (`Events.detectors`; attribute "detectors" of the run file).
    scaling : Scaling
    state : StateChannels, optional
        Channels that are not in the model.
    """

    detectors: Sequence[str]
    scaling: Scaling
    state: StateChannels | None = None


def prepare(
    settings: DataConfig,
    base: Path,
    seed: int,
    storage: Storage | None = None,
    earlier: Recorded | None = None,
    with_quality: bool = False,
) -> Events:
    """Read the files of a run and prepare its events.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that file names are relative to.
    seed : int
        For the random subset.
    storage : Storage, optional
        Holds the events; default: memory.
    earlier : Recorded, optional
        Record of an earlier run, to prepare its events again: its channels and transforms.
    with_quality : bool
        Read scatter and viability, too (`dpmix.inputs.quality_channels`).

    Raises
    ------
    ConfigError
        A file or channel is missing, or the parameters of a transform or the weights of samples do not fit.
    DataError
        A file cannot be read, or its events cannot be used: values that are not finite, a constant channel,
        fewer events than channels, values at or below 0 for a logarithm.
    """
    storage = storage or Storage()
    opened, columns = open_samples(settings.files, settings.samples, base, storage, settings.leave_out)
    owners = {str(source.path): source.path.name for source in opened}
    with advise_leaving_out(owners | {source.name: source.name for source in opened}):
        settings = with_panel(settings, base, opened[0])
        renamed = rename_markers(settings.rename, opened)
        gate = judge_files(gate_sources(settings, base, renamed), settings, renamed)
        sources, settings = gate.sources, gate.settings
        samples = [source.name for source in sources]
        relative = read_weights(settings, base, samples, columns)
        state_chosen = choose_state(settings.state_channels, sources, earlier and earlier.state)
        state = state_chosen[0] if state_chosen else ()
        chosen, notes = choose_channels(settings.channels, sources, earlier and earlier.detectors, state)
        require_separate(sources[0], chosen[0], state)
        sources = warn_of_other_markers(sources[0], chosen[0], sources, chosen)
        of_controls = control_files(settings.controls, sources[0], chosen[0]) if earlier is None else {}
        plans, plan_notes = plan_files(settings, base, sources, chosen)
        notes += plan_notes
        scale = FittedScale(settings, plans, earlier and earlier.scaling)
        total = sum(source.n_events for source in sources)
        n_events = min(total, settings.max_events or total)
        subset = Subset(n_events, settings.margin_events == "drop", seed)
        if n_events < total:
            notes.append(f"{n_events} of {total} events drawn at random (data.max_events)")
        if settings.leave_out:
            notes.append(f"left out (data.leave_out): {', '.join(settings.leave_out)}")
        measured = plan_state(settings, base, sources, state_chosen, earlier and earlier.state)
        quality = _Quality(settings, base, sources) if with_quality else None
        events = _prepare(plans, subset, scale, notes, storage, gate, measured, quality)
    weights = None if settings.weights == "proportional" else sample_weights(events.sample_starts, relative)
    if note := describe_weights(settings, samples, weights):
        events = replace(events, report=replace(events.report, notes=(*events.report.notes, note)))
    controls = read_controls(settings, base, of_controls, events.detectors, events.scaling)
    if controls:
        listed = ", ".join(f"{name} {one.limit:.3g} ({one.file})" for name, one in controls.items())
        note = f"controls, 99% quantiles on the transformed scale: {listed}"
        events = replace(events, report=replace(events.report, notes=(*events.report.notes, note)))
    return replace(events, sample_columns=columns, weights=weights, controls=controls)


def prepare_like(
    settings: DataConfig,
    base: Path,
    files: Sequence[str | Path],
    scaling: Scaling,
    detectors: Sequence[str],
    storage: Storage | None = None,
    state: StateChannels | None = None,
    with_quality: bool = False,
) -> Events:
    """Prepare events on the scale of a run; the files of the run give its own events, bit for bit.

    Channels are found by marker or detector. Amplification and compensation follow the config of the run
    (auto: each file's own matrix). Transforms, standardisation and the treatment of atoms are as in the run.
    All events are used: data.max_events and data.margin_events are ignored. The noise that spreads atoms is
    the same as in the run for files with the same values, whatever their names.

    Parameters
    ----------
    settings : DataConfig
        Data settings of the run's config; compensation and linearize are used.
    base : Path
        Folder that the names of files and of a compensation matrix are relative to.
    files : sequence of str or Path
        Names or globs.
    scaling : Scaling
        Scaling of the run.
    detectors : sequence of str
        D names in the run's first file (`Events.detectors`; attribute "detectors" of the run file).
    storage : Storage, optional
        Holds the events; default: memory.
    state : StateChannels, optional
        State channels of the run.
    with_quality : bool
        Read scatter and viability, too.

    Raises
    ------
    ConfigError
        A file is missing.
    DataError
        A file cannot be read or lacks a channel of the run, or its events cannot be used (see `prepare`).
    """
    storage = storage or Storage()
    opened = rename_markers(settings.rename, open_sources(files, base, storage), all_occur=False)
    gate = judge_files(gate_sources(settings, base, opened), settings, opened)
    sources = gate.sources
    run = run_panel(detectors, scaling.channels)
    own = range(len(detectors))
    found = [same_channels(run, own, source) for source in sources]
    chosen = [numbers for numbers, _ in found]
    sources = warn_of_other_markers(run, own, sources, chosen)
    plans, plan_notes = plan_files(settings, base, sources, chosen)
    notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
    notes += [note for _, differences in found for note in differences] + plan_notes
    subset = Subset(sum(source.n_events for source in sources))
    measured = plan_like(settings, base, sources, state)
    quality = _Quality(settings, base, sources) if with_quality else None
    return _prepare(plans, subset, RecordedScale(scaling), notes, storage, gate, measured, quality)


class _Quality(NamedTuple):
    """Files whose scatter and viability are read."""

    settings: DataConfig
    base: Path
    sources: Sequence[Source]

    def read(self, gathered: Gathered, storage: Storage) -> tuple[QualityChannels | None, list[str]]:
        """Return the channels and warnings; None where the files have none that can be read."""
        settings, base, sources = self
        try:
            roles, chosen = choose_quality(sources)
            plan = plan_state(settings, base, sources, chosen, None)
            return (QualityChannels(plan.read(gathered, storage), roles), []) if plan else (None, [])
        except DpmixError as error:
            return None, [f"scatter and viability are not used: {error}"]


def _prepare(
    plans: Sequence[FilePlan],
    subset: Subset,
    scale: Scale,
    notes: Sequence[str],
    storage: Storage,
    gate: ParentGate,
    measured: StatePlan | None,
    looked_at: _Quality | None = None,
) -> Events:
    """Gather, transform and standardise events, and report on them."""
    total = sum(plan.source.n_events for plan in plans)
    sources = [plan.source for plan in plans]
    progress = ProgressLog("preparing the events", 2 * total + scale.passes * subset.n_events)
    samples = tuple(plan.source.name for plan in plans)
    with one_thread():  # the same bits for any number of threads
        gathered = gather(plans, subset, storage, progress)
        state, of_state = None, list[str]()
        if measured is not None:
            state = measured.read(gathered, storage)
            listed = ", ".join(state.channels)
            of_state = [f"state channels, not in the model: {listed}", *measured.scale.notes]
            if gate.settings.time == "correct":
                of_state.append("the state channels are not corrected over time (data.time)")
        quality, of_quality = (None, list[str]()) if looked_at is None else looked_at.read(gathered, storage)
        scaling, atoms = scale.before_transform(plans, gathered)
        summary = transform_events(gathered, scaling, progress)
        if gate.settings.time == "correct":
            sources, totals = correct_files(gathered, sources, scaling)
            summary = replace(summary, totals=totals)
        scaling = scale.after_transform(scaling, gathered.values, summary, progress)
        data_hash = standardise_events(gathered.values, scaling, progress)
    detectors = tuple(plans[0].source.details[k].detector for k in plans[0].chosen)
    n_dropped = gathered.n_read - len(gathered.values)
    warnings = [f"{source.name}: {text}" for source in sources for text in source.warnings]
    warnings += [
        f"{source.name}: {n} of {source.n_events} events are left out: {where}"
        for source, (n, where) in zip(sources, gathered.left_out, strict=True)
        if n
    ]
    warnings += [*scale.warnings, *of_quality]
    warnings += _of_outliers(gathered.outliers, scaling.channels)
    warnings += _without_events(sources, np.diff(gathered.sample_starts).tolist())
    channels = _channel_reports(gathered, detectors, scaling, atoms, summary.above_top)
    closed = [replace(source, fetch=_closed) for source in sources]
    return Events(
        values=storage.seal(gathered.values),
        channels=scaling.channels,
        detectors=detectors,
        samples=samples,
        sample_columns={},
        sources=tuple(closed),
        sample_starts=gathered.sample_starts,
        weights=None,
        rows=gate.file_rows(gathered.rows, gathered.sample_starts),
        scaling=scaling,
        report=Report(
            gathered.n_read,
            n_dropped,
            channels,
            _shared([*gate.notes, *notes, *of_state, *scale.notes], sources),
            (*_shared(warnings, sources), *_rounded(gathered, scaling)),
        ),
        data_hash=data_hash,
        plans=tuple(replace(plan, source=own) for plan, own in zip(plans, closed, strict=True)),
        state=state,
        quality=quality,
    )


def _channel_reports(
    gathered: Gathered, detectors: Sequence[str], scaling: Scaling, atoms: Atoms, above_top: Ints
) -> tuple[ChannelReport, ...]:
    """Return the report of each channel."""
    counts = gathered.counts
    return tuple(
        ChannelReport(
            channel=name,
            detector=detectors[j],
            transform=str(scaling.transforms[j]),
            low=int(counts.low[j]),
            high=int(counts.high[j]),
            share=float(counts.low[j] + counts.high[j]) / gathered.n_read,
            atoms=atoms[j],
            minimum=float(counts.lowest[j]),
            maximum=float(counts.highest[j]),
            negative=int(counts.negative[j]),
            beyond_top=int(above_top[j]),
            resolution=scaling.resolution[j] if scaling.resolution else 0.0,
        )
        for j, name in enumerate(scaling.channels)
    )


def _of_outliers(found: Sequence[Outlier], names: Sequence[str]) -> list[str]:
    """Warn of values so far from all others that a model cannot tell these apart."""
    return [
        f"{names[one.channel]}: {'1 value is' if one.n_events == 1 else f'{one.n_events} values are up to'} "
        f"{one.value:.6g}, and all others are "
        f"{one.lowest:.4g} to {one.highest:.4g}; correct or remove these events in the file"
        for one in found
    ]


def _without_events(sources: Sequence[Source], used: Sequence[int]) -> list[str]:
    """Warn of files of which no event is used."""
    return [
        f"{source.name}: {'no event remains' if source.n_events else 'has no event'}; it has no proportions"
        for source, n_events in zip(sources, used, strict=True)
        if not n_events
    ]


def _rounded(gathered: Gathered, scaling: Scaling) -> list[str]:
    """Warn of channels whose values, held as float32, are far from 0 and near each other.

    A single event, or a constant channel of a file that is not of the run, says nothing about rounding.
    """
    lowest, highest = gathered.counts.lowest, gathered.counts.highest
    steps = np.spacing(np.maximum(-lowest, highest).astype(np.float32)).astype(np.float64)
    few = (highest > lowest) & (highest - lowest < FEW_STEPS * steps)
    return [
        f"{name}: its values, {low:.9g} to {high:.9g}, are rounded to steps of {step:.2g} (float32); "
        "subtract a constant from this channel in your file"
        for name, transform, low, high, step, is_rounded in zip(
            scaling.channels, scaling.transforms, lowest, highest, steps, few, strict=True
        )
        if transform.method == "linear" and is_rounded
    ]


def _shared(lines: Sequence[str], sources: Sequence[Source]) -> tuple[str, ...]:
    """Return lines "file: text", those with a text that many files share as one line."""
    files = {source.name for source in sources}
    names: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition(": ")
        names.setdefault(text if name in files else line, []).append(name)
    found: list[str] = []
    for text, own in names.items():
        if len(own) > MOST_NAMED:
            found.append(f"{first_few(own, MOST_NAMED)} files: {text}")
        else:
            found += [f"{name}: {text}" if name in files else text for name in own]
    return tuple(found)


def _closed(start: int, stop: int, columns: Sequence[int]) -> Any:
    """Replace the reader of a file whose events were read, so that the numbers of a text file are freed."""
    raise ValueError("its events were read already")
