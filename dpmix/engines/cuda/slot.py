"""Memory that each pass in progress has for itself on a CUDA device: mixture, sums, results of batches."""

from __future__ import annotations

import numpy as np
import pycuda.driver as driver

from dpmix.engines.cuda import library
from dpmix.engines.cuda.lane import BatchResults, HeldMixture, LaneEvents, n_log_sums
from dpmix.kernels.layout import MAX_COMPONENTS, Layout


class SlotEvents:
    """Events of the driver, which live as long as the context.

    Attributes
    ----------
    origin, mixture_sent, added, ended : int
        The start of the pass; its mixture is on the device; a batch has been added to the sums; the sums are
        on the host.
    """

    def __init__(self, blocking: bool) -> None:
        self.origin, self.mixture_sent, self.added = (library.make_event() for _ in range(3))
        self.ended = library.make_event(driver.event_flags.BLOCKING_SYNC if blocking else 0)
        self.blocking = blocking
        self._marks: list[LaneEvents] = []

    def marks(self, number: int) -> LaneEvents:
        """Return the events that time a batch."""
        while len(self._marks) <= number:
            self._marks.append(LaneEvents.make(self.blocking))
        return self._marks[number]


class Slot:
    """Memory of a pass in progress, which no other pass uses meanwhile.

    Attributes
    ----------
    events : SlotEvents
    state, state_here
        The sums of the pass (`dpmix.engines.exact`), then rounded, float64 flat [5 n], on the device; and the
        first or the second of them, page-locked on the host.
    mixtures : list of HeldMixture
        One for all lanes, or one for each lane if every sample has its own.
    now, now_here
        Table of a pruned draw (`dpmix.engines.cuda.work`), on the device and page-locked.
    """

    def __init__(
        self, layout: Layout, n_components: int, n_mixtures: int, batch: int, events: SlotEvents
    ) -> None:
        n_sums = n_components * layout.n_moments + n_log_sums(n_components)
        self.events = events
        self.mixtures = [HeldMixture(layout, n_components) for _ in range(n_mixtures)]
        self.state = driver.mem_alloc(5 * n_sums * 8)
        self.state_here = driver.pagelocked_empty(4 * n_sums, np.float64)
        self.now = driver.mem_alloc(MAX_COMPONENTS * 2)
        self.now_here = driver.pagelocked_empty(MAX_COMPONENTS, np.uint16)
        self._batch = batch
        self._results: list[BatchResults] = []

    def mixture(self, lane: int) -> HeldMixture:
        """Return the mixture that a lane reads."""
        return self.mixtures[lane % len(self.mixtures)]

    def results(self, batch: int) -> BatchResults:
        """Return the results of a batch, given its number in the pass."""
        while len(self._results) <= batch:
            self._results.append(BatchResults(self._batch, self.events.marks(len(self._results))))
        return self._results[batch]
