"""The interface of every engine.

An engine holds the events and never sees a prior; the sampler holds the prior and never sees an event.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpmix.model import Mixture, Stats

CHUNK = 65_536
"""Consecutive events of the grid on which statistics are formed and added, whatever engine forms them."""


class Key(NamedTuple):
    """What the uniform behind every label of one sweep is keyed by, beside the event's own number.

    The uniform of event i is ``((x0 >> 9) + 0.5) * 2**-23`` in float32, x0 the first word of Philox4x32-10
    (Salmon et al. 2011) with counter ``(i mod 2**32, i div 2**32, iteration, chain)`` and key
    ``(seed mod 2**32, seed div 2**32)``.
    """

    seed: int
    chain: int
    iteration: int


class Engine(Protocol):
    """Holds N events in D channels and turns a mixture into sufficient statistics."""

    @property
    def n_events(self) -> int: ...

    @property
    def n_channels(self) -> int: ...

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """What this engine is, for the log and the run file; its ``backend`` first."""
        ...

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes so far in ``kernels`` and, where there are devices, in ``copies``.

        Of several devices that work side by side, the mean.
        """
        ...

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label (Gibbs step 1) and sum the statistics of the events by label."""
        ...

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities (the E step)."""
        ...

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Labels of one chain, int32 [N]: its latest draw, or the most probable ones after the E step."""
        ...

    def close(self) -> None:
        """Let go of the events and of every resource."""
        ...
