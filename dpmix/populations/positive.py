"""Thresholds of channels and percent positive of populations, with their uncertainty.

In every draw, the mixture and its populations give the ends of the levels of a channel by the rule that names
populations (`dpmix.populations.events.phenotypes`). The thresholds of the draws are the posterior of the
threshold. It is given where at least half of the draws have one. The limit of a control
(`dpmix.inputs.controls`) is moved in each draw by a normal deviate times its standard error.

In draw t, y_tspd is the expected number of events of sample s in population p above the threshold of channel
d, and n_tsp the expected number of events in p. The share of positive cells is drawn from

    Beta(1/2 + y, 1/2 + n - y),

Jeffreys' posterior, `REPEATS` times for each draw that has the threshold. Intervals are for the cells from
which the events are a random sample: they contain the uncertainty of thresholds, memberships and counting.

T draws, S samples, P populations, D channels, N events.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.controls import by_number
from dpmix.model.mixture import Array
from dpmix.model.streams import Step, Stream
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.pooling import transformed_draw
from dpmix.populations.draws.task import Task
from dpmix.populations.events.estimates import Estimates
from dpmix.populations.events.medians import evenly
from dpmix.populations.events.phenotypes import levels
from dpmix.system.progress import ProgressLog

MOST_DRAWS, REPEATS = 20, 20
BLOCK = 32_768
LEAST_DRAWS = 0.5  # share of the draws that must have a threshold


@dataclass(frozen=True)
class Positive:
    """Levels of the channels of a run, and events above the thresholds.

    Attributes
    ----------
    channels, samples : tuple of str
        D and S names.
    ends : float64 [T, 3, D]
        Ends of the levels of each draw (`dpmix.populations.events.phenotypes.levels`), transformed scale;
        NaN: none.
    positive : float64 [T, S, P, D]
        Expected events above the threshold; 0 where a draw has none.
    events : float64 [T, S, P]
        Expected events.
    population : int32 [N]
        Most probable population of each event.
    seed : int
        Seed of the run.
    """

    channels: tuple[str, ...]
    samples: tuple[str, ...]
    ends: Array
    positive: Array
    events: Array
    population: npt.NDArray[np.int32]
    seed: int

    @property
    def support(self) -> Array:
        """Share of the draws that have each end, float64 [3, D]."""
        share: Array = (~np.isnan(self.ends)).mean(axis=0)
        return share

    def thresholds(self, end: int, channel: int) -> tuple[float, float, float] | None:
        """Return the median and the 90% interval of an end of levels; None where most draws have none."""
        drawn = self.ends[:, end, channel]
        known = drawn[~np.isnan(drawn)]
        # A threshold in a few draws only comes from a ripple.
        if len(known) < max(LEAST_DRAWS * len(drawn), 1):
            return None
        low, middle, high = np.quantile(known, (0.05, 0.5, 0.95))
        return float(middle), float(low), float(high)

    def shares(self, channel: int) -> Estimates | None:
        """Return the positive shares in a channel, each float64 [S + 1, P + 1]; None without a threshold.

        The last row is for all samples together, the last column for all events.
        """
        if self.thresholds(1, channel) is None:
            return None
        known = ~np.isnan(self.ends[:, 1, channel])
        above, of = _with_totals(self.positive[known, :, :, channel]), _with_totals(self.events[known])
        a, b = above + 0.5, np.maximum(of - above, 0.0) + 0.5
        random = Stream(self.seed, 4, channel).step(Step.PROPORTIONS)
        # Several for each draw: 20 draws alone would make rough ends of intervals.
        drawn = random.beta(a, b, size=(REPEATS, *a.shape)).reshape(-1, *a.shape[1:])
        return Estimates.of((a / (a + b)).mean(axis=0), drawn)


def _with_totals(counts: Array) -> Array:
    """Return counts [T, S, P] with the sums over samples and populations as a last row and column."""
    whole = np.concatenate([counts, counts.sum(axis=1, keepdims=True)], axis=1)
    return np.concatenate([whole, whole.sum(axis=2, keepdims=True)], axis=2)


def positive_events(task: Task, found: Populations) -> Positive:
    """Return levels of all channels and events above the thresholds, from `MOST_DRAWS` draws at most."""
    events, run = task.events, found.run
    drawn = evenly(len(found.draws), MOST_DRAWS)
    random = Stream(task.config.seed, 4, 0).step(Step.POINTS)
    deviates = random.standard_normal((len(drawn), len(events.channels)))
    ends = np.array(
        [
            levels(
                *transformed_draw(run, events.scaling, *found.draws[t]),
                found.components[t],
                by_number(run.controls, events.channels, own),
            )
            for t, own in zip(drawn.tolist(), deviates, strict=True)
        ]
    )
    shape = len(drawn), len(events.samples), found.n_populations
    above, inside = np.zeros((*shape, len(events.channels))), np.zeros(shape)
    population = np.zeros(len(events.values), np.int32)
    progress = ProgressLog("levels", len(events.values))
    with closing(task.make_engine(events.values)) as engine:
        for sample, first in enumerate(events.sample_starts[:-1]):
            end = int(events.sample_starts[sample + 1])
            own = task.own_terms(found, sample)
            for start in range(int(first), end, BLOCK):
                stop = min(start + BLOCK, end)
                values = events.measured(np.arange(start, stop))[:, : len(events.channels)]
                total = np.zeros((stop - start, found.n_populations))
                for k, t in enumerate(drawn.tolist()):
                    mixture = found.mixture_of(t, own)
                    shares = engine.memberships(mixture, found.components[t], start, stop)[0].astype(
                        np.float64
                    )
                    shares = np.pad(shares, [(0, 0), (0, found.n_populations - shares.shape[1])])
                    total += shares
                    inside[k, sample] += shares.sum(axis=0)
                    above[k, sample] += shares.T @ (values > ends[k, 1])  # of NaN: none
                population[start:stop] = total.argmax(axis=1)
                progress.add(stop - start)
    return Positive(events.channels, events.samples, ends, above, inside, population, task.config.seed)
