"""Bring gathered events from raw values to the scale of the sampler, in place and block by block."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError
from dpmix.inputs.atoms import content_keys
from dpmix.inputs.blocks import held_blocks
from dpmix.inputs.gather import Gathered
from dpmix.inputs.transforms import Scaling, Transform
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.system.progress import ProgressLog


@dataclass(frozen=True)
class TransformSummary:
    """Counts and sums of transformed events.

    Attributes
    ----------
    above_top : int64 [D]
        Events above the top of a logicle scale.
    lowest, highest : float64 [D]
        Extreme values, before atoms are spread.
    identical : list of (int, int)
        Pairs of channels with the same values in all events, before atoms are spread.
    finite : bool [D]
        All values are finite, after atoms are spread.
    totals : float64 [D]
        Sums of the values, after atoms are spread.
    """

    above_top: Ints
    lowest: Array
    highest: Array
    identical: list[tuple[int, int]]
    finite: npt.NDArray[np.bool_]
    totals: Array


def transform_events(gathered: Gathered, scaling: Scaling, progress: ProgressLog) -> TransformSummary:
    """Transform events and spread their atoms, in place."""
    keys = list(map(content_keys, gathered.digests))
    values, dim = gathered.values, len(scaling.channels)
    above_top, totals = np.zeros(dim, np.int64), np.zeros(dim)
    lowest, highest = np.full(dim, np.inf), np.full(dim, -np.inf)
    identical, finite = list(itertools.combinations(range(dim), 2)), np.ones(dim, bool)
    for start, stop in held_blocks(values, progress):
        block = values[start:stop]
        for j, transform in enumerate(scaling.transforms):
            raw = block[:, j].astype(np.float64)
            if transform.method == "logicle":
                above_top[j] += (raw > transform.t).sum()
            if transform.method != "linear":
                block[:, j] = transform.apply(raw)
        lowest, highest = np.minimum(lowest, block.min(0)), np.maximum(highest, block.max(0))
        identical = [(j, k) for j, k in identical if np.array_equal(block[:, j], block[:, k])]
        _spread_atoms(gathered, scaling, keys, start, stop)
        finite &= np.isfinite(block).all(0)
        with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite raise an error later
            totals += block.sum(0, dtype=np.float64)
    return TransformSummary(above_top, lowest, highest, identical, finite, totals)


def _spread_atoms(
    gathered: Gathered, scaling: Scaling, keys: Sequence[Sequence[int]], start: int, stop: int
) -> None:
    """Spread the atoms of a block in place, sample by sample, by the keys [S, D] of their noise."""
    if all(atom.treatment == "kept" for channel in scaling.atoms for atom in channel):
        return
    edges = gathered.sample_starts
    for sample in range(int(np.searchsorted(edges, start, "right")) - 1, len(keys)):
        first, last = max(int(edges[sample]), start), min(int(edges[sample + 1]), stop)
        if first >= stop:
            break
        if first == last:
            continue
        numbers = np.arange(first, last) - edges[sample]
        rows = numbers if gathered.rows is None else gathered.rows[first:last]
        scaling.spread_atoms(gathered.values[first:last], keys[sample], rows)


def standard_deviations(values: Floats, means: Array, progress: ProgressLog) -> Array:
    """Return standard deviations, float64 [D]; squares are summed block by block in order."""
    squares = np.zeros(len(means))
    for start, stop in held_blocks(values, progress):
        squares += np.square(values[start:stop] - means).sum(0)
    return np.sqrt(squares / len(values))


def standardise_events(values: Floats, scaling: Scaling, progress: ProgressLog) -> str:
    """Standardise events in place.

    Returns
    -------
    str
        SHA-256 of the names of the channels and the standardised events.

    Raises
    ------
    DataError
        A value is not finite after it.
    """
    digest = hashlib.sha256("\0".join(scaling.channels).encode())
    finite = np.ones(len(scaling.channels), bool)
    for start, stop in held_blocks(values, progress):
        with np.errstate(over="ignore"):  # the error below names the channel
            values[start:stop] = (values[start:stop] - scaling.means) / scaling.sds
        finite &= np.isfinite(values[start:stop]).all(0)
        digest.update(values[start:stop].data)
    require_finite(finite, scaling.channels)
    return digest.hexdigest()


def require_finite(finite: npt.NDArray[np.bool_], names: Sequence[str]) -> None:
    """Raise `DataError` with the names of the channels that have values that are not finite."""
    bad = [name for name, fine in zip(names, finite, strict=True) if not fine]
    if bad:
        raise DataError(
            f"{', '.join(bad)}: not finite after the transform; choose another one in data.transform"
        )


def require_positive(transforms: Sequence[Transform], not_positive: Ints, names: Sequence[str]) -> None:
    """Raise `DataError` where a channel with the log transform has values at or below 0."""
    bad = [
        f"{name} ({count} events)"
        for name, transform, count in zip(names, transforms, not_positive, strict=True)
        if transform.method == "log" and count
    ]
    if bad:
        raise DataError(
            f"transform log: values at or below 0 in {', '.join(bad)}, need values above 0; choose arcsinh "
            "or logicle for them in data.transform"
        )
