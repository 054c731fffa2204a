"""The exploration of a run's events: judgements, and the events that are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmix.config.engine import EngineConfig
from dpmix.explore.count import Bools, Found
from dpmix.explore.explorer import Explorer
from dpmix.explore.judgements import Judgements
from dpmix.explore.posterior import Device
from dpmix.inputs.events import Events
from dpmix.model.mixture import Floats, Ints


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
    events: Events, judgements: Judgements, seed: int, engine: EngineConfig, backend: str
) -> Explorer:
    """Return the explorer of a run's events, given all judgements at once.

    Parameters
    ----------
    events : Events
    judgements : Judgements
    seed : int
    engine : EngineConfig
        Threads and devices.
    backend : "cpu" or "cuda"
        What computes the posterior at all events. Devices are free again when this returns.

    Raises
    ------
    DpmixError
        A device cannot be used, or all have failed.
    """
    with _device(events, judgements, engine, backend) as device:
        explorer = Explorer(events.values, seed, engine.threads, device)
        explorer.judge(judgements.rows, judgements.values, judgements.checks)
    return explorer


@contextmanager
def _device(
    events: Events, judgements: Judgements, engine: EngineConfig, backend: str
) -> Iterator[Device | None]:
    """Yield devices that hold the events; None for the CPU, and without judgements, which need no pass."""
    if backend != "cuda" or not len(judgements.rows):
        yield None
        return
    from dpmix.engines.cuda_gaussian_process import CudaGaussianProcess  # imports PyCUDA, which is optional

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
