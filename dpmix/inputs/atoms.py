"""Atoms: values that very many events of a channel share exactly, for example where a detector saturates.

A Gaussian can shrink onto an atom without limit, and pulls a learned prior of the covariances with it. dpmix
therefore always finds and reports atoms. If the config says so, it also spreads them: it adds noise to their
events on the transformed scale (the files do not change).

**Definition.** A value is an atom if at least 1 in 1,000 events have it, and more than 8 times as many events
as the third most frequent of its 32 neighbours (the distinct values next to it). Only ranks are used, so
transforms and units do not matter. In smooth data nearly every value is unique. In integer data neighbours
are about equally frequent. Where a coarse grid lies in a finer one (instruments that round a logarithm),
several values of the coarse grid are among the 32 neighbours. The third neighbour is used because two
adjacent atoms would hide each other with the first. On the real samples of the tests, no ratio lies between 6
and 10: merely frequent values are below, clipped and zero-heavy channels above. All values of a channel with
up to three distinct values are atoms. A population whose standard deviation is smaller than a step of the
grid is an atom.

**Treatment.** `dither` adds Gaussian noise of 0.03 standard deviations of the channel, which bounds the width
of a component there. `tail` replaces an atom at a limit of the channel by a half-normal beyond the limit. Its
scale makes the density of the events continuous at the limit (at most half a standard deviation). `tail`
dithers every other atom.

**Noise.** The noise of an event is a function of the values that its file stores in the channel, and of the
row of the event in the file. It does not depend on the seed, on the names of files, samples and channels, on
the format of the file, on the other channels and samples, on block sizes, or on which events of the file are
used. Two files with the same values have the same noise. Channels of a file that have the same values in all
rows have different noise (`content_keys`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpmix.inputs.storage import release_pages
from dpmix.model.mixture import Array, Floats, Ints

Treatment = Literal["kept", "dithered", "tail below", "tail above"]

SAMPLE = 262_144  # evenly spaced events in which atoms are searched
PIECE = 16_384  # events processed together
SHARE = 0.001  # of the events
TIMES, RANK, NEIGHBOURS = 8, 3, 32  # 8 times the third most frequent of 32 neighbours
BEYOND = 0.01  # at a limit at most this share of the atom's events lie beyond it
DITHER = 0.03  # this and all widths in standard deviations of the channel
WIDEST = 0.5  # greatest width of a tail
NEAREST, NEAR = 0.05, 0.03  # least range next to a limit for the density there, and share of the events in it
BLOCK = 16_384  # rows whose noise is drawn together; the noise depends on it, so it must never change


@dataclass(frozen=True)
class Atom:
    """A value that many events share, and its treatment.

    Attributes
    ----------
    value : float
        Raw value (compensated if the config says so).
    events : int
        Number of events of the run with this value.
    treatment : "kept", "dithered", "tail below" or "tail above"
    width : float
        Standard deviation of the noise, or scale of the half-normal, on the transformed scale; 0 where kept.
    """

    value: float
    events: int
    treatment: Treatment
    width: float


def find(
    values: Floats,
    mode: str,
    transforms: Sequence[Callable[[Array], Array]],
) -> tuple[tuple[Atom, ...], ...]:
    """Find the atoms of each channel, in increasing order.

    Parameters
    ----------
    values : float32 [N, D]
        Raw values.
    mode : "report", "dither" or "tail"
    transforms : sequence of callable
        For each channel, from raw to transformed values, float64.

    Returns
    -------
    tuple of tuple of Atom
        For each channel. Found in at most 262,144 evenly spaced events, counted in all events.
    """
    some = evenly_spaced(values)
    found = [_candidates(some[:, j], mode, transform) for j, transform in enumerate(transforms)]
    return count(found, values)


def count(atoms: Sequence[Sequence[Atom]], values: Floats) -> tuple[tuple[Atom, ...], ...]:
    """Return the atoms of D channels with the numbers of their events in values float32 [N, D]."""
    points = [(j, k, np.float32(atom.value)) for j, own in enumerate(atoms) for k, atom in enumerate(own)]
    events = [[0] * len(own) for own in atoms]
    for start in range(0, len(values) if points else 0, PIECE):
        piece = values[start : start + PIECE]
        for j, k, point in points:
            events[j][k] += int((piece[:, j] == point).sum())
        release_pages(values, start, start + len(piece))
    return tuple(
        tuple(replace(atom, events=n) for atom, n in zip(own, numbers, strict=True))
        for own, numbers in zip(atoms, events, strict=True)
    )


def evenly_spaced(values: Floats) -> Floats:
    """Return at most `SAMPLE` evenly spaced events."""
    step, found = -(-len(values) // SAMPLE), []
    rows = step * max(PIECE // step, 1)
    for start in range(0, len(values), rows):
        stop = min(start + rows, len(values))
        found.append(np.array(values[start:stop:step]))
        release_pages(values, start, stop)
    return np.concatenate(found)


def _candidates(
    column: Floats,
    mode: str,
    transform: Callable[[Array], Array],
) -> list[Atom]:
    """Find the atoms of a channel in some of its events, float32 [M]; events are counted later."""
    values, counts = np.unique(column, return_counts=True)
    places = _frequent(counts)
    treatments: list[tuple[Treatment, float]] = [("kept", 0.0)] * len(places)
    if places and mode != "report":
        sides = [0 if mode == "dither" else _limit(counts, i) for i in places]
        treatments = _treatments(transform(values.astype(np.float64)), counts, places, sides)
    return [Atom(float(values[i]), 0, *treatment) for i, treatment in zip(places, treatments, strict=True)]


def spread(
    column: Floats,
    points: Array,
    atoms: Sequence[Atom],
    key: int,
    rows: Ints,
) -> None:
    """Add noise to the events at the atoms of a channel, in place.

    Parameters
    ----------
    column : float32 [M]
        Transformed values.
    points : float64 [A]
        Transformed values of the atoms.
    atoms : sequence of Atom
        The A atoms of the channel.
    key : int
        Key of the noise of the channel in the sample, from 0 to 2^128 - 1.
    rows : int64 [M]
        Row of each event in its file.
    """
    # Find all events before moving any: a moved event may land on another atom.
    places = [np.flatnonzero(column == point) for point in points.astype(np.float32)]
    for atom, point, at in zip(atoms, points, places, strict=True):
        if atom.treatment != "kept":
            noise = atom.width * normals(key, rows[at])
            if atom.treatment != "dithered":
                noise = np.abs(noise) if atom.treatment == "tail above" else -np.abs(noise)
            column[at] = point + noise


def content_keys(digests: Sequence[bytes]) -> tuple[int, ...]:
    """Return the key of the noise of each channel of a file.

    The keys differ even if channels have the same digest, for example two channels that are 0 in all rows:
    with equal noise, such channels would be equal after it.

    Parameters
    ----------
    digests : sequence of bytes
        For each of the D channels of the run, a digest of its values in the file.
    """
    copies: Counter[bytes] = Counter()
    keys = []
    for digest in digests:
        copy = copies[digest].to_bytes(8, "little")
        keys.append(int.from_bytes(hashlib.sha256(b"atoms\0" + digest + copy).digest()[:16], "little"))
        copies[digest] += 1
    return tuple(keys)


def normals(key: int, rows: Ints) -> Array:
    """Draw a standard normal number for each row: Philox4x64-10 (Salmon et al. 2011)."""
    from scipy.special import ndtri

    blocks, within = np.divmod(rows, BLOCK)
    order = np.argsort(blocks, kind="stable")
    bits = np.empty(len(rows), np.uint64)
    for group in filter(len, np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1)):
        # A counter of its own for each block of rows: the noise of a row needs none of the rows before it.
        block = np.random.Philox(key=key, counter=int(blocks[group[0]]) << 64)
        bits[group] = block.random_raw(BLOCK)[within[group]]
    numbers: Array = ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-52)  # the argument is never 0 or 1
    return numbers


def _frequent(counts: Ints) -> list[int]:
    """Return the places of the values whose counts are far above their neighbours' counts."""
    found = []
    for i in map(int, np.flatnonzero(counts >= SHARE * counts.sum())):
        first = max(0, min(i - NEIGHBOURS // 2, len(counts) - NEIGHBOURS - 1))
        others = np.delete(counts[first : first + NEIGHBOURS + 1], i - first)
        usual = np.sort(others)[-RANK] if len(others) >= RANK else 1
        if counts[i] > TIMES * usual:
            found.append(i)
    return found


def _limit(counts: Ints, i: int) -> int:
    """Return -1 (or 1) if almost no event is below (or above) the value at place i, else 0."""
    few = BEYOND * counts[i]
    return -1 if counts[:i].sum() <= few else 1 if counts[i + 1 :].sum() <= few else 0


def _treatments(
    points: Array, counts: Ints, places: Sequence[int], sides: Sequence[int]
) -> list[tuple[Treatment, float]]:
    """Return the treatment of each atom and its width; `sides` are the results of `_limit`."""
    # With the atoms, as standardisation has it: widths are in units that the sampler sees.
    sd = float(np.sqrt(np.cov(points, fweights=counts)))
    plain = np.ones(len(points), bool)
    plain[places] = False
    treatments: list[tuple[Treatment, float]] = []
    for i, side in zip(places, sides, strict=True):
        if side == 0:
            treatments.append(("dithered", DITHER * sd))
            continue
        distances = side * (points[i] - points)
        inside = plain & (distances > 0)
        height = _height(distances[inside], counts[inside], NEAR * counts.sum(), NEAREST * sd)
        width = WIDEST * sd
        if height > 0:  # the half-normal starts at events / width x sqrt(2 / pi)
            width = min(width, counts[i] * np.sqrt(2 / np.pi) / height)
        treatments.append(("tail below" if side < 0 else "tail above", float(width)))
    return treatments


def _height(distances: Array, counts: Ints, enough: float, least: float) -> float:
    """Return events per unit in the range from 0 that has `enough` events and is at least `least` long."""
    if len(distances) == 0:
        return 0.0
    order = np.argsort(distances)
    held = np.cumsum(counts[order])
    nearest = distances[order[min(int(np.searchsorted(held, enough)), len(held) - 1)]]
    stretch = max(float(nearest), least)
    return float(counts[distances <= stretch].sum() / stretch)
