"""The events of a run and the report of their preparation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpmix.inputs import atoms
from dpmix.inputs.atoms import Atom
from dpmix.inputs.controls import Controls
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.file_plans import FilePlan
from dpmix.inputs.quality_channels import QualityChannels
from dpmix.inputs.samples import Columns
from dpmix.inputs.sources import Source
from dpmix.inputs.state_channels import StateChannels
from dpmix.inputs.storage import release_pages
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.sample_weights import SampleWeights

RESOLUTION = "resolution (standard deviation of one measurement, transformed scale)"

TREATMENTS: dict[atoms.Treatment, str] = {
    "kept": "unchanged (data.atoms: dither or tail spreads them)",
    "dithered": f"dithered by {atoms.DITHER:g} standard deviations",
    "tail below": "spread as a tail below the limit",
    "tail above": "spread as a tail above the limit",
}


@dataclass(frozen=True)
class ChannelReport:
    """Counts and extremes of one channel.

    Attributes
    ----------
    channel, detector, transform : str
    low, high : int
        Margin events: at the lower and at the upper limit of the instrument, before compensation.
    share : float
        Share of margin events in the events read.
    atoms : tuple of Atom
        Raw values that many of the events in use share, and their treatment.
    minimum, maximum : float
        Extreme raw values of the events in use (compensated if the config says so).
    negative : int
        Events with a raw value below 0.
    beyond_top : int
        Events with a raw value above the top t of a logicle scale, where the transform continues.
    resolution : float
        Standard deviation of one measurement, on the transformed scale; 0 where events are points.
    """

    channel: str
    detector: str
    transform: str
    low: int
    high: int
    share: float
    atoms: tuple[Atom, ...]
    minimum: float
    maximum: float
    negative: int
    beyond_top: int
    resolution: float


@dataclass(frozen=True)
class Report:
    """The preparation of the events: notes on its steps, and a summary of each channel.

    Attributes
    ----------
    n_read : int
        Events drawn from the files.
    n_dropped : int
        Margin events dropped from these because the config says so.
    channels : tuple of ChannelReport
    notes : tuple of str
    warnings : tuple of str
        What may make values of a file wrong, with the name of the file.
    """

    n_read: int
    n_dropped: int
    channels: tuple[ChannelReport, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the lines of the log before the first sweep."""
        lines = [*self.notes]
        transforms: dict[str, list[str]] = {}
        for channel in self.channels:
            transforms.setdefault(channel.transform, []).append(channel.channel)
        lines += [f"{transform}: {', '.join(names)}" for transform, names in transforms.items()]
        margin = [
            f"{channel.channel} {channel.low:,} low, {channel.high:,} high ({channel.share:.2%})"
            for channel in self.channels
            if channel.low or channel.high
        ]
        what = f"{self.n_dropped:,} events dropped" if self.n_dropped else "kept"
        lines.append(f"margin events ({what}): {'; '.join(margin)}" if margin else "margin events: none")
        beyond = [
            f"{channel.channel} {channel.beyond_top:,}" for channel in self.channels if channel.beyond_top
        ]
        if beyond:
            lines.append(f"events above the top (t) of the logicle scale (kept): {', '.join(beyond)}")
        lines += self._atom_lines()
        if text := describe_resolution({own.channel: own.resolution for own in self.channels}):
            lines.append(f"{RESOLUTION}: {text}")
        return lines

    def _atom_lines(self) -> list[str]:
        """Return a line for each treatment of atoms."""
        used = self.n_read - self.n_dropped
        by_treatment: dict[str, list[str]] = {}
        for channel in self.channels:
            for atom in channel.atoms:
                share = f"{atom.events:,} at {atom.value:g} ({atom.events / used:.2%})"
                by_treatment.setdefault(TREATMENTS[atom.treatment], []).append(f"{channel.channel} {share}")
        return [
            f"atoms (many events at one value), {treatment}: {'; '.join(found)}"
            for treatment, found in by_treatment.items()
        ]


def describe_resolution(resolution: Mapping[str, float]) -> str:
    """Return the resolution of channels in words, "" if it is 0 in all.

    Parameters
    ----------
    resolution : mapping of str to float
        By the name of the channel, on the transformed scale.
    """
    by_value: dict[str, list[str]] = {}
    for name, value in resolution.items():
        if value > 0.0:
            by_value.setdefault(f"{value:.3g}", []).append(name)
    return "; ".join(f"{value}: {', '.join(names)}" for value, names in by_value.items())


@dataclass(frozen=True)
class Events:
    """The events of a run on the scale of the sampler.

    Attributes
    ----------
    values : float32 [N, D]
        C-contiguous, read-only; transformed, and standardised unless the config says otherwise. An np.memmap
        if they are held in a file.
    channels : tuple of str
        D names to show: the marker where it names one channel, else the detector.
    detectors : tuple of str
        D names in the file.
    samples : tuple of str
        S names.
    sample_columns : mapping of str to S str
        Further columns of the table of samples.
    sources : tuple of Source
        Their files; no more events can be read from them.
    sample_starts : int64 [S + 1]
        Events sample_starts[s] to sample_starts[s + 1] belong to sample s.
    weights : SampleWeights or None
        Weights of the events; None: every event has weight 1.
    rows : int64 [N] or None
        Row of each event in its file; None if all rows are used.
    scaling : Scaling
    report : Report
    data_hash : str
        SHA-256 of the values and the channel names.
    plans : tuple of FilePlan
        How each file was read.
    state : StateChannels or None
        Channels that are not in the model.
    quality : QualityChannels or None
        Scatter and viability, where they were asked for and the files have them.
    controls : mapping of str to Control
        By channel; none where the events of a run are prepared again, whose file has them.
    """

    values: Floats
    channels: tuple[str, ...]
    detectors: tuple[str, ...]
    samples: tuple[str, ...]
    sample_columns: Columns
    sources: tuple[Source, ...]
    sample_starts: Ints
    weights: SampleWeights | None
    rows: Ints | None
    scaling: Scaling
    report: Report
    data_hash: str
    plans: tuple[FilePlan, ...] = ()
    state: StateChannels | None = None
    quality: QualityChannels | None = None
    controls: Controls = field(default_factory=dict)

    @property
    def spillovers(self) -> tuple[Spillover | None, ...]:
        """For each sample, the matrix by which it was compensated."""
        return tuple(plan.spillover for plan in self.plans)

    @property
    def measured_channels(self) -> tuple[str, ...]:
        """D + E names of channels: the model's, then state channels."""
        return self.channels + (() if self.state is None else self.state.channels)

    def measured(self, events: Ints) -> Array:
        """Return all channels of some events on the transformed scale, float64 [M, D + E]."""
        values = self.scaling.to_transformed(self.values[events])
        return values if self.state is None else np.column_stack([values, self.state.values[events]])

    @property
    def own_quality(self) -> Ints:
        """Numbers of the channels of scatter and viability that are not in `measured_channels`, int64."""
        if self.quality is None:
            return np.zeros(0, np.int64)
        known = {*self.detectors, *(() if self.state is None else self.state.detectors)}
        detectors = self.quality.measured.detectors
        return np.array([k for k, name in enumerate(detectors) if name not in known], np.int64)

    @property
    def all_channels(self) -> tuple[str, ...]:
        """`measured_channels`, then the channels of scatter and viability (`own_quality`)."""
        quality = self.quality
        own = (
            () if quality is None else tuple(quality.measured.channels[k] for k in self.own_quality.tolist())
        )
        return self.measured_channels + own

    def all_values(self, events: Ints) -> Array:
        """Return `all_channels` of some events on the transformed scale, float64 [M, D + E + own]."""
        values = self.measured(events)
        if self.quality is None:
            return values
        return np.column_stack([values, self.quality.measured.values[events][:, self.own_quality]])

    def rows_in_file(self, sample: int, start: int, stop: int) -> Ints:
        """Return the rows in its file of events start..stop-1, all of one sample, int64 [stop - start]."""
        if self.rows is not None:
            return self.rows[start:stop]
        first = self.sample_starts[sample]
        return np.arange(start - first, stop - first)

    def place_of(self, event: int) -> tuple[str, int]:
        """Return the sample of an event, and its row in the file."""
        sample = int(np.searchsorted(self.sample_starts, event, side="right")) - 1
        return self.samples[sample], int(self.rows_in_file(sample, event, event + 1)[0])

    def subset(self, events: Ints) -> Events:
        """Return some of the events, given their numbers in ascending order, int64 [M]; they are copied."""
        starts = np.searchsorted(events, self.sample_starts)
        values, weights = self.values[events], self.weights
        release_pages(self.values, 0, len(self.values))
        if self.rows is None:
            rows = events - np.repeat(self.sample_starts[:-1], np.diff(starts))
        else:
            rows = self.rows[events]
        return replace(
            self,
            values=values,
            sample_starts=starts,
            rows=rows,
            weights=None if weights is None else SampleWeights(starts, weights.values),
            state=None if self.state is None else self.state.without_values(),
            quality=None,
        )
