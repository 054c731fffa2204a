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

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide the events of some components among pairs of new ones, for a split-merge move.

        What an event gets depends on the event, its label in the latest draw of ``key.chain``, the mixture,
        the key and the word alone. Labels, and the statistics of later passes, are as if this had not been
        called.

        Parameters
        ----------
        split : SplitAssignment
        mixture : Mixture
            2P components, 2p and 2p + 1 those of pair p. Of their weights, the ratio within a pair counts.
        key : Key

        Returns
        -------
        stats : Stats
            Of the 2P components; its log likelihood is 0.
        log_probabilities : float64 [P]
            Log probability, given the mixture, of the sides of all events of a pair: -inf where one of them
            is on a side that has no weight for it.

        Raises
        ------
        ValueError
            The split does not fit `SplitAssignment`, or the chain has no labels of K components.
        """
        ...

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities (the E step)."""
        ...

    def memberships(
        self, mixture: Mixture, populations: npt.NDArray[np.int64], start: int, stop: int
    ) -> tuple[npt.NDArray[np.float32], Array]:
        """Membership probabilities of events in populations, and the events' log densities.

        What an event gets depends on the event, the mixture and the populations alone: not on how a range is
        cut into calls. Labels, and the statistics of later passes, are as if this had not been called.

        Parameters
        ----------
        mixture : Mixture
        populations : int [K]
            The population, 0 to P - 1, of each component. P is the largest number plus 1; of a number that no
            component has the memberships are 0.
        start, stop : int
            The events start, ..., stop - 1: M of them.

        Returns
        -------
        memberships : float32 [M, P]
            Sum of pi_j N(x_i | mu_j, Sigma_j) over a population's components, divided by that over all; rows
            sum to 1. Components below the weight floor have no part in either.
        log_densities : float64 [M]
            log sum_j pi_j N(x_i | mu_j, Sigma_j).

        Raises
        ------
        ValueError
            For populations that are not such numbers, and for a range with no event or beyond the data.
        """
        ...

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        """Labels of one chain, int32 [N]: its latest draw, or the most probable ones after the E step."""
        ...

    def close(self) -> None:
        """Let go of the events and of every resource."""
        ...
