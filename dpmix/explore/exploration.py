"""The exploration of a run's events: judgements, and the events that are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        Medians of the events found in each sample and in all, transformed scale; NaN without events.
    values : float32 [F, D]
        The events found, transformed scale.
    """

    judgements: Judgements
    found: Found
    is_found: Bools
    sizes: Ints
    medians: Floats
    values: Floats


class HeldDevices:
    """Devices that compute the posterior at all events, and may keep the events between uses; or the CPU.

    Parameters
    ----------
    events : Events
    engine : EngineConfig
        Devices.
    backend : "cpu" or "cuda"
    keep : callable, optional
        Returns, after each use, whether the devices stay open. Default: they are free again after each.
    """

    def __init__(
        self, events: Events, engine: EngineConfig, backend: str, keep: Callable[[], bool] = lambda: False
    ) -> None:
        self._events, self._engine, self._backend, self._keep = events, engine, backend, keep
        self._device: CudaGaussianProcess | None = None

    @contextmanager
    def used(self) -> Iterator[CudaGaussianProcess | None]:
        """Yield the devices, opened if they are not; None for the CPU.

        Raises
        ------
        DpmixError
            A device cannot be used.
        """
        if self._backend == "cuda" and self._device is None:
            from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess  # imports PyCUDA, optional

            self._device = CudaGaussianProcess(self._events.values, self._engine.devices)
        try:
            yield self._device
        except BaseException:  # perhaps of the devices; the next use opens those that are there then
            self.release()
            raise
        if not self._keep():
            self.release()

    def release(self) -> None:
        """Free the devices; the next use opens them again."""
        device, self._device = self._device, None
        if device is not None:
            device.close()


def explorer_of(
    events: Events,
    judgements: Judgements,
    seed: int,
    engine: EngineConfig,
    backend: str,
    known: Explorer | None = None,
    held: HeldDevices | None = None,
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
        What computes the posterior at all events.
    known : Explorer, optional
        An earlier one of the same events. If the judgements only add screens to its own, it is continued, and
        only these are computed. The result has the same bits.
    held : HeldDevices, optional
        Devices of these events. Default: devices that are free again when this returns.

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
        with (held or HeldDevices(events, engine, backend)).used() as device:
            known.judge(one.rows[m:], one.values[m:], one.checks[m:], one.screens[m:], device)
    return known


def _continues(judgements: Judgements, known: Explorer) -> bool:
    """Return whether judgements only add screens to the screens of an explorer."""
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
