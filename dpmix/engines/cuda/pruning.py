"""The decision whether a label draw on GPUs is pruned. Pruned and dense draws give the same bits."""

from __future__ import annotations

from dpmix.engines.checks import numbers_now
from dpmix.engines.cuda.work import Account, LastLabels
from dpmix.kernels.layout import THREADS, Layout
from dpmix.model.mixture import Mixture

WARPS = THREADS // 32
MIN_CHANNELS, MIN_COMPONENTS = 5, 16
"""Fewer channels or components leave too little to skip."""
WORTH = 0.75
"""Largest share of the multiply-adds at which a chain prunes (docs/explanation/kernels.md, by a model)."""
RETRY = 64
"""Draws after which a chain that draws densely tries a pruned draw."""


class PruningRule:
    """Chooses between pruned and dense draws, for each chain by its last pruned draw.

    Parameters
    ----------
    enabled : bool
        The option ``pruning`` of the engine.
    layout : Layout
    n_events : int
        Events of whole blocks: in every chunk, the number is rounded up.
    """

    def __init__(self, enabled: bool, layout: Layout, n_events: int) -> None:
        self._enabled = enabled and layout.n_channels >= MIN_CHANNELS
        self._n_channels = layout.n_channels
        self._n_warps = n_events / (layout.events_per_block / WARPS)
        self._dense_draws: dict[int, int] = {}  # since the last try, by chain

    def last_labels(self, chain: int, mixture: Mixture, is_sorted: bool) -> LastLabels | None:
        """Return how to use the labels of the chain's last pass in a pruned draw; None for a dense draw.

        Parameters
        ----------
        chain : int
            With labels of as many components.
        mixture : Mixture
        is_sorted : bool
            The last pass was a draw.
        """
        if not self._enabled or len(mixture.means) < MIN_COMPONENTS:
            return None
        dense = self._dense_draws.get(chain, 0)
        # A dense draw does not measure what pruning would save, so a pruned one is tried from time to time.
        if 0 < dense < RETRY:
            self._dense_draws[chain] = dense + 1
            return None
        return LastLabels(None if mixture.order is None else numbers_now(mixture), is_sorted)

    def note(self, chain: int, n_components: int, accounts: list[Account]) -> None:
        """Note the work of a chain's pruned draw."""
        share = self.share(n_components, accounts)
        self._dense_draws[chain] = 0 if share < WORTH else 1

    def share(self, n_components: int, accounts: list[Account]) -> float:
        """Return the share of the multiply-adds of a dense draw that a pruned draw made."""
        per_pair = self._n_channels * (self._n_channels + 1) // 2 + 2 * self._n_channels
        done = sum(account.work for account in accounts)
        return float(done / (self._n_warps * n_components * per_pair))
