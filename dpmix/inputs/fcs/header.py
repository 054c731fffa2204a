"""Read what a data set of an FCS file contains: its channels, and where its events are.

`dpmix.inputs.fcs.text` reads HEADER and TEXT, `dpmix.inputs.fcs.place` and `dpmix.inputs.fcs.evidence` find
DATA, and `dpmix.inputs.fcs.data` reads ranges of its events. Common deviations from the standard are read as
their writers meant them:

- DATA offsets that are blank in HEADER, differ between HEADER and TEXT, or are one byte too large;
- any of several data sets in one file, by default the first;
- integers of 24 bits, integers of different widths in one event, and of 10 or 12 bits in words of 16;
- empty values in TEXT, blanks around keywords, a supplemental TEXT segment, an ANALYSIS segment that cannot
  be read, and TEXT without $TOT.

`Header.notes` reports oddities, and `Header.warnings` what may make values wrong. The page
docs/reference/fcs-deviations.md lists all of them.

The header describes the logarithmic amplification of old instruments ($PnE) and the spillover;
`dpmix.inputs.file_plans` undoes both.

Standards: FCS 2.0, Cytometry 11:323 (1990); 3.0, 28:118 (1997); 3.1, 77A:97 (2010); 3.2, 99:100 (2021).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from dpmix.errors import DataError
from dpmix.inputs.channel import Channel
from dpmix.inputs.fcs.channels import channel_notes, read_channel
from dpmix.inputs.fcs.evidence import CLOCK, Clock, DataSet, Owner
from dpmix.inputs.fcs.place import place_events, stated_places
from dpmix.inputs.fcs.sample import integer_masks, require_measurements
from dpmix.inputs.fcs.spillover import Spillover, find_matrix
from dpmix.inputs.fcs.text import (
    AGAIN,
    HEADER_BYTES,
    find_data_sets,
    quoted,
    read_text,
    segment_of,
    whole_number,
)
from dpmix.inputs.fcs.values import Order, range_mask, stored_type
from dpmix.inputs.mass import named_by_isotopes

MASS_INSTRUMENT = re.compile(r"cytof|helios|dvs|xt ?mass|mass cyto", re.IGNORECASE)
MASS_DETECTOR = re.compile(r"^\(?[A-Z][a-z]?\d{2,3}\)?D[id]$|\(([A-Z][a-z]?\d{2,3})\)D[id]$")


@dataclass(frozen=True)
class Header:
    """Contents of one data set of an FCS file, without its events.

    Attributes
    ----------
    path : Path
    version : str
        For example "FCS3.1".
    datatype : str
        $DATATYPE: I (integers), F (float32) or D (float64).
    n_events : int
    channels : tuple of Channel
    spillover : Spillover or None
        The file's own matrix ($SPILLOVER, SPILL or $COMP).
    spillover_problem : str
        Why the file's spillover keyword cannot be read, "" where there is no problem.
    instrument : str
        $CYT.
    kind : "fluorescence" or "mass"
    data_set, n_data_sets : int
        Number of this data set, from 1, and of data sets in the file.
    notes : tuple of str
        Oddities of the file, one line each.
    warnings : tuple of str
        What may make its values wrong, one line each.
    keywords : dict
        All keywords of TEXT, in lower case and without $.
    text : tuple of (bytes, bytes)
        Keywords and values of TEXT and its supplement as in the file, in their order; an empty value is one
        blank.
    byte_order : "<" or ">"
        Little- or big-endian.
    data_start : int
        First byte of the events in the file.
    place_by : "HEADER" or "TEXT"
        Who states this place; HEADER where both do.
    place_is_chosen : bool
        Nothing in the file shows that this place is right; the user chose it.
    analysis : (int, int)
        First byte of ANALYSIS in the file and its length in bytes, (0, 0) where it has none.
    row : numpy dtype
        One event as stored, with fields c0, c1, ...
    masks : tuple of int or None
        Bits of each channel that belong to its values; None for all.
    """

    path: Path
    version: str
    datatype: str
    n_events: int
    channels: tuple[Channel, ...]
    spillover: Spillover | None
    spillover_problem: str
    instrument: str
    kind: Literal["fluorescence", "mass"]
    data_set: int
    n_data_sets: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    keywords: dict[str, str] = field(repr=False)
    text: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    byte_order: Order
    data_start: int = field(repr=False)
    place_by: Owner = field(repr=False)
    place_is_chosen: bool = field(repr=False)
    analysis: tuple[int, int] = field(repr=False)
    row: np.dtype[np.void] = field(repr=False)
    masks: tuple[int | None, ...] = field(repr=False)


def read_header(path: str | Path, data_set: int | None = None, choice: Owner | None = None) -> Header:
    """Read the metadata of a data set of an FCS file.

    Parameters
    ----------
    path : str or Path
    data_set : int, optional
        Number of the data set in the file, from 1; default: the first.
    choice : "HEADER" or "TEXT", optional
        Whose place of the events is used where the two differ and nothing in the file shows which is right;
        default: neither, and the file is refused.

    Raises
    ------
    DataError
        The file is not FCS, is truncated or corrupt, or is of a kind that dpmix does not read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            offsets, linked = find_data_sets(file, path)
            number = 1 if data_set is None else data_set
            if not 1 <= number <= len(offsets):
                raise DataError(f"{path}: found {len(offsets)} data sets, need one of them, got {number}")
            parts = [f"{path.name}::{k}" for k in range(1, len(offsets) + 1) if k != number]
            names = ", ".join(parts[:3]) + (", ..." if len(parts) > 3 else "")
            try:
                header = _read_data_set(file, path, number, offsets, choice)
            except DataError as error:
                if not parts:
                    raise
                raise DataError(f"{error}; or use another data set of the file: {names}") from error
            if linked or data_set is not None:
                return header
            found = f"{len(offsets)} data sets follow each other in the file, which $NEXTDATA does not say"
            warning = f"{found}; only the first is read; add the others by name: {names}"
            return replace(header, warnings=(*header.warnings, warning))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}, need a readable FCS file") from error


def _read_data_set(
    file: BinaryIO, path: Path, data_set: int, offsets: list[int], choice: Owner | None
) -> Header:
    """Read the metadata of a data set, given the offsets of all data sets of the file."""
    text = read_text(file, path, offsets[data_set - 1])
    data = DataSet.of(file, path, offsets[data_set - 1], text)
    keywords = text.keywords
    mode = keywords.get("mode", "L").strip().upper()
    if mode != "L":
        raise DataError(f"{path}: $MODE is {mode}, a histogram; need list mode (L), one row per event")
    order = _byte_order(keywords, path)
    types, warnings = _channel_types(data, order)
    channels = tuple(
        read_channel(keywords, n, kind.kind in "uV", path) for n, kind in enumerate(types, start=1)
    )
    row = np.dtype([(f"c{k}", kind) for k, kind in enumerate(types)])
    found = place_events(data, row, _clocks(channels, order), choice)
    # After the place is known, from values alone: HEADER and TEXT may agree on a false one.
    doubts = require_measurements(data, found.first, found.n_events, row, channels, order)
    bits = integer_masks(data, found.first, found.n_events, row, channels, order)
    channels = tuple(
        replace(channel, range=None) if k in bits.false else channel for k, channel in enumerate(channels)
    )
    notes = [f"data set {data_set} of {len(offsets)} in the file"] if len(offsets) > 1 else []
    own = find_matrix(keywords, channels)
    instrument = keywords.get("cyt", "").strip()
    mass = (
        MASS_INSTRUMENT.search(instrument)
        or any(MASS_DETECTOR.search(channel.detector) for channel in channels)
        or named_by_isotopes(channels)
    )
    return Header(
        path=path,
        version=text.header[:6].decode(),
        datatype=keywords["datatype"].strip().upper(),
        n_events=found.n_events,
        channels=channels,
        spillover=own.spillover,
        spillover_problem=own.problem,
        instrument=instrument,
        kind="mass" if mass else "fluorescence",
        data_set=data_set,
        n_data_sets=len(offsets),
        notes=(*notes, *channel_notes(keywords, channels), *bits.notes, *own.notes),
        warnings=(
            *warnings,
            *found.warnings,
            *doubts,
            *bits.warnings,
            *own.warnings,
            *_copied_warning(keywords),
        ),
        keywords=keywords,
        text=text.pairs,
        byte_order=order,
        data_start=data.offset + found.first,
        place_by=found.owner,
        place_is_chosen=found.is_chosen,
        analysis=_place_analysis(data),
        row=row,
        masks=bits.masks,
    )


def _byte_order(keywords: Mapping[str, str], path: Path) -> Order:
    """Return the byte order by $BYTEORD: "1,2,3,4" (or "1,2") is little-endian, the reverse big-endian."""
    found = keywords.get("byteord", "").replace(" ", "")
    digits = found.split(",")
    ascending = [str(k + 1) for k in range(len(digits))]
    if digits == ascending:
        return "<"
    if digits == ascending[::-1]:
        return ">"
    raise DataError(f"{path}: $BYTEORD is {found or 'missing'}, need 1,2,3,4 or 4,3,2,1; convert the file")


def _channel_types(data: DataSet, order: Order) -> tuple[list[np.dtype[Any]], list[str]]:
    """Return the stored type of each channel by $PnDATATYPE (FCS 3.2) or $DATATYPE, and $PnB; and warnings.

    Some instruments store integers of 10 or 12 bits in words of 16 bits. Other widths than `stored_type`
    returns are read so if only this fits the length of DATA.
    """
    keywords = data.text.keywords
    numbers = range(1, int(keywords["par"]) + 1)
    letters = {n: keywords.get(f"p{n}datatype", keywords["datatype"]).strip().upper() for n in numbers}
    bits = {n: whole_number(keywords.get(f"p{n}b", ""), 0) for n in numbers}
    types = {n: stored_type(letters[n], bits[n], order) for n in numbers}
    odd = [n for n, kind in types.items() if kind is None]
    if not odd:
        return [kind for kind in types.values() if kind is not None], []
    first = odd[0]
    found = f"$P{first}B is {quoted(keywords.get(f'p{first}b', ''))} with data type {letters[first]}"
    if all(letters[n] == "I" and 0 < bits[n] < 64 for n in odd):
        fitting = _fitting_words(data, [0 if n in odd else bits[n] for n in numbers], [bits[n] for n in odd])
        # Exactly one: with two widths that fit, or packed bits without words, nothing shows which is right.
        if len(fitting) == 1 and (width := fitting[0]):
            kinds = [stored_type(letters[n], width if n in odd else bits[n], order) for n in numbers]
            which = f"{found}, also in {len(odd) - 1} other channels" if len(odd) > 1 else found
            warning = f"{which}; read as words of {width} bits, which alone fit the length of DATA"
            return [kind for kind in kinds if kind is not None], [warning]
    raise DataError(
        f"{data.path}: {found}, need I with 8, 16, 24, 32 or 64 bits, F with 32 or D with 64; {AGAIN}"
    )


def _fitting_words(data: DataSet, known: Sequence[int], odd: Sequence[int]) -> list[int]:
    """Return the widths of words that fit the length of DATA, in bits; 0 for packed bits without words.

    `known` has the bits of the channels as stored, and `odd` the bits of the others.
    """
    if not data.n_events:
        return []
    places = stated_places(data.text).places
    sizes = {word: sum(known) // 8 + len(odd) * word // 8 for word in (8, 16, 32, 64) if word >= max(odd)}
    sizes[0] = (sum(known) + sum(odd) + 7) // 8
    return [word for word, size in sizes.items() if any(data.fits(place, size) for place in places)]


def _copied_warning(keywords: Mapping[str, str]) -> list[str]:
    """Return the warning that `dpmix gate --format fcs` copied from the original of this file."""
    found = keywords.get("dpmix_warning", "").strip()
    return [f"copied from a file with this warning: {found}"] if found else []


def _clocks(channels: Sequence[Channel], order: Order) -> list[Clock]:
    """Return the channels whose values should ascend from event to event."""
    return [
        Clock(channel.detector, f"c{k}", order, range_mask(channel.range) if channel.integer else None)
        for k, channel in enumerate(channels)
        if CLOCK.search(channel.detector)
    ]


def _place_analysis(data: DataSet) -> tuple[int, int]:
    """Return the first byte of ANALYSIS in the file and its length, (0, 0) if it lies outside the file."""
    raw = data.text.header
    in_header = whole_number(raw[42:50], 0), whole_number(raw[50:58], 0)
    for first, last in (segment_of(data.text.keywords, "analysis"), in_header):
        if HEADER_BYTES <= first < last < data.size:
            return data.offset + first, last - first + 1
    return 0, 0
