"""The events of a run and the report of their preparation."""

from __future__ import annotations

from dataclasses import dataclass

from dpmix.inputs import atoms
from dpmix.inputs.atoms import Atom
from dpmix.inputs.samples import Columns
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Floats, Ints

ATOM_FATES: dict[atoms.Treatment, str] = {
    "kept": "kept as they are (data.atoms: dither or tail spreads them)",
    "dithered": f"dithered by {atoms.DITHER:g} standard deviations",
    "tail below": "given a tail below the limit",
    "tail above": "given a tail above the limit",
}


@dataclass(frozen=True)
class ChannelReport:
    """What was seen of one channel; counts are of events.

    Attributes
    ----------
    channel, detector, transform : str
    low, high : int
        Margin events: at the bottom and at the top of the range of the instrument, before compensation.
    share : float
        Of the events read, those at either margin.
    atoms : tuple of Atom
        Raw values that many of the events that are used share, and what was done to these.
    minimum, maximum : float
        Raw values of the events that are used, compensated where that was asked.
    negative : int
        Raw values below 0.
    beyond_top : int
        Raw values above the top t of a logicle scale; the transform goes on there.
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


@dataclass(frozen=True)
class Report:
    """What was done to the data: a line for each thing, and a summary of each channel.

    Attributes
    ----------
    n_read : int
        Events drawn from the files.
    n_dropped : int
        Of those, margin events left out because the config asks for it.
    channels : tuple of ChannelReport
    notes : tuple of str
    """

    n_read: int
    n_dropped: int
    channels: tuple[ChannelReport, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """What a user should know before the first sweep: what was done, and what piles up where."""
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
        fate = f"{self.n_dropped:,} events dropped" if self.n_dropped else "kept"
        lines.append(f"margin events ({fate}): {'; '.join(margin)}" if margin else "margin events: none")
        beyond = [
            f"{channel.channel} {channel.beyond_top:,}" for channel in self.channels if channel.beyond_top
        ]
        if beyond:
            lines.append(f"events above the top t of their logicle scale (kept): {', '.join(beyond)}")
        lines += self._atom_lines()
        return lines

    def _atom_lines(self) -> list[str]:
        used = self.n_read - self.n_dropped
        by_fate: dict[str, list[str]] = {}
        for channel in self.channels:
            for atom in channel.atoms:
                share = f"{atom.events:,} at {atom.value:g} ({atom.events / used:.2%})"
                by_fate.setdefault(ATOM_FATES[atom.treatment], []).append(f"{channel.channel} {share}")
        return [f"atoms (events at one value), {fate}: {'; '.join(found)}" for fate, found in by_fate.items()]


@dataclass(frozen=True)
class Events:
    """The events of a run, as the sampler sees them.

    Attributes
    ----------
    values : float32 [N, D]
        C-contiguous, read-only; transformed, and standardised unless the config says not to. An np.memmap
        where they are held in a file.
    channels : tuple of str
        D names to show: the marker where it names one channel, else the detector.
    detectors : tuple of str
        D names in the file.
    samples : tuple of str
        S names.
    sample_columns : mapping of str to S str
        What the table of samples says beside their names and files.
    sources : tuple of Source
        Their files, of which no more events can be read.
    sample_starts : int64 [S + 1]
        Events sample_starts[s] to sample_starts[s + 1] are of sample s.
    rows : int64 [N] or None
        Row of each event in its file; None where every row is here.
    scaling : Scaling
    report : Report
    data_hash : str
        SHA-256 of the values and the channel names.
    """

    values: Floats
    channels: tuple[str, ...]
    detectors: tuple[str, ...]
    samples: tuple[str, ...]
    sample_columns: Columns
    sources: tuple[Source, ...]
    sample_starts: Ints
    rows: Ints | None
    scaling: Scaling
    report: Report
    data_hash: str
