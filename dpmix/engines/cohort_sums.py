"""Sums of a pass of the hierarchical model, which may be added from parts of the data in any order.

The statistics of a sample are about its own centres: the means moved by its shift, as the engine rounded
them. All moments are added in one exact sum over all chunks. In addition there are the counts and sums of
each sample. A part that holds all events of a sample sends these numbers, a part that holds some of them the
state of their sums (dpmix.engines.exact): at most two samples of a part are cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpmix.engines import exact
from dpmix.engines.checks import rounded
from dpmix.engines.sums import moments_of, zeros
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Array, Mixture, SampleStats, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key


class CohortSums(NamedTuple):
    """Sums of the events of a part.

    Attributes
    ----------
    total : float64 [4, n]
        State of the sums over all events; n is as in `dpmix.engines.sums`.
    rows : dict of int to float64 [K, D + 1]
        Sums of x - centre, then the count, of each component in each sample whose events are all in the part.
    cut : dict of int to float64 [4, K * (D + 1)]
        State of the rows of each sample that has events in other parts, too.
    """

    total: Array
    rows: dict[int, Array]
    cut: dict[int, Array]


class CohortSummingEngine(ABC):
    """An engine (`dpmix.engines.base.Engine`) whose passes return `CohortSums`."""

    passes_at_once = 1

    @abstractmethod
    def draw_sums(self, mixture: Mixture, key: Key) -> CohortSums:
        """Draw every label and return the sums of the events by label."""

    @abstractmethod
    def expect_sums(self, mixture: Mixture) -> CohortSums:
        """Do the E step and return the sums."""

    @abstractmethod
    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> CohortSums:
        """Divide events among pairs and return the sums."""

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label and sum the statistics of the events by label, in all and by sample."""
        return stats_of(self.draw_sums(mixture, key), mixture)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities, in all and by sample."""
        return stats_of(self.expect_sums(mixture), mixture)

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide the events of some components; see `dpmix.engines.base.Engine.divide`.

        A pair has the weights of `mixture` in all samples; `mixture.samples` has the shifts.
        """
        return division_of(self.divide_sums(split, mixture, key), mixture)


def empty(mixture: Mixture, n_logs: int) -> CohortSums:
    """Return the sums of no events; `n_logs` numbers follow the moments."""
    return CohortSums(zeros(mixture, n_logs), {}, {})


def state_of_rows(state: Array, mixture: Mixture) -> Array:
    """Return the rows' part of the state of all sums, float64 [4, K * (D + 1)]."""
    n_components, dim = mixture.means.shape
    moments = state[:, : n_components * Layout(dim).n_moments].reshape(4, n_components, -1)
    return moments[..., -dim - 1 :].reshape(4, -1)


def rows_of(state: Array, mixture: Mixture) -> Array:
    """Return rows from the state of their sums, float64 [K, D + 1]."""
    return exact.values(state).reshape(len(mixture.means), -1)


def add(sums: CohortSums, other: CohortSums) -> None:
    """Add the sums of other events, in place; the order of parts does not matter."""
    exact.merge(sums.total, other.total)
    # A sample whose events all lie in one part has one set of rows, so nothing is added twice.
    sums.rows.update(other.rows)
    for sample, state in other.cut.items():
        if sample in sums.cut:
            exact.merge(sums.cut[sample], state)
        else:
            sums.cut[sample] = state.copy()


def merged(one: CohortSums, other: CohortSums) -> CohortSums:
    """Return the sums of the events of both parts, in new arrays."""
    both = CohortSums(one.total.copy(), dict(one.rows), {s: state.copy() for s, state in one.cut.items()})
    add(both, other)
    return both


def stats_of(sums: CohortSums, mixture: Mixture) -> Stats:
    """Return the statistics of a draw or an E step from the sums of all events."""
    stats, logs = _stats_and_logs(sums, mixture, 1)
    return replace(stats, log_likelihood=float(logs[0]))


def division_of(sums: CohortSums, mixture: Mixture) -> tuple[Stats, Array]:
    """Return statistics and log probabilities of a division from the sums of all events."""
    return _stats_and_logs(sums, mixture, len(mixture.means) // 2)


def _stats_and_logs(sums: CohortSums, mixture: Mixture, n_logs: int) -> tuple[Stats, Array]:
    """Return the statistics of all events, and the sums of the numbers after the moments."""
    assert mixture.samples is not None
    total = exact.values(sums.total)
    shifts, (n_components, dim) = mixture.samples.shifts[:, None], mixture.means.shape
    rows = np.zeros((len(shifts), n_components, dim + 1))
    for sample, found in sums.rows.items():
        rows[sample] = found
    for sample, state in sums.cut.items():
        rows[sample] = rows_of(state, mixture)
    stats = moments_of(total[:-n_logs], mixture, 0.0)
    # Then all samples have the same centres, and recentring would only add rounding.
    if not shifts.any():
        return replace(stats, by_sample=SampleStats(rows[..., -1], rows[..., :-1])), total[-n_logs:]
    gaps = mixture.means + shifts
    # The engine rounds the moved means to float32, so a sample's centre minus its shift is not quite the
    # shared centre.
    gaps[...] = gaps.astype(np.float32)
    gaps -= shifts
    gaps -= rounded(mixture.means)
    return recentred(stats, rows[..., -1], rows[..., :-1], gaps), total[-n_logs:]


def recentred(stats: Stats, counts: Array, sums: Array, gaps: Array) -> Stats:
    """Return the statistics of all samples about the centres of `stats`, with shifts subtracted from events.

    Parameters
    ----------
    stats : Stats
        The sum of the statistics of the samples, each about its own centres.
    counts, sums : float64 [S, K], [S, K, D]
        Counts and sums of each sample, about its own centres.
    gaps : float64 [S, K, D]
        The centres of each sample minus its shift, minus the centres of `stats`.
    """
    moved = counts[..., None] * gaps
    left, right = gaps.transpose(1, 2, 0), sums.transpose(1, 0, 2)
    cross = left @ right
    scatters = stats.scatters + cross + cross.transpose(0, 2, 1) + left @ moved.transpose(1, 0, 2)
    total = stats.sums + moved.sum(axis=0)
    moved += sums
    return replace(stats, sums=total, scatters=scatters, by_sample=SampleStats(counts, moved))
