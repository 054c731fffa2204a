"""Channels by name: which are taken, which are not and why, and the transform that fits each.

A channel answers to its detector name and to its marker. A name or glob is looked for exactly first, then as
a glob, then both again without regard to case.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpmix.config.schema import DEFAULT, TransformConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs import Channel
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform

FLUORESCENCE_COFACTOR = 150.0
MASS_COFACTOR = 5.0
NARROW = 4096.0  # linear integers below it are too coarse for a logarithmic scale

# What is no marker of a cell, by the names that instruments give; looked for in detector names.
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
    """Channels by their names only, as a run has recorded them.

    Attributes
    ----------
    name : str
        What has them, for messages.
    details : tuple of Channel
    """

    name: str
    details: tuple[Channel, ...]


@dataclass(frozen=True)
class Suggestion:
    """What fits one channel of a file.

    Attributes
    ----------
    detector, marker : str
    taken : bool
        Whether an analysis of cell populations would use it.
    why : str
        Why it is not taken, "" where it is.
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
    """What a first config for a file would say of each of its channels.

    As the defaults of the config (all but scatter, time and the like), and without the pulse height and width
    of a detector whose area is there: they repeat it.
    """
    found = []
    for channel in source.details:
        stem, _, pulse = channel.detector.rpartition("-")
        why = left_out(channel)
        if not why and pulse in ("H", "W") and f"{stem}-A" in source.channels:
            why = f"pulse {'height' if pulse == 'H' else 'width'} of {stem}-A"
        if not why and not channel.numeric:
            why = "not numbers"
        method = fitting_method(channel, source.kind, linearize=True)
        cofactor = MASS_COFACTOR if method == "arcsinh" else None
        found.append(Suggestion(channel.detector, channel.marker, not why, why, method, cofactor))
    return found


def left_out(channel: Channel) -> str:
    """Why a channel is not taken unless it is named, "" if it is (the list is `NOT_MARKERS`)."""
    return next((why for why, names in NOT_MARKERS if re.search(names, channel.detector, re.IGNORECASE)), "")


def choose(patterns: Sequence[str] | None, source: Source) -> list[int]:
    """Numbers of the channels of a file that a config names, in its order, each once.

    Parameters
    ----------
    patterns : sequence of str or None
        Names or globs; None for all channels but scatter, time and the like.
    source : Source

    Raises
    ------
    ConfigError
        A name matches no channel.
    DataError
        No channel is left.
    """
    if patterns is None:
        chosen = [k for k, channel in enumerate(source.details) if not left_out(channel)]
        if not chosen:
            raise DataError(
                f"{source.name}: found only scatter, time and the like ({', '.join(source.channels)}), "
                "name the channels to take in data.channels"
            )
        return chosen
    found = match_all("data.channels", patterns, source)
    return list(dict.fromkeys(k for numbers in found.values() for k in numbers))


def match_all(where: str, patterns: Sequence[str], source: Source) -> dict[str, list[int]]:
    """Channels that each pattern names; `ConfigError`, with the key `where` they stand, for those of none."""
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
    """Numbers of the channels that a name or glob means, none if it means nothing."""
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
    """The rest of a complaint: the names nearest to one that means nothing, or all of them."""
    names = list(dict.fromkeys(name for c in details for name in (c.marker, c.detector) if name))
    word = pattern.casefold().strip("*?")
    within = [name for name in names if word and word in name.casefold()]
    close = difflib.get_close_matches(word, [name.casefold() for name in names], n=3, cutoff=0.5)
    near = within or [name for name in names if name.casefold() in close]
    return f", nearest: {', '.join(near[:5])}" if near else f", it has {', '.join(names)}"


def same_channels(first: Source | Panel, chosen: Sequence[int], other: Source) -> tuple[list[int], list[str]]:
    """Numbers in another file of the channels chosen in the first (or in a run), and notes on other names.

    By marker where it names one channel in each file, else by detector.

    Raises
    ------
    DataError
        The other file has no such channel.
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
                f"{other.name}: found no channel {wanted.detector} {wanted.marker}".rstrip()
                + f", which {first.name} has; need a file that has it, or other channels in data.channels"
            )
        same = other.details[candidates[0]]
        if (same.detector, same.marker) != (wanted.detector, wanted.marker):
            notes.append(
                f"{other.name}: {same.detector} ({same.marker or 'no marker'}) taken for "
                f"{wanted.detector} ({wanted.marker or 'no marker'}) of {first.name}"
            )
        numbers.append(candidates[0])
    twice = [first.details[k].detector for k, n in zip(chosen, numbers, strict=True) if numbers.count(n) > 1]
    if twice:
        raise DataError(
            f"{other.name}: one channel stands for {', '.join(twice)} of {first.name}; rename the markers"
        )
    return numbers, notes


def display_names(channels: Sequence[Channel]) -> tuple[str, ...]:
    """Names to show: the marker where it names one channel only, else the detector."""
    detectors = {c.detector for c in channels}
    markers = [c.marker for c in channels]
    return tuple(
        c.marker if c.marker and markers.count(c.marker) == 1 and c.marker not in detectors else c.detector
        for c in channels
    )


# ------------------------------------------------------------------------------------- transforms


def fitting_method(channel: Channel, kind: str | None, linearize: bool) -> str:
    """Method of the transform that fits a channel, of an instrument of a kind (None: not known).

    Scatter and the like linear, mass cytometry arcsinh, fluorescence logicle; linear where the values are on
    a logarithmic scale as they are, where the scale is too coarse, and where nothing is known.
    """
    if kind is None or left_out(channel):
        return "linear"
    if kind == "mass":
        return "arcsinh"
    coarse = channel.integer and channel.log is None and (channel.range or 0.0) <= NARROW
    return "linear" if coarse or (channel.log and not linearize) else "logicle"


def top_of_scale(channel: Channel, linearize: bool) -> float | None:
    """Where a channel's range ends on the raw scale, None where the file does not say."""
    if channel.log and linearize:
        decades, offset = channel.log
        return float(offset * 10.0**decades)
    return channel.range


def settings_of(
    transform: Mapping[str, TransformConfig], source: Source, chosen: Sequence[int]
) -> list[TransformConfig]:
    """What the config says of the transform of each chosen channel.

    A name in full goes before a glob, a glob before those after it, and "default" is for the others.

    Raises
    ------
    ConfigError
        A key matches no channel of the file.
    """
    keys = [key for key in transform if key != DEFAULT]
    meant = match_all("data.transform", keys, source)
    keys.sort(key=lambda key: any(c in key for c in "*?["))  # stable: names in full first
    owners = [next((key for key in keys if k in meant[key]), DEFAULT) for k in chosen]
    return [transform[owner] for owner in owners]


def transform_of(
    settings: TransformConfig,
    channels: Sequence[Channel],
    kind: str | None,
    linearize: bool,
    highest: float,
) -> Transform:
    """The transform of one channel with every parameter given.

    Parameters
    ----------
    settings : TransformConfig
        From the config; method auto is the fitting one.
    channels : sequence of Channel
        The channel in each file of the run.
    kind : "fluorescence", "mass" or None
    linearize : bool
        Whether logarithmic amplification was undone.
    highest : float
        Largest raw value: the top of a logicle scale where no file gives a range.

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
