"""Names of markers in several files: other spellings, channels that some files lack, and data.rename.

Nothing here merges channels by itself. `spellings` and `absences` are reports for `dpmix init`;
`rename_markers` does what the config asks for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dpmix.errors import ConfigError
from dpmix.inputs.channel import Channel
from dpmix.inputs.channel_names import uncompensated_name, why_no_marker
from dpmix.inputs.channels import Panel, nearest, numbers_of
from dpmix.inputs.mass import ISOTOPE
from dpmix.inputs.sources import Source

MOST_NAMES = 3  # of files or markers, in a message
# Dyes that laboratories write next to a marker ("45RA PE"), each perhaps with -A, -H or -W.
NUMBERED = r"Alexa ?Fluor|Alexa|AF|eFluor|eF|Qdot|QD|BV|BUV|BB|BYG|RB|RY|V|Super ?Bright|SB|Spark ?[A-Z]*"
TANDEMS = r"(?:Cy|Vio|Fire|R|H|eFluor|Dazzle|CF) ?\d+(?:[-. ]5)?|Texas ?Red"
NAMED = (
    r"FITC|ECD|PC5[-. ]5|PC[57]|Pacific ?(?:Blue|Orange)|PB|PO|Kr(?:ome )?O(?:range)?|AmCyan|Texas ?Red|"
    r"Vio(?:Blue|Green|Bright)|Cy ?\d(?:[-. ]5)?"
)
DYES = re.compile(
    rf"(?<![A-Za-z0-9])(?:(?:PE|APC|PerCP)(?:[-/ ]?(?:{TANDEMS}))?|{NAMED}|(?:{NUMBERED}) ?\d{{3}})"
    r"(?:-[AHW])?(?![A-Za-z0-9])",
    re.IGNORECASE,
)
GREEK = str.maketrans("\u03b1\u03b2\u03b3\u03b4\u03b5\u03ba\u03b6", "abgdekz")  # alpha, beta, gamma, ...

ADDED = re.compile(r":|\s+(?=(?:lin|log|logical|linear|exp|comp)\b)", re.IGNORECASE)
# Other names of one marker, without case and hyphens: as printed in tables, and as vendors write them.
SYNONYMS = {
    **dict.fromkeys(("cd3e", "cd3epsilon"), "cd3"),
    **dict.fromkeys(("cd8a", "cd8alpha"), "cd8"),
    **dict.fromkeys(("tcryd", "tcrgammadelta", "gdtcr", "tcrgd"), "tcrgd"),
    **dict.fromkeys(("tcrab", "tcrbeta", "tcralphabeta"), "tcrb"),
    **dict.fromkeys(("cd161c", "klrb1c"), "nk11"),
    **{"cd45r": "b220", "cd45rb220": "b220", "b220cd45r": "b220", "cd197": "ccr7", "cd279": "pd1"},
    **{"cd183": "cxcr3", "cd185": "cxcr5", "cd194": "ccr4", "cd195": "ccr5", "cd196": "ccr6"},
    **{"cd303": "bdca2", "cd141": "bdca3", "cd1c": "bdca1", "il7ra": "cd127", "il2ra": "cd25"},
    **{"iaie": "mhcii", "mhcclassii": "mhcii", "cd235ab": "cd235a"},
    **{"ckit": "cd117", "ly6a": "sca1", "ly6ae": "sca1", "ncam": "cd56"},
}


class Spelling(NamedTuple):
    """Names that may mean one marker.

    Attributes
    ----------
    name : str
        Suggested name: the name in the first file, or the most frequent where the first file has none.
    others : mapping of str to tuple of str
        Every other name, with the files that have it.
    together : str
        A file that has several of the names, "" for none: then they may be different markers.
    """

    name: str
    others: Mapping[str, tuple[str, ...]]
    together: str


def shown_name(channel: Channel) -> str:
    """Return the marker of a channel, or its detector where no marker is named."""
    return channel.marker or channel.detector


def plain_name(channel: Channel) -> str:
    """Return the name of a marker without case, spaces, hyphens, dye and isotope: cd45ra of "45RA PE"."""
    name = shown_name(channel)
    if channel.marker:  # a detector may have the name of a dye
        rest = DYES.sub(" ", ISOTOPE.sub(" ", name))
        # A marker that has the name of a dye, such as PE, keeps it.
        name = rest if sum(map(str.isalnum, rest)) > 1 else name
    plain = re.sub(r"[\s_.()-]+", "", name.casefold().translate(GREEK))
    # Laboratories leave out the CD: 45RA is CD45RA.
    return f"cd{plain}" if channel.marker and re.match(r"\d", plain) else plain


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of channels for labels, without dyes: CD4 of "CD4 PerCP-Cy5-5-A".

    A name that has nothing but a dye stays, and so do names that would be the same without.
    """
    short = [_without_dye(name) for name in names]
    counts = Counter(short)
    return tuple(own if counts[own] == 1 else name for name, own in zip(names, short, strict=True))


def _without_dye(name: str) -> str:
    """Return the part of a name before the first dye, or else after it."""
    if uncompensated_name(name) != name or not (dye := DYES.search(name)):
        return name  # the name of a detector, such as Comp-PE-A
    sides = (part.strip(" _-:/.,()[]") for part in (name[: dye.start()], name[dye.end() :]))
    return next((side for side in sides if sum(map(str.isalnum, side)) > 1), name)


def marker_keys(name: str) -> tuple[str, ...]:
    """Return what is equal for two names of one marker, the most exact first.

    The whole name, by `plain_name` and synonyms, and without what cytometers add behind it, as in
    "CD38:APC H7-A LOGICAL" and "FSC-A LINEAR".
    """
    short = ADDED.split(name, maxsplit=1)[0].strip() or name
    plain = [plain_name(Channel(one, one)).replace("/", "") for one in (name, short)]
    return tuple(dict.fromkeys(SYNONYMS.get(one, one) for one in plain))


def markers_of(source: Source) -> list[int]:
    """Return the numbers of the channels that may have the names of markers."""
    return [k for k, channel in enumerate(source.details) if not why_no_marker(channel, source.kind)]


def spellings(sources: Sequence[Source]) -> list[Spelling]:
    """Return the names that differ between files and may mean one marker, in the order of the files."""
    files: dict[str, dict[str, list[str]]] = {}
    together: dict[str, str] = {}
    for source in sources:
        own: dict[str, set[str]] = {}
        for k in markers_of(source):
            own.setdefault(plain_name(source.details[k]), set()).add(shown_name(source.details[k]))
        for plain, names in own.items():
            if len(names) > 1:
                together.setdefault(plain, source.name)
            for name in sorted(names):
                files.setdefault(plain, {}).setdefault(name, []).append(source.name)
    found = []
    for plain, names_of in files.items():
        if len({name for names in names_of.values() for name in names}) < 2 or len(names_of) < 2:
            continue
        in_first = [name for name, owners in names_of.items() if sources[0].name in owners]
        name = in_first[0] if in_first else max(names_of, key=lambda name: len(names_of[name]))
        others = {other: tuple(owners) for other, owners in names_of.items() if other != name}
        found.append(Spelling(name, others, together.get(plain, "")))
    return found


def absences(sources: Sequence[Source]) -> tuple[dict[int, str], list[str]]:
    """Find channels that some files lack.

    A file that has another spelling of a marker at another detector lacks the channel, too: its own channel
    of that detector measures something else.

    Returns
    -------
    absent : dict of int to str
        Channels of the first file that other files lack, with the reason to leave them out.
    notes : list of str
        The same, and the channels of other files that the first file lacks.
    """
    first = sources[0]
    lacking: dict[int, list[str]] = {}
    more: dict[str, list[str]] = {}
    plain_first = {plain_name(first.details[k]) for k in markers_of(first)}
    for other in sources[1:]:
        plain = {j: plain_name(other.details[j]) for j in markers_of(other)}
        used = set()
        for k in markers_of(first):
            numbers, wanted = numbers_of(first, k, other), plain_name(first.details[k])
            variants = [j for j, name in plain.items() if name == wanted]
            if not numbers or (variants and numbers[0] not in variants):
                lacking.setdefault(k, []).append(other.name)
            used.update(numbers)
        for j in sorted(plain.keys() - used):
            if plain[j] not in plain_first:
                more.setdefault(shown_name(other.details[j]), []).append(other.name)
    n = len(sources)
    lacked = {
        k: f"{some(names)}{_differs_by_compensation(first, k, sources)}" for k, names in lacking.items()
    }
    absent = {k: f"not in {where}" for k, where in lacked.items()}
    notes = [
        f"{shown_name(first.details[k])}: not in {len(names)} of {n} files: {lacked[k]}"
        for k, names in lacking.items()
    ]
    notes += [
        f"{name}: only in {len(names)} of {n} files: {some(names)}; left out" for name, names in more.items()
    ]
    return absent, notes


def _differs_by_compensation(first: Source, k: int, sources: Sequence[Source]) -> str:
    """Return words for a channel that another file has under the name of compensated or raw values, or ""."""
    own = first.channels[k]
    others = {name for source in sources[1:] for name in source.channels} - {own}
    bare = {uncompensated_name(name) for name in others}
    return " with the same compensation" if uncompensated_name(own) in bare else ""


def warn_of_other_markers(
    first: Source | Panel, own: Sequence[int], sources: Sequence[Source], chosen: Sequence[Sequence[int]]
) -> list[Source]:
    """Add a warning to each file with other markers at the detectors in use, for example of another panel.

    Parameters
    ----------
    first : Source or Panel
        What the files are compared with: the first file, or the run.
    own : sequence of int
        Numbers of the channels in `first`.
    sources : sequence of Source
    chosen : sequence of sequence of int
        Numbers of these channels in each file.
    """
    warned = []
    for source, numbers in zip(sources, chosen, strict=True):
        pairs = [(first.details[k], source.details[j]) for k, j in zip(own, numbers, strict=True)]
        others = [
            f"{there.marker} instead of {here.marker}"
            for here, there in pairs
            if here.marker and there.marker and plain_name(here) != plain_name(there)
        ]
        text = (
            f"other markers than {first.name} at {len(others)} of {len(pairs)} detectors: {some(others)}; "
            "give files of one panel, or name these markers alike by data.rename if they are the same"
        )
        warned.append(replace(source, warnings=(*source.warnings, text)) if others else source)
    return warned


def some(names: Sequence[str]) -> str:
    """Return at most three names, and the number of the others."""
    others = len(names) - MOST_NAMES
    end = [f"{others} other{'s' if others > 1 else ''}"] if others > 0 else []
    return ", ".join([*names[:MOST_NAMES], *end])


def rename_markers(
    rename: Mapping[str, str], sources: Sequence[Source], all_occur: bool = True
) -> list[Source]:
    """Return files whose markers have the names that data.rename gives.

    A channel without a marker is renamed by its detector. The new name becomes its marker: the detector
    stays, because a spillover matrix names it.

    Parameters
    ----------
    rename : mapping of str to str
        New names by the old ones.
    sources : sequence of Source
    all_occur : bool
        Every old name must occur in a file.

    Raises
    ------
    ConfigError
        An old name occurs in no file, or a file has both the old and the new name.
    """
    problems, occur = [], Counter[str]()
    for source in sources if rename else ():
        names = {shown_name(channel) for channel in source.details}
        occur.update(names & rename.keys())
        problems += [
            f"data.rename: {source.name} has both {old} and {new}; remove this line, or choose another name"
            for old, new in rename.items()
            if old in names and new in names
        ]
    details = tuple(channel for source in sources for channel in source.details)
    problems += [
        f"data.rename: {old} is in no file{nearest(old, details)}"
        for old in rename
        if all_occur and not occur[old]
    ]
    if problems:
        raise ConfigError(problems)
    return [
        replace(source, details=tuple(_renamed(channel, rename) for channel in source.details))
        for source in sources
    ]


def _renamed(channel: Channel, rename: Mapping[str, str]) -> Channel:
    new = rename.get(shown_name(channel))
    return channel if new is None else replace(channel, marker=new)
