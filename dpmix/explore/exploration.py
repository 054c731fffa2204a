"""The exploration of a run's events: judgements, and the events that are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpmix.config.engine import EngineConfig
from dpmix.explore.count import Bools, Found
from dpmix.explore.explorer import Explorer
from dpmix.explore.judgements import Judgements
from dpmix.inputs.events import Events
from dpmix.model.mixture import Floats, Ints

if TYPE_CHECKING:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess


@dataclass(frozen=True)
class Exploration:
    """The events of a run that are like those judged as wanted.

    Attributes
    ----------
    judgements : Judgements
    found : Found
    is_found : bool [N]
    sizes : int64 [S]
        Events found in each sample.
    medians : float32 [S + 1, D]
        Of the events found in each sample and in all, transformed scale; NaN without events.
    values : float32 [F, D]
        The events found, transformed scale.
    """

    judgements: Judgements
    found: Found
    is_found: Bools
    sizes: Ints
    medians: Floats
    values: Floats


def explorer_of(
    events: Events,
    judgements: Judgements,
    seed: int,
    engine: EngineConfig,
    backend: str,
    known: Explorer | None = None,
) -> Explorer:
    """Return the explorer of a run's events, given all judgements.

    Parameters
    ----------
    events : Events
    judgements : Judgements
    seed : int
    engine : EngineConfig
        Threads and devices.
    backend : "cpu" or "cuda"
        What computes the posterior at all events. Devices are free again when this returns.
    known : Explorer, optional
        An earlier one of the same events. If the judgements only add screens to its own, it is continued, and
        only these are computed. The result has the same bits.

    Raises
    ------
    DpmixError
        A device cannot be used, or all have failed. `known` is then of no more use.
    """
    # A judgement that was changed or withdrawn is in all rows after it: these have to be computed again.
    if known is None or not _continues(judgements, known):
        known = Explorer(events.values, seed, engine.threads)
    m = len(known.rows)
    if m < len(judgements.rows):
        one = judgements
        with _device(events, engine, backend) as device:
            known.judge(one.rows[m:], one.values[m:], one.checks[m:], one.screens[m:], device)
    return known


def _continues(judgements: Judgements, known: Explorer) -> bool:
    """Return whether judgements only add screens to those of an explorer."""
    m = len(known.rows)
    same = all(
        np.array_equal(own[:m], before)
        for own, before in (
            (judgements.rows, known.rows),
            (judgements.values, known.values),
            (judgements.checks, known.checks),
            (judgements.screens, known.screens),
        )
    )
    return same and judgements.screens[m - 1 : m].tolist() != judgements.screens[m : m + 1].tolist()


def learn_ahead(explorer: Explorer, events: Events, engine: EngineConfig, backend: str) -> None:
    """Let an explorer compute what the next screen needs anyway; parameters: see `explorer_of`."""
    if explorer.is_to_learn():
        with _device(events, engine, backend) as device:
            explorer.learn_ahead(device)


@contextmanager
def _device(events: Events, engine: EngineConfig, backend: str) -> Iterator[CudaGaussianProcess | None]:
    """Yield devices that hold the events; None for the CPU."""
    if backend != "cuda":
        yield None
        return
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess  # imports PyCUDA, which is optional

    device = CudaGaussianProcess(events.values, engine.devices)
    try:
        yield device
    finally:
        device.close()


def exploration(
    events: Events, judgements: Judgements, seed: int, engine: EngineConfig, backend: str
) -> Exploration | None:
    """Return the events found by judgements; None if none is wanted. Parameters: see `explorer_of`."""
    explorer = explorer_of(events, judgements, seed, engine, backend)
    found = explorer.found()
    if found is None:
        return None
    is_found = explorer.posterior.mean >= np.float32(found.threshold)
    starts = events.sample_starts
    rows = np.flatnonzero(is_found)
    values = events.scaling.to_transformed(events.values[rows]).astype(np.float32)
    ends = np.searchsorted(rows, starts)
    parts = [*(slice(*pair) for pair in pairwise(ends)), slice(None)]
    medians = np.full((len(parts), values.shape[1]), np.nan, np.float32)
    for number, part in enumerate(parts):
        if len(values[part]):
            medians[number] = np.median(values[part], axis=0)
    return Exploration(judgements, found, is_found, np.diff(ends), medians, values)
