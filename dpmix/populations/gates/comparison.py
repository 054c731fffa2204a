"""Compare populations with gates that a person has drawn: F1 of each gate.

F1 is the harmonic mean of precision (share of the population's events that are inside the gate) and recall
(share of the gate's events that are in the population): 2 |gate and population| / (|gate| + |population|).

A gate without gates inside it is matched with one population, and a population with one such gate, so that
the sum of F1 is the highest (Hungarian method, as in Aghaeepour et al. 2013, Nat. Methods 10:228). A gate
with gates inside it has its most similar population. Each gate also has the union of populations with the
highest F1: the populations with more than a threshold share of their events inside the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.inputs.events import Events
from dpmix.inputs.manual_gates import ManualGates
from dpmix.model.mixture import Array, Ints
from dpmix.populations.gates.polygons import Flags, f_measure


@dataclass(frozen=True)
class Comparison:
    """G gates and P populations.

    Attributes
    ----------
    source : str
        Path of the workspace.
    gates : tuple of str
        Names, for example "Live/CD3+".
    sizes : int64 [G]
        Gated events inside each gate.
    overlap : int64 [G, P]
        Events of each population inside each gate.
    populations : int64 [G, P]
        Events of each population in the samples that have the gate.
    """

    source: str
    gates: tuple[str, ...]
    sizes: Ints
    overlap: Ints
    populations: Ints

    @property
    def f1(self) -> Array:
        """F1 of each gate and population, float64 [G, P]."""
        return f_measure(self.overlap, self.populations, np.maximum(self.sizes, 1)[:, None])

    @property
    def precision(self) -> Array:
        """Share of the events of each population that are inside each gate, float64 [G, P]."""
        found: Array = self.overlap / np.maximum(self.populations, 1)
        return found

    @property
    def recall(self) -> Array:
        """Share of the events inside each gate that are in each population, float64 [G, P]."""
        found: Array = self.overlap / np.maximum(self.sizes, 1)[:, None]
        return found

    @property
    def leaves(self) -> Flags:
        """Gates without gates inside them, bool [G]."""
        return np.array([not any(o.startswith(f"{gate}/") for o in self.gates) for gate in self.gates], bool)

    def matches(self) -> Ints:
        """Return the population of each gate, int64 [G]; -1 for none."""
        from scipy.optimize import linear_sum_assignment

        scores, leaves = self.f1, np.flatnonzero(self.leaves)
        matched = np.where(scores.max(axis=1, initial=0.0) > 0, scores.argmax(axis=1), -1)
        # Only leaves are matched one to one: a gate around others shares its events with them, and may share
        # a population.
        matched[leaves] = -1
        rows, columns = linear_sum_assignment(-scores[leaves])
        alike = scores[leaves[rows], columns] > 0
        matched[leaves[rows[alike]]] = columns[alike]
        return matched

    def unions(self) -> tuple[list[Ints], Array]:
        """Return the populations whose union has the highest F1 with each gate, and this F1, float64 [G]."""
        chosen, scores = [], np.zeros(len(self.gates))
        for g, (inside, own) in enumerate(zip(self.overlap, self.populations, strict=True)):
            # The union with the highest F1 has the populations of largest share inside the gate, so one sort
            # replaces the search over all subsets.
            order = np.argsort(-inside / np.maximum(own, 1), kind="stable")
            f1 = f_measure(np.cumsum(inside[order]), np.cumsum(own[order]), max(self.sizes[g], 1))
            best = int(f1.argmax())
            scores[g] = f1[best]
            chosen.append(np.sort(order[: best + 1]) if f1[best] > 0 else np.empty(0, np.int64))
        return chosen, scores


class GatedSample(NamedTuple):
    """The events of one sample, and which of them are inside each gate.

    Attributes
    ----------
    first, end : int
        The events, among those that are compared.
    members : dict of str to bool [end - first]
        By the name of the gate.
    """

    first: int
    end: int
    members: dict[str, Flags]


def gated_samples(events: Events, gates: ManualGates, among: Ints | None = None) -> Iterator[GatedSample]:
    """Yield the gated events of each sample.

    Parameters
    ----------
    events : Events
    gates : ManualGates
    among : int64 [M], optional
        Numbers of the events to compare, ascending; default: all.

    Raises
    ------
    DataError
        A sample is not in the workspace, or a gate cannot be applied.
    """
    for sample, own in enumerate(events.sources):
        start, stop = (int(at) for at in events.sample_starts[sample : sample + 2])
        rows = events.rows_in_file(sample, start, stop)
        first, end = start, stop
        if among is not None:
            first, end = np.searchsorted(among, (start, stop)).tolist()
            rows = rows[among[first:end] - start]
        yield GatedSample(first, end, {name: flags[rows] for name, flags in gates.members(own).items()})


def unread_gates(events: Events, gates: ManualGates) -> list[str]:
    """Return a warning for each sample with gates that cannot be read: their names and the reasons."""
    return [
        f"{source.name}: gates of {gates.path} that cannot be read are left out: {unread}"
        for source in events.sources
        if (unread := gates.unread(source))
    ]


def compare(
    source: str, samples: Iterable[GatedSample], population: npt.NDArray[np.integer], n_populations: int
) -> Comparison:
    """Compare the populations of events with the gates of a workspace.

    Parameters
    ----------
    source : str
        Path of the workspace.
    samples : iterable of GatedSample
    population : int [M]
        Most probable population of each event that is compared.
    n_populations : int
    """
    counted: dict[str, Ints] = {}
    for first, end, members in samples:
        populations = population[first:end]
        everywhere = np.bincount(populations, minlength=n_populations)
        for name, inside in members.items():
            shared = np.bincount(populations[inside], minlength=n_populations)
            counted[name] = counted.get(name, 0) + np.stack((shared, everywhere))
    counts = np.array(list(counted.values()), np.int64).reshape(-1, 2, n_populations)
    return Comparison(source, tuple(counted), counts[:, 0].sum(axis=1), counts[:, 0], counts[:, 1])
