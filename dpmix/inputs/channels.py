"""Select channels by name, and the transform that fits each.

A channel has two names, its detector and its marker. A name in the config is compared exactly first, then as
a glob, then both again ignoring case.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpmix.config.data import DEFAULT, TransformConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs import Channel
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform

FLUORESCENCE_COFACTOR = 150.0
MASS_COFACTOR = 5.0
NARROW = 4096.0  # linear integers below it are have too few levels for a logarithmic scale

# Channels that measure no marker of a cell, by the detector names that instruments give.
NOT_MARKERS = (
    ("scatter", r"(?<![A-Za-z])(FSC|SSC)|^(FS|SS)\d*($|[ _.-])|(forward|side) ?scatter"),
    ("time", r"^time"),
    ("pulse or event length", r"^(event|cell)[ _.-]?length|^width$|^(trigger )?pulse[ _.-]?width|^TPW"),
    ("mass cytometer's pulse", r"^(offset|residual|center|amplitude)$"),
    ("beads or debarcoding", r"^(bead_?dist.*|bc_separation_dist|mahalanobis_dist)$"),
    ("event header", r"^HDR-"),
    ("event or file number", r"^(event|row|file)[ _.-]?(#|no|num|number|count|id|index)$"),
    ("result of an earlier gating", r"^dpmix_"),
    ("label", r"^(label|population|cluster|sample|individual|batch)s?([ _.-]?(id|no|num|number|name))?$"),
    ("column without a name", r"^column \d+$|^Unnamed: \d+$|^__index_level_\d+__$"),
)


@dataclass(frozen=True)
class Panel:
    """Names of channels that a run has recorded.

    Attributes
    ----------
    name : str
        Owner of the channels, for messages.
    details : tuple of Channel
    """

    name: str
    details: tuple[Channel, ...]


@dataclass(frozen=True)
class Suggestion:
    """Settings that fit one channel of a file.

    Attributes
    ----------
    detector, marker : str
    taken : bool
        The default config uses the channel.
    why : str
        Why it is not used, "" where it is.
    transform : str
        Method of its transform: logicle, arcsinh or linear.
    cofactor : float or None
        For arcsinh.
    """

    detector: str
    marker: str
    taken: bool
    why: str
    transform: str
    cofactor: float | None


def suggest(source: Source) -> list[Suggestion]:
    """Suggest settings for each channel of a file.

    The channels are those of the default config (all but scatter, time and similar ones), without the pulse
    height and width of a detector whose pulse area is in the file: they repeat the area.
    """
    found = []
    for channel in source.details:
        stem, _, pulse = channel.detector.rpartition("-")
        why = why_excluded(channel)
        if not why and pulse in ("H", "W") and f"{stem}-A" in source.channels:
            why = f"pulse {'height' if pulse == 'H' else 'width'} of {stem}-A"
        if not why and not channel.numeric:
            why = "not numbers"
        method = fitting_method(channel, source.kind, linearize=True)
        cofactor = MASS_COFACTOR if method == "arcsinh" else None
        found.append(Suggestion(channel.detector, channel.marker, not why, why, method, cofactor))
    return found


def why_excluded(channel: Channel) -> str:
    """Return why the default config excludes a channel (see `NOT_MARKERS`), "" if it does not."""
    return next((why for why, names in NOT_MARKERS if re.search(names, channel.detector, re.IGNORECASE)), "")


def choose_channels(
    patterns: Sequence[str] | None, sources: Sequence[Source]
) -> tuple[list[Sequence[int]], list[str]]:
    """Select the channels of a run in each of its files.

    Parameters
    ----------
    patterns : sequence of str or None
        Names or globs; None for all channels but scatter, time and similar ones.
    sources : sequence of Source

    Returns
    -------
    chosen : list of sequence of int
        For each file the numbers of the D channels of the run.
    notes : list of str
        For the report.

    Raises
    ------
    ConfigError
        A name matches no channel of the first file.
    DataError
        No channel is selected, or a file lacks one.
    """
    first = sources[0]
    chosen: list[Sequence[int]] = [_choose(patterns, first)]
    notes = [f"{source.name}: {note}" for source in sources for note in source.notes]
    excluded = [c.detector for k, c in enumerate(first.details) if k not in chosen[0]]
    if patterns is None and excluded:
        notes.append(f"{first.name}: not used unless listed in data.channels: {', '.join(excluded)}")
    for source in sources[1:]:
        numbers, differences = same_channels(first, chosen[0], source)
        chosen.append(numbers)
        notes += differences
    return chosen, notes


def _choose(patterns: Sequence[str] | None, source: Source) -> list[int]:
    """Return the numbers of the selected channels of one file, each once, in the order of the patterns."""
    if patterns is None:
        chosen = [k for k, channel in enumerate(source.details) if not why_excluded(channel)]
        if not chosen:
            raise DataError(
                f"{source.name}: found only scatter, time and similar channels "
                f"({', '.join(source.channels)}); list the channels to use in data.channels"
            )
        return chosen
    found = match_all("data.channels", patterns, source)
    return list(dict.fromkeys(k for numbers in found.values() for k in numbers))


def match_all(where: str, patterns: Sequence[str], source: Source) -> dict[str, list[int]]:
    """Return the numbers of the channels that each pattern matches.

    Raises
    ------
    ConfigError
        Patterns match no channel; the message starts with `where`, the key of the config that has them.
    """
    found = {pattern: match(pattern, source.details) for pattern in patterns}
    problems = [
        f"{where}: {pattern} matches no channel of {source.name}{nearest(pattern, source.details)}"
        for pattern, numbers in found.items()
        if not numbers
    ]
    if problems:
        raise ConfigError(problems)
    return found


def match(pattern: str, details: Sequence[Channel]) -> list[int]:
    """Return the numbers of the channels that a name or glob matches."""
    names = [[name for name in (c.detector, c.marker) if name] for c in details]
    tests = (
        lambda name: name == pattern,
        lambda name: fnmatch.fnmatchcase(name, pattern),
        lambda name: name.casefold() == pattern.casefold(),
        lambda name: fnmatch.fnmatchcase(name.casefold(), pattern.casefold()),
    )
    for test in tests:
        numbers = [k for k, both in enumerate(names) if any(map(test, both))]
        if numbers:
            return numbers
    return []


def nearest(pattern: str, details: Sequence[Channel]) -> str:
    """Return the end of an error message: the names most similar to one without a match, or all names."""
    names = list(dict.fromkeys(name for c in details for name in (c.marker, c.detector) if name))
    word = pattern.casefold().strip("*?")
    within = [name for name in names if word and word in name.casefold()]
    close = difflib.get_close_matches(word, [name.casefold() for name in names], n=3, cutoff=0.5)
    near = within or [name for name in names if name.casefold() in close]
    return f", nearest: {', '.join(near[:5])}" if near else f", it has {', '.join(names)}"


def same_channels(first: Source | Panel, chosen: Sequence[int], other: Source) -> tuple[list[int], list[str]]:
    """Find the channels of a file (or of a run) in another file.

    Channels are compared by marker if it names one channel in each file, else by detector.

    Parameters
    ----------
    first : Source or Panel
    chosen : sequence of int
        Numbers of the channels in `first`.
    other : Source

    Returns
    -------
    numbers : list of int
        In the other file.
    notes : list of str
        Channels whose names differ.

    Raises
    ------
    DataError
        The other file lacks a channel, or one of its channels matches several.
    """
    numbers, notes = [], []
    for k in chosen:
        wanted = first.details[k]
        candidates = [j for j, c in enumerate(other.details) if wanted.marker and c.marker == wanted.marker]
        alone = sum(c.marker == wanted.marker for c in first.details) == 1
        if len(candidates) != 1 or not alone:
            candidates = [j for j, c in enumerate(other.details) if c.detector == wanted.detector]
        if not candidates:
            raise DataError(
                f"{other.name}: has no channel {wanted.detector} {wanted.marker}".rstrip()
                + f", which {first.name} has; give files with the same channels, or change data.channels"
            )
        same = other.details[candidates[0]]
        if (same.detector, same.marker) != (wanted.detector, wanted.marker):
            notes.append(
                f"{other.name}: {same.detector} ({same.marker or 'no marker'}) used as "
                f"{wanted.detector} ({wanted.marker or 'no marker'}) of {first.name}"
            )
        numbers.append(candidates[0])
    twice = [first.details[k].detector for k, n in zip(chosen, numbers, strict=True) if numbers.count(n) > 1]
    if twice:
        raise DataError(
            f"{other.name}: one channel matches {', '.join(twice)} of {first.name}; rename the markers"
        )
    return numbers, notes


def display_names(channels: Sequence[Channel]) -> tuple[str, ...]:
    """Return the names to show: the marker where it names one channel only, else the detector."""
    detectors = {c.detector for c in channels}
    markers = [c.marker for c in channels]
    return tuple(
        c.marker if c.marker and markers.count(c.marker) == 1 and c.marker not in detectors else c.detector
        for c in channels
    )


# ------------------------------------------------------------------------------------- transforms


def fitting_method(channel: Channel, kind: str | None, linearize: bool) -> str:
    """Return the method of the transform that fits a channel of a kind of instrument (None: unknown).

    Mass cytometry: arcsinh. Fluorescence: logicle. Linear: scatter and similar channels, values that stay on
    a logarithmic scale, integers with too few levels for logicle, and unknown instruments.
    """
    if kind is None or why_excluded(channel):
        return "linear"
    if kind == "mass":
        return "arcsinh"
    coarse = channel.integer and channel.log is None and (channel.range or 0.0) <= NARROW
    return "linear" if coarse or (channel.log and not linearize) else "logicle"


def top_of_scale(channel: Channel, linearize: bool) -> float | None:
    """Return the end of a channel's range on the raw scale, None where the file has no range."""
    if channel.log and linearize:
        decades, offset = channel.log
        return float(offset * 10.0**decades)
    return channel.range


def transform_settings(
    transform: Mapping[str, TransformConfig], source: Source, chosen: Sequence[int]
) -> list[TransformConfig]:
    """Return the transform settings of each chosen channel.

    A full name has precedence over a glob, an earlier glob over a later one, and "default" comes last.

    Raises
    ------
    ConfigError
        A key matches no channel of the file.
    """
    keys = [key for key in transform if key != DEFAULT]
    meant = match_all("data.transform", keys, source)
    keys.sort(key=lambda key: any(c in key for c in "*?["))  # stable: full names first
    owners = [next((key for key in keys if k in meant[key]), DEFAULT) for k in chosen]
    return [transform[owner] for owner in owners]


def make_transform(
    settings: TransformConfig,
    channels: Sequence[Channel],
    kind: str | None,
    linearize: bool,
    highest: float,
) -> Transform:
    """Make the transform of one channel with all its parameters.

    Parameters
    ----------
    settings : TransformConfig
        From the config; method auto stands for the fitting one.
    channels : sequence of Channel
        The channel in each file of the run.
    kind : "fluorescence", "mass" or None
    linearize : bool
        Logarithmic amplification is undone.
    highest : float
        Largest raw value: the top of a logicle scale where no file has a range.

    Raises
    ------
    ConfigError
        The parameters do not fit the method.
    """
    method = settings.method if settings.method != "auto" else fitting_method(channels[0], kind, linearize)
    if method == "arcsinh":
        usual = MASS_COFACTOR if kind == "mass" else FLUORESCENCE_COFACTOR
        return Transform("arcsinh", cofactor=usual if settings.cofactor is None else settings.cofactor)
    if method != "logicle":
        return Transform("log" if method == "log" else "linear")
    tops = [top for channel in channels if (top := top_of_scale(channel, linearize)) is not None]
    usual = max(tops) if tops else highest
    given = {"t": settings.t, "w": settings.w, "m": settings.m, "a": settings.a}
    parameters = {"t": usual} | {name: x for name, x in given.items() if x is not None}
    try:
        return Transform("logicle", **parameters)
    except ValueError as error:
        raise ConfigError([f"data.transform: {channels[0].detector}: {error}"]) from error
