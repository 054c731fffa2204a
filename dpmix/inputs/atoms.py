"""Atoms: values that very many events of a channel share exactly, as where a detector saturates.

A normal may shrink onto an atom without end, and takes a learned prior of the covariances with it. So atoms
are found and reported always and, where the config asks for it, spread: the sampler sees each of their events
moved by noise on the transformed scale (the files stay as they are).

**Which values are atoms.** At least 1 in 1,000 of the events have the value, and more than 8 times as many as
have the third most frequent of the 32 distinct values next to it. By ranks, so that no transform and no unit
matters. Of smooth data nearly every value is its own; of integers the values next to one another are about
equally frequent; where one grid lies in a finer one (instruments that round a logarithm) several of its
values are among the 32; the third, not the first, so that two atoms side by side do not hide each other. On
the real samples that the tests read no value lies between 6 and 10 times: merely frequent values are below,
clipped and zero-heavy channels above. A channel of up to three distinct values consists of atoms; a
population whose standard deviation is less than a step of the grid counts as one.

**What is done.** `dither`: normal noise of 0.03 standard deviations of the channel, so that a normal can be
narrow there, but no narrower. `tail`: an atom at a limit of the channel goes on beyond it as a half-normal,
as wide as makes the density of the events continuous at the limit (at most half a standard deviation); every
other atom is dithered. The zero of a mass cytometer is no limit but no ions, and is dithered.

**The noise** is a function of the seed, the names of the sample and the channel, and the event's row in its
file: neither the order of events nor the size of chunks nor which other events are taken changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from dpmix.inputs.storage import release_pages
from dpmix.model.mixture import Array, Floats, Ints

Treatment = Literal["kept", "dithered", "tail below", "tail above"]

SAMPLE = 262_144  # events, evenly spaced, that atoms are sought in
PIECE = 16_384  # events looked at together
SHARE = 0.001  # of the events
TIMES, RANK, NEIGHBOURS = 8, 3, 32  # times the third most frequent of 32 neighbours
BEYOND = 0.01  # of an atom's events: so many may lie beyond a limit
DITHER = 0.03  # all widths in standard deviations of the channel
WIDEST, NEAREST = 0.5, 0.05  # of a tail; of the stretch that the density beside it is taken from
NEAR = 0.03  # of the events: held by that stretch
BLOCK = 16_384  # rows whose noise is drawn together: part of what the noise is, so it must never change


@dataclass(frozen=True)
class Atom:
    """A value that many events share, and what is done to them.

    Attributes
    ----------
    value : float
        Raw (compensated, where that was asked).
    events : int
        Events of the run that have it.
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
    no_limits: Sequence[float] = (),
) -> tuple[tuple[Atom, ...], ...]:
    """The atoms of every channel, from the least value to the greatest.

    Parameters
    ----------
    values : float32 [N, D]
        Raw values.
    mode : "report", "dither" or "tail"
    transforms : sequence of callable
        Of each channel, from raw to transformed values, float64.
    no_limits : sequence of float
        Raw values that are no limit of a channel even where no event lies beyond them.

    Returns
    -------
    tuple of tuple of Atom
        Sought among at most 262,144 evenly spaced events; counted among all.
    """
    some = _evenly_spaced(values)
    found = [_sought(some[:, j], mode, transform, no_limits) for j, transform in enumerate(transforms)]
    return count(found, values)


def count(atoms: Sequence[Sequence[Atom]], values: Floats) -> tuple[tuple[Atom, ...], ...]:
    """The atoms of D channels with the numbers of the events that have them, in values float32 [N, D]."""
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


def _evenly_spaced(values: Floats) -> Floats:
    """At most `SAMPLE` events, every so many."""
    step, found = -(-len(values) // SAMPLE), []
    rows = step * max(PIECE // step, 1)
    for start in range(0, len(values), rows):
        stop = min(start + rows, len(values))
        found.append(np.array(values[start:stop:step]))
        release_pages(values, start, stop)
    return np.concatenate(found)


def _sought(
    column: Floats,
    mode: str,
    transform: Callable[[Array], Array],
    no_limits: Sequence[float],
) -> list[Atom]:
    """The atoms of a channel by some of its events, float32 [M], not counted yet."""
    values, counts = np.unique(column, return_counts=True)
    places = _far_above(counts)
    treatments: list[tuple[Treatment, float]] = [("kept", 0.0)] * len(places)
    if places and mode != "report":
        sides = [0 if mode == "dither" or values[i] in no_limits else _limit(counts, i) for i in places]
        treatments = _treatments(transform(values.astype(np.float64)), counts, places, sides)
    return [Atom(float(values[i]), 0, *treatment) for i, treatment in zip(places, treatments, strict=True)]


def spread(
    column: Floats,
    points: Array,
    atoms: Sequence[Atom],
    key: tuple[int, str, str],
    rows: Ints,
) -> None:
    """Move the events at the atoms of a channel, in place.

    Parameters
    ----------
    column : float32 [M]
        Transformed values.
    points : float64 [A]
        The values of the atoms, transformed.
    atoms : sequence of Atom
        A of them.
    key : (int, str, str)
        Seed, and the names of sample and channel.
    rows : int64 [M]
        Each event's row in its file.
    """
    # All before any is moved: what was moved may land on another atom.
    places = [np.flatnonzero(column == point) for point in points.astype(np.float32)]
    for atom, point, at in zip(atoms, points, places, strict=True):
        if atom.treatment != "kept":
            noise = atom.width * normals(key, rows[at])
            if atom.treatment != "dithered":
                noise = np.abs(noise) if atom.treatment == "tail above" else -np.abs(noise)
            column[at] = point + noise


def normals(key: tuple[int, str, str], rows: Ints) -> Array:
    """Standard normal numbers of some rows, in any order: Philox4x64-10 keyed by the seed and the names."""
    seed, *names = key
    name = hashlib.sha256("\0".join(["atoms", *names]).encode()).digest()[:8]
    philox_key = seed + (int.from_bytes(name, "little") << 64)
    blocks, within = np.divmod(rows, BLOCK)
    order = np.argsort(blocks, kind="stable")
    bits = np.empty(len(rows), np.uint64)
    for group in filter(len, np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1)):
        block = np.random.Philox(key=philox_key, counter=int(blocks[group[0]]) << 64)
        bits[group] = block.random_raw(BLOCK)[within[group]]
    numbers: Array = ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-52)  # never of 0 or 1
    return numbers


def _far_above(counts: Ints) -> list[int]:
    """Places of the values whose counts stand far above those beside them."""
    found = []
    for i in map(int, np.flatnonzero(counts >= SHARE * counts.sum())):
        first = max(0, min(i - NEIGHBOURS // 2, len(counts) - NEIGHBOURS - 1))
        beside = np.delete(counts[first : first + NEIGHBOURS + 1], i - first)
        usual = np.sort(beside)[-RANK] if len(beside) >= RANK else 1
        if counts[i] > TIMES * usual:
            found.append(i)
    return found


def _limit(counts: Ints, i: int) -> int:
    """-1 or 1 where next to no event is below or above the value at place i, else 0."""
    few = BEYOND * counts[i]
    return -1 if counts[:i].sum() <= few else 1 if counts[i + 1 :].sum() <= few else 0


def _treatments(
    points: Array, counts: Ints, places: Sequence[int], sides: Sequence[int]
) -> list[tuple[Treatment, float]]:
    """What is done to each atom, and how wide; `sides` says which are at a limit, as `_limit` does."""
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
        if height > 0:  # of a half-normal: events / width x sqrt(2 / pi)
            width = min(width, counts[i] * np.sqrt(2 / np.pi) / height)
        treatments.append(("tail below" if side < 0 else "tail above", float(width)))
    return treatments


def _height(distances: Array, counts: Ints, enough: float, least: float) -> float:
    """Events per unit in the stretch from 0 that holds `enough` of them, or is `least` long."""
    if len(distances) == 0:
        return 0.0
    order = np.argsort(distances)
    held = np.cumsum(counts[order])
    nearest = distances[order[min(int(np.searchsorted(held, enough)), len(held) - 1)]]
    stretch = max(float(nearest), least)
    return float(counts[distances <= stretch].sum() / stretch)
