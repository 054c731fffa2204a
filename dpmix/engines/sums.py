"""Statistics as order-free sums (dpmix.engines.exact), which may be added from parts of the data.

The sums of a pass are the moments of its K components, [K, N_MOMENTS] as in `dpmix.kernels.layout`, flat,
followed by the log likelihood or, for a division into P pairs, the log probability of each pair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache

from dpmix.engines import exact
from dpmix.engines.checks import rounded
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Array, Mixture, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key


class SummingEngine(ABC):
    """An engine (`dpmix.engines.base.Engine`) whose passes add one number per chunk to each sum.

    If several engines hold whole chunks of the same data, their merged sums have the same bits, in any order,
    as the sums of one engine with all data.
    """

    passes_at_once = 1

    @abstractmethod
    def draw_sums(self, mixture: Mixture, key: Key) -> Array:
        """Draw every label and return the state of the sums, float64 [4, K * N_MOMENTS + 1]."""

    @abstractmethod
    def expect_sums(self, mixture: Mixture) -> Array:
        """Do the E step and return the state of the sums, float64 [4, K * N_MOMENTS + 1]."""

    @abstractmethod
    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> Array:
        """Divide events among P pairs and return the sums' state, float64 [4, 2 * P * N_MOMENTS + P]."""

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label given the mixture, and sum the statistics of the events by label.

        Gibbs step 1; Suchard et al. (2010), J. Comput. Graph. Stat. 19:419, appendix A.
        """
        return stats_of(exact.values(self.draw_sums(mixture, key)), mixture)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities (see the class's notes)."""
        return stats_of(exact.values(self.expect_sums(mixture)), mixture)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide events among pairs of components; see `dpmix.engines.base.Engine.divide`."""
        return division_of(exact.values(self.divide_sums(split, mixture, key)), mixture)


layout_of = cache(Layout)
"""The layout of a number of channels, with its places computed once."""


def zeros(mixture: Mixture, n_logs: int = 1) -> Array:
    """Return the initial state of the sums of a pass, float64 [4, K * N_MOMENTS + n_logs]."""
    n_components, dim = mixture.means.shape
    return exact.zeros(n_components * Layout(dim).n_moments + n_logs)


def stats_of(values: Array, mixture: Mixture) -> Stats:
    """Return the statistics of a draw or an E step from its sums, float64 [K * N_MOMENTS + 1]."""
    return moments_of(values[:-1], mixture, float(values[-1]))


def division_of(values: Array, mixture: Mixture) -> tuple[Stats, Array]:
    """Return statistics and log probabilities of a division from its sums [2 * P * N_MOMENTS + P]."""
    n_pairs = len(mixture.means) // 2
    return moments_of(values[:-n_pairs], mixture, 0.0), values[-n_pairs:]


def moments_of(moments: Array, mixture: Mixture, log_likelihood: float) -> Stats:
    """Return the statistics of moments, float64 [K * N_MOMENTS]."""
    n_components, dim = mixture.means.shape
    counts, sums, scatters = layout_of(dim).unpack_moments(moments.reshape(n_components, -1))
    return Stats(counts, sums, scatters, rounded(mixture.means), log_likelihood)
