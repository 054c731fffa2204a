"""The interface of every engine.

An engine holds the events and never sees a prior; the sampler holds the prior and never sees an event.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Mixture, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key


class Engine(Protocol):
    """An engine: holds N events in D channels and computes sufficient statistics from a mixture."""

    @property
    def n_events(self) -> int: ...

    @property
    def n_channels(self) -> int: ...

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Properties of this engine, for the log and the run file; ``backend`` first."""
        ...

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of all passes so far in ``kernels`` and, for devices, in ``copies``.

        For several devices that work in parallel, the mean.
        """
        ...

    @property
    def passes_at_once(self) -> int:
        """Label draws that may be made at a time, of different chains, each in a thread of its own."""
        ...

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label (Gibbs step 1) and sum the statistics of the events by label."""
        ...

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Assign the events of some components to pairs of new components, for a split-merge move.

        The side of an event depends on the event, its label in the latest draw of ``key.chain``, the mixture,
        the key and the word alone. The call does not change labels or the statistics of later passes.

        Parameters
        ----------
        split : SplitAssignment
        mixture : Mixture
            2P components; pair p has 2p and 2p + 1. Only the ratio of the weights within a pair matters.
        key : Key

        Returns
        -------
        stats : Stats
            Statistics of the 2P components; the log likelihood is 0.
        log_probabilities : float64 [P]
            Log probability, given the mixture, of the sides of all events of a pair; -inf if a side has no
            weight for one of its events.

        Raises
        ------
        ValueError
            The split does not match `SplitAssignment`, or the chain has no labels of K components.
        """
        ...

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities (the E step)."""
        ...

    def memberships(
        self, mixture: Mixture, populations: npt.NDArray[np.int64], start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Return membership probabilities of events in populations, and the log densities of the events.

        The result of an event depends on the event, the mixture and the populations alone, not on the ranges
        of the calls. The call does not change labels or the statistics of later passes.

        Parameters
        ----------
        mixture : Mixture
        populations : int [K]
            The population, 0 to P - 1, of each component. P is the largest number plus 1. Memberships of a
            number without a component are 0.
        start, stop : int
            The M events start, ..., stop - 1.

        Returns
        -------
        memberships : float32 [M, P]
            Sum of pi_j N(x_i | mu_j, Sigma_j) over a population's components, divided by the sum over all
            components; rows sum to 1. Components below the weight floor count in neither sum.
        log_densities : float64 [M]
            log sum_j pi_j N(x_i | mu_j, Sigma_j).

        Raises
        ------
        ValueError
            The populations are not such numbers, or the range is empty or exceeds the data.
        """
        ...

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Return the labels of a chain, int32 [N]: its latest draw, or the most probable after an E step."""
        ...

    def close(self) -> None:
        """Release the events and every resource."""
        ...
