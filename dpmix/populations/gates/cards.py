"""The plots of a population on its card in the report: its first two gates, each in two channels.

The gates are searched as in `dpmix.populations.gates.strategy`, but only the best next gate is kept, and
there are at most two: the two plots in which the population is found most easily. The second shows the events
inside the first gate. All counts are made in the sample in which the gates are searched, and weighted to all
events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.events import Events
from dpmix.model.mixture import Array, Ints
from dpmix.populations.gates.polygons import Binned
from dpmix.populations.gates.strategy import Gate, Search, Totals, sample_of
from dpmix.system.threads import one_thread

BINS = 48  # of a channel
GATES = 2  # plots on a card


@dataclass(frozen=True)
class Plot:
    """A plot of two channels with a gate.

    Attributes
    ----------
    gate : PolygonGate or EllipseGate
        It has the channels of the plot.
    events, own : float64 [BINS, BINS]
        All events, and the events of the population, inside the gates before this one. The bins are equally
        wide over the range of the rasters; the first axis is for the first channel.
    """

    gate: Gate
    events: Array
    own: Array


@dataclass(frozen=True)
class Card:
    """The plots of a population, none for a population without events, and what its gates hold.

    Attributes
    ----------
    plots : tuple of Plot
    purity : float
        Share of the population in the events inside all gates.
    recovered : float
        Share of the population inside all gates (yield).
    """

    plots: tuple[Plot, ...]
    purity: float
    recovered: float


def find_cards(
    events: Events,
    population: npt.NDArray[np.int32],
    n_populations: int,
    n_cards: int,
    edges: Array,
    seed: int,
) -> tuple[Card, ...]:
    """Find the plots of the first populations.

    Parameters
    ----------
    events : Events
    population : int32 [N]
    n_populations, n_cards : int
        P, and the number of populations that get a card.
    edges : float64 [D, B + 1]
        Edges of the rasters, for the ranges of the plots.
    seed : int
        Seed of the sample in which the gates are searched.
    """
    if len(edges) < 2:
        return ()
    binned, own = sample_of(events, population, n_populations, seed)
    low, high = edges[:, 0], edges[:, -1]
    # Bins of equal width over the whole range, as the plot has them; the bins of the search are narrower
    # between quantiles.
    codes = np.clip((binned.values - low) * (BINS / (high - low)), 0, BINS - 1).astype(np.int64)
    totals = Totals(binned)
    with one_thread():
        return tuple(_card(binned, codes, own == p, totals) for p in range(n_cards))


def _card(binned: Binned, codes: Ints, own: npt.NDArray[np.bool_], totals: Totals) -> Card:
    """Return the card of one population; `codes`, int64 [M, D], are the bins of the events."""
    inside, plots = np.arange(len(own)), list[Plot]()
    for gate in Search(binned, own, totals).first(GATES):
        x, y = gate.channels
        places = codes[inside, x] * BINS + codes[inside, y]
        weights = binned.weights[inside]
        everything, of_own = (
            np.bincount(places, each, BINS**2).astype(np.float64).reshape(BINS, BINS)
            for each in (weights, weights * own[inside])
        )
        plots.append(Plot(gate, everything, of_own))
        inside = inside[gate.contains(binned.values[inside])]
    kept, selected = binned.weights[inside][own[inside]].sum(), binned.weights[inside].sum()
    total = binned.weights[own].sum()
    return Card(tuple(plots), float(kept / max(selected, 1e-9)), float(kept / max(total, 1e-9)))
