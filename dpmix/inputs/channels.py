"""Find channels by name, in one file and in several.

A channel has two names, its detector and its marker. A name in the config is compared exactly first, then as
a glob, then both again ignoring case.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import uncompensated_name
from dpmix.inputs.sources import Source


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


def run_panel(detectors: Sequence[str], shown: Sequence[str]) -> Panel:
    """Return the channels of a run: names in its first file, and names to show."""
    pairs = zip(detectors, shown, strict=True)
    return Panel("the run", tuple(Channel(name, own if own != name else "") for name, own in pairs))


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


def refuse_twice(
    where: str, patterns: Sequence[str], found: Mapping[str, Sequence[int]], source: Source
) -> None:
    """Raise `ConfigError` if a name is listed twice, or a channel by both of its names; globs may overlap.

    Parameters are as in `match_all`, and the channels that it found.
    """
    counts = Counter(patterns).items()
    problems = [f"{where}: {name} is listed {n} times, need each name once" for name, n in counts if n > 1]
    single = [name for name, numbers in found.items() if len(numbers) == 1 and not set("*?[") & set(name)]
    for k, channel in enumerate(source.details):
        names = [name for name in single if k in found[name]]
        if len(names) > 1:
            one = f"names of one channel, {channel.detector} of {source.name}"
            problems.append(f"{where}: {' and '.join(names)} are {one}; need one of them")
    if problems:
        raise ConfigError(problems)


def match(pattern: str, details: Sequence[Channel]) -> list[int]:
    """Return the numbers of the channels that a name or glob matches."""
    names = [[name for name in (c.detector, c.marker) if name] for c in details]
    tests = (
        lambda name: name == pattern,
        lambda name: fnmatch.fnmatchcase(name, pattern),
        lambda name: name.casefold() == pattern.casefold(),
        lambda name: fnmatch.fnmatchcase(name.casefold(), pattern.casefold()),
    )
    # An exact name stops the search: CD4 must not match CD45 because of another spelling somewhere.
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

    Channels are compared as by `numbers_of`.

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
        wanted, candidates = first.details[k], numbers_of(first, k, other)
        if not candidates:
            bare = uncompensated_name(wanted.detector)
            raw = [c.detector for c in other.details if uncompensated_name(c.detector) == bare]
            why = f" ({raw[0]} is not the same: only one of them is compensated)" if raw else ""
            raise DataError(
                f"{other.name}: has no channel {wanted.detector} {wanted.marker}".rstrip()
                + why
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


def numbers_of(first: Source | Panel, k: int, other: Source) -> list[int]:
    """Return the channels of a file that may be channel k of another one (or of a run); the first is used.

    Channels are compared by marker if it names one channel in each file, else by detector. Where neither
    occurs, a name without a marker is compared with a marker: a table has names of one kind only. At last, a
    detector named as compensated (FJComp-PE-A) is the detector of a file whose matrix compensates it (PE-A).
    """
    wanted, details = first.details[k], other.details
    found = [j for j, c in enumerate(details) if wanted.marker and c.marker == wanted.marker]
    alone = sum(c.marker == wanted.marker for c in first.details) == 1
    if len(found) != 1 or not alone:
        found = [j for j, c in enumerate(details) if c.detector == wanted.detector]
    name = wanted.marker or wanted.detector
    found = found or [j for j, c in enumerate(details) if (c.marker or c.detector) == name]
    return found or [
        j
        for j, c in enumerate(details)
        if uncompensated_name(c.detector) == uncompensated_name(wanted.detector)
        and _is_compensated(first, wanted.detector)
        and _is_compensated(other, c.detector)
    ]


def _is_compensated(owner: Source | Panel, detector: str) -> bool:
    """Return True for a detector that is compensated by its name, by the matrix of its file, or in a run."""
    if isinstance(owner, Panel) or uncompensated_name(detector) != detector:
        return True
    return owner.spillover is not None and detector in owner.spillover.detectors


def display_names(channels: Sequence[Channel]) -> tuple[str, ...]:
    """Return the names to show: the marker where it names one channel only, else the detector."""
    detectors = {c.detector for c in channels}
    markers = [c.marker for c in channels]
    return tuple(
        c.marker if c.marker and markers.count(c.marker) == 1 and c.marker not in detectors else c.detector
        for c in channels
    )
