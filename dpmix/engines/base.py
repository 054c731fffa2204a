"""The interface of every engine.

An engine holds the events and never sees a prior; the sampler holds the prior and never sees an event.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpmix.model import Array, Mixture, Stats

CHUNK = 65_536
"""Consecutive events of the grid on which statistics are formed, whatever engine forms them.

A chunk's are formed in one order; those of chunks are added in a way that does not depend on order
(dpmix.engines.exact).
"""


class Key(NamedTuple):
    """What the uniform behind every label of one sweep is keyed by, beside the event's own number.

    The uniform of event i is ``((x >> 9) + 0.5) * 2**-23`` in float32, x the first word of Philox4x32-10
    (Salmon et al. 2011) with counter ``(i mod 2**32, i div 2**32, iteration, chain)`` and key
    ``(seed mod 2**32, seed div 2**32)``. The other three words are for the scans of `Engine.divide`.
    """

    seed: int
    chain: int
    iteration: int


def chain_of(key: Key | None) -> int:
    """The chain whose labels a pass leaves; an E step has no key, and leaves those of the first."""
    return 0 if key is None else key.chain


class Deal(NamedTuple):
    """Which labelled events `Engine.divide` deals out, and how.

    Attributes
    ----------
    pairs : int32 [K]
        The pair, 0 to P - 1, to which the events of each component belong; -1 for those that are left alone.
    sides : int8 [K]
        The side of the pair, 0 or 1, that all events of a component are given; -1 where each draws its own.
    word : int
        Which of the words 1, 2 and 3 behind an event's uniform its side is drawn by.
    """

    pairs: npt.NDArray[np.int32]
    sides: npt.NDArray[np.int8]
    word: int


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

    def divide(self, deal: Deal, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Deal the events of some components out to pairs of new ones, as a split-merge move asks.

        What an event gets depends on the event, its label in the latest draw of ``key.chain``, the mixture,
        the key and the word alone. Labels, and the statistics of later passes, are as if this had not been
        called.

        Parameters
        ----------
        deal : Deal
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
            For a deal that is not as `Deal` says, or where the chain has no labels of K components.
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
