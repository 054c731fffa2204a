"""Weights of samples: how many events an event of each sample counts as.

With weights w_i the likelihood is prod_i f(x_i | theta)^w_i, a weighted (composite) likelihood. An event with
weight 2 counts as two events. Labels are drawn as usual, and all statistics are weighted sums over the
events: counts, sums, scatters, the log likelihood, and the log probabilities of split-merge proposals. The
weights have mean 1, so N events count as N.

Together with the coarsened posterior (`dpmix.model.coarsening`) an event counts zeta w_i.
docs/explanation/weights.md states which distribution the sampler has.

N events in S samples, which are consecutive ranges of events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints


@dataclass(frozen=True, eq=False)
class SampleWeights:
    """The weight of every event, by sample.

    Attributes
    ----------
    starts : int64 [S + 1]
        Ascending, from 0 to N. Events starts[s] to starts[s + 1] belong to sample s.
    values : float32 [S]
        Weight of each event of a sample; finite and above 0.

    Raises
    ------
    ValueError
        The arrays are not as described here.
    """

    starts: Ints
    values: Floats

    def __post_init__(self) -> None:
        starts, values = self.starts, self.values
        if starts.dtype != np.int64 or values.dtype != np.float32 or starts.shape != (len(values) + 1,):
            raise ValueError(
                f"weights: got starts {starts.dtype} {list(starts.shape)} and values {values.dtype} "
                f"{list(values.shape)}, need int64 [samples + 1] and float32 [samples]"
            )
        if len(values) == 0 or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise ValueError("weights: need starts of at least one sample, ascending from 0")
        if not (np.isfinite(values).all() and (values > 0.0).all()):
            raise ValueError("weights: need finite numbers above 0")

    @property
    def n_events(self) -> int:
        return int(self.starts[-1])

    @property
    def smallest(self) -> float:
        """The smallest weight of an event."""
        return float(self.values[np.diff(self.starts) > 0].min())

    def part(self, start: int, stop: int) -> SampleWeights:
        """Return the weights of the events start, ..., stop - 1, numbered from 0."""
        return SampleWeights(np.clip(self.starts, start, stop) - start, self.values)

    def each(self) -> Floats:
        """Return the weight of each event, float32 [N]."""
        return np.repeat(self.values, np.diff(self.starts))

    def of_events(self, events: Ints) -> Floats:
        """Return the weights of some events, given their numbers, float32 [M]."""
        weights: Floats = self.values[np.searchsorted(self.starts, events, side="right") - 1]
        return weights


def sample_weights(starts: Ints, relative: Array | None) -> SampleWeights | None:
    """Return weights of mean 1, in proportion to given ones; None if all events then have weight 1.

    Parameters
    ----------
    starts : int64 [S + 1]
        As in `SampleWeights`.
    relative : float64 [S] or None
        Weight of an event of each sample, up to a common factor. None: every sample has the same total
        weight, N / (S' N_s) for each of its N_s events, with S' the number of samples that have events.

    Returns
    -------
    SampleWeights or None
        A sample without events has weight 1.
    """
    sizes = np.diff(starts)
    if relative is None:
        relative = 1.0 / np.maximum(sizes, 1)
    scaled = relative * (starts[-1] / (relative @ sizes))
    values = np.where(sizes > 0, scaled, 1.0).astype(np.float32)
    # Equal weights must give the draws of a run without weights, bit for bit.
    return None if (values == 1.0).all() else SampleWeights(starts, values)
